#!/usr/bin/env bash
# The tests, as the README runs them.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo test

#!/usr/bin/env bash
# The first commands that a reader of the README tries.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo run --release -p rankpact -- replay
cargo run --release -p rankpact -- bench

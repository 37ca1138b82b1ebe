#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")/.."

RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps

#!/usr/bin/env bash
# The models of the round protocol.
set -euo pipefail
cd "$(dirname "$0")/.."

# With --target, build scripts do not see the cfg; a folder of its own keeps the ordinary build.
host=$(rustc -vV | sed -n 's/host: //p')
RUSTFLAGS="--cfg loom" cargo test --profile loom --target "$host" --target-dir target-loom \
    -p rankpact-tests --test loom

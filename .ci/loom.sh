#!/usr/bin/env bash
# Models: the protocol that runs, on loom's atomics. Own target folder, so that the main build is not evicted.
set -euo pipefail
cd "$(dirname "$0")/.."
# With --target, build scripts do not see the cfg.
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="--cfg loom"
exec cargo test --profile loom --target "$host" --target-dir target-loom -p rankpact-tests --test loom -- "$@"

#!/usr/bin/env bash
# The first commands that a reader of the README tries, and one short turn of every bench.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo run --release -p rankpact -- replay
cargo run --release -p rankpact -- bench --rounds 1000
cargo bench -p rankpact-benches
cargo build --release -p rankpact -p rankpact-collective --bins --examples
for example in collective/examples/*.rs; do
    target/release/rankpact run -n 4 -- "target/release/examples/$(basename "$example" .rs)"
done

#!/usr/bin/env bash
# The exchange between hosts over MPI, in a target folder of its own: features of one build would be those of all.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR=target/mpi
cargo clippy -p rankpact-collective -p rankpact-tests --features rankpact-tests/mpi --all-targets -- -D warnings
cargo test -p rankpact-tests --features mpi --test process mpi::

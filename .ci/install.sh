#!/usr/bin/env bash
# What the other steps need beyond a Rust toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
# Debian's minimal images lack it; build scripts link with it.
command -v cc >/dev/null || { apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev; }
# Tests start ranks with mpirun and join network namespaces; where these are missing, such tests say so and pass.
command -v mpirun >/dev/null && command -v ip >/dev/null ||
    { apt-get update && apt-get install --yes --no-install-recommends openmpi-bin iproute2; }
# Headers of MPI, and what reads them for feature `mpi`.
dpkg --status libopenmpi-dev libclang-dev >/dev/null 2>&1 ||
    { apt-get update && apt-get install --yes --no-install-recommends libopenmpi-dev libclang-dev; }
# What ours is measured against; a bench leaves out what is missing.
dpkg --status g++ libgloo-dev libmpich-dev mpich >/dev/null 2>&1 ||
    { apt-get update && apt-get install --yes --no-install-recommends g++ libgloo-dev libmpich-dev mpich; }
# Environments of their own for the Python package.
python3 -c 'import ensurepip' 2>/dev/null || { apt-get update && apt-get install --yes --no-install-recommends python3-venv; }
cargo fetch --locked

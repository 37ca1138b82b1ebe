#!/usr/bin/env bash
# The Python package: built as a wheel, checked, installed into a second environment, and tried there.
set -euo pipefail
cd "$(dirname "$0")/.."

# The first of these that is new enough and has the interpreter lock.
for python in python3 python3.11 python3.12 python3.13 /usr/bin/python3; do
    "$python" -c 'import sys, ensurepip; assert sys.version_info >= (3, 11) and "t" not in sys.abiflags' 2>/dev/null && break
    python=
done
[ -n "$python" ] || { echo "Python 3.11 or later with ensurepip is needed (Debian: python3-venv)" >&2; exit 1; }

target=${CARGO_TARGET_DIR:-target}
build=$target/python/build use=$target/python/use wheels=$target/python/wheels
[ -x "$build/bin/pip" ] || "$python" -m venv "$build"
# Where torch is installed the package is tried with it.
torch=$("$python" -c 'import torch' 2>/dev/null && echo --system-site-packages || true)
[ -x "$use/bin/pip" ] || "$python" -m venv $torch "$use"
"$build/bin/pip" install --quiet --disable-pip-version-check maturin abi3audit
"$use/bin/pip" install --quiet --disable-pip-version-check mypy numpy pytest pytest-xdist

rm -rf "$wheels"
"$build/bin/maturin" build --locked --manifest-path python/Cargo.toml --out "$wheels"
"$build/bin/abi3audit" --strict --summary "$wheels"/*.whl
"$use/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheels"/*.whl
# The program that starts Python ranks.
cargo build --locked -p rankpact

# Beside the sources none of these would look at what is installed.
python=$PWD/$use/bin/python
cd python
"$python" -m mypy --package rankpact
"$python" -m mypy.stubtest --mypy-config-file pyproject.toml rankpact
"$python" -m mypy examples bench
CARGO_TARGET_DIR=$(cd .. && realpath "$target") "$python" -m pytest -q -n 4
"$python" bench/versus_torch.py --seconds 1

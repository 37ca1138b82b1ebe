#!/usr/bin/env bash
# Sources are ASCII: nothing in them can look like something else.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tables of results and recorded data are no sources.
if git grep --untracked -InP '[^\x00-\x7F]' -- '*.rs' '*.toml' '*.md' '*.py' '*.pyi' '*.c' '*.cc' '*.sh' '.ci/*'; then
    echo "not ASCII (above)" >&2
    exit 1
fi

#!/usr/bin/env bash
# The tags in the code and the rows of PROTOCOL.md are the same set, and each tag says so at its place.
set -euo pipefail
cd "$(dirname "$0")/.."
code=$(grep -rhoE '(full_fence|order|weakened)\("[A-Z][0-9]"' shm/src | grep -oE '[A-Z][0-9]' | sort -u)
rows=$(sed -n 's/^| \([A-Z][0-9]\) |.*/\1/p' shm/PROTOCOL.md | sort -u)
said=$(grep -rhoE '(ORDERING|RULE) \[[A-Z][0-9]\]' shm/src | grep -oE '[A-Z][0-9]' | sort -u)
diff <(echo "$code") <(echo "$rows") || { echo "tags in shm/src and rows in shm/PROTOCOL.md differ" >&2; exit 1; }
diff <(echo "$code") <(echo "$said") || { echo "a tag lacks its ORDERING or RULE comment" >&2; exit 1; }
echo "$(echo "$rows" | wc -l) tags, each with its row and its comment"

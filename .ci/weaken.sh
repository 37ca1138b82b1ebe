#!/usr/bin/env bash
# Negative controls: with any one ordering of PROTOCOL.md weakened, a model must fail.
# Rows marked "not shown" in the table say why loom cannot show them.
set -euo pipefail
cd "$(dirname "$0")/.."
tags=${*:-$(sed -n 's/^| \([A-Z][0-9]\) |.*| fails: .*/\1/p' shm/PROTOCOL.md)}
[ -n "$tags" ] || { echo "no tags in shm/PROTOCOL.md" >&2; exit 1; }
export RUST_BACKTRACE=0 RUSTFLAGS="--cfg loom"
host=$(rustc -vV | sed -n 's/^host: //p')
program=$(cargo test --profile loom --target "$host" --target-dir target-loom -p rankpact-tests --test loom --no-run 2>&1 |
    sed -n 's/.*Executable.*(\(.*\))$/\1/p')
survived=0
for tag in $tags; do
    # The model that fails is named in the table; only that one has to run.
    model=$(sed -n "s/^| $tag |.*| fails: \`\([a-z_]*\)\`.*/\1/p" shm/PROTOCOL.md)
    model=$("$program" --list | sed -n "s/^\(.*::$model\): test$/\1/p")
    # In a shell of its own, which keeps its word on the abort to itself.
    said=$(RANKPACT_WEAKEN=$tag bash -c 'timeout 300 "$0" --exact "$1" 2>&1; echo "exit $?"' "$program" "$model" 2>/dev/null)
    # Only a violated assertion or a deadlock counts, not a model that grew too large or took too long.
    if grep -qE 'assertion|deadlock|arrives whole' <<<"$said" && grep -qE '^exit (101|134)$' <<<"$said"; then
        echo "$tag weakened: $model fails, as it must"
    else
        echo "$tag weakened: $model: $(tail -n 1 <<<"$said")"
        survived=1
    fi
done
exit $survived

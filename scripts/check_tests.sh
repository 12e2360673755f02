#!/usr/bin/env bash
# Checks that no file in crates/*/tests is left out. A crate whose tests are one program lists them
# in tests/main.rs; tests with a program of their own are in its Cargo.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=0
for main in crates/*/tests/main.rs; do
    folder=${main%/main.rs}
    for file in "$folder"/*.rs "$folder"/*/mod.rs; do
        [ "$file" != "$main" ] && [ -e "$file" ] || continue
        name=${file#"$folder"/} name=${name%.rs} name=${name%/mod}
        grep -qx "mod $name;" "$main" || grep -q "\"tests/$name.rs\"" "${folder%/tests}/Cargo.toml" || {
            echo "$file is in no test program: add \`mod $name;\` to $main" >&2
            missing=1
        }
    done
done
exit "$missing"

#!/usr/bin/env bash
# Checks licences, bans and sources of dependencies with cargo-deny. Their result follows from
# Cargo.lock, deny.toml and the manifests. `deny.checked` has the checksum of those that have
# passed, so that nothing is done if they are the same. With --always, checks in any case and writes
# `deny.checked`.
set -euo pipefail
cd "$(dirname "$0")/.."

inputs() { git ls-files -z -- Cargo.lock deny.toml 'Cargo.toml' '*/Cargo.toml' ':!dynamo'; }
checksum() { inputs | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1; }
deny() {
    # A build without optimisation takes half the time.
    command -v cargo-deny >/dev/null || cargo install cargo-deny --locked --version 0.20.2 --debug
    cargo deny --all-features --locked check licenses bans sources
}

case "${1:-}" in
    "")
        if [ "$(cat deny.checked 2>/dev/null)" = "$(checksum)" ]; then
            echo "unchanged since \`just deny\` checked them (deny.checked)"
        else
            deny
            echo "they pass; write deny.checked with \`just deny\`" >&2
        fi
        ;;
    --always)
        deny
        checksum >deny.checked
        ;;
    *) echo "usage: $0 [--always]" >&2; exit 2 ;;
esac

#!/usr/bin/env bash
# Runs the examples except the notebook, which scripts/test_python.sh runs, and checks what they
# print. Takes a few minutes with the build. Arguments are options of cargo, such as features.
set -euo pipefail
cd "$(dirname "$0")/.."

# As `cargo test --workspace` builds them.
cargo build --quiet --locked --workspace --features forerun-cli/full "$@" --bin forerun --examples
built=target/debug
forerun=$built/forerun

echo "== Rust: embedding, streaming, a comparison, a custom decoder and a custom drafter"
for example in embed streaming compare decoder; do
    "$built/examples/$example"
done
"$built/examples/own_drafter" models/target

echo "== a chat bot over the API"
address=$(mktemp)
"$forerun" serve --port 0 --quiet >"$address" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$address"' EXIT
until grep -q listening "$address"; do
    kill -0 "$server"
    sleep 0.1
done
url=$(sed -n 's/^listening on //p' "$address")
answers=$(printf 'Tell me a story about a fox.\nTell me a story about a cat.\n' |
    python3 examples/chat_bot.py --server "$url" --max-tokens 40)
echo "$answers"
[ "$(grep -c . <<<"$answers")" -ge 2 ]
kill "$server"
wait "$server" || true

echo "== a comparison of methods as a picture"
python3 examples/compare_methods.py --forerun "$forerun" --max-tokens 60 --output target/methods.svg
grep -q "</svg>" target/methods.svg

#!/usr/bin/env bash
# Runs a static binary of forerun on an empty root file system, as the container does: no shell, no
# libraries, no /proc, an unprivileged user, and a model that is mounted read-only. Needs root, or
# user namespaces.
#
#   scripts/test_empty_root.sh BINARY
set -euo pipefail
binary=$(realpath "${1:?usage: $0 BINARY}")
cd "$(dirname "$0")/.."

if [ -z "${FORERUN_EMPTY_ROOT:-}" ]; then
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(--map-root-user)
    FORERUN_EMPTY_ROOT=1 exec unshare "${as_root[@]}" --mount "$0" "$binary"
fi

root=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; umount "$root/models" 2>/dev/null || true; rm -rf "$root"' EXIT
mkdir "$root/models"
cp "$binary" "$root/forerun"
mount --bind models "$root/models"
mount -o remount,bind,ro "$root/models"

user=(--userspec=65532:65532)
# A user namespace has no other users.
[ "$(cut -d' ' -f1 /proc/self/uid_map | head -1)$(awk '{print $3; exit}' /proc/self/uid_map)" = 04294967295 ] || user=()
inside() { env -i "$(command -v chroot)" "${user[@]}" "$root" /forerun "$@"; }

echo "== files: $(cd "$root" && find . -path ./models -prune -o -type f -print | tr '\n' ' ')"
inside --version
echo "== a story of the built-in pair"
inside run demo "Tell me a story about a fox." --seed 1 -n 40 --quiet
echo "== a model that is mounted read-only"
inside generate --model /models/target --draft-model /models/drafter --prompt "Once upon a time" -n 20
inside models show /models/target
echo "== doctor"
inside doctor --offline
echo "== serve"
env -i "$(command -v chroot)" "${user[@]}" "$root" /forerun serve --model /models/target --port 0 --quiet >"$root/address" &
server=$!
for _ in $(seq 300); do
    grep -q listening "$root/address" && break
    kill -0 "$server" && sleep 0.1
done
url=$(sed -n 's/^listening on //p' "$root/address")
python3 - "$url" <<'PYTHON'
import json, sys, time, urllib.request

url = sys.argv[1]
for _ in range(300):
    try:
        urllib.request.urlopen(url + "/health")
        break
    except OSError:
        time.sleep(0.1)
body = {"model": "target", "max_tokens": 20, "messages": [{"role": "user", "content": "Tell me a story about a cat."}]}
request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request))
assert answer["usage"]["completion_tokens"] == 20, answer
print(answer["choices"][0]["message"]["content"])
PYTHON
kill -TERM "$server"
wait "$server"
server=
echo "== passed"

#!/usr/bin/env bash
# Links the command for other platforms, and runs it where an emulator is installed: aarch64 Linux
# with qemu-user, Windows with wine. macOS links with zig (`pip install ziglang cargo-zigbuild`),
# and cannot run here. A platform without its compiler is skipped.
#
#   scripts/test_platforms.sh [aarch64|windows|macos]...
set -euo pipefail
cd "$(dirname "$0")/.."

need() { command -v "$1" >/dev/null 2>&1; }
# Builds quickly; only the kernels are optimised.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/cross
build() {
    rustup target add "$1" >/dev/null 2>&1 || { echo "skipped: rustup has no standard library for $1"; return 1; }
    local levels=(--config 'profile.dev.package."*".opt-level=0')
    for crate in core formats model decode plan sim reference train; do
        levels+=(--config "profile.dev.package.forerun-$crate.opt-level=1")
    done
    cargo "${2:-build}" --locked --package forerun-cli --target "$1" "${levels[@]}" --config 'profile.dev.debug=false'
}

# Old versions of wine lack the library of random numbers that Rust's standard library uses.
add_random_numbers() {
    local source
    source=$(mktemp --suffix .c)
    cat >"$source" <<'C'
#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T count) { return RtlGenRandom(bytes, (ULONG)count); }
C
    x86_64-w64-mingw32-gcc -shared -o "$1/bcryptprimitives.dll" "$source" -ladvapi32
    rm "$source"
}

# Runs the command in the ways that depend on the platform most.
try() {
    local folder
    folder=$(mktemp -d)
    "$@" --version
    plain=$("$@" generate --prompt "Once upon a time" --temperature 0 -n 30 --method autoregressive --quiet)
    for method in speculative pearl dsi; do
        drafted=$("$@" generate --prompt "Once upon a time" --temperature 0 -n 30 --method "$method" --quiet)
        [ "$plain" = "$drafted" ] || { echo "$method differs: $drafted" >&2; return 1; }
    done
    echo "$plain"
    "$@" generate --model models/target --draft-model models/drafter --prompt "The king" -n 10 --json >"$folder/answer.json"
    python3 -c 'import json, sys; assert len(json.load(open(sys.argv[1]))["tokens"]) == 10' "$folder/answer.json"
    "$@" run demo "Tell me a story about a fox." --seed 1 -n 20 -q
    printf 'Tell me a story about a cat.\n' | "$@" chat --seed 1 -n 20 -q
    "$@" models show models/target
    "$@" models list
    "$@" doctor --offline --no-measure
    "$@" completions bash | grep -c draft-tokens
    "$@" export --model models/drafter --gguf "$folder/drafter.gguf" --type q8_0
    "$@" generate --model "$folder/drafter.gguf" --prompt "The king" -n 10 -q
    ! "$@" generate --model models/none --prompt x 2>"$folder/errors" && grep -q none "$folder/errors"
    rm -rf "$folder"
}

for platform in "${@:-aarch64 windows macos}"; do
    for name in $platform; do
        echo "== $name"
        case "$name" in
            aarch64)
                need aarch64-linux-gnu-gcc || { echo "skipped: no gcc-aarch64-linux-gnu"; continue; }
                export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
                build aarch64-unknown-linux-gnu || continue
                binary=$CARGO_TARGET_DIR/aarch64-unknown-linux-gnu/debug/forerun
                if need qemu-aarch64; then try qemu-aarch64 -L /usr/aarch64-linux-gnu "$binary"; fi ;;
            windows)
                need x86_64-w64-mingw32-gcc || { echo "skipped: no gcc-mingw-w64-x86-64"; continue; }
                build x86_64-pc-windows-gnu || continue
                binary=$CARGO_TARGET_DIR/x86_64-pc-windows-gnu/debug/forerun.exe
                if need wine; then
                    add_random_numbers "$(dirname "$binary")"
                    try env WINEDEBUG=-all wine "$binary"
                fi ;;
            macos)
                need cargo-zigbuild || { echo "skipped: no cargo-zigbuild"; continue; }
                build aarch64-apple-darwin zigbuild ;;
            *) echo "usage: $0 [aarch64|windows|macos]..." >&2; exit 2 ;;
        esac
    done
done

#!/usr/bin/env bash
# Type-checks the crates that touch the system for macOS on aarch64 and Windows, or with --workspace
# all crates, with CUDA, also for Linux on aarch64, whose parts the others cover. Nothing is linked,
# so no other compiler is needed. The feature `hub` is left out, because its TLS library compiles C
# for the platform. A platform whose standard library cannot be fetched is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

platforms=(aarch64-apple-darwin x86_64-pc-windows-gnu)
case "${1:-}" in
    "") crates=(-p forerun-cpu -p forerun-runtime -p forerun-output -p forerun -p forerun-gpu --features forerun/gpu) ;;
    --workspace)
        platforms+=(aarch64-unknown-linux-gnu)
        features=forerun-cli/cuda,forerun-cli/server,forerun-cli/plots,forerun-cli/train
        crates=(--workspace --no-default-features --features "$features")
        ;;
    *) echo "usage: $0 [--workspace]" >&2; exit 2 ;;
esac

for platform in "${platforms[@]}"; do
    if ! rustup target add "$platform" >/dev/null 2>&1; then
        echo "skipped: $platform, because rustup cannot install its standard library"
        continue
    fi
    echo "$platform"
    RUSTFLAGS="-D warnings" cargo check --locked --quiet --target "$platform" "${crates[@]}"
done

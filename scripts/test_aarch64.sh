#!/usr/bin/env bash
# Runs the tests of the CPU's kernels for aarch64 under emulation, or with --sample those that
# compare the kernels with the slow reference. Needs the Debian packages qemu-user,
# gcc-aarch64-linux-gnu and libc6-dev-arm64-cross.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc

options=()

# Tests with the instructions of one processor: `max` has DotProd and I8MM, `cortex-a76` has
# DotProd, and `cortex-a53` has neither.
test_on() {
    echo "on $1"
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu $1 -L /usr/aarch64-linux-gnu" \
        cargo test "${options[@]}" --locked --quiet --target "$target" "${@:2}"
}

case "${1:-}" in
    "")
        # Emulated tests take minutes.
        export FORERUN_CASES="${FORERUN_CASES:-8}"
        test_on max -p forerun-vector --lib
        test_on max -p forerun-cpu --lib
        test_on max -p forerun-cpu --test integration -- row_invariance:: batches:: reference_device::
        for processor in cortex-a76 cortex-a53; do
            test_on "$processor" -p forerun-cpu --lib --test integration -- kernels:: row
        done
        ;;
    --sample)
        # Few tests run, so less optimisation takes less time in all.
        for crate in cache core cpu formats model vector; do
            options+=(--config "profile.dev.package.forerun-$crate.opt-level=1")
        done
        test_on max -p forerun-vector -p forerun-cpu --lib -- reduction products_of_bytes stored_blocks
        test_on cortex-a53 -p forerun-cpu --lib -- products_of_bytes stored_blocks
        ;;
    *) echo "usage: $0 [--sample]" >&2; exit 2 ;;
esac

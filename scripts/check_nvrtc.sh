#!/usr/bin/env bash
# Compiles all kernels with NVRTC for several GPUs of NVIDIA, without a GPU, and checks that nothing
# is contracted and that arrays of a thread's own are in registers. Downloads NVRTC (90 MB, NVIDIA's
# licence) into target/nvrtc unless FORERUN_NVRTC names its library.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p target

if [ -z "${FORERUN_NVRTC:-}" ]; then
    folder=target/nvrtc
    [ -d "$folder" ] || python3 -m pip install --quiet --target "$folder" nvidia-cuda-nvrtc
    FORERUN_NVRTC=$(find "$PWD/$folder" -name 'libnvrtc.so.*' -print -quit)
    export FORERUN_NVRTC
fi
log=target/nvrtc.log
# All of them.
export FORERUN_CASES=1000
cargo test -p forerun-gpu --features cuda --locked --lib every_kernel_compiles_with_nvrtc -- --nocapture | tee "$log"
# Without NVRTC the test reports that it is skipped.
grep -q "kernels with NVRTC" "$log"

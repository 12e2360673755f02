#!/usr/bin/env bash
# Checks and measures an NVIDIA GPU through CUDA with programs that were built elsewhere, in at most
# 8 minutes, and writes all results as JSON.
#
# usage: scripts/gpu_first_run.sh PROGRAMS RESULTS.json [--toy TARGET DRAFTER]
#
# PROGRAMS is a folder with
#   forerun       cargo build --release --features full,cuda
#   first_run     cargo build --release -p forerun-gpu --features cuda --example first_run
#   kernel_tests  cargo test --release -p forerun-gpu --features cuda --lib --no-run
#   pass_tests    the same with --test integration
#   libnvrtc.so.* and libnvrtc-builtins.so.* of the Python package nvidia-cuda-nvrtc, unless
#                 FORERUN_NVRTC is set or the system has NVRTC
# What is missing is left out, and the results say so. --toy computes toy models, for emulators.
set -uo pipefail

case $#,${3:-} in 2, | 5,--toy) ;; *) sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
programs=$(cd "$1" && pwd) results=$2 toy=${3:-}
# The built-in pair, unless models are named.
models=() extent=()
[ -z "$toy" ] || models=(--model "$4" --draft-model "$5") extent=(--max-tokens 8)
export FORERUN_GPU=0 FORERUN_GPU_CACHE=${FORERUN_GPU_CACHE:-$(mktemp -d)}
[ -n "${FORERUN_CUDA_EMULATOR:-}" ] || export FORERUN_GPU_API=cuda
nvrtc=$(find "$programs" -maxdepth 1 -name 'libnvrtc.so.*' -print -quit)
[ -n "${FORERUN_NVRTC:-}" ] || [ -z "$nvrtc" ] || export FORERUN_NVRTC=$nvrtc

output=$(mktemp) failed=0 separator=
trap 'rm -f "$output"' EXIT

# Prints standard input as a string of JSON.
json_string() {
    awk 'BEGIN { ORS = ""; print "\"" }
        { gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); gsub(/\t/, "\\t"); gsub(/[[:cntrl:]]/, ""); print $0 "\\n" }
        END { print "\"" }'
}

# step NAME SECONDS [VARIABLE=VALUE]... PROGRAM ARGUMENTS: runs a program of the folder, and appends
# its exit status, its time and its output. Output that is JSON stays so.
step() {
    local name=$1 seconds=$2 variables=() started=$SECONDS status
    shift 2
    while [[ $1 == *=* ]]; do variables+=("$1"); shift; done
    local program=$programs/$1
    shift
    printf '%s\n  "%s": ' "$separator" "$name" >>"$results"
    separator=,
    if [ ! -x "$program" ]; then
        printf '{"left_out": "%s is missing"}' "${program##*/}" >>"$results"
        return
    fi
    echo "== $name" >&2
    env ${variables[@]+"${variables[@]}"} timeout "$seconds" "$program" "$@" >"$output" 2> >(tee -a "$output.err" >&2)
    status=$?
    [ "$status" = 0 ] || failed=1
    printf '{"status": %d, "seconds": %d, ' "$status" "$((SECONDS - started))" >>"$results"
    if [ "$status" = 0 ] && [ "$(head -c 1 "$output")" = "{" ]; then
        printf '"output": ' && cat "$output"
    else
        printf '"text": ' && cat "$output" "$output.err" | json_string
    fi >>"$results"
    printf '}' >>"$results"
    rm -f "$output.err"
}

printf '{"version": %s, "toy": %s' "$("$programs/forerun" --version | json_string)" \
    "$([ -n "$toy" ] && echo true || echo false)" >"$results"
separator=,
step doctor 20 forerun doctor --offline --no-measure
step kernels 30 kernel_tests arithmetic:: product_shapes::
for arithmetic in tensor exact; do
    step "passes_$arithmetic" 110 FORERUN_GPU_ARITHMETIC=$arithmetic first_run ${toy:+--toy}
done
step rows_tensor 30 FORERUN_GPU_ARITHMETIC=tensor pass_tests tensor:: --test-threads 1 --nocapture
for method in autoregressive speculative pearl dsi; do
    placement=drafter=gpu:0,target=gpu:0,shared
    [ "$method" != autoregressive ] || placement=target=gpu:0
    step "$method" 20 FORERUN_GPU_ARITHMETIC=tensor forerun generate "${models[@]}" \
        --method "$method" --placement "$placement" --dtype bf16 --temperature 0 --verbose \
        --prompt "Once upon a time" "${extent[@]}"
done
for arithmetic in tensor exact; do
    # Toys have too few tokens for a certificate.
    [ -z "$toy" ] || break
    step "certificate_$arithmetic" 45 FORERUN_GPU_ARITHMETIC=$arithmetic forerun certify \
        --placement drafter=gpu:0,target=gpu:0,shared --dtype bf16
done
printf '\n}\n' >>"$results"
exit "$failed"

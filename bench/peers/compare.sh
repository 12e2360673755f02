#!/usr/bin/env bash
# Compares forerun with llama.cpp and transformers on one pair, with the same weights, prompts,
# threads and numbers of tokens. The engines alternate after each prompt. Weight types are compared
# one after another.
#
# Usage: bench/peers/compare.sh FOLDER TARGET DRAFTER OUT [options of `forerun bench run`]
#
#   FOLDER   the folder of install.sh; engines that are not installed there are skipped TARGET,
#   DRAFTER   Hugging Face directories of Llamas with the same vocabulary OUT      the output
#   folder, with a folder for each weight type: report.md, report.html and every answer
#
# Environment variables (and defaults): FORERUN, the program (forerun); DTYPES (f32 bf16 int8; for
# int8 llama.cpp uses q8_0, and transformers is skipped); DRAFT_TOKENS (4); METHODS, forerun's
# methods (speculative); PEERS (llama.cpp transformers).
set -euo pipefail
[ $# -ge 4 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n '2,13p' >&2; exit 2; }
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="$(cd "$1" && pwd)" target="$2" drafter="$3" out="$4"
shift 4
forerun="${FORERUN:-forerun}"
draft_tokens="${DRAFT_TOKENS:-4}"
peers="${PEERS:-llama.cpp transformers}"
# Each engine uses all cores, for the drafter and the target one after another.
threads="$(nproc)"
cores="cpu:0-$((threads - 1))"
[ "$threads" -gt 1 ] || cores="cpu:0"
context="$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["max_position_embeddings"])' "$target/config.json")"

is_selected() { case " $peers " in *" $1 "*) [ -e "$2" ] ;; *) false ;; esac; }

list() { printf '"%s", ' "$@" | sed 's/, $//'; }

for dtype in ${DTYPES:-f32 bf16 int8}; do
    to="$out/$dtype"
    mkdir -p "$to"
    sweep="$to/sweep.toml"
    # `shared` puts drafter and target on the same cores. Prompt lookup needs no cores of its own.
    cat >"$sweep" <<TOML
[[sweep]]
method = [$(list ${METHODS:-speculative})]
drafter = ["model", "prompt-lookup"]
draft-tokens = [$draft_tokens]
placement = "drafter=$cores,target=$cores,shared"
dtype = "$dtype"
TOML
    if is_selected llama.cpp "$folder/build/llama_peer"; then
        gguf="$dtype" cache=f16 load=auto
        case "$dtype" in
        f32) cache=f32 ;;
        bf16) load=none ;; # Memory-mapped bf16 weights were slower in our measurements.
        int8) gguf=q8_0 ;;
        esac
        "$forerun" export --model "$target" --gguf "$to/target.gguf" --type "$gguf"
        "$forerun" export --model "$drafter" --gguf "$to/drafter.gguf" --type "$gguf"
        # The caches have the same types as forerun's. Flash attention is off: it computes in half
        # precision, and is slower for single rows.
        cat >>"$sweep" <<TOML

[[peer]]
name = "llama.cpp"
command = [$(list "$folder/build/llama_peer" -m "$to/target.gguf" -md "$to/drafter.gguf" -t "$threads" \
    -tb "$threads" -c "$context" -b "$context" -fa off -lm "$load" -ctk "$cache" -ctv "$cache" -ctkd "$cache" -ctvd "$cache")]
dtype = "$dtype"
drafter = ["none", "model", "prompt-lookup"]
draft-tokens = [$draft_tokens]
TOML
    fi
    torch=""
    case "$dtype" in
    f32) torch=float32 ;;
    bf16) torch=bfloat16 ;;
    esac
    if [ -n "$torch" ] && is_selected transformers "$folder/venv/lib/python"*/site-packages/transformers; then
        cat >>"$sweep" <<TOML

[[peer]]
name = "transformers"
command = [$(list "$folder/venv/bin/python" "$here/transformers_peer.py" "$target" --drafter "$drafter" \
    --dtype "$torch" --threads "$threads")]
dtype = "$dtype"
drafter = ["none", "model", "prompt-lookup"]
draft-tokens = [$draft_tokens]
TOML
    fi
    OMP_PROC_BIND=true OMP_PLACES=cores "$forerun" bench run --model "$target" --draft-model "$drafter" \
        --sweep "$sweep" --out "$to" --ignore-eos "$@"
    rm -f "$to/target.gguf" "$to/drafter.gguf"
done

#!/usr/bin/env bash
# Compares forerun with llama.cpp and transformers on one pair: the same weights, prompts, threads and
# numbers of tokens, in turn prompt by prompt, for one weight type after the other.
#
# Usage: bench/peers/compare.sh FOLDER TARGET DRAFTER OUT [options of `forerun bench run`]
#
#   FOLDER   where install.sh has put the peers; one that is not there does not take part
#   TARGET, DRAFTER   Hugging Face directories of Llamas with one vocabulary
#   OUT      gets a folder for each weight type, with report.md, report.html and every answer
#
# Environment: FORERUN (the program), DTYPES ("f32 bf16 int8"; int8 is q8_0 there, and transformers has
# none), DRAFT_TOKENS (4), METHODS ("speculative", forerun's), PEERS ("llama.cpp transformers").
set -euo pipefail
[ $# -ge 4 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n '1,12p' >&2; exit 2; }
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="$(cd "$1" && pwd)" target="$2" drafter="$3" out="$4"
shift 4
forerun="${FORERUN:-forerun}"
draft_tokens="${DRAFT_TOKENS:-4}"
peers="${PEERS:-llama.cpp transformers}"
# Every core for whoever answers, drafter and target in turn.
threads="$(nproc)"
cores="cpu:0-$((threads - 1))"
[ "$threads" -gt 1 ] || cores="cpu:0"
context="$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["max_position_embeddings"])' "$target/config.json")"

takes_part() { case " $peers " in *" $1 "*) [ -e "$2" ] ;; *) false ;; esac; }

list() { printf '"%s", ' "$@" | sed 's/, $//'; }

for dtype in ${DTYPES:-f32 bf16 int8}; do
    to="$out/$dtype"
    mkdir -p "$to"
    sweep="$to/sweep.toml"
    # Prompt lookup shares no cores, so its placement is the target's alone.
    cat >"$sweep" <<TOML
[[sweep]]
method = [$(list ${METHODS:-speculative})]
drafter = ["model", "prompt-lookup"]
draft-tokens = [$draft_tokens]
placement = "drafter=$cores,target=$cores,shared"
dtype = "$dtype"
TOML
    if takes_part llama.cpp "$folder/build/llama_peer"; then
        gguf="$dtype" cache=f16 load=auto
        case "$dtype" in
        f32) cache=f32 ;;
        bf16) load=none ;; # Mapped, bf16 was slower where this was tried.
        int8) gguf=q8_0 ;;
        esac
        "$forerun" export --model "$target" --gguf "$to/target.gguf" --type "$gguf"
        "$forerun" export --model "$drafter" --gguf "$to/drafter.gguf" --type "$gguf"
        # Caches as forerun's; flash attention computes in half precision, and is slower for single rows.
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
    if [ -n "$torch" ] && takes_part transformers "$folder/venv/lib/python"*/site-packages/transformers; then
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

#!/bin/sh
# Trains eight drafters of the demonstration target with the same texts, steps, tokens in a step and
# learning rates, and measures them. Run it from the repository's root:
#
#   scripts/compare_drafters.sh OUT
#
# The target writes the texts itself, sampled at temperature 1, so that held-out acceptance is the
# one of sampling (docs/decisions/0047). OUT gets the texts, the drafters, their logs
# (NAME.training/log.jsonl) and the results of the benchmark. An interrupted run goes on where it
# was. FORERUN is the program, THREADS the number of cores that train (1), STEPS the number of steps
# (600).
set -eu
out=${1:?"usage: scripts/compare_drafters.sh OUT"}
threads=${THREADS:-1}
steps=${STEPS:-600}
if [ -z "${FORERUN:-}" ]; then
    cargo build --release --locked -p forerun-cli --features train,laboratory
    FORERUN=${CARGO_TARGET_DIR:-target}/release/forerun
fi
case $out in *[!A-Za-z0-9_./-]*) echo "OUT may have letters, digits and _ . / - only: $out" >&2; exit 2 ;; esac
target=models/target
mkdir -p "$out"

# Beginnings of stories. Those of the held-out texts are about others.
beginnings() {
    for who in $1; do
        for how in little big happy sad funny brave; do
            for opening in "Once upon a time, there was a" "One day, a" "In a small house lived a" "Lily and Tim saw a" \
                "Long ago, a" "Mom told a story about a" "Every morning, a" "Deep in the forest lived a"; do
                echo "$opening $how $who who wanted to play with a new friend"
            done
        done
    done
}
beginnings "bear cat dog fox frog mouse duck bird rabbit fish horse cow sheep lion tiger monkey snail turtle bee girl \
boy king queen farmer baker doctor train boat car truck ball tree flower star cloud dragon fairy robot teacher pirate \
wizard balloon kitten puppy squirrel prince" >"$out/beginnings.txt"
beginnings "pig goat wolf deer crab snake" >"$out/held-out-beginnings.txt"

write() {
    "$FORERUN" distill --model "$target" --prompts "$out/$1" --out "$out/$2" --count "$3" --seed "$4" \
        --prompt-chars 36 --parallel 16 --max-tokens 300 --temperature 1
}
write beginnings.txt texts.jsonl 2200 1
write held-out-beginnings.txt held-out.jsonl 144 2

# 600 steps of 2 sequences of 512 tokens, 1.7 passes over the texts. A quarter of the positions
# starts a group or a block.
learn() {
    name=$1
    share=$2
    shift 2
    "$FORERUN" train "$@" --target "$target" --out "$out/$name" --shards "$out/shards" --threads "$threads" \
        --data "$out/texts.jsonl" --validation "$out/held-out.jsonl" --distillation-share "$share" \
        --steps "$steps" --sequences 2 --accumulation 1 --optimizer muon --learning-rate 2e-3 --warmup 40 \
        --final-share 0.05 --evaluate-every 150 --evaluation-tokens 16384
}
learn dflash 1 dflash --masks 5 --layers 1 --group-share 0.25
learn dflash-2 1 dflash --masks 5 --layers 2 --group-share 0.25
# DSpark's divergence is a distance, whose gradient is small at first. So its authors keep a tenth
# of cross-entropy.
learn dspark 0.9 dspark --block-size 5 --layers 1 --group-share 0.25
learn parallelspec-eagle 1 parallel --integration eagle --masks 4 --group-share 0.25
learn parallelspec-medusa 1 parallel --integration medusa --masks 4 --group-share 0.25
learn medusa 1 medusa --heads 4
learn hydra 1 hydra --heads 4
learn eagle 1 eagle

# The measurement reads the drafters in OUT.
sed "s|OUT|$out|" docs/bench/block-drafters.toml >"$out/bench.toml"
"$FORERUN" bench run --sweep "$out/bench.toml" --temperature 0,1 --verify rejection --prompts-as text --limit 5 -n 120 \
    --repeats 2 --out "$out/bench"

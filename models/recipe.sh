#!/bin/sh
# Trains the demonstration models again, as described in models/README.md. Run it from the repository's root:
#
#   models/recipe.sh CORPUS OUT
#
# CORPUS holds books-train-*.txt.gz and books-val.txt.gz, or your own texts under these names. The script
# writes target/, drafter/ and deep-drafter/ to OUT, and the drafters that belong to the target: medusa/,
# eagle/, parallelspec-medusa/, parallelspec-eagle/ and parallelspec-medusa-8/. Training may be interrupted
# at any time (Ctrl-C or kill); the same command resumes it. Everything takes about four hours on two
# AVX-512 cores.
set -eu
corpus=${1:?"usage: models/recipe.sh CORPUS OUT"}
out=${2:?"usage: models/recipe.sh CORPUS OUT"}
mkdir -p "$out"
cargo build --release --features train
forerun() { "${CARGO_TARGET_DIR:-target}/release/forerun" "$@"; }

# The target, with a tokenizer of 4,096 tokens: 5.7 million tokens of 37.6.
forerun train lm --data "$corpus"/books-train-*.txt.gz --validation "$corpus"/books-val.txt.gz \
    --shards "$out/shards" --out "$out/target" \
    --steps 1400 --warmup 200 --learning-rate 1.5e-3 --final-share 0.05

# The drafters learn the target's distributions on the same text.
learn() {
    forerun train lm --data "$corpus"/books-train-*.txt.gz --validation "$corpus"/books-val.txt.gz \
        --shards "$out/shards" --tokenizer "$out/target" --teacher "$out/target" \
        --hidden 96 --heads 3 --kv-heads 1 --intermediate 256 --final-share 0.05 \
        --steps 600 --warmup 100 --learning-rate 3e-3 "$@"
}
learn --layers 2 --out "$out/drafter"
learn --layers 12 --out "$out/deep-drafter"

# Drafters that share the target's embedding and head learn its distributions on the same text. Only a
# quarter of the positions start a group of masks (an eighth with eight masks), which makes steps faster.
train_on_target() {
    name=$1
    shift
    forerun train "$@" --target "$out/target" --out "$out/$name" --shards "$out/shards" \
        --data "$corpus"/books-train-*.txt.gz --validation "$corpus"/books-val.txt.gz \
        --distillation-share 1 --learning-rate 2e-3 --final-share 0.05 --warmup 60 --steps 1000 \
        --sequences 2 --accumulation 1
}
train_on_target medusa medusa --heads 4
train_on_target eagle eagle
train_on_target parallelspec-medusa parallel --integration medusa --masks 4 --group-share 0.25
train_on_target parallelspec-eagle parallel --integration eagle --masks 4 --group-share 0.25
train_on_target parallelspec-medusa-8 parallel --integration medusa --masks 8 --group-share 0.125

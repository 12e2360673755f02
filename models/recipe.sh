#!/bin/sh
# Trains the demonstration family anew, as models/README.md tells. Run it from the repository's root:
#
#   models/recipe.sh CORPUS OUT
#
# CORPUS holds books-train-*.txt.gz and books-val.txt.gz, or any texts of your own under these names; OUT
# gets target/, drafter/, deep-drafter/, and drafters that stand on the target: medusa/, eagle/,
# parallelspec-medusa/, parallelspec-eagle/ and parallelspec-medusa-8/. Each run may be interrupted (Ctrl-C, or
# killed): the same command goes on where it was. On two AVX-512 cores all of it takes about four hours.
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

# A drafter learns the target's distributions, on the same text …
learn() {
    forerun train lm --data "$corpus"/books-train-*.txt.gz --validation "$corpus"/books-val.txt.gz \
        --shards "$out/shards" --tokenizer "$out/target" --teacher "$out/target" \
        --hidden 96 --heads 3 --kv-heads 1 --intermediate 256 --final-share 0.05 \
        --steps 600 --warmup 100 --learning-rate 3e-3 "$@"
}
learn --layers 2 --out "$out/drafter"
learn --layers 12 --out "$out/deep-drafter"

# Drafters that share the target's embedding and head, and learn its distributions on the same text. Groups
# of masks open at a quarter of the positions (an eighth with eight masks), for quicker steps.
stand_on_target() {
    name=$1
    shift
    forerun train "$@" --target "$out/target" --out "$out/$name" --shards "$out/shards" \
        --data "$corpus"/books-train-*.txt.gz --validation "$corpus"/books-val.txt.gz \
        --distillation-share 1 --learning-rate 2e-3 --final-share 0.05 --warmup 60 --steps 1000 \
        --sequences 2 --accumulation 1
}
stand_on_target medusa medusa --heads 4
stand_on_target eagle eagle
stand_on_target parallelspec-medusa parallel --integration medusa --masks 4 --group-share 0.25
stand_on_target parallelspec-eagle parallel --integration eagle --masks 4 --group-share 0.25
stand_on_target parallelspec-medusa-8 parallel --integration medusa --masks 8 --group-share 0.125

#!/bin/sh
# Trains the demonstration models again, as described in models/README.md. Run it from the
# repository's root:
#
#   models/recipe.sh STORIES OUT
#
# STORIES holds short stories in text files (.txt.gz) whose documents end with a line <|endoftext|>.
# The script writes target/, drafter/ and deep-drafter/ to OUT, and the drafters that belong to the
# target: medusa/, eagle/, parallelspec-medusa/ and parallelspec-eagle/. Training may be interrupted
# at any time (Ctrl-C or kill); the same command resumes it. Everything takes about three hours on
# two cores.
set -eu
stories=${1:?"usage: models/recipe.sh STORIES OUT"}
out=${2:?"usage: models/recipe.sh STORIES OUT"}
mkdir -p "$out/texts"
models=$(dirname "$0")
if [ -z "${FORERUN:-}" ]; then
    cargo build --release --locked --features train
    FORERUN=${CARGO_TARGET_DIR:-target}/release/forerun
fi

"$models/texts.py" "$stories" "$out/texts"
train=$out/texts/train.jsonl
validation=$out/texts/validation.jsonl

# The target, with a tokenizer of 4,096 tokens: 2.5 passes over 2.5 million tokens, and one more
# with a larger weight decay, because the model begins to remember the stories.
teach() {
    "$FORERUN" train lm --data "$train" --validation "$validation" --shards "$out/shards" --optimizer muon \
        --save-every 50 --evaluation-tokens 32768 "$@"
}
teach --out "$out/first-target" --steps 1500 --warmup 100 --learning-rate 3e-3 --final-share 0.02 --evaluate-every 300
teach --out "$out/target" --from "$out/first-target" --steps 640 --warmup 30 --learning-rate 2e-3 --final-share 0.01 \
    --weight-decay 0.6 --evaluate-every 160
cp "$models/generation_config.json" "$models/tokenizer_config.json" "$out/target"

# The drafters learn from texts that the target wrote itself: a third of them greedy, the others
# sampled.
write() {
    "$FORERUN" distill --model "$out/target" --prompts "$train" --prompt-chars 40 --parallel 16 \
        --max-tokens 400 "$@"
}
write --out "$out/texts/greedy.jsonl" --count 1500 --temperature 0
write --out "$out/texts/sampled.jsonl" --count 3000 --temperature 0.8 --seed 1

learn() {
    "$FORERUN" train lm --data "$out/texts/greedy.jsonl" "$out/texts/sampled.jsonl" \
        --validation "$validation" --shards "$out/own-shards" --tokenizer "$out/target" --teacher "$out/target" \
        --hidden 96 --heads 3 --kv-heads 1 --intermediate 256 --optimizer muon --final-share 0.05 \
        --evaluation-tokens 16384 --steps 350 --warmup 40 --learning-rate 5e-3 "$@"
}
learn --layers 2 --out "$out/drafter"
learn --layers 12 --out "$out/deep-drafter"
for name in drafter deep-drafter; do
    cp "$models/generation_config.json" "$models/tokenizer_config.json" "$out/$name"
done

# Drafters that share the target's embedding and head learn its distributions on the same texts.
# Only a quarter of the positions start a group of masks, which makes steps faster.
train_on_target() {
    name=$1
    shift
    "$FORERUN" train "$@" --target "$out/target" --out "$out/$name" --shards "$out/own-shards" \
        --data "$out/texts/greedy.jsonl" "$out/texts/sampled.jsonl" --validation "$validation" \
        --distillation-share 1 --optimizer muon --learning-rate 5e-3 --final-share 0.05 --warmup 40 \
        --evaluation-tokens 16384 --sequences 2 --accumulation 1
}
train_on_target eagle eagle --steps 800
train_on_target parallelspec-eagle parallel --integration eagle --masks 4 --group-share 0.25 --steps 800
train_on_target medusa medusa --heads 4 --steps 350
train_on_target parallelspec-medusa parallel --integration medusa --masks 4 --group-share 0.25 --steps 450

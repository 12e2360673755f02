#!/usr/bin/env python3
"""Make tiny random DSpark drafters, with golden drafts and confidences.

This script writes a random target, a Llama, and drafters for it: both storage
layouts, all kinds of heads, and both meanings of a block's rows. `golden.json`
in each drafter's folder has the tokens that it drafts, and the probabilities
of acceptance that it predicts. Tests of forerun load the folders and compare.

The forward pass is plain numpy in float64, after the paper (arXiv 2607.05147)
and the names of tensors and options. It shares no code with forerun or another
engine; the layers are those of make_dflash.py.

Usage:

    python make_dspark.py --out DIR

README.md in the same folder explains the fields.
"""

import numpy

import make_dflash
from drafters import TARGET, Kind, RandomTensors, main, random_head
from make_dflash import BLOCK, MASK, SLIDING

RANK = 5

# For each drafter: its storage layout, the features as numbers of the target's
# layers before them, the kind of its Markov head (absent without one), whether
# it has a confidence head, and whether that reads the token before a position,
# too. `in_place`: the row of a mask predicts the token in its place.
# `unsaid`: the options do not say so. The others are as in make_dflash.py.
DRAFTERS = {
    "authors": {
        "layout": "authors", "states": [0, 3, 7], "markov": "vanilla",
        "confidence": True, "reads_token": True},
    "authors-gated": {
        "layout": "authors", "states": [2, 5], "markov": "gated",
        "confidence": True, "reads_token": False},
    "authors-rnn": {
        "layout": "authors", "states": [1, 4], "markov": "rnn",
        "confidence": True, "reads_token": True},
    "speculators": {
        "layout": "speculators", "states": [2, 4, 7], "markov": "vanilla",
        "confidence": True, "reads_token": True, "draft_vocab": 41},
    "speculators-gated-sliding": {
        "layout": "speculators", "states": [2, 5], "markov": "gated",
        "confidence": True, "reads_token": True, "layer": SLIDING},
    "speculators-in-place": {
        "layout": "speculators", "states": [1, 8], "markov": "vanilla",
        "confidence": False, "in_place": True, "unsaid": True},
    "speculators-in-place-rnn": {
        "layout": "speculators", "states": [3, 6], "markov": "rnn",
        "confidence": True, "reads_token": True, "in_place": True,
        "draft_vocab": 41},
    "speculators-no-heads": {"layout": "speculators", "states": [2, 5]},
    "speculators-no-markov": {
        "layout": "speculators", "states": [0, 5], "confidence": True,
        "reads_token": False},
}


def sigmoid(x):
    return 1 / (1 + numpy.exp(-x))


class Drafter(make_dflash.Drafter):
    """A drafter with heads after its layers."""

    def __init__(self, recipe, tensors, target):
        super().__init__(recipe, tensors, target)
        if recipe["layout"] == "authors":
            self.causal = [False] * len(self.causal)
        self.markov = recipe.get("markov")
        self.confident = recipe.get("confidence", False)
        self.reads_token = recipe.get("reads_token", False)
        self.first_row = int(recipe.get("in_place", False))
        self.remembers = True

    def latent(self, hidden, embedding, state):
        """Returns what the bias of a position's logits is computed from, and
        the state after the position."""
        tensors = self.tensors

        def projected(name, inputs):
            name = f"markov_head.{name}"
            return (tensors[f"{name}.weight"] @ numpy.concatenate(inputs)
                    + tensors[f"{name}.bias"])

        if self.markov == "gated":
            gate = projected("gate_proj", [hidden, embedding])
            return sigmoid(gate) * embedding, state
        if self.markov == "rnn":
            gate, candidate, output = numpy.split(
                projected("joint_proj", [state, embedding, hidden]), 3)
            gate = sigmoid(gate)
            following = gate * state + (1 - gate) * numpy.tanh(candidate)
            return numpy.tanh(output), following if self.remembers else state
        return embedding, state

    def draft(self, tokens, features):
        """Drafts greedily after `tokens`, position by position. Returns the
        drafted tokens, the smallest gap between the two largest logits of a
        position, and the confidences."""
        tensors, state = self.tensors, numpy.zeros(RANK)
        drafted, confidences, margin = [], [], numpy.inf
        for row, hidden in enumerate(self.block(tokens, features)):
            previous = ([tokens[-1]] + drafted)[max(row - self.first_row, 0)]
            logits, inputs = self.head @ hidden, [hidden]
            if self.markov is not None:
                embedding = tensors["markov_head.markov_w1.weight"][previous]
                latent, state = self.latent(hidden, embedding, state)
                logits = logits + tensors[
                    "markov_head.markov_w2.weight"] @ latent
                inputs += [embedding] if self.reads_token else []
            if row < self.first_row:
                continue
            if self.confident:
                weights = tensors["confidence_head.proj.weight"][0]
                inputs = numpy.concatenate(inputs)
                logit = weights[:len(inputs)] @ inputs + tensors[
                    "confidence_head.proj.bias"][0]
                confidences.append(float(f"{sigmoid(logit):.7g}"))
            second, best = numpy.sort(logits)[-2:]
            margin = min(margin, best - second)
            token = int(numpy.argmax(logits))
            if "d2t" in tensors:
                token += int(tensors["d2t"][token])
            drafted.append(token)
        more = {"confidences": confidences} if self.confident else {}
        return drafted, float(margin), more


def random_drafter(recipe, drafter, seed):
    """Makes the tensors of a drafter."""
    layers = {key: value for key, value in recipe.items()
              if key != "draft_vocab"}
    made = RandomTensors([seed[0], 19])
    made.tensors = make_dflash.random_drafter(layers, drafter, seed)
    hidden, vocab = drafter.config["hidden_size"], TARGET["vocab_size"]
    outputs = recipe.get("draft_vocab", vocab)
    if "draft_vocab" in recipe:
        random_head(made, vocab, outputs, hidden)
    if recipe["layout"] == "authors":
        # Its authors store copies of the target's embedding and head.
        made.tensors["embed_tokens.weight"] = drafter.embedding.astype(
            numpy.float16)
        made.tensors["lm_head.weight"] = drafter.head.astype(numpy.float16)
    if drafter.markov is not None:
        made.add("markov_head.markov_w1.weight", (vocab, RANK))
        made.matrix("markov_head.markov_w2.weight", outputs, RANK, 2.0)
    for kind, name, height, width in [
            ("gated", "gate_proj", RANK, hidden + RANK),
            ("rnn", "joint_proj", 3 * RANK, 2 * RANK + hidden)]:
        if drafter.markov == kind:
            made.matrix(f"markov_head.{name}.weight", height, width, 2.0)
            made.add(f"markov_head.{name}.bias", height, 0.0, 0.5)
    if drafter.confident:
        width = hidden + (RANK if drafter.reads_token else 0)
        made.matrix("confidence_head.proj.weight", 1, width)
        made.add("confidence_head.proj.bias", 1, 0.5, 0.1)
    return made.tensors


def config_json(recipe):
    layer = {**make_dflash.LAYER, **recipe.get("layer", {})}
    in_place = recipe.get("in_place", False)
    heads = {
        "markov_rank": RANK if "markov" in recipe else 0,
        "markov_head_type": recipe.get("markov", "vanilla"),
        "enable_confidence_head": recipe.get("confidence", False),
        "confidence_head_with_markov": recipe.get("reads_token", False)}
    if recipe["layout"] == "authors":
        return {
            "architectures": ["Qwen3DSparkModel"], **layer, **heads,
            "block_size": BLOCK, "mask_token_id": MASK, "num_anchors": 512,
            "layer_types": ["full_attention"] * layer["num_hidden_layers"],
            "num_target_layers": TARGET["num_hidden_layers"],
            "target_layer_ids": [state - 1 for state in recipe["states"]],
            "tie_word_embeddings": False, "torch_dtype": "float16"}
    said = {} if recipe.get("unsaid") else {"sample_from_anchor": not in_place}
    return {
        "architectures": ["DSparkDraftModel"],
        "aux_hidden_state_layer_ids": recipe["states"], "block_size": BLOCK,
        "draft_vocab_size": recipe.get("draft_vocab", TARGET["vocab_size"]),
        "mask_token_id": MASK, "projector_type": "dflash", **said, **heads,
        "target_hidden_size": None, "model_type": "speculator_model",
        "speculators_config": {
            "algorithm": "dspark", "default_proposal_method": "greedy",
            "proposal_methods": [{
                "proposal_type": "greedy",
                "speculative_tokens": BLOCK - int(in_place)}],
            "verifier": {"architectures": ["LlamaForCausalLM"],
                         "name_or_path": "../target"}},
        "speculators_model_type": "dspark", "speculators_version": "0.7.0",
        "transformer_layer_config": layer, "dtype": "float16"}


def misreadings(recipe, drafter):
    """Yields names and changes of a drafter that ignores one option."""
    yield from make_dflash.misreadings(recipe, drafter)
    yield "what a row predicts", {"first_row": 1 - drafter.first_row}
    if drafter.markov is not None:
        yield "no Markov head", {"markov": None, "reads_token": False}
    if drafter.markov in ("gated", "rnn"):
        yield "vanilla", {"markov": "vanilla"}
    if drafter.markov == "rnn":
        yield "state", {"remembers": False}
    if drafter.reads_token:
        yield "token of confidence", {"reads_token": False}


KIND = Kind(drafters=DRAFTERS, salt=23, drafter=Drafter,
            random_drafter=random_drafter, config_json=config_json,
            misreadings=misreadings)


if __name__ == "__main__":
    main(KIND, __doc__)

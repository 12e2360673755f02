#!/usr/bin/env python3
"""Make tiny random PARD-2 drafters, with golden draft tokens.

This script writes a random target, a Llama, and drafters for it: whole models
with a projection of the target's features, with every option that changes
what a drafter computes. `golden.json` in each drafter's folder has the tokens
that it drafts. Tests of forerun load the folders and compare.

The forward pass is plain numpy in float64, after the paper (arXiv 2605.08632),
the names of tensors and options, and what its authors' code computes. It
shares no code with forerun or another engine; the target and the pieces of a
layer are in drafters.py.

Usage:

    python make_pard2.py --out DIR

README.md in the same folder explains the fields.
"""

import numpy

from drafters import (
    EPSILON, TARGET, Kind, RandomTensors, main, norm, ordinary_layer)

POSITIONS = 5
MASK = 63
LAYERS = TARGET["num_hidden_layers"]

# A drafter's layers, unless a drafter has other options.
LAYER = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "hidden_act": "silu", "hidden_size": 12, "intermediate_size": 20,
    "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6,
    "vocab_size": TARGET["vocab_size"], "max_position_embeddings": 256,
    "rms_norm_eps": EPSILON, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "float16",
}

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}

# For each drafter: the features as indices of transformers' `hidden_states`,
# the factor of the projection, whether that has a bias, changes to LAYER, and
# the names of the options.
DRAFTERS = {
    "four-states": {"indices": [-1, -3, -5, -7], "scale": 0.5},
    "last-state": {"indices": [-1], "scale": 0.75, "layer": LLAMA},
    "earlier-states": {
        "indices": [-2, 3], "scale": 0.5,
        "layer": {"tie_word_embeddings": True}},
    "embedding": {"indices": [LAYERS, 0], "scale": -0.5, "layer": LLAMA},
    "bias": {"indices": [-1, -6], "scale": 0.5, "bias": True},
    "default-scale": {"indices": [-1, -4], "projection": 30.0},
    "earlier-names": {
        "indices": [-1, -3], "scale": 0.5, "bias": True,
        "layer": LLAMA | {"spd_type": "pard2", "proj_bias": True,
                          "pard_target_dim": 32, "feat_scale": 7.0},
        "names": {"pard2_scale": "pard_scale", "pard2": None,
                  "pard2_target_dim": None, "pard2_proj_bias": None}},
}


class Drafter:
    """A drafter: its tensors, and the options that change its computation."""

    def __init__(self, recipe, tensors, target):
        self.config = {**LAYER, **recipe.get("layer", {})}
        self.tensors = tensors
        self.states = [index % (LAYERS + 1) for index in recipe["indices"]]
        self.scale = recipe.get("scale", 0.02)
        self.bias = tensors.get("target_proj.bias", 0.0)
        self.final_norm = target["model.norm.weight"]
        # The last of transformers' `hidden_states` is after the final norm.
        self.normed = [state == LAYERS for state in self.states]
        self.mask, self.shift, self.repeats = MASK, True, True

    def features(self, states):
        """Returns [tokens, number of states · hidden], none of them normed."""
        return numpy.concatenate([states[index] for index in self.states], -1)

    def draft(self, tokens, features):
        size = TARGET["hidden_size"]
        parts = [norm(features[:, part * size:(part + 1) * size],
                      self.final_norm) if normed
                 else features[:, part * size:(part + 1) * size]
                 for part, normed in enumerate(self.normed)]
        known = numpy.concatenate(parts, -1)
        # The row of a token reads the features of the token before it.
        first = numpy.zeros_like(known[:1])
        known = numpy.concatenate([first, known] if self.shift
                                  else [known, first])
        masks = POSITIONS - 1
        last = known[-1:] if self.repeats else first
        read = numpy.concatenate([known] + [last] * masks)
        projected = read @ self.tensors["target_proj.weight"].T + self.bias
        rows = tokens + [self.mask] * masks
        embedding = self.tensors["model.embed_tokens.weight"]
        hidden = embedding[rows] + self.scale * projected
        for layer in range(self.config["num_hidden_layers"]):
            hidden = ordinary_layer(
                hidden, self.tensors, f"model.layers.{layer}.", self.config,
                range(len(rows)))
        hidden = norm(hidden[-POSITIONS:], self.tensors["model.norm.weight"])
        logits = hidden @ self.tensors.get("lm_head.weight", embedding).T
        largest = numpy.sort(logits, -1)[:, -2:]
        margin = numpy.min(largest[:, 1] - largest[:, 0])
        return numpy.argmax(logits, -1).tolist(), margin


def random_drafter(recipe, drafter, seed):
    made, config = RandomTensors(seed), drafter.config
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    made.add("model.embed_tokens.weight", (vocab, hidden))
    for layer in range(config["num_hidden_layers"]):
        made.layer(f"model.layers.{layer}.", config, hidden)
    made.norm("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        made.matrix("lm_head.weight", vocab, hidden, 3.0)
    width = len(drafter.states) * TARGET["hidden_size"]
    made.matrix("target_proj.weight", hidden, width,
                recipe.get("projection", 1.5))
    if recipe.get("bias"):
        made.add("target_proj.bias", hidden)
    return made.tensors


def config_json(recipe):
    width = len(recipe["indices"]) * TARGET["hidden_size"]
    options = {
        "pard2": True, "pard2_scale": recipe.get("scale"),
        "pard2_target_dim": width, "pard2_target_layers": recipe["indices"],
        "pard2_proj_bias": recipe.get("bias", False)}
    names = recipe.get("names", {})
    options = {names.get(name, name): value for name, value in options.items()
               if names.get(name, name) and value is not None}
    return {**LAYER, **recipe.get("layer", {}), "pard_token": MASK, **options}


def files(stored):
    """Returns the tensors of each file."""
    def of_projection(name):
        return name.startswith("target_proj.")

    return {
        "model.safetensors": {
            name: tensor for name, tensor in stored.items()
            if not of_projection(name)},
        "warp_model.safetensors": {
            name: tensor for name, tensor in stored.items()
            if of_projection(name)}}


def misreadings(recipe, drafter):
    """Yields names and changes of a drafter that ignores one option."""
    yield "no features", {"scale": 0.0}
    yield "mask", {"mask": 0}
    yield "shift", {"shift": False}
    yield "features of masks", {"repeats": False}
    if any(drafter.normed):
        yield "final norm", {"normed": [False] * len(drafter.normed)}
    if not all(drafter.normed):
        yield "final norm of all", {"normed": [True] * len(drafter.normed)}
    if recipe.get("bias"):
        yield "bias", {"bias": 0.0}


KIND = Kind(drafters=DRAFTERS, salt=13, drafter=Drafter,
            random_drafter=random_drafter, config_json=config_json,
            misreadings=misreadings, files=files)


if __name__ == "__main__":
    main(KIND, __doc__)

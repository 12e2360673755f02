#!/usr/bin/env python3
"""Make tiny random EAGLE-3 drafters, with golden draft tokens.

This script writes a random target, a Llama, and drafters for it: both storage
layouts and every option that changes what a drafter computes. `golden.json` in
each drafter's folder has the tokens that it drafts. Tests of forerun load the
folders and compare.

The forward passes are plain numpy in float64, after the paper (Li et al. 2025,
arXiv 2503.01840) and the names of tensors and options. They share no code with
forerun or another engine; the target and the pieces of a layer are in
drafters.py.

Usage:

    python make_eagle3.py --out DIR

README.md in the same folder explains the fields.
"""

import numpy

from drafters import (
    EPSILON, TARGET, Kind, RandomTensors, attention, main, mlp, norm,
    ordinary_layer, random_head)

# The number of tokens in a draft.
DRAFT_TOKENS = 5

# A drafter's layer, unless a drafter has other options.
LAYER = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": 16,
    "intermediate_size": 20, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    "vocab_size": TARGET["vocab_size"], "max_position_embeddings": 256,
    "rms_norm_eps": EPSILON, "rope_theta": 10000.0,
}

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"

# For each drafter: its storage layout, its options, those in `eagle_config`,
# changes to LAYER, and the size of its vocabulary (absent if the head is the
# target's). `embedding` says whether it has its own embedding.
DRAFTERS = {
    "authors": {
        "layout": "authors", "draft_vocab": 41, "embedding": True},
    "authors-eagle-config": {
        # Indices of layers whose outputs are read.
        "layout": "authors", "draft_vocab": 41, "options": {},
        "eagle_config": {
            LAYER_IDS: [0, 3, 7], "norm_before_fc": True,
            "return_hidden_post_norm": True, "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True, "use_mtp_layernorm": False}},
    "authors-3.1": {
        "layout": "authors", "draft_vocab": 41,
        "options": {"fc_norm": True, "norm_output": True}},
    "speculators": {
        "layout": "speculators", "draft_vocab": 41,
        "options": {"norm_before_residual": True}},
    "speculators-layer-ids": {
        # Numbers of layers before the states that are read.
        "layout": "speculators", "draft_vocab": 41,
        "options": {"norm_before_residual": False, LAYER_IDS: [0, 3, 8, 1],
                    "num_aux_hidden_states": 4}},
    "speculators-norm-before-fc": {
        "layout": "speculators", "draft_vocab": 41,
        "options": {"norm_before_residual": True, "norm_before_fc": True,
                    LAYER_IDS: [2, 4]}},
    "speculators-norm-output": {
        "layout": "speculators", "draft_vocab": 41,
        "options": {"norm_before_residual": False, "norm_output": True,
                    "norm_before_fc": False, "fc_norm": False}},
    "speculators-3.1": {
        "layout": "speculators", "draft_vocab": 41, "embedding": True,
        "options": {"norm_before_residual": True, "norm_output": True,
                    "fc_norm": True, LAYER_IDS: [1, 3, 5]}},
    "speculators-target-head": {
        "layout": "speculators",
        "options": {"norm_before_residual": True},
        "layer": {"attention_bias": True}},
    "speculators-whole-vocabulary": {
        "layout": "speculators", "draft_vocab": TARGET["vocab_size"],
        "options": {"norm_before_residual": True},
        "layer": {"num_key_value_heads": 4, "rope_parameters": {
            "rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}}},
    "speculators-qwen3": {
        "layout": "speculators", "draft_vocab": 41,
        "options": {"norm_before_residual": True},
        "layer": {"model_type": "qwen3", "rope_theta": 100000.0}},
    "speculators-two-layers": {
        "layout": "speculators", "draft_vocab": 41,
        "options": {"norm_before_residual": True, "norm_output": True},
        "layer": {"num_hidden_layers": 2}},
    "speculators-narrow": {
        "layout": "speculators", "draft_vocab": 41, "embedding": True,
        "options": {"norm_before_residual": True, "fc_norm": True,
                    "target_hidden_size": TARGET["hidden_size"]},
        "layer": {"hidden_size": 12}},
}


class Drafter:
    """A drafter: its tensors, and the options that change its computation."""

    def __init__(self, recipe, tensors, target):
        options = recipe.get("options", {})
        nested = recipe.get("eagle_config", {})
        self.config = {**LAYER, **recipe.get("layer", {})}
        self.first = ("midlayer." if recipe["layout"] == "authors"
                      else "layers.0.")
        self.tensors = tensors
        self.embedding = tensors.get(
            "embed_tokens.weight", target["model.embed_tokens.weight"])
        self.head = tensors.get("lm_head.weight", target["lm_head.weight"])
        layers = TARGET["num_hidden_layers"]
        # The number of layers before each state.
        self.states = [2, layers // 2, layers - 3]
        if LAYER_IDS in options:
            self.states = list(options[LAYER_IDS])
        if LAYER_IDS in nested:
            self.states = [index + 1 for index in nested[LAYER_IDS]]
        self.normed_residual = options.get("norm_before_residual", False)
        self.norm_output = options.get("norm_output", False) or nested.get(
            "return_hidden_post_norm", False)
        self.norm_whole = options.get("norm_before_fc", False) or nested.get(
            "norm_before_fc", False)
        self.norm_parts = options.get("fc_norm", False)

    def features(self, states):
        """Returns [tokens, number of states · hidden]."""
        return numpy.concatenate([states[index] for index in self.states], -1)

    def inputs(self, features):
        """Projects features to the first layer's hidden states."""
        if self.norm_whole:
            features = norm(features, self.tensors["input_norm.weight"])
        if self.norm_parts:
            parts = numpy.split(features, len(self.states), -1)
            features = numpy.concatenate([
                norm(part, self.tensors[f"fc_norm.{index}.weight"])
                for index, part in enumerate(parts)], -1)
        return features @ self.tensors["fc.weight"].T

    def layers(self, hidden, tokens):
        """Returns the hidden states after the last layer. Row i is at
        position i."""
        tensors, first = self.tensors, self.first
        positions = range(len(hidden))
        embeddings = norm(self.embedding[tokens],
                          tensors[f"{first}input_layernorm.weight"])
        normed = norm(hidden, tensors[f"{first}hidden_norm.weight"])
        residual = normed if self.normed_residual else hidden
        hidden = residual + attention(
            numpy.concatenate([embeddings, normed], -1), tensors, first,
            self.config, positions)
        hidden = hidden + mlp(hidden, tensors, first)
        for layer in range(1, self.config["num_hidden_layers"]):
            hidden = ordinary_layer(hidden, tensors, f"layers.{layer}.",
                                    self.config, positions)
        return hidden

    def draft(self, tokens, features):
        """Drafts greedily after `tokens`, the last of which the target has
        not read: there are features of all others. Returns the drafted tokens
        and the smallest gap between the two largest logits of a step."""
        hidden = self.inputs(features)
        tokens, drafted, margin = list(tokens[1:]), [], numpy.inf
        for _ in range(DRAFT_TOKENS):
            last = self.layers(hidden, tokens)[-1]
            normed = norm(last, self.tensors["norm.weight"])
            logits = self.head @ normed
            second, best = numpy.sort(logits)[-2:]
            margin = min(margin, best - second)
            token = int(numpy.argmax(logits))
            if "d2t" in self.tensors:
                token += int(self.tensors["d2t"][token])
            drafted.append(token)
            tokens.append(token)
            following = normed if self.norm_output else last
            hidden = numpy.concatenate([hidden, following[None]])
        return drafted, float(margin)


def random_drafter(recipe, drafter, seed):
    """Makes the tensors of a drafter."""
    made, config = RandomTensors(seed), drafter.config
    hidden, vocab = config["hidden_size"], TARGET["vocab_size"]
    width, parts = TARGET["hidden_size"], len(drafter.states)
    made.matrix("fc.weight", hidden, parts * width, 2.0)
    if drafter.norm_whole:
        made.norm("input_norm.weight", parts * width)
    if drafter.norm_parts:
        for part in range(parts):
            made.norm(f"fc_norm.{part}.weight", width)
    if recipe.get("embedding"):
        made.add("embed_tokens.weight", (vocab, hidden))
    made.norm(f"{drafter.first}hidden_norm.weight", hidden)
    made.layer(drafter.first, config, 2 * hidden)
    for layer in range(1, config["num_hidden_layers"]):
        made.layer(f"layers.{layer}.", config, hidden)
    made.norm("norm.weight", hidden)
    draft_vocab = recipe.get("draft_vocab")
    if draft_vocab is not None:
        random_head(made, vocab, draft_vocab, hidden)
    return made.tensors


def config_json(recipe):
    layer = {**LAYER, **recipe.get("layer", {})}
    if "rope_parameters" in layer:
        del layer["rope_theta"]
    options = dict(recipe.get("options", {}))
    if "draft_vocab" in recipe:
        options["draft_vocab_size"] = recipe["draft_vocab"]
    if recipe["layout"] == "authors":
        if "eagle_config" in recipe:
            options["eagle_config"] = recipe["eagle_config"]
        return {"architectures": ["LlamaForCausalLMEagle3"], **layer,
                **options, "tie_word_embeddings": False,
                "torch_dtype": "float16"}
    return {
        "architectures": ["Eagle3DraftModel"], **options,
        "model_type": "speculator_model",
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [{
                "proposal_type": "greedy",
                "speculative_tokens": DRAFT_TOKENS}],
            "verifier": {"architectures": ["LlamaForCausalLM"],
                         "name_or_path": "../target"}},
        "speculators_model_type": "eagle3", "speculators_version": "0.5.0",
        "transformer_layer_config": layer, "dtype": "float16"}


def misreadings(recipe, drafter):
    """Yields names and changes of a drafter that ignores one option."""
    if drafter.normed_residual:
        yield "norm_before_residual", {"normed_residual": False}
    if drafter.norm_output:
        yield "norm_output", {"norm_output": False}
    if drafter.norm_whole:
        yield "norm_before_fc", {"norm_whole": False}
    if drafter.norm_parts:
        yield "fc_norm", {"norm_parts": False}
    states, last = drafter.states, TARGET["num_hidden_layers"]
    if LAYER_IDS in recipe.get("eagle_config", {}):
        yield "indices as ids", {"states": [state - 1 for state in states]}
    else:
        yield "ids as indices", {"states": [
            min(state + 1, last) for state in states]}
    if "d2t" in drafter.tensors:
        without = {**drafter.tensors}
        del without["d2t"]
        yield "d2t", {"tensors": without}
    config = drafter.config
    if config["model_type"] == "qwen3":
        yield "norms of heads", {"config": {**config, "model_type": "llama"}}
    if config["num_hidden_layers"] > 1:
        yield "second layer", {"config": {**config, "num_hidden_layers": 1}}
    if "rope_parameters" in config:
        plain = {**config, "rope_parameters": None}
        yield "scaling", {"config": plain}


KIND = Kind(drafters=DRAFTERS, salt=3, drafter=Drafter,
            random_drafter=random_drafter, config_json=config_json,
            misreadings=misreadings)


if __name__ == "__main__":
    main(KIND, __doc__)

#!/usr/bin/env python3
"""Make tiny random DFlash drafters, with golden draft tokens.

This script writes a random target, a Llama, and drafters for it: both storage
layouts and every option that changes what a drafter computes, also those of
JetSpec (arXiv 2606.18394), which is DFlash with causal rows. `golden.json` in
each drafter's folder has the tokens that it drafts. Tests of forerun load the
folders and compare.

The forward pass is plain numpy in float64, after the paper (arXiv 2602.06036)
and the names of tensors and options. It shares no code with forerun or another
engine; the target and the pieces of a layer are in drafters.py.

Usage:

    python make_dflash.py --out DIR

README.md in the same folder explains the fields.
"""

import numpy

from drafters import (
    EPSILON, TARGET, Kind, RandomTensors, main, mlp, norm, random_head,
    rotated)

BLOCK = 6
MASK = 63

# A drafter's layers, unless a drafter has other options.
LAYER = {
    "model_type": "qwen3", "hidden_act": "silu",
    "hidden_size": TARGET["hidden_size"], "intermediate_size": 20,
    "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6,
    "vocab_size": TARGET["vocab_size"], "max_position_embeddings": 256,
    "rms_norm_eps": EPSILON, "rope_theta": 10000.0,
}

SLIDING = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}

ALL_SLIDING = {**SLIDING, "layer_types": ["sliding_attention"] * 2}

# For each drafter: its storage layout, the features as numbers of the target's
# layers before them, changes to LAYER, other options, those in
# `dflash_config`, and the size of its vocabulary (absent if the head is the
# target's).
DRAFTERS = {
    "z-lab": {"layout": "z-lab", "states": [2, 4, 7]},
    "z-lab-bias": {
        "layout": "z-lab", "states": [1, 8],
        "layer": {"attention_bias": True, "rope_parameters": {
            "rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}}},
    "z-lab-sliding": {
        "layout": "z-lab", "states": [2, 5], "layer": SLIDING},
    "z-lab-sliding-not-causal": {
        "layout": "z-lab", "states": [2, 5], "layer": SLIDING,
        "options": {"is_causal": False}},
    "z-lab-all-sliding": {
        "layout": "z-lab", "states": [1, 6], "layer": ALL_SLIDING},
    "z-lab-causal": {
        "layout": "z-lab", "states": [3, 6, 8], "nested": {"causal": True}},
    "jetspec": {
        "layout": "z-lab", "states": [2, 4, 7], "nested": {
            "causal_head": True,
            "target_hidden_size": TARGET["hidden_size"]}},
    "jetspec-bidirectional": {
        "layout": "z-lab", "states": [2, 7], "nested": {
            "causal_head": False}},
    "speculators": {"layout": "speculators", "states": [2, 4, 7]},
    "speculators-draft-vocabulary": {
        "layout": "speculators", "states": [0, 3], "draft_vocab": 41,
        "layer": {"num_hidden_layers": 1}},
    "speculators-sliding": {
        "layout": "speculators", "states": [2, 5], "layer": SLIDING},
    "speculators-all-sliding": {
        "layout": "speculators", "states": [1, 6], "layer": ALL_SLIDING},
    "speculators-sliding-not-causal": {
        "layout": "speculators", "states": [2, 5], "layer": SLIDING,
        "options": {"sliding_window_non_causal": True}},
}


class Drafter:
    """A drafter: its tensors, and the options that change its computation."""

    def __init__(self, recipe, tensors, target):
        self.config = {**LAYER, **recipe.get("layer", {})}
        self.tensors, self.states = tensors, recipe["states"]
        self.embedding = target["model.embed_tokens.weight"]
        self.head = tensors.get("lm_head.weight", target["lm_head.weight"])
        self.mask, self.anchor = MASK, True
        options = recipe.get("options", {})
        types = self.config.get("layer_types")
        self.windows = [
            self.config["sliding_window"]
            if types and types[index] == "sliding_attention" else None
            for index in range(self.config["num_hidden_layers"])]
        nested = recipe.get("nested", {})
        causal = options.get("is_causal", nested.get(
            "causal", nested.get("causal_head")))
        if options.get("sliding_window_non_causal"):
            causal = False
        self.causal = [
            window is not None if causal is None else causal
            for window in self.windows]

    def features(self, states):
        """Returns [tokens, number of states · hidden]."""
        return numpy.concatenate([states[index] for index in self.states], -1)

    def attention(self, x, context, layer):
        """Attention of the block's rows `x` over the context and the block."""
        config, dim = self.config, self.config["head_dim"]
        prefix = f"layers.{layer}.self_attn."

        def projected(name, rows):
            rows = rows @ self.tensors[f"{prefix}{name}_proj.weight"].T
            bias = self.tensors.get(f"{prefix}{name}_proj.bias", 0.0)
            return (rows + bias).reshape(len(rows), -1, dim)

        seen = numpy.concatenate([context, x])
        positions = numpy.arange(len(seen))
        own = positions[len(context):]
        queries = norm(projected("q", x), self.tensors[f"{prefix}q_norm.weight"])
        keys = norm(projected("k", seen), self.tensors[f"{prefix}k_norm.weight"])
        values = projected("v", seen)
        queries = rotated(queries, own, config)
        keys = rotated(keys, positions, config)
        group = config["num_attention_heads"] // config["num_key_value_heads"]
        keys, values = (numpy.repeat(rows, group, 1) for rows in (keys, values))
        scores = numpy.einsum("qhd,khd->hqk", queries, keys) / numpy.sqrt(dim)
        distance = own[:, None] - positions[None, :]
        hidden = numpy.zeros(distance.shape, bool)
        if self.causal[layer]:
            hidden |= distance < 0
        if self.windows[layer] is not None:
            hidden |= numpy.abs(distance) >= self.windows[layer]
        scores[:, hidden] = -numpy.inf
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = numpy.einsum("hqk,khd->qhd", weights, values)
        bias = self.tensors.get(f"{prefix}o_proj.bias", 0.0)
        return mixed.reshape(len(x), -1) @ self.tensors[
            f"{prefix}o_proj.weight"].T + bias

    def block(self, tokens, features):
        """Returns the hidden states of a block after the final norm. The
        target has not read the last of `tokens`: there are features of all
        others."""
        tensors = self.tensors
        context = norm(features @ tensors["fc.weight"].T,
                       tensors["hidden_norm.weight"])
        first = tokens[-1] if self.anchor else self.mask
        hidden = self.embedding[[first] + [self.mask] * (BLOCK - 1)]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            x = norm(hidden, tensors[f"{prefix}input_layernorm.weight"])
            hidden = hidden + self.attention(x, context, layer)
            hidden = hidden + mlp(hidden, tensors, prefix)
        return norm(hidden, tensors["norm.weight"])

    def draft(self, tokens, features):
        """Drafts greedily after `tokens`. Returns the drafted tokens and the
        smallest gap between the two largest logits of a row."""
        logits = self.block(tokens, features)[1:] @ self.head.T
        ordered = numpy.sort(logits, -1)
        margin = (ordered[:, -1] - ordered[:, -2]).min()
        drafted = logits.argmax(-1)
        if "d2t" in self.tensors:
            drafted = drafted + self.tensors["d2t"][drafted]
        return drafted.tolist(), float(margin)


def random_drafter(recipe, drafter, seed):
    """Makes the tensors of a drafter."""
    made, config = RandomTensors(seed), drafter.config
    hidden, vocab = config["hidden_size"], TARGET["vocab_size"]
    made.matrix("fc.weight", hidden, len(drafter.states) * hidden, 2.0)
    made.norm("hidden_norm.weight", hidden)
    for layer in range(config["num_hidden_layers"]):
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
    options = recipe.get("options", {})
    if recipe["layout"] == "z-lab":
        return {
            "architectures": ["DFlashDraftModel"], **layer, **options,
            "block_size": BLOCK,
            "num_target_layers": TARGET["num_hidden_layers"],
            "dflash_config": {
                "mask_token_id": MASK,
                "target_layer_ids": [state - 1 for state in recipe["states"]],
                **recipe.get("nested", {})},
            "tie_word_embeddings": False, "torch_dtype": "float16"}
    return {
        "architectures": ["DFlashDraftModel"],
        "aux_hidden_state_layer_ids": recipe["states"], "block_size": BLOCK,
        "draft_vocab_size": recipe.get("draft_vocab", TARGET["vocab_size"]),
        "mask_token_id": MASK, "projector_type": "dflash",
        "sample_from_anchor": False, "target_hidden_size": None, **options,
        "model_type": "speculator_model",
        "speculators_config": {
            "algorithm": "dflash", "default_proposal_method": "greedy",
            "proposal_methods": [{
                "proposal_type": "greedy", "speculative_tokens": BLOCK - 1}],
            "verifier": {"architectures": ["LlamaForCausalLM"],
                         "name_or_path": "../target"}},
        "speculators_model_type": "dflash", "speculators_version": "0.5.0",
        "transformer_layer_config": layer, "dtype": "float16"}


def misreadings(recipe, drafter):
    """Yields names and changes of a drafter that ignores one option."""
    last = TARGET["num_hidden_layers"]
    yield "layer ids", {"states": [
        min(state + 1, last) for state in drafter.states]}
    yield "mask", {"mask": 0}
    yield "last token", {"anchor": False}
    yield "causal", {"causal": [not flag for flag in drafter.causal]}
    if any(drafter.windows):
        yield "window", {"windows": [None] * len(drafter.windows)}
        yield "causal by window", {"causal": [
            not flag if window else flag
            for flag, window in zip(drafter.causal, drafter.windows)]}
    if "d2t" in drafter.tensors:
        without = {**drafter.tensors}
        del without["d2t"]
        yield "d2t", {"tensors": without}
    if "rope_parameters" in drafter.config:
        plain = {**drafter.config, "rope_parameters": None}
        yield "scaling", {"config": plain}


KIND = Kind(drafters=DRAFTERS, salt=5, drafter=Drafter,
            random_drafter=random_drafter, config_json=config_json,
            misreadings=misreadings)


if __name__ == "__main__":
    main(KIND, __doc__)

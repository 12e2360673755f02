#!/usr/bin/env python3
"""Make tiny random DFlash 2 drafters, with golden draft tokens.

This script writes a random target, a Llama, and drafters for it: both storage
layouts and every option that changes what a drafter computes. `golden.json` in
each drafter's folder has the tokens that it drafts. Tests of forerun load the
folders and compare.

The forward pass is plain numpy in float64, after the authors' description of
the convolutions and of the selector, and the names of tensors and options. It
shares no code with forerun or another engine; the rest of the layers is that of
make_dflash.py.

Usage:

    python make_dflash2.py --out DIR

README.md in the same folder explains the fields.
"""

import numpy

import make_dflash
from drafters import TARGET, Kind, main, norm
from make_dflash import ALL_SLIDING, BLOCK, MASK, SLIDING

# Sizes of the convolutions and of the selector, unless a drafter has others.
SIZES = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 5,
         "selector_top_k": 6}

# Options that scale embeddings and logits, and limit logits.
SCALES = {"input_embedding_scale": 2.5, "output_multiplier": 0.4,
          "final_logit_softcapping": 3.0}

# For each drafter: its storage layout, the features as numbers of the target's
# layers before them, changes to SIZES, whether these options are among the
# others rather than in `dflash_config`, and as in make_dflash.py.
DRAFTERS = {
    "z-lab": {
        "layout": "z-lab", "states": [2, 4, 7], "layer": ALL_SLIDING,
        "options": {"is_causal": False}},
    "z-lab-scales": {
        "layout": "z-lab", "states": [1, 8], "nested": SCALES},
    "z-lab-embedding-scale": {
        "layout": "z-lab", "states": [3, 5],
        "nested": {"input_embedding_scale": 0.2}},
    "z-lab-sliding": {
        "layout": "z-lab", "states": [2, 5], "layer": SLIDING,
        "sizes": {"conv_kernel_size": 4, "conv_group_size": 1}},
    "z-lab-causal": {
        "layout": "z-lab", "states": [3, 6, 8], "nested": {"causal": True},
        "sizes": {"conv_kernel_size": BLOCK, "conv_group_size": 16}},
    "z-lab-one-tap": {
        "layout": "z-lab", "states": [2, 7], "sizes": {
            "conv_kernel_size": 1, "selector_top_k": TARGET["vocab_size"]}},
    "z-lab-other-options": {
        "layout": "z-lab", "states": [1, 6], "options": SCALES,
        "outside": True, "sizes": {"selector_top_k": 2, "selector_rank": 3}},
    "speculators": {
        "layout": "speculators", "states": [2, 4, 7], "layer": ALL_SLIDING,
        "unsaid": True},
    "speculators-sliding-causal": {
        "layout": "speculators", "states": [2, 5], "layer": SLIDING,
        "options": {"sliding_window_non_causal": False},
        "sizes": {"conv_kernel_size": 3}},
}


class Drafter(make_dflash.Drafter):
    """A drafter with convolutions in its layers, and a selector after them."""

    def __init__(self, recipe, tensors, target):
        super().__init__(recipe, tensors, target)
        self.sizes = {**SIZES, **recipe.get("sizes", {})}
        self.scales = {
            name: {**recipe.get("options", {}), **recipe.get(
                "nested", {})}.get(name) for name in SCALES}
        if recipe["layout"] == "speculators" and not recipe.get(
                "options", {}).get("sliding_window_non_causal") is False:
            self.causal = [False] * len(self.causal)
        self.taps = self.sizes["conv_kernel_size"]
        self.candidates = self.sizes["selector_top_k"]
        self.outputs_convolved, self.dynamic, self.selects = True, True, True
        self.swapped, self.chained = False, True

    def kernels(self, x, name):
        """Returns the two kernels of each row: [2, rows, taps, hidden]."""
        taps, size = self.sizes["conv_kernel_size"], x.shape[-1]
        base = self.tensors[f"{name}.base_kernel"][:, None]
        own = x @ self.tensors[f"{name}.kernel_projection.weight"].T
        if not self.dynamic:
            own = 0 * own
        groups = size // self.sizes["conv_group_size"]
        own = own.reshape(len(x), 2, taps, groups).transpose(1, 0, 2, 3)
        kernels = base + numpy.repeat(own, size // groups, -1)
        return kernels[::-1] if self.swapped else kernels

    def convolved(self, x, kernel):
        """Row i is the sum over taps of kernel[i, tap] · x[i - tap]."""
        rows = numpy.zeros_like(x)
        for tap in range(self.taps):
            shifted = numpy.zeros_like(x)
            shifted[tap:] = x[:len(x) - tap]
            rows += kernel[:, tap] * shifted
        return rows

    def mlp(self, x, layer):
        prefix = f"layers.{layer}.mlp."
        gate = x @ self.tensors[f"{prefix}gate_proj.weight"].T
        up = x @ self.tensors[f"{prefix}up_proj.weight"].T
        return (gate / (1 + numpy.exp(-gate)) * up) @ self.tensors[
            f"{prefix}down_proj.weight"].T

    def sublayer(self, x, name, compute):
        before, after = self.kernels(x, name)
        added = compute(self.convolved(x, before))
        return self.convolved(added, after) if self.outputs_convolved else added

    def block(self, tokens, features):
        """Returns the hidden states of a block after the final norm."""
        tensors = self.tensors
        context = norm(features @ tensors["fc.weight"].T,
                       tensors["hidden_norm.weight"])
        first = tokens[-1] if self.anchor else self.mask
        scale = self.scales["input_embedding_scale"] or 1.0
        hidden = scale * self.embedding[[first] + [self.mask] * (BLOCK - 1)]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            x = norm(hidden, tensors[f"{prefix}input_layernorm.weight"])
            hidden = hidden + self.sublayer(
                x, f"{prefix}attention_conv",
                lambda x: self.attention(x, context, layer))
            x = norm(hidden, tensors[f"{prefix}post_attention_layernorm.weight"])
            hidden = hidden + self.sublayer(
                x, f"{prefix}mlp_conv", lambda x: self.mlp(x, layer))
        return norm(hidden, tensors["norm.weight"])

    def unary(self, hidden):
        """Returns the logits before the selector."""
        logits = self.head @ hidden * (self.scales["output_multiplier"] or 1.0)
        cap = self.scales["final_logit_softcapping"]
        return cap * numpy.tanh(logits / cap) if cap else logits

    def draft(self, tokens, features):
        """Drafts greedily after `tokens`, position by position. Returns the
        drafted tokens, and the smallest gap between two scores that decide."""
        tensors, previous = self.tensors, tokens[-1]
        drafted, margin = [], numpy.inf
        for hidden in self.block(tokens, features)[1:]:
            logits = self.unary(hidden)
            order = numpy.argsort(-logits)
            candidates = order[:self.candidates]
            if self.candidates < len(order):
                margin = min(margin, logits[order[self.candidates - 1]]
                             - logits[order[self.candidates]])
            scores = logits[candidates]
            if self.selects:
                projected = tensors[
                    "candidate_selector.hidden_projection.weight"] @ hidden
                predecessor = tensors[
                    "candidate_selector.predecessor_codebook"][previous]
                scores = scores + tensors[
                    "candidate_selector.successor_codebook"][candidates] @ (
                        predecessor * projected)
            if len(scores) > 1:
                second, best = numpy.sort(scores)[-2:]
                margin = min(margin, best - second)
            drafted.append(int(candidates[numpy.argmax(scores)]))
            previous = drafted[-1] if self.chained else previous
        return drafted, float(margin)


def random_drafter(recipe, drafter, seed):
    """Makes the tensors of a drafter."""
    tensors = make_dflash.random_drafter(recipe, drafter, seed)
    made = make_dflash.RandomTensors([*seed, 2])
    hidden, vocab = drafter.config["hidden_size"], TARGET["vocab_size"]
    taps, group, rank, _ = drafter.sizes.values()
    for layer in range(drafter.config["num_hidden_layers"]):
        for part in ["attention_conv", "mlp_conv"]:
            name = f"layers.{layer}.{part}"
            made.add(f"{name}.base_kernel", (2, taps, hidden), 0.0, 0.5)
            made.tensors[f"{name}.base_kernel"][:, 0] += 1
            made.matrix(f"{name}.kernel_projection.weight",
                        2 * taps * (hidden // group), hidden, 0.5)
    made.add("candidate_selector.predecessor_codebook", (vocab, rank))
    made.add("candidate_selector.successor_codebook", (vocab, rank))
    made.matrix("candidate_selector.hidden_projection.weight", rank, hidden, 0.7)
    return {**tensors, **made.tensors}


def config_json(recipe):
    config = make_dflash.config_json(recipe)
    sizes = {**SIZES, **recipe.get("sizes", {})}
    config["architectures"] = ["DFlash2DraftModel"]
    if recipe["layout"] == "z-lab":
        if recipe.get("outside"):
            return {**config, **sizes}
        nested = {"block_size": config.pop("block_size"), **sizes}
        config["dflash_config"] = {**nested, **config["dflash_config"]}
        return config
    if not recipe.get("unsaid"):
        config.setdefault("sliding_window_non_causal", True)
    config["speculators_config"]["algorithm"] = "dflash2"
    config["speculators_model_type"] = "dflash2"
    return {**config, **sizes}


def misreadings(recipe, drafter):
    """Yields names and changes of a drafter that ignores one option."""
    yield from make_dflash.misreadings(recipe, drafter)
    taps = drafter.sizes["conv_kernel_size"]
    if taps > 1:
        yield "last tap", {"taps": taps - 1}
    yield "output", {"outputs_convolved": False}
    yield "dynamic kernels", {"dynamic": False}
    yield "sides", {"swapped": True}
    yield "selector", {"selects": False}
    yield "predecessor", {"chained": False}
    if drafter.candidates < TARGET["vocab_size"]:
        yield "candidates", {"candidates": TARGET["vocab_size"]}
    for name, value in drafter.scales.items():
        if value is not None:
            yield name, {"scales": {**drafter.scales, name: None}}


KIND = Kind(drafters=DRAFTERS, salt=31, drafter=Drafter,
            random_drafter=random_drafter, config_json=config_json,
            misreadings=misreadings)


if __name__ == "__main__":
    main(KIND, __doc__)

#!/usr/bin/env python3
"""Make tiny random P-EAGLE drafters, with golden draft tokens.

This script writes a random target, a Llama, and drafters for it: both storage
layouts, and each name that the option with the mask has. `golden.json` in
each drafter's folder has the tokens that it drafts. Tests of forerun load the
folders and compare.

The forward pass is plain numpy in float64, after the paper (arXiv 2602.01469)
and the names of tensors and options: EAGLE-3's layers read the accepted tokens
and then masks, whose features are `mask_hidden`, all in one pass. It shares no
code with forerun or another engine; the layers are those of make_eagle3.py.

Usage:

    python make_peagle.py --out DIR

README.md in the same folder explains the fields.
"""

import numpy

import make_eagle3
from drafters import TARGET, Kind, main, norm
from make_eagle3 import DRAFT_TOKENS, LAYER_IDS

MASK = 63

# Recipes as in make_eagle3.py, with the name of the option that has the mask,
# and the number of dimensions of the mask's features.
DRAFTERS = {
    "authors": {
        "layout": "authors", "mask_option": "pard_token", "mask_dims": 2,
        "draft_vocab": 41, "embedding": True},
    "speculators": {
        "layout": "speculators", "mask_option": "mask_token_id",
        "mask_dims": 3, "draft_vocab": 41, "embedding": True,
        "options": {"norm_before_residual": True, LAYER_IDS: [1, 4]}},
    "speculators-four-layers": {
        "layout": "speculators", "mask_option": "ptd_token_id",
        "mask_dims": 3, "embedding": True,
        "options": {"norm_before_residual": False, "fc_norm": True},
        "layer": {"num_hidden_layers": 4}},
    "speculators-qwen3": {
        "layout": "speculators", "mask_option": "mask_token_id",
        "mask_dims": 2, "draft_vocab": TARGET["vocab_size"],
        "embedding": True,
        "options": {"norm_before_residual": True, "norm_before_fc": True},
        "layer": {"model_type": "qwen3", "num_hidden_layers": 2}},
}


class Drafter(make_eagle3.Drafter):
    """A drafter that reads masks."""

    def __init__(self, recipe, tensors, target):
        super().__init__(recipe, tensors, target)
        self.mask = MASK
        if "mask_hidden" in tensors:
            self.mask_features = tensors["mask_hidden"].reshape(1, -1)

    def draft(self, tokens, features):
        """Drafts greedily after `tokens`, in one pass: the last token's row
        predicts the first draft token, and each mask's row the next one."""
        masks = DRAFT_TOKENS - 1
        hidden = self.inputs(numpy.concatenate(
            [features, numpy.repeat(self.mask_features, masks, 0)]))
        rows = self.layers(hidden, list(tokens[1:]) + [self.mask] * masks)
        logits = norm(rows[-DRAFT_TOKENS:],
                      self.tensors["norm.weight"]) @ self.head.T
        ordered = numpy.sort(logits, -1)
        drafted = [int(token) for token in numpy.argmax(logits, -1)]
        if "d2t" in self.tensors:
            drafted = [token + int(self.tensors["d2t"][token])
                       for token in drafted]
        return drafted, float(numpy.min(ordered[:, -1] - ordered[:, -2]))


def config_json(recipe):
    config = make_eagle3.config_json(recipe)
    config[recipe["mask_option"]] = MASK
    if recipe["layout"] == "speculators":
        config["architectures"] = ["PEagleDraftModel"]
        config["speculators_model_type"] = "peagle"
        config["speculators_config"]["algorithm"] = "peagle"
    return config


def misreadings(recipe, drafter):
    """Yields names and changes of a drafter that ignores one option."""
    yield from make_eagle3.misreadings(recipe, drafter)
    yield "mask", {"mask": MASK - 1}
    yield "mask_hidden", {"mask_features": 0 * drafter.mask_features}


def random_drafter(recipe, drafter, seed):
    """Makes the tensors of a drafter."""
    tensors = make_eagle3.random_drafter(recipe, drafter, seed)
    width = len(drafter.states) * TARGET["hidden_size"]
    shape = (1,) * (recipe["mask_dims"] - 1) + (width,)
    mask = numpy.random.default_rng([seed[0], 17]).standard_normal(shape)
    tensors["mask_hidden"] = mask.astype(numpy.float16)
    return tensors


KIND = Kind(drafters=DRAFTERS, salt=13, drafter=Drafter,
            random_drafter=random_drafter, config_json=config_json,
            misreadings=misreadings)


if __name__ == "__main__":
    main(KIND, __doc__)

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

README.md in the same folder explains the folders and the fields.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy
from safetensors.numpy import save_file

import make_eagle3
from make_eagle3 import (
    DRAFT_TOKENS, LAST_SEED, LAYER_IDS, MARGIN, PROMPT_SIZES, TARGET, matters,
    norm, random_drafter, random_target, records, wide, write_json)

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


def make(name, recipe, target, out):
    for seed in range(1, LAST_SEED):
        drafter = Drafter(recipe, {}, target)
        stored = random_drafter(recipe, drafter, [seed, 13])
        width = len(drafter.states) * TARGET["hidden_size"]
        shape = (1,) * (recipe["mask_dims"] - 1) + (width,)
        mask = numpy.random.default_rng([seed, 17]).standard_normal(shape)
        stored["mask_hidden"] = mask.astype(numpy.float16)
        drafter = Drafter(recipe, wide(stored), target)
        generator = numpy.random.default_rng([seed, 7])
        prompts = [generator.integers(3, TARGET["vocab_size"], size).tolist()
                   for size in PROMPT_SIZES]
        golden, margin = records(drafter, target, prompts)
        ignored = [] if margin < MARGIN else [
            what for what, changes in misreadings(recipe, drafter)
            if not matters(drafter, golden, target, prompts, changes)]
        varied = len({token for record in golden
                      for token in record["draft_ids"]}) >= 6
        if margin >= MARGIN and varied and not ignored:
            break
    else:
        raise SystemExit(f"{name}: no seed fits; unimportant: {ignored}")
    folder = out / name
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    write_json(folder / "config.json", config_json(recipe))
    lines = ",\n".join(f"  {json.dumps(record)}" for record in golden)
    header = json.dumps({"numpy": numpy.__version__, "seed": seed,
                         "layers_before_features": drafter.states})
    (folder / "golden.json").write_text(
        f'{{"header": {header},\n "prompts": [\n{lines}\n]}}\n')
    print(f"{name}: seed {seed}, smallest margin {margin:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    (out / "target").mkdir(parents=True)
    stored = random_target(11)
    save_file(stored, out / "target" / "model.safetensors")
    write_json(out / "target" / "config.json", TARGET)
    for name, recipe in DRAFTERS.items():
        make(name, recipe, wide(stored), out)


if __name__ == "__main__":
    main()

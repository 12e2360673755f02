#!/usr/bin/env python3
"""Make tiny random assistants of Gemma 4, with golden draft tokens.

The targets are the checkpoints of `make_families.py`. For each of them this
script writes an assistant as the published ones are stored, and
`golden.json`: the tokens that Hugging Face transformers
(`Gemma4AssistantForCausalLM`) drafts, on CPU `torch` in float32.

The keys and values are those of one pass of the target over the prompt. In
layers with a window, transformers lets a draft see as many of them as its
cache happens to hold. This script passes those of the window that ends with
the last token.

Usage:

    python make_assistant.py --targets DIR --out DIR

README.md in the same folder explains the fields.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy
import torch
import transformers
from safetensors.torch import save_file

from make_families import FAMILIES, tensor_values
from make_goldens import load_hugging_face_model, significant
from make_mtp import (
    DRAFT_TOKENS, MARGIN, PROMPT_SIZES, make_deterministic, write_golden)

# The targets, and the options of their assistants' layers. The others are
# those of the target.
ASSISTANTS = {
    "gemma4": {"layer_types": ["sliding_attention", "sliding_attention",
                               "full_attention"]},
    "gemma4-bias": {"layer_types": ["full_attention", "sliding_attention",
                                    "full_attention"]},
    "gemma4-inputs": {"layer_types": ["sliding_attention", "full_attention",
                                      "full_attention"]},
}

# The assistant with centroids, as those of E2B and E4B have them. All of them
# are chosen, so that all logits are computed.
WITH_CENTROIDS = "gemma4-inputs"

# Options of the target's layers that an assistant does not share.
OWN = {"hidden_size": 12, "intermediate_size": 22, "enable_moe_block": False,
       "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0,
       "use_double_wide_mlp": False, "tie_word_embeddings": True,
       "final_logit_softcapping": None}


def config_of(name, targets):
    """Return an assistant's config.json."""
    of_target = json.loads((targets / name / "config.json").read_text())
    # Published files have an option for all layers without a window.
    of_target.pop("per_layer_config", None)
    options, layers = FAMILIES[name]["options"], ASSISTANTS[name]
    count = len(layers["layer_types"])
    text = of_target | OWN | layers | {
        "model_type": "gemma4_text", "num_hidden_layers": count,
        "num_kv_shared_layers": count,
        "global_head_dim": options["global_head_dim"],
        "num_global_key_value_heads":
            options.get("num_global_key_value_heads")}
    del text["architectures"]
    config = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant", "dtype": "bfloat16",
        "backbone_hidden_size": of_target["hidden_size"],
        "image_token_id": 5, "tie_word_embeddings": True,
        "use_ordered_embeddings": name == WITH_CENTROIDS, "text_config": text}
    if name == WITH_CENTROIDS:
        vocabulary = text["vocab_size"]
        config |= {"num_centroids": vocabulary,
                   "centroid_intermediate_top_k": vocabulary}
    return config


def write_assistant(name, targets, folder, seed):
    """Write an assistant: all files except golden.json."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = config_of(name, targets)
    (folder / "config.json").write_text(
        json.dumps(config, indent=2, sort_keys=True) + "\n")
    parsed = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.Gemma4AssistantForCausalLM(parsed)
    tensors = {}
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight":
            continue
        if key.endswith("token_ordering"):
            order = numpy.random.default_rng(seed).permutation(tensor.shape[0])
            tensors[key] = torch.from_numpy(order)
            continue
        values = tensor_values(
            key, tuple(tensor.shape), key.startswith("model."), seed, {})
        tensors[key] = torch.from_numpy(values).to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


class LastInput:
    """The last input of a module."""

    def __init__(self, module):
        self.handle = module.register_forward_pre_hook(
            lambda _, inputs: setattr(self, "value", inputs[0]))

    def remove(self):
        """Stop recording."""
        self.handle.remove()


def sources(config):
    """Return the target's layers whose keys and values are read, in the order
    of the kinds of layers in which the assistant first has them."""
    own = config.num_hidden_layers - config.num_kv_shared_layers
    return {kind: max(layer for layer in range(own)
                      if config.layer_types[layer] == kind)
            for kind in set(config.layer_types)}


@torch.no_grad()
def draft(target, assistant, states, tokens, hidden):
    """Draft greedily after `tokens`, the last of which the target has not
    read. Return the drafted tokens and the smallest gap between the two
    largest logits of a step."""
    position = torch.tensor([[len(tokens) - 1]])
    drafted, margin, token = [], numpy.inf, tokens[-1]
    for _ in range(DRAFT_TOKENS):
        embedding = target.get_input_embeddings()(torch.tensor([[token]]))
        out = assistant(
            inputs_embeds=torch.cat([embedding, hidden], dim=-1),
            position_ids=position, shared_kv_states=states)
        hidden, logits = out.last_hidden_state, out.logits[0, -1]
        second, best = logits.sort().values[-2:].tolist()
        margin = min(margin, best - second)
        token = int(logits.argmax())
        drafted.append(token)
    return drafted, margin


@torch.no_grad()
def make_records(folder, target, layers, seed):
    """Return the golden records of a folder, or None for a near tie."""
    assistant = transformers.Gemma4AssistantForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()
    random = numpy.random.default_rng(seed)
    window = target.config.sliding_window
    last = LastInput(target.model.norm)
    records = []
    for size in PROMPT_SIZES:
        prompt = random.integers(8, target.config.vocab_size, size).tolist()
        output = target(
            input_ids=torch.tensor([prompt]), use_cache=False,
            output_hidden_states=True, return_shared_kv_states=True)
        states = dict(output.shared_kv_states)
        first = max(0, size + 1 - window)
        states["sliding_attention"] = tuple(
            part[:, :, first:] for part in states["sliding_attention"])
        logits = output.logits[0, -1]
        following = int(logits.argmax())
        second, best = logits.sort().values[-2:].tolist()
        drafted, margin = draft(target, assistant, states, prompt + [following],
                                output.hidden_states[-1][:, -1:])
        margin = min(margin, best - second)
        if margin < MARGIN:
            return None
        features = [output.hidden_states[layer] for layer in layers]
        features.append(last.value)
        features = torch.cat([part[0, -1] for part in features])
        records.append({
            "prompt_ids": prompt, "next_id": following, "draft_ids": drafted,
            "min_margin": significant(margin),
            "last_features": [significant(value)
                              for value in features.tolist()]})
    last.remove()
    if len({tuple(record["draft_ids"]) for record in records}) < 3:
        return None
    return records


def make_assistant(name, targets, folder):
    """Write a folder."""
    target = load_hugging_face_model(targets / name)
    of_kind = sources(target.config)
    layers = [of_kind[kind]
              for kind in dict.fromkeys(ASSISTANTS[name]["layer_types"])]

    def make(seed):
        write_assistant(name, targets, folder, seed)
        return make_records(folder, target, layers, seed)

    write_golden(
        folder, "make_assistant.py", make,
        layers_before_features=layers + [target.config.num_hidden_layers])


def main():
    """Make all folders."""
    parser = argparse.ArgumentParser(
        description="Make tiny random assistants of Gemma 4.")
    parser.add_argument(
        "--targets", type=Path, required=True, metavar="DIR",
        help="the output folder of make_families.py")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR",
        help="output folder, which gets a folder for each assistant")
    arguments = parser.parse_args()
    make_deterministic()
    for name in ASSISTANTS:
        make_assistant(name, arguments.targets, arguments.out / name)


if __name__ == "__main__":
    main()

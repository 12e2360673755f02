#!/usr/bin/env python3
"""Make tiny random models with MTP heads, with golden draft tokens.

For DeepSeek-V3 and GLM-4.5 this script writes the checkpoint of
`make_families.py` with a random layer after the last one, as the published
models store it, and `golden.json`: the tokens that this layer drafts.

The layer is that of Hugging Face transformers (`MtpModel`), on CPU `torch` in
float32. transformers drafts one token with it. Further ones continue from the
layer's own output: the hidden state after its norm, as in SGLang.

Usage:

    python make_mtp.py --out DIR

README.md in the same folder explains the folders and the fields.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

from make_families import (
    FAMILIES, ROUTER_TIE, Choices, build, compute_experts_one_by_one, respell,
    tensor_values, write_tokenizer)
from make_goldens import load_hugging_face_model, significant

# The number of tokens in a draft.
DRAFT_TOKENS = 5

# The lengths of the prompts in tokens.
PROMPT_SIZES = [1, 4, 9, 23]

# The smallest gap between the two largest logits of any step.
MARGIN = 2e-3

# The last seed to try. Seeds are tried in order until no draft has a near tie.
LAST_SEED = 200

# The folders, and the families whose checkpoints they extend.
HEADS = {
    "deepseek-v3": "deepseek-v3",
    "deepseek-v3-halves": "deepseek-v3-halves",
    "deepseek-v3-bias": "deepseek-v3-bias",
    "glm4-moe": "glm4-moe",
    "glm4-moe-group": "glm4-moe-group",
    "glm4-moe-sparse": "glm4-moe-sparse",
}


def add_layer(folder, config, family, seed):
    """Add the layer to a checkpoint: a copy of the names and shapes of the
    last layer, with other values, and the tensors around it."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    layer, hidden = config.num_hidden_layers, config.hidden_size
    last, prefix = f"model.layers.{layer - 1}.", f"model.layers.{layer}."
    shapes = {name.replace(last, prefix): (tuple(tensor.shape), tensor.dtype)
              for name, tensor in tensors.items() if name.startswith(last)}
    dtype = family["dtype"]
    shapes |= {f"{prefix}{norm}.weight": ((hidden,), dtype)
               for norm in ["enorm", "hnorm", "shared_head.norm"]}
    shapes[f"{prefix}eh_proj.weight"] = ((hidden, 2 * hidden), dtype)
    for name, (shape, stored_dtype) in shapes.items():
        values = tensor_values(name, shape, False, seed, family)
        tensors[name] = torch.from_numpy(values).to(stored_dtype)
    # Published files hold copies of the embedding and the head.
    embedding = tensors["model.embed_tokens.weight"]
    tensors[f"{prefix}embed_tokens.weight"] = embedding.clone()
    tensors[f"{prefix}shared_head.head.weight"] = tensors.get(
        "lm_head.weight", embedding).clone()
    save_file(tensors, path, metadata={"format": "pt"})
    options = json.loads((folder / "config.json").read_text())
    options["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(
        json.dumps(options, indent=2, sort_keys=True) + "\n")


def load(folder):
    """Return the model of a folder and its layer, both in float32."""
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    # transformers knows the layers of the published models only.
    kind._keys_to_ignore_on_load_unexpected = [
        rf"model\.layers\.{config.num_hidden_layers}.*"]
    model = load_hugging_face_model(folder)
    mtp = MtpModel.from_pretrained(model)
    mtp = mtp.to(torch.float32).eval()
    return (compute_experts_one_by_one(model),
            compute_experts_one_by_one(mtp))


@torch.no_grad()
def draft(model, mtp, tokens, hidden):
    """Draft greedily after `tokens`, the last of which the model has not
    read: `hidden` has its last hidden states of all others, after its final
    norm. Return the drafted tokens and the smallest gap between the two
    largest logits of a step."""
    tokens, drafted, margin = list(tokens[1:]), [], numpy.inf
    for _ in range(DRAFT_TOKENS):
        ids = torch.tensor([tokens])
        positions = torch.arange(1, len(tokens) + 1)[None]
        embeddings = mtp.embed_tokens(ids)
        rotary = mtp.rotary_emb(embeddings, position_ids=positions)
        masks = mtp.create_masks_for_mtp_layer(
            0, embeddings, None, torch.arange(len(tokens))[None])
        out = mtp.layers[0](
            embeddings, hidden, position_embeddings=rotary,
            position_ids=positions, past_key_values=None, **masks)
        logits = model.lm_head(out[0, -1])
        second, best = logits.sort().values[-2:].tolist()
        margin = min(margin, best - second)
        drafted.append(int(logits.argmax()))
        tokens.append(drafted[-1])
        hidden = torch.cat([hidden, out[:, -1:]], dim=1)
    return drafted, margin


@torch.no_grad()
def make_records(folder, experts, seed):
    """Return the golden records of a folder, or None for a near tie."""
    model, mtp = load(folder)
    random = numpy.random.default_rng(seed)
    records = []
    for size in PROMPT_SIZES:
        prompt = random.integers(8, model.config.vocab_size, size).tolist()
        with Choices(experts) as choices:
            output = model(input_ids=torch.tensor([prompt]), use_cache=False,
                           output_hidden_states=True)
            hidden, logits = output.hidden_states[-1], output.logits[0, -1]
            following = int(logits.argmax())
            drafted, margin = draft(
                model, mtp, prompt + [following], hidden)
        second, best = logits.sort().values[-2:].tolist()
        margin = min(margin, best - second)
        if margin < MARGIN or choices.gap < ROUTER_TIE:
            return None
        records.append({
            "prompt_ids": prompt, "next_id": following, "draft_ids": drafted,
            "min_margin": significant(margin),
            "last_features": [significant(value)
                              for value in hidden[0, -1].tolist()]})
    if len({tuple(record["draft_ids"]) for record in records}) < 3:
        return None
    return records


def make_head(name, family, folder):
    """Write a folder."""
    for seed in range(1, LAST_SEED + 1):
        shutil.rmtree(folder, ignore_errors=True)
        model = build(family, seed)
        model.save_pretrained(folder)
        if family.get("old_spelling"):
            respell(folder, family)
        write_tokenizer(folder / "tokenizer.json", model.config.vocab_size)
        add_layer(folder, model.config, family, seed)
        records = make_records(folder, family["experts"], seed)
        if records:
            break
    else:
        raise ValueError(f"{name}: no seed up to {LAST_SEED} is suitable")
    print(f"{name}, seed {seed}: "
          f"margin {min(record['min_margin'] for record in records)}")
    header = {"peer": "transformers", "peer_version": transformers.__version__,
              "script": "scripts/goldens/make_mtp.py", "seed": seed}
    rows = ",\n".join("  " + json.dumps(record) for record in records)
    (folder / "golden.json").write_text(
        f'{{"header": {json.dumps(header)},\n"prompts": [\n{rows}\n]}}\n')


def main():
    """Make all folders."""
    parser = argparse.ArgumentParser(
        description="Make tiny random models with MTP heads.")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR",
        help="output folder, which gets a folder for each head")
    parser.add_argument(
        "--only", metavar="HEAD", choices=HEADS, nargs="+",
        default=list(HEADS), help="make only these heads")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in arguments.only:
        make_head(name, FAMILIES[HEADS[name]], arguments.out / name)


if __name__ == "__main__":
    main()

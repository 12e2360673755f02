#!/usr/bin/env python3
"""Make tiny random models with MTP heads, with golden draft tokens.

For DeepSeek-V3, GLM-4.5, Qwen3-Next and Qwen3.5 this script writes the
checkpoint of `make_families.py` with a random layer that predicts a further
token, as the published models store it, and `golden.json`: the tokens that
this layer drafts.

The layer of DeepSeek-V3 and GLM-4.5 is that of Hugging Face transformers
(`MtpModel`), on CPU `torch` in float32. transformers drafts one token with it.
Further ones continue from the layer's own output: the hidden state after its
norm, as in SGLang. transformers drops the layer of Qwen3-Next and Qwen3.5, so
this script has a port of it (`QwenMtp`).

Usage:

    python make_mtp.py --out DIR

README.md in the same folder explains the fields.
"""

import argparse
import copy
import json
from pathlib import Path

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

from make_families import (
    FAMILIES, ROUTER_TIE, Choices, compute_experts_one_by_one, tensor_values,
    write_checkpoint)
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
    "qwen3-next": "qwen3-next",
    "qwen3-next-bias": "qwen3-next-bias",
    "qwen3.5": "qwen3.5",
    "qwen3.5-moe-published": "qwen3.5-moe-published",
    "qwen3.5-tied": "qwen3.5-tied",
}


def add_layer(folder, family, seed):
    """Add the layer to a checkpoint: a copy of the names and shapes of
    another layer, with other values, and the tensors around it."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    options = json.loads((folder / "config.json").read_text())
    is_qwen = options["model_type"].startswith("qwen")
    config = transformers.AutoConfig.from_pretrained(folder).get_text_config()
    layer, hidden = config.num_hidden_layers, config.hidden_size
    if is_qwen:
        # A layer with attention, and with experts if the model has any.
        names = [name for name in tensors if ".mlp.gate.weight" in name]
        experts = {name.split(".mlp.")[0] for name in names}
        attention = {name.split(".self_attn.")[0] for name in tensors
                     if ".self_attn.q_proj.weight" in name}
        copied = {f"{min(attention)}.": "mtp.layers.0."}
        if experts:
            copied = {f"{min(attention)}.self_attn.": "mtp.layers.0.self_attn.",
                      f"{min(attention)}.input_layernorm.":
                          "mtp.layers.0.input_layernorm.",
                      f"{min(experts)}.mlp.": "mtp.layers.0.mlp.",
                      f"{min(experts)}.post_attention_layernorm.":
                          "mtp.layers.0.post_attention_layernorm."}
        norms = ["mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden",
                 "mtp.norm"]
        projection = "mtp.fc.weight"
    else:
        prefix = f"model.layers.{layer}."
        copied = {f"model.layers.{layer - 1}.": prefix}
        norms = [f"{prefix}{norm}"
                 for norm in ["enorm", "hnorm", "shared_head.norm"]]
        projection = f"{prefix}eh_proj.weight"
    shapes = {name.replace(old, new, 1): (tuple(tensor.shape), tensor.dtype)
              for name, tensor in tensors.items()
              for old, new in copied.items() if name.startswith(old)}
    dtype = family["dtype"]
    shapes |= {f"{norm}.weight": ((hidden,), dtype) for norm in norms}
    shapes[projection] = ((hidden, 2 * hidden), dtype)
    for name, (shape, stored_dtype) in shapes.items():
        values = tensor_values(name, shape, False, seed, family)
        tensors[name] = torch.from_numpy(values).to(stored_dtype)
    if is_qwen:
        part = options.get("text_config", options)
        part["mtp_num_hidden_layers"] = 1
        part["mtp_use_dedicated_embeddings"] = False
    else:
        # Published files hold copies of the embedding and the head.
        embedding = tensors["model.embed_tokens.weight"]
        tensors[f"{prefix}embed_tokens.weight"] = embedding.clone()
        tensors[f"{prefix}shared_head.head.weight"] = tensors.get(
            "lm_head.weight", embedding).clone()
        options["num_nextn_predict_layers"] = 1
    save_file(tensors, path, metadata={"format": "pt"})
    (folder / "config.json").write_text(
        json.dumps(options, indent=2, sort_keys=True) + "\n")


class QwenMtp(torch.nn.Module):
    """The layer of Qwen3-Next and Qwen3.5: a layer of the model with
    attention, after a projection of the normalised embedding and hidden
    state, and with a norm of its own at the end."""

    def __init__(self, model, tensors):
        super().__init__()
        config = copy.deepcopy(model.config.get_text_config())
        config.num_hidden_layers = 1
        config.layer_types = ["full_attention"]
        # The layer has experts wherever the model's dense layers are.
        config.mlp_only_layers, config.decoder_sparse_step = [], 1
        hidden, norm = config.hidden_size, type(model.model.norm)
        self.layers = torch.nn.ModuleList(
            [type(model.model.layers[0])(config, 0)])
        self.fc = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = norm(hidden, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(hidden, eps=config.rms_norm_eps)
        self.norm = norm(hidden, eps=config.rms_norm_eps)
        self.embed_tokens = model.model.embed_tokens
        self.rotary_emb = model.model.rotary_emb
        own = {name.removeprefix("mtp."): tensor.to(torch.float32)
               for name, tensor in tensors.items() if name.startswith("mtp.")}
        experts = "layers.0.mlp.experts."
        if f"{experts}0.up_proj.weight" in own:
            def stacked(part):
                return torch.stack(
                    [own.pop(f"{experts}{expert}.{part}.weight")
                     for expert in range(config.num_experts)])
            own[f"{experts}gate_up_proj"] = torch.cat(
                [stacked("gate_proj"), stacked("up_proj")], dim=1)
            own[f"{experts}down_proj"] = stacked("down_proj")
        shared = {f"embed_tokens.{name}"
                  for name, _ in self.embed_tokens.named_parameters()}
        problems = self.load_state_dict(own, strict=False)
        if set(problems.missing_keys) != shared or problems.unexpected_keys:
            raise ValueError(problems)
        for module in self.layers.modules():
            if hasattr(module, "config"):
                module.config._experts_implementation = "eager"
                module.config._attn_implementation = "eager"

    def forward(self, ids, positions, hidden):
        """Return the hidden states after the last norm."""
        embeddings = self.embed_tokens(ids)
        inputs = self.fc(torch.cat(
            [self.pre_fc_norm_embedding(embeddings),
             self.pre_fc_norm_hidden(hidden)], dim=-1))
        count = ids.shape[1]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        out = self.layers[0](
            inputs, position_embeddings=self.rotary_emb(inputs, positions),
            attention_mask=mask, position_ids=positions)
        return self.norm(out)


class PeerMtp:
    """The layer of transformers."""

    def __init__(self, mtp):
        self.mtp = mtp

    def __call__(self, ids, positions, hidden):
        """Return the hidden states after the last norm."""
        mtp, count = self.mtp, ids.shape[1]
        embeddings = mtp.embed_tokens(ids)
        rotary = mtp.rotary_emb(embeddings, position_ids=positions)
        masks = mtp.create_masks_for_mtp_layer(
            0, embeddings, None, torch.arange(count)[None])
        return mtp.layers[0](
            embeddings, hidden, position_embeddings=rotary,
            position_ids=positions, past_key_values=None, **masks)


def load(folder):
    """Return the model of a folder and its layer, both in float32."""
    config = transformers.AutoConfig.from_pretrained(folder)
    if config.model_type.startswith("qwen"):
        model = load_hugging_face_model(folder)
        mtp = QwenMtp(model, load_file(folder / "model.safetensors"))
        return compute_experts_one_by_one(model), mtp.eval()
    kind = getattr(transformers, config.architectures[0])
    # transformers knows the layers of the published models only.
    kind._keys_to_ignore_on_load_unexpected = [
        rf"model\.layers\.{config.num_hidden_layers}.*"]
    model = load_hugging_face_model(folder)
    mtp = MtpModel.from_pretrained(model)
    mtp = mtp.to(torch.float32).eval()
    return (compute_experts_one_by_one(model),
            PeerMtp(compute_experts_one_by_one(mtp)))


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
        out = mtp(ids, positions, hidden)
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
        prompt = random.integers(8, model.config.get_text_config().vocab_size, size).tolist()
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


def write_golden(folder, script, make, **more):
    """Write a folder with the first suitable seed. `make` writes all files
    except golden.json, and returns the records, or None for a near tie."""
    for seed in range(1, LAST_SEED + 1):
        records = make(seed)
        if records:
            break
    else:
        raise ValueError(f"{folder}: no seed up to {LAST_SEED} is suitable")
    print(f"{folder.name}, seed {seed}: "
          f"margin {min(record['min_margin'] for record in records)}")
    header = {"peer": "transformers", "peer_version": transformers.__version__,
              "script": f"scripts/goldens/{script}", "seed": seed} | more
    rows = ",\n".join("  " + json.dumps(record) for record in records)
    (folder / "golden.json").write_text(
        f'{{"header": {json.dumps(header)},\n"prompts": [\n{rows}\n]}}\n')


def make_head(family, folder):
    """Write a folder."""
    def make(seed):
        write_checkpoint(family, folder, seed)
        add_layer(folder, family, seed)
        return make_records(folder, family.get("experts"), seed)

    write_golden(folder, "make_mtp.py", make)


def make_deterministic():
    """Compute the same numbers on every machine, and print little."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


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
    make_deterministic()
    for name in arguments.only:
        make_head(FAMILIES[HEADS[name]], arguments.out / name)


if __name__ == "__main__":
    main()

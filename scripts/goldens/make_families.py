#!/usr/bin/env python3
"""Make one tiny random checkpoint per model family, with golden logits.

For each family this script writes a folder in the form in which Hugging Face
`transformers` saves it (`config.json`, `generation_config.json`, safetensors,
plus a `tokenizer.json` of numbered words), and `golden.json`: the results of
the same library for that folder, on CPU `torch` in float32. Tests of forerun
load the folders and compare.

Usage:

    python make_families.py --out DIR

README.md in the same folder explains the folders and the fields.
"""

import argparse
import json
import shutil
import sys
import zlib
from pathlib import Path

import numpy
import torch
import transformers

from make_goldens import (
    NEAR_TIE, NEW_TOKENS, greedy, load_hugging_face_model, sha256_of_file,
    significant)

SCRIPT_PATH = "scripts/goldens/make_families.py"

# The steps of each greedy text with completely recorded logits.
LOGIT_STEPS = [0, 99, 199]

# The lengths of the prompts in tokens: a short one, and one longer than any
# sliding window here.
PROMPT_SIZES = [5, 45]

# Removing a feature must change some logit by at least this. A golden file
# that does not depend on a feature would not test it.
SENSITIVITY = 0.05

# The minimum number of different tokens in a greedy text.
DISTINCT = 30

# The last seed to try. Seeds are tried in order until no text has a near tie.
LAST_SEED = 100

# Sizes that are not multiples of a SIMD width, with two query heads for each
# key/value head.
SMALL = {
    "vocab_size": 131, "hidden_size": 24, "intermediate_size": 38,
    "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
}

# The factors of the Granite checkpoints. Each must change the logits.
GRANITE_FACTORS = {
    "embedding_multiplier": 1.6, "attention_multiplier": 0.19,
    "residual_multiplier": 0.7, "logits_scaling": 0.75}
GRANITE_WITHOUT = {
    name: {name: 1.0} for name in GRANITE_FACTORS}

# SmolLM3's default padding token is not in the small vocabulary.
SMOLLM3 = {"pad_token_id": None}

# For each family: the configuration's class, changes to SMALL, and the dtype
# of the file. `old_spelling` rewrites config.json in the spelling of
# transformers before version 5, and `set` then sets options in it. `without`
# lists changes to the configuration that must change the logits, and `cancels`
# the biases that cannot change them. `shard` is the maximum size of a shard.
FAMILIES = {
    # Llama 2, Vicuna, TinyLlama: one file, separate head.
    "llama2": {
        "config": transformers.LlamaConfig, "dtype": torch.float32,
        "options": {"vocab_size": 101, "head_dim": 6,
                    "num_key_value_heads": 4},
        "old_spelling": True,
        "without": {"theta": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 1000.0}}},
    },
    # Llama 3.2: tied head, scaled RoPE, shards.
    "llama3": {
        "config": transformers.LlamaConfig, "dtype": torch.bfloat16,
        "options": {
            "tie_word_embeddings": True,
            "eos_token_id": [2, 5, 7],
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32}},
        "shard": "12KB",
        "without": {"scaling": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 500000.0}}},
    },
    # DeepSeek-Coder, CodeLlama, Vicuna 16k: linearly scaled RoPE.
    "llama-linear": {
        "config": transformers.LlamaConfig, "dtype": torch.float16,
        "options": {"rope_parameters": {
            "rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0}},
        "old_spelling": True,
        "without": {"scaling": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 100000.0}}},
    },
    # A Llama with every bias that its configuration allows.
    "llama-bias": {
        "config": transformers.LlamaConfig, "dtype": torch.bfloat16,
        "options": {"attention_bias": True, "mlp_bias": True},
        "without": {"attention biases": {"attention_bias": False},
                    "MLP biases": {"mlp_bias": False}},
    },
    # Mistral 7B v0.1: every layer has a sliding window.
    "mistral": {
        "config": transformers.MistralConfig, "dtype": torch.bfloat16,
        "options": {"sliding_window": 16},
        "old_spelling": True,
        "without": {"window": {"sliding_window": None}},
    },
    # Qwen2.5: biases on queries, keys and values, tied head. The sliding
    # window in its configuration is not in use.
    "qwen2": {
        "config": transformers.Qwen2Config, "dtype": torch.bfloat16,
        "options": {"tie_word_embeddings": True, "max_window_layers": 1,
                    "eos_token_id": [3, 2]},
        "old_spelling": True,
        # As in published files. `save_pretrained` omits an unused window.
        "set": {"use_sliding_window": False, "sliding_window": 8},
        "without": {"disabled window": {
            "use_sliding_window": True, "sliding_window": 8,
            "layer_types": None}},
    },
    # Qwen2 with a sliding window in the upper layers.
    "qwen2-window": {
        "config": transformers.Qwen2Config, "dtype": torch.float16,
        "options": {"use_sliding_window": True, "sliding_window": 24,
                    "max_window_layers": 1},
        "old_spelling": True,
        "without": {
            "window": {"use_sliding_window": False, "layer_types": None},
            "full first layer": {
                "layer_types": ["sliding_attention"] * 2}},
    },
    # Qwen3: norms of queries and keys.
    "qwen3": {
        "config": transformers.Qwen3Config, "dtype": torch.bfloat16,
        "options": {"tie_word_embeddings": True, "eos_token_id": [2, 4],
                    "rope_parameters": {
                        "rope_type": "default", "rope_theta": 1000000.0}},
        "without": {},
    },
    # Qwen3 with all its options: biases, and sliding windows by layer.
    "qwen3-window": {
        "config": transformers.Qwen3Config, "dtype": torch.float16,
        "options": {
            "attention_bias": True, "use_sliding_window": True,
            "sliding_window": 13,
            "layer_types": ["sliding_attention", "full_attention"]},
        "without": {
            "attention biases": {"attention_bias": False},
            "window": {"use_sliding_window": False, "layer_types": None},
            "layer types": {"layer_types": [
                "full_attention", "sliding_attention"]}},
    },
    # Granite 3: factors of embeddings, scores, residuals and logits. Three
    # checkpoints: tied, with biases, and with scaled RoPE.
    "granite": {
        "config": transformers.GraniteConfig, "dtype": torch.bfloat16,
        "options": {"tie_word_embeddings": True} | GRANITE_FACTORS,
        "without": GRANITE_WITHOUT,
    },
    "granite-bias": {
        "config": transformers.GraniteConfig, "dtype": torch.float16,
        "options": {"attention_bias": True, "mlp_bias": True,
                    "hidden_size": 28, "head_dim": 6} | GRANITE_FACTORS,
        "old_spelling": True,
        "without": GRANITE_WITHOUT | {
            "attention biases": {"attention_bias": False},
            "MLP biases": {"mlp_bias": False}},
    },
    "granite-linear": {
        "config": transformers.GraniteConfig, "dtype": torch.float32,
        "options": {"num_key_value_heads": 1, "vocab_size": 101,
                    "rope_parameters": {
                        "rope_type": "linear", "rope_theta": 100000.0,
                        "factor": 4.0}} | GRANITE_FACTORS,
        "without": GRANITE_WITHOUT | {"scaling": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 100000.0}}},
    },
    # SmolLM3: layers without RoPE. Three checkpoints: tied, with a window in
    # the layers without RoPE and every bias, and with layers of its own list.
    "smollm3": {
        "config": transformers.SmolLM3Config, "dtype": torch.bfloat16,
        "options": SMOLLM3 | {"tie_word_embeddings": True, "num_hidden_layers": 4},
        "without": {"layers without RoPE": {"no_rope_layers": [1] * 4}},
    },
    "smollm3-window": {
        "config": transformers.SmolLM3Config, "dtype": torch.float16,
        "options": SMOLLM3 | {"tie_word_embeddings": False, "attention_bias": True,
                    "mlp_bias": True, "no_rope_layer_interval": 2,
                    "use_sliding_window": True, "sliding_window": 14},
        "without": {
            "layers without RoPE": {"no_rope_layers": [1, 1]},
            "window": {"use_sliding_window": False, "layer_types": None},
            "attention biases": {"attention_bias": False},
            "MLP biases": {"mlp_bias": False}},
        # Without RoPE, a bias of the keys adds the same to all scores of a
        # row, and softmax cancels it.
        "cancels": ["model.layers.1.self_attn.k_proj.bias"],
    },
    "smollm3-list": {
        "config": transformers.SmolLM3Config, "dtype": torch.float32,
        "options": SMOLLM3 | {"tie_word_embeddings": False, "hidden_size": 20,
                    "head_dim": 14, "no_rope_layers": [0, 1],
                    "rope_parameters": {
                        "rope_type": "default", "rope_theta": 5000000.0}},
        "old_spelling": True,
        "without": {"layers without RoPE": {"no_rope_layers": [1, 1]}},
    },
}


def tensor_values(name, shape, tied, seed):
    """Return a tensor's random values, from a generator keyed by its name.

    Matrices preserve the magnitude of their input, biases and norms are large
    enough to matter, and logits have a standard deviation of 2 to 3.
    """
    key = [seed, zlib.crc32(name.encode("ascii"))]
    normal = numpy.random.default_rng(key).standard_normal(shape)
    if name == "model.embed_tokens.weight":
        return normal * (2.5 / shape[1] ** 0.5 if tied else 1.0)
    if name == "lm_head.weight":
        return normal * 2.5 / shape[1] ** 0.5
    if name == "model.norm.weight" and tied:
        # Random signs. Otherwise the most probable token after any token
        # would be the same token.
        return normal
    # Sharper attention than in a plain random model, so that the position of
    # a key makes a difference.
    sharp = any(part in name for part in (".q_proj.", ".k_proj.",
                                          ".q_norm.", ".k_norm."))
    scale = 1.7 if sharp else 1.0
    if name.endswith("norm.weight"):
        return scale * (1.0 + 0.3 * normal)
    if name.endswith("bias"):
        return 0.3 * normal
    return normal * scale / shape[1] ** 0.5


def build(family, seed):
    """Return the random model of a family, in the dtype of its file."""
    options = SMALL | family["options"]
    if family["config"] is transformers.Qwen2Config:
        # Qwen2 has no such option: its heads divide the hidden size.
        del options["head_dim"]
    config = family["config"](**options)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager")
    tied = config.tie_word_embeddings
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = tensor_values(
                name, tuple(parameter.shape), tied, seed)
            parameter.copy_(torch.from_numpy(values))
    model = model.to(family["dtype"])
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id,
        do_sample=True, temperature=0.6, top_k=20, top_p=0.9)
    return model


def respell(folder, changes):
    """Rewrite config.json in the spelling of transformers before version 5."""
    path = folder / "config.json"
    options = json.loads(path.read_text()) | changes
    rope = options.pop("rope_parameters")
    options["rope_theta"] = rope.pop("rope_theta")
    rope_type = rope.pop("rope_type")
    options["rope_scaling"] = (
        None if rope_type == "default" else {"type": rope_type} | rope)
    options.pop("layer_types", None)
    options["torch_dtype"] = options.pop("dtype")
    path.write_text(json.dumps(options, indent=2, sort_keys=True) + "\n")


def write_tokenizer(path, vocab_size):
    """Write a tokenizer.json with the tokens w0, w1, …"""
    words = {f"w{token_id}": token_id for token_id in range(vocab_size)}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    path.write_text(json.dumps(tokenizer, separators=(",", ":")) + "\n")


@torch.no_grad()
def check_sensitivity(folder, name, family, token_ids):
    """Raise ValueError unless each feature of the family changes the logits.

    The features are the family's options, each bias (compared with 0), and
    each norm of queries and keys (compared with 1).
    """
    def load(changes):
        config = transformers.AutoConfig.from_pretrained(folder)
        config = type(config)(**(config.to_dict() | changes))
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=torch.float32,
            attn_implementation="eager", local_files_only=True)

    def logits(model):
        return model(input_ids=torch.tensor([token_ids])).logits[0]

    model = load({})
    whole = logits(model)
    changed = {feature: logits(load(changes))
               for feature, changes in family["without"].items()}
    for tensor, parameter in model.named_parameters():
        if tensor in family.get("cancels", ()):
            continue
        if tensor.endswith(("bias", "q_norm.weight", "k_norm.weight")):
            stored = parameter.clone()
            parameter.fill_(0.0 if tensor.endswith("bias") else 1.0)
            changed[tensor] = logits(model)
            parameter.copy_(stored)
    for feature, without in changed.items():
        difference = float((without - whole).abs().max())
        print(f"  without {feature}: logits change by {difference:.2f}")
        if difference < SENSITIVITY:
            raise ValueError(
                f"the logits of {name} do not depend on: {feature}")


def make_record(model, prompt_ids):
    """Return the golden record of a prompt, or None for an unsuitable text."""
    generated_ids, logits = greedy(model, prompt_ids)
    largest = torch.topk(logits, 2, dim=-1)
    margin = float((largest.values[:, 0] - largest.values[:, 1]).min())
    if margin < NEAR_TIE or len(set(generated_ids)) < DISTINCT:
        return None
    return {
        "prompt_ids": prompt_ids,
        "generated_ids": generated_ids,
        "min_margin": significant(margin),
        "logits": {str(step): [significant(value) for value in logits[step]]
                   for step in LOGIT_STEPS},
    }


def write_checkpoint(family, folder, seed):
    """Write a family's checkpoint: all files except golden.json."""
    shutil.rmtree(folder, ignore_errors=True)
    model = build(family, seed)
    model.save_pretrained(folder, max_shard_size=family.get("shard", "1GB"))
    if family.get("old_spelling"):
        respell(folder, family.get("set", {}))
    write_tokenizer(folder / "tokenizer.json", model.config.vocab_size)


def make_family(name, family, folder):
    """Write a family's folder."""
    for seed in range(1, LAST_SEED + 1):
        write_checkpoint(family, folder, seed)
        # From here on only the contents of the folder count.
        model = load_hugging_face_model(folder)
        random = numpy.random.default_rng(seed)
        prompts = [random.integers(8, model.config.vocab_size, size).tolist()
                   for size in PROMPT_SIZES]
        records = [make_record(model, prompt) for prompt in prompts]
        if None not in records:
            break
    else:
        raise ValueError(f"{name}: no seed up to {LAST_SEED} is suitable")
    for record in records:
        print(f"{name}, seed {seed}: margin {record['min_margin']}, "
              f"{len(set(record['generated_ids']))} different tokens")
    longest = records[-1]["prompt_ids"] + records[-1]["generated_ids"]
    check_sensitivity(folder, name, family, longest)
    header = {
        "peer": "transformers",
        "peer_version": transformers.__version__,
        "torch_version": torch.__version__.split("+")[0],
        "script": SCRIPT_PATH,
        "seed": seed,
        "model": type(model).__name__,
        "weights_sha256": {
            path.name: sha256_of_file(path)
            for path in sorted(folder.glob("*.safetensors"))},
        "dtype": "float32 (weights widened)",
        "decoding": "greedy, no stop at end-of-text tokens",
        "new_tokens": NEW_TOKENS,
        "near_tie_margin": NEAR_TIE,
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}"
             for key, value in header.items()]
    prompts = ",\n".join(
        "    " + json.dumps(record, separators=(",", ":"))
        for record in records)
    lines.append(f'  "prompts": [\n{prompts}\n  ]')
    (folder / "golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    """Make the folders of all families."""
    parser = argparse.ArgumentParser(
        description="Make tiny random checkpoints and their golden logits.")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR",
        help="output folder, which gets a folder for each family")
    parser.add_argument(
        "--only", metavar="FAMILY", choices=FAMILIES, nargs="+",
        default=list(FAMILIES), help="make only these families")
    arguments = parser.parse_args()

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    # One thread, so that sums always have the same order.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    for name, family in FAMILIES.items():
        if name in arguments.only:
            make_family(name, family, arguments.out / name)


if __name__ == "__main__":
    sys.exit(main())

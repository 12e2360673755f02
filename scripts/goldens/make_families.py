#!/usr/bin/env python3
"""Make one tiny random checkpoint per model family, with golden logits.

For each family this script writes a folder in the form in which Hugging Face
`transformers` saves it (`config.json`, `generation_config.json`, safetensors,
plus a `tokenizer.json` of numbered words), and `golden.json`: the results of
the same library for that folder, on CPU `torch` in float32. Tests of forerun
load the folders and compare.

Usage:

    python make_families.py --out DIR

README.md in the same folder explains the fields.
"""

import argparse
import dataclasses
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

# A router must choose its last expert with at least this advantage over the
# first one that it does not choose. Otherwise arithmetic in another order
# could choose another expert.
ROUTER_TIE = 1e-4

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
SMOLLM3 = {"pad_token_id": None, "head_dim": 10}

# Gemma 4 without what only some of its models have.
GEMMA4_ROPE = {
    "full_attention": {
        "rope_type": "proportional", "rope_theta": 1000000.0,
        "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
GEMMA4 = {
    "hidden_size_per_layer_input": 0, "rope_parameters": GEMMA4_ROPE,
    "pad_token_id": None, "layer_types": [
        "sliding_attention", "full_attention"]}

# Gemma 4's experts. Its router divides its input by the root of its width.
GEMMA4_MOE = {"enable_moe_block": True, "num_experts": 7, "top_k_experts": 3,
              "moe_intermediate_size": 14}
GEMMA4_MOE_SCALES = {".router.proj.weight": 3.0}

# The names of embeddings, heads and last norms.
EMBEDDINGS = ["model.embed_tokens.weight", "gpt_neox.embed_in.weight",
              "transformer.wte.weight", "transformer.word_embeddings.weight",
              "model.decoder.embed_tokens.weight"]
POSITIONS = (".wpe.weight", ".embed_positions.weight")
HEADS = ["lm_head.weight", "embed_out.weight"]
LAST_NORMS = ["model.norm.weight", "model.final_layernorm.weight",
              "model.embedding_norm.weight",
              "gpt_neox.final_layer_norm.weight", "transformer.ln_f.weight",
              "model.decoder.final_layer_norm.weight"]

# Parts of the names of queries and keys, and of the routers' matrices.
SHARP = [".q_proj.", ".k_proj.", ".q_norm.", ".k_norm.", ".qkv_proj.",
         ".query_key_value.", ".q_a_proj.", ".q_b_proj.",
         ".kv_a_proj_with_mqa.", ".kv_b_proj.", ".q_layernorm.",
         ".k_layernorm."]
ROUTERS = [".gate.weight", ".router.weight", ".router.proj.weight"]

# The factors of Gemma 4's router: of its input and of the experts' weights.
ROUTER_SCALES = (".router.scale", ".per_expert_scale")

# A sliding window that covers any text here.
WIDE = {"sliding_window": 512}

# Phi-3's default padding token is not in the small vocabulary.
PHI3 = {"pad_token_id": None, "original_max_position_embeddings": 512}


def longrope(original, short_factor, long_factor, **options):
    """Return the options of RoPE that is scaled as `longrope`."""
    return {"rope_type": "longrope", "rope_theta": 10000.0,
            "original_max_position_embeddings": original,
            "short_factor": short_factor, "long_factor": long_factor} | options


# OLMo's default padding token is not in the small vocabulary.
NO_PAD = {"pad_token_id": None}

# The experts of gpt-oss cut their inner values at 7. Larger matrices exceed
# this, and smaller ones then restore the magnitude.
GPT_OSS_SCALES = {".experts.gate_up_proj": 4.0, ".experts.down_proj": 0.15}

# For each feature of gpt-oss without an option: the class of the module, and
# changes to its attributes.
GPT_OSS_ATTRIBUTES = {
    "clamp": ("GptOssExperts", {"limit": 1000.0}),
    "alpha": ("GptOssExperts", {"alpha": 1.0})}


def yarn(theta, factor, original, **options):
    """Return the options of RoPE that is scaled as `yarn`."""
    return {"rope_type": "yarn", "rope_theta": theta, "factor": factor,
            "original_max_position_embeddings": original} | options


def olmo3_rope(full):
    """Return OLMo 3's options, given RoPE of the layers without windows."""
    return {"full_attention": full, "sliding_attention": {
        "rope_type": "default", "rope_theta": 500000.0}}


def partial(factor, theta=10000.0):
    """Return the options of RoPE in a part of the head."""
    return {"rope_type": "default", "rope_theta": theta,
            "partial_rotary_factor": factor}


# GLM's default padding token is not in the small vocabulary.
GLM = {"pad_token_id": None, "rms_norm_eps": 1.5625e-07}

# A partial RoPE must differ from one in the whole head.
WHOLE = {"part without RoPE": {"rope_parameters": partial(1.0)}}

# Without sharper attention, the texts of families with an MLP without gate
# soon repeat.
PHI_SCALES = {
    ".dense.weight": 3.0, ".fc2.weight": 2.0,
    ".q_proj.weight": 2.0, ".k_proj.weight": 2.0,
    ".q_layernorm.weight": 2.0, ".k_layernorm.weight": 2.0}
GPT_NEOX_SCALES = {
    ".query_key_value.weight": 2.0, ".dense.weight": 1.5,
    ".dense_4h_to_h.weight": 2.0}

# GPT-NeoX's old names of options.
GPT_NEOX_NAMES = {"rope_theta": "rotary_emb_base",
                  "partial_rotary_factor": "rotary_pct"}

# The sizes of GPT-2, whose options have other names.
GPT2 = {"n_embd": 24, "n_head": 4, "n_layer": 2, "n_positions": 512}
GPT2_SCALES = {
    "attn.c_attn.weight": 3.5, "attn.c_proj.weight": 1.5,
    "mlp.c_fc.weight": 2.0, "mlp.c_proj.weight": 0.8, ".wpe.weight": 3.0}

# OPT's default padding token would be in the small vocabulary.
OPT = {"ffn_dim": 46, "pad_token_id": None}
OPT_SCALES = {
    ".out_proj.weight": 1.5, ".fc2.weight": 2.0, ".embed_positions.weight": 3.0,
    ".q_proj.weight": 1.5, ".k_proj.weight": 1.5}


def opt_key_biases(layers):
    """Return OPT's biases of keys, which softmax cancels without RoPE."""
    return [f"model.decoder.layers.{layer}.self_attn.k_proj.bias"
            for layer in range(layers)]


# The sizes of DeepSeek's compressed attention.
MLA = {"hidden_size": 28, "num_key_value_heads": None, "q_lora_rank": 18,
       "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 6,
       "v_head_dim": 12}

# The sizes of sparse attention, which reads all positions of the texts here.
DSA = MLA | {"num_key_value_heads": 4, "num_experts_per_tok": 3,
             "moe_intermediate_size": 22, "index_topk": 300,
             "index_head_dim": 8, "index_n_heads": 2}

# The norm of an indexer that chooses all positions changes nothing.
INDEXER = (".indexer.k_norm.weight", ".indexer.k_norm.bias")

# The sizes of Qwen3-Next's experts and recurrent layers.
QWEN3_NEXT = {"num_experts_per_tok": 2, "moe_intermediate_size": 22,
              "shared_expert_intermediate_size": 42,
              "linear_num_key_heads": 2, "linear_key_head_dim": 9,
              "linear_num_value_heads": 4, "linear_value_head_dim": 11}

# The sizes of Qwen3.5's recurrent layers.
QWEN3_5 = {name: size for name, size in QWEN3_NEXT.items()
           if name.startswith("linear")}

# LFM2's default padding token is in the small vocabulary.
LFM2 = {"block_auto_adjust_ff_dim": False, "hidden_size": 24,
        "num_attention_heads": 4, "num_key_value_heads": 2}

LFM2_MOE = LFM2 | {"num_experts_per_tok": 2, "moe_intermediate_size": 22}
del LFM2_MOE["block_auto_adjust_ff_dim"]

# The gates of short convolutions make their outputs small.
LFM2_SCALES = {"conv.out_proj.weight": 2.0, ".q_proj.weight": 2.0,
               ".k_proj.weight": 2.0}

# The sizes of Granite 4's recurrent layers.
GRANITE4 = GRANITE_FACTORS | {
    "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
    "shared_intermediate_size": 26, "mamba_n_heads": 4, "mamba_d_head": 12,
    "mamba_d_state": 10, "residual_multiplier": 0.9}

# For each family: the configuration's class, changes to SMALL, and the dtype
# of the file. Further keys:
#
# - `old_spelling` rewrites config.json in the spelling of transformers before
#   version 5. `set` then sets options in it, `keep` lists new options that
#   stay, `drop` lists others that do not, `rename` has other old names, and
#   `old_rope_type` is its type of scaling.
# - `without` lists changes to the configuration that must change the logits,
#   `without_attributes` changes to modules that must, and `cancels` the tensors
#   that cannot change them.
# - `shard` is the maximum size of a shard.
# - `centred` says that norms multiply by 1 plus their weight, except those whose
#   names end as `plain_norms` says.
# - `experts` is the number of experts to choose from. `transposed_experts` says
#   that their matrices have the input first.
# - `fused_experts` says that the file has one tensor for all experts of a
#   layer. `with_images` describes the model with images whose part it is.
# - `scales` has factors for endings of names, and `float32` lists endings of
#   tensors that stay in float32.
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
        "options": {"tie_word_embeddings": True,
                    "head_dim": 10} | GRANITE_FACTORS,
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
                    "head_dim": 10,
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
    # Gemma 2: soft caps of scores and logits, a window in every second layer.
    # Three checkpoints: as published, with biases and its own list of layers,
    # and without soft caps.
    "gemma2": {
        "config": transformers.Gemma2Config, "dtype": torch.bfloat16,
        "options": {"num_hidden_layers": 3, "sliding_window": 16,
                    "query_pre_attn_scalar": 6, "attn_logit_softcapping": 2.5,
                    "final_logit_softcapping": 5.0, "rms_norm_eps": 1e-6},
        "centred": True, "old_spelling": True,
        "set": {"hidden_act": "gelu_pytorch_tanh"},
        "without": {
            "cap of scores": {"attn_logit_softcapping": None},
            "cap of logits": {"final_logit_softcapping": None},
            "scale of scores": {"query_pre_attn_scalar": 10},
            "activation": {"hidden_activation": "silu"},
            "window": WIDE,
            "layer types": {"layer_types": [
                "full_attention", "sliding_attention", "full_attention"]}},
    },
    "gemma2-window": {
        "config": transformers.Gemma2Config, "dtype": torch.float16,
        "options": {"hidden_size": 20, "head_dim": 14, "vocab_size": 101,
                    "num_key_value_heads": 1, "tie_word_embeddings": False,
                    "attention_bias": True, "sliding_window": 11,
                    "query_pre_attn_scalar": 9, "attn_logit_softcapping": 3.0,
                    "final_logit_softcapping": 6.5,
                    "layer_types": ["full_attention", "sliding_attention"]},
        "centred": True,
        "without": {
            "cap of scores": {"attn_logit_softcapping": None},
            "cap of logits": {"final_logit_softcapping": None},
            "scale of scores": {"query_pre_attn_scalar": 14},
            "attention biases": {"attention_bias": False},
            "window": WIDE,
            "layer types": {"layer_types": [
                "sliding_attention", "full_attention"]}},
    },
    "gemma2-uncapped": {
        "config": transformers.Gemma2Config, "dtype": torch.float32,
        "options": {"hidden_size": 28, "head_dim": 6, "intermediate_size": 45,
                    "sliding_window": 19, "query_pre_attn_scalar": 4,
                    "attn_logit_softcapping": None,
                    "final_logit_softcapping": None,
                    "rope_parameters": {
                        "rope_type": "linear", "rope_theta": 20000.0,
                        "factor": 3.0}},
        "centred": True,
        "without": {
            "scale of scores": {"query_pre_attn_scalar": 6},
            "scaling": {"rope_parameters": {
                "rope_type": "default", "rope_theta": 20000.0}},
            "window": WIDE},
    },
    # Gemma 3: another RoPE in the layers with a window, norms of queries and
    # keys. Three checkpoints: as the 1B model, with biases and every option,
    # and as the larger models, whose global RoPE is scaled.
    "gemma3": {
        "config": transformers.Gemma3TextConfig, "dtype": torch.bfloat16,
        "options": {"num_hidden_layers": 4, "sliding_window": 15,
                    "sliding_window_pattern": 3, "query_pre_attn_scalar": 6,
                    "rms_norm_eps": 1e-6,
                    "rope_parameters": {
                        "full_attention": {
                            "rope_type": "default", "rope_theta": 1000000.0},
                        "sliding_attention": {
                            "rope_type": "default", "rope_theta": 10000.0}}},
        "centred": True, "old_spelling": True,
        "set": {"sliding_window_pattern": 3, "attn_logit_softcapping": None,
                "final_logit_softcapping": None},
        "without": {
            "scale of scores": {"query_pre_attn_scalar": 10},
            "window": WIDE,
            "layer types": {"layer_types": ["sliding_attention"] * 4},
            "local theta": {"rope_parameters": {
                "full_attention": {
                    "rope_type": "default", "rope_theta": 1000000.0},
                "sliding_attention": {
                    "rope_type": "default", "rope_theta": 1000000.0}}},
            "global theta": {"rope_parameters": {
                "full_attention": {
                    "rope_type": "default", "rope_theta": 10000.0},
                "sliding_attention": {
                    "rope_type": "default", "rope_theta": 10000.0}}}},
    },
    "gemma3-bias": {
        "config": transformers.Gemma3TextConfig, "dtype": torch.float16,
        "options": {"hidden_size": 20, "head_dim": 14, "vocab_size": 101,
                    "num_key_value_heads": 1, "tie_word_embeddings": False,
                    "attention_bias": True, "sliding_window": 11,
                    "query_pre_attn_scalar": 9,
                    "final_logit_softcapping": 6.5,
                    "layer_types": ["full_attention", "sliding_attention"],
                    "rope_parameters": {
                        "full_attention": {
                            "rope_type": "linear", "rope_theta": 50000.0,
                            "factor": 4.0},
                        "sliding_attention": {
                            "rope_type": "default", "rope_theta": 700.0}}},
        "centred": True,
        "without": {
            "cap of logits": {"final_logit_softcapping": None},
            "scale of scores": {"query_pre_attn_scalar": 14},
            "attention biases": {"attention_bias": False},
            "window": WIDE,
            "layer types": {"layer_types": [
                "sliding_attention", "full_attention"]},
            "scaling": {"rope_parameters": {
                "full_attention": {
                    "rope_type": "default", "rope_theta": 50000.0},
                "sliding_attention": {
                    "rope_type": "default", "rope_theta": 700.0}}},
            "scaling only of the global RoPE": {"rope_parameters": {
                "full_attention": {
                    "rope_type": "linear", "rope_theta": 50000.0,
                    "factor": 4.0},
                "sliding_attention": {
                    "rope_type": "linear", "rope_theta": 700.0,
                    "factor": 4.0}}}},
    },
    "gemma3-linear": {
        "config": transformers.Gemma3TextConfig, "dtype": torch.float32,
        "options": {"num_hidden_layers": 3, "hidden_size": 28, "head_dim": 6,
                    "intermediate_size": 45, "sliding_window": 19,
                    "sliding_window_pattern": 2, "query_pre_attn_scalar": 4,
                    "rope_parameters": {
                        "full_attention": {
                            "rope_type": "linear", "rope_theta": 100000.0,
                            "factor": 8.0},
                        "sliding_attention": {
                            "rope_type": "default", "rope_theta": 10000.0}}},
        "centred": True, "old_spelling": True,
        "old_rope_type": {"rope_type": "linear"},
        "set": {"sliding_window_pattern": 2},
        "without": {
            "scale of scores": {"query_pre_attn_scalar": 6},
            "window": WIDE,
            "scaling": {"rope_parameters": {
                "full_attention": {
                    "rope_type": "default", "rope_theta": 100000.0},
                "sliding_attention": {
                    "rope_type": "default", "rope_theta": 10000.0}}}},
    },
    # Gemma 4: other sizes of heads and proportional RoPE in the layers without
    # a window, norms of values, and a factor of each layer. Four checkpoints:
    # as the 31B model (values are keys), with biases and values of their own,
    # and as E2B and E4B, whose layers have inputs of their own and share keys.
    "gemma4": {
        "config": transformers.Gemma4TextConfig, "dtype": torch.bfloat16,
        "options": GEMMA4 | {
            "num_hidden_layers": 3, "sliding_window": 15,
            "final_logit_softcapping": 6.0, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "global_head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention",
                            "full_attention"]},
        "published": {"global_head_dim": 16, "num_global_key_value_heads": 1},
        # The last norm divides by it.
        "cancels": ["model.layers.2.layer_scalar"],
        "without": {
            "cap of logits": {"final_logit_softcapping": None},
            "activation": {"hidden_activation": "silu"},
            "window": WIDE,
            "share of RoPE": {"rope_parameters": GEMMA4_ROPE | {
                "full_attention": {
                    "rope_type": "proportional", "rope_theta": 1000000.0,
                    "partial_rotary_factor": 1.0}}},
            "global theta": {"rope_parameters": GEMMA4_ROPE | {
                "full_attention": {
                    "rope_type": "proportional", "rope_theta": 10.0,
                    "partial_rotary_factor": 0.25}}}},
    },
    "gemma4-bias": {
        "config": transformers.Gemma4TextConfig, "dtype": torch.float16,
        "options": GEMMA4 | {
            "hidden_size": 20, "head_dim": 14, "vocab_size": 101,
            "global_head_dim": 6, "num_key_value_heads": 2,
            "tie_word_embeddings": False, "attention_bias": True,
            "sliding_window": 11, "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional", "rope_theta": 50000.0,
                    "partial_rotary_factor": 0.7, "factor": 2.0},
                "sliding_attention": {
                    "rope_type": "default", "rope_theta": 700.0}}},
        # The last norm divides by it.
        "cancels": ["model.layers.1.layer_scalar"],
        "without": {
            "attention biases": {"attention_bias": False},
            "window": WIDE,
            "scaling": {"rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional", "rope_theta": 50000.0,
                    "partial_rotary_factor": 0.7, "factor": 1.0},
                "sliding_attention": {
                    "rope_type": "default", "rope_theta": 700.0}}}},
    },
    "gemma4-inputs": {
        "config": transformers.Gemma4TextConfig, "dtype": torch.bfloat16,
        "options": GEMMA4 | {
            "num_hidden_layers": 5, "sliding_window": 13,
            "global_head_dim": 18, "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True, "hidden_size_per_layer_input": 7,
            "vocab_size_per_layer_input": 131, "layer_types": [
                "sliding_attention", "full_attention", "sliding_attention",
                "sliding_attention", "full_attention"]},
        "published": {"global_head_dim": 18,
                      "num_global_key_value_heads": None},
        # The last norm divides by it.
        "cancels": ["model.layers.4.layer_scalar"],
        "without": {"window": WIDE},
    },
    "gemma4-inputs-head": {
        "config": transformers.Gemma4TextConfig, "dtype": torch.float32,
        "options": GEMMA4 | {
            "num_hidden_layers": 4, "hidden_size": 28, "head_dim": 6,
            "intermediate_size": 45, "sliding_window": 19,
            "global_head_dim": 10, "num_kv_shared_layers": 1,
            "final_logit_softcapping": 7.5, "tie_word_embeddings": False,
            "hidden_size_per_layer_input": 12,
            "vocab_size_per_layer_input": 131, "layer_types": [
                "full_attention", "sliding_attention", "full_attention",
                "full_attention"]},
        # The last norm divides by it.
        "cancels": ["model.layers.3.layer_scalar"],
        "without": {"window": WIDE,
                    "cap of logits": {"final_logit_softcapping": None}},
    },
    # Gemma 4 with experts next to the dense MLP: as the 26B model, with all
    # options of the smaller ones, and in f16 with biases and its own head.
    "gemma4-moe": {
        "config": transformers.Gemma4TextConfig, "dtype": torch.bfloat16,
        "options": GEMMA4 | GEMMA4_MOE | {
            "num_hidden_layers": 3, "sliding_window": 15,
            "final_logit_softcapping": 6.0, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "global_head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention",
                            "full_attention"]},
        "published": {"global_head_dim": 16, "num_global_key_value_heads": 1},
        "experts": 7, "scales": GEMMA4_MOE_SCALES,
        # The last norm divides by it.
        "cancels": ["model.layers.2.layer_scalar"],
        "without": {"window": WIDE,
                    "number of experts": {"top_k_experts": 2},
                    "activation": {"hidden_activation": "silu"}},
    },
    "gemma4-moe-inputs": {
        "config": transformers.Gemma4TextConfig, "dtype": torch.float32,
        "options": GEMMA4 | GEMMA4_MOE | {
            "num_hidden_layers": 3, "sliding_window": 13, "num_experts": 5,
            "top_k_experts": 2, "moe_intermediate_size": 27,
            "global_head_dim": 18, "num_kv_shared_layers": 1,
            "use_double_wide_mlp": True, "hidden_size_per_layer_input": 7,
            "vocab_size_per_layer_input": 131,
            "final_logit_softcapping": 7.0, "layer_types": [
                "sliding_attention", "full_attention", "full_attention"]},
        "experts": 5, "scales": GEMMA4_MOE_SCALES | {
            ".q_norm.weight": 0.8, ".k_norm.weight": 0.8},
        "cancels": ["model.layers.2.layer_scalar"],
        "without": {"window": WIDE,
                    "number of experts": {"top_k_experts": 1}},
    },
    "gemma4-moe-bias": {
        "config": transformers.Gemma4TextConfig, "dtype": torch.float16,
        "options": GEMMA4 | GEMMA4_MOE | {
            "hidden_size": 20, "head_dim": 14, "vocab_size": 101,
            "global_head_dim": 6, "attention_bias": True, "num_experts": 4,
            "top_k_experts": 2, "tie_word_embeddings": False,
            "sliding_window": 11},
        "experts": 4, "scales": GEMMA4_MOE_SCALES,
        "cancels": ["model.layers.1.layer_scalar"],
        "without": {"window": WIDE,
                    "attention biases": {"attention_bias": False}},
    },
    # Phi-3 and Phi-4: fused projections. Five checkpoints: Phi-3-mini-4k,
    # Phi-4-mini with its partial RoPE, and the scaling of the long models with
    # the short factors (in two dtypes and spellings) and the long ones.
    "phi3": {
        "config": transformers.Phi3Config, "dtype": torch.bfloat16,
        "options": PHI3 | {"sliding_window": 21},
        "old_spelling": True,
        "without": {"window": WIDE, "theta": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 1000.0,
            "partial_rotary_factor": 1.0}}},
    },
    "phi3-partial": {
        "config": transformers.Phi3Config, "dtype": torch.float16,
        "options": PHI3 | {
            "hidden_size": 36, "num_attention_heads": 3,
            "num_key_value_heads": 1, "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5}},
        "without": {"part without RoPE": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0}}},
    },
    "phi3-longrope": {
        "config": transformers.Phi3Config, "dtype": torch.bfloat16,
        "options": PHI3 | {
            "num_attention_heads": 3, "num_key_value_heads": 1,
            "tie_word_embeddings": True, "max_position_embeddings": 2048,
            "original_max_position_embeddings": 256,
            "rope_parameters": longrope(
                256, [1.0, 1.4, 2.5], [1.2, 3.0, 9.0],
                partial_rotary_factor=0.75)},
        "old_spelling": True,
        "without": {
            "factors": {"rope_parameters": longrope(
                256, [1.0] * 3, [1.2, 3.0, 9.0],
                partial_rotary_factor=0.75)},
            "short factors": {"rope_parameters": longrope(
                256, [1.2, 3.0, 9.0], [1.2, 3.0, 9.0],
                partial_rotary_factor=0.75)},
            "scale of attention": {"max_position_embeddings": 256}},
    },
    "phi3-longrope-new": {
        "config": transformers.Phi3Config, "dtype": torch.float32,
        "options": PHI3 | {
            "vocab_size": 101, "sliding_window": 31,
            "original_max_position_embeddings": 256,
            "max_position_embeddings": 1024,
            "rope_parameters": longrope(
                256, [1.1, 1.5, 2.0], [1.3, 4.0, 12.0],
                attention_factor=1.3)},
        "without": {
            "window": WIDE,
            "factors": {"rope_parameters": longrope(
                256, [1.0] * 3, [1.3, 4.0, 12.0], attention_factor=1.3)},
            "scale of attention": {"rope_parameters": longrope(
                256, [1.1, 1.5, 2.0], [1.3, 4.0, 12.0])}},
    },
    # OLMo 2: norms after attention and MLP instead of before, norms of all
    # queries and of all keys together. Three checkpoints: 7B, biases with
    # grouped heads, and a tied head with scaled RoPE.
    "olmo2": {
        "config": transformers.Olmo2Config, "dtype": torch.bfloat16,
        "options": NO_PAD | {"num_key_value_heads": 4, "rope_parameters": {
            "rope_type": "default", "rope_theta": 500000.0}},
        "old_spelling": True,
        "without": {"theta": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 1000.0}}},
    },
    "olmo2-bias": {
        "config": transformers.Olmo2Config, "dtype": torch.float16,
        "options": NO_PAD | {"hidden_size": 36, "num_attention_heads": 3,
                             "num_key_value_heads": 1, "vocab_size": 101,
                             "attention_bias": True},
        "without": {"attention biases": {"attention_bias": False}},
    },
    "olmo2-tied": {
        "config": transformers.Olmo2Config, "dtype": torch.float32,
        "options": NO_PAD | {"hidden_size": 20, "num_attention_heads": 2,
                             "num_key_value_heads": 1,
                             "num_hidden_layers": 3,
                             "tie_word_embeddings": True,
                             "rope_parameters": {
                                 "rope_type": "linear",
                                 "rope_theta": 10000.0, "factor": 4.0}},
        "without": {"scaling": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0}}},
    },
    # OLMo 3: as OLMo 2, with a window in three of four layers. Only the other
    # layers have scaled RoPE. Three checkpoints: 7B with 64k, with biases and
    # two different RoPEs, and without scaling.
    "olmo3": {
        "config": transformers.Olmo3Config, "dtype": torch.bfloat16,
        "options": NO_PAD | {
            "num_hidden_layers": 4, "sliding_window": 15,
            "max_position_embeddings": 512,
            "rope_parameters": olmo3_rope(yarn(
                500000.0, 8.0, 64, beta_fast=32.0, beta_slow=1.0,
                attention_factor=1.2079441541679836))},
        "old_spelling": True, "old_rope_type": {"rope_type": "yarn"},
        "keep": ["layer_types"],
        "without": {
            "window": WIDE,
            "layer types": {"layer_types": [
                "sliding_attention"] * 2 + ["full_attention"] * 2},
            "scaling": {"rope_parameters": olmo3_rope(
                {"rope_type": "default", "rope_theta": 500000.0})},
            "scale of attention": {"rope_parameters": olmo3_rope(yarn(
                500000.0, 8.0, 64, beta_fast=32.0, beta_slow=1.0,
                attention_factor=1.0))},
            "scaling of one RoPE": {"rope_parameters": {
                "full_attention": yarn(500000.0, 8.0, 64),
                "sliding_attention": yarn(500000.0, 8.0, 64)}}},
    },
    "olmo3-bias": {
        "config": transformers.Olmo3Config, "dtype": torch.float16,
        "options": NO_PAD | {
            "hidden_size": 36, "num_attention_heads": 3,
            "num_key_value_heads": 1, "vocab_size": 101,
            "attention_bias": True, "sliding_window": 12,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "default", "rope_theta": 500000.0},
                "sliding_attention": {
                    "rope_type": "default", "rope_theta": 500.0}}},
        "without": {
            "attention biases": {"attention_bias": False},
            "window": WIDE,
            "local theta": {"rope_parameters": olmo3_rope(
                {"rope_type": "default", "rope_theta": 500000.0})}},
    },
    "olmo3-plain": {
        "config": transformers.Olmo3Config, "dtype": torch.float32,
        "options": NO_PAD | {
            "hidden_size": 20, "num_attention_heads": 2,
            "num_key_value_heads": 1, "num_hidden_layers": 4,
            "tie_word_embeddings": True, "sliding_window": 23},
        "old_spelling": True,
        "without": {
            "window": WIDE,
            "layer types": {"layer_types": ["sliding_attention"] * 4}},
    },
    # Mixtral: experts in every layer. Three checkpoints: with a window, with a
    # tied head and six experts, and with three of five experts.
    "mixtral": {
        "config": transformers.MixtralConfig, "dtype": torch.bfloat16,
        "options": {"num_local_experts": 4, "sliding_window": 17,
                    "head_dim": None,
                    "rope_parameters": {
                        "rope_type": "default", "rope_theta": 1000000.0}},
        "old_spelling": True, "experts": 4,
        "without": {"window": WIDE, "second expert": {
            "num_experts_per_tok": 1}},
    },
    "mixtral-tied": {
        "config": transformers.MixtralConfig, "dtype": torch.float16,
        "options": {"hidden_size": 20, "head_dim": 14, "vocab_size": 101,
                    "num_key_value_heads": 1, "tie_word_embeddings": True,
                    "num_local_experts": 6},
        "experts": 6,
        "without": {"second expert": {"num_experts_per_tok": 1}},
    },
    "mixtral-three": {
        "config": transformers.MixtralConfig, "dtype": torch.float32,
        "options": {"hidden_size": 28, "head_dim": 6, "num_local_experts": 5,
                    "num_hidden_layers": 3, "intermediate_size": 21,
                    "num_experts_per_tok": 3,
                    "rope_parameters": {
                        "rope_type": "linear", "rope_theta": 10000.0,
                        "factor": 4.0}},
        "experts": 5,
        "without": {"third expert": {"num_experts_per_tok": 2},
                    "scaling": {"rope_parameters": {
                        "rope_type": "default", "rope_theta": 10000.0}}},
    },
    # Qwen3's experts. Three checkpoints: normalised weights, weights that are
    # not normalised with dense layers and biases, and a window.
    "qwen3-moe": {
        "config": transformers.Qwen3MoeConfig, "dtype": torch.bfloat16,
        "options": {"head_dim": 10, "num_experts": 6,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 22,
                    "norm_topk_prob": True, "eos_token_id": [2, 4],
                    "rope_parameters": {
                        "rope_type": "default", "rope_theta": 1000000.0}},
        "old_spelling": True, "experts": 6,
        "rename": {"num_local_experts": "num_experts"},
        "without": {"normalisation": {"norm_topk_prob": False},
                    "second expert": {"num_experts_per_tok": 1}},
    },
    "qwen3-moe-sparse": {
        "config": transformers.Qwen3MoeConfig, "dtype": torch.float16,
        "options": {"hidden_size": 20, "head_dim": 14, "vocab_size": 101,
                    "num_key_value_heads": 1, "num_hidden_layers": 6,
                    "num_experts": 4, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 18, "decoder_sparse_step": 2,
                    "mlp_only_layers": [3, 4], "attention_bias": True},
        "experts": 4,
        "without": {"other weights": {"norm_topk_prob": True},
                    "attention biases": {"attention_bias": False},
                    "second expert": {"num_experts_per_tok": 1}},
    },
    "qwen3-moe-window": {
        "config": transformers.Qwen3MoeConfig, "dtype": torch.float32,
        "options": {"hidden_size": 28, "head_dim": 6, "num_experts": 5,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 26,
                    "norm_topk_prob": True, "tie_word_embeddings": True,
                    "use_sliding_window": True, "sliding_window": 13},
        "experts": 5,
        "without": {"normalisation": {"norm_topk_prob": False},
                    "window": {"use_sliding_window": False}},
    },
    # Qwen2's experts: also one expert for all tokens with its own gate. Three
    # checkpoints: 1.5-MoE-A2.7B, a tied head with dense layers, and windows
    # with no biases.
    "qwen2-moe": {
        "config": transformers.Qwen2MoeConfig, "dtype": torch.bfloat16,
        "options": {"num_experts": 6, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 22,
                    "shared_expert_intermediate_size": 42},
        "old_spelling": True, "experts": 6,
        "set": {"use_sliding_window": False, "sliding_window": 8,
                "max_window_layers": 1},
        "without": {"other weights": {"norm_topk_prob": True},
                    "biases": {"qkv_bias": False},
                    "second expert": {"num_experts_per_tok": 1}},
    },
    "qwen2-moe-sparse": {
        "config": transformers.Qwen2MoeConfig, "dtype": torch.float16,
        "options": {"hidden_size": 20, "num_attention_heads": 2,
                    "num_key_value_heads": 1, "vocab_size": 101,
                    "num_hidden_layers": 4, "num_experts": 4,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 18,
                    "shared_expert_intermediate_size": 27,
                    "decoder_sparse_step": 2, "norm_topk_prob": True,
                    "tie_word_embeddings": True},
        "experts": 4,
        "without": {"normalisation": {"norm_topk_prob": False}},
    },
    "qwen2-moe-window": {
        "config": transformers.Qwen2MoeConfig, "dtype": torch.float32,
        "options": {"hidden_size": 36, "num_attention_heads": 3,
                    "num_key_value_heads": 1, "num_hidden_layers": 3,
                    "num_experts": 5, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 26,
                    "shared_expert_intermediate_size": 18,
                    "mlp_only_layers": [0], "qkv_bias": False,
                    "use_sliding_window": True, "sliding_window": 13,
                    "max_window_layers": 2,
                    "layer_types": ["full_attention", "sliding_attention",
                                    "full_attention"]},
        "experts": 5,
        "without": {"other weights": {"norm_topk_prob": True},
                    "window": WIDE,
                    "layer types": {"layer_types": [
                        "sliding_attention", "full_attention",
                        "full_attention"]}},
    },
    # Qwen3-Next: the gated delta rule in most layers, gated attention with
    # partial RoPE in the others, and experts with a shared one. Three
    # checkpoints: as published, a tied head with biases and dense layers, and
    # layers of its own list.
    "qwen3-next": {
        "config": transformers.Qwen3NextConfig, "dtype": torch.bfloat16,
        "options": QWEN3_NEXT | {
            "head_dim": 12, "num_hidden_layers": 4, "num_experts": 6,
            "eos_token_id": [2, 4], "rope_parameters": partial(0.5, 1e6)},
        "centred": True, "plain_norms": "linear_attn.norm.weight",
        "old_spelling": True, "experts": 6,
        "without": WHOLE | {
            "normalisation": {"norm_topk_prob": False},
            "second expert": {"num_experts_per_tok": 1}},
    },
    "qwen3-next-bias": {
        "config": transformers.Qwen3NextConfig, "dtype": torch.float16,
        "options": QWEN3_NEXT | {
            "hidden_size": 20, "head_dim": 8, "vocab_size": 101,
            "num_key_value_heads": 1, "num_hidden_layers": 4,
            "num_experts": 4, "decoder_sparse_step": 2,
            "tie_word_embeddings": True, "attention_bias": True,
            "norm_topk_prob": False, "linear_conv_kernel_dim": 3,
            "linear_num_key_heads": 1, "linear_num_value_heads": 3,
            "layer_types": ["linear_attention", "full_attention",
                            "full_attention", "linear_attention"]},
        "centred": True, "plain_norms": "linear_attn.norm.weight",
        "experts": 4,
        "without": {"other weights": {"norm_topk_prob": True},
                    "attention biases": {"attention_bias": False}},
    },
    "qwen3-next-equal": {
        "config": transformers.Qwen3NextConfig, "dtype": torch.float32,
        "options": QWEN3_NEXT | {
            "hidden_size": 28, "head_dim": 10, "num_hidden_layers": 3,
            "num_experts": 5, "linear_num_key_heads": 3,
            "linear_num_value_heads": 3, "linear_key_head_dim": 17,
            "linear_value_head_dim": 6, "mlp_only_layers": [1],
            "rope_parameters": partial(0.4),
            "layer_types": ["full_attention", "linear_attention",
                            "linear_attention"]},
        "centred": True, "plain_norms": "linear_attn.norm.weight",
        "experts": 5,
        "without": WHOLE | {"normalisation": {"norm_topk_prob": False}},
    },
    # Qwen3.5: Qwen3-Next with other projections, dense or with experts. Three
    # checkpoints of each: as published, with biases or other sizes, and with
    # a tied or an own head.
    "qwen3.5": {
        "config": transformers.Qwen3_5TextConfig, "dtype": torch.bfloat16,
        "options": QWEN3_5 | {
            "head_dim": 12, "num_hidden_layers": 4,
            "rope_parameters": partial(0.5, 1e7) | {
                "mrope_section": [1, 1, 1], "mrope_interleaved": True}},
        "centred": True, "plain_norms": "linear_attn.norm.weight",
        "without": WHOLE,
    },
    "qwen3.5-bias": {
        "config": transformers.Qwen3_5TextConfig, "dtype": torch.float16,
        "options": QWEN3_5 | {
            "hidden_size": 20, "head_dim": 8, "vocab_size": 101,
            "num_key_value_heads": 1, "num_hidden_layers": 3,
            "attention_bias": True, "linear_conv_kernel_dim": 2,
            "layer_types": ["full_attention", "linear_attention",
                            "full_attention"]},
        "centred": True, "plain_norms": "linear_attn.norm.weight",
        "without": {"attention biases": {"attention_bias": False}},
    },
    "qwen3.5-tied": {
        "config": transformers.Qwen3_5TextConfig, "dtype": torch.float32,
        "options": QWEN3_5 | {
            "hidden_size": 28, "num_hidden_layers": 2,
            "tie_word_embeddings": True, "linear_num_key_heads": 3,
            "linear_num_value_heads": 6, "rope_parameters": partial(0.4),
            "layer_types": ["linear_attention", "full_attention"]},
        "centred": True, "plain_norms": "linear_attn.norm.weight",
        "without": WHOLE,
    },
    "qwen3.5-moe": {
        "config": transformers.Qwen3_5MoeTextConfig, "dtype": torch.bfloat16,
        "options": QWEN3_NEXT | {
            "head_dim": 12, "num_hidden_layers": 4, "num_experts": 6,
            "rope_parameters": partial(0.5, 1e7)},
        "centred": True, "plain_norms": "linear_attn.norm.weight",
        "experts": 6,
        "without": WHOLE | {"second expert": {"num_experts_per_tok": 1}},
    },
    "qwen3.5-moe-bias": {
        "config": transformers.Qwen3_5MoeTextConfig, "dtype": torch.float16,
        "options": QWEN3_NEXT | {
            "hidden_size": 20, "head_dim": 8, "vocab_size": 101,
            "num_key_value_heads": 1, "num_hidden_layers": 2,
            "num_experts": 4, "attention_bias": True,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention", "linear_attention"]},
        "centred": True, "plain_norms": "linear_attn.norm.weight",
        "experts": 4,
        "without": {"attention biases": {"attention_bias": False}},
    },
    "qwen3.5-moe-equal": {
        "config": transformers.Qwen3_5MoeTextConfig, "dtype": torch.float32,
        "options": QWEN3_NEXT | {
            "hidden_size": 28, "head_dim": 10, "num_hidden_layers": 3,
            "num_experts": 5, "linear_num_key_heads": 3,
            "linear_num_value_heads": 3, "rope_parameters": partial(0.4),
            "layer_types": ["linear_attention", "full_attention",
                            "linear_attention"]},
        "centred": True, "plain_norms": "linear_attn.norm.weight",
        "experts": 5,
        "without": WHOLE,
    },
    # The same as published: all experts of a layer in one tensor, in a model
    # that also reads images, and a Qwen3-Next that was saved in this form.
    "qwen3.5-moe-published": {
        "config": transformers.Qwen3_5MoeTextConfig, "dtype": torch.bfloat16,
        "options": QWEN3_NEXT | {
            "hidden_size": 28, "head_dim": 12, "num_hidden_layers": 4,
            "num_experts": 7, "num_experts_per_tok": 3,
            "linear_num_key_heads": 1, "linear_num_value_heads": 3,
            "rope_parameters": partial(0.5, 1e7) | {
                "mrope_section": [1, 1, 1], "mrope_interleaved": True}},
        "centred": True, "plain_norms": "linear_attn.norm.weight",
        "fused_experts": True, "experts": 7,
        "with_images": {
            "config": transformers.Qwen3_5MoeConfig,
            "class": transformers.Qwen3_5MoeForConditionalGeneration,
            "options": {"depth": 1, "hidden_size": 8, "num_heads": 1,
                        "intermediate_size": 8, "patch_size": 2,
                        "out_hidden_size": 28, "spatial_merge_size": 1,
                        "temporal_patch_size": 1,
                        "num_position_embeddings": 4}},
        "without": {"second expert": {"num_experts_per_tok": 2}},
    },
    "qwen3-next-fused": {
        "config": transformers.Qwen3NextConfig, "dtype": torch.float16,
        "options": QWEN3_NEXT | {
            "hidden_size": 20, "head_dim": 8, "num_hidden_layers": 3,
            "num_experts": 5, "num_key_value_heads": 1,
            "tie_word_embeddings": True, "mlp_only_layers": [1],
            "layer_types": ["linear_attention", "linear_attention",
                            "full_attention"]},
        "centred": True, "plain_norms": "linear_attn.norm.weight",
        "fused_experts": True, "experts": 5,
        "without": WHOLE | {"normalisation": {"norm_topk_prob": False}},
    },
    # LFM2: gated short convolutions in most layers. Three checkpoints: as
    # published, a head of its own, and adjusted widths with old names.
    "lfm2": {
        "config": transformers.Lfm2Config, "dtype": torch.bfloat16,
        "options": LFM2 | {
            "num_hidden_layers": 4, "eos_token_id": [2, 7],
            "layer_types": ["conv", "conv", "full_attention", "conv"]},
        "scales": LFM2_SCALES,
        "without": {"theta": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 1000.0}}},
    },
    "lfm2-head": {
        "config": transformers.Lfm2Config, "dtype": torch.float16,
        "options": LFM2 | {
            "hidden_size": 20, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": 101,
            "num_hidden_layers": 3, "conv_L_cache": 4, "norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention", "conv", "full_attention"]},
        "scales": LFM2_SCALES,
        "without": {"theta": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 1000.0}}},
    },
    "lfm2-adjusted": {
        "config": transformers.Lfm2Config, "dtype": torch.float32,
        "options": LFM2 | {
            "hidden_size": 36, "num_attention_heads": 3,
            "num_key_value_heads": 3, "num_hidden_layers": 3,
            "conv_L_cache": 2, "block_auto_adjust_ff_dim": True,
            "block_multiple_of": 7, "block_ffn_dim_multiplier": 1.5,
            "full_attn_idxs": [1]},
        "scales": LFM2_SCALES,
        "without": {"theta": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 1000.0}}},
    },
    # LFM2-MoE: dense layers first, and then experts of DeepSeek-V3's kind.
    # Two checkpoints: as published, and without a correction.
    "lfm2-moe": {
        "config": transformers.Lfm2MoeConfig, "dtype": torch.bfloat16,
        "options": LFM2_MOE | {
            "num_hidden_layers": 4, "num_dense_layers": 1, "num_experts": 6,
            "layer_types": ["conv", "conv", "full_attention", "conv"]},
        "scales": LFM2_SCALES, "experts": 6, "float32": ["expert_bias"],
        "without": {
            "correction": {"use_expert_bias": False},
            "normalisation": {"norm_topk_prob": False},
            "second expert": {"num_experts_per_tok": 1}},
    },
    "lfm2-moe-plain": {
        "config": transformers.Lfm2MoeConfig, "dtype": torch.float32,
        "options": LFM2_MOE | {
            "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 3,
            "num_hidden_layers": 3, "num_dense_layers": 0, "num_experts": 5,
            "use_expert_bias": False, "norm_topk_prob": False,
            "routed_scaling_factor": 1.6, "tie_word_embeddings": False,
            "layer_types": ["full_attention", "conv", "full_attention"]},
        "scales": LFM2_SCALES, "experts": 5,
        "without": {
            "other weights": {"norm_topk_prob": True},
            "factor of experts": {"routed_scaling_factor": 1.0}},
    },
    # Granite 4: Mamba-2 in most layers, and attention without positions.
    # Three checkpoints: experts, dense with a tied head and RoPE, and several
    # groups without a bias of the convolution.
    "granite4": {
        "config": transformers.GraniteMoeHybridConfig, "dtype": torch.bfloat16,
        "options": GRANITE4 | {
            "num_hidden_layers": 4, "num_local_experts": 6,
            "num_experts_per_tok": 2, "intermediate_size": 22,
            "layer_types": ["mamba", "mamba", "attention", "mamba"]},
        "experts": 6,
        "without": GRANITE_WITHOUT | {
            "second expert": {"num_experts_per_tok": 1},
            "no positions": {"position_embedding_type": "rope"}},
    },
    "granite4-dense": {
        "config": transformers.GraniteMoeHybridConfig, "dtype": torch.float16,
        "options": GRANITE4 | {
            "hidden_size": 20, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": 101,
            "num_hidden_layers": 3, "num_local_experts": 0,
            "mamba_n_heads": 4, "mamba_d_head": 10, "mamba_d_state": 7,
            "position_embedding_type": "rope", "attention_bias": True,
            "tie_word_embeddings": True,
            "layer_types": ["mamba", "attention", "mamba"]},
        "without": GRANITE_WITHOUT | {
            "attention biases": {"attention_bias": False},
            "positions": {"position_embedding_type": None}},
    },
    "granite4-groups": {
        "config": transformers.GraniteMoeHybridConfig, "dtype": torch.float32,
        "options": GRANITE4 | {
            "num_hidden_layers": 2, "num_local_experts": 5,
            "num_experts_per_tok": 3, "intermediate_size": 14,
            "mamba_n_heads": 6, "mamba_d_head": "auto", "mamba_n_groups": 3,
            "mamba_d_conv": 3, "mamba_conv_bias": False, "mamba_expand": 3,
            "layer_types": ["attention", "mamba"]},
        "experts": 5,
        "without": GRANITE_WITHOUT,
    },
    # OLMoE: norms of all queries and of all keys together. Three checkpoints:
    # as published, clipped queries, keys and values with normalised weights,
    # and biases with a tied head.
    "olmoe": {
        "config": transformers.OlmoeConfig, "dtype": torch.bfloat16,
        "options": NO_PAD | {"num_key_value_heads": 4, "num_experts": 6,
                             "num_experts_per_tok": 2,
                             "intermediate_size": 22},
        "old_spelling": True, "experts": 6,
        "without": {"other weights": {"norm_topk_prob": True},
                    "second expert": {"num_experts_per_tok": 1}},
    },
    "olmoe-bias": {
        "config": transformers.OlmoeConfig, "dtype": torch.float32,
        "options": NO_PAD | {"hidden_size": 36, "num_attention_heads": 3,
                             "num_key_value_heads": 3, "num_hidden_layers": 3,
                             "num_experts": 5, "num_experts_per_tok": 3,
                             "intermediate_size": 14,
                             "attention_bias": True,
                             "tie_word_embeddings": True},
        "experts": 5,
        "without": {"other weights": {"norm_topk_prob": True},
                    "attention biases": {"attention_bias": False}},
    },
    "olmoe-clip": {
        "config": transformers.OlmoeConfig, "dtype": torch.float16,
        "options": NO_PAD | {"num_key_value_heads": 2, "vocab_size": 101,
                             "num_experts": 4, "num_experts_per_tok": 2,
                             "intermediate_size": 18, "clip_qkv": 0.8},
        "experts": 4,
        "without": {"limit": {"clip_qkv": None}},
    },
    # OLMo 1: layer norms without weights, and limits of queries, keys and
    # values. Three checkpoints: 7B, with biases, and 1B with a tied head.
    "olmo": {
        "config": transformers.OlmoConfig, "dtype": torch.bfloat16,
        "options": NO_PAD | {"num_key_value_heads": 4, "clip_qkv": 1.5},
        "old_spelling": True,
        "without": {"limit": {"clip_qkv": None}},
    },
    "olmo-bias": {
        "config": transformers.OlmoConfig, "dtype": torch.float16,
        "options": NO_PAD | {"hidden_size": 28, "num_attention_heads": 2,
                             "num_key_value_heads": 1, "attention_bias": True,
                             "clip_qkv": 2.0},
        "scales": {".q_proj.weight": 1.5, ".k_proj.weight": 1.5},
        "without": {"limit": {"clip_qkv": None},
                    "attention biases": {"attention_bias": False}},
    },
    "olmo-tied": {
        "config": transformers.OlmoConfig, "dtype": torch.float32,
        "options": NO_PAD | {"hidden_size": 36, "num_attention_heads": 3,
                             "num_key_value_heads": 3, "num_hidden_layers": 3,
                             "tie_word_embeddings": True},
        "old_spelling": True,
        # Without weights of the last norm, a token would predict itself.
        "scales": {".o_proj.weight": 5.0, ".down_proj.weight": 8.0},
        "without": {"theta": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 1e9}}},
    },
    # GPT-2: learned positions, fused queries, keys and values, and matrices
    # with the inputs first. Three checkpoints: as published, with another
    # width of the MLP, and with a separate head.
    "gpt2": {
        "config": transformers.GPT2Config, "dtype": torch.float32,
        "options": GPT2, "scales": GPT2_SCALES,
        "without": {"activation": {"activation_function": "relu"}},
    },
    "gpt2-inner": {
        "config": transformers.GPT2Config, "dtype": torch.bfloat16,
        "options": GPT2 | {"n_embd": 36, "n_head": 3, "n_layer": 3,
                           "n_inner": 46, "vocab_size": 101,
                           "activation_function": "gelu",
                           "layer_norm_epsilon": 0.01},
        "scales": GPT2_SCALES,
        "without": {"activation": {"activation_function": "relu"},
                    "epsilon": {"layer_norm_epsilon": 1e-5}},
    },
    "gpt2-head": {
        "config": transformers.GPT2Config, "dtype": torch.float16,
        "options": GPT2 | {"n_embd": 20, "n_head": 2,
                           "tie_word_embeddings": False},
        "scales": GPT2_SCALES,
        "without": {"activation": {"activation_function": "relu"}},
    },
    # OPT: learned positions after two unused ones, ReLU. Three checkpoints:
    # as published, without biases, and with a separate head.
    "opt": {
        "config": transformers.OPTConfig, "dtype": torch.float16,
        "options": OPT, "scales": OPT_SCALES,
        "cancels": opt_key_biases(2),
        "without": {"activation": {"activation_function": "silu"}},
    },
    "opt-plain": {
        "config": transformers.OPTConfig, "dtype": torch.bfloat16,
        "options": OPT | {"hidden_size": 36, "num_attention_heads": 3,
                          "num_hidden_layers": 3, "enable_bias": False,
                          "vocab_size": 101},
        "scales": OPT_SCALES,
        "without": {"activation": {"activation_function": "silu"}},
    },
    "opt-head": {
        "config": transformers.OPTConfig, "dtype": torch.float32,
        "options": OPT | {"hidden_size": 20, "num_attention_heads": 2,
                          "activation_function": "gelu",
                          "tie_word_embeddings": False},
        "scales": OPT_SCALES,
        "cancels": opt_key_biases(2),
        "without": {"activation": {"activation_function": "relu"}},
    },
    # Falcon: one fused projection for each key/value head, LayerNorm, an MLP
    # without gate. Four checkpoints: 7B with one key/value head, 40B with two
    # norms, 11B with one norm, and one after the other with biases.
    "falcon": {
        "config": transformers.FalconConfig, "dtype": torch.bfloat16,
        "options": {}, "old_spelling": True, "scales": GPT_NEOX_SCALES,
        "without": {"activation": {"activation": "relu"},
                    "RoPE": {"alibi": True}},
    },
    "falcon-new": {
        "config": transformers.FalconConfig, "dtype": torch.float16,
        "options": {"new_decoder_architecture": True, "num_kv_heads": 2,
                    "tie_word_embeddings": False, "vocab_size": 101},
        "old_spelling": True, "scales": GPT_NEOX_SCALES,
        "without": {"activation": {"activation": "relu"}},
    },
    "falcon-one-norm": {
        "config": transformers.FalconConfig, "dtype": torch.float32,
        "options": {"new_decoder_architecture": True, "hidden_size": 36,
                    "num_attention_heads": 3, "num_ln_in_parallel_attn": 1,
                    "num_hidden_layers": 3, "ffn_hidden_size": 50},
        "scales": GPT_NEOX_SCALES,
        "without": {"theta": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 1e9}}},
    },
    "falcon-sequential": {
        "config": transformers.FalconConfig, "dtype": torch.float32,
        "options": {"multi_query": False, "parallel_attn": False,
                    "bias": True, "hidden_size": 20,
                    "num_attention_heads": 2, "vocab_size": 101},
        "scales": GPT_NEOX_SCALES,
        "without": {"activation": {"activation": "relu"}},
    },
    # Granite 3's experts: fused matrices of all experts. Three checkpoints:
    # tied, with biases, and with scaled RoPE.
    "granitemoe": {
        "config": transformers.GraniteMoeConfig, "dtype": torch.bfloat16,
        "options": GRANITE_FACTORS | {
            "hidden_size": 36, "num_attention_heads": 3,
            "num_key_value_heads": 3, "tie_word_embeddings": True,
            "num_local_experts": 6, "num_experts_per_tok": 2,
            "intermediate_size": 22, "residual_multiplier": 0.9,
            "embedding_multiplier": 1.3},
        "old_spelling": True, "experts": 6,
        "without": GRANITE_WITHOUT | {
            "second expert": {"num_experts_per_tok": 1}},
    },
    "granitemoe-bias": {
        "config": transformers.GraniteMoeConfig, "dtype": torch.float16,
        "options": {"hidden_size": 20, "num_attention_heads": 2,
                    "num_key_value_heads": 1, "vocab_size": 101,
                    "num_local_experts": 4, "num_experts_per_tok": 2,
                    "attention_bias": True} | GRANITE_FACTORS,
        "experts": 4,
        "without": GRANITE_WITHOUT | {
            "attention biases": {"attention_bias": False}},
    },
    "granitemoe-linear": {
        "config": transformers.GraniteMoeConfig, "dtype": torch.float32,
        "options": {"hidden_size": 36, "num_attention_heads": 3,
                    "num_key_value_heads": 3, "num_hidden_layers": 3,
                    "num_local_experts": 5, "num_experts_per_tok": 3,
                    "intermediate_size": 14,
                    "rope_parameters": {
                        "rope_type": "linear", "rope_theta": 100000.0,
                        "factor": 4.0}} | GRANITE_FACTORS,
        "experts": 5,
        "without": GRANITE_WITHOUT | {"scaling": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 100000.0}}},
    },
    # gpt-oss: sinks, biases everywhere, a clamped activation, scaled RoPE, a
    # window in every second layer. Three checkpoints: as published, with the
    # ramp of YaRN rounded, and without biases of attention and scaling.
    "gpt-oss": {
        "config": transformers.GptOssConfig, "dtype": torch.bfloat16,
        "options": {"num_local_experts": 4, "num_experts_per_tok": 2,
                    "intermediate_size": 22, "sliding_window": 16,
                    "num_hidden_layers": 3,
                    "max_position_embeddings": 131072,
                    "rope_parameters": yarn(
                        150000.0, 32.0, 4096, beta_fast=32.0, beta_slow=1.0,
                        truncate=False)},
        "old_spelling": True, "old_rope_type": {"rope_type": "yarn"},
        "keep": ["layer_types"],
        "set": {"swiglu_limit": 7.0, "experts_per_token": 2,
                "initial_context_length": 4096},
        "experts": 4, "transposed_experts": True, "scales": GPT_OSS_SCALES,
        "without": {
            "window": WIDE,
            "layer types": {"layer_types": ["sliding_attention"] * 3},
            "attention biases": {"attention_bias": False},
            "second expert": {"num_experts_per_tok": 1},
            "scaling": {"rope_parameters": {
                "rope_type": "default", "rope_theta": 150000.0}},
            "exact ramp": {"rope_parameters": yarn(
                150000.0, 32.0, 4096, truncate=True)},
            "scale of attention": {"rope_parameters": yarn(
                150000.0, 32.0, 4096, truncate=False,
                attention_factor=1.0)}},
        "without_attributes": GPT_OSS_ATTRIBUTES,
    },
    "gpt-oss-truncate": {
        "config": transformers.GptOssConfig, "dtype": torch.float16,
        "options": {"hidden_size": 20, "head_dim": 14, "vocab_size": 101,
                    "num_key_value_heads": 1, "num_local_experts": 6,
                    "num_experts_per_tok": 2, "intermediate_size": 38,
                    "sliding_window": 11,
                    "layer_types": ["full_attention", "sliding_attention"],
                    "rope_parameters": yarn(5000.0, 8.0, 64)},
        "experts": 6, "transposed_experts": True, "scales": GPT_OSS_SCALES,
        "without": {
            "window": WIDE,
            "attention biases": {"attention_bias": False},
            "scaling": {"rope_parameters": {
                "rope_type": "default", "rope_theta": 5000.0}},
            "rounded ramp": {"rope_parameters": yarn(
                5000.0, 8.0, 64, truncate=False)}},
        "without_attributes": GPT_OSS_ATTRIBUTES,
    },
    "gpt-oss-plain": {
        "config": transformers.GptOssConfig, "dtype": torch.float32,
        "options": {"hidden_size": 28, "head_dim": 6, "num_local_experts": 5,
                    "num_experts_per_tok": 3, "intermediate_size": 14,
                    "num_key_value_heads": 4, "sliding_window": 19,
                    "attention_bias": False, "tie_word_embeddings": True,
                    "rope_parameters": {
                        "rope_type": "default", "rope_theta": 10000.0}},
        "experts": 5, "transposed_experts": True, "scales": GPT_OSS_SCALES,
        "without": {
            "window": WIDE,
            "third expert": {"num_experts_per_tok": 2}},
        "without_attributes": GPT_OSS_ATTRIBUTES,
    },
    # Cohere: attention and MLP of the same norm, RoPE of neighbouring pairs, a
    # factor of the logits. Three checkpoints: Command R, Command R+ with norms
    # of queries and keys, and biases with scaled RoPE.
    "cohere": {
        "config": transformers.CohereConfig, "dtype": torch.bfloat16,
        "options": {"hidden_size": 40, "logit_scale": 0.7,
                    "rope_parameters": {
                        "rope_type": "default", "rope_theta": 8000000.0}},
        "old_spelling": True,
        "without": {"factor of logits": {"logit_scale": 1.0},
                    "theta": {"rope_parameters": {
                        "rope_type": "default", "rope_theta": 1000.0}}},
    },
    "cohere-norm": {
        "config": transformers.CohereConfig, "dtype": torch.float16,
        "options": {"hidden_size": 28, "num_attention_heads": 2,
                    "num_key_value_heads": 1, "vocab_size": 101,
                    "tie_word_embeddings": False, "use_qk_norm": True,
                    "logit_scale": 1.3},
        "without": {"factor of logits": {"logit_scale": 1.0},
                    "norms": {"use_qk_norm": False}},
    },
    "cohere-bias": {
        "config": transformers.CohereConfig, "dtype": torch.float32,
        "options": {"hidden_size": 36, "num_attention_heads": 3,
                    "num_key_value_heads": 3, "num_hidden_layers": 3,
                    "attention_bias": True, "logit_scale": 0.8,
                    "rope_parameters": {
                        "rope_type": "linear", "rope_theta": 10000.0,
                        "factor": 4.0}},
        "without": {"factor of logits": {"logit_scale": 1.0},
                    "attention biases": {"attention_bias": False},
                    "scaling": {"rope_parameters": {
                        "rope_type": "default", "rope_theta": 10000.0}}},
    },
    # Cohere 2: as Cohere. Only layers with a window have RoPE. Three
    # checkpoints: Command R7B, biases with its own list of layers, and another
    # pattern of layers.
    "cohere2": {
        "config": transformers.Cohere2Config, "dtype": torch.bfloat16,
        "options": {"hidden_size": 40, "num_hidden_layers": 4,
                    "sliding_window": 15, "logit_scale": 0.7,
                    "rope_parameters": {
                        "rope_type": "default", "rope_theta": 50000.0}},
        "old_spelling": True,
        "set": {"sliding_window_pattern": 4, "rotary_pct": 1.0,
                "order_of_interleaved_layers": "local_attn_first",
                "position_embedding_type": "rope_gptj",
                "use_embedding_sharing": True, "use_gated_activation": True,
                "use_parallel_block": True, "use_parallel_embedding": False},
        "without": {"factor of logits": {"logit_scale": 1.0},
                    "window": WIDE,
                    "layer types": {"layer_types": [
                        "sliding_attention"] * 4}},
    },
    "cohere2-bias": {
        "config": transformers.Cohere2Config, "dtype": torch.float16,
        "options": {"hidden_size": 28, "num_attention_heads": 2,
                    "num_key_value_heads": 1, "vocab_size": 101,
                    "tie_word_embeddings": False, "attention_bias": True,
                    "logit_scale": 1.3, "sliding_window": 11,
                    "layer_types": ["full_attention", "sliding_attention"]},
        "without": {"factor of logits": {"logit_scale": 1.0},
                    "window": WIDE,
                    "attention biases": {"attention_bias": False},
                    "layer types": {"layer_types": [
                        "sliding_attention", "full_attention"]}},
        # As in `smollm3-window`: this layer has no RoPE.
        "cancels": ["model.layers.0.self_attn.k_proj.bias"],
    },
    "cohere2-pattern": {
        "config": transformers.Cohere2Config, "dtype": torch.float32,
        "options": {"hidden_size": 36, "num_attention_heads": 3,
                    "num_key_value_heads": 3, "num_hidden_layers": 3,
                    "logit_scale": 0.8, "sliding_window": 19,
                    "sliding_window_pattern": 2},
        "old_spelling": True, "set": {"sliding_window_pattern": 2},
        "without": {"factor of logits": {"logit_scale": 1.0},
                    "window": WIDE,
                    "layer types": {"layer_types": [
                        "sliding_attention"] * 3}},
    },
    # GLM-4: RoPE of neighbouring pairs in a part of the head, fused MLP.
    # Three checkpoints: 9B, without biases, and RoPE in the whole head.
    "glm": {
        "config": transformers.GlmConfig, "dtype": torch.bfloat16,
        "options": GLM | {"head_dim": 12, "eos_token_id": [2, 5, 7],
                          "rope_parameters": partial(0.5)},
        "old_spelling": True,
        "without": {"biases": {"attention_bias": False}} | WHOLE,
    },
    "glm-plain": {
        "config": transformers.GlmConfig, "dtype": torch.float16,
        "options": GLM | {"hidden_size": 20, "head_dim": 8,
                          "num_key_value_heads": 1, "vocab_size": 101,
                          "attention_bias": False,
                          "tie_word_embeddings": True,
                          "rope_parameters": partial(0.75)},
        "without": WHOLE,
    },
    "glm-whole": {
        "config": transformers.GlmConfig, "dtype": torch.float32,
        "options": GLM | {"hidden_size": 28, "num_key_value_heads": 4,
                          "head_dim": 6, "num_hidden_layers": 3,
                          "rope_parameters": partial(1.0)},
        "without": {"biases": {"attention_bias": False},
                    "RoPE": {"rope_parameters": partial(1.0, theta=1e9)}},
    },
    # GLM-4-0414: also norms after attention and MLP. The same checkpoints.
    "glm4": {
        "config": transformers.Glm4Config, "dtype": torch.bfloat16,
        "options": GLM | {"head_dim": 12, "eos_token_id": [2, 5, 7],
                          "attention_bias": False,
                          "rope_parameters": partial(0.5)},
        "old_spelling": True,
        "without": WHOLE,
    },
    "glm4-bias": {
        "config": transformers.Glm4Config, "dtype": torch.float16,
        "options": GLM | {"hidden_size": 20, "head_dim": 8,
                          "num_key_value_heads": 1, "vocab_size": 101,
                          "tie_word_embeddings": True,
                          "rope_parameters": partial(0.75)},
        "without": {"biases": {"attention_bias": False}} | WHOLE,
    },
    "glm4-whole": {
        "config": transformers.Glm4Config, "dtype": torch.float32,
        "options": GLM | {"hidden_size": 28, "num_key_value_heads": 4,
                          "head_dim": 6, "num_hidden_layers": 3,
                          "rope_parameters": partial(1.0)},
        "without": {"biases": {"attention_bias": False},
                    "RoPE": {"rope_parameters": partial(1.0, theta=1e9)}},
    },
    # StarCoder2: LayerNorm, an MLP without gate, biases. Three checkpoints:
    # 3B with a window, without biases, and with scaled RoPE.
    "starcoder2": {
        "config": transformers.Starcoder2Config, "dtype": torch.bfloat16,
        "options": {"hidden_size": 40, "intermediate_size": 70,
                    "sliding_window": 18,
                    "rope_parameters": {
                        "rope_type": "default", "rope_theta": 999999.4420358813}},
        "old_spelling": True,
        "set": {"mlp_type": "default", "norm_type": "layer_norm"},
        "without": {"window": WIDE, "biases": {"use_bias": False},
                    "activation": {"hidden_act": "silu"}},
    },
    "starcoder2-plain": {
        "config": transformers.Starcoder2Config, "dtype": torch.float16,
        "options": {"hidden_size": 20, "num_attention_heads": 2,
                    "num_key_value_heads": 1, "vocab_size": 101,
                    "use_bias": False, "tie_word_embeddings": False,
                    "hidden_act": "gelu"},
        "without": {"activation": {"hidden_act": "silu"}},
    },
    "starcoder2-linear": {
        "config": transformers.Starcoder2Config, "dtype": torch.float32,
        "options": {"hidden_size": 36, "num_attention_heads": 3,
                    "num_key_value_heads": 3, "num_hidden_layers": 3,
                    "norm_epsilon": 0.01, "tie_word_embeddings": False,
                    "rope_parameters": {
                        "rope_type": "linear", "rope_theta": 10000.0,
                        "factor": 4.0}},
        "without": {"biases": {"use_bias": False},
                    "epsilon": {"norm_epsilon": 1e-5},
                    "scaling": {"rope_parameters": {
                        "rope_type": "default", "rope_theta": 10000.0}}},
    },
    # Phi-2: attention and MLP of the same LayerNorm, RoPE in a part of the
    # head, a bias of the logits. Three checkpoints: 2.7B, norms of queries and
    # keys with grouped heads, and a tied head.
    "phi": {
        "config": transformers.PhiConfig, "dtype": torch.bfloat16,
        "options": {"hidden_size": 40, "intermediate_size": 70,
                    "num_key_value_heads": 4,
                    "rope_parameters": partial(0.4)},
        "old_spelling": True,
        "without": WHOLE | {"activation": {"hidden_act": "silu"}},
    },
    "phi-tied": {
        "config": transformers.PhiConfig, "dtype": torch.float32,
        "options": {"hidden_size": 36, "num_attention_heads": 3,
                    "num_key_value_heads": 3, "num_hidden_layers": 3,
                    "tie_word_embeddings": True,
                    "rope_parameters": partial(0.5) | {
                        "rope_type": "linear", "factor": 4.0}},
        "scales": PHI_SCALES,
        "without": {"scaling": {"rope_parameters": partial(0.5)}},
    },
    # StableLM: LayerNorm, RoPE in a part of the head. Three checkpoints:
    # 2-1.6B with biases, 2-12B with parallel attention and MLP and norms of
    # each head, and 3B.
    "stablelm": {
        "config": transformers.StableLmConfig, "dtype": torch.bfloat16,
        "options": {"num_attention_heads": 3, "num_key_value_heads": 3,
                    "use_qkv_bias": True, "rope_parameters": partial(0.25)},
        "old_spelling": True,
        "without": WHOLE | {"biases": {"use_qkv_bias": False}},
    },
    "stablelm-plain": {
        "config": transformers.StableLmConfig, "dtype": torch.float32,
        "options": {"hidden_size": 20, "num_attention_heads": 2,
                    "num_key_value_heads": 1, "num_hidden_layers": 3,
                    "tie_word_embeddings": True, "layer_norm_eps": 0.01,
                    "rope_parameters": partial(1.0)},
        "without": {"epsilon": {"layer_norm_eps": 1e-5},
                    "theta": {"rope_parameters": partial(1.0, theta=1e9)}},
    },
    "stablelm-norms": {
        "config": transformers.StableLmConfig, "dtype": torch.float16,
        "options": {"num_attention_heads": 4, "num_key_value_heads": 2,
                    "qk_layernorm": True, "use_parallel_residual": True,
                    "rope_parameters": partial(0.67)},
        "without": WHOLE | {"norms": {"qk_layernorm": False}},
    },
    # GPT-NeoX: fused queries, keys and values of each head, LayerNorm, an MLP
    # without gate. Three checkpoints: Pythia, RedPajama with one after the
    # other, and without biases of attention.
    "gpt-neox": {
        "config": transformers.GPTNeoXConfig, "dtype": torch.bfloat16,
        "options": {"num_attention_heads": 3, "intermediate_size": 70,
                    "bos_token_id": 0, "eos_token_id": 0,
                    "rope_parameters": partial(0.25)},
        "old_spelling": True, "rename": GPT_NEOX_NAMES,
        "without": WHOLE | {
            "parallel": {"use_parallel_residual": False},
            "biases": {"attention_bias": False},
            "activation": {"hidden_act": "silu"}},
    },
    "gpt-neox-sequential": {
        "config": transformers.GPTNeoXConfig, "dtype": torch.float16,
        "options": {"hidden_size": 20, "num_attention_heads": 2,
                    "vocab_size": 101, "use_parallel_residual": False,
                    "rope_parameters": partial(1.0)},
        "old_spelling": True, "rename": GPT_NEOX_NAMES,
        "without": {
            "theta": {"rope_parameters": partial(1.0, theta=1e9)},
            "one after the other": {"use_parallel_residual": True},
            "biases": {"attention_bias": False}},
    },
    "gpt-neox-plain": {
        "config": transformers.GPTNeoXConfig, "dtype": torch.float32,
        "options": {"hidden_size": 36, "num_attention_heads": 3,
                    "num_hidden_layers": 3, "attention_bias": False,
                    "tie_word_embeddings": True,
                    "hidden_act": "gelu_fast",
                    "rope_parameters": partial(0.5)},
        "scales": GPT_NEOX_SCALES,
        "without": WHOLE | {"parallel": {"use_parallel_residual": False}},
    },
    # Other scalings of RoPE: YaRN in both spellings, with factors of its own
    # and an exact ramp, Qwen's long contexts, `dynamic` within the original
    # context, and `longrope`.
    "llama-yarn": {
        "config": transformers.LlamaConfig, "dtype": torch.bfloat16,
        "options": {"rope_parameters": yarn(10000.0, 8.0, 64)},
        "old_spelling": True,
        "without": {
            "scaling": {"rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0}},
            "scale of attention": {"rope_parameters": yarn(
                10000.0, 8.0, 64, attention_factor=1.0)},
            "rounded ramp": {"rope_parameters": yarn(
                10000.0, 8.0, 64, truncate=False)}},
    },
    "llama-yarn-exact": {
        "config": transformers.LlamaConfig, "dtype": torch.float16,
        "options": {"hidden_size": 20, "head_dim": 14, "vocab_size": 101,
                    "num_key_value_heads": 1,
                    "rope_parameters": yarn(
                        5000.0, 16.0, 48, beta_fast=8.0, beta_slow=0.5,
                        mscale=1.2, mscale_all_dim=0.6, truncate=False)},
        "without": {
            "scaling": {"rope_parameters": {
                "rope_type": "default", "rope_theta": 5000.0}},
            "scale of attention": {"rope_parameters": yarn(
                5000.0, 16.0, 48, beta_fast=8.0, beta_slow=0.5,
                truncate=False)},
            "exact ramp": {"rope_parameters": yarn(
                5000.0, 16.0, 48, beta_fast=8.0, beta_slow=0.5,
                mscale=1.2, mscale_all_dim=0.6)},
            "betas": {"rope_parameters": yarn(
                5000.0, 16.0, 48, mscale=1.2, mscale_all_dim=0.6,
                truncate=False)}},
    },
    "qwen3-yarn": {
        "config": transformers.Qwen3Config, "dtype": torch.bfloat16,
        "options": {"tie_word_embeddings": True,
                    "rope_parameters": yarn(10000.0, 4.0, 128)},
        "old_spelling": True, "old_rope_type": {"rope_type": "yarn"},
        "without": {
            "scaling": {"rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0}},
            "scale of attention": {"rope_parameters": yarn(
                10000.0, 4.0, 128, attention_factor=1.0)}},
    },
    "llama-dynamic": {
        "config": transformers.LlamaConfig, "dtype": torch.float32,
        "options": {"vocab_size": 101, "head_dim": 6,
                    "rope_parameters": {
                        "rope_type": "dynamic", "rope_theta": 10000.0,
                        "factor": 4.0}},
        "old_spelling": True,
        "without": {"theta": {"rope_parameters": {
            "rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0}}},
    },
    "llama-longrope": {
        "config": transformers.LlamaConfig, "dtype": torch.float16,
        "options": {
            "max_position_embeddings": 2048,
            "rope_parameters": longrope(
                256, [1.0, 1.2, 1.5, 2.0, 3.0], [1.0, 1.5, 3.0, 6.0, 9.0],
                factor=6.0)},
        "without": {
            "factors": {"rope_parameters": longrope(
                256, [1.0] * 5, [1.0, 1.5, 3.0, 6.0, 9.0], factor=6.0)},
            "factor": {"rope_parameters": longrope(
                256, [1.0, 1.2, 1.5, 2.0, 3.0], [1.0, 1.5, 3.0, 6.0, 9.0],
                factor=1.0)}},
    },
    # GLM-4.5: a router with sigmoid and a bias for the choice, groups of
    # experts, an expert for all tokens, dense layers first, RoPE in a part of
    # the head. Three checkpoints: 4.5 with norms, groups, and no dense layer.
    "glm4-moe": {
        "config": transformers.Glm4MoeConfig, "dtype": torch.bfloat16,
        "options": {"head_dim": 12, "num_hidden_layers": 3,
                    "attention_bias": True, "use_qk_norm": True,
                    "n_routed_experts": 6, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 22,
                    "routed_scaling_factor": 2.5,
                    "rope_parameters": partial(0.5)},
        "old_spelling": True, "experts": 6,
        "float32": ["e_score_correction_bias"],
        "without": WHOLE | {
            "factor of experts": {"routed_scaling_factor": 1.0},
            "normalisation": {"norm_topk_prob": False},
            "norms": {"use_qk_norm": False},
            "second expert": {"num_experts_per_tok": 1},
            "biases": {"attention_bias": False}},
    },
    "glm4-moe-group": {
        "config": transformers.Glm4MoeConfig, "dtype": torch.float16,
        "options": {"hidden_size": 20, "head_dim": 8, "vocab_size": 101,
                    "num_key_value_heads": 1, "tie_word_embeddings": True,
                    "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
                    "num_experts_per_tok": 3, "norm_topk_prob": False,
                    "moe_intermediate_size": 18,
                    "routed_scaling_factor": 0.7,
                    "rope_parameters": partial(0.75)},
        "experts": 6,
        "without": WHOLE | {
            "factor of experts": {"routed_scaling_factor": 1.0},
            "other weights": {"norm_topk_prob": True},
            "groups": {"topk_group": 3}},
    },
    "glm4-moe-sparse": {
        "config": transformers.Glm4MoeConfig, "dtype": torch.float32,
        "options": {"hidden_size": 28, "num_key_value_heads": 4,
                    "head_dim": 6, "n_routed_experts": 4,
                    "num_experts_per_tok": 2, "n_shared_experts": 2,
                    "first_k_dense_replace": 0, "moe_intermediate_size": 14,
                    "rope_parameters": partial(1.0)},
        "experts": 4,
        "without": {"normalisation": {"norm_topk_prob": False}},
    },
    # DeepSeek-V2: compressed keys and values, groups of experts whose score is
    # that of their best one, YaRN with a factor of scores. Three checkpoints:
    # V2, V2-Lite without compressed queries and groups, and one with biases.
    "deepseek-v2": {
        "config": transformers.DeepseekV2Config, "dtype": torch.bfloat16,
        "options": MLA | {
            "num_hidden_layers": 3, "first_k_dense_replace": 1,
            "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
            "topk_method": "group_limited_greedy", "num_experts_per_tok": 3,
            "moe_intermediate_size": 22, "routed_scaling_factor": 2.5,
            "rope_parameters": yarn(10000.0, 8.0, 64, mscale=0.7,
                                    mscale_all_dim=0.9)},
        "old_spelling": True, "experts": 6,
        "set": {"scoring_func": "softmax", "moe_layer_freq": 1},
        "without": {
            "factor of experts": {"routed_scaling_factor": 1.0},
            "groups": {"topk_group": 3},
            "scaling": {"rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0}},
            "factor of scores": {"rope_parameters": yarn(
                10000.0, 8.0, 64, mscale=0.7, mscale_all_dim=0.7)}},
    },
    "deepseek-v2-lite": {
        "config": transformers.DeepseekV2Config, "dtype": torch.float16,
        "options": MLA | {
            "hidden_size": 20, "vocab_size": 101, "q_lora_rank": None,
            "kv_lora_rank": 22, "tie_word_embeddings": True,
            "n_routed_experts": 5, "num_experts_per_tok": 2,
            "n_shared_experts": 1, "moe_intermediate_size": 18},
        "experts": 5,
        "without": {"second expert": {"num_experts_per_tok": 1}},
    },
    "deepseek-v2-bias": {
        "config": transformers.DeepseekV2Config, "dtype": torch.float32,
        "options": MLA | {
            "num_attention_heads": 7, "v_head_dim": 5, "kv_lora_rank": 34,
            "attention_bias": True, "mlp_bias": True,
            "first_k_dense_replace": 1, "n_routed_experts": 4,
            "n_group": 2, "topk_group": 1, "num_experts_per_tok": 1,
            "topk_method": "group_limited_greedy",
            "moe_intermediate_size": 14},
        "experts": 4,
        "without": {
            "theta": {"rope_parameters": {
                "rope_type": "default", "rope_theta": 100.0}}},
    },
    # GLM-4.7-Flash: DeepSeek-V3's attention with GLM-4.5's experts. Three
    # checkpoints: as published, with groups, and with biases and a dense layer
    # after one with experts.
    "glm4-moe-lite": {
        "config": transformers.Glm4MoeLiteConfig, "dtype": torch.bfloat16,
        "options": MLA | {
            "num_key_value_heads": 4,
            "num_hidden_layers": 3, "n_routed_experts": 6, "eos_token_id": [2, 5],
            "num_experts_per_tok": 3, "moe_intermediate_size": 22},
        "old_spelling": True, "experts": 6, "drop": ["mlp_layer_types"],
        "set": {"topk_method": "noaux_tc", "first_k_dense_replace": 1,
                "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0},
        "float32": ["e_score_correction_bias"],
        "without": {
            "factor of experts": {"routed_scaling_factor": 1.0},
            "normalisation": {"norm_topk_prob": False},
            "neighbours": {"rope_interleave": False}},
    },
    "glm4-moe-lite-groups": {
        "config": transformers.Glm4MoeLiteConfig, "dtype": torch.float16,
        "options": MLA | {
            "num_key_value_heads": 4,
            "hidden_size": 20, "vocab_size": 101, "q_lora_rank": None,
            "kv_lora_rank": 21, "tie_word_embeddings": True,
            "rope_interleave": False, "norm_topk_prob": False,
            "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
            "num_experts_per_tok": 3, "moe_intermediate_size": 18,
            "routed_scaling_factor": 0.7},
        "experts": 6,
        "without": {
            "halves": {"rope_interleave": True},
            "groups": {"topk_group": 3}},
    },
    "glm4-moe-lite-types": {
        "config": transformers.Glm4MoeLiteConfig, "dtype": torch.float32,
        "options": MLA | {
            "num_hidden_layers": 3, "num_attention_heads": 7,
            "num_key_value_heads": 7, "v_head_dim": 5,
            "kv_lora_rank": 33, "attention_bias": True, "n_shared_experts": 2,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "n_routed_experts": 5, "num_experts_per_tok": 2,
            "moe_intermediate_size": 14},
        "experts": 5,
        "without": {"second expert": {"num_experts_per_tok": 1}},
    },
    # DeepSeek-V3: sigmoids with a bias for the choice, groups with the sum of
    # their two best. Three checkpoints: V3, one without compressed queries and
    # with rotated halves, and one with biases and without dense layers.
    "deepseek-v3": {
        "config": transformers.DeepseekV3Config, "dtype": torch.bfloat16,
        "options": MLA | {
            "num_hidden_layers": 3, "first_k_dense_replace": 1,
            "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
            "num_experts_per_tok": 3, "moe_intermediate_size": 22,
            "rope_parameters": yarn(10000.0, 8.0, 64, mscale=1.0,
                                    mscale_all_dim=1.0)},
        "old_spelling": True, "experts": 6,
        "set": {"scoring_func": "sigmoid", "topk_method": "noaux_tc",
                "moe_layer_freq": 1},
        "float32": ["e_score_correction_bias"],
        "without": {
            "factor of experts": {"routed_scaling_factor": 1.0},
            "normalisation": {"norm_topk_prob": False},
            "groups": {"topk_group": 3},
            "neighbours": {"rope_interleave": False},
            "scaling": {"rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0}},
            "factor of scores": {"rope_parameters": yarn(
                10000.0, 8.0, 64, attention_factor=1.0)}},
    },
    "deepseek-v3-halves": {
        "config": transformers.DeepseekV3Config, "dtype": torch.float16,
        "options": MLA | {
            "hidden_size": 20, "vocab_size": 101, "q_lora_rank": None,
            "kv_lora_rank": 21, "tie_word_embeddings": True,
            "rope_interleave": False, "norm_topk_prob": False,
            "first_k_dense_replace": 0, "n_routed_experts": 4,
            "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
            "moe_intermediate_size": 18, "num_mtp_layers": 0},
        "experts": 4,
        "without": {
            "halves": {"rope_interleave": True},
            "other weights": {"norm_topk_prob": True}},
    },
    "deepseek-v3-bias": {
        "config": transformers.DeepseekV3Config, "dtype": torch.float32,
        "options": MLA | {
            "num_attention_heads": 7, "v_head_dim": 5, "kv_lora_rank": 33,
            "attention_bias": True, "n_shared_experts": 2,
            "first_k_dense_replace": 1, "n_routed_experts": 8,
            "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.5, "moe_intermediate_size": 14},
        "experts": 8,
        "without": {
            "factor of experts": {"routed_scaling_factor": 1.0},
            "groups": {"topk_group": 2}},
    },
    # DeepSeek-V3.2 and GLM-5: sparse attention, which reads all positions of
    # these texts. Two checkpoints of each: as published, and with other sizes.
    "deepseek-v3.2": {
        "config": transformers.DeepseekV32Config, "dtype": torch.bfloat16,
        "options": DSA | {
            "num_hidden_layers": 3, "n_routed_experts": 6, "n_group": 3,
            "topk_group": 2, "first_k_dense_replace": 1,
            "rope_parameters": yarn(10000.0, 8.0, 64, mscale=1.0,
                                    mscale_all_dim=1.0)},
        "experts": 6, "float32": ["e_score_correction_bias"],
        "cancels_endings": INDEXER,
        "without": {
            "factor of experts": {"routed_scaling_factor": 1.0},
            "sparsity": {"index_topk": 8}},
    },
    "deepseek-v3.2-bias": {
        "config": transformers.DeepseekV32Config, "dtype": torch.float32,
        "options": DSA | {
            "num_attention_heads": 7, "num_key_value_heads": 7,
            "v_head_dim": 5, "kv_lora_rank": 33, "attention_bias": True,
            "n_shared_experts": 2, "n_routed_experts": 5, "n_group": 1,
            "topk_group": 1, "mlp_layer_types": ["sparse", "dense"],
            "norm_topk_prob": False, "tie_word_embeddings": True},
        "experts": 5, "cancels_endings": INDEXER,
        "without": {
            "other weights": {"norm_topk_prob": True},
            "sparsity": {"index_topk": 8}},
    },
    "glm-5": {
        "config": transformers.GlmMoeDsaConfig, "dtype": torch.bfloat16,
        "options": DSA | {
            "num_hidden_layers": 4, "n_routed_experts": 6,
            "first_k_dense_replace": 1, "index_topk_freq": 2},
        "experts": 6, "float32": ["e_score_correction_bias"],
        "cancels_endings": INDEXER,
        "without": {
            "factor of experts": {"routed_scaling_factor": 1.0},
            "sparsity": {"index_topk": 8}},
    },
    "glm-5-groups": {
        "config": transformers.GlmMoeDsaConfig, "dtype": torch.float16,
        "options": DSA | {
            "hidden_size": 20, "vocab_size": 101, "kv_lora_rank": 21,
            "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
            "norm_topk_prob": False, "routed_scaling_factor": 0.7,
            "tie_word_embeddings": True,
            "mlp_layer_types": ["dense", "sparse"]},
        "experts": 6, "cancels_endings": INDEXER,
        "without": {
            "groups": {"topk_group": 3},
            "sparsity": {"index_topk": 8}},
    },
    # dots.llm1: attention of Qwen3, experts of DeepSeek-V3. Two checkpoints:
    # as published, and with every other option.
    "dots1": {
        "config": transformers.Dots1Config, "dtype": torch.bfloat16,
        "options": {
            "hidden_size": 40, "num_hidden_layers": 3, "sliding_window": None,
            "n_routed_experts": 6, "num_experts_per_tok": 2,
            "n_shared_experts": 2, "first_k_dense_replace": 1,
            "norm_topk_prob": True, "routed_scaling_factor": 2.5,
            "moe_intermediate_size": 22},
        "old_spelling": True, "experts": 6,
        "set": {"scoring_func": "noaux_tc", "moe_layer_freq": 1},
        "float32": ["e_score_correction_bias"],
        "without": {
            "factor of experts": {"routed_scaling_factor": 1.0},
            "normalisation": {"norm_topk_prob": False}},
    },
    "dots1-window": {
        "config": transformers.Dots1Config, "dtype": torch.float32,
        "options": {
            "hidden_size": 36, "num_attention_heads": 3,
            "num_key_value_heads": 1, "attention_bias": True,
            "sliding_window": 13, "max_window_layers": 1,
            "n_routed_experts": 6, "num_experts_per_tok": 3, "n_group": 3,
            "topk_group": 2, "n_shared_experts": 1,
            "moe_intermediate_size": 14, "tie_word_embeddings": True},
        "experts": 6,
        "without": {
            "window": WIDE, "groups": {"topk_group": 3},
            "other weights": {"norm_topk_prob": True},
            "attention biases": {"attention_bias": False}},
    },
    # ERNIE 4.5: RoPE of neighbours. Two dense checkpoints, and two with
    # experts: as published, and with biases.
    "ernie4.5": {
        "config": transformers.Ernie4_5Config, "dtype": torch.bfloat16,
        "options": {"pad_token_id": 0}, "old_spelling": True,
        "without": {"theta": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 1000.0}}},
    },
    "ernie4.5-bias": {
        "config": transformers.Ernie4_5Config, "dtype": torch.float32,
        "options": {
            "hidden_size": 28, "head_dim": 6, "num_hidden_layers": 3,
            "use_bias": True, "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "linear", "factor": 4.0,
                                "rope_theta": 10000.0}},
        "without": {
            "biases": {"use_bias": False},
            "scaling": {"rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0}}},
    },
    "ernie4.5-moe": {
        "config": transformers.Ernie4_5_MoeConfig, "dtype": torch.bfloat16,
        "options": {
            "hidden_size": 40, "num_hidden_layers": 3, "moe_num_experts": 6,
            "moe_k": 3, "moe_intermediate_size": 22},
        "old_spelling": True, "experts": 6,
        "float32": ["e_score_correction_bias", "mlp.gate.weight"],
        "without": {"third expert": {"moe_k": 2}},
    },
    "ernie4.5-moe-bias": {
        "config": transformers.Ernie4_5_MoeConfig, "dtype": torch.float32,
        "options": {
            "hidden_size": 36, "num_attention_heads": 3,
            "num_key_value_heads": 1, "num_hidden_layers": 4,
            "moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 18,
            "moe_num_shared_experts": 0, "moe_layer_start_index": 0,
            "moe_layer_interval": 2, "use_bias": True,
            "tie_word_embeddings": False},
        "experts": 5,
        "without": {"second expert": {"moe_k": 1}},
    },
    # MiniMax-M2: norms of whole queries and keys, RoPE in a part of the head,
    # experts by sigmoids. Two checkpoints: as published, and with other sizes.
    "minimax-m2": {
        "config": transformers.MiniMaxM2Config, "dtype": torch.bfloat16,
        "options": {
            "head_dim": 12, "num_local_experts": 6, "num_experts_per_tok": 2,
            "intermediate_size": 22, "rope_parameters": partial(0.5, 5e6)},
        "old_spelling": True, "experts": 6,
        "set": {"rotary_dim": 6, "scoring_func": "sigmoid",
                "use_qk_norm": True, "qk_norm_type": "per_layer",
                "use_routing_bias": True, "shared_intermediate_size": 0,
                "attn_type_list": [1, 1]},
        "float32": ["e_score_correction_bias"],
        "without": WHOLE | {"second expert": {"num_experts_per_tok": 1}},
    },
    "minimax-m2-three": {
        "config": transformers.MiniMaxM2Config, "dtype": torch.float32,
        "options": {
            "hidden_size": 28, "head_dim": 10, "num_hidden_layers": 3,
            "num_local_experts": 5, "num_experts_per_tok": 3,
            "intermediate_size": 14, "rope_parameters": partial(0.4)},
        "experts": 5,
        "without": WHOLE | {"third expert": {"num_experts_per_tok": 2}},
    },
}


def tensor_values(name, shape, tied, seed, family):
    """Return a tensor's random values, from a generator keyed by its name.

    Matrices preserve the magnitude of their input, biases and norms are large
    enough to matter, and logits have a standard deviation of 2 to 3.
    """
    key = [seed, zlib.crc32(name.encode("ascii"))]
    normal = numpy.random.default_rng(key).standard_normal(shape)
    if name in EMBEDDINGS:
        return normal * (2.5 / shape[1] ** 0.5 if tied else 1.0)
    if name in HEADS:
        return normal * 2.5 / shape[1] ** 0.5
    neutral = neutral_norm(name, family)
    if name in LAST_NORMS and tied:
        # Random signs. Otherwise the most probable token after any token
        # would be the same token.
        return normal + neutral - 1.0
    # Sharper attention than in a plain random model, so that the position of
    # a key makes a difference.
    scale = 1.7 if any(part in name for part in SHARP) else 1.0
    for ending, factor in family.get("scales", {}).items():
        if name.endswith(ending):
            scale *= factor
    if name.endswith(ROUTER_SCALES):
        return 1.0 + 0.3 * normal
    if is_norm(name) and name.endswith("weight"):
        return scale * (1.0 + 0.3 * normal) + neutral - 1.0
    if name.endswith("bias"):
        return 0.3 * normal
    if name.endswith("layer_scalar"):
        return 0.8 + 0.2 * normal
    if name.endswith("sinks") or name.endswith(".D"):
        return normal
    if name.endswith("A_log"):
        # Some heads remember a few positions, and others many.
        return normal - 1.5
    if name.endswith(tuple(ROUTERS)):
        scale *= 2.0
    # The last axis of a matrix is its input. Experts are stacked.
    axis = 1 if len(shape) == 2 or family.get("transposed_experts") else 2
    return normal * scale / shape[axis] ** 0.5


def neutral_norm(name, family):
    """Return the value of a norm's weight that changes nothing."""
    plain = name.endswith(family.get("plain_norms", "nothing"))
    return 0.0 if family.get("centred") and not plain else 1.0


def is_norm(name):
    """Tell whether a tensor belongs to a norm."""
    return "norm" in name or ".ln_" in name


def tensors(model):
    """Return the parameters and the stored buffers of a model, by name."""
    stored = model.state_dict()
    buffers = [(name, buffer) for name, buffer in model.named_buffers()
               if name in stored]
    return dict(list(model.named_parameters()) + buffers)


def build(family, seed):
    """Return the random model of a family, in the dtype of its file."""
    known = {field.name for field in dataclasses.fields(family["config"])}
    # Some families have no such options. For example, Qwen2's heads divide
    # the hidden size.
    options = {key: value for key, value in SMALL.items() if key in known}
    config = family["config"](**(options | family["options"]))
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager")
    tied = config.tie_word_embeddings
    wide = {}
    with torch.no_grad():
        for name, tensor in tensors(model).items():
            values = torch.from_numpy(tensor_values(
                name, tuple(tensor.shape), tied, seed, family))
            tensor.copy_(values)
            if name.endswith(tuple(family.get("float32", ()))):
                wide[name] = values.to(torch.float32)
    model = model.to(family["dtype"])
    stored = tensors(model)
    for name, values in wide.items():
        stored[name].data = values
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id,
        do_sample=True, temperature=0.6, top_k=20, top_p=0.9)
    return model


def respell(folder, family):
    """Rewrite config.json in the spelling of transformers before version 5."""
    path = folder / "config.json"
    options = json.loads(path.read_text())
    rope = options.pop("rope_parameters")
    if "full_attention" in rope:
        # Gemma 3 and OLMo 3 have different RoPE in layers with a window.
        local = rope["sliding_attention"]
        rope = rope["full_attention"]
        if local["rope_theta"] != rope["rope_theta"]:
            options["rope_local_base_freq"] = local["rope_theta"]
    options["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        options["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    rope_type = rope.pop("rope_type")
    if rope_type == "longrope" and "original_max_position_embeddings" in options:
        # Phi-3 has it outside.
        del rope["original_max_position_embeddings"]
    spelling = family.get("old_rope_type", {"type": rope_type})
    options["rope_scaling"] = (
        None if rope_type == "default" else spelling | rope)
    for name in ["layer_types"] + family.get("drop", []):
        if name not in family.get("keep", ()):
            options.pop(name, None)
    # transformers reads `sliding_window_pattern` instead.
    options.pop("_sliding_window_pattern", None)
    for name, old_name in family.get("rename", {}).items():
        options[old_name] = options.pop(name)
    options["torch_dtype"] = options.pop("dtype")
    options |= family.get("set", {})
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


def compute_experts_one_by_one(model):
    """Make a model compute its experts one after another.

    The default refuses matrices whose rows are no multiples of 16 bytes.
    """
    model.set_experts_implementation("eager")
    return model


@torch.no_grad()
def check_sensitivity(folder, name, family, token_ids):
    """Raise ValueError unless each feature of the family changes the logits.

    The features are the family's options, each bias (compared with 0), each
    norm (compared with one that multiplies by 1), and each sink (compared with
    none).
    """
    def load(changes):
        config = transformers.AutoConfig.from_pretrained(folder)
        config = config.get_text_config()
        config = type(config)(**(config.to_dict() | changes))
        return compute_experts_one_by_one(
            transformers.AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=torch.float32,
                attn_implementation="eager", local_files_only=True))

    def logits(model):
        return model(input_ids=torch.tensor([token_ids])).logits[0]

    model = load({})
    whole = logits(model)
    changed = {feature: logits(load(changes))
               for feature, changes in family["without"].items()}
    for feature, (kind, changes) in family.get(
            "without_attributes", {}).items():
        other = load({})
        for module in other.modules():
            if type(module).__name__ == kind:
                for attribute, value in changes.items():
                    if not hasattr(module, attribute):
                        raise ValueError(f"{kind} has no {attribute}")
                    setattr(module, attribute, value)
        changed[feature] = logits(other)
    for name_of_tensor, tensor in tensors(model).items():
        if name_of_tensor in family.get("cancels", ()):
            continue
        if name_of_tensor.endswith(family.get("cancels_endings", "nothing")):
            continue
        if name_of_tensor.endswith("bias"):
            value = 0.0
        elif name_of_tensor.endswith("sinks"):
            value = -1e4
        elif name_of_tensor.endswith(("layer_scalar", *ROUTER_SCALES)):
            value = 1.0
        elif name_of_tensor.endswith((".D", "A_log")):
            # Nothing is added, and nothing decays.
            value = 0.0 if name_of_tensor.endswith(".D") else -20.0
        elif name_of_tensor.endswith(POSITIONS):
            value = 0.0
        elif is_norm(name_of_tensor):
            value = neutral_norm(name_of_tensor, family)
        else:
            continue
        stored = tensor.clone()
        tensor.fill_(value)
        changed[name_of_tensor] = logits(model)
        tensor.copy_(stored)
    for feature, without in changed.items():
        difference = float((without - whole).abs().max())
        print(f"  without {feature}: logits change by {difference:.2f}")
        if difference < SENSITIVITY:
            raise ValueError(
                f"the logits of {name} do not depend on: {feature}")


class Choices(torch.overrides.TorchFunctionMode):
    """Record what routers choose, while this is the active mode.

    `chosen` has a set of experts for each router in the order of the calls,
    and `gap` is the smallest gap between the last chosen and the first other
    value of any choice (also of groups of experts).
    """

    def __init__(self, experts):
        super().__init__()
        self.experts = experts
        self.chosen = []
        self.gap = float("inf")

    def __torch_function__(self, function, types, arguments=(), named=None):
        """Call the function, and record it if it is topk."""
        result = function(*arguments, **(named or {}))
        # DeepSeek's routers also compute the sum of the largest values of each
        # group. This is no choice. It has three axes.
        if (getattr(function, "__name__", "") == "topk"
                and arguments[0].dim() == 2):
            values = arguments[0]
            if values.min() >= 0.0 and values.sum(dim=-1).max() < 1.001:
                # These are probabilities. Compare their logits.
                values = values.log()
            count = result.indices.shape[-1]
            if count < values.shape[-1]:
                ordered = values.sort(dim=-1, descending=True).values
                gaps = ordered[..., count - 1] - ordered[..., count]
                self.gap = min(self.gap, float(gaps.min()))
            if values.shape[-1] == self.experts:
                self.chosen.append(set(result.indices.flatten().tolist()))
        return result


@torch.no_grad()
def check_routing(model, family, records):
    """Return a text's problem with the routing of its tokens, or None.

    Each expert of each layer must be in use, and no choice a near tie.
    """
    used = None
    for record in records:
        token_ids = record["prompt_ids"] + record["generated_ids"]
        with Choices(family["experts"]) as choices:
            model(input_ids=torch.tensor([token_ids]), use_cache=False)
        if not choices.chosen:
            raise ValueError("no router chose an expert")
        if choices.gap < ROUTER_TIE:
            return f"a router's gap is {choices.gap:.1e}"
        used = ([set() for _ in choices.chosen] if used is None else used)
        used = [old | new for old, new in zip(used, choices.chosen)]
    unused = [layer for layer, experts in enumerate(used)
              if len(experts) < family["experts"]]
    return f"routers {unused} do not use all experts" if unused else None


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


def add_images(model, family, seed):
    """Return a random model with images whose language model is `model`."""
    whole = family["with_images"]
    config = whole["config"](
        text_config=model.config.to_dict(), vision_config=whole["options"],
        tie_word_embeddings=model.config.tie_word_embeddings)
    torch.manual_seed(seed)
    other = whole["class"](config).to(family["dtype"])
    other.model.language_model.load_state_dict(model.model.state_dict())
    other.lm_head.load_state_dict(model.lm_head.state_dict())
    other.generation_config = model.generation_config
    return other


def write_checkpoint(family, folder, seed):
    """Write a family's checkpoint: all files except golden.json."""
    shutil.rmtree(folder, ignore_errors=True)
    model = build(family, seed)
    stored = add_images(model, family, seed) if "with_images" in family else model
    stored.save_pretrained(
        folder, max_shard_size=family.get("shard", "1GB"),
        save_original_format=not family.get("fused_experts"))
    if family.get("old_spelling"):
        respell(folder, family)
    if "published" in family:
        # Published files have an option for all layers without a window.
        path = folder / "config.json"
        options = json.loads(path.read_text())
        del options["per_layer_config"]
        path.write_text(json.dumps(options | family["published"], indent=2)
                        + "\n")
    write_tokenizer(folder / "tokenizer.json", model.config.vocab_size)


def make_family(name, family, folder):
    """Write a family's folder."""
    for seed in range(1, LAST_SEED + 1):
        write_checkpoint(family, folder, seed)
        # From here on only the contents of the folder count.
        model = compute_experts_one_by_one(load_hugging_face_model(folder))
        random = numpy.random.default_rng(seed)
        prompts = [random.integers(8, model.config.vocab_size, size).tolist()
                   for size in PROMPT_SIZES]
        records = [make_record(model, prompt) for prompt in prompts]
        if None in records:
            continue
        if "experts" not in family or not check_routing(
                model, family, records):
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

#!/usr/bin/env python3
"""Convert tiny Hugging Face checkpoints to GGUF by the rules of llama.cpp.

The checkpoints are those of `make_families.py`. The files hold the same values:
matrices in their own type, and norms, biases and routers as float32. They are
written with the Python package `gguf` and share no code with forerun's reader,
so a test of forerun compares its logits with the `golden.json` of the checkpoint.

Usage:

    python convert_to_gguf.py --families DIR --out DIR [MODEL ...]

README.md in the same folder has the commands.
"""

import argparse
import json
import math
import re
from pathlib import Path

import gguf
import numpy
import torch
from safetensors import safe_open

from gguf_hybrids import HYBRIDS, QWENS, Mixers

# For each model: its architecture. The names are those of the checkpoints.
MODELS = {
    "cohere-norm": "command-r",
    "cohere2-bias": "cohere2",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma4": "gemma4",
    "gemma4-inputs": "gemma4",
    "gemma4-moe": "gemma4",
    "gemma4-moe-inputs": "gemma4",
    "glm": "chatglm",
    "glm-5": "glm-dsa",
    "glm4": "glm4",
    "glm4-moe-group": "glm4moe",
    "glm4-moe-lite": "deepseek2",
    "gpt-neox": "gptneox",
    "gpt-oss": "gpt-oss",
    "deepseek-v2-lite": "deepseek2",
    "deepseek-v3": "deepseek2",
    "deepseek-v3.2": "deepseek32",
    "dots1": "dots1",
    "ernie4.5": "ernie4_5",
    "ernie4.5-moe": "ernie4_5-moe",
    "falcon-new": "falcon",
    "gpt2": "gpt2",
    "granite": "granite",
    "granite4": "granitehybrid",
    "granite4-dense": "granitehybrid",
    "granitemoe-bias": "granitemoe",
    "lfm2": "lfm2",
    "lfm2-moe": "lfm2moe",
    "minimax-m2": "minimax-m2",
    "mixtral-tied": "llama",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "phi": "phi2",
    "phi3-longrope": "phi3",
    "qwen2-moe": "qwen2moe",
    "qwen3-moe": "qwen3moe",
    "qwen3-next": "qwen3next",
    "qwen3.5-bias": "qwen35",
    "qwen3.5-moe": "qwen35moe",
    "qwen3.5-tied": "qwen35",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "stablelm-norms": "stablelm",
    "starcoder2": "starcoder2",
}

# Models with an MTP head: the checkpoints of `make_mtp.py`.
HEADS = {"glm4-moe": "glm4moe", "qwen3.5": "qwen35"}

# Gemma 4 and its assistants, which `make_assistant.py` names after their targets.
GEMMA4 = ("gemma4", "gemma4-assistant")

# A Qwen's names of a head's tensors, and those of the others in the layer after
# the last.
QWEN_HEAD = {
    "layers.0.": "", "fc.": "eh_proj.", "pre_fc_norm_embedding.": "enorm.",
    "pre_fc_norm_hidden.": "hnorm.", "norm.": "shared_head.norm.",
}

# Architectures that rotate neighbours, and whose conversion reorders the rows
# of queries and keys for it. Other checkpoints have them in that order already.
REORDERED = {"llama", "granite", "granitemoe", "granitehybrid", "smollm3", "olmo"}
# Architectures with compressed keys and values.
LATENT = {"deepseek2", "deepseek32", "glm-dsa"}
LAYER_NORM = {"starcoder2", "stablelm", "gptneox", "phi2", "command-r", "cohere2",
              "gpt2", "falcon", "olmo"}

TYPES = {torch.float32: gguf.GGMLQuantizationType.F32,
         torch.float16: gguf.GGMLQuantizationType.F16,
         torch.bfloat16: gguf.GGMLQuantizationType.BF16}

# The parts of a layer, as the converted names spell them.
PARTS = {
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "shared_head.norm": "nextn.shared_head_norm",
    "embed_tokens": "nextn.embed_tokens",
    "shared_head.head": "nextn.shared_head_head",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.dense": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "feed_forward.gate": "ffn_gate_inp",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "attention.dense": "attn_output",
    "attention.query_key_value": "attn_qkv",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
    "self_attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output",
    "ln_attn": "attn_norm_2",
    "ln_mlp": "attn_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
}

# Parts of a layer of Gemma 4 whose names do not end in the kind of the tensor.
GEMMA4_PARTS = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}

# Norms whose names mean other places in some architectures.
AROUND = {
    "gemma": {"post_attention_layernorm": "post_attention_norm",
              "pre_feedforward_layernorm": "ffn_norm",
              "post_feedforward_layernorm": "post_ffw_norm"},
    "olmo2": {"post_attention_layernorm": "post_attention_norm",
              "post_feedforward_layernorm": "post_ffw_norm"},
    "glm4": {"post_self_attn_layernorm": "post_attention_norm",
             "post_mlp_layernorm": "post_ffw_norm"},
    "glm4moe": {"post_attention_layernorm": "post_attention_norm"},
    "gpt-oss": {"post_attention_layernorm": "post_attention_norm"},
    **{qwen: {"post_attention_layernorm": "post_attention_norm"} for qwen in QWENS},
}

WHOLE = {
    "model.embed_tokens": "token_embd",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    "model.norm": "output_norm",
    "model.embedding_norm": "token_embd_norm",
    "model.final_layernorm": "output_norm",
    "lm_head": "output",
    "pre_projection": "nextn.pre_projection",
    "post_projection": "nextn.post_projection",
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.word_embeddings": "token_embd",
    "transformer.ln_f": "output_norm",
}

# Common names of options that some families call otherwise.
OPTIONS = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers",
           "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
           "ffn_hidden_size": "intermediate_size", "num_kv_heads": "num_key_value_heads",
           "layer_norm_epsilon": "layer_norm_eps", "norm_eps": "rms_norm_eps"}


class Converter:
    """The conversion of one checkpoint."""

    def __init__(self, folder, architecture):
        config = json.loads((folder / "config.json").read_text())
        self.target_size = config.get("backbone_hidden_size")
        architecture += "-assistant" if self.target_size else ""
        self.architecture = architecture
        config = config.get("text_config", config)
        self.config = {OPTIONS.get(name, name): value for name, value in config.items()}
        self.config.setdefault("intermediate_size", 4 * self.config["hidden_size"])
        if architecture == "olmo":
            self.config["layer_norm_eps"] = 1e-5
        self.mixers = Mixers(architecture, self.config)
        self.tensors = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "pt") as stored:
                for name in stored.keys():
                    if name.startswith("masked_embedding."):
                        continue
                    self.tensors[self.after_last(name)] = stored.get_tensor(name)
        config = self.config
        last = f"model.layers.{config['num_hidden_layers']}."
        self.heads_of_mtp = int(any(name.startswith(last) for name in self.tensors))
        self.is_hybrid = architecture in HYBRIDS
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        if architecture in LATENT:
            self.kv_heads = 1
            self.head_dim = config["qk_rope_head_dim"]
            self.expanded = [config["qk_nope_head_dim"], config["v_head_dim"]]
        counts = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
        self.experts = next((config[name] for name in counts if name in config), 0)
        if architecture in GEMMA4:
            config["num_experts_per_tok"] = config.get("top_k_experts")
            config["slides"] = [kind == "sliding_attention" for kind in config["layer_types"]]
            listed = config.get("per_layer_config") or {"": {
                "head_dim": config.get("global_head_dim"),
                "num_key_value_heads": config.get("num_global_key_value_heads")}}
            config["global"] = next(iter(listed.values()))

    def after_last(self, name):
        """Return a tensor's name, with a Qwen's MTP head as the layer after the last."""
        for own, common in QWEN_HEAD.items():
            if name.startswith(f"mtp.{own}"):
                layer = self.config["num_hidden_layers"]
                return f"model.layers.{layer}.{common}{name.removeprefix(f'mtp.{own}')}"
        return name

    def permuted(self, tensor, heads):
        """Reorder rows for a rotation of neighbours instead of halves."""
        halves = tensor.reshape(heads, 2, self.head_dim // 2, *tensor.shape[1:])
        return halves.swapaxes(1, 2).reshape(tensor.shape)

    def part(self, name):
        """Return the converted name of a layer's part."""
        family = "gemma" if self.architecture.startswith("gemma") else self.architecture
        return AROUND.get(family, {}).get(name) or PARTS[name]

    def converted(self):
        """Yield the converted names and tensors."""
        merged = {}
        for name, tensor in self.tensors.items():
            stem, _, kind = name.rpartition(".")
            if stem in WHOLE:
                if name == "lm_head.weight" and self.config.get("tie_word_embeddings"):
                    continue
                yield from self.changed(f"{WHOLE[stem]}.{kind}", tensor)
                continue
            layer, part = re.fullmatch(r"(?:model\.layers|gpt_neox\.layers|transformer\.h)\.(\d+)\.(.+)", name).groups()
            prefix = f"blk.{layer}"
            of_mixer = list(self.mixers.converted(part, tensor)) if self.is_hybrid else []
            for mixed, values in of_mixer:
                yield f"{prefix}.{mixed}", values
            if of_mixer:
                continue
            if part in GEMMA4_PARTS:
                yield f"{prefix}.{GEMMA4_PARTS[part]}", tensor
                continue
            head = re.fullmatch(r"self_attn\.(q|k)_layernorm\.norms\.(\d+)\.weight", part)
            expert = re.fullmatch(r".+experts\.(\d+)\.(\w+)\.weight", part)
            if expert:
                number, projection = int(expert[1]), expert[2]
                projection = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down",
                              "w1": "gate", "w3": "up", "w2": "down"}[projection]
                merged.setdefault(f"{prefix}.ffn_{projection}_exps.weight", {})[number] = tensor
            elif head:
                name = f"{prefix}.attn_{head[1]}_norm.weight"
                merged.setdefault(name, {})[int(head[2])] = tensor
            elif part.endswith(("e_score_correction_bias", "expert_bias")):
                yield f"{prefix}.exp_probs_b.bias", tensor.flatten()
            elif ".experts." in part or "_linear" in part:
                for projection, of_all in self.of_all_experts(part, tensor):
                    yield f"{prefix}.ffn_{projection}", of_all
            elif part == "self_attn.kv_b_proj.weight":
                # The keys of each head are transposed.
                keys, values = tensor.reshape(
                    self.heads, -1, tensor.shape[1]).split(self.expanded, dim=1)
                yield f"{prefix}.attn_k_b.weight", keys.transpose(1, 2)
                yield f"{prefix}.attn_v_b.weight", values
            elif part == "self_attn.sinks":
                yield f"{prefix}.attn_sinks.weight", tensor
            else:
                part, _, kind = part.rpartition(".")
                yield from self.changed(f"{prefix}.{self.part(part)}.{kind}", tensor)
        for name, parts in merged.items():
            yield name, torch.stack([parts[number] for number in range(len(parts))])

    def of_all_experts(self, part, tensor):
        """Yield the parts of a tensor of all experts."""
        if part.endswith("input_linear.weight"):
            size = tensor.shape[1] // 2
            yield "gate_exps.weight", tensor[:, :size]
            yield "up_exps.weight", tensor[:, size:]
        elif part.endswith("output_linear.weight"):
            yield "down_exps.weight", tensor
        elif part.endswith("gate_up_proj_bias"):
            yield "gate_exps.bias", tensor[:, ::2]
            yield "up_exps.bias", tensor[:, 1::2]
        elif part.endswith("gate_up_proj"):
            rows = tensor.transpose(1, 2)
            yield "gate_exps.weight", rows[:, ::2]
            yield "up_exps.weight", rows[:, 1::2]
        elif part.endswith("down_proj_bias"):
            yield "down_exps.bias", tensor
        else:
            yield "down_exps.weight", tensor.transpose(1, 2)

    def changed(self, name, tensor):
        """Yield a tensor with the values that the conversion gives it."""
        _, part, kind = name.rsplit(".", 2) if name.startswith("blk.") else ("", "", "")
        if self.architecture in REORDERED and part in ("attn_q", "attn_k"):
            tensor = self.permuted(tensor, self.heads if part == "attn_q" else self.kv_heads)
        has_centred_norms = self.architecture in ("gemma2", "gemma3", *QWENS)
        if has_centred_norms and name.endswith("norm.weight"):
            tensor = tensor.float() + 1
        if self.architecture == "gptneox" and part == "attn_qkv":
            of_heads = tensor.reshape(self.heads, 3, self.head_dim, *tensor.shape[1:])
            tensor = of_heads.swapaxes(0, 1).reshape(tensor.shape)
        if self.architecture == "falcon" and part == "attn_qkv":
            of_sets = tensor.reshape(self.kv_heads, -1, self.head_dim, *tensor.shape[1:])
            parts = of_sets[:, :-2], of_sets[:, -2], of_sets[:, -1]
            tensor = torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])
        if self.architecture == "gpt2" and tensor.dim() == 2 and part:
            tensor = tensor.T
        yield name, tensor

    def write(self, file):
        writer = gguf.GGUFWriter(file, self.architecture)
        writer.add_type(gguf.GGUFType.MODEL)
        self.write_sizes(writer)
        self.write_rope(writer)
        self.write_window(writer)
        self.write_mixture(writer)
        if self.architecture in GEMMA4:
            self.write_gemma4(writer)
        if self.target_size:
            writer.add_nextn_predict_layers(self.config["num_hidden_layers"])
            writer.add_uint32(f"{self.architecture}.embedding_length_out", self.target_size)
        self.write_factors(writer)
        self.write_tokenizer(writer)
        for name, tensor in sorted(self.converted()):
            is_matrix = tensor.dim() > 1 and name.endswith(".weight")
            is_matrix &= not any(part in name for part in (
                "norm", "gate_inp", "position_embd", "conv.weight", "conv1d"))
            kind = TYPES[tensor.dtype] if is_matrix else gguf.GGMLQuantizationType.F32
            values = numpy.ascontiguousarray(tensor.float().numpy())
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def write_sizes(self, writer):
        config = self.config
        writer.add_vocab_size(config["vocab_size"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"] + self.heads_of_mtp)
        if self.heads_of_mtp:
            writer.add_nextn_predict_layers(self.heads_of_mtp)
        if self.architecture not in GEMMA4:
            writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(self.heads)
        if self.is_hybrid:
            self.mixers.write(writer)
        elif self.architecture not in GEMMA4:
            writer.add_head_count_kv(self.kv_heads)
        if self.architecture in LATENT:
            rank, (keys, values) = config["kv_lora_rank"], self.expanded
            writer.add_key_length(rank + self.head_dim)
            writer.add_value_length(rank)
            writer.add_key_length_mla(keys + self.head_dim)
            writer.add_value_length_mla(values)
            writer.add_kv_lora_rank(rank)
            if config["q_lora_rank"]:
                writer.add_q_lora_rank(config["q_lora_rank"])
            if "index_topk" in config:
                writer.add_indexer_head_count(config["index_n_heads"])
                writer.add_indexer_key_length(config["index_head_dim"])
                writer.add_indexer_top_k(config["index_topk"])
        elif config.get("head_dim") and self.architecture not in GEMMA4:
            writer.add_key_length(self.head_dim)
            writer.add_value_length(self.head_dim)
        if self.architecture in LAYER_NORM:
            epsilons = ("layer_norm_eps", "norm_epsilon")
            writer.add_layer_norm_eps(next(config[key] for key in epsilons if key in config))
        else:
            writer.add_layer_norm_rms_eps(config["rms_norm_eps"])

    def write_tokenizer(self, writer):
        """Write a vocabulary of words. The test passes tokens, not text."""
        size = self.config["vocab_size"]
        tokens = ["<unk>", "<s>", "</s>"] + [f"\u2581{token}" for token in range(3, size)]
        kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([-float(token) for token in range(size)])
        writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * (size - 3))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    def rope(self):
        """Return the options of RoPE, of either spelling."""
        config = self.config
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope = dict(rope.get("full_attention", rope))
        rope.setdefault("rope_theta", config.get("rope_theta", config.get("rotary_emb_base")))
        rope.setdefault("partial_rotary_factor", config.get(
            "partial_rotary_factor", config.get("rotary_pct", 1.0)))
        rope["type"] = rope.get("rope_type", rope.get("type", "default"))
        return rope

    def write_rope(self, writer):
        config, rope = self.config, self.rope()
        if self.architecture == "gpt2":
            return
        writer.add_rope_freq_base(rope["rope_theta"])
        if rope["type"] == "proportional":
            return
        dims = int(self.head_dim * rope["partial_rotary_factor"])
        writer.add_rope_dimension_count(dims)
        if "rope_local_base_freq" in config:
            writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
        if rope["type"] == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        elif rope["type"] == "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            if "beta_fast" in rope:
                writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            if "beta_slow" in rope:
                writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
            if "mscale_all_dim" in rope:
                writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
        elif rope["type"] == "longrope":
            original = config["original_max_position_embeddings"]
            scale = config["max_position_embeddings"] / original
            factor = math.sqrt(1 + math.log(scale) / math.log(original))
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_rope_scaling_attn_factors(factor)
            for length in ("short", "long"):
                factors = numpy.array(rope[f"{length}_factor"], dtype=numpy.float32)
                writer.add_tensor(f"rope_factors_{length}.weight", factors)

    def write_window(self, writer):
        config = self.config
        # llama.cpp stores no window of StarCoder2, but a reader knows the option.
        if self.architecture in ("gemma2", "gemma3", "cohere2", "gpt-oss", "phi3", "olmo2",
                                 "starcoder2"):
            if config.get("sliding_window"):
                writer.add_sliding_window(config["sliding_window"])
        if self.architecture in ("cohere2", "olmo2") and "layer_types" in config:
            slides = [kind == "sliding_attention" for kind in config["layer_types"]]
            writer.add_sliding_window_pattern(slides)
        elif "sliding_window_pattern" in config:
            writer.add_sliding_window_pattern(config["sliding_window_pattern"])

    def write_gemma4(self, writer):
        """Write the sizes of layers with and without a window, and what they share."""
        config = self.config
        slides, of_global = config["slides"], config["global"]
        kv_heads = of_global.get("num_key_value_heads")
        writer.add_head_count_kv(self.kv_heads if kv_heads is None else [
            self.kv_heads if slide else kv_heads for slide in slides])
        head_dim = of_global["head_dim"]
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_key_length_swa(self.head_dim)
        writer.add_value_length_swa(self.head_dim)
        writer.add_rope_dimension_count(head_dim)
        writer.add_rope_dimension_count_swa(self.head_dim)
        rope = config["rope_parameters"]
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        # The pairs that do not rotate have large divisors.
        rotated = int(head_dim * rope["full_attention"]["partial_rotary_factor"] / 2)
        divisors = [1.0] * rotated + [1e30] * (head_dim // 2 - rotated)
        writer.add_tensor("rope_freqs.weight", numpy.array(divisors, dtype=numpy.float32))
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern(slides)
        shared = config["num_kv_shared_layers"]
        writer.add_shared_kv_layers(shared)
        size = config["intermediate_size"]
        first = len(slides) - shared
        writer.add_feed_forward_length(
            [size * (1 if layer < first else 2) for layer in range(len(slides))]
            if config["use_double_wide_mlp"] else size)
        writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"] or 0)

    def write_mixture(self, writer):
        config = self.config
        if not self.experts:
            return
        writer.add_expert_count(self.experts)
        writer.add_expert_used_count(config.get("num_experts_per_tok") or config["moe_k"])
        if "moe_intermediate_size" in config:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        elif self.architecture in ("gpt-oss", "minimax-m2"):
            writer.add_expert_feed_forward_length(config["intermediate_size"])
        if "shared_expert_intermediate_size" in config:
            writer.add_expert_shared_feed_forward_length(
                config["shared_expert_intermediate_size"])

        if self.architecture in ("lfm2moe", "minimax-m2"):
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        if self.architecture == "lfm2moe":
            writer.add_leading_dense_block_count(config["num_dense_layers"])
        if self.architecture == "ernie4_5-moe":
            writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
            writer.add_leading_dense_block_count(config["moe_layer_start_index"])
            writer.add_expert_shared_count(config["moe_num_shared_experts"])
            writer.add_expert_shared_feed_forward_length(
                config["moe_num_shared_experts"] * config["moe_intermediate_size"])
        if self.architecture in (*LATENT, "dots1"):
            writer.add_expert_shared_count(config["n_shared_experts"])
            writer.add_leading_dense_block_count(config["first_k_dense_replace"])
            writer.add_expert_weights_scale(config["routed_scaling_factor"])
            if config["norm_topk_prob"]:
                writer.add_expert_weights_norm(True)
            if config.get("n_group"):
                writer.add_expert_group_count(config["n_group"])
                writer.add_expert_group_used_count(config["topk_group"])
            if config.get("scoring_func") == "sigmoid":
                writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        if self.architecture == "glm4moe":
            writer.add_expert_shared_count(config["n_shared_experts"])
            writer.add_leading_dense_block_count(config["first_k_dense_replace"])
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
            writer.add_expert_weights_scale(config["routed_scaling_factor"])
            writer.add_expert_weights_norm(config["norm_topk_prob"])
            writer.add_expert_group_count(config["n_group"])
            writer.add_expert_group_used_count(config["topk_group"])

    def write_factors(self, writer):
        config = self.config
        for option, write in [
            ("attention_multiplier", writer.add_attention_scale),
            ("embedding_multiplier", writer.add_embedding_scale),
            ("residual_multiplier", writer.add_residual_scale),
            ("logits_scaling", writer.add_logit_scale),
            ("logit_scale", writer.add_logit_scale),
            ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
            ("final_logit_softcapping", writer.add_final_logit_softcapping),
            ("use_parallel_residual", writer.add_parallel_residual),
            ("clip_qkv", writer.add_clamp_kqv),
        ]:
            if config.get(option) is not None:
                write(config[option])
        # llama.cpp derives this factor from the size of the published models.
        if "query_pre_attn_scalar" in config:
            writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for model in arguments.models:
        converter = Converter(arguments.families / model, (MODELS | HEADS)[model])
        converter.write(arguments.out / f"{model}.gguf")


if __name__ == "__main__":
    main()

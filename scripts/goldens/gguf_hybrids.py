"""The conversion of hybrid models to GGUF by the rules of llama.cpp.

`convert_to_gguf.py` uses it.
"""

import torch

# The parts of a layer with a recurrent mixer.
PARTS = {
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mamba.in_proj": "ssm_in",
    "mamba.conv1d": "ssm_conv1d",
    "mamba.norm": "ssm_norm",
    "mamba.out_proj": "ssm_out",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.out_proj": "attn_output",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
}

QWENS = ("qwen3next", "qwen35", "qwen35moe")
HYBRIDS = QWENS + ("granitehybrid", "lfm2", "lfm2moe")


class Mixers:
    """The conversion of a hybrid's mixers."""

    def __init__(self, architecture, config):
        self.architecture = architecture
        self.config = config

    def is_recurrent(self):
        """Return whether each layer has a mixer."""
        every = self.config.get("full_attention_interval", 4)
        kinds = self.config.get("layer_types") or [
            "mixer" if (layer + 1) % every else "attention"
            for layer in range(self.config["num_hidden_layers"])]
        return [kind not in ("full_attention", "attention") for kind in kinds]

    def tiled(self, tensor, width):
        """Reorder value heads from those of each key head to those of all in turn.

        The heads are along the first axis, `width` rows each.
        """
        if self.architecture not in ("qwen35", "qwen35moe"):
            return tensor
        keys = self.config["linear_num_key_heads"]
        heads = tensor.reshape(keys, -1, width, *tensor.shape[1:])
        return heads.swapaxes(0, 1).reshape(tensor.shape)

    def converted(self, part, tensor):
        """Yield the converted names and values of a layer's part, if it is one of a mixer."""
        stem, _, kind = part.rpartition(".")
        config = self.config
        width = config.get("linear_value_head_dim")
        keys = config.get("linear_num_key_heads", 0) * config.get("linear_key_head_dim", 0)
        if part.endswith("A_log"):
            rates = self.tiled(-torch.exp(tensor.float()), 1)
            yield "ssm_a", rates[:, None] if part.startswith("mamba") else rates
        elif part.endswith("dt_bias"):
            yield "ssm_dt.bias", self.tiled(tensor, 1)
        elif part == "mamba.D":
            yield "ssm_d", tensor[:, None]
        elif part == "linear_attn.in_proj_qkvz.weight":
            heads = config["linear_num_key_heads"]
            values = config["linear_num_value_heads"] // heads * width
            sizes = [config["linear_key_head_dim"]] * 2 + [values] * 2
            parts = tensor.reshape(heads, sum(sizes), -1).split(sizes, dim=1)
            queries, keys, values, gates = [
                part.reshape(-1, tensor.shape[1]) for part in parts]
            yield "attn_qkv.weight", torch.cat([queries, keys, values])
            yield "attn_gate.weight", gates
        elif stem in PARTS:
            if "conv" in stem.rpartition(".")[2] and tensor.dim() == 3:
                tensor = tensor.squeeze(1)
            if stem in ("linear_attn.in_proj_qkv", "linear_attn.conv1d"):
                values = self.tiled(tensor[2 * keys:], width)
                tensor = torch.cat([tensor[:2 * keys], values])
            elif stem == "linear_attn.in_proj_z":
                tensor = self.tiled(tensor, width)
            elif stem in ("linear_attn.in_proj_a", "linear_attn.in_proj_b"):
                tensor = self.tiled(tensor, 1)
            elif stem == "linear_attn.out_proj":
                tensor = self.tiled(tensor.T, width).T
            elif stem == "mamba.norm":
                tensor = tensor.reshape(config["mamba_n_groups"], -1)
            yield f"{PARTS[stem]}.{kind}", tensor
        elif part == "shared_mlp.input_linear.weight":
            shared = "_shexp" if config["num_local_experts"] else ""
            gate, up = tensor.chunk(2)
            yield f"ffn_gate{shared}.weight", gate
            yield f"ffn_up{shared}.weight", up
        elif part == "shared_mlp.output_linear.weight":
            shared = "_shexp" if config["num_local_experts"] else ""
            yield f"ffn_down{shared}.weight", tensor

    def write(self, writer):
        """Write the options of the mixers."""
        config = self.config
        kv_heads = config["num_key_value_heads"]
        recurrent = self.is_recurrent()
        if self.architecture in QWENS:
            writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
            writer.add_ssm_state_size(config["linear_key_head_dim"])
            writer.add_ssm_group_count(config["linear_num_key_heads"])
            writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
            writer.add_ssm_inner_size(
                config["linear_value_head_dim"] * config["linear_num_value_heads"])
            writer.add_array(f"{self.architecture}.attention.recurrent_layers", recurrent)
            writer.add_full_attention_interval(config.get("full_attention_interval", 4))
            writer.add_head_count_kv(kv_heads)
            if self.architecture != "qwen3next":
                writer.add_rope_dimension_sections([11, 11, 10, 0])
            return
        writer.add_head_count_kv([0 if mixes else kv_heads for mixes in recurrent])
        if self.architecture in ("lfm2", "lfm2moe"):
            writer.add_shortconv_l_cache(config["conv_L_cache"])
            return
        writer.add_ssm_conv_kernel(config["mamba_d_conv"])
        writer.add_ssm_state_size(config["mamba_d_state"])
        writer.add_ssm_group_count(config["mamba_n_groups"])
        writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
        writer.add_ssm_time_step_rank(config["mamba_n_heads"])
        # llama.cpp's conversion ignores RoPE of a hybrid, which no published model has.
        writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])

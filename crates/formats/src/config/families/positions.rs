//! Families with learned positions instead of RoPE: GPT-2 and OPT.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, MAX_LAYERS};
use super::write_nothing;
use crate::architecture::{Activation, Norm};
use serde_json::json;

pub(in super::super) const GPT2: Description = Description {
    name: "GPT-2",
    model_type: "gpt2",
    class: "GPT2LMHeadModel",
    defaults: Defaults {
        names: &[
            ("n_embd", "hidden_size"),
            ("n_layer", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            ("n_positions", "max_position_embeddings"),
            ("n_inner", "intermediate_size"),
        ],
        mlp_factor: Some(4),
        max_position_embeddings: 1024,
        tie_word_embeddings: true,
        bos_token_id: Some(50_256),
        eos_token_id: Some(50_256),
        epsilon: ("layer_norm_epsilon", 1e-5),
        activation: ("activation_function", Activation::GeluTanh),
        ..LLAMA
    },
    reads: &[],
    read: |options, config| {
        options.check_supported("scale_attn_weights", "true", |flag| *flag == true)?;
        for option in ["scale_attn_by_inverse_layer_idx", "add_cross_attention"] {
            options.check_supported(option, "false", |flag| *flag == false)?;
        }
        read_common(config, 0, true);
        Ok(())
    },
    write: write_nothing,
};

pub(in super::super) const OPT: Description = Description {
    name: "OPT",
    model_type: "opt",
    class: "OPTForCausalLM",
    defaults: Defaults {
        names: &[("ffn_dim", "intermediate_size")],
        tie_word_embeddings: true,
        bos_token_id: Some(2),
        // PyTorch's default. OPT has no option for it.
        epsilon: ("layer_norm_eps", 1e-5),
        activation: ("activation_function", Activation::Relu),
        ..LLAMA
    },
    reads: &[],
    read: |options, config| {
        let hidden_size = config.hidden_size;
        options.check_supported("do_layer_norm_before", "true", |flag| *flag == true)?;
        options.check_supported("layer_norm_elementwise_affine", "true", |flag| *flag == true)?;
        options.check_supported("_remove_final_layer_norm", "false", |flag| *flag == false)?;
        options.check_supported("word_embed_proj_dim", "\"hidden_size\"", |size| {
            size.as_u64() == Some(hidden_size as u64)
        })?;
        read_common(config, 2, options.flag("enable_bias")?.unwrap_or(true));
        Ok(())
    },
    write: |config, options| {
        options.insert("enable_bias".to_owned(), json!(config.mlp_bias));
    },
};

fn read_common(config: &mut Config, first_position: usize, bias: bool) {
    config.norm = Norm::Layer { bias: true };
    config.gated_mlp = false;
    (config.qkv_bias, config.output_bias, config.mlp_bias) = (bias, bias, bias);
    config.learned_positions = Some(first_position);
    config.rope_layers = Some(vec![false; config.num_hidden_layers.min(MAX_LAYERS)]);
}

//! Families in the tradition of GPT: layer norms with biases (StarCoder2, StableLM, GPT-NeoX), and
//! gpt-oss.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, MixtureLayers, NormPlacement, SlidingLayers};
use super::{NUM_LOCAL_EXPERTS, all_but_every, experts, flag, size_or, sliding_window};
use crate::architecture::{Activation, Experts, Mlp, Norm, QkNorms, Router, Weighting};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::json;

pub(in super::super) const STARCODER2: Description = Description {
    name: "StarCoder2",
    model_type: "starcoder2",
    class: "Starcoder2ForCausalLM",
    defaults: Defaults {
        max_position_embeddings: 4096,
        num_key_value_heads: Some(2),
        tie_word_embeddings: true,
        bos_token_id: Some(50_256),
        eos_token_id: Some(50_256),
        epsilon: ("norm_epsilon", 1e-5),
        activation: ("hidden_act", Activation::GeluTanh),
        ..LLAMA
    },
    reads: &["use_bias", "norm_type", "mlp_type"],
    read: |options, config| {
        let is_layer_norm = |value: &serde_json::Value| value == "layer_norm";
        options.check_supported("norm_type", "\"layer_norm\"", is_layer_norm)?;
        config.norm = Norm::Layer { bias: true };
        config.gated_mlp = false;
        let bias = options.flag("use_bias")?.unwrap_or(true);
        (config.qkv_bias, config.output_bias, config.mlp_bias) = (bias, bias, bias);
        let size = options.size("sliding_window")?;
        config.sliding_window = sliding_window(options, size, SlidingLayers::From(0))?;
        Ok(())
    },
    write: |config, options| {
        options.insert("use_bias".to_owned(), json!(config.mlp_bias));
    },
};

pub(in super::super) const STABLELM: Description = Description {
    name: "StableLM",
    model_type: "stablelm",
    class: "StableLmForCausalLM",
    defaults: Defaults {
        max_position_embeddings: 4096,
        num_key_value_heads: Some(32),
        bos_token_id: Some(0),
        eos_token_id: Some(0),
        epsilon: ("layer_norm_eps", 1e-5),
        partial_rotary_factor: Some(0.25),
        ..LLAMA
    },
    reads: &["use_qkv_bias", "use_parallel_residual", "qk_layernorm"],
    read: |options, config| {
        config.norm = Norm::Layer { bias: true };
        if flag(options, "qk_layernorm")? {
            config.qk_norms = QkNorms::OwnHeads;
        }
        config.qkv_bias = flag(options, "use_qkv_bias")?;
        if flag(options, "use_parallel_residual")? {
            config.norm_placement = NormPlacement::Parallel;
        }
        Ok(())
    },
    write: |config, options| {
        let is_parallel = config.norm_placement == NormPlacement::Parallel;
        options.insert("use_qkv_bias".to_owned(), json!(config.qkv_bias));
        options.insert("use_parallel_residual".to_owned(), json!(is_parallel));
        let has_norms = config.qk_norms != QkNorms::None;
        options.insert("qk_layernorm".to_owned(), json!(has_norms));
    },
};

pub(in super::super) const GPT_NEOX: Description = Description {
    name: "GPT-NeoX",
    model_type: "gpt_neox",
    class: "GPTNeoXForCausalLM",
    defaults: Defaults {
        bos_token_id: Some(0),
        epsilon: ("layer_norm_eps", 1e-5),
        activation: ("hidden_act", Activation::Gelu),
        partial_rotary_factor: Some(0.25),
        ..LLAMA
    },
    reads: &["use_parallel_residual", "rotary_pct", "rotary_emb_base"],
    read: |options, config| {
        config.norm = Norm::Layer { bias: true };
        config.gated_mlp = false;
        config.mlp_bias = true;
        config.qkv_bias = options.flag("attention_bias")?.unwrap_or(true);
        config.output_bias = config.qkv_bias;
        if options.flag("use_parallel_residual")?.unwrap_or(true) {
            config.norm_placement = NormPlacement::ParallelNorms;
        }
        Ok(())
    },
    write: |config, options| {
        let is_parallel = config.norm_placement == NormPlacement::ParallelNorms;
        options.insert("attention_bias".to_owned(), json!(config.qkv_bias));
        options.insert("use_parallel_residual".to_owned(), json!(is_parallel));
    },
};

pub(in super::super) const GPT_OSS: Description = Description {
    name: "gpt-oss",
    model_type: "gpt_oss",
    class: "GptOssForCausalLM",
    defaults: Defaults {
        max_position_embeddings: 131_072,
        num_key_value_heads: Some(8),
        head_dim: Some(64),
        rope_theta: 150_000.0,
        bos_token_id: None,
        eos_token_id: None,
        epsilon: ("rms_norm_eps", 1e-5),
        ..LLAMA
    },
    reads: &[NUM_LOCAL_EXPERTS, "swiglu_limit"],
    read: |options, config| {
        if options.get("rope_scaling").or(options.get("rope_parameters")).is_none() {
            return Err(options.missing("rope_scaling", "the options of YaRN"));
        }
        config.qkv_bias = options.flag("attention_bias")?.unwrap_or(true);
        config.output_bias = config.qkv_bias;
        config.sinks = true;
        let size = size_or(options, "sliding_window", Some(128))?;
        let layers = all_but_every(2, config.num_hidden_layers);
        config.sliding_window = sliding_window(options, size, layers)?;
        config.experts = Some(MixtureLayers::in_all(clamped_experts(options, config)?));
        Ok(())
    },
    write: |config, options| {
        options.insert("attention_bias".to_owned(), json!(config.qkv_bias));
        let Some(layers) = &config.experts else { return };
        (super::llama::MIXTRAL.write)(config, options);
        if let Activation::ClampedSwiglu { limit } = layers.experts.mlp.activation {
            options.insert("swiglu_limit".to_owned(), json!(limit));
        }
    },
};

fn clamped_experts(options: &JsonOptions<'_>, config: &Config) -> Result<Experts, LoadError> {
    let limit = options.number("swiglu_limit")?.unwrap_or(7.0);
    let activation = Activation::ClampedSwiglu { limit };
    let mlp = Mlp { activation, bias: true, ..Mlp::gated(config.intermediate_size) };
    let base = experts(options, NUM_LOCAL_EXPERTS, mlp)?;
    let (weighting, normalised) = (Weighting::SoftmaxOfChosen, false);
    Ok(Experts { router: Router { weighting, normalised, bias: true, ..base.router }, ..base })
}

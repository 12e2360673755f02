//! OLMo 1, OLMo 2, OLMo 3 and OLMoE.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, MixtureLayers, NormPlacement};
use super::{
    NUM_LOCAL_EXPERTS, all_but_every, experts, flag, size_or, sliding_window, write_attention_bias,
};
use crate::architecture::{Mlp, Norm, QkNorms};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::json;

const DEFAULTS: Defaults = Defaults {
    bos_token_id: None,
    eos_token_id: Some(50_279),
    epsilon: ("rms_norm_eps", 1e-5),
    ..LLAMA
};

pub(in super::super) const OLMO: Description = Description {
    name: "OLMo",
    model_type: "olmo",
    class: "OlmoForCausalLM",
    // The norms' constant is fixed: OLMo has no option for it.
    defaults: Defaults { epsilon: ("layer_norm_eps", 1e-5), ..DEFAULTS },
    reads: &["clip_qkv"],
    read: |options, config| {
        config.norm = Norm::UnweightedLayer;
        config.qkv_bias = flag(options, "attention_bias")?;
        config.output_bias = config.qkv_bias;
        config.clip_qkv = options.number("clip_qkv")?;
        Ok(())
    },
    write: |config, options| {
        write_attention_bias(config, options);
        options.insert("clip_qkv".to_owned(), json!(config.clip_qkv));
    },
};

pub(in super::super) const OLMO2: Description = Description {
    name: "OLMo 2",
    model_type: "olmo2",
    class: "Olmo2ForCausalLM",
    defaults: DEFAULTS,
    reads: &[],
    read: |options, config| {
        read_common(options, config)?;
        config.norm_placement = NormPlacement::After;
        Ok(())
    },
    write: write_attention_bias,
};

pub(in super::super) const OLMO3: Description = Description {
    name: "OLMo 3",
    model_type: "olmo3",
    class: "Olmo3ForCausalLM",
    defaults: Defaults { rope_theta: 500_000.0, local_rope_theta: Some(500_000.0), ..DEFAULTS },
    reads: &[],
    read: |options, config| {
        read_common(options, config)?;
        config.norm_placement = NormPlacement::After;
        let size = size_or(options, "sliding_window", Some(4096))?;
        let layers = all_but_every(4, config.num_hidden_layers);
        config.sliding_window = sliding_window(options, size, layers)?;
        Ok(())
    },
    write: write_attention_bias,
};

pub(in super::super) const OLMOE: Description = Description {
    name: "OLMoE",
    model_type: "olmoe",
    class: "OlmoeForCausalLM",
    defaults: Defaults { max_position_embeddings: 4096, ..DEFAULTS },
    reads: &["num_experts", NUM_LOCAL_EXPERTS, "clip_qkv"],
    read: |options, config| {
        read_common(options, config)?;
        let mlp = Mlp { activation: config.hidden_act, ..Mlp::gated(config.intermediate_size) };
        let mut experts = experts(options, "num_experts", mlp)?;
        experts.router.normalised = flag(options, "norm_topk_prob")?;
        config.experts = Some(MixtureLayers::in_all(experts));
        config.clip_qkv = options.number("clip_qkv")?;
        Ok(())
    },
    write: |config, options| {
        write_attention_bias(config, options);
        let Some(layers) = &config.experts else { return };
        for (option, value) in [
            ("num_experts", json!(layers.experts.n_experts)),
            ("num_experts_per_tok", json!(layers.experts.router.experts_per_token)),
            ("norm_topk_prob", json!(layers.experts.router.normalised)),
            ("clip_qkv", json!(config.clip_qkv)),
        ] {
            options.insert(option.to_owned(), value);
        }
    },
};

fn read_common(options: &JsonOptions<'_>, config: &mut Config) -> Result<(), LoadError> {
    config.qkv_bias = flag(options, "attention_bias")?;
    config.output_bias = config.qkv_bias;
    config.qk_norms = QkNorms::Whole;
    Ok(())
}

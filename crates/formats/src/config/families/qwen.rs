//! Qwen2 and Qwen3, dense and as mixtures of experts.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, Family, MAX_LAYERS, MixtureLayers, SlidingLayers, SlidingWindow};
use super::llama::optional_window;
use super::{NUM_LOCAL_EXPERTS, dense_if, experts, flag, write_attention_bias};
use crate::architecture::{Experts, Mlp, QkNorms, Router};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::{Map, Value, json};

const DEFAULTS: Defaults = Defaults {
    max_position_embeddings: 32_768,
    num_key_value_heads: Some(32),
    bos_token_id: None,
    eos_token_id: None,
    ..LLAMA
};

pub(in super::super) const QWEN2: Description = Description {
    name: "Qwen2",
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    defaults: DEFAULTS,
    reads: &[],
    read: |options, config| {
        config.qkv_bias = true;
        config.sliding_window = optional_window(options)?;
        Ok(())
    },
    write: |_, _| {},
};

pub(in super::super) const QWEN3: Description = Description {
    name: "Qwen3",
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    defaults: Defaults { head_dim: Some(128), ..DEFAULTS },
    reads: &[],
    read: |options, config| {
        config.qkv_bias = flag(options, "attention_bias")?;
        config.output_bias = config.qkv_bias;
        config.qk_norms = QkNorms::Heads;
        config.sliding_window = optional_window(options)?;
        Ok(())
    },
    write: write_attention_bias,
};

pub(in super::super) const QWEN2_MOE: Description = Description {
    name: "Qwen2-MoE",
    model_type: "qwen2_moe",
    class: "Qwen2MoeForCausalLM",
    defaults: Defaults { num_key_value_heads: Some(16), ..DEFAULTS },
    reads: &["num_experts", NUM_LOCAL_EXPERTS, "qkv_bias"],
    read: |options, config| {
        config.qkv_bias = options.flag("qkv_bias")?.unwrap_or(true);
        config.sliding_window = optional_window(options)?;
        // Unless they are listed, every second one of the first layers has the window.
        if let Some(SlidingWindow { layers: layers @ SlidingLayers::From(_), .. }) =
            &mut config.sliding_window
        {
            let first = options.size("max_window_layers")?.unwrap_or(28);
            let slides = |layer: usize| layer.is_multiple_of(2) && layer < first;
            let all = 0..config.num_hidden_layers.min(MAX_LAYERS);
            *layers = SlidingLayers::Listed(all.map(slides).collect());
        }
        let mut layers = mixture_layers(options, config)?;
        layers.experts.shared_gate = true;
        layers.shared_size = Some(options.required_size("shared_expert_intermediate_size")?);
        config.experts = Some(layers);
        Ok(())
    },
    write: |config, options| {
        options.insert("qkv_bias".to_owned(), json!(config.qkv_bias));
        write_mixture(config, options);
        let shared = config.experts.as_ref().and_then(|layers| layers.shared_size);
        options.insert("shared_expert_intermediate_size".to_owned(), json!(shared));
    },
};

pub(in super::super) const QWEN3_MOE: Description = Description {
    name: "Qwen3-MoE",
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    defaults: Defaults { num_key_value_heads: Some(4), ..DEFAULTS },
    reads: &["num_experts", NUM_LOCAL_EXPERTS],
    read: |options, config| {
        (QWEN3.read)(options, config)?;
        // A window that is in use applies to all layers.
        if let Some(window) = &mut config.sliding_window {
            window.layers = SlidingLayers::From(0);
        }
        config.experts = Some(mixture_layers(options, config)?);
        Ok(())
    },
    write: |config, options| {
        write_attention_bias(config, options);
        write_mixture(config, options);
    },
};

/// The text model of Qwen3-VL is a Qwen3 with other defaults.
pub(in super::super) const QWEN3_VL: Description = Description {
    name: "Qwen3-VL",
    model_type: "qwen3_vl_text",
    class: "Qwen3VLForConditionalGeneration",
    defaults: Defaults {
        max_position_embeddings: 128_000,
        rope_theta: 500_000.0,
        ..QWEN3.defaults
    },
    read: |options, config| {
        config.family = Family::Qwen3;
        (QWEN3.read)(options, config)
    },
    ..QWEN3
};

/// That of its mixtures differs from a Qwen3-MoE in how experts are stored.
pub(in super::super) const QWEN3_VL_MOE: Description = Description {
    name: "Qwen3-VL-MoE",
    model_type: "qwen3_vl_moe_text",
    class: "Qwen3VLMoeForConditionalGeneration",
    defaults: Defaults {
        num_key_value_heads: Some(16),
        tie_word_embeddings: true,
        ..QWEN3_VL.defaults
    },
    read: |options, config| {
        (QWEN3_MOE.read)(options, config)?;
        if let Some(layers) = &mut config.experts {
            layers.experts.router.normalised = true;
        }
        Ok(())
    },
    ..QWEN3_MOE
};

/// Reads the experts, and the layers that have them: the last of every `decoder_sparse_step`
/// layers, but not those of `mlp_only_layers`.
pub(super) fn mixture_layers(
    options: &JsonOptions<'_>,
    config: &Config,
) -> Result<MixtureLayers, LoadError> {
    let size = options.required_size("moe_intermediate_size")?;
    let mlp = Mlp { activation: config.hidden_act, ..Mlp::gated(size) };
    let base = experts(options, "num_experts", mlp)?;
    let router = Router { normalised: flag(options, "norm_topk_prob")?, ..base.router };
    let experts = Experts { router, ..base };
    let step = options.size("decoder_sparse_step")?.unwrap_or(1);
    if step == 0 {
        return Err(options.invalid("decoder_sparse_step", &step, "a number of at least 1"));
    }
    let dense_only: Vec<u64> = match options.get("mlp_only_layers").and_then(Value::as_array) {
        Some(listed) => listed.iter().filter_map(Value::as_u64).collect(),
        None => Vec::new(),
    };
    let is_dense =
        |layer: usize| !(layer + 1).is_multiple_of(step) || dense_only.contains(&(layer as u64));
    Ok(MixtureLayers { experts, shared_size: None, dense: dense_if(config, is_dense) })
}

pub(super) fn write_mixture(config: &Config, options: &mut Map<String, Value>) {
    let Some(MixtureLayers { experts, dense, .. }) = &config.experts else { return };
    let dense = dense.iter().enumerate().filter(|(_, is_dense)| **is_dense);
    let dense: Vec<usize> = dense.map(|(layer, _)| layer).collect();
    for (option, value) in [
        ("num_experts", json!(experts.n_experts)),
        ("num_experts_per_tok", json!(experts.router.experts_per_token)),
        ("moe_intermediate_size", json!(experts.mlp.intermediate_size)),
        ("norm_topk_prob", json!(experts.router.normalised)),
        ("mlp_only_layers", json!(dense)),
    ] {
        options.insert(option.to_owned(), value);
    }
}

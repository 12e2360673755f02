//! ERNIE 4.5, dense and as a mixture of experts.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, MixtureLayers};
use super::{dense_if, experts, flag};
use crate::architecture::{Experts, Mlp, Router};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::{Map, Value, json};

pub(in super::super) const ERNIE45: Description = Description {
    name: "ERNIE 4.5",
    model_type: "ernie4_5",
    class: "Ernie4_5ForCausalLM",
    defaults: Defaults {
        max_position_embeddings: 131_072,
        num_key_value_heads: Some(2),
        head_dim: Some(128),
        rope_theta: 500_000.0,
        tie_word_embeddings: true,
        epsilon: ("rms_norm_eps", 1e-5),
        ..LLAMA
    },
    reads: &["use_bias"],
    read: read_biases,
    write: write_biases,
};

pub(in super::super) const ERNIE45_MOE: Description = Description {
    name: "ERNIE 4.5-MoE",
    model_type: "ernie4_5_moe",
    class: "Ernie4_5_MoeForCausalLM",
    defaults: Defaults {
        names: &[("moe_k", "num_experts_per_tok"), ("moe_num_experts", "num_experts")],
        num_key_value_heads: Some(4),
        head_dim: None,
        ..ERNIE45.defaults
    },
    reads: &["use_bias", "num_experts"],
    read: |options, config| {
        read_biases(options, config)?;
        config.head_bias = config.output_bias;
        config.experts = Some(mixture_layers(options, config)?);
        Ok(())
    },
    write: |config, options| {
        write_biases(config, options);
        let Some(layers) = &config.experts else { return };
        let MixtureLayers { experts, shared_size, .. } = layers;
        let size = experts.mlp.intermediate_size;
        let with_experts = (0..config.num_hidden_layers).filter(|layer| layers.has_experts(*layer));
        let with_experts: Vec<usize> = with_experts.collect();
        let first = with_experts.first().copied().unwrap_or(config.num_hidden_layers);
        let last = with_experts.last().copied().unwrap_or(first);
        let interval = with_experts.get(1).map_or(1, |second| second - first);
        for (option, value) in [
            ("moe_k", experts.router.experts_per_token),
            ("moe_num_experts", experts.n_experts),
            ("moe_intermediate_size", size),
            ("moe_num_shared_experts", shared_size.unwrap_or(0) / size.max(1)),
            ("moe_layer_start_index", first),
            ("moe_layer_end_index", last),
            ("moe_layer_interval", interval),
        ] {
            options.insert(option.to_owned(), json!(value));
        }
    },
};

fn read_biases(options: &JsonOptions<'_>, config: &mut Config) -> Result<(), LoadError> {
    let has_biases = flag(options, "use_bias")?;
    config.qkv_bias = has_biases;
    config.output_bias = has_biases;
    config.mlp_bias = has_biases;
    Ok(())
}

fn write_biases(config: &Config, options: &mut Map<String, Value>) {
    options.insert("use_bias".to_owned(), json!(config.output_bias));
}

/// Reads the experts: weights are a softmax over all experts, and a correction helps to choose. Of
/// the layers from the first to the last one with experts, the last of every `moe_layer_interval`
/// has them.
fn mixture_layers(options: &JsonOptions<'_>, config: &Config) -> Result<MixtureLayers, LoadError> {
    let or = |option, default| Ok::<_, LoadError>(options.size(option)?.unwrap_or(default));
    let size = or("moe_intermediate_size", 1536)?;
    let mlp = Mlp { activation: config.hidden_act, ..Mlp::gated(size) };
    let base = experts(options, "num_experts", mlp)?;
    // A smaller sum of weights would not be divided by itself.
    options.check_supported("moe_norm_min", "at most 1e-9", |value| {
        value.as_f64().is_some_and(|value| value <= 1e-9)
    })?;
    let first = or("moe_layer_start_index", 1)?;
    let last = match options.get("moe_layer_end_index").and_then(Value::as_i64) {
        Some(-1) => None,
        _ => options.size("moe_layer_end_index")?,
    };
    let interval = or("moe_layer_interval", 1)?;
    if interval == 0 {
        return Err(options.invalid("moe_layer_interval", &interval, "a number of at least 1"));
    }
    let is_dense = |layer: usize| {
        layer < first
            || last.is_some_and(|last| layer > last)
            || !(layer + 1).is_multiple_of(interval)
    };
    let shared = or("moe_num_shared_experts", 2)?;
    Ok(MixtureLayers {
        experts: Experts { router: Router { correction: true, ..base.router }, ..base },
        shared_size: (shared > 0).then_some(shared.saturating_mul(size)),
        dense: dense_if(config, is_dense),
    })
}

//! Llama, Mistral, Mixtral and SmolLM3.

use super::super::family::{Defaults, Description, LLAMA as DEFAULTS};
use super::super::{Config, MAX_LAYERS, MixtureLayers, SlidingLayers, SlidingWindow};
use super::{NUM_LOCAL_EXPERTS, experts, flag, size_or, sliding_window};
use crate::architecture::Mlp;
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::{Map, Value, json};

pub(in super::super) const LLAMA: Description = Description {
    name: "Llama",
    model_type: "llama",
    class: "LlamaForCausalLM",
    defaults: DEFAULTS,
    reads: &[],
    read: read_biases,
    write: write_biases,
};

pub(in super::super) const MISTRAL: Description = Description {
    name: "Mistral",
    model_type: "mistral",
    class: "MistralForCausalLM",
    defaults: Defaults {
        max_position_embeddings: 131_072,
        num_key_value_heads: Some(8),
        ..DEFAULTS
    },
    reads: &[],
    read: |options, config| {
        let size = size_or(options, "sliding_window", Some(4096))?;
        config.sliding_window = sliding_window(options, size, SlidingLayers::From(0))?;
        Ok(())
    },
    write: |_, _| {},
};

pub(in super::super) const MIXTRAL: Description = Description {
    name: "Mixtral",
    model_type: "mixtral",
    class: "MixtralForCausalLM",
    defaults: Defaults {
        rope_theta: 1_000_000.0,
        epsilon: ("rms_norm_eps", 1e-5),
        ..MISTRAL.defaults
    },
    reads: &[NUM_LOCAL_EXPERTS],
    read: |options, config| {
        let size = options.size("sliding_window")?;
        config.sliding_window = sliding_window(options, size, SlidingLayers::From(0))?;
        let mlp = Mlp { activation: config.hidden_act, ..Mlp::gated(config.intermediate_size) };
        config.experts = Some(MixtureLayers::in_all(experts(options, NUM_LOCAL_EXPERTS, mlp)?));
        Ok(())
    },
    write: |config, options| {
        let Some(layers) = &config.experts else { return };
        options.insert(NUM_LOCAL_EXPERTS.to_owned(), json!(layers.experts.n_experts));
        let per_token = layers.experts.router.experts_per_token;
        options.insert("num_experts_per_tok".to_owned(), json!(per_token));
    },
};

pub(in super::super) const SMOLLM3: Description = Description {
    name: "SmolLM3",
    model_type: "smollm3",
    class: "SmolLM3ForCausalLM",
    defaults: Defaults {
        max_position_embeddings: 32_768,
        num_key_value_heads: Some(4),
        rope_theta: 2_000_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(128_000),
        eos_token_id: Some(128_001),
        ..DEFAULTS
    },
    reads: &["no_rope_layer_interval"],
    read: |options, config| {
        read_biases(options, config)?;
        let layers = rope_layers(options, config.num_hidden_layers)?;
        let used = flag(options, "use_sliding_window")?;
        let size = if used { options.size("sliding_window")? } else { None };
        let without_rope = SlidingLayers::Listed(layers.iter().map(|rope| !rope).collect());
        config.sliding_window = sliding_window(options, size, without_rope)?;
        config.rope_layers = Some(layers);
        Ok(())
    },
    write: |config, options| {
        write_biases(config, options);
        if let Some(layers) = &config.rope_layers {
            let layers = layers.iter().map(|has_rope| u8::from(*has_rope)).collect();
            options.insert("no_rope_layers".to_owned(), layers);
        }
    },
};

/// Reads the options of biases: of all projections of attention, and of the MLP.
pub(super) fn read_biases(options: &JsonOptions<'_>, config: &mut Config) -> Result<(), LoadError> {
    config.qkv_bias = flag(options, "attention_bias")?;
    config.output_bias = config.qkv_bias;
    config.mlp_bias = flag(options, "mlp_bias")?;
    Ok(())
}

pub(super) fn write_biases(config: &Config, options: &mut Map<String, Value>) {
    options.insert("attention_bias".to_owned(), json!(config.output_bias));
    options.insert("mlp_bias".to_owned(), json!(config.mlp_bias));
}

/// Returns whether each layer of a SmolLM3 has RoPE: as `no_rope_layers` lists, where 1 means that
/// it has, or all but the last of every `no_rope_layer_interval` layers.
fn rope_layers(options: &JsonOptions<'_>, layers: usize) -> Result<Vec<bool>, LoadError> {
    const OPTION: &str = "no_rope_layers";
    let layers = layers.min(MAX_LAYERS);
    let Some(listed) = options.get(OPTION) else {
        let interval = options.size("no_rope_layer_interval")?.unwrap_or(4);
        if interval == 0 {
            let expected = "a number of layers of at least 1";
            return Err(options.invalid("no_rope_layer_interval", &interval, expected));
        }
        return Ok((1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect());
    };
    let has_rope = |entry: &Value| match entry.as_u64() {
        Some(number) => Some(number != 0),
        None => entry.as_bool(),
    };
    let listed = listed.as_array().and_then(|list| list.iter().map(has_rope).collect());
    // transformers ignores entries after those of the layers.
    let listed: Option<Vec<bool>> = listed.filter(|list: &Vec<bool>| list.len() >= layers);
    let Some(mut listed) = listed else {
        let expected = format!("a list with 0 or 1 for each of the {layers} layers");
        return Err(options.invalid(OPTION, &options.displayed(OPTION), &expected));
    };
    listed.truncate(layers);
    Ok(listed)
}

/// Returns the window of a Qwen: only if `use_sliding_window` is true, in the layers from
/// `max_window_layers` on unless they are listed.
pub(super) fn optional_window(
    options: &JsonOptions<'_>,
) -> Result<Option<SlidingWindow>, LoadError> {
    let used = flag(options, "use_sliding_window")?;
    let first = options.size("max_window_layers")?.unwrap_or(28);
    let size = if used { size_or(options, "sliding_window", Some(4096))? } else { None };
    sliding_window(options, size, SlidingLayers::From(first))
}

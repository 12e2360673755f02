//! Gemma 2 and 3, for text.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, Family, NormPlacement};
use super::{all_but_every, flag, size_or, sliding_window};
use crate::architecture::{Activation, QkNorms};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::{Map, Value, json};

const DEFAULTS: Defaults = Defaults {
    max_position_embeddings: 8192,
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    tie_word_embeddings: true,
    bos_token_id: Some(2),
    eos_token_id: Some(1),
    activation: ("hidden_activation", Activation::GeluTanh),
    ..LLAMA
};

pub(in super::super) const GEMMA2: Description = Description {
    family: Family::Gemma2,
    name: "Gemma 2",
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    defaults: DEFAULTS,
    reads: &[
        "hidden_activation",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ],
    read: |options, config| {
        read_common(options, config)?;
        let cap = |option, default: f32| {
            let default = (!options.contains(option)).then_some(default);
            Ok::<_, LoadError>(options.number(option)?.or(default))
        };
        config.attn_logit_softcapping = cap("attn_logit_softcapping", 50.0)?;
        config.final_logit_softcapping = cap("final_logit_softcapping", 30.0)?;
        let size = size_or(options, "sliding_window", Some(4096))?;
        let layers = all_but_every(2, config.num_hidden_layers);
        config.sliding_window = sliding_window(options, size, layers)?;
        Ok(())
    },
    write: write_common,
};

pub(in super::super) const GEMMA3: Description = Description {
    family: Family::Gemma3,
    name: "Gemma 3",
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    defaults: Defaults {
        // Files of Gemma 3 with images omit both.
        num_attention_heads: Some(8),
        vocab_size: Some(262_208),
        max_position_embeddings: 131_072,
        rope_theta: 1_000_000.0,
        local_rope_theta: Some(10_000.0),
        ..DEFAULTS
    },
    // It has no limit of attention scores.
    reads: &[
        "hidden_activation",
        "query_pre_attn_scalar",
        "final_logit_softcapping",
        "rope_local_base_freq",
    ],
    read: |options, config| {
        read_common(options, config)?;
        config.final_logit_softcapping = options.number("final_logit_softcapping")?;
        config.qk_norms = QkNorms::Heads;
        let pattern = options.size("sliding_window_pattern")?;
        let pattern = pattern.or(options.size("_sliding_window_pattern")?).unwrap_or(6);
        let size = size_or(options, "sliding_window", Some(4096))?;
        let layers = all_but_every(pattern, config.num_hidden_layers);
        config.sliding_window = sliding_window(options, size, layers)?;
        Ok(())
    },
    write: write_common,
};

fn read_common(options: &JsonOptions<'_>, config: &mut Config) -> Result<(), LoadError> {
    let is_false = |value: &Value| value == false;
    options.check_supported("use_bidirectional_attention", "false", is_false)?;
    config.qkv_bias = flag(options, "attention_bias")?;
    config.output_bias = config.qkv_bias;
    config.norm_placement = NormPlacement::Around;
    config.embedding_multiplier = (config.hidden_size as f32).sqrt();
    let scalar = options.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    config.attention_multiplier = Some(1.0 / scalar.sqrt());
    Ok(())
}

fn write_common(config: &Config, options: &mut Map<String, Value>) {
    let scale = f64::from(config.score_scale());
    for (option, value) in [
        ("attention_bias", json!(config.output_bias)),
        ("query_pre_attn_scalar", json!(1.0 / (scale * scale))),
        ("attn_logit_softcapping", json!(config.attn_logit_softcapping)),
        ("final_logit_softcapping", json!(config.final_logit_softcapping)),
    ] {
        options.insert(option.to_owned(), value);
    }
}

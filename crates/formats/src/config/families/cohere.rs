//! Command R and its successors by Cohere.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, NormPlacement, SlidingLayers};
use super::{all_but_every, flag, size_or, sliding_window, write_attention_bias};
use crate::architecture::{Norm, QkNorms};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::{Map, Value, json};

const DEFAULTS: Defaults = Defaults {
    max_position_embeddings: 8192,
    tie_word_embeddings: true,
    bos_token_id: Some(5),
    eos_token_id: Some(255_001),
    epsilon: ("layer_norm_eps", 1e-5),
    ..LLAMA
};

pub(in super::super) const COHERE: Description = Description {
    name: "Cohere",
    model_type: "cohere",
    class: "CohereForCausalLM",
    defaults: Defaults { rope_theta: 500_000.0, ..DEFAULTS },
    reads: &["logit_scale", "use_qk_norm", "position_embedding_type"],
    read: |options, config| {
        read_common(options, config)?;
        if flag(options, "use_qk_norm")? {
            config.qk_norms = QkNorms::OwnHeads;
        }
        Ok(())
    },
    write: |config, options| {
        write_common(config, options);
        let has_norms = config.qk_norms == QkNorms::OwnHeads;
        options.insert("use_qk_norm".to_owned(), json!(has_norms));
    },
};

/// Layers without a window have no RoPE.
pub(in super::super) const COHERE2: Description = Description {
    name: "Cohere 2",
    model_type: "cohere2",
    class: "Cohere2ForCausalLM",
    defaults: DEFAULTS,
    reads: &["logit_scale", "position_embedding_type"],
    read: |options, config| {
        read_common(options, config)?;
        let size = size_or(options, "sliding_window", Some(4096))?;
        let pattern = options.size("sliding_window_pattern")?;
        let pattern = pattern.or(options.size("_sliding_window_pattern")?).unwrap_or(4);
        let layers = all_but_every(pattern, config.num_hidden_layers);
        config.sliding_window = sliding_window(options, size, layers)?;
        let windows = config.sliding_window.as_ref().map(|window| &window.layers);
        let Some(SlidingLayers::Listed(listed)) = windows else {
            return Err(options.unsupported("sliding_window", "a window: RoPE is in its layers"));
        };
        config.rope_layers = Some(listed.clone());
        Ok(())
    },
    write: write_common,
};

fn read_common(options: &JsonOptions<'_>, config: &mut Config) -> Result<(), LoadError> {
    // RoPE of neighbouring pairs, as all models of the family have it.
    let is_known = |value: &Value| value == "rope_gptj";
    options.check_supported("position_embedding_type", "\"rope_gptj\"", is_known)?;
    config.norm = Norm::Layer { bias: false };
    config.norm_placement = NormPlacement::Parallel;
    config.qkv_bias = flag(options, "attention_bias")?;
    config.output_bias = config.qkv_bias;
    config.logits_scaling = 1.0 / options.number("logit_scale")?.unwrap_or(0.0625);
    Ok(())
}

fn write_common(config: &Config, options: &mut Map<String, Value>) {
    write_attention_bias(config, options);
    let scale = 1.0 / f64::from(config.logits_scaling);
    options.insert("logit_scale".to_owned(), json!(scale));
}

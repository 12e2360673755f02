//! Options that change the computation of some model, and that this engine does not compute.
//!
//! Code outside transformers, or a later version of a family, may read them under a `model_type`
//! that is supported here. Each of them is accepted with the value that leaves the computation as
//! it is.

use super::Config;
use crate::architecture::{Activation, QkNorms};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::Value;

/// The values of an option that leave the computation as it is.
enum Neutral {
    /// A factor of 1.
    One,
    /// The factor of the configuration: 1 unless the family reads the option.
    Factor(fn(&Config) -> f32),
    /// Nothing: `false`, 0, or an empty list or object.
    Nothing,
    /// No number at all. Zero would be a limit.
    Absent,
    /// At most one expert.
    OneExpert,
    /// `true`.
    True,
    /// The SiLU function.
    Silu,
    /// Every layer has the value 1 unless the family reads the option: it uses RoPE.
    EveryLayer,
    /// The factor of attention scores: 1/√head_dim.
    AttentionScale,
    /// The size that attention scores are scaled by.
    HeadDim,
    /// The number of dimensions that RoPE rotates.
    RotaryDims,
    /// The width that logits are scaled by.
    HiddenSize,
    /// Whether the family has norms of queries and keys.
    HeadNorms,
    /// Whether the family has biases of queries, keys and values.
    QkvBias,
    /// Whether the output of attention has a gate.
    AttentionGate,
    /// The base of RoPE.
    RopeTheta,
    /// Rotary position embeddings.
    Rotary,
    /// RMS norms.
    RmsNorm,
}

impl Neutral {
    /// Returns the neutral value in words, for errors.
    fn description(&self) -> &'static str {
        match self {
            Self::One | Self::Factor(_) => "1",
            Self::Nothing => "none (absent, null, false or 0)",
            Self::Absent => "none (absent or null)",
            Self::OneExpert => "none (a dense model)",
            Self::True => "true",
            Self::Silu => "\"silu\"",
            Self::EveryLayer => "RoPE in every layer",
            Self::AttentionScale => "1/√head_dim",
            Self::HeadDim => "the size of a head, \"head_dim\"",
            Self::RotaryDims => "the part of a head that RoPE rotates",
            Self::HiddenSize => "\"hidden_size\"",
            Self::HeadNorms => "true for Qwen3, false for other families",
            Self::QkvBias => "the biases of the family (\"attention_bias\" for a Llama)",
            Self::AttentionGate => "true for Qwen3-Next and Qwen3.5, false for other families",
            Self::RopeTheta => "\"rope_theta\"",
            Self::Rotary => "\"rope\"",
            Self::RmsNorm => "RMS norms",
        }
    }

    /// Whether `value` leaves the computation of `config` as it is.
    fn is(&self, value: &Value, config: &Config) -> bool {
        let number = value.as_f64();
        let close_to = |expected: f64| {
            number.is_some_and(|number| (number - expected).abs() <= 1e-6 * expected.abs())
        };
        let text = value.as_str().map(str::to_ascii_lowercase);
        let is_text = |names: &[&str]| text.as_deref().is_some_and(|text| names.contains(&text));
        match self {
            Self::One => number == Some(1.0),
            Self::Nothing => match value {
                Value::Bool(flag) => !flag,
                Value::Array(values) => values.is_empty(),
                Value::Object(values) => values.is_empty(),
                _ => number == Some(0.0),
            },
            Self::Absent => false,
            Self::Factor(factor) => close_to(f64::from(factor(config))),
            Self::OneExpert => value == false || number == Some(0.0) || number == Some(1.0),
            Self::True => value == true,
            // If the family reads another option, this one has no effect, but a writer may repeat
            // it here.
            Self::Silu if config.hidden_act != Activation::Silu => true,
            Self::Silu => is_text(&["silu", "swish", "swiglu"]),
            Self::EveryLayer => {
                let uses = |layer: &Value| layer == true || layer.as_f64() == Some(1.0);
                value.as_array().is_some_and(|layers| {
                    let layers = layers.iter().take(config.num_hidden_layers).enumerate();
                    layers.into_iter().all(|(index, layer)| uses(layer) == config.has_rope(index))
                })
            }
            Self::AttentionScale => close_to(f64::from(config.score_scale())),
            Self::HeadDim => close_to(config.head_dim as f64),
            Self::RotaryDims => close_to(config.rotary_dims() as f64),
            Self::HiddenSize => close_to(config.hidden_size as f64),
            Self::HeadNorms => *value == (config.qk_norms != QkNorms::None),
            Self::QkvBias => *value == config.qkv_bias,
            Self::AttentionGate => *value == config.attention_gate,
            Self::RopeTheta => close_to(f64::from(config.rope_theta)),
            Self::Rotary => is_text(&["rope", "rotary", "default"]),
            Self::RmsNorm => is_text(&["rms", "rmsnorm", "rms_norm"]),
        }
    }
}

/// The options, and the values with which they change nothing.
const OPTIONS: &[(&str, Neutral)] = &[
    // Factors of Granite, MiniCPM, Cohere, Falcon-H1 and models with μP.
    ("embedding_multiplier", Neutral::Factor(|config| config.embedding_multiplier)),
    ("residual_multiplier", Neutral::Factor(|config| config.residual_multiplier)),
    ("attention_multiplier", Neutral::AttentionScale),
    ("logits_scaling", Neutral::Factor(|config| config.logits_scaling)),
    ("logit_scale", Neutral::One),
    ("output_multiplier_scale", Neutral::One),
    ("embedding_multiplier_scale", Neutral::One),
    ("lm_head_multiplier", Neutral::One),
    ("key_multiplier", Neutral::One),
    ("attention_in_multiplier", Neutral::One),
    ("attention_out_multiplier", Neutral::One),
    ("mlp_multipliers", Neutral::Nothing),
    ("scale_emb", Neutral::One),
    ("scale_depth", Neutral::Absent),
    ("dim_model_base", Neutral::HiddenSize),
    ("mup_enabled", Neutral::Nothing),
    ("scale_embedding", Neutral::Nothing),
    ("embedding_scale", Neutral::One),
    ("emb_scale", Neutral::One),
    ("residual_scale", Neutral::One),
    // The scale of attention scores, and limits of scores, logits and projections.
    ("query_pre_attn_scalar", Neutral::HeadDim),
    ("attn_scale", Neutral::AttentionScale),
    ("softmax_scale", Neutral::AttentionScale),
    ("attn_logit_softcapping", Neutral::Nothing),
    ("final_logit_softcapping", Neutral::Nothing),
    ("attn_logit_softcap", Neutral::Nothing),
    ("final_logit_softcap", Neutral::Nothing),
    ("attn_logits_soft_cap", Neutral::Nothing),
    ("logits_soft_cap", Neutral::Nothing),
    ("logit_softcap", Neutral::Nothing),
    ("logit_cap", Neutral::Nothing),
    ("clip_qkv", Neutral::Absent),
    ("swiglu_limit", Neutral::Absent),
    ("attn_temperature_tuning", Neutral::Nothing),
    ("attention_chunk_size", Neutral::Absent),
    ("alibi", Neutral::Nothing),
    ("use_alibi", Neutral::Nothing),
    ("is_causal", Neutral::True),
    // Norms and biases. Stored biases that the family lacks are refused as tensors, too.
    ("use_qk_norm", Neutral::HeadNorms),
    ("qk_norm", Neutral::HeadNorms),
    ("qk_layernorm", Neutral::Nothing),
    ("use_qk_layernorm", Neutral::Nothing),
    ("norm_type", Neutral::RmsNorm),
    ("normalization_type", Neutral::RmsNorm),
    ("use_post_norm", Neutral::Nothing),
    ("qkv_bias", Neutral::QkvBias),
    ("use_qkv_bias", Neutral::QkvBias),
    ("attention_qkv_bias", Neutral::QkvBias),
    ("add_qkv_bias", Neutral::QkvBias),
    ("attention_out_bias", Neutral::Nothing),
    ("use_bias", Neutral::Nothing),
    ("add_bias_linear", Neutral::Nothing),
    ("lm_head_bias", Neutral::Nothing),
    ("attn_output_gate", Neutral::AttentionGate),
    // RoPE.
    ("rope_interleaved", Neutral::Nothing),
    ("rope_interleave", Neutral::Nothing),
    ("interleaved_rope", Neutral::Nothing),
    ("rotary_interleaved", Neutral::Nothing),
    ("rope_is_neox_style", Neutral::True),
    ("rotary_pct", Neutral::One),
    ("rotary_percent", Neutral::One),
    ("rope_pct", Neutral::One),
    ("rotary_dim", Neutral::RotaryDims),
    ("rope_ratio", Neutral::One),
    ("rotary_emb_base", Neutral::RopeTheta),
    ("rotary_base", Neutral::RopeTheta),
    ("rope_local_base_freq", Neutral::RopeTheta),
    ("local_rope_theta", Neutral::RopeTheta),
    ("no_rope_layers", Neutral::EveryLayer),
    ("no_rope_layer_interval", Neutral::Absent),
    ("position_embedding_type", Neutral::Rotary),
    // The form of layers.
    ("hidden_activation", Neutral::Silu),
    ("activation_function", Neutral::Silu),
    ("mlp_hidden_act", Neutral::Silu),
    ("parallel_attn", Neutral::Nothing),
    ("use_parallel_residual", Neutral::Nothing),
    ("parallel_residual", Neutral::Nothing),
    ("num_experts", Neutral::OneExpert),
    ("num_local_experts", Neutral::OneExpert),
    ("n_routed_experts", Neutral::OneExpert),
    ("moe_num_experts", Neutral::OneExpert),
    ("kv_lora_rank", Neutral::Nothing),
    ("cross_attention_layers", Neutral::Nothing),
    ("num_kv_shared_layers", Neutral::Nothing),
    ("layer_scale_init_value", Neutral::Absent),
];

/// Whether [`reject`] knows the option.
pub(crate) fn knows(option: &str) -> bool {
    OPTIONS.iter().any(|(known, _)| *known == option)
}

/// Rejects options that would change the computation of `config`, except those that its family
/// `reads`.
///
/// # Errors
/// [`LoadError::UnsupportedOption`] with the first such option.
pub(super) fn reject(
    options: &JsonOptions<'_>,
    config: &Config,
    reads: &[&str],
) -> Result<(), LoadError> {
    let unread = OPTIONS.iter().filter(|(option, _)| !reads.contains(option));
    unread.into_iter().try_for_each(|(option, neutral)| {
        options.check_supported(option, neutral.description(), |value| neutral.is(value, config))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    /// Parses a configuration with heads of 64.
    fn parse(model_type: &str, option: &str, value: &Value) -> Result<Config, LoadError> {
        let mut options = json!({
            "model_type": model_type, "hidden_size": 512, "intermediate_size": 1024, "head_dim": 64,
            "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8,
            "vocab_size": 512, "rope_theta": 500_000.0,
        });
        options[option] = value.clone();
        Config::parse(&options.to_string(), Path::new("config.json"))
    }

    #[test]
    fn options_that_change_the_arithmetic_are_refused_by_name() {
        let cases = [
            ("embedding_multiplier", json!(12.0)),
            ("residual_multiplier", json!(0.22)),
            // Granite's own value for heads of 64.
            ("attention_multiplier", json!(0.015_625)),
            ("logits_scaling", json!(8.0)),
            ("query_pre_attn_scalar", json!(256)),
            ("attn_logit_softcapping", json!(50.0)),
            ("final_logit_softcapping", json!(30.0)),
            ("clip_qkv", json!(8.0)),
            ("clip_qkv", json!(0)),
            ("use_qk_norm", json!(true)),
            ("qkv_bias", json!(true)),
            ("use_bias", json!(true)),
            ("rope_interleaved", json!(true)),
            ("rotary_pct", json!(0.25)),
            ("rotary_dim", json!(32)),
            ("no_rope_layers", json!([1, 0])),
            ("num_experts", json!(8)),
            ("num_local_experts", json!(8)),
            ("n_routed_experts", json!(64)),
            ("hidden_activation", json!("gelu_pytorch_tanh")),
            ("position_embedding_type", json!("alibi")),
            ("mlp_multipliers", json!([0.5, 2.0])),
            ("logit_scale", json!("0.0625")),
            ("attn_output_gate", json!(true)),
        ];
        for (option, value) in cases {
            let message = parse("llama", option, &value).unwrap_err().to_string();
            let begins = format!("config.json: option \"{option}\" is {value}, which is not");
            assert!(message.starts_with(&begins), "{message}");
        }
        let message = parse("qwen3", "use_qk_norm", &json!(false)).unwrap_err().to_string();
        assert!(message.contains("\"use_qk_norm\" is false"), "{message}");
    }

    #[test]
    fn neutral_values_are_accepted() {
        let cases = [
            ("llama", "embedding_multiplier", json!(1.0)),
            ("llama", "residual_multiplier", json!(1)),
            ("llama", "attention_multiplier", json!(0.125)),
            ("llama", "query_pre_attn_scalar", json!(64)),
            ("llama", "final_logit_softcapping", json!(null)),
            ("llama", "clip_qkv", json!(null)),
            // As in the configurations of SmolLM2.
            ("llama", "rope_interleaved", json!(false)),
            ("llama", "rotary_emb_base", json!(500_000)),
            ("llama", "no_rope_layers", json!([1, 1])),
            ("llama", "num_experts", json!(0)),
            ("llama", "use_qk_norm", json!(false)),
            ("qwen3", "use_qk_norm", json!(true)),
            ("qwen3", "attn_output_gate", json!(false)),
            ("qwen2", "qkv_bias", json!(true)),
            ("llama", "position_embedding_type", json!("rope")),
        ];
        for (model_type, option, value) in cases {
            assert!(parse(model_type, option, &value).is_ok(), "{model_type} {option} {value}");
        }
    }
}

//! Parses the text of a `config.json` into a [`Config`], by the meaning of each family's options.

use super::families::{size_or, sliding_window};
use super::{Config, Family, Pooling, Quantization, SlidingLayers, rope, unread};
use crate::architecture::Activation;
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::Value;
use std::path::Path;

impl Config {
    /// Parses the text of a `config.json`. Errors refer to it as `file`. Absent optional values
    /// have the defaults of transformers' configuration class for the family.
    ///
    /// # Errors
    /// When the text is not a JSON object, a size is missing, a value is invalid, or an option
    /// requests something that this engine does not support.
    pub fn parse(text: &str, file: &Path) -> Result<Self, LoadError> {
        Self::parse_with(text, file, None)
    }

    /// Parses as [`Config::parse`] does. A model that is published with `pooling` may be of the
    /// class without a head.
    pub(crate) fn parse_with(
        text: &str,
        file: &Path,
        pooling: Option<Pooling>,
    ) -> Result<Self, LoadError> {
        let options = JsonOptions::parse(text, file)?;
        let (options, multimodal) = text_options(options)?;
        let family = family(&options)?;
        reject_other_models(&options, family, pooling.is_some())?;
        let description = family.description();
        let defaults = &description.defaults;
        let options = options.with_names(defaults.names);
        let token = |option, default: Option<u32>| default.filter(|_| !options.contains(option));

        let hidden_size = options.required_size("hidden_size")?;
        let required = |option, default: Option<usize>| match default {
            Some(default) => Ok(options.size(option)?.unwrap_or(default)),
            None => options.required_size(option),
        };
        let num_attention_heads = required("num_attention_heads", defaults.num_attention_heads)?;
        let num_key_value_heads =
            size_or(&options, "num_key_value_heads", defaults.num_key_value_heads)?;
        let head_dim = match size_or(&options, "head_dim", defaults.head_dim)? {
            Some(head_dim) => head_dim,
            None => divided_head_dim(hidden_size, num_attention_heads, file)?,
        };
        let max_position_embeddings =
            options.size("max_position_embeddings")?.unwrap_or(defaults.max_position_embeddings);
        let rope = rope::read(&options, family, max_position_embeddings)?;
        let mut config = Self {
            family,
            hidden_size,
            intermediate_size: intermediate_size(&options, family, hidden_size)?,
            num_hidden_layers: options.required_size("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: num_key_value_heads.unwrap_or(num_attention_heads),
            head_dim,
            vocab_size: required("vocab_size", defaults.vocab_size)?,
            multimodal,
            max_position_embeddings: rope.context_length,
            rms_norm_eps: options.number(defaults.epsilon.0)?.unwrap_or(defaults.epsilon.1),
            hidden_act: activation(&options, family)?,
            rope_theta: rope.theta,
            rope_scaling: rope.scaling,
            partial_rotary_factor: rope.partial_rotary_factor,
            local_rope: rope.local,
            quantization: quantization(&options, family)?,
            tie_word_embeddings: options
                .flag("tie_word_embeddings")?
                .unwrap_or(defaults.tie_word_embeddings),
            bos_token_id: options
                .token_id("bos_token_id")?
                .or(token("bos_token_id", defaults.bos_token_id)),
            eos_token_ids: options.token_ids("eos_token_id")?.unwrap_or_else(|| {
                token("eos_token_id", defaults.eos_token_id).into_iter().collect()
            }),
            ..Self::plain_llama()
        };
        (description.read)(&options, &mut config)?;
        config.pooling = pooling.or(config.pooling);
        let lists_others = config.recurrent.is_some() || config.family.is_sparse();
        if config.sliding_window.is_none() && !lists_others {
            // Refuses layers with a window.
            sliding_window(&options, None, SlidingLayers::From(0))?;
        }
        config.validate(file)?;
        unread::reject(&options, &config, description.reads)?;
        Ok(config)
    }
}

/// Returns the width of dense MLPs, which some families do not have.
fn intermediate_size(
    options: &JsonOptions<'_>,
    family: Family,
    hidden_size: usize,
) -> Result<usize, LoadError> {
    let default = family.description().defaults.mlp_factor;
    match (options.size("intermediate_size")?, default) {
        (Some(size), _) => Ok(size),
        (None, Some(factor)) => Ok(hidden_size.saturating_mul(factor)),
        (None, None) if family == Family::Qwen35Moe => {
            options.required_size("moe_intermediate_size")
        }
        // The first LFM2 models have this name.
        (None, None) if family == Family::Lfm2 => options.required_size("block_ff_dim"),
        (None, None) => options.required_size("intermediate_size"),
    }
}

/// Returns the options of the language model, and whether it is a part of a model that also reads
/// images.
fn text_options<'a>(options: JsonOptions<'a>) -> Result<(JsonOptions<'a>, bool), LoadError> {
    let model_type = options.string("model_type")?;
    let multimodal = MULTIMODAL.iter().find(|(name, _)| model_type.as_deref() == Some(*name));
    let Some((_, class)) = multimodal else { return Ok((options, false)) };
    options.check_supported("architectures", class, |value| {
        let names = value.as_array().into_iter().flatten();
        names.into_iter().any(|name| name == class.trim_matches('"'))
    })?;
    let part = options.object("text_config")?;
    let part =
        part.ok_or_else(|| options.missing("text_config", "the options of the text model"))?;
    // Tokens and the tied head are options of the whole model, too.
    let outer = ["bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config"];
    Ok((part.with_defaults(&options, &outer), true))
}

/// The `model_type` of models that also read images, and the name of their class, in quotation
/// marks.
const MULTIMODAL: [(&str, &str); 7] = [
    ("gemma3", "\"Gemma3ForConditionalGeneration\""),
    ("gemma4", "\"Gemma4ForConditionalGeneration\""),
    ("gemma4_unified", "\"Gemma4UnifiedForConditionalGeneration\""),
    ("qwen3_vl", "\"Qwen3VLForConditionalGeneration\""),
    ("qwen3_vl_moe", "\"Qwen3VLMoeForConditionalGeneration\""),
    ("qwen3_5", "\"Qwen3_5ForConditionalGeneration\""),
    ("qwen3_5_moe", "\"Qwen3_5MoeForConditionalGeneration\""),
];

const FAMILIES: &str = "the model_type of a supported family: llama, mistral, mixtral, qwen2, qwen3, \
    qwen2_moe, qwen3_moe, qwen3_vl, qwen3_vl_moe, qwen3_next, qwen3_5, qwen3_5_moe, granite, \
    granitemoe, granitemoehybrid, lfm2, lfm2_moe, smollm3, gemma2, gemma3, gemma3_text, gemma4, \
    gemma4_text, gemma4_unified, phi, phi3, olmo, olmo2, olmo3, olmoe, cohere, cohere2, glm, glm4, \
    glm4_moe, glm4_moe_lite, glm_moe_dsa, deepseek_v2, deepseek_v3, deepseek_v32, dots1, ernie4_5, \
    ernie4_5_moe, minimax_m2, starcoder2, stablelm, gpt_neox, gpt_oss, gpt2, opt, falcon or bert (for embeddings)";

fn family(options: &JsonOptions<'_>) -> Result<Family, LoadError> {
    let Some(model_type) = options.string("model_type")? else {
        return Err(options.missing("model_type", FAMILIES));
    };
    let family = Family::ALL.into_iter().find(|family| family.model_type() == model_type);
    family.ok_or_else(|| options.unsupported("model_type", FAMILIES))
}

/// Rejects options that would require a different computation.
fn reject_other_models(
    options: &JsonOptions<'_>,
    family: Family,
    embeds: bool,
) -> Result<(), LoadError> {
    let architecture = family.architecture();
    let base = architecture.strip_suffix("ForCausalLM").filter(|_| embeds);
    let is_base = |name: &str| {
        let name = name.strip_suffix("Model").map(|name| name.trim_end_matches("Text"));
        base.is_some() && name == base
    };
    options.check_supported("architectures", architecture, |value| {
        let mut names = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        names.any(|name| name == architecture || is_base(name))
    })
}

/// Returns the format of quantised matrices.
fn quantization(
    options: &JsonOptions<'_>,
    family: Family,
) -> Result<Option<Quantization>, LoadError> {
    let quantization = Quantization::read(options)?;
    if quantization == Some(Quantization::Mxfp4) && family != Family::GptOss {
        return Err(options.unsupported("quantization_config", "\"mxfp4\" only for gpt_oss"));
    }
    Ok(quantization)
}

fn activation(options: &JsonOptions<'_>, family: Family) -> Result<Activation, LoadError> {
    const KNOWN: &str = "\"silu\", \"gelu\", \"gelu_pytorch_tanh\" or \"relu\"";
    let (option, default) = family.description().defaults.activation;
    let Some(name) = options.string(option)? else { return Ok(default) };
    match name.as_str() {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        _ => Err(options.unsupported(option, KNOWN)),
    }
}

fn divided_head_dim(hidden_size: usize, heads: usize, file: &Path) -> Result<usize, LoadError> {
    match hidden_size.checked_rem(heads) {
        Some(0) => Ok(hidden_size / heads),
        _ => {
            let expected =
                format!("a divisor of \"hidden_size\", {hidden_size} (or set \"head_dim\")");
            Err(LoadError::invalid_option(file, "num_attention_heads", &heads, expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::architecture::{Factors, QkNorms};
    use crate::config::{RopeScaling, SuggestedSampling};
    use crate::json_options::MAX_SIZE;

    /// Parses a Llama configuration with `changes`, which may set another `model_type`.
    fn config(changes: Value) -> Result<Config, LoadError> {
        let mut options = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 172,
            "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 512,
        });
        if let (Value::Object(options), Value::Object(changes)) = (&mut options, changes) {
            options.extend(changes);
        }
        Config::parse(&options.to_string(), Path::new("config.json"))
    }

    fn message(changes: Value) -> String {
        config(changes).unwrap_err().to_string()
    }

    /// Parses a configuration with both changes.
    fn config_with(mut base: Value, changes: Value) -> Result<Config, LoadError> {
        if let (Value::Object(base), Value::Object(changes)) = (&mut base, changes) {
            base.extend(changes);
        }
        config(base)
    }

    #[test]
    fn absent_options_have_transformers_defaults() {
        let config = config(json!({})).unwrap();
        assert_eq!((config.head_dim, config.num_key_value_heads), (8, 8));
        assert_eq!((config.rms_norm_eps, config.rope_theta), (1e-6, 10_000.0));
        assert_eq!((config.bos_token_id, config.eos_token_ids), (Some(1), vec![2]));
        assert_eq!((config.max_position_embeddings, config.tie_word_embeddings), (2048, false));
    }

    #[test]
    fn eos_tokens_may_be_one_several_or_none() {
        let ids = |value| config(json!({ "eos_token_id": value })).unwrap().eos_token_ids;
        assert_eq!(ids(json!(7)), [7]);
        assert_eq!(ids(json!([7, 9])), [7, 9]);
        assert_eq!(ids(json!(null)), [0u32; 0]);
        assert!(message(json!({"eos_token_id": 512})).contains("\"eos_token_id\" is 512"));
        assert!(message(json!({"eos_token_id": [1, -1]})).contains("[1,-1]"));
    }

    #[test]
    fn the_generation_config_replaces_eos_tokens() {
        let mut config = config(json!({})).unwrap();
        let file = Path::new("generation_config.json");
        config.apply_generation_config("{}", file).unwrap();
        assert_eq!(config.eos_token_ids, [2]);
        config.apply_generation_config(r#"{"eos_token_id": [5, 6]}"#, file).unwrap();
        assert_eq!(config.eos_token_ids, [5, 6]);
        let error = config.apply_generation_config(r#"{"eos_token_id": "no"}"#, file);
        assert!(error.unwrap_err().to_string().starts_with("generation_config.json: "));
    }

    #[test]
    fn rope_theta_is_found_in_its_old_and_new_places() {
        let theta = |changes| config(changes).unwrap().rope_theta;
        assert_eq!(theta(json!({"rope_theta": 500_000})), 500_000.0);
        let parameters = json!({"rope_theta": 1e6, "rope_type": "default"});
        assert_eq!(theta(json!({ "rope_parameters": parameters })), 1e6);
        assert_eq!(theta(json!({"rope_scaling": {"type": "default"}})), 10_000.0);
        let both = message(json!({"rope_theta": 1e4, "rope_parameters": parameters}));
        assert!(both.contains("\"rope_theta\" is 10000; expected 1000000"), "{both}");
    }

    #[test]
    fn options_that_need_another_computation_are_rejected() {
        let cases = [
            (json!({"model_type": "mamba"}), "\"model_type\" is \"mamba\""),
            (
                json!({"model_type": "qwen2", "architectures": ["LlamaForCausalLM"]}),
                "Qwen2ForCausalLM",
            ),
            (json!({"architectures": ["LlamaModel"]}), "\"architectures\""),
            (json!({"hidden_act": "tanh"}), "\"hidden_act\" is \"tanh\""),
            (json!({"partial_rotary_factor": 0.5}), "\"partial_rotary_factor\" is 0.5"),
            (
                json!({"quantization_config": {"quant_method": "bitsandbytes"}}),
                "\"quant_method\" is \"bitsandbytes\"",
            ),
            (json!({"model_type": "falcon", "alibi": true}), "\"alibi\" is true"),
            (
                json!({"model_type": "falcon", "num_ln_in_parallel_attn": 2}),
                "\"num_ln_in_parallel_attn\" is 2",
            ),
            (
                json!({"model_type": "opt", "do_layer_norm_before": false}),
                "\"do_layer_norm_before\" is false",
            ),
            (
                json!({"model_type": "opt", "word_embed_proj_dim": 32}),
                "\"word_embed_proj_dim\" is 32",
            ),
            (
                json!({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true}),
                "\"scale_attn_by_inverse_layer_idx\" is true",
            ),
            (json!({"rope_scaling": {"type": "mrope", "factor": 2}}), "\"type\" is \"mrope\""),
            (
                json!({"rope_parameters": {"rope_type": "proportional"}}),
                "\"rope_type\" is \"proportional\"",
            ),
            (json!({"rope_scaling": {"factor": 2.0}}), "\"rope_scaling\" is {\"factor\":2.0}"),
            (
                json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
                "\"rope_parameters\" is {\"full_attention\"",
            ),
            (json!({"layer_types": ["full_attention", "chunked_attention"]}), "\"layer_types\""),
            (json!({"layer_types": ["full_attention", "sliding_attention"]}), "\"layer_types\""),
        ];
        for (changes, words) in cases {
            let message = message(changes);
            assert!(message.starts_with("config.json: option"), "{message}");
            assert!(message.contains(words) && message.contains("not supported yet"), "{message}");
        }
    }

    #[test]
    fn invalid_values_are_rejected() {
        let huge = MAX_SIZE;
        let cases = [
            (json!({"hidden_size": null}), "\"hidden_size\" is missing"),
            (json!({"hidden_size": "64"}), "\"hidden_size\" is \"64\""),
            (json!({"hidden_size": -64}), "\"hidden_size\" is -64"),
            (json!({"vocab_size": 0}), "\"vocab_size\" is 0"),
            (
                json!({"num_hidden_layers": u64::MAX}),
                "\"num_hidden_layers\" is 18446744073709551615",
            ),
            (json!({"num_attention_heads": 0}), "\"num_attention_heads\" is 0"),
            (json!({"num_attention_heads": 7}), "a divisor of \"hidden_size\", 64"),
            (json!({"num_key_value_heads": 3}), "a divisor of \"num_attention_heads\", 8"),
            (json!({"head_dim": 7}), "\"head_dim\" is 7; expected an even number"),
            (json!({"rms_norm_eps": -1e-6}), "\"rms_norm_eps\" is -0.000001"),
            (json!({"rope_theta": 1e300}), "\"rope_theta\" is inf"),
            (json!({"bos_token_id": 512}), "\"bos_token_id\" is 512"),
            (json!({"tie_word_embeddings": "yes"}), "expected true or false"),
            (json!({"model_type": 7}), "\"model_type\" is 7; expected a string"),
            (json!({"model_type": "mistral", "sliding_window": 0}), "\"sliding_window\" is 0"),
            (
                json!({"model_type": "qwen3", "num_key_value_heads": 8, "use_sliding_window": true,
                       "layer_types": ["sliding_attention"]}),
                "\"layer_types\" is 1 entries; expected one for each of the 2 layers",
            ),
            (json!({"head_dim": huge, "num_attention_heads": huge}), "sizes that fit in memory"),
        ];
        for (changes, words) in cases {
            let message = message(changes);
            assert!(message.starts_with("config.json: option"), "{message}");
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn each_family_has_its_own_defaults_and_options() {
        let of_family = |model_type: &str, changes: Value| {
            config_with(json!({"model_type": model_type, "num_key_value_heads": 2}), changes)
                .unwrap()
        };
        let biases = |config: &Config| (config.qkv_bias, config.output_bias, config.mlp_bias);
        let every = json!({"attention_bias": true, "mlp_bias": true, "bos_token_id": 3});

        let llama = of_family("llama", every.clone());
        assert_eq!((biases(&llama), llama.qk_norms), ((true, true, true), QkNorms::None));
        let mistral = of_family("mistral", every.clone());
        assert_eq!((biases(&mistral), mistral.qk_norms), ((false, false, false), QkNorms::None));
        assert_eq!((mistral.max_position_embeddings, mistral.window(1)), (131_072, Some(4096)));
        let qwen2 = of_family("qwen2", every.clone());
        assert_eq!((biases(&qwen2), qwen2.qk_norms), ((true, false, false), QkNorms::None));
        assert_eq!((qwen2.bos_token_id, &qwen2.eos_token_ids[..]), (Some(3), &[][..]));
        let qwen3 = of_family("qwen3", every);
        assert_eq!((biases(&qwen3), qwen3.qk_norms), ((true, true, false), QkNorms::Heads));
        assert_eq!((qwen3.head_dim, qwen3.max_position_embeddings), (128, 32_768));
        assert_eq!(of_family("qwen3", json!({})).bos_token_id, None);

        let heads =
            |model_type| config(json!({"model_type": model_type, "num_attention_heads": 32}));
        assert_eq!(heads("qwen2").unwrap().num_key_value_heads, 32);
        assert_eq!(heads("mistral").unwrap().num_key_value_heads, 8);
    }

    #[test]
    fn defaults_that_differ_between_relatives_are_transformers() {
        let of = |model_type: &str, changes: Value| {
            config_with(json!({"model_type": model_type, "num_key_value_heads": 8}), changes)
        };
        let experts = json!({"num_local_experts": 4, "num_experts_per_tok": 2});
        let tokens = json!({"bos_token_id": 1, "eos_token_id": 2});
        assert_eq!(of("mixtral", experts).unwrap().rope_theta, 1e6);
        assert_eq!(of("cohere", tokens.clone()).unwrap().rope_theta, 5e5);
        assert_eq!(of("cohere2", tokens.clone()).unwrap().rope_theta, 1e4);
        // The original context of a Phi-3, and the first place of the option.
        let longrope = json!({"eos_token_id": 2, "max_position_embeddings": 131_072, "rope_scaling": {
            "type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 1, 1, 1]}});
        let phi3 = of("phi3", longrope).unwrap();
        assert_eq!(phi3.max_position_embeddings, 4096);
        assert!((phi3.rope(0).amplitude() - 1.190_238).abs() < 1e-6);
        let both = json!({"original_max_position_embeddings": 64, "rope_scaling": {"type": "yarn",
            "factor": 2, "original_max_position_embeddings": 32}});
        let RopeScaling::Yarn(yarn) = of("llama", both).unwrap().rope_scaling else {
            panic!("YaRN");
        };
        assert_eq!(yarn.original_max_position_embeddings, 64);
        // A share that is not exact in f32.
        let partial = json!({"head_dim": 80, "partial_rotary_factor": 0.9});
        assert_eq!(of("stablelm", partial).unwrap().rotary_dims(), 72);
        // Every second of the first layers.
        let window = json!({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 8, "use_sliding_window": true, "sliding_window": 13,
            "max_window_layers": 2, "num_hidden_layers": 3});
        let qwen2_moe = of("qwen2_moe", window).unwrap();
        assert_eq!([0, 1, 2].map(|layer| qwen2_moe.window(layer)), [Some(13), None, None]);
        let capped = json!({"attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 8});
        let message = of("gemma3_text", capped).unwrap_err().to_string();
        assert!(message.contains("\"attn_logit_softcapping\" is 50.0"), "{message}");
        let message = of(
            "gpt_oss",
            json!({"num_local_experts": 4, "num_experts_per_tok": 2,
            "swiglu_limit": -1, "rope_scaling": {"type": "yarn", "factor": 2}}),
        );
        assert!(message.unwrap_err().to_string().contains("\"swiglu_limit\" is -1"));
    }

    /// The widths that transformers computes.
    #[test]
    fn widths_of_lfm2_are_adjusted() {
        let width = |changes: Value| {
            config_with(json!({"model_type": "lfm2", "intermediate_size": 1000}), changes)
                .unwrap()
                .intermediate_size
        };
        assert_eq!(width(json!({})), 768);
        assert_eq!(width(json!({"block_ffn_dim_multiplier": 1.5})), 1024);
        assert_eq!(width(json!({"block_multiple_of": 7})), 672);
        assert_eq!(width(json!({"block_ffn_dim_multiplier": null})), 666);
        assert_eq!(width(json!({"block_auto_adjust_ff_dim": false})), 1000);
    }

    #[test]
    fn granite_has_constant_factors() {
        let granite = |changes: Value| config_with(json!({"model_type": "granite"}), changes);
        let absent = granite(json!({})).unwrap();
        assert!(absent.unusual_piece().is_some(), "transformers' default factor of scores is 1");
        assert_eq!((absent.score_scale(), absent.logits_scaling), (1.0, 1.0));
        let factors = granite(json!({
            "attention_multiplier": 0.015_625, "embedding_multiplier": 12, "logits_scaling": 8.0,
            "residual_multiplier": 0.22, "attention_bias": true, "mlp_bias": true,
        }));
        let architecture = factors.unwrap().architecture();
        let expected = Factors { embedding: 12.0, residual: 0.22, logit_divisor: 8.0 };
        assert_eq!(architecture.factors, expected);
        assert_eq!(architecture.layers[0].attention.as_ref().unwrap().score_scale, 0.015_625);
        let invalid = granite(json!({"logits_scaling": 0})).unwrap_err().to_string();
        assert!(invalid.contains("\"logits_scaling\" is 0; expected a positive"), "{invalid}");
        let of_llama = message(json!({"logits_scaling": 8.0}));
        assert!(of_llama.contains("\"logits_scaling\" is 8.0"), "{of_llama}");
    }

    #[test]
    fn gemma4_has_other_heads_in_layers_without_a_window() {
        let gemma4 = |changes: Value| {
            config_with(
                json!({"model_type": "gemma4_text", "num_hidden_layers": 6,
                "hidden_size_per_layer_input": 0, "head_dim": 16, "num_key_value_heads": 4}),
                changes,
            )
        };
        let heads = |changes| {
            let layers = gemma4(changes).unwrap().architecture().layers;
            [4, 5].map(|layer| {
                let attention = layers[layer].attention.as_ref().unwrap();
                (attention.head_dim, attention.n_kv_heads, attention.window)
            })
        };
        // The defaults of transformers: one layer in six has no window, and heads of 512.
        assert_eq!(heads(json!({})), [(16, 4, Some(512)), (512, 4, None)]);
        let of_31b = json!({"global_head_dim": 32, "num_global_key_value_heads": 2,
            "attention_k_eq_v": true});
        assert_eq!(heads(of_31b), [(16, 4, Some(512)), (32, 2, None)]);
        // Without equal keys and values, the option has no effect.
        assert_eq!(heads(json!({"num_global_key_value_heads": 2}))[1], (512, 4, None));
        let listed = json!({"per_layer_config": {"5": {"head_dim": 24}}, "global_head_dim": 32});
        assert_eq!(heads(listed), [(16, 4, Some(512)), (24, 4, None)]);
        let rope = gemma4(json!({"global_head_dim": 16})).unwrap().rope(5);
        assert_eq!([1, 2].map(|pair| rope.frequency(pair) > 0.0), [true, false]);
        let experts = json!({"enable_moe_block": true, "num_experts": 8, "top_k_experts": 2,
            "moe_intermediate_size": 24, "intermediate_size": 40});
        let layer = &gemma4(experts).unwrap().architecture().layers[0];
        let sizes = layer.experts.map(|experts| experts.mlp.intermediate_size);
        assert_eq!((sizes, layer.mlp.map(|mlp| mlp.intermediate_size)), (Some(24), Some(40)));
        let shared = json!({"num_kv_shared_layers": 2, "num_hidden_layers": 13});
        let shared = gemma4(shared).unwrap();
        assert_eq!([10, 11, 12].map(|layer| shared.keys_of(layer)), [None, Some(5), Some(5)]);
        for (changes, words) in [
            (json!({"enable_moe_block": true}), "\"moe_intermediate_size\""),
            (json!({"use_bidirectional_attention": "all"}), "\"use_bidirectional_attention\""),
            (json!({"num_kv_shared_layers": 6}), "\"num_kv_shared_layers\" is 6"),
            (json!({"num_kv_shared_layers": 1}), "\"num_kv_shared_layers\" is 1"),
            (json!({"global_head_dim": 7}), "\"global_head_dim\" is 7; expected an even size"),
            (json!({"hidden_size_per_layer_input": 8}), "\"vocab_size_per_layer_input\" is 262144"),
            (json!({"per_layer_config": {"4": {"head_dim": 24}}}), "\"per_layer_config\""),
            (json!({"per_layer_config": {"5": {"hidden_size": 24}}}), "\"per_layer_config\""),
            (json!({"per_layer_config": {"6": {"head_dim": 24}}}), "\"per_layer_config\""),
        ] {
            let message = gemma4(changes).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn smollm3_has_layers_without_rope() {
        let smollm3 = |changes: Value| {
            config_with(
                json!({"model_type": "smollm3", "num_hidden_layers": 5,
                                 "bos_token_id": 1, "eos_token_id": 2}),
                changes,
            )
        };
        let layers = |changes| smollm3(changes).unwrap().rope_layers.unwrap();
        let absent = smollm3(json!({})).unwrap();
        assert_eq!(absent.rope_layers, Some(vec![true, true, true, false, true]));
        assert_eq!((absent.rope_theta, absent.num_key_value_heads), (2e6, 4));
        assert!(absent.tie_word_embeddings);
        let every_second = json!({"no_rope_layer_interval": 2});
        assert_eq!(layers(every_second), [true, false, true, false, true]);
        let listed = json!({"no_rope_layers": [0, 1, 1, 1, 0, 0], "no_rope_layer_interval": 4});
        assert_eq!(layers(listed.clone()), [false, true, true, true, false]);
        let ropes = smollm3(listed).unwrap().architecture().layers;
        let ropes = [0, 1].map(|layer| ropes[layer].attention.as_ref().unwrap().rope.is_some());
        assert_eq!(ropes, [false, true]);
        let window = json!({"use_sliding_window": true, "sliding_window": 9});
        let window = smollm3(window).unwrap();
        assert_eq!([2, 3, 4].map(|layer| window.window(layer)), [None, Some(9), None]);
        for (changes, words) in [
            (json!({"no_rope_layers": [1, 0]}), "a list with 0 or 1 for each of the 5 layers"),
            (json!({"no_rope_layers": [1, 0, 1, 1, "x"]}), "\"no_rope_layers\" is [1,0,1,1,"),
            (json!({"no_rope_layer_interval": 0}), "\"no_rope_layer_interval\" is 0"),
        ] {
            let message = smollm3(changes).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
        let of_llama = message(json!({"no_rope_layer_interval": 4}));
        assert!(of_llama.contains("\"no_rope_layer_interval\" is 4"), "{of_llama}");
    }

    #[test]
    fn windows_apply_to_the_configured_layers() {
        let windows = |model_type: &str, changes: Value| {
            let mut all = json!({"model_type": model_type, "num_key_value_heads": 8,
                                 "sliding_window": 16, "num_hidden_layers": 3});
            all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let config = config(all).unwrap();
            [0, 1, 2].map(|layer| config.window(layer))
        };
        let (none, all) = ([None; 3], [Some(16); 3]);
        let listed = json!(["sliding_attention", "full_attention", "sliding_attention"]);
        assert_eq!(windows("llama", json!({})), none);
        assert_eq!(windows("mistral", json!({})), all);
        assert_eq!(windows("mistral", json!({"sliding_window": null})), none);
        let alternating = windows("mistral", json!({"layer_types": listed}));
        assert_eq!(alternating, [Some(16), None, Some(16)]);
        for qwen in ["qwen2", "qwen3"] {
            assert_eq!(windows(qwen, json!({"max_window_layers": 1})), none);
            let unused = json!({"use_sliding_window": true, "sliding_window": null});
            assert_eq!(windows(qwen, unused), none);
            let upper = json!({"use_sliding_window": true, "max_window_layers": 1});
            assert_eq!(windows(qwen, upper), [None, Some(16), Some(16)]);
            assert_eq!(windows(qwen, json!({"use_sliding_window": true})), none);
            let both = json!({"use_sliding_window": true, "max_window_layers": 9,
                              "layer_types": listed});
            assert_eq!(windows(qwen, both), [Some(16), None, Some(16)]);
        }
    }

    #[test]
    fn rope_scaling_is_read_in_its_old_and_new_spelling() {
        let parsed = |changes| config(changes).unwrap();
        let old =
            parsed(json!({"rope_theta": 1e5, "rope_scaling": {"type": "linear", "factor": 4}}));
        let new = parsed(json!({"rope_parameters": {
            "rope_type": "linear", "rope_theta": 1e5, "factor": 4.0}}));
        assert_eq!(old, new);
        let noted = parsed(json!({"rope_theta": 1e5, "rope_scaling": {
            "type": "linear", "factor": 4, "original_max_position_embeddings": 2048}}));
        assert_eq!(old, noted);
        let linear = RopeScaling::Linear { factor: 4.0 };
        assert_eq!((old.rope_theta, &old.rope_scaling), (1e5, &linear));
        assert_eq!((old.rope(0).frequency(0), new.rope(1).frequency(1)), (0.25, 0.014_058_533));
        let both = json!({"rope_type": "llama3", "type": "llama3", "factor": 8.0,
                          "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 8192});
        let expected = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        assert_eq!(parsed(json!({ "rope_scaling": both })).rope_scaling, expected);
    }

    #[test]
    fn sampling_is_suggested_only_if_do_sample_is_true() {
        let suggested = |text| {
            let mut config = config(json!({})).unwrap();
            config.apply_generation_config(text, Path::new("generation_config.json")).unwrap();
            config.suggested_sampling
        };
        let unlimited = SuggestedSampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
        };
        assert_eq!(suggested("{}"), None);
        assert_eq!(suggested(r#"{"temperature": 0.6, "top_p": 0.9}"#), None);
        assert_eq!(
            suggested(r#"{"do_sample": true, "temperature": 0.6, "top_p": 0.9}"#),
            Some(SuggestedSampling { temperature: 0.6, top_p: 0.9, ..unlimited })
        );
        assert_eq!(
            suggested(r#"{"do_sample": true, "top_k": 20, "min_p": 0.1}"#),
            Some(SuggestedSampling { top_k: 20, min_p: 0.1, ..unlimited })
        );
        assert_eq!(
            suggested(r#"{"do_sample": true, "repetition_penalty": 1.05}"#),
            Some(SuggestedSampling { repetition_penalty: 1.05, ..unlimited })
        );
        let chat = |suggested_sampling| {
            let config = Config { suggested_sampling, ..config(json!({})).unwrap() };
            config.chat_sampling().to_string()
        };
        assert_eq!(chat(None), "temperature 0.8, top-k 40, top-p 0.95, min-p 0.05");
        assert_eq!(chat(Some(unlimited)), "temperature 1");
        let greedy = SuggestedSampling { temperature: 0.0, repetition_penalty: 1.1, ..unlimited };
        assert_eq!(chat(Some(greedy)), "greedy, repetition penalty 1.1");
        let mut config = config(json!({})).unwrap();
        let file = Path::new("generation_config.json");
        let error = config.apply_generation_config(r#"{"top_k": -1}"#, file).unwrap_err();
        assert!(error.to_string().contains("\"top_k\" is -1"), "{error}");
    }
}

//! DeepSeek-V2, V3 and V3.2, GLM-4.7-Flash and GLM-5: compressed keys and values, and mixtures of
//! experts.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, MAX_LAYERS, MixtureLayers};
use super::glm::{MixtureDefaults, mixture_layers, write_mixture};
use super::{NUM_LOCAL_EXPERTS, flag, size_or};
use crate::architecture::{ExpertGroups, Latent, Router, Weighting};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::{Map, Value, json};

/// Heads have a part with RoPE, `qk_rope_head_dim`. As in transformers, `head_dim` is that size.
const DEFAULTS: Defaults = Defaults { head_dim: Some(64), ..LLAMA };

/// Options of compressed attention and of the choice of experts.
const READS: &[&str] = &["kv_lora_rank", "n_routed_experts", NUM_LOCAL_EXPERTS, "rope_interleave"];

pub(in super::super) const DEEPSEEK_V2: Description = Description {
    name: "DeepSeek-V2",
    model_type: "deepseek_v2",
    class: "DeepseekV2ForCausalLM",
    defaults: DEFAULTS,
    reads: READS,
    read: |options, config| {
        options.check_supported("rope_interleave", "true", |value| value == true)?;
        read_latent(options, config, V3_WIDTHS)?;
        config.mlp_bias = flag(options, "mlp_bias")?;
        config.experts = Some(v2_experts(options, config)?);
        Ok(())
    },
    write: |config, options| {
        write_attention(config, options);
        write_mixture(config, options);
        let groups = config.experts.as_ref().and_then(|layers| layers.experts.router.groups);
        let method = if groups.is_some() { "group_limited_greedy" } else { "greedy" };
        options.insert("topk_method".to_owned(), json!(method));
        options.insert("mlp_bias".to_owned(), json!(config.mlp_bias));
    },
};

pub(in super::super) const DEEPSEEK_V3: Description = Description {
    name: "DeepSeek-V3",
    model_type: "deepseek_v3",
    class: "DeepseekV3ForCausalLM",
    defaults: Defaults {
        max_position_embeddings: 4096,
        num_key_value_heads: Some(128),
        bos_token_id: Some(0),
        eos_token_id: Some(1),
        ..DEFAULTS
    },
    reads: READS,
    read: |options, config| {
        supports_every_layer(options)?;
        let defaults =
            MixtureDefaults { groups: [8, 4], first_dense: 3, scale: 2.5, ..MixtureDefaults::GLM };
        read_v3(options, config, V3_WIDTHS, &defaults)
    },
    write: |config, options| {
        write_attention(config, options);
        write_mixture(config, options);
        options.insert("rope_interleave".to_owned(), json!(config.rope_interleave));
    },
};

/// Attention of DeepSeek-V3, and experts of GLM-4.5.
pub(in super::super) const GLM4_MOE_LITE: Description = Description {
    name: "GLM-4-MoE-Lite",
    model_type: "glm4_moe_lite",
    class: "Glm4MoeLiteForCausalLM",
    defaults: Defaults {
        max_position_embeddings: 202_752,
        num_key_value_heads: Some(20),
        bos_token_id: Some(0),
        eos_token_id: Some(1),
        epsilon: ("rms_norm_eps", 1e-5),
        ..DEFAULTS
    },
    reads: READS,
    read: |options, config| {
        let defaults = MixtureDefaults { scale: 1.8, ..MixtureDefaults::GLM };
        read_v3(options, config, [768, 192, 256], &defaults)
    },
    write: |config, options| {
        (DEEPSEEK_V3.write)(config, options);
        let has_experts = |layer| config.experts.as_ref().is_some_and(|all| all.has_experts(layer));
        let kind = |layer| if has_experts(layer) { "sparse" } else { "dense" };
        let kinds: Vec<&str> = (0..config.num_hidden_layers).map(kind).collect();
        options.insert(MLP_TYPES.to_owned(), json!(kinds));
    },
};

/// DeepSeek-V3 with sparse attention.
pub(in super::super) const DEEPSEEK_V32: Description = Description {
    name: "DeepSeek-V3.2",
    model_type: "deepseek_v32",
    class: "DeepseekV32ForCausalLM",
    defaults: Defaults { max_position_embeddings: 163_840, ..DEEPSEEK_V3.defaults },
    read: |options, config| {
        (DEEPSEEK_V3.read)(options, config)?;
        end_where_attention_is_sparse(options, config)
    },
    write: write_sparse,
    ..DEEPSEEK_V3
};

/// GLM-4.7-Flash's attention, but sparse.
pub(in super::super) const GLM_MOE_DSA: Description = Description {
    name: "GLM-5",
    model_type: "glm_moe_dsa",
    class: "GlmMoeDsaForCausalLM",
    defaults: Defaults { num_key_value_heads: Some(64), ..GLM4_MOE_LITE.defaults },
    read: |options, config| {
        let defaults = MixtureDefaults { first_dense: 3, scale: 2.5, ..MixtureDefaults::GLM };
        read_v3(options, config, [2048, 192, 256], &defaults)?;
        end_where_attention_is_sparse(options, config)
    },
    write: write_sparse,
    ..GLM4_MOE_LITE
};

/// The number of positions that sparse attention reads at most.
const INDEX_TOPK: &str = "index_topk";

/// Ends the context where attention would no longer read all positions. Up to there, its indexer
/// chooses all of them, so its weights are not read.
fn end_where_attention_is_sparse(
    options: &JsonOptions<'_>,
    config: &mut Config,
) -> Result<(), LoadError> {
    options.check_supported("rope_interleave", "true", |value| value == true)?;
    options.check_supported("layer_types", "only \"deepseek_sparse_attention\"", |layers| {
        let mut layers = layers.as_array().into_iter().flatten();
        layers.all(|kind| kind == "deepseek_sparse_attention")
    })?;
    let positions = options.size(INDEX_TOPK)?.unwrap_or(2048);
    config.max_position_embeddings = config.max_position_embeddings.min(positions);
    Ok(())
}

fn write_sparse(config: &Config, options: &mut Map<String, Value>) {
    (GLM4_MOE_LITE.write)(config, options);
    options.insert(INDEX_TOPK.to_owned(), json!(config.max_position_embeddings));
}

/// The kind of each layer's MLP, in order.
const MLP_TYPES: &str = "mlp_layer_types";

/// Returns whether each layer has a dense MLP, if the configuration lists its layers. The list is
/// empty if none has.
fn dense_layers(options: &JsonOptions<'_>) -> Result<Option<Vec<bool>>, LoadError> {
    let Some(names) = options.strings(MLP_TYPES)? else { return Ok(None) };
    let is_dense = |name: &String| match name.as_str() {
        "dense" => Ok(true),
        "sparse" => Ok(false),
        _ => Err(options.unsupported(MLP_TYPES, "\"dense\", \"sparse\"")),
    };
    let layers = names.iter().take(MAX_LAYERS).map(is_dense).collect::<Result<Vec<_>, _>>()?;
    Ok(Some(if layers.contains(&true) { layers } else { Vec::new() }))
}

/// Refuses a value of a string option other than the one, in quotes.
pub(super) fn supports(
    options: &JsonOptions<'_>,
    option: &'static str,
    supported: &'static str,
) -> Result<(), LoadError> {
    let name = supported.trim_matches('"');
    options.check_supported(option, supported, |value| value == name)
}

/// Refuses mixtures in some of the layers only.
pub(super) fn supports_every_layer(options: &JsonOptions<'_>) -> Result<(), LoadError> {
    options.check_supported("moe_layer_freq", "1", |value| value.as_f64() == Some(1.0))
}

/// DeepSeek's defaults of the rank of queries, and of the widths of plain keys and of values.
const V3_WIDTHS: [usize; 3] = [1536, 128, 128];

/// Reads attention and experts as those of DeepSeek-V3.
fn read_v3(
    options: &JsonOptions<'_>,
    config: &mut Config,
    widths: [usize; 3],
    defaults: &MixtureDefaults,
) -> Result<(), LoadError> {
    read_latent(options, config, widths)?;
    config.rope_interleave = options.flag("rope_interleave")?.unwrap_or(true);
    supports(options, "topk_method", "\"noaux_tc\"")?;
    supports(options, "scoring_func", "\"sigmoid\"")?;
    let mut layers = mixture_layers(options, config, defaults)?;
    if let Some(dense) = dense_layers(options)? {
        layers.dense = dense;
    }
    config.experts = Some(layers);
    Ok(())
}

/// Reads compressed attention. The defaults are the rank of queries, and the widths of keys without
/// RoPE and of values.
fn read_latent(
    options: &JsonOptions<'_>,
    config: &mut Config,
    [query_rank, plain_dim, value_dim]: [usize; 3],
) -> Result<(), LoadError> {
    let size =
        |option, default: usize| Ok::<_, LoadError>(options.size(option)?.unwrap_or(default));
    let latent = Latent {
        query_rank: size_or(options, "q_lora_rank", Some(query_rank))?,
        rank: size("kv_lora_rank", 512)?,
        plain_dim: size("qk_nope_head_dim", plain_dim)?,
        rope_dim: size("qk_rope_head_dim", 64)?,
        value_dim: size("v_head_dim", value_dim)?,
        mscale: mscale(options)?,
        // As in transformers and in the authors' code, whatever the other norms have.
        norm_epsilon: 1e-6,
    };
    config.head_dim = latent.rope_dim;
    if config.num_key_value_heads != config.num_attention_heads {
        let expected = "\"num_attention_heads\": keys of all heads are expanded from one vector";
        return Err(options.unsupported("num_key_value_heads", expected));
    }
    config.qkv_bias = flag(options, "attention_bias")?;
    config.output_bias = config.qkv_bias;
    config.rope_interleave = true;
    config.latent = Some(latent);
    Ok(())
}

/// Returns the weight of YaRN's factor in that of scores.
fn mscale(options: &JsonOptions<'_>) -> Result<f32, LoadError> {
    for name in ["rope_parameters", "rope_scaling"] {
        let found = options.object(name)?.map(|scaling| scaling.number("mscale_all_dim"));
        if let Some(Some(mscale)) = found.transpose()? {
            return Ok(mscale);
        }
    }
    Ok(0.0)
}

fn write_attention(config: &Config, options: &mut Map<String, Value>) {
    let Some(latent) = config.latent else { return };
    for (option, value) in [
        ("q_lora_rank", json!(latent.query_rank)),
        ("kv_lora_rank", json!(latent.rank)),
        ("qk_nope_head_dim", json!(latent.plain_dim)),
        ("qk_rope_head_dim", json!(latent.rope_dim)),
        ("v_head_dim", json!(latent.value_dim)),
        ("attention_bias", json!(config.qkv_bias)),
    ] {
        options.insert(option.to_owned(), value);
    }
    let scaling = options.get_mut("rope_scaling").and_then(Value::as_object_mut);
    if let Some(scaling) = scaling.filter(|_| latent.mscale != 0.0) {
        scaling.insert("mscale_all_dim".to_owned(), json!(latent.mscale));
    }
}

/// Reads the experts of DeepSeek-V2: weights are a softmax over all experts. They may be chosen
/// from the groups with the best experts.
fn v2_experts(options: &JsonOptions<'_>, config: &Config) -> Result<MixtureLayers, LoadError> {
    const METHODS: &str = "\"greedy\" or \"group_limited_greedy\"";
    supports(options, "scoring_func", "\"softmax\"")?;
    supports_every_layer(options)?;
    // The authors' code would not scale the weights then, and transformers would not divide them.
    let unsupported = "false in a DeepSeek-V2";
    options.check_supported("norm_topk_prob", unsupported, |value| value == false)?;
    let groups = match options.string("topk_method")?.as_deref() {
        None | Some("greedy") => None,
        Some("group_limited_greedy") => Some(ExpertGroups {
            n_groups: options.required_size("n_group")?,
            groups_per_token: options.required_size("topk_group")?,
            experts_scored: 1,
        }),
        Some(_) => return Err(options.unsupported("topk_method", METHODS)),
    };
    let defaults =
        MixtureDefaults { first_dense: 0, shared: 2, scale: 1.0, ..MixtureDefaults::GLM };
    let mut layers = mixture_layers(options, config, &defaults)?;
    layers.experts.router = Router {
        weighting: Weighting::Softmax,
        normalised: false,
        correction: false,
        groups,
        ..layers.experts.router
    };
    Ok(layers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn parse(model_type: &str, changes: &Value) -> Result<Config, LoadError> {
        let mut options = json!({
            "model_type": model_type, "hidden_size": 512, "intermediate_size": 1024,
            "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
            "vocab_size": 512, "n_routed_experts": 16, "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
        });
        options.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        Config::parse(&options.to_string(), Path::new("config.json"))
    }

    #[test]
    fn absent_options_have_transformers_defaults() {
        let v3 = parse("deepseek_v3", &json!({})).unwrap();
        let latent = v3.latent.unwrap();
        let sizes = [latent.rank, latent.plain_dim, latent.rope_dim, latent.value_dim];
        assert_eq!((latent.query_rank, sizes), (Some(1536), [512, 128, 64, 128]));
        let layers = v3.experts.unwrap();
        assert_eq!(layers.dense, [true, true, true, false]);
        assert_eq!((layers.shared_size, layers.experts.router.scale), (Some(64), 2.5));
        let groups = ExpertGroups { n_groups: 8, groups_per_token: 4, experts_scored: 2 };
        assert_eq!(layers.experts.router.groups, Some(groups));
        let v2 = parse("deepseek_v2", &json!({"q_lora_rank": null})).unwrap();
        let layers = v2.experts.unwrap();
        assert_eq!(v2.latent.unwrap().query_rank, None);
        assert_eq!((layers.dense.len(), layers.shared_size), (0, Some(128)));
        assert_eq!(layers.experts.router.groups, None);
    }

    #[test]
    fn scores_have_the_factor_of_yarn() {
        let yarn = json!({"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}});
        let config = parse("deepseek_v3", &yarn).unwrap();
        let mscale = 0.1 * 40_f64.ln() + 1.0;
        let expected = mscale * mscale / 192_f64.sqrt();
        assert!((f64::from(config.score_scale()) - expected).abs() < 1e-7);
        assert_eq!(config.rope_scaling.amplitude(), 1.0);
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        let cases = [
            ("deepseek_v2", "norm_topk_prob", json!(true)),
            ("deepseek_v2", "topk_method", json!("noaux_tc")),
            ("deepseek_v2", "scoring_func", json!("sigmoid")),
            ("deepseek_v2", "rope_interleave", json!(false)),
            ("deepseek_v3", "topk_method", json!("greedy")),
            ("deepseek_v3", "scoring_func", json!("softmax")),
            ("deepseek_v3", "moe_layer_freq", json!(2)),
            ("deepseek_v3", "num_key_value_heads", json!(4)),
        ];
        for (model_type, option, value) in cases {
            let message = parse(model_type, &json!({ option: value })).unwrap_err().to_string();
            assert!(message.contains(&format!("\"{option}\"")), "{message}");
        }
        let message = parse("deepseek_v3", &json!({"kv_lora_rank": 0})).unwrap_err().to_string();
        assert!(message.contains("\"kv_lora_rank\" is 0; expected a size"), "{message}");
    }
}

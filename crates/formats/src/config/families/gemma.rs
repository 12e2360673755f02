//! Gemma 2, 3 and 4, for text.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{
    Config, Family, GlobalHeads, MAX_LAYERS, MixtureLayers, NormPlacement, RopeScaling, SharedKeys,
    SlidingLayers,
};
use super::{all_but_every, flag, size_or, sliding_window};
use crate::architecture::{Activation, Experts, Mlp, QkNorms, Router};
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

pub(in super::super) const GEMMA4: Description = Description {
    name: "Gemma 4",
    model_type: "gemma4_text",
    class: "Gemma4ForCausalLM",
    defaults: Defaults {
        num_attention_heads: Some(8),
        vocab_size: Some(262_144),
        max_position_embeddings: 131_072,
        rope_theta: 1_000_000.0,
        local_rope_theta: Some(10_000.0),
        ..DEFAULTS
    },
    reads: &[
        "hidden_activation",
        "final_logit_softcapping",
        "num_kv_shared_layers",
        "num_experts",
        "enable_moe_block",
    ],
    read: |options, config| read_gemma4(options, config, 512, Some(256)),
    write: |config, options| {
        let heads = config.global_heads;
        let is_global = |layer: &usize| config.window(*layer).is_none();
        let sizes = |heads: GlobalHeads| json!({"head_dim": heads.head_dim, "num_key_value_heads": heads.num_key_value_heads});
        let layers = (0..config.num_hidden_layers).filter(is_global);
        let per_layer: Map<String, Value> =
            layers.filter_map(|layer| Some((layer.to_string(), sizes(heads?)))).collect();
        let shared = config.shared_keys;
        for (option, value) in [
            ("attention_bias", json!(config.output_bias)),
            ("final_logit_softcapping", json!(config.final_logit_softcapping)),
            ("attention_k_eq_v", json!(heads.is_some_and(|heads| heads.values_are_keys))),
            ("per_layer_config", Value::Object(per_layer)),
            ("num_kv_shared_layers", json!(shared.map_or(0, |shared| shared.layers))),
            ("use_double_wide_mlp", json!(shared.is_some_and(|shared| shared.wide_mlp))),
            ("hidden_size_per_layer_input", json!(config.per_layer_input.unwrap_or(0))),
            ("vocab_size_per_layer_input", json!(config.vocab_size)),
            ("enable_moe_block", json!(config.experts.is_some())),
        ] {
            options.insert(option.to_owned(), value);
        }
        let Some(MixtureLayers { experts, .. }) = &config.experts else { return };
        for (option, size) in [
            ("num_experts", experts.n_experts),
            ("top_k_experts", experts.router.experts_per_token),
            ("moe_intermediate_size", experts.mlp.intermediate_size),
        ] {
            options.insert(option.to_owned(), json!(size));
        }
    },
};

/// The text model is a Gemma 4 without inputs of each layer.
pub(in super::super) const GEMMA4_UNIFIED: Description = Description {
    name: "Gemma 4 12B",
    model_type: "gemma4_unified_text",
    class: "Gemma4UnifiedForConditionalGeneration",
    defaults: Defaults { max_position_embeddings: 262_144, ..GEMMA4.defaults },
    read: |options, config| {
        config.family = Family::Gemma4;
        read_gemma4(options, config, 1024, None)
    },
    ..GEMMA4
};

/// Reads the options, given the defaults of the window and of the width of each layer's own input.
fn read_gemma4(
    options: &JsonOptions<'_>,
    config: &mut Config,
    window: usize,
    input: Option<usize>,
) -> Result<(), LoadError> {
    // Only tokens of images attend to later ones with "vision".
    let is_causal = |value: &Value| value == "vision" || value == false;
    options.check_supported("use_bidirectional_attention", "null or \"vision\"", is_causal)?;
    config.qkv_bias = flag(options, "attention_bias")?;
    config.output_bias = config.qkv_bias;
    config.norm_placement = NormPlacement::Around;
    config.embedding_multiplier = (config.hidden_size as f32).sqrt();
    config.attention_multiplier = Some(1.0);
    config.final_logit_softcapping = options.number("final_logit_softcapping")?;
    config.qk_norms = QkNorms::Heads;
    config.value_norm = true;
    config.layer_scalar = true;
    // As in transformers, `null` is the default, too.
    if options.get("rope_parameters").is_none() {
        config.rope_scaling = RopeScaling::Proportional { share: 0.25, factor: 1.0 };
    }
    let size = size_or(options, "sliding_window", Some(window))?;
    let layers = all_but_every(6, config.num_hidden_layers);
    config.sliding_window = sliding_window(options, size, layers)?;
    // As in transformers, the last layer never has a window.
    if let Some(window) = &mut config.sliding_window
        && let SlidingLayers::Listed(listed) = &mut window.layers
        && let Some(last) = listed.last_mut()
    {
        *last = false;
    }
    config.global_heads = Some(global_heads(options, config)?);
    let width = size_or(options, "hidden_size_per_layer_input", input)?;
    config.per_layer_input = width.filter(|width| *width > 0);
    if config.per_layer_input.is_some() {
        let rows = options.size("vocab_size_per_layer_input")?.unwrap_or(262_144);
        if rows != config.vocab_size {
            let expected = format!("\"vocab_size\", {}", config.vocab_size);
            return Err(options.invalid("vocab_size_per_layer_input", &rows, &expected));
        }
    }
    let shared = options.size("num_kv_shared_layers")?.filter(|layers| *layers > 0);
    let wide_mlp = flag(options, "use_double_wide_mlp")?;
    config.shared_keys = shared.map(|layers| SharedKeys { layers, wide_mlp });
    if flag(options, "enable_moe_block")? {
        config.experts = Some(MixtureLayers {
            shared_size: Some(config.intermediate_size),
            ..MixtureLayers::in_all(gemma4_experts(options, config)?)
        });
    }
    Ok(())
}

/// Reads the experts, which all layers have next to their dense MLP.
fn gemma4_experts(options: &JsonOptions<'_>, config: &Config) -> Result<Experts, LoadError> {
    let size = options.required_size("moe_intermediate_size")?;
    let mlp = Mlp { activation: config.hidden_act, ..Mlp::gated(size) };
    let router = Router::softmax(options.required_size("top_k_experts")?);
    let router = Router { own_norm: true, expert_scales: true, ..router };
    let base = Experts::plain(options.required_size("num_experts")?, mlp, router);
    Ok(Experts { own_norms: true, ..base })
}

/// Reads the sizes of heads in the layers without a window. transformers 5.15 lists them layer by
/// layer, and files of earlier versions have an option for each.
fn global_heads(options: &JsonOptions<'_>, config: &Config) -> Result<GlobalHeads, LoadError> {
    const PER_LAYER: &str = "per_layer_config";
    let values_are_keys = flag(options, "attention_k_eq_v")?;
    let Some(listed) = options.object(PER_LAYER)? else {
        // As in transformers, `null` says that no layer has other sizes.
        if options.contains(PER_LAYER) {
            let Config { head_dim, num_key_value_heads, .. } = *config;
            return Ok(GlobalHeads { head_dim, num_key_value_heads, values_are_keys });
        }
        let head_dim = options.size("global_head_dim")?.unwrap_or(512);
        let heads = options.size("num_global_key_value_heads")?.filter(|_| values_are_keys);
        let num_key_value_heads = heads.unwrap_or(config.num_key_value_heads);
        return Ok(GlobalHeads { head_dim, num_key_value_heads, values_are_keys });
    };
    const SUPPORTED: &str = "\"head_dim\" and \"num_key_value_heads\" of the layers without a \
        window, the same in all of them";
    let unsupported = || options.unsupported(PER_LAYER, SUPPORTED);
    let plain = [config.head_dim, config.num_key_value_heads];
    let mut sizes = vec![plain; config.num_hidden_layers.min(MAX_LAYERS)];
    for (layer, changes) in listed.names().zip(listed.objects(PER_LAYER)?) {
        let layer: Option<usize> = layer.parse().ok();
        let Some(sizes) = layer.and_then(|layer| sizes.get_mut(layer)) else {
            return Err(unsupported());
        };
        if changes.names().any(|name| !["head_dim", "num_key_value_heads"].contains(&name)) {
            return Err(unsupported());
        }
        sizes[0] = changes.size("head_dim")?.unwrap_or(sizes[0]);
        sizes[1] = changes.size("num_key_value_heads")?.unwrap_or(sizes[1]);
    }
    let is_global = |layer: usize| config.window(layer).is_none();
    let global =
        (0..sizes.len()).find(|layer| is_global(*layer)).map_or(plain, |layer| sizes[layer]);
    let expected = |layer| if is_global(layer) { global } else { plain };
    if sizes.iter().enumerate().any(|(layer, found)| *found != expected(layer)) {
        return Err(unsupported());
    }
    let [head_dim, num_key_value_heads] = global;
    Ok(GlobalHeads { head_dim, num_key_value_heads, values_are_keys })
}

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

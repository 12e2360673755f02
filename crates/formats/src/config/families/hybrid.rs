//! Hybrid models, in which some layers have a recurrent mixer instead of attention: Qwen3-Next,
//! LFM2 and Granite 4.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, MAX_LAYERS, MixtureLayers, RecurrentLayers};
use super::granite::{read_factors, write_factors};
use super::qwen::{mixture_layers, write_mixture};
use super::{NUM_LOCAL_EXPERTS, dense_if, experts, flag, write_attention_bias};
use crate::architecture::{Experts, Mlp, QkNorms, Recurrent, RecurrentRule, Router, Weighting};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::{Map, Value, json};

const QWEN: Defaults = Defaults {
    max_position_embeddings: 32_768,
    num_key_value_heads: Some(2),
    head_dim: Some(256),
    bos_token_id: None,
    eos_token_id: None,
    partial_rotary_factor: Some(0.25),
    ..LLAMA
};

pub(in super::super) const QWEN3_NEXT: Description = Description {
    name: "Qwen3-Next",
    model_type: "qwen3_next",
    class: "Qwen3NextForCausalLM",
    defaults: QWEN,
    reads: &["num_experts", NUM_LOCAL_EXPERTS],
    read: |options, config| {
        read_qwen(options, config)?;
        let mut layers = mixture_layers(options, config)?;
        layers.experts.router.normalised = options.flag("norm_topk_prob")?.unwrap_or(true);
        layers.experts.shared_gate = true;
        layers.shared_size = Some(options.required_size("shared_expert_intermediate_size")?);
        config.experts = Some(layers);
        Ok(())
    },
    write: |config, options| {
        write_qwen(config, options);
        write_mixture(config, options);
        let shared = config.experts.as_ref().and_then(|layers| layers.shared_size);
        options.insert("shared_expert_intermediate_size".to_owned(), json!(shared));
    },
};

pub(in super::super) const QWEN35: Description = Description {
    name: "Qwen3.5",
    model_type: "qwen3_5_text",
    class: "Qwen3_5ForCausalLM",
    defaults: Defaults { num_key_value_heads: Some(4), ..QWEN },
    reads: &[],
    read: read_qwen,
    write: write_qwen,
};

pub(in super::super) const QWEN35_MOE: Description = Description {
    name: "Qwen3.5-MoE",
    model_type: "qwen3_5_moe_text",
    class: "Qwen3_5MoeForCausalLM",
    defaults: QWEN,
    reads: &["num_experts", NUM_LOCAL_EXPERTS],
    read: |options, config| {
        (QWEN3_NEXT.read)(options, config)?;
        // All layers have experts, whose weights are always normalised.
        if let Some(layers) = &mut config.experts {
            layers.experts.router.normalised = true;
            layers.dense = Vec::new();
        }
        Ok(())
    },
    write: QWEN3_NEXT.write,
};

/// Reads what the hybrid Qwens have in common: gated attention, and mixers with the gated delta
/// rule in all layers but every fourth one.
fn read_qwen(options: &JsonOptions<'_>, config: &mut Config) -> Result<(), LoadError> {
    config.qkv_bias = flag(options, "attention_bias")?;
    config.output_bias = config.qkv_bias;
    config.qk_norms = QkNorms::Heads;
    config.attention_gate = true;
    let size = |option, default| Ok::<_, LoadError>(options.size(option)?.unwrap_or(default));
    let mixer = Recurrent {
        rule: RecurrentRule::GatedDelta,
        n_key_heads: size("linear_num_key_heads", 16)?,
        key_dim: size("linear_key_head_dim", 128)?,
        n_value_heads: size("linear_num_value_heads", 32)?,
        value_dim: size("linear_value_head_dim", 128)?,
        kernel: size("linear_conv_kernel_dim", 4)?,
        conv_bias: false,
        tiled: false,
        negative_rates: false,
    };
    let period = size("full_attention_interval", 4)?.max(1);
    let layers = recurrent_layers(options, config, |layer| !(layer + 1).is_multiple_of(period))?;
    config.recurrent = Some(RecurrentLayers { mixer, layers });
    Ok(())
}

fn write_qwen(config: &Config, options: &mut Map<String, Value>) {
    write_attention_bias(config, options);
    let Some(RecurrentLayers { mixer, .. }) = &config.recurrent else { return };
    for (option, value) in [
        ("linear_num_key_heads", mixer.n_key_heads),
        ("linear_key_head_dim", mixer.key_dim),
        ("linear_num_value_heads", mixer.n_value_heads),
        ("linear_value_head_dim", mixer.value_dim),
        ("linear_conv_kernel_dim", mixer.kernel),
    ] {
        options.insert(option.to_owned(), json!(value));
    }
}

pub(in super::super) const LFM2: Description = Description {
    name: "LFM2",
    model_type: "lfm2",
    class: "Lfm2ForCausalLM",
    defaults: Defaults {
        num_attention_heads: Some(32),
        vocab_size: Some(65_536),
        max_position_embeddings: 128_000,
        num_key_value_heads: Some(8),
        rope_theta: 1e6,
        tie_word_embeddings: true,
        epsilon: ("norm_eps", 1e-5),
        ..LLAMA
    },
    reads: &[],
    read: |options, config| {
        config.intermediate_size = lfm2_mlp_size(options, config.intermediate_size)?;
        read_lfm2(options, config)
    },
    write: |config, options| {
        options.insert("block_auto_adjust_ff_dim".to_owned(), json!(false));
        write_kernel(config, options);
    },
};

/// The first layers have dense MLPs, and the others experts of DeepSeek-V3's kind. The sum of their
/// weights lacks transformers' 1e-6, as in llama.cpp.
pub(in super::super) const LFM2_MOE: Description = Description {
    name: "LFM2-MoE",
    model_type: "lfm2_moe",
    class: "Lfm2MoeForCausalLM",
    reads: &["num_experts", NUM_LOCAL_EXPERTS],
    read: |options, config| {
        read_lfm2(options, config)?;
        let size = options.required_size("moe_intermediate_size")?;
        let base = experts(options, "num_experts", Mlp::gated(size))?;
        let router = Router {
            weighting: Weighting::Sigmoid,
            normalised: options.flag("norm_topk_prob")?.unwrap_or(true),
            scale: options.number("routed_scaling_factor")?.unwrap_or(1.0),
            correction: options.flag("use_expert_bias")?.unwrap_or(true),
            ..base.router
        };
        let first = options.size("num_dense_layers")?.unwrap_or(2);
        config.experts = Some(MixtureLayers {
            experts: Experts { router, ..base },
            shared_size: None,
            dense: dense_if(config, |layer| layer < first),
        });
        Ok(())
    },
    write: |config, options| {
        write_kernel(config, options);
        write_mixture(config, options);
        let Some(MixtureLayers { experts, dense, .. }) = &config.experts else { return };
        let n_dense = dense.iter().filter(|is_dense| **is_dense).count();
        options.insert("num_dense_layers".to_owned(), json!(n_dense));
        options.insert("routed_scaling_factor".to_owned(), json!(experts.router.scale));
        options.insert("use_expert_bias".to_owned(), json!(experts.router.correction));
    },
    ..LFM2
};

fn read_lfm2(options: &JsonOptions<'_>, config: &mut Config) -> Result<(), LoadError> {
    config.qk_norms = QkNorms::Heads;
    if let Some(tied) = options.flag("tie_embedding")? {
        config.tie_word_embeddings = tied;
    }
    options.check_supported("conv_bias", "false", |value| *value == false)?;
    let attends = options.sizes("full_attn_idxs")?;
    let mixer = Recurrent {
        rule: RecurrentRule::Convolution,
        n_key_heads: 0,
        key_dim: 0,
        n_value_heads: 1,
        value_dim: config.hidden_size,
        kernel: options.size("conv_L_cache")?.unwrap_or(3),
        conv_bias: false,
        tiled: false,
        negative_rates: false,
    };
    let is_recurrent = |layer: usize| attends.as_ref().is_some_and(|on| !on.contains(&layer));
    let layers = recurrent_layers(options, config, is_recurrent)?;
    config.recurrent = Some(RecurrentLayers { mixer, layers });
    Ok(())
}

fn write_kernel(config: &Config, options: &mut Map<String, Value>) {
    let kernel = config.recurrent.as_ref().map(|layers| layers.mixer.kernel);
    options.insert("conv_L_cache".to_owned(), json!(kernel));
}

/// Returns the width of LFM2's MLPs, which may be two thirds of the option, times a factor and
/// rounded up to a multiple. A factor that is `null` changes nothing, and then the width is not
/// rounded either, as in transformers.
fn lfm2_mlp_size(options: &JsonOptions<'_>, size: usize) -> Result<usize, LoadError> {
    let size = options.size("block_ff_dim")?.unwrap_or(size);
    if !options.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(size);
    }
    let reduced = (size as u128 * 2 / 3) as f64;
    let multiplier = match options.number("block_ffn_dim_multiplier")? {
        None if options.contains("block_ffn_dim_multiplier") => return Ok(reduced as usize),
        multiplier => multiplier.unwrap_or(1.0),
    };
    let multiple = options.size("block_multiple_of")?.unwrap_or(256);
    let multiplied = (f64::from(multiplier) * reduced) as usize;
    multiplied.checked_next_multiple_of(multiple).ok_or_else(|| {
        options.invalid(
            "block_multiple_of",
            &multiple,
            "a number of at least 1, and not absurdly large",
        )
    })
}

pub(in super::super) const GRANITE_MOE_HYBRID: Description = Description {
    name: "Granite 4",
    model_type: "granitemoehybrid",
    class: "GraniteMoeHybridForCausalLM",
    defaults: LLAMA,
    reads: &[NUM_LOCAL_EXPERTS, "position_embedding_type"],
    read: |options, config| {
        config.qkv_bias = flag(options, "attention_bias")?;
        config.output_bias = config.qkv_bias;
        read_factors(options, config)?;
        if !has_rope(options)? {
            let layers = config.num_hidden_layers.min(MAX_LAYERS);
            config.rope_layers = Some(vec![false; layers]);
        }
        let shared = options.size("shared_intermediate_size")?.unwrap_or(1024);
        if options.size(NUM_LOCAL_EXPERTS)?.unwrap_or(8) == 0 {
            config.intermediate_size = shared;
        } else {
            let mlp = Mlp { activation: config.hidden_act, ..Mlp::gated(config.intermediate_size) };
            let mut experts = experts(options, NUM_LOCAL_EXPERTS, mlp)?;
            experts.router.weighting = Weighting::SoftmaxOfChosen;
            experts.router.normalised = false;
            let shared_size = Some(shared);
            config.experts = Some(MixtureLayers { shared_size, ..MixtureLayers::in_all(experts) });
        }
        config.recurrent = Some(mamba_layers(options, config)?);
        Ok(())
    },
    write: |config, options| {
        write_attention_bias(config, options);
        write_factors(config, options);
        let has_rope = config.rope_layers.is_none();
        let position = has_rope.then_some("rope");
        options.insert("position_embedding_type".to_owned(), json!(position));
        let shared = match &config.experts {
            Some(layers) => layers.shared_size.unwrap_or(0),
            None => config.intermediate_size,
        };
        options.insert("shared_intermediate_size".to_owned(), json!(shared));
        options.insert(NUM_LOCAL_EXPERTS.to_owned(), json!(0));
        if config.experts.is_some() {
            (super::llama::MIXTRAL.write)(config, options);
        }
        let Some(RecurrentLayers { mixer, .. }) = &config.recurrent else { return };
        let expand = mixer.value_width() / config.hidden_size.max(1);
        for (option, value) in [
            ("mamba_n_heads", mixer.n_value_heads),
            ("mamba_n_groups", mixer.n_key_heads),
            ("mamba_d_state", mixer.key_dim),
            ("mamba_d_head", mixer.value_dim),
            ("mamba_d_conv", mixer.kernel),
            ("mamba_expand", expand),
        ] {
            options.insert(option.to_owned(), json!(value));
        }
        options.insert("mamba_conv_bias".to_owned(), json!(mixer.conv_bias));
    },
};

/// Whether attention has RoPE.
fn has_rope(options: &JsonOptions<'_>) -> Result<bool, LoadError> {
    const KNOWN: &str = "\"rope\", \"nope\" or null";
    match options.string("position_embedding_type")?.as_deref() {
        None | Some("nope") => Ok(false),
        Some("rope") => Ok(true),
        Some(_) => Err(options.unsupported("position_embedding_type", KNOWN)),
    }
}

/// Reads Mamba-2's mixers.
fn mamba_layers(options: &JsonOptions<'_>, config: &Config) -> Result<RecurrentLayers, LoadError> {
    options.check_supported("mamba_proj_bias", "false", |value| *value == false)?;
    options.check_supported("time_step_limit", "[0, infinity]", |limits| {
        let limits = limits.as_array().map_or(&[][..], Vec::as_slice);
        // JSON has no infinity: transformers writes a word.
        let is_unlimited =
            |limit: &Value| limit.as_f64().is_none_or(|limit| limit >= f64::from(f32::MAX));
        matches!(limits, [low, high] if low.as_f64() == Some(0.0) && is_unlimited(high))
    })?;
    let size = |option, default| Ok::<_, LoadError>(options.size(option)?.unwrap_or(default));
    let n_value_heads = size("mamba_n_heads", 128)?;
    let width = size("mamba_expand", 2)?.saturating_mul(config.hidden_size);
    if n_value_heads == 0 || !width.is_multiple_of(n_value_heads) {
        let expected = format!("a divisor of \"mamba_expand\" times \"hidden_size\", {width}");
        return Err(options.invalid("mamba_n_heads", &n_value_heads, &expected));
    }
    let value_dim = match options.get("mamba_d_head") {
        Some(value) if value == "auto" => width / n_value_heads,
        _ => size("mamba_d_head", width / n_value_heads)?,
    };
    if value_dim.checked_mul(n_value_heads) != Some(width) {
        let expected =
            format!("{}, so that all heads have the width {width}", width / n_value_heads);
        return Err(options.invalid("mamba_d_head", &value_dim, &expected));
    }
    let mixer = Recurrent {
        rule: RecurrentRule::StateSpace,
        n_key_heads: size("mamba_n_groups", 1)?,
        key_dim: size("mamba_d_state", 256)?,
        n_value_heads,
        value_dim,
        kernel: size("mamba_d_conv", 4)?,
        conv_bias: options.flag("mamba_conv_bias")?.unwrap_or(true),
        tiled: false,
        negative_rates: false,
    };
    let layers = recurrent_layers(options, config, |_| true)?;
    Ok(RecurrentLayers { mixer, layers })
}

/// Returns whether each layer has a recurrent mixer. `layer_types` lists the layers one by one, by
/// their old names or by those of transformers 5; without it, `default` decides.
fn recurrent_layers(
    options: &JsonOptions<'_>,
    config: &Config,
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, LoadError> {
    const KNOWN: &str =
        "\"full_attention\" (or \"attention\") and \"linear_attention\" (or \"conv\" or \"mamba\")";
    let listed = ["layer_types", "layers_block_type"];
    for option in listed {
        let Some(names) = options.strings(option)? else { continue };
        let is_recurrent = |name: &String| match name.as_str() {
            "full_attention" | "attention" => Ok(false),
            "linear_attention" | "conv" | "mamba" => Ok(true),
            _ => Err(options.unsupported(option, KNOWN)),
        };
        return names.iter().map(is_recurrent).collect();
    }
    Ok((0..config.num_hidden_layers.min(MAX_LAYERS)).map(default).collect())
}

//! Gemma 4, as a GGUF file's metadata describe it. The sizes of layers without a window are under
//! the common names, and those of layers with a window have a suffix.

use super::architectures::ASSISTANT;
use super::options::ModelOptions;
use crate::architecture::{Activation, QkNorms};
use crate::config::{
    Config, GlobalHeads, NormPlacement, RopeScaling, SharedKeys, SlidingLayers, SlidingWindow,
};
use crate::json_options::MAX_SIZE;
use crate::load_error::LoadError;

const KV_HEADS: &str = "attention.head_count_kv";
const MLP_WIDTH: &str = "feed_forward_length";

/// Sets what Gemma 4 computes. `has` says whether a tensor is stored. The configuration has the
/// sizes of the layers without a window.
pub(super) fn read(
    options: &ModelOptions<'_>,
    has: &dyn Fn(&str) -> bool,
    config: &mut Config,
) -> Result<(), LoadError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let layers = config.num_hidden_layers;
    let Some(SlidingWindow { layers: SlidingLayers::Listed(slides), .. }) = &config.sliding_window
    else {
        return Err(options.invalid(PATTERN, &format!("a flag for each of the {layers} layers")));
    };
    let Some(global) = slides.iter().position(|slides| !slides) else {
        return Err(options.unsupported(PATTERN, "at least one layer without a window"));
    };
    let local = slides.iter().position(|slides| *slides);
    let head_dim = options.required_size("attention.key_length_swa", MAX_SIZE)?;
    for name in ["attention.value_length_swa", "rope.dimension_count_swa"] {
        options.check_size(name, head_dim)?;
    }
    let kv_heads = sizes(options, KV_HEADS, layers)?;
    let [of_global, of_local] = [global, local.unwrap_or(global)].map(|layer| kv_heads[layer]);
    let expected = |slides: &bool| if *slides { of_local } else { of_global };
    if kv_heads.iter().zip(slides).any(|(found, slides)| *found != expected(slides)) {
        let supported = "the same number for all layers with a window, and for all others";
        return Err(options.unsupported(KV_HEADS, supported));
    }
    config.global_heads = Some(GlobalHeads {
        head_dim: config.head_dim,
        num_key_value_heads: of_global,
        values_are_keys: !has(&format!("blk.{global}.attn_v.weight")),
    });
    (config.head_dim, config.num_key_value_heads) = (head_dim, of_local);
    let shared = options.size_or_zero("attention.shared_kv_layers")?;
    // All layers of an assistant share those of its target.
    let shared = shared.filter(|_| options.architecture != ASSISTANT);
    let widths = sizes(options, MLP_WIDTH, layers)?;
    config.intermediate_size = widths[0];
    let wide_mlp = widths[layers - 1] != widths[0];
    config.shared_keys = shared.map(|layers| SharedKeys { layers, wide_mlp });
    let is_wide = |layer: usize| wide_mlp && config.keys_of(layer).is_some();
    let width = |layer| widths[0].saturating_mul(if is_wide(layer) { 2 } else { 1 });
    if (0..layers).any(|layer| widths[layer] != width(layer)) {
        let supported = "the same number, or twice as much in layers that share keys and values";
        return Err(options.unsupported(MLP_WIDTH, supported));
    }
    config.per_layer_input = options.size_or_zero("embedding_length_per_layer_input")?;
    config.layer_scalar = has("blk.0.layer_output_scale.weight");
    config.final_logit_softcapping = options.positive_or_zero("final_logit_softcapping")?;
    let theta = options.positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
    config.local_rope = Some((theta, RopeScaling::None));
    config.norm_placement = NormPlacement::Around;
    config.hidden_act = Activation::GeluTanh;
    config.embedding_multiplier = (config.hidden_size as f32).sqrt();
    config.attention_multiplier = Some(1.0);
    config.qk_norms = QkNorms::Heads;
    config.value_norm = true;
    Ok(())
}

/// Returns a size of each layer, which may be one number for all.
fn sizes(options: &ModelOptions<'_>, name: &str, layers: usize) -> Result<Vec<usize>, LoadError> {
    let key = options.key(name);
    if !options.metadata.is_array(&key) {
        return Ok(vec![options.required_size(name, MAX_SIZE)?; layers]);
    }
    let size = |size| usize::try_from(size).ok().filter(|size| (1..=MAX_SIZE).contains(size));
    let sizes: Option<Vec<usize>> =
        options.metadata.i32s(&key)?.and_then(|sizes| sizes.map(size).collect());
    sizes.filter(|sizes| sizes.len() == layers).ok_or_else(|| {
        options.invalid(name, &format!("a positive number for each of the {layers} layers"))
    })
}

/// Returns the size of the first layer, which may be one number for all.
pub(super) fn first_size(
    options: &ModelOptions<'_>,
    name: &str,
    layers: usize,
) -> Result<Option<usize>, LoadError> {
    Ok(sizes(options, name, layers)?.first().copied())
}

/// Returns the share of pairs that are rotated: files divide the frequencies of the others by at
/// least 1e30.
pub(super) fn rotated_share(divisors: &[f32]) -> Option<f32> {
    let rotated = divisors.iter().take_while(|divisor| **divisor == 1.0).count();
    let are_still = divisors[rotated..].iter().all(|divisor| *divisor >= 1e30);
    are_still.then(|| rotated as f32 / divisors.len() as f32)
}

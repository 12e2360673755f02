//! RoPE and sliding windows, as a GGUF file's metadata describe them.

use super::architectures::GgufArchitecture;
use super::options::ModelOptions;
use super::parse::unsupported;
use crate::config::{Config, Family, RopeScaling, SlidingLayers, SlidingWindow, Yarn};
use crate::json_options::MAX_SIZE;
use crate::load_error::LoadError;
use std::sync::Arc;

const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
const ORIGINAL: &str = "rope.scaling.original_context_length";
/// The factor of rotated queries and keys with LongRoPE.
pub(super) const ATTENTION_FACTOR: &str = "rope.scaling.attn_factor";

/// Stored divisors of RoPE's frequencies.
pub(super) enum Divisors {
    /// `rope_freqs.weight`: for all texts.
    All(Arc<[f32]>),
    /// `rope_factors_short.weight`: for texts that fit the original context (LongRoPE).
    Short(Arc<[f32]>),
}

/// Adds stored divisors of RoPE's frequencies. Of LongRoPE's, the short ones count, so the context
/// is the original one: with the long ones, a row would not depend on its own prefix alone. Fails
/// when the metadata scale the frequencies, too, or the divisors are not valid.
pub(super) fn add_divisors(
    config: &mut Config,
    divisors: Divisors,
    options: &ModelOptions<'_>,
) -> Result<(), LoadError> {
    let path = options.metadata.path();
    if !matches!(config.rope_scaling, RopeScaling::None) {
        let found = match &config.rope_scaling {
            RopeScaling::Linear { factor } => factor.to_string(),
            _ => "YaRN".to_owned(),
        };
        let field = "the factor of RoPE's scaling";
        let supported = "either a factor or stored divisors of frequencies";
        return Err(unsupported(path, field, found, supported));
    }
    let (divisors, attention_factor) = match divisors {
        Divisors::All(divisors) => (divisors, 1.0),
        Divisors::Short(divisors) => {
            let original = options.size(ORIGINAL, MAX_SIZE)?;
            let context = &mut config.max_position_embeddings;
            *context = original.map_or(*context, |original| original.min(*context));
            let factor = options.positive(ATTENTION_FACTOR)?;
            (divisors, factor.unwrap_or(1.0))
        }
    };
    config.rope_scaling = RopeScaling::Divisors { divisors, attention_factor };
    config.validate(path)
}

/// Reads the scaling of RoPE. A factor without a type is linear, as in llama.cpp. LongRoPE's
/// factors are tensors, and are added later.
pub(super) fn rope_scaling(
    options: &ModelOptions<'_>,
    architecture: &GgufArchitecture,
    context_length: usize,
    has_short_factors: bool,
) -> Result<RopeScaling, LoadError> {
    match options.metadata.text(&options.key(TYPE))? {
        Some("none") => return Ok(RopeScaling::None),
        Some("longrope") if has_short_factors => return Ok(RopeScaling::None),
        Some("linear") | None => {}
        Some("yarn") => return yarn(options, architecture, context_length),
        Some(_) => {
            let supported = "\"none\", \"linear\", \"yarn\", or divisors in the tensors \
                             `rope_freqs.weight` or `rope_factors_short.weight`";
            return Err(options.unsupported(TYPE, supported));
        }
    }
    for name in [FACTOR, "rope.scale_linear"] {
        let Some(factor) = options.metadata.f32(&options.key(name))? else { continue };
        // As in llama.cpp, 0 means that the frequencies are not scaled.
        return match factor {
            0.0 | 1.0 => Ok(RopeScaling::None),
            factor if factor.is_finite() && factor > 1.0 => Ok(RopeScaling::Linear { factor }),
            _ => Err(options.invalid(name, "a finite number of at least 1")),
        };
    }
    Ok(RopeScaling::None)
}

/// Reads YaRN. Files do not say whether the borders between pairs are rounded: those of gpt-oss are
/// not.
fn yarn(
    options: &ModelOptions<'_>,
    architecture: &GgufArchitecture,
    context_length: usize,
) -> Result<RopeScaling, LoadError> {
    let factor = options.required_positive(FACTOR)?;
    if factor < 1.0 {
        return Err(options.invalid(FACTOR, "a finite number of at least 1"));
    }
    let original = options.size(ORIGINAL, MAX_SIZE)?;
    Ok(RopeScaling::Yarn(Yarn {
        factor,
        beta_fast: options.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: options.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        truncate: architecture.family != Family::GptOss,
        attention_factor: (0.1 * f64::from(factor).ln() + 1.0) as f32,
        original_max_position_embeddings: original.unwrap_or(context_length),
    }))
}

/// Reads the share of a head that RoPE rotates, so that [`Config::rotary_dims`] is the stored
/// number.
pub(super) fn partial_rotary_factor(
    options: &ModelOptions<'_>,
    head_dim: usize,
) -> Result<f32, LoadError> {
    const DIMENSIONS: &str = "rope.dimension_count";
    let Some(dims) = options.size(DIMENSIONS, MAX_SIZE)? else { return Ok(1.0) };
    if dims > head_dim || !dims.is_multiple_of(2) {
        let expected = format!("an even number up to the size of a head, {head_dim}");
        return Err(options.invalid(DIMENSIONS, &expected));
    }
    Ok(rotated_share(dims, head_dim))
}

/// Returns the share of a head that is exactly `dims` after [`Config::rotary_dims`] has rounded it
/// down.
fn rotated_share(dims: usize, head_dim: usize) -> f32 {
    let share = dims as f32 / head_dim as f32;
    let rotated = (head_dim as f64 * f64::from(share)) as usize;
    if rotated < dims { share.next_up() } else { share }
}

/// Reads the sliding window. The pattern says which layers use it: a flag for each of them or, in
/// some architectures, the number of layers of which the last has none. Without one, the
/// architecture decides.
pub(super) fn sliding_window(
    options: &ModelOptions<'_>,
    architecture: &GgufArchitecture,
    layers: usize,
) -> Result<Option<SlidingWindow>, LoadError> {
    const WINDOW: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let size = match options.metadata.u32(&options.key(WINDOW))? {
        Some(0) => return Ok(None),
        Some(_) => options.required_size(WINDOW, MAX_SIZE)?,
        None => match architecture.window {
            Some(size) => size,
            None => return Ok(None),
        },
    };
    let pattern = options.key(PATTERN);
    if options.metadata.scalar(&pattern).is_some() {
        if architecture.window_period.is_none() {
            return Err(options.unsupported(PATTERN, "an array with a flag for each layer"));
        }
        let layers = all_but_every(options.required_size(PATTERN, MAX_SIZE)?, layers);
        return Ok(Some(SlidingWindow { size, layers }));
    }
    let layers = match (options.metadata.bools(&pattern)?, architecture.window_period) {
        (None, None) => SlidingLayers::From(0),
        (None, Some(period)) => all_but_every(period, layers),
        (Some(slides), _) if slides.len() == layers => SlidingLayers::Listed(slides.collect()),
        (Some(_), _) => {
            let expected = format!("a flag for each of the {layers} layers");
            return Err(options.invalid(PATTERN, &expected));
        }
    };
    Ok(Some(SlidingWindow { size, layers }))
}

/// Returns the layers with a window if the last of every `period` layers has none.
fn all_but_every(period: usize, layers: usize) -> SlidingLayers {
    SlidingLayers::Listed((1..=layers).map(|layer| !layer.is_multiple_of(period)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_head_are_exact() {
        for head_dim in (2..=512).step_by(2) {
            for dims in (2..=head_dim).step_by(2) {
                let partial_rotary_factor = rotated_share(dims, head_dim);
                let config = Config { head_dim, partial_rotary_factor, ..Config::plain_llama() };
                assert_eq!(config.rotary_dims(), dims, "{dims} of {head_dim}");
            }
        }
    }
}

//! Mixtures of experts, as a GGUF file's metadata describe them.

use super::options::ModelOptions;
use crate::architecture::{Activation, Experts, Mlp, Router, Weighting};
use crate::config::{Config, Family, MAX_EXPERTS, MixtureLayers};
use crate::json_options::MAX_SIZE;
use crate::load_error::LoadError;

/// Reads the experts of all layers, if the family has experts. How the router weighs them is not stored:
/// it follows from the family.
pub(super) fn read(
    options: &ModelOptions<'_>,
    family: Family,
    config: &Config,
) -> Result<Option<MixtureLayers>, LoadError> {
    use Family as F;
    use Weighting::{Softmax, SoftmaxOfChosen};
    let (weighting, normalised) = match family {
        F::Mixtral | F::Qwen3Moe => (Softmax, true),
        F::Qwen2Moe | F::Olmoe => (Softmax, false),
        F::GraniteMoe | F::GptOss => (SoftmaxOfChosen, false),
        _ => return Ok(None),
    };
    let n_experts = options.required_size("expert_count", MAX_EXPERTS)?;
    let experts_per_token = options.required_size("expert_used_count", n_experts)?;
    let mut mlp = Mlp {
        activation: config.hidden_act,
        ..Mlp::gated(expert_size(options, family, config, experts_per_token)?)
    };
    if family == F::GptOss {
        // llama.cpp's constant, which is that of all published models.
        mlp.activation = Activation::ClampedSwiglu { limit: 7.0 };
        mlp.bias = true;
    }
    let router = Router {
        experts_per_token,
        weighting,
        normalised,
        scale: 1.0,
        bias: family == F::GptOss,
        correction: false,
        groups: None,
    };
    let has_shared = family == F::Qwen2Moe;
    let shared_size = options.size_or_zero("expert_shared_feed_forward_length")?;
    let shared_size = shared_size.unwrap_or(config.intermediate_size);
    Ok(Some(MixtureLayers {
        experts: Experts { n_experts, mlp, router, shared_gate: has_shared },
        shared_size: has_shared.then_some(shared_size),
        dense: Vec::new(),
    }))
}

/// Returns the width of an expert. Without the option, it is that of a dense MLP or, for Qwen, that width is
/// for all experts of a token.
fn expert_size(
    options: &ModelOptions<'_>,
    family: Family,
    config: &Config,
    experts_per_token: usize,
) -> Result<usize, LoadError> {
    const SIZE: &str = "expert_feed_forward_length";
    match options.size_or_zero(SIZE)? {
        Some(size) => Ok(size),
        None if matches!(family, Family::Qwen2Moe | Family::Qwen3Moe) => {
            let size = config.intermediate_size / experts_per_token;
            if size == 0 { Err(options.missing(SIZE)) } else { Ok(size) }
        }
        None if family == Family::GptOss => options.required_size(SIZE, MAX_SIZE),
        None => Ok(config.intermediate_size),
    }
}

//! Mixtures of experts, as a GGUF file's metadata describe them.

use super::options::ModelOptions;
use crate::architecture::{Activation, ExpertGroups, Experts, Mlp, Router, Weighting};
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
    use Weighting::{Sigmoid, Softmax, SoftmaxOfChosen};
    const NORMALISED: &str = "expert_weights_norm";
    let (weighting, normalised) = match family {
        F::Mixtral | F::Qwen3Moe => (Softmax, true),
        F::Qwen2Moe | F::Olmoe => (Softmax, false),
        F::GraniteMoe | F::GptOss => (SoftmaxOfChosen, false),
        F::Glm4Moe => (Sigmoid, options.metadata.bool(&options.key(NORMALISED))?.unwrap_or(false)),
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
    let mut router = Router {
        experts_per_token,
        weighting,
        normalised,
        scale: 1.0,
        bias: family == F::GptOss,
        correction: false,
        groups: None,
    };
    let has_shared_gate = family == F::Qwen2Moe;
    let shared_size = match family {
        F::Qwen2Moe => {
            let size = options.size_or_zero("expert_shared_feed_forward_length")?;
            Some(size.unwrap_or(config.intermediate_size))
        }
        F::Glm4Moe => {
            let count = options.size_or_zero("expert_shared_count")?;
            count.map(|count| count.saturating_mul(mlp.intermediate_size))
        }
        _ => None,
    };
    let mut dense = Vec::new();
    if family == F::Glm4Moe {
        router.correction = true;
        router.scale = options.positive_or_zero("expert_weights_scale")?.unwrap_or(1.0);
        router.groups = groups(options)?;
        let first = options.size_or_zero("leading_dense_block_count")?.unwrap_or(0);
        dense = (0..config.num_hidden_layers).map(|layer| layer < first).collect();
    }
    Ok(Some(MixtureLayers {
        experts: Experts { n_experts, mlp, router, shared_gate: has_shared_gate },
        shared_size,
        dense,
    }))
}

/// Reads the groups from which experts are chosen. With one group, all experts can be chosen.
fn groups(options: &ModelOptions<'_>) -> Result<Option<ExpertGroups>, LoadError> {
    let n_groups = options.size_or_zero("expert_group_count")?.unwrap_or(1);
    let groups_per_token = options.size_or_zero("expert_group_used_count")?.unwrap_or(1);
    let groups = ExpertGroups { n_groups, groups_per_token, experts_scored: 2 };
    Ok((n_groups > 1).then_some(groups))
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

//! Mixtures of experts, as a GGUF file's metadata describe them.

use super::options::ModelOptions;
use crate::architecture::{Activation, ExpertGroups, Experts, Mlp, Router, Weighting};
use crate::config::{Config, Family, MAX_EXPERTS, MixtureLayers};
use crate::json_options::MAX_SIZE;
use crate::load_error::LoadError;

/// Reads the experts of all layers, if the family has experts. How the router weighs them is not
/// stored: it follows from the family. `has` says whether a tensor is stored.
pub(super) fn read(
    options: &ModelOptions<'_>,
    family: Family,
    has: &dyn Fn(&str) -> bool,
    config: &Config,
) -> Result<Option<MixtureLayers>, LoadError> {
    use Family as F;
    use Weighting::{Sigmoid, Softmax, SoftmaxOfChosen};
    const NORMALISED: &str = "expert_weights_norm";
    const SHARED: &str = "expert_shared_feed_forward_length";
    let (weighting, normalised) = match family {
        F::Mixtral | F::Qwen3Moe | F::Qwen3Next | F::Qwen35Moe | F::Ernie45Moe => (Softmax, true),
        F::Lfm2Moe | F::MiniMaxM2 => (Sigmoid, true),
        F::Qwen2Moe | F::Olmoe | F::DeepseekV2 => (Softmax, false),
        F::Gemma4 | F::GraniteMoeHybrid if options.size_or_zero("expert_count")?.is_none() => {
            return Ok(None);
        }
        F::Gemma4 => (Softmax, true),
        F::GraniteMoe | F::GraniteMoeHybrid | F::GptOss => (SoftmaxOfChosen, false),
        F::Glm4Moe | F::DeepseekV3 | F::DeepseekV32 | F::GlmMoeDsa | F::Dots1 => {
            (Sigmoid, options.metadata.bool(&options.key(NORMALISED))?.unwrap_or(false))
        }
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
    let bias = family == F::GptOss;
    let mut router = Router { weighting, normalised, bias, ..Router::softmax(experts_per_token) };
    if family == F::Gemma4 {
        router.own_norm = true;
        router.expert_scales = has("blk.0.ffn_down_exps.scale");
    }
    let is_deepseek = matches!(
        family,
        F::Glm4Moe | F::DeepseekV2 | F::DeepseekV3 | F::DeepseekV32 | F::GlmMoeDsa | F::Dots1
    );
    let has_shared_gate = matches!(family, F::Qwen2Moe | F::Qwen3Next | F::Qwen35Moe);
    let shared_size = match family {
        F::Gemma4 => Some(config.intermediate_size),
        F::GraniteMoeHybrid => options.size_or_zero(SHARED)?,
        F::Qwen2Moe | F::Qwen3Next | F::Qwen35Moe => {
            let size = options.size_or_zero(SHARED)?;
            Some(size.unwrap_or(config.intermediate_size))
        }
        _ if is_deepseek || family == F::Ernie45Moe => {
            let count = options.size_or_zero("expert_shared_count")?;
            count.map(|count| count.saturating_mul(mlp.intermediate_size))
        }
        _ => None,
    };
    router.correction = family != F::DeepseekV2
        && (is_deepseek || matches!(family, F::Ernie45Moe | F::Lfm2Moe | F::MiniMaxM2));
    if is_deepseek {
        router.scale = options.positive_or_zero("expert_weights_scale")?.unwrap_or(1.0);
        // A group of DeepSeek-V2 counts as its best expert.
        let experts_scored = if family == F::DeepseekV2 { 1 } else { 2 };
        router.groups = groups(options, family, n_experts, experts_scored)?;
    }
    let mut dense = Vec::new();
    if is_deepseek || matches!(family, F::Ernie45Moe | F::Lfm2Moe) {
        let first = options.size_or_zero("leading_dense_block_count")?.unwrap_or(0);
        let step = options.size_or_zero("interleave_moe_layer_step")?.unwrap_or(1);
        let is_dense = |layer: usize| layer < first || !(layer + 1).is_multiple_of(step);
        dense = (0..config.num_hidden_layers).map(is_dense).collect();
    }
    Ok(Some(MixtureLayers {
        experts: Experts {
            shared_gate: has_shared_gate,
            own_norms: family == F::Gemma4,
            ..Experts::plain(n_experts, mlp, router)
        },
        shared_size,
        dense,
    }))
}

/// Reads the groups from which experts are chosen. With one group, all experts can be chosen.
fn groups(
    options: &ModelOptions<'_>,
    family: Family,
    n_experts: usize,
    experts_scored: usize,
) -> Result<Option<ExpertGroups>, LoadError> {
    let [n_groups, groups_per_token] = match options.size_or_zero("expert_group_count")? {
        Some(1) => return Ok(None),
        Some(n_groups) => [n_groups, options.required_size("expert_group_used_count", n_groups)?],
        // Old files do not have the groups. These are the models that were published with so many
        // experts.
        None => match (family, n_experts) {
            (Family::DeepseekV2, 160) => [8, 3],
            (Family::DeepseekV3 | Family::DeepseekV32, 256) => [8, 4],
            _ => return Ok(None),
        },
    };
    Ok(Some(ExpertGroups { n_groups, groups_per_token, experts_scored }))
}

/// Returns the width of an expert. Without the option, it is that of a dense MLP or, for Qwen, that
/// width is for all experts of a token.
fn expert_size(
    options: &ModelOptions<'_>,
    family: Family,
    config: &Config,
    experts_per_token: usize,
) -> Result<usize, LoadError> {
    const SIZE: &str = "expert_feed_forward_length";
    match options.size_or_zero(SIZE)? {
        Some(size) => Ok(size),
        None if matches!(family, Family::Qwen2Moe | Family::Qwen3Moe | Family::Qwen3Next) => {
            let size = config.intermediate_size / experts_per_token;
            if size == 0 { Err(options.missing(SIZE)) } else { Ok(size) }
        }
        None if matches!(family, Family::GptOss | Family::Gemma4) => {
            options.required_size(SIZE, MAX_SIZE)
        }
        None => Ok(config.intermediate_size),
    }
}

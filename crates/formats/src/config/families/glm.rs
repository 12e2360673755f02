//! GLM-4, dense and as a mixture of experts.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, MAX_LAYERS, MixtureLayers, NormPlacement};
use super::{NUM_LOCAL_EXPERTS, experts};
use crate::architecture::{ExpertGroups, Experts, Mlp, QkNorms, Router, Weighting};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::{Map, Value, json};

const DEFAULTS: Defaults = Defaults {
    max_position_embeddings: 131_072,
    num_key_value_heads: Some(2),
    head_dim: Some(128),
    bos_token_id: None,
    eos_token_id: None,
    epsilon: ("rms_norm_eps", 1.5625e-7),
    partial_rotary_factor: Some(0.5),
    ..LLAMA
};

pub(in super::super) const GLM: Description = Description {
    name: "GLM",
    model_type: "glm",
    class: "GlmForCausalLM",
    defaults: DEFAULTS,
    reads: &[],
    read: |options, config| read_bias(options, config, true),
    write: write_bias,
};

pub(in super::super) const GLM4: Description = Description {
    name: "GLM-4",
    model_type: "glm4",
    class: "Glm4ForCausalLM",
    defaults: DEFAULTS,
    reads: &[],
    read: |options, config| {
        config.norm_placement = NormPlacement::Around;
        read_bias(options, config, true)
    },
    write: write_bias,
};

pub(in super::super) const GLM4_MOE: Description = Description {
    name: "GLM-4-MoE",
    model_type: "glm4_moe",
    class: "Glm4MoeForCausalLM",
    defaults: Defaults {
        num_key_value_heads: Some(8),
        head_dim: None,
        epsilon: ("rms_norm_eps", 1e-5),
        ..DEFAULTS
    },
    reads: &["n_routed_experts", NUM_LOCAL_EXPERTS, "use_qk_norm"],
    read: |options, config| {
        read_bias(options, config, false)?;
        if options.flag("use_qk_norm")?.unwrap_or(false) {
            config.qk_norms = QkNorms::Heads;
        }
        config.experts = Some(mixture_layers(options, config, &MixtureDefaults::GLM)?);
        Ok(())
    },
    write: |config, options| {
        write_bias(config, options);
        options.insert("use_qk_norm".to_owned(), json!(config.qk_norms == QkNorms::Heads));
        write_mixture(config, options);
    },
};

/// Only the projections to queries, keys and values have a bias.
fn read_bias(
    options: &JsonOptions<'_>,
    config: &mut Config,
    default: bool,
) -> Result<(), LoadError> {
    config.qkv_bias = options.flag("attention_bias")?.unwrap_or(default);
    Ok(())
}

fn write_bias(config: &Config, options: &mut Map<String, Value>) {
    options.insert("attention_bias".to_owned(), json!(config.qkv_bias));
}

/// The values of absent options of a mixture.
pub(super) struct MixtureDefaults {
    /// The number of groups, and of those that a row chooses from.
    pub(super) groups: [usize; 2],
    /// The number of dense layers before those with experts.
    pub(super) first_dense: usize,
    pub(super) shared: usize,
    /// The factor of the experts' weights.
    pub(super) scale: f32,
}

impl MixtureDefaults {
    pub(super) const GLM: Self = Self { groups: [1, 1], first_dense: 1, shared: 1, scale: 1.0 };
}

/// Reads the experts of DeepSeek-V3's kind: weights are sigmoids, a correction helps to choose, and
/// experts are chosen from the best groups. The first layers have none.
pub(super) fn mixture_layers(
    options: &JsonOptions<'_>,
    config: &Config,
    defaults: &MixtureDefaults,
) -> Result<MixtureLayers, LoadError> {
    let size = options.required_size("moe_intermediate_size")?;
    let mlp = Mlp { activation: config.hidden_act, ..Mlp::gated(size) };
    let base = experts(options, "n_routed_experts", mlp)?;
    let or = |option, default| Ok::<_, LoadError>(options.size(option)?.unwrap_or(default));
    let [n_groups, groups_per_token] = defaults.groups;
    let (n_groups, groups_per_token) =
        (or("n_group", n_groups)?, or("topk_group", groups_per_token)?);
    let groups = ExpertGroups { n_groups, groups_per_token, experts_scored: 2 };
    let router = Router {
        weighting: Weighting::Sigmoid,
        normalised: options.flag("norm_topk_prob")?.unwrap_or(true),
        scale: options.number("routed_scaling_factor")?.unwrap_or(defaults.scale),
        correction: true,
        // With one group, all experts can be chosen.
        groups: (groups.n_groups > 1).then_some(groups),
        ..base.router
    };
    let first = or("first_k_dense_replace", defaults.first_dense)?;
    let layers = config.num_hidden_layers.min(MAX_LAYERS);
    let shared = or("n_shared_experts", defaults.shared)?;
    Ok(MixtureLayers {
        experts: Experts { router, ..base },
        shared_size: (shared > 0).then_some(shared.saturating_mul(size)),
        dense: if first == 0 { Vec::new() } else { (0..layers).map(|at| at < first).collect() },
    })
}

pub(super) fn write_mixture(config: &Config, options: &mut Map<String, Value>) {
    let Some(MixtureLayers { experts, shared_size, dense }) = &config.experts else { return };
    let router = experts.router;
    let groups = router.groups.map_or([1, 1], |groups| [groups.n_groups, groups.groups_per_token]);
    let size = experts.mlp.intermediate_size;
    for (option, value) in [
        ("n_routed_experts", json!(experts.n_experts)),
        ("num_experts_per_tok", json!(router.experts_per_token)),
        ("moe_intermediate_size", json!(size)),
        ("n_group", json!(groups[0])),
        ("topk_group", json!(groups[1])),
        ("norm_topk_prob", json!(router.normalised)),
        ("routed_scaling_factor", json!(router.scale)),
        ("n_shared_experts", json!(shared_size.unwrap_or(0) / size.max(1))),
        ("first_k_dense_replace", json!(dense.iter().filter(|is_dense| **is_dense).count())),
    ] {
        options.insert(option.to_owned(), value);
    }
}

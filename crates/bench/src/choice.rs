//! One combination of options to compare.

use forerun::{
    CalibrationPolicy, DraftTokens, DrafterKind, LayerStrategy, Method, PearlOptions, Placement,
    PlanError, Tree, WeightType, available_cores, cores_within_quota,
};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Values of one combination.
#[derive(Clone)]
pub(crate) struct Choice {
    pub(crate) method: Method,
    pub(crate) drafter: DrafterKind,
    /// What it drafts with, where it needs a checkpoint.
    pub(crate) draft_model: Option<PathBuf>,
    pub(crate) draft_tokens: DraftTokens,
    pub(crate) tree: Tree,
    pub(crate) pearl: PearlOptions,
    pub(crate) placement: Option<String>,
    pub(crate) weight_type: Option<WeightType>,
    /// EasySpec's.
    pub(crate) layers: Option<LayerStrategy>,
    pub(crate) calibration: Option<CalibrationPolicy>,
    pub(crate) temperature: f32,
}

/// Whose placements are compared in labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ModelConcurrency {
    /// The target works alone, or what drafts needs no device.
    Target,
    /// A drafter and the target in turn.
    InTurn,
    /// Both at the same time.
    AtOnce,
}

impl Choice {
    /// Autoregressive decoding in its place.
    pub(crate) fn plain(&self) -> Self {
        Self {
            method: Method::Autoregressive,
            drafter: DrafterKind::None,
            draft_model: None,
            draft_tokens: DraftTokens::Auto,
            tree: Tree::None,
            pearl: PearlOptions::default(),
            layers: None,
            calibration: None,
            ..self.clone()
        }
    }

    pub(crate) fn concurrency(&self) -> ModelConcurrency {
        match self.method {
            _ if !self.drafter.has_model() => ModelConcurrency::Target,
            Method::Autoregressive => ModelConcurrency::Target,
            Method::Speculative => ModelConcurrency::InTurn,
            Method::Pearl | Method::Dsi => ModelConcurrency::AtOnce,
        }
    }

    /// The placement as its devices have it: all cores are the target's where no model drafts.
    pub(crate) fn devices(&self) -> Result<Option<String>, PlanError> {
        match &self.placement {
            Some(text) if self.concurrency() == ModelConcurrency::Target => {
                all_to_the_target(text, self.method).map(Some)
            }
            text => Ok(text.clone()),
        }
    }

    /// The cores that it is given.
    pub(crate) fn cores(&self) -> BTreeSet<usize> {
        let named = self.placement.as_ref();
        let placement = named.and_then(|text| Placement::parse(text, &available_cores()).ok());
        placement.map_or_else(|| cores_within_quota().into_iter().collect(), |own| cores_in(&own))
    }
}

/// The same cores, all for the target: as they are if they were so, else as one team.
pub(crate) fn all_to_the_target(placement: &str, method: Method) -> Result<String, PlanError> {
    let placement = Placement::parse(placement, &available_cores())?;
    let are_its_own = placement.drafter(0).is_none();
    if are_its_own && (placement.replicas() == 1 || method == Method::Dsi) {
        return Ok(placement.to_string());
    }
    let cores: Vec<String> =
        cores_in(&placement).iter().map(|core| format!("cpu:{core}")).collect();
    let team = format!("target={}", cores.join("+"));
    Ok(Placement::parse(&team, &available_cores())?.to_string())
}

/// The placement's cores, each once.
pub(crate) fn cores_in(placement: &Placement) -> BTreeSet<usize> {
    placement.devices().iter().flat_map(|(group, _)| group.cores().iter().copied()).collect()
}

pub(crate) fn draft_tokens_text(draft_tokens: DraftTokens) -> String {
    match draft_tokens {
        DraftTokens::Auto => "auto".into(),
        DraftTokens::Assisted => "assisted".into(),
        DraftTokens::Fixed(count) => count.to_string(),
    }
}

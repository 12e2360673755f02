//! One combination of the options in a sweep.

use forerun::method::Drafting;
use forerun::placement::default_cores;
use forerun::{
    AdditionalDrafter, DraftTokens, DrafterKind, DrafterOptions, Lookup, Method, ModelSource,
    PearlOptions, Placement, Tree, WeightTypes,
};
use std::collections::BTreeSet;

/// One value for each option of a sweep.
#[derive(Clone)]
pub(crate) struct Choice {
    pub(crate) method: Method,
    pub(crate) drafter: DrafterOptions,
    /// The checkpoint of the drafter, if it needs one.
    pub(crate) draft_model: Option<ModelSource>,
    /// The other drafters.
    pub(crate) additional_drafters: Vec<AdditionalDrafter>,
    pub(crate) lookup: Lookup,
    pub(crate) draft_tokens: DraftTokens,
    pub(crate) tree: Tree,
    pub(crate) pearl: PearlOptions,
    pub(crate) placement: Option<Placement>,
    pub(crate) weight_type: Option<WeightTypes>,
    pub(crate) temperature: f32,
}

impl Choice {
    /// Returns autoregressive decoding with the same target, placement and temperature.
    pub(crate) fn autoregressive(&self) -> Self {
        Self {
            method: Method::Autoregressive,
            drafter: DrafterKind::None.into(),
            draft_model: None,
            draft_tokens: DraftTokens::Auto,
            ..self.clone()
        }
    }

    /// Returns when a draft model computes: never if the drafter needs no device.
    pub(crate) fn drafting(&self) -> Drafting {
        let drafter = self.drafter.kind();
        if drafter.has_model() || drafter.is_in_target() {
            self.method.drafting()
        } else {
            Drafting::None
        }
    }

    /// Returns the placement to plan with. If no model drafts, all cores are the target's.
    pub(crate) fn devices(&self) -> Option<Placement> {
        let placement = self.placement.as_ref()?;
        Some(match self.drafting() {
            Drafting::None => all_to_the_target(placement, self.method),
            _ => placement.clone(),
        })
    }

    /// Returns the name of the pass times, if devices are paced.
    pub(crate) fn pace(&self) -> Option<&str> {
        Some(&self.placement.as_ref()?.pace()?.name)
    }

    /// Returns the cores of the placement, or the default ones if there is no placement.
    pub(crate) fn cores(&self) -> BTreeSet<usize> {
        match &self.placement {
            Some(placement) => cores_in(placement),
            None => default_cores().into_iter().collect(),
        }
    }
}

/// Gives all cores of a placement to the target, as one team of threads. A placement of a target
/// alone is kept, unless it has replicas that the method cannot use. A target on a GPU or on ranks
/// stays there, and a paced one on its device.
pub(crate) fn all_to_the_target(placement: &Placement, method: Method) -> Placement {
    let is_target_only = placement.drafter(0).is_none();
    if is_target_only && (placement.replicas() == 1 || method.has_replicas()) {
        return placement.clone();
    }
    if placement.pace().is_some() {
        return placement.of_first_target();
    }
    if let Some(target) = placement.target(0)
        && target.as_slice().iter().any(|group| group.gpu().is_some() || group.rank().is_some())
        && let Ok(alone) = format!("target={target}").parse()
    {
        return alone;
    }
    let cores: Vec<usize> = cores_in(placement).into_iter().collect();
    Placement::target_on(&cores)
}

pub(crate) fn cores_in(placement: &Placement) -> BTreeSet<usize> {
    placement.devices().iter().flat_map(|(group, _)| group.cores().iter().copied()).collect()
}

/// Formats a draft length as in the flags of `forerun generate`.
pub(crate) fn draft_tokens_text(draft_tokens: DraftTokens) -> String {
    match draft_tokens {
        DraftTokens::Auto => "auto".into(),
        DraftTokens::Assisted => "assisted".into(),
        DraftTokens::Fixed(count) => count.to_string(),
    }
}

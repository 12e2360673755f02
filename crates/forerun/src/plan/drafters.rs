//! The choice of the drafters, and EasySpec's options.

use super::method::{check_drafter, default_method, supported_method};
use super::{Method, Options, PlanError};
use crate::easyspec::{EasySpec, LayerStrategy};
use crate::model_source::ModelSource;
use crate::registry::DrafterKind;
use forerun_core::Need;
use forerun_formats::SpeculatorKind;
use forerun_runtime::{DeviceGroup, DeviceGroups, Placement};
use std::fmt;
use std::str::FromStr;

/// A drafter in addition to the first one.
///
/// Parsed from the name of a drafter on tokens, such as `prompt-lookup`, or from that of a
/// checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdditionalDrafter {
    /// A language model with this checkpoint.
    Model(ModelSource),
    /// A drafter that needs no model, such as [`DrafterKind::PromptLookup`].
    Tokens(DrafterKind),
}

impl FromStr for AdditionalDrafter {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut on_tokens = DrafterKind::all().filter(|kind| kind.is_on_tokens());
        let named = on_tokens.find(|kind| kind.name() == text);
        Ok(named.map_or_else(|| Self::Model(text.into()), Self::Tokens))
    }
}

impl fmt::Display for AdditionalDrafter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(model) => write!(f, "{model}"),
            Self::Tokens(kind) => write!(f, "{kind}"),
        }
    }
}

/// Chooses the method and the drafter. `found` is the kind of drafter that the draft model holds.
pub(super) fn method_and_drafter(
    options: &Options,
    found: Option<SpeculatorKind>,
) -> Result<(Method, DrafterKind), PlanError> {
    // Plain decoding ignores the drafter, so that one option switches between a method and its
    // baseline.
    if let Some(method) = options.method.filter(|method| !method.drafts()) {
        return Ok((method, DrafterKind::None));
    }
    let drafter = options.drafter.unwrap_or(match options.draft_model {
        Some(_) => found.map_or(DrafterKind::Model, DrafterKind::of),
        None => DrafterKind::None,
    });
    let has_drafter = drafter != DrafterKind::None;
    let found = found.filter(|&found| DrafterKind::of(found) == drafter);
    let method = match options.method {
        Some(method) => supported_method(method, options, drafter, found),
        None => default_method(options, drafter, found),
    };
    match &options.draft_model {
        None if drafter.has_model() => Err(PlanError::NoDraftModel(drafter)),
        Some(_) if !drafter.has_model() => Err(PlanError::conflict(
            format!("`draft_model` is set, but `drafter = {drafter}` does not use a model"),
            "leave one of them out",
        )),
        None if !has_drafter && method.drafts() => Err(PlanError::NoDrafter(method)),
        _ => Ok((method, drafter)),
    }
}

/// Returns the additional drafters, for methods that use several.
pub(super) fn additional_drafters(
    options: &Options,
    method: Method,
    first: DrafterKind,
) -> Result<Vec<AdditionalDrafter>, PlanError> {
    let additional = &options.additional_drafters;
    // Plain decoding ignores all drafters.
    if !method.drafts() || additional.is_empty() {
        return Ok(Vec::new());
    }
    if !method.offers(Need::SeveralDrafters) {
        return Err(PlanError::conflict(
            format!("the method {method} has one drafter"),
            "leave `additional_drafters` out, or set another method, such as `method = auto`",
        ));
    }
    let mut kinds = vec![first];
    for drafter in additional {
        match drafter {
            AdditionalDrafter::Model(_) => {}
            AdditionalDrafter::Tokens(kind) if !kind.is_on_tokens() => {
                return Err(PlanError::NoDraftModel(*kind));
            }
            AdditionalDrafter::Tokens(kind) => {
                check_drafter(*kind, method)?;
                kinds.push(*kind);
            }
        }
    }
    if let Some(&kind) = kinds.iter().find(|kind| kind.needs(Need::Feedback)) {
        return Err(PlanError::conflict(
            format!(
                "several drafters take turns, but the drafter {kind} learns from all of its own drafts"
            ),
            "use another drafter, or leave `additional_drafters` out",
        ));
    }
    Ok(additional.clone())
}

/// Counts the drafters that have a checkpoint.
pub(super) fn count_models(drafter: DrafterKind, additional: &[AdditionalDrafter]) -> usize {
    let is_model =
        |additional: &&AdditionalDrafter| matches!(additional, AdditionalDrafter::Model(_));
    let has_weights = drafter.has_model() || drafter.is_in_target();
    usize::from(has_weights) + additional.iter().filter(is_model).count()
}

/// Checks that EasySpec, which computes layers in groups, does not draft on ranks with some layers
/// each.
pub(super) fn check_stages(
    easyspec: Option<&EasySpec>,
    placement: &Placement,
) -> Result<(), PlanError> {
    let groups = placement.drafter(0).filter(|_| easyspec.is_some());
    let has_stages =
        |groups: &&DeviceGroups| groups.as_slice().iter().any(DeviceGroup::has_rank_stages);
    match groups.filter(has_stages) {
        Some(groups) => Err(PlanError::conflict(
            format!(
                "the drafter easyspec computes several layers at the same time, but the placement \
                 puts these on the pipeline stages {groups}"
            ),
            "write \"+\" in place of \"/\", or draft with `drafter = model`",
        )),
        None => Ok(()),
    }
}

/// Returns EasySpec's options, if it drafts.
pub(super) fn easyspec(
    options: &Options,
    drafter: DrafterKind,
) -> Result<Option<EasySpec>, PlanError> {
    if drafter != DrafterKind::EasySpec {
        return Ok(None);
    }
    if options.layers == Some(LayerStrategy::Parallel(0)) {
        return Err(PlanError::Range {
            option: "layer_parallel_size",
            found: "0".into(),
            expected: "1 or more layers at a time".into(),
        });
    }
    let layers = options.layers.clone().unwrap_or_default();
    Ok(Some(EasySpec { layers, calibration: options.calibration.unwrap_or_default() }))
}

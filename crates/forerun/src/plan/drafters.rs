//! The drafters with their options, and their choice.

use super::method::{check_drafter, method_of};
use super::{DraftTokens, Lookup, Method, MethodOptions, Options, PlanError, Tree};
use crate::easyspec::{EasySpec, LayerStrategy};
use crate::model_source::ModelSource;
use crate::registry::DrafterKind;
use forerun_core::Need;
use forerun_draft::CalibrationPolicy;
use forerun_formats::SpeculatorKind;
use forerun_runtime::{DeviceGroup, DeviceGroups, Placement};
use std::fmt;
use std::str::FromStr;

/// A drafter with the options that it alone has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrafterOptions {
    /// A drafter with its defaults.
    Default(DrafterKind),
    /// [`DrafterKind::EasySpec`].
    EasySpec(EasySpec),
}

impl DrafterOptions {
    /// Returns a drafter with EasySpec's options, of which only EasySpec can have any. Plain
    /// decoding ignores them, as in [`MethodOptions::of`].
    ///
    /// # Errors
    /// If another drafter has one.
    pub fn of(
        method: Option<Method>,
        kind: Option<DrafterKind>,
        layers: Option<LayerStrategy>,
        calibration: Option<CalibrationPolicy>,
    ) -> Result<Option<Self>, PlanError> {
        if kind == Some(DrafterKind::EasySpec) {
            let (layers, calibration) =
                (layers.unwrap_or_default(), calibration.unwrap_or_default());
            return Ok(Some(Self::EasySpec(EasySpec { layers, calibration })));
        }
        if method.is_some_and(|method| !method.drafts()) {
            return Ok(kind.map(Self::Default));
        }
        let given = match layers {
            Some(LayerStrategy::Parallel(_)) => Some("layer_parallel_size"),
            Some(LayerStrategy::Groups(_)) => Some("layer_groups"),
            None => calibration.map(|_| "calibration"),
        };
        match given {
            None => Ok(kind.map(Self::Default)),
            Some(option) => Err(PlanError::no_effect(option, "`drafter = easyspec`")),
        }
    }

    /// Returns the kind of drafter.
    #[must_use]
    pub fn kind(&self) -> DrafterKind {
        match self {
            Self::Default(kind) => *kind,
            Self::EasySpec(_) => DrafterKind::EasySpec,
        }
    }
}

impl From<DrafterKind> for DrafterOptions {
    fn from(kind: DrafterKind) -> Self {
        Self::Default(kind)
    }
}

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
    let given = options.method.as_ref().map(MethodOptions::method);
    if let Some(method) = given.filter(|method| !method.drafts()) {
        return Ok((method, DrafterKind::None));
    }
    let kind = options.drafter.as_ref().map(DrafterOptions::kind);
    let drafter = kind.unwrap_or(match options.draft_model {
        Some(_) => found.map_or(DrafterKind::Model, DrafterKind::of),
        None => DrafterKind::None,
    });
    let found = found.filter(|&found| DrafterKind::of(found) == drafter);
    let method = method_of(options, drafter, found);
    match &options.draft_model {
        None if drafter.has_model() => Err(no_draft_model(drafter)),
        Some(_) if !drafter.has_model() => Err(PlanError::conflict(
            format!("`draft_model` is set, but `drafter = {drafter}` does not use a model"),
            "leave one of them out",
        )),
        _ => Ok((method, drafter)),
    }
}

/// Refuses methods that draft, and options of drafts, without a drafter.
pub(super) fn check_drafter_is_set(
    options: &Options,
    method: Method,
    drafter: DrafterKind,
) -> Result<(), PlanError> {
    let is_plain = options.method.is_some() && !method.drafts();
    if drafter != DrafterKind::None || is_plain {
        return Ok(());
    }
    let of_drafts = [
        ("tree", *options.tree() != Tree::None),
        ("lookup", options.lookup() != Lookup::None),
        ("draft_tokens", options.draft_tokens != DraftTokens::Auto),
        ("additional_drafters", !options.additional_drafters.is_empty()),
    ];
    match of_drafts.into_iter().find(|&(_, is_set)| is_set) {
        Some((option, _)) => Err(PlanError::no_effect(option, "`draft_model` or `drafter`")),
        None if method.drafts() => Err(PlanError::NoDrafter(method)),
        None => Ok(()),
    }
}

fn no_draft_model(drafter: DrafterKind) -> PlanError {
    PlanError::conflict(
        format!("the drafter \"{drafter}\" needs a checkpoint"),
        "set `draft_model`",
    )
}

/// Returns the additional drafters, for methods that use several.
pub(super) fn additional_drafters(
    options: &Options,
    method: Method,
    first: DrafterKind,
) -> Result<Vec<AdditionalDrafter>, PlanError> {
    let additional = &options.additional_drafters;
    // Plain decoding ignores all drafters.
    if !method.drafts() {
        return Ok(Vec::new());
    }
    if !additional.is_empty() && !method.offers(Need::SeveralDrafters) {
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
                return Err(no_draft_model(*kind));
            }
            AdditionalDrafter::Tokens(kind) => {
                check_drafter(*kind, method)?;
                kinds.push(*kind);
            }
        }
    }
    let others = match additional.is_empty() {
        true => (options.lookup() != Lookup::None).then_some("lookup"),
        false => Some("additional_drafters"),
    };
    let learns = kinds.into_iter().find(|kind| kind.needs(Need::Feedback));
    match others.zip(learns) {
        None => Ok(additional.clone()),
        Some((option, kind)) => Err(PlanError::conflict(
            format!(
                "`{option}` takes the place of some drafts, but the drafter {kind} learns from all of \
                 its own"
            ),
            format!("use another drafter, or leave `{option}` out"),
        )),
    }
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
    let easyspec = match &options.drafter {
        Some(DrafterOptions::EasySpec(easyspec)) => easyspec.clone(),
        _ => EasySpec::default(),
    };
    if easyspec.layers == LayerStrategy::Parallel(0) {
        return Err(PlanError::Range {
            option: "layer_parallel_size",
            found: "0".into(),
            expected: "1 or more layers at a time".into(),
        });
    }
    Ok(Some(easyspec))
}

//! Errors of options: combinations that do not work.

use super::Method;
use crate::registry::DrafterKind;
use forerun_core::Need;
use forerun_formats::SpeculatorKind;
use forerun_runtime::PlacementError;

/// Why [`Options`](super::Options) make no plan: they contradict each other, or do not fit this
/// machine.
///
/// Messages name options in backticks, by the fields of [`Options`](super::Options).
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// The drafter needs a draft model, but none is named.
    #[error("the drafter \"{0}\" needs a checkpoint: set `draft_model`")]
    NoDraftModel(DrafterKind),
    /// An option has no effect without another one.
    #[error("`{option}` has no effect without {needed}: set that, or leave `{option}` out")]
    NoEffect {
        /// The option's name.
        option: &'static str,
        /// The other option, in backticks.
        needed: &'static str,
    },
    /// The method needs a drafter, but none is set.
    #[error(
        "the method {0} needs a drafter: set `draft_model`, or `drafter = prompt-lookup`, or \
         `method = autoregressive`"
    )]
    NoDrafter(Method),
    /// A value is out of range.
    #[error("`{option}` is {found}, but it must be {expected}")]
    Range {
        /// The option's name.
        option: &'static str,
        /// Its value.
        found: String,
        /// The possible values.
        expected: String,
    },
    /// The drafter needs something that the method does not offer.
    #[error("{drafter} {}: set `method = speculative`, or use another drafter", lack(*.need, *.method))]
    DrafterNeeds {
        /// The drafter, such as `the drafter lookahead` or `Medusa heads`.
        drafter: String,
        /// What it needs.
        need: Need,
        /// The method.
        method: Method,
    },
    /// The drafter reads the target's hidden states and must stay on one device, but the placement
    /// gives it several.
    #[error(
        "{0} needs one device, but the placement gives it several: give it one of its own, as in \
         `placement = drafter=cpu:0,target=cpu:1/cpu:2`"
    )]
    NeedsSingleDevice(SpeculatorKind),
    /// Options do not work together, or not with the method or the drafter.
    #[error("{what}: {remedy}")]
    Conflict {
        /// What does not work together.
        what: String,
        /// What to set instead, or to leave out.
        remedy: String,
    },
    /// The placement is wrong.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

impl PlanError {
    /// Returns the error of options that do not work together.
    pub(super) fn conflict(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Conflict { what: what.into(), remedy: remedy.into() }
    }
}

/// Says what a drafter needs, and why a method does not offer it.
fn lack(need: Need, method: Method) -> String {
    match need {
        Need::Features | Need::VerifiedPrefix => format!(
            "reads hidden states of the target, but the method {method} drafts after tokens that the \
             target has not processed"
        ),
        Need::Feedback => format!(
            "learns from the target's last pass, which the method {method} does not wait for"
        ),
        Need::Trees => format!("drafts trees, and the method {method} verifies chains"),
        Need::WholeDrafts => {
            format!("follows the outcome of whole drafts, and the method {method} has none")
        }
        Need::SeveralDrafters => {
            format!("needs other drafters in addition, and the method {method} has one drafter")
        }
    }
}

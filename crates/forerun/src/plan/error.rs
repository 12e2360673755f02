//! Errors of options: combinations that do not work.

use super::Method;
use forerun_core::Need;
use forerun_runtime::PlacementError;
use std::fmt::Display;

/// Why [`Options`](super::Options) make no plan: they contradict each other, or do not fit this
/// machine.
///
/// Messages name options in backticks, by the fields of [`Options`](super::Options).
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
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
    pub(crate) fn conflict(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Conflict { what: what.into(), remedy: remedy.into() }
    }

    /// Returns the error of an option that has no effect without another one, in backticks.
    pub(super) fn no_effect(option: &str, needed: &str) -> Self {
        let remedy = format!("set that, or leave `{option}` out");
        Self::conflict(format!("`{option}` has no effect without {needed}"), remedy)
    }

    /// Returns the error of a tree for a method without.
    pub(crate) fn chains_only(method: Method) -> Self {
        let remedy = "leave `tree` out, or set `method = speculative`";
        Self::conflict(format!("the method {method} drafts chains"), remedy)
    }

    /// Returns the error of a lookup for a method without.
    pub(crate) fn no_whole_drafts(method: Method) -> Self {
        Self::conflict(
            format!("`lookup` takes the place of whole drafts, and the method {method} has none"),
            "set `method = speculative` or `method = ssd`, or leave `lookup` out",
        )
    }

    /// Returns the error of a drafter, such as `the drafter lookahead` or `Medusa heads`, that needs
    /// something that the method does not offer.
    pub(crate) fn drafter_needs(drafter: impl Display, need: Need, method: Method) -> Self {
        let remedy = "set `method = speculative`, or use another drafter";
        Self::conflict(format!("{drafter} {}", lack(need, method)), remedy)
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

//! Decides what can be asked for at all: why options do not go together, or are no values.

use super::{DrafterKind, Method};
use forerun_model::SpeculatorKind;
use forerun_runtime::PlacementError;

/// Options that do not go together, or cannot be had here.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// A drafter model without a checkpoint.
    #[error("the drafter \"{0}\" needs a checkpoint: add --draft-model DIR")]
    NoDraftModel(DrafterKind),
    /// An option of EasySpec for another drafter.
    #[error("{0} is an option of --drafter easyspec: add that, or leave {0} out")]
    OnlyEasySpec(&'static str),
    /// Speculation without a drafter.
    #[error(
        "the method {0} needs a drafter: add --draft-model DIR, or --drafter prompt-lookup, or use \
         --method autoregressive"
    )]
    NoDrafter(Method),
    /// A draft model that the chosen drafter would not use.
    #[error(
        "--draft-model was given, but --drafter {0} does not use a model: leave one of them out"
    )]
    UnusedDraftModel(DrafterKind),
    /// A size outside its range.
    #[error("{option} is {found}, but it must be {expected}")]
    Range {
        /// The option.
        option: &'static str,
        /// What was asked.
        found: String,
        /// What is possible.
        expected: &'static str,
    },
    /// Several drafters for a method that has one.
    #[error(
        "the method {0} has one drafter: leave --also-draft out, or use --method dsi with a first drafter"
    )]
    OneDrafter(Method),
    /// A tree where drafting goes on behind unverified tokens.
    #[error("the method {0} drafts chains: leave --tree out, or use --method speculative")]
    ChainsOnly(Method),
    /// A drafter that learns from the target's last pass where drafting goes on meanwhile.
    #[error(
        "the drafter {0} learns from the target's last pass, which the method {1} does not wait for: \
         use --method speculative, or another drafter"
    )]
    LearnsInTurn(DrafterKind, Method),
    /// A schedule by the outcome of rounds where there are no such rounds.
    #[error(
        "--draft-tokens assisted goes by what became of whole drafts, and the method {0} has none: use \
         --method speculative, or --draft-tokens auto"
    )]
    AssistedInTurn(Method),
    /// A drafter on the target's hidden states where drafting goes on behind tokens that the target has
    /// not read.
    #[error(
        "{0} reads hidden states of the target, which has not read the tokens that the method {1} drafts \
         behind: use --method speculative, or a drafter that reads tokens alone"
    )]
    FeaturesInTurn(SpeculatorKind, Method),
    /// A drafter on the target's hidden states whose model would go from device to device.
    #[error(
        "{0} has its model on one device, but the placement gives it several in turn: give it one of its \
         own, as in --placement drafter=cpu:0,target=cpu:1/cpu:2"
    )]
    OneDevice(SpeculatorKind),
    /// See [`PlacementError`].
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

/// A text that is none of an option's values.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{found:?} is not one of {expected}")]
pub struct UnknownValue {
    found: String,
    expected: &'static str,
}

impl UnknownValue {
    pub(crate) fn new(found: &str, expected: &'static str) -> Self {
        Self { found: found.to_owned(), expected }
    }
}

//! Decoding methods, and what the parallel ones do not support.

use super::{DraftTokens, DrafterKind, Options, PlanError, Tree, UnknownValue};
use forerun_formats::SpeculatorKind;
use std::fmt;
use std::str::FromStr;

/// A decoding method: when tokens are drafted, and when they are verified.
///
/// Parsed from and displayed as `autoregressive`, `speculative`, `pearl` and `dsi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Plain decoding: one forward pass of the target per token.
    Autoregressive,
    /// Speculative decoding: draft, verify, repeat (Leviathan et al., arXiv 2211.17192).
    Speculative,
    /// Draft and verify at the same time (PEARL, arXiv 2408.11850).
    Pearl,
    /// Verify on several replicas of the target while drafting continues (DSI, arXiv 2405.14105).
    Dsi,
}

impl Method {
    /// Returns whether the drafter works while the target does.
    #[must_use]
    pub fn is_parallel(self) -> bool {
        matches!(self, Self::Pearl | Self::Dsi)
    }
}

/// Refuses options that a parallel method does not support: trees, and everything that depends on
/// the target's last pass, since drafting does not wait for it.
pub(super) fn check_runs_in_parallel(
    options: &Options,
    method: Method,
    drafter: DrafterKind,
) -> Result<(), PlanError> {
    if !method.is_parallel() {
        return Ok(());
    }
    if options.tree != Tree::None {
        return Err(PlanError::ChainsOnly(method));
    }
    if drafter.learns_from_feedback() {
        return Err(PlanError::NeedsFeedback(drafter, method));
    }
    match options.draft_tokens {
        DraftTokens::Assisted => Err(PlanError::AssistedNeedsRounds(method)),
        _ => Ok(()),
    }
}

/// Refuses drafters on the target's features for parallel methods: features exist only for tokens
/// that the target has processed, so drafting cannot run ahead of it.
pub(super) fn check_features(found: SpeculatorKind, method: Method) -> Result<(), PlanError> {
    match method.is_parallel() && found.reads_features() {
        true => Err(PlanError::NeedsFeatures(found, method)),
        false => Ok(()),
    }
}

impl FromStr for Method {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        match text {
            "autoregressive" => Ok(Self::Autoregressive),
            "speculative" => Ok(Self::Speculative),
            "pearl" => Ok(Self::Pearl),
            "dsi" => Ok(Self::Dsi),
            _ => Err(UnknownValue::new(text, "autoregressive, speculative, pearl, dsi")),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Autoregressive => "autoregressive",
            Self::Speculative => "speculative",
            Self::Pearl => "pearl",
            Self::Dsi => "dsi",
        })
    }
}

//! Decides when tokens are drafted and verified, and what cannot be had where drafting goes on meanwhile.

use super::{DraftTokens, DrafterKind, Options, PlanError, Tree, UnknownValue};
use forerun_model::SpeculatorKind;
use std::fmt;
use std::str::FromStr;

/// When tokens are drafted and verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One target forward a token.
    Autoregressive,
    /// Draft, then verify, in turn.
    Speculative,
    /// Draft and verify at the same time (PEARL).
    Pearl,
    /// Verify on several target replicas while drafting goes on (DSI).
    Dsi,
}

impl Method {
    /// Whether drafting goes on while the target works.
    #[must_use]
    pub fn is_parallel(self) -> bool {
        matches!(self, Self::Pearl | Self::Dsi)
    }
}

/// Refuses trees, and whatever goes by the target's last pass, where drafting does not wait for it.
pub(super) fn check_in_turn(
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
    if drafter.reads_scores() {
        return Err(PlanError::LearnsInTurn(drafter, method));
    }
    match options.draft_tokens {
        DraftTokens::Assisted => Err(PlanError::AssistedInTurn(method)),
        _ => Ok(()),
    }
}

/// Features exist for tokens that the target has read, so that drafting cannot run ahead of it.
pub(super) fn check_features(found: SpeculatorKind, method: Method) -> Result<(), PlanError> {
    match method.is_parallel() && found.reads_features() {
        true => Err(PlanError::FeaturesInTurn(found, method)),
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

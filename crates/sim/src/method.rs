//! What can be simulated: the production decoders.

use forerun_core::DraftShape;
use forerun_decode::{
    Autoregressive, Decoder, DraftLength, Dsi, DsiLookahead, Pearl, PearlDraftLength, PearlOptions,
    PearlSchedule, Speculative, SpeculativeDraftLength,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// When tokens are drafted and verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimulatedMethod {
    /// One target forward a token.
    Autoregressive,
    /// Draft, then verify, in turn.
    #[default]
    Speculative,
    /// Drafting beside verification, in rounds that end with the target's pass.
    Pearl,
    /// The same in rounds of the paper, which wait for all draft tokens.
    PearlPaper,
    /// The paper's rounds, in which the drafter runs alone while nothing is unverified.
    PearlNoPreVerify,
    /// The paper's rounds, in which the drafter waits while something is unverified.
    PearlNoPostVerify,
    /// Verifications of all drafters' tokens on all targets at once; the draft length is the lookahead.
    Dsi,
}

impl SimulatedMethod {
    /// All methods with their names.
    pub const NAMES: [(Self, &str); 7] = [
        (Self::Autoregressive, "autoregressive"),
        (Self::Speculative, "speculative"),
        (Self::Pearl, "pearl"),
        (Self::PearlPaper, "pearl-paper"),
        (Self::PearlNoPreVerify, "pearl-no-pre-verify"),
        (Self::PearlNoPostVerify, "pearl-no-post-verify"),
        (Self::Dsi, "dsi"),
    ];

    /// The decoder, which drafts so many tokens in a row, for so many target replicas. DSI has all
    /// `drafters`, every other method the first.
    pub(crate) fn decoder(
        self,
        draft_tokens: usize,
        targets: usize,
        drafters: usize,
    ) -> Box<dyn Decoder> {
        let chain = DraftShape::Chain { length: draft_tokens };
        let pearl = |options: PearlOptions| {
            let goes_on = options.schedule == PearlSchedule::Eager;
            Box::new(Pearl::new(
                options,
                PearlDraftLength::new(draft_tokens, DraftLength::Fixed, goes_on),
            ))
        };
        let paper = PearlOptions { schedule: PearlSchedule::Paper, ..PearlOptions::default() };
        match self {
            Self::Autoregressive => Box::new(Autoregressive),
            Self::Speculative => {
                Box::new(Speculative::new(SpeculativeDraftLength::new(chain, DraftLength::Fixed)))
            }
            Self::Pearl => pearl(PearlOptions::default()),
            Self::PearlPaper => pearl(paper),
            Self::PearlNoPreVerify => pearl(PearlOptions { pre_verify: false, ..paper }),
            Self::PearlNoPostVerify => pearl(PearlOptions { post_verify: false, ..paper }),
            Self::Dsi => {
                let each = targets.div_ceil(drafters.max(1));
                let lookahead = DsiLookahead::new(draft_tokens, DraftLength::Fixed, each);
                Box::new(Dsi::new(targets, lookahead).with_drafters(drafters))
            }
        }
    }
}

impl fmt::Display for SimulatedMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(method, _)| method == self);
        f.pad(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for SimulatedMethod {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let method = Self::NAMES.iter().find(|(_, name)| *name == text);
        method.map(|(method, _)| *method).ok_or_else(|| {
            let names = Self::NAMES.map(|(_, name)| name).join(", ");
            format!("{text:?} is not one of {names}")
        })
    }
}

//! The decoding methods that can be simulated.

use crate::{Cost, Simulation};
use forerun_core::DraftShape;
use forerun_decode::{
    Autoregressive, Decoder, DraftLength, Dsi, DsiLookahead, Pearl, PearlDraftLength, PearlOptions,
    PearlSchedule, Policy, Speculative, SpeculativeDraftLength, Ssd,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A decoding method. It determines when tokens are drafted and verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimulatedMethod {
    /// Autoregressive decoding: one target pass per token.
    Autoregressive,
    /// Speculative decoding, which alternates drafting and verification.
    #[default]
    Speculative,
    /// PEARL with the eager schedule: it drafts during verification, and a round ends with the
    /// target's pass.
    Pearl,
    /// PEARL with the eager schedule and automatic draft lengths up to the given one.
    PearlAuto,
    /// PEARL with the paper's schedule: a round also waits for all draft tokens.
    PearlPaper,
    /// PEARL with the paper's schedule, without pre-verify: the drafter runs alone while there are
    /// no unverified tokens.
    PearlNoPreVerify,
    /// PEARL with the paper's schedule, without post-verify: the drafter waits while there are
    /// unverified tokens.
    PearlNoPostVerify,
    /// DSI, which verifies the tokens of all drafters on all targets in parallel. The draft length
    /// is the lookahead.
    Dsi,
    /// SSD, which prepares drafts for the likely verdicts during verification.
    Ssd,
}

impl SimulatedMethod {
    /// All methods with the names that [`FromStr`] accepts.
    pub const NAMES: [(Self, &str); 9] = [
        (Self::Autoregressive, "autoregressive"),
        (Self::Speculative, "speculative"),
        (Self::Pearl, "pearl"),
        (Self::PearlAuto, "pearl-auto"),
        (Self::PearlPaper, "pearl-paper"),
        (Self::PearlNoPreVerify, "pearl-no-pre-verify"),
        (Self::PearlNoPostVerify, "pearl-no-post-verify"),
        (Self::Dsi, "dsi"),
        (Self::Ssd, "ssd"),
    ];

    /// Creates the decoder of this method for the replicas and the draft length of a simulation.
    /// DSI uses all drafters; every other method uses the first one.
    pub(crate) fn decoder(self, simulation: &Simulation) -> Box<dyn Decoder> {
        let draft_tokens = simulation.draft_tokens;
        let chain = DraftShape::Chain { length: draft_tokens };
        let in_one_pass = simulation.drafters.first().is_some_and(Cost::drafts_in_one_pass);
        let tokens_per_forward = if in_one_pass { usize::MAX } else { 1 };
        let pearl = |options: PearlOptions| {
            let mode = match self {
                Self::PearlAuto => DraftLength::Auto,
                _ => DraftLength::Fixed,
            };
            let is_eager = options.schedule == PearlSchedule::Eager;
            let length = PearlDraftLength::new(draft_tokens, mode, is_eager)
                .with_tokens_per_forward(tokens_per_forward);
            Box::new(Pearl::new(options, length))
        };
        let paper = PearlOptions { schedule: PearlSchedule::Paper, ..PearlOptions::default() };
        match self {
            Self::Autoregressive => Box::new(Autoregressive),
            Self::Speculative => {
                Box::new(Speculative::new(SpeculativeDraftLength::new(chain, DraftLength::Fixed)))
            }
            Self::Ssd => Box::new(Ssd::new(SpeculativeDraftLength::new(chain, DraftLength::Fixed))),
            Self::Pearl | Self::PearlAuto => pearl(PearlOptions::default()),
            Self::PearlPaper => pearl(paper),
            Self::PearlNoPreVerify => pearl(PearlOptions { pre_verify: false, ..paper }),
            Self::PearlNoPostVerify => pearl(PearlOptions { post_verify: false, ..paper }),
            Self::Dsi => {
                let targets = simulation.targets.len();
                let drafters = simulation.drafters.len();
                let targets_per_drafter = targets.div_ceil(drafters.max(1));
                let lookahead =
                    DsiLookahead::new(draft_tokens, DraftLength::Fixed, targets_per_drafter)
                        .with_tokens_per_forward(tokens_per_forward);
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

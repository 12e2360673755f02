//! The decoders, which decide when tokens are drafted and verified, and the loop that drives them.
//! Each decoder has its own file.
//!
//! A decoder uses a [`Cluster`](forerun_core::Cluster), never a model. It starts no threads, never
//! sleeps, and reads no clock: it takes all times from completions. So the same code runs on
//! threads, on simulated devices, and in virtual time.

mod auto;
mod autoregressive;
mod draft_ahead;
mod draft_rounds;
mod dsi;
mod generate;
mod jobs;
mod lookup;
mod metered_cluster;
mod method;
mod nominal_times;
mod pearl;
mod pearl_options;
mod registry;
mod repeated_drafters;
mod replicas;
mod score_task;
mod sequence;
mod speculative;
mod ssd;
mod statistics;

pub use auto::Auto;
pub use autoregressive::Autoregressive;
pub use dsi::Dsi;
pub use generate::{Decoder, generate, next_tokens};
pub use method::{
    AnswerDecoder, DecoderOptions, DraftPattern, DrafterSize, Drafting, MakeGuesser, MethodEntry,
};
pub use pearl::Pearl;
pub use pearl_options::{PearlOptions, PearlSchedule, UnknownPearlOption};
pub use registry::{AUTO_IN_TURNS, METHODS, new_decoder};
pub use sequence::{Finish, Limits, Sequence, VerificationRecord};
pub use speculative::Speculative;
pub use ssd::Ssd;
pub use statistics::Statistics;

pub use forerun_plan::{
    DraftLength, DsiLookahead, PearlDraftLength, Policy, RankedRound, Round, SharedGoodput,
    SpeculativeDraftLength, TreeLimits, drafter_cores, typical_tree,
};

use forerun_core::{ClusterError, JobError};

/// The reason why decoding failed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The cluster cannot serve.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A job of this sequence failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A worker's reply does not match its job, such as the wrong kind of output or missing rows.
    #[error("a worker's reply does not match its job: {0}")]
    Answer(&'static str),
}

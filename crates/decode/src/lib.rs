//! The decoders: when tokens are drafted and verified. One file each, and the one loop that drives
//! them.
//!
//! A decoder sees a [`Cluster`](forerun_core::Cluster), never a model. It spawns no thread, sleeps
//! never and reads no clock: times reach it in completions. So the same source runs on threads, on
//! simulated devices, and in virtual time.

mod autoregressive;
mod chain;
mod controller;
mod drafting;
mod dsi;
mod estimates;
mod exchange;
mod generate;
mod lookahead;
mod pace;
mod pearl;
mod pearl_options;
mod replicas;
mod sequence;
mod speculative;
mod statistics;

pub use autoregressive::Autoregressive;
pub use controller::{Controller, DraftLength};
pub use dsi::Dsi;
pub use generate::{Decoder, generate};
pub use lookahead::Lookahead;
pub use pace::Pace;
pub use pearl::Pearl;
pub use pearl_options::{PearlOptions, Schedule, UnknownPearlOption};
pub use sequence::{Finish, Limits, Sequence, Verified};
pub use speculative::Speculative;
pub use statistics::Statistics;

use forerun_core::{ClusterError, JobError};

/// Why a sequence could not go on.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The cluster cannot serve.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A job of this sequence failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A worker answered a job with another kind of output, or with too few rows.
    #[error("a worker's answer does not fit the job: {0}")]
    Answer(&'static str),
}

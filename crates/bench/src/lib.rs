//! Compares decoding methods fairly: the same prompts, the same models and the same cores, one
//! after another.
//!
//! 1. A [`suite`] supplies the prompts and a [`sweep`] the configurations.
//! 2. [`run()`] lets all configurations answer every prompt and records the answers in a
//!    [`Journal`]. Every answer is compared with that of autoregressive decoding.
//! 3. [`metrics`] and [`summary`] compute tables from the answers, and [`report`] writes them as
//!    pages.
//!
//! [`load`] measures servers under several clients.
//!
//! [`peers`] are other engines that answer the same prompts, for comparison with ours.
//!
//! [`planning`] measures what passes cost in real answers, from which the simulator predicts all
//! configurations.
//!
//! This crate may use files, clocks, the processes of peers, the network, the simulator, and the
//! facade crate `forerun`. Of the crates below the facade, it uses only the jobs of `forerun-core`.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "tests"))]

mod choice;
pub mod configuration;
mod engines;
pub mod equality;
mod error;
mod journal;
mod label;
pub mod layer_point;
pub mod load;
pub mod metrics;
pub mod pacing;
pub mod participant;
pub mod peer_comparison;
pub mod peers;
pub mod planning;
mod predicted;
pub mod preset;
mod provenance;
pub mod record;
pub mod report;
mod run;
pub mod suite;
pub mod summary;
pub mod sweep;
#[cfg(test)]
mod testing;
pub mod times;

pub use configuration::{Configuration, Models, configurations};
pub use engines::{Engines, LeftOut, PromptStyle};
pub use error::BenchError;
pub use journal::Journal;
pub use participant::{Participant, participants};
pub use peers::{EnginesAndPeers, PeerSpec};
pub use predicted::{PredictedSpeed, Unpredicted, predicted_speeds};
pub use preset::Preset;
pub use provenance::Provenance;
pub use run::{Answerer, Progress, RunSchedule, run};
pub use suite::Prompt;
pub use summary::Summary;
pub use sweep::{Sweep, SweepFile};

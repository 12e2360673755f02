//! Fair comparison of decoding methods: the same prompts, the same models, the same cores, in turn.
//!
//! A [`suite`] gives prompts, a [`sweep`] the configurations, [`run()`] lets them answer in turn
//! and keeps every answer in a [`Journal`], [`metrics`] and [`summary`] turn answers into tables,
//! and [`report`] into pages. Every answer is compared with that of autoregressive decoding.
//! [`peers`] are other engines that answer the same prompts in turn with ours.
//!
//! This crate may touch files, clocks, the processes of peers and the facade; it knows nothing of what is below that.

mod choice;
pub mod configuration;
pub mod contestant;
mod engines;
pub mod equality;
mod error;
mod journal;
mod label;
pub mod layer_point;
pub mod metrics;
pub mod peers;
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
pub mod versus;

pub use configuration::{Configuration, Models, configurations};
pub use contestant::{Contestant, contestants};
pub use engines::{Engines, LeftOut, PromptStyle};
pub use error::BenchError;
pub use journal::Journal;
pub use peers::{Field, PeerSpec};
pub use preset::Preset;
pub use provenance::Provenance;
pub use run::{Answerer, Progress, RunSchedule, run};
pub use suite::Prompt;
pub use summary::Summary;
pub use sweep::{Sweep, SweepFile};

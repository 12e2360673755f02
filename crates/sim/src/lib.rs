//! The production decoders in virtual time.
//!
//! A [`SimCluster`] stands behind the same `Cluster` trait as threads do: jobs queue at devices whose
//! forward passes take what a [`Cost`] says, and the clock jumps from one completion to the next. What
//! models would answer comes from an [`Oracle`], so that verification is real and the text can be
//! checked. Nothing here touches threads, clocks or files, and the same input gives the same trace.

mod answer;
mod cluster;
mod cost;
mod oracle;

pub use answer::{SimulatedAnswer, Simulation};
pub use cluster::{Cancellation, Device, Fault, FaultKind, SimCluster, SimError};
pub use cost::{Cost, ForwardCost};
pub use oracle::{Acceptance, Oracle};

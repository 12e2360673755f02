//! The production decoders in virtual time.
//!
//! A [`SimCluster`] stands behind the same `Cluster` trait as threads do: jobs queue at devices whose
//! forward passes take what a [`Cost`] says, and the clock jumps from one completion to the next. What
//! models would answer comes from an [`Oracle`], so that verification is real and the text can be
//! checked. The same input gives the same trace. Nothing here touches threads, clocks or files but
//! [`sweep`], which simulates on all cores, and
//! [`Simulation::run_in_real_time`], where waits on threads stand for passes.

mod answer;
mod calibration;
mod cluster;
mod cost;
mod device;
mod error;
mod method;
mod oracle;
pub mod papers;
mod parameters;
mod pipeline;
mod real_time;
pub mod sweep;

pub use answer::{SimulatedAnswer, Simulation};
pub use calibration::{Calibration, MeasuredPasses};
pub use cluster::{Cancellation, SimCluster, Usage};
pub use cost::{Cost, ForwardCost};
pub use device::{Device, Fault, FaultKind};
pub use error::SimError;
pub use method::SimulatedMethod;
pub use oracle::{AcceptanceModel, Oracle};
pub use parameters::Parameters;
pub use pipeline::SharedDevices;
pub use real_time::WaitedAnswer;

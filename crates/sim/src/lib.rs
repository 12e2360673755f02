//! Runs the production decoders in virtual time.
//!
//! A [`SimCluster`] implements the same `Cluster` trait as the thread-based runtime. Jobs queue at
//! devices, a forward pass takes the time given by a [`Cost`], and the clock jumps from one
//! completion to the next. An [`Oracle`] supplies the models' outputs, so verification is real and
//! the text can be checked. The same input gives the same trace.
//!
//! Only three parts of this crate use threads, clocks or files: [`sweep`], which simulates on all
//! cores, [`Simulation::run_in_real_time`], which replaces passes by waits on threads, and
//! [`SimCluster::run_together`], in which the decoders of several sequences take turns.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "tests"))]

mod answer;
mod calibration;
mod cluster;
mod cost;
mod device;
mod error;
mod gather_costs;
mod method;
mod oracle;
pub mod papers;
mod parameters;
mod pipeline;
pub mod planning;
mod real_time;
pub mod sweep;
mod together;
mod transfer_costs;

pub use answer::{SimulatedAnswer, SimulatedAnswers, Simulation};
pub use calibration::{Calibration, MeasuredPasses};
pub use cluster::{Cancellation, SimCluster, Usage};
pub use cost::{Cost, ForwardCost};
pub use device::{Device, Fault, FaultKind};
pub use error::SimError;
pub use gather_costs::GatherCosts;
pub use method::SimulatedMethod;
pub use oracle::{AcceptanceModel, Oracle};
pub use parameters::Parameters;
pub use pipeline::SharedDevices;
pub use real_time::RealTimeAnswer;
pub use together::SequenceCluster;
pub use transfer_costs::TransferCosts;

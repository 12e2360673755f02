//! The CPU as a device: kernels, teams of threads, packed weights and forward passes.
//!
//! A [`Team`] is a device: a set of cores with one thread each. [`Transformer`] and [`CpuHeads`]
//! compute models on it. This crate may use threads and processor instructions. It has no notion of
//! files, drafting, verification or scheduling.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "tests"))]

mod adapters;
mod block_heads;
pub mod ceiling;
mod cpu_pages;
mod feature_pages;
mod heads;
pub mod importance;
mod kernels;
pub mod layer_probe;
pub mod measure;
pub mod pipeline;
pub mod quality;
mod snapshot;
pub mod stages;
pub mod team;
pub mod tensor_parallel;
pub mod transformer;
pub mod weights;

pub use adapters::AdapterWeights;
pub use block_heads::{BlockHeadWeights, CpuBlockHeads};
pub use cpu_pages::CpuPages;
pub use heads::{CpuHeads, HeadWeights, SpeculatorWeights};
pub use kernels::{ARITHMETIC, Isa, IsaError, PackedMatrix};
pub use pipeline::{AlternatingModel, ExclusiveDevice, PipelineError, PipelineParallelModel};
pub use snapshot::snapshot;
pub use stages::{Stage, StageFollower, StagedModel};
pub use team::{AffinityGuard, AtWork, LentCores, Team, TeamError, move_this_thread};
pub use tensor_parallel::{
    Exchange, ExchangeError, LEADER, Recipients, Share, Take, TensorParallelFollower,
    TensorParallelModel, ThreadExchange,
};
pub use transformer::{GroupParallelism, Transformer};
pub use weights::{CorePart, Weights};

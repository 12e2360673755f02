//! Workers, device groups, placement, and the cluster of threads.
//!
//! This crate may touch threads, clocks and cores. It runs jobs and knows what plays which role;
//! it decides nothing about what is drafted, verified or committed.

mod engine;
mod inline;
mod placement;
mod recorder;
mod shared_device;
mod thread_cluster;
mod timed;
mod worker;

pub use engine::Engine;
pub use inline::InlineCluster;
pub use placement::{
    DeviceGroup, Groups, Placement, PlacementError, available_cores, cores_within_quota,
};
pub use shared_device::{DeviceLease, SharedDevice};
pub use thread_cluster::{Canceller, Runtime, StartError, ThreadCluster};
pub use timed::Timed;
pub use worker::{BuildEngine, WorkerSpec};

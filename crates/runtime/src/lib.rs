//! Workers, device groups, placement, and the cluster of threads.
//!
//! This crate may use threads, clocks and cores, and read what the system says about its memory. It runs jobs on the workers of their roles. What is
//! drafted, verified and committed is decided elsewhere.

mod cgroup;
mod engine;
#[cfg(any(test, feature = "testing"))]
mod inline;
mod memory;
mod placement;
mod recorder;
mod shared_device;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod thread_cluster;
mod timed;
mod worker;
mod worker_loop;
mod workers;

pub use engine::Engine;
#[cfg(any(test, feature = "testing"))]
pub use inline::InlineCluster;
pub use memory::available_memory;
pub use placement::{
    DeviceGroup, DeviceGroups, Placement, PlacementError, available_cores, cores_within_quota,
};
pub use shared_device::{DeviceLease, SharedDevice};
pub use thread_cluster::{Canceller, Runtime, StartError, ThreadCluster};
pub use timed::TimedModel;
pub use worker::{BuildEngine, WorkerSpec};
pub use workers::{ClusterHandle, Workers};

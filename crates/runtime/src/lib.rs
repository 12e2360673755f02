//! Workers, device groups, placement, and the cluster of threads.
//!
//! This crate may use threads, clocks, cores, and the files in which the system describes them. It
//! runs jobs on the workers of their roles. What is drafted, verified and committed is decided
//! elsewhere.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "tests"))]

mod cgroup;
mod engine;
mod inline;
mod memory;
mod nearness;
mod pace;
mod pending_job;
mod placement;
mod prompt_parts;
mod recorder;
mod remote_workers;
mod serve_messages;
mod shared_device;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod thread_cluster;
mod timed;
mod topology;
mod worker;
mod worker_loop;
mod workers;

pub use engine::Engine;
pub use inline::InlineCluster;
pub use memory::available_memory;
pub use pace::{Pace, PassTimes, ns_of_rows};
pub use placement::{DeviceGroup, DeviceGroups, Placement, PlacementError};
pub use remote_workers::{RemoteProcess, RemoteWorkers};
pub use serve_messages::{MessageQueue, MessageServer};
pub use shared_device::{DeviceLease, SharedDevice};
pub use thread_cluster::{Canceller, Runtime, StartError, ThreadCluster};
pub use timed::TimedModel;
pub use topology::{CpuQuota, ThreadLimit, Topology, available_cores, default_cores};
pub use worker::{BuildEngine, TeamSpec, WorkerSpec};
pub use workers::{ClusterHandle, Workers};

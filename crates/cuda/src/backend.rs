//! The interfaces of wgpu.
//!
//! A command encoder only collects commands. [`queue`] runs them on the device's stream when they
//! are submitted, and keeps the memory that they use until an event after them has passed. What is
//! submitted again and again becomes a graph ([`graphs`]). Errors are those of wgpu: they go to the
//! scopes of the calling thread, or else to the handler of errors that no scope has caught. A call
//! of the driver that fails means that the device is lost.
//!
//! wgpu's interfaces have many functions for graphics, which this crate does not have. wgpu cannot
//! reach them without a feature that the adapter does not offer, or a resource that it does not
//! create. They panic, as wgpu does in such cases.

mod adapter;
mod buffer;
mod commands;
mod device;
mod errors;
mod graphs;
mod kept;
mod pipeline;
mod queue;

pub use adapter::is_cuda;
pub(crate) use adapter::{adapters_of, describe};
pub use device::{capability, code_key, cuda_c_module, launches, memory};
pub use graphs::GRAPHS_VARIABLE;
pub use queue::Launches;

/// What is not there, in panics of functions for graphics.
const COMPUTES_ONLY: &str = "CUDA devices have no graphics";

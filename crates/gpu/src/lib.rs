//! GPUs as devices, through Vulkan, Direct3D 12, Metal or CUDA (feature `cuda`).
//!
//! [`GpuDevice::adapters`] lists the GPUs, [`GpuDevice::open`] opens one, and [`GpuModel::load`]
//! puts a model on it: a [`Forward`](forerun_model::Forward) as on the CPU. What GPUs do not
//! compute yet is refused when a model is loaded ([`GpuLoadError::Unsupported`]).
//!
//! # Bits
//!
//! A row's bits depend only on its own prefix, never on other rows, slots or pages. With Vulkan,
//! and with CUDA except on tensor cores ([`Arithmetic`]), they are defined (see the guide): shaders
//! forbid the driver to contract or reorder arithmetic, functions are this crate's own, and every
//! sum has one order, for any number of rows and on every GPU:
//!
//! * a product with a matrix: product `i` belongs to partial sum `(i / 8) mod 32`;
//! * norms and the weights of attention: term `i` belongs to partial sum `i mod 256`, where `i` is
//!   the position in attention;
//! * then the upper half of the partial sums is added to the lower half until one is left;
//! * a convolution adds its products from the oldest position to the row's own, and sums over the
//!   keys of a recurrent state are in ascending order;
//! * attention takes 256 positions at a time, and combines the results in ascending order.
//!
//! Weights in blocks are multiplied as the numbers that they stand for. `Arithmetic::gpu` in
//! `forerun-reference` states the same for the slow reference, which has the same bits in tests.
//! With Direct3D 12 and Metal, the driver compiles WGSL, which allows it to change bits. Those two
//! have never run. Apple's systems have Metal only: SPIR-V, and so the whole of `spirv.rs`, is for
//! the others.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "tests"))]

mod adapter;
mod arithmetic;
mod attention;
mod bandwidth;
mod best;
mod block_conv;
mod closing;
mod cost;
mod cuda;
mod device;
mod error;
mod expert_matrix;
mod features;
mod first_layers;
mod free_memory;
mod head_matrix;
mod heads;
mod health;
mod kernel;
#[cfg(test)]
mod kernel_bench;
mod kernel_timer;
mod latent;
mod layer_plan;
mod layer_weights;
mod matrix;
mod memory;
mod mixture;
mod model;
mod own_input;
mod pacer;
mod pages;
mod parameters;
mod pass;
mod pipeline;
mod pipeline_store;
mod probe;
mod product;
#[cfg(test)]
mod product_shapes;
mod recorder;
mod recurrent;
mod rows;
mod rules;
mod scratch;
#[cfg(not(target_vendor = "apple"))]
mod spirv;
mod states;
mod support;
mod tensor_tiles;
#[cfg(test)]
mod testing;
mod uploader;
mod weights;
mod widths;

pub use adapter::{AdapterKind, GpuAdapter};
pub use arithmetic::Arithmetic;
pub use cost::{PassCost, PassTimes};
pub use cuda::CudaLaunches;
pub use device::{GpuDevice, GpuOptions};
pub use error::{GpuError, GpuFailure, GpuLoadError};
pub use first_layers::GpuLayers;
pub use heads::{GpuHeadWeights, GpuHeads};
pub use kernel_timer::KernelTime;
pub use layer_plan::{LayerCount, LayerOptions};
pub use model::GpuModel;
pub use pages::GpuPages;
pub use probe::Probe;
pub use rules::GpuRules;
pub use weights::GpuWeights;

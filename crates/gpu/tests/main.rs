//! Passes on GPUs. All tests are one program, because each program takes seconds to link.

mod batches;
mod common;
mod comparison;
#[cfg(feature = "cuda")]
mod cuda;
mod devices;
mod families;
mod graphs;
mod mixtures;
mod models;
mod pipeline_files;
mod reference_device;
mod row_invariance;
mod speculators;
mod split_models;

//! Passes on GPUs. All tests are one program, because each program takes seconds to link.

#![expect(clippy::unwrap_used, reason = "tests")]

mod batches;
mod common;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod devices;
mod graphs;
mod mixtures;
mod pipeline_files;
mod reference_device;
mod row_invariance;
mod speculators;
mod split_models;
mod tensor;

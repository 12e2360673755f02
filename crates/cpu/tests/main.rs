//! Passes on the CPU. All tests are one program, because each program takes seconds to link.

#![expect(clippy::unwrap_used, reason = "tests")]

mod adapters;
mod batches;
mod device;
mod encoders;
mod features;
mod hybrids;
mod layer_groups;
mod pipeline;
mod reference_device;
mod row_invariance;
mod speculators;
mod stages;
mod tensor_parallel;

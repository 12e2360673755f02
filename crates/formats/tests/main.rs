//! Files of models. All tests are one program, because each program takes seconds to link.

#![expect(clippy::unwrap_used, reason = "tests")]

mod block_types;
mod checkpoint_errors;
mod eagle3_options;
mod fuzz_configurations;
mod gguf;
mod quantized;

//! Training. All tests are one program, because each program takes seconds to link.

#![expect(clippy::unwrap_used, reason = "tests")]

mod batches;
mod common;
mod dataset;
mod engine_parity;
mod resume;
mod tokenizer;

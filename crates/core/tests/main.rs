//! Sampling and verification. All tests are one program, because each program takes seconds to
//! link.

mod block_verification;
mod sampling_parity;

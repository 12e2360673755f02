//! Decoders in virtual time. All tests are one program, because each program takes seconds to link.

#![expect(clippy::unwrap_used, reason = "tests")]

mod answers;
mod auto;
mod common;
mod decoders;
mod drafters;
mod dsi;
mod groups;
mod load;
mod papers;
mod pearl;
mod planning;
mod real_time;
mod ssd;
mod sweeps;
mod together;
mod worlds;

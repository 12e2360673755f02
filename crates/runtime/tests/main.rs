//! Workers, and decoders on them. All tests are one program, because each program takes seconds to
//! link.

#![expect(clippy::unwrap_used, reason = "tests")]

mod cluster;
mod costs;
mod parallel_fuzz;
mod partial_rows;
mod reproducible;
mod shared_devices;
mod topology;

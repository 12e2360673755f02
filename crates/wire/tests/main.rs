//! Bytes between an engine and its workers. All tests are one program, because each program takes
//! seconds to link.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;
mod connection;
mod ends;
mod fuzz;
mod sizes;

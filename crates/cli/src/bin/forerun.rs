//! The `forerun` program.

use std::process::ExitCode;

/// A server that compiles many grammars on several threads keeps three times the memory with the
/// allocator of glibc, and that of musl is slow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    forerun_cli::run(std::env::args_os().collect())
}

//! The `forerun` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    forerun_cli::run(std::env::args_os().collect())
}

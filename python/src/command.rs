//! The `forerun` command.

use crate::errors::engine_error;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the `forerun` command with these arguments, of which the first is the program's name.
/// Returns its exit code.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    let code = py.detach(|| forerun_cli::run(arguments));
    // An exit code cannot be read, but compared.
    let is_code = |number: &u8| ExitCode::from(*number) == code;
    (0..=u8::MAX).find(is_code).ok_or_else(|| engine_error("the command has no exit code"))
}

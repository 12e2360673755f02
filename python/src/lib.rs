//! The native module of the Python package `forerun`: the engine as few classes with simple types.
//! The package's Python code gives them the form that users know.

mod answers;
mod chat;
mod command;
mod engine;
mod errors;
mod options;
mod output;
mod params;
mod stream;
mod trace;

use pyo3::prelude::*;

/// The engine of the package `forerun`.
#[pymodule]
mod _forerun {
    #[pymodule_export]
    use crate::chat::Conversation;
    #[pymodule_export]
    use crate::command::run_command;
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::errors::ForerunError;
    #[pymodule_export]
    use crate::params::check_params;
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::trace::Trace;
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}

//! Python's exceptions for the engine's errors.

use forerun::text::GrammarError;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::{PyErr, create_exception};
use std::fmt::Display;

create_exception!(
    forerun,
    ForerunError,
    PyException,
    "The engine cannot do what it was asked to do: a model cannot be loaded, decoding failed, or the engine is closed."
);

/// The library's names of options that have another name in Python.
const OTHER_NAMES: [(&str, &str); 4] = [
    ("`weight_type", "`dtype"),
    ("`cache_type", "`kv_cache_dtype"),
    ("`cache_bytes", "`kv_cache_memory_bytes"),
    ("`additional_drafters", "`also_draft"),
];

fn message(error: impl Display) -> String {
    let rename = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    OTHER_NAMES.iter().fold(error.to_string(), rename)
}

/// Returns the exception of an argument that cannot be used.
pub(crate) fn value_error(error: impl Display) -> PyErr {
    PyValueError::new_err(message(error))
}

/// Returns the exception of everything else.
pub(crate) fn engine_error(error: impl Display) -> PyErr {
    ForerunError::new_err(message(error))
}

/// Returns the exception of an engine that has been closed.
pub(crate) fn closed() -> PyErr {
    engine_error("the engine is closed: create a new LLM")
}

/// Returns the exception of an error of the engine.
pub(crate) fn of_engine(error: &forerun::ForerunError) -> PyErr {
    use forerun::ForerunError as Error;
    match error {
        Error::Plan(_)
        | Error::Request(_)
        | Error::EmptyPrompt
        | Error::PromptTooLong { .. }
        | Error::PromptFarTooLong { .. }
        | Error::TextTooLong { .. }
        | Error::UnknownToken { .. }
        | Error::NoEmbeddings { .. }
        | Error::OnlyEmbeddings { .. } => value_error(error),
        Error::Grammar(GrammarError::Stuck { .. }) => engine_error(error),
        Error::Grammar(_) => value_error(error),
        _ => engine_error(error),
    }
}

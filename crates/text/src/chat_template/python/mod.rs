//! Values as Python prints, compares and formats them, and Python's methods and Jinja's filters on
//! them.
//!
//! Templates are written for jinja2, whose values are Python's. minijinja's operators and filters
//! differ in details that change texts, so those are replaced here. The budget pays for each of
//! them before it runs, as for minijinja's own.

mod arguments;
mod calls;
mod characters;
mod containers;
mod filters;
mod format;
mod json;
mod macros;
mod operators;
mod sequences;
mod strings;
mod text;

pub(super) use arguments::items;
pub(super) use calls::call;
pub(super) use characters::{ends_line, is_space};
use containers::is_method;
pub(super) use containers::{check_text, names_method, namespace};
pub(super) use macros::{Bound, bind_macros};
pub(super) use operators::{ADD, ATTRIBUTE, CONCATENATE, ITEM, REMAINDER, SLICE, UNPACKED, check};
pub(super) use text::str;

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

/// Replaces what differs from jinja2.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(method);
    operators::install(environment);
    macros::install(environment);
    filters::install(environment);
    sequences::install(environment);
    containers::install(environment);
    environment.add_filter("tojson", json::to_json);
}

/// Calls a method of a string, number, list or dictionary.
fn method(_: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    if name.starts_with("__") {
        return Err(failure(format!("the attribute {name} is not safe in a template")));
    }
    let called = match value.kind() {
        ValueKind::String => strings::method(value.as_str().unwrap_or_default(), name, arguments)?,
        ValueKind::Bytes => strings::bytes_method(value.as_bytes().unwrap_or_default(), name)?,
        _ => containers::method(value, name, arguments)?,
    };
    match called {
        Some(value) => Ok(value),
        None if is_method(value, name) => Err(failure(format!(
            "the method {name} of a Python {} is not supported",
            text::type_name(value)
        ))),
        None => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn failure(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

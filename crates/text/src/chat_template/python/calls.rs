//! Calls by name.

use super::failure;
use minijinja::value::Value;
use minijinja::{Error, State};

/// Calls what a name says: `name()`, `.method`, `|filter`, `is test`, or `()` for the first
/// argument.
pub(in super::super) fn call(
    state: &mut State,
    what: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if let Some(name) = what.strip_prefix('|') {
        return state.apply_filter(name, arguments);
    }
    if let Some(name) = what.strip_prefix("is ") {
        return state.perform_test(name, arguments).map(Value::from);
    }
    if let Some(name) = what.strip_suffix("()").filter(|name| !name.is_empty()) {
        let function = state.lookup(name).filter(|function| !function.is_undefined());
        let function = function.ok_or_else(|| failure(format!("{name} is unknown")))?;
        return function.call(state, arguments);
    }
    let (value, arguments) =
        arguments.split_first().ok_or_else(|| failure("a call without arguments"))?;
    match what.strip_prefix('.') {
        Some("cycle") if arguments.is_empty() => Err(failure("loop.cycle needs an argument")),
        Some(name) => value.call_method(state, name, arguments),
        None => value.call(state, arguments),
    }
}

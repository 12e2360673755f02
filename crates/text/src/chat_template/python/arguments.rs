//! Arguments of calls, bound to parameters as Python binds them.

use super::failure;
use super::text::type_name;
use minijinja::Error;
use minijinja::value::{DynObject, Value};

/// Binds the arguments of a call to its parameters.
///
/// # Errors
/// If there are too many arguments, or one that the call does not have.
pub(super) fn bind<const N: usize>(
    call: &str,
    parameters: [&str; N],
    given: &[Value],
) -> Result<[Option<Value>; N], Error> {
    let (positional, named) = match given.split_last() {
        Some((last, rest)) if last.is_kwargs() => (rest, Some(last)),
        _ => (given, None),
    };
    if positional.len() > N {
        return Err(failure(format!(
            "{call} takes at most {N} arguments, not {}",
            positional.len()
        )));
    }
    let mut bound = [const { None }; N];
    for (slot, value) in bound.iter_mut().zip(positional) {
        *slot = Some(value.clone());
    }
    for (name, value) in named.into_iter().flat_map(pairs) {
        let name = name.as_str().unwrap_or_default().to_owned();
        let Some(index) = parameters.iter().position(|parameter| *parameter == name) else {
            return Err(failure(format!("{call} has no argument {name}")));
        };
        if bound[index].replace(value).is_some() {
            return Err(failure(format!("{call} gets the argument {name} twice")));
        }
    }
    Ok(bound)
}

/// Returns the keys and values of a dictionary.
pub(super) fn pairs(value: &Value) -> Vec<(Value, Value)> {
    let object = value.as_object();
    object.and_then(DynObject::try_iter_pairs).into_iter().flatten().collect()
}

/// Returns an argument, which must be there.
pub(super) fn required(call: &str, name: &str, value: Option<Value>) -> Result<Value, Error> {
    value.ok_or_else(|| failure(format!("{call} needs the argument {name}")))
}

/// Returns a string.
pub(super) fn string<'a>(call: &str, value: &'a Value) -> Result<&'a str, Error> {
    value
        .as_str()
        .ok_or_else(|| failure(format!("{call} needs a string, not {}", type_name(value))))
}

/// Returns an integer, which may be a boolean as in Python.
pub(super) fn integer(call: &str, value: &Value) -> Result<i64, Error> {
    let number = match bool::try_from(value.clone()) {
        Ok(boolean) => Some(i64::from(boolean)),
        Err(_) if value.is_integer() => value.as_i64(),
        Err(_) => None,
    };
    number.ok_or_else(|| {
        failure(format!("{call} needs an integer of 64 bits, not {}", type_name(value)))
    })
}

/// Returns an integer, or a default if the argument is missing or `None`.
pub(super) fn integer_or(call: &str, value: Option<&Value>, default: i64) -> Result<i64, Error> {
    match value {
        Some(value) if !value.is_none() => integer(call, value),
        _ => Ok(default),
    }
}

/// Returns whether an argument is given and true.
pub(super) fn flag(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}

/// Returns the items of a value.
///
/// # Errors
/// If Python cannot iterate over it.
pub(in super::super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_none() {
        return Err(failure("None is not iterable"));
    }
    value.try_iter()?.checked().collect()
}

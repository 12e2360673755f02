//! Python's operators, where minijinja's differ.

use super::arguments::items;
use super::containers::{Method, is_method};
use super::filters::escape;
use super::sequences::slice;
use super::text::{as_float, str, type_name};
use super::{failure, format};
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Environment, Error};
use std::cmp::Ordering;

// Filters that compute an operator. No template can name them.
pub(in super::super) const ADD: &str = "=+";
pub(in super::super) const REMAINDER: &str = "=%";
pub(in super::super) const CONCATENATE: &str = "=~";
pub(in super::super) const SLICE: &str = "=[:]";
pub(in super::super) const ITEM: &str = "=[]";
/// `value | =attribute(name)`, for names of methods.
pub(in super::super) const ATTRIBUTE: &str = "=attribute";
/// The items of a value that is unpacked.
pub(in super::super) const UNPACKED: &str = "=unpacked";

pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_filter(ADD, add);
    environment.add_filter(REMAINDER, remainder);
    environment.add_filter(CONCATENATE, |left: &Value, right: &Value| str(left) + &str(right));
    environment.add_filter(SLICE, slice);
    environment.add_filter(ITEM, item);
    environment.add_filter(ATTRIBUTE, |value: &Value, name: &Value| Method::of(value, name));
    // A string is unpacked into its characters.
    environment.add_filter(UNPACKED, |value: &Value| match value.as_str() {
        Some(_) => items(value).map(Value::from),
        None => Ok(value.clone()),
    });
}

/// Two numbers of the same type.
pub(super) enum Numbers {
    Integers(i128, i128),
    Floats(f64, f64),
}

impl Numbers {
    pub(super) fn of(left: &Value, right: &Value) -> Option<Self> {
        Some(match (integer_of(left), integer_of(right)) {
            (Some(left), Some(right)) => Self::Integers(left, right),
            _ => Self::Floats(float_of(left)?, float_of(right)?),
        })
    }
}

/// Returns a value as an integer if it is one. Booleans are integers.
pub(super) fn integer_of(value: &Value) -> Option<i128> {
    let integer = value.is_integer() || value.kind() == ValueKind::Bool;
    integer.then(|| i128::try_from(value.clone()).ok()).flatten()
}

fn float_of(value: &Value) -> Option<f64> {
    let rounded = || integer_of(value).map(|integer| integer as f64);
    as_float(value).or_else(rounded)
}

/// Returns an integer of the smallest type that holds it.
pub(super) fn integer_value(integer: i128) -> Value {
    i64::try_from(integer).map_or_else(|_| Value::from(integer), Value::from)
}

pub(super) fn add(left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        return Ok(match (left.is_safe(), right.is_safe()) {
            (false, false) => Value::from(a.to_owned() + b),
            (true, false) => Value::from_safe_string(a.to_owned() + &escape(b)),
            (false, true) => Value::from_safe_string(escape(a) + b),
            (true, true) => Value::from_safe_string(a.to_owned() + b),
        });
    }
    if let Some(numbers) = Numbers::of(left, right) {
        return match numbers {
            Numbers::Integers(a, b) => {
                a.checked_add(b).map(integer_value).ok_or_else(|| too_large("+"))
            }
            Numbers::Floats(a, b) => Ok(Value::from(a + b)),
        };
    }
    match (type_name(left), type_name(right)) {
        ("list", "list") => Ok(Value::from([items(left)?, items(right)?].concat())),
        ("tuple", "tuple") => Ok(Tuple::new([items(left)?, items(right)?].concat()).into()),
        (a, b) => Err(failure(format!("+ cannot add {b} to {a}"))),
    }
}

fn remainder(left: &Value, right: &Value) -> Result<Value, Error> {
    if left.kind() == ValueKind::String {
        return format::percent(left, right);
    }
    let by_zero = || failure("the remainder of a division by zero");
    match Numbers::of(left, right) {
        Some(Numbers::Integers(_, 0)) => Err(by_zero()),
        Some(Numbers::Floats(_, 0.0)) => Err(by_zero()),
        Some(Numbers::Integers(a, b)) => {
            let rest = a.checked_rem(b).unwrap_or(0);
            let same_sign = rest == 0 || (rest < 0) == (b < 0);
            Ok(integer_value(if same_sign { rest } else { rest + b }))
        }
        Some(Numbers::Floats(a, b)) => {
            let rest = a % b;
            Ok(Value::from(match rest == 0.0 {
                true => 0.0f64.copysign(b),
                false if (rest < 0.0) == (b < 0.0) => rest,
                false => rest + b,
            }))
        }
        None => Err(failure(format!("% cannot take {} and {}", type_name(left), type_name(right)))),
    }
}

fn too_large(operator: &str) -> Error {
    failure(format!("the result of {operator} has more than 127 bits"))
}

fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    if let Some(name) = key.as_str()
        && value.kind() == ValueKind::String
        && is_method(value, name)
    {
        return Method::of(value, key);
    }
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    match as_float(key) {
        Some(_) if is_list || value.kind() == ValueKind::String => Ok(Value::UNDEFINED),
        _ => value.get_item(key),
    }
}

/// Checks that Python can put two values in order.
pub(super) fn comparable(left: &Value, right: &Value) -> Result<(), Error> {
    compare(left, right).map(|_| ())
}

/// Compares two values.
///
/// # Errors
/// If Python cannot put them in order.
pub(super) fn compare(left: &Value, right: &Value) -> Result<Ordering, Error> {
    if let Some(numbers) = Numbers::of(left, right) {
        return Ok(match numbers {
            Numbers::Integers(a, b) => a.cmp(&b),
            Numbers::Floats(a, b) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
        });
    }
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        return Ok(a.cmp(b));
    }
    match (type_name(left), type_name(right)) {
        ("list", "list") | ("tuple", "tuple") => {
            let (left, right) = (items(left)?, items(right)?);
            match left.iter().zip(&right).find(|(a, b)| a != b) {
                Some((a, b)) => compare(a, b),
                None => Ok(left.len().cmp(&right.len())),
            }
        }
        (a, b) => Err(failure(format!("{a} and {b} have no order"))),
    }
}

/// Checks that Python has an operation for its operands, and changes operands for which minijinja
/// has none.
pub(in super::super) fn check(operation: &str, operands: &mut [Value]) -> Result<(), Error> {
    match (operation, operands) {
        ("<", [left, right]) => comparable(left, right),
        ("in", [item, container]) => match container.kind() {
            ValueKind::String if item.kind() != ValueKind::String => {
                Err(failure(format!("a string contains strings, not {}", type_name(item))))
            }
            _ => Ok(()),
        },
        ("for", [value]) if value.is_none() => Err(failure("None is not iterable")),
        ("**", [base, exponent]) => match Numbers::of(base, exponent) {
            Some(Numbers::Floats(base, exponent)) if base < 0.0 && exponent.fract() != 0.0 => {
                Err(failure("a root of a negative number is not supported"))
            }
            _ => Ok(()),
        },
        ("*", [left, right]) => {
            for (repeated, times) in [left.clone(), right.clone()].iter().zip([right, left]) {
                let list = repeated.as_str().is_some() || repeated.as_object().is_some();
                // Python repeats nothing a negative number of times.
                if list && integer_of(times).is_some_and(|times| times < 0) {
                    *times = Value::from(0);
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

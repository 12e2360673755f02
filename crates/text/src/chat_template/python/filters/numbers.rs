//! Filters that take or return numbers.

use super::super::arguments::{bind, flag, integer_or, required, string};
use super::super::characters::decimal;
use super::super::failure;
use super::super::operators::{integer_of, integer_value};
use super::super::strings::stripped;
use super::super::text::{as_float, type_name};
use super::{defined, only};
use minijinja::Error;
use minijinja::value::Value;

pub(super) fn abs(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    match (as_float(&value), integer_of(&value)) {
        (Some(number), _) => Ok(Value::from(number.abs())),
        (_, Some(number)) => Ok(integer_value(number.saturating_abs())),
        _ => Err(failure(format!("abs needs a number, not {}", type_name(&value)))),
    }
}

pub(super) fn file_size(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, binary] = bind(name, ["value", "binary"], values)?;
    let value = required(name, "value", value)?;
    let bytes = number_of(&value)
        .ok_or_else(|| failure(format!("{name} needs a number, not {}", type_name(&value))))?;
    let (base, infix) = if flag(binary.as_ref()) { (1024.0, "i") } else { (1000.0, "") };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{bytes:.0} Bytes")));
    }
    let kilo = if infix.is_empty() { "k" } else { "K" };
    let (mut size, mut prefix) = (bytes, "");
    for next in [kilo, "M", "G", "T", "P", "E", "Z", "Y"] {
        if size < base {
            break;
        }
        (size, prefix) = (size / base, next);
    }
    Ok(Value::from(format!("{size:.1} {prefix}{infix}B")))
}

/// Returns the number of a value, as Python's `float` reads it.
fn number_of(value: &Value) -> Option<f64> {
    let Some(text) = value.as_str() else {
        return as_float(value).or(integer_of(value).map(|number| number as f64));
    };
    let text = digits(text)?;
    // Rust reads further spellings.
    let plain = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let name = matches!(plain.as_str(), "inf" | "infinity" | "nan");
    (name || plain.starts_with(|one: char| one.is_ascii_digit() || one == '.'))
        .then(|| text.parse().ok())
        .flatten()
}

/// Returns a number's text with ASCII digits, and without spaces around it and `_` between digits.
fn digits(text: &str) -> Option<String> {
    let text = stripped(text, None, true, true);
    let ascii = |one| decimal(one).and_then(|digit| char::from_digit(digit, 10)).unwrap_or(one);
    let text: String = text.chars().map(ascii).collect();
    let between = |part: &str| !part.is_empty();
    let grouped = text.contains('_');
    (!grouped || text.split('_').all(between)).then(|| text.replace('_', ""))
}

pub(super) fn to_float(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, default] = bind(name, ["value", "default"], values)?;
    let number = number_of(&defined(name, value)?);
    Ok(number.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

pub(super) fn to_int(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, default, base] = bind(name, ["value", "default", "base"], values)?;
    let value = defined(name, value)?;
    let base = integer_or(name, base.as_ref(), 10)?;
    let read = value.as_str().and_then(|text| parse_integer(text, u32::try_from(base).ok()?));
    let whole = || {
        let number = number_of(&value).filter(|number| number.abs() < 1.7e38);
        number.map(|number| number as i128)
    };
    let number = read.or_else(|| integer_of(&value)).or_else(whole);
    Ok(number.map_or_else(|| default.unwrap_or_else(|| Value::from(0)), integer_value))
}

fn parse_integer(text: &str, base: u32) -> Option<i128> {
    let text = digits(text)?.to_ascii_lowercase();
    let (sign, text) = match text.strip_prefix('-') {
        Some(text) => ("-", text),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefixes = [("0b", 2), ("0o", 8), ("0x", 16)];
    let prefix = prefixes.into_iter().find(|(prefix, _)| text.starts_with(prefix));
    let (text, base) = match prefix {
        Some((prefix, own)) if base == own || base == 0 => (&text[prefix.len()..], own),
        None if base == 0 => (text, 10),
        _ => (text, base),
    };
    if !(2..=36).contains(&base) {
        return None;
    }
    i128::from_str_radix(&format!("{sign}{text}"), base)
        .ok()
        .filter(|_| !text.starts_with(['-', '+']))
}

pub(super) fn round(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, precision, method] = bind(name, ["value", "precision", "method"], values)?;
    let value = required(name, "value", value)?;
    let precision = integer_or(name, precision.as_ref(), 0)?.clamp(-400, 400) as i32;
    let method = method.unwrap_or_else(|| Value::from("common"));
    let number = as_float(&value).or(integer_of(&value).map(|number| number as f64));
    let number = number
        .ok_or_else(|| failure(format!("round needs a number, not {}", type_name(&value))))?;
    let scale = 10f64.powi(precision);
    let scaled = number * scale;
    let rounded = match (string(name, &method)?, integer_of(&value)) {
        ("common", Some(integer)) if precision >= 0 => return Ok(integer_value(integer)),
        ("common", Some(integer)) => {
            let unit = 10i128.checked_pow(precision.unsigned_abs());
            let rounded = unit.map_or(Some(0), |unit| {
                let (below, rest) = (integer.div_euclid(unit), integer.rem_euclid(unit));
                let up = rest > unit - rest || (rest == unit - rest && below % 2 != 0);
                (below + i128::from(up)).checked_mul(unit)
            });
            let large = || failure("the result of round has more than 127 bits");
            return rounded.map(integer_value).ok_or_else(large);
        }
        // Rust rounds the exact number's digits, as Python does.
        ("common", None) if precision >= 0 && number.is_finite() => {
            format!("{number:.*}", precision as usize).parse().unwrap_or(number)
        }
        ("common", None) if number.is_finite() => scaled.round_ties_even() / scale,
        ("ceil", _) if scaled.is_finite() => scaled.ceil() / scale,
        ("floor", _) if scaled.is_finite() => scaled.floor() / scale,
        ("common" | "ceil" | "floor", _) => number,
        _ => return Err(failure("round's method is common, ceil or floor")),
    };
    Ok(Value::from(if rounded.is_nan() { 0.0 } else { rounded }))
}

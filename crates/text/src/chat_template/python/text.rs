//! Values as text: Python's `str`, `repr` and `ascii`, and the names of types.

use super::characters::printable;
use super::containers::{Group, Method, View};
use super::sequences::Range;
use minijinja::value::{ObjectRepr, Value, ValueKind};
use std::fmt::Write;

/// Returns `str(value)`. Undefined is empty, as jinja2 prints it.
pub(in super::super) fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        ValueKind::Undefined => String::new(),
        _ => repr(value),
    }
}

/// Returns `repr(value)`.
pub(super) fn repr(value: &Value) -> String {
    let mut text = String::new();
    write_repr(&mut text, value);
    text
}

/// Returns `ascii(value)`: `repr(value)` with escapes in place of characters outside ASCII.
pub(super) fn ascii(value: &Value) -> String {
    let mut text = String::new();
    for character in repr(value).chars() {
        match character.is_ascii() {
            true => text.push(character),
            false => write_escape(&mut text, character),
        }
    }
    text
}

/// Returns the text of a floating-point number: the shortest one that reads back as the same
/// number.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    // Rust has Python's limits for exponents, but writes them with neither sign nor leading zero.
    let text = format!("{number:?}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or_default();
            format!("{}e{exponent:+03}", mantissa.strip_suffix(".0").unwrap_or(mantissa))
        }
        None => text,
    }
}

/// Returns the number of a floating-point value.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    let float = value.kind() == ValueKind::Number && !value.is_integer();
    float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

fn write_repr(text: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::String => write_string(text, value),
        ValueKind::Undefined => *text += "Undefined",
        ValueKind::Number => match as_float(value) {
            Some(number) => *text += &float(number),
            None => *text += &value.to_string(),
        },
        ValueKind::Bytes => write_bytes(text, value.as_bytes().unwrap_or_default()),
        ValueKind::Map => write_container(text, value),
        ValueKind::Seq | ValueKind::Iterable => write_container(text, value),
        _ => *text += &value.to_string(),
    }
}

fn write_container(text: &mut String, value: &Value) {
    let Some(object) = value.as_object() else { return };
    if let Some(range) = object.downcast_ref::<Range>() {
        *text += &range.to_string();
        return;
    }
    if object.repr() == ObjectRepr::Map {
        if type_name(value) != "dict" {
            *text += &value.to_string();
            return;
        }
        text.push('{');
        for (number, (key, value)) in object.try_iter_pairs().into_iter().flatten().enumerate() {
            *text += if number > 0 { ", " } else { "" };
            write_repr(text, &key);
            *text += ": ";
            write_repr(text, &value);
        }
        text.push('}');
        return;
    }
    let view = object.downcast_ref::<View>().map(|view| view.name);
    let (open, close) = match view {
        Some(_) => ("([", "])"),
        None if type_name(value) == "tuple" => ("(", ")"),
        None => ("[", "]"),
    };
    *text += view.unwrap_or_default();
    *text += open;
    let mut count = 0;
    for item in object.try_iter().into_iter().flatten() {
        *text += if count > 0 { ", " } else { "" };
        write_repr(text, &item);
        count += 1;
    }
    *text += if value.is_tuple() && count == 1 { "," } else { "" };
    *text += close;
}

fn write_string(text: &mut String, value: &Value) {
    let string = value.as_str().unwrap_or_default();
    *text += if value.is_safe() { "Markup(" } else { "" };
    let quote = if string.contains('\'') && !string.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for character in string.chars() {
        match character {
            '\\' => *text += "\\\\",
            '\n' => *text += "\\n",
            '\r' => *text += "\\r",
            '\t' => *text += "\\t",
            _ if character == quote => text.extend(['\\', character]),
            _ if printable(character) => text.push(character),
            _ => write_escape(text, character),
        }
    }
    text.push(quote);
    *text += if value.is_safe() { ")" } else { "" };
}

fn write_bytes(text: &mut String, bytes: &[u8]) {
    *text += "b'";
    for &byte in bytes {
        let _ = match byte {
            b'\\' | b'\'' => write!(text, "\\{}", char::from(byte)),
            b'\n' | b'\r' | b'\t' => write!(text, "{}", byte.escape_ascii()),
            b' '..=b'~' => write!(text, "{}", char::from(byte)),
            _ => write!(text, "\\x{byte:02x}"),
        };
    }
    text.push('\'');
}

fn write_escape(text: &mut String, character: char) {
    let code = u32::from(character);
    let _ = match code {
        0..=0xff => write!(text, "\\x{code:02x}"),
        0x100..=0xffff => write!(text, "\\u{code:04x}"),
        _ => write!(text, "\\U{code:08x}"),
    };
}

/// Returns the name of a value's type in Python.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Bytes => "bytes",
        ValueKind::Map => {
            let name = value.as_object().map_or("", |object| object.type_name());
            ["Namespace", "Loop", "Macro", "Module"]
                .into_iter()
                .find(|suffix| name.ends_with(suffix))
                .unwrap_or("dict")
        }
        ValueKind::Seq | ValueKind::Iterable => match value.as_object() {
            Some(object) if object.downcast_ref::<Range>().is_some() => "range",
            Some(object) => match object.downcast_ref::<View>() {
                Some(view) => view.name,
                None if value.is_tuple() || object.downcast_ref::<Group>().is_some() => "tuple",
                None => "list",
            },
            None => "list",
        },
        _ if value.downcast_object_ref::<Method>().is_some() => "method",
        _ => "function",
    }
}

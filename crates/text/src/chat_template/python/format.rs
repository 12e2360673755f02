//! Python's two ways to format a string: `text % values`, and `text.format(values)`.

use super::arguments::{pairs, string};
use super::operators::{integer_of, integer_value};
use super::text::{as_float, ascii, repr, str, type_name};
use super::{failure, filters::escape};
use minijinja::Error;
use minijinja::formatting::{FormatStyle, format as format_one};
use minijinja::value::{Value, ValueKind};

/// The characters before a width: `#`, `0`, `-`, a space and `+`.
const FLAGS: &[char] = &['#', '0', '-', ' ', '+'];

/// Returns `text % values`. The result of a safe text is safe, with escaped values.
pub(super) fn percent(text: &Value, values: &Value) -> Result<Value, Error> {
    let (values, map) = match values.is_tuple() {
        true => (super::arguments::items(values)?, None),
        false => (vec![values.clone()], Some(values).filter(|map| map.kind() == ValueKind::Map)),
    };
    percent_of(text, &values, map)
}

/// Formats as `text % values` does. The map is that of fields with names.
pub(super) fn percent_of(
    text: &Value,
    values: &[Value],
    map: Option<&Value>,
) -> Result<Value, Error> {
    let pattern = text.as_str().unwrap_or_default();
    let collection = matches!(values, [value] if matches!(type_name(value), "list" | "dict"));
    let (mut formatted, mut rest, mut values) = (String::new(), pattern, values.iter());
    let mut named = false;
    while let Some((before, field)) = rest.split_once('%') {
        formatted += before;
        let (name, after) = match field.strip_prefix('(') {
            Some(field) => {
                let end = field.find(')').ok_or_else(|| incomplete(pattern))?;
                (Some(&field[..end]), &field[end + 1..])
            }
            None => (None, field),
        };
        let mut next = || {
            let value = values.next().cloned();
            value.ok_or_else(|| failure("not enough values for the % of a text"))
        };
        let mut spec = String::from("%");
        let flags = after.len() - after.trim_start_matches(FLAGS).len();
        spec += &after[..flags];
        let after = number(&mut spec, &after[flags..], &mut next)?;
        let after = match after.strip_prefix('.') {
            Some(after) => {
                spec.push('.');
                let digits = spec.len();
                let after = number(&mut spec, after, &mut next)?;
                spec += if spec.len() == digits { "0" } else { "" };
                after
            }
            None => after,
        };
        let after = after.trim_start_matches(['h', 'l', 'L']);
        let conversion = after.chars().next().ok_or_else(|| incomplete(pattern))?;
        rest = &after[conversion.len_utf8()..];
        if conversion == '%' {
            formatted.push('%');
            continue;
        }
        let value = match name {
            Some(name) => {
                named = true;
                let map = map.ok_or_else(|| failure("%(name) needs a dictionary"))?;
                let value = map.as_object().and_then(|map| map.get_value(&Value::from(name)));
                value.ok_or_else(|| failure(format!("% has no value named {name}")))?
            }
            None if named => return Err(failure("% mixes fields with and without names")),
            None => next()?,
        };
        let field = percent_field(&spec, conversion, &value)?;
        let escaped = text.is_safe() && !value.is_safe();
        formatted += &if escaped { escape(&field) } else { field };
    }
    formatted += rest;
    // A list or dictionary may have items that are not used.
    if !collection && !named && values.next().is_some() {
        return Err(failure("the % of a text has values that the text does not use"));
    }
    Ok(if text.is_safe() { Value::from_safe_string(formatted) } else { Value::from(formatted) })
}

/// Copies a number, which may be `*` and the next value.
fn number<'a>(
    spec: &mut String,
    text: &'a str,
    next: &mut impl FnMut() -> Result<Value, Error>,
) -> Result<&'a str, Error> {
    if let Some(after) = text.strip_prefix('*') {
        let width = integer_of(&next()?).ok_or_else(|| failure("* needs an integer"))?;
        *spec += &width.to_string();
        return Ok(after);
    }
    let digits = text.len() - text.trim_start_matches(|one: char| one.is_ascii_digit()).len();
    *spec += &text[..digits];
    Ok(&text[digits..])
}

fn incomplete(pattern: &str) -> Error {
    failure(format!("the format {pattern:?} is incomplete"))
}

/// Formats one value for `%`.
fn percent_field(spec: &str, conversion: char, value: &Value) -> Result<String, Error> {
    let wrong =
        |needed: &str| failure(format!("%{conversion} needs {needed}, not {}", type_name(value)));
    let (conversion, value) = match conversion {
        's' => ('s', Value::from(str(value))),
        'r' => ('s', Value::from(repr(value))),
        'a' => ('s', Value::from(ascii(value))),
        'd' | 'i' | 'u' => {
            let whole = as_float(value).map(|number| number as i128).or(integer_of(value));
            ('d', integer_value(whole.ok_or_else(|| wrong("a number"))?))
        }
        'x' | 'X' | 'o' => {
            (conversion, integer_value(integer_of(value).ok_or_else(|| wrong("an integer"))?))
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let number = as_float(value).or(integer_of(value).map(|number| number as f64));
            (conversion, Value::from(number.ok_or_else(|| wrong("a number"))?))
        }
        'c' => (conversion, value.clone()),
        _ => return Err(failure(format!("% has no conversion {conversion}"))),
    };
    if matches!(conversion, 'd' | 'x' | 'X' | 'o') && spec.contains('.') {
        return Err(failure(format!("%{conversion} with a precision is not supported")));
    }
    format_one(FormatStyle::Printf, &format!("{spec}{conversion}"), &[value])
}

/// Returns `text.format(values)`.
pub(super) fn braces(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    match arguments.split_last() {
        Some((last, rest)) if last.is_kwargs() => braces_of(text, rest, &pairs(last)),
        _ => braces_of(text, arguments, &[]),
    }
}

/// Formats a text with values for fields with numbers, and values for fields with names.
pub(super) fn braces_of(
    text: &str,
    values: &[Value],
    named: &[(Value, Value)],
) -> Result<Value, Error> {
    let mut fields = Fields { values, named, next: 0 };
    fields.text(text, true).map(Value::from)
}

struct Fields<'a> {
    values: &'a [Value],
    named: &'a [(Value, Value)],
    /// The number of the next field without one.
    next: usize,
}

impl Fields<'_> {
    /// Formats a text, or the format of a field, which may have fields of its own.
    fn text(&mut self, text: &str, outer: bool) -> Result<String, Error> {
        let (mut formatted, mut rest) = (String::new(), text);
        while let Some(brace) = rest.find(['{', '}']) {
            formatted += &rest[..brace];
            let after = &rest[brace + 1..];
            let open = rest[brace..].starts_with('{');
            if outer && after.starts_with(if open { '{' } else { '}' }) {
                formatted.push(if open { '{' } else { '}' });
                rest = &after[1..];
                continue;
            }
            if !open {
                return Err(failure("a format has a } without {"));
            }
            let end = field_end(after).ok_or_else(|| failure("a format has a { without }"))?;
            formatted += &self.field(&after[..end], outer)?;
            rest = &after[end + 1..];
        }
        Ok(formatted + rest)
    }

    /// Formats a field: `name!conversion:format`, in which all but the name may be missing.
    fn field(&mut self, field: &str, outer: bool) -> Result<String, Error> {
        let (head, spec) = match field.split_once(':') {
            Some((head, spec)) => (head, spec),
            None => (field, ""),
        };
        let (path, conversion) = match head.split_once('!') {
            Some((path, conversion)) => (path, Some(conversion)),
            None => (head, None),
        };
        let value = self.value(path)?;
        let value = match conversion {
            None => value,
            Some("s") => Value::from(str(&value)),
            Some("r") => Value::from(repr(&value)),
            Some("a") => Value::from(ascii(&value)),
            Some(other) => return Err(failure(format!("a format has no conversion {other:?}"))),
        };
        let spec = if outer { self.text(spec, false)? } else { spec.to_owned() };
        brace_field(&spec, &value)
    }

    /// Returns the value of a field: an argument, and a path of attributes and items within it.
    fn value(&mut self, path: &str) -> Result<Value, Error> {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let (name, mut rest) = path.split_at(end);
        let missing = || failure(format!("format has no value for the field {{{name}}}"));
        let mut value = if name.is_empty() || name.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = match name.parse() {
                Ok(number) => number,
                Err(_) => {
                    self.next += 1;
                    self.next - 1
                }
            };
            self.values.get(number).cloned().ok_or_else(missing)?
        } else {
            let found = self.named.iter().find(|(key, _)| key.as_str() == Some(name));
            found.map(|(_, value)| value.clone()).ok_or_else(missing)?
        };
        while !rest.is_empty() {
            let key;
            (key, rest) = match rest.strip_prefix('[') {
                Some(after) => after.split_once(']').ok_or_else(missing)?,
                None => {
                    let name = &rest[1..];
                    name.split_at(name.find(['.', '[']).unwrap_or(name.len()))
                }
            };
            let key = key.parse::<u32>().map_or_else(|_| Value::from(key), Value::from);
            let found = value.get_item(&key)?;
            value = Some(found).filter(|value| !value.is_undefined()).ok_or_else(missing)?;
        }
        Ok(value)
    }
}

/// Returns where a field ends: the brace that closes it.
fn field_end(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.bytes().position(|byte| {
        let closes = byte == b'}' && depth == 0;
        depth += usize::from(byte == b'{');
        depth -= usize::from(byte == b'}' && depth > 0);
        closes
    })
}

/// Formats one value for `format`.
fn brace_field(spec: &str, value: &Value) -> Result<String, Error> {
    if spec.is_empty() {
        return Ok(str(value));
    }
    let float = as_float(value);
    let number = float.or_else(|| integer_of(value).map(|number| number as f64));
    if let (Some(spec), Some(number)) = (spec.strip_suffix('%'), number) {
        // The width counts the sign for percent.
        let plain = spec.split('.').next().unwrap_or_default();
        if plain.bytes().any(|byte| byte.is_ascii_digit()) {
            return Err(failure("format does not support a width with %"));
        }
        let digits = format!("{{:{spec}f}}");
        let digits = format_one(FormatStyle::StrFormat, &digits, &[Value::from(number * 100.0)])?;
        return Ok(digits + "%");
    }
    let simple = match value.kind() {
        ValueKind::String | ValueKind::Number | ValueKind::Bool => value.clone(),
        _ => {
            let name = type_name(value);
            return Err(failure(format!("format cannot use {spec:?} for {name}")));
        }
    };
    let spec = match spec.strip_suffix('n') {
        Some(spec) => format!("{spec}{}", if float.is_some() { 'g' } else { 'd' }),
        None => spec.to_owned(),
    };
    // A zero before the width fills an alignment, too.
    let spec = match spec.split_at_checked(1) {
        Some((align @ ("<" | ">" | "^"), rest)) if rest.starts_with('0') => {
            format!("0{align}{}", &rest[1..])
        }
        _ => spec,
    };
    let formatted = format_one(FormatStyle::StrFormat, &format!("{{:{spec}}}"), &[simple])?;
    string("format", &Value::from(formatted)).map(str::to_owned)
}

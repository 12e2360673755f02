//! Filters that return texts.

use super::super::arguments::{bind, flag, integer_or, items, pairs, required, string};
use super::super::operators::compare;
use super::super::strings::{lines, replaced, stripped};
use super::super::text::{repr, str, type_name};
use super::super::{failure, format};
use super::lists::sorted;
use super::only;
use minijinja::Error;
use minijinja::value::{Value, ValueKind};

pub(super) fn cased(values: &[Value], name: &str) -> Result<Value, Error> {
    let value = only(name, values)?;
    let text = super::super::strings::cased(&str(&value), name);
    Ok(if value.is_safe() { Value::from_safe_string(text) } else { Value::from(text) })
}

pub(super) fn center(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, width] = bind(name, ["value", "width"], values)?;
    let text = str(&required(name, "value", value)?);
    let width = width.unwrap_or_else(|| Value::from(80));
    let centered = super::super::strings::method(&text, name, &[width])?;
    Ok(centered.unwrap_or_default())
}

/// Escapes characters that HTML gives a meaning.
pub(in super::super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&#34;")
        .replace('\'', "&#39;")
}

pub(super) fn escaped(name: &str, values: &[Value], again: bool) -> Result<Value, Error> {
    let value = only(name, values)?;
    match value.is_safe() && !again {
        true => Ok(value),
        false => Ok(Value::from_safe_string(escape(&str(&value)))),
    }
}

pub(super) fn printf(name: &str, values: &[Value]) -> Result<Value, Error> {
    let (text, rest) = values.split_first().ok_or_else(|| failure("format needs a text"))?;
    let text = if text.as_str().is_some() { text.clone() } else { Value::from(str(text)) };
    match rest {
        [map] if map.is_kwargs() => format::percent_of(&text, &[], Some(map)),
        [.., last] if last.is_kwargs() => {
            Err(failure(format!("{name} takes values with or without names, not both")))
        }
        [map] if map.kind() == ValueKind::Map => format::percent_of(&text, rest, Some(map)),
        _ => format::percent_of(&text, rest, None),
    }
}

pub(super) fn indent(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind(name, ["value", "width", "first", "blank"], values)?;
    let value = required(name, "value", value)?;
    let text = string(name, &value)?.to_owned() + "\n";
    let indent = match &width {
        Some(width) if width.as_str().is_some() => str(width),
        width => {
            let width = integer_or(name, width.as_ref(), 4)?;
            " ".repeat(usize::try_from(width).unwrap_or(0))
        }
    };
    let mut indented = String::new();
    for (number, line) in lines(&text, false).into_iter().enumerate() {
        indented += if number > 0 { "\n" } else { "" };
        let wanted = match number {
            0 => flag(first.as_ref()),
            _ => flag(blank.as_ref()) || !line.is_empty(),
        };
        indented += if wanted { &indent } else { "" };
        indented += line;
    }
    Ok(Value::from(indented))
}

/// The longest value that `pprint` writes in one line, in characters.
const PRETTY_WIDTH: usize = 80;

pub(super) fn pretty(name: &str, values: &[Value]) -> Result<Value, Error> {
    let text = repr(&with_sorted_keys(&only(name, values)?)?);
    match text.chars().count() > PRETTY_WIDTH {
        true => Err(failure(format!("pprint supports only {PRETTY_WIDTH} characters"))),
        false => Ok(Value::from(text)),
    }
}

fn with_sorted_keys(value: &Value) -> Result<Value, Error> {
    match type_name(value) {
        "dict" => {
            let pairs = sorted(pairs(value), &|(a, _), (b, _)| compare(a, b))?.into_iter();
            let inner = pairs.map(|(key, value)| Ok((key, with_sorted_keys(&value)?)));
            Ok(Value::from_pairs(inner.collect::<Result<Vec<_>, Error>>()?))
        }
        "list" => items(value)?.iter().map(with_sorted_keys).collect(),
        _ => Ok(value.clone()),
    }
}

pub(super) fn replace(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, old, new, count] = bind(name, ["value", "old", "new", "count"], values)?;
    let value = str(&required(name, "value", value)?);
    let (old, new) = (required(name, "old", old)?, required(name, "new", new)?);
    let count = integer_or(name, count.as_ref(), -1)?;
    Ok(Value::from(replaced(&value, &str(&old), &str(&new), count)))
}

pub(super) fn trim(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, characters] = bind(name, ["value", "chars"], values)?;
    let text = str(&required(name, "value", value)?);
    let characters = characters.filter(|characters| !characters.is_none());
    let characters = characters.as_ref().map(|value| string(name, value)).transpose()?;
    Ok(Value::from(stripped(&text, characters, true, true)))
}

pub(super) fn truncate(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, length, kill_words, end, leeway] =
        bind(name, ["value", "length", "killwords", "end", "leeway"], values)?;
    let text = str(&required(name, "value", value)?);
    let length = integer_or(name, length.as_ref(), 255)?;
    let leeway = integer_or(name, leeway.as_ref(), 5)?;
    let end = end.map_or_else(|| "...".to_owned(), |end| str(&end));
    let kept = length.checked_sub(end.chars().count() as i64);
    let kept = kept.and_then(|kept| usize::try_from(kept).ok()).filter(|_| leeway >= 0);
    let kept = kept.ok_or_else(|| failure("truncate needs a length of at least the end's"))?;
    if text.chars().count() as i64 <= length.saturating_add(leeway) {
        return Ok(Value::from(text));
    }
    let start: String = text.chars().take(kept).collect();
    let start = match flag(kill_words.as_ref()) {
        true => start.as_str(),
        false => start.rsplit_once(' ').map_or(start.as_str(), |(start, _)| start),
    };
    Ok(Value::from(start.to_owned() + &end))
}

pub(super) fn urlencode(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    let list = match type_name(&value) {
        "dict" => pairs(&value),
        "list" | "tuple" => {
            let pair = |pair: Value| match &items(&pair)?[..] {
                [key, value] => Ok((key.clone(), value.clone())),
                _ => Err(failure("urlencode needs a text, a dictionary or pairs")),
            };
            items(&value)?.into_iter().map(pair).collect::<Result<_, Error>>()?
        }
        _ => return Ok(Value::from(quoted(&str(&value), false))),
    };
    let quoted = |(key, value): &(Value, Value)| {
        format!("{}={}", quoted(&str(key), true), quoted(&str(value), true))
    };
    Ok(Value::from(list.iter().map(quoted).collect::<Vec<_>>().join("&")))
}

/// Returns a text for a URL, or for the query of one.
fn quoted(text: &str, query: bool) -> String {
    let mut quoted = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                quoted.push(char::from(byte));
            }
            b'/' if !query => quoted.push('/'),
            b' ' if query => quoted.push('+'),
            _ => quoted += &format!("%{byte:02X}"),
        }
    }
    quoted
}

//! The filter `tojson`, which is Python's `json.dumps`.

use super::arguments::{bind, flag, integer, items, pairs, string};
use super::failure;
use super::filters::sorted;
use super::operators::{compare, integer_of};
use super::text::{as_float, float, str, type_name};
use minijinja::Error;
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use std::fmt::Write;

struct Style {
    ascii: bool,
    /// The text of a level, or `None` for JSON in one line.
    indent: Option<String>,
    item: String,
    key: String,
    sorted: bool,
}

pub(super) fn to_json(arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let parameters = ["value", "ensure_ascii", "indent", "separators", "sort_keys"];
    let [value, ascii, indent, separators, sorted] =
        bind("tojson", parameters, &arguments.into_values())?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(integer("tojson's indent", &indent)?).unwrap_or(0)),
        }),
    };
    let separators = separators.filter(|separators| !separators.is_none());
    let (item, key) = match separators.map(|separators| items(&separators)).transpose()?.as_deref()
    {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([item, key]) => {
            let name = "tojson's separators";
            (string(name, item)?.to_owned(), string(name, key)?.to_owned())
        }
        Some(_) => return Err(failure("tojson needs two separators")),
    };
    let (ascii, sorted) = (flag(ascii.as_ref()), flag(sorted.as_ref()));
    let style = Style { ascii, indent, item, key, sorted };
    let mut text = String::new();
    style.write(&mut text, &value.unwrap_or_default(), 0)?;
    Ok(Value::from(text))
}

impl Style {
    fn write(&self, text: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => *text += "null",
            ValueKind::Bool => *text += if value.is_true() { "true" } else { "false" },
            ValueKind::Number => *text += &number(value),
            ValueKind::String => self.write_string(text, value.as_str().unwrap_or_default()),
            _ if matches!(type_name(value), "list" | "tuple") => {
                let items = items(value)?;
                self.write_all(text, ['[', ']'], depth, items.iter(), |text, item| {
                    self.write(text, item, depth + 1)
                })?;
            }
            _ if type_name(value) == "dict" => {
                let pairs = self.pairs(value)?;
                self.write_all(text, ['{', '}'], depth, pairs.iter(), |text, (key, value)| {
                    self.write_string(text, &key_text(key)?);
                    *text += &self.key;
                    self.write(text, value, depth + 1)
                })?;
            }
            _ => return Err(failure(format!("tojson has no text for {}", type_name(value)))),
        }
        Ok(())
    }

    fn write_all<T>(
        &self,
        text: &mut String,
        [open, close]: [char; 2],
        depth: usize,
        items: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut String, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |text: &mut String, depth| {
            if let Some(indent) = &self.indent {
                text.push('\n');
                *text += &indent.repeat(depth);
            }
        };
        text.push(open);
        let empty = items.len() == 0;
        for (number, item) in items.enumerate() {
            *text += if number > 0 { &self.item } else { "" };
            line(text, depth + 1);
            write(text, item)?;
        }
        if !empty {
            line(text, depth);
        }
        text.push(close);
        Ok(())
    }

    /// Returns the entries of a dictionary, in their order or that of the keys.
    fn pairs(&self, value: &Value) -> Result<Vec<(Value, Value)>, Error> {
        match self.sorted {
            true => sorted(pairs(value), &|(a, _), (b, _)| compare(a, b)),
            false => Ok(pairs(value)),
        }
    }

    fn write_string(&self, text: &mut String, string: &str) {
        text.push('"');
        for character in string.chars() {
            match character {
                '"' => *text += "\\\"",
                '\\' => *text += "\\\\",
                '\n' => *text += "\\n",
                '\r' => *text += "\\r",
                '\t' => *text += "\\t",
                '\x08' => *text += "\\b",
                '\x0c' => *text += "\\f",
                _ if character < ' ' || (self.ascii && !(' '..='~').contains(&character)) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let _ = write!(text, "\\u{unit:04x}");
                    }
                }
                _ => text.push(character),
            }
        }
        text.push('"');
    }
}

fn number(value: &Value) -> String {
    match as_float(value) {
        Some(number) if number.is_nan() => "NaN".into(),
        Some(number) if number == f64::INFINITY => "Infinity".into(),
        Some(number) if number == f64::NEG_INFINITY => "-Infinity".into(),
        Some(number) => float(number),
        None => value.to_string(),
    }
}

/// Returns the text of a key: strings, numbers, booleans and `None` may be keys.
fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => str(key),
        ValueKind::None => "null".into(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
        ValueKind::Number if as_float(key).is_some() || integer_of(key).is_some() => number(key),
        _ => return Err(failure(format!("a key of JSON cannot be {}", type_name(key)))),
    })
}

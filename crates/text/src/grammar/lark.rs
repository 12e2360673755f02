//! Schemas within Lark grammars.

use super::json_schema::{self, Style};
use crate::integers::{large_integer, too_large};
use serde_json::Value;

/// The member of a schema within a Lark grammar that says what stands between the parts of its
/// values.
pub(super) const STYLE: &str = "x-guidance";

/// Returns the grammar with rules in place of each `%json {…}`. So all schemas are read in the same
/// way, and llguidance need not change between grammars, which fails where several of them may go
/// on.
///
/// # Errors
/// What is wrong with a schema.
pub(super) fn with_schemas_as_rules(lark: &str) -> Result<String, String> {
    let (mut written, mut rules) = (String::new(), String::new());
    let mut rest = lark;
    let mut number = 0;
    while let Some(at) = next_schema(rest) {
        let (before, after) = rest.split_at(at);
        written.push_str(before);
        let after = after[KEYWORD.len()..].trim_start();
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        let schema = match values.next() {
            Some(schema) => schema.map_err(|error| format!("in `{KEYWORD}`: {error}"))?,
            None => return Err(format!("`{KEYWORD}` needs a schema")),
        };
        let end = values.byte_offset();
        if let Some(number) = large_integer(&after.as_bytes()[..end]) {
            return Err(too_large(number));
        }
        let prefix = format!("json-{number}-");
        let added = write_rules(schema, &prefix, &mut rules);
        added.map_err(|reason| format!("in `{KEYWORD}`: {reason}"))?;
        written.push_str(&format!("{prefix}start"));
        rest = &after[end..];
        number += 1;
    }
    written.push_str(rest);
    written.push('\n');
    written.push_str(&rules);
    Ok(written)
}

const KEYWORD: &str = "%json";

fn write_rules(mut schema: Value, prefix: &str, lark: &mut String) -> Result<(), String> {
    let mut style = Style::default();
    let options = schema.as_object_mut().and_then(|schema| schema.remove(STYLE));
    for (name, value) in options.as_ref().and_then(Value::as_object).into_iter().flatten() {
        match (&**name, value) {
            ("whitespace_flexible", Value::Bool(spaces)) => style.spaces = *spaces,
            ("item_separator", Value::String(text)) => style.item_separator.clone_from(text),
            ("key_separator", Value::String(text)) => style.key_separator.clone_from(text),
            _ => return Err(format!("`{STYLE}` cannot have {name:?} with {value}")),
        }
    }
    json_schema::write_rules(&schema, &style, prefix, lark)
}

/// Returns where the next `%json` is that is not within a text, a regular expression or a comment.
fn next_schema(lark: &str) -> Option<usize> {
    let bytes = lark.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        at += match rest {
            [b'#', ..] | [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n')?,
            [quote @ (b'"' | b'/'), after @ ..] => {
                let mut escaped = false;
                let end = after.iter().position(|byte| {
                    let ends = byte == quote && !escaped;
                    escaped = *byte == b'\\' && !escaped;
                    ends
                });
                end? + 2
            }
            _ if rest.starts_with(KEYWORD.as_bytes()) => return Some(at),
            _ => 1,
        };
    }
    None
}

//! JSON schemas, as Lark grammars.
//!
//! A value often has to satisfy several schemas at once: those of `allOf`, what `$ref` refers to
//! and the keywords beside it, the schemas of a property in several schemas. So the compiler works
//! on *conjunctions*, sets of such parts. Each conjunction becomes a rule. If one of its parts
//! offers a choice (`anyOf`, `oneOf`, `enum`), the rule's alternatives are the conjunctions with
//! one of the options each; otherwise, it has an alternative for each type of values. A schema has
//! finitely many parts, so recursive schemas become recursive rules.
//!
//! Rules without any text are then left out with everything that needs them. So an answer within
//! the grammar can always be completed, and a schema that no value satisfies is an error.

mod arrays;
mod compiler;
mod decimal;
mod document;
mod multiples;
mod numbers;
mod objects;
mod rules;
mod strings;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;

use compiler::Compiler;
use rules::Written;
use serde_json::Value;

/// Between the parts of a JSON value, as in llama.cpp: a space, or line breaks and an indent.
/// Without a limit, a model could write spaces for ever.
const SPACE: &str = r"\x{20}|\x{A}{1,2}[\x{20}\x{9}]{0,20}";

/// What stands between the parts of a value.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// Whether the model may write spaces and line breaks.
    pub(super) spaces: bool,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
}

impl Default for Style {
    fn default() -> Self {
        Self { spaces: true, item_separator: ",".into(), key_separator: ":".into() }
    }
}

/// Returns the Lark grammar of the values that satisfy a schema.
///
/// # Errors
/// What is wrong with the schema, or not supported, and where.
pub(super) fn to_lark(schema: &Value, style: &Style) -> Result<String, String> {
    let mut lark = String::new();
    write(schema, style, "", false, &mut lark)?;
    Ok(lark)
}

/// Writes the rules of a schema for a grammar that has other rules, too. All names begin with
/// `prefix`. The first rule is `start` with the prefix.
///
/// # Errors
/// As [`to_lark`].
pub(super) fn write_rules(
    schema: &Value,
    style: &Style,
    prefix: &str,
    lark: &mut String,
) -> Result<(), String> {
    write(schema, style, prefix, true, lark)
}

fn write(
    schema: &Value,
    style: &Style,
    prefix: &str,
    explicit: bool,
    lark: &mut String,
) -> Result<(), String> {
    if let Value::Bool(false) = schema {
        return Err("no value satisfies `false`".into());
    }
    let space = style.spaces.then_some(SPACE);
    Compiler::new(schema, style).compile(&mut Written { lark, prefix, space, explicit })
}

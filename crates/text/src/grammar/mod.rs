//! Grammars: what an answer's text must look like.

mod compiler;
mod constraint;
mod gbnf;
mod json_schema;
mod keys;
mod lark;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;
mod vocabulary;

pub use compiler::GrammarCompiler;
pub(crate) use compiler::without_anchors;
pub use constraint::GrammarConstraint;

use forerun_core::UnknownValue;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// What an answer's text must look like: a JSON schema, a regular expression or a grammar.
///
/// The answer is made of the tokens that the model samples among those that the grammar allows, so
/// it is the same with every method and drafter. When the text is complete, it can only end. An
/// answer that reaches `max_tokens` or the end of the context before that is cut off.
///
/// ```
/// use forerun_text::Grammar;
/// use serde_json::json;
///
/// let schema = json!({
///     "type": "object",
///     "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
///     "required": ["name", "age"],
/// });
/// let person = Grammar::json_schema(&schema);
/// let date = Grammar::regex("[0-9]{4}-[0-9]{2}-[0-9]{2}");
/// let sum = Grammar::lark(r#"start: NUMBER ("+" NUMBER)*
/// NUMBER: /[0-9]+/"#);
/// let same = Grammar::gbnf(r#"root ::= number ("+" number)*
/// number ::= [0-9]+"#);
/// # let _ = (person, date, sum, same);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grammar {
    kind: GrammarKind,
    text: String,
}

/// The language that a [`Grammar`] is written in.
///
/// Parsed from `json-schema`, `regex`, `lark` and `gbnf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrammarKind {
    /// [JSON Schema](https://json-schema.org), draft 2020-12 or older. Objects have their
    /// properties in the order of the schema, and no others unless it opens them
    /// (`additionalProperties`).
    JsonSchema,
    /// A regular expression in the syntax of the crate
    /// [`regex`](https://docs.rs/regex/latest/regex/#syntax). It matches the whole answer.
    Regex,
    /// A grammar in llguidance's
    /// [variant of Lark](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
    Lark,
    /// A grammar in llama.cpp's
    /// [GBNF](https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md).
    Gbnf,
}

impl fmt::Display for GrammarKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::JsonSchema => "JSON schema",
            Self::Regex => "regular expression",
            Self::Lark => "Lark grammar",
            Self::Gbnf => "GBNF grammar",
        })
    }
}

impl FromStr for GrammarKind {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        match text {
            "json-schema" => Ok(Self::JsonSchema),
            "regex" => Ok(Self::Regex),
            "lark" => Ok(Self::Lark),
            "gbnf" => Ok(Self::Gbnf),
            _ => Err(UnknownValue::new(text, "json-schema, regex, lark, gbnf")),
        }
    }
}

impl Grammar {
    /// Creates a grammar from its text, which [`GrammarCompiler::check`] checks.
    #[must_use]
    pub fn new(kind: GrammarKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// Allows any JSON object.
    #[must_use]
    pub fn json_object() -> Self {
        Self::new(GrammarKind::JsonSchema, r#"{"type":"object"}"#)
    }

    /// Allows the JSON values that a schema describes.
    #[must_use]
    pub fn json_schema(schema: &Value) -> Self {
        Self::new(GrammarKind::JsonSchema, schema.to_string())
    }

    /// Allows the texts that a regular expression matches as a whole.
    #[must_use]
    pub fn regex(regex: impl Into<String>) -> Self {
        Self::new(GrammarKind::Regex, regex)
    }

    /// Allows the texts of a Lark grammar, whose start rule is `start`.
    #[must_use]
    pub fn lark(grammar: impl Into<String>) -> Self {
        Self::new(GrammarKind::Lark, grammar)
    }

    /// Allows the texts of a GBNF grammar, whose start rule is `root`.
    #[must_use]
    pub fn gbnf(grammar: impl Into<String>) -> Self {
        Self::new(GrammarKind::Gbnf, grammar)
    }

    /// Allows exactly these texts.
    #[must_use]
    pub fn choice<T: AsRef<str>>(texts: &[T]) -> Self {
        let escaped = |text: &T| text.as_ref().chars().map(gbnf::regex_character).collect();
        let texts: Vec<String> = texts.iter().map(escaped).collect();
        Self::regex(texts.join("|"))
    }

    /// Guesses the language of a grammar's text: GBNF if it defines rules with `::=`, else Lark.
    #[must_use]
    pub fn guess(text: impl Into<String>) -> Self {
        let text = text.into();
        let kind = if gbnf::looks_like_gbnf(&text) { GrammarKind::Gbnf } else { GrammarKind::Lark };
        Self::new(kind, text)
    }

    /// Returns the language of the grammar.
    #[must_use]
    pub fn kind(&self) -> GrammarKind {
        self.kind
    }

    /// Returns the grammar's text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Why a grammar cannot be used, or an answer not be completed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum GrammarError {
    /// The grammar is malformed, has no texts, needs something unsupported, or is too large.
    #[error("the {kind} cannot be used: {reason}")]
    Invalid {
        /// The grammar's language.
        kind: GrammarKind,
        /// What is wrong with it.
        reason: String,
    },
    /// The bytes of the tokenizer's tokens are not known.
    #[error(
        "a grammar needs the bytes of every token, which are unknown for {file}: {reason}; leave the \
         grammar out, or choose a model with a byte-level or SentencePiece tokenizer"
    )]
    Tokenizer {
        /// The tokenizer's file.
        file: PathBuf,
        /// What is not supported.
        reason: String,
    },
    /// Nothing ends an answer, so that a complete text could not end.
    #[error(
        "a grammar needs a token that ends the answer, but `ignore_eos` is set or the model has no \
         end-of-sequence token: leave `ignore_eos` out, or choose another model"
    )]
    NoEnd,
    /// The answer cannot be continued within the grammar.
    #[error("the answer after {} tokens cannot be continued within the {kind}: {reason}", .after)]
    Stuck {
        /// The grammar's language.
        kind: GrammarKind,
        /// The number of tokens of the answer.
        after: usize,
        /// Why it cannot be continued.
        reason: String,
    },
}

impl GrammarError {
    /// Returns what is wrong with the grammar, without naming it.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Invalid { reason, .. } | Self::Stuck { reason, .. } => reason.clone(),
            Self::Tokenizer { .. } | Self::NoEnd => self.to_string(),
        }
    }
}

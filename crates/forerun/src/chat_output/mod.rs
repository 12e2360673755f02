//! The reasoning and the tool calls in the text that a model writes.
//!
//! Each family of models has a syntax of its own. A [`ChatParser`] reads it from a stream and
//! returns [`ChatPart`]s, which every API writes in its own form.

mod grammar;
mod harmony;
mod json_calls;
mod markup;
mod named_calls;
mod scanner;
mod syntax;
#[cfg(test)]
mod tests;
mod tools_as_text;
mod xml_calls;

pub use syntax::{ChatSyntax, Tool, UnknownSyntax};
pub use tools_as_text::with_tools_as_text;

use harmony::HarmonyParser;
use markup::MarkupParser;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatPart {
    /// Text for the user.
    Text(String),
    /// What the model thinks before it answers.
    Reasoning(String),
    /// The beginning of a call of the tool with this name.
    Call(String),
    /// More of the arguments of the last call: a piece of a JSON object.
    Arguments(String),
}

impl ChatPart {
    /// Returns the piece of the answer's text that the part shows: none for the beginning of a
    /// call.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Reasoning(text) | Self::Arguments(text) => text,
            Self::Call(_) => "",
        }
    }
}

/// Reads the parts of one answer.
pub struct ChatParser {
    kind: Kind,
    /// The number of calls that may still follow. Further ones are left out.
    calls_left: usize,
}

enum Kind {
    /// All is text.
    Plain,
    Markup(Box<MarkupParser>),
    Harmony(HarmonyParser),
}

impl ChatParser {
    /// Creates a parser for which all is text.
    #[must_use]
    pub fn plain() -> Self {
        Self { kind: Kind::Plain, calls_left: 0 }
    }

    fn new(kind: Kind, most_calls: usize) -> Self {
        Self { kind, calls_left: most_calls.saturating_add(1) }
    }

    /// Reads more of the answer's text.
    pub fn push(&mut self, text: &str) -> Vec<ChatPart> {
        let mut parts = Parts::default();
        match &mut self.kind {
            Kind::Plain => parts.text(text),
            Kind::Markup(parser) => parser.push(text, &mut parts),
            Kind::Harmony(parser) => parser.push(text, &mut parts),
        }
        self.limit(parts)
    }

    /// Returns what was held back, once there is no more text.
    pub fn finish(&mut self) -> Vec<ChatPart> {
        let mut parts = Parts::default();
        match &mut self.kind {
            Kind::Plain => {}
            Kind::Markup(parser) => parser.finish(&mut parts),
            Kind::Harmony(parser) => parser.finish(&mut parts),
        }
        self.limit(parts)
    }

    /// Leaves out the calls that are too many.
    fn limit(&mut self, parts: Parts) -> Vec<ChatPart> {
        let mut kept = parts.0;
        kept.retain(|part| {
            if let ChatPart::Call(_) = part {
                self.calls_left = self.calls_left.saturating_sub(1);
            }
            self.calls_left > 0 || !matches!(part, ChatPart::Call(_) | ChatPart::Arguments(_))
        });
        kept
    }
}

/// Parts in their order. Neighbours of the same kind are joined.
#[derive(Debug, Default)]
struct Parts(Vec<ChatPart>);

impl Parts {
    fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatPart::Text(last)) => last.push_str(text),
            _ => self.0.push(ChatPart::Text(text.to_owned())),
        }
    }

    fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatPart::Reasoning(last)) => last.push_str(text),
            _ => self.0.push(ChatPart::Reasoning(text.to_owned())),
        }
    }

    fn call(&mut self, name: &str) {
        self.0.push(ChatPart::Call(name.to_owned()));
    }

    fn arguments(&mut self, json: &str) {
        match self.0.last_mut() {
            _ if json.is_empty() => {}
            Some(ChatPart::Arguments(last)) => last.push_str(json),
            _ => self.0.push(ChatPart::Arguments(json.to_owned())),
        }
    }
}

/// Reads what stands between the tags of a tool call.
trait CallParser: Send {
    /// Reads more of the call.
    fn push(&mut self, text: &str, parts: &mut Parts);

    /// Ends the call.
    fn finish(&mut self, parts: &mut Parts);

    /// Returns whether this turned out to be no call. Then its parts are text.
    fn is_text(&self) -> bool;
}

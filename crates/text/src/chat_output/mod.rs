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
use serde::de::IgnoredAny;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatPart {
    /// Text for the user.
    Text(String),
    /// What the model thinks before it answers.
    Reasoning(String),
    /// A call of the tool with this name.
    Call(String),
    /// The arguments of the last call: a JSON object.
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
    /// The call that is being written, with its arguments. It is held back until it is complete, so
    /// that an answer that is cut off has no part of one.
    held: Vec<ChatPart>,
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
        Self::new(Kind::Plain, 0)
    }

    fn new(kind: Kind, most_calls: usize) -> Self {
        Self { kind, calls_left: most_calls.saturating_add(1), held: Vec::new() }
    }

    /// Reads more of the answer's text.
    pub fn push(&mut self, text: &str) -> Vec<ChatPart> {
        let mut parts = Parts::default();
        match &mut self.kind {
            Kind::Plain => parts.text(text),
            Kind::Markup(parser) => parser.push(text, &mut parts),
            Kind::Harmony(parser) => parser.push(text, &mut parts),
        }
        self.show(parts)
    }

    /// Returns what was held back, once there is no more text. If a limit cut the text off
    /// (`is_cut`), a call that is not complete is left out.
    pub fn finish(&mut self, is_cut: bool) -> Vec<ChatPart> {
        let mut parts = Parts::default();
        match &mut self.kind {
            Kind::Plain => {}
            Kind::Markup(parser) => parser.finish(&mut parts, is_cut),
            Kind::Harmony(parser) => parser.finish(&mut parts, is_cut),
        }
        let mut shown = self.show(parts);
        let is_complete = match &self.held[..] {
            [_, ChatPart::Arguments(json)] => is_object(json),
            _ => false,
        };
        if is_complete || !is_cut {
            shown.extend(self.call());
        }
        shown
    }

    /// Returns the parts that are complete, without the calls that are too many.
    fn show(&mut self, parts: Parts) -> Vec<ChatPart> {
        let mut shown = Vec::new();
        for part in parts.0 {
            match part {
                ChatPart::Text(_) | ChatPart::Reasoning(_) => {
                    shown.extend(self.call());
                    shown.push(part);
                }
                ChatPart::Call(_) => {
                    shown.extend(self.call());
                    self.calls_left = self.calls_left.saturating_sub(1);
                    if self.calls_left > 0 {
                        self.held.push(part);
                    }
                }
                ChatPart::Arguments(more) => match self.held.last_mut() {
                    Some(ChatPart::Arguments(json)) => json.push_str(&more),
                    Some(_) => self.held.push(ChatPart::Arguments(more)),
                    // Of a call too many.
                    None => {}
                },
            }
        }
        shown
    }

    /// Returns the call that was held back. One without arguments has an empty object.
    fn call(&mut self) -> Vec<ChatPart> {
        if let [ChatPart::Call(_)] = &self.held[..] {
            self.held.push(ChatPart::Arguments("{}".to_owned()));
        }
        std::mem::take(&mut self.held)
    }
}

/// Returns whether a text is a whole JSON object.
fn is_object(text: &str) -> bool {
    text.starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
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

    /// Ends the call where a limit cut the answer off. Nothing more of a call is reported.
    fn cut(&mut self, _parts: &mut Parts) {}

    /// Returns whether this turned out to be no call. Then its parts are text.
    fn is_text(&self) -> bool;
}

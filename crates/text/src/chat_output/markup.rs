//! Answers in which tags surround the reasoning and the calls.

use super::named_calls::NamedCalls;
use super::scanner::{Piece, Scanner};
use super::syntax::{Markup, Tool, ToolSyntax};
use super::xml_calls::{XmlCalls, XmlStyle};
use super::{CallParser, Parts, json_calls::JsonCalls};

/// Reads such answers.
pub(crate) struct MarkupParser {
    markup: Markup,
    tools: Vec<Tool>,
    scanner: Scanner,
    state: State,
    /// White space that is only text if more text follows, and not a call.
    space: String,
    /// Whether the text may begin with line breaks that belong to the reasoning.
    after_reasoning: bool,
}

enum State {
    /// At the beginning, where some families write a call without a tag.
    Start,
    Text,
    Reasoning {
        begun: bool,
    },
    Call(Box<dyn CallParser>),
}

impl MarkupParser {
    /// Creates a parser. `in_reasoning`: the prompt ends with the tag that opens the reasoning.
    pub(super) fn new(markup: Markup, tools: Vec<Tool>, in_reasoning: bool) -> Self {
        let state = match in_reasoning {
            true => State::Reasoning { begun: false },
            false => State::Start,
        };
        let (scanner, space) = (Scanner::default(), String::new());
        Self { markup, tools, scanner, state, space, after_reasoning: false }
    }

    pub(super) fn push(&mut self, text: &str, parts: &mut Parts) {
        self.scanner.push(text);
        self.read(parts);
    }

    fn read(&mut self, parts: &mut Parts) {
        while let Some(piece) = self.scanner.next(&self.tags()) {
            self.piece(piece, parts);
        }
    }

    /// Returns the tags that count in the current state.
    fn tags(&self) -> Vec<&'static str> {
        let reasoning = self.markup.reasoning;
        let calls = self.markup.calls.map(ToolSyntax::tags);
        match &self.state {
            State::Start | State::Text => {
                let mut tags: Vec<_> = reasoning.map(|tags| tags.open).into_iter().collect();
                tags.extend(
                    calls.iter().flat_map(|tags| {
                        [tags.open].into_iter().chain(tags.ignored.iter().copied())
                    }),
                );
                tags
            }
            State::Reasoning { .. } => reasoning.map(|tags| tags.close).into_iter().collect(),
            // A call without a closing tag ends where the next one begins.
            State::Call(_) => calls.iter().map(|tags| tags.close.unwrap_or(tags.open)).collect(),
        }
    }

    fn piece(&mut self, piece: Piece, parts: &mut Parts) {
        match (&mut self.state, piece) {
            (State::Start, Piece::Text(text)) => self.start(&text, parts),
            (State::Text, Piece::Text(text)) => self.text(&text, parts),
            (State::Start | State::Text, Piece::Tag(tag)) => {
                if self.markup.reasoning.is_some_and(|tags| tags.open == tag) {
                    self.state = State::Reasoning { begun: false };
                } else if self.markup.calls.is_some_and(|calls| calls.tags().open == tag) {
                    self.begin_call(tag);
                }
            }
            (State::Reasoning { begun }, Piece::Text(text)) => {
                let text = if *begun { &text[..] } else { text.trim_start() };
                *begun |= !text.is_empty();
                let end = text.trim_end();
                if !end.is_empty() {
                    parts.reasoning(&std::mem::take(&mut self.space));
                    parts.reasoning(end);
                }
                self.space.push_str(&text[end.len()..]);
            }
            (State::Reasoning { .. }, Piece::Tag(_)) => {
                self.space.clear();
                self.after_reasoning = true;
                // Later tags are text, such as those within JSON.
                self.markup.reasoning = None;
                self.state = State::Start;
            }
            (State::Call(call), Piece::Text(text)) => call.push(&text, parts),
            (State::Call(_), Piece::Tag(tag)) => self.end_call(tag, parts),
        }
    }

    /// Reads the first text, which may be a call without a tag.
    fn start(&mut self, text: &str, parts: &mut Parts) {
        let trimmed = text.trim_start();
        if trimmed.is_empty() {
            return self.space.push_str(text);
        }
        let begins_call = self.markup.calls == Some(ToolSyntax::Llama3) && trimmed.starts_with('{');
        self.state = State::Text;
        if !begins_call {
            return self.text(text, parts);
        }
        self.begin_call("");
        if let State::Call(call) = &mut self.state {
            call.push(text, parts);
        }
    }

    fn text(&mut self, text: &str, parts: &mut Parts) {
        let text = if self.after_reasoning { text.trim_start() } else { text };
        if self.after_reasoning && !text.is_empty() {
            (self.after_reasoning, self.space) = (false, String::new());
        }
        let end = match self.markup.calls {
            Some(_) => text.trim_end(),
            None => text,
        };
        if !end.is_empty() {
            parts.text(&std::mem::take(&mut self.space));
            parts.text(end);
        }
        self.space.push_str(&text[end.len()..]);
    }

    fn begin_call(&mut self, tag: &'static str) {
        let Some(syntax) = self.markup.calls else { return };
        let tools = self.tools.clone();
        let names = || tools.iter().map(|tool| tool.name.clone()).collect();
        self.state = State::Call(match syntax {
            ToolSyntax::Hermes => Box::new(JsonCalls::new(tag, None)),
            ToolSyntax::Llama3 => Box::new(JsonCalls::new(tag, Some(names()))),
            ToolSyntax::Mistral => Box::new(MistralCalls::new(tag)),
            ToolSyntax::DeepSeek => Box::new(NamedCalls::new(tag, "<｜tool▁sep｜>")),
            ToolSyntax::Glm => Box::new(XmlCalls::new(tag, XmlStyle::Glm, tools)),
            ToolSyntax::QwenCoder => Box::new(XmlCalls::new(tag, XmlStyle::QwenCoder, tools)),
        });
        self.space.clear();
    }

    fn end_call(&mut self, tag: &'static str, parts: &mut Parts) {
        let State::Call(call) = &mut self.state else { return };
        call.finish(parts);
        let is_text = call.is_text();
        self.state = State::Text;
        if self.markup.calls.is_some_and(|calls| calls.tags().close.is_none()) {
            self.begin_call(tag);
        } else if is_text {
            parts.text(tag);
        }
    }

    pub(super) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        if let (State::Call(call), true) = (&mut self.state, is_cut) {
            // What the scanner holds back is the beginning of a tag.
            return call.cut(parts);
        }
        let rest = self.scanner.rest();
        if !rest.is_empty() {
            self.piece(Piece::Text(rest), parts);
        }
        match &mut self.state {
            State::Call(call) => call.finish(parts),
            State::Reasoning { .. } => {}
            State::Start | State::Text if self.after_reasoning => {}
            State::Start | State::Text => parts.text(&std::mem::take(&mut self.space)),
        }
    }
}

/// Mistral's calls: a list of objects in older models, and `name[ARGS]{…}` in newer ones.
struct MistralCalls {
    tag: &'static str,
    calls: Option<Box<dyn CallParser>>,
    space: String,
}

impl MistralCalls {
    fn new(tag: &'static str) -> Self {
        Self { tag, calls: None, space: String::new() }
    }
}

impl CallParser for MistralCalls {
    fn push(&mut self, text: &str, parts: &mut Parts) {
        if self.calls.is_none() {
            self.space.push_str(text);
            let first = self.space.trim_start().chars().next();
            self.calls = first.map(|first| match first {
                '[' | '{' => Box::new(JsonCalls::new(self.tag, None)) as Box<dyn CallParser>,
                _ => Box::new(NamedCalls::new(self.tag, "[ARGS]")),
            });
            if let Some(calls) = &mut self.calls {
                calls.push(&std::mem::take(&mut self.space), parts);
            }
        } else if let Some(calls) = &mut self.calls {
            calls.push(text, parts);
        }
    }

    fn finish(&mut self, parts: &mut Parts) {
        match &mut self.calls {
            Some(calls) => calls.finish(parts),
            None => {
                parts.text(self.tag);
                parts.text(&self.space);
            }
        }
    }

    fn is_text(&self) -> bool {
        self.calls.as_ref().is_none_or(|calls| calls.is_text())
    }
}

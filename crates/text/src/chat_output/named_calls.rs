//! Calls with the name before the arguments: `get_weather[ARGS]{"city": "Paris"}` of Mistral, and
//! DeepSeek's with tags of its own, whose first versions have a fence of Markdown around the
//! arguments.

use super::scanner::{Piece, Scanner};
use super::{CallParser, Parts};

const FENCE: &str = "```";

pub(super) struct NamedCalls {
    /// The opening tag, which is written if this turns out to be text.
    tag: &'static str,
    /// What stands between name and arguments.
    separator: &'static str,
    scanner: Scanner,
    state: State,
    /// White space that is only part of the arguments if more of them follow.
    space: String,
}

enum State {
    Head(String),
    /// After `function`: the name's line, and the fence's line.
    Fenced(String),
    Arguments {
        any: bool,
    },
    Done,
    Text,
}

impl NamedCalls {
    pub(super) fn new(tag: &'static str, separator: &'static str) -> Self {
        let (scanner, state) = (Scanner::default(), State::Head(String::new()));
        Self { tag, separator, scanner, state, space: String::new() }
    }

    fn begin(&mut self, name: &str, parts: &mut Parts) {
        // Mistral's newest models write an id after the name.
        let name = name.split("[CALL_ID]").next().unwrap_or_default().trim();
        parts.call(name);
        self.state = State::Arguments { any: false };
    }

    fn arguments(&mut self, text: &str, parts: &mut Parts) {
        let State::Arguments { any } = &mut self.state else { return };
        let text = if *any { text } else { text.trim_start() };
        *any |= !text.is_empty();
        let end = text.trim_end();
        if !end.is_empty() {
            parts.arguments(&std::mem::take(&mut self.space));
            parts.arguments(end);
        }
        if *any {
            self.space.push_str(&text[end.len()..]);
        }
    }
}

impl CallParser for NamedCalls {
    fn push(&mut self, text: &str, parts: &mut Parts) {
        self.scanner.push(text);
        loop {
            let tags: &[&'static str] = match &self.state {
                State::Head(_) => &[self.separator],
                State::Fenced(_) => &["```json\n", "```json"],
                State::Arguments { .. } => &[FENCE],
                State::Done | State::Text => &[],
            };
            let Some(piece) = self.scanner.next(tags) else { return };
            match (&mut self.state, piece) {
                (State::Head(head) | State::Fenced(head), Piece::Text(text)) => {
                    head.push_str(&text);
                }
                (State::Head(head), Piece::Tag(_)) if head.trim() == "function" => {
                    self.state = State::Fenced(String::new());
                }
                (State::Head(head) | State::Fenced(head), Piece::Tag(_)) => {
                    let name = std::mem::take(head);
                    self.begin(&name, parts);
                }
                (State::Arguments { .. }, Piece::Text(text)) => self.arguments(&text, parts),
                (State::Arguments { .. }, Piece::Tag(_)) => self.state = State::Done,
                (State::Text, Piece::Text(text)) => parts.text(&text),
                (State::Done, _) | (State::Text, Piece::Tag(_)) => {}
            }
        }
    }

    fn finish(&mut self, parts: &mut Parts) {
        let rest = self.scanner.rest();
        match &mut self.state {
            State::Head(head) => {
                let head = std::mem::take(head);
                parts.text(self.tag);
                parts.text(&head);
                parts.text(&rest);
                self.state = State::Text;
            }
            State::Fenced(head) => {
                // The arguments follow without a fence.
                let all = std::mem::take(head) + &rest;
                let (name, arguments) = all.split_once('\n').unwrap_or((&all, "{}"));
                self.begin(name, parts);
                self.arguments(arguments, parts);
            }
            State::Arguments { .. } => self.arguments(&rest, parts),
            State::Done | State::Text => {}
        }
    }

    fn is_text(&self) -> bool {
        matches!(self.state, State::Text)
    }
}

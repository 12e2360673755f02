//! The Harmony format of gpt-oss: messages on channels, such as
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`.

use super::Parts;
use super::scanner::{Piece, Scanner};

const MESSAGE: &str = "<|message|>";
const HEADER: [&str; 2] = ["<|start|>", "<|channel|>"];
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];

/// Reads the messages of an answer.
pub(crate) struct HarmonyParser {
    scanner: Scanner,
    state: State,
}

enum State {
    /// Between messages. Text without a header is for the user.
    Outside,
    Header(String),
    Analysis,
    Final,
    Call,
}

impl HarmonyParser {
    pub(super) fn new() -> Self {
        Self { scanner: Scanner::default(), state: State::Outside }
    }

    pub(super) fn push(&mut self, text: &str, parts: &mut Parts) {
        self.scanner.push(text);
        while let Some(piece) = self.scanner.next(self.tags()) {
            self.piece(piece, parts);
        }
    }

    fn tags(&self) -> &'static [&'static str] {
        match self.state {
            State::Header(_) => &[MESSAGE],
            State::Outside | State::Analysis | State::Final | State::Call => &ENDS,
        }
    }

    fn piece(&mut self, piece: Piece, parts: &mut Parts) {
        match (&mut self.state, piece) {
            (State::Header(header), Piece::Text(text)) => header.push_str(&text),
            (State::Header(header), Piece::Tag(_)) => {
                let header = std::mem::take(header);
                self.state = begin(&header, parts);
            }
            (_, Piece::Tag(tag)) if HEADER.contains(&tag) => {
                self.state = State::Header(tag.to_owned());
            }
            (_, Piece::Tag(_)) => self.state = State::Outside,
            (State::Analysis, Piece::Text(text)) => parts.reasoning(&text),
            (State::Final | State::Outside, Piece::Text(text)) => parts.text(&text),
            (State::Call, Piece::Text(text)) => parts.arguments(&text),
        }
    }

    pub(super) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        let rest = self.scanner.rest();
        // Where a call was cut off, it is the beginning of a tag.
        let is_tag = is_cut && matches!(self.state, State::Call);
        if !rest.is_empty() && !is_tag {
            self.piece(Piece::Text(rest), parts);
        }
    }
}

/// Begins the message with this header:
/// `<|channel|>commentary to=functions.get_weather <|constrain|>json`.
fn begin(header: &str, parts: &mut Parts) -> State {
    let recipient = header.split("to=").nth(1).map(|rest| {
        rest.split(|end: char| end.is_whitespace() || end == '<').next().unwrap_or_default()
    });
    if let Some(name) = recipient.filter(|name| !name.is_empty()) {
        parts.call(name.strip_prefix("functions.").unwrap_or(name));
        return State::Call;
    }
    match header.rsplit("<|channel|>").next().map(str::trim) {
        Some("analysis") => State::Analysis,
        _ => State::Final,
    }
}

//! The objects that answers are made of.

use super::OllamaError;
use super::time::rfc3339;
use crate::api::answers::{Collected, StreamWriter, new_id};
use crate::api::error::ApiError;
use crate::api::fields::Api;
use crate::api::openai::logprobs::Logprobs;
use crate::models::Lease;
use forerun::text::ChatPart as Part;
use forerun::{Answer, AnswerToken, Finish};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Writes a whole answer, or the lines of a stream.
pub(super) struct AnswerWriter {
    api: Api,
    model: Arc<Lease>,
    /// The call that is being written: its name and its arguments so far.
    open_call: Option<(String, String)>,
    /// The number of calls that are complete.
    calls: usize,
}

/// What an object adds to the answer.
#[derive(Default)]
struct Piece {
    text: String,
    thinking: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
}

impl Piece {
    fn is_empty(&self) -> bool {
        let Self { text, thinking, calls, logprobs } = self;
        text.is_empty() && thinking.is_empty() && calls.is_empty() && logprobs.is_empty()
    }
}

impl AnswerWriter {
    pub(super) fn new(api: Api, model: Arc<Lease>) -> Self {
        Self { api, model, open_call: None, calls: 0 }
    }

    /// Returns a whole answer.
    pub(super) fn whole(&mut self, collected: Vec<Collected>) -> Value {
        let mut value = Value::Null;
        // There is one choice.
        for Collected { parts, answer, .. } in collected {
            let mut piece = Piece::default();
            parts.into_iter().for_each(|part| self.add(part, &mut piece));
            self.close_call(&mut piece);
            let logprobs = Logprobs::of_answer(&answer, self.model.generator.forerun().tokenizer());
            piece.logprobs = logprobs.as_ref().map(entries).unwrap_or_default();
            value = self.last(piece, &answer);
        }
        value
    }

    fn add(&mut self, part: Part, piece: &mut Piece) {
        match part {
            Part::Text(text) if text.is_empty() => {}
            Part::Text(text) => {
                self.close_call(piece);
                piece.text.push_str(&text);
            }
            Part::Reasoning(text) => {
                self.close_call(piece);
                piece.thinking.push_str(&text);
            }
            Part::Call(name) => {
                self.close_call(piece);
                self.open_call = Some((name, String::new()));
            }
            Part::Arguments(json) => {
                if let Some((_, arguments)) = &mut self.open_call {
                    arguments.push_str(&json);
                }
            }
        }
    }

    /// Completes the call that is being written. Calls are whole in this API, also in streams.
    fn close_call(&mut self, piece: &mut Piece) {
        let Some((name, arguments)) = self.open_call.take() else { return };
        // What the model writes as arguments may be no JSON.
        let arguments: Value = serde_json::from_str(&arguments).unwrap_or_else(|_| json!({}));
        let function = json!({"index": self.calls, "name": name, "arguments": arguments});
        piece.calls.push(json!({"id": new_id("call_"), "function": function}));
        self.calls += 1;
    }

    /// Returns an object that is not the last one.
    fn value(&self, piece: Piece) -> Value {
        let Piece { text, thinking, calls, logprobs } = piece;
        let mut value = object(self.api, &self.model.name, &text);
        let message = match self.api {
            Api::OllamaChat => &mut value["message"],
            _ => &mut value,
        };
        if !thinking.is_empty() {
            message["thinking"] = thinking.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        if !logprobs.is_empty() {
            value["logprobs"] = logprobs.into();
        }
        value
    }

    /// Returns the last object. Times are in nanoseconds.
    fn last(&self, piece: Piece, answer: &Answer) -> Value {
        let mut value = self.value(piece);
        value["done"] = true.into();
        value["done_reason"] = match answer.finish {
            Finish::MaxTokens | Finish::Context => "length".into(),
            Finish::Eos | Finish::Stopped => "stop".into(),
        };
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        for (name, number) in [
            ("total_duration", nanoseconds(self.model.asked.elapsed())),
            ("load_duration", nanoseconds(self.model.waited)),
            ("prompt_eval_count", answer.prompt_tokens as u64),
            ("prompt_eval_duration", answer.first_token_ns),
            ("eval_count", answer.tokens.len() as u64),
            ("eval_duration", answer.total_ns.saturating_sub(answer.first_token_ns)),
        ] {
            value[name] = number.into();
        }
        value
    }
}

/// Returns the form of both APIs, with a text.
fn object(api: Api, model: &str, text: &str) -> Value {
    let mut object = Map::new();
    object.insert("model".into(), model.into());
    object.insert("created_at".into(), rfc3339(SystemTime::now()).into());
    let (name, content) = match api {
        Api::OllamaChat => ("message", json!({"role": "assistant", "content": text})),
        _ => ("response", text.into()),
    };
    object.insert(name.into(), content);
    object.insert("done".into(), false.into());
    object.into()
}

/// Returns the response to a request that has nothing to answer.
pub(super) fn without_answer(api: Api, model: &str, reason: &str) -> Value {
    let mut value = object(api, model, "");
    value["done"] = true.into();
    value["done_reason"] = reason.into();
    value
}

/// Returns one object for each token.
fn entries(logprobs: &Logprobs<'_>) -> Vec<Value> {
    match logprobs.of_chat()["content"].take() {
        Value::Array(entries) => entries,
        _ => Vec::new(),
    }
}

impl StreamWriter for AnswerWriter {
    type Item = Value;

    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn part(&mut self, _choice: usize, part: Part, tokens: &[AnswerToken]) -> Vec<Value> {
        let mut piece = Piece::default();
        self.add(part, &mut piece);
        let logprobs = Logprobs::of_part(tokens, self.model.generator.forerun().tokenizer());
        piece.logprobs = logprobs.as_ref().map(entries).unwrap_or_default();
        if piece.is_empty() {
            return Vec::new();
        }
        vec![self.value(piece)]
    }

    fn end_choice(&mut self, _choice: usize, answer: &Answer) -> Vec<Value> {
        let mut piece = Piece::default();
        self.close_call(&mut piece);
        let calls = (!piece.is_empty()).then(|| self.value(piece));
        calls.into_iter().chain([self.last(Piece::default(), answer)]).collect()
    }

    fn end(&mut self, _answers: &[Box<Answer>]) -> Vec<Value> {
        Vec::new()
    }

    fn error(&mut self, error: &ApiError) -> Vec<Value> {
        vec![OllamaError::from(error.clone()).body()]
    }
}

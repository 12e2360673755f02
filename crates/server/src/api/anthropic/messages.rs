//! `/v1/messages` and `/v1/messages/count_tokens`.

use super::request::{FIELDS, MessagesBody};
use crate::api::answers::{Answers, StreamWriter, new_id, prepare, stream};
use crate::api::body_of;
use crate::api::error::ApiError;
use crate::api::openai::envelope::Usage;
use crate::api::state::State;
use crate::models::Lease;
use axum::body::Bytes;
use axum::extract;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use forerun::text::ChatPart as Part;
use forerun::{Answer, AnswerToken, Finish};
use serde_json::{Value, json};
use std::sync::Arc;

/// An error in the form of Anthropic's API.
pub(crate) struct AnthropicError(ApiError);

impl From<ApiError> for AnthropicError {
    fn from(error: ApiError) -> Self {
        Self(error.renamed(&FIELDS))
    }
}

impl AnthropicError {
    fn body(&self) -> Value {
        let kind = match self.0.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": self.0.message()}})
    }
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        self.0.with_body(&self.body())
    }
}

pub(crate) async fn messages(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, AnthropicError> {
    let bytes = body_of(body)?;
    let body = prepare(move || MessagesBody::parse(&bytes)).await?;
    let model = state.lend(body.model()).await?;
    let shared = Arc::clone(&model);
    let prepared = prepare(move || {
        let (streams, stops) = (body.streams(), body.stop_sequences().to_vec());
        Ok((streams, stops, body.into_chat(true)?.chat(&shared)?))
    });
    let (streams, stop_sequences, prepared) = prepared.await?;
    let prompt_tokens = prepared.prompt_tokens();
    let answers = Answers::start(&state, &model, prepared).await?;
    let mut writer = MessageWriter::new(model, stop_sequences, prompt_tokens);
    if streams {
        return Ok(stream(answers, writer));
    }
    for choice in answers.collect().await? {
        for part in choice.parts {
            writer.part(0, part, &[]);
        }
        writer.end_choice(0, &choice.answer);
    }
    Ok(axum::Json(writer.message).into_response())
}

pub(crate) async fn count_tokens(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, AnthropicError> {
    let bytes = body_of(body)?;
    let body = prepare(move || MessagesBody::parse(&bytes)).await?;
    let model = state.lend(body.model()).await?;
    let count = prepare(move || Ok(body.into_chat(false)?.chat(&model)?.prompt_tokens()));
    Ok(axum::Json(json!({"input_tokens": count.await?})).into_response())
}

/// Writes the blocks of a message, and the events of a stream.
struct MessageWriter {
    model: Arc<Lease>,
    stop_sequences: Vec<String>,
    message: Value,
    /// The block that is being written.
    open: Option<OpenBlock>,
    /// The arguments of the call that is being written.
    arguments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Text,
    Thinking,
    ToolUse,
}

fn event(name: &str, mut data: Value) -> Event {
    data["type"] = name.into();
    Event::default().event(name).data(data.to_string())
}

impl MessageWriter {
    fn new(model: Arc<Lease>, stop_sequences: Vec<String>, prompt_tokens: usize) -> Self {
        let message = json!({
            "id": new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": model.name,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        });
        Self { model, stop_sequences, message, open: None, arguments: String::new() }
    }

    fn content(&mut self) -> &mut Vec<Value> {
        match &mut self.message["content"] {
            Value::Array(content) => content,
            _ => unreachable!("the content is a list"),
        }
    }

    fn open_block(&mut self, kind: OpenBlock, name: &str) -> Vec<Event> {
        let mut events = self.close_block();
        let block = match kind {
            OpenBlock::Text => json!({"type": "text", "text": ""}),
            OpenBlock::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            OpenBlock::ToolUse => {
                json!({"type": "tool_use", "id": new_id("toolu_"), "name": name, "input": {}})
            }
        };
        self.content().push(block.clone());
        self.open = Some(kind);
        let index = self.content().len() - 1;
        let start = json!({"index": index, "content_block": block});
        events.push(event("content_block_start", start));
        events
    }

    fn extend(&mut self, kind: OpenBlock, text: &str) -> Vec<Event> {
        let mut events = match self.open == Some(kind) {
            true => Vec::new(),
            false => self.open_block(kind, ""),
        };
        let index = self.content().len() - 1;
        let (field, delta) = match kind {
            OpenBlock::Text => ("text", json!({"type": "text_delta", "text": text})),
            OpenBlock::Thinking => {
                ("thinking", json!({"type": "thinking_delta", "thinking": text}))
            }
            OpenBlock::ToolUse => {
                self.arguments.push_str(text);
                ("", json!({"type": "input_json_delta", "partial_json": text}))
            }
        };
        if let Some(Value::String(all)) = self.content()[index].get_mut(field) {
            all.push_str(text);
        }
        events.push(event("content_block_delta", json!({"index": index, "delta": delta})));
        events
    }

    fn close_block(&mut self) -> Vec<Event> {
        let Some(kind) = self.open.take() else { return Vec::new() };
        let index = self.content().len() - 1;
        if kind == OpenBlock::ToolUse {
            let arguments = std::mem::take(&mut self.arguments);
            // What the model writes as arguments may be no JSON.
            let input = serde_json::from_str(&arguments).unwrap_or_else(|_| json!({}));
            self.content()[index]["input"] = input;
        }
        vec![event("content_block_stop", json!({"index": index}))]
    }

    /// Returns the stop string that ended an answer.
    fn stop_sequence(&self, answer: &Answer) -> Option<String> {
        if answer.finish != Finish::Stopped {
            return None;
        }
        let all = self.model.generator.forerun().tokenizer().decode(&answer.tokens);
        let end = all.get(answer.text.len()..).unwrap_or_default();
        self.stop_sequences.iter().find(|stop| end.starts_with(&**stop)).cloned()
    }
}

impl StreamWriter for MessageWriter {
    type Item = Event;

    fn begin(&mut self) -> Vec<Event> {
        vec![event("message_start", json!({"message": self.message})), event("ping", json!({}))]
    }

    fn part(&mut self, _choice: usize, part: Part, _tokens: &[AnswerToken]) -> Vec<Event> {
        match part {
            Part::Text(text) if text.is_empty() => Vec::new(),
            Part::Text(text) => self.extend(OpenBlock::Text, &text),
            Part::Reasoning(text) => self.extend(OpenBlock::Thinking, &text),
            Part::Call(name) => self.open_block(OpenBlock::ToolUse, &name),
            Part::Arguments(json) => self.extend(OpenBlock::ToolUse, &json),
        }
    }

    fn end_choice(&mut self, _choice: usize, answer: &Answer) -> Vec<Event> {
        let mut events = self.close_block();
        let mut usage = Usage::default();
        usage.add(answer, true);
        let usage = json!({
            "input_tokens": usage.prompt - usage.cached,
            "cache_read_input_tokens": usage.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage.completion,
        });
        let stop_sequence = self.stop_sequence(answer);
        let has_calls = self.content().iter().any(|block| block["type"] == "tool_use");
        let reason = match answer.finish {
            Finish::MaxTokens | Finish::Context => "max_tokens",
            Finish::Eos | Finish::Stopped if stop_sequence.is_some() => "stop_sequence",
            Finish::Eos | Finish::Stopped if has_calls => "tool_use",
            Finish::Eos | Finish::Stopped => "end_turn",
        };
        let delta = json!({"stop_reason": reason, "stop_sequence": stop_sequence});
        events.push(event("message_delta", json!({"delta": delta, "usage": usage})));
        self.message["stop_reason"] = reason.into();
        self.message["stop_sequence"] = stop_sequence.into();
        self.message["usage"] = usage;
        events
    }

    fn end(&mut self, _answers: &[Box<Answer>]) -> Vec<Event> {
        vec![event("message_stop", json!({}))]
    }

    fn error(&mut self, error: &ApiError) -> Vec<Event> {
        let error = AnthropicError(error.clone());
        vec![event("error", error.body())]
    }
}

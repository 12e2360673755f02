//! `/v1/chat/completions`.

use super::body::Body;
use super::envelope::{Envelope, StreamOptions, Usage, finish_reason, statistics};
use super::logprobs::Logprobs;
use super::token_details::{add_measurements, add_tokens, token_details};
use crate::api::answers::{Answers, Collected, StreamWriter, new_id, prepare, stream};
use crate::api::body_of;
use crate::api::error::ApiError;
use crate::api::fields::Api;
use crate::api::state::State;
use crate::models::Lease;
use axum::body::Bytes;
use axum::extract;
use axum::extract::rejection::BytesRejection;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use forerun::text::ChatPart as Part;
use forerun::text::Tokenizer;
use forerun::{Answer, AnswerToken, Finish};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn chat_completions(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let bytes = body_of(body)?;
    let body = prepare(move || Body::parse(Api::Chat, &bytes)).await?;
    let model = state.lend(body.model()).await?;
    let shared = Arc::clone(&model);
    let (body, prepared) = prepare(move || {
        let prepared = body.chat(&shared)?;
        Ok((body, prepared))
    })
    .await?;
    let choices_per_prompt = prepared.choices_per_prompt;
    let answers = Answers::start(&state, &model, prepared).await?;
    let left_out = answers.left_out.clone();
    if body.streams() {
        let writer = ChatWriter {
            envelope: Envelope::new(&model, "chatcmpl-", "chat.completion.chunk")
                .with_usage(body.includes_usage()),
            calls: vec![0; answers.count],
            options: StreamOptions {
                usage: body.includes_usage(),
                details: body.details(),
                choices_per_prompt,
            },
            model,
        };
        return Ok((left_out, stream(answers, writer)).into_response());
    }
    let collected = answers.collect().await?;
    let tokenizer = model.generator.forerun().tokenizer();
    let mut usage = Usage::default();
    let choice = |(index, choice): (usize, &Collected)| {
        usage.add(&choice.answer, index % choices_per_prompt == 0);
        whole_choice(index, choice, tokenizer)
    };
    let choices: Vec<Value> = collected.iter().enumerate().map(choice).collect();
    let mut response = Envelope::new(&model, "chatcmpl-", "chat.completion").with(&choices);
    response["usage"] = usage.value();
    let answers = || collected.iter().map(|choice| &*choice.answer);
    response["forerun"] = statistics(answers());
    if body.details() {
        add_measurements(&mut response["forerun"], answers(), tokenizer);
        add_tokens(&mut response["choices"], &collected, tokenizer);
    }
    Ok((left_out, axum::Json(response)).into_response())
}

fn whole_choice(index: usize, choice: &Collected, tokenizer: &Tokenizer) -> Value {
    let (mut text, mut reasoning) = (None::<String>, String::new());
    let mut calls: Vec<(String, String)> = Vec::new();
    for part in &choice.parts {
        match part {
            Part::Text(more) => text.get_or_insert_default().push_str(more),
            Part::Reasoning(more) => reasoning.push_str(more),
            Part::Call(name) => calls.push((name.clone(), String::new())),
            Part::Arguments(json) => {
                if let Some((_, arguments)) = calls.last_mut() {
                    arguments.push_str(json);
                }
            }
        }
    }
    // As in OpenAI's API, a message of calls alone has no content.
    let content = text.or_else(|| calls.is_empty().then(String::new));
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        let call = |(name, arguments): &(String, String)| call_value(name, arguments);
        message["tool_calls"] = calls.iter().map(call).collect();
    }
    let logprobs = Logprobs::of_answer(&choice.answer, tokenizer);
    json!({
        "index": index,
        "message": message,
        "logprobs": logprobs.map(|logprobs| logprobs.of_chat()),
        "finish_reason": reason(choice.answer.finish, !calls.is_empty()),
    })
}

fn call_value(name: &str, arguments: &str) -> Value {
    json!({
        "id": new_id("call_"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    })
}

fn reason(finish: Finish, has_calls: bool) -> &'static str {
    match finish_reason(finish) {
        "stop" if has_calls => "tool_calls",
        reason => reason,
    }
}

/// Writes the chunks of a stream.
struct ChatWriter {
    envelope: Envelope,
    model: Arc<Lease>,
    /// The number of calls of each choice so far.
    calls: Vec<usize>,
    options: StreamOptions,
}

impl StreamWriter for ChatWriter {
    type Item = Event;

    fn begin(&mut self) -> Vec<Event> {
        let delta = json!({"role": "assistant", "content": ""});
        let choices = 0..self.calls.len();
        let event = |choice| {
            self.envelope.event(&[json!({
                "index": choice, "delta": delta, "logprobs": null, "finish_reason": null,
            })])
        };
        choices.map(event).collect()
    }

    fn part(&mut self, choice: usize, part: Part, tokens: &[AnswerToken]) -> Vec<Event> {
        let tokenizer = self.model.generator.forerun().tokenizer();
        let text = part.text().to_owned();
        let delta = match part {
            Part::Text(text) => json!({"content": text}),
            Part::Reasoning(text) => json!({"reasoning_content": text}),
            Part::Call(name) => {
                let mut call = call_value(&name, "");
                call["index"] = self.calls[choice].into();
                self.calls[choice] += 1;
                json!({"tool_calls": [call]})
            }
            Part::Arguments(json) => {
                let index = self.calls[choice].saturating_sub(1);
                json!({"tool_calls": [{"index": index, "function": {"arguments": json}}]})
            }
        };
        let logprobs = Logprobs::of_part(tokens, tokenizer);
        let logprobs = logprobs.map_or(Value::Null, |logprobs| logprobs.of_chat());
        let reports = self.options.details && !tokens.is_empty();
        if delta["content"] == "" && logprobs.is_null() && !reports {
            return Vec::new();
        }
        let mut value = json!({
            "index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": null,
        });
        if reports {
            value["forerun"] = token_details(tokens, &text, tokenizer);
        }
        vec![self.envelope.event(&[value])]
    }

    fn end_choice(&mut self, choice: usize, answer: &Answer) -> Vec<Event> {
        let reason = reason(answer.finish, self.calls[choice] > 0);
        let choice =
            json!({"index": choice, "delta": {}, "logprobs": null, "finish_reason": reason});
        vec![self.envelope.event(&[choice])]
    }

    fn end(&mut self, answers: &[Box<Answer>]) -> Vec<Event> {
        let tokenizer = self.model.generator.forerun().tokenizer();
        self.envelope.end(answers, self.options, tokenizer)
    }

    fn error(&mut self, error: &ApiError) -> Vec<Event> {
        vec![Event::default().data(error.body().to_string())]
    }
}

//! `/v1/completions`.

use super::body::Body;
use super::envelope::{Envelope, StreamOptions, Usage, finish_reason, statistics};
use super::logprobs::{Logprobs, append};
use super::token_details::{add_measurements, add_tokens, token_details};
use crate::api::answers::{Answers, Collected, Prepared, StreamWriter, prepare, stream};
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
use forerun::{Answer, AnswerToken, TokenId};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn completions(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let bytes = body_of(body)?;
    let body = prepare(move || Body::parse(Api::Completions, &bytes)).await?;
    let model = state.lend(body.model()).await?;
    let shared = Arc::clone(&model);
    let (body, prepared) = prepare(move || {
        let prepared = body.completions(&shared)?;
        Ok((body, prepared))
    })
    .await?;
    let candidates = prepared.choices_per_prompt;
    let echoes = echoes(&body, &prepared, model.generator.forerun().tokenizer());
    let answers = Answers::start(&state, &model, prepared).await?;
    let envelope = Envelope::new(&model, "cmpl-", "text_completion");
    if body.streams() {
        let writer = CompletionWriter {
            positions: vec![0; answers.count],
            options: StreamOptions {
                usage: body.includes_usage(),
                details: body.details(),
                choices_per_prompt: candidates,
            },
            envelope: envelope.with_usage(body.includes_usage()),
            model,
        };
        return Ok(stream(answers, writer));
    }
    let mut collected = answers.collect().await?;
    let mut usage = Usage::default();
    for (index, choice) in collected.iter().enumerate() {
        usage.add(&choice.answer, index % candidates == 0);
    }
    if body.choices() < candidates {
        collected = best(collected, candidates, body.choices());
    }
    let tokenizer = model.generator.forerun().tokenizer();
    let choice = |(index, choice): (usize, &Collected)| {
        let mut value = match echoes.get(index / body.choices()) {
            None => whole_choice(&choice.answer, body.reports_logprobs(), tokenizer),
            Some(echo) => echo.choice(&choice.answer, tokenizer),
        };
        value["index"] = index.into();
        value
    };
    let choices: Vec<Value> = collected.iter().enumerate().map(choice).collect();
    let mut response = envelope.with(&choices);
    response["usage"] = usage.value();
    let answers = || collected.iter().map(|choice| &*choice.answer);
    response["forerun"] = statistics(answers());
    if body.details() {
        add_measurements(&mut response["forerun"], answers(), tokenizer);
        add_tokens(&mut response["choices"], &collected, tokenizer);
    }
    Ok(axum::Json(response).into_response())
}

fn whole_choice(answer: &Answer, reports_logprobs: bool, tokenizer: &Tokenizer) -> Value {
    let logprobs = Logprobs::of_answer(answer, tokenizer).filter(|_| reports_logprobs);
    json!({
        "text": answer.text,
        "logprobs": logprobs.map(|logprobs| logprobs.of_completion(0)),
        "finish_reason": finish_reason(answer.finish),
    })
}

/// A prompt that its choices begin with.
struct Echo {
    text: String,
    /// The first token, which has no log-probability.
    first: TokenId,
}

/// Returns the prompts, if choices begin with them.
fn echoes(body: &Body, prepared: &Prepared, tokenizer: &Tokenizer) -> Vec<Echo> {
    if !body.echoes() {
        return Vec::new();
    }
    let first = prepared.prompts.iter().filter_map(|prompt| prompt.first().copied());
    let echo = |(text, first)| Echo { text, first };
    body.prompt_texts(tokenizer).into_iter().zip(first).map(echo).collect()
}

impl Echo {
    fn choice(&self, answer: &Answer, tokenizer: &Tokenizer) -> Value {
        let Self { text, first } = self;
        let logprobs = Logprobs::of_prompt(answer, tokenizer);
        let mut logprobs = logprobs.map(|logprobs| logprobs.of_echo(*first, text));
        // Those of the answer alone are for `best_of`.
        let own = Logprobs::of_answer(answer, tokenizer);
        if let Some((all, own)) = logprobs.as_mut().zip(own) {
            append(all, &mut own.of_completion(text.chars().count()));
        }
        json!({
            "text": format!("{text}{}", answer.text),
            "logprobs": logprobs,
            "finish_reason": finish_reason(answer.finish),
        })
    }
}

/// Returns the choices of each prompt with the highest log-probability per token.
fn best(collected: Vec<Collected>, candidates: usize, n: usize) -> Vec<Collected> {
    let score = |choice: &Collected| {
        let logprobs = choice.answer.logprobs.as_deref().unwrap_or_default();
        let sum: f32 = logprobs.iter().map(|one| one.logprob).sum();
        sum / logprobs.len().max(1) as f32
    };
    let (mut collected, mut kept) = (collected.into_iter(), Vec::new());
    loop {
        let mut group: Vec<Collected> = collected.by_ref().take(candidates).collect();
        if group.is_empty() {
            return kept;
        }
        group.sort_by(|one, other| score(other).total_cmp(&score(one)));
        kept.extend(group.into_iter().take(n));
    }
}

/// Writes the chunks of a stream.
struct CompletionWriter {
    envelope: Envelope,
    model: Arc<Lease>,
    /// The number of characters of each choice so far.
    positions: Vec<usize>,
    options: StreamOptions,
}

impl StreamWriter for CompletionWriter {
    type Item = Event;

    fn begin(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn part(&mut self, choice: usize, part: Part, tokens: &[AnswerToken]) -> Vec<Event> {
        let Part::Text(text) = part else { return Vec::new() };
        let tokenizer = self.model.generator.forerun().tokenizer();
        let position = self.positions[choice];
        self.positions[choice] += text.chars().count();
        let logprobs = Logprobs::of_part(tokens, tokenizer);
        let logprobs = logprobs.map_or(Value::Null, |logprobs| logprobs.of_completion(position));
        let reports = self.options.details && !tokens.is_empty();
        if text.is_empty() && logprobs.is_null() && !reports {
            return Vec::new();
        }
        let mut value = json!({
            "index": choice, "text": text, "logprobs": logprobs, "finish_reason": null,
        });
        if reports {
            value["forerun"] = token_details(tokens, &text, tokenizer);
        }
        vec![self.envelope.event(&[value])]
    }

    fn end_choice(&mut self, choice: usize, answer: &Answer) -> Vec<Event> {
        let reason = finish_reason(answer.finish);
        let choice =
            json!({"index": choice, "text": "", "logprobs": null, "finish_reason": reason});
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

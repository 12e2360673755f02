//! `/v1/completions` and `/v1/chat/completions`.

use super::error::{ApiError, of_engine};
use super::format::{Format, Kind, Usage, statistics};
use super::request::Body;
use super::state::{State, unix_seconds};
use super::token_details::{TokenDetails, add_measurements};
use crate::admission::{Places, Refusal};
use crate::generation::{Events, Task};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use forerun::{Answer, AnswerEvent};
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;

/// Chunks of a stream that may wait for a slow client.
const CHUNKS_AHEAD: usize = 16;

pub(super) async fn completions(
    axum::extract::State(state): axum::extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    answer(state, Kind::Completion, body).await
}

pub(super) async fn chat_completions(
    axum::extract::State(state): axum::extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    answer(state, Kind::Chat, body).await
}

/// The body of a request, within the limits.
pub(super) fn body_of(body: Result<Bytes, BytesRejection>) -> Result<Bytes, ApiError> {
    body.map_err(|rejection| ApiError::new(rejection.status(), rejection.body_text()))
}

/// One choice of a request: its place among the choices, and its events.
struct Choice {
    index: usize,
    events: Events,
    /// An event that was received before the response began.
    first: Option<AnswerEvent>,
}

async fn answer(
    state: Arc<State>,
    kind: Kind,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let deadline = Instant::now() + state.options.request_timeout;
    let bytes = body_of(body)?;
    let (tasks, streams, with_usage, with_details, choices_per_prompt) = {
        let state = Arc::clone(&state);
        // Encoding a long prompt takes a while.
        let prepared = tokio::task::spawn_blocking(move || {
            let body = Body::parse(&bytes)?;
            let tasks = match kind {
                Kind::Completion => body.completion_tasks(&state)?,
                Kind::Chat => body.chat_tasks(&state)?,
            };
            let streams = body.stream.unwrap_or(false);
            let with_details = body.token_details.unwrap_or(false);
            Ok::<_, ApiError>((tasks, streams, body.includes_usage(), with_details, body.choices()))
        });
        prepared.await.map_err(|error| ApiError::internal(error.to_string()))??
    };
    let format = Format {
        kind,
        id: new_id(kind),
        created: unix_seconds(SystemTime::now()),
        model: state.options.model_name.clone(),
    };
    let places = timeout_at(deadline, state.admission.enter(tasks.len())).await;
    let places = places.map_err(|_| timed_out())?.map_err(|refusal| match refusal {
        Refusal::Busy => ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "the server is busy and its queue is full: try again later",
        ),
        Refusal::TooMany => ApiError::field("n", "the request has too many answers at a time"),
    })?;
    let mut choices = start(&state, tasks, places);
    // Errors before the first token are errors of the request, also of streams.
    for choice in &mut choices {
        let first = timeout_at(deadline, choice.events.next()).await.map_err(|_| timed_out())?;
        choice.first = Some(event(first, kind)?);
    }
    if streams {
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
        let stream = Stream {
            state,
            format,
            sender,
            deadline,
            with_usage,
            with_details,
            choices_per_prompt,
        };
        tokio::spawn(stream.run(choices));
        let events = ReceiverStream::new(receiver);
        return Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response());
    }
    let mut answers = Vec::new();
    for mut choice in choices {
        answers
            .push(timeout_at(deadline, whole(&mut choice, kind)).await.map_err(|_| timed_out())??);
    }
    let tokenizer = state.generator.forerun.tokenizer();
    let mut usage = Usage::default();
    let choices = answers.iter().enumerate().map(|(index, answer)| {
        usage.add(answer, index % choices_per_prompt == 0);
        format.choice(index, answer, tokenizer)
    });
    let choices: Vec<Value> = choices.collect();
    let mut whole = format.whole(&choices, &answers, usage);
    if with_details {
        add_measurements(&mut whole["forerun"], &answers, tokenizer);
    }
    Ok(axum::Json(whole).into_response())
}

fn timed_out() -> ApiError {
    let message = "the request took longer than this server allows, and was ended";
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).with_code("timeout")
}

/// Returns an event, or the error that the answer ended with.
fn event(
    event: Option<Result<AnswerEvent, forerun::ForerunError>>,
    kind: Kind,
) -> Result<AnswerEvent, ApiError> {
    let param = match kind {
        Kind::Completion => "prompt",
        Kind::Chat => "messages",
    };
    match event {
        Some(Ok(event)) => Ok(event),
        Some(Err(error)) => Err(of_engine(&error, param)),
        None => Err(ApiError::internal("the answer ended without a result")),
    }
}

fn start(state: &Arc<State>, tasks: Vec<Task>, places: Places) -> Vec<Choice> {
    let places = Arc::new(places);
    let start = |(index, task): (usize, Task)| {
        let events = state.generator.start(task, Arc::clone(&places));
        Choice { index, events, first: None }
    };
    tasks.into_iter().enumerate().map(start).collect()
}

/// Waits for the end of a choice.
async fn whole(choice: &mut Choice, kind: Kind) -> Result<Box<Answer>, ApiError> {
    let mut next = choice.first.take();
    loop {
        match next {
            Some(AnswerEvent::Finished(answer)) => return Ok(answer),
            Some(_) | None => next = Some(event(choice.events.next().await, kind)?),
        }
    }
}

/// A response as server-sent events.
struct Stream {
    state: Arc<State>,
    format: Format,
    sender: mpsc::Sender<Result<Event, Infallible>>,
    deadline: Instant,
    with_usage: bool,
    with_details: bool,
    choices_per_prompt: usize,
}

/// The client went away.
struct Gone;

impl Stream {
    async fn run(self, choices: Vec<Choice>) {
        let this = Arc::new(self);
        let tasks: Vec<_> = choices
            .into_iter()
            .map(|choice| {
                let this = Arc::clone(&this);
                tokio::spawn(async move { this.choice(choice).await })
            })
            .collect();
        let (mut usage, mut answers) = (Usage::default(), Vec::new());
        for (index, task) in tasks.into_iter().enumerate() {
            let Ok(Ok(answer)) = task.await else { return };
            usage.add(&answer, index % this.choices_per_prompt == 0);
            answers.push(answer);
        }
        if this.with_usage {
            let mut chunk = this.format.usage_chunk(usage);
            chunk["forerun"] = statistics(answers.iter().map(|answer| &**answer));
            if this.with_details {
                let tokenizer = this.state.generator.forerun.tokenizer();
                add_measurements(&mut chunk["forerun"], &answers, tokenizer);
            }
            drop(this.send(&chunk).await);
        }
        drop(this.sender.send(Ok(Event::default().data("[DONE]"))).await);
    }

    async fn send(&self, chunk: &Value) -> Result<(), Gone> {
        let event = Event::default().data(chunk.to_string());
        self.sender.send(Ok(event)).await.map_err(|_| Gone)
    }

    async fn send_choice(&self, choice: Value) -> Result<(), Gone> {
        self.send(&self.format.chunk(&[choice])).await
    }

    /// Sends the parts of a choice, and returns its answer. After an error, the stream ends with it.
    async fn choice(&self, mut choice: Choice) -> Result<Box<Answer>, Gone> {
        let (index, tokenizer) = (choice.index, self.state.generator.forerun.tokenizer());
        if let Some(beginning) = self.format.beginning(index) {
            self.send_choice(beginning).await?;
        }
        let (mut logprobs, mut characters) = (Vec::new(), 0);
        let mut details = self.with_details.then(|| TokenDetails::new(tokenizer));
        loop {
            let next = match choice.first.take() {
                Some(first) => Ok(first),
                None => match timeout_at(self.deadline, self.next_unless_gone(&mut choice)).await {
                    Ok(next) => event(next?, self.format.kind),
                    Err(_) => Err(timed_out()),
                },
            };
            match next {
                Ok(AnswerEvent::Token(token)) => {
                    details.iter_mut().for_each(|details| details.push(&token));
                    logprobs.extend(token.logprob);
                }
                Ok(AnswerEvent::Text(text)) => {
                    let logprobs = std::mem::take(&mut logprobs);
                    let reported = (!logprobs.is_empty()).then_some(&logprobs[..]);
                    let mut part = self.format.part(index, &text, characters, reported, tokenizer);
                    details.iter_mut().for_each(|details| details.add_to(&mut part, &text));
                    characters += text.chars().count();
                    self.send_choice(part).await?;
                }
                Ok(AnswerEvent::Finished(answer)) => {
                    // Tokens without text of their own, such as the end of the text.
                    let has_details = details.as_ref().is_some_and(|details| !details.is_empty());
                    if !logprobs.is_empty() || has_details {
                        let reported = (!logprobs.is_empty()).then_some(&logprobs[..]);
                        let mut part = self.format.part(index, "", characters, reported, tokenizer);
                        details.iter_mut().for_each(|details| details.add_to(&mut part, ""));
                        self.send_choice(part).await?;
                    }
                    self.send_choice(self.format.end(index, &answer)).await?;
                    return Ok(answer);
                }
                Err(error) => {
                    self.send(&error.body()).await?;
                    return Err(Gone);
                }
            }
        }
    }

    /// Returns the next event, or [`Gone`] as soon as the client goes away.
    async fn next_unless_gone(
        &self,
        choice: &mut Choice,
    ) -> Result<Option<Result<AnswerEvent, forerun::ForerunError>>, Gone> {
        tokio::select! {
            event = choice.events.next() => Ok(event),
            () = self.sender.closed() => Err(Gone),
        }
    }
}

/// Returns an id that no other answer of this server has.
fn new_id(kind: Kind) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let prefix = match kind {
        Kind::Completion => "cmpl",
        Kind::Chat => "chatcmpl",
    };
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{prefix}-{:x}-{:x}", time.as_micros(), NEXT.fetch_add(1, Ordering::Relaxed))
}

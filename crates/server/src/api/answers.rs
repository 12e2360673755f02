//! From prepared requests to the parts of their answers, for every API.

use super::error::{ApiError, of_engine};
use super::state::State;
use crate::admission::{Places, Refusal};
use crate::generation::{Events, Task};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use forerun::{Answer, AnswerEvent, AnswerToken, ForerunError};
use forerun::{ChatParser, ChatPart as Part};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;

/// Events that may wait for a slow client.
const EVENTS_AHEAD: usize = 16;

/// A request that can be answered.
pub(crate) struct Prepared {
    /// The choices: all those of the first prompt, then those of the next.
    pub(crate) choices: Vec<(Task, ChatParser)>,
    pub(crate) choices_per_prompt: usize,
    /// The field that holds the prompt.
    pub(crate) prompt_field: &'static str,
}

/// An event of one choice.
pub(crate) enum ChoiceEvent {
    /// A part, and the tokens since the part before.
    Part(Part, Vec<AnswerToken>),
    /// The end.
    Finished(Box<Answer>),
}

/// The answers of one request, in progress. Dropping them cancels them.
pub(crate) struct Answers {
    receiver: mpsc::Receiver<(usize, Result<ChoiceEvent, ApiError>)>,
    /// The number of choices.
    pub(crate) count: usize,
}

/// A whole choice.
pub(crate) struct Collected {
    pub(crate) parts: Vec<Part>,
    /// The tokens, with the texts that they appeared in.
    pub(crate) tokens: Vec<(String, Vec<AnswerToken>)>,
    pub(crate) answer: Box<Answer>,
}

impl Answers {
    /// Waits for places, and starts the answers of a request. Errors before an answer's first token are errors of
    /// the request.
    pub(crate) async fn start(state: &Arc<State>, prepared: Prepared) -> Result<Self, ApiError> {
        let deadline = Instant::now() + state.options.request_timeout;
        let Prepared { choices, prompt_field, .. } = prepared;
        let count = choices.len();
        let places = timeout_at(deadline, state.admission.enter(count)).await;
        let places = places.map_err(|_| timed_out())?.map_err(|refusal| match refusal {
            Refusal::Busy => ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "the server is busy and its queue is full: try again later",
            ),
            Refusal::TooMany => ApiError::field("n", "the request has too many answers at a time"),
        })?;
        let places: Arc<Places> = Arc::new(places);
        let start = |(task, parser)| Choice {
            events: state.generator.start(task, Arc::clone(&places)),
            parser,
            tokens: Vec::new(),
            prompt_field,
            deadline,
        };
        let mut choices: Vec<Choice> = choices.into_iter().map(start).collect();
        let mut first = Vec::new();
        for choice in &mut choices {
            first.push(choice.next_event().await?);
        }
        let (sender, receiver) = mpsc::channel(EVENTS_AHEAD);
        for (index, (choice, first)) in choices.into_iter().zip(first).enumerate() {
            let sender = sender.clone();
            tokio::spawn(async move {
                let gone = sender.clone();
                tokio::select! {
                    () = choice.run(index, first, &sender) => {}
                    // The client went away.
                    () = gone.closed() => {}
                }
            });
        }
        Ok(Self { receiver, count })
    }

    /// Returns the next event and the number of its choice, or `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<(usize, Result<ChoiceEvent, ApiError>)> {
        self.receiver.recv().await
    }

    /// Waits for the end of all choices.
    pub(crate) async fn collect(mut self) -> Result<Vec<Collected>, ApiError> {
        let mut parts: Vec<Vec<Part>> = (0..self.count).map(|_| Vec::new()).collect();
        let mut tokens: Vec<Vec<_>> = (0..self.count).map(|_| Vec::new()).collect();
        let mut answers: Vec<Option<Box<Answer>>> = (0..self.count).map(|_| None).collect();
        while let Some((index, event)) = self.next().await {
            match event? {
                ChoiceEvent::Part(part, more) => {
                    tokens[index].push((part.text().to_owned(), more));
                    append(&mut parts[index], part);
                }
                ChoiceEvent::Finished(answer) => answers[index] = Some(answer),
            }
        }
        let answers = answers.into_iter().collect::<Option<Vec<_>>>().ok_or_else(ended_early)?;
        let whole = |((parts, tokens), answer)| Collected { parts, tokens, answer };
        Ok(parts.into_iter().zip(tokens).zip(answers).map(whole).collect())
    }
}

/// Appends a part, or extends the last one.
fn append(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        // Tokens without text.
        (_, Part::Text(text)) if text.is_empty() => {}
        (Some(Part::Text(all)), Part::Text(more))
        | (Some(Part::Reasoning(all)), Part::Reasoning(more))
        | (Some(Part::Arguments(all)), Part::Arguments(more)) => all.push_str(&more),
        (_, part) => parts.push(part),
    }
}

/// A choice in progress.
struct Choice {
    events: Events,
    parser: ChatParser,
    /// The tokens since the last part.
    tokens: Vec<AnswerToken>,
    prompt_field: &'static str,
    deadline: Instant,
}

impl Choice {
    async fn next_event(&mut self) -> Result<AnswerEvent, ApiError> {
        let next = timeout_at(self.deadline, self.events.next()).await;
        let next: Option<Result<AnswerEvent, ForerunError>> = next.map_err(|_| timed_out())?;
        next.ok_or_else(ended_early)?.map_err(|error| of_engine(&error, self.prompt_field))
    }

    async fn run(
        mut self,
        index: usize,
        first: AnswerEvent,
        sender: &mpsc::Sender<(usize, Result<ChoiceEvent, ApiError>)>,
    ) {
        let mut event = Ok(first);
        loop {
            let (events, ended) = match event {
                Ok(event) => self.read(event),
                Err(error) => (vec![Err(error)], true),
            };
            for event in events {
                if sender.send((index, event)).await.is_err() {
                    return;
                }
            }
            if ended {
                return;
            }
            event = self.next_event().await;
        }
    }

    /// Returns the events that follow from one of the engine, and whether they are the last ones.
    fn read(&mut self, event: AnswerEvent) -> (Vec<Result<ChoiceEvent, ApiError>>, bool) {
        let parts = match event {
            AnswerEvent::Token(token) => {
                self.tokens.push(token);
                return (Vec::new(), false);
            }
            AnswerEvent::Text(text) => self.parser.push(&text),
            AnswerEvent::Finished(answer) => {
                let mut parts = self.parser.finish();
                // Tokens without text of their own, such as the end of the text.
                if parts.is_empty() && !self.tokens.is_empty() {
                    parts.push(Part::Text(String::new()));
                }
                let mut events = self.events_of(parts);
                events.push(Ok(ChoiceEvent::Finished(answer)));
                return (events, true);
            }
        };
        (self.events_of(parts), false)
    }

    fn events_of(&mut self, parts: Vec<Part>) -> Vec<Result<ChoiceEvent, ApiError>> {
        let tokens = |part| Ok(ChoiceEvent::Part(part, std::mem::take(&mut self.tokens)));
        parts.into_iter().map(tokens).collect()
    }
}

fn ended_early() -> ApiError {
    ApiError::internal("the answer ended without a result")
}

fn timed_out() -> ApiError {
    let message = "the request took longer than this server allows, and was ended";
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).with_code("timeout")
}

/// Writes the server-sent events of one API.
pub(crate) trait StreamWriter: Send + 'static {
    /// Returns the events before the first part.
    fn begin(&mut self) -> Vec<Event>;

    /// Returns the events of a part. `tokens` are those since the part before.
    fn part(&mut self, choice: usize, part: Part, tokens: &[AnswerToken]) -> Vec<Event>;

    /// Returns the events at the end of a choice.
    fn end_choice(&mut self, choice: usize, answer: &Answer) -> Vec<Event>;

    /// Returns the last events.
    fn end(&mut self, answers: &[Box<Answer>]) -> Vec<Event>;

    /// Returns the events of an error, which ends the stream.
    fn error(&mut self, error: &ApiError) -> Vec<Event>;
}

/// Returns a stream of answers.
pub(crate) fn stream(mut answers: Answers, mut writer: impl StreamWriter) -> Response {
    let (sender, receiver) = mpsc::channel::<Result<Event, Infallible>>(EVENTS_AHEAD);
    let gone = sender.clone();
    let send = async move |events: Vec<Event>| {
        for event in events {
            if sender.send(Ok(event)).await.is_err() {
                return Err(Gone);
            }
        }
        Ok(())
    };
    let mut run = async move || -> Result<(), Gone> {
        send(writer.begin()).await?;
        let mut ended: Vec<Option<Box<Answer>>> = (0..answers.count).map(|_| None).collect();
        loop {
            let next = tokio::select! {
                next = answers.next() => next,
                () = gone.closed() => return Err(Gone),
            };
            let Some((choice, event)) = next else { break };
            match event {
                Ok(ChoiceEvent::Part(part, tokens)) => {
                    send(writer.part(choice, part, &tokens)).await?;
                }
                Ok(ChoiceEvent::Finished(answer)) => {
                    send(writer.end_choice(choice, &answer)).await?;
                    ended[choice] = Some(answer);
                }
                Err(error) => return send(writer.error(&error)).await,
            }
        }
        match ended.into_iter().collect::<Option<Vec<Box<Answer>>>>() {
            Some(answers) => send(writer.end(&answers)).await,
            None => send(writer.error(&ended_early())).await,
        }
    };
    tokio::spawn(async move { run().await });
    Sse::new(ReceiverStream::new(receiver)).keep_alive(KeepAlive::default()).into_response()
}

/// The client went away.
struct Gone;

/// Returns an id that nothing else of this server has.
pub(crate) fn new_id(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{prefix}{:x}{:04x}", time.as_micros(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Prepares a request on a thread where encoding a long prompt holds up nobody.
pub(crate) async fn prepare<T: Send + 'static>(
    prepare: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let prepared = tokio::task::spawn_blocking(prepare).await;
    prepared.map_err(|error| ApiError::internal(error.to_string()))?
}

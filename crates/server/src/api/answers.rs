//! From prepared requests to the parts of their answers, for every API.

use super::error::{ApiError, of_engine};
use super::state::State;
use crate::admission::{Admitted, QueueFull};
use crate::generation::{Events, Generator, LineLimits, Task};
use crate::models::Lease;
use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use forerun::text::GrammarError;
use forerun::text::{ChatParser, ChatPart as Part};
use forerun::{Answer, AnswerEvent, AnswerToken, Finish, ForerunError, Method, Request, TokenId};
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{Instrument, Span};

/// Events that may wait for a slow client.
const EVENTS_AHEAD: usize = 16;
/// How long a stream is silent before it sends a comment. Proxies and clients end silent
/// connections, some after 10 seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A request that can be answered.
pub(crate) struct Prepared {
    pub(crate) prompts: Vec<Vec<TokenId>>,
    pub(crate) choices_per_prompt: usize,
    /// The options of all choices. Their seeds follow one another.
    pub(crate) request: Request,
    pub(crate) method: Method,
    /// Whether answers end when they repeat themselves.
    pub(crate) ends_repetition: bool,
    /// Where lines end answers early.
    pub(crate) lines: Option<LineLimits>,
    /// Whether the prompts are only read: answers have no tokens.
    pub(crate) only_reads: bool,
    pub(crate) parser: Box<dyn Fn() -> ChatParser + Send>,
    pub(crate) fields: FieldNames,
    /// The number of messages that had no room in the context.
    pub(crate) messages_left_out: usize,
}

/// The header with the number of messages that are left out of a prompt.
pub(super) const LEFT_OUT: HeaderName = HeaderName::from_static("forerun-messages-left-out");

/// The header [`LEFT_OUT`], if messages are left out.
pub(crate) type LeftOut = Option<[(HeaderName, HeaderValue); 1]>;

/// The fields of a request that errors of the engine are about.
#[derive(Clone, Copy)]
pub(crate) struct FieldNames {
    pub(crate) prompt: &'static str,
    /// What says how the text looks.
    pub(crate) grammar: &'static str,
}

impl FieldNames {
    /// An error of the engine before or during an answer.
    fn error(self, error: &ForerunError) -> ApiError {
        match error {
            ForerunError::Grammar(stuck @ GrammarError::Stuck { .. }) => {
                let message = format!("{}: {stuck}; give a simpler one", self.grammar);
                ApiError::field(self.grammar, message)
            }
            error => of_engine(error, self.prompt),
        }
    }
}

impl Prepared {
    /// Returns the number of choices: all those of the first prompt, then those of the next.
    fn choices(&self) -> usize {
        self.prompts.len() * self.choices_per_prompt
    }

    /// Returns the number of tokens of the first prompt.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompts.first().map_or(0, Vec::len)
    }

    fn left_out(&self) -> LeftOut {
        let messages = self.messages_left_out;
        (messages > 0).then(|| {
            tracing::warn!(messages, "the context has no room for the oldest messages");
            [(LEFT_OUT, messages.into())]
        })
    }

    /// Returns the task of a choice.
    fn task(&self, choice: usize) -> Task {
        let (prompt, number) = (choice / self.choices_per_prompt, choice % self.choices_per_prompt);
        let seed = self.request.seed.map(|seed| seed.wrapping_add(number as u64));
        let request = Request { seed, ..self.request.clone() };
        let Self { method, ends_repetition, lines, .. } = *self;
        Task { prompt: self.prompts[prompt].clone(), request, method, ends_repetition, lines }
    }

    /// Checks what can be known before the model runs.
    fn check(&self, generator: &Generator) -> Result<(), ApiError> {
        let check = |prompt: &Vec<TokenId>| {
            generator.forerun().check_request(prompt, &self.request, self.method)
        };
        let checked = self.prompts.iter().try_for_each(check);
        checked.map_err(|error| self.fields.error(&error))
    }
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
    /// What the response's headers say of its prompt.
    pub(crate) left_out: LeftOut,
}

/// A whole choice.
pub(crate) struct Collected {
    pub(crate) parts: Vec<Part>,
    /// The tokens, with the texts that they appeared in.
    pub(crate) tokens: Vec<(String, Vec<AnswerToken>)>,
    pub(crate) answer: Box<Answer>,
}

impl Answers {
    /// Checks a request, and starts its answers. They wait for places one after another.
    ///
    /// # Errors
    /// If the request cannot be answered, or the queue is full. Later errors are events.
    pub(crate) async fn start(
        state: &State,
        model: &Arc<Lease>,
        prepared: Prepared,
    ) -> Result<Self, ApiError> {
        let deadline = Instant::from_std(model.asked) + state.options.request_timeout;
        let shared = Arc::clone(model);
        let checked = prepare(move || prepared.check(&shared.generator).map(|()| prepared));
        let prepared = timeout_at(deadline, checked).await.map_err(|_| timed_out())??;
        let count = prepared.choices();
        let left_out = prepared.left_out();
        let admitted = state.admission.enter(count, &model.metrics);
        let admitted = admitted.map_err(|full: QueueFull| {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, full.to_string())
        })?;
        let (sender, receiver) = mpsc::channel(EVENTS_AHEAD);
        let start = Start { model: Arc::clone(model), prepared, deadline, sender };
        spawn(start.run(admitted));
        Ok(Self { receiver, count, left_out })
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

/// The answers of a request that have no place yet.
struct Start {
    model: Arc<Lease>,
    prepared: Prepared,
    deadline: Instant,
    sender: mpsc::Sender<(usize, Result<ChoiceEvent, ApiError>)>,
}

impl Start {
    /// Starts each answer when there is a place for it, until the client goes away.
    async fn run(self, mut admitted: Admitted) {
        let Self { model, prepared, deadline, sender } = self;
        for index in 0..prepared.choices() {
            let place = tokio::select! {
                place = timeout_at(deadline, admitted.place()) => place,
                () = sender.closed() => return,
            };
            let Ok(place) = place else {
                sender.send((index, Err(timed_out()))).await.ok();
                return;
            };
            let choice = Choice {
                // The model stays loaded until the answer's thread has ended.
                events: model.generator.start(prepared.task(index), (Arc::clone(&model), place)),
                only_reads: prepared.only_reads,
                parser: (prepared.parser)(),
                tokens: Vec::new(),
                fields: prepared.fields,
                deadline,
            };
            let sender = sender.clone();
            spawn(async move {
                tokio::select! {
                    () = choice.run(index, &sender) => {}
                    // The client went away.
                    () = sender.closed() => {}
                }
            });
        }
    }
}

/// Runs a task whose log belongs to the same request.
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task.instrument(Span::current()));
}

/// A choice in progress.
struct Choice {
    events: Events,
    only_reads: bool,
    parser: ChatParser,
    /// The tokens since the last part.
    tokens: Vec<AnswerToken>,
    fields: FieldNames,
    deadline: Instant,
}

impl Choice {
    async fn next_event(&mut self) -> Result<AnswerEvent, ApiError> {
        let next = timeout_at(self.deadline, self.events.next()).await;
        let next: Option<Result<AnswerEvent, ForerunError>> = next.map_err(|_| timed_out())?;
        next.ok_or_else(ended_early)?.map_err(|error| self.fields.error(&error))
    }

    async fn run(
        mut self,
        index: usize,
        sender: &mpsc::Sender<(usize, Result<ChoiceEvent, ApiError>)>,
    ) {
        let mut ended = false;
        while !ended {
            let events;
            (events, ended) = match self.next_event().await {
                Ok(event) => self.read(event),
                Err(error) => (vec![Err(error)], true),
            };
            for event in events {
                if sender.send((index, event)).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Returns the events that follow from one of the engine, and whether they are the last ones.
    fn read(&mut self, event: AnswerEvent) -> (Vec<Result<ChoiceEvent, ApiError>>, bool) {
        let parts = match event {
            AnswerEvent::Token(_) | AnswerEvent::Text(_) if self.only_reads => {
                return (Vec::new(), false);
            }
            AnswerEvent::Finished(mut answer) if self.only_reads => {
                (answer.text, answer.tokens, answer.commits) = Default::default();
                answer.logprobs.iter_mut().for_each(Vec::clear);
                answer.finish = Finish::MaxTokens;
                return (vec![Ok(ChoiceEvent::Finished(answer))], true);
            }
            AnswerEvent::Token(token) => {
                self.tokens.push(token);
                return (Vec::new(), false);
            }
            AnswerEvent::Text(text) => self.parser.push(&text),
            AnswerEvent::Finished(answer) => {
                let mut parts = self.parser.finish(answer.finish != Finish::Eos);
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

pub(crate) fn timed_out() -> ApiError {
    let message = "the request took longer than this server allows, and was ended";
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).with_code("timeout")
}

/// Writes the stream of one API.
pub(crate) trait StreamWriter: Send + 'static {
    /// A server-sent event, or a line of JSON.
    type Item: Send + 'static;

    /// Returns what comes before the first part.
    fn begin(&mut self) -> Vec<Self::Item>;

    /// Returns the items of a part. `tokens` are those since the part before.
    fn part(&mut self, choice: usize, part: Part, tokens: &[AnswerToken]) -> Vec<Self::Item>;

    /// Returns the items at the end of a choice.
    fn end_choice(&mut self, choice: usize, answer: &Answer) -> Vec<Self::Item>;

    /// Returns the last items.
    fn end(&mut self, answers: &[Box<Answer>]) -> Vec<Self::Item>;

    /// Returns the items of an error, which ends the stream.
    fn error(&mut self, error: &ApiError) -> Vec<Self::Item>;

    /// Logs an error, and returns its items.
    fn failed(&mut self, error: &ApiError) -> Vec<Self::Item> {
        tracing::warn!(error = error.message(), "stream failed");
        self.error(error)
    }
}

/// Returns a stream of server-sent events. Its headers are sent at once, with a comment, and then
/// further comments until there is something to send. The API's first events are sent together with
/// those of the first token.
pub(crate) fn stream(answers: Answers, writer: impl StreamWriter<Item = Event>) -> Response {
    let comment = Event::default().comment("keep-alive");
    let events = items(answers, writer, vec![comment]).map(Ok::<Event, Infallible>);
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
    Sse::new(events).keep_alive(keep_alive).into_response()
}

/// Returns a stream of JSON objects, one on each line. It has no place for comments.
pub(crate) fn stream_lines(answers: Answers, writer: impl StreamWriter<Item = Value>) -> Response {
    let lines = items(answers, writer, Vec::new());
    let lines = lines.map(|line| Ok::<_, Infallible>(Bytes::from(format!("{line}\n"))));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// Returns what a writer makes of answers, after the `first` items.
fn items<W: StreamWriter>(
    mut answers: Answers,
    mut writer: W,
    first: Vec<W::Item>,
) -> ReceiverStream<W::Item> {
    let (sender, receiver) = mpsc::channel(EVENTS_AHEAD);
    let gone = sender.clone();
    let send = async move |items: Vec<W::Item>| {
        for item in items {
            if sender.send(item).await.is_err() {
                return Err(Gone);
            }
        }
        Ok(())
    };
    let count = answers.count;
    let mut next = async move || {
        tokio::select! {
            next = answers.next() => Ok(next),
            () = gone.closed() => Err(Gone),
        }
    };
    let mut ended: Vec<Option<Box<Answer>>> = (0..count).map(|_| None).collect();
    let run = async move || -> Result<(), Gone> {
        send(first).await?;
        let mut event = next().await?;
        send(writer.begin()).await?;
        while let Some((choice, result)) = event {
            match result {
                Ok(ChoiceEvent::Part(part, tokens)) => {
                    send(writer.part(choice, part, &tokens)).await?;
                }
                Ok(ChoiceEvent::Finished(answer)) => {
                    send(writer.end_choice(choice, &answer)).await?;
                    ended[choice] = Some(answer);
                }
                Err(error) => return send(writer.failed(&error)).await,
            }
            event = next().await?;
        }
        match ended.drain(..).collect::<Option<Vec<Box<Answer>>>>() {
            Some(answers) => send(writer.end(&answers)).await,
            None => send(writer.failed(&ended_early())).await,
        }
    };
    spawn(async move { _ = run().await });
    ReceiverStream::new(receiver)
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
    let span = Span::current();
    let prepared = tokio::task::spawn_blocking(move || span.in_scope(prepare)).await;
    prepared.map_err(|error| ApiError::internal(error.to_string()))?
}

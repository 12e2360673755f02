//! Answers that are generated on threads of their own. The engine's workers compute all of them
//! together.

mod lines;
mod repetition;
mod speculation;

pub use lines::LineLimits;
pub(crate) use speculation::reason;
pub use speculation::{Speculation, SpeculationError};

use crate::cache_room::CacheRoom;
use crate::metrics::Metrics;
use forerun::{
    Answer, AnswerEvent, Canceller, Engine, ForerunError, Method, Request, SamplingOptions, TokenId,
};
use lines::LineGuard;
use repetition::RepetitionGuard;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Events that may wait for a slow client. Then its answer waits, too.
const EVENTS_AHEAD: usize = 64;

/// The model, and the answers in progress.
pub struct Generator {
    forerun: Engine,
    metrics: Arc<Metrics>,
    room: CacheRoom,
    next: AtomicU64,
    /// The cancellers of the answers in progress.
    running: Mutex<HashMap<u64, Canceller>>,
}

/// One answer to generate.
pub struct Task {
    /// The tokens to continue.
    pub prompt: Vec<TokenId>,
    /// The options of the answer.
    pub request: Request,
    /// A method that [`Engine::check_method`] accepts.
    pub method: Method,
    /// Whether the answer ends when it repeats itself ([`forerun::text::repeats_itself`]). It then counts
    /// as cut off ([`Finish::MaxTokens`](forerun::Finish::MaxTokens)).
    pub ends_repetition: bool,
    /// Where lines end the answer early. It then counts as cut off, too.
    pub lines: Option<LineLimits>,
}

/// The events of an answer. Dropping it cancels the answer.
pub struct Events {
    receiver: mpsc::Receiver<Result<AnswerEvent, ForerunError>>,
    canceller: Canceller,
}

impl Events {
    /// Returns the next event, or `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<AnswerEvent, ForerunError>> {
        self.receiver.recv().await
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.canceller.cancel();
    }
}

impl Generator {
    /// Creates a generator for an engine. It counts its answers in `metrics`.
    #[must_use]
    pub fn new(forerun: Engine, metrics: Arc<Metrics>) -> Self {
        let (next, running) = (AtomicU64::new(0), Mutex::default());
        // Hidden states that a drafter has read are not computed again.
        let tokens = forerun.cache_tokens().filter(|_| !forerun.reads_features());
        let room = CacheRoom::new(tokens, forerun.cache_answers());
        Self { forerun, metrics, room, next, running }
    }

    /// Returns the sampling options of completions that set none: those that the model suggests, or
    /// else temperature 1.
    #[must_use]
    pub fn default_sampling(&self) -> SamplingOptions {
        let mut request = Request::default();
        request.sampling.temperature = 1.0;
        match self.forerun.config().suggested_sampling {
            Some(suggested) => request.sampled_as(suggested).sampling,
            None => request.sampling,
        }
    }

    /// Returns the sampling options of chats that set none: those that the model suggests, or else
    /// moderate ones.
    #[must_use]
    pub fn chat_sampling(&self) -> SamplingOptions {
        Request::default().sampled_as(self.forerun.config().chat_sampling()).sampling
    }

    /// Returns the engine.
    #[must_use]
    pub fn forerun(&self) -> &Engine {
        &self.forerun
    }

    /// Returns the number of answers in progress.
    #[must_use]
    pub fn running(&self) -> usize {
        self.lock().len()
    }

    /// Starts an answer. Its thread holds `held` until it has ended: its
    /// [`Place`](crate::Place), and what else must last as long.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start<T: Send + 'static>(self: &Arc<Self>, task: Task, held: T) -> Events {
        let (sender, receiver) = mpsc::channel(EVENTS_AHEAD);
        let canceller = Canceller::new();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(id, canceller.clone());
        let span = tracing::Span::current();
        let (this, events) = (Arc::clone(self), Events { receiver, canceller: canceller.clone() });
        tokio::task::spawn_blocking(move || {
            let (_held, _span) = (held, span.entered());
            this.run(id, task, &canceller, &sender);
            this.lock().remove(&id);
            // What is held may keep the engine loaded.
            drop(this);
        });
        events
    }

    fn run(
        &self,
        number: u64,
        Task { prompt, request, method, ends_repetition, lines }: Task,
        canceller: &Canceller,
        sender: &mpsc::Sender<Result<AnswerEvent, ForerunError>>,
    ) {
        self.note_drafter_context(method, prompt.len());
        let room = self.waiting(|| self.room.enter(number, prompt.len(), canceller));
        let mut stream = match self.forerun.stream_tokens(prompt, &request, method, canceller) {
            Ok(stream) => stream,
            Err(error) => {
                match canceller.is_cancelled() {
                    true => self.metrics.cancelled.add(1),
                    false => self.failed(&error),
                }
                return drop(sender.blocking_send(Err(error)));
            }
        };
        let mut guard = ends_repetition.then(RepetitionGuard::default);
        let mut lines = lines.map(LineGuard::new);
        while let Some(mut event) = stream.next() {
            if let (Some(guard), Ok(event)) = (&mut guard, &mut event) {
                guard.read(event, &mut stream);
            }
            if let (Some(lines), Ok(event)) = (&mut lines, &mut event) {
                lines.read(event, &mut stream);
            }
            match &event {
                Ok(AnswerEvent::Finished(answer)) if canceller.is_cancelled() => {
                    self.metrics.cancelled.add(1);
                    tracing::info!(tokens = answer.tokens.len(), "answer cancelled");
                }
                Ok(AnswerEvent::Finished(answer)) => {
                    self.metrics.finished(answer);
                    log(answer);
                    self.note_drafter_context(method, answer.prompt_tokens + answer.tokens.len());
                }
                Ok(AnswerEvent::Token(_)) if room.grow() => {
                    self.metrics.paused.add(1);
                    stream.free_caches();
                    self.waiting(|| room.wait(canceller));
                }
                Ok(_) => {}
                Err(error) => self.failed(error),
            }
            if sender.blocking_send(event).is_err() {
                // The client went away. Dropping the stream cancels the answer.
                canceller.cancel();
            }
        }
    }

    /// Waits, and counts the answer as waiting for so long.
    fn waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        let count = |waiting: i64| {
            self.metrics.waiting.add(waiting);
            self.metrics.running.add(-waiting);
        };
        count(1);
        let outcome = wait();
        count(-1);
        outcome
    }

    /// Says once that a drafter drafts nothing in texts as long as this one.
    fn note_drafter_context(&self, method: Method, tokens: usize) {
        if method.drafts()
            && let Some(note) = self.forerun.note_on_drafter_context(tokens)
        {
            tracing::warn!("{note}");
        }
    }

    fn failed(&self, error: &ForerunError) {
        self.metrics.failed.add(1);
        tracing::warn!(%error, "answer failed");
    }

    /// Ends all answers in progress.
    pub fn cancel_all(&self) {
        self.lock().values().for_each(Canceller::cancel);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Canceller>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a line about a finished answer.
fn log(answer: &Answer) {
    let milliseconds = |ns: u64| ns / 1_000_000;
    tracing::info!(
        prompt_tokens = answer.prompt_tokens,
        tokens = answer.tokens.len(),
        finish = ?answer.finish,
        first_token_milliseconds = milliseconds(answer.first_token_ns),
        milliseconds = milliseconds(answer.total_ns),
        target_forwards = answer.statistics.target_forwards,
        draft_tokens = answer.statistics.draft_tokens,
        "answer"
    );
}

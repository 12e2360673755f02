//! Answers in progress, each on a thread of its own. Answers that run at the same time share
//! forward passes.

use forerun::{AnswerEvent, Canceller, Engine, ForerunError, Request, TokenId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Receives the events of an answer.
pub(crate) struct EventSink {
    /// `None` once there are no more events.
    events: Option<Sender<Result<AnswerEvent, ForerunError>>>,
    on_event: Box<dyn Fn() + Send>,
    /// Whether `on_event` is called after each event, and not only after the last one.
    every: bool,
}

impl EventSink {
    pub(crate) fn new(
        events: Sender<Result<AnswerEvent, ForerunError>>,
        on_event: Box<dyn Fn() + Send>,
        every: bool,
    ) -> Self {
        Self { events: Some(events), on_event, every }
    }

    /// Passes an event on. Returns whether anybody still waits for events.
    fn send(&self, event: Result<AnswerEvent, ForerunError>) -> bool {
        let is_wanted = self.events.as_ref().is_some_and(|events| events.send(event).is_ok());
        if self.every {
            (self.on_event)();
        }
        is_wanted
    }
}

/// An answer to generate.
pub(crate) struct Task {
    pub(crate) engine: Arc<Engine>,
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) request: Request,
    pub(crate) canceller: Canceller,
    pub(crate) sink: EventSink,
}

impl Task {
    fn run(self) {
        let Self { engine, prompt, request, canceller, sink } = self;
        let method = engine.plan().method();
        match engine.stream_tokens(prompt, &request, method, &canceller) {
            Err(error) => drop(sink.send(Err(error))),
            Ok(stream) => {
                for event in stream {
                    if !sink.send(event) {
                        // Dropping the stream cancels the answer.
                        break;
                    }
                }
            }
        }
    }
}

/// Runs a number of answers at the same time. The others wait for their turn.
pub(crate) struct Answers {
    shared: Arc<Shared>,
}

struct Shared {
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Task>,
    /// The cancellers of the answers in progress, by thread.
    running: BTreeMap<u64, Canceller>,
    threads: u64,
    closed: bool,
}

impl Answers {
    /// Creates a place for `most` answers at the same time.
    pub(crate) fn new(most: usize) -> Self {
        let shared = Shared { most, state: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Starts an answer, or lets it wait. After [`Self::close`], its events end without an answer.
    ///
    /// # Errors
    /// If the system refuses a thread and no answer is running.
    pub(crate) fn start(&self, task: Task) -> std::io::Result<()> {
        let mut state = self.shared.lock();
        if state.closed {
            return Ok(());
        }
        state.waiting.push_back(task);
        if state.running.len() >= self.shared.most {
            return Ok(());
        }
        let number = state.threads;
        state.threads += 1;
        // Replaced by the canceller of an answer before anybody else sees the state without one.
        state.running.insert(number, Canceller::new());
        let runner = Runner { shared: Arc::clone(&self.shared), number };
        // If the thread does not start, the runner's end waits for this lock.
        drop(state);
        let thread = std::thread::Builder::new().name("forerun-answer".into());
        let Err(error) = thread.spawn(move || runner.run()) else { return Ok(()) };
        let mut state = self.shared.lock();
        if state.running.is_empty() {
            state.waiting.pop_back();
            return Err(error);
        }
        Ok(())
    }

    /// Cancels all answers, and refuses further ones.
    pub(crate) fn cancel_all(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        state.running.values().for_each(Canceller::cancel);
        // Dropping a task calls its sink.
        drop(state);
        drop(waiting);
    }

    /// Cancels all answers as [`Self::cancel_all`] does, and waits until they have ended.
    pub(crate) fn close(&self) {
        self.cancel_all();
        let is_running = |state: &mut State| !state.running.is_empty();
        drop(self.shared.changed.wait_while(self.shared.lock(), is_running));
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.cancel_all();
    }
}

impl Drop for EventSink {
    fn drop(&mut self) {
        self.events = None;
        (self.on_event)();
    }
}

/// A thread that runs answers.
struct Runner {
    shared: Arc<Shared>,
    number: u64,
}

impl Runner {
    /// Runs answers until none waits.
    fn run(&self) {
        loop {
            let mut state = self.shared.lock();
            let Some(task) = state.waiting.pop_front() else {
                // Under the same lock, so that no answer is left waiting.
                state.running.remove(&self.number);
                return;
            };
            state.running.insert(self.number, task.canceller.clone());
            drop(state);
            task.run();
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.shared.lock().running.remove(&self.number);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

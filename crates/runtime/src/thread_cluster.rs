//! The cluster of threads: one worker a device group, any number of handles.

use crate::recorder::Recorder;
use crate::worker::{self, Assignment, Message, Reply, WorkerSpec};
use forerun_core::trace::{SpanOutcome, Trace};
use forerun_core::{Cluster, ClusterError, Completion, Job, Outcome, Role, SequenceId, Ticket};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// A cluster that could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The operating system refused a thread.
    #[error("cannot start the worker of {worker}: {source}")]
    Thread {
        /// The worker's name.
        worker: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A worker could not pin its team or load its models.
    #[error("{worker}: {message}")]
    Load {
        /// The worker's name.
        worker: String,
        /// What went wrong.
        message: String,
    },
}

/// Running workers. Handles ([`ThreadCluster`]) share them; they stop when the last handle and
/// this are gone.
pub struct Runtime {
    shared: Arc<Shared>,
}

struct Shared {
    /// `None` once the workers are told to stop.
    queues: Mutex<Option<Vec<Sender<Message>>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lanes: HashMap<Role, usize>,
    tickets: AtomicU64,
    recorder: Arc<Recorder>,
}

impl Runtime {
    /// Starts the workers and waits until all have loaded what they run.
    ///
    /// # Errors
    /// If a thread cannot be started or pinned, or a model cannot be loaded.
    pub fn start(specs: Vec<WorkerSpec>) -> Result<Self, StartError> {
        let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        let recorder = Arc::new(Recorder::new(names.clone()));
        let clock = Instant::now();
        let (mut lanes, mut workers) = (HashMap::new(), Vec::new());
        for (lane, spec) in specs.into_iter().enumerate() {
            lanes.extend(spec.roles.iter().map(|&role| (role, lane)));
            let started = worker::start(lane, spec, clock, Arc::clone(&recorder));
            workers.push(
                started
                    .map_err(|source| StartError::Thread { worker: names[lane].clone(), source })?,
            );
        }
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        for (worker, name) in workers.into_iter().zip(names) {
            let outcome = worker.ready.recv().unwrap_or_else(|_| Err("its thread died".into()));
            outcome.map_err(|message| StartError::Load { worker: name, message })?;
            queues.push(worker.queue);
            threads.push(worker.thread);
        }
        let shared = Shared {
            queues: Mutex::new(Some(queues)),
            threads: Mutex::new(threads),
            lanes,
            tickets: AtomicU64::new(0),
            recorder,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A handle for one sequence's decoder.
    #[must_use]
    pub fn cluster(&self) -> ThreadCluster {
        self.cluster_with(&Canceller::new())
    }

    /// A handle whose jobs stop when `canceller` is told to.
    #[must_use]
    pub fn cluster_with(&self, canceller: &Canceller) -> ThreadCluster {
        let (reply, completions) = mpsc::channel();
        ThreadCluster {
            shared: Arc::clone(&self.shared),
            reply,
            completions,
            pending: HashMap::new(),
            canceller: canceller.clone(),
        }
    }

    /// What was recorded since the start or since the last call.
    #[must_use]
    pub fn take_trace(&self) -> Trace {
        self.shared.recorder.take(|_| true)
    }

    /// The same of one sequence only; what others did stays recorded.
    #[must_use]
    pub fn take_trace_of(&self, sequence: SequenceId) -> Trace {
        self.shared.recorder.take(|span| span.sequence == sequence)
    }
}

impl Shared {
    fn send(&self, role: Role, message: Message) -> Result<(), ClusterError> {
        let &lane = self.lanes.get(&role).ok_or(ClusterError::NoSuchRole(role))?;
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.as_ref().and_then(|queues| queues.get(lane));
        let gone = ClusterError::WorkerGone(role);
        queue.ok_or_else(|| gone.clone())?.send(message).map_err(|_| gone)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Without queues the workers' loops end; waiting for them frees the models here and now.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// A handle to the workers: jobs submitted here complete here.
pub struct ThreadCluster {
    shared: Arc<Shared>,
    reply: Sender<Completion>,
    completions: Receiver<Completion>,
    /// Jobs under way, with their switches.
    pending: HashMap<Ticket, Arc<AtomicBool>>,
    canceller: Canceller,
}

/// Stops all jobs of the handles that it was given to, from any thread, now and later.
#[derive(Clone, Debug, Default)]
pub struct Canceller {
    state: Arc<Mutex<CancelState>>,
}

#[derive(Debug, Default)]
struct CancelState {
    cancelled: bool,
    /// The switches of jobs that may be under way.
    switches: Vec<Weak<AtomicBool>>,
}

impl Canceller {
    /// One that has not cancelled anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the jobs under way and all that are submitted from now on.
    pub fn cancel(&self) {
        let mut state = self.lock();
        state.cancelled = true;
        for switch in state.switches.drain(..).filter_map(|switch| switch.upgrade()) {
            switch.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was told to cancel.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.lock().cancelled
    }

    /// A job's switch, thrown already if all is cancelled.
    fn switch(&self) -> Arc<AtomicBool> {
        let mut state = self.lock();
        let switch = Arc::new(AtomicBool::new(state.cancelled));
        state.switches.retain(|switch| switch.strong_count() > 0);
        state.switches.push(Arc::downgrade(&switch));
        switch
    }

    fn lock(&self) -> MutexGuard<'_, CancelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThreadCluster {
    /// Cancels the jobs under way and waits until they have ended, so that none runs beside what comes
    /// next, and the trace has all of them.
    pub fn settle(&mut self) {
        for cancel in self.pending.values() {
            cancel.store(true, Ordering::Relaxed);
        }
        while let Ok(completion) = self.next_completion() {
            let outcome =
                Outcome { ticket: completion.ticket, accepted: 0, fate: SpanOutcome::Wasted };
            self.observe(outcome);
        }
    }
}

impl Cluster for ThreadCluster {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let ticket = Ticket(self.shared.tickets.fetch_add(1, Ordering::Relaxed));
        let cancel = self.canceller.switch();
        // Answered until it is sent: a job that never left has no completion.
        let mut reply = Reply { ticket, to: self.reply.clone(), answered: true };
        if !self.shared.lanes.contains_key(&on) {
            return Err(ClusterError::NoSuchRole(on));
        }
        reply.answered = false;
        self.pending.insert(ticket, Arc::clone(&cancel));
        let assignment = Box::new(Assignment { role: on, job, cancel, reply });
        let sent = self.shared.send(on, Message::Run(assignment));
        if sent.is_err() {
            // The refused reply has answered by being dropped; the error says it better.
            self.pending.remove(&ticket);
        }
        sent.map(|()| ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some(cancel) = self.pending.get(&ticket) {
            cancel.store(true, Ordering::Relaxed);
        }
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        loop {
            if self.pending.is_empty() {
                return Err(ClusterError::Idle);
            }
            // The channel cannot close: this handle holds a sender itself.
            let completion = self.completions.recv().map_err(|_| ClusterError::Idle)?;
            if self.pending.remove(&completion.ticket).is_some() {
                return Ok(completion);
            }
        }
    }

    fn observe(&mut self, outcome: Outcome) {
        self.shared.recorder.record_outcome(&outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        let queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in queues.iter().flatten() {
            // A worker that is gone has forgotten the sequence already.
            drop(queue.send(Message::Release(sequence)));
        }
    }
}

impl Drop for ThreadCluster {
    fn drop(&mut self) {
        for cancel in self.pending.values() {
            cancel.store(true, Ordering::Relaxed);
        }
    }
}

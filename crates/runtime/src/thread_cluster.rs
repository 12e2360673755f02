//! A cluster of threads: one worker per device group, and any number of handles.

use crate::nearness::Nearness;
use crate::pending_job::PendingJob;
use crate::recorder::Recorder;
use crate::worker::{self, Message, OnCompletion, Reply, TeamSpec, WorkerSpec};
use crate::workers::{ClusterHandle, Workers};
use forerun_core::trace::Trace;
use forerun_core::{Cluster, ClusterError, Completion, Job, Outcome, Role, SequenceId, Ticket};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SendError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// An error while starting a cluster.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum StartError {
    /// The operating system refused to start a thread.
    #[error("cannot start the thread of worker {worker}: {cause}")]
    Thread { worker: String, cause: std::io::Error },
    /// A worker could not pin its team or load its models.
    #[error("{worker}: {message}")]
    Load { worker: String, message: String },
}

/// The running workers. All handles ([`ThreadCluster`]) share them. The workers stop once this
/// value and all handles have been dropped.
pub struct Runtime {
    shared: Arc<Shared>,
}

struct Shared {
    /// The workers' queues; `None` once the workers are to stop.
    queues: Mutex<Option<Vec<Sender<Message>>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lanes: HashMap<Role, usize>,
    /// The core of each worker's first thread, if it has one of its own.
    first_cores: Vec<Option<usize>>,
    tickets: AtomicU64,
    recorder: Arc<Recorder>,
    clock: Instant,
}

impl Runtime {
    /// Starts the workers, and waits until all have loaded their models.
    ///
    /// # Errors
    /// [`StartError`] if a thread cannot be started or pinned, or a model cannot be loaded.
    pub fn start(specs: Vec<WorkerSpec>) -> Result<Self, StartError> {
        let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        let recorder = Arc::new(Recorder::new(names.clone()));
        let clock = Instant::now();
        let first_core = |spec: &WorkerSpec| match &spec.team {
            TeamSpec::Preferring(cores) | TeamSpec::Pinned(cores) => cores.first().copied(),
            TeamSpec::Unpinned(_) => None,
        };
        let first_cores = specs.iter().map(first_core).collect();
        let (mut lanes, mut workers) = (HashMap::new(), Vec::new());
        let lending = worker::lending(&specs);
        for (lane, (spec, lending)) in specs.into_iter().zip(lending).enumerate() {
            lanes.extend(spec.roles.iter().map(|&role| (role, lane)));
            let started = worker::start(lane, spec, lending, clock, Arc::clone(&recorder));
            workers.push(
                started
                    .map_err(|cause| StartError::Thread { worker: names[lane].clone(), cause })?,
            );
        }
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        for (worker, name) in workers.into_iter().zip(names) {
            let outcome = worker
                .ready
                .recv()
                .unwrap_or_else(|_| Err("its thread ended while it was loading".into()));
            outcome.map_err(|message| StartError::Load { worker: name, message })?;
            queues.push(worker.queue);
            threads.push(worker.thread);
        }
        let shared = Shared {
            queues: Mutex::new(Some(queues)),
            threads: Mutex::new(threads),
            lanes,
            first_cores,
            tickets: AtomicU64::new(0),
            recorder,
            clock,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Creates a handle for the decoder of one sequence.
    #[must_use]
    pub fn cluster(&self) -> ThreadCluster {
        self.cluster_with(&Canceller::new())
    }

    /// Creates a handle whose jobs `canceller` can cancel.
    #[must_use]
    pub fn cluster_with(&self, canceller: &Canceller) -> ThreadCluster {
        let (reply, completions) = mpsc::channel();
        ThreadCluster {
            shared: Arc::clone(&self.shared),
            reply,
            completions,
            pending: HashMap::new(),
            canceller: canceller.clone(),
            nearness: Nearness::default(),
        }
    }

    /// Submits a job without a handle. The worker's thread passes the completion to `completed`,
    /// which must not block. `canceller` can cancel the job.
    ///
    /// This is for a caller that waits for other events, too, such as a process that runs jobs for
    /// another one and reads its messages. Decoders use a handle ([`Runtime::cluster`]).
    ///
    /// # Errors
    /// As [`Cluster::submit`]; `completed` is not called then.
    pub fn submit(
        &self,
        on: Role,
        job: Job,
        canceller: &Canceller,
        completed: impl FnOnce(Completion) + Send + 'static,
    ) -> Result<Ticket, ClusterError> {
        self.shared.submit(on, job, canceller.new_flag(), Box::new(completed))
    }

    /// Frees a sequence's caches on all workers.
    pub fn release(&self, sequence: SequenceId) {
        self.shared.release(sequence);
    }

    /// Returns the zero of the times in completions and traces.
    #[must_use]
    pub fn clock(&self) -> Instant {
        self.shared.clock
    }

    /// Removes and returns the trace recorded since the start or since the last call.
    #[must_use]
    pub fn take_trace(&self) -> Trace {
        self.shared.recorder.take(|_| true)
    }
}

impl Workers for Runtime {
    fn cluster(&self, canceller: &Canceller) -> Box<dyn ClusterHandle> {
        Box::new(self.cluster_with(canceller))
    }

    fn take_trace_of(&self, sequence: SequenceId) -> Trace {
        self.shared.recorder.take(|span| span.sequence.base() == sequence)
    }
}

impl Shared {
    fn submit(
        &self,
        on: Role,
        job: Job,
        cancel: Arc<AtomicBool>,
        completed: OnCompletion,
    ) -> Result<Ticket, ClusterError> {
        let &lane = self.lanes.get(&on).ok_or(ClusterError::NoSuchRole(on))?;
        let queues = self.lock_queues();
        let gone = ClusterError::WorkerGone(on);
        let Some(queue) = queues.as_ref().and_then(|queues| queues.get(lane)) else {
            return Err(gone);
        };
        let ticket = Ticket(self.tickets.fetch_add(1, Ordering::Relaxed));
        let reply = Reply::new(ticket, completed);
        let job = Box::new(PendingJob::new(on, job, cancel, reply));
        if let Err(SendError(message)) = queue.send(Message::Run(job)) {
            if let Message::Run(job) = message {
                job.answer.reply.discard();
            }
            return Err(gone);
        }
        Ok(ticket)
    }

    fn release(&self, sequence: SequenceId) {
        for queue in self.lock_queues().iter().flatten() {
            // A worker that has stopped has no state to free.
            drop(queue.send(Message::Release(sequence)));
        }
    }

    fn lock_queues(&self) -> MutexGuard<'_, Option<Vec<Sender<Message>>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Dropping the queues ends the workers' loops. Joining the threads ensures that the models
        // are freed when this function returns.
        self.lock_queues().take();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// A handle to the workers. Jobs that are submitted through a handle complete at the same handle.
pub struct ThreadCluster {
    shared: Arc<Shared>,
    reply: Sender<Completion>,
    completions: Receiver<Completion>,
    /// The pending jobs: their cancellation flags, and the workers that have them.
    pending: HashMap<Ticket, (Arc<AtomicBool>, usize)>,
    canceller: Canceller,
    nearness: Nearness,
}

/// Cancels all present and future jobs of the handles created with it, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Canceller {
    state: Arc<Mutex<CancelState>>,
}

#[derive(Debug, Default)]
struct CancelState {
    cancelled: bool,
    /// The cancellation flags of jobs that may still be pending.
    flags: Vec<Weak<AtomicBool>>,
    /// What else to do on cancellation.
    actions: Vec<Weak<dyn Fn() + Send + Sync>>,
}

impl Canceller {
    /// Creates a canceller.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels all pending jobs, and all jobs that are submitted from now on.
    pub fn cancel(&self) {
        let mut state = self.lock();
        state.cancelled = true;
        for flag in state.flags.drain(..).filter_map(|flag| flag.upgrade()) {
            flag.store(true, Ordering::Relaxed);
        }
        let actions = std::mem::take(&mut state.actions);
        // An action may use this canceller, or wait for a lock whose holder uses it.
        drop(state);
        for action in actions.into_iter().filter_map(|action| action.upgrade()) {
            action();
        }
    }

    /// Calls `action` on cancellation, on the cancelling thread; at once if this canceller has
    /// cancelled already. A handle to workers in other processes passes the cancellation on with
    /// it.
    ///
    /// The canceller holds `action` weakly: drop the last [`Arc`] when it is no longer needed.
    pub fn on_cancel(&self, action: &Arc<dyn Fn() + Send + Sync>) {
        let mut state = self.lock();
        if state.cancelled {
            drop(state);
            return action();
        }
        state.actions.retain(|action| action.strong_count() > 0);
        state.actions.push(Arc::downgrade(action));
    }

    /// Returns whether [`Canceller::cancel`] has been called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.lock().cancelled
    }

    /// Creates the cancellation flag of a new job, which is already set if the canceller has
    /// cancelled.
    fn new_flag(&self) -> Arc<AtomicBool> {
        let mut state = self.lock();
        let flag = Arc::new(AtomicBool::new(state.cancelled));
        state.flags.retain(|flag| flag.strong_count() > 0);
        state.flags.push(Arc::downgrade(&flag));
        flag
    }

    fn lock(&self) -> MutexGuard<'_, CancelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClusterHandle for ThreadCluster {
    fn cancel_all(&mut self) {
        for (cancel, _) in self.pending.values() {
            cancel.store(true, Ordering::Relaxed);
        }
    }
}

impl Cluster for ThreadCluster {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let (cancel, reply) = (self.canceller.new_flag(), self.reply.clone());
        // If this handle no longer exists, the completion is discarded.
        let completed = Box::new(move |completion| drop(reply.send(completion)));
        let ticket = self.shared.submit(on, job, Arc::clone(&cancel), completed)?;
        let worker = self.shared.lanes.get(&on).copied().unwrap_or_default();
        self.pending.insert(ticket, (cancel, worker));
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some((cancel, _)) = self.pending.get(&ticket) {
            cancel.store(true, Ordering::Relaxed);
        }
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        if self.pending.is_empty() {
            return Err(ClusterError::Idle);
        }
        // The channel cannot close, because this handle owns a sender.
        let completion = self.completions.recv().map_err(|_| ClusterError::Idle)?;
        if let Some((_, worker)) = self.pending.remove(&completion.ticket) {
            let in_turn = self.pending.is_empty() && completion.cost.active_sequences <= 1;
            let core = self.shared.first_cores.get(worker).copied().flatten();
            self.nearness.observe(worker, core, in_turn);
        }
        Ok(completion)
    }

    fn observe(&mut self, outcome: Outcome) {
        self.shared.recorder.record_outcome(&outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.shared.release(sequence);
    }
}

impl Drop for ThreadCluster {
    fn drop(&mut self) {
        for (cancel, _) in self.pending.values() {
            cancel.store(true, Ordering::Relaxed);
        }
    }
}

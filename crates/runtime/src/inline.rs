//! A cluster without threads: each job runs when its completion is awaited, one after another.

use crate::engine::{Engine, job_error};
use crate::recorder::{JobTimings, Recorder};
use forerun_core::trace::Trace;
use forerun_core::{
    Cluster, ClusterError, Completion, Job, JobCost, Key, KeyedRandomness, Outcome, Purpose,
    Randomness, Role, SequenceId, Ticket,
};
use forerun_lm::ModelError;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A cluster that runs jobs on the calling thread, in order of submission or in an order chosen by a
/// seed.
///
/// Its clock counts jobs: each takes one microsecond. It is fully deterministic, so that tests can
/// enumerate every outcome of a decoder.
pub struct InlineCluster {
    engine: Engine,
    randomness: Arc<dyn Randomness + Send + Sync>,
    waiting: VecDeque<(Ticket, Role, Job, AtomicBool)>,
    submitted: u64,
    completed: u64,
    /// The seed that chooses the next job; `None` for order of submission.
    order: Option<u64>,
    recorder: Recorder,
}

impl InlineCluster {
    /// Creates a cluster in which `engine` has all roles and drafters draw from `randomness`.
    #[must_use]
    pub fn new(engine: Engine, randomness: Arc<dyn Randomness + Send + Sync>) -> Self {
        let recorder = Recorder::new(vec!["inline".into()]);
        let waiting = VecDeque::new();
        Self { engine, randomness, waiting, submitted: 0, completed: 0, order: None, recorder }
    }

    /// Returns the same cluster, configured to run waiting jobs in an order chosen by `seed`, as if the
    /// devices' speeds varied. Jobs of the same role stay in order.
    #[must_use]
    pub fn with_random_order(self, seed: u64) -> Self {
        Self { order: Some(seed), ..self }
    }

    /// Removes and returns the next job to run.
    fn next_job(&mut self) -> Option<(Ticket, Role, Job, AtomicBool)> {
        let Some(seed) = self.order else { return self.waiting.pop_front() };
        let randomness = KeyedRandomness { seed, sample: 0 };
        let position = self.completed as usize;
        let key = Key { position, purpose: Purpose::Sample, candidate: 0 };
        let index = (randomness.uniform(key) * self.waiting.len() as f64) as usize;
        let role = self.waiting.get(index)?.1;
        let first = self.waiting.iter().position(|(_, of, ..)| *of == role)?;
        self.waiting.remove(first)
    }

    /// Removes and returns the trace recorded since the start or since the last call.
    #[must_use]
    pub fn take_trace(&self) -> Trace {
        self.recorder.take(|_| true)
    }
}

impl Cluster for InlineCluster {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        if !self.engine.has_role(on) {
            return Err(ClusterError::NoSuchRole(on));
        }
        let ticket = Ticket(self.submitted);
        self.submitted += 1;
        self.waiting.push_back((ticket, on, job, AtomicBool::new(false)));
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some((.., cancel)) = self.waiting.iter().find(|(waiting, ..)| *waiting == ticket) {
            cancel.store(true, Ordering::Relaxed);
        }
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        let (ticket, role, job, cancel) = self.next_job().ok_or(ClusterError::Idle)?;
        let output = if cancel.load(Ordering::Relaxed) {
            Err(ModelError::Cancelled)
        } else {
            self.engine.execute(role, &job, &*self.randomness, &cancel)
        };
        let output = output.map_err(|error| job_error(&error, &job, "inline"));
        let started_ns = self.completed * 1_000;
        self.completed += 1;
        let (finished_ns, cost) = (started_ns + 1_000, JobCost::default());
        let completion = Completion { ticket, output, started_ns, finished_ns, cost };
        self.recorder.record(0, &job, &completion, JobTimings::default());
        Ok(completion)
    }

    fn observe(&mut self, outcome: Outcome) {
        self.recorder.record_outcome(&outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.engine.release(sequence);
    }
}

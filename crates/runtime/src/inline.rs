//! A cluster without threads: jobs run one after another where they are awaited.

use crate::engine::{Engine, job_error};
use crate::recorder::{JobTimings, Recorder};
use forerun_core::trace::Trace;
use forerun_core::{
    Cluster, ClusterError, Completion, Job, Key, KeyedRandomness, Outcome, Purpose, Randomness,
    Role, SequenceId, Ticket,
};
use forerun_model::ModelError;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs jobs on the calling thread, in order of submission or in another that a seed chooses. Its clock
/// counts jobs: each takes one microsecond. Everything about it is deterministic, so that a decoder can
/// be enumerated.
pub struct InlineCluster {
    engine: Engine,
    randomness: Arc<dyn Randomness + Send + Sync>,
    waiting: VecDeque<(Ticket, Role, Job, AtomicBool)>,
    submitted: u64,
    completed: u64,
    /// Chooses the job that is run next; without it, the first that was submitted.
    order: Option<u64>,
    recorder: Recorder,
}

impl InlineCluster {
    /// A cluster in which `engine` plays all roles and drafters draw from `randomness`.
    #[must_use]
    pub fn new(engine: Engine, randomness: Arc<dyn Randomness + Send + Sync>) -> Self {
        let recorder = Recorder::new(vec!["inline".into()]);
        let waiting = VecDeque::new();
        Self { engine, randomness, waiting, submitted: 0, completed: 0, order: None, recorder }
    }

    /// The same, but the next job is any of those that wait, as devices of changing speeds would have
    /// it. Jobs of one role stay in their order.
    #[must_use]
    pub fn in_order_of(self, seed: u64) -> Self {
        Self { order: Some(seed), ..self }
    }

    /// Takes out the job that is run next.
    fn next_job(&mut self) -> Option<(Ticket, Role, Job, AtomicBool)> {
        let Some(seed) = self.order else { return self.waiting.pop_front() };
        let randomness = KeyedRandomness { seed, sample: 0 };
        let position = self.completed as usize;
        let key = Key { position, purpose: Purpose::Sample, candidate: 0 };
        let place = (randomness.uniform(key) * self.waiting.len() as f64) as usize;
        let role = self.waiting.get(place)?.1;
        let first = self.waiting.iter().position(|(_, of, ..)| *of == role)?;
        self.waiting.remove(first)
    }

    /// What was recorded since the start or since the last call.
    #[must_use]
    pub fn take_trace(&self) -> Trace {
        self.recorder.take(|_| true)
    }
}

impl Cluster for InlineCluster {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        if !self.engine.plays(on) {
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
        let output = output.map_err(|error| job_error(error, "inline"));
        let started_ns = self.completed * 1_000;
        self.completed += 1;
        let completion = Completion { ticket, output, started_ns, finished_ns: started_ns + 1_000 };
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

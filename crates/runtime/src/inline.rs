//! A cluster without threads: each job runs when its completion is awaited, one after another.

use crate::engine::{Engine, job_error};
use crate::recorder::{JobTimings, Recorder};
use forerun_core::trace::Trace;
use forerun_core::{
    Cluster, ClusterError, Completion, Job, JobCost, Key, KeyedRandomness, Outcome, Purpose,
    Randomness, Role, SequenceId, Ticket,
};
use forerun_lm::ModelError;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A cluster that runs jobs on the calling thread: in order of submission, in an order chosen by a
/// seed, or as devices that work at the same time would complete them.
///
/// Its clock counts jobs: each takes one microsecond, unless the cluster has parallel devices. It
/// is fully deterministic, so that tests can enumerate every outcome of a decoder.
pub struct InlineCluster {
    engine: Engine,
    randomness: Arc<dyn Randomness + Send + Sync>,
    waiting: VecDeque<Waiting>,
    submitted: u64,
    completed: u64,
    order: Order,
    /// The end of the last completed job.
    now_ns: u64,
    recorder: Recorder,
}

/// A job that has not run.
struct Waiting {
    ticket: Ticket,
    role: Role,
    job: Job,
    cancel: AtomicBool,
    submitted_ns: u64,
    cancelled_ns: Option<u64>,
}

/// The order in which jobs complete.
enum Order {
    /// The order of submission.
    Submission,
    /// An order chosen by this seed.
    Random(u64),
    /// That of devices that work at the same time, one for each role.
    ParallelDevices {
        /// The seed that chooses how long jobs take.
        seed: u64,
        /// When each device is free.
        free_ns: BTreeMap<Role, u64>,
    },
}

/// The time of a target's pass on a parallel device, on average.
const PASS_NS: f64 = 8_000.0;
/// The time of each token of a draft on a parallel device, on average.
const DRAFT_TOKEN_NS: f64 = 1_000.0;

impl InlineCluster {
    /// Creates a cluster in which `engine` has all roles and drafters draw from `randomness`.
    #[must_use]
    pub fn new(engine: Engine, randomness: Arc<dyn Randomness + Send + Sync>) -> Self {
        let recorder = Recorder::new(vec!["inline".into()]);
        Self {
            engine,
            randomness,
            waiting: VecDeque::new(),
            submitted: 0,
            completed: 0,
            order: Order::Submission,
            now_ns: 0,
            recorder,
        }
    }

    /// Returns the same cluster, configured to run waiting jobs in an order chosen by `seed`, as if
    /// the devices' speeds varied. Jobs of the same role stay in order.
    #[must_use]
    pub fn with_random_order(self, seed: u64) -> Self {
        Self { order: Order::Random(seed), ..self }
    }

    /// Returns the same cluster, configured so that jobs take and complete at the times of parallel
    /// devices, one for each role. A pass of a target takes as long as eight tokens of a draft, on
    /// average. `seed` chooses times between a quarter and seven quarters of the average, so that
    /// jobs of different roles overtake each other.
    #[must_use]
    pub fn with_parallel_devices(self, seed: u64) -> Self {
        Self { order: Order::ParallelDevices { seed, free_ns: BTreeMap::new() }, ..self }
    }

    /// Removes and returns the next job to run, with its start and its end.
    fn next_job(&mut self) -> Option<(Waiting, [u64; 2])> {
        let index = match &mut self.order {
            Order::Submission => 0,
            Order::Random(seed) => {
                let index = uniform(*seed, self.completed) * self.waiting.len() as f64;
                let role = self.waiting.get(index as usize)?.role;
                self.waiting.iter().position(|waiting| waiting.role == role)?
            }
            Order::ParallelDevices { seed, free_ns } => {
                let is_first = |index: usize| {
                    let role = self.waiting[index].role;
                    self.waiting.iter().take(index).all(|earlier| earlier.role != role)
                };
                let first_jobs = (0..self.waiting.len()).filter(|&index| is_first(index));
                let times = |index: usize| self.waiting[index].times(*seed, free_ns);
                let (index, times) = first_jobs
                    .map(|index| (index, times(index)))
                    .min_by_key(|(_, [_, finished_ns])| *finished_ns)?;
                let job = self.waiting.remove(index)?;
                free_ns.insert(job.role, times[1]);
                return Some((job, times));
            }
        };
        let job = self.waiting.remove(index)?;
        Some((job, [self.now_ns, self.now_ns + 1_000]))
    }

    /// Removes and returns the trace recorded since the start or since the last call.
    #[must_use]
    pub fn take_trace(&self) -> Trace {
        self.recorder.take(|_| true)
    }
}

impl Waiting {
    /// Returns when the job starts and ends on a device that is free at its time of `free_ns`.
    /// Cancelled, it ends at once.
    fn times(&self, seed: u64, free_ns: &BTreeMap<Role, u64>) -> [u64; 2] {
        let free_ns = free_ns.get(&self.role).copied().unwrap_or(0);
        let started_ns = self.submitted_ns.max(free_ns);
        let average_ns = match &self.job {
            Job::Draft { shape, .. } => DRAFT_TOKEN_NS * shape.length() as f64,
            Job::Score(_) => PASS_NS,
        };
        let ns = average_ns * (0.25 + 1.5 * uniform(seed, self.ticket.0));
        let finished_ns = started_ns + ns as u64;
        let cancelled_ns = self.cancelled_ns.map(|cancelled_ns| cancelled_ns.max(started_ns));
        [started_ns, cancelled_ns.map_or(finished_ns, |cancelled_ns| cancelled_ns.min(finished_ns))]
    }
}

/// Returns the random number of a seed at a position, in `[0, 1)`.
fn uniform(seed: u64, position: u64) -> f64 {
    let key = Key { position: position as usize, purpose: Purpose::Sample, candidate: 0 };
    KeyedRandomness { seed, sample: 0 }.uniform(key)
}

impl Cluster for InlineCluster {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        if !self.engine.has_role(on) {
            return Err(ClusterError::NoSuchRole(on));
        }
        let ticket = Ticket(self.submitted);
        self.submitted += 1;
        self.waiting.push_back(Waiting {
            ticket,
            role: on,
            job,
            cancel: AtomicBool::new(false),
            submitted_ns: self.now_ns,
            cancelled_ns: None,
        });
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some(job) = self.waiting.iter_mut().find(|waiting| waiting.ticket == ticket) {
            job.cancel.store(true, Ordering::Relaxed);
            job.cancelled_ns = job.cancelled_ns.or(Some(self.now_ns));
        }
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        let (waiting, [started_ns, finished_ns]) = self.next_job().ok_or(ClusterError::Idle)?;
        let Waiting { ticket, role, job, cancel, .. } = waiting;
        let output = if cancel.load(Ordering::Relaxed) {
            Err(ModelError::Cancelled)
        } else {
            self.engine.execute(role, &job, &*self.randomness, &cancel)
        };
        let output = output.map_err(|error| job_error(&error, &job, "inline"));
        self.completed += 1;
        self.now_ns = finished_ns;
        let cost = JobCost::default();
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

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_core::ScoreJob;
    use forerun_lm::fake::TableModel;

    fn cluster(seed: u64) -> InlineCluster {
        let engine = Engine::new();
        let engine = (0..2)
            .fold(engine, |engine, index| engine.with_target(index, TableModel::new(1, 3, 1.0)));
        let randomness = KeyedRandomness { seed: 1, sample: 0 };
        InlineCluster::new(engine, Arc::new(randomness)).with_parallel_devices(seed)
    }

    fn job() -> Job {
        Job::Score(ScoreJob::greedy(SequenceId(0), [1]))
    }

    /// Jobs of a role complete in order of submission, those of two roles in any order, and all in
    /// order of time.
    #[test]
    fn jobs_of_parallel_devices_overtake_each_other() {
        let mut overtaken = 0;
        for seed in 0..40 {
            let mut cluster = cluster(seed);
            for replica in [0, 1, 0, 1] {
                cluster.submit(Role::Target(replica), job()).unwrap();
            }
            let all: Vec<Completion> =
                std::iter::from_fn(|| cluster.next_completion().ok()).collect();
            let order: Vec<u64> = all.iter().map(|completion| completion.ticket.0).collect();
            let place = |ticket| order.iter().position(|&other| other == ticket);
            assert!(place(0) < place(2) && place(1) < place(3), "{order:?}");
            assert!(all.is_sorted_by_key(|completion| completion.finished_ns), "{all:?}");
            overtaken += usize::from(order != [0, 1, 2, 3]);
        }
        assert!((10..40).contains(&overtaken), "{overtaken}");
    }

    #[test]
    fn a_cancelled_job_takes_no_more_time() {
        let mut cluster = cluster(1);
        let tickets = [0, 1, 0].map(|replica| cluster.submit(Role::Target(replica), job()));
        let [_, _, last] = tickets.map(Result::unwrap);
        let first = cluster.next_completion().unwrap();
        cluster.cancel(last);
        let completions = std::iter::from_fn(|| cluster.next_completion().ok());
        let cancelled = completions.into_iter().find(|completion| completion.ticket == last);
        let cancelled = cancelled.unwrap();
        assert!(cancelled.output.is_err());
        assert_eq!(cancelled.started_ns, cancelled.finished_ns);
        assert!(cancelled.finished_ns >= first.finished_ns);
    }
}

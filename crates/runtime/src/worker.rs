//! Workers: a worker is one thread that owns a device group's team, models, drafters and caches.

use crate::engine::Engine;
use crate::pending_job::PendingJob;
use crate::recorder::Recorder;
use crate::worker_loop::WorkerLoop;
use forerun_core::{Completion, JobCost, JobError, Role, SequenceId, Ticket};
use forerun_cpu::{LentCores, Team, TeamError};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// A function that loads a worker's engine. It runs on the worker's own thread, with its team.
pub type BuildEngine = Box<dyn FnOnce(Arc<Team>) -> Result<Engine, String> + Send>;

/// The specification of a worker to start.
pub struct WorkerSpec {
    /// The worker's name, which is also its lane in the trace, such as `target cpu:1`.
    pub name: String,
    /// The worker's team.
    pub team: TeamSpec,
    /// The roles of the worker. Its engine must have a drafter or target for each.
    pub roles: Vec<Role>,
    /// Loads the engine.
    pub build: BuildEngine,
}

/// The threads of a team to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TeamSpec {
    /// A number of threads, which the system places. There is always one.
    Unpinned(usize),
    /// A thread on each of these cores, as long as no other load needs them. While the worker is
    /// idle, its cores help the other workers of this kind.
    Preferring(Vec<usize>),
    /// A thread on each of these cores, which stays there.
    Pinned(Vec<usize>),
}

impl TeamSpec {
    /// Starts the threads of a team that is no worker's. The calling thread is the first.
    ///
    /// # Errors
    /// [`TeamError`] if a thread cannot be started or pinned.
    pub fn start_team(&self) -> Result<Team, TeamError> {
        self.start(None)
    }

    /// Starts the threads. The calling thread is the first.
    fn start(&self, lending: Option<Lending>) -> Result<Team, TeamError> {
        match (self, lending) {
            (Self::Unpinned(threads), _) => Team::unpinned(*threads),
            (Self::Preferring(_), Some((cores, index))) => Team::lending(&cores, index),
            (Self::Preferring(cores), None) => Team::preferring(cores),
            (Self::Pinned(cores), _) => Team::pinned(cores),
        }
    }
}

/// The exchange of cores that a worker takes part in, and its index there.
pub(crate) type Lending = (Arc<LentCores>, usize);

/// Returns for each worker its part in the exchange of cores between workers that prefer theirs;
/// `None` for the others, and if there is nobody to exchange with or cores are in several teams.
pub(crate) fn lending(specs: &[WorkerSpec]) -> Vec<Option<Lending>> {
    let cores = |spec: &WorkerSpec| match &spec.team {
        TeamSpec::Preferring(cores) => Some(cores.clone()),
        TeamSpec::Unpinned(_) | TeamSpec::Pinned(_) => None,
    };
    let teams: Vec<Vec<usize>> = specs.iter().filter_map(cores).collect();
    let mut all: Vec<usize> = teams.concat();
    all.sort_unstable();
    let has_common = all.windows(2).any(|pair| pair[0] == pair[1]);
    if teams.len() < 2 || has_common {
        return specs.iter().map(|_| None).collect();
    }
    let (lent, mut next) = (LentCores::new(teams), 0..);
    let part =
        |spec: &WorkerSpec| cores(spec).and_then(|_| Some((Arc::clone(&lent), next.next()?)));
    specs.iter().map(part).collect()
}

/// The stack of a worker. Only what is used takes memory.
const STACK_BYTES: usize = 8 << 20;

pub(crate) enum Message {
    Run(Box<PendingJob>),
    Release(SequenceId),
}

/// A function that receives the completion of one job.
pub(crate) type OnCompletion = Box<dyn FnOnce(Completion) + Send>;

/// Passes on exactly one completion. If it is dropped without an answer it passes on an error, so
/// that no decoder waits forever.
pub(crate) struct Reply {
    ticket: Ticket,
    /// `None` once the job has its answer.
    to: Option<OnCompletion>,
}

impl Reply {
    pub(crate) fn new(ticket: Ticket, to: OnCompletion) -> Self {
        Self { ticket, to: Some(to) }
    }

    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    pub(crate) fn send(mut self, completion: Completion) {
        if let Some(to) = self.to.take() {
            to(completion);
        }
    }

    /// Drops the reply of a job that was never submitted, which has no completion.
    pub(crate) fn discard(mut self) {
        self.to = None;
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let Some(to) = self.to.take() else { return };
        let error = JobError::Failed {
            worker: "the worker".into(),
            message: "it stopped before the job was complete".into(),
        };
        to(Completion {
            ticket: self.ticket,
            output: Err(error),
            started_ns: 0,
            finished_ns: 0,
            cost: JobCost::default(),
        });
    }
}

/// A handle to a started worker.
pub(crate) struct Worker {
    pub(crate) queue: Sender<Message>,
    pub(crate) thread: JoinHandle<()>,
    /// Receives the outcome of loading the engine.
    pub(crate) ready: Receiver<Result<(), String>>,
}

/// Starts a worker's thread. The thread loads its engine in the background; `ready` receives the
/// outcome.
pub(crate) fn start(
    lane: usize,
    spec: WorkerSpec,
    lending: Option<Lending>,
    clock: Instant,
    recorder: Arc<Recorder>,
) -> std::io::Result<Worker> {
    let (queue, messages) = mpsc::channel();
    let (report, ready) = mpsc::channel();
    let body = move || {
        let WorkerSpec { name, team, roles, build } = spec;
        let load = AssertUnwindSafe(|| load(&team, lending, build));
        let loaded = catch_unwind(load).unwrap_or_else(|panic| Err(panic_message(&*panic)));
        let loaded = loaded.and_then(|(team, engine)| {
            match roles.iter().find(|&&role| !engine.has_role(role)) {
                None => Ok((team, engine)),
                Some(role) => {
                    Err(format!("its engine has no model or drafter for the role {role:?}"))
                }
            }
        });
        let (outcome, loaded) = match loaded {
            Ok(loaded) => (Ok(()), Some(loaded)),
            Err(message) => (Err(message), None),
        };
        drop(report.send(outcome));
        if let Some((team, engine)) = loaded {
            WorkerLoop::new(engine, lane, name, clock, recorder).serve(&messages, &team);
        }
    };
    let thread = thread::Builder::new().name(format!("forerun-worker-{lane}"));
    // `RUST_MIN_STACK` may ask for less than the worker needs.
    let thread = thread.stack_size(STACK_BYTES).spawn(body)?;
    Ok(Worker { queue, thread, ready })
}

fn load(
    team: &TeamSpec,
    lending: Option<Lending>,
    build: BuildEngine,
) -> Result<(Arc<Team>, Engine), String> {
    let team = Arc::new(team.start(lending).map_err(|error| error.to_string())?);
    // Building computes a pass of a model whose pages are kept.
    let work = team.start_work();
    let engine = build(Arc::clone(&team))?;
    drop(work);
    Ok((team, engine))
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

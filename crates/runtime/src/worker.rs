//! A worker: one thread that owns a device group's team, models, drafters and caches.

use crate::engine::{Engine, job_error};
use crate::recorder::{JobTimings, Recorder};
use forerun_core::{
    Completion, Job, JobError, JobOutput, KeyedRandomness, Role, SequenceId, Ticket,
};
use forerun_model::Team;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Puts together what a worker runs, on the worker's own thread and team.
pub type BuildEngine = Box<dyn FnOnce(Arc<Team>) -> Result<Engine, String> + Send>;

/// How to start a worker.
pub struct WorkerSpec {
    /// Its lane in the trace, as in `target cpu:1`.
    pub name: String,
    /// The cores that its team is pinned to; empty for one thread that is not pinned.
    pub cores: Vec<usize>,
    /// The roles that its engine plays.
    pub roles: Vec<Role>,
    /// Loads the engine.
    pub build: BuildEngine,
}

/// What a worker is told.
pub(crate) enum Message {
    Run(Box<Assignment>),
    Release(SequenceId),
}

/// A job on its way, and where its completion goes.
pub(crate) struct Assignment {
    pub(crate) role: Role,
    pub(crate) job: Job,
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) reply: Reply,
}

/// Sends exactly one completion, even if it is dropped unanswered, so that nobody waits for ever.
pub(crate) struct Reply {
    pub(crate) ticket: Ticket,
    pub(crate) to: Sender<Completion>,
    pub(crate) answered: bool,
}

impl Reply {
    fn send(mut self, completion: Completion) {
        self.answered = true;
        // The handle may be gone; then nobody wants to know.
        drop(self.to.send(completion));
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.answered {
            let error = JobError::Failed {
                worker: "the worker".into(),
                message: "it stopped before the job was done".into(),
            };
            drop(self.to.send(Completion {
                ticket: self.ticket,
                output: Err(error),
                started_ns: 0,
                finished_ns: 0,
            }));
        }
    }
}

/// A started worker, as the cluster holds it.
pub(crate) struct Worker {
    pub(crate) queue: Sender<Message>,
    pub(crate) thread: JoinHandle<()>,
    /// Answers once the engine is loaded.
    pub(crate) ready: Receiver<Result<(), String>>,
}

/// Starts a worker's thread; loading goes on in the background until `ready` answers.
pub(crate) fn start(
    lane: usize,
    spec: WorkerSpec,
    clock: Instant,
    recorder: Arc<Recorder>,
) -> std::io::Result<Worker> {
    let (queue, messages) = mpsc::channel();
    let (report, ready) = mpsc::channel();
    let body = move || {
        let WorkerSpec { name, cores, roles, build } = spec;
        let load = AssertUnwindSafe(|| load(&cores, build));
        let loaded = catch_unwind(load).unwrap_or_else(|panic| Err(panic_message(&*panic)));
        let loaded = loaded.and_then(|engine| match roles.iter().find(|&&r| !engine.plays(r)) {
            None => Ok(engine),
            Some(role) => Err(format!("its engine does not play {role:?}")),
        });
        let (outcome, engine) = match loaded {
            Ok(engine) => (Ok(()), Some(engine)),
            Err(message) => (Err(message), None),
        };
        drop(report.send(outcome));
        if let Some(engine) = engine {
            WorkerLoop { lane, name, engine, clock, recorder }.serve(&messages);
        }
    };
    let thread = thread::Builder::new().name(format!("forerun-worker-{lane}")).spawn(body)?;
    Ok(Worker { queue, thread, ready })
}

fn load(cores: &[usize], build: BuildEngine) -> Result<Engine, String> {
    let team = if cores.is_empty() {
        Team::single_thread()
    } else {
        Team::pinned(cores).map_err(|error| error.to_string())?
    };
    build(Arc::new(team))
}

/// Where a worker's jobs are done.
struct WorkerLoop {
    lane: usize,
    name: String,
    engine: Engine,
    clock: Instant,
    recorder: Arc<Recorder>,
}

impl WorkerLoop {
    /// Runs jobs in the order of their arrival until the cluster is gone.
    fn serve(mut self, messages: &Receiver<Message>) {
        for message in messages {
            match message {
                Message::Release(sequence) => self.engine.release(sequence),
                Message::Run(assignment) => self.run(*assignment),
            }
        }
    }

    fn run(&mut self, assignment: Assignment) {
        let Assignment { role, job, cancel, reply } = assignment;
        let started_ns = self.at(Instant::now());
        let output = self.output(role, &job, &cancel);
        let finished_ns = self.at(Instant::now());
        let forwards = self.engine.take_forwards();
        let computed_tokens = forwards.iter().map(|forward| forward.tokens).sum();
        let times = forwards.iter().map(|f| [self.at(f.started), self.at(f.finished)]).collect();
        let visits = self.engine.take_visits().into_iter();
        let visits = visits.map(|own| {
            let times_ns = [self.at(own.started), self.at(own.finished)];
            (own.device, times_ns)
        });
        let forwards = JobTimings { times_ns: times, computed_tokens, visits_ns: visits.collect() };
        let completion = Completion { ticket: reply.ticket, output, started_ns, finished_ns };
        self.recorder.record(self.lane, &job, &completion, forwards);
        reply.send(completion);
    }

    fn output(
        &mut self,
        role: Role,
        job: &Job,
        cancel: &AtomicBool,
    ) -> Result<JobOutput, JobError> {
        if cancel.load(Ordering::Relaxed) {
            return Err(JobError::Cancelled);
        }
        let randomness = randomness_of(job);
        let engine = &mut self.engine;
        let work = AssertUnwindSafe(|| engine.execute(role, job, &randomness, cancel));
        match catch_unwind(work) {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(error)) => Err(job_error(error, &self.name)),
            Err(panic) => {
                // Whatever the sequence had here may be half written.
                self.engine.release(job.sequence());
                let message = panic_message(&*panic);
                Err(JobError::Panicked { worker: self.name.clone(), message })
            }
        }
    }

    /// A moment on the cluster's clock, in nanoseconds.
    fn at(&self, moment: Instant) -> u64 {
        moment.duration_since(self.clock).as_nanos() as u64
    }
}

fn randomness_of(job: &Job) -> KeyedRandomness {
    match job {
        Job::Draft { sampling, .. } | Job::Score { sampling, .. } => sampling.randomness,
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

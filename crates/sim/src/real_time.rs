//! Simulation on real threads, with waits in place of forward passes, as DSI's paper measures.
//!
//! The cluster is the one that runs real models. The difference to virtual time is the cost of
//! threads, queues and verification.

use crate::device::CacheState;
use crate::oracle::{CachedOracle, Prefix, VOCABULARY};
use crate::{Cancellation, Device, SimError, Simulation};
use forerun_core::trace::Trace;
use forerun_core::{
    Draft, DraftShape, Job, JobOutput, Role, Sampling, ScoreJob, Scores, SequenceId, TokenTree,
};
use forerun_decode::Statistics;
use forerun_draft::{DraftContext, Drafter};
use forerun_lm::{BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, ModelError};
use forerun_runtime::{Engine, Runtime, TeamSpec, WorkerSpec};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The result of a simulation on threads. Its times are measured.
#[derive(Clone, Debug)]
pub struct RealTimeAnswer {
    /// The measured time until the last token, in nanoseconds.
    pub total_ns: u64,
    /// The decoder's counters.
    pub statistics: Statistics,
    /// The trace of all jobs.
    pub trace: Trace,
}

impl Simulation {
    /// Runs the simulation on one thread per device, with waits in place of passes.
    ///
    /// # Errors
    /// If an option is out of range, if there are links or faults, or if a thread cannot start.
    pub fn run_in_real_time(&self) -> Result<RealTimeAnswer, SimError> {
        self.check()?;
        let devices = self.devices();
        if !self.faults.is_empty() {
            return Err(SimError::VirtualOnly("faults"));
        }
        if devices.iter().any(|device| device.cost.link_ns > 0) {
            return Err(SimError::VirtualOnly("links"));
        }
        if let Some(device) = devices.iter().find(|device| device.cost.layers == 0) {
            return Err(SimError::NoLayers { device: device.name.clone() });
        }
        let workers = devices.into_iter().map(|device| self.worker(device)).collect();
        let runtime =
            Runtime::start(workers).map_err(|error| SimError::Start(error.to_string()))?;
        let mut cluster = runtime.cluster();
        let started = Instant::now();
        let statistics = self.generate(&mut cluster, SequenceId(0))?;
        let total_ns = started.elapsed().as_nanos() as u64;
        Ok(RealTimeAnswer { total_ns, statistics, trace: runtime.take_trace() })
    }

    fn worker(&self, device: Device) -> WorkerSpec {
        let (oracle, cancellation) = (self.oracle(), self.cancellation);
        let prompt_len = self.prompt_tokens();
        let (name, roles) = (device.name.clone(), device.roles.clone());
        let engine = move || {
            let model = |role| SleepingModel {
                device: device.clone(),
                role,
                cache: CacheState::default(),
                oracle: CachedOracle::new(oracle.clone()),
                cancellation,
                prompt_len,
            };
            device.roles.iter().fold(Engine::new(), |engine, &role| match role {
                Role::Drafter(index) => engine.with_drafter(index, model(role)),
                Role::Target(index) => engine.with_target(index, model(role)),
            })
        };
        // Threads that only wait need no dedicated cores.
        WorkerSpec {
            name,
            team: TeamSpec::Unpinned(1),
            roles,
            build: Box::new(move |_| Ok(engine())),
        }
    }
}

/// A drafter or a target that waits instead of computing.
struct SleepingModel {
    device: Device,
    role: Role,
    cache: CacheState,
    oracle: CachedOracle,
    cancellation: Cancellation,
    prompt_len: usize,
}

impl SleepingModel {
    fn answer(&mut self, request: &ForwardRequest<'_>) -> Result<ForwardOutput, ModelError> {
        let ForwardRequest { sequence, tokens, tree, first_row, cancel, .. } = *request;
        let job = Job::Score(ScoreJob {
            sequence,
            tokens: tokens.into(),
            prompt_len: self.prompt_len,
            tree: tree.clone(),
            sampling: Sampling::greedy(),
            logprobs: None,
            features_from: None,
        });
        self.wait(&job, cancel)?;
        let rows = self.oracle.rows(tokens, tree);
        self.cache.record(
            &self.device.cost,
            self.role,
            job,
            Some(&JobOutput::Score(Scores::default())),
        );
        let mut logits = vec![0.0; (rows.len() - first_row) * VOCABULARY];
        for (row, token) in logits.chunks_exact_mut(VOCABULARY).zip(&rows[first_row..]) {
            row[*token as usize] = 1.0;
        }
        let (vocab_size, computed_tokens) = (VOCABULARY, tree.len() + 1);
        let (best, features) = (Vec::new(), None);
        Ok(ForwardOutput { logits, best, vocab_size, computed_tokens, features })
    }

    /// Waits as long as the passes of a job take, or until the job is cancelled.
    fn wait(&self, job: &Job, cancel: &AtomicBool) -> Result<(), ModelError> {
        let started = Instant::now();
        let passes = self.cache.passes(&self.device.cost, self.role, job);
        let total_ns = passes.total_ns();
        let mut at_ns = 0;
        while at_ns < total_ns {
            // The next time at which a cancellation can take effect.
            at_ns = match self.cancellation {
                Cancellation::RunToEnd => total_ns,
                Cancellation::Layer => passes.layer_end(at_ns + 1).clamp(at_ns + 1, total_ns),
                Cancellation::Immediate => (at_ns + POLL_NS).min(total_ns),
            };
            let moment = started + Duration::from_nanos(at_ns);
            if at_ns < total_ns {
                // A check need not be punctual. Spinning here would take cores from other threads.
                std::thread::sleep(moment.saturating_duration_since(Instant::now()));
            } else {
                wait_until(moment);
            }
            if self.cancellation != Cancellation::RunToEnd && cancel.load(Ordering::Relaxed) {
                return Err(ModelError::Cancelled);
            }
        }
        Ok(())
    }
}

/// Interval at which an immediately cancellable wait checks for cancellation.
const POLL_NS: u64 = 250_000;
/// Time by which a sleep may overrun. The last part of a wait, which is this long, spins instead.
const OVERSLEEP: Duration = Duration::from_micros(150);

/// Sleeps for most of the time and spins for the rest, so that the wait ends on time.
fn wait_until(moment: Instant) {
    let left = moment.saturating_duration_since(Instant::now());
    if let Some(sleep) = left.checked_sub(OVERSLEEP) {
        std::thread::sleep(sleep);
    }
    while Instant::now() < moment {
        std::hint::spin_loop();
    }
}

impl Drafter for SleepingModel {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        // An empty draft is always valid, so it is the answer to a request for a tree.
        let (DraftShape::Chain { length } | DraftShape::ConfidentChain { length, .. }) =
            *context.shape
        else {
            return Ok(Draft::empty());
        };
        let Role::Drafter(index) = self.role else { return Ok(Draft::empty()) };
        let &DraftContext { sequence, tokens, prompt_len, cancel, .. } = context;
        let job = Job::Draft {
            sequence,
            tokens: tokens.into(),
            prompt_len,
            sampling: context.sampling.clone(),
            shape: DraftShape::Chain { length },
            feedback: context.feedback.clone(),
        };
        self.wait(&job, cancel)?;
        let chain = self.oracle.draft(index, Prefix { tokens, prompt_len }, length);
        let draft = Draft::deterministic(TokenTree::chain(&chain));
        self.cache.record(
            &self.device.cost,
            self.role,
            job,
            Some(&JobOutput::Draft(draft.clone())),
        );
        Ok(draft)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.cache.release(sequence);
    }
}

impl LanguageModel for SleepingModel {
    fn vocab_size(&self) -> usize {
        VOCABULARY
    }

    fn context_length(&self) -> usize {
        usize::MAX
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        for entry in batch.iter_mut().filter(|entry| !entry.is_complete()) {
            let result = self.answer(&entry.request);
            entry.complete(result);
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.cache.release(sequence);
    }
}

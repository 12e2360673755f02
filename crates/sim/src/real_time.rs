//! The same simulation on real threads: forward passes are waits (DSI's paper measures so).
//!
//! The cluster is that of real models. What it takes over virtual time is what threads, queues and
//! verification cost.

use crate::answer::PROMPT;
use crate::device::Held;
use crate::oracle::{Player, VOCABULARY};
use crate::{Cancellation, Device, SimError, Simulation};
use forerun_core::trace::Trace;
use forerun_core::{
    Draft, DraftShape, Job, JobOutput, Proposal, Role, Sampling, Scores, SequenceId,
    TargetFeedback, TokenTree,
};
use forerun_decode::Statistics;
use forerun_draft::{DraftContext, Drafter};
use forerun_model::{LanguageModel, Logits, LogitsContext, ModelError};
use forerun_runtime::{Engine, Runtime, WorkerSpec};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What came of waits on threads.
#[derive(Clone, Debug)]
pub struct WaitedAnswer {
    /// Nanoseconds until the last token, measured.
    pub total_ns: u64,
    /// What was counted.
    pub statistics: Statistics,
    /// What ran when.
    pub trace: Trace,
}

impl Simulation {
    /// Decodes on threads, one for each device, in which passes are waits.
    ///
    /// # Errors
    /// If an option is out of range, links or faults are asked for, or a thread cannot start.
    pub fn run_in_real_time(&self) -> Result<WaitedAnswer, SimError> {
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
        let statistics = self.generate(&mut cluster)?;
        let total_ns = started.elapsed().as_nanos() as u64;
        Ok(WaitedAnswer { total_ns, statistics, trace: runtime.take_trace() })
    }

    fn worker(&self, device: Device) -> WorkerSpec {
        let (oracle, cancellation) = (self.oracle(), self.cancellation);
        let (name, roles) = (device.name.clone(), device.roles.clone());
        let engine = move || {
            let model = |role| WaitingModel {
                device: device.clone(),
                role,
                held: Held::default(),
                player: Player::new(oracle.clone()),
                cancellation,
            };
            device.roles.iter().fold(Engine::new(), |engine, &role| match role {
                Role::Drafter(index) => engine.with_drafter(index, model(role)),
                Role::Target(index) => engine.with_target(index, model(role)),
            })
        };
        // Threads that wait need no cores of their own.
        WorkerSpec { name, cores: Vec::new(), roles, build: Box::new(move |_| Ok(engine())) }
    }
}

/// A drafter or a target that waits instead of computing.
struct WaitingModel {
    device: Device,
    role: Role,
    held: Held,
    player: Player,
    cancellation: Cancellation,
}

impl WaitingModel {
    /// Waits for the passes of a job.
    fn wait(&self, job: &Job, cancel: &AtomicBool) -> Result<(), ModelError> {
        let started = Instant::now();
        let passes = self.held.passes(&self.device.cost, self.role, job);
        let total_ns = passes.total_ns();
        let mut at_ns = 0;
        while at_ns < total_ns {
            // Where a job may end early is where it looks.
            at_ns = match self.cancellation {
                Cancellation::RunToEnd => total_ns,
                Cancellation::Layer => passes.layer_end(at_ns + 1).clamp(at_ns + 1, total_ns),
                Cancellation::Immediate => (at_ns + LOOK_NS).min(total_ns),
            };
            let moment = started + Duration::from_nanos(at_ns);
            if at_ns < total_ns {
                // A look need not be punctual: threads that spun here would take each other's cores.
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

/// How often a wait that may end at any moment looks whether it should.
const LOOK_NS: u64 = 250_000;
/// What a sleep may last longer than it should; the rest of a wait is spun.
const OVERSLEPT: Duration = Duration::from_micros(150);

/// Sleeps most of the time, and spins the rest.
fn wait_until(moment: Instant) {
    let left = moment.saturating_duration_since(Instant::now());
    if let Some(sleep) = left.checked_sub(OVERSLEPT) {
        std::thread::sleep(sleep);
    }
    while Instant::now() < moment {
        std::hint::spin_loop();
    }
}

impl Drafter for WaitingModel {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        // No chain, no draft: fewer candidates are always an answer.
        let DraftShape::Chain { length } = *context.shape else { return Ok(Draft::empty()) };
        let Role::Drafter(index) = self.role else { return Ok(Draft::empty()) };
        let &DraftContext { sequence, tokens, prompt_len, cancel, .. } = context;
        let job = Job::Draft {
            sequence,
            tokens: tokens.into(),
            prompt_len,
            sampling: context.sampling.clone(),
            shape: DraftShape::Chain { length },
            feedback: TargetFeedback::default(),
        };
        self.wait(&job, cancel)?;
        let chain = self.player.draft(index, tokens, prompt_len, length);
        let draft = Draft { tree: TokenTree::chain(&chain), proposal: Proposal::Deterministic };
        self.held.keep(self.role, job, Some(&JobOutput::Draft(draft.clone())));
        Ok(draft)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.held.release(sequence);
    }
}

impl LanguageModel for WaitingModel {
    fn vocab_size(&self) -> usize {
        VOCABULARY
    }

    fn context_length(&self) -> usize {
        usize::MAX
    }

    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError> {
        let LogitsContext { sequence, tokens, tree, first_row, cancel } = *context;
        let job = Job::Score {
            sequence,
            tokens: tokens.into(),
            prompt_len: PROMPT,
            tree: tree.clone(),
            sampling: Sampling::greedy(),
            logprobs: None,
            features_from: None,
        };
        self.wait(&job, cancel)?;
        let rows = self.player.rows(tokens, tree);
        self.held.keep(self.role, job, Some(&JobOutput::Score(Scores::default())));
        let mut values = vec![0.0; (rows.len() - first_row) * VOCABULARY];
        for (row, token) in values.chunks_exact_mut(VOCABULARY).zip(&rows[first_row..]) {
            row[*token as usize] = 1.0;
        }
        Ok(Logits { values, vocab_size: VOCABULARY, computed_tokens: tree.len() + 1 })
    }

    fn release(&mut self, sequence: SequenceId) {
        self.held.release(sequence);
    }
}

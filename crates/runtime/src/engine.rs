//! The models and drafters that a worker has loaded, and the execution of jobs.

use crate::pending_job::PendingJob;
use crate::prompt_parts::{PassPart, PromptParts};
use crate::shared_device::{DeviceLease, DeviceUseLog, SharedDevice};
use crate::timed::{ForwardLog, TimedModel};
use forerun_core::{
    CompileConstraint, Draft, Job, JobError, JobOutput, Key, KeyedRandomness, Randomness, Role,
    RowLogprobs, RowUse, Sampler, Sampling, ScoreJob, Scores, SequenceId, node_of_row,
};
use forerun_draft::{DraftContext, Drafter, draft_with_forced_tokens};
use forerun_lm::{BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, ModelError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Converts a model's error to the job's error, which includes the worker's name.
pub(crate) fn job_error(error: &ModelError, job: &Job, worker: &str) -> JobError {
    let message = match (error, job) {
        (ModelError::Cancelled, _) => return JobError::Cancelled,
        // A worker may have both models.
        (ModelError::CacheRange { .. }, Job::Draft { .. }) => format!("the drafter's {error}"),
        (ModelError::CacheRange { .. }, Job::Score(_)) => format!("the target's {error}"),
        _ => error.to_string(),
    };
    JobError::Failed { worker: worker.to_owned(), message }
}

/// The random draws of one of several drafters.
///
/// The candidates of all drafters for one position are tested one after another, so each drafter
/// needs its own draws.
struct DrafterRandomness<'a> {
    randomness: &'a dyn Randomness,
    index: usize,
}

/// Number of bits for the candidates of one drafter at a position.
const DRAFTER_BITS: u32 = 16;

impl Randomness for DrafterRandomness<'_> {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        let candidate = key.candidate | (self.index as u32) << DRAFTER_BITS;
        self.randomness.locate(Key { candidate, ..key }, thresholds)
    }
}

/// The drafters and target replicas of one worker, by the index of their role.
#[derive(Default)]
pub struct Engine {
    drafters: BTreeMap<usize, Box<dyn Drafter>>,
    targets: BTreeMap<usize, Box<dyn LanguageModel>>,
    prompt_parts: BTreeMap<usize, PromptParts>,
    constraints: Option<Arc<dyn CompileConstraint>>,
    vocab_size: Option<usize>,
    forwards: ForwardLog,
    device_uses: DeviceUseLog,
}

impl Engine {
    /// Creates an engine without drafters and targets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the engine with `drafter` in the role `Role::Drafter(index)`.
    #[must_use]
    pub fn with_drafter(mut self, index: usize, drafter: impl Drafter + 'static) -> Self {
        self.drafters.insert(index, Box::new(drafter));
        self
    }

    /// Returns the engine with `model` in the role `Role::Target(index)`.
    #[must_use]
    pub fn with_target(mut self, index: usize, model: impl LanguageModel + 'static) -> Self {
        self.targets.insert(index, Box::new(model));
        self
    }

    /// Returns the engine with a compiler for constraints that arrive from another process.
    #[must_use]
    pub fn with_constraint_compiler(mut self, compiler: Arc<dyn CompileConstraint>) -> Self {
        self.constraints = Some(compiler);
        self
    }

    /// Returns the engine for targets with this many tokens. A draft with any other fails.
    #[must_use]
    pub fn with_vocab_size(mut self, vocab_size: usize) -> Self {
        self.vocab_size = Some(vocab_size);
        self
    }

    /// Wraps a model so that its forward passes appear in the trace of this engine's jobs.
    #[must_use]
    pub fn timed<M>(&self, model: M) -> TimedModel<M> {
        TimedModel::new(model, self.forwards.clone())
    }

    /// Creates a lease of a device that several workers share, for a model of this engine.
    #[must_use]
    pub fn lease(&self, device: &Arc<SharedDevice>) -> DeviceLease {
        DeviceLease::new(device, self.device_uses.clone())
    }

    /// Returns the logs of forward passes and of the uses of shared devices.
    pub(crate) fn logs(&self) -> (ForwardLog, DeviceUseLog) {
        (self.forwards.clone(), self.device_uses.clone())
    }

    /// Returns whether the engine has a drafter or target for a role.
    #[must_use]
    pub fn has_role(&self, role: Role) -> bool {
        match role {
            Role::Drafter(index) => self.drafters.contains_key(&index),
            Role::Target(index) => self.targets.contains_key(&index),
        }
    }

    /// Runs a job. A drafter's draws come from `randomness`.
    ///
    /// # Errors
    /// [`ModelError`] if the model fails, or if `cancel` is set.
    ///
    /// # Panics
    /// If the engine does not have the role, or the job does not fit the role, such as a score job
    /// for a drafter. Both are programming errors.
    pub fn execute(
        &mut self,
        role: Role,
        job: &Job,
        randomness: &dyn Randomness,
        cancel: &AtomicBool,
    ) -> Result<JobOutput, ModelError> {
        self.compile_constraint(job);
        match role {
            Role::Drafter(index) => {
                let randomness = DrafterRandomness { randomness, index };
                let context = draft_context(job, &randomness, cancel);
                let mut drafted = Ok(Draft::empty());
                self.draft_checked(index, &[context], &mut |_, draft| drafted = draft);
                drafted.map(JobOutput::Draft)
            }
            Role::Target(index) => {
                let model = self.targets.get_mut(&index).expect("a target of this index");
                let job = score_job(job);
                let output = model.logits(&forward_request(job, model.vocab_size(), cancel))?;
                scores(job, output).map(JobOutput::Score)
            }
        }
    }

    /// Runs draft jobs of different sequences together, and calls `done` with the index and the
    /// draft of each as soon as it is ready.
    ///
    /// # Panics
    /// As [`Engine::execute`].
    pub(crate) fn draft(
        &mut self,
        index: usize,
        jobs: &[(&Job, &AtomicBool)],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        jobs.iter().for_each(|(job, _)| self.compile_constraint(job));
        let randomness: Vec<_> = jobs
            .iter()
            .map(|(job, _)| DrafterRandomness { randomness: randomness_of(job), index })
            .collect();
        let contexts = jobs.iter().zip(&randomness);
        let contexts =
            contexts.map(|((job, cancel), randomness)| draft_context(job, randomness, cancel));
        let contexts: Vec<_> = contexts.collect();
        self.draft_checked(index, &contexts, done);
    }

    /// Has a drafter draft. Tokens that the target does not have are the drafter's failure.
    fn draft_checked(
        &mut self,
        index: usize,
        contexts: &[DraftContext<'_>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        let drafter = self.drafters.get_mut(&index).expect("a drafter of this index");
        let vocab_size = self.vocab_size.unwrap_or(usize::MAX);
        let check = |draft: Draft| {
            let mut tokens = draft.tree.tokens().iter();
            match tokens.find(|&&token| token as usize >= vocab_size) {
                Some(&token) => Err(ModelError::Token { token, vocab_size }),
                None => Ok(draft),
            }
        };
        draft_with_forced_tokens(drafter, contexts, &mut |number, draft| {
            done(number, draft.and_then(check));
        });
    }

    /// Runs one forward pass for score jobs of different sequences. Returns the outputs of those
    /// that are complete.
    ///
    /// # Panics
    /// As [`Engine::execute`].
    pub(crate) fn score_pass(
        &mut self,
        index: usize,
        jobs: &mut [PendingJob],
    ) -> Vec<Option<Result<JobOutput, ModelError>>> {
        jobs.iter().for_each(|pending| self.compile_constraint(&pending.job));
        let model = self.targets.get_mut(&index).expect("a target of this index");
        let parts = self.prompt_parts.entry(index).or_default();
        let vocab_size = model.vocab_size();
        let batch = jobs.iter_mut().map(|PendingJob { job, cancel, progress, .. }| {
            progress.prompt_tokens = parts.most(job.sequence());
            let request = forward_request(score_job(job), vocab_size, cancel);
            BatchEntry { request, progress }
        });
        let mut batch: Vec<_> = batch.collect();
        let before: Vec<usize> = batch.iter().map(BatchEntry::computed_tokens).collect();
        let started = Instant::now();
        model.forward(&mut batch);
        let ns = started.elapsed().as_nanos() as f64;
        let computed = batch.iter().zip(before).map(|(entry, before)| PassPart {
            sequence: entry.request.sequence,
            tokens: entry.computed_tokens().saturating_sub(before),
            is_complete: entry.is_complete(),
        });
        parts.add(&computed.collect::<Vec<_>>(), ns);
        let output = |PendingJob { job, progress, .. }: &mut PendingJob| {
            let result = progress.result.take()?;
            Some(result.and_then(|output| scores(score_job(job), output)).map(JobOutput::Score))
        };
        jobs.iter_mut().map(output).collect()
    }

    /// Compiles a job's constraint, unless it is compiled already.
    fn compile_constraint(&self, job: &Job) {
        if let Some(constraint) = &sampling_of(job).constraint {
            constraint.compile_with(self.constraints.as_deref());
        }
    }

    /// Frees the state of a sequence.
    pub fn release(&mut self, sequence: SequenceId) {
        self.drafters.values_mut().for_each(|drafter| drafter.release(sequence));
        self.targets.values_mut().for_each(|model| model.release(sequence));
        self.prompt_parts.values_mut().for_each(|parts| parts.release(sequence));
    }
}

/// Returns the sampling options of a job's request.
fn sampling_of(job: &Job) -> &Sampling {
    match job {
        Job::Draft { sampling, .. } | Job::Score(ScoreJob { sampling, .. }) => sampling,
    }
}

pub(crate) fn randomness_of(job: &Job) -> &KeyedRandomness {
    &sampling_of(job).randomness
}

fn draft_context<'a>(
    job: &'a Job,
    randomness: &'a dyn Randomness,
    cancel: &'a AtomicBool,
) -> DraftContext<'a> {
    let Job::Draft { sequence, tokens, prompt_len, sampling, shape, feedback } = job else {
        panic!("a drafter received a job for a target");
    };
    DraftContext {
        sequence: *sequence,
        tokens,
        prompt_len: *prompt_len,
        sampling,
        randomness,
        shape,
        feedback,
        cancel,
        tokens_on_last_device: None,
    }
}

fn score_job(job: &Job) -> &ScoreJob {
    let Job::Score(job) = job else { panic!("a target received a job for a drafter") };
    job
}

fn forward_request<'a>(
    job: &'a ScoreJob,
    vocab_size: usize,
    cancel: &'a AtomicBool,
) -> ForwardRequest<'a> {
    let ScoreJob { sequence, tokens, tree, features_from, .. } = job;
    let request = ForwardRequest::new(*sequence, tokens, tree);
    // Log-probabilities are shares of all tokens.
    let rows_for = match job.logprobs {
        Some(_) => RowUse::Full,
        None => job.sampling.row_use(vocab_size),
    };
    let adapter = job.sampling.adapter;
    ForwardRequest { rows_for, adapter, features_from: *features_from, cancel, ..request }
}

/// Converts the model's output to distributions of the token after the prefix and after each node.
///
/// # Errors
/// [`ModelError::Sampling`] if the logits cannot be sampled from, [`ModelError::NoFeatures`] if the
/// output has no features although the job asks for them.
fn scores(job: &ScoreJob, output: ForwardOutput) -> Result<Scores, ModelError> {
    let sampler = Sampler::new(&job.sampling, &job.tokens, job.prompt_len);
    let mut scores =
        Scores { rows: Vec::new(), logprobs: job.logprobs.map(|_| Vec::new()), features: None };
    for (row, logits) in output.rows_for_sampling(usize::MAX).enumerate() {
        let at = node_of_row(row);
        let distribution = sampler.distribution(logits, &job.tree, at)?;
        if let (Some(logprobs), Some(top)) = (&mut scores.logprobs, job.logprobs) {
            let position = job.tokens.len() + at.map_or(0, |node| job.tree.depth(node));
            logprobs.push(RowLogprobs::new(logits, &distribution, top, position)?);
        }
        scores.rows.push(distribution);
    }
    scores.features = output.features;
    match job.features_from.is_some() && scores.features.is_none() {
        true => Err(ModelError::NoFeatures),
        false => Ok(scores),
    }
}

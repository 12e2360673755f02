//! The models and drafters that a worker has loaded, and the execution of one job.

use crate::shared_device::{DeviceLease, DeviceUseLog, DeviceUseTiming, SharedDevice};
use crate::timed::{ForwardLog, ForwardTiming, TimedModel};
use forerun_core::{Job, JobError, JobOutput, Key, Randomness, Role, SequenceId};
use forerun_draft::{DraftContext, Drafter};
use forerun_model::{LanguageModel, ModelError, ScoreContext, score};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Converts a model's error to the job's error, which includes the worker's name.
pub(crate) fn job_error(error: ModelError, worker: &str) -> JobError {
    match error {
        ModelError::Cancelled => JobError::Cancelled,
        error => JobError::Failed { worker: worker.to_owned(), message: error.to_string() },
    }
}

/// The random draws of one of several drafters.
///
/// The candidates of all drafters for one position are tested one after another, so each drafter needs
/// its own draws.
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

    /// Removes and returns the uses of shared devices since the last call.
    pub(crate) fn take_device_uses(&self) -> Vec<DeviceUseTiming> {
        self.device_uses.take()
    }

    /// Removes and returns the forward passes since the last call.
    pub(crate) fn take_forwards(&self) -> Vec<ForwardTiming> {
        self.forwards.take()
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
    /// If the engine does not have the role, or the job does not fit the role, such as a score job for a
    /// drafter. Both are programming errors.
    pub fn execute(
        &mut self,
        role: Role,
        job: &Job,
        randomness: &dyn Randomness,
        cancel: &AtomicBool,
    ) -> Result<JobOutput, ModelError> {
        match (role, job) {
            (
                Role::Drafter(index),
                Job::Draft { sequence, tokens, prompt_len, sampling, shape, feedback },
            ) => {
                let drafter = self.drafters.get_mut(&index).expect("a drafter of this index");
                let context = DraftContext {
                    sequence: *sequence,
                    tokens,
                    prompt_len: *prompt_len,
                    sampling,
                    randomness: &DrafterRandomness { randomness, index },
                    shape,
                    feedback,
                    cancel,
                };
                drafter.draft(&context).map(JobOutput::Draft)
            }
            (
                Role::Target(index),
                Job::Score {
                    sequence,
                    tokens,
                    prompt_len,
                    tree,
                    sampling,
                    logprobs,
                    features_from,
                },
            ) => {
                let model = self.targets.get_mut(&index).expect("a target of this index");
                let context = ScoreContext {
                    sequence: *sequence,
                    tokens,
                    prompt_len: *prompt_len,
                    tree,
                    sampling,
                    logprobs: *logprobs,
                    features_from: *features_from,
                    cancel,
                };
                score(&mut **model, &context).map(JobOutput::Score)
            }
            (role, _) => panic!("{role:?} received a job for another kind of role"),
        }
    }

    /// Frees the state of a sequence.
    pub fn release(&mut self, sequence: SequenceId) {
        self.drafters.values_mut().for_each(|drafter| drafter.release(sequence));
        self.targets.values_mut().for_each(|model| model.release(sequence));
    }
}

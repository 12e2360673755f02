//! What a device group has loaded, and how it runs one job.

use crate::shared_device::{DeviceLease, DeviceVisit, SharedDevice, VisitLog};
use crate::timed::{ForwardLog, ForwardTiming, Timed};
use forerun_core::{Job, JobError, JobOutput, Key, Randomness, Role, SequenceId};
use forerun_draft::{DraftContext, Drafter};
use forerun_model::{LanguageModel, ModelError, ScoreContext, score};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A model's error as the job's, told with the worker's name.
pub(crate) fn job_error(error: ModelError, worker: &str) -> JobError {
    match error {
        ModelError::Cancelled => JobError::Cancelled,
        error => JobError::Failed { worker: worker.to_owned(), message: error.to_string() },
    }
}

/// The draws of one of several drafters. What they draw for one position is tested in turn, so each must
/// draw for itself.
struct OfDrafter<'a> {
    randomness: &'a dyn Randomness,
    index: usize,
}

/// Candidates of a position that one drafter may have, as a power of two.
const DRAFTER_BITS: u32 = 16;

impl Randomness for OfDrafter<'_> {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        let candidate = key.candidate | (self.index as u32) << DRAFTER_BITS;
        self.randomness.locate(Key { candidate, ..key }, thresholds)
    }
}

/// The drafters and target replicas of one device group, by their index among all.
#[derive(Default)]
pub struct Engine {
    drafters: BTreeMap<usize, Box<dyn Drafter>>,
    targets: BTreeMap<usize, Box<dyn LanguageModel>>,
    forwards: ForwardLog,
    visits: VisitLog,
}

impl Engine {
    /// Nothing loaded.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Has `drafter` play `Role::Drafter(index)`.
    #[must_use]
    pub fn with_drafter(mut self, index: usize, drafter: impl Drafter + 'static) -> Self {
        self.drafters.insert(index, Box::new(drafter));
        self
    }

    /// Has `model` play `Role::Target(index)`.
    #[must_use]
    pub fn with_target(mut self, index: usize, model: impl LanguageModel + 'static) -> Self {
        self.targets.insert(index, Box::new(model));
        self
    }

    /// A model whose forward passes the trace of this engine's jobs shows.
    #[must_use]
    pub fn timed<M>(&self, model: M) -> Timed<M> {
        Timed::new(model, self.forwards.clone())
    }

    /// A seat on a device that other workers have in turn, for a model of this engine.
    #[must_use]
    pub fn lease(&self, device: &Arc<SharedDevice>) -> DeviceLease {
        DeviceLease::new(device, self.visits.clone())
    }

    /// The visits of shared devices since the last call.
    pub(crate) fn take_visits(&self) -> Vec<DeviceVisit> {
        self.visits.take()
    }

    /// The forward passes since the last call.
    pub(crate) fn take_forwards(&self) -> Vec<ForwardTiming> {
        self.forwards.take()
    }

    /// Whether something plays a role.
    #[must_use]
    pub fn plays(&self, role: Role) -> bool {
        match role {
            Role::Drafter(index) => self.drafters.contains_key(&index),
            Role::Target(index) => self.targets.contains_key(&index),
        }
    }

    /// Runs a job. A drafter's draws come from `randomness`.
    ///
    /// # Errors
    /// If the model fails or `cancel` is set.
    ///
    /// # Panics
    /// If nothing here plays the role, or a drafter is asked to score: a programming error.
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
                    randomness: &OfDrafter { randomness, index },
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
            (role, _) => panic!("{role:?} was given another role's job"),
        }
    }

    /// Forgets a sequence.
    pub fn release(&mut self, sequence: SequenceId) {
        self.drafters.values_mut().for_each(|drafter| drafter.release(sequence));
        self.targets.values_mut().for_each(|model| model.release(sequence));
    }
}

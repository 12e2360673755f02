//! Training: batches in, checkpoints and a log out. It is the only loop, whatever learns.

use crate::checkpoint::{self, CheckpointError, State};
use crate::data::{Batches, Dataset, Validation, ValidationWindow, bits_per_byte};
use crate::drafter::{DrafterLearner, DrafterOptions, Target};
use crate::language::LanguageLearner;
use crate::learner::{Learner, Tested};
use crate::metrics::{AcceptanceRecord, EvaluationRecord, MetricsLog, Record, TrainingRecord};
use crate::model::{Llama, ModelError};
use crate::optimizer::AdamW;
use crate::options::{TrainError, TrainOptions};
use crate::plot::{plot_acceptance, plot_losses};
use forerun_model::checkpoint::{Checkpoint, Dtype};
use serde::Serialize;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Seconds over which the speed is told.
const SPEED_WINDOW: f64 = 20.0;

/// What a run tells while it goes.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step is done.
    Step(TrainingRecord),
    /// Held-out text was predicted.
    Evaluated(EvaluationRecord),
    /// A drafter drafted on held-out text.
    Drafted(AcceptanceRecord),
    /// A checkpoint was written.
    Saved(PathBuf),
}

/// A run in a folder: `checkpoints/`, `log.jsonl` and `loss.svg`, and `acceptance.svg` of a drafter.
pub struct Trainer<'a, L> {
    learner: L,
    optimizer: AdamW,
    dataset: &'a Dataset,
    windows: Vec<ValidationWindow>,
    folder: PathBuf,
    log: MetricsLog,
    state: State<TrainOptions>,
}

impl<'a> Trainer<'a, LanguageLearner<'a>> {
    /// A run of a language model in `folder`: where it stopped, if it was begun there; otherwise with
    /// what `begin` gives.
    ///
    /// # Errors
    /// If the folder holds another run, files cannot be used, or the model and the data do not go
    /// together.
    pub fn open(
        folder: &Path,
        dataset: &'a Dataset,
        tokenizer: &Path,
        teacher: Option<&'a Llama>,
        options: TrainOptions,
        begin: impl FnOnce() -> Result<Llama, ModelError>,
    ) -> Result<Self, TrainError> {
        dataset.check_tokenizer(tokenizer)?;
        Self::open_learner(folder, dataset, options, |from| {
            let model = match from {
                Some(path) => Llama::load(&Checkpoint::open(path).map_err(ModelError::from)?)?,
                None => begin()?,
            };
            Ok(LanguageLearner::new(model, teacher, tokenizer)?)
        })
    }

    /// The model as it stands.
    #[must_use]
    pub fn model(&self) -> &Llama {
        &self.learner.model
    }
}

impl<'a> Trainer<'a, DrafterLearner<'a>> {
    /// A run of a drafter in `folder`: where it stopped, if it was begun there. `tokenizer` is the
    /// target's.
    ///
    /// # Errors
    /// If the folder holds another run, files cannot be used, or the target and the data do not go
    /// together.
    pub fn open_drafter(
        folder: &Path,
        dataset: &'a Dataset,
        tokenizer: &Path,
        target: &'a Target,
        options: TrainOptions,
        drafter: DrafterOptions,
    ) -> Result<Self, TrainError> {
        dataset.check_tokenizer(tokenizer)?;
        let seed = options.seed;
        Self::open_learner(folder, dataset, options, |from| match from {
            Some(path) => Ok(DrafterLearner::load(target, drafter, path)?),
            None => Ok(DrafterLearner::random(target, drafter, seed)?),
        })
    }
}

impl<'a, L: Learner> Trainer<'a, L> {
    /// A run in `folder`; `begin` gives what learns, from a folder that it wrote if the run was begun
    /// before.
    fn open_learner(
        folder: &Path,
        dataset: &'a Dataset,
        options: TrainOptions,
        begin: impl FnOnce(Option<&Path>) -> Result<L, TrainError>,
    ) -> Result<Self, TrainError> {
        let newest = checkpoint::newest(&folder.join("checkpoints"))?;
        let begun: Option<State<TrainOptions>> =
            newest.as_deref().map(checkpoint::state).transpose()?;
        let other = |difference| TrainError::OtherRun { folder: folder.to_owned(), difference };
        if let Some(state) = begun.as_ref().filter(|state| state.options != options) {
            return Err(other(difference(&state.options, &options)));
        }
        let learner = begin(newest.as_deref())?;
        let description = learner.description();
        let state = match begun {
            Some(state) if state.learner != description => {
                return Err(other(difference(&state.learner, &description)));
            }
            Some(state) => state,
            None => State { options, learner: description, step: 0, tokens: 0, elapsed_s: 0.0 },
        };
        let options = &state.options;
        options.check()?;
        learner.check(options, dataset)?;
        let mut optimizer = AdamW::new(options.optimizer, learner.parameters());
        let log_file = folder.join("log.jsonl");
        let log = match &newest {
            Some(path) => {
                checkpoint::restore(path, state.step, &mut optimizer)?;
                MetricsLog::resume(&log_file, state.step)?
            }
            None => {
                std::fs::create_dir_all(folder)
                    .map_err(|cause| CheckpointError::File { path: folder.to_owned(), cause })?;
                MetricsLog::create(&log_file)?
            }
        };
        let windows = if options.evaluation_tokens == 0 {
            Vec::new()
        } else {
            Validation::windows(dataset, options.context, options.evaluation_tokens)?
        };
        let folder = folder.to_owned();
        Ok(Self { learner, optimizer, dataset, windows, folder, log, state })
    }

    /// What learns, as it stands.
    #[must_use]
    pub fn learner(&self) -> &L {
        &self.learner
    }

    /// Steps that are done.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.state.step
    }

    /// Tokens that were learnt from.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.state.tokens
    }

    /// Trains until the last step, or until `on_event` breaks it off; then a checkpoint is written,
    /// and the run can go on from there. Returns whether it is done.
    ///
    /// # Errors
    /// If the loss is no longer a number, or files cannot be written.
    pub fn run(
        &mut self,
        on_event: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<bool, TrainError> {
        let options = self.state.options.clone();
        let dataset = self.dataset;
        let batches = Batches::new(dataset, options.sequences, options.context, options.seed)?;
        let began = Instant::now();
        let elapsed_before = self.state.elapsed_s;
        let (mut marked_s, mut marked_tokens) = (0.0, self.state.tokens);
        let mut tokens_per_s = 0.0;
        while self.state.step < options.schedule.steps {
            let (loss, gradient_norm, learning_rate) = self.learn(&batches)?;
            let now_s = began.elapsed().as_secs_f64();
            self.state.elapsed_s = elapsed_before + now_s;
            if now_s - marked_s > SPEED_WINDOW || tokens_per_s == 0.0 {
                tokens_per_s = (self.state.tokens - marked_tokens) as f64 / (now_s - marked_s);
                (marked_s, marked_tokens) = (now_s, self.state.tokens);
            }
            let record = TrainingRecord {
                step: self.state.step,
                tokens: self.state.tokens,
                loss,
                learning_rate,
                gradient_norm,
                tokens_per_s,
                elapsed_s: self.state.elapsed_s,
            };
            self.log.write(&Record::Training(record))?;
            let mut flow = on_event(&Event::Step(record));
            let step = self.state.step;
            let last = step >= options.schedule.steps;
            let is_time = |every: u64| last || (every > 0 && step.is_multiple_of(every));
            // The last test is part of the run even where it is broken off there.
            if is_time(options.evaluate_every) && (last || flow.is_continue()) {
                flow = self.test(on_event)?;
            }
            if is_time(options.save_every) || flow.is_break() {
                self.save(on_event)?;
            }
            if flow.is_break() {
                break;
            }
        }
        Ok(self.state.step >= options.schedule.steps)
    }

    /// One step; returns the loss, the gradients' norm and the learning rate.
    fn learn(&mut self, batches: &Batches<'_>) -> Result<(f64, f64, f64), TrainError> {
        let options = &self.state.options;
        let first = self.state.step * options.accumulation as u64;
        let mut gradients: Vec<Vec<f32>> = Vec::new();
        let mut loss = 0.0;
        for number in (first..).take(options.accumulation) {
            let (scalar, of_batch) = self.learner.loss(&batches.batch(number), number, options)?;
            loss += of_batch;
            let own = scalar.backward()?;
            for (place, parameter) in self.optimizer.parameters().iter().enumerate() {
                let Some(gradient) = own.get(&parameter.values) else {
                    let message = format!("{} has no gradient", parameter.name);
                    return Err(candle_core::Error::Msg(message).into());
                };
                let gradient = gradient.flatten_all()?.to_vec1::<f32>()?;
                match gradients.get_mut(place) {
                    Some(sum) => crate::ops::elementwise::add(sum, &gradient),
                    None => gradients.push(gradient),
                }
            }
        }
        if !loss.is_finite() {
            let folder = self.folder.join("checkpoints");
            return Err(TrainError::Diverged { step: self.state.step, loss, folder });
        }
        let rate = options.schedule.rate(self.state.step);
        let norm = self.optimizer.step(&gradients, rate as f32)?;
        self.state.step += 1;
        self.state.tokens += self.state.options.step_tokens() as u64;
        Ok((loss, norm, rate))
    }

    /// Tries held-out text and tells the result, unless none is wanted.
    fn test(
        &mut self,
        on_event: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TrainError> {
        let State { step, tokens, elapsed_s, ref options, .. } = self.state;
        let (record, event) = match self.learner.test(&self.windows, options)? {
            None => return Ok(ControlFlow::Continue(())),
            Some(Tested::Text { nll, targets, bytes }) => {
                let validation_loss = nll / targets as f64;
                let bits_per_byte = bits_per_byte(nll, bytes);
                let record =
                    EvaluationRecord { step, tokens, validation_loss, bits_per_byte, elapsed_s };
                (Record::Evaluation(record), Event::Evaluated(record))
            }
            Some(Tested::Drafts { loss, acceptance }) => {
                let validation_loss = loss;
                let record =
                    AcceptanceRecord { step, tokens, validation_loss, acceptance, elapsed_s };
                (Record::Acceptance(record.clone()), Event::Drafted(record))
            }
        };
        self.log.write(&record)?;
        Ok(on_event(&event))
    }

    fn save(
        &mut self,
        on_event: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), TrainError> {
        let folder = self.folder.join("checkpoints");
        let write = |folder: &Path| self.learner.write(folder, Dtype::F32);
        let path = checkpoint::save(&folder, write, &self.optimizer, &self.state)?;
        let name = self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = self.folder.join("log.jsonl");
        plot_losses(&log, &self.folder.join("loss.svg"), &name)?;
        plot_acceptance(&log, &self.folder.join("acceptance.svg"), &name)?;
        let _ = on_event(&Event::Saved(path));
        Ok(())
    }
}

/// The options in which two runs differ.
fn difference(a: &impl Serialize, b: &impl Serialize) -> String {
    let (a, b) = (serde_json::to_value(a), serde_json::to_value(b));
    differences(&a.unwrap_or_default(), &b.unwrap_or_default()).join("; ")
}

fn differences(a: &Value, b: &Value) -> Vec<String> {
    let (Value::Object(a), Value::Object(b)) = (a, b) else { return Vec::new() };
    let of_field = |(name, own): (&String, &Value)| match b.get(name) {
        Some(other) if own == other => Vec::new(),
        Some(other) if own.is_object() => differences(own, other),
        other => {
            let other = other.unwrap_or(&Value::Null);
            vec![format!("{name}: {own} there, {other} now")]
        }
    };
    a.iter().flat_map(of_field).collect()
}

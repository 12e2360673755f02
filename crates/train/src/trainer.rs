//! The training loop, for all kinds of models. It writes checkpoints, a log and plots.

use crate::checkpoint::{self, CheckpointError, RunState};
use crate::data::{Batches, Dataset, Validation, ValidationWindow, bits_per_byte};
use crate::drafter::{DrafterLearner, DrafterOptions, Target, most_frequent_tokens};
use crate::language::LanguageLearner;
use crate::learner::{Evaluation, Learner};
use crate::metrics::{AcceptanceRecord, EvaluationRecord, MetricsLog, Record, TrainingRecord};
use crate::model::{Llama, ModelError};
use crate::optimizer::Optimizer;
use crate::options::{TrainError, TrainOptions};
use crate::plot::{plot_acceptance, plot_losses};
use forerun_formats::checkpoint::{Checkpoint, Dtype};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Seconds over which the reported speed is averaged.
const SPEED_WINDOW: f64 = 20.0;

/// A progress report of a run.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step was completed.
    Step(TrainingRecord),
    /// A language model was evaluated on held-out text.
    TextEvaluated(EvaluationRecord),
    /// A drafter was evaluated on held-out text.
    DraftsEvaluated(AcceptanceRecord),
    /// A checkpoint was written to this folder.
    Saved(PathBuf),
}

/// A training run in a folder.
///
/// The folder contains `checkpoints/`, `log.jsonl`, `loss.svg` and, for a drafter,
/// `acceptance.svg`.
pub struct Trainer<'a, L> {
    learner: L,
    optimizer: Optimizer,
    dataset: &'a Dataset,
    windows: Vec<ValidationWindow>,
    folder: PathBuf,
    log: MetricsLog,
    state: RunState<TrainOptions>,
    damaged: Vec<TrainError>,
}

/// Where a run of a drafter is, and what it learns from.
#[derive(Clone, Copy)]
pub struct DrafterRun<'a> {
    /// The folder of the run.
    pub folder: &'a Path,
    /// The encoded text.
    pub dataset: &'a Dataset,
    /// The path of the target's `tokenizer.json`.
    pub tokenizer: &'a Path,
    /// The target.
    pub target: &'a Target,
    /// The folder of a drafter whose weights a new run starts with; `None` for random weights.
    pub init: Option<&'a Path>,
}

impl<'a> Trainer<'a, LanguageLearner<'a>> {
    /// Opens a run of a language model in `folder`. If the folder contains a checkpoint, resumes
    /// from it; otherwise starts with the model from `create`. `origin` is an object with
    /// everything that this model was made of; a run can be resumed only with the same.
    ///
    /// # Errors
    /// If the folder contains another run, a file cannot be read or written, or the model and the
    /// data do not fit each other.
    pub fn open(
        folder: &Path,
        dataset: &'a Dataset,
        tokenizer: &Path,
        teacher: Option<&'a Llama>,
        options: TrainOptions,
        origin: &Value,
        create: impl FnOnce() -> Result<Llama, ModelError>,
    ) -> Result<Self, TrainError> {
        dataset.check_tokenizer(tokenizer)?;
        let learner = |model| Ok(LanguageLearner::new(model, teacher, tokenizer, origin.clone())?);
        let load =
            |path: &Path| learner(Llama::load(&Checkpoint::open(path).map_err(ModelError::from)?)?);
        Self::open_learner(folder, dataset, options, load, || learner(create()?))
    }

    /// Returns the model in its current state.
    #[must_use]
    pub fn model(&self) -> &Llama {
        &self.learner.model
    }
}

impl<'a> Trainer<'a, DrafterLearner<'a>> {
    /// Opens a run of a drafter. If its folder contains a checkpoint, resumes from it.
    ///
    /// # Errors
    /// If the folder contains another run, a file cannot be read or written, or the target, the
    /// data and the drafter to start with do not fit each other.
    pub fn open_drafter(
        run: &DrafterRun<'a>,
        options: TrainOptions,
        drafter: DrafterOptions,
    ) -> Result<Self, TrainError> {
        let &DrafterRun { folder, dataset, tokenizer, target, init } = run;
        dataset.check_tokenizer(tokenizer)?;
        let seed = options.seed;
        let load = |path: &Path| Ok(DrafterLearner::load(target, drafter, path)?);
        let vocab_size = target.config().vocab_size;
        let vocabulary = |size| most_frequent_tokens(dataset, vocab_size, size);
        let create = || {
            let vocabulary = drafter.draft_vocab.map(vocabulary);
            match init {
                Some(init) => Ok(DrafterLearner::continued(target, drafter, vocabulary, init)?),
                None => Ok(DrafterLearner::random(target, drafter, vocabulary, seed)?),
            }
        };
        Self::open_learner(folder, dataset, options, load, create)
    }
}

impl<'a, L: Learner> Trainer<'a, L> {
    /// Opens a run in `folder`. `load` reads the learner from a checkpoint, and `create` makes a
    /// new one if there is no checkpoint. Damaged checkpoints are skipped if an older one can be
    /// read.
    fn open_learner(
        folder: &Path,
        dataset: &'a Dataset,
        options: TrainOptions,
        load: impl Fn(&Path) -> Result<L, TrainError>,
        create: impl FnOnce() -> Result<L, TrainError>,
    ) -> Result<Self, TrainError> {
        let mut damaged = Vec::new();
        let mut resumed = None;
        for checkpoint in checkpoint::newest_first(&folder.join("checkpoints"))? {
            match resume(folder, &checkpoint, &options, &load) {
                Ok(run) => resumed = Some(run),
                Err(error @ TrainError::OtherRun { .. }) => return Err(error),
                Err(error) => {
                    damaged.push(error);
                    continue;
                }
            }
            break;
        }
        let log_file = folder.join("log.jsonl");
        let (learner, optimizer, state, log) = match resumed {
            Some((learner, optimizer, state)) => {
                let log = MetricsLog::resume(&log_file, state.step)?;
                (learner, optimizer, state, log)
            }
            // Without any intact checkpoint, the reason of the newest one counts.
            None if !damaged.is_empty() => return Err(damaged.swap_remove(0)),
            None => {
                let learner = create()?;
                let description = learner.description();
                let optimizer = Optimizer::new(options.optimizer, learner.parameters());
                std::fs::create_dir_all(folder)
                    .map_err(|cause| CheckpointError::File { path: folder.to_owned(), cause })?;
                let state =
                    RunState { options, learner: description, step: 0, tokens: 0, elapsed_s: 0.0 };
                (learner, optimizer, state, MetricsLog::create(&log_file)?)
            }
        };
        let options = &state.options;
        options.check()?;
        learner.check(options, dataset)?;
        let windows = if options.evaluation_tokens == 0 {
            Vec::new()
        } else {
            Validation::windows(dataset, options.context, options.evaluation_tokens)?
        };
        let shortest = windows.iter().map(|window| window.inputs.len()).min();
        if let Some(found) = shortest.filter(|&found| found < learner.least_window()) {
            let least = learner.least_window();
            let expected = format!(
                "a draft requires at least {least}: give more held-out text, or do not evaluate \
                 (`evaluation_tokens = 0`)"
            );
            return TrainError::option("the number of held-out tokens", &found, &expected);
        }
        let folder = folder.to_owned();
        Ok(Self { learner, optimizer, dataset, windows, folder, log, state, damaged })
    }

    /// Returns the errors of newer checkpoints that were skipped, because they are damaged.
    #[must_use]
    pub fn damaged(&self) -> &[TrainError] {
        &self.damaged
    }

    /// Returns the learner in its current state.
    #[must_use]
    pub fn learner(&self) -> &L {
        &self.learner
    }

    /// Returns the number of completed steps.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.state.step
    }

    /// Returns the number of tokens trained on.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.state.tokens
    }

    /// Trains until the last step, or until `on_event` returns [`ControlFlow::Break`]. Then it
    /// writes a checkpoint, from which the run can be resumed. Returns whether the run is complete.
    ///
    /// # Errors
    /// If the loss becomes infinite or NaN, or a file cannot be written.
    pub fn run(
        &mut self,
        on_event: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<bool, TrainError> {
        let options = self.state.options.clone();
        let dataset = self.dataset;
        let batches = Batches::new(dataset, options.sequences, options.context, options.seed)?
            .with_same_windows(options.same_windows);
        let start = Instant::now();
        let elapsed_before = self.state.elapsed_s;
        let (mut marked_s, mut marked_tokens) = (0.0, self.state.tokens);
        let mut tokens_per_s = 0.0;
        while self.state.step < options.schedule.steps {
            let (loss, gradient_norm, learning_rate) = self.train_step(&batches)?;
            let now_s = start.elapsed().as_secs_f64();
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
            let is_due = |every: u64| last || (every > 0 && step.is_multiple_of(every));
            // The last evaluation is part of the run, even if the run is interrupted at the last
            // step.
            if is_due(options.evaluate_every) && (last || flow.is_continue()) {
                flow = self.evaluate(on_event)?;
            }
            if is_due(options.save_every) || flow.is_break() {
                self.save(on_event)?;
            }
            if flow.is_break() {
                break;
            }
        }
        Ok(self.state.step >= options.schedule.steps)
    }

    /// Trains for one step. Returns the loss, the norm of the gradients and the learning rate.
    fn train_step(&mut self, batches: &Batches<'_>) -> Result<(f64, f64, f64), TrainError> {
        let options = &self.state.options;
        let first = self.state.step * options.accumulation as u64;
        let mut gradients: Vec<Vec<f32>> = Vec::new();
        let mut loss = 0.0;
        for number in (first..).take(options.accumulation) {
            let (scalar, batch_loss) =
                self.learner.loss(&batches.batch(number), number, options)?;
            loss += batch_loss;
            let batch_gradients = scalar.backward()?;
            for (index, parameter) in self.optimizer.parameters().iter().enumerate() {
                let Some(gradient) = batch_gradients.get(&parameter.values) else {
                    let message = format!("{} has no gradient", parameter.name);
                    return Err(candle_core::Error::Msg(message).into());
                };
                let gradient = gradient.flatten_all()?.to_vec1::<f32>()?;
                match gradients.get_mut(index) {
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

    /// Evaluates the learner on held-out text and reports the result. Does nothing if evaluations
    /// are disabled.
    fn evaluate(
        &mut self,
        on_event: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TrainError> {
        let RunState { step, tokens, elapsed_s, ref options, .. } = self.state;
        let (record, event) = match self.learner.evaluate(&self.windows, options)? {
            None => return Ok(ControlFlow::Continue(())),
            Some(Evaluation::Text { nll, targets, bytes }) => {
                let validation_loss = nll / targets as f64;
                let bits_per_byte = bits_per_byte(nll, bytes);
                let record =
                    EvaluationRecord { step, tokens, validation_loss, bits_per_byte, elapsed_s };
                (Record::Evaluation(record), Event::TextEvaluated(record))
            }
            Some(Evaluation::Drafts { loss, acceptance }) => {
                let validation_loss = loss;
                let record =
                    AcceptanceRecord { step, tokens, validation_loss, acceptance, elapsed_s };
                (Record::Acceptance(record.clone()), Event::DraftsEvaluated(record))
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

/// Reads a run from a checkpoint. A run with other options is an error.
fn resume<L: Learner>(
    folder: &Path,
    checkpoint: &Path,
    options: &TrainOptions,
    load: impl Fn(&Path) -> Result<L, TrainError>,
) -> Result<(L, Optimizer, RunState<TrainOptions>), TrainError> {
    let other_run = |difference| TrainError::OtherRun { folder: folder.to_owned(), difference };
    let state: RunState<TrainOptions> = checkpoint::read_state(checkpoint)?;
    let mut differences = differences(&json(&state.options), &json(options));
    let learner = match load(checkpoint) {
        // Other options may be the reason why the checkpoint does not fit.
        Err(_) if !differences.is_empty() => return Err(other_run(differences.join("; "))),
        learner => learner?,
    };
    // Earlier versions stored no description of language models.
    if !state.learner.is_null() {
        differences.extend(self::differences(&state.learner, &learner.description()));
    }
    if !differences.is_empty() {
        return Err(other_run(differences.join("; ")));
    }
    let mut optimizer = Optimizer::new(options.optimizer, learner.parameters());
    checkpoint::restore_optimizer(checkpoint, state.step, &mut optimizer)?;
    Ok((learner, optimizer, state))
}

fn json(options: &TrainOptions) -> Value {
    serde_json::to_value(options).unwrap_or_default()
}

/// Describes the options in which a saved run differs from the current one.
fn differences(saved: &Value, current: &Value) -> Vec<String> {
    let (Value::Object(saved), Value::Object(current)) = (saved, current) else {
        return Vec::new();
    };
    let field_differences = |(name, before): (&String, &Value)| match current.get(name) {
        Some(now) if before == now => Vec::new(),
        Some(now) if before.is_object() => differences(before, now),
        now => {
            let now = now.unwrap_or(&Value::Null);
            vec![format!("{name} was {before}, is now {now}")]
        }
    };
    saved.iter().flat_map(field_differences).collect()
}

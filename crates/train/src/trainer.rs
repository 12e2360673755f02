//! Training of a language model: batches in, checkpoints and a log out.

use crate::checkpoint::{self, CheckpointError, State};
use crate::data::{
    Batch, Batches, DataError, Dataset, Validation, ValidationWindow, bits_per_byte,
};
use crate::metrics::{EvaluationRecord, MetricsError, MetricsLog, Record, TrainingRecord};
use crate::model::{Llama, ModelError};
use crate::ops::{LossParts, Targets, Teacher};
use crate::optimizer::{AdamW, AdamWOptions};
use crate::plot::{PlotError, plot_losses};
use crate::schedule::Schedule;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Seconds over which the speed is told.
const SPEED_WINDOW: f64 = 20.0;

/// How a model is trained. All of it is part of the run: it cannot be resumed with other options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainOptions {
    /// Tokens of a sequence.
    pub context: usize,
    /// Sequences that are computed at once.
    pub sequences: usize,
    /// Batches of these whose gradients make one step.
    pub accumulation: usize,
    /// Learning rates, and how many steps there are.
    pub schedule: Schedule,
    /// The optimizer's options.
    pub optimizer: AdamWOptions,
    /// Orders the batches.
    pub seed: u64,
    /// Steps between tests on held-out text; 0 tests at the end only.
    pub evaluate_every: u64,
    /// Held-out tokens of a test.
    pub evaluation_tokens: u64,
    /// Steps between checkpoints; 0 writes one at the end only.
    pub save_every: u64,
    /// The share α of the divergence from the teacher in the loss `α · KL + (1 − α) · NLL`; it counts
    /// where there is a teacher.
    pub distillation_share: f32,
}

impl TrainOptions {
    /// Tokens of a step.
    #[must_use]
    pub fn step_tokens(&self) -> usize {
        self.context * self.sequences * self.accumulation
    }
}

/// Why training ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// See [`DataError`].
    #[error(transparent)]
    Data(#[from] DataError),
    /// See [`ModelError`].
    #[error(transparent)]
    Model(#[from] ModelError),
    /// See [`CheckpointError`].
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// See [`MetricsError`].
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// See [`PlotError`].
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The library's complaint.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// An option out of range.
    #[error("{option} is {found}, but {expected}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A loss that is no number.
    #[error(
        "the loss of step {step} is {loss}: lower the learning rate, and go on from an older checkpoint \
         (remove the newest folder under {folder})"
    )]
    Diverged {
        /// The step.
        step: u64,
        /// Its loss.
        loss: f64,
        /// Where the checkpoints are.
        folder: PathBuf,
    },
    /// A run of other options.
    #[error(
        "{folder} holds a run of other options ({difference}): choose another folder, or the same options \
         to go on"
    )]
    OtherRun {
        /// The run's folder.
        folder: PathBuf,
        /// What differs.
        difference: String,
    },
}

/// What a run tells while it goes.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step is done.
    Step(TrainingRecord),
    /// Held-out text was predicted.
    Evaluated(EvaluationRecord),
    /// A checkpoint was written.
    Saved(PathBuf),
}

/// A run in a folder: `checkpoints/`, `log.jsonl` and `loss.svg`.
pub struct Trainer<'a> {
    model: Llama,
    /// A teacher and its head's weights.
    teacher: Option<(&'a Llama, Arc<[f32]>)>,
    optimizer: AdamW,
    dataset: &'a Dataset,
    tokenizer: PathBuf,
    windows: Vec<ValidationWindow>,
    folder: PathBuf,
    log: MetricsLog,
    state: State<TrainOptions>,
}

impl<'a> Trainer<'a> {
    /// A run in `folder`: where it stopped, if it was begun there; otherwise with what `begin` gives.
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
        let newest = checkpoint::newest(&folder.join("checkpoints"))?;
        let (model, state) = match &newest {
            Some(path) => {
                let state: State<TrainOptions> = checkpoint::state(path)?;
                if state.options != options {
                    let difference = difference(&state.options, &options);
                    return Err(TrainError::OtherRun { folder: folder.to_owned(), difference });
                }
                (checkpoint::model(path)?, state)
            }
            None => (begin()?, State { options, step: 0, tokens: 0, elapsed_s: 0.0 }),
        };
        let options = &state.options;
        check(options, &model, teacher, dataset)?;
        let mut optimizer = AdamW::new(options.optimizer, model.parameters());
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
        let with_head = |teacher: &'a Llama| {
            let head = teacher.head_weights().flatten_all()?.to_vec1::<f32>()?;
            candle_core::Result::Ok((teacher, head.into()))
        };
        Ok(Self {
            model,
            teacher: teacher.map(with_head).transpose()?,
            optimizer,
            dataset,
            tokenizer: tokenizer.to_owned(),
            windows,
            folder: folder.to_owned(),
            log,
            state,
        })
    }

    /// The model as it stands.
    #[must_use]
    pub fn model(&self) -> &Llama {
        &self.model
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
        for batch in (first..).take(options.accumulation).map(|step| batches.batch(step)) {
            let weight = 1.0 / options.step_tokens() as f32;
            let (scalar, parts) = self.loss(&batch, weight, true)?;
            loss += parts.loss;
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

    fn loss(
        &self,
        batch: &Batch,
        weight: f32,
        train: bool,
    ) -> Result<(candle_core::Tensor, LossParts), TrainError> {
        let teacher = match &self.teacher {
            Some((teacher, head)) => {
                let hidden = teacher.hidden(&batch.inputs, batch.context)?;
                Some(Teacher {
                    rows: teacher.normed(&hidden.detach())?.into(),
                    head: Arc::clone(head),
                    hidden: teacher.config().hidden_size,
                    share: self.state.options.distillation_share,
                })
            }
            None => None,
        };
        let hidden = self.model.hidden(&batch.inputs, batch.context)?;
        let weights: Arc<[f32]> = vec![weight; batch.targets.len()].into();
        let targets = Targets { tokens: batch.targets.clone().into(), weights, teacher };
        Ok(self.model.loss(&hidden, targets, train)?)
    }

    /// Predicts held-out text and tells the result, unless none is wanted.
    fn test(
        &mut self,
        on_event: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TrainError> {
        let Some((nll, bytes)) = evaluate(&self.model, &self.windows)? else {
            return Ok(ControlFlow::Continue(()));
        };
        let targets: usize = self.windows.iter().map(|window| window.targets.len()).sum();
        let record = EvaluationRecord {
            step: self.state.step,
            tokens: self.state.tokens,
            validation_loss: nll / targets as f64,
            bits_per_byte: bits_per_byte(nll, bytes),
            elapsed_s: self.state.elapsed_s,
        };
        self.log.write(&Record::Evaluation(record))?;
        Ok(on_event(&Event::Evaluated(record)))
    }

    fn save(
        &mut self,
        on_event: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), TrainError> {
        let folder = self.folder.join("checkpoints");
        let path =
            checkpoint::save(&folder, &self.model, &self.tokenizer, &self.optimizer, &self.state)?;
        let name = self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        plot_losses(&self.folder.join("log.jsonl"), &self.folder.join("loss.svg"), &name)?;
        let _ = on_event(&Event::Saved(path));
        Ok(())
    }
}

/// The negative logarithmic likelihood of the windows' targets, in nats, and their bytes of text;
/// `None` for no windows.
///
/// # Errors
/// Where the library fails.
pub fn evaluate(
    model: &Llama,
    windows: &[ValidationWindow],
) -> candle_core::Result<Option<(f64, u64)>> {
    /// Windows that are computed at once.
    const AT_ONCE: usize = 8;
    let mut sum: Option<(f64, u64)> = None;
    for windows in windows.chunks(AT_ONCE) {
        let inputs: Vec<u32> = windows.iter().flat_map(|window| window.inputs.clone()).collect();
        let tokens: Vec<u32> = windows.iter().flat_map(|window| window.targets.clone()).collect();
        let weights: Arc<[f32]> = vec![1.0; tokens.len()].into();
        let hidden = model.hidden(&inputs, windows[0].inputs.len())?.detach();
        let targets = Targets { tokens: tokens.into(), weights, teacher: None };
        let (_, parts) = model.loss(&hidden, targets, false)?;
        let bytes: u64 = windows.iter().map(|window| window.target_bytes).sum();
        let (nll, before) = sum.unwrap_or_default();
        sum = Some((nll + parts.nll, before + bytes));
    }
    Ok(sum)
}

/// Refuses options that cannot be followed.
fn check(
    options: &TrainOptions,
    model: &Llama,
    teacher: Option<&Llama>,
    dataset: &Dataset,
) -> Result<(), TrainError> {
    let refuse = |option, found: String, expected: String| {
        Err(TrainError::Option { option, found, expected })
    };
    for (option, size) in [("sequences", options.sequences), ("accumulation", options.accumulation)]
    {
        if size == 0 {
            return refuse(option, "0".into(), "at least 1 is needed".into());
        }
    }
    for model in [Some(model), teacher].into_iter().flatten() {
        let (vocab_size, seen) =
            (model.config().vocab_size, model.config().max_position_embeddings);
        if vocab_size < dataset.vocab_size() {
            let expected = format!("the data's tokenizer has {} tokens", dataset.vocab_size());
            return refuse("vocab_size", vocab_size.to_string(), expected);
        }
        if options.context == 0 || options.context > seen {
            let expected = format!("1 to {seen} tokens fit the model");
            return refuse("context", options.context.to_string(), expected);
        }
    }
    let share = options.distillation_share;
    if !(0.0..=1.0).contains(&share) {
        return refuse("distillation share", share.to_string(), "it goes from 0 to 1".into());
    }
    if let Some(teacher) = teacher
        && teacher.config().vocab_size != model.config().vocab_size
    {
        let expected = format!("the teacher has {}", teacher.config().vocab_size);
        return refuse("vocab_size", model.config().vocab_size.to_string(), expected);
    }
    Ok(())
}

/// The options in which two runs differ.
fn difference(a: &TrainOptions, b: &TrainOptions) -> String {
    let fields = |options: &TrainOptions| match serde_json::to_value(options) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::default(),
    };
    let (a, b) = (fields(a), fields(b));
    let of_field = |(name, own): (&String, &serde_json::Value)| {
        let other = b.get(name)?;
        (own != other).then(|| format!("{name}: {own} there, {other} now"))
    };
    a.iter().filter_map(of_field).collect::<Vec<_>>().join("; ")
}

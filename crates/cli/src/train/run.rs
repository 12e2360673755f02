//! The parts that the runs of all kinds of models have in common: text, options, interrupts.

use super::progress::{self, DataProgress};
use crate::arguments::{OptimizerName, StepArguments, TextArguments};
use crate::interrupts;
use crate::note;
use crate::progress::{Task, Unit};
use anyhow::{Context, anyhow, bail};
use forerun::Canceller;
use forerun::text::Tokenizer;
use forerun_formats::checkpoint::gguf::GgufFile;
use forerun_output::Lock;
use forerun_train::data::{Batches, DataError, Dataset, Framing, PrepareOptions, Split};
use forerun_train::{
    Learner, LearningRateSchedule, MatrixUpdate, OptimizerOptions, TrainOptions, Trainer,
};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Default share of the text to hold out: the least, and the most.
const HELD_OUT: [f64; 2] = [0.01, 0.1];

/// Bytes of text to hold out by default, if the share allows it.
const HELD_OUT_BYTES: f64 = 65_536.0;

/// Default number of warm-up steps, unless this is more than a tenth of the steps.
const WARM_UP_STEPS: u64 = 100;

/// Creates the directory of a run, and locks it. Removes an earlier run if `--restart` is given.
pub(super) fn open_run(text: &TextArguments) -> anyhow::Result<(PathBuf, Lock)> {
    let run = training_folder(&text.out)?;
    std::fs::create_dir_all(&run).with_context(|| format!("cannot create {}", run.display()))?;
    let lock = Lock::folder(&run).with_context(|| format!("cannot use {}", run.display()))?;
    if text.restart {
        for name in ["checkpoints", "tokenizer", "shards", "log.jsonl"] {
            let path = run.join(name);
            let removed = match path.is_dir() {
                true => std::fs::remove_dir_all(&path),
                false if path.exists() => std::fs::remove_file(&path),
                false => Ok(()),
            };
            removed.with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok((run, lock))
}

/// Notes which checkpoints cannot be read, if an older one is used.
pub(super) fn note_damaged<L: Learner>(trainer: &Trainer<'_, L>) {
    for error in trainer.damaged() {
        note(format_args!("using an older checkpoint, because the newest is damaged: {error}"));
    }
}

pub(super) fn set_threads(threads: Option<usize>) -> anyhow::Result<()> {
    let Some(threads) = threads else { return Ok(()) };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    pool.context("cannot start threads")
}

/// Listens for interrupts. The first one stops the run at the next step and cancels `canceller`;
/// the second one ends the process.
pub(super) fn listen(
    interrupted: &Arc<AtomicBool>,
    canceller: Option<&Canceller>,
) -> anyhow::Result<()> {
    let (interrupted, canceller) = (Arc::clone(interrupted), canceller.cloned());
    interrupts::listen(move || {
        if let Some(canceller) = &canceller {
            canceller.cancel();
        }
        interrupted.swap(true, Ordering::Relaxed)
    })
}

/// Trains until all steps are done or until interrupted. Returns whether all steps are done.
pub(super) fn train<L: Learner>(
    trainer: &mut Trainer<'_, L>,
    steps: u64,
    interrupted: &AtomicBool,
) -> anyhow::Result<bool> {
    let mut task = Task::resumed("training", Unit::Pieces("steps"), trainer.step(), steps);
    let done = trainer.run(&mut |event| {
        progress::show(event, &mut task);
        if interrupted.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    drop(task);
    if !done {
        note(format_args!(
            "interrupted at step {}: run the same command again to resume",
            trainer.step()
        ));
    }
    Ok(done)
}

/// Returns the directory of a run: the `out` directory's name with `.training` appended.
fn training_folder(out: &Path) -> anyhow::Result<PathBuf> {
    let Some(name) = out.file_name() else {
        bail!("--out is {}, which is not a directory name: choose another one", out.display())
    };
    let mut name = name.to_owned();
    name.push(".training");
    Ok(out.with_file_name(name))
}

/// Returns the `tokenizer.json` of a model. That of a GGUF file is written to the directory of the
/// run.
pub(super) fn tokenizer_of(model: &Path, run: &Path) -> anyhow::Result<Option<PathBuf>> {
    if GgufFile::find(model)?.is_some() {
        let file = run.join("tokenizer.json");
        let json = Tokenizer::from_checkpoint(model)?.to_json()?;
        forerun_output::write(&file, json)
            .with_context(|| format!("cannot write {}", file.display()))?;
        return Ok(Some(file));
    }
    let folder = if model.is_dir() { Some(model) } else { model.parent() };
    let file = folder.unwrap_or(Path::new(".")).join("tokenizer.json");
    Ok(file.is_file().then_some(file))
}

/// Encodes `data` and the held-out text, or opens the result of an earlier run.
pub(super) fn dataset(
    arguments: &TextArguments,
    data: &[PathBuf],
    run: &Path,
    tokenizer: &Path,
    framing: Framing,
) -> anyhow::Result<Dataset> {
    let default_share =
        || if arguments.validation.is_empty() { default_held_out(data) } else { 0.0 };
    let options = PrepareOptions {
        validation_files: arguments.validation.clone(),
        held_out_share: arguments.held_out.unwrap_or_else(default_share),
        framing,
        special_tokens: arguments.special_tokens,
        // Before the first checkpoint, nothing depends on encoded text that only this run has.
        rebuild: arguments.shards.is_none() && !has_checkpoint(run),
        ..PrepareOptions::default()
    };
    let folder = arguments.shards.clone().unwrap_or_else(|| run.join("shards"));
    let mut bar = DataProgress::default();
    let on_progress = &mut |progress| bar.update(progress);
    let prepared = Dataset::prepare(data, tokenizer, &folder, &options, on_progress);
    match prepared {
        Err(error @ (DataError::OtherDataset { .. } | DataError::Corrupt { .. })) => {
            let cure = match &arguments.shards {
                Some(_) => "or give another --shards",
                None => "or start the run over with --restart",
            };
            Err(anyhow!("{error}, {cure}"))
        }
        prepared => Ok(prepared?),
    }
}

/// Returns whether a run has trained a model so far.
pub(super) fn has_checkpoint(run: &Path) -> bool {
    std::fs::read_dir(run.join("checkpoints")).is_ok_and(|mut entries| entries.next().is_some())
}

/// Returns the default share of the text to hold out. It is larger for short text, so that there is
/// enough for an evaluation.
fn default_held_out(files: &[PathBuf]) -> f64 {
    let bytes: u64 = files.iter().flat_map(std::fs::metadata).map(|file| file.len()).sum();
    let [least, most] = HELD_OUT;
    (HELD_OUT_BYTES / (bytes as f64).max(1.0)).clamp(least, most)
}

/// Returns the number of steps of some passes over the text.
pub(super) fn steps_of(
    epochs: u64,
    dataset: &Dataset,
    step: &StepArguments,
) -> anyhow::Result<u64> {
    let batches = Batches::new(dataset, step.sequences, step.context, step.seed)?;
    let batches = epochs.saturating_mul(batches.epoch_steps());
    Ok(batches.div_ceil(step.accumulation.max(1) as u64))
}

/// Notes the size of a run that begins or resumes.
pub(super) fn note_size<L: Learner>(
    what: &str,
    trainer: &Trainer<'_, L>,
    dataset: &Dataset,
    options: &TrainOptions,
) {
    let parameters = trainer.learner().parameters();
    let count: usize = parameters.iter().map(|parameter| parameter.values.elem_count()).sum();
    let tokens = dataset.tokens(Split::Training).len();
    note(format_args!(
        "{what}: {:.2}M parameters, {tokens} training tokens, {} held-out tokens",
        count as f64 / 1e6,
        dataset.tokens(Split::HeldOut).len(),
    ));
    let (steps, step_tokens) = (options.schedule.steps, options.step_tokens());
    let passes = steps as f64 * step_tokens as f64 / tokens.max(1) as f64;
    let resumed = match trainer.step() {
        0 => String::new(),
        step => format!("; resuming after step {step}"),
    };
    note(format_args!(
        "{steps} steps of {step_tokens} tokens, {passes:.1} passes over the text (--steps or --epochs \
         changes this){resumed}"
    ));
}

/// Returns the options of a run of `steps` steps.
pub(super) fn options(
    step: &StepArguments,
    steps: u64,
    learning_rate: f64,
    distillation_share: f32,
) -> TrainOptions {
    TrainOptions {
        same_windows: false,
        context: step.context,
        sequences: step.sequences,
        accumulation: step.accumulation,
        schedule: LearningRateSchedule {
            peak: learning_rate,
            final_share: step.final_share,
            warmup_steps: step.warmup.unwrap_or(WARM_UP_STEPS.min(steps / 10)),
            steps,
        },
        optimizer: OptimizerOptions {
            matrices: match step.optimizer {
                OptimizerName::Adamw => MatrixUpdate::AdamW,
                OptimizerName::Muon => MatrixUpdate::Muon,
            },
            weight_decay: step.weight_decay,
            ..OptimizerOptions::default()
        },
        seed: step.seed,
        evaluate_every: step.evaluate_every,
        evaluation_tokens: step.evaluation_tokens,
        save_every: step.save_every,
        distillation_share,
    }
}

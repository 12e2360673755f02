//! The parts that the runs of all kinds of models have in common: text, options, interrupts.

use super::progress::{DataProgress, TrainingProgress};
use crate::arguments::{StepArguments, TextArguments};
use crate::interrupts;
use crate::note;
use anyhow::{Context, bail};
use forerun::Canceller;
use forerun_output::Lock;
use forerun_train::data::{Dataset, Framing, PrepareOptions};
use forerun_train::{AdamWOptions, Learner, LearningRateSchedule, TrainOptions, Trainer};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Default share of the documents to hold out.
const HELD_OUT: f64 = 0.01;

/// Creates the directory of a run, and locks it. Removes an earlier run if `--restart` is given.
pub(super) fn open_run(text: &TextArguments) -> anyhow::Result<(PathBuf, Lock)> {
    let run = text.run.clone().map_or_else(|| training_folder(&text.out), Ok)?;
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
    let progress = TrainingProgress::new(steps, trainer.step());
    let done = trainer.run(&mut |event| {
        progress.event(event);
        if interrupted.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    progress.finish();
    if !done {
        note(format_args!(
            "interrupted at step {}: run the same command again to resume",
            trainer.step()
        ));
    }
    Ok(done)
}

/// Returns the default directory of a run: the `out` directory's name with `.training` appended.
fn training_folder(out: &Path) -> anyhow::Result<PathBuf> {
    let Some(name) = out.file_name() else {
        bail!("--out is {}, which is not a directory name: choose another one", out.display())
    };
    let mut name = name.to_owned();
    name.push(".training");
    Ok(out.with_file_name(name))
}

/// Encodes `data` and the held-out text, or opens the result of an earlier run.
pub(super) fn dataset(
    arguments: &TextArguments,
    data: &[PathBuf],
    run: &Path,
    tokenizer: &Path,
    framing: Framing,
) -> anyhow::Result<Dataset> {
    let default_share = if arguments.validation.is_empty() { HELD_OUT } else { 0.0 };
    let options = PrepareOptions {
        validation_files: arguments.validation.clone(),
        held_out_share: arguments.held_out.unwrap_or(default_share),
        framing,
        ..PrepareOptions::default()
    };
    let folder = arguments.shards.clone().unwrap_or_else(|| run.join("shards"));
    let mut bar = DataProgress::default();
    let on_progress = &mut |progress| bar.update(progress);
    Ok(Dataset::prepare(data, tokenizer, &folder, &options, on_progress)?)
}

/// Returns the options of a run of `steps` steps.
pub(super) fn options(
    step: &StepArguments,
    steps: u64,
    learning_rate: f64,
    distillation_share: f32,
) -> TrainOptions {
    TrainOptions {
        context: step.context,
        sequences: step.sequences,
        accumulation: step.accumulation,
        schedule: LearningRateSchedule {
            peak: learning_rate,
            final_share: step.final_share,
            warmup_steps: step.warmup,
            steps,
        },
        optimizer: AdamWOptions {
            weight_decay: step.weight_decay,
            max_gradient_norm: step.max_gradient_norm,
            ..AdamWOptions::default()
        },
        seed: step.seed,
        evaluate_every: step.evaluate_every,
        evaluation_tokens: step.evaluation_tokens,
        save_every: step.save_every,
        distillation_share,
    }
}

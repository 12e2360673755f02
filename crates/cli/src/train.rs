//! `forerun train`: trains models from text.

mod drafter;
mod progress;

use crate::arguments::{LmArguments, StepArguments, TextArguments, Train};
use crate::interrupts;
use crate::note;
use anyhow::{Context, bail};
use forerun::Canceller;
use forerun_formats::Config;
use forerun_formats::checkpoint::Checkpoint;
use forerun_output::Lock;
use forerun_train::data::{Dataset, Framing, PrepareOptions, Split};
use forerun_train::tokenizer::{TokenizerOptions, train_tokenizer};
use forerun_train::{
    AdamWOptions, Dtype, Learner, LearningRateSchedule, Llama, TrainOptions, Trainer, export,
};
use progress::{DataProgress, TrainingProgress};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Default share of the documents to hold out.
const HELD_OUT: f64 = 0.01;

pub(crate) fn run(train: Train) -> anyhow::Result<ExitCode> {
    match train {
        Train::Lm(arguments) => language_model(&arguments),
        Train::Medusa(arguments) => drafter::medusa(&arguments),
        Train::Eagle(arguments) => drafter::eagle(&arguments),
        Train::Parallel(arguments) => drafter::parallel(&arguments),
    }
}

fn language_model(arguments: &LmArguments) -> anyhow::Result<ExitCode> {
    let text = &arguments.text;
    set_threads(text.threads)?;
    let (run, _lock) = open_run(text)?;
    let from = arguments.from.as_deref().map(Checkpoint::open).transpose()?;
    let teacher = match &arguments.teacher {
        Some(teacher) => Some(Llama::load(&Checkpoint::open(teacher)?)?),
        None => None,
    };
    let tokenizer = tokenizer(arguments, &run)?;
    let dataset = dataset(text, &text.data, &run, &tokenizer, PrepareOptions::default().framing)?;
    let LmArguments { step, steps, learning_rate, distillation_share, .. } = arguments;
    let options = options(step, *steps, *learning_rate, *distillation_share);
    let config = config(arguments, &dataset);
    let create = || match &from {
        Some(checkpoint) => Llama::load(checkpoint),
        None => Llama::random(&config, step.seed),
    };
    let teacher = teacher.as_ref();
    let origin = origin(arguments, &config);
    let mut trainer = Trainer::open(&run, &dataset, &tokenizer, teacher, options, &origin, create)?;
    note_damaged(&trainer);
    note(format_args!(
        "{:.2}M parameters, {} training tokens, {} held-out tokens; at step {} of {steps}",
        parameters(trainer.model()) as f64 / 1e6,
        dataset.tokens(Split::Training).len(),
        dataset.tokens(Split::HeldOut).len(),
        trainer.step(),
    ));
    let interrupted = Arc::new(AtomicBool::new(false));
    listen(&interrupted, None)?;
    if !train(&mut trainer, *steps, &interrupted)? {
        return Ok(interrupts::interrupted().into());
    }
    let dtype = if text.f32 { Dtype::F32 } else { Dtype::Bf16 };
    export(trainer.model(), &tokenizer, &text.out, dtype)?;
    note(format_args!("wrote {}", text.out.display()));
    Ok(ExitCode::SUCCESS)
}

/// Creates the directory of a run, and locks it. Removes an earlier run if `--restart` is given.
fn open_run(text: &TextArguments) -> anyhow::Result<(PathBuf, Lock)> {
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

/// Returns everything that the model of a run is made of, by option. Options that are left out have
/// their defaults.
fn origin(arguments: &LmArguments, config: &Config) -> serde_json::Value {
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let mut origin = json!({
        "from": arguments.from.as_ref().map(absolute),
        "teacher": arguments.teacher.as_ref().map(absolute),
    });
    if arguments.from.is_none() {
        origin["hidden"] = json!(config.hidden_size);
        origin["layers"] = json!(config.num_hidden_layers);
        origin["intermediate"] = json!(config.intermediate_size);
        origin["heads"] = json!(config.num_attention_heads);
        origin["kv_heads"] = json!(config.num_key_value_heads);
        origin["untied"] = json!(!config.tie_word_embeddings);
    }
    let given = [&arguments.tokenizer, &arguments.from, &arguments.teacher];
    if given.into_iter().all(Option::is_none) {
        origin["vocab_size"] = json!(arguments.vocab_size);
    }
    origin
}

/// Notes which checkpoints cannot be read, if an older one is used.
fn note_damaged<L: Learner>(trainer: &Trainer<'_, L>) {
    for error in trainer.damaged() {
        note(format_args!("using an older checkpoint, because the newest is damaged: {error}"));
    }
}

fn set_threads(threads: Option<usize>) -> anyhow::Result<()> {
    let Some(threads) = threads else { return Ok(()) };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    pool.context("cannot start threads")
}

/// Listens for interrupts. The first one stops the run at the next step and cancels `canceller`;
/// the second one ends the process.
fn listen(interrupted: &Arc<AtomicBool>, canceller: Option<&Canceller>) -> anyhow::Result<()> {
    let (interrupted, canceller) = (Arc::clone(interrupted), canceller.cloned());
    interrupts::listen(move || {
        if let Some(canceller) = &canceller {
            canceller.cancel();
        }
        interrupted.swap(true, Ordering::Relaxed)
    })
}

/// Trains until all steps are done or until interrupted. Returns whether all steps are done.
fn train<L: Learner>(
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

/// Returns the chosen tokenizer, or that of the model or teacher. Otherwise trains one, unless an
/// earlier run did.
fn tokenizer(arguments: &LmArguments, run: &Path) -> anyhow::Result<PathBuf> {
    let chosen = [&arguments.tokenizer, &arguments.from, &arguments.teacher];
    if let Some(path) = chosen.into_iter().flatten().next() {
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.clone() };
        if !file.is_file() {
            bail!("tokenizer {} not found: choose one with --tokenizer", file.display());
        }
        return Ok(file);
    }
    let file = run.join("tokenizer").join("tokenizer.json");
    if file.is_file() {
        return Ok(file);
    }
    let options =
        TokenizerOptions { vocab_size: arguments.vocab_size, ..TokenizerOptions::default() };
    let mut bar = DataProgress::default();
    let trained =
        train_tokenizer(&arguments.text.data, &options, &mut |progress| bar.update(progress))?;
    Ok(trained.save(&run.join("tokenizer"))?)
}

/// Encodes `data` and the held-out text, or opens the result of an earlier run.
fn dataset(
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
fn options(
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

fn config(arguments: &LmArguments, dataset: &Dataset) -> Config {
    let heads = arguments.heads.unwrap_or((arguments.hidden / 32).max(1));
    let intermediate = (arguments.hidden * 8 / 3).next_multiple_of(32);
    Config {
        hidden_size: arguments.hidden,
        intermediate_size: arguments.intermediate.unwrap_or(intermediate),
        num_hidden_layers: arguments.layers,
        num_attention_heads: heads,
        num_key_value_heads: arguments.kv_heads.unwrap_or((heads / 2).max(1)),
        head_dim: arguments.hidden / heads.max(1),
        vocab_size: dataset.vocab_size(),
        max_position_embeddings: arguments.step.context,
        tie_word_embeddings: !arguments.untied,
        bos_token_id: Some(dataset.separator()),
        eos_token_ids: vec![dataset.separator()],
        ..Config::plain_llama()
    }
}

fn parameters(model: &Llama) -> usize {
    model.parameters().iter().map(|parameter| parameter.values.elem_count()).sum()
}

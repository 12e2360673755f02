//! `forerun train`: trains models from text.

mod drafter;
mod progress;
mod run;

use crate::arguments::{LmArguments, Train};
use crate::interrupts;
use crate::note;
use anyhow::{bail, ensure};
use forerun_formats::Config;
use forerun_formats::checkpoint::Checkpoint;
use forerun_train::data::{Dataset, PrepareOptions};
use forerun_train::drafter::TrainedDrafterKind;
use forerun_train::tokenizer::{TokenizerOptions, train_tokenizer};
use forerun_train::{Dtype, Llama, Trainer, export};
use progress::DataProgress;
use run::{
    dataset, has_checkpoint, listen, note_damaged, note_size, open_run, options, set_threads,
    steps_of, tokenizer_of, train,
};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Default number of passes over the text of a language model.
const EPOCHS: u64 = 10;

/// Largest default number of steps.
const MOST_STEPS: u64 = 5000;

pub(crate) fn run(train: Train) -> anyhow::Result<ExitCode> {
    match train {
        Train::Lm(arguments) => language_model(&arguments),
        Train::Medusa(arguments) => drafter::heads(TrainedDrafterKind::Medusa, &arguments),
        Train::Hydra(arguments) => drafter::heads(TrainedDrafterKind::Hydra, &arguments),
        Train::Eagle(arguments) => drafter::eagle(&arguments),
        Train::Parallel(arguments) => drafter::parallel(&arguments),
        Train::Dflash(arguments) => drafter::dflash(&arguments),
        Train::Dspark(arguments) => drafter::dspark(&arguments),
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
    let LmArguments { step, learning_rate, distillation_share, .. } = arguments;
    let steps = steps(arguments, &dataset)?;
    let options = options(step, steps, *learning_rate, *distillation_share);
    let config = config(arguments, &dataset);
    let create = || match &from {
        Some(checkpoint) => Llama::load(checkpoint),
        None => Llama::random(&config, step.seed),
    };
    let teacher = teacher.as_ref();
    let origin = origin(arguments, &config);
    let mut trainer =
        Trainer::open(&run, &dataset, &tokenizer, teacher, options.clone(), &origin, create)?;
    note_damaged(&trainer);
    note_size("language model", &trainer, &dataset, &options);
    let interrupted = Arc::new(AtomicBool::new(false));
    listen(&interrupted, None)?;
    if !train(&mut trainer, steps, &interrupted)? {
        return Ok(interrupts::interrupted().into());
    }
    export(trainer.model(), &tokenizer, &text.out, Dtype::Bf16)?;
    note(format_args!("wrote {}", text.out.display()));
    Ok(ExitCode::SUCCESS)
}

/// Returns the number of steps. By default, it follows from the size of the text.
fn steps(arguments: &LmArguments, dataset: &Dataset) -> anyhow::Result<u64> {
    let LmArguments { steps, epochs, step, .. } = arguments;
    Ok(match (*steps, *epochs) {
        (Some(steps), _) => steps,
        (None, Some(epochs)) => steps_of(epochs, dataset, step)?,
        (None, None) => steps_of(EPOCHS, dataset, step)?.min(MOST_STEPS),
    })
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
    }
    let given = [&arguments.tokenizer, &arguments.from, &arguments.teacher];
    if given.into_iter().all(Option::is_none) {
        origin["vocab_size"] = json!(arguments.vocab_size);
    }
    origin
}

/// Returns the chosen tokenizer, or that of the model or teacher. Otherwise trains one, unless the
/// run has a checkpoint with its tokenizer.
fn tokenizer(arguments: &LmArguments, run: &Path) -> anyhow::Result<PathBuf> {
    let chosen = [&arguments.tokenizer, &arguments.from, &arguments.teacher];
    if let Some(path) = chosen.into_iter().flatten().next() {
        if path.extension().is_some_and(|extension| extension == "json") {
            ensure!(path.is_file(), "{} not found: choose another --tokenizer", path.display());
            return Ok(path.clone());
        }
        let Some(file) = tokenizer_of(path, run)? else {
            bail!("no tokenizer.json with {}: choose one with --tokenizer", path.display());
        };
        return Ok(file);
    }
    let file = run.join("tokenizer").join("tokenizer.json");
    if file.is_file() && has_checkpoint(run) {
        return Ok(file);
    }
    let options =
        TokenizerOptions { vocab_size: arguments.vocab_size, ..TokenizerOptions::default() };
    let mut bar = DataProgress::default();
    let trained =
        train_tokenizer(&arguments.text.data, &options, &mut |progress| bar.update(progress))?;
    Ok(trained.save(&run.join("tokenizer"))?)
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
        tie_word_embeddings: true,
        bos_token_id: Some(dataset.separator()),
        eos_token_ids: vec![dataset.separator()],
        ..Config::plain_llama()
    }
}

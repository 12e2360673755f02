//! `forerun train medusa|hydra|eagle|parallel|dflash|dspark`: trains a drafter for a target.

use super::run::{
    dataset, listen, note_damaged, note_size, open_run, set_threads, steps_of, tokenizer_of, train,
};
use crate::arguments::{
    BlockArguments, DflashArguments, DistillArguments, DrafterArguments, DsparkArguments,
    EagleArguments, FeatureArguments, HeadArguments, Integration, ParallelArguments,
};
use crate::interrupts;
use crate::{distill, note};
use anyhow::{Context, bail};
use forerun::Canceller;
use forerun::text::Tokenizer;
use forerun_train::data::{Dataset, Framing};
use forerun_train::drafter::{DrafterOptions, Target, TrainedDrafterKind};
use forerun_train::{DrafterRun, Dtype, TrainOptions, Trainer};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The number of tokens that an EAGLE layer drafts after the first one in evaluations. Training does
/// not depend on it.
const EAGLE_TEST_TOKENS: usize = 4;

/// Trains Medusa's or Hydra's heads.
pub(super) fn heads(
    kind: TrainedDrafterKind,
    arguments: &HeadArguments,
) -> anyhow::Result<ExitCode> {
    let options = DrafterOptions::of(kind, arguments.heads as usize);
    run(options, &arguments.drafter, None)
}

pub(super) fn eagle(arguments: &EagleArguments) -> anyhow::Result<ExitCode> {
    let mut options = DrafterOptions::of(TrainedDrafterKind::Eagle, EAGLE_TEST_TOKENS);
    options.drafted_positions = arguments.drafted_positions as usize;
    options.group_share = arguments.group_share;
    run(with_features(options, &arguments.features), &arguments.drafter, None)
}

pub(super) fn parallel(arguments: &ParallelArguments) -> anyhow::Result<ExitCode> {
    let kind = match arguments.integration {
        Integration::Medusa => TrainedDrafterKind::ParallelspecMedusa,
        Integration::Eagle => TrainedDrafterKind::ParallelspecEagle,
    };
    let has_weight = arguments.features.classification_weight.is_some();
    if arguments.integration == Integration::Medusa && has_weight {
        bail!(
            "--classification-weight needs --integration eagle: the medusa integration does not read the \
             target's features"
        );
    }
    let mut options = DrafterOptions::of(kind, arguments.masks as usize);
    options.group_share = arguments.group_share;
    run(with_features(options, &arguments.features), &arguments.drafter, None)
}

pub(super) fn dflash(arguments: &DflashArguments) -> anyhow::Result<ExitCode> {
    let options = DrafterOptions::of(TrainedDrafterKind::Dflash, arguments.masks as usize);
    let options = with_block(options, &arguments.block);
    run(options, &arguments.drafter, Some(&arguments.block))
}

pub(super) fn dspark(arguments: &DsparkArguments) -> anyhow::Result<ExitCode> {
    let DsparkArguments { block_size, markov_rank, .. } = *arguments;
    let options = DrafterOptions::of(TrainedDrafterKind::Dspark, block_size as usize);
    let mut options = with_block(options, &arguments.block);
    options.markov_rank = Some(markov_rank as usize);
    run(options, &arguments.drafter, Some(&arguments.block))
}

fn with_block(mut options: DrafterOptions, given: &BlockArguments) -> DrafterOptions {
    options.group_share = given.group_share;
    options.layers = Some(given.layers as usize);
    options
}

fn with_features(mut options: DrafterOptions, given: &FeatureArguments) -> DrafterOptions {
    options.classification_weight =
        given.classification_weight.unwrap_or(options.classification_weight);
    options
}

/// Trains a drafter. `block` is given for block drafters.
fn run(
    mut drafter: DrafterOptions,
    arguments: &DrafterArguments,
    block: Option<&BlockArguments>,
) -> anyhow::Result<ExitCode> {
    let text = &arguments.text;
    set_threads(text.threads)?;
    let (run, _lock) = open_run(text)?;
    drafter.decay = arguments.decay.unwrap_or(drafter.decay);
    drafter.draft_vocab = arguments.draft_vocab;
    let mut target = Target::open(&arguments.target)?;
    if let Some(BlockArguments { target_layers, .. }) = block {
        target = match &target_layers[..] {
            [] => {
                let layers = target.default_feature_layers();
                target.with_feature_layers(&layers)
            }
            layers => target.with_feature_layers(layers),
        }
        .context("cannot use --target-layers")?;
    }
    if let Some(folder) = &arguments.feature_cache {
        target = target
            .with_feature_cache(folder)
            .with_context(|| format!("cannot use --feature-cache {}", folder.display()))?;
    }
    let Some(tokenizer) = tokenizer_of(&arguments.target, &run)? else {
        bail!("no tokenizer.json with {}: training needs it", arguments.target.display());
    };
    let framing = framing(&target, &arguments.target)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let data = match arguments.self_distillation {
        None => text.data.clone(),
        Some(count) => match write_own_text(&target, arguments, &run, count, &interrupted)? {
            Some(file) => vec![file],
            None => return Ok(interrupts::interrupted().into()),
        },
    };
    let dataset = dataset(text, &data, &run, &tokenizer, framing)?;
    let options = options(&drafter, arguments, &dataset)?;
    let steps = options.schedule.steps;
    let drafter_run = DrafterRun {
        folder: &run,
        dataset: &dataset,
        tokenizer: &tokenizer,
        target: &target,
        init: arguments.init.as_deref(),
    };
    let mut trainer = Trainer::open_drafter(&drafter_run, options.clone(), drafter)?;
    note_damaged(&trainer);
    let what = format!("{} for {}", drafter.kind, target.name());
    note_size(&what, &trainer, &dataset, &options);
    if arguments.self_distillation.is_none() {
        listen(&interrupted, None)?;
    }
    if !train(&mut trainer, steps, &interrupted)? {
        return Ok(interrupts::interrupted().into());
    }
    trainer.learner().drafter().export(&target, &text.out, Dtype::Bf16)?;
    note(format_args!("wrote {}", text.out.display()));
    Ok(ExitCode::SUCCESS)
}

/// Returns the tokens around a document as the target reads it: the start of a prompt, and its EOS
/// token.
fn framing(target: &Target, path: &Path) -> anyhow::Result<Framing> {
    let Some(&eos) = target.config().eos_token_ids.first() else {
        bail!(
            "{}: config.json has no eos_token_id, the token that separates documents: add it",
            path.display()
        );
    };
    let mut bos = Tokenizer::from_checkpoint(path)?.encode("")?;
    bos.retain(|&token| token != eos);
    Ok(Framing::Target { bos, eos })
}

/// Lets the target write the training text, and returns its file, or `None` if interrupted.
/// Installs the handler for interrupts.
fn write_own_text(
    target: &Target,
    arguments: &DrafterArguments,
    run: &Path,
    count: usize,
    interrupted: &Arc<AtomicBool>,
) -> anyhow::Result<Option<PathBuf>> {
    // The file's name contains everything that the texts depend on, so that a run resumes only its
    // own texts.
    let (temperature, context, seed) =
        (arguments.self_distillation_temperature, arguments.step.context, arguments.step.seed);
    let hash = &target.embedding_sha256()[..8];
    let name = format!("self-distilled-{hash}-{count}-{temperature}-{context}-{seed}.jsonl");
    let file = run.join(name);
    let options = [
        format!("--count={count}"),
        format!("--max-tokens={context}"),
        format!("--temperature={temperature}"),
        format!("--seed={seed}"),
        "--method=autoregressive".to_owned(),
    ];
    let prompts = &arguments.text.data;
    let distill = DistillArguments::of_target(&arguments.target, prompts, &file, &options)?;
    let canceller = Canceller::new();
    let done = distill::write(&distill, &canceller, || listen(interrupted, Some(&canceller)))?;
    Ok(done.then_some(file))
}

/// Returns the training options. The defaults are those of ParallelSpec (arXiv 2410.05589, table
/// 3), of DFlash's paper (arXiv 2602.06036), and of the published configurations of DSpark's
/// authors. EAGLE has the defaults of ParallelSpec in its place.
fn options(
    drafter: &DrafterOptions,
    arguments: &DrafterArguments,
    dataset: &Dataset,
) -> anyhow::Result<TrainOptions> {
    let (rate, beta2, epochs) = match drafter.kind {
        TrainedDrafterKind::Eagle | TrainedDrafterKind::ParallelspecEagle => (5e-5, 0.95, 40),
        TrainedDrafterKind::Dflash => (6e-4, 0.999, 6),
        TrainedDrafterKind::Dspark => (6e-4, 0.999, 10),
        TrainedDrafterKind::Medusa
        | TrainedDrafterKind::Hydra
        | TrainedDrafterKind::ParallelspecMedusa => (5e-4, 0.999, 20),
    };
    let soft_share = match drafter.kind {
        TrainedDrafterKind::Eagle => 1.0,
        TrainedDrafterKind::Dspark => 0.9,
        _ => 0.0,
    };
    let step = &arguments.step;
    let steps = match arguments.steps {
        Some(steps) => steps,
        None => steps_of(arguments.epochs.unwrap_or(epochs), dataset, step)?,
    };
    let rate = arguments.learning_rate.unwrap_or(rate);
    let share = arguments.distillation_share.unwrap_or(soft_share);
    let mut options = super::run::options(step, steps, rate, share);
    options.optimizer.beta2 = beta2;
    options.same_windows = arguments.feature_cache.is_some();
    Ok(options)
}

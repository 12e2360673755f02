//! Grown pairs: a real model drafts for a target that is this model followed by random layers.
//!
//! The drafter is trained and deep, and its acceptance comes in runs as that of real pairs does:
//! the target differs from it where the model itself is unsure. The text is that of the model,
//! disturbed as much as the wanted acceptance asks for. A search over the scale ε of the random
//! layers' outputs measures the acceptance by real speculative decoding of given prompts.

use super::acceptance::{AcceptanceMeasurement, measure_pair};
use super::residual::{AT_A_TIME, overlap};
use super::{
    AcceptanceCalibration, CalibrationStep, DRAFT_TOKENS, Goal, SyntheticPairError, bytes_read,
    check_goal, write, write_error,
};
use forerun::text::Tokenizer;
use forerun::{ChatTemplate, Engine, Loader, Message, ModelSource};
use forerun_core::TokenId;
use forerun_cpu::Team;
use forerun_formats::checkpoint::Dtype;
use forerun_formats::checkpoint::random::{GrownWeights, SYNTHETIC_PAIR};
use forerun_formats::{Checkpoint, LoadError};
use forerun_output::OutputFolder;
use forerun_runtime::default_cores;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of tokens of a text on which the overlap is measured.
const TEXT_TOKENS: usize = 64;

/// The options of [`grow_pair`].
#[derive(Clone, Debug)]
pub struct GrownPairOptions {
    /// The real model: a Llama model without biases and other additions.
    pub model: ModelSource,
    /// Use only models that are already here.
    pub offline: bool,
    /// The number of the target's layers, more than the model has.
    pub layers: usize,
    /// The wanted acceptance rate: accepted over tested draft tokens, 0.02 to 0.98.
    pub acceptance: f64,
    /// Its tolerance, 0.002 to 0.5.
    pub tolerance: f64,
    /// The temperature at which acceptance is measured, with rejection sampling. 0 is greedy.
    pub temperature: f32,
    /// The type in which weights are stored.
    pub dtype: Dtype,
    /// The seed of the random layers.
    pub seed: u64,
    /// The texts to continue, or to answer if the model has a chat template. The search uses every
    /// second one; the others confirm its result.
    pub prompts: Vec<String>,
    /// The number of prompts in the first round of the search. Later rounds use more, if there are
    /// more.
    pub first_prompts: usize,
    /// The maximum number of tokens of each answer.
    pub max_tokens: usize,
}

/// A finished grown pair.
#[derive(Clone, Debug)]
pub struct GrownPair {
    /// The target's folder.
    pub target: PathBuf,
    /// The drafter's folder: the real model.
    pub drafter: PathBuf,
    /// The scale of the random layers' outputs.
    pub epsilon: f32,
    /// The acceptance on prompts that the search did not use.
    pub acceptance: AcceptanceCalibration,
    /// The overlap (`1 − TV`) of the drafter's rows computed four layers at a time (EasySpec) and
    /// exact rows, on the prompts. It is the real model's own. `None` for models of fewer than four
    /// layers.
    pub layer_parallel_overlap: Option<f64>,
    /// The bytes of weights that a pass reads, of the target and of the drafter.
    pub bytes_read: [usize; 2],
}

/// Makes a pair in `folder/target` and `folder/drafter` from a real model. Searches, on all cores,
/// for the scale of the target's random layers that gives the wanted acceptance. `on_step` receives
/// every value that is tried.
///
/// # Errors
/// If an option is out of range, the model cannot be read or is not a plain Llama model, files
/// cannot be written, or the acceptance is not reached.
pub fn grow_pair(
    options: &GrownPairOptions,
    folder: &Path,
    mut on_step: impl FnMut(&CalibrationStep),
) -> Result<GrownPair, SyntheticPairError> {
    check(options)?;
    let model = Loader::new().offline(options.offline).locate(&options.model)?;
    let checkpoint = Checkpoint::open(&model)?;
    let weights = GrownWeights::new(&checkpoint, options.layers, options.seed, options.dtype)?;
    fs::create_dir_all(folder).map_err(write_error(folder))?;
    let finals = [folder.join("target"), folder.join("drafter")];
    let [unfinished_target, unfinished_drafter] =
        finals.each_ref().map(|path| OutputFolder::create(path).map_err(write_error(path)));
    let unfinished = [unfinished_target?, unfinished_drafter?];
    let [target, drafter] = unfinished.each_ref().map(|folder| folder.path().to_owned());
    weights.write_drafter(&drafter)?;
    weights.write_target(&target, &drafter)?;
    for folder in [&target, &drafter] {
        write_text_files(&model, folder)?;
    }
    let template = ChatTemplate::default_source(&drafter)?;
    let template = template.map(|_| ChatTemplate::from_checkpoint(&drafter)).transpose();
    let template = template?;
    let prompt = |engine: &Engine, seed: u64| -> Result<Vec<TokenId>, SyntheticPairError> {
        let text = &options.prompts[seed as usize];
        Ok(match &template {
            None => engine.encode_prompt(text)?,
            Some(template) => engine.encode_chat(template, &[Message::user(text)])?,
        })
    };
    let measure = |epsilon: f32, prompts: usize, other_prompts: bool| {
        weights.write_layers(&target, epsilon)?;
        let seed = |prompt| 2 * prompt + u64::from(other_prompts);
        let measurement = AcceptanceMeasurement {
            seeds: (0..prompts as u64).map(seed).collect(),
            prompt: &prompt,
            temperature: options.temperature,
            max_tokens: options.max_tokens,
            ignore_eos: false,
        };
        measure_pair([&target, &drafter], &measurement)
    };
    let goal = Goal { acceptance: options.acceptance, tolerance: options.tolerance };
    let most = options.prompts.len() / 2;
    let (epsilon, acceptance) =
        goal.reach(options.first_prompts.min(most), most, measure, &mut on_step)?;
    let layers = checkpoint.config().num_hidden_layers;
    let pair = GrownPair {
        epsilon,
        acceptance,
        layer_parallel_overlap: own_overlap(options, &drafter, layers)?,
        bytes_read: [options.layers, layers]
            .map(|layers| bytes_read(checkpoint.config(), layers, options.dtype)),
        target,
        drafter,
    };
    label(options, layers, &pair)?;
    for (unfinished, path) in unfinished.into_iter().zip(&finals) {
        unfinished.finish().map_err(write_error(path))?;
    }
    let [target, drafter] = finals;
    Ok(GrownPair { target, drafter, ..pair })
}

fn check(options: &GrownPairOptions) -> Result<(), SyntheticPairError> {
    check_goal(options.acceptance, options.tolerance)?;
    if options.first_prompts == 0 || options.prompts.len() < 2 || options.max_tokens < 2 {
        let found = format!(
            "{} prompts and {} tokens per answer",
            options.first_prompts.min(options.prompts.len()),
            options.max_tokens
        );
        let expected = "at least two prompts and two tokens per answer".to_owned();
        return Err(SyntheticPairError::Option { option: "the measurement", found, expected });
    }
    Ok(())
}

/// Copies the tokenizer and the chat template of a model. Writes those that a GGUF or llama2.c file
/// contains as separate files.
fn write_text_files(model: &Path, folder: &Path) -> Result<(), SyntheticPairError> {
    const FILES: [&str; 4] = [
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ];
    if model.join(FILES[0]).is_file() {
        for name in FILES {
            let (from, to) = (model.join(name), folder.join(name));
            if from.is_file() {
                fs::copy(&from, &to).map_err(write_error(&to))?;
            }
        }
        return Ok(());
    }
    let tokenizer = Tokenizer::from_checkpoint(model)?;
    let json = tokenizer.to_json()?;
    write(&folder.join(FILES[0]), &json)?;
    write(&folder.join(FILES[1]), &format!("{:#}\n", tokenizer.config_json()))?;
    if let Some(template) = ChatTemplate::default_source(model)? {
        write(&folder.join(FILES[2]), &template)?;
    }
    Ok(())
}

/// Measures the overlap of the real model's rows computed several layers at a time with exact rows.
fn own_overlap(
    options: &GrownPairOptions,
    drafter: &Path,
    layers: usize,
) -> Result<Option<f64>, SyntheticPairError> {
    if layers < AT_A_TIME {
        return Ok(None);
    }
    let tokenizer = Tokenizer::from_checkpoint(drafter)?;
    let mut texts = Vec::new();
    for text in options.prompts.iter().take(2 * options.first_prompts) {
        let mut tokens = tokenizer.encode(text)?;
        tokens.truncate(TEXT_TOKENS);
        texts.push(tokens);
    }
    let team = Arc::new(Team::unpinned(default_cores().len())?);
    overlap(drafter, layers, &team, texts.into_iter()).map(Some)
}

/// Labels both models with the measurements: in `config.json` for programs, and in `README.md` for
/// readers.
fn label(options: &GrownPairOptions, layers: usize, pair: &GrownPair) -> Result<(), LoadError> {
    let round = |value: f64| (value * 1e3).round() / 1e3;
    for (folder, role) in [(&pair.target, "target"), (&pair.drafter, "drafter")] {
        let file = folder.join("config.json");
        let text = fs::read_to_string(&file)
            .map_err(|cause| LoadError::Read { path: file.clone(), cause })?;
        let mut config: Value = serde_json::from_str(&text)
            .map_err(|cause| LoadError::Json { file: file.clone(), cause })?;
        let label = &mut config[SYNTHETIC_PAIR];
        label["from"] = json!(options.model.name());
        label["draft_layers"] = json!(layers);
        label["random_layers"] = json!(options.layers - layers);
        label["epsilon"] = json!(pair.epsilon);
        label["acceptance"] = json!(round(pair.acceptance.rate));
        label["positions"] = json!(pair.acceptance.positions);
        label["temperature"] = json!(options.temperature);
        label["fuzzy_overlap"] = json!(pair.layer_parallel_overlap.map(round));
        write(&file, &format!("{config:#}\n"))?;
        write(&folder.join("README.md"), &readme(options, role, layers, pair))?;
    }
    Ok(())
}

fn readme(options: &GrownPairOptions, role: &str, layers: usize, pair: &GrownPair) -> String {
    let AcceptanceCalibration { rate, positions, rate_of_all, all_positions, distinct_4_grams } =
        pair.acceptance;
    let overlap = pair.layer_parallel_overlap.map_or(String::new(), |overlap| {
        format!(
            " The drafter's rows computed {AT_A_TIME} layers at a time (EasySpec) have an overlap of \
             {overlap:.3} with exact rows."
        )
    });
    format!(
        "# The {role} of a grown pair\n\n\
         **A real model with random layers, made to measure speed.** Written by `forerun make-pair --from` (forerun \
         {version}, seed {seed}). The drafter is {name}, a real model of {layers} layers. The target is the same model \
         followed by {added} random layers. Their outputs are scaled by {epsilon}, so that {rate:.1} % of the \
         drafter's tokens are accepted (temperature {temperature}, drafts of {DRAFT_TOKENS} tokens, {positions} \
         positions after distinct tokens, on prompts that the search did not use; {all:.1} % at all \
         {all_positions} positions). The target's text is worse than the model's own. {distinct:.1} % of the \
         answers' 4-grams are distinct.{overlap}\n",
        version = env!("CARGO_PKG_VERSION"),
        seed = options.seed,
        name = options.model.name(),
        added = options.layers - layers,
        epsilon = pair.epsilon,
        rate = rate * 100.0,
        temperature = options.temperature,
        all = rate_of_all * 100.0,
        distinct = distinct_4_grams * 100.0,
    )
}

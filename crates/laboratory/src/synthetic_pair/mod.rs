//! Synthetic pairs: random weights of any size with a chosen acceptance rate, to measure speed
//! where no trained pair is at hand.
//!
//! The target consists of the drafter's layers and more layers with output projections that are
//! scaled by ε ([`SyntheticWeights`]). A search over ε measures the acceptance by real speculative
//! decoding.

mod acceptance;
mod grown;
mod residual;

pub use acceptance::AcceptanceCalibration;
pub use grown::{GrownPair, GrownPairOptions, grow_pair};
pub use residual::ResidualCalibration;

use acceptance::{
    AcceptanceMeasurement, DRAFT_TOKENS, PROMPT_TOKENS, measure_pair, prompt_seed, random_tokens,
};
use forerun::text::{ChatTemplateError, EncodeError, TokenizerError};
use forerun::{Engine, ForerunError, PlanError};
use forerun_cpu::TeamError;
use forerun_formats::checkpoint::random::{SYNTHETIC_PAIR, SyntheticWeights, byte_pair_tokenizer};
use forerun_formats::checkpoint::{Dtype, LoadError};
use forerun_formats::{Config, EmbeddedModel};
use forerun_lm::ModelError;
use forerun_output::OutputFolder;
use residual::{AT_A_TIME, calibrate_residual};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The number of values that are tried for one number of prompts.
const TRIALS: usize = 14;
/// The number of rounds of the search. Each has twice the prompts of the previous one, and is
/// needed if the previous result does not hold for other prompts.
const ROUNDS: usize = 3;

/// The options of [`make_pair`].
#[derive(Clone, Debug)]
pub struct SyntheticPairOptions {
    /// The target's configuration.
    pub target: Config,
    /// The number of the drafter's layers. Everything else the drafter shares with the target.
    pub draft_layers: usize,
    /// The wanted acceptance rate: accepted over tested draft tokens, 0.02 to 0.98.
    pub acceptance: f64,
    /// For EasySpec, the wanted overlap (`1 − TV`) of rows computed four layers at a time and exact
    /// rows, 0.5 to 0.99. `None` does not scale the drafter's layers, and such rows are almost
    /// useless.
    pub layer_parallel_overlap: Option<f64>,
    /// The tolerance of both, 0.002 to 0.5.
    pub tolerance: f64,
    /// The temperature at which acceptance is measured, with rejection sampling. 0 is greedy.
    pub temperature: f32,
    /// The type in which weights are stored.
    pub dtype: Dtype,
    /// The seed of weights and prompts.
    pub seed: u64,
    /// The number of prompts in the first round of the search.
    pub prompts: usize,
    /// The number of tokens of each answer.
    pub max_tokens: usize,
    /// A model with a tokenizer of exactly the target's vocabulary size. `None` generates a
    /// tokenizer.
    pub tokenizer: Option<EmbeddedModel>,
}

/// A value that [`make_pair`] tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CalibrationStep {
    /// A scale of the drafter's layers after the first, for EasySpec.
    Residual {
        /// The scale.
        scale: f32,
        /// The overlap of rows computed four layers at a time and exact rows.
        overlap: f64,
        /// Whether the overlap was measured on texts that the search does not use.
        other_texts: bool,
    },
    /// A scale of the target's layers after the drafter's.
    Epsilon {
        /// The scale.
        epsilon: f32,
        /// The measured acceptance.
        acceptance: AcceptanceCalibration,
        /// The number of prompts.
        prompts: usize,
        /// Whether the acceptance was measured on prompts that the search does not use.
        other_prompts: bool,
    },
}

/// A finished synthetic pair.
#[derive(Clone, Debug)]
pub struct SyntheticPair {
    /// The target's folder.
    pub target: PathBuf,
    /// The drafter's folder.
    pub drafter: PathBuf,
    /// The calibration of the drafter's layers for EasySpec, if requested.
    pub residual: Option<ResidualCalibration>,
    /// The scale of the target's layers after the drafter's.
    pub epsilon: f32,
    /// The acceptance on prompts that the search did not use.
    pub acceptance: AcceptanceCalibration,
    /// The bytes of weights that a pass reads, of the target and of the drafter.
    pub bytes_read: [usize; 2],
}

/// Why a synthetic pair cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SyntheticPairError {
    /// An option is out of range.
    #[error("{option} is {found}, but it must be {expected}")]
    Option {
        /// The option: a field of [`SyntheticPairOptions`] in backticks, or several in words.
        option: &'static str,
        /// Its value.
        found: String,
        /// The possible values.
        expected: String,
    },
    /// A file cannot be written or read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The pair cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The pair cannot be run.
    #[error(transparent)]
    Run(#[from] ForerunError),
    /// The model's tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model's chat template cannot be used.
    #[error(transparent)]
    ChatTemplate(#[from] ChatTemplateError),
    /// A prompt cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The drafter's rows cannot be computed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The threads cannot be started.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// The overlap was not reached.
    #[error(
        "no scale of the drafter's layers gives an overlap of {wanted:.3} ± {tolerance:.3} with these \
         sizes: it was {nearest:.3}; try another overlap, more `tolerance` or `prompts`, or another \
         `seed`"
    )]
    OverlapNotReached {
        /// The wanted overlap.
        wanted: f64,
        /// The tolerance.
        tolerance: f64,
        /// The overlap that was reached.
        nearest: f64,
    },
    /// The acceptance was not reached.
    #[error(
        "no scale gives an acceptance of {wanted:.3} ± {tolerance:.3} with these sizes: the nearest on prompts \
         that the search did not use was {nearest:.3}; try more `tolerance`, more prompts, or another \
         `acceptance` or `seed`"
    )]
    NotReached {
        /// The wanted acceptance.
        wanted: f64,
        /// The tolerance.
        tolerance: f64,
        /// The nearest acceptance that was reached.
        nearest: f64,
    },
}

/// Makes a pair in `folder/target` and `folder/drafter`. Searches, on all cores, for the scale that
/// gives the wanted acceptance. `on_step` receives every value that is tried.
///
/// # Errors
/// If an option is out of range, files cannot be written, or the acceptance is not reached.
///
/// ```no_run
/// use forerun::checkpoint::{Config, Dtype};
/// use forerun_laboratory::{CalibrationStep, SyntheticPairOptions, make_pair};
/// use std::path::Path;
///
/// let target = Config {
///     hidden_size: 1024,
///     intermediate_size: 2816,
///     num_hidden_layers: 12,
///     num_attention_heads: 16,
///     num_key_value_heads: 8,
///     head_dim: 64,
///     vocab_size: 4096,
///     max_position_embeddings: 2048,
///     bos_token_id: Some(256),
///     eos_token_ids: vec![257],
///     ..Config::plain_llama()
/// };
/// let options = SyntheticPairOptions {
///     target,
///     draft_layers: 1,
///     acceptance: 0.8,
///     layer_parallel_overlap: None,
///     tolerance: 0.02,
///     temperature: 0.0,
///     dtype: Dtype::Bf16,
///     seed: 1,
///     prompts: 24,
///     max_tokens: 96,
///     tokenizer: None,
/// };
/// let pair = make_pair(&options, Path::new("pair"), |step| {
///     if let CalibrationStep::Epsilon { epsilon, acceptance, .. } = step {
///         println!("ε {epsilon:.4}: acceptance {:.3}", acceptance.rate);
///     }
/// })?;
/// println!("{} and {}", pair.target.display(), pair.drafter.display());
/// # Ok::<(), forerun_laboratory::SyntheticPairError>(())
/// ```
pub fn make_pair(
    options: &SyntheticPairOptions,
    folder: &Path,
    mut on_step: impl FnMut(&CalibrationStep),
) -> Result<SyntheticPair, SyntheticPairError> {
    check(options)?;
    fs::create_dir_all(folder).map_err(write_error(folder))?;
    let finals = [folder.join("target"), folder.join("drafter")];
    // The models have their names only when they are measured and labelled.
    let unfinished = finals.each_ref().map(|path| {
        OutputFolder::create(path).map_err(write_error(path)).map_err(SyntheticPairError::from)
    });
    let [unfinished_target, unfinished_drafter] = unfinished;
    let unfinished = [unfinished_target?, unfinished_drafter?];
    let [target, drafter] = unfinished.each_ref().map(|folder| folder.path().to_owned());
    let residual = match options.layer_parallel_overlap {
        Some(wanted) => Some(calibrate_residual(options, wanted, &drafter, &mut on_step)?),
        None => None,
    };
    let weights = weights(options, residual.map_or(1.0, |found| found.scale));
    weights.write_drafter(&drafter)?;
    write_tokenizer(options, &drafter)?;
    let random_prompt =
        |_: &Engine, seed| Ok(random_tokens(seed, PROMPT_TOKENS, options.target.vocab_size));
    let try_epsilon = |epsilon: f32, prompts: usize, other_prompts: bool| {
        weights.write_target(&target, epsilon)?;
        write_tokenizer(options, &target)?;
        let seed = |prompt| prompt_seed(options.seed, prompt, other_prompts);
        let measurement = AcceptanceMeasurement {
            seeds: (0..prompts as u64).map(seed).collect(),
            prompt: &random_prompt,
            temperature: options.temperature,
            max_tokens: options.max_tokens,
            ignore_eos: true,
        };
        measure_pair([&target, &drafter], &measurement)
    };
    let goal = Goal { acceptance: options.acceptance, tolerance: options.tolerance };
    let (epsilon, acceptance) =
        goal.reach(options.prompts, usize::MAX, try_epsilon, &mut on_step)?;
    let bytes_read = [options.target.num_hidden_layers, options.draft_layers]
        .map(|layers| bytes_read(&options.target, layers, options.dtype));
    let pair = SyntheticPair { target, drafter, residual, epsilon, acceptance, bytes_read };
    label(options, &pair)?;
    for (unfinished, path) in unfinished.into_iter().zip(&finals) {
        unfinished.finish().map_err(write_error(path))?;
    }
    let [target, drafter] = finals;
    Ok(SyntheticPair { target, drafter, ..pair })
}

/// The acceptance that a search has to reach.
#[derive(Clone, Copy)]
struct Goal {
    acceptance: f64,
    tolerance: f64,
}

impl Goal {
    /// Searches for the ε, and confirms it on prompts that the search did not use. Returns the
    /// acceptance on these, too. `measure` receives ε, the number of prompts, at most
    /// `most_prompts`, and whether they are the other ones.
    fn reach(
        self,
        mut prompts: usize,
        most_prompts: usize,
        mut measure: impl FnMut(f32, usize, bool) -> Result<AcceptanceCalibration, SyntheticPairError>,
        on_step: &mut dyn FnMut(&CalibrationStep),
    ) -> Result<(f32, AcceptanceCalibration), SyntheticPairError> {
        let Self { acceptance: wanted, tolerance } = self;
        let mut try_epsilon = |epsilon, prompts, other_prompts| {
            let acceptance = measure(epsilon, prompts, other_prompts)?;
            on_step(&CalibrationStep::Epsilon { epsilon, acceptance, prompts, other_prompts });
            Ok::<_, SyntheticPairError>(acceptance)
        };
        let (mut start, mut nearest) = (0.25, f64::INFINITY);
        for _ in 0..ROUNDS {
            let found = search(wanted, tolerance / 2.0, start, |epsilon| {
                Ok::<_, SyntheticPairError>(try_epsilon(epsilon, prompts, false)?.rate)
            })?;
            let acceptance = try_epsilon(found, prompts, true)?;
            if (acceptance.rate - wanted).abs() < (nearest - wanted).abs() {
                nearest = acceptance.rate;
            }
            if (acceptance.rate - wanted).abs() <= tolerance {
                return Ok((found, acceptance));
            }
            if prompts == most_prompts {
                break;
            }
            (prompts, start) = (prompts.saturating_mul(2).min(most_prompts), found);
        }
        Err(SyntheticPairError::NotReached { wanted, tolerance, nearest })
    }
}

/// Returns the pair's weights. The outputs of the drafter's layers after the first are multiplied
/// by `residual`.
fn weights(options: &SyntheticPairOptions, residual: f32) -> SyntheticWeights<'_> {
    let SyntheticPairOptions { draft_layers, seed, dtype, .. } = *options;
    SyntheticWeights { target: &options.target, draft_layers, residual, seed, dtype }
}

fn check(options: &SyntheticPairOptions) -> Result<(), SyntheticPairError> {
    let refuse = |option, found: String, expected: String| {
        Err(SyntheticPairError::Option { option, found, expected })
    };
    let layers = options.target.num_hidden_layers;
    if !(1..layers).contains(&options.draft_layers) {
        let expected =
            format!("1 to {}, fewer than the target's layers", layers.saturating_sub(1).max(1));
        return refuse("`draft_layers`", options.draft_layers.to_string(), expected);
    }
    check_goal(options.acceptance, options.tolerance)?;
    if let Some(overlap) = options.layer_parallel_overlap {
        if !(0.5..=0.99).contains(&overlap) {
            return refuse("`layer_parallel_overlap`", overlap.to_string(), "0.5 to 0.99".into());
        }
        if options.draft_layers < AT_A_TIME {
            let expected = format!(
                "{AT_A_TIME} or more, so that {AT_A_TIME} layers can be computed at a time"
            );
            return refuse("`draft_layers`", options.draft_layers.to_string(), expected);
        }
    }
    let context = options.target.max_position_embeddings;
    if options.prompts == 0 || options.max_tokens < 2 {
        let found =
            format!("{} prompts and {} tokens per answer", options.prompts, options.max_tokens);
        let expected = "at least one prompt and two tokens per answer".to_owned();
        return refuse("the measurement", found, expected);
    }
    if context < PROMPT_TOKENS + options.max_tokens {
        let expected = format!(
            "at least {}: {PROMPT_TOKENS} tokens of a prompt and {} of its answer",
            PROMPT_TOKENS + options.max_tokens,
            options.max_tokens
        );
        return refuse("the target's context", context.to_string(), expected);
    }
    Ok(())
}

fn check_goal(acceptance: f64, tolerance: f64) -> Result<(), SyntheticPairError> {
    let refuse = |option, found: f64, expected: &str| {
        let (found, expected) = (found.to_string(), expected.to_owned());
        Err(SyntheticPairError::Option { option, found, expected })
    };
    if !(0.02..=0.98).contains(&acceptance) {
        return refuse("`acceptance`", acceptance, "0.02 to 0.98");
    }
    if !(0.002..=0.5).contains(&tolerance) {
        return refuse("`tolerance`", tolerance, "0.002 to 0.5");
    }
    Ok(())
}

/// Searches for the ε with the wanted acceptance (or overlap), and returns the nearest one found.
///
/// Acceptance is 1 at ε = 0 and falls with ε. Steps grow until two values enclose the wanted one.
/// Then the next value is a linear interpolation in ln ε, kept away from both ends.
fn search<E>(
    wanted: f64,
    tolerance: f64,
    start: f32,
    mut acceptance: impl FnMut(f32) -> Result<f64, E>,
) -> Result<f32, E> {
    let mut low: Option<(f64, f64)> = None;
    let mut high: Option<(f64, f64)> = None;
    let mut log_epsilon = f64::from(start).ln();
    // Steps grow until there is a value on either side.
    let mut step = std::f64::consts::LN_2;
    let mut best = (f64::INFINITY, start);
    for _ in 0..TRIALS {
        let epsilon = log_epsilon.exp() as f32;
        let found = acceptance(epsilon)?;
        let difference = (found - wanted).abs();
        if difference < best.0 {
            best = (difference, epsilon);
        }
        if difference <= tolerance {
            break;
        }
        if found > wanted {
            low = Some((log_epsilon, found));
        } else {
            high = Some((log_epsilon, found));
        }
        log_epsilon = match (low, high) {
            (Some((from, more)), Some((to, less))) => {
                let share = (more - wanted) / (more - less).max(f64::MIN_POSITIVE);
                from + (to - from) * share.clamp(0.1, 0.9)
            }
            (Some((from, _)), None) => from + step,
            (None, Some((to, _))) => to - step,
            (None, None) => log_epsilon,
        };
        step *= 1.5;
    }
    Ok(best.1)
}

/// Writes the given tokenizer, or one of the target's vocabulary size.
fn write_tokenizer(options: &SyntheticPairOptions, folder: &Path) -> Result<(), LoadError> {
    let Some(from) = &options.tokenizer else {
        let vocab_size = options.target.vocab_size;
        let json = byte_pair_tokenizer(vocab_size);
        // A pair that is overwritten may have left one.
        drop(fs::remove_file(folder.join("tokenizer_config.json")));
        return write(&folder.join("tokenizer.json"), &format!("{json:#}\n"));
    };
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        if let Some(text) = from.text(name) {
            write(&folder.join(name), text)?;
        }
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), LoadError> {
    forerun_output::write(file, text).map_err(write_error(file))
}

fn write_error(path: &Path) -> impl FnOnce(io::Error) -> LoadError {
    |cause| LoadError::Write { path: path.to_owned(), cause }
}

/// Labels both models with the measurements: in `config.json` for programs, and in `README.md` for
/// readers.
fn label(options: &SyntheticPairOptions, pair: &SyntheticPair) -> Result<(), LoadError> {
    let SyntheticPair { target, drafter, residual, epsilon, acceptance, .. } = pair;
    for (folder, role) in [(target, "target"), (drafter, "drafter")] {
        let file = folder.join("config.json");
        let text = fs::read_to_string(&file)
            .map_err(|cause| LoadError::Read { path: file.clone(), cause })?;
        let mut config: Value = serde_json::from_str(&text)
            .map_err(|cause| LoadError::Json { file: file.clone(), cause })?;
        let label = &mut config[SYNTHETIC_PAIR];
        label["epsilon"] = json!(epsilon);
        label["draft_layers"] = json!(options.draft_layers);
        label["acceptance"] = json!((acceptance.rate * 1e3).round() / 1e3);
        label["positions"] = json!(acceptance.positions);
        label["temperature"] = json!(options.temperature);
        if let Some(ResidualCalibration { scale, overlap }) = residual {
            label["residual"] = json!(scale);
            label["fuzzy_overlap"] = json!((overlap * 1e3).round() / 1e3);
        }
        write(&file, &format!("{config:#}\n"))?;
        write(&folder.join("README.md"), &readme(options, role, pair))?;
    }
    Ok(())
}

fn readme(options: &SyntheticPairOptions, role: &str, pair: &SyntheticPair) -> String {
    let SyntheticPair { residual, epsilon, acceptance, .. } = pair;
    let AcceptanceCalibration { rate, positions, rate_of_all, all_positions, distinct_4_grams } =
        acceptance;
    let residual = residual.map_or(String::new(), |ResidualCalibration { scale, overlap }| {
        format!(
            " The outputs of the drafter's layers after the first are scaled by {scale}, so that rows \
             computed {AT_A_TIME} layers at a time (EasySpec) have an overlap of {overlap:.3} with exact \
             rows."
        )
    });
    let SyntheticPairOptions { target, draft_layers, seed, temperature, .. } = options;
    format!(
        "# The {role} of a synthetic pair\n\n\
         **Random weights, made to measure speed: the text is noise.** Written by `forerun make-pair` \
         (forerun {}, seed {seed}). The target has {} layers. The drafter has the first {draft_layers} of \
         them, and the target's embedding, norm and head. The outputs of the other layers are scaled by \
         {epsilon}, so that {:.1} % of the drafter's tokens are accepted (temperature {temperature}, \
         drafts of {DRAFT_TOKENS} tokens, {positions} positions after distinct tokens, on prompts that the \
         search did not use; {:.1} % at all {all_positions} positions). {:.1} % of the answers' 4-grams are \
         distinct.{residual}\n",
        env!("CARGO_PKG_VERSION"),
        target.num_hidden_layers,
        rate * 100.0,
        rate_of_all * 100.0,
        distinct_4_grams * 100.0,
    )
}

/// Describes a model of a synthetic or grown pair in a few words, for reports. Returns `None` for
/// other models.
#[must_use]
pub fn synthetic_pair_label(model: &Path) -> Option<String> {
    let text = fs::read_to_string(model.join("config.json")).ok()?;
    let config: Value = serde_json::from_str(&text).ok()?;
    let label = config.get(SYNTHETIC_PAIR)?;
    let role = label["role"].as_str().unwrap_or("model");
    let acceptance = label["acceptance"].as_f64();
    let acceptance = acceptance.map_or(String::new(), |rate| {
        let temperature = label["temperature"].as_f64().unwrap_or(0.0);
        format!(", calibrated to an acceptance of {rate:.2} at temperature {temperature}")
    });
    Some(match label["from"].as_str() {
        None => format!("synthetic {role}: random weights{acceptance}"),
        Some(from) if role == "drafter" => format!("drafter of a grown pair: {from}"),
        Some(from) => {
            let layers = &label["random_layers"];
            format!(
                "target of a grown pair: {from}, followed by {layers} random layers{acceptance}"
            )
        }
    })
}

/// Returns the bytes of weights that a pass with logits reads.
fn bytes_read(target: &Config, layers: usize, dtype: Dtype) -> usize {
    let Config { hidden_size: hidden, intermediate_size: mlp, vocab_size, .. } = target;
    let attention = 2 * target.num_attention_heads + 2 * target.num_key_value_heads;
    let layer = hidden * target.head_dim * attention + 3 * hidden * mlp;
    let element = if dtype == Dtype::F32 { 4 } else { 2 };
    (layers * layer + vocab_size * hidden) * element
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun::RandomPair;
    use std::convert::Infallible;

    #[test]
    fn the_search_ends_near_the_wanted_acceptance() {
        // Acceptance as a falling function of ε, rounded as measurements are.
        for slope in [0.3_f64, 1.0, 4.0] {
            for wanted in [0.05, 0.6, 0.8, 0.95] {
                let mut trials = 0;
                let acceptance = |epsilon: f32| {
                    trials += 1;
                    let rate = 1.0 / (1.0 + (f64::from(epsilon) / 0.4).powf(slope));
                    Ok::<_, Infallible>((rate * 1500.0).round() / 1500.0)
                };
                let Ok(found) = search(wanted, 0.01, 0.25, acceptance);
                let rate = 1.0 / (1.0 + (f64::from(found) / 0.4).powf(slope));
                assert!((rate - wanted).abs() <= 0.011, "{wanted} at slope {slope}: {rate}");
                assert!(trials <= TRIALS);
            }
        }
        let failing = search(0.5, 0.01, 0.25, |_| Err("no"));
        assert_eq!(failing, Err("no"));
    }

    #[test]
    fn only_synthetic_models_have_a_label() {
        let pair = RandomPair::make().unwrap();
        assert_eq!(synthetic_pair_label(pair.target()), None);
        assert_eq!(synthetic_pair_label(Path::new("/nowhere/at/all")), None);
        let file = pair.target().join("config.json");
        let text = fs::read_to_string(&file).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[SYNTHETIC_PAIR] = json!({"role": "target"});
        fs::write(&file, config.to_string()).unwrap();
        let label = synthetic_pair_label(pair.target()).unwrap();
        assert_eq!(label, "synthetic target: random weights");
    }
}

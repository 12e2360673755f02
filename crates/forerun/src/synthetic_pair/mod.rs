//! Pairs that are made to an acceptance: random weights of any size, whose drafter is right as often as
//! asked, so that speed can be measured where no trained pair is at hand.
//!
//! The target is the drafter and further layers whose output projections are scaled by ε
//! ([`SyntheticWeights`]). ε is searched by what counts: real speculative decoding.

mod acceptance;
mod residual;

pub use acceptance::AcceptanceCalibration;
pub use residual::ResidualCalibration;

use crate::{ForerunError, PlanError};
use acceptance::{DRAFT_TOKENS, PROMPT_TOKENS, measure_pair};
use forerun_model::checkpoint::random::{SYNTHETIC_PAIR, SyntheticWeights, byte_pair_tokenizer};
use forerun_model::checkpoint::{Dtype, LoadError};
use forerun_model::{Config, ModelError, TeamError};
use residual::{AT_A_TIME, make_residual};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// Values of ε that are tried for one number of prompts.
const TRIALS: usize = 14;
/// How often the number of prompts is doubled where other prompts disagree.
const ROUNDS: usize = 3;

/// What pair is wanted.
#[derive(Clone, Debug)]
pub struct SyntheticPairOptions {
    /// The target's shape.
    pub target: Config,
    /// Layers of the drafter; all else it has from the target.
    pub draft_layers: usize,
    /// Accepted over tested draft tokens.
    pub acceptance: f64,
    /// Of a drafter for EasySpec, the overlap (`1 − TV`) of rows that are computed four layers at a time
    /// with exact ones; `None` leaves its layers as they are, which loses nearly everything.
    pub fuzzy_overlap: Option<f64>,
    /// How far from either the measured one may be.
    pub tolerance: f64,
    /// The temperature at which it is measured; 0 is greedy. Above, drafts are verified by rejection.
    pub temperature: f32,
    /// The type in which weights are stored.
    pub dtype: Dtype,
    /// What weights and prompts follow from.
    pub seed: u64,
    /// Prompts that are continued in the first round of the search.
    pub prompts: usize,
    /// Tokens of each answer.
    pub max_tokens: usize,
    /// A folder with the files of a tokenizer of exactly the target's vocabulary; else one is made.
    pub tokenizer: Option<PathBuf>,
}

/// One value that was tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CalibrationStep {
    /// Of what scales the drafter's layers behind the first.
    Residual {
        /// The value.
        scale: f32,
        /// The overlap of rows computed four layers at a time with exact ones.
        overlap: f64,
        /// Whether on texts that the search has not seen.
        other_texts: bool,
    },
    /// Of what scales the target's further layers.
    Epsilon {
        /// The value.
        epsilon: f32,
        /// What came of it.
        acceptance: AcceptanceCalibration,
        /// Prompts that were continued.
        prompts: usize,
        /// Whether on prompts that the search has not seen.
        other_prompts: bool,
    },
}

/// A pair that was made.
#[derive(Clone, Debug)]
pub struct SyntheticPair {
    /// The target's folder.
    pub target: PathBuf,
    /// The drafter's folder.
    pub drafter: PathBuf,
    /// What scales the drafter's layers behind the first, if that was asked for.
    pub residual: Option<ResidualCalibration>,
    /// What scales the target's further layers.
    pub epsilon: f32,
    /// What was measured on prompts that the search had not seen.
    pub acceptance: AcceptanceCalibration,
    /// Bytes of weights that a pass of the target and one of the drafter read.
    pub bytes_read: [usize; 2],
}

/// Why there is no pair.
#[derive(Debug, thiserror::Error)]
pub enum SyntheticPairError {
    /// Options that make no pair.
    #[error("{option} is {found}; expected {expected}")]
    Option {
        /// Which.
        option: &'static str,
        /// Its value.
        found: String,
        /// What makes a pair.
        expected: String,
    },
    /// Weights or texts that cannot be written or read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A pair that cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A pair that cannot be run.
    #[error(transparent)]
    Run(#[from] ForerunError),
    /// A drafter whose rows cannot be computed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Threads that cannot be had.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// A search for the drafter's layers without an end.
    #[error(
        "no scale of the drafter's layers gives an overlap of {wished:.3} ± {tolerance:.3} with these \
         sizes: it was {nearest:.3}; ask for another one, more tolerance or prompts, or another --seed"
    )]
    OverlapNotReached {
        /// What was asked for.
        wished: f64,
        /// How near it had to be.
        tolerance: f64,
        /// What there was.
        nearest: f64,
    },
    /// A search without an end.
    #[error(
        "no scale gives an acceptance of {wished:.3} ± {tolerance:.3} with these sizes: the nearest was \
         {nearest:.3}; ask for another one, more tolerance, or another --seed"
    )]
    NotReached {
        /// What was asked for.
        wished: f64,
        /// How near it had to be.
        tolerance: f64,
        /// What there was.
        nearest: f64,
    },
}

/// Makes a pair in `folder/target` and `folder/drafter`, searching until the acceptance is as asked, on
/// all cores. `on_step` sees every value that is tried.
///
/// # Errors
/// If the options make no pair, files cannot be written, or the acceptance is not reached.
pub fn make_pair(
    options: &SyntheticPairOptions,
    folder: &Path,
    mut on_step: impl FnMut(&CalibrationStep),
) -> Result<SyntheticPair, SyntheticPairError> {
    check(options)?;
    let target = folder.join("target");
    let drafter = folder.join("drafter");
    let residual = match options.fuzzy_overlap {
        Some(wished) => Some(make_residual(options, wished, &drafter, &mut on_step)?),
        None => None,
    };
    let weights = weights(options, residual.map_or(1.0, |found| found.scale));
    weights.write_drafter(&drafter)?;
    write_tokenizer(options, &drafter)?;
    let mut try_it = |epsilon: f32, prompts: usize, other_prompts: bool| {
        weights.write_target(&target, epsilon)?;
        write_tokenizer(options, &target)?;
        let acceptance = measure_pair(options, [&target, &drafter], prompts, other_prompts)?;
        let step = CalibrationStep::Epsilon { epsilon, acceptance, prompts, other_prompts };
        on_step(&step);
        Ok::<_, SyntheticPairError>(acceptance)
    };
    let (wished, tolerance) = (options.acceptance, options.tolerance);
    let mut prompts = options.prompts;
    let (mut start, mut nearest) = (0.25, f64::INFINITY);
    for _ in 0..ROUNDS {
        let found = search(wished, tolerance / 2.0, start, |epsilon| {
            Ok::<_, SyntheticPairError>(try_it(epsilon, prompts, false)?.rate)
        })?;
        let acceptance = try_it(found, prompts, true)?;
        if (acceptance.rate - wished).abs() < (nearest - wished).abs() {
            nearest = acceptance.rate;
        }
        if (acceptance.rate - wished).abs() <= tolerance {
            let bytes_read = [options.target.num_hidden_layers, options.draft_layers]
                .map(|layers| bytes_read(&options.target, layers, options.dtype));
            let epsilon = found;
            let made = SyntheticPair { target, drafter, residual, epsilon, acceptance, bytes_read };
            label(options, &made)?;
            return Ok(made);
        }
        (prompts, start) = (prompts * 2, found);
    }
    Err(SyntheticPairError::NotReached { wished, tolerance, nearest })
}

/// The pair's weights, the drafter's layers behind the first counting `residual` times.
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
        let expected = format!("1 to {}, fewer than the target's", layers.saturating_sub(1).max(1));
        return refuse(
            "the drafter's number of layers",
            options.draft_layers.to_string(),
            expected,
        );
    }
    if !(0.02..=0.98).contains(&options.acceptance) {
        return refuse("the acceptance", options.acceptance.to_string(), "0.02 to 0.98".into());
    }
    if let Some(overlap) = options.fuzzy_overlap {
        if !(0.5..=0.99).contains(&overlap) {
            return refuse("the fuzzy overlap", overlap.to_string(), "0.5 to 0.99".into());
        }
        if options.draft_layers < AT_A_TIME {
            let expected = format!("{AT_A_TIME} or more, to be computed several at a time");
            let found = options.draft_layers.to_string();
            return refuse("the drafter's number of layers", found, expected);
        }
    }
    if !(0.002..=0.5).contains(&options.tolerance) {
        return refuse("the tolerance", options.tolerance.to_string(), "0.002 to 0.5".into());
    }
    let context = options.target.max_position_embeddings;
    if options.prompts == 0 || options.max_tokens < 2 {
        let found = format!("{} prompts, {} tokens each", options.prompts, options.max_tokens);
        return refuse("what is measured", found, "a prompt and two tokens at least".into());
    }
    if context < PROMPT_TOKENS + options.max_tokens {
        let expected = format!(
            "at least the {PROMPT_TOKENS} tokens of a prompt and {} of its answer",
            options.max_tokens
        );
        return refuse("the context", context.to_string(), expected);
    }
    Ok(())
}

/// The ε whose acceptance (or overlap) is near enough. It is 1 at 0 and falls with ε; where it lies between
/// two values, the next one is where a straight line (in ln ε) meets the wish, held off the ends.
fn search<E>(
    wished: f64,
    tolerance: f64,
    start: f32,
    mut acceptance: impl FnMut(f32) -> Result<f64, E>,
) -> Result<f32, E> {
    let mut low: Option<(f64, f64)> = None;
    let mut high: Option<(f64, f64)> = None;
    let mut place = f64::from(start).ln();
    // Ever longer steps until there is a value on either side.
    let mut step = std::f64::consts::LN_2;
    let mut best = (f64::INFINITY, start);
    for _ in 0..TRIALS {
        let epsilon = place.exp() as f32;
        let found = acceptance(epsilon)?;
        let off = (found - wished).abs();
        if off < best.0 {
            best = (off, epsilon);
        }
        if off <= tolerance {
            break;
        }
        if found > wished {
            low = Some((place, found));
        } else {
            high = Some((place, found));
        }
        place = match (low, high) {
            (Some((from, more)), Some((to, less))) => {
                let share = (more - wished) / (more - less).max(f64::MIN_POSITIVE);
                from + (to - from) * share.clamp(0.1, 0.9)
            }
            (Some((from, _)), None) => from + step,
            (None, Some((to, _))) => to - step,
            (None, None) => place,
        };
        step *= 1.5;
    }
    Ok(best.1)
}

/// Replaces the made tokenizer by another one's files, or by one of the whole vocabulary.
fn write_tokenizer(options: &SyntheticPairOptions, folder: &Path) -> Result<(), LoadError> {
    let Some(from) = &options.tokenizer else {
        let vocab_size = options.target.vocab_size;
        let json = byte_pair_tokenizer(vocab_size);
        // That of another pair, which this one is written over.
        drop(fs::remove_file(folder.join("tokenizer_config.json")));
        return write(&folder.join("tokenizer.json"), &format!("{json:#}\n"));
    };
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let (source, file) = (from.join(name), folder.join(name));
        if name == "tokenizer.json" || source.exists() {
            fs::copy(&source, &file).map_err(|cause| LoadError::Read { path: source, cause })?;
        }
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), LoadError> {
    fs::write(file, text).map_err(|cause| LoadError::Write { path: file.to_owned(), cause })
}

/// Says in both models' files what they are: the option of `config.json` gets what was measured, and a
/// `README.md` says it to readers.
fn label(options: &SyntheticPairOptions, made: &SyntheticPair) -> Result<(), LoadError> {
    let SyntheticPair { target, drafter, residual, epsilon, acceptance, .. } = made;
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
        write(&folder.join("README.md"), &readme(options, role, made))?;
    }
    Ok(())
}

fn readme(options: &SyntheticPairOptions, role: &str, made: &SyntheticPair) -> String {
    let SyntheticPair { residual, epsilon, acceptance, .. } = made;
    let AcceptanceCalibration { rate, positions, rate_of_all, all_positions, distinct_4_grams } =
        acceptance;
    let residual = residual.map_or(String::new(), |ResidualCalibration { scale, overlap }| {
        format!(
            " What the drafter's layers behind the first add is scaled by {scale}, so that rows computed \
             {AT_A_TIME} layers at a time (EasySpec) have an overlap of {overlap:.3} with exact ones."
        )
    });
    let SyntheticPairOptions { target, draft_layers, seed, temperature, .. } = options;
    format!(
        "# The {role} of a made pair\n\n\
         **Random weights, made to measure speed: the text is noise.** Written by `forerun make-pair` \
         (forerun {}, seed {seed}). The target has {} layers; the drafter has its first {draft_layers}, \
         and its embedding, norm and head. What the other layers add is scaled by {epsilon}, so that of \
         the drafter's tokens {:.1} % are accepted (temperature {temperature}, drafts of {DRAFT_TOKENS} \
         tokens, {positions} tested positions behind different tokens, on prompts that the search had not \
         seen; {:.1} % of all {all_positions}; {:.1} % of the answers' sequences of four tokens are \
         different).{residual}\n",
        env!("CARGO_PKG_VERSION"),
        target.num_hidden_layers,
        rate * 100.0,
        rate_of_all * 100.0,
        distinct_4_grams * 100.0,
    )
}

/// What a model says of itself if it was made: a few words for reports; `None` for any other.
#[must_use]
pub fn synthetic_pair_label(model: &Path) -> Option<String> {
    let text = fs::read_to_string(model.join("config.json")).ok()?;
    let config: Value = serde_json::from_str(&text).ok()?;
    let label = config.get(SYNTHETIC_PAIR)?;
    let role = label["role"].as_str().unwrap_or("model");
    let acceptance = label["acceptance"].as_f64();
    let acceptance = acceptance.map_or(String::new(), |rate| {
        let temperature = label["temperature"].as_f64().unwrap_or(0.0);
        format!(", made to an acceptance of {rate:.2} at temperature {temperature}")
    });
    Some(format!("made {role}: random weights{acceptance}"))
}

/// Bytes of the weights that a pass with logits reads.
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
    use crate::RandomPair;
    use std::convert::Infallible;

    #[test]
    fn the_search_ends_near_the_wish() {
        // Acceptance as it may fall with ε, with steps as a measurement has them.
        for slope in [0.3_f64, 1.0, 4.0] {
            for wished in [0.05, 0.6, 0.8, 0.95] {
                let mut trials = 0;
                let acceptance = |epsilon: f32| {
                    trials += 1;
                    let rate = 1.0 / (1.0 + (f64::from(epsilon) / 0.4).powf(slope));
                    Ok::<_, Infallible>((rate * 1500.0).round() / 1500.0)
                };
                let Ok(found) = search(wished, 0.01, 0.25, acceptance);
                let rate = 1.0 / (1.0 + (f64::from(found) / 0.4).powf(slope));
                assert!((rate - wished).abs() <= 0.011, "{wished} at slope {slope}: {rate}");
                assert!(trials <= TRIALS);
            }
        }
        let failing = search(0.5, 0.01, 0.25, |_| Err("no"));
        assert_eq!(failing, Err("no"));
    }

    #[test]
    fn only_made_models_say_so() {
        let pair = RandomPair::make().unwrap();
        assert_eq!(synthetic_pair_label(pair.target()), None);
        assert_eq!(synthetic_pair_label(Path::new("/nowhere/at/all")), None);
        let file = pair.target().join("config.json");
        let text = fs::read_to_string(&file).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[SYNTHETIC_PAIR] = json!({"role": "target"});
        fs::write(&file, config.to_string()).unwrap();
        assert_eq!(synthetic_pair_label(pair.target()).unwrap(), "made target: random weights");
    }
}

//! Synthetic drafters for EasySpec, which computes several layers at a time.
//!
//! Layers of trained models change the hidden state little, random ones a lot. So the outputs of a
//! random drafter's layers are scaled until rows computed several layers at a time are as close to
//! exact rows as requested.

use super::acceptance::{prompt_seed, random_tokens};
use super::{CalibrationStep, SyntheticPairError, SyntheticPairOptions, search, weights};
use forerun_core::TokenId;
use forerun_cpu::layer_probe::{LayerProbe, Strategy};
use forerun_cpu::{Team, Weights};
use forerun_formats::Checkpoint;
use forerun_lm::LayerGroups;
use forerun_runtime::default_cores;
use std::path::Path;
use std::sync::Arc;

/// The number of layers at a time, in the paper's groups.
pub(super) const AT_A_TIME: usize = 4;
/// The number of approximate rows after every exact one.
const DEPTH: usize = 4;
/// The maximum number of tokens of the random texts.
const TEXT_TOKENS: usize = 64;

/// The calibration of a synthetic drafter's layers after the first, for EasySpec.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResidualCalibration {
    /// The factor that multiplies the outputs of these layers.
    pub scale: f32,
    /// The overlap (`1 − TV`) of rows computed four layers at a time and exact rows, on texts that
    /// the search did not use.
    pub overlap: f64,
}

/// Searches for the scale, and writes the drafter with it to its folder.
pub(super) fn calibrate_residual(
    options: &SyntheticPairOptions,
    wanted: f64,
    drafter: &Path,
    on_step: &mut dyn FnMut(&CalibrationStep),
) -> Result<ResidualCalibration, SyntheticPairError> {
    let team = Arc::new(Team::unpinned(default_cores().len())?);
    let mut try_scale = |scale: f32, other_texts: bool| {
        weights(options, scale).write_drafter(drafter)?;
        let overlap = measure(options, drafter, &team, other_texts)?;
        on_step(&CalibrationStep::Residual { scale, overlap, other_texts });
        Ok::<_, SyntheticPairError>(overlap)
    };
    // The scale with which models are initialised so that all layers together add as much as one.
    let start = (2.0 * options.draft_layers as f32).sqrt().recip();
    let tolerance = options.tolerance;
    let scale = search(wanted, tolerance / 2.0, start, |scale| try_scale(scale, false))?;
    let overlap = try_scale(scale, true)?;
    if (overlap - wanted).abs() > tolerance {
        let nearest = overlap;
        return Err(SyntheticPairError::OverlapNotReached { wanted, tolerance, nearest });
    }
    Ok(ResidualCalibration { scale, overlap })
}

/// Measures the overlap of the drafter on disk.
fn measure(
    options: &SyntheticPairOptions,
    drafter: &Path,
    team: &Arc<Team>,
    other_texts: bool,
) -> Result<f64, SyntheticPairError> {
    let count = TEXT_TOKENS.min(options.target.max_position_embeddings);
    let texts = (0..options.prompts as u64).map(|text| {
        let seed = prompt_seed(options.seed, text, other_texts);
        random_tokens(seed, count, options.target.vocab_size)
    });
    overlap(drafter, options.draft_layers, team, texts)
}

/// Returns the overlap of a model's rows computed four layers at a time and its exact rows on
/// texts.
pub(super) fn overlap(
    model: &Path,
    layers: usize,
    team: &Arc<Team>,
    texts: impl Iterator<Item = Vec<TokenId>>,
) -> Result<f64, SyntheticPairError> {
    let loaded = Arc::new(Weights::load(&Checkpoint::open(model)?)?);
    let groups = LayerGroups::parallel(layers, AT_A_TIME);
    let strategies = vec![Strategy { groups, whole_layers: false }];
    let mut probe = LayerProbe::new(loaded, None, team, DEPTH, strategies);
    for text in texts {
        probe.score(&text)?;
    }
    Ok(probe.scores().first().map_or(f64::NAN, |score| score.overlap))
}

//! Made drafters whose layers can be computed several at a time (EasySpec): what a layer adds is scaled
//! until rows that are computed so are as near to exact ones as asked. Layers of trained models change
//! the hidden state little, random ones a lot.

use super::acceptance::{prompt_seed, random_tokens};
use super::{CalibrationStep, SyntheticPairError, SyntheticPairOptions, search, weights};
use forerun_model::layer_probe::{LayerProbe, Strategy};
use forerun_model::{Checkpoint, LayerGroups, Team, Weights};
use forerun_runtime::cores_within_quota;
use std::path::Path;
use std::sync::Arc;

/// Layers at a time, in the paper's groups.
pub(super) const AT_A_TIME: usize = 4;
/// Fuzzy rows behind every exact one.
const DEPTH: usize = 4;
/// Tokens of the random texts, at the most.
const TEXT_TOKENS: usize = 64;

/// How a made drafter's layers behind the first were scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResidualCalibration {
    /// What multiplies that which they add.
    pub scale: f32,
    /// `1 − TV` between rows computed four layers at a time and exact ones, on texts that the search had
    /// not seen.
    pub overlap: f64,
}

/// Searches for the scale, and leaves the drafter with it in its folder.
pub(super) fn make_residual(
    options: &SyntheticPairOptions,
    wished: f64,
    drafter: &Path,
    on_step: &mut dyn FnMut(&CalibrationStep),
) -> Result<ResidualCalibration, SyntheticPairError> {
    let team = Arc::new(Team::unpinned(cores_within_quota().len())?);
    let mut try_it = |scale: f32, other_texts: bool| {
        weights(options, scale).write_drafter(drafter)?;
        let overlap = measure(options, drafter, &team, other_texts)?;
        on_step(&CalibrationStep::Residual { scale, overlap, other_texts });
        Ok::<_, SyntheticPairError>(overlap)
    };
    // As models are initialised whose layers add up to what one would add.
    let start = (2.0 * options.draft_layers as f32).sqrt().recip();
    let tolerance = options.tolerance;
    let scale = search(wished, tolerance / 2.0, start, |scale| try_it(scale, false))?;
    let overlap = try_it(scale, true)?;
    if (overlap - wished).abs() > tolerance {
        let nearest = overlap;
        return Err(SyntheticPairError::OverlapNotReached { wished, tolerance, nearest });
    }
    Ok(ResidualCalibration { scale, overlap })
}

/// The overlap of the drafter as it lies there.
fn measure(
    options: &SyntheticPairOptions,
    drafter: &Path,
    team: &Arc<Team>,
    other_texts: bool,
) -> Result<f64, SyntheticPairError> {
    let loaded = Arc::new(Weights::load(&Checkpoint::open(drafter)?)?);
    let groups = LayerGroups::parallel(options.draft_layers, AT_A_TIME);
    let strategies = vec![Strategy { groups, whole_layers: false }];
    let mut probe = LayerProbe::new(loaded, None, team, DEPTH, strategies);
    let count = TEXT_TOKENS.min(options.target.max_position_embeddings);
    for text in 0..options.prompts as u64 {
        let seed = prompt_seed(options.seed, text, other_texts);
        probe.score(&random_tokens(seed, count, options.target.vocab_size))?;
    }
    Ok(probe.scores().first().map_or(f64::NAN, |score| score.overlap))
}

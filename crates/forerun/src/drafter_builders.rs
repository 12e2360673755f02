//! How the drafters with a checkpoint are built: one function for each of them, which the registry
//! names.

use crate::drafter_parts::{DraftModel, DrafterParts, Site};
use crate::error::ForerunError;
use crate::placed_weights::{PlacedHeads, PlacedWeights};
use forerun_cpu::{BlockHeadWeights, CpuBlockHeads, SpeculatorWeights};
use forerun_decode::DraftPattern;
use forerun_draft::{
    Drafter, EagleDrafter, HydraDrafter, LayerParallelDrafter, Masks, MedusaDrafter, ModelDrafter,
    OuroborosDrafter, ParallelDrafter, ParallelEagleDrafter, VocabTranslationDrafter,
};
#[cfg(feature = "gpu")]
use forerun_formats::SpeculatorArchitecture;
use forerun_formats::{DraftBlock, DraftHeads, ModelTypes, Speculator, SpeculatorKind};
#[cfg(feature = "gpu")]
use forerun_gpu::{GpuHeadWeights, GpuLoadError, GpuWeights};
use forerun_lm::LayerGroupsError;
use std::sync::Arc;

/// Checks an open language model, and returns how a drafter uses its weights.
pub(crate) type BuildModel = fn(&DraftModel<'_>) -> Result<UseWeights, UnsuitableModel>;

/// Why a drafter cannot use an open language model.
pub(crate) enum UnsuitableModel {
    /// The layer groups do not fit the model.
    LayerGroups(LayerGroupsError),
    /// The model holds no drafter of the requested kind.
    NotADrafter,
}

/// Returns a drafter that uses a language model's weights.
pub(crate) type UseWeights = Box<dyn FnOnce(PlacedWeights) -> DrafterParts>;

type Built = Result<Box<dyn Drafter>, String>;

/// The number of tokens in a round of EasySpec if drafting runs ahead: the paper's draft length.
const LAYER_PARALLEL_ROUND: usize = 5;

/// Drafts one token per pass. Drafts of another vocabulary are translated by their text.
pub(crate) fn model(draft_model: &DraftModel<'_>) -> Result<UseWeights, UnsuitableModel> {
    let translation = draft_model.translation.clone();
    Ok(Box::new(move |weights| {
        DrafterParts::new(DraftPattern::default(), move |site: &Site<'_>| -> Built {
            let model = site.model(&weights)?;
            Ok(match &translation {
                Some(translation) => {
                    Box::new(VocabTranslationDrafter::new(model, Arc::clone(translation)))
                }
                None => Box::new(ModelDrafter::new(model).with_vocab_size(site.vocab_size)),
            })
        })
    }))
}

/// Computes several layers of the model at a time.
pub(crate) fn easyspec(draft_model: &DraftModel<'_>) -> Result<UseWeights, UnsuitableModel> {
    let easyspec = draft_model.easyspec.cloned().unwrap_or_default();
    let n_layers = draft_model.checkpoint.config().num_hidden_layers;
    let groups = easyspec.layers.groups(n_layers).map_err(UnsuitableModel::LayerGroups)?;
    Ok(Box::new(move |weights| {
        DrafterParts::new(DraftPattern::default(), move |site: &Site<'_>| -> Built {
            let (model, groups) = (site.model(&weights)?, groups.clone());
            let drafter = LayerParallelDrafter::new(model, groups, easyspec.calibration);
            let drafter = drafter.with_round_length(LAYER_PARALLEL_ROUND);
            Ok(Box::new(drafter.with_vocab_size(site.vocab_size)))
        })
    }))
}

/// Extends the model's drafts by phrases.
pub(crate) fn ouroboros(_draft_model: &DraftModel<'_>) -> Result<UseWeights, UnsuitableModel> {
    Ok(Box::new(move |weights| {
        DrafterParts::new(DraftPattern::default(), move |site: &Site<'_>| -> Built {
            let drafter = OuroborosDrafter::new(site.model(&weights)?);
            Ok(Box::new(drafter.with_vocab_size(site.vocab_size)))
        })
    }))
}

/// Uses the model's mask token for all positions.
pub(crate) fn pard(draft_model: &DraftModel<'_>) -> Result<UseWeights, UnsuitableModel> {
    let Some(SpeculatorKind::Pard { mask }) = draft_model.layout else {
        return Err(UnsuitableModel::NotADrafter);
    };
    let pattern = DraftPattern::in_one_forward(None);
    Ok(Box::new(move |weights| drafts_at_masks(weights, Masks::Repeated(mask), pattern)))
}

/// The weights of a drafter that was trained for a target.
enum SpeculatorParts {
    Layers(PlacedWeights),
    Heads(PlacedHeads),
}

impl SpeculatorParts {
    /// Loads them on the device where the `target` is, or the part of it that they share.
    fn load(
        speculator: &Speculator,
        target: &PlacedWeights,
        types: ModelTypes,
    ) -> Result<Self, ForerunError> {
        Ok(match target {
            PlacedWeights::Cores(target) => {
                match SpeculatorWeights::load(speculator, target, types)? {
                    SpeculatorWeights::Layers(weights) => {
                        Self::Layers(PlacedWeights::Cores(weights))
                    }
                    SpeculatorWeights::Heads(weights) => Self::Heads(PlacedHeads::Cores(weights)),
                }
            }
            #[cfg(feature = "gpu")]
            PlacedWeights::Gpu(target) => {
                Self::load_on_gpu(speculator, target, types).map_err(|cause| {
                    let model = speculator.path().display().to_string();
                    ForerunError::LoadOnGpu { model, cause: Box::new(cause) }
                })?
            }
        })
    }

    #[cfg(feature = "gpu")]
    fn load_on_gpu(
        speculator: &Speculator,
        target: &GpuWeights,
        types: ModelTypes,
    ) -> Result<Self, GpuLoadError> {
        Ok(match speculator.architecture()? {
            SpeculatorArchitecture::Layers(layers) => {
                let weights = GpuWeights::load_drafter(target, layers, speculator, types)?;
                Self::Layers(PlacedWeights::Gpu(Arc::new(weights)))
            }
            SpeculatorArchitecture::Heads(heads) => {
                let weights = GpuHeadWeights::load(target, heads, speculator, types)?;
                Self::Heads(PlacedHeads::Gpu(Arc::new(weights)))
            }
        })
    }
}

/// Loads a drafter that was trained for the target, heads, or layers on tokens or features, on the
/// device where the target is, or the part of it that the drafter shares.
pub(crate) fn speculator(
    speculator: &Speculator,
    target: &PlacedWeights,
    types: ModelTypes,
) -> Result<DrafterParts, ForerunError> {
    Ok(match SpeculatorParts::load(speculator, target, types)? {
        SpeculatorParts::Heads(weights) => heads(weights),
        SpeculatorParts::Layers(weights) if weights.architecture().feature_width() > 0 => {
            match (speculator.kind(), speculator.block()) {
                (SpeculatorKind::Pard2 { mask }, _) => {
                    let pattern = DraftPattern::in_one_forward(None);
                    masks_on_features((weights, None), Masks::Repeated(mask), pattern)
                }
                (_, Some(block)) => {
                    let heads = speculator.block_heads()?;
                    let heads = heads.map(|heads| BlockHeadWeights::load(heads, speculator, types));
                    blocks(weights, block, heads.transpose()?.map(Arc::new))
                }
                (SpeculatorKind::Assistant, None) => on_target_keys(weights),
                (kind, None) => layers_on_features(weights, kind == SpeculatorKind::PEagle),
            }
        }
        SpeculatorParts::Layers(weights) => {
            let masks = weights.architecture().mask_ids();
            let pattern = with_masks(masks.len());
            drafts_at_masks(weights, Masks::PerPosition(masks), pattern)
        }
    })
}

/// Heads on the target's last feature (Medusa), or on the tokens after it, too (Hydra).
fn heads(weights: PlacedHeads) -> DrafterParts {
    let DraftHeads { n_heads, reads_tokens, .. } = *weights.architecture();
    // Heads that read drafted tokens run one after another.
    let pattern = DraftPattern {
        positions: Some(n_heads),
        one_forward: !reads_tokens,
        ..DraftPattern::default()
    };
    DrafterParts::new(pattern, move |site: &Site<'_>| -> Built {
        let model = site.heads(&weights)?;
        Ok(match reads_tokens {
            true => Box::new(HydraDrafter::new(model, n_heads)),
            false => Box::new(MedusaDrafter::new(model, n_heads)),
        })
    })
}

/// Layers on the target's features that draft a block in one pass, with heads that correct it
/// position by position or without.
fn blocks(
    weights: PlacedWeights,
    block: DraftBlock,
    heads: Option<Arc<BlockHeadWeights>>,
) -> DrafterParts {
    let DraftBlock { mask, size, predicts_after, causal } = block;
    let masks = match (predicts_after, causal) {
        (true, _) => Masks::AnchoredBlock { mask, size },
        (false, true) => Masks::CausalBlock { mask, size },
        (false, false) => Masks::Block { mask, size },
    };
    // The product of the heads for each token is not part of the costs.
    let pattern = DraftPattern::in_one_forward(Some(block.positions()));
    masks_on_features((weights, heads), masks, pattern)
}

/// Layers on the target's features that draft at masks in one pass, with or without heads after
/// them, which are on cores.
fn masks_on_features(
    (weights, heads): (PlacedWeights, Option<Arc<BlockHeadWeights>>),
    masks: Masks,
    pattern: DraftPattern,
) -> DrafterParts {
    DrafterParts::new(pattern, move |site: &Site<'_>| -> Built {
        let drafter = ParallelEagleDrafter::new(site.block(&weights)?, masks.clone());
        Ok(match &heads {
            Some(heads) => {
                let heads = CpuBlockHeads::new(Arc::clone(heads), site.team()?);
                Box::new(drafter.with_heads(Box::new(heads)))
            }
            None => Box::new(drafter),
        })
    })
}

/// Layers on the target's features, with or without mask tokens. `repeats`: whether one mask stands
/// for all positions.
fn layers_on_features(weights: PlacedWeights, repeats: bool) -> DrafterParts {
    let ids = weights.architecture().mask_ids();
    let (masks, pattern) = match ids.len() {
        0 => (None, DraftPattern::default()),
        _ if repeats => {
            let pattern = DraftPattern::in_one_forward(None);
            (Some(Masks::Repeated(ids.start)), pattern)
        }
        masks => (Some(Masks::PerPosition(ids)), with_masks(masks)),
    };
    DrafterParts::new(pattern, move |site: &Site<'_>| -> Built {
        let model = site.eagle(&weights)?;
        Ok(match masks.clone() {
            None => Box::new(EagleDrafter::new(model)),
            Some(masks) => Box::new(ParallelEagleDrafter::new(model, masks)),
        })
    })
}

/// Layers that attend to the target's keys and values.
fn on_target_keys(weights: PlacedWeights) -> DrafterParts {
    DrafterParts::new(DraftPattern::default(), move |site: &Site<'_>| -> Built {
        Ok(Box::new(EagleDrafter::new(site.on_target_keys(&weights)?)))
    })
}

/// Returns the pattern of a drafter with this number of mask tokens: they follow a first position.
fn with_masks(masks: usize) -> DraftPattern {
    DraftPattern::in_one_forward(Some(masks + 1))
}

fn drafts_at_masks(weights: PlacedWeights, masks: Masks, pattern: DraftPattern) -> DrafterParts {
    DrafterParts::new(pattern, move |site: &Site<'_>| -> Built {
        let drafter = ParallelDrafter::new(site.model(&weights)?, masks.clone());
        Ok(Box::new(drafter.with_vocab_size(site.vocab_size)))
    })
}

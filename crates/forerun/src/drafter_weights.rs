//! The weights of a drafter, by kind.

use crate::translation::Translation;
use forerun_cpu::{HeadWeights, SpeculatorWeights, Weights};
use forerun_draft::{CalibrationPolicy, Masks};
use forerun_formats::{LoadError, Speculator, WeightType};
use forerun_lm::LayerGroups;
use std::sync::Arc;

/// A drafter's weights, and what drafting with them needs.
#[derive(Clone)]
pub(crate) enum DrafterWeights {
    /// A language model.
    Model {
        weights: Arc<Weights>,
        /// EasySpec's layer groups, if it drafts.
        layer_parallel: Option<(LayerGroups, CalibrationPolicy)>,
        /// The translation of its drafts, if its vocabulary is not the target's.
        translation: Option<Arc<Translation>>,
    },
    /// A model that predicts several positions at mask tokens.
    Parallel { weights: Arc<Weights>, masks: Masks },
    /// A layer on the target's features, with or without mask tokens.
    Eagle(Arc<Weights>),
    /// Heads on the target's last feature, and perhaps on the tokens drafted after it.
    Heads(Arc<HeadWeights>),
    /// A language model whose drafts are extended by phrases.
    Ouroboros(Arc<Weights>),
}

impl DrafterWeights {
    /// Loads a drafter that was trained for `target`.
    pub(crate) fn load(
        speculator: &Speculator,
        target: &Weights,
        weight_type: Option<WeightType>,
    ) -> Result<Self, LoadError> {
        Ok(match SpeculatorWeights::load(speculator, target, weight_type)? {
            SpeculatorWeights::Heads(weights) => Self::Heads(weights),
            SpeculatorWeights::Layers(weights) if speculator.kind().reads_features() => {
                Self::Eagle(weights)
            }
            SpeculatorWeights::Layers(weights) => {
                let masks = Masks::PerPosition(weights.architecture().mask_ids());
                Self::Parallel { weights, masks }
            }
        })
    }
}

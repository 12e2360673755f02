//! The weights of a drafter, by kind.

use crate::translation::Translation;
use forerun_draft::{CalibrationPolicy, Masks};
use forerun_lm::LayerGroups;
use forerun_model::speculator::{EagleWeights, HydraWeights, MedusaWeights};
use forerun_model::{LoadError, Speculator, SpeculatorKind, WeightType, Weights};
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
    Eagle(Arc<EagleWeights>),
    /// Heads on the target's last feature.
    Medusa(Arc<MedusaWeights>),
    /// Heads on the target's last feature and on the tokens drafted after it.
    Hydra(Arc<HydraWeights>),
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
        Ok(match speculator.kind() {
            SpeculatorKind::Medusa => {
                Self::Medusa(Arc::new(speculator.medusa(target, weight_type)?))
            }
            SpeculatorKind::Hydra => Self::Hydra(Arc::new(speculator.hydra(target, weight_type)?)),
            SpeculatorKind::Eagle | SpeculatorKind::Eagle3 | SpeculatorKind::ParallelEagle => {
                Self::Eagle(Arc::new(speculator.eagle(target, weight_type)?))
            }
            SpeculatorKind::ParallelMedusa | SpeculatorKind::Pard { .. } => {
                let weights = Arc::new(speculator.parallel(target, weight_type)?);
                let masks = Masks::PerPosition(weights.mask_tokens());
                Self::Parallel { weights, masks }
            }
        })
    }
}

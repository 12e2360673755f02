//! The weights of a drafter, by how it drafts.

use crate::translation::Translation;
use forerun_draft::{CalibrationPolicy, Masks};
use forerun_model::speculator::{EagleWeights, HydraWeights, MedusaWeights};
use forerun_model::{LayerGroups, LoadError, Speculator, SpeculatorKind, WeightType, Weights};
use std::sync::Arc;

/// A drafter's weights, and what it takes to draft with them.
#[derive(Clone)]
pub(crate) enum DrafterWeights {
    /// A model that continues the text.
    Model {
        weights: Arc<Weights>,
        /// EasySpec's layer groups.
        layer_parallel: Option<(LayerGroups, CalibrationPolicy)>,
        /// How its tokens become the target's where they are others.
        translation: Option<Arc<Translation>>,
    },
    /// One that reads masks.
    Parallel { weights: Arc<Weights>, masks: Masks },
    /// A layer on the target's features, with masks or without.
    Eagle(Arc<EagleWeights>),
    /// Heads on the target's last feature.
    Medusa(Arc<MedusaWeights>),
    /// Heads on that and on the tokens behind it.
    Hydra(Arc<HydraWeights>),
    /// A model whose drafts are lengthened by phrases.
    Ouroboros(Arc<Weights>),
}

impl DrafterWeights {
    /// What belongs to a target, read for its weights.
    pub(crate) fn of(
        speculator: &Speculator,
        target: &Weights,
        asked: Option<WeightType>,
    ) -> Result<Self, LoadError> {
        Ok(match speculator.kind() {
            SpeculatorKind::Medusa => Self::Medusa(Arc::new(speculator.medusa(target, asked)?)),
            SpeculatorKind::Hydra => Self::Hydra(Arc::new(speculator.hydra(target, asked)?)),
            SpeculatorKind::Eagle | SpeculatorKind::Eagle3 | SpeculatorKind::ParallelEagle => {
                Self::Eagle(Arc::new(speculator.eagle(target, asked)?))
            }
            SpeculatorKind::ParallelMedusa | SpeculatorKind::Pard { .. } => {
                let weights = Arc::new(speculator.parallel(target, asked)?);
                let masks = Masks::Own(weights.mask_tokens());
                Self::Parallel { weights, masks }
            }
        })
    }
}

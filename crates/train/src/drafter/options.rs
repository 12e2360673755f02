//! Which drafter, and how it learns.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a drafter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrainedDrafterKind {
    /// Medusa's heads: head `h` predicts, from the feature of a token, the token `h + 2` behind it.
    Medusa,
    /// One layer in place of Medusa's heads, which reads tokens and masks.
    ParallelspecMedusa,
    /// EAGLE's layer, which reads a token and the feature before it and predicts the next feature.
    Eagle,
    /// EAGLE's layer with masks.
    ParallelspecEagle,
}

impl TrainedDrafterKind {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Medusa, Self::ParallelspecMedusa, Self::Eagle, Self::ParallelspecEagle];

    /// Whether a layer predicts features, given features.
    pub(crate) fn predicts_features(self) -> bool {
        matches!(self, Self::Eagle | Self::ParallelspecEagle)
    }

    /// Whether there are masks.
    pub(crate) fn has_masks(self) -> bool {
        matches!(self, Self::ParallelspecMedusa | Self::ParallelspecEagle)
    }

    /// How far behind the place of its row the label of the first position lies. EAGLE's row of a
    /// token stands at the feature before it, and Medusa's first head skips a token, which the
    /// target draws itself.
    pub(crate) fn label_shift(self) -> usize {
        usize::from(self != Self::ParallelspecMedusa)
    }
}

/// The name in checkpoints.
impl fmt::Display for TrainedDrafterKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Medusa => "medusa",
            Self::ParallelspecMedusa => "parallelspec-medusa",
            Self::Eagle => "eagle",
            Self::ParallelspecEagle => "parallelspec-eagle",
        })
    }
}

/// How a drafter is trained, beside what every run has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrafterOptions {
    /// What it is.
    pub kind: TrainedDrafterKind,
    /// Medusa's heads; the masks of a parallel drafter; how many features EAGLE predicts from its own
    /// in tests of acceptance.
    pub draft_tokens: usize,
    /// The loss of the k-th mask, or head, counts this to the power of k (λ_k).
    pub decay: f32,
    /// Share of the positions that open a group in a step, evenly spread; 1 is the paper's form.
    pub group_share: f32,
    /// What cross-entropy counts beside the regression of features (EAGLE's 0.1).
    pub classification_weight: f32,
    /// Width of the uniform noise that is added to the features that are read; beyond a context of 512 it
    /// shrinks (EAGLE's published code).
    pub feature_noise: f32,
}

impl DrafterOptions {
    /// What the papers chose: λ_k = 0.8^k for Medusa and its replacement; for EAGLE the sum over a
    /// group (eq. 4), a weight of 0.1, and noise from −0.1 to 0.1.
    #[must_use]
    pub fn of(kind: TrainedDrafterKind, draft_tokens: usize) -> Self {
        let features = kind.predicts_features();
        Self {
            kind,
            draft_tokens,
            decay: if features { 1.0 } else { 0.8 },
            group_share: 1.0,
            classification_weight: if features { 0.1 } else { 1.0 },
            feature_noise: if features { 0.2 } else { 0.0 },
        }
    }

    /// Positions of a draft that are tested.
    #[must_use]
    pub fn positions(&self) -> usize {
        match self.kind {
            TrainedDrafterKind::Medusa => self.draft_tokens,
            _ => self.draft_tokens + 1,
        }
    }

    /// What the loss of a position, counted from 0, counts.
    pub(crate) fn position_weight(&self, position: usize) -> f32 {
        let power = position + usize::from(self.kind == TrainedDrafterKind::Medusa);
        self.decay.powi(power as i32)
    }
}

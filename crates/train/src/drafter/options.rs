//! The kinds of drafters, and the options of their training.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The kind of a drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrainedDrafterKind {
    /// Medusa's heads (arXiv 2401.10774). Head `h`, counted from 0, predicts from the feature of a token
    /// the token `h + 2` positions later.
    Medusa,
    /// ParallelSpec (arXiv 2410.05589) in place of Medusa's heads: one layer that reads tokens and masks.
    ParallelspecMedusa,
    /// EAGLE's layer (arXiv 2401.15077). It reads a token and the feature before it, and predicts the
    /// next feature.
    Eagle,
    /// ParallelSpec in place of EAGLE's layer: the same layer with masks.
    ParallelspecEagle,
}

impl TrainedDrafterKind {
    /// All kinds.
    pub const ALL: [Self; 4] =
        [Self::Medusa, Self::ParallelspecMedusa, Self::Eagle, Self::ParallelspecEagle];

    /// Returns whether the drafter reads and predicts features.
    pub(crate) fn predicts_features(self) -> bool {
        matches!(self, Self::Eagle | Self::ParallelspecEagle)
    }

    /// Returns whether the drafter has masks.
    pub(crate) fn has_masks(self) -> bool {
        matches!(self, Self::ParallelspecMedusa | Self::ParallelspecEagle)
    }

    /// Returns the distance from a token row to the target row that labels the first position of its
    /// draft. It is 1 for EAGLE, because the row of a token has the index of the feature before it, and
    /// for Medusa, because the first head skips the next token, which the target samples itself.
    pub(crate) fn label_shift(self) -> usize {
        usize::from(self != Self::ParallelspecMedusa)
    }
}

/// Writes the name that checkpoints use.
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

/// Options of a drafter's training, in addition to [`TrainOptions`](crate::TrainOptions).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrafterOptions {
    /// The kind of the drafter.
    pub kind: TrainedDrafterKind,
    /// The number of Medusa's heads, or of masks of a parallel drafter. For EAGLE, the number of further
    /// tokens that are drafted from predicted features in evaluations.
    pub draft_tokens: usize,
    /// The base of the loss weights: the loss of the k-th head or mask has the weight
    /// `λ_k = decay^k`.
    pub decay: f32,
    /// The share of the positions, evenly spread, that open a group in a step. 1 is the paper's method.
    pub group_share: f32,
    /// The weight of the cross-entropy relative to the feature regression (EAGLE: 0.1).
    pub classification_weight: f32,
    /// Width of the uniform noise that is added to the features that the drafter reads. For contexts
    /// beyond 512 tokens it shrinks in proportion (as in EAGLE's published code).
    pub feature_noise: f32,
    /// For EAGLE, the number of positions that it learns to draft from its own features (training-time test). 0 is
    /// the paper's method.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drafted_positions: usize,
    /// The number of tokens that the drafter can draft: the most frequent ones of the training text. `None` for all.
    /// Only drafters that read features may have fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_vocab: Option<usize>,
}

/// Options of runs that are older than an option do not contain it.
fn is_zero(&number: &usize) -> bool {
    number == 0
}

impl DrafterOptions {
    /// Returns the papers' options: `λ_k = 0.8^k` for Medusa and its replacement. For EAGLE and its
    /// replacement: the plain sum over a group (ParallelSpec, equation 4), a classification weight of
    /// 0.1, and noise from −0.1 to 0.1.
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
            drafted_positions: 0,
            draft_vocab: None,
        }
    }

    /// Returns the number of positions of a draft that evaluations report.
    #[must_use]
    pub fn positions(&self) -> usize {
        match self.kind {
            TrainedDrafterKind::Medusa => self.draft_tokens,
            _ => self.draft_tokens + 1,
        }
    }

    /// Returns the number of rows of a group after its token.
    pub(crate) fn masks(&self) -> usize {
        if self.kind.has_masks() { self.draft_tokens } else { self.drafted_positions }
    }

    /// Returns the weight of the loss of a position, counted from 0.
    pub(crate) fn position_weight(&self, position: usize) -> f32 {
        let power = position + usize::from(self.kind == TrainedDrafterKind::Medusa);
        self.decay.powi(power as i32)
    }
}

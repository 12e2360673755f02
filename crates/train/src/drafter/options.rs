//! The kinds of drafters, and the options of their training.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The kind of a drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrainedDrafterKind {
    /// Medusa's heads (arXiv 2401.10774). Head `h`, counted from 0, predicts from the feature of a
    /// token the token `h + 2` positions later.
    Medusa,
    /// Hydra's heads (arXiv 2402.05109): Medusa's, but head `h` also reads the `h + 1` tokens after
    /// the feature's token.
    Hydra,
    /// ParallelSpec (arXiv 2410.05589) in place of Medusa's heads: one layer that reads tokens and
    /// masks.
    ParallelspecMedusa,
    /// EAGLE's layer (arXiv 2401.15077). It reads a token and the feature before it, and predicts
    /// the next feature.
    Eagle,
    /// ParallelSpec in place of EAGLE's layer: the same layer with masks.
    ParallelspecEagle,
    /// DFlash (arXiv 2602.06036): layers that draft a block of masks in one pass. They read hidden
    /// states of several of the target's layers as context.
    Dflash,
    /// DSpark (arXiv 2607.05147): DFlash's layers, a Markov head that corrects a block token by
    /// token, and a head that predicts acceptance.
    Dspark,
}

impl TrainedDrafterKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Medusa,
        Self::Hydra,
        Self::ParallelspecMedusa,
        Self::Eagle,
        Self::ParallelspecEagle,
        Self::Dflash,
        Self::Dspark,
    ];

    /// Returns whether the drafter has heads on one feature, and no layer.
    pub(crate) fn has_draft_heads(self) -> bool {
        matches!(self, Self::Medusa | Self::Hydra)
    }

    /// Returns whether the drafter reads and predicts features.
    pub(crate) fn predicts_features(self) -> bool {
        matches!(self, Self::Eagle | Self::ParallelspecEagle)
    }

    /// Returns whether the drafter drafts blocks: its masks have the target's embedding of a token.
    pub(crate) fn has_blocks(self) -> bool {
        matches!(self, Self::Dflash | Self::Dspark)
    }

    /// Returns the first row of a block that predicts a token. In DFlash it is that of the first
    /// mask. In DSpark it is that of the last token, because each row predicts the token after its
    /// place.
    pub(crate) fn first_predicting_row(self) -> usize {
        usize::from(self == Self::Dflash)
    }

    /// Returns whether the drafter has masks of its own.
    pub(crate) fn has_masks(self) -> bool {
        matches!(self, Self::ParallelspecMedusa | Self::ParallelspecEagle)
    }

    /// Returns the distance from a token row to the target row that labels the first position of
    /// its draft. It is 1 for EAGLE, because the row of a token has the index of the feature before
    /// it, and for Medusa and Hydra, because the first head skips the next token, which the target
    /// samples itself.
    pub(crate) fn label_shift(self) -> usize {
        usize::from(self != Self::ParallelspecMedusa && !self.has_blocks())
    }
}

/// Writes the name that checkpoints use.
impl fmt::Display for TrainedDrafterKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Medusa => "medusa",
            Self::Hydra => "hydra",
            Self::ParallelspecMedusa => "parallelspec-medusa",
            Self::Eagle => "eagle",
            Self::ParallelspecEagle => "parallelspec-eagle",
            Self::Dflash => "dflash",
            Self::Dspark => "dspark",
        })
    }
}

/// Options of a drafter's training, in addition to [`TrainOptions`](crate::TrainOptions).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrafterOptions {
    /// The kind of the drafter.
    pub kind: TrainedDrafterKind,
    /// The number of Medusa's or Hydra's heads, or of masks of a parallel drafter or of a block.
    /// For EAGLE, the number of further tokens that are drafted from predicted features in
    /// evaluations. For DSpark, the number of rows of a block.
    pub draft_tokens: usize,
    /// The base of the loss weights: the loss of the k-th head or mask has the weight
    /// `λ_k = decay^k`.
    pub decay: f32,
    /// The share of the positions, evenly spread, that open a group or a block in a step. 1 is
    /// ParallelSpec's method.
    pub group_share: f32,
    /// The weight of the cross-entropy relative to the feature regression (EAGLE: 0.1).
    pub classification_weight: f32,
    /// Width of the uniform noise that is added to the features that the drafter reads. For
    /// contexts beyond 512 tokens it shrinks in proportion (as in EAGLE's published code).
    pub feature_noise: f32,
    /// For EAGLE, the number of positions that it learns to draft from its own features
    /// (training-time test). 0 is the paper's method.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drafted_positions: usize,
    /// The number of tokens that the drafter can draft: the most frequent ones of the training
    /// text. `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_vocab: Option<usize>,
    /// The number of a block drafter's layers; `None` for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<usize>,
    /// Width of the embeddings of DSpark's Markov head; `None` for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub markov_rank: Option<usize>,
}

/// Options of runs that are older than an option do not contain it.
fn is_zero(&number: &usize) -> bool {
    number == 0
}

impl DrafterOptions {
    /// Returns the papers' options: `λ_k = 0.8^k` for Medusa, Hydra and their replacement. For
    /// EAGLE and its replacement: the plain sum over a group (ParallelSpec, equation 4), a
    /// classification weight of 0.1, and noise from −0.1 to 0.1. For DFlash: the weights of
    /// equation 4, and 512 blocks in 3,072 tokens. Its layers are two, because targets that are
    /// trained on are small; the paper has five. DSpark has the same ones, and a Markov head of
    /// rank 64 (its authors: 256).
    #[must_use]
    pub fn of(kind: TrainedDrafterKind, draft_tokens: usize) -> Self {
        let features = kind.predicts_features();
        Self {
            kind,
            draft_tokens,
            decay: match kind {
                // DSpark's authors have the same weights: γ = 4 for drafts of 7 tokens.
                _ if kind.has_blocks() => block_decay(draft_tokens + 1),
                _ if features => 1.0,
                _ => 0.8,
            },
            group_share: if kind.has_blocks() { 1.0 / 6.0 } else { 1.0 },
            classification_weight: if features { 0.1 } else { 1.0 },
            feature_noise: if features { 0.2 } else { 0.0 },
            drafted_positions: 0,
            draft_vocab: None,
            layers: kind.has_blocks().then_some(2),
            markov_rank: (kind == TrainedDrafterKind::Dspark).then_some(64),
        }
    }

    /// Returns the number of positions of a draft that evaluations report.
    #[must_use]
    pub fn positions(&self) -> usize {
        match self.kind {
            kind if kind.has_draft_heads() || kind.has_blocks() => self.draft_tokens,
            _ => self.draft_tokens + 1,
        }
    }

    /// Returns the number of rows of a group after its token.
    pub(crate) fn masks(&self) -> usize {
        match self.kind {
            kind if kind.has_masks() => self.draft_tokens,
            TrainedDrafterKind::Dflash => self.draft_tokens,
            TrainedDrafterKind::Dspark => self.draft_tokens.saturating_sub(1),
            _ => self.drafted_positions,
        }
    }

    /// Returns the weight of the loss of a position, counted from 0.
    pub(crate) fn position_weight(&self, position: usize) -> f32 {
        let power = position + usize::from(self.kind.has_draft_heads());
        self.decay.powi(power as i32)
    }
}

/// Returns the base of the loss weights of a block: `exp(−1 / γ)` (DFlash, equation 4). The paper's
/// γ is 4, 5 and 7 for blocks of 8, 10 and 16 rows; the lines through them give it for other sizes.
fn block_decay(block: usize) -> f32 {
    let block = block as f32;
    let gamma = if block <= 10.0 { block / 2.0 } else { 5.0 + (block - 10.0) / 3.0 };
    (-1.0 / gamma).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decay_of_a_block_is_that_of_the_paper() {
        for (block, gamma) in [(8, 4.0_f32), (10, 5.0), (16, 7.0)] {
            assert!((block_decay(block) - (-1.0 / gamma).exp()).abs() < 1e-6);
        }
    }
}

//! How the masks of parallel drafters stand in a forward pass, and what their rows predict.
//!
//! | drafter | masks | the row of a mask predicts |
//! |---|---|---|
//! | ParallelSpec (arXiv 2410.05589) | `[MASK]1` to `[MASK]k`, one for each position | the token after its place |
//! | PARD (2504.18583), PARD-2 (2605.08632, on features), P-EAGLE (2602.01469, EAGLE-3 with masks) | one, repeated any number of times | the token after its place |
//! | DFlash (2602.06036) | one, in a block of a fixed length | the token in its place |
//! | JetSpec (2606.18394) | as DFlash, with causal rows | the token in its place |
//! | DSpark (2607.05147) | DFlash's block; heads then correct its rows ([`crate::block_heads`]) | the token after its place |

use forerun_core::TokenId;
use std::ops::Range;

/// The mask tokens that stand for the positions to predict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Masks {
    /// One mask for each position after the first (ParallelSpec).
    PerPosition(Range<TokenId>),
    /// One mask for all positions (PARD).
    Repeated(TokenId),
    /// One mask for all positions of a block, which is as long in every draft. The row of a mask
    /// predicts the token in its place (DFlash).
    Block {
        /// The mask.
        mask: TokenId,
        /// The number of rows: the last token and the masks.
        size: usize,
    },
    /// The same, but no row sees later ones. A block has only as many masks as the draft needs
    /// (JetSpec).
    CausalBlock {
        /// The mask.
        mask: TokenId,
        /// The largest number of rows: the last token and the masks.
        size: usize,
    },
    /// As [`Self::Block`], but each row predicts the token after its place, also that of the last
    /// token (DSpark).
    AnchoredBlock {
        /// The mask.
        mask: TokenId,
        /// The number of rows: the last token and the masks.
        size: usize,
    },
}

impl Masks {
    /// Returns how many positions one forward can predict after so many draft tokens.
    pub(crate) fn positions_after(&self, ahead: usize) -> usize {
        match self {
            Self::PerPosition(masks) => masks.len() + 1,
            Self::Repeated(_) => usize::MAX,
            Self::Block { size, .. } | Self::CausalBlock { size, .. } => {
                size.saturating_sub(1 + ahead)
            }
            Self::AnchoredBlock { size, .. } => size.saturating_sub(ahead),
        }
    }

    /// Returns what a model on features reads in the places of draft tokens without features: the
    /// tokens. P-EAGLE was not trained on features of its own, so there masks stay in their places.
    pub(crate) fn places_of(&self, ahead: &[TokenId]) -> Vec<TokenId> {
        match self {
            Self::PerPosition(_)
            | Self::Block { .. }
            | Self::CausalBlock { .. }
            | Self::AnchoredBlock { .. } => ahead.to_vec(),
            Self::Repeated(mask) => vec![*mask; ahead.len()],
        }
    }

    /// Returns the first row that predicts.
    pub(crate) fn first_row(&self) -> usize {
        usize::from(matches!(self, Self::Block { .. } | Self::CausalBlock { .. }))
    }

    /// Returns the chain of masks to predict `positions` positions, of at most `most`.
    pub(crate) fn chain(&self, positions: usize, most: usize) -> Vec<TokenId> {
        match self {
            Self::PerPosition(masks) => masks.clone().take(positions.saturating_sub(1)).collect(),
            Self::Repeated(mask) => vec![*mask; positions.saturating_sub(1)],
            Self::Block { mask, .. } => vec![*mask; most],
            Self::CausalBlock { mask, .. } => vec![*mask; positions],
            Self::AnchoredBlock { mask, .. } => vec![*mask; most.saturating_sub(1)],
        }
    }
}

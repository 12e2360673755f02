//! The shape of a drafter: what the names and sizes of its parameters follow from.

use super::options::{DrafterOptions, TrainedDrafterKind};
use super::target::Target;
use std::fmt;

/// What the parameters of a drafter depend on, besides its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DrafterShape {
    pub(super) kind: TrainedDrafterKind,
    /// The number of heads (Medusa, Hydra) or masks, or of rows of DSpark's blocks; 0 for EAGLE.
    pub(super) slots: usize,
    /// What block drafters have in addition.
    pub(super) block: Option<BlockShape>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockShape {
    pub(super) layers: usize,
    /// The token that stands for all masks.
    pub(super) mask: u32,
    /// The numbers of the target's layers after which the drafter reads hidden states.
    pub(super) target_layers: Vec<usize>,
    /// Width of the Markov head's embeddings; `None` without heads.
    pub(super) markov_rank: Option<usize>,
}

/// Describes the shape for messages about a drafter of another kind.
impl fmt::Display for DrafterShape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, slots, block } = self;
        match (kind, block) {
            (TrainedDrafterKind::Eagle, _) => write!(formatter, "{kind}"),
            (kind, _) if kind.has_draft_heads() => write!(formatter, "{kind} with {slots} heads"),
            (_, None) => write!(formatter, "{kind} with {slots} masks"),
            (_, Some(BlockShape { layers, mask, target_layers, markov_rank })) => {
                let rows = if markov_rank.is_some() { "rows of a block" } else { "masks" };
                write!(
                    formatter,
                    "{kind} with {slots} {rows} (mask: token {mask}), {layers} layers, and hidden states after \
                     layers {target_layers:?} of the target"
                )?;
                match markov_rank {
                    Some(rank) => write!(formatter, ", and a Markov head of rank {rank}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl DrafterShape {
    pub(super) fn of(options: &DrafterOptions, target: &Target) -> Self {
        let DrafterOptions { kind, draft_tokens, layers, markov_rank, .. } = *options;
        let block = layers.map(|layers| BlockShape {
            layers,
            mask: target.mask_token(),
            target_layers: target.feature_layers().to_vec(),
            markov_rank,
        });
        let slots = if kind == TrainedDrafterKind::Eagle { 0 } else { draft_tokens };
        Self { kind, slots, block }
    }
}

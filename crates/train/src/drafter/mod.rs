//! Training of drafters that use their target's embedding, head and features.
//!
//! The embedding and the head are the target's, frozen. A *feature* is the target's hidden state
//! after its final norm, the input of its head. Drafters read features or learn to predict them:
//!
//! - Medusa (arXiv 2401.10774): several heads on the target's last feature.
//! - Hydra (arXiv 2402.05109): heads that also read the tokens drafted before.
//! - EAGLE (arXiv 2401.15077): a layer that autoregressively predicts features.
//! - ParallelSpec (arXiv 2410.05589): a layer with masks, which drafts all positions in one pass.
//!   It replaces Medusa's heads or EAGLE's layer.
//! - DFlash (arXiv 2602.06036): layers that draft a block in one pass. They read hidden states of
//!   several of the target's layers as context.
//! - DSpark (arXiv 2607.05147): the same layers, with heads that correct a block token by token and
//!   predict acceptance.

mod acceptance;
mod blocks;
mod feature_cache;
mod files;
mod forward;
mod learner;
mod objective;
mod options;
mod shape;
mod target;
#[cfg(test)]
mod tests;
mod vocabulary;
mod weights;

pub use crate::metrics::PositionAcceptance;
pub use acceptance::mean_accepted_tokens;
pub use files::DrafterFileError;
pub use forward::Drafter;
pub use learner::DrafterLearner;
pub use options::{DrafterOptions, TrainedDrafterKind};
pub use target::Target;
pub(crate) use vocabulary::most_frequent_tokens;

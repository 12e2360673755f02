//! Drafters that stand on their target: its embedding and head are theirs, frozen, and its features
//! are what they read or learn to predict.
//!
//! Medusa's heads (arXiv 2401.10774) and EAGLE's autoregressive layer (arXiv 2401.15077) are what
//! ParallelSpec (arXiv 2410.05589) replaces by one layer that drafts with masks, all positions in one
//! pass. A *feature* is the target's hidden state behind its final norm, as its head takes it.

mod acceptance;
mod files;
mod forward;
mod learner;
mod objective;
mod options;
mod target;
#[cfg(test)]
mod tests;
mod weights;

pub use acceptance::{PositionAcceptance, mean_accepted_tokens};
pub use files::DrafterFileError;
pub use forward::Drafter;
pub use learner::DrafterLearner;
pub use options::{DrafterOptions, TrainedDrafterKind};
pub use target::Target;

//! The drafters: who proposes tokens, and how. One file each.
//!
//! This crate may touch language models, but neither files nor threads nor clocks. A drafter is a
//! function of the tokens it is given, and of what the target told of the same answer; what it remembers
//! else only saves it work.

mod answer_tracker;
mod eagle;
mod feature_conditioned;
mod grow;
mod hydra;
mod layer_parallel;
mod lookahead;
mod medusa;
mod model;
mod ouroboros;
mod parallel;
mod prompt_lookup;
mod two_device;
mod vocab_translation;

pub use eagle::EagleDrafter;
pub use hydra::HydraDrafter;
pub use layer_parallel::{CalibrationPolicy, LayerParallelDrafter, UnknownCalibrationPolicy};
pub use lookahead::LookaheadDrafter;
pub use medusa::MedusaDrafter;
pub use model::ModelDrafter;
pub use ouroboros::{OuroborosDrafter, PHRASE_TOKENS, with_phrases};
pub use parallel::{Masks, ParallelDrafter, ParallelEagleDrafter};
pub use prompt_lookup::PromptLookup;
pub use two_device::TwoDeviceDrafter;
pub use vocab_translation::{VocabTranslationDrafter, VocabTranslator};

use forerun_core::{
    Draft, DraftShape, Randomness, Sampling, SequenceId, TargetFeedback, TokenId, TokenTree,
};
use forerun_model::{LogitsContext, ModelError};
use std::sync::atomic::AtomicBool;

/// What a drafter is given.
pub struct DraftContext<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens so far.
    pub tokens: &'a [TokenId],
    /// How many of them are the prompt, which some penalties do not count.
    pub prompt_len: usize,
    /// The request's sampling options: the drafter warps as the target does.
    pub sampling: &'a Sampling,
    /// Where its draws come from.
    pub randomness: &'a dyn Randomness,
    /// The candidates asked for.
    pub shape: &'a DraftShape,
    /// What the target has told, for a drafter that reads it.
    pub feedback: &'a TargetFeedback,
    /// Set when the draft is no longer wanted; looked at between layers and between tokens.
    pub cancel: &'a AtomicBool,
}

impl DraftContext<'_> {
    /// What a model of the same vocabulary is asked for: the rows from `first_row` on of the tokens and of
    /// candidates behind them.
    pub(crate) fn rows<'a>(&'a self, tree: &'a TokenTree, first_row: usize) -> LogitsContext<'a> {
        let Self { sequence, tokens, cancel, .. } = *self;
        LogitsContext { sequence, tokens, tree, first_row, cancel }
    }
}

/// Proposes candidates for the tokens behind a sequence.
pub trait Drafter {
    /// Drafts in the asked shape, or less: fewer candidates, or none, are always a valid answer.
    ///
    /// # Errors
    /// If the drafter's model fails, or it was cancelled.
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError>;

    /// Forgets a sequence.
    fn release(&mut self, sequence: SequenceId);
}

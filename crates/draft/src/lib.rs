//! The drafters, which propose tokens. Each drafter has its own file.
//!
//! This crate uses language models, but no files, threads or clocks. A draft is a function of the
//! tokens so far, and of the target's feedback on the same answer. Everything else that a drafter
//! stores only saves work.

mod answer_tracker;
mod candidate_model;
mod eagle;
mod feature_conditioned;
mod grow;
mod hydra;
mod layer_parallel;
mod lookahead;
mod medusa;
mod model;
mod ngram_pool;
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

/// The input of a drafter.
pub struct DraftContext<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens so far.
    pub tokens: &'a [TokenId],
    /// The number of prompt tokens at the start of `tokens`. Some penalties do not count them.
    pub prompt_len: usize,
    /// The request's sampling options. They apply to the drafter's logits as to the target's.
    pub sampling: &'a Sampling,
    /// The source of random numbers.
    pub randomness: &'a dyn Randomness,
    /// The requested shape.
    pub shape: &'a DraftShape,
    /// Feedback from the target, for drafters that use it.
    pub feedback: &'a TargetFeedback,
    /// Set when the draft is no longer needed. Models check it between layers and between tokens.
    pub cancel: &'a AtomicBool,
}

impl DraftContext<'_> {
    /// Creates the request to a model with the target's vocabulary: the rows from `first_row` on for
    /// the tokens and the candidates after them.
    pub(crate) fn rows<'a>(&'a self, tree: &'a TokenTree, first_row: usize) -> LogitsContext<'a> {
        let Self { sequence, tokens, cancel, .. } = *self;
        LogitsContext { sequence, tokens, tree, first_row, cancel }
    }
}

/// Proposes candidates for the tokens after a sequence.
///
/// ```rust
/// use forerun_core::{Draft, DraftShape, Proposal, Sampling, SequenceId, TargetFeedback, TokenTree};
/// use forerun_draft::{DraftContext, Drafter};
/// use forerun_model::ModelError;
/// use std::sync::atomic::AtomicBool;
///
/// /// Proposes that the last token repeats.
/// struct Repeat;
///
/// impl Drafter for Repeat {
///     fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
///         let Some(&last) = context.tokens.last() else { return Ok(Draft::empty()) };
///         let tree = TokenTree::chain(&vec![last; context.shape.depth()]);
///         // The tokens are a function of the tokens before them, not drawn from a distribution.
///         Ok(Draft { tree, proposal: Proposal::Deterministic })
///     }
///
///     fn release(&mut self, _sequence: SequenceId) {}
/// }
///
/// let sampling = Sampling::greedy();
/// let context = DraftContext {
///     sequence: SequenceId(0),
///     tokens: &[3, 1, 4],
///     prompt_len: 3,
///     sampling: &sampling,
///     randomness: &sampling.randomness,
///     shape: &DraftShape::Chain { length: 2 },
///     feedback: &TargetFeedback::default(),
///     cancel: &AtomicBool::new(false),
/// };
/// let draft = Repeat.draft(&context)?;
/// assert_eq!(draft.tree.tokens(), [4, 4]);
/// # Ok::<(), ModelError>(())
/// ```
pub trait Drafter {
    /// Drafts in the requested shape. Fewer candidates, or none, are always a valid draft.
    ///
    /// # Errors
    /// If the drafter's model fails, or the job was cancelled.
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError>;

    /// Drops everything that is stored for a sequence.
    fn release(&mut self, sequence: SequenceId);
}

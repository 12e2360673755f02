//! The drafters, which propose tokens. Each drafter has its own file.
//!
//! This crate uses language models through `forerun-lm`, but no files, threads or clocks. A draft
//! is a function of the tokens so far, and of the target's feedback on the same answer. Everything
//! else that a drafter stores only saves work.

mod answer_tracker;
mod block_heads;
mod candidate_model;
mod eagle;
mod feature_based;
mod forced;
mod grow;
mod hydra;
mod layer_parallel;
mod lookahead;
mod masks;
mod medusa;
mod model;
mod ngram_pool;
mod ouroboros;
mod parallel;
mod prompt_lookup;
mod suffix;
mod suffix_automaton;
mod traits;
mod two_device;
mod vocab_translation;

pub use eagle::EagleDrafter;
pub use forced::draft_with_forced_tokens;
pub use hydra::HydraDrafter;
pub use layer_parallel::{CalibrationPolicy, LayerParallelDrafter, UnknownCalibrationPolicy};
pub use lookahead::{LOOKAHEAD_TRAITS, LookaheadDrafter};
pub use masks::Masks;
pub use medusa::MedusaDrafter;
pub use model::ModelDrafter;
pub use ouroboros::{OUROBOROS_TRAITS, OuroborosDrafter, PHRASE_TOKENS, with_phrases};
pub use parallel::{ParallelDrafter, ParallelEagleDrafter};
pub use prompt_lookup::PromptLookup;
pub use suffix::SuffixDrafter;
pub use traits::{DefaultShape, DrafterTraits};
pub use two_device::TwoDeviceDrafter;
pub use vocab_translation::{VocabTranslationDrafter, VocabTranslator};

use forerun_core::{
    Draft, DraftShape, Randomness, Sampling, SequenceId, TargetFeedback, TokenId, TokenTree,
    node_of_row,
};
use forerun_lm::{DeviceChoice, ForwardRequest, ModelError};
use std::sync::atomic::AtomicBool;

/// The input of a drafter.
#[derive(Clone, Copy)]
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
    /// The number of tokens to draft on the last device of a model on two devices, before the
    /// others are drafted on the first one; `None` to draft each token on a free device.
    pub tokens_on_last_device: Option<usize>,
}

impl<'a> DraftContext<'a> {
    /// Creates the request to a model with the target's vocabulary: the rows from `first_row` on
    /// for the tokens and the candidates after them.
    pub(crate) fn request<'t>(&self, tree: &'t TokenTree, first_row: usize) -> ForwardRequest<'t>
    where
        'a: 't,
    {
        let Self { sequence, tokens, cancel, .. } = *self;
        let device = self.device(tree, first_row);
        let request = ForwardRequest::new(sequence, tokens, tree);
        ForwardRequest { first_row, device, cancel, ..request }
    }

    /// Returns the device on which to draft the tokens after a row.
    pub(crate) fn device(&self, tree: &TokenTree, row: usize) -> DeviceChoice {
        let drafted = node_of_row(row).map_or(0, |node| tree.depth(node));
        match self.tokens_on_last_device {
            Some(tokens) if drafted < tokens => DeviceChoice::Last,
            Some(_) => DeviceChoice::First,
            None => DeviceChoice::AnyFree,
        }
    }
}

/// Proposes candidates for the tokens after a sequence.
///
/// `forerun::draft` has what one needs, and `forerun::DrafterKind::own` makes it an option.
///
/// ```rust
/// use forerun_core::{Draft, DraftShape, Proposal, Sampling, SequenceId, TargetFeedback, TokenTree};
/// use forerun_draft::{DraftContext, Drafter};
/// use forerun_lm::ModelError;
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
///         Ok(Draft::deterministic(tree))
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
///     tokens_on_last_device: None,
/// };
/// let draft = Repeat.draft(&context)?;
/// assert_eq!(draft.tree.tokens(), [4, 4]);
/// # Ok::<(), ModelError>(())
/// ```
pub trait Drafter {
    /// Drafts in the requested shape. Fewer candidates, or none, are always a valid draft. Deeper
    /// drafts are not cut: they are verified, too, and the answer fails if they reach beyond the
    /// target's context.
    ///
    /// # Errors
    /// If the drafter's model fails, or the job was cancelled. A draft with a token outside the
    /// target's vocabulary is a failure, too. After one, the target goes on alone.
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError>;

    /// Drafts for several sequences, and calls `done` with the index and the draft of each as soon
    /// as it is ready. A draft is the same as [`Drafter::draft`] makes for its context.
    ///
    /// Drafters with a model implement this so that the sequences share its forward passes.
    fn draft_batch(
        &mut self,
        contexts: &[DraftContext<'_>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        for (index, context) in contexts.iter().enumerate() {
            done(index, self.draft(context));
        }
    }

    /// Learns that a draft begins with `forced`, which a constraint determines. The drafter is
    /// asked for what follows, if anything does. A drafter whose drafts depend on its last one
    /// records it.
    fn record_forced(&mut self, context: &DraftContext<'_>, forced: &[TokenId]) {
        let _ = (context, forced);
    }

    /// Drops everything that is stored for a sequence.
    fn release(&mut self, sequence: SequenceId);
}

impl<D: Drafter + ?Sized> Drafter for Box<D> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        (**self).draft(context)
    }

    fn draft_batch(
        &mut self,
        contexts: &[DraftContext<'_>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        (**self).draft_batch(contexts, done);
    }

    fn record_forced(&mut self, context: &DraftContext<'_>, forced: &[TokenId]) {
        (**self).record_forced(context, forced);
    }

    fn release(&mut self, sequence: SequenceId) {
        (**self).release(sequence);
    }
}

/// Returns the draft of a batch that has one context.
fn single_draft(
    draft_batch: impl FnOnce(&mut dyn FnMut(usize, Result<Draft, ModelError>)),
) -> Result<Draft, ModelError> {
    let mut draft = Ok(Draft::empty());
    draft_batch(&mut |_, result| draft = result);
    draft
}

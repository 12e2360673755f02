//! The interface of language models.

use crate::{BatchEntry, ForwardOutput, ForwardRequest, ModelError, Progress};
use forerun_core::SequenceId;

/// A language model that keeps the caches of its sequences itself.
///
/// ```rust
/// use forerun_core::{SequenceId, TokenTree};
/// use forerun_lm::{
///     BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, ModelError, complete_each,
/// };
///
/// /// Ten tokens, each of which is always followed by the next one.
/// struct Counting;
///
/// impl LanguageModel for Counting {
///     fn vocab_size(&self) -> usize {
///         10
///     }
///
///     fn context_length(&self) -> usize {
///         1_000
///     }
///
///     fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
///         complete_each(batch, |request| {
///             let last = request.tokens.last().ok_or(ModelError::Empty)?;
///             let all = std::iter::once(last).chain(request.tree.tokens());
///             let row = |&token: &u32| (0..10).map(move |next| f32::from(next == token + 1));
///             let logits = all.skip(request.first_row).flat_map(row).collect();
///             let (vocab_size, best) = (10, Vec::new());
///             Ok(ForwardOutput { logits, best, vocab_size, computed_tokens: 1, features: None })
///         });
///     }
///
///     fn release(&mut self, _sequence: SequenceId) {}
/// }
///
/// let tree = TokenTree::chain(&[4]);
/// let output = Counting.logits(&ForwardRequest::new(SequenceId(0), &[2, 3], &tree))?;
/// let best: Vec<_> = output.rows().map(|row| row.iter().position(|&logit| logit > 0.0)).collect();
/// assert_eq!(best, [Some(4), Some(5)]);
/// # Ok::<(), ModelError>(())
/// ```
pub trait LanguageModel {
    /// Returns the number of tokens in the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Returns the largest number of tokens in a sequence.
    fn context_length(&self) -> usize;

    /// Runs one forward pass, which serves all unfinished requests of the batch that can share it.
    ///
    /// Call it again with the same requests until they are complete. Requests may be added and
    /// removed between calls. Every call makes progress with at least one unfinished request. A
    /// request's rows have the same bits whatever other requests are in the batch, and the failure
    /// of one request does not change the others.
    ///
    /// Earlier results for the same sequence are reused as far as their tokens agree with the
    /// request's.
    fn forward(&mut self, batch: &mut [BatchEntry<'_>]);

    /// Frees the state of a sequence.
    fn release(&mut self, sequence: SequenceId);

    /// Computes a single request.
    ///
    /// # Errors
    /// See [`ModelError`].
    fn logits(&mut self, request: &ForwardRequest<'_>) -> Result<ForwardOutput, ModelError> {
        let mut progress = Progress::default();
        loop {
            self.forward(&mut [BatchEntry { request: *request, progress: &mut progress }]);
            if let Some(result) = progress.result.take() {
                return result;
            }
        }
    }
}

impl<M: LanguageModel + ?Sized> LanguageModel for Box<M> {
    fn vocab_size(&self) -> usize {
        (**self).vocab_size()
    }

    fn context_length(&self) -> usize {
        (**self).context_length()
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        (**self).forward(batch);
    }

    fn release(&mut self, sequence: SequenceId) {
        (**self).release(sequence);
    }
}

/// A language model that computes its layers in the order of the request
/// ([`ForwardRequest::order`]).
///
/// Layers in groups are an approximation, for drafting only. The model's caches distinguish
/// approximate rows from exact ones, and an exact request never uses approximate rows.
pub trait LayeredModel: LanguageModel {}

impl<M: LayeredModel + ?Sized> LayeredModel for Box<M> {}

/// A language model that reads the target's features in addition to tokens
/// ([`ForwardRequest::features`]): EAGLE, Hydra, Medusa.
///
/// A request must have at least two tokens, and the features of all tokens except the last (it may
/// have more). The last token and the tree's nodes have no features of the target. A model that
/// needs features there uses those that it predicts itself, and never reuses a row that was
/// computed from them for the tokens of another request.
pub trait FeatureModel: LanguageModel {}

impl<M: FeatureModel + ?Sized> FeatureModel for Box<M> {}

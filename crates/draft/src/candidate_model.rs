//! A language model with the set of tokens that it may propose.
//!
//! Checkpoints with the same tokenizer may pad their embeddings to different sizes. Tokens that the
//! target does not have must not be proposed, and a drafter cannot read tokens that it does not
//! have.

use crate::grow::sampling_within_vocab;
use forerun_core::{Sampling, TokenId};
use forerun_lm::LanguageModel;
use std::borrow::Cow;

/// A drafter's language model. It may propose the tokens below `vocab_size`.
pub(crate) struct CandidateModel<M> {
    pub(crate) model: M,
    vocab_size: usize,
}

impl<M: LanguageModel> CandidateModel<M> {
    /// Creates a model that may propose its whole vocabulary.
    pub(crate) fn new(model: M) -> Self {
        let vocab_size = model.vocab_size();
        Self { model, vocab_size }
    }

    /// Returns the model for a target with `vocab_size` tokens.
    pub(crate) fn with_vocab_size(self, vocab_size: usize) -> Self {
        Self { vocab_size: vocab_size.min(self.vocab_size), ..self }
    }

    /// Returns the number of tokens that the model may propose.
    pub(crate) fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns whether the model has a token.
    pub(crate) fn has(&self, token: TokenId) -> bool {
        (token as usize) < self.model.vocab_size()
    }

    /// Returns whether the model has all the tokens.
    pub(crate) fn can_read(&self, tokens: &[TokenId]) -> bool {
        tokens.iter().all(|&token| self.has(token))
    }

    /// Returns how many tokens the model can draft after `tokens` tokens. If its context is shorter
    /// than the target's, it drafts less near the end of its context, then nothing.
    pub(crate) fn room_after(&self, tokens: usize) -> usize {
        self.model.context_length().saturating_sub(tokens.saturating_sub(1))
    }

    /// Returns the sampling options without biases for tokens that the model may not propose.
    pub(crate) fn sampling<'a>(&self, sampling: &'a Sampling) -> Cow<'a, Sampling> {
        sampling_within_vocab(sampling, self.vocab_size)
    }
}

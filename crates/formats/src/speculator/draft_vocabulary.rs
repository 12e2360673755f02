//! Heads with fewer tokens than the target: `d2t`, as in EAGLE-3's checkpoints. Without a matrix of
//! its own, such a head is rows of the target's.

use super::Speculator;
use crate::checkpoint::LoadError;
use crate::json_options::JsonOptions;
use forerun_core::TokenId;
use std::sync::Arc;

/// The tensor that maps the head's tokens to the target's: the target's token for the head's token
/// `t` is `t + d2t[t]`.
pub(super) const DRAFT_TO_TARGET: &str = "d2t";

impl Speculator {
    /// Returns the target's token for each token of the head, in the order of the head's outputs.
    /// `None` if there is no `d2t`.
    pub(super) fn head_tokens(
        &self,
        vocab_size: usize,
    ) -> Result<Option<Arc<[TokenId]>>, LoadError> {
        let Some(offsets) = self.tensors.integers(DRAFT_TO_TARGET)? else { return Ok(None) };
        let target_tokens = (0..).zip(&offsets).map_while(|(token, &offset): (i64, _)| {
            let token = TokenId::try_from(token.checked_add(offset)?).ok()?;
            Some(token).filter(|&token| (token as usize) < vocab_size)
        });
        let target_tokens: Arc<[TokenId]> = target_tokens.collect();
        if target_tokens.len() != offsets.len() || offsets.is_empty() {
            return Err(self.draft_vocabulary_error(offsets.len(), vocab_size));
        }
        Ok(Some(target_tokens))
    }

    /// Checks `draft_vocab_size` of a drafter that may use rows of the target's head.
    pub(super) fn check_draft_vocab_size(
        &self,
        options: &JsonOptions<'_>,
        vocab_size: usize,
    ) -> Result<(), LoadError> {
        let (size, what) = match self.head_tokens(vocab_size)? {
            Some(tokens) => (tokens.len(), "the number of tokens in"),
            None => (vocab_size, "the target's, because there is no"),
        };
        match options.size("draft_vocab_size")? {
            Some(found) if found != size => {
                let expected = format!("{size}, {what} `{DRAFT_TO_TARGET}`");
                Err(options.invalid("draft_vocab_size", &found, &expected))
            }
            _ => Ok(()),
        }
    }

    /// Returns the target's token for each output of draft heads, as [`Self::head_tokens`] does.
    /// `outputs` is the number of rows of their own matrices, if they have any.
    pub(super) fn tokens_of_draft_heads(
        &self,
        outputs: Option<usize>,
        vocab_size: usize,
    ) -> Result<Option<Arc<[TokenId]>>, LoadError> {
        let tokens = self.head_tokens(vocab_size)?;
        match (&tokens, outputs) {
            (Some(tokens), Some(outputs)) if tokens.len() != outputs => {
                Err(self.draft_vocabulary_error(outputs, vocab_size))
            }
            _ => Ok(tokens),
        }
    }

    /// Returns the error for a head whose tokens are not all mapped to the target's.
    pub(super) fn draft_vocabulary_error(
        &self,
        draft_vocab_size: usize,
        vocab_size: usize,
    ) -> LoadError {
        LoadError::DraftVocabulary { path: self.path.clone(), draft_vocab_size, vocab_size }
    }
}

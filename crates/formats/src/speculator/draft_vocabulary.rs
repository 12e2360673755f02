//! Heads with fewer tokens than the target: `d2t`, as in EAGLE-3's checkpoints.

use super::Speculator;
use crate::checkpoint::LoadError;
use forerun_core::TokenId;
use std::sync::Arc;

/// The tensor that maps the head's tokens to the target's: the target's token for the head's token `t` is
/// `t + d2t[t]`.
pub(super) const DRAFT_TO_TARGET: &str = "d2t";

impl Speculator {
    /// Returns the target's token for each token of the head, in the order of the head's outputs. `None` if there is
    /// no `d2t`.
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

    /// Returns the error for a head whose tokens are not all mapped to the target's.
    pub(super) fn draft_vocabulary_error(
        &self,
        draft_vocab_size: usize,
        vocab_size: usize,
    ) -> LoadError {
        LoadError::DraftVocabulary { path: self.path.clone(), draft_vocab_size, vocab_size }
    }
}

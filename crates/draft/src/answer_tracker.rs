//! Which answer a drafter's memory is of.

use crate::DraftContext;
use forerun_core::TokenId;

/// What a drafter last saw of an answer.
///
/// The turns of a chat share a sequence, and a turn may rewrite the ones before it. What a drafter has
/// learned of one answer must not reach the next: candidates may depend on a request alone, since
/// above temperature 0 the text of a seed depends on them.
#[derive(Debug, Default)]
pub(crate) struct AnswerTracker {
    prompt_len: usize,
    tokens: Vec<TokenId>,
}

impl AnswerTracker {
    /// Turns to a context, and tells whether that goes on with the same answer: each of its drafts has
    /// more tokens than the last one, and the same before them.
    pub(crate) fn continues(&mut self, context: &DraftContext<'_>) -> bool {
        let &DraftContext { tokens, prompt_len, .. } = context;
        let goes_on = prompt_len == self.prompt_len
            && tokens.len() > self.tokens.len()
            && tokens.starts_with(&self.tokens);
        self.prompt_len = prompt_len;
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        goes_on
    }
}

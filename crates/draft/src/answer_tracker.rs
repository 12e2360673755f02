//! Keeps a drafter's memory separate for each answer.

use crate::DraftContext;
use forerun_core::TokenId;

/// The tokens of the answer that a drafter last saw.
///
/// The turns of a chat share a sequence, and a turn may rewrite earlier ones. What a drafter learns
/// from one answer must not affect the next. Candidates must depend on the request alone, because
/// above temperature 0 the text of a seed depends on them.
#[derive(Debug, Default)]
pub(crate) struct AnswerTracker {
    prompt_len: usize,
    tokens: Vec<TokenId>,
}

impl AnswerTracker {
    /// Moves on to a new context. Returns whether it continues the same answer, which is so if it
    /// extends the last context and has the same prompt length.
    pub(crate) fn continues(&mut self, context: &DraftContext<'_>) -> bool {
        let &DraftContext { tokens, prompt_len, .. } = context;
        let continues = prompt_len == self.prompt_len
            && tokens.len() > self.tokens.len()
            && tokens.starts_with(&self.tokens);
        self.prompt_len = prompt_len;
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        continues
    }
}

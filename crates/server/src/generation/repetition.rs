//! The end of answers that repeat themselves.

use forerun::text::repeats_itself;
use forerun::{AnswerEvent, AnswerStream, Finish, TokenId};

/// Watches an answer, and ends it when it repeats itself.
#[derive(Default)]
pub(super) struct RepetitionGuard {
    tokens: Vec<TokenId>,
    has_ended: bool,
}

impl RepetitionGuard {
    /// Reads the next event of an answer. An answer that is ended so counts as cut off, as at a
    /// limit: the APIs have no other word for it.
    pub(super) fn read(&mut self, event: &mut AnswerEvent, stream: &mut AnswerStream<'_>) {
        match event {
            AnswerEvent::Token(token) => self.tokens.push(token.token),
            // The text of the last token has arrived.
            AnswerEvent::Text(_) if !self.has_ended && repeats_itself(&self.tokens) => {
                stream.stop();
                self.has_ended = true;
                let tokens = self.tokens.len();
                tracing::info!(tokens, "answer ended, because it repeats itself");
            }
            AnswerEvent::Finished(answer) if self.has_ended && answer.finish == Finish::Stopped => {
                answer.finish = Finish::MaxTokens;
            }
            AnswerEvent::Text(_) | AnswerEvent::Finished(_) => {}
        }
    }
}

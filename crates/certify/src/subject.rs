//! What is compared with plain decoding.

use forerun::{Canceller, Forerun, ForerunError, Request, TokenId, TokenLogprob};
use forerun_core::Need;
use std::ops::ControlFlow;

/// What is compared with plain decoding: an engine, or a decoder of your own.
pub trait Subject {
    /// Continues a text, as [`Forerun::generate_interruptibly`] does.
    ///
    /// # Errors
    /// As [`Forerun::generate_interruptibly`].
    fn answer(
        &self,
        prompt: &str,
        request: &Request,
        canceller: &Canceller,
    ) -> Result<SubjectAnswer, ForerunError>;

    /// Returns whether drafts are verified as a whole, so that they can be verified in blocks.
    fn verifies_whole_drafts(&self) -> bool;
}

/// The answer of a [`Subject`].
#[derive(Clone, Debug, Default)]
pub struct SubjectAnswer {
    /// The tokens after the prompt.
    pub tokens: Vec<TokenId>,
    /// The log-probabilities at the position of each of them, as the request asks for them.
    pub logprobs: Vec<TokenLogprob>,
    /// How many of the tokens were drafted and accepted.
    pub accepted: usize,
}

impl Subject for Forerun {
    fn answer(
        &self,
        prompt: &str,
        request: &Request,
        canceller: &Canceller,
    ) -> Result<SubjectAnswer, ForerunError> {
        let go_on = |_: &str| ControlFlow::Continue(());
        let answer = self.generate_interruptibly(prompt, request, canceller, go_on)?;
        Ok(SubjectAnswer {
            accepted: answer.statistics.accepted.iter().sum::<u64>() as usize,
            logprobs: answer.logprobs.unwrap_or_default(),
            tokens: answer.tokens,
        })
    }

    fn verifies_whole_drafts(&self) -> bool {
        self.plan().method().offers(Need::WholeDrafts)
    }
}

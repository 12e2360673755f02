//! Log-probabilities of the target's tokens.
//!
//! They are the logarithm of the softmax of the raw logits, before bias, penalties, temperature and
//! filters. OpenAI's API reports the same, and vLLM does by default (`raw_logprobs`). They depend
//! only on the row's logits, so drafting does not change them.

use crate::logit_row::LogitRow;
use crate::{Distribution, RowLogits, SamplingError, TokenId};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The log-probability of an emitted token, and of the most probable tokens at its position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token that was emitted.
    pub token: TokenId,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The requested number of most probable tokens, best first. Ties go to the lower token. The
    /// emitted token is among them only if it ranks there.
    pub top: Vec<(TokenId, f32)>,
}

/// The log-probabilities of one row, for every token that the row can emit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowLogprobs {
    /// The log-probabilities of the tokens in the row's distribution, in its order.
    emitted: Vec<f32>,
    top: Vec<(TokenId, f32)>,
}

impl RowLogprobs {
    /// Computes the log-probabilities of a whole row with raw `logits` that emits tokens of `row`,
    /// together with those of the `top` most probable tokens. `position` is the row's absolute
    /// position, for the error.
    ///
    /// # Errors
    /// [`SamplingError::Logit`] if a logit is NaN or infinite, [`SamplingError::PartialRow`] if the
    /// row is not whole.
    pub fn new<'l>(
        logits: impl Into<RowLogits<'l>>,
        row: &Distribution,
        top: usize,
        position: usize,
    ) -> Result<Self, SamplingError> {
        let logits = match logits.into() {
            RowLogits::Full(logits) => logits,
            RowLogits::Best(best) => return Err(SamplingError::PartialRow(best.ranked.len())),
        };
        let raw = LogitRow::new(Cow::Borrowed(logits), position)?;
        let log_mass = raw.mass(1.0).ln();
        let logprob = |logit: f32| (f64::from(-raw.distance(logit, 1.0)) - log_mass) as f32;
        let logprob_of =
            |token| logits.get(token as usize).map_or(f32::NEG_INFINITY, |&l| logprob(l));
        let emitted = row.support().iter().map(logprob_of).collect();
        let best = raw.best(top);
        let top = best.into_iter().map(|ranked| (ranked.token, logprob(ranked.logit))).collect();
        Ok(Self { emitted, top })
    }

    /// Returns the log-probability of `token`, drawn from `row`. `row` must be the distribution
    /// that was passed to [`RowLogprobs::new`]. Tokens that it cannot emit have a log-probability
    /// of −∞.
    #[must_use]
    pub fn for_token(&self, row: &Distribution, token: TokenId) -> TokenLogprob {
        let logprob = row.support().index(token).and_then(|index| self.emitted.get(index).copied());
        let logprob = logprob.unwrap_or(f32::NEG_INFINITY);
        TokenLogprob { token, logprob, top: self.top.clone() }
    }
}

//! Log-probabilities of the target's own distribution, for whoever wants to see them.
//!
//! They are the logarithm of the softmax of the raw logits, before bias, penalties, temperature and
//! filters: what the model believes, whatever is sampled. That is what OpenAI reports, and vLLM by
//! default (`raw_logprobs`). They depend on the row's logits alone, so drafting changes none of them.

use crate::logit_row::LogitRow;
use crate::{Distribution, SamplingError, TokenId};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The log-probability of an emitted token, and of the most probable ones in its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token that was emitted.
    pub token: TokenId,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// As many of the most probable tokens as were asked for, best first, the lower token first among
    /// equals; the emitted token is among them only if it ranks there.
    pub top: Vec<(TokenId, f32)>,
}

/// The log-probabilities of one row: which token it will emit is not known yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowLogprobs {
    /// Of the tokens that the row can emit, in the order of its distribution.
    emitted: Vec<f32>,
    top: Vec<(TokenId, f32)>,
}

impl RowLogprobs {
    /// Of a row with these raw logits that emits tokens of `row`, with the `top` best.
    ///
    /// # Errors
    /// [`SamplingError::Logit`] if a logit is NaN or infinite; `position` is the row's.
    pub fn new(
        logits: &[f32],
        row: &Distribution,
        top: usize,
        position: usize,
    ) -> Result<Self, SamplingError> {
        let raw = LogitRow::new(Cow::Borrowed(logits), position)?;
        let log_mass = raw.mass(1.0).ln();
        let logprob = |logit: f32| (f64::from(-raw.distance(logit, 1.0)) - log_mass) as f32;
        let of_token =
            |token| logits.get(token as usize).map_or(f32::NEG_INFINITY, |&l| logprob(l));
        let emitted = row.support().iter().map(of_token).collect();
        let best = raw.best(top);
        let top = best.into_iter().map(|ranked| (ranked.token, logprob(ranked.logit))).collect();
        Ok(Self { emitted, top })
    }

    /// What is to be told of a token that was drawn from `row`, which these are of. A token that it
    /// cannot emit has a log-probability of −∞.
    #[must_use]
    pub fn of(&self, row: &Distribution, token: TokenId) -> TokenLogprob {
        let logprob = row.support().index(token).and_then(|index| self.emitted.get(index).copied());
        let logprob = logprob.unwrap_or(f32::NEG_INFINITY);
        TokenLogprob { token, logprob, top: self.top.clone() }
    }
}

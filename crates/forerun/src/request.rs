//! The options of one answer.

use forerun_core::{KeyedRandomness, Sampling, SamplingError, TokenId, Verification};
use forerun_model::SuggestedSampling;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::str::FromStr;

use crate::plan::UnknownValue;

/// The choice of how drafts are verified above temperature 0.
///
/// Parsed from `auto`, `rejection` and `coupled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerificationChoice {
    /// [`Verification::Coupled`] if the request has a seed, which promises reproducible text;
    /// [`Verification::Rejection`] otherwise.
    #[default]
    Auto,
    /// The given verification, with and without a seed.
    Always(Verification),
}

impl FromStr for VerificationChoice {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        match text {
            "auto" => Ok(Self::Auto),
            "rejection" => Ok(Self::Always(Verification::Rejection)),
            "coupled" => Ok(Self::Always(Verification::Coupled)),
            _ => Err(UnknownValue::new(text, "auto, rejection, coupled")),
        }
    }
}

/// The options of one answer.
///
/// The default is greedy decoding of up to 200 tokens. [`Sampling`] documents the order in which the
/// sampling options apply. At temperature 0, only penalties and the logit bias have an effect.
///
/// ```
/// let request = forerun::Request {
///     temperature: 0.7,
///     min_p: 0.05,
///     repetition_penalty: 1.1,
///     stop: vec!["\n\n".into()],
///     seed: Some(7),
///     ..forerun::Request::default()
/// };
/// assert!(request.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The maximum number of tokens to generate, at least 1.
    pub max_tokens: usize,
    /// The sampling temperature. 0 is greedy: always the most probable token.
    pub temperature: f32,
    /// Samples from the `top_k` most probable tokens. 0 keeps all tokens.
    pub top_k: usize,
    /// Samples from the smallest set of most probable tokens with this total probability, above 0.
    /// 1 keeps all tokens.
    pub top_p: f32,
    /// Samples from tokens that are at least `min_p` times as probable as the most probable one.
    /// 0 keeps all tokens.
    pub min_p: f32,
    /// Divides the positive logits of tokens in the prompt or the answer, and multiplies their
    /// negative ones. Values above 1 discourage repetition; 1 has no effect.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit once for each of its occurrences in the answer. From −2 to 2.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit if it occurs in the answer. From −2 to 2.
    pub presence_penalty: f32,
    /// Added to the logits of the given tokens. From −100 to 100.
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// The seed that makes sampled text reproducible. `None` draws a new seed for every answer.
    pub seed: Option<u64>,
    /// How drafts are verified above temperature 0.
    pub verification: VerificationChoice,
    /// Texts that end the answer, and are not part of it. The stop string that is complete first
    /// counts. If several are complete at once, the one that began first counts.
    pub stop: Vec<String>,
    /// Tokens that end the answer, in addition to the model's end-of-sequence tokens. They become
    /// the answer's last token.
    pub stop_tokens: Vec<TokenId>,
    /// Whether to continue after the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Reports the log-probability of every token, and those of this many most probable tokens at
    /// its position: 0 to [`MAX_LOGPROBS`]. `Some(0)` reports the token alone.
    ///
    /// These are the target's own log-probabilities, before any of the sampling options. They do not
    /// depend on the drafter.
    pub logprobs: Option<usize>,
}

/// The largest value of [`Request::logprobs`], the same as in OpenAI's API.
pub const MAX_LOGPROBS: usize = 20;

impl Default for Request {
    fn default() -> Self {
        Self {
            max_tokens: 200,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: None,
            verification: VerificationChoice::Auto,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            logprobs: None,
        }
    }
}

/// An option of a [`Request`] that is out of range.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum RequestError {
    /// A sampling option is out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The maximum number of tokens is 0.
    #[error("`max_tokens` is 0, but it must be at least one")]
    NoTokens,
    /// More log-probabilities are requested than [`MAX_LOGPROBS`].
    #[error("`logprobs` is {0}, but it must be from 0 (the token alone) to {MAX_LOGPROBS}")]
    Logprobs(usize),
}

impl Request {
    /// Returns this request with the sampling options that a checkpoint suggests
    /// ([`Config::suggested_sampling`](crate::Config::suggested_sampling)).
    ///
    /// Suggestions are never applied by themselves. Other options keep their values.
    #[must_use]
    pub fn sampled_as(self, suggested: SuggestedSampling) -> Self {
        let SuggestedSampling { temperature, top_k, top_p, min_p, repetition_penalty } = suggested;
        Self { temperature, top_k, top_p, min_p, repetition_penalty, ..self }
    }

    /// Checks that all options are in range, as every method that answers requests does.
    ///
    /// # Errors
    /// Returns an error that names the first option out of range.
    ///
    /// ```
    /// let request = forerun::Request { top_p: 1.5, ..forerun::Request::default() };
    /// assert!(request.validate().is_err());
    /// ```
    pub fn validate(&self) -> Result<(), RequestError> {
        self.sampling().map(|_| ())
    }

    /// Returns the sampling options, with a random seed if the request has none.
    ///
    /// # Errors
    /// If an option is out of range.
    pub(crate) fn sampling(&self) -> Result<Sampling, RequestError> {
        if self.max_tokens == 0 {
            return Err(RequestError::NoTokens);
        }
        if let Some(count) = self.logprobs.filter(|&count| count > MAX_LOGPROBS) {
            return Err(RequestError::Logprobs(count));
        }
        let verification = match (self.verification, self.seed) {
            (VerificationChoice::Always(verification), _) => verification,
            (VerificationChoice::Auto, Some(_)) => Verification::Coupled,
            (VerificationChoice::Auto, None) => Verification::Rejection,
        };
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            logit_bias: self.logit_bias.clone(),
            randomness: KeyedRandomness { seed: self.seed.unwrap_or_else(draw_seed), sample: 0 },
            verification,
        };
        sampling.validate()?;
        Ok(sampling)
    }
}

/// Draws a seed from the operating system's randomness, through the standard library's hasher.
fn draw_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

//! What one answer should be like.

use forerun_core::{KeyedRandomness, Sampling, SamplingError, TokenId, Verification};
use forerun_model::SuggestedSampling;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::str::FromStr;

use crate::plan::UnknownValue;

/// How drafts are verified above temperature 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerificationChoice {
    /// Coupled where a seed asks for reproducible text, else rejection sampling.
    #[default]
    Auto,
    /// Always this.
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

/// The options of one answer. The sampling options mean what [`Sampling`] says, in the order that it
/// says; at temperature 0 only bias and penalties have a say.
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
    /// Tokens to generate at the most.
    pub max_tokens: usize,
    /// 0 is greedy: always the most probable token.
    pub temperature: f32,
    /// Only the `top_k` most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Only the most probable tokens that together reach this mass; 1 keeps all.
    pub top_p: f32,
    /// Only tokens at least `min_p` times as probable as the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or answer; above 1 it
    /// discourages them, 1 is none.
    pub repetition_penalty: f32,
    /// From −2 to 2, subtracted from a token's logit for each time that the answer holds it.
    pub frequency_penalty: f32,
    /// From −2 to 2, subtracted from a token's logit if the answer holds it.
    pub presence_penalty: f32,
    /// From −100 to 100, added to the logits of single tokens.
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// Makes sampled text reproducible; drawn anew for every answer if not given.
    pub seed: Option<u64>,
    /// How drafts are verified.
    pub verification: VerificationChoice,
    /// Texts that end the answer; they are not part of it. The one that is complete first counts, and
    /// of those complete at once the one that began first.
    pub stop: Vec<String>,
    /// Tokens that end the answer, beside the model's own end-of-sequence tokens; they are its last.
    pub stop_tokens: Vec<TokenId>,
    /// Goes on behind the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Tells the log-probability of every token, and of this many of the most probable ones in its
    /// place, at the most [`MAX_LOGPROBS`]; `Some(0)` tells of the token alone. They are the
    /// target's own, before all of the options above, and the same whatever drafts.
    pub logprobs: Option<usize>,
}

/// The most that [`Request::logprobs`] may ask for, as OpenAI has it.
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

/// Options of an answer that are out of range.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum RequestError {
    /// See [`SamplingError`].
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Nothing was asked for.
    #[error("max-tokens is 0: ask for at least one token")]
    NoTokens,
    /// More than [`MAX_LOGPROBS`].
    #[error("logprobs is {0}, but it must lie from 0 (the token alone) to {MAX_LOGPROBS}")]
    Logprobs(usize),
}

impl Request {
    /// The same, sampled as a checkpoint suggests (`Config::suggested_sampling`). Nothing follows a
    /// suggestion unless it is asked for by this.
    #[must_use]
    pub fn sampled_as(self, suggested: SuggestedSampling) -> Self {
        let SuggestedSampling { temperature, top_k, top_p, min_p, repetition_penalty } = suggested;
        Self { temperature, top_k, top_p, min_p, repetition_penalty, ..self }
    }

    /// Checks the ranges of the options.
    ///
    /// # Errors
    /// Names the option that is out of range.
    pub fn validate(&self) -> Result<(), RequestError> {
        self.sampling().map(|_| ())
    }

    /// The sampling options, a seed drawn where none was given.
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

/// A seed from the operating system's randomness, by way of the standard library's hasher.
fn draw_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

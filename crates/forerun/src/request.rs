//! The options of one answer.

use forerun_core::{
    KeyedRandomness, Need, Sampling, SamplingError, SamplingOptions, TokenId, Verification,
};
use forerun_formats::SuggestedSampling;
use std::hash::{BuildHasher, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use crate::plan::{Method, Tree};
use forerun_core::UnknownValue;
use forerun_text::Grammar;

/// The choice of how drafts are verified above temperature 0.
///
/// Parsed from `auto`, `block`, `rejection` and `coupled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerificationChoice {
    /// [`Verification::Coupled`] if the request has a seed, which promises reproducible text.
    /// Otherwise [`Verification::Block`] if the method verifies whole drafts, and
    /// [`Verification::Rejection`] if it does not.
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
            "block" => Ok(Self::Always(Verification::Block)),
            "rejection" => Ok(Self::Always(Verification::Rejection)),
            "coupled" => Ok(Self::Always(Verification::Coupled)),
            _ => Err(UnknownValue::new(text, "auto, block, rejection, coupled")),
        }
    }
}

/// The options of one answer.
///
/// The default is greedy decoding of up to 200 tokens. [`Sampling`] documents the order in which
/// the sampling options apply. At temperature 0, only penalties and the logit bias have an effect.
///
/// ```
/// use forerun::{Request, SamplingOptions};
///
/// let request = Request {
///     sampling: SamplingOptions { temperature: 0.7, min_p: 0.05, ..SamplingOptions::default() },
///     stop: vec!["\n\n".into()],
///     seed: Some(7),
///     ..Request::default()
/// };
/// assert!(request.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The maximum number of tokens to generate, at least 1.
    pub max_tokens: usize,
    /// Which tokens can be sampled: temperature, filters, penalties and biases.
    pub sampling: SamplingOptions,
    /// The seed that makes sampled text reproducible. `None` draws a new seed for every answer.
    pub seed: Option<u64>,
    /// How drafts are verified above temperature 0.
    pub verification: VerificationChoice,
    /// Texts that end the answer, and are not part of it. The stop string that is complete first
    /// counts. If several are complete at once, the one that began first counts.
    pub stop: Vec<String>,
    /// Tokens that end the answer, in addition to the model's end-of-sequence tokens. The one that
    /// ends it is the answer's last token, and has no text.
    pub stop_tokens: Vec<TokenId>,
    /// Whether to continue after the model's end-of-sequence tokens. They are then tokens like any
    /// other.
    pub ignore_eos: bool,
    /// Whether the text contains the texts of special tokens, such as the tags around a tool call.
    /// Tokens that end the answer have no text.
    pub special_tokens: bool,
    /// Reports the log-probability of every token, and those of this many most probable tokens at
    /// its position: 0 to [`Request::MAX_LOGPROBS`]. `Some(0)` reports the token alone.
    ///
    /// These are the target's own log-probabilities, before any of the sampling options. They do
    /// not depend on the drafter.
    pub logprobs: Option<usize>,
    /// Reports the same of the prompt's tokens after the first
    /// ([`Answer::prompt_logprobs`](crate::Answer::prompt_logprobs)). The prompt is scored before the
    /// answer begins.
    pub prompt_logprobs: Option<usize>,
    /// The number of tokens of a draft, instead of the engine's. It changes the speed, not the
    /// distribution of the text.
    pub draft_tokens: Option<usize>,
    /// The shape of a draft, instead of the engine's; [`Tree::None`] is the engine's, and
    /// [`Tree::Auto`] is not possible. It changes the speed, not the distribution of the text.
    pub tree: Tree,
    /// What the answer's text must look like. It ends when it is complete; the end token is the
    /// answer's last token.
    pub grammar: Option<Grammar>,
    /// The name of one of the engine's adapters ([`Options::adapters`](crate::Options::adapters));
    /// `None` is the model itself.
    pub adapter: Option<String>,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            max_tokens: 200,
            sampling: SamplingOptions::default(),
            seed: None,
            verification: VerificationChoice::Auto,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            special_tokens: false,
            logprobs: None,
            prompt_logprobs: None,
            draft_tokens: None,
            tree: Tree::None,
            grammar: None,
            adapter: None,
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
    /// More log-probabilities are requested than [`Request::MAX_LOGPROBS`].
    #[error(
        "`logprobs` is {0}, but it must be from 0 (the token alone) to {most}",
        most = Request::MAX_LOGPROBS
    )]
    Logprobs(usize),
    /// The engine has no such adapter.
    #[error(
        "`adapter` is {name:?}, but {}",
        if names.is_empty() {
            "the engine was opened without adapters: set `adapters`".to_owned()
        } else {
            format!("it must be one of {}", names.join(", "))
        }
    )]
    Adapter {
        /// The name.
        name: String,
        /// The names of the engine's adapters.
        names: Vec<String>,
    },
    /// Block verification is not possible with this method.
    #[error(
        "`verify = block` tests whole drafts, but the method {0} verifies them in parts: set `verify = \
         rejection`, or `method = speculative`"
    )]
    Block(Method),
    /// A tree is not possible with this engine.
    #[error("`tree` is {tree}, but {reason}")]
    Tree {
        /// The tree.
        tree: String,
        /// Why it is not possible.
        reason: String,
    },
    /// The number of draft tokens is not possible with this engine.
    #[error(
        "`draft_tokens` is {count}, but {}",
        if *most == 0 {
            "the engine drafts trees, whose size is the same for all answers".to_owned()
        } else {
            format!("it must be from 1 to {most} for this engine")
        }
    )]
    DraftTokens {
        /// The number.
        count: usize,
        /// The largest possible number; 0 if there is none.
        most: usize,
    },
}

impl Request {
    /// The largest value of [`Request::logprobs`], the same as in OpenAI's API.
    pub const MAX_LOGPROBS: usize = 20;

    /// Returns this request with the sampling options that a checkpoint suggests
    /// ([`Config::suggested_sampling`](crate::checkpoint::Config::suggested_sampling)).
    ///
    /// Suggestions are never applied by themselves. Other options keep their values.
    #[must_use]
    pub fn sampled_as(self, suggested: SuggestedSampling) -> Self {
        let SuggestedSampling { temperature, top_k, top_p, min_p, repetition_penalty } = suggested;
        let sampling = SamplingOptions {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            ..self.sampling
        };
        Self { sampling, ..self }
    }

    /// Checks that all options are in range, as every method that answers requests does.
    ///
    /// # Errors
    /// Returns an error that names the first option out of range.
    ///
    /// ```
    /// use forerun::{Request, SamplingOptions};
    ///
    /// let sampling = SamplingOptions { top_p: 1.5, ..SamplingOptions::default() };
    /// let request = Request { sampling, ..Request::default() };
    /// assert!(request.validate().is_err());
    /// ```
    pub fn validate(&self) -> Result<(), RequestError> {
        self.keyed_sampling(Verification::default()).map(|_| ())
    }

    /// Checks that all options are in range, and that this method can verify drafts as requested.
    ///
    /// # Errors
    /// As of [`Request::validate`], and [`RequestError::Block`].
    pub fn validate_for(&self, method: Method) -> Result<(), RequestError> {
        self.verification_by(method)?;
        self.validate()
    }

    /// Returns the method that decodes the answer: [`Method::Speculative`] in place of
    /// [`Method::Auto`] if the answer asks for trees or block verification, which no other method
    /// supports.
    pub(crate) fn decoded_by(&self, method: Method) -> Method {
        let in_blocks = self.verification == VerificationChoice::Always(Verification::Block);
        let only_speculative = in_blocks || self.tree != Tree::None;
        if method == Method::Auto && only_speculative { Method::Speculative } else { method }
    }

    /// Returns how this method verifies drafts of the answer.
    ///
    /// # Errors
    /// [`RequestError::Block`] if the method cannot verify them as requested.
    pub(crate) fn verification_by(&self, method: Method) -> Result<Verification, RequestError> {
        let method = self.decoded_by(method);
        let in_blocks = method.offers(Need::WholeDrafts);
        match self.verification {
            VerificationChoice::Always(Verification::Block) if method.drafts() && !in_blocks => {
                Err(RequestError::Block(method))
            }
            VerificationChoice::Always(verification) => Ok(verification),
            VerificationChoice::Auto if self.seed.is_some() => Ok(Verification::Coupled),
            VerificationChoice::Auto if in_blocks && self.sampling.temperature > 0.0 => {
                Ok(Verification::Block)
            }
            VerificationChoice::Auto => Ok(Verification::Rejection),
        }
    }

    /// Returns the sampling options, with a random seed if the request has none.
    ///
    /// # Errors
    /// If an option is out of range.
    pub(crate) fn keyed_sampling(
        &self,
        verification: Verification,
    ) -> Result<Sampling, RequestError> {
        if self.max_tokens == 0 {
            return Err(RequestError::NoTokens);
        }
        let most = self.logprobs.max(self.prompt_logprobs);
        if let Some(count) = most.filter(|&count| count > Self::MAX_LOGPROBS) {
            return Err(RequestError::Logprobs(count));
        }
        let sampling = Sampling {
            options: self.sampling.clone(),
            randomness: KeyedRandomness { seed: self.seed.unwrap_or_else(draw_seed), sample: 0 },
            verification,
            constraint: None,
            dry_breakers: Arc::default(),
            adapter: None,
        };
        sampling.validate()?;
        Ok(sampling)
    }
}

/// Draws a seed from the operating system's randomness, through the standard library's hasher. It
/// is smaller than 2⁵³, so that readers of JSON that know only 64-bit floats read it exactly.
fn draw_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish() >> (64 - 53)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_only_speculative_decoding_supports_are_decoded_by_it() {
        let decoded = |method: Method, change: fn(&mut Request)| {
            let mut request = Request::default();
            change(&mut request);
            (request.decoded_by(method), request.verification_by(method).is_ok())
        };
        let in_blocks: fn(&mut Request) = |request| {
            request.verification = VerificationChoice::Always(Verification::Block);
        };
        let tree: fn(&mut Request) = |request| request.tree = Tree::Ranked { nodes: 4 };
        assert_eq!(decoded(Method::Auto, |_| ()), (Method::Auto, true));
        for change in [in_blocks, tree] {
            assert_eq!(decoded(Method::Auto, change), (Method::Speculative, true));
        }
        assert_eq!(decoded(Method::Pearl, in_blocks), (Method::Pearl, false));
    }
}

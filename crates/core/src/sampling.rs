//! The sampling options: what they mean, and their ranges.

use crate::{KeyedRandomness, Sampler, TokenId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a sampled draft is verified at temperatures above 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verification {
    /// Rejection sampling: the target's distribution, with the best acceptance.
    #[default]
    Rejection,
    /// Target and drafter share Gumbel noise keyed by position and token (Daliri et al. 2024):
    /// exactly the tokens of autoregressive decoding with the same seed.
    Coupled,
}

/// The sampling options of one answer.
///
/// They apply to a row's logits in this order, for target and drafter alike:
///
/// 1. `logit_bias` is added;
/// 2. `repetition_penalty`, then `frequency_penalty` and `presence_penalty`, each by the row's own
///    prefix: the committed tokens and, in a tree, the path to the row;
/// 3. at temperature 0 the largest logit wins; else the logits are divided by `temperature`;
/// 4. `top_k`, `top_p` and `min_p` filter, each what those before it left.
///
/// Steps 1 and 2 are in the order of vLLM and Hugging Face's transformers, step 4 in that of the
/// latter (vLLM puts min-p first): min-p looks at the best token alone, so as the last it leaves the
/// meaning of top-p untouched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divides the logits; 0 means greedy.
    pub temperature: f32,
    /// Only the `top_k` most probable tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Only the most probable tokens that together reach this mass are kept; 1 keeps all.
    pub top_p: f32,
    /// Only tokens at least `min_p` times as probable as the most probable one are kept (Nguyen et
    /// al. 2024, arXiv 2407.01082); 0 keeps all.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of tokens in prompt or answer (Keskar
    /// et al. 2019, arXiv 1909.05858, as in transformers); above 1 it discourages them, 1 is none.
    pub repetition_penalty: f32,
    /// Is subtracted from a token's logit as often as the answer holds the token, the prompt not
    /// counted (OpenAI); 0 is none.
    pub frequency_penalty: f32,
    /// Is subtracted once from the logit of a token that the answer holds, the prompt not counted
    /// (OpenAI); 0 is none.
    pub presence_penalty: f32,
    /// Is added to the logits of single tokens (OpenAI).
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// Seed and sample index of the keyed randomness.
    pub randomness: KeyedRandomness,
    /// How drafts are verified.
    pub verification: Verification,
}

/// Sampling options out of range, or logits that are not numbers.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum SamplingError {
    /// Negative, infinite or not a number.
    #[error("temperature is {0}, but it must be 0 (greedy) or a positive number")]
    Temperature(f32),
    /// Outside (0, 1].
    #[error("top-p is {0}, but it must lie above 0 and at most at 1 (1 keeps every token)")]
    TopP(f32),
    /// Outside [0, 1].
    #[error("min-p is {0}, but it must lie from 0 (keeps every token) to 1 (keeps the best)")]
    MinP(f32),
    /// Zero, negative, infinite or not a number.
    #[error(
        "repetition-penalty is {0}, but it must be a positive number: 1 is none, 1.1 discourages what \
         came before"
    )]
    RepetitionPenalty(f32),
    /// Outside [-2, 2].
    #[error("frequency-penalty is {0}, but it must lie from -2 to 2 (0 is none)")]
    FrequencyPenalty(f32),
    /// Outside [-2, 2].
    #[error("presence-penalty is {0}, but it must lie from -2 to 2 (0 is none)")]
    PresencePenalty(f32),
    /// Outside [-100, 100].
    #[error(
        "the logit bias of token {token} is {bias}, but it must lie from -100 (as good as forbidden) to \
         100 (as good as forced)"
    )]
    Bias {
        /// The token.
        token: TokenId,
        /// Its bias.
        bias: f32,
    },
    /// A bias of no token.
    #[error(
        "there is a logit bias of token {token}, but the model's vocabulary has {vocab_size} tokens: name \
         one from 0 to {}", vocab_size.saturating_sub(1)
    )]
    BiasToken {
        /// The token.
        token: TokenId,
        /// Number of tokens in the vocabulary.
        vocab_size: usize,
    },
    /// The model's output is broken.
    #[error(
        "the logit of token {token} at position {position} is {value}: the model's weights or \
         activations overflow"
    )]
    Logit {
        /// Absolute position of the token to be predicted.
        position: usize,
        /// The vocabulary entry.
        token: usize,
        /// Its logit.
        value: f32,
    },
}

impl Sampling {
    /// Temperature 0: always the most probable token, the lowest id among equals.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            randomness: KeyedRandomness { seed: 0, sample: 0 },
            verification: Verification::Rejection,
        }
    }

    /// Checks the ranges of the options.
    ///
    /// # Errors
    /// Names the option that is out of range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Err(SamplingError::Temperature(self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(SamplingError::TopP(self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return Err(SamplingError::MinP(self.min_p));
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return Err(SamplingError::RepetitionPenalty(self.repetition_penalty));
        }
        if !(-2.0..=2.0).contains(&self.frequency_penalty) {
            return Err(SamplingError::FrequencyPenalty(self.frequency_penalty));
        }
        if !(-2.0..=2.0).contains(&self.presence_penalty) {
            return Err(SamplingError::PresencePenalty(self.presence_penalty));
        }
        match self.logit_bias.iter().find(|(_, bias)| !(-100.0..=100.0).contains(*bias)) {
            Some((&token, &bias)) => Err(SamplingError::Bias { token, bias }),
            None => Ok(()),
        }
    }

    /// Checks that the options fit a vocabulary, too.
    ///
    /// # Errors
    /// As [`Sampling::validate`], and if a bias names a token beyond the vocabulary.
    pub fn validate_for(&self, vocab_size: usize) -> Result<(), SamplingError> {
        self.validate()?;
        match self.logit_bias.last_key_value() {
            Some((&token, _)) if token as usize >= vocab_size => {
                Err(SamplingError::BiasToken { token, vocab_size })
            }
            _ => Ok(()),
        }
    }

    /// Whether every token is a function of the tokens before it and the seed, so that rows are
    /// point masses.
    #[must_use]
    pub fn is_deterministic(&self) -> bool {
        self.temperature == 0.0 || self.verification == Verification::Coupled
    }

    /// The options at work behind a prefix, of which the first `prompt_len` tokens are the prompt and
    /// the others the answer so far.
    #[must_use]
    pub fn sampler(&self, tokens: &[TokenId], prompt_len: usize) -> Sampler<'_> {
        Sampler::new(self, tokens, prompt_len)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_named() {
        let greedy = Sampling::greedy;
        assert_eq!(greedy().validate(), Ok(()));
        let broken = [
            ("temperature", Sampling { temperature: -1.0, ..greedy() }),
            ("temperature", Sampling { temperature: f32::NAN, ..greedy() }),
            ("top-p", Sampling { top_p: 0.0, ..greedy() }),
            ("top-p", Sampling { top_p: 1.5, ..greedy() }),
            ("min-p", Sampling { min_p: -0.1, ..greedy() }),
            ("min-p", Sampling { min_p: 1.1, ..greedy() }),
            ("min-p", Sampling { min_p: f32::NAN, ..greedy() }),
            ("repetition-penalty", Sampling { repetition_penalty: 0.0, ..greedy() }),
            ("repetition-penalty", Sampling { repetition_penalty: f32::INFINITY, ..greedy() }),
            ("frequency-penalty", Sampling { frequency_penalty: 2.1, ..greedy() }),
            ("frequency-penalty", Sampling { frequency_penalty: f32::NAN, ..greedy() }),
            ("presence-penalty", Sampling { presence_penalty: -2.1, ..greedy() }),
            ("bias of token 7", Sampling { logit_bias: [(7, 100.5)].into(), ..greedy() }),
            ("bias of token 7", Sampling { logit_bias: [(7, f32::NAN)].into(), ..greedy() }),
        ];
        for (name, sampling) in broken {
            let message = sampling.validate().unwrap_err().to_string();
            assert!(message.contains(name), "{name}: {message}");
        }
        let edges = Sampling {
            min_p: 1.0,
            frequency_penalty: -2.0,
            presence_penalty: 2.0,
            logit_bias: [(0, -100.0), (7, 100.0)].into(),
            ..greedy()
        };
        assert_eq!(edges.validate_for(8), Ok(()));
        let error = SamplingError::BiasToken { token: 7, vocab_size: 7 };
        assert_eq!(edges.validate_for(7), Err(error.clone()));
        assert!(error.to_string().contains("0 to 6"), "{error}");
    }

    #[test]
    fn options_survive_serialisation() {
        let sampling = Sampling {
            min_p: 0.05,
            logit_bias: [(3, -1.5), (100, 2.0)].into(),
            ..Sampling::greedy()
        };
        let text = serde_json::to_string(&sampling).unwrap();
        assert_eq!(serde_json::from_str::<Sampling>(&text).unwrap(), sampling);
    }
}

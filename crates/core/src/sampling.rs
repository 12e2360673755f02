//! The sampling options, with their meanings and ranges.

use crate::{Constraint, Dry, KeyedRandomness, RowUse, TokenId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// How a sampled draft is verified at temperatures above 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verification {
    /// Rejection sampling: exactly the target's distribution. One token is tested after another.
    #[default]
    Rejection,
    /// Block verification (Sun et al. 2024, arXiv 2403.10444): exactly the target's distribution.
    /// Drafts are tested as a whole, which accepts more tokens. Methods that verify parts of drafts
    /// use [`Rejection`](Self::Rejection) instead.
    Block,
    /// Target and drafter share Gumbel noise keyed by position and token (Daliri et al. 2024, arXiv
    /// 2408.07978): exactly the tokens of autoregressive decoding with the same seed.
    Coupled,
}

/// Which tokens can be sampled, and how probably.
///
/// The default is greedy decoding without penalties.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingOptions {
    /// Divides the logits; 0 means greedy decoding.
    pub temperature: f32,
    /// Keeps only the `top_k` most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps only the most probable tokens that together reach this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps only the tokens that are at least `min_p` times as probable as the most probable one
    /// (Nguyen et al. 2024, arXiv 2407.01082); 0 keeps all.
    pub min_p: f32,
    /// Keeps only the tokens whose surprise is nearest to the expected one, as many as together
    /// exceed this probability (Meister et al. 2022, arXiv 2202.00666); 1 keeps all.
    pub typical_p: f32,
    /// Keeps only the tokens whose logits are within this many standard deviations of the largest
    /// one (Tang et al. 2024, arXiv 2411.07641); 0 and -1 keep all.
    pub top_n_sigma: f32,
    /// How probably XTC excludes the top choices at a position: all tokens that have at least the
    /// probability `xtc_threshold` but the least probable one of them (as in llama.cpp). The seed
    /// and the position decide; 0 never excludes any.
    pub xtc_probability: f32,
    /// The least probability of a top choice.
    pub xtc_threshold: f32,
    /// Makes the temperature depend on the entropy of the tokens that the filters keep: from
    /// `temperature - dynatemp_range` to `temperature + dynatemp_range` (as in llama.cpp). The
    /// filters then apply at temperature 1. 0 disables it.
    pub dynatemp_range: f32,
    /// The exponent of the entropy's share in the largest one.
    pub dynatemp_exponent: f32,
    /// Divides the positive and multiplies the negative logits of tokens in prompt and answer
    /// (Keskar et al. 2019, arXiv 1909.05858, as in transformers). Values above 1 discourage
    /// repetition; 1 disables the penalty.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit once for each occurrence in the answer, not counting the
    /// prompt (as in OpenAI's API); 0 disables the penalty.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of every token that occurs in the answer, not counting the
    /// prompt (as in OpenAI's API); 0 disables the penalty.
    pub presence_penalty: f32,
    /// The DRY penalty of tokens that continue a repetition.
    pub dry: Dry,
    /// Added to the logits of single tokens (as in OpenAI's API).
    pub logit_bias: BTreeMap<TokenId, f32>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            dry: Dry::default(),
            logit_bias: BTreeMap::new(),
        }
    }
}

/// The number of one of the target's adapters, which every worker of the target has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AdapterId(pub u32);

/// The sampling options of one answer.
///
/// They apply to a row's logits in this order, for target and drafter alike:
///
/// 1. `logit_bias` is added.
/// 2. `repetition_penalty` applies, then `frequency_penalty` and `presence_penalty`, then `dry`.
///    They count the tokens before the row: the committed tokens and, in a tree, the path to the
///    row.
/// 3. `constraint` excludes the tokens that it forbids after the tokens before the row. Bias and
///    penalties cannot bring them back.
/// 4. At temperature 0 the largest logit wins. Otherwise the logits are divided by `temperature`.
/// 5. `top_n_sigma`, `top_k`, `typical_p`, `top_p`, `min_p` and XTC filter, each the tokens that the
///    previous steps kept.
/// 6. With a `dynatemp_range`, the temperature applies here, and not in step 4.
///
/// Steps 1 and 2 are in the order of vLLM and Hugging Face's transformers. Step 5 is in the order
/// of llama.cpp, which always applies the temperature last. vLLM applies min-p before top-p. Min-p
/// compares with the best token only, so applying it last does not change the meaning of top-p.
///
/// ```rust
/// use forerun_core::{Sampler, Sampling, SamplingOptions, TokenTree};
///
/// let options = SamplingOptions { temperature: 0.7, top_k: 2, ..SamplingOptions::default() };
/// let sampling = Sampling { options, ..Sampling::greedy() };
/// sampling.validate()?;
///
/// // The distribution of the next token after the prompt 5 8, from its logits.
/// let sampler = Sampler::new(&sampling, &[5, 8], 2);
/// let row = sampler.distribution(&[1.0, 3.0, 2.0, -1.0], &TokenTree::new(), None)?;
/// assert_eq!(row.most_probable(), Some(1));
/// assert_eq!(row.probability(3), 0.0, "top-k keeps two tokens");
/// # Ok::<(), forerun_core::SamplingError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Which tokens can be sampled. Their fields can be read on [`Sampling`] itself.
    pub options: SamplingOptions,
    /// The seed and sample index of the keyed randomness.
    pub randomness: KeyedRandomness,
    /// How drafts are verified.
    pub verification: Verification,
    /// Which tokens the answer may have; `None` allows all.
    pub constraint: Option<Constraint>,
    /// The token sequences of `dry.sequence_breakers`, sorted.
    pub dry_breakers: Arc<[Vec<TokenId>]>,
    /// The adapter with which the target computes its logits and features.
    pub adapter: Option<AdapterId>,
}

impl Deref for Sampling {
    type Target = SamplingOptions;

    fn deref(&self) -> &SamplingOptions {
        &self.options
    }
}

/// An error in the sampling options, or in the logits that they apply to.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum SamplingError {
    /// An option is out of its range.
    #[error("`{name}` is {value}, but must be {expected}")]
    Range { name: &'static str, value: f32, expected: &'static str },
    /// A bias is outside [-100, 100].
    #[error(
        "`logit_bias` of token {token} is {bias}, but must be from -100 (practically forbids the \
         token) to 100 (practically forces it)"
    )]
    Bias { token: TokenId, bias: f32 },
    /// A sequence breaker is empty or too long, or there are too many.
    #[error(
        "`dry_sequence_breakers` must be at most {most} texts of 1 to {most} bytes",
        most = Dry::MOST_BREAKERS
    )]
    Breakers,
    /// A bias is for a token outside the vocabulary.
    #[error(
        "`logit_bias` has a bias for token {token}, but the model's vocabulary has {vocab_size} \
         tokens: use a token id from 0 to {}", vocab_size.saturating_sub(1)
    )]
    BiasToken { token: TokenId, vocab_size: usize },
    /// The constraint could not be compiled in this process.
    #[error("the constraint of this request cannot be applied: {0}")]
    Constraint(String),
    /// The model's output is NaN or infinite.
    #[error(
        "the logit of token {token} at position {position} is {value}: the model's weights or \
         activations overflow. Check that the checkpoint is intact"
    )]
    Logit { position: usize, token: usize, value: f32 },
    /// A model returned less of a row than it was asked for.
    #[error(
        "the model returned the {0} best tokens of a row, but the sampling options read more of it"
    )]
    PartialRow(usize),
}

impl SamplingOptions {
    /// Checks the ranges of the options.
    ///
    /// # Errors
    /// If an option is out of range. The error names it.
    pub fn validate(&self) -> Result<(), SamplingError> {
        const POSITIVE: f32 = f32::MIN_POSITIVE;
        let share = "from 0 to 1";
        let penalty = "from -2 to 2 (0 disables it)";
        for (name, value, range, expected) in [
            ("temperature", self.temperature, 0.0..=f32::MAX, "0 (greedy) or a positive number"),
            ("top_p", self.top_p, POSITIVE..=1.0, "above 0 and at most 1 (1 keeps every token)"),
            (
                "min_p",
                self.min_p,
                0.0..=1.0,
                "from 0 (keeps every token) to 1 (keeps only the best)",
            ),
            (
                "typical_p",
                self.typical_p,
                POSITIVE..=1.0,
                "above 0 and at most 1 (1 keeps every token)",
            ),
            (
                "top_n_sigma",
                self.top_n_sigma,
                -1.0..=f32::MAX,
                "a positive number (0 and -1 keep every token)",
            ),
            ("xtc_probability", self.xtc_probability, 0.0..=1.0, share),
            ("xtc_threshold", self.xtc_threshold, 0.0..=1.0, share),
            (
                "dynatemp_range",
                self.dynatemp_range,
                0.0..=f32::MAX,
                "a positive number (0 disables it)",
            ),
            ("dynatemp_exponent", self.dynatemp_exponent, 0.0..=f32::MAX, "0 or a positive number"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                POSITIVE..=f32::MAX,
                "a positive number: 1 disables it, 1.1 discourages repetition",
            ),
            ("frequency_penalty", self.frequency_penalty, -2.0..=2.0, penalty),
            ("presence_penalty", self.presence_penalty, -2.0..=2.0, penalty),
            (
                "dry_multiplier",
                self.dry.multiplier,
                0.0..=f32::MAX,
                "a positive number (0 disables it)",
            ),
            ("dry_base", self.dry.base, 1.0..=f32::MAX, "at least 1"),
        ] {
            if !range.contains(&value) {
                return Err(SamplingError::Range { name, value, expected });
            }
        }
        let breakers = &self.dry.sequence_breakers;
        let fits = |breaker: &String| (1..=Dry::MOST_BREAKERS).contains(&breaker.len());
        if breakers.len() > Dry::MOST_BREAKERS || !breakers.iter().all(fits) {
            return Err(SamplingError::Breakers);
        }
        match self.logit_bias.iter().find(|(_, bias)| !(-100.0..=100.0).contains(*bias)) {
            Some((&token, &bias)) => Err(SamplingError::Bias { token, bias }),
            None => Ok(()),
        }
    }

    /// Checks the ranges of the options, and that they fit a vocabulary.
    ///
    /// # Errors
    /// The same as [`SamplingOptions::validate`], and [`SamplingError::BiasToken`] if a bias is for
    /// a token outside the vocabulary.
    pub fn validate_for(&self, vocab_size: usize) -> Result<(), SamplingError> {
        self.validate()?;
        match self.logit_bias.last_key_value() {
            Some((&token, _)) if token as usize >= vocab_size => {
                Err(SamplingError::BiasToken { token, vocab_size })
            }
            _ => Ok(()),
        }
    }
}

impl Sampling {
    /// Creates the options of greedy decoding: always the most probable token, and the lowest id
    /// among equals.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            options: SamplingOptions::default(),
            randomness: KeyedRandomness { seed: 0, sample: 0 },
            verification: Verification::Rejection,
            constraint: None,
            dry_breakers: Arc::default(),
            adapter: None,
        }
    }

    /// Returns whether every token is a function of the seed and the tokens before it. Rows are
    /// point masses then.
    #[must_use]
    pub fn is_deterministic(&self) -> bool {
        self.temperature == 0.0 || self.verification == Verification::Coupled
    }

    /// Returns whether a bias or a penalty can change logits.
    pub(crate) fn changes_logits(&self) -> bool {
        let counts_generated = self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        let penalises = self.repetition_penalty != 1.0 || counts_generated || self.dry.applies();
        penalises || !self.logit_bias.is_empty()
    }

    /// Returns what [`Sampler::distribution`](crate::Sampler::distribution) reads of a row over so
    /// many tokens.
    ///
    /// Greedy rows are their best token, and the other filters apply to the tokens that top-k
    /// keeps. Everything else reads all logits.
    #[must_use]
    pub fn row_use(&self, tokens: usize) -> RowUse {
        match self.top_k {
            _ if self.reads_all_logits() => RowUse::Full,
            _ if self.temperature == 0.0 => RowUse::best(1, tokens),
            0 => RowUse::Full,
            top_k => RowUse::best(top_k, tokens),
        }
    }

    /// Returns what [`Sampler::candidates`](crate::Sampler::candidates) reads of a row over so many
    /// tokens, for any number of candidates. The probabilities of greedy candidates are shares of
    /// all tokens.
    #[must_use]
    pub fn candidates_use(&self, tokens: usize) -> RowUse {
        if self.temperature == 0.0 { RowUse::Full } else { self.row_use(tokens) }
    }

    /// Returns what [`Sampler::confidence`](crate::Sampler::confidence) reads of a row over so many
    /// tokens.
    #[must_use]
    pub fn confidence_use(&self, tokens: usize) -> RowUse {
        match self.reads_all_logits() {
            true => RowUse::Full,
            false => RowUse::best(CONFIDENCE_TOKENS, tokens),
        }
    }

    /// Returns what [`Sampler::best_tokens`](crate::Sampler::best_tokens) reads of a row over so
    /// many tokens.
    #[must_use]
    pub fn best_tokens_use(&self, width: usize, tokens: usize) -> RowUse {
        let SamplingOptions { top_k, top_p, min_p, typical_p, .. } = self.options;
        let by_probability = top_p < 1.0 || min_p > 0.0 || typical_p < 1.0;
        let by_row = self.xtc_probability > 0.0 || self.dynatemp_range > 0.0;
        let keeps_all = top_k == 0 && !by_probability && !by_row;
        let is_ranked = self.verification != Verification::Coupled && keeps_all;
        match self.temperature == 0.0 || is_ranked {
            true if self.reads_all_logits() => RowUse::Full,
            true => RowUse::best(width, tokens),
            false => self.row_use(tokens),
        }
    }

    fn reads_all_logits(&self) -> bool {
        self.changes_logits() || self.constraint.is_some() || self.top_n_sigma > 0.0
    }
}

/// The number of best tokens among which a device with its own memory compares the best one.
const CONFIDENCE_TOKENS: usize = 32;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_option_out_of_range() {
        type Change = fn(&mut SamplingOptions);
        let broken: [(&str, Change); 27] = [
            ("`temperature`", |options| options.temperature = -1.0),
            ("`temperature`", |options| options.temperature = f32::NAN),
            ("`top_p`", |options| options.top_p = 0.0),
            ("`top_p`", |options| options.top_p = 1.5),
            ("`min_p`", |options| options.min_p = -0.1),
            ("`min_p`", |options| options.min_p = 1.1),
            ("`min_p`", |options| options.min_p = f32::NAN),
            ("`typical_p`", |options| options.typical_p = 0.0),
            ("`typical_p`", |options| options.typical_p = 1.1),
            ("`top_n_sigma`", |options| options.top_n_sigma = -2.0),
            ("`top_n_sigma`", |options| options.top_n_sigma = f32::INFINITY),
            ("`xtc_probability`", |options| options.xtc_probability = -0.1),
            ("`xtc_threshold`", |options| options.xtc_threshold = 1.1),
            ("`dynatemp_range`", |options| options.dynatemp_range = -0.1),
            ("`dynatemp_exponent`", |options| options.dynatemp_exponent = -1.0),
            ("`repetition_penalty`", |options| options.repetition_penalty = 0.0),
            ("`repetition_penalty`", |options| options.repetition_penalty = f32::INFINITY),
            ("`frequency_penalty`", |options| options.frequency_penalty = 2.1),
            ("`frequency_penalty`", |options| options.frequency_penalty = f32::NAN),
            ("`presence_penalty`", |options| options.presence_penalty = -2.1),
            ("`dry_multiplier`", |options| options.dry.multiplier = -1.0),
            ("`dry_base`", |options| options.dry.base = 0.9),
            ("`dry_base`", |options| options.dry.base = f32::NAN),
            ("`dry_sequence_breakers`", |options| options.dry.sequence_breakers.push("".into())),
            ("`dry_sequence_breakers`", |options| {
                options.dry.sequence_breakers = vec!["x".repeat(41)];
            }),
            ("`logit_bias` of token 7", |options| options.logit_bias = [(7, 100.5)].into()),
            ("`logit_bias` of token 7", |options| options.logit_bias = [(7, f32::NAN)].into()),
        ];
        let greedy = Sampling::greedy;
        assert_eq!(greedy().validate(), Ok(()));
        for (name, change) in broken {
            let mut sampling = greedy();
            change(&mut sampling.options);
            let message = sampling.validate().unwrap_err().to_string();
            assert!(message.contains(name), "{name}: {message}");
        }
        let edges = Sampling {
            options: SamplingOptions {
                min_p: 1.0,
                frequency_penalty: -2.0,
                presence_penalty: 2.0,
                logit_bias: [(0, -100.0), (7, 100.0)].into(),
                ..greedy().options
            },
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
            options: SamplingOptions {
                min_p: 0.05,
                logit_bias: [(3, -1.5), (100, 2.0)].into(),
                ..SamplingOptions::default()
            },
            ..Sampling::greedy()
        };
        let text = serde_json::to_string(&sampling).unwrap();
        assert_eq!(serde_json::from_str::<Sampling>(&text).unwrap(), sampling);
    }
}

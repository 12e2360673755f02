//! The sampling options of seeded answers.

use forerun::{Engine, Grammar, SamplingOptions};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The sampling options of a seeded answer, in addition to the temperature. Those that depend on
/// the tokens before a position differ between the branches of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeededOptions {
    /// None.
    Temperature,
    /// Repetition, frequency and presence penalties.
    Penalties,
    /// `top_k`, `top_p` and `min_p`.
    Filters,
    /// A grammar.
    Grammar,
}

/// Letters and digits take turns, so every token changes what may follow.
const GRAMMAR: &str = "([a-z]+ [0-9]+ )+";

impl SeededOptions {
    /// Returns those that an engine supports, in the order in which answers have them.
    pub(crate) fn supported_by(engine: &Engine) -> Vec<Self> {
        let mut all = vec![Self::Temperature, Self::Penalties, Self::Filters];
        // Some models have no grammars: their tokenizer has no texts, or no token ends an answer.
        let end_tokens = &engine.config().eos_token_ids;
        if engine.constraint(&Grammar::regex(GRAMMAR), end_tokens).is_ok() {
            all.push(Self::Grammar);
        }
        all
    }

    pub(crate) fn sampling(self, temperature: f32) -> SamplingOptions {
        let only_temperature = SamplingOptions { temperature, ..SamplingOptions::default() };
        match self {
            Self::Temperature | Self::Grammar => only_temperature,
            Self::Penalties => SamplingOptions {
                repetition_penalty: 1.3,
                frequency_penalty: 0.5,
                presence_penalty: 0.5,
                ..only_temperature
            },
            Self::Filters => {
                SamplingOptions { top_k: 50, top_p: 0.95, min_p: 0.02, ..only_temperature }
            }
        }
    }

    pub(crate) fn grammar(self) -> Option<Grammar> {
        (self == Self::Grammar).then(|| Grammar::regex(GRAMMAR))
    }
}

impl fmt::Display for SeededOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Temperature => "temperature only",
            Self::Penalties => "penalties",
            Self::Filters => "filters",
            Self::Grammar => "a grammar",
        })
    }
}

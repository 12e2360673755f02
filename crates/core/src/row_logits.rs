//! Rows of logits as models return them: whole, or only their best tokens.
//!
//! A row has as many numbers as the vocabulary. A device with its own memory need not bring all of
//! them home if a caller reads only the best ones.

use crate::TokenId;
use crate::logit_row::Ranked;

/// What a caller reads of a row of logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowUse {
    /// All logits.
    #[default]
    Full,
    /// The best tokens, with their logits. Models may return the whole row all the same.
    Best {
        /// The number of best tokens that are read.
        count: usize,
        /// Only the first `tokens` tokens of the vocabulary count. They are more than `count`.
        tokens: usize,
    },
}

impl RowUse {
    /// Creates the use of the `count` best among the first `tokens` tokens.
    #[must_use]
    pub fn best(count: usize, tokens: usize) -> Self {
        if count < tokens { Self::Best { count, tokens } } else { Self::Full }
    }

    /// Returns what two callers read together, of the same tokens.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Best { count, tokens }, Self::Best { count: others, tokens: same }) => {
                debug_assert_eq!(tokens, same, "the same tokens");
                Self::Best { count: count.max(others), tokens }
            }
            _ => Self::Full,
        }
    }
}

/// The best tokens of a row of logits, in place of the whole row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BestTokens {
    /// The tokens and their logits, best first. Equal logits rank by ascending token id, and the
    /// two zeros are equal. A logit that is NaN or infinite ranks before all others, so the first
    /// one of the row is found.
    pub ranked: Vec<(TokenId, f32)>,
    /// The number of tokens among which they are the best.
    pub tokens: usize,
}

impl BestTokens {
    /// Selects the `count` best tokens of a row: `[tokens]`.
    #[must_use]
    pub fn of(logits: &[f32], count: usize) -> Self {
        let mut ranked: Vec<Ranked> =
            (0..).zip(logits).map(|(token, &logit)| Ranked { token, logit }).collect();
        ranked.sort_unstable_by(|one, other| {
            let by_finiteness = one.logit.is_finite().cmp(&other.logit.is_finite());
            by_finiteness.then_with(|| match one.logit.is_finite() {
                true => one.order(other),
                false => one.token.cmp(&other.token),
            })
        });
        ranked.truncate(count);
        let ranked = ranked.into_iter().map(|ranked| (ranked.token, ranked.logit)).collect();
        Self { ranked, tokens: logits.len() }
    }
}

/// A row of logits, or its best tokens.
#[derive(Clone, Copy, Debug)]
pub enum RowLogits<'a> {
    /// The logits of all tokens.
    Full(&'a [f32]),
    /// The best tokens.
    Best(&'a BestTokens),
}

impl RowLogits<'_> {
    /// Returns whether both are the same row in memory.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Full(one), Self::Full(other)) => std::ptr::eq(*one, *other),
            (Self::Best(one), Self::Best(other)) => std::ptr::eq(*one, *other),
            _ => false,
        }
    }

    /// Returns the number of tokens among which the row ranks.
    pub(crate) fn tokens(&self) -> usize {
        match self {
            Self::Full(logits) => logits.len(),
            Self::Best(best) => best.tokens,
        }
    }
}

impl<'a> From<&'a [f32]> for RowLogits<'a> {
    fn from(logits: &'a [f32]) -> Self {
        Self::Full(logits)
    }
}

impl<'a> From<&'a Vec<f32>> for RowLogits<'a> {
    fn from(logits: &'a Vec<f32>) -> Self {
        Self::Full(logits)
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for RowLogits<'a> {
    fn from(logits: &'a [f32; N]) -> Self {
        Self::Full(logits)
    }
}

impl<'a> From<&'a BestTokens> for RowLogits<'a> {
    fn from(best: &'a BestTokens) -> Self {
        Self::Best(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_rank_by_token_and_broken_ones_come_first() {
        let best = |logits: &[f32], count| {
            let best = BestTokens::of(logits, count);
            assert_eq!(best.tokens, logits.len());
            best.ranked.into_iter().map(|(token, _)| token).collect::<Vec<TokenId>>()
        };
        assert_eq!(best(&[1.0, 3.0, -0.0, 3.0, 0.0], 9), [1, 3, 0, 2, 4]);
        assert_eq!(best(&[1.0, f32::NEG_INFINITY, 9.0, f32::NAN], 3), [1, 3, 2]);
        assert!(best(&[1.0, 2.0], 0).is_empty());
    }

    #[test]
    fn uses_of_all_tokens_are_of_whole_rows() {
        assert_eq!(RowUse::best(4, 5), RowUse::Best { count: 4, tokens: 5 });
        assert_eq!(RowUse::best(5, 5), RowUse::Full);
        assert_eq!(RowUse::best(2, 9).and(RowUse::best(3, 9)), RowUse::best(3, 9));
        assert_eq!(RowUse::best(2, 9).and(RowUse::Full), RowUse::Full);
    }
}

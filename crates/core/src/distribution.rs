//! Next-token distributions and the three operations that verification needs of them.

use crate::logit_row::total;
use crate::support::Support;
use crate::{Key, Randomness, TokenId};
use forerun_vector::{Isa, Lanes, Vectorized, vectorize};
use serde::{Deserialize, Serialize};

/// Tokens that a draw passes over at once.
const PART: usize = 1024;

/// A probability distribution over tokens, stored by its support.
///
/// Weights need not sum to one: the total is kept beside them, so filtering and subtracting add no
/// rounding of their own. A greedy row is a distribution too: all its mass is on one token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawDistribution")]
pub struct Distribution {
    /// Tokens of positive weight, ascending.
    tokens: Support,
    weights: Vec<f32>,
    #[serde(skip)]
    total: f64,
}

/// What a serialised distribution holds; the total is derived from it.
#[derive(Deserialize)]
struct RawDistribution {
    tokens: Support,
    weights: Vec<f32>,
}

impl TryFrom<RawDistribution> for Distribution {
    type Error = &'static str;

    fn try_from(raw: RawDistribution) -> Result<Self, &'static str> {
        let ascending = match &raw.tokens {
            Support::Below(_) => true,
            Support::Listed(tokens) => tokens.is_sorted_by(|a, b| a < b),
        };
        let positive = raw.weights.iter().all(|weight| *weight > 0.0 && weight.is_finite());
        if raw.tokens.len() != raw.weights.len() || !ascending || !positive {
            return Err("a distribution needs ascending tokens, each with a positive weight");
        }
        let tokens = match raw.tokens {
            Support::Listed(tokens) => Support::new(tokens),
            below => below,
        };
        Ok(Self::from_support(tokens, raw.weights))
    }
}

impl Distribution {
    /// All mass on one token.
    #[must_use]
    pub fn point(token: TokenId) -> Self {
        Self { tokens: Support::new(vec![token]), weights: vec![1.0], total: 1.0 }
    }

    /// From weights in ascending order of their tokens; weights that are not positive are left
    /// out. The result is [empty](Self::is_empty) if none is.
    #[must_use]
    pub fn from_weights(weights: impl IntoIterator<Item = (TokenId, f32)>) -> Self {
        let (tokens, weights) = weights.into_iter().unzip();
        Self::from_support(Support::new(tokens), weights)
    }

    /// The same from as many tokens as weights.
    pub(crate) fn from_support(mut tokens: Support, mut weights: Vec<f32>) -> Self {
        debug_assert_eq!(tokens.len(), weights.len());
        let (mut sum, all_positive) = total(&weights);
        if !all_positive {
            tokens = keep_positive(tokens, &mut weights);
            sum = total(&weights).0;
        }
        Self { tokens, weights, total: sum }
    }

    /// Whether no token has any mass; such a "distribution" only fills the place of one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The token that has all the mass, if one has.
    #[must_use]
    pub fn as_point(&self) -> Option<TokenId> {
        (self.weights.len() == 1).then(|| self.tokens.token(0))
    }

    /// The tokens of positive probability, ascending, each with its probability.
    pub fn iter(&self) -> impl Iterator<Item = (TokenId, f64)> + '_ {
        let weights = self.weights.iter().map(|&weight| f64::from(weight) / self.total);
        self.tokens.iter().zip(weights)
    }

    /// The tokens of positive probability.
    pub(crate) fn support(&self) -> &Support {
        &self.tokens
    }

    /// The tokens' weights, in ascending order of tokens, and their sum.
    pub(crate) fn weights(&self) -> (&[f32], f64) {
        (&self.weights, self.total)
    }

    /// Probability of a token.
    #[must_use]
    pub fn probability(&self, token: TokenId) -> f64 {
        self.tokens.index(token).map_or(0.0, |index| f64::from(self.weights[index]) / self.total)
    }

    /// The most probable token, the lowest of several; `None` if the distribution is empty.
    #[must_use]
    pub fn most_probable(&self) -> Option<TokenId> {
        let best = |best: Option<usize>, index: usize| match best {
            Some(best) if self.weights[best] >= self.weights[index] => Some(best),
            _ => Some(index),
        };
        (0..self.weights.len()).fold(None, best).map(|index| self.tokens.token(index))
    }

    /// Draws a token with the key's uniform, by inversion in ascending order of tokens.
    ///
    /// # Panics
    /// If the distribution is empty: a programming error.
    #[must_use]
    pub fn pick(&self, randomness: &dyn Randomness, key: Key) -> TokenId {
        if let Some(token) = self.as_point() {
            return token;
        }
        // First the part of the vocabulary, then the token in it: a key may be asked again.
        let parts = self.weights.chunks(PART);
        let last = parts.len() - 1;
        let mut thresholds = parts.take(last).scan(0.0, |cumulative, part| {
            *cumulative += total(part).0;
            Some(*cumulative / self.total)
        });
        let part = if last == 0 { 0 } else { randomness.locate(key, &mut thresholds) };
        let before: f64 = self.weights.chunks(PART).take(part).map(|part| total(part).0).sum();
        let weights = self.weights.chunks(PART).nth(part).unwrap_or_default();
        // The last token takes the rest of the interval, so that rounding loses nothing.
        let mut thresholds =
            weights[..weights.len() - 1].iter().scan(before, |cumulative, &weight| {
                *cumulative += f64::from(weight);
                Some(*cumulative / self.total)
            });
        self.tokens.token(part * PART + randomness.locate(key, &mut thresholds))
    }

    /// What is left of `self` once `proposed` was rejected: `norm(max(0, self − proposed))`
    /// (Leviathan 2023, §2.3). `None` if nothing is left, which rejection excludes but for rounding.
    #[must_use]
    pub fn residual(&self, proposed: &Self) -> Option<Self> {
        let mut left = vec![0.0; self.weights.len()];
        let (totals, target) = ((self.total, proposed.total), &self.weights);
        if self.tokens == proposed.tokens {
            let proposed = &proposed.weights;
            vectorize(Isa::best(), Difference { target, proposed, totals, left: &mut left });
        } else {
            // Both are ascending: one walk along them.
            let mut others = proposed.tokens.iter().zip(&proposed.weights).peekable();
            for ((left, &target), token) in left.iter_mut().zip(target).zip(self.tokens.iter()) {
                while others.next_if(|&(other, _)| other < token).is_some() {}
                let proposed = others.next_if(|&(other, _)| other == token);
                *left = difference(target, *proposed.map_or(&0.0, |(_, weight)| weight), totals);
            }
        }
        Some(Self::from_support(self.tokens.clone(), left)).filter(|rest| !rest.is_empty())
    }

    /// What is left once a deterministic candidate was rejected: its mass goes, the rest scales up.
    /// `None` if nothing is left.
    #[must_use]
    pub fn without(&self, token: TokenId) -> Option<Self> {
        let Some(index) = self.tokens.index(token) else { return Some(self.clone()) };
        let mut weights = self.weights.clone();
        weights.remove(index);
        let left = Self::from_support(self.tokens.without(index), weights);
        Some(left).filter(|rest| !rest.is_empty())
    }
}

/// Drops tokens whose weight is not positive.
fn keep_positive(tokens: Support, weights: &mut Vec<f32>) -> Support {
    let mut tokens = tokens.into_list();
    let mut kept = 0;
    // Without a branch: which tokens go is often a matter of chance.
    for index in 0..weights.len().min(tokens.len()) {
        (tokens[kept], weights[kept]) = (tokens[index], weights[index]);
        kept += usize::from(weights[kept] > 0.0);
    }
    tokens.truncate(kept);
    weights.truncate(kept);
    Support::new(tokens)
}

/// The difference of two probabilities, given as weights.
#[inline(always)]
fn difference(target: f32, proposed: f32, totals: (f64, f64)) -> f32 {
    (f64::from(target) / totals.0 - f64::from(proposed) / totals.1) as f32
}

struct Difference<'a> {
    target: &'a [f32],
    proposed: &'a [f32],
    totals: (f64, f64),
    left: &'a mut [f32],
}

impl Vectorized for Difference<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let weights = self.target.iter().zip(self.proposed);
        for (left, (&target, &proposed)) in self.left.iter_mut().zip(weights) {
            *left = difference(target, proposed, self.totals);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{KeyedRandomness, Purpose};

    #[test]
    fn the_residual_is_the_positive_part_of_the_difference() {
        let target = Distribution::from_weights([(0, 0.5), (1, 0.3), (2, 0.2)]);
        let drafted = Distribution::from_weights([(0, 0.2), (1, 0.7), (5, 0.1)]);
        let rest = target.residual(&drafted).unwrap();
        assert_eq!(rest.probability(1), 0.0);
        assert!((rest.probability(0) - 0.6).abs() < 1e-6);
        assert!((rest.probability(2) - 0.4).abs() < 1e-6);
        assert_eq!(target.residual(&target), None);
    }

    #[test]
    fn rows_of_whole_vocabularies_are_subtracted_and_drawn_from_as_others_are() {
        let randomness = KeyedRandomness { seed: 4, sample: 0 };
        let weight = |token: TokenId| (token, randomness.gumbel(0, token).abs() as f32 + 1e-3);
        let target = Distribution::from_weights((0..2_500).map(weight));
        let backwards = (0..2_500).map(|token| (token, weight(2_499 - token).1));
        let proposed = Distribution::from_weights(backwards);
        let plain = target.iter().map(|(token, probability)| {
            (token, (probability - proposed.probability(token)) as f32)
        });
        let rest = target.residual(&proposed).unwrap();
        assert_eq!(rest, Distribution::from_weights(plain));
        assert!((800..1_700).contains(&rest.iter().count()), "about half");
        // The same, but for one token more that the target does not have.
        let more = proposed.iter().map(|(token, q)| (token, q as f32)).chain([(9_000, 1e-9)]);
        let of_more = target.residual(&Distribution::from_weights(more)).unwrap();
        assert!((of_more.probability(7) - rest.probability(7)).abs() < 1e-6);

        for row in [&target, &rest] {
            for position in 0..3_000 {
                let key = Key { position, purpose: Purpose::Sample, candidate: 0 };
                let mut below = 0.0;
                let plain = row.iter().find(|&(_, probability)| {
                    below += probability;
                    randomness.uniform(key) < below
                });
                assert_eq!(Some(row.pick(&randomness, key)), plain.map(|(token, _)| token));
            }
        }
    }

    #[test]
    fn a_rejected_candidate_leaves_the_others_in_proportion() {
        let target = Distribution::from_weights([(3, 2.0), (7, 1.0), (9, 1.0)]);
        let rest = target.without(3).unwrap();
        assert_eq!(rest.iter().collect::<Vec<_>>(), [(7, 0.5), (9, 0.5)]);
        assert_eq!(Distribution::point(4).without(4), None);
        assert_eq!(target.without(1).unwrap(), target);
        let whole = Distribution::from_weights([(0, 2.0), (1, 1.0), (2, 1.0)]);
        assert_eq!(whole.without(2).unwrap().iter().map(|(token, _)| token).max(), Some(1));
        assert_eq!(whole.without(0).unwrap().iter().collect::<Vec<_>>(), [(1, 0.5), (2, 0.5)]);
    }

    #[test]
    fn a_broken_serialised_distribution_is_refused() {
        let read = |text: &str| serde_json::from_str::<Distribution>(text);
        let whole = Distribution::from_weights([(3, 0.1), (7, 0.7)]);
        assert_eq!(read(&serde_json::to_string(&whole).unwrap()).unwrap(), whole);
        let dense = Distribution::from_weights([(0, 0.1), (1, 0.7)]);
        assert_eq!(read(&serde_json::to_string(&dense).unwrap()).unwrap(), dense);
        assert_eq!(read(r#"{"tokens":{"Listed":[0,1]},"weights":[0.1,0.7]}"#).unwrap(), dense);
        assert!(read(r#"{"tokens":{"Listed":[3,2]},"weights":[1,1]}"#).is_err());
        assert!(read(r#"{"tokens":{"Listed":[3]},"weights":[]}"#).is_err());
        assert!(read(r#"{"tokens":{"Listed":[3]},"weights":[0]}"#).is_err());
        assert!(read(r#"{"tokens":{"Below":3},"weights":[1,1]}"#).is_err());
    }

    #[test]
    fn draws_follow_the_weights() {
        let distribution = Distribution::from_weights([(2, 1.0), (5, 0.0), (6, 3.0)]);
        let randomness = KeyedRandomness { seed: 11, sample: 0 };
        let sixes = (0..40_000)
            .map(|position| Key { position, purpose: Purpose::Sample, candidate: 0 })
            .filter(|&key| distribution.pick(&randomness, key) == 6)
            .count();
        assert!((29_600..30_400).contains(&sixes), "{sixes}");
    }
}

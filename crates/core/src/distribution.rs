//! Next-token distributions, and the three operations that verification needs: draw, subtract,
//! and exclude a token.

use crate::logit_row::total;
use crate::support::Support;
use crate::{Key, Randomness, TokenId};
use forerun_vector::{Isa, Lanes, Vectorized, vectorize};
use serde::{Deserialize, Serialize};

/// Tokens that a draw skips at once.
const CHUNK: usize = 1024;

/// A probability distribution over tokens, stored by its support.
///
/// Weights need not sum to one. The total is stored next to them, so filtering and subtracting do
/// not add rounding errors of their own. A greedy row is a distribution too, with all its mass on
/// one token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawDistribution")]
pub struct Distribution {
    /// The tokens of positive weight, in ascending order.
    tokens: Support,
    weights: Vec<f32>,
    #[serde(skip)]
    total: f64,
}

/// The serialised form of a distribution. The total is computed when it is read.
#[derive(Deserialize)]
struct RawDistribution {
    tokens: Support,
    weights: Vec<f32>,
}

impl TryFrom<RawDistribution> for Distribution {
    type Error = InvalidDistribution;

    fn try_from(raw: RawDistribution) -> Result<Self, InvalidDistribution> {
        match raw.tokens {
            Support::Below(count) if count != raw.weights.len() => Err(InvalidDistribution),
            Support::Below(_) => Self::from_parts(None, raw.weights),
            Support::Listed(tokens) => Self::from_parts(Some(tokens), raw.weights),
        }
    }
}

/// An error in the parts of a distribution.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("a distribution needs ascending tokens, each with a positive, finite weight")]
pub struct InvalidDistribution;

impl Distribution {
    /// Creates the distribution with all its mass on one token.
    #[must_use]
    pub fn point(token: TokenId) -> Self {
        Self { tokens: Support::new(vec![token]), weights: vec![1.0], total: 1.0 }
    }

    /// Creates a distribution from weights in ascending order of their tokens.
    ///
    /// Tokens without a positive weight are left out. The result is [empty](Self::is_empty) if no
    /// weight is positive.
    #[must_use]
    pub fn from_weights(weights: impl IntoIterator<Item = (TokenId, f32)>) -> Self {
        let (tokens, weights) = weights.into_iter().unzip();
        Self::from_support(Support::new(tokens), weights)
    }

    /// Creates a distribution from what [`Distribution::parts`] returns.
    ///
    /// # Errors
    /// [`InvalidDistribution`] if the tokens do not ascend, their number is not that of the
    /// weights, or a weight is not positive and finite.
    pub fn from_parts(
        tokens: Option<Vec<TokenId>>,
        weights: Vec<f32>,
    ) -> Result<Self, InvalidDistribution> {
        let positive = weights.iter().all(|weight| *weight > 0.0 && weight.is_finite());
        let tokens = match tokens {
            None => Support::Below(weights.len()),
            Some(tokens) => {
                if tokens.len() != weights.len() || !tokens.is_sorted_by(|a, b| a < b) {
                    return Err(InvalidDistribution);
                }
                Support::new(tokens)
            }
        };
        if positive { Ok(Self::from_support(tokens, weights)) } else { Err(InvalidDistribution) }
    }

    /// Returns the tokens of positive weight in ascending order, and their weights. Without a list,
    /// the tokens are the first ones of the vocabulary.
    #[must_use]
    pub fn parts(&self) -> (Option<&[TokenId]>, &[f32]) {
        let tokens = match &self.tokens {
            Support::Below(_) => None,
            Support::Listed(tokens) => Some(&tokens[..]),
        };
        (tokens, &self.weights)
    }

    /// Creates a distribution from a support and the weight of each of its tokens. Tokens without a
    /// positive weight are left out.
    pub(crate) fn from_support(mut tokens: Support, mut weights: Vec<f32>) -> Self {
        debug_assert_eq!(tokens.len(), weights.len());
        let (mut sum, all_positive) = total(&weights);
        if !all_positive {
            tokens = keep_positive(tokens, &mut weights);
            sum = total(&weights).0;
        }
        Self { tokens, weights, total: sum }
    }

    /// Returns whether no token has any mass. Such a value is a placeholder, and cannot be drawn
    /// from.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Returns the token that holds all the mass, if there is one.
    #[must_use]
    pub fn as_point(&self) -> Option<TokenId> {
        (self.weights.len() == 1).then(|| self.tokens.token(0))
    }

    /// Iterates over the tokens of positive probability in ascending order, with their
    /// probabilities.
    pub fn iter(&self) -> impl Iterator<Item = (TokenId, f64)> + '_ {
        let weights = self.weights.iter().map(|&weight| f64::from(weight) / self.total);
        self.tokens.iter().zip(weights)
    }

    /// Returns the tokens of positive probability.
    pub(crate) fn support(&self) -> &Support {
        &self.tokens
    }

    /// Returns the weights, in ascending order of their tokens, and their sum.
    pub(crate) fn weights(&self) -> (&[f32], f64) {
        (&self.weights, self.total)
    }

    /// Returns the sum of the weights.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Returns the probability of a token; 0 if it is not in the support.
    #[must_use]
    pub fn probability(&self, token: TokenId) -> f64 {
        self.tokens.index(token).map_or(0.0, |index| f64::from(self.weights[index]) / self.total)
    }

    /// Returns the most probable token, the lowest one if there are several. `None` if the
    /// distribution is empty.
    #[must_use]
    pub fn most_probable(&self) -> Option<TokenId> {
        let best = |best: Option<usize>, index: usize| match best {
            Some(best) if self.weights[best] >= self.weights[index] => Some(best),
            _ => Some(index),
        };
        (0..self.weights.len()).fold(None, best).map(|index| self.tokens.token(index))
    }

    /// Draws a token with the key's uniform, by inverting the cumulative distribution in ascending
    /// order of tokens.
    ///
    /// # Panics
    /// If the distribution is empty, which is a programming error.
    #[must_use]
    pub fn pick(&self, randomness: &dyn Randomness, key: Key) -> TokenId {
        if let Some(token) = self.as_point() {
            return token;
        }
        // Find the chunk of the vocabulary first, then the token in it. The same key can be used
        // twice because it always has the same uniform.
        let chunks = self.weights.chunks(CHUNK);
        let last = chunks.len() - 1;
        let mut thresholds = chunks.take(last).scan(0.0, |cumulative, chunk| {
            *cumulative += total(chunk).0;
            Some(*cumulative / self.total)
        });
        let chunk = if last == 0 { 0 } else { randomness.locate(key, &mut thresholds) };
        let before: f64 = self.weights.chunks(CHUNK).take(chunk).map(|chunk| total(chunk).0).sum();
        let weights = self.weights.chunks(CHUNK).nth(chunk).unwrap_or_default();
        // The last token takes the rest of the interval, so rounding never leaves a gap.
        let mut thresholds =
            weights[..weights.len() - 1].iter().scan(before, |cumulative, &weight| {
                *cumulative += f64::from(weight);
                Some(*cumulative / self.total)
            });
        self.tokens.token(chunk * CHUNK + randomness.locate(key, &mut thresholds))
    }

    /// Returns the distribution to sample from after a draw from `proposed` was rejected:
    /// `norm(max(0, self − proposed))` (Leviathan et al. 2023, arXiv 2211.17192, §2.3).
    ///
    /// `None` if nothing remains, which can happen after a rejection only by rounding.
    #[must_use]
    pub fn residual(&self, proposed: &Self) -> Option<Self> {
        self.excess(1.0, proposed)
    }

    /// Returns `max(0, scale · self − proposed)`, whose [total](Self::total) is the mass that
    /// remains, for a positive scale (Sun et al. 2024, arXiv 2403.10444, equation 4).
    ///
    /// `None` if nothing remains.
    #[must_use]
    pub fn excess(&self, scale: f64, proposed: &Self) -> Option<Self> {
        let mut rest = vec![0.0; self.weights.len()];
        let (totals, target) = ((self.total / scale, proposed.total), &self.weights);
        if self.tokens == proposed.tokens {
            let proposed = &proposed.weights;
            vectorize(Isa::best(), Difference { target, proposed, totals, rest: &mut rest });
        } else {
            // Both lists are ascending, so one pass over them is enough.
            let mut others = proposed.tokens.iter().zip(&proposed.weights).peekable();
            for ((rest, &target), token) in rest.iter_mut().zip(target).zip(self.tokens.iter()) {
                while others.next_if(|&(other, _)| other < token).is_some() {}
                let proposed = others.next_if(|&(other, _)| other == token);
                *rest = difference(target, *proposed.map_or(&0.0, |(_, weight)| weight), totals);
            }
        }
        Some(Self::from_support(self.tokens.clone(), rest)).filter(|rest| !rest.is_empty())
    }

    /// Returns the distribution to sample from after a deterministic candidate was rejected: its
    /// mass is removed, and the others keep their proportions.
    ///
    /// `None` if nothing remains.
    #[must_use]
    pub fn without(&self, token: TokenId) -> Option<Self> {
        let Some(index) = self.tokens.index(token) else { return Some(self.clone()) };
        let mut weights = self.weights.clone();
        weights.remove(index);
        let rest = Self::from_support(self.tokens.without(index), weights);
        Some(rest).filter(|rest| !rest.is_empty())
    }
}

/// Removes the tokens without a positive weight.
fn keep_positive(tokens: Support, weights: &mut Vec<f32>) -> Support {
    let mut tokens = tokens.into_list();
    let mut kept = 0;
    // Branch-free, because which tokens are removed is often unpredictable.
    for index in 0..weights.len().min(tokens.len()) {
        (tokens[kept], weights[kept]) = (tokens[index], weights[index]);
        kept += usize::from(weights[kept] > 0.0);
    }
    tokens.truncate(kept);
    weights.truncate(kept);
    Support::new(tokens)
}

/// Returns the difference of two probabilities, given as weights and their totals.
#[inline(always)]
fn difference(target: f32, proposed: f32, totals: (f64, f64)) -> f32 {
    (f64::from(target) / totals.0 - f64::from(proposed) / totals.1) as f32
}

struct Difference<'a> {
    target: &'a [f32],
    proposed: &'a [f32],
    totals: (f64, f64),
    rest: &'a mut [f32],
}

impl Vectorized for Difference<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let weights = self.target.iter().zip(self.proposed);
        for (rest, (&target, &proposed)) in self.rest.iter_mut().zip(weights) {
            *rest = difference(target, proposed, self.totals);
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
    fn large_rows_agree_with_plain_loops() {
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
        // With one more token, which the target does not have, the supports differ.
        let more = proposed.iter().map(|(token, q)| (token, q as f32)).chain([(9_000, 1e-9)]);
        let rest_of_more = target.residual(&Distribution::from_weights(more)).unwrap();
        assert!((rest_of_more.probability(7) - rest.probability(7)).abs() < 1e-6);

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
    fn removing_a_rejected_candidate_keeps_the_proportions_of_the_others() {
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
    fn invalid_serialised_distributions_are_rejected() {
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
        for row in [&whole, &dense, &Distribution::default(), &Distribution::point(0)] {
            let (tokens, weights) = row.parts();
            let parts = (tokens.map(<[TokenId]>::to_vec), weights.to_vec());
            assert_eq!(Distribution::from_parts(parts.0, parts.1).as_ref(), Ok(row));
        }
        assert_eq!(Distribution::from_parts(None, vec![f32::NAN]), Err(InvalidDistribution));
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

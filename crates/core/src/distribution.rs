//! Next-token distributions and the three operations that verification needs of them.

use crate::{Key, Randomness, TokenId};
use serde::{Deserialize, Serialize};

/// A probability distribution over tokens, stored by its support.
///
/// Weights need not sum to one: the total is kept beside them, so filtering and subtracting add no
/// rounding of their own. A greedy row is a distribution too: all its mass is on one token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawDistribution")]
pub struct Distribution {
    /// Tokens of positive weight, ascending.
    tokens: Vec<TokenId>,
    weights: Vec<f32>,
    #[serde(skip)]
    total: f64,
}

/// What a serialised distribution holds; the total is derived from it.
#[derive(Deserialize)]
struct RawDistribution {
    tokens: Vec<TokenId>,
    weights: Vec<f32>,
}

impl TryFrom<RawDistribution> for Distribution {
    type Error = &'static str;

    fn try_from(raw: RawDistribution) -> Result<Self, &'static str> {
        let ascending = raw.tokens.windows(2).all(|pair| pair[0] < pair[1]);
        let positive = raw.weights.iter().all(|weight| *weight > 0.0 && weight.is_finite());
        if raw.tokens.len() != raw.weights.len() || !ascending || !positive {
            return Err("a distribution needs ascending tokens, each with a positive weight");
        }
        Ok(Self::from_weights(raw.tokens.into_iter().zip(raw.weights)))
    }
}

impl Distribution {
    /// All mass on one token.
    #[must_use]
    pub fn point(token: TokenId) -> Self {
        Self { tokens: vec![token], weights: vec![1.0], total: 1.0 }
    }

    /// From weights in ascending order of their tokens; weights that are not positive are left
    /// out. The result is [empty](Self::is_empty) if none is.
    #[must_use]
    pub fn from_weights(weights: impl IntoIterator<Item = (TokenId, f32)>) -> Self {
        let mut distribution = Self::default();
        for (token, weight) in weights {
            if weight > 0.0 {
                debug_assert!(distribution.tokens.last().is_none_or(|&last| last < token));
                distribution.tokens.push(token);
                distribution.weights.push(weight);
                distribution.total += f64::from(weight);
            }
        }
        distribution
    }

    /// Whether no token has any mass; such a "distribution" only fills the place of one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The token that has all the mass, if one has.
    #[must_use]
    pub fn as_point(&self) -> Option<TokenId> {
        match self.tokens[..] {
            [token] => Some(token),
            _ => None,
        }
    }

    /// The tokens of positive probability, ascending, each with its probability.
    pub fn iter(&self) -> impl Iterator<Item = (TokenId, f64)> + '_ {
        let weights = self.weights.iter().map(|&weight| f64::from(weight) / self.total);
        self.tokens.iter().copied().zip(weights)
    }

    /// Probability of a token.
    #[must_use]
    pub fn probability(&self, token: TokenId) -> f64 {
        match self.tokens.binary_search(&token) {
            Ok(index) => f64::from(self.weights[index]) / self.total,
            Err(_) => 0.0,
        }
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
        let last = self.tokens.len() - 1;
        // The last token takes the rest of the interval, so that rounding loses nothing.
        let mut thresholds = self.weights[..last].iter().scan(0.0, |cumulative, &weight| {
            *cumulative += f64::from(weight);
            Some(*cumulative / self.total)
        });
        self.tokens[randomness.locate(key, &mut thresholds)]
    }

    /// What is left of `self` once `proposed` was rejected: `norm(max(0, self − proposed))`
    /// (Leviathan 2023, §2.3). `None` if nothing is left, which rejection excludes but for rounding.
    #[must_use]
    pub fn residual(&self, proposed: &Self) -> Option<Self> {
        let left = self.iter().map(|(token, probability)| {
            (token, (probability - proposed.probability(token)) as f32)
        });
        Some(Self::from_weights(left)).filter(|rest| !rest.is_empty())
    }

    /// What is left once a deterministic candidate was rejected: its mass goes, the rest scales up.
    /// `None` if nothing is left.
    #[must_use]
    pub fn without(&self, token: TokenId) -> Option<Self> {
        let weights = self.tokens.iter().copied().zip(self.weights.iter().copied());
        let left = weights.filter(|&(other, _)| other != token);
        Some(Self::from_weights(left)).filter(|rest| !rest.is_empty())
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
    fn a_rejected_candidate_leaves_the_others_in_proportion() {
        let target = Distribution::from_weights([(3, 2.0), (7, 1.0), (9, 1.0)]);
        let rest = target.without(3).unwrap();
        assert_eq!(rest.iter().collect::<Vec<_>>(), [(7, 0.5), (9, 0.5)]);
        assert_eq!(Distribution::point(4).without(4), None);
        assert_eq!(target.without(1).unwrap(), target);
    }

    #[test]
    fn a_broken_serialised_distribution_is_refused() {
        let read = |text: &str| serde_json::from_str::<Distribution>(text);
        let whole = Distribution::from_weights([(3, 0.1), (7, 0.7)]);
        assert_eq!(read(&serde_json::to_string(&whole).unwrap()).unwrap(), whole);
        assert!(read(r#"{"tokens":[3,2],"weights":[1,1]}"#).is_err());
        assert!(read(r#"{"tokens":[3],"weights":[]}"#).is_err());
        assert!(read(r#"{"tokens":[3],"weights":[0]}"#).is_err());
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

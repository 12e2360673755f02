//! From logits to the distribution that is sampled, for target and drafter alike.

use crate::{Distribution, KeyedRandomness, TokenId};
use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divides the logits; 0 means greedy.
    pub temperature: f32,
    /// Only the `top_k` most probable tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Only the most probable tokens that together reach this mass are kept; 1 keeps all.
    pub top_p: f32,
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
        Ok(())
    }

    /// Whether every token is a function of the tokens before it and the seed, so that rows are
    /// point masses.
    #[must_use]
    pub fn is_deterministic(&self) -> bool {
        self.temperature == 0.0 || self.verification == Verification::Coupled
    }

    /// The distribution of the token at absolute position `position`, given its logits.
    ///
    /// Greedy and coupled rows are point masses: the token that would be emitted there. Filters
    /// apply in the order temperature, top-k, top-p; equal logits rank by ascending token id.
    ///
    /// # Errors
    /// [`SamplingError::Logit`] if a logit is NaN or infinite.
    pub fn distribution(
        &self,
        logits: &[f32],
        position: usize,
    ) -> Result<Distribution, SamplingError> {
        check_logits(logits, position)?;
        if self.temperature == 0.0 {
            return Ok(Distribution::point(argmax(logits)));
        }
        let warped = self.warp(logits);
        if self.verification == Verification::Rejection {
            return Ok(warped);
        }
        let perturbed = warped.iter().map(|(token, probability)| {
            (token, probability.ln() + self.randomness.gumbel(position, token))
        });
        Ok(Distribution::point(best(perturbed)))
    }

    /// The `width` best candidates for deterministic drafting, best first, each with the logarithm
    /// of its share among the tokens that the filters leave (perturbed, where coupled). Greedy
    /// candidates rank by the unfiltered logits.
    ///
    /// # Errors
    /// [`SamplingError::Logit`] if a logit is NaN or infinite.
    pub fn candidates(
        &self,
        logits: &[f32],
        position: usize,
        width: usize,
    ) -> Result<Vec<(TokenId, f64)>, SamplingError> {
        check_logits(logits, position)?;
        let greedy = self.temperature == 0.0;
        let plain = Self { temperature: 1.0, top_k: 0, top_p: 1.0, ..self.clone() };
        let warped = if greedy { plain.warp(logits) } else { self.warp(logits) };
        let coupled = !greedy && self.verification == Verification::Coupled;
        let noise = |token| if coupled { self.randomness.gumbel(position, token) } else { 0.0 };
        let mut scored: Vec<(TokenId, f64)> =
            warped.iter().map(|(token, share)| (token, share.ln() + noise(token))).collect();
        let mass: f64 = scored.iter().map(|&(_, score)| score.exp()).sum();
        let width = width.min(scored.len());
        keep_best(&mut scored, width, |&(token, score)| (score, token));
        for (_, score) in &mut scored {
            *score -= mass.ln();
        }
        Ok(scored)
    }

    /// Temperature, top-k and top-p.
    fn warp(&self, logits: &[f32]) -> Distribution {
        let peak = logits.iter().fold(f32::NEG_INFINITY, |peak, &logit| peak.max(logit));
        let weight = |&logit: &f32| ((logit - peak) / self.temperature).exp();
        if self.top_k == 0 && self.top_p >= 1.0 {
            let weights = logits.iter().map(weight).enumerate();
            return Distribution::from_weights(weights.map(|(token, w)| (token as TokenId, w)));
        }
        let mut kept: Vec<(TokenId, f32, f32)> = logits
            .iter()
            .enumerate()
            .map(|(token, logit)| (token as TokenId, weight(logit), *logit))
            .collect();
        let keep = if self.top_k == 0 { kept.len() } else { self.top_k.min(kept.len()) };
        // Logits rank, not weights: distinct logits may round to one weight.
        keep_best(&mut kept, keep, |&(token, _, logit)| (f64::from(logit), token));
        let total: f64 = kept.iter().map(|&(_, weight, _)| f64::from(weight)).sum();
        let mut mass = 0.0;
        let enough = kept.iter().position(|&(_, weight, _)| {
            mass += f64::from(weight);
            mass >= f64::from(self.top_p) * total
        });
        kept.truncate(enough.map_or(kept.len(), |last| last + 1));
        kept.sort_unstable_by_key(|&(token, ..)| token);
        Distribution::from_weights(kept.into_iter().map(|(token, weight, _)| (token, weight)))
    }
}

fn check_logits(logits: &[f32], position: usize) -> Result<(), SamplingError> {
    match logits.iter().position(|logit| !logit.is_finite()) {
        None => Ok(()),
        Some(token) => Err(SamplingError::Logit { position, token, value: logits[token] }),
    }
}

/// The index of the largest value, the lowest among equals.
fn argmax(logits: &[f32]) -> TokenId {
    best(logits.iter().enumerate().map(|(token, &logit)| (token as TokenId, f64::from(logit))))
}

/// The token of the highest score, the first among equals.
fn best(scored: impl Iterator<Item = (TokenId, f64)>) -> TokenId {
    let start = (0, f64::NEG_INFINITY);
    scored.fold(start, |best, next| if next.1 > best.1 { next } else { best }).0
}

/// Keeps the `keep` items that rank highest by score, then lowest by token, best first.
fn keep_best<T>(items: &mut Vec<T>, keep: usize, rank: impl Fn(&T) -> (f64, TokenId)) {
    let order = |a: &T, b: &T| {
        let (a, b) = (rank(a), rank(b));
        b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
    };
    if keep < items.len() {
        if keep > 0 {
            items.select_nth_unstable_by(keep - 1, order);
        }
        items.truncate(keep);
    }
    items.sort_unstable_by(order);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn sampling(temperature: f32, top_k: usize, top_p: f32) -> Sampling {
        Sampling { temperature, top_k, top_p, ..Sampling::greedy() }
    }

    fn support(sampling: &Sampling, logits: &[f32]) -> Vec<TokenId> {
        sampling.distribution(logits, 0).unwrap().iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn greedy_takes_the_lowest_id_among_equals() {
        assert_eq!(support(&Sampling::greedy(), &[1.0, 3.0, 3.0, 2.0]), [1]);
    }

    #[test]
    fn filters_keep_what_they_should() {
        let logits = [0.0, 2.0, 1.0, 2.0, -1.0];
        assert_eq!(support(&sampling(1.0, 0, 1.0), &logits), [0, 1, 2, 3, 4]);
        assert_eq!(support(&sampling(1.0, 1, 1.0), &logits), [1]);
        assert_eq!(support(&sampling(1.0, 3, 1.0), &logits), [1, 2, 3]);
        assert_eq!(support(&sampling(1.0, 99, 1.0), &logits), [0, 1, 2, 3, 4]);
        // The two best hold 0.39 each: the first alone reaches 0.3, both together 0.7.
        assert_eq!(support(&sampling(1.0, 0, 0.3), &logits), [1]);
        assert_eq!(support(&sampling(1.0, 0, 0.7), &logits), [1, 3]);
        // Top-p counts within what top-k left.
        assert_eq!(support(&sampling(1.0, 2, 0.5), &logits), [1]);
    }

    #[test]
    fn temperature_divides_the_logits() {
        let row = sampling(0.5, 0, 1.0).distribution(&[0.0, 1.0], 0).unwrap();
        assert!((row.probability(1) - 1.0 / (1.0 + (-2.0_f64).exp())).abs() < 1e-6);
    }

    #[test]
    fn coupled_tokens_follow_the_distribution() {
        let coupled = Sampling { verification: Verification::Coupled, ..sampling(1.3, 3, 1.0) };
        let logits = [0.5, 1.5, -0.5, 1.0];
        let exact = sampling(1.3, 3, 1.0).distribution(&logits, 0).unwrap();
        let mut counts = [0_u32; 4];
        for position in 0..60_000 {
            let row = coupled.distribution(&logits, position).unwrap();
            counts[row.as_point().unwrap() as usize] += 1;
        }
        for (token, &count) in counts.iter().enumerate() {
            let share = f64::from(count) / 60_000.0;
            assert!((share - exact.probability(token as TokenId)).abs() < 0.008, "{counts:?}");
        }
    }

    #[test]
    fn the_first_candidate_is_the_token_that_would_be_emitted() {
        let logits = [0.3, -1.0, 0.9, 0.8, 0.1];
        for verification in [Verification::Rejection, Verification::Coupled] {
            for position in 0..50 {
                let filtered = Sampling { verification, ..sampling(0.9, 2, 1.0) };
                let mut kept = filtered.candidates(&logits, position, 3).unwrap();
                kept.sort_unstable_by_key(|candidate| candidate.0);
                assert_eq!(kept.iter().map(|candidate| candidate.0).collect::<Vec<_>>(), [2, 3]);
                let sampling = Sampling { verification, ..sampling(0.9, 0, 1.0) };
                let candidates = sampling.candidates(&logits, position, 3).unwrap();
                assert_eq!(candidates.len(), 3);
                assert!(candidates[0].1 >= candidates[1].1 && candidates[0].1 < 0.0);
                if verification == Verification::Coupled {
                    let row = sampling.distribution(&logits, position).unwrap();
                    assert_eq!(row.as_point(), Some(candidates[0].0));
                }
            }
        }
    }

    #[test]
    fn broken_logits_and_options_are_errors() {
        let message = Sampling::greedy().distribution(&[0.0, f32::NAN], 4).unwrap_err().to_string();
        assert!(message.contains("token 1") && message.contains("position 4"), "{message}");
        assert!(sampling(-1.0, 0, 1.0).validate().is_err());
        assert!(sampling(f32::NAN, 0, 1.0).validate().is_err());
        assert!(sampling(1.0, 0, 0.0).validate().is_err());
        assert!(sampling(1.0, 0, 1.5).validate().is_err());
        assert!(sampling(1.0, 0, 1.0).validate().is_ok());
    }
}

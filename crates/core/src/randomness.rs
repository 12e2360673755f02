//! Keyed randomness: every random number is a pure function of a key that names the decision.
//!
//! There is no random stream with a state that could depend on timing. Seed, sample index, absolute
//! position, purpose and candidate name a uniform. So a decision uses the same number wherever and
//! whenever it is made, and no two decisions share one.

use crate::TokenId;
use serde::{Deserialize, Serialize};

/// The kind of decision that a uniform is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Purpose {
    /// A drafter draws a candidate.
    Draft,
    /// A candidate is accepted or rejected.
    Accept,
    /// The target draws a token: in plain sampling, as a correction or as the bonus token.
    Sample,
    /// The Gumbel noise of one vocabulary entry is drawn, for coupled verification.
    Noise,
    /// XTC excludes the top choices, for target and drafter alike.
    Exclude,
}

/// The name of one uniform, in addition to seed and sample index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The absolute position of the token to decide on.
    pub position: usize,
    /// The kind of decision.
    pub purpose: Purpose,
    /// The number of the sibling or drafter at this position, or the token id for noise.
    pub candidate: u32,
}

/// A source of uniforms in `[0, 1)`, one per key.
///
/// The interface only asks where a key's uniform lies among thresholds. So tests can replace the
/// generator by an enumeration of all outcomes with their exact probabilities.
pub trait Randomness {
    /// Returns the index of the first threshold above the key's uniform, or the number of
    /// thresholds if there is none. Thresholds must not decrease.
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize;

    /// Returns whether the key's uniform lies below `probability`.
    fn below(&self, key: Key, probability: f64) -> bool {
        self.locate(key, &mut std::iter::once(probability)) == 0
    }
}

/// The production generator: Philox4x32-10 (Salmon et al. 2011) as a counter-based hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyedRandomness {
    /// The request's seed.
    pub seed: u64,
    /// The index of the answer within the request (`n`).
    pub sample: u32,
}

impl KeyedRandomness {
    /// Returns the key's uniform in `[0, 1)`, with 53 random bits.
    #[must_use]
    pub fn uniform(&self, key: Key) -> f64 {
        (self.bits(key) >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Returns the Gumbel noise of one vocabulary entry at a position: `-ln(-ln u)`, always finite.
    #[must_use]
    pub fn gumbel(&self, position: usize, token: TokenId) -> f64 {
        let key = Key { position, purpose: Purpose::Noise, candidate: token };
        // The half step avoids 0 and 1. With 52 bits the sum is exact.
        let uniform = ((self.bits(key) >> 12) as f64 + 0.5) * (1.0 / (1_u64 << 52) as f64);
        -(-uniform.ln()).ln()
    }

    /// Writes the highest 32 bits of the uniforms that [`KeyedRandomness::gumbel`] uses, for
    /// several tokens.
    #[inline(always)]
    pub(crate) fn noise_heads(&self, position: usize, tokens: &[TokenId], heads: &mut [u32]) {
        for (head, &candidate) in heads.iter_mut().zip(tokens) {
            *head = self.words(Key { position, purpose: Purpose::Noise, candidate })[1];
        }
    }

    fn bits(&self, key: Key) -> u64 {
        let words = self.words(key);
        u64::from(words[0]) | (u64::from(words[1]) << 32)
    }

    #[inline(always)]
    fn words(&self, key: Key) -> [u32; 4] {
        let position = key.position as u64;
        // A position needs at most 56 bits, which leaves the highest byte for the purpose.
        let high = ((position >> 32) as u32 & 0x00ff_ffff) | ((key.purpose as u32) << 24);
        let counter = [position as u32, high, key.candidate, self.sample];
        philox4x32([self.seed as u32, (self.seed >> 32) as u32], counter)
    }
}

impl Randomness for KeyedRandomness {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        let uniform = self.uniform(key);
        thresholds.take_while(|&threshold| uniform >= threshold).count()
    }
}

/// Computes ten rounds of Philox4x32.
#[inline(always)]
fn philox4x32(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let left = MULTIPLIERS[0] * u64::from(counter[0]);
        let right = MULTIPLIERS[1] * u64::from(counter[2]);
        counter = [
            (right >> 32) as u32 ^ counter[1] ^ key[0],
            right as u32,
            (left >> 32) as u32 ^ counter[3] ^ key[1],
            left as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(position: usize, purpose: Purpose, candidate: u32) -> Key {
        Key { position, purpose, candidate }
    }

    /// The known-answer vectors that the authors of Random123 publish for philox4x32-10.
    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(
            philox4x32([0, 0], [0; 4]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([u32::MAX; 2], [u32::MAX; 4]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn uniforms_depend_on_every_part_of_the_key() {
        let randomness = KeyedRandomness { seed: 7, sample: 0 };
        let base = key(5, Purpose::Accept, 0);
        let uniform = randomness.uniform(base);
        assert_eq!(uniform.to_bits(), randomness.uniform(base).to_bits());
        for other in [
            key(6, Purpose::Accept, 0),
            key(5, Purpose::Draft, 0),
            key(5, Purpose::Accept, 1),
            key(5 + (1 << 32), Purpose::Accept, 0),
        ] {
            assert_ne!(uniform, randomness.uniform(other));
        }
        assert_ne!(uniform, KeyedRandomness { seed: 8, sample: 0 }.uniform(base));
        assert_ne!(uniform, KeyedRandomness { seed: 7 | 1 << 40, sample: 0 }.uniform(base));
        assert_ne!(uniform, KeyedRandomness { seed: 7, sample: 1 }.uniform(base));
    }

    #[test]
    fn uniforms_are_evenly_distributed() {
        let randomness = KeyedRandomness { seed: 1, sample: 0 };
        let mut bins = [0_u32; 16];
        for position in 0..160_000 {
            let uniform = randomness.uniform(key(position, Purpose::Sample, 0));
            bins[(uniform * 16.0) as usize] += 1;
        }
        // Chi-squared with 15 degrees of freedom: 37.7 is the 99.9 % quantile.
        let chi: f64 = bins.iter().map(|&n| (f64::from(n) - 1e4).powi(2) / 1e4).sum();
        assert!(chi < 37.7, "chi squared {chi}, bins {bins:?}");
    }

    #[test]
    fn locate_counts_the_thresholds_at_or_below_the_uniform() {
        let randomness = KeyedRandomness { seed: 3, sample: 0 };
        let at = key(0, Purpose::Sample, 0);
        let uniform = randomness.uniform(at);
        let thresholds = [uniform / 2.0, uniform, uniform + 1e-9, 1.0];
        assert_eq!(randomness.locate(at, &mut thresholds.into_iter()), 2);
        assert!(randomness.below(at, 1.0));
        assert!(!randomness.below(at, 0.0));
    }
}

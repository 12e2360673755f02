//! A pseudo-random permutation that needs no memory, and the hash functions for all random numbers
//! of the data.

/// Rounds of the Feistel network. Four suffice for a pseudo-random permutation (Luby and Rackoff
/// 1988).
const ROUNDS: usize = 6;

/// A permutation of `0..length`: a small Feistel network over an even number of bits, with cycle
/// walking (applied repeatedly until the result is below the length).
pub(crate) struct Permutation {
    length: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// Creates the permutation of `0..length` for a key.
    pub(crate) fn new(length: u64, key: u64) -> Self {
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let keys = std::array::from_fn(|round| hash_words(&[key, round as u64]));
        Self { length, half_bits, keys }
    }

    /// Returns the image of `index`, which must be below the length.
    pub(crate) fn apply(&self, index: u64) -> u64 {
        debug_assert!(index < self.length);
        // The domain of the network is less than four times the length, so the walk is short. It
        // terminates, because `index` itself is on the cycle.
        let mut image = self.network(index);
        while image >= self.length {
            image = self.network(image);
        }
        image
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (hash_words(&[key, right]) & mask));
        }
        (left << self.half_bits) | right
    }
}

/// Hashes words to one word: the finaliser of splitmix64 (Steele et al. 2014), chained.
pub(crate) fn hash_words(words: &[u64]) -> u64 {
    words.iter().fold(0, |state, word| {
        let mut z = (state ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// Maps a hash uniformly to `0..limit`.
pub(crate) fn map_to_range(hash: u64, limit: u64) -> u64 {
    ((u128::from(hash) * u128::from(limit)) >> 64) as u64
}

/// Hashes words to a number in `[0, 1)`.
pub(crate) fn uniform(words: &[u64]) -> f64 {
    // An f64 has 53 significant bits.
    (hash_words(words) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_index_has_a_different_image(length in 1_u64..3000, key: u64) {
            let permutation = Permutation::new(length, key);
            let mut taken = vec![false; length as usize];
            for index in 0..length {
                let image = permutation.apply(index) as usize;
                prop_assert!(!std::mem::replace(&mut taken[image], true));
            }
        }
    }

    #[test]
    fn different_keys_and_neighbouring_indices_are_uncorrelated() {
        let images = |key| {
            let permutation = Permutation::new(10_000, key);
            (0..10_000).map(|index| permutation.apply(index)).collect::<Vec<u64>>()
        };
        let (one, other) = (images(1), images(2));
        let equal = |a: &[u64], b: &[u64]| a.iter().zip(b).filter(|(a, b)| a == b).count();
        // By chance, one equal image is expected.
        assert!(equal(&one, &other) < 10);
        assert!(equal(&one, &(0..10_000).collect::<Vec<_>>()) < 10);
        let consecutive = one.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(consecutive < 10, "{consecutive}");
        // The images of the first tenth are spread over the whole range.
        let low = one[..1000].iter().filter(|&&image| image < 5000).count();
        assert!((400..600).contains(&low), "{low}");
    }
}

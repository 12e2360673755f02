//! A shuffled order that nobody has to keep in memory.

/// Rounds of the network; four make a permutation look random (Luby and Rackoff 1988).
const ROUNDS: usize = 6;

/// A permutation of `0..length`: a small Feistel network over an even number of bits, walked along
/// its cycles until it lands within the length.
pub(crate) struct Permutation {
    length: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of this length that the key names.
    pub(crate) fn new(length: u64, key: u64) -> Self {
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let keys = std::array::from_fn(|round| mixed(&[key, round as u64]));
        Self { length, half_bits, keys }
    }

    /// Where `index`, which lies below the length, goes.
    pub(crate) fn of(&self, index: u64) -> u64 {
        debug_assert!(index < self.length);
        // The network has less than four times as many places as the length, so the walk is short.
        // It ends, since `index` itself lies on the cycle.
        let mut place = self.network(index);
        while place >= self.length {
            place = self.network(place);
        }
        place
    }

    fn network(&self, place: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (place >> self.half_bits, place & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mixed(&[key, right]) & mask));
        }
        (left << self.half_bits) | right
    }
}

/// Words as one word that looks random: the finaliser of splitmix64 (Steele et al. 2014), chained.
pub(crate) fn mixed(words: &[u64]) -> u64 {
    words.iter().fold(0, |state, word| {
        let mut z = (state ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// A word that looks random as a number below `limit`.
pub(crate) fn below(word: u64, limit: u64) -> u64 {
    ((u128::from(word) * u128::from(limit)) >> 64) as u64
}

/// Words as a number in `[0, 1)` that looks random.
pub(crate) fn uniform(words: &[u64]) -> f64 {
    // 53 bits are what a double holds.
    (mixed(words) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_place_is_taken_once(length in 1_u64..3000, key: u64) {
            let permutation = Permutation::new(length, key);
            let mut taken = vec![false; length as usize];
            for index in 0..length {
                let place = permutation.of(index) as usize;
                prop_assert!(!std::mem::replace(&mut taken[place], true));
            }
        }
    }

    #[test]
    fn keys_and_neighbours_have_little_in_common() {
        let places = |key| {
            let permutation = Permutation::new(10_000, key);
            (0..10_000).map(|index| permutation.of(index)).collect::<Vec<u64>>()
        };
        let (one, other) = (places(1), places(2));
        let fixed = |a: &[u64], b: &[u64]| a.iter().zip(b).filter(|(a, b)| a == b).count();
        // One place in common is expected, by chance.
        assert!(fixed(&one, &other) < 10);
        assert!(fixed(&one, &(0..10_000).collect::<Vec<_>>()) < 10);
        let followed = one.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(followed < 10, "{followed}");
        // The first tenth is spread over all.
        let low = one[..1000].iter().filter(|&&place| place < 5000).count();
        assert!((400..600).contains(&low), "{low}");
    }
}

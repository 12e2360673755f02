//! Helpers of randomised tests.

use forerun_core::{Key, KeyedRandomness, Purpose};

/// The random numbers of a scenario, which a seed determines.
#[derive(Clone, Copy, Debug)]
pub struct Dice {
    seed: u64,
    draws: usize,
}

impl Dice {
    /// Creates the numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, draws: 0 }
    }

    /// Returns a number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        self.draws += 1;
        let key = Key { position: self.draws, purpose: Purpose::Sample, candidate: 0 };
        let randomness = KeyedRandomness { seed: self.seed, sample: 2 };
        (randomness.uniform(key) * count as f64) as usize
    }

    /// Returns true once in `count` times on average.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

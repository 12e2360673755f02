//! Random choices of tests.

use forerun_core::{Key, KeyedRandomness, Purpose};

/// Random choices, each a function of the seed and the choices before it.
pub(crate) struct Choices {
    seed: u64,
    made: usize,
}

impl Choices {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, made: 0 }
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.made += 1;
        let randomness = KeyedRandomness { seed: self.seed, sample: 0 };
        let key = Key { position: self.made, purpose: Purpose::Sample, candidate: 0 };
        (randomness.uniform(key) * count as f64) as usize
    }

    #[allow(dead_code, clippy::allow_attributes, reason = "not every test file uses it")]
    pub(crate) fn of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }
}

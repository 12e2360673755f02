//! The enumerator of all outcomes of the keyed numbers.

use forerun_core::{Key, Randomness};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// One branch of the enumeration, replayed and extended run by run.
#[derive(Default)]
pub(crate) struct Branch {
    /// The interval in which each key's number lies.
    pub(crate) intervals: BTreeMap<Key, (f64, f64)>,
    /// The decisions of this branch: whether the number lies below the threshold.
    pub(crate) path: Vec<bool>,
    /// The number of decisions taken so far in this run.
    pub(crate) taken: usize,
}

#[derive(Clone, Default)]
pub(crate) struct Enumerator(pub(crate) Arc<Mutex<Branch>>);

impl Randomness for Enumerator {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        let mut branch = self.0.lock().unwrap();
        let (mut low, mut high) = branch.intervals.get(&key).copied().unwrap_or((0.0, 1.0));
        let mut count = 0;
        for threshold in thresholds {
            if threshold > low {
                let below = threshold >= high || branch.decide();
                if below {
                    high = high.min(threshold);
                    break;
                }
                low = threshold;
            }
            count += 1;
        }
        branch.intervals.insert(key, (low, high));
        count
    }
}

impl Branch {
    pub(crate) fn decide(&mut self) -> bool {
        if self.taken == self.path.len() {
            self.path.push(true);
        }
        self.taken += 1;
        self.path[self.taken - 1]
    }

    /// Goes to the next branch. Returns whether there is one.
    pub(crate) fn advance(&mut self) -> bool {
        self.intervals.clear();
        self.taken = 0;
        while self.path.last() == Some(&false) {
            self.path.pop();
        }
        match self.path.last_mut() {
            Some(decision) => {
                *decision = false;
                true
            }
            None => false,
        }
    }

    pub(crate) fn weight(&self) -> f64 {
        self.intervals.values().map(|(low, high)| high - low).product()
    }
}

pub(crate) fn unchanged(enumerator: Enumerator) -> Arc<dyn Randomness + Send + Sync> {
    Arc::new(enumerator)
}

//! Means, shares and speeds in which older measurements count less.

// A weight `d` compared with the next value counts 1 / (1 - d) values. Rarer events count fewer, so
// that all of them look back on about as much text.
/// The weight of a time, or of a round, compared with the next one: 20 count.
const DECAY: f64 = 0.95;
/// The weight of a test of a token compared with the next one: 100 count.
pub(crate) const TEST_DECAY: f64 = 0.99;
/// That of a token in a place that is tested less often, a position in the draft or a rank: 50.
pub(crate) const PLACE_DECAY: f64 = 0.98;
/// The weight of a chain, or of the time of a cycle, compared with the next one: 33 count.
pub(crate) const CHAIN_DECAY: f64 = 0.97;
/// The weight of what lasts for long compared with the next value, and what a new measurement
/// leaves of the weight of others: 500 count, which have several stretches of text.
pub(crate) const SLOW_DECAY: f64 = 0.998;
/// What a test leaves of the weight of places that were not tested. They may have changed: after
/// 140 tests, half of it is left.
pub(crate) const UNTESTED_FADE: f64 = 0.995;
/// The number of tests that an expectation is worth. Fewer, and single verdicts decide.
pub(crate) const PRIOR_TESTS: f64 = 4.0;

/// An exponentially weighted mean.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DecayingMean {
    sum: Share,
    /// Whether there is a value of one's own, and not only one from elsewhere.
    is_measured: bool,
}

impl DecayingMean {
    pub(crate) fn add(&mut self, value: f64) {
        self.sum.add(value, 1.0);
        self.is_measured = true;
    }

    /// Takes a value that was measured elsewhere, in place of an earlier one from there. A value of
    /// one's own stays.
    pub(crate) fn adopt(&mut self, value: f64) {
        if !self.is_measured {
            self.sum.set(value, 1.0);
        }
    }

    /// Takes a later value that was measured elsewhere. It has the weight of all values so far, so
    /// that a single one does not outweigh it.
    pub(crate) fn replace(&mut self, value: f64) {
        self.sum.set(value, self.weight().max(1.0));
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.is_measured
    }

    pub(crate) fn is_known(&self) -> bool {
        self.weight() > 0.0
    }

    pub(crate) fn value_or(&self, default: f64) -> f64 {
        self.value().unwrap_or(default)
    }

    /// Returns the mean; `None` if nothing is known.
    pub(crate) fn value(&self) -> Option<f64> {
        self.is_known().then(|| self.sum.value(0.0, 0.0))
    }

    pub(crate) fn weight(&self) -> f64 {
        self.sum.weight()
    }

    /// Multiplies all values so far.
    pub(crate) fn scale(&mut self, factor: f64) {
        self.sum.part *= factor;
    }

    /// Reduces the weight of all values so far.
    pub(crate) fn fade(&mut self, factor: f64) {
        self.sum.fade(factor);
    }
}

/// A share that decays by its own weight: parts of wholes.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    part: f64,
    whole: f64,
    decay: f64,
}

impl Default for Share {
    /// Creates an unknown share of recent rounds.
    fn default() -> Self {
        Self::new(DECAY)
    }
}

impl Share {
    /// Creates an unknown share. `decay`: the weight of a value compared with the one after it.
    pub(crate) fn new(decay: f64) -> Self {
        Self { part: 0.0, whole: 0.0, decay }
    }

    /// Adds a part of a whole.
    pub fn add(&mut self, part: f64, whole: f64) {
        self.add_weighted(part, whole, 1.0);
    }

    /// Takes a mean part of so many wholes in place of all so far.
    fn set(&mut self, mean: f64, wholes: f64) {
        (self.part, self.whole) = (mean * wholes, wholes);
    }

    /// Adds a value with a weight from 0 to 1.
    pub(crate) fn add_weighted(&mut self, part: f64, whole: f64, weight: f64) {
        let decay = 1.0 - weight * (1.0 - self.decay);
        self.part = self.part * decay + weight * part;
        self.whole = self.whole * decay + weight * whole;
    }

    /// Reduces the weight of all values so far.
    pub(crate) fn fade(&mut self, factor: f64) {
        self.part *= factor;
        self.whole *= factor;
    }

    /// Returns the weight of all values so far.
    pub(crate) fn weight(&self) -> f64 {
        self.whole
    }

    /// Returns the share, as if it had been `prior` in `wholes` more.
    #[must_use]
    pub fn value(&self, prior: f64, wholes: f64) -> f64 {
        (self.part + prior * wholes) / (self.whole + wholes)
    }
}

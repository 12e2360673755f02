//! A row of logits: finds its best tokens and computes its weights without sorting the vocabulary.
//!
//! Every loop gives the same bits on every instruction set, so the same logits give the same
//! tokens on every machine.

use crate::constraint::WORD;
use crate::{BestTokens, SamplingError, TokenId, TokenMask};
use forerun_vector::{Isa, LANES, Lanes, Vectorized, exp, vectorize};
use std::borrow::Cow;
use std::cmp::Ordering;

/// Number of elements processed together, and of partial sums in a reduction.
pub(crate) const BLOCK: usize = 128;

/// Number of neighbouring logits that share a stored maximum. A search for the best tokens looks
/// only into groups with a large enough maximum.
const GROUP: usize = WORD;

/// A row of finite logits, and −∞ for tokens that a constraint excludes, with the maximum of every
/// group of [`GROUP`].
pub(crate) struct LogitRow<'a> {
    /// All logits; empty if only the best tokens are known.
    logits: Cow<'a, [f32]>,
    /// The largest logit of each [`GROUP`].
    maxima: Vec<f32>,
    peak: f32,
    /// The best tokens, if only these are known. The sampler has checked that no others are needed.
    known: Option<&'a BestTokens>,
}

/// A token with its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ranked {
    pub(crate) token: TokenId,
    pub(crate) logit: f32,
}

impl Ranked {
    /// Orders tokens by descending logit, then by ascending token id.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        // No logit is NaN, and the two zeros are equal.
        let by_logit = other.logit.partial_cmp(&self.logit).unwrap_or(Ordering::Equal);
        by_logit.then(self.token.cmp(&other.token))
    }
}

impl<'a> LogitRow<'a> {
    /// Scans the logits once. `position` is the absolute position of the token to be predicted.
    ///
    /// # Errors
    /// [`SamplingError::Logit`] if a logit is NaN or infinite.
    pub(crate) fn new(logits: Cow<'a, [f32]>, position: usize) -> Result<Self, SamplingError> {
        let mut maxima = Vec::with_capacity(logits.len().div_ceil(GROUP));
        let mut finite = true;
        let scan = Scan { logits: &logits, maxima: &mut maxima, finite: &mut finite };
        vectorize(Isa::best(), scan);
        if !finite && let Some(token) = logits.iter().position(|logit| !logit.is_finite()) {
            return Err(SamplingError::Logit { position, token, value: logits[token] });
        }
        let peak = maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Ok(Self { logits, maxima, peak, known: None })
    }

    /// Creates the row of which only the best tokens are known.
    ///
    /// # Errors
    /// The same as [`LogitRow::new`].
    pub(crate) fn of_best(best: &'a BestTokens, position: usize) -> Result<Self, SamplingError> {
        let first = best.ranked.first().copied();
        // One that is not finite would rank first.
        if let Some((token, value)) = first.filter(|(_, logit)| !logit.is_finite()) {
            return Err(SamplingError::Logit { position, token: token as usize, value });
        }
        let peak = first.map_or(f32::NEG_INFINITY, |(_, logit)| logit);
        let (logits, maxima) = (Cow::Borrowed(&[][..]), Vec::new());
        Ok(Self { logits, maxima, peak, known: Some(best) })
    }

    /// Excludes the tokens that a mask forbids. A row without any allowed token, which only a
    /// drafter with a smaller vocabulary has, stays as it is.
    pub(crate) fn masked(self, mask: &TokenMask) -> Self {
        let forbidden = f32::NEG_INFINITY;
        let mut logits = vec![forbidden; self.len()];
        let mut maxima = vec![forbidden; self.maxima.len()];
        let groups = logits.chunks_mut(GROUP).zip(self.logits.chunks(GROUP)).zip(&mut maxima);
        for (index, ((masked, raw), max)) in groups.enumerate() {
            match mask.word(index) {
                0 => {}
                u32::MAX => {
                    masked.copy_from_slice(raw);
                    *max = self.maxima[index];
                }
                word => {
                    for (bit, (masked, &raw)) in masked.iter_mut().zip(raw).enumerate() {
                        *masked = if word >> bit & 1 == 1 { raw } else { forbidden };
                    }
                    *max = masked.iter().copied().fold(forbidden, f32::max);
                }
            }
        }
        let peak = maxima.iter().copied().fold(forbidden, f32::max);
        if peak == forbidden {
            return self;
        }
        Self { logits: Cow::Owned(logits), maxima, peak, known: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.known.map_or(self.logits.len(), |best| best.tokens)
    }

    /// Returns the token with the largest logit, the lowest one if there are several.
    pub(crate) fn argmax(&self) -> TokenId {
        if let Some(best) = self.known {
            return best.ranked.first().map_or(0, |&(token, _)| token);
        }
        let group = self.maxima.iter().position(|&max| max == self.peak).unwrap_or(0);
        let rest = self.logits.get(group * GROUP..).unwrap_or_default();
        (group * GROUP + rest.iter().position(|&logit| logit == self.peak).unwrap_or(0)) as TokenId
    }

    /// Returns the `count` tokens that rank highest, best first.
    pub(crate) fn best(&self, count: usize) -> Vec<Ranked> {
        let mut found = self.select(count);
        found.sort_unstable_by(Ranked::order);
        found
    }

    /// Returns the `count` tokens that rank highest, in any order.
    pub(crate) fn select(&self, count: usize) -> Vec<Ranked> {
        if let Some(best) = self.known {
            let ranked = best.ranked.iter().take(count);
            return ranked.map(|&(token, logit)| Ranked { token, logit }).collect();
        }
        if count == 0 {
            return Vec::new();
        }
        // At least `count` tokens reach the `count`-th largest group maximum.
        let floor = if self.can_select(count) {
            let mut maxima = self.maxima.clone();
            *maxima.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1
        } else {
            f32::NEG_INFINITY
        };
        let mut found = self.tokens(|max| max >= floor, |candidate| candidate.logit >= floor);
        keep_best(&mut found, count);
        found
    }

    /// Returns whether the `count` best tokens can be found without looking at most of the others.
    pub(crate) fn can_select(&self, count: usize) -> bool {
        count < self.maxima.len()
    }

    /// Returns the tokens for which `keep` holds, in ascending order. Groups are skipped unless
    /// `search_group` holds for their maximum.
    pub(crate) fn tokens(
        &self,
        search_group: impl Fn(f32) -> bool,
        keep: impl Fn(&Ranked) -> bool,
    ) -> Vec<Ranked> {
        let mut found = Vec::new();
        let mut in_group = [Ranked { token: 0, logit: 0.0 }; GROUP];
        for (group, (logits, &max)) in self.logits.chunks(GROUP).zip(&self.maxima).enumerate() {
            if !search_group(max) {
                continue;
            }
            // Branch-free, because which tokens are kept is often unpredictable.
            let mut count = 0;
            for (token, &logit) in ((group * GROUP) as TokenId..).zip(logits) {
                in_group[count] = Ranked { token, logit };
                count += usize::from(keep(&in_group[count]));
            }
            found.extend_from_slice(&in_group[..count]);
        }
        found
    }

    /// Returns all tokens that no constraint excludes.
    pub(crate) fn possible(&self) -> Vec<Ranked> {
        let excluded = f32::NEG_INFINITY;
        self.tokens(|max| max > excluded, |ranked| ranked.logit > excluded)
    }

    pub(crate) fn peak(&self) -> f32 {
        self.peak
    }

    /// Leaves these tokens, best first: the first one has weight 1 from now on, and no others are
    /// asked for.
    pub(crate) fn lower_peak(&mut self, left: &[Ranked]) {
        self.peak = left.first().map_or(self.peak, |best| best.logit);
    }

    /// Returns how far a logit lies below the peak, in units of the temperature. The distance does
    /// not decrease as logits decrease.
    pub(crate) fn distance(&self, logit: f32, inverse_temperature: f32) -> f32 {
        (self.peak - logit) * inverse_temperature
    }

    /// Returns the weight of a logit; the peak has weight 1.
    pub(crate) fn weight(&self, logit: f32, inverse_temperature: f32) -> f32 {
        exp(-self.distance(logit, inverse_temperature))
    }

    /// Returns the weights of all tokens.
    pub(crate) fn weights(&self, inverse_temperature: f32) -> Vec<f32> {
        let mut weights = Vec::with_capacity(self.len());
        let (logits, peak) = (&self.logits[..], self.peak);
        vectorize(
            Isa::best(),
            WeighAll { logits, peak, inverse_temperature, weights: &mut weights },
        );
        weights
    }

    /// Computes the weights of `logits`.
    pub(crate) fn weigh(&self, logits: &[f32], inverse_temperature: f32, weights: &mut [f32]) {
        vectorize(Isa::best(), Weigh { logits, peak: self.peak, inverse_temperature, weights });
    }

    /// Calls `visit` with the logits and weights of every block.
    pub(crate) fn for_each_block(
        &self,
        inverse_temperature: f32,
        mut visit: impl FnMut(&[f32], &[f32]),
    ) {
        let mut weights = [0.0; BLOCK];
        for logits in self.logits.chunks(BLOCK) {
            let weights = &mut weights[..logits.len()];
            self.weigh(logits, inverse_temperature, weights);
            visit(logits, weights);
        }
    }

    /// Returns the sum of the weights of all tokens that are known.
    pub(crate) fn mass(&self, inverse_temperature: f32) -> f64 {
        if let Some(best) = self.known {
            let weights =
                best.ranked.iter().map(|&(_, logit)| self.weight(logit, inverse_temperature));
            return weights.map(f64::from).sum();
        }
        let (logits, peak) = (&self.logits[..], self.peak);
        let mut mass = 0.0;
        vectorize(Isa::best(), Mass { logits, peak, inverse_temperature, mass: &mut mass });
        mass
    }
}

/// Reduces a list to the `count` tokens that rank highest, in any order.
pub(crate) fn keep_best(list: &mut Vec<Ranked>, count: usize) {
    if (1..list.len()).contains(&count) {
        list.select_nth_unstable_by(count - 1, Ranked::order);
    }
    list.truncate(count);
}

/// Returns the sum of weights, and whether all are positive.
///
/// Element `i` goes to partial sum `i mod BLOCK`. The partial sums are then added pairwise, the
/// upper half onto the lower half.
pub(crate) fn total(weights: &[f32]) -> (f64, bool) {
    let mut found = (0.0, true);
    vectorize(Isa::best(), Total { weights, found: &mut found });
    found
}

/// Computes the maximum of every group, and whether all logits are finite.
struct Scan<'a> {
    logits: &'a [f32],
    maxima: &'a mut Vec<f32>,
    finite: &'a mut bool,
}

impl Vectorized for Scan<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let zero = L::splat(0.0);
        // A finite number times zero is zero. Infinities and NaN give NaN, which stays NaN.
        let mut broken = zero;
        let (groups, rest) = self.logits.as_chunks::<GROUP>();
        for group in groups {
            let mut max = L::splat(f32::NEG_INFINITY);
            for lanes in group.as_chunks::<LANES>().0 {
                let lanes = L::load(lanes);
                max = max.max(lanes);
                broken = broken.add_product(lanes, zero);
            }
            self.maxima.push(max.largest());
        }
        *self.finite = broken.sum() == 0.0 && rest.iter().all(|logit| logit.is_finite());
        if !rest.is_empty() {
            self.maxima.push(rest.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}

#[inline(always)]
fn weigh(logits: &[f32], peak: f32, inverse_temperature: f32, weights: &mut [f32]) {
    for (weight, &logit) in weights.iter_mut().zip(logits) {
        *weight = exp(-((peak - logit) * inverse_temperature));
    }
}

struct WeighAll<'a> {
    logits: &'a [f32],
    peak: f32,
    inverse_temperature: f32,
    weights: &'a mut Vec<f32>,
}

impl Vectorized for WeighAll<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { logits, peak, inverse_temperature, weights } = self;
        let mut block = [0.0; BLOCK];
        for logits in logits.chunks(BLOCK) {
            let block = &mut block[..logits.len()];
            weigh(logits, peak, inverse_temperature, block);
            weights.extend_from_slice(block);
        }
    }
}

struct Weigh<'a> {
    logits: &'a [f32],
    peak: f32,
    inverse_temperature: f32,
    weights: &'a mut [f32],
}

impl Vectorized for Weigh<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        weigh(self.logits, self.peak, self.inverse_temperature, self.weights);
    }
}

/// The partial sums of a sum of weights.
struct Sums([f64; BLOCK]);

impl Sums {
    #[inline(always)]
    fn add(&mut self, weights: &[f32]) {
        for (sum, &weight) in self.0.iter_mut().zip(weights) {
            *sum += f64::from(weight);
        }
    }

    #[inline(always)]
    fn total(mut self) -> f64 {
        let mut width = BLOCK / 2;
        while width > 0 {
            let (low, high) = self.0.split_at_mut(width);
            for (low, high) in low.iter_mut().zip(high) {
                *low += *high;
            }
            width /= 2;
        }
        self.0[0]
    }
}

struct Total<'a> {
    weights: &'a [f32],
    found: &'a mut (f64, bool),
}

impl Vectorized for Total<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let mut sums = Sums([0.0; BLOCK]);
        let mut empty = 0;
        for block in self.weights.chunks(BLOCK) {
            sums.add(block);
            for &weight in block {
                empty |= u32::from(weight <= 0.0 || weight.is_nan());
            }
        }
        *self.found = (sums.total(), empty == 0);
    }
}

struct Mass<'a> {
    logits: &'a [f32],
    peak: f32,
    inverse_temperature: f32,
    mass: &'a mut f64,
}

impl Vectorized for Mass<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let mut sums = Sums([0.0; BLOCK]);
        let mut weights = [0.0; BLOCK];
        for block in self.logits.chunks(BLOCK) {
            let weights = &mut weights[..block.len()];
            weigh(block, self.peak, self.inverse_temperature, weights);
            sums.add(weights);
        }
        *self.mass = sums.total();
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for len in [1, 5, 32, 127, 128, 129, 1_000, 8_192, 8_200] {
            let logit = |i: usize| (i as f32 * 0.37).sin() * 40.0 + (i as f32 * 1.7).cos();
            let logits: Vec<f32> = (0..len).map(logit).collect();
            let row = LogitRow::new(Cow::Borrowed(&logits), 0).unwrap();
            let (peak, inverse_temperature) = (row.peak, 0.7);
            let results_on = |isa| {
                let (mut maxima, mut finite) = (Vec::new(), false);
                let (logits, mut mass) = (&logits[..], 0.0);
                vectorize(isa, Scan { logits, maxima: &mut maxima, finite: &mut finite });
                vectorize(isa, Mass { logits, peak, inverse_temperature, mass: &mut mass });
                let mut weights = Vec::new();
                vectorize(
                    isa,
                    WeighAll { logits, peak, inverse_temperature, weights: &mut weights },
                );
                let mut found = (0.0, false);
                vectorize(isa, Total { weights: &weights, found: &mut found });
                assert_eq!(mass.to_bits(), found.0.to_bits(), "{len} on {isa}");
                let weights: Vec<u32> = weights.into_iter().map(f32::to_bits).collect();
                (maxima, finite, weights, mass.to_bits(), found.1)
            };
            for isa in Isa::available() {
                assert_eq!(results_on(isa), results_on(Isa::Portable), "{len} on {isa}");
            }
            // A logit has the same weight alone and in the whole row.
            let alone: Vec<u32> = logits
                .iter()
                .map(|&logit| row.weight(logit, inverse_temperature).to_bits())
                .collect();
            assert_eq!(alone, results_on(Isa::best()).2, "{len}");
        }
    }
}

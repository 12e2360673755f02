//! Top-k, top-p and min-p, by selection: only tokens near the cut are ever ranked.
//!
//! They apply in this order, as in Hugging Face's transformers: each sees what those before it left.
//! Min-p compares with the best token alone, so being last it changes nothing in what top-p means.

use crate::logit_row::{LogitRow, Ranked, keep_best};
use crate::support::Support;
use crate::{Distribution, Sampling, TokenId};

/// Bins of a distance of one from the peak. Weights vanish at 80.
const BINS_A_NAT: f32 = 32.0;
const LAST_BIN: f32 = 80.0 * BINS_A_NAT;

/// 2²³.
const ROUND: f32 = 8_388_608.0;

/// A row at a temperature above 0, and what the filters leave of it.
pub(crate) struct Filtered<'r, 'l> {
    row: &'r LogitRow<'l>,
    /// The inverse of the temperature.
    sharpness: f32,
    /// All tokens if `None`, else these, in any order.
    kept: Option<Vec<Ranked>>,
}

impl<'r, 'l> Filtered<'r, 'l> {
    /// A row with all its tokens.
    pub(crate) fn whole(row: &'r LogitRow<'l>, temperature: f32) -> Self {
        // At temperatures too low for an inverse, all but the best vanish all the same.
        Self { row, sharpness: temperature.recip().min(f32::MAX), kept: None }
    }

    /// Applies the filters of `sampling` to a row.
    pub(crate) fn new(row: &'r LogitRow<'l>, sampling: &Sampling) -> Self {
        let Sampling { temperature, top_k, top_p, min_p, .. } = *sampling;
        let mut filtered = Self::whole(row, temperature);
        let mut kept = match (top_k > 0 && top_k < row.len(), top_p < 1.0) {
            (true, false) => row.select(top_k),
            (true, true) => {
                let mut best = row.best(top_k);
                let goal = filtered.sum(&best) * f64::from(top_p);
                best.truncate(filtered.reaching(&best, goal).unwrap_or(best.len()));
                best
            }
            (false, true) => filtered.nucleus(top_p),
            (false, false) if min_p > 0.0 => {
                // The margin is far wider than the exponential's error.
                row.tokens(|max| filtered.weight(max) >= min_p * 0.999, |_| true)
            }
            (false, false) => return filtered,
        };
        if min_p > 0.0 {
            // The peak weighs 1.
            kept.retain(|ranked| filtered.weight(ranked.logit) >= min_p);
        }
        filtered.kept = Some(kept);
        filtered
    }

    /// The distribution over what was kept.
    pub(crate) fn into_distribution(self) -> Distribution {
        let Some(mut kept) = self.kept else {
            let weights = self.row.weights(self.sharpness);
            return Distribution::from_support(Support::Below(weights.len()), weights);
        };
        kept.sort_unstable_by_key(|ranked| ranked.token);
        let logits: Vec<f32> = kept.iter().map(|ranked| ranked.logit).collect();
        let mut weights = vec![0.0; kept.len()];
        self.row.weigh(&logits, self.sharpness, &mut weights);
        let tokens = kept.iter().map(|ranked| ranked.token);
        Distribution::from_support(Support::new(tokens.collect()), weights)
    }

    /// The `count` tokens that rank highest among what was kept, best first, each with the logarithm
    /// of its share of the whole.
    pub(crate) fn into_best(mut self, count: usize) -> Vec<(TokenId, f64)> {
        let (best, mass) = match self.kept.take() {
            None => (self.row.best(count), self.row.mass(self.sharpness)),
            Some(mut kept) => {
                let mass = self.sum(&kept);
                keep_best(&mut kept, count);
                kept.sort_unstable_by(Ranked::order);
                (kept, mass)
            }
        };
        let share = |ranked: &Ranked| {
            let weight = f64::from(self.weight(ranked.logit));
            (weight > 0.0).then(|| (ranked.token, (weight / mass).ln()))
        };
        best.iter().filter_map(share).collect()
    }

    fn weight(&self, logit: f32) -> f32 {
        self.row.weight(logit, self.sharpness)
    }

    /// The sum of some tokens' weights.
    fn sum(&self, list: &[Ranked]) -> f64 {
        list.iter().map(|ranked| f64::from(self.weight(ranked.logit))).sum()
    }

    /// How many of the tokens, best first, it takes to reach a mass.
    fn reaching(&self, best: &[Ranked], goal: f64) -> Option<usize> {
        let mut mass = 0.0;
        let last = best.iter().position(|ranked| {
            mass += f64::from(self.weight(ranked.logit));
            mass >= goal
        });
        last.map(|last| last + 1)
    }

    /// The most probable tokens that together reach `top_p`.
    fn nucleus(&self, top_p: f32) -> Vec<Ranked> {
        let goal = self.row.mass(self.sharpness) * f64::from(top_p);
        // Mostly few tokens are enough.
        for count in [64, 1024].into_iter().filter(|&count| self.row.can_select(count)) {
            let mut best = self.row.best(count);
            if let Some(enough) = self.reaching(&best, goal) {
                best.truncate(enough);
                return best;
            }
        }
        match self.last_of_many(goal) {
            Some(last) => {
                let above = |ranked: &Ranked| {
                    (ranked.logit > last.logit)
                        | ((ranked.logit == last.logit) & (ranked.token <= last.token))
                };
                self.row.tokens(|max| max >= last.logit, above)
            }
            // Rounding alone keeps the mass from its goal: all that weighs anything is needed.
            None => self.row.tokens(|_| true, |_| true),
        }
    }

    /// The token with which the most probable ones reach a mass, where that takes many: sums by
    /// distance from the peak tell where it lies, and only tokens of that distance are sorted.
    fn last_of_many(&self, goal: f64) -> Option<Ranked> {
        // It never falls as logits do, so a token of a lower bin ranks above one of a higher.
        let bin = |logit: f32| {
            let place = (self.row.distance(logit, self.sharpness) * BINS_A_NAT).min(LAST_BIN);
            // The sum rounds to an integer, which then stands in the low bits.
            ((place + ROUND).to_bits() - ROUND.to_bits()) as usize
        };
        let mut masses = [0.0; LAST_BIN as usize + 1];
        self.row.each_block(self.sharpness, |logits, weights| {
            for (&logit, &weight) in logits.iter().zip(weights) {
                masses[bin(logit)] += f64::from(weight);
            }
        });
        let mut mass = 0.0;
        let cut = masses.iter().position(|&in_bin| {
            mass += in_bin;
            mass >= goal
        })?;
        let mut edge = self.row.tokens(|max| bin(max) <= cut, |ranked| bin(ranked.logit) == cut);
        edge.sort_unstable_by(Ranked::order);
        let before: f64 = masses[..cut].iter().sum();
        let enough = self.reaching(&edge, goal - before).unwrap_or(edge.len());
        edge.get(enough.checked_sub(1)?).copied()
    }
}

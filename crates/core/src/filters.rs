//! Top-k, top-p and min-p filters, computed by selection: only tokens near the cut are sorted.
//!
//! The filters apply in this order, as in Hugging Face's transformers, each to the tokens that the
//! previous ones kept. Min-p compares with the best token only, so applying it last does not change
//! the meaning of top-p.

use crate::logit_row::{LogitRow, Ranked, keep_best};
use crate::support::Support;
use crate::{Distribution, Sampling, SamplingOptions, TokenId};

/// Histogram bins for each unit of distance from the peak. Weights vanish at a distance of 80.
const BINS_PER_NAT: f32 = 32.0;
const LAST_BIN: f32 = 80.0 * BINS_PER_NAT;

/// 2²³. Adding it to a small positive number rounds the number to an integer.
const ROUND: f32 = 8_388_608.0;

/// A row at a temperature above 0, and the tokens that the filters keep.
pub(crate) struct Filtered<'r, 'l> {
    row: &'r LogitRow<'l>,
    inverse_temperature: f32,
    /// The tokens kept; `None` if all are.
    kept: Option<Vec<Ranked>>,
    /// Whether the order of the tokens kept depends on how they were found, not only on the logits.
    is_unordered: bool,
}

impl<'r, 'l> Filtered<'r, 'l> {
    /// Creates a row that keeps all its tokens.
    pub(crate) fn unfiltered(row: &'r LogitRow<'l>, temperature: f32) -> Self {
        // If the inverse overflows, all tokens but the best vanish anyway.
        let inverse_temperature = temperature.recip().min(f32::MAX);
        Self { row, inverse_temperature, kept: None, is_unordered: false }
    }

    /// Applies the filters of `sampling` to a row.
    pub(crate) fn new(row: &'r LogitRow<'l>, sampling: &Sampling) -> Self {
        let SamplingOptions { temperature, top_k, top_p, min_p, .. } = **sampling;
        let mut filtered = Self::unfiltered(row, temperature);
        let mut kept = match (top_k > 0 && top_k < row.len(), top_p < 1.0) {
            (true, false) => {
                filtered.is_unordered = true;
                row.select(top_k)
            }
            (true, true) => {
                let mut best = row.best(top_k);
                let goal = filtered.sum(&best) * f64::from(top_p);
                best.truncate(filtered.count_to_reach(&best, goal).unwrap_or(best.len()));
                best
            }
            (false, true) => filtered.nucleus(top_p),
            (false, false) if min_p > 0.0 => {
                // The margin is much larger than the error of the exponential.
                row.tokens(|max| filtered.weight(max) >= min_p * 0.999, |_| true)
            }
            (false, false) => return filtered,
        };
        if min_p > 0.0 {
            // The peak has weight 1.
            kept.retain(|ranked| filtered.weight(ranked.logit) >= min_p);
        }
        filtered.kept = Some(kept);
        filtered
    }

    /// Returns the share of the best token in all tokens that are known.
    pub(crate) fn best_share(&self) -> f32 {
        // The best token has weight 1.
        (1.0 / self.row.mass(self.inverse_temperature)) as f32
    }

    /// Returns the distribution over the kept tokens.
    pub(crate) fn into_distribution(self) -> Distribution {
        let Some(mut kept) = self.kept else {
            let weights = self.row.weights(self.inverse_temperature);
            return Distribution::from_support(Support::Below(weights.len()), weights);
        };
        kept.sort_unstable_by_key(|ranked| ranked.token);
        let logits: Vec<f32> = kept.iter().map(|ranked| ranked.logit).collect();
        let mut weights = vec![0.0; kept.len()];
        self.row.weigh(&logits, self.inverse_temperature, &mut weights);
        let tokens = kept.iter().map(|ranked| ranked.token);
        Distribution::from_support(Support::new(tokens.collect()), weights)
    }

    /// Returns the `count` best of the kept tokens, best first, each with the logarithm of its
    /// probability among the kept tokens.
    pub(crate) fn into_best(mut self, count: usize) -> Vec<(TokenId, f64)> {
        // Their sum depends on their order.
        if self.is_unordered
            && let Some(kept) = &mut self.kept
        {
            kept.sort_unstable_by(Ranked::order);
        }
        let mass = match &self.kept {
            None => self.row.mass(self.inverse_temperature),
            Some(kept) => self.sum(kept),
        };
        let log_probability = |(token, weight): (TokenId, f32)| {
            let weight = f64::from(weight);
            (token, (weight / mass).ln())
        };
        self.into_best_weights(count).into_iter().map(log_probability).collect()
    }

    /// Returns the tokens of [`Filtered::into_best`]. They do not depend on the mass of the others.
    pub(crate) fn into_best_tokens(self, count: usize) -> Vec<TokenId> {
        self.into_best_weights(count).into_iter().map(|(token, _)| token).collect()
    }

    /// Returns the `count` best of the kept tokens, best first, with their weights, which are
    /// positive.
    fn into_best_weights(mut self, count: usize) -> Vec<(TokenId, f32)> {
        let best = match self.kept.take() {
            None => self.row.best(count),
            Some(mut kept) => {
                keep_best(&mut kept, count);
                kept.sort_unstable_by(Ranked::order);
                kept
            }
        };
        let weights = best.iter().map(|ranked| (ranked.token, self.weight(ranked.logit)));
        weights.filter(|&(_, weight)| weight > 0.0).collect()
    }

    fn weight(&self, logit: f32) -> f32 {
        self.row.weight(logit, self.inverse_temperature)
    }

    /// Returns the sum of the tokens' weights.
    fn sum(&self, tokens: &[Ranked]) -> f64 {
        tokens.iter().map(|ranked| f64::from(self.weight(ranked.logit))).sum()
    }

    /// Returns how many tokens, best first, are needed to reach a mass; `None` if all of them
    /// together do not reach it.
    fn count_to_reach(&self, best: &[Ranked], goal: f64) -> Option<usize> {
        let mut mass = 0.0;
        let last = best.iter().position(|ranked| {
            mass += f64::from(self.weight(ranked.logit));
            mass >= goal
        });
        last.map(|last| last + 1)
    }

    /// Returns the most probable tokens that together reach `top_p`.
    fn nucleus(&self, top_p: f32) -> Vec<Ranked> {
        let goal = self.row.mass(self.inverse_temperature) * f64::from(top_p);
        // A few tokens are usually enough.
        for count in [64, 1024].into_iter().filter(|&count| self.row.can_select(count)) {
            let mut best = self.row.best(count);
            if let Some(enough) = self.count_to_reach(&best, goal) {
                best.truncate(enough);
                return best;
            }
        }
        match self.last_of_large_nucleus(goal) {
            Some(last) => {
                let in_nucleus = |ranked: &Ranked| {
                    (ranked.logit > last.logit)
                        | ((ranked.logit == last.logit) & (ranked.token <= last.token))
                };
                self.row.tokens(|max| max >= last.logit, in_nucleus)
            }
            // Only rounding keeps the mass below the goal, so every token is needed.
            None => self.row.tokens(|_| true, |_| true),
        }
    }

    /// Returns the last token of a nucleus of many tokens: the one with which the most probable
    /// tokens reach the mass `goal`.
    ///
    /// A histogram of mass by distance from the peak locates the token's bin, and only the tokens
    /// of that bin are sorted.
    fn last_of_large_nucleus(&self, goal: f64) -> Option<Ranked> {
        // Bins do not decrease as logits decrease, so tokens of a lower bin rank first.
        let bin = |logit: f32| {
            let distance = self.row.distance(logit, self.inverse_temperature);
            let place = (distance * BINS_PER_NAT).min(LAST_BIN);
            // The sum rounds to an integer, which is then in the low bits.
            ((place + ROUND).to_bits() - ROUND.to_bits()) as usize
        };
        let mut masses = [0.0; LAST_BIN as usize + 1];
        self.row.for_each_block(self.inverse_temperature, |logits, weights| {
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
        let enough = self.count_to_reach(&edge, goal - before).unwrap_or(edge.len());
        edge.get(enough.checked_sub(1)?).copied()
    }
}

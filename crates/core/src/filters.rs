//! Filters of tokens, computed by selection: only tokens near the cut are sorted.
//!
//! They apply in llama.cpp's order, each to the tokens that the previous ones kept: top-n-sigma,
//! top-k, typical, top-p, min-p, XTC. Then the temperature follows, if it is dynamic. Min-p compares
//! with the best token only, so applying it after top-p does not change the meaning of top-p.

use crate::logit_row::{LogitRow, Ranked, keep_best};
use crate::support::Support;
use crate::{Distribution, Key, Purpose, Randomness, Sampling, SamplingOptions, TokenId};

/// Histogram bins for each unit of distance from the peak. Weights vanish at a distance of 80.
const BINS_PER_NAT: f32 = 32.0;
const LAST_BIN: f32 = 80.0 * BINS_PER_NAT;

/// 2²³. Adding it to a small positive number rounds the number to an integer.
const ROUND: f32 = 8_388_608.0;

/// A row at a temperature above 0, and the tokens that the filters keep.
pub(crate) struct Filtered<'l> {
    row: LogitRow<'l>,
    inverse_temperature: f32,
    /// The tokens kept; `None` if all are.
    kept: Option<Vec<Ranked>>,
    /// Whether the order of the tokens kept depends on how they were found, not only on the logits.
    is_unordered: bool,
}

impl<'l> Filtered<'l> {
    /// Creates a row that keeps all its tokens.
    pub(crate) fn unfiltered(row: LogitRow<'l>, temperature: f32) -> Self {
        Self { row, inverse_temperature: inverse(temperature), kept: None, is_unordered: false }
    }

    /// Applies the filters of `sampling` to the row of a position.
    pub(crate) fn new(row: LogitRow<'l>, sampling: &Sampling, position: usize) -> Self {
        let is_dynamic = sampling.dynatemp_range > 0.0;
        let temperature = if is_dynamic { 1.0 } else { sampling.temperature };
        let mut filtered = Self::unfiltered(row, temperature);
        if sampling.top_n_sigma > 0.0 || sampling.typical_p < 1.0 {
            filtered.keep_typical(sampling);
        } else {
            filtered.keep_best(sampling);
        }
        if sampling.min_p > 0.0 {
            filtered.keep_at_least(sampling.min_p);
        }
        let key = Key { position, purpose: Purpose::Exclude, candidate: 0 };
        let excludes = f64::from(sampling.xtc_probability);
        if excludes > 0.0 && sampling.randomness.below(key, excludes) {
            filtered.exclude_top_choices(sampling.xtc_threshold);
        }
        if is_dynamic {
            filtered.choose_temperature(sampling);
        }
        filtered
    }

    /// Applies top-k and top-p.
    fn keep_best(&mut self, sampling: &Sampling) {
        let SamplingOptions { top_k, top_p, .. } = **sampling;
        self.kept = match (top_k > 0 && top_k < self.row.len(), top_p < 1.0) {
            (true, false) => {
                self.is_unordered = true;
                Some(self.row.select(top_k))
            }
            (true, true) => Some(self.up_to(self.row.best(top_k), top_p)),
            (false, true) => Some(self.nucleus(top_p)),
            (false, false) => None,
        };
    }

    /// Applies top-n-sigma, top-k, typical and top-p. Unlike the others, these look at all tokens.
    fn keep_typical(&mut self, sampling: &Sampling) {
        let SamplingOptions { top_k, top_p, typical_p, top_n_sigma, .. } = **sampling;
        let mut kept = match top_k > 0 && top_n_sigma <= 0.0 {
            true => self.row.best(top_k),
            false => self.row.possible(),
        };
        if top_n_sigma > 0.0 {
            let count = kept.len() as f64;
            let mean = kept.iter().map(|ranked| f64::from(ranked.logit)).sum::<f64>() / count;
            let squares = kept.iter().map(|ranked| (f64::from(ranked.logit) - mean).powi(2));
            let sigma = (squares.sum::<f64>() / count).sqrt();
            let floor = f64::from(self.row.peak()) - f64::from(top_n_sigma) * sigma;
            kept.retain(|ranked| f64::from(ranked.logit) >= floor);
        }
        if top_k > 0 {
            keep_best(&mut kept, top_k);
        }
        kept.sort_unstable_by(Ranked::order);
        if typical_p < 1.0 {
            kept = self.typical(&kept, typical_p);
            self.row.lower_peak(&kept);
        }
        self.kept = Some(if top_p < 1.0 { self.up_to(kept, top_p) } else { kept });
    }

    /// Returns the tokens whose surprise is nearest to the entropy, best first.
    fn typical(&self, tokens: &[Ranked], typical_p: f32) -> Vec<Ranked> {
        let mass = self.sum(tokens);
        let entropy = self.entropy(tokens, mass);
        let atypical = |&ranked: &Ranked| ((self.surprise(ranked, mass) - entropy).abs(), ranked);
        let mut found: Vec<(f64, Ranked)> = tokens.iter().map(atypical).collect();
        found.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut reached = 0.0;
        let last = found.iter().position(|(_, ranked)| {
            reached += f64::from(self.weight(ranked.logit));
            reached > mass * f64::from(typical_p)
        });
        found.truncate(last.map_or(found.len(), |last| last + 1));
        let mut kept: Vec<Ranked> = found.into_iter().map(|(_, ranked)| ranked).collect();
        kept.sort_unstable_by(Ranked::order);
        kept
    }

    /// Applies min-p.
    fn keep_at_least(&mut self, min_p: f32) {
        let mut kept = self.kept.take().unwrap_or_else(|| {
            // The margin is much larger than the error of the exponential.
            self.row.tokens(|max| self.weight(max) >= min_p * 0.999, |_| true)
        });
        // The peak has weight 1.
        kept.retain(|ranked| self.weight(ranked.logit) >= min_p);
        self.kept = Some(kept);
    }

    /// Applies XTC: excludes the tokens that have at least a probability but the last one of them.
    fn exclude_top_choices(&mut self, threshold: f32) {
        let mut kept = self.listed();
        let least = self.sum(&kept) * f64::from(threshold);
        let is_top = |ranked: &&Ranked| f64::from(self.weight(ranked.logit)) >= least;
        if let Some(last) = kept.iter().filter(is_top).copied().max_by(Ranked::order) {
            kept.retain(|ranked| ranked.order(&last).is_ge());
            self.row.lower_peak(&[last]);
        }
        self.kept = Some(kept);
    }

    /// Sets the dynamic temperature.
    fn choose_temperature(&mut self, sampling: &Sampling) {
        let SamplingOptions { temperature, dynatemp_range, dynatemp_exponent, .. } = **sampling;
        let kept = self.listed();
        if kept.len() > 1 {
            let entropy = self.entropy(&kept, self.sum(&kept)) / (kept.len() as f64).ln();
            let least = (temperature - dynatemp_range).max(0.0);
            let share = entropy.powf(f64::from(dynatemp_exponent)) as f32;
            let most = temperature + dynatemp_range;
            self.inverse_temperature = inverse(least + (most - least) * share);
        }
        self.kept = Some(kept);
    }

    /// Takes the list of the kept tokens, in an order that depends on their logits alone.
    fn listed(&mut self) -> Vec<Ranked> {
        let mut kept = self.kept.take().unwrap_or_else(|| self.row.possible());
        if std::mem::take(&mut self.is_unordered) {
            kept.sort_unstable_by(Ranked::order);
        }
        kept.retain(|ranked| ranked.logit > f32::NEG_INFINITY);
        kept
    }

    /// Returns the entropy of tokens with this mass, in nats.
    fn entropy(&self, tokens: &[Ranked], mass: f64) -> f64 {
        let share = |&ranked: &Ranked| match f64::from(self.weight(ranked.logit)) {
            0.0 => 0.0,
            weight => weight / mass * self.surprise(ranked, mass),
        };
        tokens.iter().map(share).sum()
    }

    /// Returns the negative logarithm of a token's probability among tokens with this mass.
    fn surprise(&self, ranked: Ranked, mass: f64) -> f64 {
        f64::from(self.row.distance(ranked.logit, self.inverse_temperature)) + mass.ln()
    }

    /// Returns the first of these tokens, best first, that together reach `top_p` of them.
    fn up_to(&self, mut best: Vec<Ranked>, top_p: f32) -> Vec<Ranked> {
        let goal = self.sum(&best) * f64::from(top_p);
        best.truncate(self.count_to_reach(&best, goal).unwrap_or(best.len()));
        best
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

/// Returns the inverse of a temperature. If it overflows, all tokens but the best vanish anyway.
fn inverse(temperature: f32) -> f32 {
    temperature.recip().min(f32::MAX)
}

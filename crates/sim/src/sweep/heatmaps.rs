//! DSI's figures 2 and 7: the speed of plain, speculative and DSI decoding for a grid of drafters.
//!
//! The paper (arXiv 2405.14105, §4) simulates drafters whose pass takes 0.01, 0.02, … 1 of the
//! target's time and whose acceptance rate is 0, 0.01, … 1, at lookaheads of 1 to 200, with 5 texts
//! each. Here the production decoders run the same grid. As in the paper, each method uses its best
//! lookahead (figure 2) or 5 (figure 7), and DSI uses only lookaheads for which seven replicas are
//! enough by equation 1.
//!
//! A draft is never longer than the rest of the answer. So all lookaheads beyond the length of the
//! answer give the same run, which is simulated once.

use super::table::significant;
use super::{RowSource, SweepError};
use crate::parameters::busy_targets;
use crate::{AcceptanceModel, Cancellation, Cost, SimError, SimulatedMethod, Simulation};
use std::fmt::Write as _;

/// A grid of drafters. The table has one row for each drafter, which covers all lookaheads.
#[derive(Clone, Debug, PartialEq)]
pub struct Heatmaps {
    /// Number of drafter latencies, evenly spaced up to the target's latency.
    pub latency_steps: usize,
    /// Number of steps of the acceptance rate from 0 to 1.
    pub acceptance_steps: usize,
    /// The largest lookahead.
    pub lookaheads: usize,
    /// The largest number of target replicas for DSI.
    pub replicas: usize,
    /// The number of tokens in an answer.
    pub tokens: usize,
    /// The number of texts over which each value is averaged.
    pub repeats: u64,
}

impl Default for Heatmaps {
    /// Returns the paper's grid. The paper does not give the length of the answers; the default is
    /// the length in its table 2.
    fn default() -> Self {
        Self {
            latency_steps: 100,
            acceptance_steps: 100,
            lookaheads: 200,
            replicas: 7,
            tokens: 50,
            repeats: 5,
        }
    }
}

/// Time of a target pass. Results are in multiples of it.
const TARGET_NS: u64 = 1_000_000;
/// The lookahead of figure 7.
const FIXED_LOOKAHEAD: usize = 5;

/// The best lookahead of a method and its time in target passes.
#[derive(Clone, Copy, Debug)]
struct Best {
    time: f64,
    lookahead: usize,
}

impl Heatmaps {
    /// Returns the number of different configurations of a method that the rows cover: drafters
    /// times lookaheads.
    #[must_use]
    pub fn configurations(&self) -> usize {
        self.count() * self.largest_lookahead()
    }

    /// Returns the largest lookahead at which an answer differs from those at smaller ones.
    fn largest_lookahead(&self) -> usize {
        self.lookaheads.min(self.tokens.saturating_sub(1).max(1))
    }

    /// Returns the drafter's latency as a share of the target's, and its acceptance rate.
    fn drafter(&self, index: usize) -> (f64, f64) {
        let (latency, acceptance) =
            (index / (self.acceptance_steps + 1) + 1, index % (self.acceptance_steps + 1));
        (
            latency as f64 / self.latency_steps as f64,
            acceptance as f64 / self.acceptance_steps.max(1) as f64,
        )
    }

    fn simulation(&self, index: usize, method: SimulatedMethod, lookahead: usize) -> Simulation {
        let (latency, acceptance) = self.drafter(index);
        let draft_ns = (latency * TARGET_NS as f64).round() as u64;
        // One replica more than equation 1 gives, up to the limit, for the pass at the frontier.
        let needed = busy_targets(TARGET_NS, draft_ns, lookahead);
        let replicas = match method {
            SimulatedMethod::Dsi if needed <= self.replicas => (needed + 1).min(self.replicas),
            SimulatedMethod::Dsi => needed + 1,
            _ => 1,
        };
        Simulation {
            method,
            drafters: vec![Cost::constant(draft_ns)],
            targets: vec![Cost::constant(TARGET_NS); replicas],
            acceptance: vec![AcceptanceModel::Iid(acceptance)],
            draft_tokens: lookahead,
            max_tokens: self.tokens,
            seed: 0,
            cancellation: Cancellation::Immediate,
            faults: Vec::new(),
        }
    }

    /// Returns the mean time of a method in target passes.
    fn time(
        &self,
        index: usize,
        method: SimulatedMethod,
        lookahead: usize,
        rounds: &mut u64,
    ) -> Result<f64, SimError> {
        let simulation = self.simulation(index, method, lookahead);
        let mut total_ns = 0;
        for seed in 0..self.repeats {
            let answer = Simulation { seed, ..simulation.clone() }.measure()?;
            total_ns += answer.total_ns;
            *rounds += answer.statistics.target_forwards;
        }
        Ok(total_ns as f64 / (self.repeats * TARGET_NS) as f64)
    }

    /// Returns a method's result at its best lookahead (the smallest if several are equal), and its
    /// time at the lookahead of figure 7.
    fn best(
        &self,
        index: usize,
        method: SimulatedMethod,
        rounds: &mut u64,
    ) -> Result<(Best, f64), SimError> {
        let draft_ns = (self.drafter(index).0 * TARGET_NS as f64).round() as u64;
        let is_feasible = |&lookahead: &usize| {
            method != SimulatedMethod::Dsi
                || busy_targets(TARGET_NS, draft_ns, lookahead) <= self.replicas
        };
        let mut best = Best { time: f64::INFINITY, lookahead: 0 };
        let mut at_fixed = None;
        for lookahead in (1..=self.largest_lookahead()).filter(is_feasible) {
            let time = self.time(index, method, lookahead, rounds)?;
            if time < best.time {
                best = Best { time, lookahead };
            }
            at_fixed = at_fixed.or((lookahead == FIXED_LOOKAHEAD).then_some(time));
        }
        let at_fixed = match at_fixed {
            Some(time) => time,
            None => self.time(index, method, FIXED_LOOKAHEAD, rounds)?,
        };
        Ok((best, at_fixed))
    }

    fn values(&self, index: usize, rounds: &mut u64) -> Result<[f64; 13], SimError> {
        let plain = self.tokens as f64;
        let (si, si_at_fixed) = self.best(index, SimulatedMethod::Speculative, rounds)?;
        let (dsi, dsi_at_fixed) = self.best(index, SimulatedMethod::Dsi, rounds)?;
        Ok([
            si.time,
            si.lookahead as f64,
            dsi.time,
            dsi.lookahead as f64,
            si_at_fixed,
            dsi_at_fixed,
            plain / si.time,
            si.time / dsi.time,
            plain / dsi.time,
            plain.min(si.time) / dsi.time,
            plain / si_at_fixed,
            si_at_fixed / dsi_at_fixed,
            plain / dsi_at_fixed,
        ])
    }
}

/// Columns of times in target passes, and of their ratios. Plain decoding takes one pass per token.
/// "si" is speculative decoding, "non-si" is plain decoding, as in the paper.
const COLUMNS: [&str; 13] = [
    "si",
    "si-lookahead",
    "dsi",
    "dsi-lookahead",
    "si-at-5",
    "dsi-at-5",
    "non-si/si",
    "si/dsi",
    "non-si/dsi",
    "min(si or non-si)/dsi",
    "non-si/si-at-5",
    "si-at-5/dsi-at-5",
    "non-si/dsi-at-5",
];

impl RowSource for Heatmaps {
    type Cache = ();

    fn count(&self) -> usize {
        self.latency_steps * (self.acceptance_steps + 1)
    }

    fn header(&self) -> String {
        let columns = COLUMNS.join(",");
        format!("drafter-latency,acceptance,lookaheads,replicas,tokens,repeats,version,{columns}\n")
    }

    fn identity(&self, index: usize) -> Option<String> {
        let (latency, acceptance) = self.drafter(index);
        let Self { lookaheads, replicas, tokens, repeats, .. } = self;
        let version = env!("CARGO_PKG_VERSION");
        let identity =
            format!("{latency},{acceptance},{lookaheads},{replicas},{tokens},{repeats},{version},");
        (index < self.count()).then_some(identity)
    }

    fn row(&self, index: usize, (): &mut ()) -> Result<(String, u64), SweepError> {
        let mut text = self.identity(index).unwrap_or_default();
        let mut rounds = 0;
        let values = self.values(index, &mut rounds).map_err(|error| {
            let (number, values) = (index + 1, text.clone());
            SweepError::Configuration { number, values, reason: error.to_string() }
        })?;
        for (place, value) in values.into_iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(text, "{comma}{}", significant(value));
        }
        text.push('\n');
        Ok((text, rounds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drafter that is always wrong gains nothing, and DSI loses nothing by it. With a drafter
    /// that is always right, only the last verification takes time.
    #[test]
    fn extreme_drafters_have_the_expected_times() {
        let heatmaps = Heatmaps { latency_steps: 10, acceptance_steps: 2, ..Heatmaps::default() };
        assert_eq!((heatmaps.count(), heatmaps.configurations()), (30, 30 * 49));
        let row = |index| heatmaps.values(index, &mut 0).unwrap();
        // A drafter of a tenth: plain decoding takes 50 passes, drafts of one token 49 tenths more.
        let [si, si_lookahead, dsi, ..] = row(0);
        assert!((si - 54.9).abs() < 1e-9 && si_lookahead == 1.0 && dsi == 50.0, "{si} {dsi}");
        let always_right = row(2);
        let [si, si_lookahead, dsi, dsi_lookahead, ..] = always_right;
        // All tokens in one draft of 49 tokens, or all verified in parallel with drafting.
        assert!((si - 5.9).abs() < 1e-9 && si_lookahead == 49.0, "{si}");
        assert!((dsi - 5.9).abs() < 1e-9 && dsi_lookahead >= 2.0, "{dsi} {dsi_lookahead}");
        assert_eq!(always_right[10], 50.0 / always_right[4]);
    }
}

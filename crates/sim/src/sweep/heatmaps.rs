//! DSI's figures 2 and 7: which of plain, speculative and DSI decoding is faster, for every drafter.
//!
//! The paper (arXiv 2405.14105, §4) simulates drafters of 0.01, 0.02, … 1 of the target's time that are right
//! with probability 0, 0.01, … 1, at lookaheads of 1 to 200, each with 5 texts. Here the production
//! decoders do. As there, each method takes its best lookahead (figure 2), or 5 (figure 7), and DSI only
//! such for which seven replicas are enough by its equation 1.
//!
//! A draft is never longer than what is left of the answer, so a lookahead beyond the answer's length is
//! the same run as that length, and is simulated once.

use super::table::significant;
use super::{Rows, SweepError};
use crate::parameters::busy_targets;
use crate::{AcceptanceModel, Cancellation, Cost, SimError, SimulatedMethod, Simulation};
use std::fmt::Write as _;

/// A grid of drafters; a row of the table for each, which stands for all lookaheads.
#[derive(Clone, Debug, PartialEq)]
pub struct Heatmaps {
    /// Steps of the drafter's time, from 1/steps of the target's to all of it.
    pub latencies: usize,
    /// Steps of the acceptance rate, from 0 to 1.
    pub acceptances: usize,
    /// The longest lookahead.
    pub lookaheads: usize,
    /// Target replicas of DSI at the most.
    pub replicas: usize,
    /// Tokens of an answer.
    pub tokens: usize,
    /// Texts that every value is the mean of.
    pub repeats: u64,
}

impl Default for Heatmaps {
    /// The paper's, which does not tell the length of answers: it is that of its table 2.
    fn default() -> Self {
        Self {
            latencies: 100,
            acceptances: 100,
            lookaheads: 200,
            replicas: 7,
            tokens: 50,
            repeats: 5,
        }
    }
}

/// A target's forward pass; the results are in multiples of it.
const TARGET_NS: u64 = 1_000_000;
/// The lookahead of figure 7.
const ONE_LOOKAHEAD: usize = 5;

/// Time of a method at a lookahead, in target forwards.
#[derive(Clone, Copy, Debug)]
struct Best {
    time: f64,
    lookahead: usize,
}

impl Heatmaps {
    /// Configurations that the rows stand for: drafters times lookaheads.
    #[must_use]
    pub fn configurations(&self) -> usize {
        self.count() * self.lookaheads
    }

    /// The drafter's time as a share of the target's, and its acceptance rate.
    fn drafter(&self, index: usize) -> (f64, f64) {
        let (latency, acceptance) =
            (index / (self.acceptances + 1) + 1, index % (self.acceptances + 1));
        (latency as f64 / self.latencies as f64, acceptance as f64 / self.acceptances.max(1) as f64)
    }

    fn simulation(&self, index: usize, method: SimulatedMethod, lookahead: usize) -> Simulation {
        let (latency, acceptance) = self.drafter(index);
        let draft_ns = (latency * TARGET_NS as f64).round() as u64;
        // One more than equation 1 counts, for the row at the frontier, where there are as many.
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

    /// The mean time of a method, in target forwards.
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

    /// A method at its best lookahead, the shortest one among equals, and at that of figure 7.
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
        let different = self.lookaheads.min(self.tokens.saturating_sub(1).max(1));
        let mut best = Best { time: f64::INFINITY, lookahead: 0 };
        let mut at_one = None;
        for lookahead in (1..=different).filter(is_feasible) {
            let time = self.time(index, method, lookahead, rounds)?;
            if time < best.time {
                best = Best { time, lookahead };
            }
            at_one = at_one.or((lookahead == ONE_LOOKAHEAD).then_some(time));
        }
        let at_one = match at_one {
            Some(time) => time,
            None => self.time(index, method, ONE_LOOKAHEAD, rounds)?,
        };
        Ok((best, at_one))
    }

    fn values(&self, index: usize, rounds: &mut u64) -> Result<[f64; 13], SimError> {
        let plain = self.tokens as f64;
        let (turns, turns_at_one) = self.best(index, SimulatedMethod::Speculative, rounds)?;
        let (dsi, dsi_at_one) = self.best(index, SimulatedMethod::Dsi, rounds)?;
        Ok([
            turns.time,
            turns.lookahead as f64,
            dsi.time,
            dsi.lookahead as f64,
            turns_at_one,
            dsi_at_one,
            plain / turns.time,
            turns.time / dsi.time,
            plain / dsi.time,
            plain.min(turns.time) / dsi.time,
            plain / turns_at_one,
            turns_at_one / dsi_at_one,
            plain / dsi_at_one,
        ])
    }
}

/// Times in target forwards (plain decoding's is the number of tokens), and their ratios.
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

impl Rows for Heatmaps {
    type Memory = ();

    fn count(&self) -> usize {
        self.latencies * (self.acceptances + 1)
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
            // Writing to a string does not fail.
            let _ = write!(text, "{comma}{}", significant(value));
        }
        text.push('\n');
        Ok((text, rounds))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A drafter that is always wrong gains nothing, and DSI loses nothing by it; one that is always right
    /// hides all verifications but the last.
    #[test]
    fn corners_are_known() {
        let heatmaps = Heatmaps { latencies: 10, acceptances: 2, ..Heatmaps::default() };
        assert_eq!((heatmaps.count(), heatmaps.configurations()), (30, 6_000));
        let row = |index| heatmaps.values(index, &mut 0).unwrap();
        // A drafter of a tenth: plain decoding takes 50 passes, drafts of one token 49 tenths more.
        let [si, si_lookahead, dsi, ..] = row(0);
        assert!((si - 54.9).abs() < 1e-9 && si_lookahead == 1.0 && dsi == 50.0, "{si} {dsi}");
        let always_right = row(2);
        let [si, si_lookahead, dsi, dsi_lookahead, ..] = always_right;
        // All in one draft of 49 tokens, or all verified beside drafting.
        assert!((si - 5.9).abs() < 1e-9 && si_lookahead == 49.0, "{si}");
        assert!((dsi - 5.9).abs() < 1e-9 && dsi_lookahead >= 2.0, "{dsi} {dsi_lookahead}");
        assert_eq!(always_right[10], 50.0 / always_right[4]);
    }
}

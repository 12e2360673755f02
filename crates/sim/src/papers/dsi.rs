//! DSI's tables and claims (arXiv 2405.14105).

use super::{PublishedTable, headings, mean_ns, mean_times};
use crate::parameters::busy_targets;
use crate::{AcceptanceModel, Cancellation, Cost, SimError, SimulatedMethod, Simulation};

/// A pair of DSI's table 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DsiPair {
    /// Target, drafter and data.
    pub name: &'static str,
    /// Milliseconds of a target forward.
    pub target_ms: f64,
    /// Milliseconds of a drafter forward.
    pub draft_ms: f64,
    /// The acceptance rate.
    pub acceptance: f64,
    /// Published speed of DSI over speculative decoding.
    pub published: f64,
}

const fn dsi_pair(
    name: &'static str,
    target_ms: f64,
    draft_ms: f64,
    acceptance: f64,
    published: f64,
) -> DsiPair {
    DsiPair { name, target_ms, draft_ms, acceptance, published }
}

/// The pairs of DSI's table 2.
pub const DSI_PAIRS: [DsiPair; 10] = [
    dsi_pair("Vicuna 13B, 68M, CNN-DM", 37.7, 2.5, 0.63, 1.47),
    dsi_pair("Vicuna 13B, 68M, Alpaca", 33.3, 2.5, 0.58, 1.41),
    dsi_pair("Vicuna 7B, 68M, CNN-DM", 29.4, 2.5, 0.67, 1.29),
    dsi_pair("Vicuna 7B, 68M, Alpaca", 26.0, 2.5, 0.59, 1.70),
    dsi_pair("Starcoder 15B, 168M, HumanEval", 20.6, 6.8, 0.93, 1.92),
    dsi_pair("Starcoder 15B, 168M, MBPP", 21.0, 6.8, 0.90, 1.66),
    dsi_pair("Phi3 14B, 4B, HumanEval", 52.1, 34.0, 0.95, 1.41),
    dsi_pair("Phi3 14B, 4B, MBPP", 52.2, 34.3, 0.94, 1.37),
    dsi_pair("Phi3 14B, 4B, CNN-DM", 52.4, 34.6, 0.93, 1.39),
    dsi_pair("Phi3 14B, 4B, Alpaca", 49.6, 33.4, 0.87, 1.60),
];

/// The lookaheads that the paper tries, and its most replicas.
pub const DSI_LOOKAHEADS: [usize; 3] = [1, 5, 10];
const DSI_REPLICAS: usize = 7;

impl DsiPair {
    /// Fifty tokens with this pair. DSI has as many replicas as equation 1 asks for and one for the row at
    /// the frontier, seven at the most.
    #[must_use]
    pub fn simulation(&self, method: SimulatedMethod, lookahead: usize) -> Simulation {
        let [target_ns, draft_ns] = [self.target_ms, self.draft_ms].map(|ms| (ms * 1e6) as u64);
        let cost = |ns| Cost { layers: 32, ..Cost::constant(ns) };
        let busy = busy_targets(target_ns, draft_ns, lookahead);
        let replicas =
            if method == SimulatedMethod::Dsi { (busy + 1).min(DSI_REPLICAS) } else { 1 };
        Simulation {
            method,
            drafters: vec![cost(draft_ns)],
            targets: vec![cost(target_ns); replicas],
            acceptance: vec![AcceptanceModel::Iid(self.acceptance)],
            draft_tokens: lookahead,
            max_tokens: 50,
            seed: 0,
            cancellation: Cancellation::Immediate,
            faults: Vec::new(),
        }
    }
}

/// Waits on threads beside virtual time, over several texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waited {
    /// Mean nanoseconds in virtual time.
    pub virtual_ns: f64,
    /// Mean nanoseconds measured.
    pub measured_ns: f64,
    /// The standard error of that mean.
    pub error_ns: f64,
}

impl DsiPair {
    /// Fifty tokens of so many texts on threads, passes being waits, as the paper measures.
    ///
    /// # Errors
    /// If there are no texts, or a thread cannot start.
    pub fn wait(
        &self,
        method: SimulatedMethod,
        lookahead: usize,
        texts: u64,
    ) -> Result<Waited, SimError> {
        let simulation = self.simulation(method, lookahead);
        let mut measured = Vec::new();
        for seed in 0..texts {
            let answer = Simulation { seed, ..simulation.clone() }.run_in_real_time()?;
            measured.push(answer.total_ns as f64);
        }
        let virtual_ns = mean_ns(&simulation, texts)?;
        let count = measured.len() as f64;
        let measured_ns = measured.iter().sum::<f64>() / count;
        let squares = measured.iter().map(|ns| (ns - measured_ns).powi(2)).sum::<f64>();
        let error_ns = (squares / (count - 1.0).max(1.0) / count).sqrt();
        Ok(Waited { virtual_ns, measured_ns, error_ns })
    }
}

pub(super) fn pairs(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for pair in &DSI_PAIRS {
        let mut row = vec![pair.name.to_owned()];
        let mut best = [f64::INFINITY; 2];
        for lookahead in DSI_LOOKAHEADS {
            let turns = mean_ns(&pair.simulation(SimulatedMethod::Speculative, lookahead), texts)?;
            let dsi = mean_ns(&pair.simulation(SimulatedMethod::Dsi, lookahead), texts)?;
            row.push(format!("{:.2}", turns / dsi));
            best = [best[0].min(turns), best[1].min(dsi)];
        }
        row.extend([format!("{:.2}", best[0] / best[1]), format!("{:.2}", pair.published)]);
        rows.push(row);
    }
    Ok(PublishedTable {
        title: "DSI (arXiv 2405.14105), table 2: speed over speculative decoding, 50 tokens".into(),
        headings: headings(&[
            "pair",
            "lookahead 1, simulated",
            "5",
            "10",
            "each at its best",
            "published",
        ]),
        rows,
        note: "Simulated: the paper's times and acceptance rates, no overhead. The paper does not say at \
               which lookahead it ran speculative decoding; where a published value is above \"each at its \
               best\", no fair baseline gives it.",
    })
}

/// Section 3.1: a drafter of a tenth of the target's time, lookahead 2, five target replicas.
const DRAFT_NS: u64 = 10_000_000;
const TARGET_NS: u64 = 100_000_000;
const LOOKAHEAD: usize = 2;
const REPLICAS: usize = 5;
/// What four or eight devices make of a target's pass by tensor parallelism, measured on A100s: EasySpec
/// (arXiv 2502.02493), table 1, Llama-3-70B.
const TENSOR_PARALLEL: f64 = 13.23 / 8.39;
/// Lookaheads that speculative decoding may choose from.
const LONGEST_LOOKAHEAD: usize = 20;

pub(super) fn against_tensor_parallel(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for percent in [50, 60, 70, 80, 90] {
        let acceptance = f64::from(percent) / 100.0;
        let simulation = |method, lookahead, targets| Simulation {
            method,
            drafters: vec![Cost::constant(DRAFT_NS)],
            targets: vec![Cost::constant(TARGET_NS); targets],
            acceptance: vec![AcceptanceModel::Iid(acceptance)],
            draft_tokens: lookahead,
            max_tokens: 100,
            seed: 0,
            cancellation: Cancellation::Immediate,
            faults: Vec::new(),
        };
        let dsi_ns = mean_ns(&simulation(SimulatedMethod::Dsi, LOOKAHEAD, REPLICAS), texts)?;
        let plain_ns = 100.0 * TARGET_NS as f64;
        // The drafter's time and the target's follow one another, so a faster target is a sum.
        let (mut needed, mut with_tp_ns) = (f64::INFINITY, f64::INFINITY);
        for lookahead in 1..=LONGEST_LOOKAHEAD {
            let turns = mean_times(&simulation(SimulatedMethod::Speculative, lookahead, 1), texts)?;
            let left_ns = dsi_ns - turns.drafters_ns;
            if left_ns > 0.0 {
                needed = needed.min(turns.targets_ns / left_ns);
            }
            with_tp_ns = with_tp_ns.min(turns.drafters_ns + turns.targets_ns / TENSOR_PARALLEL);
        }
        let published = 1.0 / (1.0 - acceptance.powi(LOOKAHEAD as i32));
        let times = |factor: f64| match factor.is_finite() {
            true => format!("{factor:.2}"),
            false => "none is enough".into(),
        };
        rows.push(vec![
            format!("{acceptance:.1}"),
            times(plain_ns / dsi_ns),
            times(published),
            times(needed),
            times(plain_ns / with_tp_ns),
            times(with_tp_ns / dsi_ns),
        ]);
    }
    Ok(PublishedTable {
        title: "DSI (arXiv 2405.14105), section 3.1: five target replicas and a drafter, against one target \
                over the same devices"
            .into(),
        headings: headings(&[
            "acceptance",
            "DSI over plain decoding = acceleration that a target alone needs, simulated",
            "by the paper, 1/(1 − a²)",
            "acceleration that speculative decoding's target needs, simulated",
            "speculative decoding over plain with a target 1.58× as fast, simulated",
            "DSI over that, simulated",
        ]),
        rows,
        note: "Simulated: a drafter of a tenth of the target's time, lookahead 2, no overhead; speculative \
               decoding at its best lookahead, drafter on a device of its own. 1.58 is what tensor parallelism \
               over 4 or 8 A100s made of Llama-3-70B (EasySpec, arXiv 2502.02493, table 1; measured by its \
               authors). The paper's figure counts target forwards that are not hidden, not the drafter's time.",
    })
}

/// Rounds that speculative decoding is expected to take for so many tokens, by the code of the paper's
/// appendix E: each round brings the accepted ones of `lookahead` drafts and one of the target's own, and
/// tokens beyond the last one are not cut off.
#[must_use]
pub fn expected_rounds(acceptance: f64, lookahead: usize, tokens: usize) -> f64 {
    let mut rounds = vec![0.0; tokens + 1];
    for left in 1..=tokens {
        let behind = |accepted: usize| rounds[left.saturating_sub(accepted + 1)];
        let stopped: f64 = (0..lookahead)
            .map(|accepted| {
                acceptance.powi(accepted as i32) * (1.0 - acceptance) * behind(accepted)
            })
            .sum();
        let all = acceptance.powi(lookahead as i32) * behind(lookahead);
        rounds[left] = 1.0 + stopped + all;
    }
    rounds[tokens]
}

pub(super) fn closed_form(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for pair in &DSI_PAIRS {
        let mut row = vec![pair.name.to_owned()];
        for lookahead in DSI_LOOKAHEADS {
            let simulation = pair.simulation(SimulatedMethod::Speculative, lookahead);
            let expected = expected_rounds(pair.acceptance, lookahead, simulation.max_tokens);
            let round_ms = lookahead as f64 * pair.draft_ms + pair.target_ms;
            let simulated_ms = mean_ns(&simulation, texts)? / 1e6;
            row.extend([format!("{:.0}", expected * round_ms), format!("{simulated_ms:.0}")]);
        }
        rows.push(row);
    }
    Ok(PublishedTable {
        title:
            "DSI (arXiv 2405.14105), appendix E: milliseconds of speculative decoding for 50 tokens"
                .into(),
        headings: headings(&[
            "pair",
            "lookahead 1, appendix E",
            "simulated",
            "5, appendix E",
            "simulated",
            "10, appendix E",
            "simulated",
        ]),
        rows,
        note: "Appendix E: the expectation of the paper's code, exactly, which always drafts `lookahead` \
               tokens; it calls its sum an upper bound. Simulated: the production decoder, which drafts no \
               further than the answer's end.",
    })
}

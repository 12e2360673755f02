//! SSD (Saguaro, arXiv 2603.03251), next to its authors' speeds.

use super::{
    PublishedTable, acceptance_at, fastest, headings, mean_ns, simulation, tokens_per_round,
};
use crate::{AcceptanceModel, Cost, SimError, SimulatedMethod, Simulation};

/// A run of the authors' engine for one user, greedily: four H100s for the target, and one more for
/// SSD's drafter (`tests/reference_test_outputs.md` in github.com/tanishqkumar/ssd, commit 2d8487c,
/// "Decode Throughput"). All runs have eight prompts (`--numseqs 8`) of 512 tokens at temperature
/// 0.
struct SsdPair {
    name: &'static str,
    draft_tokens: usize,
    /// Tokens per second of plain decoding, speculative decoding and SSD.
    plain: f64,
    speculative: f64,
    ssd: f64,
    /// The time of a round of SSD ("draft step"), in milliseconds.
    round_ms: f64,
}

const SSD_PAIRS: [SsdPair; 2] = [
    // Sections 1 and 3 ("B=1 (ns=8)"). The speed of speculative decoding is only in the file's
    // summary, as "~172": section 2, its run, gives none.
    SsdPair {
        name: "Llama 70B & 1B",
        draft_tokens: 6,
        plain: 54.0,
        speculative: 172.0,
        ssd: 238.0,
        round_ms: 23.30,
    },
    // Section 5.
    SsdPair {
        name: "Qwen 32B & 0.6B",
        draft_tokens: 4,
        plain: 89.0,
        speculative: 156.0,
        ssd: 195.0,
        round_ms: 17.93,
    },
];

impl SsdPair {
    /// Returns the times of passes and the acceptance rate. Tokens per round follow from SSD's
    /// speed and the time of its rounds, and the acceptance from them (Leviathan 2023, equation 1).
    /// A round of speculative decoding, which commits as many tokens, takes a pass of the target
    /// and one of the drafter for each draft token.
    fn fitted(&self) -> FittedPair {
        let per_round = self.ssd * self.round_ms / 1e3;
        let acceptance = acceptance_at(per_round, |rate| tokens_per_round(rate, self.draft_tokens));
        let target = 1.0 / self.plain;
        let draft = (per_round / self.speculative - target) / self.draft_tokens as f64;
        let [target_ns, draft_ns] = [target, draft].map(|seconds| (seconds * 1e9) as u64);
        FittedPair { target_ns, draft_ns, acceptance }
    }
}

/// The times of passes over any number of rows, and the acceptance rate.
struct FittedPair {
    target_ns: u64,
    draft_ns: u64,
    acceptance: f64,
}

impl FittedPair {
    fn simulation(&self, method: SimulatedMethod) -> Simulation {
        let [draft, target] = [self.draft_ns, self.target_ns].map(Cost::constant);
        simulation(method, draft, vec![target], AcceptanceModel::Iid(self.acceptance))
    }
}

/// The draft lengths of which PEARL uses the best.
const LENGTHS: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// Returns the share of rounds that begin with a prepared draft.
fn prepared(simulation: &Simulation, texts: u64) -> Result<f64, SimError> {
    let (mut prepared, mut drafts) = (0, 0);
    for seed in 0..texts {
        let statistics = Simulation { seed, ..simulation.clone() }.measure()?.statistics;
        prepared += statistics.prepared;
        drafts += statistics.drafts;
    }
    Ok(prepared as f64 / drafts as f64)
}

pub(super) fn published(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for published in &SSD_PAIRS {
        let pair = published.fitted();
        let of =
            |method| Simulation { draft_tokens: published.draft_tokens, ..pair.simulation(method) };
        let speed = |ns: f64, tokens: usize| tokens as f64 * 1e9 / ns;
        let speculative = of(SimulatedMethod::Speculative);
        let speculative_speed = speed(mean_ns(&speculative, texts)?, speculative.max_tokens);
        let pearl = of(SimulatedMethod::Pearl);
        let pearl_speed = speed(fastest(&pearl, &LENGTHS, texts)?.0, pearl.max_tokens);
        let ssd = of(SimulatedMethod::Ssd);
        let ssd_speed = speed(mean_ns(&ssd, texts)?, ssd.max_tokens);
        rows.push(vec![
            published.name.into(),
            published.draft_tokens.to_string(),
            format!("{:.3}", pair.acceptance),
            format!("{:.2}", pair.draft_ns as f64 / 1e6),
            format!("{:.0}", published.plain),
            format!("{speculative_speed:.0}"),
            format!("{:.0}", published.speculative),
            format!("{pearl_speed:.0}"),
            format!("{ssd_speed:.0}"),
            format!("{:.0} %", 100.0 * prepared(&ssd, texts)?),
            format!("{:.0}", published.ssd),
            format!("{:.2}", ssd_speed / speculative_speed),
            format!("{:.2}", published.ssd / published.speculative),
        ]);
    }
    Ok(PublishedTable {
        title: "SSD (arXiv 2603.03251), runs of its authors: tokens/s".into(),
        headings: headings(&[
            "pair",
            "draft tokens",
            "acceptance",
            "draft pass, ms",
            "plain decoding, published",
            "speculative decoding, simulated",
            "published",
            "PEARL at its best γ, simulated",
            "SSD, simulated",
            "rounds with a prepared draft, simulated",
            "SSD, published",
            "SSD, compared with speculative decoding, simulated",
            "published",
        ]),
        rows,
        note: "Simulated: acceptance and draft pass follow from the published speeds and times of rounds, so speculative \
               decoding is fitted, and SSD is predicted. A pass takes the same time for any number of rows, and there is \
               no overhead. forerun prepares eight drafts, the authors 21 (Llama) and 10 (Qwen). The target's token is not among the f best of a \
               wrong drafter with a probability of 1/f. Published: tests/reference_test_outputs.md \
               of github.com/tanishqkumar/ssd at commit 2d8487c, the runs of eight prompts for one user at temperature 0, on \
               four H100s, and one more for SSD's drafter. Llama's speed of speculative decoding is only in the \
               file's summary, as \"~172\", so its acceptance and draft pass are as inexact.",
    })
}

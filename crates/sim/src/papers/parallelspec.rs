//! Drafters of one pass (ParallelSpec, arXiv 2410.05589, table 1), and PEARL with drafters that
//! read features.

use super::{
    PublishedTable, acceptance_at, fastest, headings, mean_ns, simulation, tokens_per_round,
};
use crate::{AcceptanceModel, Cost, ForwardCost, SimError, SimulatedMethod, Simulation};

/// A published mean over Spec-Bench at temperature 0.
#[derive(Clone, Copy)]
struct Speed {
    /// The speed over plain decoding.
    speedup: f64,
    /// The tokens that a round commits.
    tokens: f64,
}

impl Speed {
    const fn new(speedup: f64, tokens: f64) -> Self {
        Self { speedup, tokens }
    }

    /// Returns the time of a round, in passes of the target over one row.
    fn round(self) -> f64 {
        self.tokens / self.speedup
    }

    /// Returns the acceptance rate at which chains of [`POSITIONS`] tokens commit as many tokens as
    /// the paper's trees.
    fn acceptance(self) -> f64 {
        acceptance_at(self.tokens, |rate| tokens_per_round(rate, POSITIONS))
    }
}

/// The number of positions of a draft: a token and four masks, or the depth of EAGLE's tree.
const POSITIONS: usize = 5;

/// A target of table 1 with its drafters.
struct SpecBenchTarget {
    name: &'static str,
    eagle: Speed,
    /// ParallelSpec in EAGLE's place, which reads features.
    on_features: Speed,
}

const SPEC_BENCH: [SpecBenchTarget; 4] = [
    SpecBenchTarget {
        name: "Vicuna 7B",
        eagle: Speed::new(2.18, 3.58),
        on_features: Speed::new(2.55, 3.52),
    },
    SpecBenchTarget {
        name: "Vicuna 13B",
        eagle: Speed::new(2.39, 3.64),
        on_features: Speed::new(2.64, 3.56),
    },
    SpecBenchTarget {
        name: "Llama 2 7B",
        eagle: Speed::new(2.40, 3.55),
        on_features: Speed::new(2.74, 3.49),
    },
    SpecBenchTarget {
        name: "Llama 2 13B",
        eagle: Speed::new(2.60, 3.66),
        on_features: Speed::new(2.84, 3.60),
    },
];

/// The time of a target pass over one row, in nanoseconds. Only ratios matter.
const TARGET_NS: f64 = 30e6;

impl SpecBenchTarget {
    /// Returns the time of a pass of the drafter, in passes of the target. EAGLE's rounds have as
    /// many of them as positions, ParallelSpec's have one, and the rest of a round is the same.
    fn draft_pass(&self) -> f64 {
        (self.eagle.round() - self.on_features.round()) / (POSITIONS - 1) as f64
    }

    /// Returns the cost of the target. A verification takes what ParallelSpec's round takes without
    /// its pass.
    fn target(&self) -> Cost {
        let verification = self.on_features.round() - self.draft_pass();
        let points = [(1, 1.0), (2, verification), (3, verification)];
        let points = points.map(|(rows, passes)| (rows, (passes * TARGET_NS) as u64)).to_vec();
        Cost { forward: ForwardCost::Rows { points }, layers: 32, ..Cost::constant(0) }
    }
}

/// A drafter that reads the target's features.
struct FeatureDrafter {
    target: String,
    name: &'static str,
    drafter: Cost,
    verifier: Cost,
    acceptance: AcceptanceModel,
    rate: f64,
    /// The largest number of tokens of a draft.
    positions: usize,
    /// The speed of speculative decoding with trees over plain decoding.
    published: Option<f64>,
}

impl FeatureDrafter {
    fn row(&self, texts: u64) -> Result<Vec<String>, SimError> {
        let of = |method| {
            let targets = vec![self.verifier.clone()];
            simulation(method, self.drafter.clone(), targets, self.acceptance.clone())
        };
        let lengths: Vec<usize> = (1..=self.positions).collect();
        let plain_ns = of(SimulatedMethod::Autoregressive).plain_ns()? as f64;
        let speculative_ns = fastest(&of(SimulatedMethod::Speculative), &lengths, texts)?.0;
        // PEARL drafts on after unverified tokens, so it may have more of them than a draft has.
        let pearl_lengths: Vec<usize> = (1..=2 * self.positions).collect();
        let pearl_ns = fastest(&of(SimulatedMethod::Pearl), &pearl_lengths, texts)?.0;
        let auto =
            Simulation { draft_tokens: 2 * self.positions, ..of(SimulatedMethod::PearlAuto) };
        let auto_ns = mean_ns(&auto, texts)?;
        let share = self.drafter.pass_ns(1, 1) as f64 / self.verifier.pass_ns(1, 1) as f64;
        let over_plain = |ns: f64| format!("{:.2}", plain_ns / ns);
        Ok(vec![
            self.target.clone(),
            self.name.to_owned(),
            format!("{share:.3}"),
            format!("{:.3}", self.rate),
            self.published.map_or(String::new(), |speed| format!("{speed:.2}")),
            over_plain(speculative_ns),
            over_plain(pearl_ns),
            over_plain(auto_ns),
            format!("{:.3}", speculative_ns / pearl_ns.min(auto_ns)),
        ])
    }
}

/// The drafters of table 1 that read features.
fn of_table_1() -> Vec<FeatureDrafter> {
    let mut drafters = Vec::new();
    for target in &SPEC_BENCH {
        let pass_ns = (target.draft_pass() * TARGET_NS) as u64;
        // EAGLE's chain may go on from predicted features.
        let eagle = AcceptanceModel::Iid(target.eagle.acceptance());
        let positions = vec![target.on_features.acceptance(); POSITIONS];
        let masks = AcceptanceModel::Masks { positions, reads_features: true };
        let of = [
            ("EAGLE", target.eagle, Cost::constant(pass_ns), eagle),
            ("ParallelSpec on features", target.on_features, Cost::one_pass(pass_ns), masks),
        ];
        for (name, speed, drafter, acceptance) in of {
            drafters.push(FeatureDrafter {
                target: target.name.to_owned(),
                name,
                drafter: Cost { reads_features: true, ..drafter },
                verifier: target.target(),
                acceptance,
                rate: speed.acceptance(),
                positions: POSITIONS,
                published: Some(speed.speedup),
            });
        }
    }
    drafters
}

/// Blocks of eight positions whose pass takes several shares of the target's.
fn of_blocks() -> impl Iterator<Item = FeatureDrafter> {
    const BLOCK: usize = 8;
    let shares = [0.1, 0.3, 0.6, 1.0].into_iter();
    shares.flat_map(|share| {
        [0.7, 0.85].map(|rate| {
            let drafter = Cost::one_pass((share * TARGET_NS) as u64);
            FeatureDrafter {
                target: "any".to_owned(),
                name: "a block of 8",
                drafter: Cost { reads_features: true, ..drafter },
                verifier: Cost { layers: 32, ..Cost::constant(TARGET_NS as u64) },
                acceptance: AcceptanceModel::Block(vec![rate; BLOCK]),
                rate,
                positions: BLOCK,
                published: None,
            }
        })
    })
}

/// PEARL with drafters that read features, compared with the same drafters under speculative
/// decoding.
pub(super) fn pearl_features(texts: u64) -> Result<PublishedTable, SimError> {
    let drafters = of_table_1().into_iter().chain(of_blocks());
    let rows = drafters.map(|drafter| drafter.row(texts)).collect::<Result<_, _>>()?;
    Ok(PublishedTable {
        title: "PEARL with drafters that read the target's features, compared with speculative decoding".into(),
        headings: headings(&[
            "target",
            "drafter",
            "draft pass, in target passes",
            "acceptance",
            "with trees, over plain decoding, published",
            "speculative decoding, simulated",
            "PEARL, simulated",
            "PEARL with automatic lengths, simulated",
            "PEARL, compared with speculative decoding",
        ]),
        rows,
        note: "Simulated, and in no paper. Published: ParallelSpec's table 1 (arXiv 2410.05589), Spec-Bench, temperature 0, one \
               A100. Two of its speeds give the time of a drafter's pass and the rest of a round, which is taken to be the \
               verification's: EAGLE has five passes in a round, ParallelSpec one. The acceptance rate is that at which a \
               chain of five tokens commits as many as the published tree, so a real chain has a lower one. It is the same \
               at every position, also where EAGLE and ParallelSpec draft after tokens whose features they lack, which \
               favours PEARL. A block of 8 (as of DFlash, JetSpec and DSpark) ends eight tokens after the last token whose \
               features have come; ParallelSpec's five positions come after the unverified tokens. A verification of two or \
               more rows takes the same time for any number, and so does a drafter's pass. Under PEARL the drafter has a \
               device of its own. Each method has its best draft length, PEARL up to twice the drafter's; the column of \
               automatic lengths has forerun's policy. Means of texts of 256 tokens.",
    })
}

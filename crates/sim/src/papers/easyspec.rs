//! Tables of the EasySpec paper (arXiv 2502.02493).
//!
//! Of the stage times, the paper reports the passes of drafter and target (table 1). The others are
//! fitted to the first data set of table 2 (MMLU, temperature 0): the verification time of each
//! method, and the share of attention in the drafter's pass, from EasySpec's drafting time. The
//! other nine data sets of each pair then follow from their acceptance alone.

use super::{
    PublishedTable, Times, acceptance_at, headings, mean_times, simulation, tokens_per_round,
};
use crate::{
    AcceptanceModel, Cancellation, Cost, ForwardCost, SimError, SimulatedMethod, Simulation,
};
use forerun_lm::LayerGroups;

/// The draft length in tokens.
const DEPTH: usize = 5;
/// Number of layers that EasySpec computes at a time.
const LAYER_PARALLEL: usize = 4;
/// Number of tokens in a simulated answer.
const TOKENS: usize = 1000;

/// A target and its drafter.
struct Family {
    name: &'static str,
    /// Number of layers of the drafter.
    layers: usize,
    /// Tokens per second of the drafter by tensor-parallel size 1, 2, 4, 8 (table 1); 0 if not
    /// published.
    drafter: [f64; 4],
    /// The same for the target.
    target: [f64; 4],
    /// Seconds for 100 tokens of plain decoding by data set, at temperature 0 and then 0.8; 0 if
    /// not published.
    plain: [f64; 10],
    /// The same with tensor parallelism.
    parallel: [f64; 10],
    /// Seconds of drafting, of verification and in total, and α, for each method and data set. The
    /// methods are speculative decoding, speculative decoding with trees, and EasySpec.
    methods: [[[f64; 4]; 10]; 3],
}

const DATA: [&str; 5] = ["MMLU", "HumanEval", "MATH", "IFEval", "MGSM"];

const FAMILIES: [Family; 2] = [
    Family {
        name: "Llama-3 70B, 8B",
        layers: 32,
        drafter: [36.76, 33.90, 32.31, 32.39],
        target: [8.39, 13.00, 13.23, 13.23],
        plain: [11.61, 11.79, 11.52, 11.29, 11.65, 11.62, 11.79, 11.56, 11.30, 11.67],
        parallel: [7.57, 7.58, 7.56, 7.55, 7.55, 7.59, 7.64, 7.54, 7.53, 7.55],
        methods: [
            [
                [3.52, 2.15, 5.67, 0.57],
                [2.93, 1.79, 4.72, 0.74],
                [2.96, 1.74, 4.70, 0.73],
                [3.68, 2.16, 5.84, 0.55],
                [2.66, 1.61, 4.27, 0.80],
                [3.09, 1.93, 5.02, 0.67],
                [2.94, 1.81, 4.75, 0.73],
                [2.81, 1.65, 4.46, 0.78],
                [3.08, 1.87, 4.94, 0.67],
                [2.54, 1.55, 4.10, 0.84],
            ],
            [
                [2.52, 1.59, 4.11, 0.88],
                [2.53, 1.58, 4.11, 0.92],
                [2.50, 1.47, 3.97, 0.95],
                [2.53, 1.55, 4.09, 0.89],
                [2.45, 1.48, 3.93, 0.96],
                [2.49, 1.54, 4.02, 0.94],
                [2.47, 1.49, 3.95, 0.96],
                [2.44, 1.45, 3.89, 0.97],
                [2.45, 1.46, 3.91, 0.97],
                [2.30, 1.44, 3.73, 0.98],
            ],
            [
                [1.70, 1.73, 3.44, 0.82],
                [1.61, 1.57, 3.24, 0.87],
                [1.58, 1.55, 3.13, 0.91],
                [1.68, 1.65, 3.33, 0.82],
                [1.55, 1.51, 3.06, 0.93],
                [1.59, 1.63, 3.22, 0.89],
                [1.53, 1.49, 3.02, 0.94],
                [1.52, 1.48, 3.00, 0.94],
                [1.52, 1.50, 3.03, 0.92],
                [1.52, 1.49, 3.01, 0.96],
            ],
        ],
    },
    Family {
        name: "Qwen2 72B, 7B",
        layers: 28,
        drafter: [37.16, 36.46, 37.12, 0.0],
        target: [8.49, 13.03, 13.01, 12.89],
        plain: [11.88, 11.98, 11.82, 11.59, 11.92, 0.0, 12.14, 11.86, 11.63, 12.02],
        parallel: [7.59, 7.64, 7.68, 7.64, 7.63, 7.66, 7.65, 7.63, 7.72, 7.65],
        methods: [
            [
                [3.32, 2.25, 5.57, 0.52],
                [2.82, 1.83, 4.65, 0.69],
                [2.48, 1.65, 4.13, 0.78],
                [4.24, 2.80, 7.04, 0.39],
                [2.62, 1.75, 4.37, 0.72],
                [2.90, 1.93, 4.82, 0.65],
                [2.54, 1.63, 4.17, 0.80],
                [2.44, 1.54, 3.98, 0.85],
                [3.24, 2.14, 5.38, 0.56],
                [2.68, 1.72, 4.41, 0.76],
            ],
            [
                [2.38, 1.62, 4.01, 0.85],
                [2.26, 1.51, 3.77, 0.95],
                [2.20, 1.45, 3.65, 0.96],
                [2.80, 1.84, 4.65, 0.72],
                [2.12, 1.50, 3.62, 0.94],
                [2.14, 1.48, 3.62, 0.95],
                [2.08, 1.45, 3.53, 0.97],
                [2.09, 1.40, 3.50, 0.99],
                [2.17, 1.51, 3.68, 0.91],
                [2.08, 1.45, 3.53, 0.97],
            ],
            [
                [1.65, 1.70, 3.35, 0.80],
                [1.48, 1.54, 3.02, 0.91],
                [1.44, 1.47, 2.91, 0.95],
                [1.87, 1.94, 3.81, 0.67],
                [1.54, 1.57, 3.11, 0.88],
                [1.49, 1.54, 3.03, 0.93],
                [1.45, 1.46, 2.91, 0.97],
                [1.43, 1.44, 2.87, 0.98],
                [1.53, 1.58, 3.11, 0.87],
                [1.46, 1.50, 2.96, 0.94],
            ],
        ],
    },
];

/// Index of speculative decoding in [`Family::methods`].
const SPECULATIVE: usize = 0;
/// Index of EasySpec in [`Family::methods`].
const EASYSPEC: usize = 2;

/// Returns the number of rounds for 100 tokens. α is the number of accepted tokens divided by the
/// depth.
fn rounds(alpha: f64) -> f64 {
    100.0 / (alpha * DEPTH as f64 + 1.0)
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

impl Family {
    /// Returns the seconds of a verification by a method, from the first data set.
    fn verification(&self, method: usize) -> f64 {
        let [_, verification, _, alpha] = self.methods[method][0];
        verification / rounds(alpha)
    }

    /// Returns the cost of the drafter's passes by a method.
    fn draft_cost(&self, method: usize) -> Cost {
        let pass = 1.0 / self.drafter[0];
        if method != EASYSPEC {
            return Cost::constant(ns(pass));
        }
        // A round has one exact pass, followed by layer-parallel ones, in which the attention of a
        // whole group takes the time of one layer.
        let [drafting, _, _, alpha] = self.methods[method][0];
        let parallel_pass = (drafting / rounds(alpha) - pass) / (DEPTH - 1) as f64;
        let groups: Vec<usize> = LayerGroups::parallel(self.layers, LAYER_PARALLEL)
            .iter()
            .map(|group| group.len())
            .collect();
        let attention = (pass - parallel_pass) / (self.layers - groups.len()) as f64;
        let mlp = pass / self.layers as f64 - attention;
        let forward = ForwardCost::Layers {
            attention_ns: ns(attention),
            mlp_ns: ns(mlp),
            communication_ns: 0,
            groups,
        };
        Cost { forward, ..Cost::constant(0) }
    }

    fn simulation(&self, alpha: f64, draft: Cost, verification: f64) -> Simulation {
        let per_round = alpha * DEPTH as f64 + 1.0;
        let acceptance = acceptance_at(per_round, |rate| tokens_per_round(rate, DEPTH));
        let (method, targets) =
            (SimulatedMethod::Speculative, vec![Cost::constant(ns(verification))]);
        Simulation {
            draft_tokens: DEPTH,
            max_tokens: TOKENS,
            cancellation: Cancellation::Immediate,
            ..simulation(method, draft, targets, AcceptanceModel::Iid(acceptance))
        }
    }

    /// Returns the mean times of 100 tokens with a method on a data set.
    fn times(&self, data: usize, method: usize, texts: u64) -> Result<Times, SimError> {
        let alpha = self.methods[method][data][3];
        let (draft, verification) = (self.draft_cost(method), self.verification(method));
        let times = mean_times(&self.simulation(alpha, draft, verification), texts)?;
        let share = 100.0 / TOKENS as f64;
        Ok(Times {
            total_ns: times.total_ns * share,
            drafters_ns: times.drafters_ns * share,
            targets_ns: times.targets_ns * share,
        })
    }
}

/// Formats simulated and published seconds and their relative difference.
fn compared(simulated: f64, published: f64) -> [String; 3] {
    let off = 100.0 * (simulated / published - 1.0);
    [format!("{simulated:.2}"), format!("{published:.2}"), format!("{off:+.1} %")]
}

pub(super) fn ladder(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for family in &FAMILIES {
        for data in 0..family.plain.len() {
            let temperature = if data < DATA.len() { "0" } else { "0.8" };
            let mut row = |method: &str, alpha: String, stages: [String; 4], total: [String; 3]| {
                let mut cells = vec![
                    family.name.to_owned(),
                    temperature.to_owned(),
                    DATA[data % DATA.len()].to_owned(),
                    method.to_owned(),
                    alpha,
                ];
                cells.extend(stages);
                cells.extend(total);
                rows.push(cells);
            };
            let no_stages = || [const { String::new() }; 4];
            if family.plain[data] > 0.0 {
                let total = compared(100.0 / family.target[0], family.plain[data]);
                row("plain", String::new(), no_stages(), total);
            }
            let total = compared(100.0 / family.target[3], family.parallel[data]);
            row("tensor-parallel", String::new(), no_stages(), total);
            let names = ["+ speculative", "+ tree", "EasySpec"];
            for (method, name) in names.into_iter().enumerate() {
                let times = family.times(data, method, texts)?;
                let [drafting, verification, total, alpha] = family.methods[method][data];
                let stages = [
                    format!("{:.2}", times.drafters_ns / 1e9),
                    format!("{drafting:.2}"),
                    format!("{:.2}", times.targets_ns / 1e9),
                    format!("{verification:.2}"),
                ];
                let total = compared(times.total_ns / 1e9, total);
                row(name, format!("{alpha:.2}"), stages, total);
            }
        }
    }
    Ok(PublishedTable {
        title: "EasySpec (arXiv 2502.02493), table 2: seconds for 100 tokens".into(),
        headings: headings(&[
            "pair",
            "temperature",
            "data",
            "method",
            "α",
            "drafting, simulated",
            "published",
            "verification, simulated",
            "published",
            "total, simulated",
            "published",
            "difference",
        ]),
        rows,
        note: "Simulated: pass times of drafter and target from the paper's table 1 (A100s; the drafter on one, \
               the target on eight). The verification time of each method and the share of attention in the \
               drafter's pass are fitted to the first data set (MMLU, temperature 0) of each pair. All else \
               follows from the published α (accepted tokens divided by the depth of 5), taken to be the same \
               at every position. So of 99 values 54 are predicted, 6 are those of the fitted data sets, and \
               39, plain and tensor-parallel, restate table 1. A tree is simulated as a chain with the tree's \
               acceptance. Published: measured on A100s.",
    })
}

/// Tensor-parallel sizes in table 1.
const SIZES: [usize; 4] = [1, 2, 4, 8];

pub(super) fn tensor_parallel(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for family in &FAMILIES {
        let [.., total, alpha] = family.methods[SPECULATIVE][0];
        // The ratio of a verification to a pass over one row, which is taken to be the same at
        // every size.
        let ratio = family.verification(SPECULATIVE) * family.target[3];
        for (size, speed) in SIZES.into_iter().zip(family.target) {
            let mut row = vec![family.name.to_owned(), size.to_string(), format!("{speed:.2}")];
            for draft_speed in family.drafter {
                if draft_speed == 0.0 {
                    row.push("none".into());
                    continue;
                }
                let draft = Cost::constant(ns(1.0 / draft_speed));
                let simulation = family.simulation(alpha, draft, ratio / speed);
                let times = mean_times(&simulation, texts)?;
                row.push(format!("{:.2}", TOKENS as f64 * 1e9 / times.total_ns));
            }
            let published = if size == 8 { format!("{:.2}", 100.0 / total) } else { String::new() };
            row.push(published);
            rows.push(row);
        }
    }
    Ok(PublishedTable {
        title: "EasySpec (arXiv 2502.02493), table 1: speculative decoding by the tensor-parallel sizes of \
                target and drafter, tokens/s on MMLU"
            .into(),
        headings: headings(&[
            "pair",
            "devices of the target",
            "tokens/s of the target alone, published",
            "drafter on 1 device, simulated",
            "drafter on 2, simulated",
            "drafter on 4, simulated",
            "drafter on 8, simulated",
            "drafter on 1, published",
        ]),
        rows,
        note: "Simulated: speeds of drafter and target by number of devices from table 1 (36.76, 33.90, 32.31 \
               and 32.39 tokens/s for Llama-3-8B; 37.16, 36.46 and 37.12 for Qwen2-7B). Acceptance and the cost \
               of further rows in a verification are those of table 2's MMLU at temperature 0. More devices do \
               not make the drafter faster.",
    })
}

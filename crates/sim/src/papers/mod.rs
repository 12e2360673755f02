//! Published tables, next to the results of the production decoders in virtual time.
//!
//! The only inputs are the papers' times and acceptance rates. Passes take the times that the
//! papers report or imply; sampling and messages take no time, and prompts only in DSI's table 2. So
//! a simulated value is what an ideal implementation would reach. A published value above it cannot
//! be explained by the method alone.

mod divisions;
mod dsi;
mod easyspec;
mod hosts;
mod machines;
mod parallelspec;
mod pearl;
mod pearl_tasks;
mod ssd;

pub use dsi::{DSI_LOOKAHEADS, DSI_PAIRS, DsiPair, RealTimeMeasurement, expected_rounds};

use crate::{
    AcceptanceModel, Calibration, Cancellation, Cost, SimError, SimulatedMethod, Simulation,
};

/// A table with simulated values next to published ones.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedTable {
    /// The content of the table and the paper it is from.
    pub title: String,
    /// The headings of the columns.
    pub headings: Vec<String>,
    /// The rows, with one cell for each heading.
    pub rows: Vec<Vec<String>>,
    /// How the simulated and the published values were obtained.
    pub note: &'static str,
}

/// A table or figure of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaperTable {
    /// PEARL (arXiv 2408.11850), table 1: speedup over autoregressive decoding on HumanEval.
    PearlSpeed,
    /// PEARL, figure 2b: the best draft length of each round of a recorded run.
    PearlBestLengths,
    /// PEARL, table 4: ablations without pre-verify and without post-verify.
    PearlAblations,
    /// PEARL, table 5: tokens per second by γ.
    PearlLength,
    /// PEARL, table 6: tokens per second by γ for several tasks.
    PearlTasks,
    /// PEARL, table 8: drafter and target on the same devices, MT-bench by category.
    PearlSharedCategories,
    /// PEARL, table 14: tokens per second of speculative decoding by γ.
    SpeculativeLength,
    /// PEARL, table 16: time of sending the drafter's cache from one device to another.
    PearlTransport,
    /// PEARL, table 17: drafter and target on the same devices, four benchmarks.
    PearlShared,
    /// PEARL, table 18: drafter and target on the same devices, MGSM by language.
    PearlSharedLanguages,
    /// DSI (arXiv 2405.14105), table 2: speedup over speculative decoding for ten pairs.
    DsiPairs,
    /// DSI, section 3.1: several target replicas compared with one faster target on the same
    /// devices.
    DsiAgainstTensorParallel,
    /// DSI, appendix E: the latency of speculative decoding by the paper's closed form.
    DsiClosedForm,
    /// EasySpec (arXiv 2502.02493), table 1: tensor parallelism of drafter and target.
    EasySpecTensorParallel,
    /// EasySpec, table 2: time for 100 tokens, from plain decoding to EasySpec.
    EasySpecLadder,
    /// SSD (arXiv 2603.03251) next to the speeds that its authors publish.
    Ssd,
    /// SSD with the times of the other papers, compared with speculative decoding and PEARL. It is
    /// in no paper.
    SsdPairs,
    /// PEARL with drafters that read the target's features, compared with speculative decoding. It
    /// is in no paper.
    PearlFeatures,
    /// A 70B target with an 8B drafter on 2 to 16 hosts. It is in no paper.
    Hosts,
    /// A target with a quarter-size drafter on 4 to 64 cores, from measured costs. It is in no
    /// paper.
    Cores,
    /// An 8B target with a 1.2B drafter on one to eight GPUs, from measured costs. It is in no
    /// paper.
    Gpus,
}

impl PaperTable {
    /// All tables with the names used by `forerun simulate paper`.
    pub const NAMES: [(Self, &str); 21] = [
        (Self::PearlSpeed, "pearl-1"),
        (Self::PearlBestLengths, "pearl-2b"),
        (Self::PearlAblations, "pearl-4"),
        (Self::PearlLength, "pearl-5"),
        (Self::PearlTasks, "pearl-6"),
        (Self::PearlSharedCategories, "pearl-8"),
        (Self::SpeculativeLength, "pearl-14"),
        (Self::PearlTransport, "pearl-16"),
        (Self::PearlShared, "pearl-17"),
        (Self::PearlSharedLanguages, "pearl-18"),
        (Self::DsiPairs, "dsi-2"),
        (Self::DsiAgainstTensorParallel, "dsi-3.1"),
        (Self::DsiClosedForm, "dsi-e"),
        (Self::EasySpecTensorParallel, "easyspec-1"),
        (Self::EasySpecLadder, "easyspec-2"),
        (Self::Ssd, "ssd"),
        (Self::SsdPairs, "ssd-pairs"),
        (Self::PearlFeatures, "pearl-features"),
        (Self::Hosts, "hosts"),
        (Self::Cores, "cores"),
        (Self::Gpus, "gpus"),
    ];

    /// Returns whether the table contains means over texts.
    #[must_use]
    pub fn has_means(self) -> bool {
        !matches!(self, Self::PearlBestLengths | Self::PearlTransport)
    }

    /// Simulates the table. Each value is a mean over `texts` texts. `recorded` is the calibration
    /// with the recorded run that [`PaperTable::PearlBestLengths`] needs.
    ///
    /// # Errors
    /// If `texts` is 0, or if `recorded` is missing for a table that needs it.
    pub fn simulate(
        self,
        texts: u64,
        recorded: Option<&Calibration>,
    ) -> Result<PublishedTable, SimError> {
        if texts == 0 {
            let option = "`texts`";
            return Err(SimError::Range { option, found: "0".into(), expected: "at least 1" });
        }
        match self {
            Self::PearlSpeed => pearl::speed(texts),
            Self::PearlBestLengths => {
                recorded.map(pearl_tasks::best_lengths).ok_or(SimError::Range {
                    option: "`calibration`",
                    found: "not set".into(),
                    expected: "a file with the recorded run that pearl-2b shows; forerun simulate calibrate \
                               writes one",
                })
            }
            Self::PearlAblations => pearl::ablations(texts),
            Self::PearlLength => pearl::length(texts),
            Self::PearlTasks => pearl_tasks::by_length(texts),
            Self::PearlSharedCategories => pearl_tasks::shared_categories(texts),
            Self::SpeculativeLength => pearl::speculative_length(texts),
            Self::PearlTransport => Ok(pearl_tasks::transport()),
            Self::PearlShared => pearl_tasks::shared(texts),
            Self::PearlSharedLanguages => pearl_tasks::shared_languages(texts),
            Self::DsiPairs => dsi::pairs(texts),
            Self::DsiAgainstTensorParallel => dsi::against_tensor_parallel(texts),
            Self::DsiClosedForm => dsi::closed_form(texts),
            Self::EasySpecTensorParallel => easyspec::tensor_parallel(texts),
            Self::EasySpecLadder => easyspec::ladder(texts),
            Self::Ssd => ssd::published(texts),
            Self::SsdPairs => ssd::pairs(texts),
            Self::PearlFeatures => parallelspec::pearl_features(texts),
            Self::Hosts => hosts::fastest(texts),
            Self::Cores => machines::cores(texts),
            Self::Gpus => machines::gpus(texts),
        }
    }
}

/// Two models by their published times and acceptance.
#[derive(Clone, Copy)]
struct Pair {
    name: &'static str,
    target_ns: u64,
    draft_ns: u64,
    acceptance: f64,
}

impl Pair {
    /// Returns the ratio c of the target's pass time to the drafter's.
    fn ratio(&self) -> f64 {
        self.target_ns as f64 / self.draft_ns as f64
    }

    /// Returns a simulation in which a pass takes the same time for any number of rows.
    fn simulation(&self, method: SimulatedMethod) -> Simulation {
        let [draft, target] = [self.draft_ns, self.target_ns].map(Cost::constant);
        simulation(method, draft, vec![target], AcceptanceModel::Iid(self.acceptance))
    }
}

/// Returns a simulation of 256 tokens without overhead.
fn simulation(
    method: SimulatedMethod,
    drafter: Cost,
    targets: Vec<Cost>,
    acceptance: AcceptanceModel,
) -> Simulation {
    Simulation {
        method,
        drafters: vec![drafter],
        targets,
        acceptance: vec![acceptance],
        draft_tokens: 0,
        max_tokens: 256,
        seed: 0,
        cancellation: Cancellation::Layer,
        faults: Vec::new(),
    }
}

/// Returns the shortest mean time of an answer with any of these draft lengths, in nanoseconds, and
/// the length.
fn fastest(
    simulation: &Simulation,
    lengths: &[usize],
    texts: u64,
) -> Result<(f64, usize), SimError> {
    let mut fastest = (f64::INFINITY, 0);
    for &draft_tokens in lengths {
        let ns = mean_ns(&Simulation { draft_tokens, ..simulation.clone() }, texts)?;
        if ns < fastest.0 {
            fastest = (ns, draft_tokens);
        }
    }
    Ok(fastest)
}

/// Returns the mean time of an answer over `texts` texts, in nanoseconds.
fn mean_ns(simulation: &Simulation, texts: u64) -> Result<f64, SimError> {
    Ok(mean_times(simulation, texts)?.total_ns)
}

/// Mean times of an answer in nanoseconds.
struct Times {
    total_ns: f64,
    /// Time in which drafters were busy.
    drafters_ns: f64,
    /// Time in which targets were busy.
    targets_ns: f64,
}

fn mean_times(simulation: &Simulation, texts: u64) -> Result<Times, SimError> {
    let (mut total, mut drafters, mut targets) = (0, 0, 0);
    for seed in 0..texts {
        let answer = Simulation { seed, ..simulation.clone() }.measure()?;
        total += answer.total_ns;
        drafters += answer.drafters.busy_ns;
        targets += answer.targets.busy_ns;
    }
    let [total_ns, drafters_ns, targets_ns] =
        [total, drafters, targets].map(|ns| ns as f64 / texts as f64);
    Ok(Times { total_ns, drafters_ns, targets_ns })
}

/// Returns the expected number of tokens that a round of speculative decoding commits (Leviathan
/// 2023, equation 1).
fn tokens_per_round(acceptance: f64, length: usize) -> f64 {
    (0..=length).map(|power| acceptance.powi(power as i32)).sum()
}

/// Returns the acceptance rate at which the increasing function `of` has this value, by bisection.
fn acceptance_at(value: f64, of: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if of(middle) < value { low = middle } else { high = middle }
    }
    low
}

fn headings(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

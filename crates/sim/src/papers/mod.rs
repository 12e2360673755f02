//! Published tables, and what the production decoders give for their numbers in virtual time.
//!
//! The papers' times and acceptance rates go in, and nothing else: passes cost what the papers say or
//! imply, and sampling, messages and prompts cost nothing. So a simulated value is what an ideal
//! implementation would reach, and a published one above it needs another explanation than the method.

mod dsi;
mod easyspec;
mod pearl;
mod pearl_tasks;

pub use dsi::{DSI_LOOKAHEADS, DSI_PAIRS, DsiPair, Waited, expected_rounds};

use crate::{Calibration, SimError, Simulation};

/// A table with simulated and published values side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedTable {
    /// What it is, and where it was published.
    pub title: String,
    /// Headings of the columns.
    pub headings: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<String>>,
    /// What has to be known to read it.
    pub note: &'static str,
}

/// A table of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaperTable {
    /// PEARL, arXiv 2408.11850, table 1: speed over autoregressive decoding on HumanEval.
    PearlSpeed,
    /// PEARL, figure 2b: the best draft length of each round of a recorded run.
    PearlBestLengths,
    /// PEARL, table 4: without pre-verify and without post-verify.
    PearlAblations,
    /// PEARL, table 5: tokens a second by γ.
    PearlLength,
    /// PEARL, table 6: tokens a second by γ for several tasks.
    PearlTasks,
    /// PEARL, table 8: drafter and target on the same devices, MT-bench by category.
    PearlSharedCategories,
    /// PEARL, table 14: tokens a second of speculative decoding by γ.
    SpeculativeLength,
    /// PEARL, table 16: sending the drafter's cache from one device to another.
    PearlTransport,
    /// PEARL, table 17: drafter and target on the same devices, four benchmarks.
    PearlShared,
    /// PEARL, table 18: drafter and target on the same devices, MGSM by language.
    PearlSharedLanguages,
    /// DSI, arXiv 2405.14105, table 2: DSI over speculative decoding for ten pairs.
    DsiPairs,
    /// DSI, section 3.1: several target replicas against one faster target on the same devices.
    DsiAgainstTensorParallel,
    /// DSI, appendix E: the latency of speculative decoding by the paper's own sum.
    DsiClosedForm,
    /// EasySpec, arXiv 2502.02493, table 1: tensor parallelism of drafter and target.
    EasySpecTensorParallel,
    /// EasySpec, table 2: time for 100 tokens, from plain decoding to EasySpec.
    EasySpecLadder,
}

impl PaperTable {
    /// All tables with their names.
    pub const NAMES: [(Self, &str); 15] = [
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
    ];

    /// Whether it holds means over texts.
    #[must_use]
    pub fn has_means(self) -> bool {
        !matches!(self, Self::PearlBestLengths | Self::PearlTransport)
    }

    /// Simulates the table, each value a mean over so many texts. `recorded` is the run that a table of a
    /// recorded run tells of.
    ///
    /// # Errors
    /// If there are no texts, or no run was recorded for a table that needs one.
    pub fn simulate(
        self,
        texts: u64,
        recorded: Option<&Calibration>,
    ) -> Result<PublishedTable, SimError> {
        if texts == 0 {
            let option = "the number of texts";
            return Err(SimError::Range { option, found: "0".into(), expected: "at least 1" });
        }
        match self {
            Self::PearlSpeed => pearl::speed(texts),
            Self::PearlBestLengths => {
                recorded.map(pearl_tasks::best_lengths).ok_or(SimError::Range {
                    option: "the recorded run of pearl-2b",
                    found: "left out".into(),
                    expected: "given by --calibration FILE, which forerun simulate calibrate writes",
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
        }
    }
}

/// The mean time of as many texts.
fn mean_ns(simulation: &Simulation, texts: u64) -> Result<f64, SimError> {
    Ok(mean_times(simulation, texts)?.total_ns)
}

/// Mean nanoseconds of as many texts.
struct Times {
    total_ns: f64,
    /// In which drafters were busy, and in which targets were.
    drafters_ns: f64,
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

/// Tokens that a round of speculative decoding commits: Leviathan 2023, equation 1.
fn tokens_per_round(acceptance: f64, length: usize) -> f64 {
    (0..=length).map(|power| acceptance.powi(power as i32)).sum()
}

/// The acceptance rate at which something that rises with it has a value.
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

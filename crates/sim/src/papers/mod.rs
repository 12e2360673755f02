//! Published tables, next to the results of the production decoders in virtual time.
//!
//! The only inputs are the papers' times and acceptance rates. Passes take the times that the
//! papers report or imply; sampling and messages take no time, and prompts only in DSI's table 2. So
//! a simulated value is what an ideal implementation would reach. A published value above it cannot
//! be explained by the method alone.

mod dsi;
mod easyspec;
mod paces;
mod pearl;
mod pearl_tasks;
mod ssd;

pub use dsi::{DSI_LOOKAHEADS, DSI_PAIRS, DsiPair, RealTimeMeasurement, expected_rounds};
pub use paces::published_paces;

use crate::{AcceptanceModel, Cancellation, Cost, SimError, SimulatedMethod, Simulation};
use easyspec::tensor_parallel;
use pearl::speculative_length;
use std::str::FromStr;

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
#[derive(Clone, Copy, Debug)]
pub struct PaperTable {
    /// The name that `forerun simulate paper` gives it.
    pub name: &'static str,
    /// What it shows, in a phrase.
    pub help: &'static str,
    table: fn(u64) -> Result<PublishedTable, SimError>,
}

impl PaperTable {
    /// All tables. Those of PEARL are from arXiv 2408.11850, of DSI from 2405.14105, of EasySpec
    /// from 2502.02493, and of SSD from 2603.03251.
    pub const ALL: [Self; 11] = [
        Self::new("pearl-1", "PEARL, table 1: speed", pearl::speed),
        Self::new("pearl-4", "PEARL, table 4: ablations", pearl::ablations),
        Self::new("pearl-5", "PEARL, table 5: speed by γ", pearl::length),
        Self::new("pearl-6", "PEARL, table 6: speed by γ and task", pearl_tasks::by_length),
        Self::new("pearl-14", "PEARL, table 14: speculative decoding by γ", speculative_length),
        Self::new("dsi-2", "DSI, table 2: speed for ten pairs", dsi::pairs),
        Self::new(
            "dsi-3.1",
            "DSI, section 3.1: several target replicas against one faster target",
            dsi::against_tensor_parallel,
        ),
        Self::new("dsi-e", "DSI, appendix E: latency of speculative decoding", dsi::closed_form),
        Self::new("easyspec-1", "EasySpec, table 1: tensor parallelism", tensor_parallel),
        Self::new(
            "easyspec-2",
            "EasySpec, table 2: from plain decoding to EasySpec",
            easyspec::ladder,
        ),
        Self::new("ssd", "SSD: speeds of its authors' runs", ssd::published),
    ];

    const fn new(
        name: &'static str,
        help: &'static str,
        table: fn(u64) -> Result<PublishedTable, SimError>,
    ) -> Self {
        Self { name, help, table }
    }

    /// Simulates the table. Each mean is over `texts` texts.
    ///
    /// # Errors
    /// If `texts` is 0.
    pub fn simulate(self, texts: u64) -> Result<PublishedTable, SimError> {
        if texts == 0 {
            let option = "`texts`";
            return Err(SimError::Range { option, found: "0".into(), expected: "at least 1" });
        }
        (self.table)(texts)
    }
}

impl FromStr for PaperTable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(|table| table.name).join(", ");
        let found = Self::ALL.into_iter().find(|table| table.name == text);
        found.ok_or_else(|| format!("{text:?} is not one of {}", names()))
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

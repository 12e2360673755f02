//! Compositions that no paper has, compared with what they replace.

use super::{PublishedTable, headings, mean_ns, simulation};
use crate::{AcceptanceModel, Cost, SimError, SimulatedMethod, Simulation};

/// The time of a target pass over one row, in nanoseconds.
const TARGET_NS: u64 = 30_000_000;
/// The probability that each token of a guess after the first is right, if those before it are.
const LOOKUP_RUN: f64 = 0.7;

/// A drafter that takes 1/c of the target's time.
#[derive(Clone, Copy)]
struct World {
    ratio: usize,
    acceptance: f64,
    /// The share of a pass that each further row takes.
    row: f64,
}

impl World {
    /// Returns all worlds with this cost of rows.
    fn all(row: f64) -> impl Iterator<Item = Self> {
        let ratios = [3, 5, 8].into_iter();
        ratios.flat_map(move |ratio| {
            [0.3, 0.6, 0.8, 0.9].map(|acceptance| Self { ratio, acceptance, row })
        })
    }

    /// Returns a simulation with γ = c.
    fn simulation(self, method: SimulatedMethod) -> Simulation {
        let drafter = Cost::constant(TARGET_NS / self.ratio as u64);
        let target = Cost::linear(TARGET_NS, (TARGET_NS as f64 * self.row) as u64);
        let acceptance = AcceptanceModel::Iid(self.acceptance);
        let simulation = simulation(method, drafter, vec![target], acceptance);
        Simulation { draft_tokens: self.ratio, ..simulation }
    }

    fn cells(self) -> Vec<String> {
        vec![
            self.ratio.to_string(),
            format!("{:.1}", self.acceptance),
            format!("{:.0} %", 100.0 * self.row),
        ]
    }
}

/// PEARL with guesses in passes without unverified tokens.
pub(super) fn guesses(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for world in World::all(0.0).chain(World::all(0.02)) {
        let bare = world.simulation(SimulatedMethod::Pearl);
        let (bare_ns, plain_ns) = (mean_ns(&bare, texts)?, bare.plain_ns()? as f64);
        let mut row = world.cells();
        row.push(format!("{:.2}", plain_ns / bare_ns));
        for hits in [0.0, 0.1, 0.3] {
            let simulation = Simulation {
                lookup: AcceptanceModel::ByPosition(vec![hits, LOOKUP_RUN]),
                ..world.simulation(SimulatedMethod::PearlLookup)
            };
            row.push(format!("{:.3}", bare_ns / mean_ns(&simulation, texts)?));
        }
        rows.push(row);
    }
    Ok(PublishedTable {
        title: "PEARL with guesses in passes without unverified tokens, compared with PEARL".into(),
        headings: headings(&[
            "c = γ",
            "acceptance",
            "a further row",
            "PEARL, over plain decoding",
            "with guesses, never right",
            "right 10 % of the time",
            "right 30 % of the time",
        ]),
        rows,
        note: "Simulated, and in no paper: there is always a guess of γ tokens. Its first token is right so often, and \
               each further one 70 % of the time, whether the drafter is right or not. The eager schedule and a fixed \
               draft length, without overhead. A further row takes so much of a pass over one row. The columns of \
               guesses have the speed compared with PEARL. Means of texts of 256 tokens.",
    })
}

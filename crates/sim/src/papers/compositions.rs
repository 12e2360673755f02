//! Compositions that no paper has, compared with what they replace.

use super::dsi::DSI_REPLICAS;
use super::{
    DSI_PAIRS, DsiPair, Pair, PublishedTable, fastest, headings, mean_ns, pearl, simulation,
};
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

/// PEARL with siblings of unverified tokens.
pub(super) fn siblings(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for world in World::all(0.0).chain(World::all(0.02)) {
        let bare = world.simulation(SimulatedMethod::Pearl);
        let (bare_ns, plain_ns) = (mean_ns(&bare, texts)?, bare.plain_ns()? as f64);
        let mut row = world.cells();
        row.push(format!("{:.2}", plain_ns / bare_ns));
        for method in [SimulatedMethod::PearlSibling, SimulatedMethod::PearlSiblings] {
            row.push(format!("{:.3}", bare_ns / mean_ns(&world.simulation(method), texts)?));
        }
        rows.push(row);
    }
    Ok(PublishedTable {
        title: "PEARL with siblings of unverified tokens, compared with PEARL".into(),
        headings: headings(&[
            "c = γ",
            "acceptance",
            "a further row",
            "PEARL, over plain decoding",
            "with one sibling",
            "with three siblings",
        ]),
        rows,
        note: "Simulated, and in no paper: the target's token is not among the first n tokens of a wrong drafter with a \
               probability of 1/n. The eager schedule and a fixed draft length, without overhead. A further row takes so \
               much of a pass over one row. The columns of siblings have the speed compared with PEARL. Means of texts \
               of 256 tokens.",
    })
}

/// The lookaheads of which DSI uses the best, with and without siblings.
const LOOKAHEADS: [usize; 8] = [1, 2, 3, 4, 5, 6, 8, 10];

/// Returns the speed of DSI over plain decoding, and that of DSI with one and with three siblings compared with DSI. Each has
/// its best lookahead. A further row takes the share `row` of a pass.
fn dsi_gains(pair: &Pair, replicas: usize, row: f64, texts: u64) -> Result<[f64; 3], SimError> {
    let row_ns = (pair.target_ns as f64 * row) as u64;
    let targets = vec![Cost::linear(pair.target_ns, row_ns); replicas];
    let run = |method| {
        let drafter = Cost::linear(pair.draft_ns, 0);
        simulation(method, drafter, targets.clone(), AcceptanceModel::Iid(pair.acceptance))
    };
    let best_ns = |method| fastest(&run(method), &LOOKAHEADS, texts).map(|(ns, _)| ns);
    let dsi_ns = best_ns(SimulatedMethod::Dsi)?;
    let one_ns = best_ns(SimulatedMethod::DsiSibling)?;
    let three_ns = best_ns(SimulatedMethod::DsiSiblings)?;
    let plain_ns = run(SimulatedMethod::Autoregressive).plain_ns()? as f64;
    Ok([plain_ns / dsi_ns, dsi_ns / one_ns, dsi_ns / three_ns])
}

/// DSI with siblings of its chain's tokens.
pub(super) fn dsi_siblings(texts: u64) -> Result<PublishedTable, SimError> {
    let of_dsi = DSI_PAIRS.iter().map(DsiPair::in_ns);
    let of_pearl = pearl::pairs().map(|(pair, _)| pair);
    let mut rows = Vec::new();
    for pair in of_dsi.chain(of_pearl) {
        let mut cells = vec![
            pair.name.to_owned(),
            format!("{:.1}", pair.ratio()),
            format!("{:.2}", pair.acceptance),
        ];
        for (replicas, row) in [(DSI_REPLICAS, 0.0), (2, 0.0), (DSI_REPLICAS, 0.02)] {
            let [over_plain, one, three] = dsi_gains(&pair, replicas, row, texts)?;
            cells.extend([format!("{over_plain:.2}"), format!("{one:.3}"), format!("{three:.3}")]);
        }
        rows.push(cells);
    }
    Ok(PublishedTable {
        title: "DSI with siblings of its chain's tokens, compared with DSI".into(),
        headings: headings(&[
            "pair",
            "c",
            "acceptance",
            "DSI with seven replicas, over plain decoding",
            "with one sibling",
            "with three siblings",
            "two replicas, over plain decoding",
            "with one sibling",
            "with three siblings",
            "seven replicas and rows of 2 %, over plain decoding",
            "with one sibling",
            "with three siblings",
        ]),
        rows,
        note: "Simulated, and in no paper. Pass times and acceptance of table 2 of DSI's paper and of tables 7, 10 and 14 of \
               PEARL's. The target's token is not among the first n tokens of a wrong drafter with a probability of 1/n. \
               Each column has its best lookahead of 1 to 10, without overhead. A further row is free, or takes 2 % of a \
               pass in the last three columns. The columns of siblings have the speed compared with DSI. Means of texts \
               of 256 tokens.",
    })
}

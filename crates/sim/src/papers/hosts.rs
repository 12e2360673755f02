//! A 70B target with an 8B drafter on several hosts: which method is the fastest.

use super::{PublishedTable, headings, mean_ns};
use crate::{
    AcceptanceModel, Cancellation, Cost, ForwardCost, SimError, SimulatedMethod, Simulation,
};

/// The bytes of Llama 3 70B and 8B in Q4_K_M.
const TARGET_BYTES: f64 = 42.5e9;
const DRAFTER_BYTES: f64 = 4.9e9;
/// The memory bandwidth of a host with twelve channels of DDR5-4800, at 85 % of its peak.
const HOST_BYTES_PER_SECOND: f64 = 392e9;
/// The share of a pass that each further row takes.
const ROW: f64 = 0.03;
const LAYERS: usize = 80;
/// The numbers that the ranks gather in a layer, for one row: attention, its output, the MLP's inside, and its output.
const GATHERED: [usize; 4] = [8192, 8192, 28_672, 8192];
/// What a gathering takes without the link, and half of what a job takes to a rank and back, both measured over shared memory
/// on one machine (LOG.md).
const GATHERING_NS: f64 = 5_000.0;
const MESSAGE_NS: u64 = 75_000;

/// A network between the hosts.
struct Link {
    name: &'static str,
    latency_ns: f64,
    bytes_per_second: f64,
}

const LINKS: [Link; 2] = [
    Link { name: "10 GbE, TCP", latency_ns: 30_000.0, bytes_per_second: 1.25e9 },
    Link { name: "400 Gbit/s InfiniBand", latency_ns: 2_000.0, bytes_per_second: 50e9 },
];

/// Returns the time of a target pass over `rows` rows on `hosts` hosts that compute each layer together.
fn pass_ns(hosts: usize, rows: usize, link: &Link) -> u64 {
    let reading = TARGET_BYTES / hosts as f64 / HOST_BYTES_PER_SECOND * 1e9;
    let computing = reading * (1.0 + ROW * (rows - 1) as f64);
    let others = (hosts - 1) as f64 / hosts as f64;
    let gathering = |&numbers: &usize| match hosts {
        1 => 0.0,
        _ => {
            let bytes = (4 * numbers * rows) as f64 * others;
            GATHERING_NS + link.latency_ns + bytes / link.bytes_per_second * 1e9
        }
    };
    (computing + LAYERS as f64 * GATHERED.iter().map(gathering).sum::<f64>()) as u64
}

fn target(hosts: usize, link: &Link) -> Cost {
    let points = [1, 16, 32].map(|rows| (rows, pass_ns(hosts, rows, link))).to_vec();
    Cost {
        layers: LAYERS,
        link_ns: MESSAGE_NS + link.latency_ns as u64,
        forward: ForwardCost::Rows { points },
        ..Cost::constant(0)
    }
}

fn simulation(
    method: SimulatedMethod,
    target: Cost,
    replicas: usize,
    acceptance: f64,
) -> Simulation {
    let drafting_ns = (DRAFTER_BYTES / HOST_BYTES_PER_SECOND * 1e9) as u64;
    Simulation {
        method,
        drafters: vec![Cost { link_ns: MESSAGE_NS, ..Cost::constant(drafting_ns) }],
        targets: vec![target; replicas],
        acceptance: vec![AcceptanceModel::Iid(acceptance)],
        lookup: AcceptanceModel::Iid(0.0),
        draft_tokens: 0,
        max_tokens: 256,
        seed: 0,
        cancellation: Cancellation::Layer,
        faults: Vec::new(),
    }
}

/// The fastest draft length: tokens per second, and the length.
fn best(simulation: &Simulation, texts: u64) -> Result<(f64, usize), SimError> {
    let mut best = (0.0, 0);
    for draft_tokens in [1, 2, 3, 4, 6, 8, 10] {
        let ns = mean_ns(&Simulation { draft_tokens, ..simulation.clone() }, texts)?;
        let speed = simulation.max_tokens as f64 * 1e9 / ns;
        if speed > best.0 {
            best = (speed, draft_tokens);
        }
    }
    Ok(best)
}

/// The fastest method on two to sixteen hosts.
pub(super) fn fastest(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for link in &LINKS {
        for (hosts, acceptance) in [2, 4, 8, 16].into_iter().flat_map(|n| [(n, 0.6), (n, 0.8)]) {
            let run = |method, hosts: usize, replicas| {
                best(&simulation(method, target(hosts, link), replicas, acceptance), texts)
            };
            let plain = 1e9 / pass_ns(hosts, 1, link) as f64;
            let (speculative, length) = run(SimulatedMethod::Speculative, hosts, 1)?;
            let mut cells = vec![
                link.name.into(),
                hosts.to_string(),
                format!("{acceptance:.1}"),
                format!("{plain:.1}"),
                format!("{speculative:.1} (γ = {length})"),
            ];
            let mut all = vec![("plain", plain), ("speculative", speculative)];
            let (pearl, length) = run(SimulatedMethod::Pearl, hosts - 1, 1)?;
            cells.push(format!("{pearl:.1} (γ = {length})"));
            all.push(("PEARL", pearl));
            let mut dsi = (0.0, 0, 0);
            for replicas in (2..hosts).take_while(|replicas| *replicas <= 8) {
                let each = (hosts - 1) / replicas;
                let (speed, _) = run(SimulatedMethod::Dsi, each, replicas)?;
                if speed > dsi.0 {
                    dsi = (speed, replicas, each);
                }
            }
            cells.push(match dsi {
                (speed, replicas, each) if replicas > 0 => {
                    format!("{speed:.1} ({replicas} × {each})")
                }
                _ => "-".into(),
            });
            all.push(("DSI", dsi.0));
            let fastest = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
            cells.push(fastest.map_or_else(String::new, |(name, _)| name.into()));
            rows.push(cells);
        }
    }
    Ok(PublishedTable {
        title: "Llama 3 70B with an 8B drafter, both Q4_K_M, on several hosts: tokens per second"
            .into(),
        headings: headings(&[
            "link",
            "hosts",
            "acceptance",
            "plain decoding",
            "speculative decoding",
            "PEARL",
            "DSI (replicas × hosts of each)",
            "fastest",
        ]),
        rows,
        note: "Simulated, and in no paper: hosts with 392 GB/s that read all weights once a pass, and a further row of a \
               target pass takes 3 % of it. The hosts of a target gather activations four times a layer: 5 µs as \
               measured over shared memory on one machine, and the published latency and bandwidth of the link. \
               Speculative decoding drafts on one of the hosts, which all verify; with PEARL and DSI one host drafts \
               and the others verify. Each method has its best draft length of 1 to 10, and DSI its best number of \
               replicas. Means of texts of 256 tokens.",
    })
}

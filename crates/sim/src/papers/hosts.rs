//! A 70B target with an 8B drafter on several hosts: which method is the fastest.

use super::{PublishedTable, headings, mean_ns};
use crate::{AcceptanceModel, Cost, ForwardCost, Gathers, SimError, SimulatedMethod, Simulation};

/// The memory bandwidth of a host with twelve channels of DDR5-4800, at 85 % of its peak.
const HOST_BYTES_PER_SECOND: f64 = 392e9;
/// The share of a pass that each further row takes.
const ROW: f64 = 0.03;
/// What a gathering takes without the link, and half of what a job takes to a rank and back, both measured over shared memory
/// on one machine (LOG.md).
const GATHERING_MS: f64 = 0.005;
const MESSAGE_NS: u64 = 75_000;

/// A model in Q4_K_M.
struct Model {
    bytes: f64,
    layers: usize,
    /// The numbers that the ranks gather in a layer, for one row: attention, its output, the MLP's inside, and its output.
    gathered: [usize; 4],
    hidden: usize,
}

/// The numbers of a row's logits, of both models.
const VOCABULARY: usize = 128_256;

/// Llama 3 70B and 8B.
const TARGET: Model =
    Model { bytes: 42.5e9, layers: 80, gathered: [8192, 8192, 28_672, 8192], hidden: 8192 };
const DRAFTER: Model =
    Model { bytes: 4.9e9, layers: 32, gathered: [4096, 4096, 14_336, 4096], hidden: 4096 };

/// A network between the hosts.
struct Link {
    name: &'static str,
    latency_ms: f64,
    gigabytes_per_second: f64,
}

const LINKS: [Link; 2] = [
    Link { name: "10 GbE, TCP", latency_ms: 0.03, gigabytes_per_second: 1.25 },
    Link { name: "400 Gbit/s InfiniBand", latency_ms: 0.002, gigabytes_per_second: 50.0 },
];

impl Model {
    /// Returns the cost of passes on `hosts` hosts that compute each layer together.
    fn cost(&self, hosts: usize, link: &Link) -> Cost {
        let reading_ns = self.bytes / hosts as f64 / HOST_BYTES_PER_SECOND * 1e9;
        let computing_ns = |rows: usize| reading_ns * (1.0 + ROW * (rows - 1) as f64);
        let points = [1, 16, 32].map(|rows| (rows, computing_ns(rows) as u64)).to_vec();
        let gathers = Gathers {
            ranks: hosts,
            numbers: self.gathered.to_vec(),
            hidden: self.hidden,
            vocabulary: VOCABULARY,
            gathering_ms: GATHERING_MS,
            latency_ms: link.latency_ms,
            gigabytes_per_second: link.gigabytes_per_second,
        };
        gathers.added_to(&Cost {
            layers: self.layers,
            link_ns: MESSAGE_NS + (link.latency_ms * 1e6) as u64,
            forward: ForwardCost::Rows { points },
            ..Cost::constant(0)
        })
    }
}

/// How many hosts have what.
#[derive(Clone, Copy)]
struct Hosts {
    drafter: usize,
    /// Those of each replica.
    target: usize,
    replicas: usize,
}

fn simulation(method: SimulatedMethod, hosts: Hosts, link: &Link, acceptance: f64) -> Simulation {
    let targets = vec![TARGET.cost(hosts.target, link); hosts.replicas];
    let drafter = DRAFTER.cost(hosts.drafter, link);
    super::simulation(method, drafter, targets, AcceptanceModel::Iid(acceptance))
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

/// The fastest division of the hosts: tokens per second, the draft length, and the division.
fn fastest_division(
    method: SimulatedMethod,
    divisions: impl Iterator<Item = Hosts>,
    (link, acceptance): (&Link, f64),
    texts: u64,
) -> Result<Option<(f64, usize, Hosts)>, SimError> {
    let mut fastest: Option<(f64, usize, Hosts)> = None;
    for hosts in divisions {
        let (speed, length) = best(&simulation(method, hosts, link, acceptance), texts)?;
        if fastest.is_none_or(|(known, ..)| speed > known) {
            fastest = Some((speed, length, hosts));
        }
    }
    Ok(fastest)
}

/// The fastest method on two to sixteen hosts.
pub(super) fn fastest(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for link in &LINKS {
        for (hosts, acceptance) in [2, 4, 8, 16].into_iter().flat_map(|n| [(n, 0.6), (n, 0.8)]) {
            let drafting = move |most: usize| [1, 2, 4, 8].into_iter().filter(move |n| *n <= most);
            // These take turns, so all hosts verify. A rank has one model, so hosts that also draft have two ranks.
            let in_turn =
                drafting(hosts).map(|drafter| Hosts { drafter, target: hosts, replicas: 1 });
            let apart = drafting(hosts - 1).map(|drafter| Hosts {
                drafter,
                target: hosts - drafter,
                replicas: 1,
            });
            let replicated = drafting(hosts - 1).flat_map(|drafter| {
                let left = hosts - drafter;
                (2..=left.min(8)).map(move |replicas| Hosts {
                    drafter,
                    target: left / replicas,
                    replicas,
                })
            });
            let run = |method, divisions: &mut dyn Iterator<Item = Hosts>| {
                fastest_division(method, divisions, (link, acceptance), texts)
            };
            let plain = 1e9 / TARGET.cost(hosts, link).forward.ns(1) as f64;
            let speculative = run(SimulatedMethod::Speculative, &mut in_turn.into_iter())?;
            let pearl = run(SimulatedMethod::Pearl, &mut apart.into_iter())?;
            let dsi = run(SimulatedMethod::Dsi, &mut replicated.into_iter())?;
            let methods = [("speculative", speculative), ("PEARL", pearl), ("DSI", dsi)];
            let speeds =
                methods.iter().filter_map(|(name, it)| it.map(|(speed, ..)| (*name, speed)));
            let fastest = speeds.chain([("plain", plain)]).max_by(|a, b| a.1.total_cmp(&b.1));
            let division = |(speed, length, hosts): (f64, usize, Hosts)| match hosts {
                Hosts { drafter, replicas: 1, .. } => {
                    format!("{speed:.1} (γ = {length}, {drafter})")
                }
                Hosts { drafter, target, replicas } => {
                    format!("{speed:.1} ({drafter}, {replicas} × {target})")
                }
            };
            let cells = methods.map(|(_, it)| it.map_or_else(|| "-".into(), division));
            let mut row = vec![
                link.name.into(),
                hosts.to_string(),
                format!("{acceptance:.1}"),
                format!("{plain:.1}"),
            ];
            row.extend(cells);
            row.push(fastest.map_or_else(String::new, |(name, _)| name.into()));
            rows.push(row);
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
            "speculative decoding (γ, drafting hosts)",
            "PEARL (γ, drafting hosts)",
            "DSI (drafting hosts, replicas × hosts of each)",
            "fastest",
        ]),
        rows,
        note: "Simulated, and in no paper: hosts with 392 GB/s that read all weights once a pass, and a further row of a \
               target pass takes 3 % of it. The hosts of a model gather activations four times a layer, and embeddings and \
               logits once a pass: 5 µs as measured over shared memory on one machine, and the published latency and \
               bandwidth of the link. With speculative decoding all hosts verify, and some of them draft before. Such a \
               host needs two ranks, which divide its cores, because a rank that computes a model with others has no other \
               model; half of the cores are assumed to reach the bandwidth. With PEARL and DSI the drafter's hosts do not \
               verify. Each method has its best draft length of 1 to 10 and its best number of drafting \
               hosts of 1, 2, 4 and 8, and DSI its best number of replicas. Means of texts of 256 tokens.",
    })
}

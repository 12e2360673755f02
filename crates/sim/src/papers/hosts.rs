//! A 70B target with an 8B drafter on several hosts: which method is the fastest.

use super::divisions::{Division, Divisions, fastest_cells};
use super::{PublishedTable, headings};
use crate::{
    AcceptanceModel, Cost, ForwardCost, GatherCosts, SimError, SimulatedMethod, Simulation,
};

/// The memory bandwidth of a host with twelve channels of DDR5-4800, at 85 % of its peak.
const HOST_BYTES_PER_SECOND: f64 = 392e9;
/// The share of a pass that each further row takes.
const ROW: f64 = 0.03;
/// What a gathering takes without the link, and half of what a job takes to a rank and back, both
/// measured over shared memory on one machine (docs/experiments/ranks.md).
const GATHERING_MS: f64 = 0.005;
const MESSAGE_NS: u64 = 75_000;

/// A model in Q4_K_M.
struct Model {
    bytes: f64,
    layers: usize,
    /// The numbers that the ranks gather in a layer, for one row: attention, its output, the MLP's
    /// inside, and its output.
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
        let gathers = GatherCosts {
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

fn simulation(
    method: SimulatedMethod,
    hosts: Division,
    link: &Link,
    acceptance: f64,
) -> Simulation {
    let targets = vec![TARGET.cost(hosts.target, link); hosts.replicas];
    let drafter = DRAFTER.cost(hosts.drafter, link);
    super::simulation(method, drafter, targets, AcceptanceModel::Iid(acceptance))
}

/// The fastest method on two to sixteen hosts.
pub(super) fn fastest(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for link in &LINKS {
        for (hosts, acceptance) in [2, 4, 8, 16].into_iter().flat_map(|n| [(n, 0.6), (n, 0.8)]) {
            // A rank has one model, so hosts that draft and verify in turn have two ranks.
            let divisions = Divisions::of(hosts, &[1, 2, 4, 8]);
            let plain = 1e9 / TARGET.cost(hosts, link).forward.ns(1) as f64;
            let mut row = vec![link.name.into(), hosts.to_string(), format!("{acceptance:.1}")];
            row.extend(fastest_cells(plain, &divisions, texts, &|method, hosts| {
                simulation(method, hosts, link, acceptance)
            })?);
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

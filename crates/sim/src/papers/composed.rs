//! Compositions of the papers, compared with each paper alone in its own setting.

use super::dsi::DSI_REPLICAS;
use super::parallelspec::{
    POSITIONS, SPEC_BENCH, SpecBenchTarget, TARGET_NS, VICUNA_7B, VICUNA_13B,
};
use super::{
    DSI_PAIRS, DsiPair, Pair, PublishedTable, easyspec, fastest, headings, mean_ns, pearl,
    simulation,
};
use crate::{AcceptanceModel, Cost, SimError, SimulatedMethod, Simulation};

/// The draft lengths and lookaheads of which each method uses the best.
const LENGTHS: [usize; 5] = [1, 2, 3, 5, 8];
/// The largest number of DSI's replicas where the paper does not give the devices.
const REPLICAS: usize = 4;

/// A drafter of another paper.
#[derive(Clone)]
struct Drafter {
    name: &'static str,
    cost: Cost,
    acceptance: f64,
    /// Whether it drafts a block from the target's features.
    reads_features: bool,
    /// The largest number of tokens of a draft.
    positions: usize,
}

/// A paper's own setting, and the composition that is compared with the paper.
#[derive(Clone)]
struct Setting {
    paper: &'static str,
    pair: String,
    /// The published speed of the paper over plain decoding.
    published: Option<f64>,
    /// The simulated speed of the paper alone over plain decoding.
    alone: f64,
    /// The time of a pass of plain decoding.
    plain_ns: f64,
    drafter: Drafter,
    /// The target of the methods with one.
    target: Cost,
    /// The replicas of DSI, all sizes to try.
    replicas: Vec<Vec<Cost>>,
    /// A drafter that drafts first under DSI.
    first_drafter: Option<Drafter>,
}

/// The methods of the columns. DSI comes last.
const METHODS: [SimulatedMethod; 4] = [
    SimulatedMethod::Pearl,
    SimulatedMethod::PearlSiblings,
    SimulatedMethod::Ssd,
    SimulatedMethod::Dsi,
];

impl Drafter {
    fn model(&self, acceptance: f64) -> AcceptanceModel {
        match self.reads_features {
            true => AcceptanceModel::Block(vec![acceptance; self.positions]),
            false => AcceptanceModel::Iid(acceptance),
        }
    }

    fn lengths(&self) -> Vec<usize> {
        LENGTHS.into_iter().filter(|&length| length <= self.positions).collect()
    }
}

impl Setting {
    /// Returns the setting with the speed of the paper alone: a method with this drafter.
    fn compared_with(self, method: SimulatedMethod, texts: u64) -> Result<Self, SimError> {
        let alone = self.fastest(method, texts)?.map_or(0.0, |(speed, _)| speed);
        Ok(Self { alone, ..self })
    }

    /// Returns the fastest simulation of a method with this acceptance of the drafter, and its speed over plain decoding.
    /// `None` if the method cannot have the drafter.
    fn fastest(
        &self,
        method: SimulatedMethod,
        texts: u64,
    ) -> Result<Option<(f64, Simulation)>, SimError> {
        let needs_tokens = matches!(method, SimulatedMethod::Ssd | SimulatedMethod::Dsi);
        if needs_tokens && self.drafter.reads_features {
            return Ok(None);
        }
        let one = [vec![self.target.clone()]];
        let all_targets = if method == SimulatedMethod::Dsi { &self.replicas[..] } else { &one };
        let mut fastest_run: Option<(f64, Simulation)> = None;
        for targets in all_targets {
            let run = self.run(method, targets.clone());
            let (ns, draft_tokens) = fastest(&run, &self.drafter.lengths(), texts)?;
            let speed = self.speed(&run, ns);
            if fastest_run.as_ref().is_none_or(|(known, _)| speed > *known) {
                fastest_run = Some((speed, Simulation { draft_tokens, ..run }));
            }
        }
        Ok(fastest_run)
    }

    fn run(&self, method: SimulatedMethod, targets: Vec<Cost>) -> Simulation {
        let Drafter { cost, acceptance, .. } = &self.drafter;
        let own = self.drafter.model(*acceptance);
        let run = simulation(method, cost.clone(), targets, own.clone());
        match (&self.first_drafter, method) {
            (Some(first), SimulatedMethod::Dsi) => Simulation {
                drafters: vec![first.cost.clone(), cost.clone()],
                acceptance: vec![first.model(first.acceptance), own],
                ..run
            },
            _ => run,
        }
    }

    /// Returns the speed of a run of `ns` nanoseconds over plain decoding.
    fn speed(&self, run: &Simulation, ns: f64) -> f64 {
        run.max_tokens as f64 * self.plain_ns / ns
    }

    /// Returns the lowest acceptance rate of the drafter, in hundredths, with which a run is as fast as the paper alone;
    /// `None` if there is none.
    fn enough_acceptance(&self, run: &Simulation, texts: u64) -> Result<Option<f64>, SimError> {
        let is_enough = |percent: u32| {
            let model = self.drafter.model(f64::from(percent) / 100.0);
            let mut acceptance = run.acceptance.clone();
            acceptance.pop();
            acceptance.push(model);
            let ns = mean_ns(&Simulation { acceptance, ..run.clone() }, texts)?;
            Ok::<bool, SimError>(self.speed(run, ns) >= self.alone)
        };
        if !is_enough(99)? {
            return Ok(None);
        }
        let (mut low, mut high) = (0, 99);
        while low < high {
            let middle = u32::midpoint(low, high);
            if is_enough(middle)? { high = middle } else { low = middle + 1 }
        }
        Ok(Some(f64::from(high) / 100.0))
    }

    fn row(&self, texts: u64) -> Result<Vec<String>, SimError> {
        let mut row = vec![
            self.paper.to_owned(),
            self.pair.clone(),
            self.published.map_or(String::new(), |speed| format!("{speed:.2}")),
            format!("{:.2}", self.alone),
            self.drafter.name.to_owned(),
        ];
        let mut best: Option<(f64, Simulation)> = None;
        for method in METHODS {
            let Some((speed, run)) = self.fastest(method, texts)? else {
                row.push("not possible".into());
                continue;
            };
            row.push(format!("{speed:.2}"));
            if best.as_ref().is_none_or(|(known, _)| speed > *known) {
                best = Some((speed, run));
            }
        }
        let Some((speed, run)) = best else { return Ok(row) };
        let enough = self.enough_acceptance(&run, texts)?;
        let drafters = run.drafters.len();
        let name = match (run.method, drafters) {
            (SimulatedMethod::Dsi, 1) => format!("DSI with {} replicas", run.targets.len()),
            (SimulatedMethod::Dsi, _) => {
                format!("DSI with {} replicas, ParallelSpec first", run.targets.len())
            }
            (SimulatedMethod::PearlSiblings, _) => "PEARL with siblings".into(),
            (SimulatedMethod::Ssd, _) => "SSD".into(),
            _ => "PEARL".into(),
        };
        row.extend([
            name,
            format!("{:.2}", speed / self.alone),
            format!("{:.2}", self.drafter.acceptance),
            enough.map_or("none is enough".into(), |rate| format!("{rate:.2}")),
        ]);
        Ok(row)
    }
}

/// EasySpec's two families, on its eight devices.
fn of_easyspec(texts: u64) -> Result<Vec<Setting>, SimError> {
    let mut settings = Vec::new();
    for family in &easyspec::FAMILIES {
        // MMLU and HumanEval.
        for data in 0..2 {
            let plain = family.target_cost(8);
            let plain_ns = plain.pass_ns(1, 1) as f64;
            let (published, ns) = family.easyspec(data, texts)?;
            let [_, acceptance] = family.chain_acceptances(data);
            let [_, cost] = family.draft_costs();
            let drafter = Drafter {
                name: "EasySpec on four devices",
                cost,
                acceptance,
                reads_features: false,
                positions: usize::MAX,
            };
            let setting = Setting {
                paper: "EasySpec",
                pair: format!("{}, {}", family.name, easyspec::DATA[data]),
                published: Some(published),
                alone: 100.0 * plain_ns / ns,
                plain_ns,
                drafter,
                target: family.target_cost(4),
                replicas: vec![vec![family.target_cost(2); 2]],
                first_drafter: None,
            };
            settings.push(setting.clone());
            settings.push(Setting {
                pair: format!("{}, and a ninth device", setting.pair),
                first_drafter: on_tokens(&VICUNA_13B, plain_ns),
                ..setting
            });
        }
    }
    Ok(settings)
}

/// Returns ParallelSpec's drafter on tokens beside a target whose pass takes `target_ns` nanoseconds.
fn on_tokens(target: &SpecBenchTarget, target_ns: f64) -> Option<Drafter> {
    Some(Drafter {
        name: "ParallelSpec on tokens",
        cost: target.drafter(target_ns),
        acceptance: target.on_tokens?.acceptance(),
        reads_features: false,
        positions: POSITIONS,
    })
}

/// ParallelSpec's drafters with their targets.
fn of_parallelspec(texts: u64) -> Result<Vec<Setting>, SimError> {
    let mut settings = Vec::new();
    for target in &SPEC_BENCH {
        let features = Drafter {
            name: "ParallelSpec on features",
            cost: target.drafter(TARGET_NS),
            acceptance: target.on_features.acceptance(),
            reads_features: true,
            positions: POSITIONS,
        };
        let of_tokens = target.on_tokens.zip(on_tokens(target, TARGET_NS));
        for (speed, drafter) in [(target.on_features, features)].into_iter().chain(of_tokens) {
            let cost = target.target(speed, TARGET_NS);
            let alone = Setting {
                paper: "ParallelSpec",
                pair: format!("{}, Spec-Bench", target.name),
                published: Some(speed.speedup),
                alone: 0.0,
                plain_ns: TARGET_NS,
                drafter,
                replicas: replicas(&cost, &[2, 3, REPLICAS]),
                target: cost,
                first_drafter: None,
            };
            settings.push(alone.compared_with(SimulatedMethod::Speculative, texts)?);
        }
    }
    Ok(settings)
}

/// Returns several numbers of replicas.
fn replicas(target: &Cost, counts: &[usize]) -> Vec<Vec<Cost>> {
    counts.iter().map(|&count| vec![target.clone(); count]).collect()
}

/// PEARL's or DSI's pair with a method and its own drafter, as the paper alone.
fn alone(
    (paper, method): (&'static str, SimulatedMethod),
    pair: &Pair,
    published: Option<f64>,
    texts: u64,
) -> Result<Setting, SimError> {
    let target = Cost { layers: 32, ..Cost::constant(pair.target_ns) };
    let counts: &[usize] = match method {
        SimulatedMethod::Dsi => &[3, 5, DSI_REPLICAS],
        _ => &[2, 3, REPLICAS],
    };
    let setting = Setting {
        paper,
        pair: pair.name.to_owned(),
        published,
        alone: 0.0,
        plain_ns: pair.target_ns as f64,
        drafter: Drafter {
            name: "its own",
            cost: Cost::constant(pair.draft_ns),
            acceptance: pair.acceptance,
            reads_features: false,
            positions: usize::MAX,
        },
        replicas: replicas(&target, counts),
        target,
        first_drafter: None,
    };
    setting.compared_with(method, texts)
}

/// Returns a drafter that EasySpec accelerates as it does Llama 3 8B.
fn layer_parallel(pair: &Pair) -> Drafter {
    let family = &easyspec::FAMILIES[0];
    Drafter {
        name: "its own with EasySpec on four devices",
        cost: family.layer_parallel(pair.draft_ns),
        acceptance: pair.acceptance * family.acceptance_factor(),
        reads_features: false,
        positions: usize::MAX,
    }
}

/// The pairs of PEARL and DSI for whose target or drafter another paper has a drafter.
fn of_pairs(texts: u64) -> Result<Vec<Setting>, SimError> {
    let mut settings = Vec::new();
    for (pair, published) in pearl::pairs() {
        let alone = alone(("PEARL", SimulatedMethod::Pearl), &pair, Some(published), texts)?;
        settings.push(Setting { drafter: layer_parallel(&pair), ..alone });
    }
    for pair in DSI_PAIRS.iter().map(DsiPair::in_ns) {
        let drafter = match pair.name {
            name if name.starts_with(VICUNA_7B.name) => {
                on_tokens(&VICUNA_7B, pair.target_ns as f64)
            }
            name if name.starts_with(VICUNA_13B.name) => {
                on_tokens(&VICUNA_13B, pair.target_ns as f64)
            }
            name if name.starts_with("Phi3") => Some(layer_parallel(&pair)),
            _ => None,
        };
        if let Some(drafter) = drafter {
            let alone = alone(("DSI", SimulatedMethod::Dsi), &pair, None, texts)?;
            settings.push(Setting { drafter, ..alone });
        }
    }
    Ok(settings)
}

/// Each paper alone in its own setting, and its composition with another paper's drafter or method.
pub(super) fn composed(texts: u64) -> Result<PublishedTable, SimError> {
    let settings = [of_easyspec(texts)?, of_parallelspec(texts)?, of_pairs(texts)?].concat();
    let rows = settings.iter().map(|setting| setting.row(texts)).collect::<Result<_, _>>()?;
    Ok(PublishedTable {
        title:
            "Compositions of the papers, compared with each paper alone: speed over plain decoding"
                .into(),
        headings: headings(&[
            "paper",
            "setting",
            "the paper alone, published",
            "the paper alone, simulated",
            "drafter of the composition",
            "PEARL",
            "PEARL with three siblings",
            "SSD",
            "DSI",
            "the best composition",
            "compared with the paper alone",
            "acceptance of the drafter",
            "acceptance from which it is as fast as the paper alone",
        ]),
        rows,
        note: "Simulated, and in no paper; the production decoders in virtual time, without overhead. A published speed of \
               EasySpec is over the target on eight devices. EasySpec's setting: Llama 3 70B & 8B and Qwen2 72B & 7B on \
               eight A100s, with the times of its tables 1 and 2; the compositions have the drafter on four devices, and the \
               target on the other four (DSI: two replicas on two devices each), on which the published speeds are \
               13.23 (13.01 for Qwen2) and 13.00 (13.03) tokens/s. ParallelSpec's: its table 1, from which pass times \
               follow as in `pearl-features`; PEARL and SSD have a device more for the drafter, DSI also up to four targets. \
               PEARL's: its tables 7, 10 and 14. DSI's: its table 2, with up to seven replicas. Acceptance: chains of \
               the papers' own drafters as published. ParallelSpec's as if chains committed as many tokens as its trees. \
               Layer parallelism lowers chains by as much as EasySpec's trees; other drafters of PEARL and DSI are \
               accelerated as Llama 3 8B is, and Vicuna's drafters have Spec-Bench's acceptance. \"A ninth device\": \
               under DSI, ParallelSpec's drafter drafts beside EasySpec's, with Vicuna 13B's acceptance and share of a pass, and \
               independent errors. Each method has its best draft length of 1, 2, 3, 5 and 8. Means of texts of 256 tokens.",
    })
}

//! Compositions of the papers, compared with each paper alone in its own setting.

use super::dsi::DSI_REPLICAS;
use super::parallelspec::{
    POSITIONS, SPEC_BENCH, SpecBenchTarget, TARGET_NS, VICUNA_7B, VICUNA_13B,
};
use super::{DSI_PAIRS, DsiPair, Pair, PublishedTable, easyspec, headings, pearl, simulation};
use crate::{AcceptanceModel, Cost, SimError, SimulatedMethod, Simulation};
use forerun_core::{Key, KeyedRandomness, Purpose};

/// The draft lengths and lookaheads of which each method uses the best.
const LENGTHS: [usize; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12];
/// The longest drafts that PEARL's automatic lengths may choose; the best of them counts, too.
const LONGEST: [usize; 2] = [10, 16];
/// The largest number of DSI's replicas where the paper does not give the devices.
const REPLICAS: usize = 4;

/// A drafter of another paper.
#[derive(Clone)]
struct Drafter {
    name: &'static str,
    cost: Cost,
    acceptance: f64,
    /// Whether it reads the target's features.
    reads_features: bool,
    /// The largest number of tokens of a draft, if it has one.
    positions: Option<usize>,
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
    /// The draft length or lookahead at which the paper alone is fastest.
    alone_length: usize,
    /// The time of a pass of plain decoding.
    plain_ns: f64,
    drafter: Drafter,
    /// The target of the methods with one.
    target: Cost,
    /// The replicas of DSI, all sizes to try.
    replicas: Vec<Vec<Cost>>,
    /// A second drafter under DSI. It errs where the first one does, as far as their acceptance
    /// allows.
    second: Option<Drafter>,
}

/// The methods of the columns, of which each column has the fastest.
const METHODS: [&[SimulatedMethod]; 3] = [
    &[SimulatedMethod::Pearl, SimulatedMethod::PearlAuto],
    &[SimulatedMethod::Ssd],
    &[SimulatedMethod::Dsi],
];

impl Drafter {
    fn model(&self, acceptance: f64) -> AcceptanceModel {
        let Self { reads_features, positions, .. } = *self;
        match positions {
            Some(count) => {
                AcceptanceModel::Masks { positions: vec![acceptance; count], reads_features }
            }
            None => AcceptanceModel::Iid(acceptance),
        }
    }

    /// Returns the draft lengths to try with a method.
    fn lengths(&self, method: SimulatedMethod) -> Vec<usize> {
        let longest = self.positions.unwrap_or(usize::MAX);
        match method {
            SimulatedMethod::PearlAuto => LONGEST.to_vec(),
            // PEARL drafts on after unverified tokens, so it may have more of them than a draft
            // has.
            SimulatedMethod::Pearl => LENGTHS.to_vec(),
            _ => LENGTHS.into_iter().filter(|&length| length <= longest).collect(),
        }
    }
}

impl Setting {
    /// Returns the setting with the speed of the paper alone: a method with this drafter.
    fn compared_with(self, method: SimulatedMethod, texts: u64) -> Result<Self, SimError> {
        let fastest = self.fastest(method, texts)?;
        let (alone, alone_length) =
            fastest.map_or((0.0, 0), |(speed, run)| (speed, run.draft_tokens));
        Ok(Self { alone, alone_length, ..self })
    }

    /// Returns the fastest simulation of a method, and its speed over plain decoding. `None` if the
    /// method cannot have the drafter.
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
        let lengths = self.drafter.lengths(method);
        let mut fastest: Option<(f64, Simulation)> = None;
        for (targets, &draft_tokens) in all_targets
            .iter()
            .flat_map(|targets| lengths.iter().map(move |length| (targets, length)))
        {
            let run = Simulation { draft_tokens, ..self.run(method, targets.clone()) };
            let speed = self.speed(&run, self.drafter.acceptance, texts)?;
            if fastest.as_ref().is_none_or(|(known, _)| speed > *known) {
                fastest = Some((speed, run));
            }
        }
        Ok(fastest)
    }

    fn run(&self, method: SimulatedMethod, targets: Vec<Cost>) -> Simulation {
        let own = self.drafter.model(self.drafter.acceptance);
        let run = simulation(method, self.drafter.cost.clone(), targets, own);
        let second = self.second.iter().filter(|_| method == SimulatedMethod::Dsi);
        let costs = run.drafters.iter().cloned().chain(second.map(|second| second.cost.clone()));
        Simulation { drafters: costs.collect(), ..run }
    }

    /// Returns the speed of a run over plain decoding if the drafter has this acceptance.
    fn speed(&self, run: &Simulation, acceptance: f64, texts: u64) -> Result<f64, SimError> {
        let mut total_ns = 0;
        for seed in 0..texts {
            let acceptance = match &self.second {
                Some(second) if run.drafters.len() > 1 => {
                    same_errors(&[acceptance, second.acceptance], seed, run.max_tokens)
                }
                _ => vec![self.drafter.model(acceptance)],
            };
            total_ns += Simulation { seed, acceptance, ..run.clone() }.measure()?.total_ns;
        }
        Ok((texts * run.max_tokens as u64) as f64 * self.plain_ns / total_ns as f64)
    }

    /// Returns the acceptance rate of the drafter, in hundredths, from which a run is as fast as
    /// the paper alone; `None` if there is none up to 0.99. Draft length and replicas stay those of
    /// the run, though others may be better at that rate.
    fn enough_acceptance(&self, run: &Simulation, texts: u64) -> Result<Option<f64>, SimError> {
        let is_enough = |percent: u32| {
            let speed = self.speed(run, f64::from(percent) / 100.0, texts);
            speed.map(|speed| speed >= self.alone)
        };
        let own = (100.0 * self.drafter.acceptance) as u32;
        if !is_enough(own)? {
            // More acceptance need not be faster under PEARL, whose drafts it changes.
            for percent in own + 1..100 {
                if is_enough(percent)? {
                    return Ok(Some(f64::from(percent) / 100.0));
                }
            }
            return Ok(None);
        }
        let (mut low, mut high) = (0, own);
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
            self.alone_length.to_string(),
            self.drafter.name.to_owned(),
        ];
        let mut best: Option<(f64, Simulation)> = None;
        for methods in METHODS {
            if self.second.is_some() && !methods.contains(&SimulatedMethod::Dsi) {
                row.push("one drafter only".into());
                continue;
            }
            let mut best_of_column: Option<(f64, Simulation)> = None;
            for &method in methods {
                let Some((speed, run)) = self.fastest(method, texts)? else { continue };
                if best_of_column.as_ref().is_none_or(|(known, _)| speed > *known) {
                    best_of_column = Some((speed, run));
                }
            }
            let Some((speed, run)) = best_of_column else {
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
        let replicas = run.targets.len();
        let name = match run.method {
            SimulatedMethod::Dsi if run.drafters.len() > 1 => {
                format!("DSI with {replicas} replicas and both drafters")
            }
            SimulatedMethod::Dsi => format!("DSI with {replicas} replicas"),
            SimulatedMethod::Ssd => "SSD".into(),
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

/// Returns the acceptance of several drafters that err at the same places of a text, as far as
/// their rates allow.
fn same_errors(rates: &[f64], seed: u64, tokens: usize) -> Vec<AcceptanceModel> {
    let randomness = KeyedRandomness { seed, sample: 0 };
    let uniform =
        |position| randomness.uniform(Key { position, purpose: Purpose::Draft, candidate: 0 });
    let uniforms: Vec<f64> = (0..tokens).map(uniform).collect();
    let model = |rate: &f64| uniforms.iter().map(|uniform| uniform < rate).collect();
    rates.iter().map(model).map(AcceptanceModel::Recorded).collect()
}

/// EasySpec's two families, on its eight devices.
fn of_easyspec(texts: u64) -> Result<Vec<Setting>, SimError> {
    let mut settings = Vec::new();
    for family in &easyspec::FAMILIES {
        // MMLU and HumanEval.
        for data in 0..2 {
            let plain = family.target_cost(8);
            let plain_ns = plain.pass_ns(1, 1) as f64;
            let [_, acceptance] = family.chain_acceptances(data);
            let [_, cost] = family.draft_costs();
            let masked_pass = Cost::one_pass(cost.forward.ns(1));
            let with_trees = Drafter {
                name: "EasySpec on four devices",
                cost,
                acceptance: family.tree_acceptance(data),
                reads_features: false,
                positions: None,
            };
            let easyspec = Drafter { acceptance, ..with_trees.clone() };
            let alone = Setting {
                paper: "EasySpec",
                pair: format!("{}, {}", family.name, easyspec::DATA[data]),
                published: Some(family.published(data)),
                alone: 0.0,
                alone_length: 0,
                plain_ns,
                drafter: with_trees,
                target: family.tree_cost(LENGTHS[LENGTHS.len() - 1]),
                replicas: Vec::new(),
                second: None,
            };
            let setting = Setting {
                drafter: easyspec.clone(),
                target: family.target_cost(4),
                replicas: vec![vec![family.target_cost(2); 2]],
                ..alone.compared_with(SimulatedMethod::Speculative, texts)?
            };
            settings.push(setting.clone());
            let masked = Drafter {
                name: "EasySpec on four devices, with ParallelSpec's masks",
                cost: masked_pass,
                positions: Some(POSITIONS),
                ..easyspec.clone()
            };
            settings.push(Setting { drafter: masked, ..setting.clone() });
            let Some(drafter) = on_tokens(&VICUNA_13B, plain_ns) else { continue };
            let pair = format!("{}, and a ninth device", setting.pair);
            let parallel = Setting {
                pair: pair.clone(),
                drafter: drafter.clone(),
                target: plain,
                replicas: vec![vec![family.target_cost(4); 2], vec![family.target_cost(2); 4]],
                ..setting.clone()
            };
            let name = "ParallelSpec on tokens, and EasySpec on four devices";
            let drafter = Drafter { name, ..drafter };
            settings.push(Setting { pair, drafter, second: Some(easyspec), ..setting });
            settings.push(parallel);
        }
    }
    Ok(settings)
}

/// Returns ParallelSpec's drafter on tokens for a target whose pass takes `target_ns` nanoseconds.
fn on_tokens(target: &SpecBenchTarget, target_ns: f64) -> Option<Drafter> {
    Some(Drafter {
        name: "ParallelSpec on tokens",
        cost: target.drafter(target_ns),
        acceptance: target.on_tokens?.acceptance(),
        reads_features: false,
        positions: Some(POSITIONS),
    })
}

/// ParallelSpec's drafters with their targets.
fn of_parallelspec(texts: u64) -> Result<Vec<Setting>, SimError> {
    let mut settings = Vec::new();
    for target in &SPEC_BENCH {
        let features = Drafter {
            name: "ParallelSpec on features",
            cost: Cost { reads_features: true, ..target.drafter(TARGET_NS) },
            acceptance: target.on_features.acceptance(),
            reads_features: true,
            positions: Some(POSITIONS),
        };
        let of_tokens = target.on_tokens.zip(on_tokens(target, TARGET_NS));
        for (speed, drafter) in [(target.on_features, features)].into_iter().chain(of_tokens) {
            let cost = target.target(speed, TARGET_NS);
            let alone = Setting {
                paper: "ParallelSpec",
                pair: format!("{}, Spec-Bench", target.name),
                published: Some(speed.speedup),
                alone: 0.0,
                alone_length: 0,
                plain_ns: TARGET_NS,
                drafter,
                replicas: replicas(&cost, &[2, 3, REPLICAS]),
                target: cost,
                second: None,
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
        alone_length: 0,
        plain_ns: pair.target_ns as f64,
        drafter: Drafter {
            name: "its own",
            cost: Cost::constant(pair.draft_ns),
            acceptance: pair.acceptance,
            reads_features: false,
            positions: None,
        },
        replicas: replicas(&target, counts),
        target,
        second: None,
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
        positions: None,
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
            "its draft length",
            "drafter of the composition",
            "PEARL",
            "SSD",
            "DSI",
            "the best composition",
            "compared with the paper alone",
            "acceptance of the drafter",
            "acceptance from which the same run is as fast as the paper alone",
        ]),
        rows,
        note: "Simulated, and in no paper; the production decoders in virtual time, without overhead. All methods have their best \
               draft length of 1 to 12, also the papers alone; PEARL has forerun's automatic lengths where they are faster. \
               Means of texts of 256 tokens. EasySpec's setting: Llama 3 70B & 8B and Qwen2 72B & 7B on eight A100s, \
               with the times of its tables 1 and 2. Its published speeds have five tokens, and are over the target on eight \
               devices. The compositions have the drafter on four devices, and the target on the other four (DSI: two \
               replicas on two devices each), on which the published speeds are 13.23 (13.01 for Qwen2) and 13.00 (13.03) \
               tokens/s. With ParallelSpec's masks: its own drafter, trained to draft five tokens in one layer-parallel \
               pass, at the same acceptance and without EasySpec's exact pass at the start of a round, which with masks would \
               leave nothing to draft. Nobody has trained one, and forerun has no such drafter. A ninth device: \
               it has ParallelSpec's drafter on tokens, with Vicuna 13B's acceptance and share of a pass. With EasySpec on four \
               devices, both draft, under DSI only, and err at the same places as far as their acceptance allows. Without it, the target has \
               all eight devices, under DSI as two or four replicas. ParallelSpec's settings: its table 1, from which \
               pass times follow as in `pearl-features`; the pass of its drafter on tokens, too, follows from the drafters \
               on features. PEARL and SSD have a device more for the drafter, DSI also up to four targets. PEARL's: its \
               tables 7, 10 and 14. DSI's: its table 2, with up to seven replicas. Acceptance: chains of the papers' own drafters as \
               published. ParallelSpec's as if chains committed as many tokens as its trees. Layer parallelism lowers chains by \
               as much as EasySpec's trees; other drafters of PEARL and DSI are accelerated as Llama 3 8B is, and Vicuna's \
               drafters have Spec-Bench's acceptance. Rows: EasySpec's targets take longer for more rows, as published for \
               chains and trees. ParallelSpec's take the same time for two and for more, PEARL's and DSI's the same for any number. So do \
               all drafters, whose further rows are drafts for SSD's eight verdicts. The last column keeps the draft \
               length and the replicas of the best composition.",
    })
}

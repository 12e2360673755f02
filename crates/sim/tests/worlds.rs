//! Automatic draft lengths against plain decoding and against every fixed length, with the
//! production decoders in random worlds: costs with knees, acceptance that falls with the position
//! in a draft and comes in runs and bursts, and drafters slower than the target. The planner knows
//! none of the parameters. Its model of easy and hard stretches fits worlds without drift and
//! bursts, not the others.

use crate::common::{answer, device};
use forerun_core::testing::env_number;
use forerun_core::{DraftShape, Role};
use forerun_decode::{
    Auto, Autoregressive, Decoder, DraftLength, Dsi, DsiLookahead, Pearl, PearlDraftLength,
    PearlOptions, Speculative, SpeculativeDraftLength, Ssd, TreeLimits, typical_tree,
};
use forerun_sim::{
    AcceptanceModel, Calibration, Cancellation, Cost, Device, Fault, FaultKind, ForwardCost,
    Oracle, SimCluster,
};
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const TARGET_NS: f64 = 1e6;
const TOKENS: usize = 2_000;
const LONGEST: usize = 16;
const LENGTHS: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

/// A stream of pseudo-random numbers (SplitMix64, Steele et al. 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64
    }

    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Returns a number whose logarithm is uniform.
    pub(super) fn log_between(&mut self, low: f64, high: f64) -> f64 {
        self.between(low.ln(), high.ln()).exp()
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }
}

/// The devices and the text of a world.
#[derive(Clone, Debug)]
pub(super) struct World {
    name: String,
    drafter: Cost,
    /// The time of a draft token in passes of the target that the sizes of the models suggest.
    pub(super) expected_passes: f64,
    target: Cost,
    pub(super) replicas: usize,
    acceptance: AcceptanceModel,
    /// The factor by which a pass takes longer while another device works: above 1, idle devices
    /// lend their cores.
    slowdown: f64,
    /// When the whole machine stands still, and for how long, in nanoseconds.
    interruptions: Vec<(u64, u64)>,
    seed: u64,
}

impl World {
    pub(super) fn random(seed: u64) -> Self {
        let random = &mut Random(seed);
        let draft_ns = TARGET_NS * random.log_between(0.01, 2.5);
        let link_ns = (TARGET_NS * random.log_between(0.000_1, 0.02)) as u64;
        let layers = 24;
        let next_ns = random.chance(0.5).then(|| (draft_ns * random.between(0.6, 1.0)) as u64);
        let forward = ForwardCost::Rows {
            points: vec![(1, draft_ns as u64), (33, (draft_ns * random.between(1.0, 3.0)) as u64)],
        };
        let drafter = Cost { forward, next_ns, layers, link_ns, ..Cost::constant(0) };
        let target = Cost { forward: knees(random), layers, link_ns, ..Cost::constant(0) };
        let wrong_by = Random(seed.wrapping_add(6 << 32)).log_between(0.5, 2.0);
        let expected_passes = wrong_by * draft_ns / TARGET_NS;
        let (text, depth) = text(random);
        let replicas = 1 + (random.uniform() * 4.0) as usize;
        let rank_power = random.log_between(0.3, 3.0);
        let acceptance = AcceptanceModel::Varying { text, depth, rank_power };
        let (name, slowdown) = (format!("world {seed}"), 1.0);
        let interruptions = Vec::new();
        Self {
            name,
            drafter,
            expected_passes,
            target,
            replicas,
            acceptance,
            slowdown,
            interruptions,
            seed,
        }
    }

    /// A world whose drafter takes so many passes of the target for a token.
    pub(super) fn with_slow_drafter(passes: f64) -> Self {
        let drafter = Cost { link_ns: 1_000, ..Cost::constant((passes * TARGET_NS) as u64) };
        let name = format!("a drafter of {passes} passes");
        Self { name, drafter, expected_passes: passes, ..Self::random(0) }
    }

    /// A world whose idle devices help the others, as core groups of one machine do.
    pub(super) fn with_lent_cores(seed: u64) -> Self {
        let world = Self::random(seed);
        let slowdown = Random(seed.wrapping_add(1 << 32)).between(1.1, 2.0);
        Self { name: format!("{} with lent cores", world.name), slowdown, ..world }
    }

    /// A world whose prompt takes time, with one to seven replicas.
    fn with_prompts(seed: u64) -> Self {
        let random = &mut Random(seed.wrapping_add(8 << 32));
        let mut first = |cost: Cost| {
            let first_ns = (cost.pass_ns(1, 1) as f64 * random.log_between(1.0, 10.0)) as u64;
            Cost { first_ns: Some(first_ns), ..cost }
        };
        let world = Self::random(seed);
        let (drafter, target) = (first(world.drafter), first(world.target));
        let replicas = 1 + (random.uniform() * 7.0) as usize;
        Self { name: format!("{} with prompts", world.name), drafter, target, replicas, ..world }
    }

    /// A world whose machine does something else for a few passes now and then.
    pub(super) fn with_interruptions(seed: u64) -> Self {
        let random = &mut Random(seed.wrapping_add(2 << 32));
        Self::random(seed).interrupted(random, 20, [40.0, 400.0], [3.0, 40.0], "interruptions")
    }

    /// The same world, but passes take more time now and then, by up to half of a pass.
    pub(super) fn with_noise(self, seed: u64) -> Self {
        let random = &mut Random(seed.wrapping_add(4 << 32));
        self.interrupted(random, 2_000, [0.5, 8.0], [0.01, 0.5], "noise")
    }

    /// Adds times in which the machine stands still. The time between two, and that of each, are in
    /// passes.
    fn interrupted(
        self,
        random: &mut Random,
        count: usize,
        between: [f64; 2],
        lasting: [f64; 2],
        what: &str,
    ) -> Self {
        let mut ns = |[least, most]: [f64; 2]| TARGET_NS * random.log_between(least, most);
        let mut at = 0.0;
        let interruptions = (0..count).map(|_| {
            at += ns(between);
            (at as u64, ns(lasting) as u64)
        });
        let interruptions = interruptions.collect();
        Self { name: format!("{} with {what}", self.name), interruptions, ..self }
    }

    /// A world whose drafter looks up earlier text, which takes next to no time. Some stretches of
    /// the text repeat earlier ones. Elsewhere, a lookup finds nothing, or something that is wrong.
    pub(super) fn with_lookups(seed: u64) -> Self {
        let random = &mut Random(seed.wrapping_add(5 << 32));
        let drafter = Cost { link_ns: 100, ..Cost::constant((0.004 * TARGET_NS) as u64) };
        let (repeats, others) = (random.log_between(2.0, 20.0), random.log_between(4.0, 60.0));
        let wrong = random.between(0.0, 0.5);
        let (mut left, mut is_repeat) = (0, true);
        let drafts = (0..TOKENS).map(|_| {
            if left == 0 {
                is_repeat = !is_repeat;
                left = random.log_between(1.0, if is_repeat { repeats } else { others }) as usize;
            }
            let right = left;
            left -= 1;
            if is_repeat {
                (LONGEST, right)
            } else {
                (LONGEST * usize::from(random.chance(wrong)), 0)
            }
        });
        let acceptance = AcceptanceModel::Drafts(drafts.collect());
        let name = format!("world {seed} with lookups");
        let expected_passes = 0.0;
        Self { name, drafter, expected_passes, acceptance, ..Self::random(seed).with_noise(seed) }
    }

    /// A drafter that takes `passes` passes of the target for a token, and has right `acceptance`
    /// of its tokens. Idle cores help the other model. Every few passes, something else takes up to
    /// a tenth of a pass.
    pub(super) fn with_even_text(acceptance: f64, passes: f64, seed: u64) -> Self {
        let layers = 8;
        let drafter = Cost { layers, ..Cost::constant((passes * TARGET_NS) as u64) };
        let points = vec![(1, TARGET_NS as u64), (33, (1.8 * TARGET_NS) as u64)];
        let forward = ForwardCost::Rows { points };
        let target = Cost { forward, layers, ..Cost::constant(0) };
        let text = vec![acceptance; TOKENS];
        Self {
            name: format!("acceptance {acceptance}, {passes} passes, seed {seed}"),
            drafter,
            expected_passes: passes,
            target,
            replicas: 1,
            acceptance: AcceptanceModel::Varying { text, depth: vec![1.0], rank_power: 1.0 },
            slowdown: 1.7,
            interruptions: Vec::new(),
            seed,
        }
        .interrupted(
            &mut Random(seed.wrapping_add(7 << 32)),
            2_000,
            [0.5, 4.0],
            [0.01, 0.1],
            "noise",
        )
    }

    /// A pair that was measured: its costs, and where the drafter agreed with the target.
    fn recorded(calibration: &Calibration, prompt: u64) -> Self {
        let AcceptanceModel::Recorded(record) = calibration.acceptance(prompt) else { panic!() };
        let text = record.iter().map(|&right| f64::from(u8::from(right))).collect();
        // The time of the prompt is not what is tested.
        let cost = |cost: Cost| Cost { first_ns: None, ..cost };
        Self {
            name: format!("demonstration pair, prompt {prompt}"),
            drafter: cost(calibration.drafter_cost().unwrap()),
            expected_passes: 0.0,
            target: cost(calibration.target_cost().unwrap()),
            replicas: 1,
            acceptance: AcceptanceModel::Varying { text, depth: vec![1.0], rank_power: 1.0 },
            slowdown: 1.0,
            interruptions: Vec::new(),
            seed: prompt,
        }
    }

    /// Returns the same world after a time: its text and its machine go on.
    pub(super) fn after(&self, tokens: usize, ns: f64, seed: u64) -> Self {
        let mut acceptance = self.acceptance.clone();
        match &mut acceptance {
            AcceptanceModel::Varying { text, .. } => text.rotate_left(tokens % TOKENS),
            AcceptanceModel::Drafts(drafts) => drafts.rotate_left(tokens % TOKENS),
            _ => panic!(),
        }
        let left =
            |&(at_ns, stall_ns): &(u64, u64)| Some((at_ns.checked_sub(ns as u64)?, stall_ns));
        let interruptions = self.interruptions.iter().filter_map(left).collect();
        Self { acceptance, interruptions, seed, ..self.clone() }
    }

    /// Decodes, checks the text, and returns the time until the last token.
    fn run(&self, decoder: &mut dyn Decoder) -> f64 {
        let prompt = if self.target.first_ns.is_some() { 200 } else { 3 };
        self.answer(decoder, prompt, TOKENS)
    }

    /// Answers a prompt of so many tokens, checks the text, and returns the time until the last
    /// token.
    pub(super) fn answer(
        &self,
        decoder: &mut dyn Decoder,
        prompt: usize,
        max_tokens: usize,
    ) -> f64 {
        let oracle = Oracle { seed: self.seed, drafters: vec![self.acceptance.clone()] };
        let device = |role, cost: &Cost| device(format!("{role:?}"), role, cost.clone());
        let targets = (0..self.replicas).map(|index| device(Role::Target(index), &self.target));
        let devices: Vec<Device> =
            targets.chain([device(Role::Drafter(0), &self.drafter)]).collect();
        let faults = self.interruptions.iter().flat_map(|&(at_ns, ns)| {
            let kind = FaultKind::Stall { ns };
            (0..devices.len()).map(move |device| Fault { device, at_ns, kind })
        });
        let faults = faults.collect();
        let cluster = SimCluster::new(devices, oracle.clone(), Cancellation::Layer, faults);
        let mut cluster = cluster.unwrap().without_trace().with_lent_cores(self.slowdown);
        answer(decoder, &mut cluster, &oracle, prompt, max_tokens).unwrap();
        cluster.now_ns() as f64
    }

    fn dsi(&self, mode: DraftLength, length: usize) -> Dsi {
        Dsi::new(self.replicas, DsiLookahead::new(length, mode, self.replicas))
    }

    fn decoder(&self, method: usize, mode: DraftLength, length: usize) -> Box<dyn Decoder> {
        match method {
            0 => Box::new(speculative(mode, length)),
            TREES => {
                let limits = TreeLimits { depth: length, nodes: NODES };
                let policy = SpeculativeDraftLength::new(DraftShape::Chain { length }, mode);
                Box::new(Speculative::new(policy.growing_trees(limits)))
            }
            1 => Box::new(pearl(mode, length)),
            2 => Box::new(self.dsi(mode, length)),
            3 => {
                let shape = DraftShape::Chain { length };
                Box::new(Ssd::new(SpeculativeDraftLength::new(shape, mode)))
            }
            _ => Box::new(Auto::new(vec![
                Box::new(speculative(mode, length)),
                Box::new(pearl(mode, length)),
                Box::new(self.dsi(mode, length)),
            ])),
        }
    }
}

/// Returns trees that a user might choose: those of a typical drafter, and wide ones.
fn fixed_trees() -> impl Iterator<Item = DraftShape> {
    let typical =
        [4, 8, 16, 32, NODES].map(|nodes| typical_tree(TreeLimits { depth: LONGEST, nodes }));
    let wide = [vec![4], vec![2, 2, 2], vec![4, 2, 1, 1], vec![8, 4, 2, 1]];
    typical.into_iter().chain(wide.map(|children| DraftShape::Ranked { children }))
}

fn speculative(mode: DraftLength, length: usize) -> Speculative {
    Speculative::new(SpeculativeDraftLength::new(DraftShape::Chain { length }, mode))
}

fn pearl(mode: DraftLength, length: usize) -> Pearl {
    Pearl::new(PearlOptions::default(), PearlDraftLength::new(length, mode, true))
}

const METHODS: [&str; 6] = ["speculative", "pearl", "dsi", "ssd", "auto", "trees"];
/// The number of methods that `auto` chooses from: the first ones.
const CANDIDATES: usize = 3;
const SSD: usize = 3;
const AUTO: usize = 4;
const TREES: usize = 5;
/// The largest tree.
const NODES: usize = 64;

/// Returns the time of a pass over rows: rows are cheap until the pass is limited by arithmetic,
/// and tiles may make steps.
fn knees(random: &mut Random) -> ForwardCost {
    let knee = random.log_between(1.5, 40.0);
    let (before, after) = (random.log_between(0.000_5, 0.05), random.log_between(0.01, 0.6));
    let tile = [1, 1, 4, 8][(random.uniform() * 4.0) as usize];
    let points = (1..=72_usize).map(|rows| {
        let rows_in_tiles = if rows == 1 { 1 } else { rows.div_ceil(tile) * tile } as f64;
        let cheap = rows_in_tiles.min(knee) - 1.0;
        let expensive = (rows_in_tiles - knee).max(0.0);
        (rows, (TARGET_NS * (1.0 + before * cheap.max(0.0) + after * expensive)) as u64)
    });
    ForwardCost::Rows { points: points.collect() }
}

/// Returns the acceptance of a text with easy and hard stretches, from runs of a few tokens to
/// bursts of hundreds. It may become harder or easier from its start to its end. The second value
/// is the factors by position in the draft.
fn text(random: &mut Random) -> (Vec<f64>, Vec<f64>) {
    let easy = 1.0 - random.log_between(0.01, 0.9);
    let hard = if random.chance(0.3) { easy } else { easy * random.uniform() };
    let lengths = [random.log_between(2.0, 300.0), random.log_between(2.0, 300.0)];
    let drift = if random.chance(0.3) { random.uniform() } else { 0.0 };
    let is_falling = random.chance(0.5);
    let mut is_hard = random.chance(0.5);
    let rates = (0..TOKENS).map(|token| {
        is_hard ^= random.chance(1.0 / lengths[usize::from(is_hard)]);
        let part = token as f64 / TOKENS as f64;
        let drifted = drift * if is_falling { part } else { 1.0 - part };
        (1.0 - drifted) * if is_hard { hard } else { easy }
    });
    let text = rates.collect();
    let (kind, fall) = (random.uniform(), random.between(0.6, 1.0));
    let depth = match kind {
        kind if kind < 0.5 => vec![1.0],
        // Each position is worse than the one before, as with heads on one hidden state.
        kind if kind < 0.8 => (0..LONGEST).map(|depth| fall.powi(depth as i32)).collect(),
        // The drafter was trained for a few positions.
        _ => {
            let trained = 2 + (random.uniform() * 5.0) as usize;
            (0..LONGEST).map(|depth| if depth < trained { 1.0 } else { fall * 0.3 }).collect()
        }
    };
    (text, depth)
}

/// The speed of a method's automatic length in a world.
#[derive(Clone, Debug)]
struct Comparison {
    world: String,
    /// Compared with plain decoding.
    to_plain: f64,
    /// Compared with the best of plain decoding and all fixed lengths; for `auto`, those of all
    /// methods.
    to_best: f64,
    best: String,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { world, to_plain, to_best, best } = self;
        write!(f, "{world}: {to_plain:.3} of plain decoding, {to_best:.3} of {best}")
    }
}

fn compare(world: &World, method: usize) -> Comparison {
    let plain = world.run(&mut Autoregressive);
    let mut best = (plain, "plain".to_owned());
    let (from, to) = if method == AUTO { (0, CANDIDATES) } else { (method, method + 1) };
    for (fixed, name) in METHODS.iter().enumerate().take(to).skip(from) {
        for length in LENGTHS {
            let ns = world.run(&mut *world.decoder(fixed, DraftLength::Fixed, length));
            if ns < best.0 {
                best = (ns, format!("{name} {length}"));
            }
        }
    }
    for shape in fixed_trees().filter(|_| method == TREES) {
        let name = format!("{shape:?}");
        let policy = SpeculativeDraftLength::new(shape, DraftLength::Fixed);
        let ns = world.run(&mut Speculative::new(policy));
        if ns < best.0 {
            best = (ns, name);
        }
    }
    let auto = world.run(&mut *world.decoder(method, DraftLength::Auto, LONGEST));
    let (to_plain, to_best) = (plain / auto, best.0 / auto);
    Comparison { world: world.name.clone(), to_plain, to_best, best: best.1 }
}

/// Compares in all worlds, on two threads.
fn compare_all(
    worlds: impl Fn(u64) -> World + Sync,
    seeds: Range<u64>,
    method: usize,
) -> Vec<Comparison> {
    let (next, comparisons) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= seeds.end {
                break;
            }
            let comparison = compare(&worlds(at), method);
            comparisons.lock().unwrap().push(comparison);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    comparisons.into_inner().unwrap()
}

/// What must hold in all worlds together.
struct Bounds {
    /// The least speed compared with plain decoding.
    to_plain: f64,
    /// The least mean speed compared with the best fixed length.
    mean_to_best: f64,
    /// The largest share of worlds below 0.95 of the best fixed length.
    below_best: f64,
}

/// Prints the distribution of speeds, and checks them.
fn check(method: usize, comparisons: &[Comparison], bounds: &Bounds) {
    let sorted = |value: fn(&Comparison) -> f64| {
        let mut values: Vec<f64> = comparisons.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let [to_plain, to_best] =
        [sorted(|comparison| comparison.to_plain), sorted(|comparison| comparison.to_best)];
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    eprintln!("| {} worlds | least | 0.1 % | 1 % | 5 % | median | mean |", to_best.len());
    for (name, values) in [("plain decoding", &to_plain), ("the best", &to_best)] {
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
        let shown = [0.0, 0.001, 0.01, 0.05, 0.5].map(|share| format!("{:.3}", at(share)));
        let (name, mean) = (format!("{} / {name}", METHODS[method]), mean(values));
        eprintln!("| {name} | {} | {mean:.3} |", shown.join(" | "));
    }
    let below = to_best.partition_point(|&value| value < 0.95) as f64 / to_best.len() as f64;
    eprintln!("{:.1} % below 0.95 of the best", below * 100.0);
    let worst = |value: fn(&Comparison) -> f64| {
        let mut sorted: Vec<&Comparison> = comparisons.iter().collect();
        sorted.sort_by(|a, b| value(a).total_cmp(&value(b)));
        sorted.truncate(3);
        sorted
    };
    let slowest = worst(|comparison| comparison.to_plain);
    let most_regret = worst(|comparison| comparison.to_best);
    for comparison in slowest.iter().chain(&most_regret) {
        eprintln!("{comparison}");
    }
    assert!(to_plain[0] >= bounds.to_plain, "{}", slowest[0]);
    assert!(mean(&to_best) >= bounds.mean_to_best, "{}", mean(&to_best));
    // A share in few worlds has an error.
    let share = bounds.below_best;
    let error = (share * (1.0 - share) / comparisons.len() as f64).sqrt();
    assert!(below <= share + 3.0 * error, "{below}: {}", most_regret[0]);
}

/// Returns the seeds of worlds: the first `count`, or others by the variables `FORERUN_CASES` (how
/// many) and `FORERUN_CASE_SEED` (from which on).
pub(super) fn seeds(count: u64) -> Range<u64> {
    let first = env_number("FORERUN_CASE_SEED", 0);
    first..first + env_number("FORERUN_CASES", count)
}

fn check_random(method: usize, worlds: u64, bounds: &Bounds) {
    check_worlds(World::random, method, worlds, bounds);
}

fn check_worlds(world: fn(u64) -> World, method: usize, worlds: u64, bounds: &Bounds) {
    check(method, &compare_all(world, seeds(worlds), method), bounds);
}

#[test]
fn speculative_decoding_in_random_worlds() {
    let bounds = Bounds { to_plain: 0.96, mean_to_best: 0.99, below_best: 0.05 };
    check_random(0, 60, &bounds);
}

/// Drafters that cost time but find nothing, as one that ends its drafts by its own confidence, and
/// a lookup that costs next to nothing and finds something now and then.
#[test]
fn drafts_that_are_mostly_empty() {
    for (share_of_a_pass, finds, least) in
        [(0.5, TOKENS, 0.97), (0.5, 12, 0.97), (0.02, TOKENS, 0.97), (0.001, 12, 1.0)]
    {
        let is_found = |token: usize| finds < TOKENS && token % finds == 7;
        let draft = |token: usize| if is_found(token) { (6, 5) } else { (0, 0) };
        let world = World {
            name: format!("a draft in {finds} at {share_of_a_pass} of a pass"),
            drafter: Cost::constant((TARGET_NS * share_of_a_pass) as u64),
            expected_passes: 0.0,
            target: Cost::constant(TARGET_NS as u64),
            replicas: 1,
            acceptance: AcceptanceModel::Drafts((0..TOKENS).map(draft).collect()),
            slowdown: 1.0,
            interruptions: Vec::new(),
            seed: 0,
        };
        let comparison = compare(&world, 0);
        assert!(comparison.to_plain >= least, "{comparison}");
    }
}

#[test]
fn trees_in_random_worlds() {
    let bounds = Bounds { to_plain: 0.98, mean_to_best: 1.0, below_best: 0.05 };
    check_random(TREES, 40, &bounds);
}

#[test]
fn pearl_in_random_worlds() {
    let bounds = Bounds { to_plain: 0.98, mean_to_best: 1.0, below_best: 0.05 };
    check_random(1, 20, &bounds);
}

/// A second row takes as long as two more passes, but six further ones cost nothing. As long as
/// only two rows were tried, no length seems to be faster than the target alone. A trial of
/// drafting tries more.
#[test]
fn pearl_tries_more_rows_before_it_pauses_for_good() {
    let comparison = compare(&World::random(1428), 1);
    assert!(comparison.to_plain > 2.0 && comparison.to_best > 0.9, "{comparison}");
}

#[test]
fn dsi_in_random_worlds() {
    let bounds = Bounds { to_plain: 0.97, mean_to_best: 0.95, below_best: 0.2 };
    check_random(2, 16, &bounds);
}

#[test]
fn dsi_in_random_worlds_with_prompts() {
    let bounds = Bounds { to_plain: 0.97, mean_to_best: 0.95, below_best: 0.2 };
    check_worlds(World::with_prompts, 2, 16, &bounds);
}

#[test]
fn ssd_in_random_worlds() {
    let bounds = Bounds { to_plain: 0.97, mean_to_best: 0.95, below_best: 0.4 };
    check_random(SSD, 8, &bounds);
}

#[test]
fn auto_in_random_worlds() {
    let bounds = Bounds { to_plain: 0.97, mean_to_best: 0.97, below_best: 0.22 };
    check_random(AUTO, 8, &bounds);
}

#[test]
fn devices_that_lend_cores() {
    let bounds = Bounds { to_plain: 0.97, mean_to_best: 0.96, below_best: 0.2 };
    for method in [1, 2, AUTO] {
        check_worlds(World::with_lent_cores, method, 8, &bounds);
    }
}

#[test]
fn recorded_pair() {
    let text = include_str!("../../../docs/bench/demonstration-calibration.toml");
    let calibration = Calibration::parse(text).unwrap();
    let bounds = Bounds { to_plain: 1.0, mean_to_best: 0.9, below_best: 1.0 };
    for method in 0..TREES {
        let world = |prompt| World::recorded(&calibration, prompt);
        check(method, &compare_all(world, 0..3, method), &bounds);
    }
}

/// The machine stands still now and then, with and without drafts.
#[test]
fn interruptions_are_not_taken_for_the_cost_of_drafts() {
    let bounds = Bounds { to_plain: 0.97, mean_to_best: 0.97, below_best: 0.2 };
    for method in [0, 1, AUTO] {
        check_worlds(World::with_interruptions, method, 8, &bounds);
    }
    let bounds = Bounds { to_plain: 0.88, mean_to_best: 0.96, below_best: 0.3 };
    check_worlds(World::with_interruptions, 2, 8, &bounds);
}

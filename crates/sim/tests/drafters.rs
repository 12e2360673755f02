//! The choice between several drafters, with the production decoders in virtual time.

use crate::common::{answer, device};
use forerun_core::{DraftShape, Role};
use forerun_decode::{
    Autoregressive, Decoder, DecoderOptions, DraftLength, DrafterSize, METHODS, new_decoder,
};
use forerun_sim::{
    AcceptanceModel, Cancellation, Cost, Fault, FaultKind, ForwardCost, Oracle, SimCluster,
};

const TARGET_NS: u64 = 1_000_000;
const PROMPT: usize = 50;

/// Two drafters and a target with a device each.
#[derive(Clone, Debug)]
struct World {
    drafters: [(u64, AcceptanceModel); 2],
    /// The length of the prompt, and the time of reading a token, in times of a pass over one row.
    prompt: usize,
    reading: f64,
    /// When the first drafter fails, if it does.
    dies_ns: Option<u64>,
    tokens: usize,
    seed: u64,
}

impl World {
    /// Returns a world with these drafters in which reading costs nothing.
    fn new(drafters: [(u64, AcceptanceModel); 2], tokens: usize) -> Self {
        Self { drafters, prompt: PROMPT, reading: 0.0, dies_ns: None, tokens, seed: 1 }
    }

    /// Decodes with the drafters of these indices, checks the text, and returns the time until the
    /// last token.
    fn run(&self, method: &str, drafters: &[usize]) -> u64 {
        self.run_answers(method, drafters, 1)
    }

    /// Does the same for several answers, one after another.
    fn run_answers(&self, method: &str, drafters: &[usize], answers: u64) -> u64 {
        self.run_with(method, drafters, answers, |_| ())
    }

    fn run_with(
        &self,
        method: &str,
        drafters: &[usize],
        answers: u64,
        change: fn(&mut DecoderOptions),
    ) -> u64 {
        let size = |&drafter: &usize| DrafterSize {
            expected_passes: Some(self.drafters[drafter].0 as f64 / TARGET_NS as f64),
            ..DrafterSize::default()
        };
        let entry = METHODS.iter().find(|entry| entry.name == method).unwrap();
        let shape = DraftShape::Chain { length: 16 };
        let mut options = DecoderOptions {
            drafter: drafters[0],
            expected_passes: size(&drafters[0]).expected_passes,
            additional_drafters: drafters[1..].iter().map(size).collect(),
            ..DecoderOptions::new(shape, DraftLength::Auto)
        };
        change(&mut options);
        let mut decoder = new_decoder(entry, &options);
        let answer = |seed| {
            decoder = decoder.for_next_answer(&options, self.prompt);
            Self { seed: self.seed + seed, ..self.clone() }.decode(&mut *decoder)
        };
        (0..answers).map(answer).sum()
    }

    /// Returns how fast a method is with both drafters over several answers, compared with plain
    /// decoding and with the better drafter alone. Prints both after `name`.
    fn speed_of_both(&self, name: &str, method: &str, answers: u64) -> (f64, f64) {
        let plain =
            |seed| Self { seed: self.seed + seed, ..self.clone() }.decode(&mut Autoregressive);
        let plain = (0..answers).map(plain).sum::<u64>() as f64;
        let single = [0, 1].map(|drafter| self.run_answers(method, &[drafter], answers) as f64);
        let both = self.run_answers(method, &[0, 1], answers) as f64;
        let (to_plain, to_best) = (plain / both, single[0].min(single[1]) / both);
        eprintln!(
            "{name}, {method}: {to_plain:.3} of plain, {to_best:.3} of the better drafter alone"
        );
        (to_plain, to_best)
    }

    /// Returns the cost of a model whose pass over one row takes `ns` nanoseconds.
    fn cost(&self, ns: u64) -> Cost {
        let rows_ns = |rows: usize| (ns as f64 * (1.0 + rows as f64 * self.reading)) as u64;
        let forward = ForwardCost::Rows { points: vec![(1, ns), (1_001, rows_ns(1_000))] };
        Cost { forward, first_ns: Some(rows_ns(self.prompt)), layers: 4, ..Cost::constant(ns) }
    }

    fn decode(&self, decoder: &mut dyn Decoder) -> u64 {
        let acceptance = self.drafters.iter().map(|(_, acceptance)| acceptance.clone());
        let oracle = Oracle { seed: self.seed, drafters: acceptance.collect() };
        let drafters = self.drafters.iter().enumerate().map(|(index, &(ns, _))| {
            device(format!("drafter {index}"), Role::Drafter(index), self.cost(ns))
        });
        let target = device("target", Role::Target(0), self.cost(TARGET_NS));
        let devices = drafters.chain([target]).collect();
        let dies = |at_ns| Fault { device: 0, at_ns, kind: FaultKind::Die };
        let faults = self.dies_ns.into_iter().map(dies).collect();
        let cluster =
            SimCluster::new(devices, oracle.clone(), Cancellation::Immediate, faults).unwrap();
        let mut cluster = cluster.without_trace();
        answer(decoder, &mut cluster, &oracle, self.prompt, self.tokens).unwrap();
        cluster.now_ns()
    }
}

/// Text in which a drafter is good for `tokens` tokens, then bad for as many, or the other way
/// round.
fn alternating(tokens: usize, begins_good: bool, good: f64, bad: f64) -> AcceptanceModel {
    let (first, second) = if begins_good { (good, bad) } else { (bad, good) };
    let text = std::iter::repeat_n(first, tokens).chain(std::iter::repeat_n(second, tokens));
    AcceptanceModel::Varying { text: text.collect(), depth: vec![1.0], rank_power: 1.0 }
}

#[test]
fn the_better_drafter_is_used() {
    let mut ratios = Vec::new();
    for method in ["speculative", "pearl", "auto"] {
        for percents in [[10, 10], [5, 25], [30, 3], [10, 150]] {
            for rates in [[0.9, 0.6], [0.5, 0.8], [0.7, 0.7], [0.1, 0.9], [0.1, 0.2]] {
                let drafter = |index: usize| {
                    (TARGET_NS * percents[index] / 100, AcceptanceModel::Iid(rates[index]))
                };
                let world = World::new([drafter(0), drafter(1)], 3_000);
                let name = format!("c {percents:?} %, α {rates:?}");
                let (to_plain, to_best) = world.speed_of_both(&name, method, 1);
                assert!(to_plain > 0.98 && to_best > 0.91, "{to_plain} {to_best}");
                ratios.push(to_best);
            }
        }
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    assert!(mean > 0.975, "{mean}");
}

/// Each drafter is good at half of the text.
#[test]
fn drafters_are_tried_again_as_the_text_changes() {
    for method in ["speculative", "pearl", "auto"] {
        for tokens in [1_500, 4_000] {
            let ratios: Vec<f64> = (1..=2)
                .map(|seed| {
                    let drafter =
                        |begins_good| (TARGET_NS / 10, alternating(tokens, begins_good, 0.9, 0.3));
                    let drafters = [drafter(true), drafter(false)];
                    let world = World { seed, ..World::new(drafters, 4 * tokens) };
                    let single = [0, 1].map(|drafter| world.run(method, &[drafter]) as f64);
                    single[0].min(single[1]) / world.run(method, &[0, 1]) as f64
                })
                .collect();
            let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
            eprintln!("{method}, {tokens} tokens: {ratios:.3?} of the better drafter alone");
            assert!(mean > 1.4 && ratios.iter().all(|&ratio| ratio > 1.1), "{mean} {ratios:?}");
        }
    }
}

/// A drafter that nothing is known of would have to read a long prompt first.
#[test]
fn long_prompts_do_not_make_trials_expensive() {
    for method in ["speculative", "pearl", "auto"] {
        for (percent, rates) in [(10, [0.8, 0.3]), (40, [0.8, 0.1]), (30, [0.5, 0.9])] {
            let drafters = [
                (TARGET_NS / 10, AcceptanceModel::Iid(rates[0])),
                (TARGET_NS * percent / 100, AcceptanceModel::Iid(rates[1])),
            ];
            let world = World { prompt: 4_000, reading: 0.02, ..World::new(drafters, 400) };
            let name = format!("c 10 and {percent} %, α {rates:?}");
            let (to_plain, to_best) = world.speed_of_both(&name, method, 8);
            // A better drafter that reads for 24 passes is tried after some answers.
            let least = if rates[1] > rates[0] { 0.73 } else { 0.96 };
            assert!(to_plain > 0.98 && to_best > least, "{to_plain} {to_best}");
        }
    }
}

/// The first drafter fails. The other one goes on.
#[test]
fn a_drafter_that_fails_is_left() {
    for method in ["speculative", "pearl", "auto"] {
        for dies_ns in [0, 1, 100, 800] {
            let drafters = [
                (TARGET_NS / 20, AcceptanceModel::Iid(0.9)),
                (TARGET_NS / 10, AcceptanceModel::Iid(0.8)),
            ];
            let dies_ns = Some(dies_ns * TARGET_NS);
            let world = World { dies_ns, ..World::new(drafters, 3_000) };
            let single = world.run(method, &[1]) as f64;
            let ratio = single / world.run(method, &[0, 1]) as f64;
            eprintln!("{method}, fails after {dies_ns:?}: {ratio:.3} of the other drafter alone");
            assert!(ratio > 0.98, "{ratio}");
        }
    }
}

/// The second drafter is useless for long, and then much better than the first one.
#[test]
fn a_drafter_that_was_useless_is_tried_again() {
    for method in ["speculative", "pearl", "auto"] {
        for percent in [10, 40] {
            let drafters = [
                (TARGET_NS / 10, AcceptanceModel::Iid(0.5)),
                (TARGET_NS * percent / 100, alternating(4_000, false, 0.95, 0.02)),
            ];
            let name = format!("c {percent} %");
            let (to_plain, to_best) = World::new(drafters, 8_000).speed_of_both(&name, method, 1);
            assert!(to_plain > 1.3 && to_best > 0.97, "{to_plain} {to_best}");
        }
    }
}

/// Which drafter is the fastest follows the clock.
#[test]
fn reproducible_answers_have_the_first_drafter() {
    let drafter = |rate| (TARGET_NS / 10, AcceptanceModel::Iid(rate));
    let world = World::new([drafter(0.5), drafter(0.9)], 1_000);
    for method in ["speculative", "pearl", "auto"] {
        let [both, first] = [&[0, 1][..], &[0]].map(|drafters| {
            world.run_with(method, drafters, 1, |options| options.reproducible = true)
        });
        assert_eq!(both, first, "{method}");
    }
}

/// The drafter is also on the target's devices, where it may be faster because it has more cores.
/// Rounds that wait for a draft use it there, and others on its own device.
#[test]
fn a_drafter_on_two_devices_is_used_on_the_better_one() {
    let mut ratios = Vec::new();
    for (own, shared) in [(40, 15), (10, 10), (25, 5), (5, 10)] {
        for (rate, prompt) in
            [0.2, 0.5, 0.8, 0.95].into_iter().flat_map(|rate| [(rate, PROMPT), (rate, 1_000)])
        {
            let drafter = |percent| (TARGET_NS * percent / 100, AcceptanceModel::Iid(rate));
            let drafters = [drafter(own), drafter(shared)];
            let world = World { prompt, reading: 0.02, ..World::new(drafters, 500) };
            let repeat = |options: &mut DecoderOptions| options.repeats_drafters = true;
            let both = world.run_with("auto", &[0], 6, repeat) as f64;
            let to_one = world.run_answers("auto", &[0], 6) as f64 / both;
            let alone = [("speculative", 1), ("pearl", 0)];
            let alone = alone.map(|(method, drafter)| world.run_answers(method, &[drafter], 6));
            let to_best = alone[0].min(alone[1]) as f64 / both;
            eprintln!(
                "c {own} and {shared} %, α {rate}, {prompt} prompt tokens: {to_one:.3} of one device, {to_best:.3} of the best"
            );
            assert!(to_one > 0.985 && to_best > 0.82, "{to_one} {to_best}");
            ratios.push(to_best);
        }
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    assert!(mean > 0.98, "{mean}");
}

/// The drafter's own device fails. On the target's devices, it goes on.
#[test]
fn a_drafter_that_fails_on_one_device_is_used_on_the_other() {
    let drafter = (TARGET_NS / 10, AcceptanceModel::Iid(0.8));
    let world = World::new([drafter.clone(), drafter], 2_000);
    let repeat = |options: &mut DecoderOptions| options.repeats_drafters = true;
    let speculative = world.run("speculative", &[1]) as f64;
    for dies_ns in [0, 50, 300] {
        let dies = World { dies_ns: Some(dies_ns * TARGET_NS), ..world.clone() };
        let ratio = speculative / dies.run_with("auto", &[0], 1, repeat) as f64;
        eprintln!("fails after {dies_ns} passes: {ratio:.3} of speculative decoding");
        assert!(ratio > 0.97, "{ratio}");
    }
}

/// With a fixed number of draft tokens, no method pauses. The fastest one is used all the same.
#[test]
fn auto_compares_fixed_lengths() {
    for (percent, rate) in [(10, 0.2), (40, 0.1), (40, 0.8), (10, 0.9), (90, 0.3)] {
        let drafter = (TARGET_NS * percent / 100, AcceptanceModel::Iid(rate));
        let world = World::new([drafter.clone(), drafter], 2_000);
        let fix = |options: &mut DecoderOptions| {
            (options.length, options.draft_tokens) = (DraftLength::Fixed, 4);
            options.shape = DraftShape::Chain { length: 4 };
        };
        let times = ["speculative", "pearl", "dsi"];
        let times = times.map(|method| world.run_with(method, &[0], 1, fix));
        let best = times.into_iter().min().unwrap() as f64;
        let ratio = best / world.run_with("auto", &[0], 1, fix) as f64;
        eprintln!("c {percent} %, α {rate}: {ratio:.3} of the best");
        assert!(ratio > 0.93, "{ratio}");
    }
}

//! The choice between several drafters, with the production decoders in virtual time.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{DraftShape, Role, Sampling, SequenceId};
use forerun_decode::{
    Autoregressive, Decoder, DecoderOptions, DraftLength, DrafterSize, Limits, METHODS, Sequence,
    generate,
};
use forerun_sim::{AcceptanceModel, Cancellation, Cost, Device, Oracle, SimCluster};
use std::ops::ControlFlow;

const TARGET_NS: u64 = 1_000_000;
const PROMPT: usize = 50;

/// Two drafters and a target with a device each.
#[derive(Clone, Debug)]
struct World {
    drafters: [(u64, AcceptanceModel); 2],
    tokens: usize,
    seed: u64,
}

impl World {
    /// Decodes with the drafters of these indices, checks the text, and returns the time until the last token.
    fn run(&self, method: &str, drafters: &[usize]) -> u64 {
        let size = |&drafter: &usize| DrafterSize {
            expected_passes: Some(self.drafters[drafter].0 as f64 / TARGET_NS as f64),
            ..DrafterSize::default()
        };
        let entry = METHODS.iter().find(|entry| entry.name == method).unwrap();
        let shape = DraftShape::Chain { length: 16 };
        let options = DecoderOptions {
            drafter: drafters[0],
            expected_passes: size(&drafters[0]).expected_passes,
            additional_drafters: drafters[1..].iter().map(size).collect(),
            ..DecoderOptions::new(shape, DraftLength::Auto)
        };
        self.decode(&mut *(entry.decoder)(&options).for_next_answer(&options, PROMPT))
    }

    fn decode(&self, decoder: &mut dyn Decoder) -> u64 {
        let acceptance = self.drafters.iter().map(|(_, acceptance)| acceptance.clone());
        let oracle = Oracle { seed: self.seed, drafters: acceptance.collect() };
        let device = |name: String, role, ns| Device {
            name,
            roles: vec![role],
            cost: Cost { layers: 4, ..Cost::constant(ns) },
        };
        let drafters =
            self.drafters.iter().enumerate().map(|(index, &(ns, _))| {
                device(format!("drafter {index}"), Role::Drafter(index), ns)
            });
        let target = device("target".into(), Role::Target(0), TARGET_NS);
        let devices = drafters.chain([target]).collect();
        let cluster =
            SimCluster::new(devices, oracle.clone(), Cancellation::Immediate, Vec::new()).unwrap();
        let mut cluster = cluster.without_trace();
        let limits =
            Limits { max_tokens: self.tokens, context_length: usize::MAX, eos: Vec::new() };
        let prompt = oracle.text(PROMPT);
        let mut sequence = Sequence::new(SequenceId(0), prompt, Sampling::greedy(), limits);
        generate(decoder, &mut sequence, &mut cluster, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(sequence.tokens(), oracle.text(sequence.tokens().len()));
        cluster.now_ns()
    }
}

/// Text in which a drafter is good for `tokens` tokens, then bad for as many, or the other way round.
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
                let world = World { drafters: [drafter(0), drafter(1)], tokens: 3_000, seed: 1 };
                let plain = world.decode(&mut Autoregressive) as f64;
                let single = [0, 1].map(|drafter| world.run(method, &[drafter]) as f64);
                let both = world.run(method, &[0, 1]) as f64;
                let (to_plain, to_best) = (plain / both, single[0].min(single[1]) / both);
                eprintln!(
                    "{method}, c {percents:?} %, α {rates:?}: {to_plain:.3} of plain, {to_best:.3} of the better drafter alone"
                );
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
                    let world = World { drafters, tokens: 4 * tokens, seed };
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

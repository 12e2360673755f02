//! The choice between methods, with the production decoders in virtual time.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{DraftShape, Role, Sampling, SequenceId};
use forerun_decode::{
    AnswerDecoder, Auto, Autoregressive, Decoder, DraftLength, Dsi, DsiLookahead, Limits, Pearl,
    PearlDraftLength, PearlOptions, Sequence, Speculative, SpeculativeDraftLength, generate,
};
use forerun_sim::{AcceptanceModel, Cancellation, Cost, Device, Oracle, SimCluster};
use std::ops::ControlFlow;

const US: u64 = 1_000;
const TARGET_NS: u64 = 1_000 * US;
const TOKENS: usize = 3_000;

/// A drafter and a target with a device each.
#[derive(Clone, Debug)]
struct World {
    draft_ns: u64,
    acceptance: AcceptanceModel,
}

impl World {
    /// Decodes, checks the text, and returns the time until the last token.
    fn run(&self, decoder: &mut dyn Decoder) -> u64 {
        let oracle = Oracle { seed: 1, drafters: vec![self.acceptance.clone()] };
        let device = |name: &str, role, ns| Device {
            name: name.into(),
            roles: vec![role],
            cost: Cost { layers: 4, ..Cost::constant(ns) },
        };
        let devices = vec![
            device("drafter", Role::Drafter(0), self.draft_ns),
            device("target", Role::Target(0), TARGET_NS),
        ];
        let mut cluster =
            SimCluster::new(devices, oracle.clone(), Cancellation::Immediate, Vec::new()).unwrap();
        let limits = Limits { max_tokens: TOKENS, context_length: usize::MAX, eos: Vec::new() };
        let mut sequence = Sequence::new(SequenceId(0), oracle.text(3), Sampling::greedy(), limits);
        generate(decoder, &mut sequence, &mut cluster, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(sequence.tokens(), oracle.text(sequence.tokens().len()));
        cluster.now_ns()
    }
}

/// Speculative decoding, PEARL and DSI with automatic lengths.
fn methods() -> Vec<Box<dyn AnswerDecoder>> {
    let shape = DraftShape::Chain { length: 16 };
    let pearl = PearlDraftLength::new(16, DraftLength::Auto, true);
    vec![
        Box::new(Speculative::new(SpeculativeDraftLength::new(shape, DraftLength::Auto))),
        Box::new(Pearl::new(PearlOptions::default(), pearl)),
        Box::new(Dsi::new(1, DsiLookahead::new(16, DraftLength::Auto, 1))),
    ]
}

#[test]
fn auto_is_about_as_fast_as_the_best_method() {
    let mut ratios = Vec::new();
    for draft_percent in [5, 20, 50, 150] {
        for acceptance in [0.1, 0.5, 0.8, 0.95] {
            let world = World {
                draft_ns: TARGET_NS * draft_percent / 100,
                acceptance: AcceptanceModel::Iid(acceptance),
            };
            let plain = world.run(&mut Autoregressive) as f64;
            let best = methods().iter_mut().map(|method| world.run(&mut **method)).min().unwrap();
            let auto = world.run(&mut Auto::new(methods())) as f64;
            let (to_plain, to_best) = (plain / auto, best as f64 / auto);
            eprintln!(
                "c {draft_percent} %, α {acceptance}: {to_plain:.3} of plain, {to_best:.3} of the best"
            );
            assert!(to_plain > 0.98 && to_best > 0.75, "{world:?}: {to_plain} {to_best}");
            ratios.push(to_best);
        }
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    assert!(mean > 0.93, "{mean}");
}

//! The choice between methods, with the production decoders in virtual time.

use crate::common::{answer, pair};
use forerun_core::DraftShape;
use forerun_decode::{
    AnswerDecoder, Auto, Autoregressive, Decoder, DraftLength, Dsi, DsiLookahead, Pearl,
    PearlDraftLength, PearlOptions, Speculative, SpeculativeDraftLength,
};
use forerun_sim::{AcceptanceModel, Cancellation, Cost, Oracle, SimCluster};

const US: u64 = 1_000;
const TARGET_NS: u64 = 1_000 * US;
const TOKENS: usize = 3_000;

/// A drafter and a target with a device each.
#[derive(Clone, Debug)]
struct World {
    draft_ns: u64,
    acceptance: AcceptanceModel,
    /// The factor by which a pass takes longer while the other device works. Idle devices help each
    /// other if it is above 1.
    slowdown: f64,
}

impl World {
    /// Decodes, checks the text, and returns the time until the last token.
    fn run(&self, decoder: &mut dyn Decoder) -> u64 {
        let oracle = Oracle { seed: 1, drafters: vec![self.acceptance.clone()] };
        let cost = |ns| Cost { layers: 4, ..Cost::constant(ns) };
        let devices = pair(cost(self.draft_ns), cost(TARGET_NS));
        let cluster = SimCluster::new(devices, oracle.clone(), Cancellation::Immediate, Vec::new());
        let mut cluster = cluster.unwrap().with_lent_cores(self.slowdown);
        answer(decoder, &mut cluster, &oracle, 3, TOKENS).unwrap();
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

/// Returns the speed of `auto` compared with the target alone and with the best method, in worlds
/// of many kinds.
fn compare(slowdown: f64) -> Vec<[f64; 2]> {
    let mut ratios = Vec::new();
    for draft_percent in [5, 20, 50, 150] {
        for acceptance in [0.1, 0.5, 0.8, 0.95] {
            let draft_ns = TARGET_NS * draft_percent / 100;
            let world = World { draft_ns, acceptance: AcceptanceModel::Iid(acceptance), slowdown };
            let plain = world.run(&mut Autoregressive) as f64;
            let best = methods().iter_mut().map(|method| world.run(&mut **method)).min().unwrap();
            let auto = world.run(&mut Auto::new(methods())) as f64;
            let (to_plain, to_best) = (plain / auto, best as f64 / auto);
            eprintln!(
                "c {draft_percent} %, α {acceptance}, slowdown {slowdown}: {to_plain:.3} of plain, {to_best:.3} of the best"
            );
            ratios.push([to_plain, to_best]);
        }
    }
    ratios
}

/// Checks the speeds of [`compare`]. `mean`: the least mean compared with the best method.
fn check(ratios: &[[f64; 2]], mean: f64) {
    for &[to_plain, to_best] in ratios {
        assert!(to_plain > 0.98 && to_best > 0.93, "{ratios:?}");
    }
    let to_best = ratios.iter().map(|[_, to_best]| to_best).sum::<f64>() / ratios.len() as f64;
    assert!(to_best > mean, "{to_best}");
}

#[test]
fn auto_is_about_as_fast_as_the_best_method() {
    check(&compare(1.0), 0.98);
}

/// With two core groups of one machine, a method that drafts during verification takes the cores
/// that would help the target.
#[test]
fn auto_learns_what_drafting_during_verification_costs() {
    check(&compare(1.8), 0.97);
}

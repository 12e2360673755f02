//! The CPU and the slow reference compute the same bits for every architecture, weight type and
//! instruction set. Heads of blocks have no other device.

use crate::device::{Cpu, team};
use forerun_cpu::{BlockHeadWeights, CpuBlockHeads};
use forerun_formats::checkpoint::random_speculator::SpeculatorLayout as L;
use forerun_formats::{MarkovKind, SpeculatorArchitecture, WeightType};
use forerun_lm::{BlockPosition, ForwardBlockHeads};
use forerun_reference::{ReferenceBlockHeads, ReferenceModel};
use forerun_suite::Device;
use forerun_suite::speculators::Target;
use std::sync::Arc;

forerun_suite::reference_device!(Cpu);

/// The heads of DSpark and DFlash 2: for two rows of a block, the second one after the state of the
/// first.
#[test]
fn block_heads_have_the_bits_of_the_reference() {
    let target = Target::plain();
    let mut runs = Cpu.turns();
    let recurrent = L::DSpark(MarkovKind::Recurrent);
    let others = [L::DSpark(MarkovKind::Vanilla), L::DSpark(MarkovKind::Gated), L::DFlash2];
    for layout in std::iter::once(recurrent).chain(others) {
        let speculator = target.drafter(layout);
        let heads = speculator.block_heads().unwrap().unwrap();
        let SpeculatorArchitecture::Layers(layers) = speculator.architecture().unwrap() else {
            panic!("layers")
        };
        for (weight_type, run) in WeightType::all().into_iter().zip(&mut runs) {
            let weights = BlockHeadWeights::load(heads.clone(), &speculator, weight_type.into());
            let mut cpu = CpuBlockHeads::new(Arc::new(weights.unwrap()), team(run));
            let of_target =
                ReferenceModel::load_as(&target.checkpoint, weight_type, run.variant).unwrap();
            let arithmetic = Cpu.arithmetic(weight_type.into(), run.variant);
            let (layers, of_target) = (layers.clone(), Some(&of_target));
            let slow = ReferenceModel::load_with(layers, &speculator, arithmetic, of_target);
            let slow = Arc::new(slow.unwrap());
            let mut slow = ReferenceBlockHeads::load(heads.clone(), &speculator, slow).unwrap();
            let what = format!("{layout:?} in {weight_type} ({run:?})");
            let vocab_size = target.config.vocab_size;
            let state = state_after_rows(&mut cpu, &mut slow, (&[], vocab_size), &what);
            assert_eq!(state.is_empty(), layout != recurrent);
            state_after_rows(&mut cpu, &mut slow, (&state, vocab_size), &what);
        }
    }
}

/// Compares the corrections of three rows, of which the last predicts nothing, and returns the
/// state after the second.
fn state_after_rows(
    cpu: &mut CpuBlockHeads,
    slow: &mut ReferenceBlockHeads,
    (state, vocab_size): (&[f32], usize),
    what: &str,
) -> Vec<f32> {
    let hidden = |row: usize| -> Vec<f32> {
        (0..48).map(|i| ((row + 7 * i) % 23) as f32 / 9.0 - 1.2).collect()
    };
    let [first, second] = [hidden(0), hidden(1)];
    let candidates = [4, 0, 250, 17];
    let positions = [(&first, 5, true), (&second, 17, true), (&first, 9, false)];
    let positions = positions.map(|(hidden, previous, predicts)| BlockPosition {
        hidden,
        previous,
        state,
        predicts,
        candidates: if predicts { &candidates } else { &[] },
    });
    let found = cpu.forward(&positions);
    assert_eq!(found, slow.forward(&positions), "{what}");
    assert_eq!(cpu.candidates(), slow.candidates(), "{what}");
    let (confidence, biases) = (found[1].confidence, found[1].logit_bias.len());
    match cpu.candidates() {
        None => {
            assert!(confidence > 0.0 && confidence < 1.0, "{what}");
            assert_eq!(biases, vocab_size, "{what}");
        }
        Some(_) => {
            assert!(confidence == 1.0 && biases == candidates.len(), "{what}");
            assert_ne!(found[0].logit_bias, found[1].logit_bias, "{what}");
        }
    }
    assert!(found[2].logit_bias.is_empty(), "{what}");
    found[1].state.clone()
}

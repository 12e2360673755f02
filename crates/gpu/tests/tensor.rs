//! Row invariance on tensor cores, whose bits the reference does not have: each row has the bits of
//! a fresh pass over its prefix. Skipped where products are exact.

use crate::common::{configs, gpu};
use crate::device::TYPES;
use forerun_core::testing::cases;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_formats::checkpoint::random::RandomTensors;
use forerun_formats::{Config, WeightType};
use forerun_gpu::{Arithmetic, GpuDevice, GpuModel, GpuWeights};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use forerun_suite::check;
use forerun_suite::row_invariance::{Subject, steps};
use std::sync::Arc;

/// Returns the tests' GPU if it uses tensor cores.
fn tensor_gpu() -> Option<&'static Arc<GpuDevice>> {
    let device = gpu()?;
    println!("{}", device.arithmetic());
    matches!(device.arithmetic(), Arithmetic::Tensor { .. }).then_some(device)
}

/// Returns a model, and fresh ones. `None` if GPUs do not compute it.
fn subject(
    device: &Arc<GpuDevice>,
    config: &Config,
    weight_type: WeightType,
) -> Option<Subject<GpuModel>> {
    let architecture = config.architecture();
    let tensors = RandomTensors::new(&architecture, 5);
    let weights = GpuWeights::load_architecture(device, architecture, &tensors, weight_type);
    let weights = Arc::new(weights.ok()?);
    let model = move || CachedTransformer::new(GpuModel::new(Arc::clone(&weights)));
    let first = model();
    let fresh = move |prefix: &[TokenId]| {
        model().logits(&ForwardRequest::next_token(SequenceId(9), prefix)).unwrap().logits
    };
    Some(Subject { model: first, fresh: Box::new(fresh) })
}

/// All families, or with `FORERUN_CASES=1` every fifth, with the types of weights in turn: prompts
/// of several widths, and a tree.
#[test]
fn all_families_have_the_bits_of_fresh_passes() {
    let Some(device) = tensor_gpu() else { return };
    let text: Vec<TokenId> = (0..80).map(|index| index * 5 % 250).collect();
    let mut tree = TokenTree::chain(&[9, 4, 7]);
    tree.push(Some(0), 5);
    tree.push(None, 3);
    let mut types = TYPES.into_iter().filter(|own| *own != WeightType::F32).cycle();
    let step = if cases(2) > 1 { 1 } else { 5 };
    for (index, config) in configs().iter().enumerate().step_by(step) {
        let weight_type = types.next().unwrap();
        let Some(mut subject) = subject(device, config, weight_type) else { continue };
        for end in if index == 0 { &[1, 70, 80][..] } else { &[5, 14] } {
            let first_row = if *end > 20 { tree.len() - 1 } else { 0 };
            subject.check(&text[..*end], &tree, first_row).unwrap();
        }
    }
}

/// Sequences are cut and continued, branches of trees are accepted, and passes have up to 70 rows.
#[test]
fn any_script_of_passes_has_the_bits_of_fresh_passes() {
    let Some(device) = tensor_gpu() else { return };
    let kinds = (0..TYPES.len(), steps(70));
    check(cases(6), &kinds, |(kind, steps)| {
        subject(device, &configs()[0], TYPES[kind]).unwrap().follow(steps)
    });
}

//! Mixtures of experts: the choice of experts, their matrices, and what they cost. Families with
//! experts are also in the other tests.

use crate::common::{gpu, gpu_number};
use crate::device::{Gpu, TYPES, config_of};
use crate::reference_device::unsupported;
use forerun_core::{SequenceId, TokenId};
use forerun_formats::checkpoint::random::{
    RandomDtype, RandomTensors, scale_tensor, write_random_checkpoint,
};
use forerun_formats::{
    Checkpoint, Config, ExpertGroups, Experts, Family, Router, WeightType, Weighting,
};
use forerun_gpu::{GpuDevice, GpuModel, GpuOptions, GpuWeights};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use forerun_suite::{Device, Models, all_layers};
use std::path::Path;
use std::sync::Arc;

/// A model's checkpoint with experts, whose router has only zeros.
fn checkpoint_of_equal_scores(folder: &Path, config: &Config) -> Checkpoint {
    write_random_checkpoint(folder, config, 5, RandomDtype::F32).unwrap();
    let file = folder.join("model.safetensors");
    for layer in 0..config.num_hidden_layers {
        let router = format!("model.layers.{layer}.block_sparse_moe.gate.weight");
        scale_tensor(&file, &router, 0.0).unwrap();
    }
    Checkpoint::open(folder).unwrap()
}

/// Equal scores choose the first experts, and of equal groups the first ones.
#[test]
fn experts_with_equal_scores_have_the_bits_of_the_reference() {
    let Some(device) = Gpu::get() else { return };
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint_of_equal_scores(folder.path(), &config_of(Family::Mixtral));
    let two_groups = ExpertGroups { n_groups: 3, groups_per_token: 2, experts_scored: 2 };
    for (weighting, groups) in [
        (Weighting::Softmax, None),
        (Weighting::SoftmaxOfChosen, None),
        (Weighting::Sigmoid, Some(two_groups)),
    ] {
        let mut architecture = checkpoint.architecture().clone();
        for experts in architecture.layers.iter_mut().flat_map(|layer| &mut layer.experts) {
            experts.router = Router { weighting, groups, ..experts.router };
        }
        let models = Models::load(device, &architecture, &checkpoint, WeightType::F32, ());
        let name = format!("equal scores, {weighting:?}, {groups:?}");
        models.assert_same(device, device.best(), (&all_layers(&architecture), 40), &name);
    }
}

/// Experts in all types, in one buffer, in a buffer for each, and in several.
#[test]
fn experts_of_all_types_and_in_parts_have_the_bits_of_the_reference() {
    if gpu().is_none() {
        return;
    }
    let architecture = config_of(Family::Mixtral).architecture();
    let tensors = RandomTensors::new(&architecture, 5);
    for max_binding_bytes in [u64::MAX, 24 << 10, 12 << 10] {
        let options = GpuOptions { max_binding_bytes, ..GpuOptions::default() };
        let device = Gpu(GpuDevice::open_with(gpu_number(), options).unwrap());
        for weight_type in if max_binding_bytes == u64::MAX { &TYPES[..] } else { &TYPES[..1] } {
            let models = Models::load(&device, &architecture, &tensors, *weight_type, ());
            let name = format!("experts in {weight_type}, {max_binding_bytes} bytes at once");
            models.assert_same(&device, device.best(), (&all_layers(&architecture), 70), &name);
        }
    }
}

/// Norms of what routers and experts read, and stored factors, each alone and all together.
#[test]
fn experts_with_norms_and_factors_have_the_bits_of_the_reference() {
    let Some(device) = Gpu::get() else { return };
    let changes: [fn(&mut Experts); 4] = [
        |experts| experts.router.own_norm = true,
        |experts| experts.router.expert_scales = true,
        |experts| experts.own_norms = true,
        |experts| {
            experts.router = Router {
                own_norm: true,
                expert_scales: true,
                correction: true,
                weighting: Weighting::Sigmoid,
                ..experts.router
            };
            experts.own_norms = true;
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for family in [Family::Mixtral, Family::Qwen2Moe] {
            let mut architecture = config_of(family).architecture();
            architecture.layers.iter_mut().flat_map(|layer| &mut layer.experts).for_each(change);
            let tensors = RandomTensors::new(&architecture, 5);
            let models = Models::load(device, &architecture, &tensors, WeightType::F32, ());
            let name = format!("change {number} of {family}");
            models.assert_same(device, device.best(), (&all_layers(&architecture), 40), &name);
        }
    }
}

#[test]
fn too_many_experts_are_refused_by_name() {
    let Some(device) = gpu() else { return };
    let mut architecture = config_of(Family::Mixtral).architecture();
    let experts = architecture.layers.iter_mut().flat_map(|layer| &mut layer.experts);
    experts.for_each(|experts| experts.n_experts = 513);
    let tensors = RandomTensors::new(&architecture, 5);
    let piece = unsupported(device, &architecture, &tensors, WeightType::F32).unwrap();
    assert_eq!(piece, "513 experts, more than 512 (layer 0)");
}

/// Of experts, a pass reads those that some row has chosen. A layer with experts is fourteen
/// dispatches.
#[test]
fn the_cost_of_a_pass_counts_distinct_experts() {
    let Some(device) = gpu() else { return };
    let architecture = config_of(Family::Mixtral).architecture();
    let (layers, experts) = (architecture.layers.len(), architecture.layers[0].experts.unwrap());
    let chosen = experts.router.experts_per_token;
    let tensors = RandomTensors::new(&architecture, 5);
    // Rows of matrices are padded to eight weights.
    let bytes = |outputs: usize, inputs: usize| 4 * (outputs * inputs.next_multiple_of(8)) as u64;
    let (hidden, inner) = (architecture.hidden_size, experts.mlp.intermediate_size);
    let embedding = bytes(architecture.vocab_size, hidden);
    let expert = bytes(2 * inner, hidden) + bytes(hidden, inner);
    let types = WeightType::F32;
    let weights = GpuWeights::load_architecture(device, architecture, &tensors, types).unwrap();
    let weights = Arc::new(weights);
    let mut model = CachedTransformer::new(GpuModel::new(Arc::clone(&weights)));
    let tokens: Vec<TokenId> = (0..41).collect();
    for (end, rows) in [(1, 1), (2, 1), (41, 39)] {
        model.logits(&ForwardRequest::next_token(SequenceId(0), &tokens[..end])).unwrap();
        let cost = model.device().last_cost();
        println!("{cost}");
        assert_eq!((cost.rows, cost.submissions), (rows, 1));
        assert_eq!(cost.dispatches, 14 * layers + 3);
        let most = layers * experts.n_experts.min(rows * chosen);
        match rows {
            1 => assert_eq!(cost.experts, most),
            _ => assert!(((layers * chosen + 1)..=most).contains(&cost.experts)),
        }
        let unread = (layers * experts.n_experts - cost.experts) as u64 * expert;
        assert_eq!(cost.weight_bytes, weights.bytes() - embedding - unread);
    }
}

//! Drafters that were trained for a target: what all devices share, what comes home from a GPU, and
//! what GPUs refuse.

use crate::common::{gpu, gpu_number};
use crate::device::Gpu;
use forerun_core::{FeatureRows, Features, RowUse, SequenceId, TokenId, TokenTree};
use forerun_formats::checkpoint::random::example_config;
use forerun_formats::checkpoint::random_speculator::SpeculatorLayout as L;
use forerun_formats::{
    BlockType, Config, LoadError, Speculator, SpeculatorArchitecture, WeightType,
};
use forerun_gpu::{
    GpuDevice, GpuHeadWeights, GpuLoadError, GpuModel, GpuOptions, GpuWeights, LayerCount,
    LayerOptions,
};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::{BlockModel, EagleModel};
use forerun_suite::Device;
use forerun_suite::speculators::{POSITIONS, Target, assert_same_rounds};
use std::ops::ControlFlow;
use std::sync::Arc;

forerun_suite::speculators!(Gpu);

/// Returns a request that reads the best token of each row.
fn greedy<'a>(
    tokens: &'a [TokenId],
    (tree, features): (&'a TokenTree, &'a Features),
    vocab_size: usize,
) -> ForwardRequest<'a> {
    ForwardRequest {
        rows_for: RowUse::best(1, vocab_size),
        features: Some(features),
        ..ForwardRequest::new(SequenceId(1), tokens, tree)
    }
}

/// Of the hidden states that a drafter computes, only those come home from which its next rows or
/// its heads go on.
#[test]
fn only_hidden_states_that_are_read_come_home() {
    let Some(device) = gpu() else { return };
    let target = Target::plain();
    let whole = GpuWeights::load(device, &target.checkpoint, WeightType::Bf16).unwrap();
    let load = |layout| {
        let speculator = target.drafter(layout);
        let Ok(SpeculatorArchitecture::Layers(layers)) = speculator.architecture() else {
            panic!("a drafter of layers");
        };
        let mask = speculator.block().map(|block| block.mask);
        let width = layers.feature_width();
        let weights = GpuWeights::load_drafter(&whole, layers, &speculator, WeightType::Bf16);
        (GpuModel::new(Arc::new(weights.unwrap())), width, mask)
    };
    let tokens: Vec<TokenId> = (0..30).collect();
    let context = tokens.len() - 1;
    let features = |width| {
        let rows = (0..context * width).map(|index| (index % 37) as f32 / 18.0 - 1.0);
        let mut features = Features::new();
        features.push(FeatureRows::new(width, rows.collect()));
        features
    };
    let hidden = 4 * target.config.hidden_size;
    // Whether a row's keys and values fit the cache's type, and its best token.
    let (row, best) = (4, 8);

    // EAGLE: the prediction after the last token.
    let (layers, width, _) = load(L::Eagle);
    let (mut eagle, none, features_of_eagle) =
        (EagleModel::new(layers), TokenTree::new(), features(width));
    let request = greedy(&tokens, (&none, &features_of_eagle), target.config.vocab_size);
    eagle.logits(&request).unwrap();
    let found = eagle.device().last_cost().read_back_bytes;
    assert_eq!(found, (context * row + best + hidden) as u64);

    // A block: nothing, or all of it for heads after it.
    for (features_from, states) in [(None, 0), (Some(0), 1 + POSITIONS)] {
        let (layers, width, mask) = load(L::DFlash);
        let (mut block, features) = (BlockModel::new(layers), features(width));
        let tree = TokenTree::chain(&[mask.unwrap(); POSITIONS]);
        let request = greedy(&tokens, (&tree, &features), target.config.vocab_size);
        let request = ForwardRequest { first_row: 1, features_from, ..request };
        let output = block.logits(&request).unwrap();
        assert_eq!(output.features.is_some(), features_from.is_some());
        let found = block.device().last_cost().read_back_bytes;
        let rows = (1 + POSITIONS) * row + POSITIONS * best;
        assert_eq!(found, (rows + states * hidden) as u64);
    }
}

/// On a GPU whose kernels address 96 KiB of a buffer, the embedding and the head have several parts
/// each.
#[test]
fn drafters_in_several_buffers_have_the_bits_of_the_reference() {
    if gpu().is_none() {
        return;
    }
    let options = GpuOptions { max_binding_bytes: 96 << 10, ..GpuOptions::default() };
    let device = Gpu(GpuDevice::open_with(gpu_number(), options).unwrap());
    let config = Config { vocab_size: 2000, ..example_config() };
    let target = Target::of(config, false);
    for layout in [L::ReducedEagle, L::ReducedHydra, L::SharedHeadMedusa, L::Hydra] {
        let drafter = (&target, target.drafter(layout));
        let (typed, name) =
            ((WeightType::F32, device.best()), format!("{layout:?} in several buffers"));
        assert_same_rounds(&device, drafter, typed, (0, 30), &name);
    }
}

/// Loads a drafter in its own types next to weights of its target, and returns the error.
fn refused(target: &GpuWeights, speculator: &Speculator, types: WeightType) -> GpuLoadError {
    let loaded = match speculator.architecture().unwrap() {
        SpeculatorArchitecture::Layers(layers) => {
            GpuWeights::load_drafter(target, layers, speculator, types).map(|_| ())
        }
        SpeculatorArchitecture::Heads(heads) => {
            GpuHeadWeights::load(target, heads, speculator, types).map(|_| ())
        }
    };
    loaded.unwrap_err()
}

#[test]
fn drafters_that_gpus_do_not_compute_are_refused_by_name() {
    let Some(device) = gpu() else { return };
    let target = Target::plain();
    let of_target =
        GpuWeights::load_without_layers(device, &target.checkpoint, WeightType::F32).unwrap();
    for (layout, tensor) in
        [(L::Eagle3, "fc.weight"), (L::Medusa, "heads.0."), (L::DFlash2, "fc.weight")]
    {
        let q4_0 = WeightType::Quantized(BlockType::Q4_0);
        let error = refused(&of_target, &target.drafter(layout), q4_0).to_string();
        let words = format!("GPUs do not compute weights in q4_0 ({tensor}");
        assert!(error.contains(&words), "{layout:?}: {error}");
    }
    // Heads have as many inputs as the target's hidden state has numbers.
    for (layout, config) in [
        (L::Eagle3, Config { intermediate_size: 90, ..example_config() }),
        (L::Medusa, Config { hidden_size: 50, ..example_config() }),
    ] {
        let target = Target::of(config, false);
        let of_target = GpuWeights::load_final_norm(device, &target.checkpoint).unwrap();
        let error = refused(&of_target, &target.drafter(layout), WeightType::F32).to_string();
        assert!(error.contains("inputs, no multiple of 4 ("), "{layout:?}: {error}");
    }
}

/// The first layers or the final norm of a target lack the embedding and the head.
#[test]
fn drafters_need_what_they_share_with_their_target() {
    let Some(device) = gpu() else { return };
    let target = Target::plain();
    let options = LayerOptions::new(WeightType::F32, LayerCount::Exactly(1));
    let (architecture, source) = (target.checkpoint.architecture().clone(), &target.checkpoint);
    let never = &mut |_layers| ControlFlow::Continue(());
    let parts = [
        GpuWeights::load_first_layers(device, architecture, source, options, never).unwrap(),
        GpuWeights::load_final_norm(device, source).unwrap(),
    ];
    for layout in [
        L::SharedEmbeddingEagle,
        L::ReducedEagle,
        L::ParallelMedusa,
        L::SharedHeadMedusa,
        L::ReducedHydra,
        L::Hydra,
    ] {
        let speculator = target.drafter(layout);
        for part in &parts {
            let error = refused(part, &speculator, WeightType::F32);
            let is_missing = matches!(error, GpuLoadError::Load(LoadError::NoTarget));
            assert!(is_missing, "{layout:?}: {error}");
        }
    }
}

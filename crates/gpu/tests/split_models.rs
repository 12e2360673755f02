//! Models between a GPU and cores: a layer has the bits of its device, and a row depends only on its own prefix.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{configs, gpu};
use crate::comparison::outputs;
use forerun_core::testing::cases;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_cpu::{Team, Transformer, Weights};
use forerun_formats::checkpoint::random::RandomTensors;
use forerun_formats::{
    Architecture, BlockType, CacheType, Family, FeatureSource, ModelTypes, TensorSource, WeightType,
};
use forerun_gpu::{GpuLayers, GpuLoadError, GpuWeights, LayerCount, LayerOptions};
use forerun_lm::fake::row_prefix;
use forerun_lm::{ForwardRequest, LanguageModel, ModelError};
use forerun_model::{CachedTransformer, SplitModel};
use forerun_reference::{Arithmetic, ReferenceDevice, ReferenceLayers, ReferenceModel};
use forerun_vector::Isa;
use proptest::prelude::*;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// A model between the GPU and cores, and the same between two references.
struct Split {
    gpu: Arc<GpuWeights>,
    cores: Arc<Weights>,
    references: [Arc<ReferenceModel>; 2],
    layers: usize,
}

impl Split {
    fn load(
        architecture: &Architecture,
        source: &dyn TensorSource,
        weights: WeightType,
        count: LayerCount,
    ) -> Result<Self, GpuLoadError> {
        let device = gpu().unwrap();
        let types: ModelTypes = weights.into();
        let never = &mut |_layers| ControlFlow::Continue(());
        let gpu = GpuWeights::load_first_layers(
            device,
            architecture.clone(),
            source,
            LayerOptions::new(types, count),
            never,
        )?;
        let layers = gpu.n_layers();
        let types = ModelTypes { cache: Some(gpu.cache_type()), ..types };
        let none = &mut |_| ();
        let cores = Weights::load_from_layer(layers, architecture.clone(), source, types, none);
        let isa = Isa::from_environment().unwrap();
        let references = [Arithmetic::gpu(types), Arithmetic::cpu(types, isa)].map(|arithmetic| {
            let loaded = ReferenceModel::load_with(architecture.clone(), source, arithmetic, None);
            Arc::new(loaded.unwrap())
        });
        Ok(Self { gpu: Arc::new(gpu), cores: Arc::new(cores.unwrap()), references, layers })
    }

    fn model(
        &self,
        features: Option<&FeatureSource>,
    ) -> CachedTransformer<SplitModel<GpuLayers, Transformer>> {
        let rest = Transformer::new(Arc::clone(&self.cores), Arc::new(Team::single_thread()));
        let rest = match features {
            Some(features) => rest.with_features(features.clone()),
            None => rest,
        };
        let first = GpuLayers::new(Arc::clone(&self.gpu));
        CachedTransformer::new(SplitModel::new(first, rest, features))
    }

    fn reference(
        &self,
        features: &FeatureSource,
    ) -> CachedTransformer<SplitModel<ReferenceLayers, ReferenceDevice>> {
        let [gpu, cores] = &self.references;
        let first = ReferenceLayers::new(Arc::clone(gpu), self.layers);
        let rest = ReferenceDevice::new(Arc::clone(cores)).with_features(features.clone());
        CachedTransformer::new(SplitModel::new(first, rest, Some(features)))
    }
}

/// Every family, with each number of layers that GPUs compute; the types take turns.
#[test]
fn layers_have_the_bits_of_their_device_in_all_families() {
    if gpu().is_none() {
        return;
    }
    let types = [
        WeightType::F32,
        WeightType::Bf16,
        WeightType::F16,
        WeightType::INT8,
        WeightType::Quantized(BlockType::Q4_K),
        WeightType::Quantized(BlockType::Q6_K),
    ];
    let mut types = types.into_iter().cycle();
    let (mut computed, mut refused) = (0, Vec::new());
    for (number, config) in configs().into_iter().enumerate() {
        let architecture = config.architecture();
        let tensors = RandomTensors::new(&architecture, 5);
        let n_layers = architecture.layers.len();
        let features = FeatureSource::Layers((0..=n_layers).collect());
        for layers in 1..=n_layers {
            let weights = types.next().unwrap();
            let name = format!("{} ({number}), {layers} layers, {weights}", config.family);
            match Split::load(&architecture, &tensors, weights, LayerCount::Exactly(layers)) {
                Ok(split) => {
                    assert_eq!(split.layers, layers);
                    let features =
                        if layers % 2 == 0 { &FeatureSource::LastHidden } else { &features };
                    let found = outputs(&mut split.model(Some(features)), None, 40);
                    let expected = outputs(&mut split.reference(features), None, 40);
                    let different = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
                    assert_eq!((found.len(), different), (expected.len(), 0), "{name}");
                    computed += 1;
                }
                Err(
                    GpuLoadError::Unsupported { piece }
                    | GpuLoadError::UnsupportedLayers { piece, .. },
                ) => refused.push(format!("{name}: {piece}")),
                Err(error) => panic!("{error}"),
            }
        }
    }
    println!("{computed} are computed\nrefused: {refused:#?}");
    assert!(computed >= 50, "{computed} are computed");
}

/// A model whose first layers GPUs do not compute is refused by name; one whose later layers they do not compute has the
/// others there.
#[test]
fn layers_that_gpus_do_not_compute_stay_on_cores() {
    if gpu().is_none() {
        return;
    }
    let config = configs().into_iter().find(|config| config.family == Family::Lfm2).unwrap();
    let mut architecture = config.architecture();
    let load = |architecture: &Architecture, count| {
        let tensors = RandomTensors::new(architecture, 5);
        Split::load(architecture, &tensors, WeightType::F32, count)
    };
    architecture.layers[0].recurrent.as_mut().unwrap().kernel = 9;
    let error = load(&architecture, LayerCount::AsManyAsFit).err().unwrap().to_string();
    assert!(error.contains("convolutions over 9 positions, more than 8 (layer 0)"), "{error}");
    // With a layer of attention first, that one is on the GPU, and states are on the cores.
    architecture.layers.swap(0, 1);
    let split = load(&architecture, LayerCount::AsManyAsFit).unwrap();
    assert_eq!(split.layers, 1);
    let features = FeatureSource::LastHidden;
    let found = outputs(&mut split.model(Some(&features)), None, 40);
    assert_eq!(found, outputs(&mut split.reference(&features), None, 40));
    let error = load(&architecture, LayerCount::Exactly(2)).err().unwrap().to_string();
    assert!(error.contains("at most 1 of") && error.contains("(layer 1)"), "{error}");
}

/// Recurrent layers on both devices keep their states there.
#[test]
fn recurrent_layers_on_both_devices_have_their_bits() {
    if gpu().is_none() {
        return;
    }
    for family in [Family::Lfm2, Family::Qwen3Next, Family::GraniteMoeHybrid] {
        let config = configs().into_iter().find(|config| config.family == family).unwrap();
        let mut architecture = config.architecture();
        let recurrent = architecture.layers[0].clone();
        assert!(recurrent.recurrent.is_some(), "{family}");
        architecture.layers.push(recurrent);
        let tensors = RandomTensors::new(&architecture, 5);
        let split = Split::load(&architecture, &tensors, WeightType::F32, LayerCount::Exactly(2));
        let split = split.unwrap();
        let features = FeatureSource::LastHidden;
        let found = outputs(&mut split.model(Some(&features)), None, 40);
        assert_eq!(found, outputs(&mut split.reference(&features), None, 40), "{family}");
        let tokens: Vec<TokenId> = (0..40).map(|index| index * 5 % 250).collect();
        let mut tree = TokenTree::chain(&[9, 4]);
        tree.push(Some(0), 5);
        let mut model = split.model(None);
        for end in [5, 40, 38, 20, 40] {
            check_rows_of(&split, &mut model, (&tokens[..end], &tree), 0).unwrap();
        }
    }
}

/// The model of the tests of rows.
fn split() -> Option<&'static Split> {
    static SPLIT: OnceLock<Option<Split>> = OnceLock::new();
    let load = || {
        gpu()?;
        let architecture = configs()[0].architecture();
        let tensors = RandomTensors::new(&architecture, 5);
        Split::load(&architecture, &tensors, WeightType::Bf16, LayerCount::Exactly(1)).ok()
    };
    SPLIT.get_or_init(load).as_ref()
}

type Model = CachedTransformer<SplitModel<GpuLayers, Transformer>>;

/// Compares each row of the model of the tests of rows with a fresh forward pass over its prefix.
fn check_rows(
    model: &mut Model,
    tokens: &[TokenId],
    tree: &TokenTree,
    first_row: usize,
) -> Result<(), TestCaseError> {
    check_rows_of(split().unwrap(), model, (tokens, tree), first_row)
}

/// Compares each row with a fresh forward pass over its prefix.
fn check_rows_of(
    split: &Split,
    model: &mut Model,
    (tokens, tree): (&[TokenId], &TokenTree),
    first_row: usize,
) -> Result<(), TestCaseError> {
    let request =
        ForwardRequest { tree, first_row, ..ForwardRequest::next_token(SequenceId(0), tokens) };
    let logits = model.logits(&request).unwrap();
    prop_assert_eq!(logits.rows().count(), tree.len() + 1 - first_row);
    for (row, logits) in (first_row..).zip(logits.rows()) {
        let prefix = row_prefix(tokens, tree, row.checked_sub(1));
        let fresh = ForwardRequest::next_token(SequenceId(9), &prefix);
        let expected = split.model(None).logits(&fresh).unwrap().logits;
        let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        prop_assert!(bits(logits) == bits(&expected), "row {} after {:?}", row, prefix);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(12)))]

    /// Sequences are cut and continued, and branches of trees are accepted, so rows are copied on both devices.
    #[test]
    fn every_row_has_the_bits_of_a_fresh_forward(
        steps in prop::collection::vec(
            (
                0..40_usize,
                0..64_usize,
                prop::collection::vec(0..4_u32, 0..6),
                prop::collection::vec((0..64_usize, 0..4_u32), 0..24),
                0..8_usize,
            ),
            1..6,
        ),
    ) {
        let Some(split) = split() else { return Ok(()) };
        let mut model = split.model(None);
        let (mut tokens, mut tree) = (vec![1], TokenTree::new());
        for (keep, follow, append, nodes, first_row) in steps {
            if !tree.is_empty() {
                let path = tree.path(follow % tree.len());
                tokens.extend(path.into_iter().map(|node| tree.token(node)));
            }
            tokens.truncate(1 + keep % tokens.len());
            tokens.extend(append);
            tree = TokenTree::new();
            for (parent, token) in nodes {
                tree.push((parent % (tree.len() + 1)).checked_sub(1), token);
            }
            check_rows(&mut model, &tokens, &tree, first_row % (tree.len() + 1))?;
        }
    }
}

/// Cancels at many moments, also between the devices. Later passes have the right rows.
#[test]
fn a_cancelled_forward_leaves_both_caches_unchanged() {
    let Some(split) = split() else { return };
    let mut model = split.model(None);
    let tokens: Vec<TokenId> = (0..80).map(|index| index * 5 % 250).collect();
    let mut tree = TokenTree::chain(&[9]);
    let branch = tree.push(None, 5);
    tree.push(Some(branch), 6);
    let mut cancelled = 0;
    for moment in 0..40 {
        check_rows(&mut model, &tokens[..3], &tree, 0).unwrap();
        let accepted = [&tokens[..3], &[5, 6]].concat();
        let longer = [&accepted[..], &tokens[5..]].concat();
        let switch = AtomicBool::new(moment == 0);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..moment * 200).for_each(|_| std::hint::spin_loop());
                switch.store(true, Ordering::Relaxed);
            });
            let request = ForwardRequest::next_token(SequenceId(0), &longer);
            model.logits(&ForwardRequest { cancel: &switch, ..request })
        });
        if let Err(error) = outcome {
            assert_eq!(error, ModelError::Cancelled);
            cancelled += 1;
        }
        check_rows(&mut model, &accepted, &TokenTree::chain(&[1]), 1 - moment % 2).unwrap();
    }
    println!("{cancelled} of 40 forwards were cancelled");
    assert!(cancelled > 0);
}

/// Both devices keep the same type of keys and values, and as many layers as there are fit on a GPU with free memory.
#[test]
fn all_layers_of_a_small_model_fit() {
    let Some(device) = gpu() else { return };
    println!("free: {:?} MiB", device.free_memory().map(|bytes| bytes >> 20));
    let architecture = configs()[0].architecture();
    let tensors = RandomTensors::new(&architecture, 5);
    let split = Split::load(&architecture, &tensors, WeightType::F16, LayerCount::AsManyAsFit);
    let split = split.unwrap();
    assert_eq!(split.layers, architecture.layers.len());
    assert_eq!([split.gpu.cache_type(), split.cores.cache_type()], [CacheType::F16; 2]);
    let features = FeatureSource::LastHidden;
    let found = outputs(&mut split.model(Some(&features)), None, 40);
    assert_eq!(found, outputs(&mut split.reference(&features), None, 40));
}

//! Models between a GPU and cores: a layer has the bits of its device, and a row depends only on
//! its own prefix.

use crate::common::{configs, gpu};
use crate::device::{TYPES, config_of};
use forerun_core::testing::cases;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_cpu::{CorePart, Team, Transformer, Weights};
use forerun_formats::checkpoint::random::RandomTensors;
use forerun_formats::{
    Architecture, CacheType, Family, FeatureSource, ModelTypes, TensorSource, WeightType,
};
use forerun_gpu::{GpuLayers, GpuLoadError, GpuWeights, LayerCount, LayerOptions};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::{CachedTransformer, SplitModel};
use forerun_reference::{Arithmetic, ReferenceDevice, ReferenceLayers, ReferenceModel};
use forerun_suite::row_invariance::{Subject, steps};
use forerun_suite::{check, outputs};
use forerun_vector::Isa;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A model between the GPU and cores, and the same between two references.
struct Split {
    gpu: Arc<GpuWeights>,
    cores: Arc<Weights>,
    references: [Arc<ReferenceModel>; 2],
    layers: usize,
    /// How many of them have their experts on cores.
    without_experts: usize,
}

impl Split {
    fn load(
        architecture: &Architecture,
        source: &dyn TensorSource,
        weights: WeightType,
        count: LayerCount,
    ) -> Result<Self, GpuLoadError> {
        Self::load_without_experts(0, architecture, source, weights, count)
    }

    fn load_without_experts(
        without_experts: usize,
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
            LayerOptions { without_experts, ..LayerOptions::new(types, count) },
            never,
        )?;
        let layers = gpu.n_layers();
        let types = ModelTypes { cache: Some(gpu.cache_type()), ..types };
        let rest = CorePart::FromLayer { first: layers, experts: without_experts };
        let cores = Weights::load_part(rest, architecture.clone(), source, types, &mut |_| ());
        let cores = cores.unwrap();
        let least = rest.least_memory(architecture, source, types).unwrap();
        assert!(cores.bytes() <= least, "{} bytes, planned {least}", cores.bytes());
        let isa = Isa::from_environment().unwrap();
        let references = [Arithmetic::gpu(types), Arithmetic::cpu(types, isa)].map(|arithmetic| {
            let loaded = ReferenceModel::load_with(architecture.clone(), source, arithmetic, None);
            Arc::new(loaded.unwrap())
        });
        let (gpu, cores) = (Arc::new(gpu), Arc::new(cores));
        Ok(Self { gpu, cores, references, layers, without_experts })
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
        let first = ReferenceLayers::new(Arc::clone(gpu), self.layers, self.without_experts);
        let rest = ReferenceDevice::new(Arc::clone(cores)).with_features(features.clone());
        CachedTransformer::new(SplitModel::new(first, rest, Some(features)))
    }
}

/// Every family, with each number of layers that GPUs compute, also with the first one's experts on
/// cores; the types take turns.
#[test]
fn layers_have_the_bits_of_their_device_in_all_families() {
    if gpu().is_none() {
        return;
    }
    let mut types = TYPES.into_iter().cycle();
    let (mut computed, mut refused) = (0, Vec::new());
    for (number, config) in configs().into_iter().enumerate() {
        let architecture = config.architecture();
        let tensors = RandomTensors::new(&architecture, 5);
        let n_layers = architecture.layers.len();
        let features = FeatureSource::Layers((0..=n_layers).collect());
        let has_experts = architecture.layers.iter().any(|layer| layer.experts.is_some());
        let splits = (1..=n_layers).flat_map(|layers| {
            (0..=usize::from(has_experts)).map(move |without_experts| (layers, without_experts))
        });
        for (layers, without) in splits {
            let weights = types.next().unwrap();
            let family = config.family;
            let name = format!("{family} ({number}), {layers} layers, {without}, {weights}");
            let count = LayerCount::Exactly(layers);
            match Split::load_without_experts(without, &architecture, &tensors, weights, count) {
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

/// A model whose first layers GPUs do not compute is refused by name; one whose later layers they
/// do not compute has the others there.
#[test]
fn layers_that_gpus_do_not_compute_stay_on_cores() {
    if gpu().is_none() {
        return;
    }
    let config = config_of(Family::Lfm2);
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

/// What GPUs do not compute of experts does not matter where cores have them.
#[test]
fn cores_have_experts_that_gpus_do_not_compute() {
    if gpu().is_none() {
        return;
    }
    let mut architecture = config_of(Family::Mixtral).architecture();
    let experts = architecture.layers.iter_mut().flat_map(|layer| &mut layer.experts);
    experts.for_each(|experts| experts.n_experts = 513);
    let tensors = RandomTensors::new(&architecture, 5);
    let load = |without_experts| {
        let (types, count) = (WeightType::F32, LayerCount::AsManyAsFit);
        Split::load_without_experts(without_experts, &architecture, &tensors, types, count)
    };
    assert!(load(0).err().unwrap().to_string().contains("513 experts"));
    assert_eq!(load(1).unwrap().layers, 1);
}

/// Recurrent layers on both devices keep their states there.
#[test]
fn recurrent_layers_on_both_devices_have_their_bits() {
    if gpu().is_none() {
        return;
    }
    for family in [Family::Lfm2, Family::Qwen3Next, Family::GraniteMoeHybrid] {
        let config = config_of(family);
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
        let mut subject = subject(split);
        for end in [5, 40, 38, 20, 40] {
            subject.check(&tokens[..end], &tree, 0).unwrap();
        }
    }
}

/// Compares rows with those of fresh passes over their prefixes.
fn subject(split: Split) -> Subject<SplitModel<GpuLayers, Transformer>> {
    let model = split.model(None);
    let fresh = move |prefix: &[TokenId]| {
        let request = ForwardRequest::next_token(SequenceId(9), prefix);
        split.model(None).logits(&request).unwrap().logits
    };
    Subject { model, fresh: Box::new(fresh) }
}

/// The models of the tests of rows: one without experts, and one with experts on cores.
fn subjects() -> [Subject<SplitModel<GpuLayers, Transformer>>; 2] {
    [&configs()[0], &config_of(Family::Qwen2Moe)].map(|config| {
        let architecture = config.architecture();
        let tensors = RandomTensors::new(&architecture, 5);
        let one = LayerCount::Exactly(1);
        let types = WeightType::Bf16;
        subject(Split::load_without_experts(1, &architecture, &tensors, types, one).unwrap())
    })
}

/// Sequences are cut and continued, and branches of trees are accepted, so rows are copied on both
/// devices.
#[test]
fn every_row_has_the_bits_of_a_fresh_forward() {
    if gpu().is_some() {
        check(cases(12), &steps(24), |steps| {
            subjects().iter_mut().try_for_each(|subject| subject.follow(steps.clone()))
        });
    }
}

/// Cancels at many moments, also between the devices. Later passes have the right rows.
#[test]
fn a_cancelled_forward_leaves_both_caches_unchanged() {
    if gpu().is_some() {
        subjects().into_iter().for_each(|subject| subject.cancel_at_many_times(40));
    }
}

/// Both devices keep the same type of keys and values, and as many layers as there are fit on a GPU
/// with free memory.
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

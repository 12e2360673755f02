//! Two devices, one model: the CPU and the reference compute the same bits for every architecture, weight
//! type and instruction set, in passes over several sequences, trees, features and layer groups.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_cache::Keep;
use forerun_core::testing::is_complete;
use forerun_core::{FeatureRows, Features, SequenceId, TokenId, TokenTree};
use forerun_cpu::{
    BlockHeadWeights, CpuBlockHeads, CpuHeads, Isa, SpeculatorWeights, Team, Transformer, Weights,
};
use forerun_formats::checkpoint::gguf::write_gguf;
use forerun_formats::checkpoint::random::{
    RandomDtype, RandomTensors, example_config, example_families, write_random_checkpoint,
};
use forerun_formats::checkpoint::random_speculator::{
    Eagle3Options, RandomSpeculator, SpeculatorLayout,
};
use forerun_formats::checkpoint::{LayerTensor, Tensor, TensorRows};
use forerun_formats::{
    Architecture, Attention, BlockType, CacheType, Checkpoint, Config, DraftHeads, Factors,
    FeatureSource, Head, Input, Layer, LoadError, MarkovKind, MatrixTypes, Mix, Mlp, ModelTypes,
    Norm, PositionTable, QkNorms, Rope, RopeScaling, Speculator, SpeculatorArchitecture,
    SpeculatorKind, TensorSource, WeightType,
};
use forerun_lm::{
    BatchEntry, BlockPosition, ForwardBlockHeads, ForwardRequest, LanguageModel, LayerGroups,
    LayerOrder, LayeredModel, Progress,
};
use forerun_model::{
    BlockModel, CachedTransformer, EagleModel, Forward, HeadsModel, SequenceRunner,
};
use forerun_reference::{
    Arithmetic, ReferenceBlockHeads, ReferenceDevice, ReferenceHeads, ReferenceModel,
};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The number of families that are tested on every instruction set, with the most frequent types.
const WHOLLY_TESTED: usize = 4;
/// The types that are tested on every instruction set. The others take turns.
const TYPES: [WeightType; 4] =
    [WeightType::F32, WeightType::Bf16, WeightType::INT8, WeightType::Quantized(BlockType::Q4_K)];

/// A model on both devices.
struct Devices {
    cpu: CachedTransformer<Transformer>,
    reference: CachedTransformer<ReferenceDevice>,
}

fn devices(
    architecture: &Architecture,
    source: &dyn TensorSource,
    (types, isa): (impl Into<ModelTypes>, Isa),
) -> Devices {
    let types = types.into();
    let features = FeatureSource::Layers(vec![0, architecture.layers.len()]);
    let weights = Weights::load_architecture(architecture.clone(), source, None, types);
    let team = Arc::new(Team::unpinned(2).unwrap().with_isa(isa));
    let cpu = Transformer::new(Arc::new(weights.unwrap()), team).with_features(features.clone());
    let arithmetic = Arithmetic::cpu(types, isa);
    let model = ReferenceModel::load_with(architecture.clone(), source, arithmetic, None).unwrap();
    let reference = ReferenceDevice::new(Arc::new(model)).with_features(features);
    Devices { cpu: CachedTransformer::new(cpu), reference: CachedTransformer::new(reference) }
}

/// Returns the bits of logits and features of three sequences in the same passes: a long prompt, a tree,
/// and a single row; then of an approximate chain, and of a continuation.
fn outputs(model: &mut impl LayeredModel, n_layers: usize) -> Vec<u32> {
    let prompt = |len: u32, step: u32| (0..len).map(|i| i * step % 250).collect::<Vec<TokenId>>();
    let (long, short, mut last) = (prompt(40, 7), prompt(9, 5), prompt(3, 11));
    let mut tree = TokenTree::new();
    for (parent, token) in [(None, 4), (Some(0), 5), (Some(0), 6), (None, 4), (Some(2), 9)] {
        tree.push(parent, token);
    }
    let none = TokenTree::new();
    let requests = [
        ForwardRequest {
            features_from: Some(30),
            ..ForwardRequest::new(SequenceId(1), &long, &none)
        },
        ForwardRequest {
            features_from: Some(0),
            ..ForwardRequest::new(SequenceId(2), &short, &tree)
        },
        ForwardRequest::new(SequenceId(3), &last, &none),
    ];
    let mut bits = Vec::new();
    let mut run = |requests: &[ForwardRequest<'_>]| {
        let mut progress: Vec<Progress> = requests.iter().map(|_| Progress::default()).collect();
        while progress.iter().any(|progress| progress.result.is_none()) {
            let entries = requests.iter().zip(&mut progress);
            let entries = entries.map(|(&request, progress)| BatchEntry { request, progress });
            model.forward(&mut entries.collect::<Vec<_>>());
        }
        for output in progress.into_iter().map(|progress| progress.result.unwrap().unwrap()) {
            let features = output.features.iter().flat_map(|rows| (0..).map_while(|i| rows.row(i)));
            let values = output.logits.iter().chain(features.flatten());
            bits.extend(values.map(|value| value.to_bits()));
        }
    };
    run(&requests);
    let groups = LayerGroups::of_sizes(&[n_layers]);
    let (order, exact_tokens) = (LayerOrder::Groups(&groups), last.len());
    let approximate = ForwardRequest::new(SequenceId(3), &last, &tree);
    run(&[ForwardRequest { order, exact_tokens, ..approximate }]);
    last.extend([4, 6, 9]);
    run(&[ForwardRequest::new(SequenceId(3), &last, &none)]);
    bits
}

/// Asserts that both devices compute the same bits, with all instruction sets for the most frequent types. A sample
/// has one instruction set for each type. It begins with the given one, and has a third of the types, other ones for each
/// number.
fn assert_same(
    architecture: &Architecture,
    source: &dyn TensorSource,
    name: &str,
    sample: Option<usize>,
) {
    let mut turns = Isa::available().into_iter().cycle().skip(sample.unwrap_or(0));
    for (number, weight_type) in WeightType::all().into_iter().enumerate() {
        if sample.is_some_and(|sample| (number + sample) % 3 > 0) {
            continue;
        }
        let on_all = TYPES.contains(&weight_type) && sample.is_none();
        for isa in turns.by_ref().take(if on_all { Isa::available().len() } else { 1 }) {
            let Devices { mut cpu, mut reference } =
                devices(architecture, source, (weight_type, isa));
            let n_layers = architecture.layers.len();
            let same = outputs(&mut cpu, n_layers) == outputs(&mut reference, n_layers);
            assert!(same, "{name} in {weight_type} on {isa}");
        }
    }
}

/// Most families run on a sample of the instruction sets and types, and on all of them with `FORERUN_CASES` (`just rows`).
#[test]
fn families_have_the_same_bits_on_both_devices() {
    let all = is_complete();
    let configs = [example_config()].into_iter().chain(example_families());
    for (number, config) in configs.enumerate() {
        let dir = tempfile::tempdir().unwrap();
        write_random_checkpoint(dir.path(), &config, 5, RandomDtype::F32).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let sample = Some(number).filter(|_| !all && number >= WHOLLY_TESTED);
        assert_same(checkpoint.architecture(), &checkpoint, &format!("{config:?}"), sample);
    }
}

#[test]
fn all_types_of_caches_have_the_same_bits_on_both_devices() {
    for config in [example_config()].into_iter().chain(example_families()) {
        let dir = tempfile::tempdir().unwrap();
        write_random_checkpoint(dir.path(), &config, 5, RandomDtype::F32).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let architecture = checkpoint.architecture();
        for (cache, isa) in CacheType::ALL.into_iter().zip(Isa::available().into_iter().cycle()) {
            let types = ModelTypes { cache: Some(cache), ..ModelTypes::default() };
            let Devices { mut cpu, mut reference } =
                devices(architecture, &checkpoint, (types, isa));
            let n_layers = architecture.layers.len();
            let same = outputs(&mut cpu, n_layers) == outputs(&mut reference, n_layers);
            assert!(same, "{config:?} with a cache in {cache} on {isa}");
        }
    }
}

/// The sizes have blocks of 256 and of 32, and some projections have two types of blocks.
#[test]
fn mixes_have_the_same_bits_on_both_devices() {
    let mut turns = Isa::available().into_iter().cycle();
    for (hidden_size, intermediate_size) in [(256, 288), (96, 256)] {
        let config = Config {
            hidden_size,
            intermediate_size,
            num_attention_heads: 4,
            num_key_value_heads: 1,
            head_dim: hidden_size / 4,
            tie_word_embeddings: hidden_size == 96,
            ..example_config()
        };
        let architecture = config.architecture();
        let source = RandomTensors::new(&architecture, 7);
        for (mix, isa) in Mix::ALL.into_iter().zip(&mut turns) {
            let types = MatrixTypes::of_model(Some(mix.into()), &architecture, &source).unwrap();
            let [query, value] = [LayerTensor::Query, LayerTensor::Value]
                .map(|part| types.of(Tensor::Layer(1, part)));
            assert!(query != value || matches!(mix, Mix::Q3_K_S | Mix::Q5_K_S));
            let Devices { mut cpu, mut reference } = devices(&architecture, &source, (mix, isa));
            let same = outputs(&mut cpu, 2) == outputs(&mut reference, 2);
            assert!(same, "{mix} with hidden size {hidden_size} on {isa}");
        }
    }
}

/// Projections of floats and blocks are computed in f32, and stored blocks are not quantised again.
#[test]
fn partly_quantised_projections_have_the_same_bits_on_both_devices() {
    let config = Config {
        hidden_size: 64,
        intermediate_size: 64,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 16,
        ..example_config()
    };
    let folder = tempfile::tempdir().unwrap();
    write_random_checkpoint(folder.path(), &config, 5, RandomDtype::Bf16).unwrap();
    let floats = Checkpoint::open(folder.path()).unwrap();
    let file = folder.path().join("blocks.gguf");
    let q5_0 = WeightType::Quantized(BlockType::Q5_0);
    write_gguf(&floats, &file, q5_0, &[]).unwrap();
    let source = PartlyQuantised { floats, blocks: Checkpoint::open(&file).unwrap() };
    let architecture = source.floats.architecture();
    let isa = Isa::best();
    let q4_0 = WeightType::Quantized(BlockType::Q4_0);
    for types in [ModelTypes::default(), q5_0.into(), q4_0.into()] {
        let Devices { mut cpu, mut reference } = devices(architecture, &source, (types, isa));
        assert_eq!(outputs(&mut cpu, 2), outputs(&mut reference, 2), "{types:?}");
    }
}

/// A checkpoint whose queries and outputs of attention are stored as blocks.
struct PartlyQuantised {
    floats: Checkpoint,
    blocks: Checkpoint,
}

impl TensorSource for PartlyQuantised {
    fn has(&self, tensor: Tensor) -> bool {
        self.floats.has(tensor)
    }

    fn rows(&self, tensor: Tensor, _shape: &[usize]) -> Result<TensorRows<'_>, LoadError> {
        let has_blocks =
            matches!(tensor, Tensor::Layer(_, LayerTensor::Query | LayerTensor::Output));
        if has_blocks { self.blocks.rows(tensor) } else { self.floats.rows(tensor) }
    }

    fn float_type(&self) -> Result<WeightType, LoadError> {
        self.floats.float_type()
    }
}

/// A family that nobody has published: every second layer has a window, more heads, faster rotations and
/// norms of the heads; the last layer has no RoPE, MLPs grow with depth, there is no final norm, and
/// constant factors scale embeddings, residuals and logits. It is data, so no device changes.
fn made_up_family(layers: usize) -> Architecture {
    let layer = |index: usize| {
        let is_local = index % 2 == 1;
        let (n_heads, n_kv_heads, head_dim) = if is_local { (6, 3, 8) } else { (4, 1, 12) };
        let attention = Attention {
            window: is_local.then_some(5),
            score_scale: if is_local { 0.4 } else { Attention::default_scale(12) },
            rope: (index < 3).then_some(Rope {
                dims: head_dim,
                theta: if is_local { 1e3 } else { 1e6 },
                scaling: if is_local {
                    RopeScaling::None
                } else {
                    RopeScaling::Linear { factor: 4.0 }
                },
            }),
            qk_norms: if is_local { QkNorms::Heads } else { QkNorms::None },
            qkv_limit: is_local.then_some(0.9),
            qkv_bias: !is_local,
            output_bias: is_local,
            ..Attention::plain(n_heads, n_kv_heads, head_dim)
        };
        let mlp = Mlp { bias: is_local, ..Mlp::gated(40 + 24 * index) };
        Layer::plain(attention, mlp)
    };
    Architecture {
        hidden_size: 48,
        vocab_size: 260,
        context_length: 500,
        norm: Norm::Rms,
        norm_epsilon: 1e-5,
        factors: Factors { embedding: 1.7, residual: 0.6, logit_divisor: 0.7 },
        input: Input::Embedding,
        positions: Some(PositionTable { first: 3, rows: 503 }),
        mask_tokens: 0,
        shares_embedding: false,
        layers: (0..layers).map(layer).collect(),
        final_norm: false,
        head: Head::Embedding,
        head_bias: false,
        logit_cap: None,
        head_tokens: None,
    }
}

#[test]
fn a_made_up_family_runs_on_both_devices() {
    let architecture = made_up_family(4);
    let tensors = RandomTensors::new(&architecture, 3);
    assert_same(&architecture, &tensors, "the made-up family", None);
}

/// Value heads of GGUF files of Qwen3.5 are tiled, and rates of decays are no logarithms.
#[test]
fn tiled_heads_have_the_same_bits_on_both_devices() {
    let hybrids = example_families().into_iter().filter(|config| config.recurrent.is_some());
    for config in hybrids {
        let mut architecture = config.architecture();
        for mixer in architecture.layers.iter_mut().filter_map(|layer| layer.recurrent.as_mut()) {
            (mixer.tiled, mixer.negative_rates) = (mixer.has_matrices(), true);
        }
        let tensors = RandomTensors::new(&architecture, 3);
        assert_same(&architecture, &tensors, &config.family.to_string(), None);
    }
}

/// A drafter's heads on both devices, with the prefix layer if they have one.
fn heads_on_both(
    heads: DraftHeads,
    speculator: &Speculator,
    (target, reference): (&Weights, &Arc<ReferenceModel>),
    arithmetic: Arithmetic,
    team: &Arc<Team>,
) -> [Box<dyn LanguageModel>; 2] {
    let cpu = SpeculatorWeights::load(speculator, target, arithmetic.types).unwrap();
    let SpeculatorWeights::Heads(cpu) = cpu else { panic!("heads") };
    let prefix = heads.prefix.clone().map(|layer| {
        let target = Some(&**reference);
        let layer = ReferenceModel::load_with(layer, speculator, arithmetic, target).unwrap();
        ReferenceDevice::new(Arc::new(layer)).with_features(FeatureSource::LastHidden)
    });
    let slow = ReferenceHeads::load(heads, speculator, arithmetic, Arc::clone(reference)).unwrap();
    [Box::new(CpuHeads::model(cpu, team)), Box::new(HeadsModel::new(slow, prefix))]
}

#[test]
fn drafters_have_the_same_bits_on_both_devices() {
    use SpeculatorLayout as L;
    let dir = tempfile::tempdir().unwrap();
    let config = Config { num_hidden_layers: 2, ..example_config() };
    let path = dir.path().join("target");
    write_random_checkpoint(&path, &config, 3, RandomDtype::F32).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tokens: Vec<TokenId> = (0..21).map(|i| i * 13 % 250).collect();
    let all_types = [
        L::Medusa,
        L::SharedHeadMedusa,
        L::ReducedMedusa,
        L::Hydra,
        L::HydraPlusPlus,
        L::SharedHeadHydra,
        L::ReducedHydra,
        L::Eagle,
        L::SharedEmbeddingEagle,
        L::ReducedEagle,
        L::Eagle3,
        L::PEagle,
        L::DFlash,
        L::JetSpec,
        L::DFlash2,
        L::DSpark(MarkovKind::Vanilla),
        L::DSpark(MarkovKind::Gated),
        L::DSpark(MarkovKind::Recurrent),
        L::Pard2,
        L::ParallelMedusa,
        L::ReducedParallelMedusa,
        L::ParallelEagle,
        L::ReducedParallelEagle,
    ];
    let all_types = all_types.map(|layout| (layout, WeightType::all()));
    // Weight types take turns for all combinations of EAGLE-3's options.
    let mut turns = WeightType::all().into_iter().cycle();
    let options = Eagle3Options::all().into_iter();
    let taking_turns = options.map(|options| {
        let others = turns.by_ref().take(2).filter(|other| *other != WeightType::F32);
        (L::Eagle3With(options), std::iter::once(WeightType::F32).chain(others).collect())
    });
    let mut isas = Isa::available().into_iter().cycle();
    for (layout, types) in all_types.into_iter().chain(taking_turns) {
        let path = dir.path().join(format!("{layout:?}"));
        let (target, seed) = (&config, 3);
        RandomSpeculator { layout, target, seed, positions: 3, target_embedding_sha256: None }
            .write(&path)
            .unwrap();
        let speculator = Speculator::open(&path, &checkpoint).unwrap().unwrap();
        for (weight_type, isa) in types.into_iter().zip(&mut isas) {
            let arithmetic = Arithmetic::cpu(weight_type, isa);
            let team = Arc::new(Team::unpinned(2).unwrap().with_isa(isa));
            let target = Weights::load_as(&checkpoint, weight_type).unwrap();
            let slow = Arc::new(ReferenceModel::load_as(&checkpoint, weight_type, isa).unwrap());
            let [cpu, reference]: [Box<dyn LanguageModel>; 2] = match speculator
                .architecture()
                .unwrap()
            {
                SpeculatorArchitecture::Heads(heads) => {
                    heads_on_both(heads, &speculator, (&target, &slow), arithmetic, &team)
                }
                SpeculatorArchitecture::Layers(layers) => {
                    let cpu = SpeculatorWeights::load(&speculator, &target, weight_type.into());
                    let SpeculatorWeights::Layers(cpu) = cpu.unwrap() else { panic!("layers") };
                    let cpu = Transformer::new(cpu, team);
                    let slow =
                        ReferenceModel::load_with(layers, &speculator, arithmetic, Some(&slow));
                    let slow = ReferenceDevice::new(Arc::new(slow.unwrap()));
                    let is_pard2 = matches!(speculator.kind(), SpeculatorKind::Pard2 { .. });
                    match speculator.kind().reads_features() {
                        true if is_pard2 || speculator.block().is_some() => {
                            [Box::new(BlockModel::new(cpu)), Box::new(BlockModel::new(slow))]
                        }
                        true => [Box::new(EagleModel::new(cpu)), Box::new(EagleModel::new(slow))],
                        false => [
                            Box::new(CachedTransformer::new(cpu)),
                            Box::new(CachedTransformer::new(slow)),
                        ],
                    }
                }
            };
            let features = speculator.features().unwrap_or(FeatureSource::LastHidden);
            let width = features.width(config.hidden_size);
            let tree = match speculator.block() {
                Some(block) => TokenTree::chain(&[block.mask; 3]),
                None => small_tree(),
            };
            let found = [cpu, reference].map(|mut m| draft_rows(&mut *m, &tokens, &tree, width));
            assert!(found[0] == found[1], "{layout:?} in {weight_type} on {isa}");
        }
    }
}

/// A block whose first rows the cache holds: the convolutions of DFlash 2 begin with the first new row.
#[test]
fn the_rest_of_a_block_has_the_same_bits_on_both_devices() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { num_hidden_layers: 2, ..example_config() };
    let [path, drafter] = ["target", "drafter"].map(|name| dir.path().join(name));
    write_random_checkpoint(&path, &config, 3, RandomDtype::F32).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let (layout, target) = (SpeculatorLayout::DFlash2, &config);
    RandomSpeculator { layout, target, seed: 3, positions: 5, target_embedding_sha256: None }
        .write(&drafter)
        .unwrap();
    let speculator = Speculator::open(&drafter, &checkpoint).unwrap().unwrap();
    let (weight_type, isa) = (WeightType::F32, Isa::best());
    let target = Weights::load_as(&checkpoint, weight_type).unwrap();
    let cpu = SpeculatorWeights::load(&speculator, &target, weight_type.into()).unwrap();
    let SpeculatorWeights::Layers(cpu) = cpu else { panic!("layers") };
    let cpu = Transformer::new(cpu, Arc::new(Team::unpinned(2).unwrap().with_isa(isa)));
    let slow = Arc::new(ReferenceModel::load_as(&checkpoint, weight_type, isa).unwrap());
    let SpeculatorArchitecture::Layers(layers) = speculator.architecture().unwrap() else {
        panic!("layers")
    };
    let arithmetic = Arithmetic::cpu(weight_type, isa);
    let slow = ReferenceModel::load_with(layers, &speculator, arithmetic, Some(&slow)).unwrap();
    let found = rest_of_block(cpu);
    assert!(!found.is_empty() && found == rest_of_block(ReferenceDevice::new(Arc::new(slow))));
}

/// Returns the logits of the last three of five rows, after a pass over the first two.
fn rest_of_block<F: Forward>(device: F) -> Vec<f32> {
    let mut runner = SequenceRunner::new(device);
    let (block, never) = (TokenTree::chain(&[5, 6, 7, 8, 9]), AtomicBool::new(false));
    runner.forward(&block.first(2), 2, LayerOrder::Sequential, &never).unwrap();
    assert_eq!(runner.seek(&[], &block, Keep::Exact).nodes, 2);
    runner.forward(&block, 2, LayerOrder::Sequential, &never).unwrap().logits.to_vec()
}

/// The heads of DSpark and DFlash 2: for two rows of a block, the second one after the state of the first.
#[test]
fn block_heads_have_the_same_bits_on_both_devices() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { num_hidden_layers: 2, ..example_config() };
    let path = dir.path().join("target");
    write_random_checkpoint(&path, &config, 3, RandomDtype::F32).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut isas = Isa::available().into_iter().cycle();
    use SpeculatorLayout as L;
    let recurrent = L::DSpark(MarkovKind::Recurrent);
    let others = [L::DSpark(MarkovKind::Vanilla), L::DSpark(MarkovKind::Gated), L::DFlash2];
    for layout in std::iter::once(recurrent).chain(others) {
        let (target, seed) = (&config, 3);
        let path = dir.path().join(format!("{layout:?}"));
        RandomSpeculator { layout, target, seed, positions: 3, target_embedding_sha256: None }
            .write(&path)
            .unwrap();
        let speculator = Speculator::open(&path, &checkpoint).unwrap().unwrap();
        let heads = speculator.block_heads().unwrap().unwrap();
        let SpeculatorArchitecture::Layers(layers) = speculator.architecture().unwrap() else {
            panic!("layers")
        };
        for (weight_type, isa) in WeightType::all().into_iter().zip(&mut isas) {
            let arithmetic = Arithmetic::cpu(weight_type, isa);
            let team = Arc::new(Team::unpinned(2).unwrap().with_isa(isa));
            let weights = BlockHeadWeights::load(heads.clone(), &speculator, weight_type.into());
            let mut cpu = CpuBlockHeads::new(Arc::new(weights.unwrap()), team);
            let target = ReferenceModel::load_as(&checkpoint, weight_type, isa).unwrap();
            let target = Some(&target);
            let slow = ReferenceModel::load_with(layers.clone(), &speculator, arithmetic, target);
            let slow = Arc::new(slow.unwrap());
            let mut slow = ReferenceBlockHeads::load(heads.clone(), &speculator, slow).unwrap();
            let hidden = |row: usize| -> Vec<f32> {
                (0..config.hidden_size).map(|i| ((row + 7 * i) % 23) as f32 / 9.0 - 1.2).collect()
            };
            let [first, second] = [hidden(0), hidden(1)];
            let candidates = [4, 0, 250, 17];
            let mut corrections = |state: &[f32]| {
                let positions = [(&first, 5, true), (&second, 17, true), (&first, 9, false)];
                let positions = positions.map(|(hidden, previous, predicts)| BlockPosition {
                    hidden,
                    previous,
                    state,
                    predicts,
                    candidates: if predicts { &candidates } else { &[] },
                });
                let found = cpu.forward(&positions);
                let what = format!("{layout:?} in {weight_type} on {isa}");
                assert_eq!(found, slow.forward(&positions), "{what}");
                assert_eq!(cpu.candidates(), slow.candidates(), "{what}");
                let (confidence, biases) = (found[1].confidence, found[1].logit_bias.len());
                match cpu.candidates() {
                    None => {
                        assert!(confidence > 0.0 && confidence < 1.0, "{what}");
                        assert_eq!(biases, config.vocab_size, "{what}");
                    }
                    Some(_) => {
                        assert!(confidence == 1.0 && biases == candidates.len(), "{what}");
                        assert_ne!(found[0].logit_bias, found[1].logit_bias, "{what}");
                    }
                }
                assert!(found[2].logit_bias.is_empty(), "{what}");
                found[1].state.clone()
            };
            let state = corrections(&[]);
            assert_eq!(state.is_empty(), layout != recurrent);
            corrections(&state);
        }
    }
}

/// Returns a tree with two branches.
fn small_tree() -> TokenTree {
    let mut tree = TokenTree::new();
    for (parent, token) in [(None, 4), (Some(0), 5), (None, 6)] {
        tree.push(parent, token);
    }
    tree
}

/// Returns the bits of two rounds of drafting, each for two sequences in the same passes.
fn draft_rows(
    model: &mut dyn LanguageModel,
    tokens: &[TokenId],
    tree: &TokenTree,
    width: usize,
) -> Vec<u32> {
    let mut features = Features::new();
    let values = (0..tokens.len() * width).map(|i| (i % 37) as f32 / 18.0 - 1.0).collect();
    features.push(FeatureRows::new(width, values));
    let mut bits = Vec::new();
    for (len, nodes) in [(15, 0), (15, 3), (18, 2)] {
        let trees = [tree.first(nodes), TokenTree::new()];
        let requests = [(0, len), (1, len - 4)].map(|(id, len)| {
            let request = ForwardRequest::new(SequenceId(id), &tokens[..len], &trees[id as usize]);
            ForwardRequest { features: Some(&features), ..request }
        });
        let mut progress = [(); 2].map(|()| Progress::default());
        while progress.iter().any(|progress| progress.result.is_none()) {
            let entries = requests.iter().zip(&mut progress);
            let entries = entries.map(|(&request, progress)| BatchEntry { request, progress });
            model.forward(&mut entries.collect::<Vec<_>>());
        }
        for output in progress.map(|progress| progress.result.unwrap().unwrap()) {
            bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
        }
    }
    bits
}

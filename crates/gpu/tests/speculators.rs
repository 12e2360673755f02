//! Drafters that were trained for a target: a GPU and the slow reference compute the same bits, in passes over several sequences,
//! trees, masks and blocks, and after rollbacks.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{configs, gpu, gpu_number};
use crate::comparison::TYPES;
use forerun_core::{FeatureRows, Features, RowUse, SequenceId, TokenId, TokenTree};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, write_random_checkpoint, write_random_checkpoint_with_mtp,
};
use forerun_formats::checkpoint::random_speculator::{
    Eagle3Options, RandomSpeculator, SpeculatorLayout,
};
use forerun_formats::{
    BlockType, Checkpoint, Config, Family, LoadError, MarkovKind, ModelTypes, Speculator,
    SpeculatorArchitecture, SpeculatorKind, WeightType,
};
use forerun_gpu::{
    GpuDevice, GpuHeadWeights, GpuHeads, GpuLoadError, GpuModel, GpuOptions, GpuWeights,
    LayerCount, LayerOptions,
};
use forerun_lm::fake::reduced_to;
use forerun_lm::{BatchEntry, ForwardRequest, LanguageModel, ModelError, Progress};
use forerun_model::{BlockModel, CachedTransformer, EagleModel, HeadsModel};
use forerun_reference::{Arithmetic, ReferenceDevice, ReferenceHeads, ReferenceModel};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// The number of mask tokens or heads.
const POSITIONS: usize = 3;

/// A target of drafters.
struct Target {
    folder: TempDir,
    config: Config,
    checkpoint: Checkpoint,
}

/// A drafter on a GPU and on the reference, as language models.
struct Drafters {
    gpu: Box<dyn LanguageModel>,
    reference: Box<dyn LanguageModel>,
    /// The numbers of a token's features.
    width: usize,
    drafts: Drafts,
}

/// What a drafter's requests have after the tokens.
#[derive(Clone, Debug, PartialEq)]
enum Drafts {
    /// Trees with paths of this length at most.
    Trees(usize),
    /// These masks.
    Masks(Vec<TokenId>),
    /// Blocks with this mask. The hidden states of their rows are results, too.
    Blocks(TokenId),
}

fn target_of(config: Config, has_mtp: bool) -> Target {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("target");
    let write = if has_mtp { write_random_checkpoint_with_mtp } else { write_random_checkpoint };
    write(&path, &config, 3, RandomDtype::F32).unwrap();
    Target { folder, config, checkpoint: Checkpoint::open(&path).unwrap() }
}

fn target() -> Target {
    target_of(Config { max_position_embeddings: 700, ..example_config() }, false)
}

impl Target {
    fn drafter(&self, layout: SpeculatorLayout) -> Speculator {
        let path = self.folder.path().join(format!("{layout:?}"));
        let (target, positions) = (&self.config, POSITIONS);
        RandomSpeculator { layout, target, seed: 3, positions, target_embedding_sha256: None }
            .write(&path)
            .unwrap();
        Speculator::open(&path, &self.checkpoint).unwrap().unwrap()
    }

    /// Loads a drafter on a GPU and on the reference, with the whole target on the GPU, or only with what drafters share.
    fn load(
        &self,
        device: &Arc<GpuDevice>,
        speculator: &Speculator,
        (types, has_target): (ModelTypes, bool),
    ) -> Result<Drafters, GpuLoadError> {
        let gpu_target = match has_target {
            _ if speculator.kind().is_model() => {
                GpuWeights::load_final_norm(device, &self.checkpoint)?
            }
            true => GpuWeights::load(device, &self.checkpoint, types)?,
            false => GpuWeights::load_without_layers(device, &self.checkpoint, types)?,
        };
        let arithmetic = Arithmetic::gpu(types);
        let target = self.checkpoint.architecture().clone();
        let target = ReferenceModel::load_with(target, &self.checkpoint, arithmetic, None).unwrap();
        let target = Arc::new(target);
        let reference = |layers| {
            let model = ReferenceModel::load_with(layers, speculator, arithmetic, Some(&target));
            ReferenceDevice::new(Arc::new(model.unwrap()))
        };
        let layers = match speculator.architecture().unwrap() {
            SpeculatorArchitecture::Heads(heads) => {
                let weights = GpuHeadWeights::load(&gpu_target, heads.clone(), speculator, types)?;
                let prefix = heads.prefix.clone().map(reference);
                let source = forerun_formats::FeatureSource::LastHidden;
                let prefix = prefix.map(|prefix| prefix.with_features(source));
                let (width, depth) = (heads.hidden_size, heads.n_heads - 1);
                let reference =
                    ReferenceHeads::load(heads, speculator, arithmetic, Arc::clone(&target));
                return Ok(Drafters {
                    gpu: Box::new(GpuHeads::model(Arc::new(weights))),
                    reference: Box::new(HeadsModel::new(reference.unwrap(), prefix)),
                    width,
                    drafts: Drafts::Trees(depth),
                });
            }
            SpeculatorArchitecture::Layers(layers) => layers,
        };
        let weights = GpuWeights::load_drafter(&gpu_target, layers.clone(), speculator, types)?;
        let (gpu, width) = (GpuModel::new(Arc::new(weights)), layers.feature_width());
        let masks: Vec<TokenId> = layers.mask_ids().collect();
        let drafts = match (speculator.kind(), speculator.block()) {
            (SpeculatorKind::Pard2 { mask }, _) => Drafts::Masks(vec![mask; POSITIONS]),
            (SpeculatorKind::PEagle, _) => Drafts::Masks(vec![masks[0]; POSITIONS]),
            (_, Some(block)) => Drafts::Blocks(block.mask),
            _ if masks.is_empty() => Drafts::Trees(usize::MAX),
            _ => Drafts::Masks(masks),
        };
        let reference = reference(layers);
        let (gpu, reference): (Box<dyn LanguageModel>, Box<dyn LanguageModel>) =
            match (&drafts, speculator.kind()) {
                (Drafts::Blocks(_), _) | (_, SpeculatorKind::Pard2 { .. }) => {
                    (Box::new(BlockModel::new(gpu)), Box::new(BlockModel::new(reference)))
                }
                _ if width == 0 => {
                    let reference = CachedTransformer::new(reference);
                    (Box::new(CachedTransformer::new(gpu)), Box::new(reference))
                }
                _ => (Box::new(EagleModel::new(gpu)), Box::new(EagleModel::new(reference))),
            };
        Ok(Drafters { gpu, reference, width, drafts })
    }
}

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

/// Of the hidden states that a drafter computes, only those come home from which its next rows or its heads go on.
#[test]
fn only_hidden_states_that_are_read_come_home() {
    let Some(device) = gpu() else { return };
    let target = target();
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
        let rows = (0..context).flat_map(|position| feature(position, tokens[position], width));
        let mut features = Features::new();
        features.push(FeatureRows::new(width, rows.collect()));
        features
    };
    let hidden = 4 * target.config.hidden_size;
    // Whether a row's keys and values fit the cache's type, and its best token.
    let (row, best) = (4, 8);

    // EAGLE: the prediction after the last token.
    let (layers, width, _) = load(SpeculatorLayout::Eagle);
    let (mut eagle, none, features_of_eagle) =
        (EagleModel::new(layers), TokenTree::new(), features(width));
    let request = greedy(&tokens, (&none, &features_of_eagle), target.config.vocab_size);
    eagle.logits(&request).unwrap();
    let found = eagle.device().last_cost().read_back_bytes;
    assert_eq!(found, (context * row + best + hidden) as u64);

    // A block: nothing, or all of it for heads after it.
    for (features_from, states) in [(None, 0), (Some(0), 1 + POSITIONS)] {
        let (layers, width, mask) = load(SpeculatorLayout::DFlash);
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

/// Returns features of a token at a position.
fn feature(position: usize, token: TokenId, width: usize) -> impl Iterator<Item = f32> {
    let seed = position * 7919 + token as usize * 104_729 + 13;
    (0..width).map(move |index| ((seed + index * 31) % 1000) as f32 / 500.0 - 1.0)
}

/// A request, with features of all tokens but the last.
struct Wish<'a> {
    sequence: u64,
    tokens: &'a [TokenId],
    tree: &'a TokenTree,
    first_row: usize,
}

/// Returns the bits of all results of requests that share passes. Those of sequences with even numbers read only the
/// best tokens, unless states are returned: these are for heads, which read all logits.
fn run(
    model: &mut dyn LanguageModel,
    (width, returns_states): (usize, bool),
    wishes: &[Wish<'_>],
) -> Vec<u32> {
    let vocab_size = model.vocab_size();
    let features: Vec<Features> = wishes
        .iter()
        .map(|wish| {
            let mut features = Features::new();
            let read = wish.tokens[..wish.tokens.len() - 1].iter().enumerate();
            if width > 0 {
                let rows = read.flat_map(|(position, &token)| feature(position, token, width));
                features.push(FeatureRows::new(width, rows.collect()));
            }
            features
        })
        .collect();
    let requests = wishes.iter().zip(&features).map(|(wish, features)| ForwardRequest {
        first_row: wish.first_row,
        rows_for: match returns_states || wish.sequence % 2 == 1 {
            true => RowUse::Full,
            false => RowUse::best(3, vocab_size - 40),
        },
        features: (width > 0).then_some(features),
        features_from: returns_states.then_some(0),
        ..ForwardRequest::new(SequenceId(wish.sequence), wish.tokens, wish.tree)
    });
    let requests: Vec<ForwardRequest<'_>> = requests.collect();
    let mut progress: Vec<Progress> = requests.iter().map(|_| Progress::default()).collect();
    while progress.iter().any(|progress| progress.result.is_none()) {
        let entries = requests.iter().zip(&mut progress);
        let entries = entries.map(|(&request, progress)| BatchEntry { request, progress });
        model.forward(&mut entries.collect::<Vec<_>>());
    }
    let mut bits = Vec::new();
    for (progress, request) in progress.into_iter().zip(&requests) {
        // The reference returns whole rows.
        let output = reduced_to(progress.result.unwrap().unwrap(), request.rows_for);
        let best = output.best.iter().flat_map(|row| &row.ranked);
        bits.extend(best.flat_map(|&(token, logit)| [token, logit.to_bits()]));
        let states = output.features.iter().flat_map(|rows| (0..).map_while(|row| rows.row(row)));
        let values = output.logits.iter().chain(states.flatten());
        bits.extend(values.map(|value| value.to_bits()));
    }
    bits
}

/// Returns the bits of a drafter in rounds of three sequences: a `long` prompt, a short one, and a single token after the first
/// one.
fn outputs(
    model: &mut dyn LanguageModel,
    (width, long): (usize, u32),
    drafts: &Drafts,
) -> Vec<Vec<u32>> {
    let prompt = |len: u32, step: u32| (0..len).map(|i| i * step % 250).collect::<Vec<TokenId>>();
    let (mut long, mut short, single) = (prompt(long, 7), prompt(9, 5), prompt(2, 11));
    let none = TokenTree::new();
    let tree = match drafts {
        Drafts::Masks(masks) => TokenTree::chain(masks),
        Drafts::Blocks(mask) => TokenTree::chain(&[*mask; POSITIONS]),
        Drafts::Trees(depth) => {
            let mut tree = TokenTree::new();
            for (parent, token) in [(None, 4), (Some(0), 5), (None, 6), (Some(1), 9), (Some(2), 3)]
            {
                let is_shallow = |&parent: &usize| tree.depth(parent) < *depth;
                tree.push(parent.filter(is_shallow), token);
            }
            tree
        }
    };
    let has_trees = matches!(drafts, Drafts::Trees(_));
    let shape = (width, matches!(drafts, Drafts::Blocks(_)));
    let alone = if has_trees { none.clone() } else { tree.clone() };
    let mut results = Vec::new();
    let mut round = |long: &[TokenId], short: &[TokenId], rows: usize| {
        let wish = |sequence, tokens, tree, first_row| Wish { sequence, tokens, tree, first_row };
        let all = [
            wish(1, long, &tree, 0),
            wish(2, short, &alone, 0),
            wish(3, &single[..], &tree, rows.min(tree.len())),
        ];
        results.push(run(model, shape, &all));
        if has_trees {
            // The second sequence's tree grows level by level.
            for (first_row, nodes) in [(1, 3), (4, 4), (5, 5)] {
                let grown = tree.first(nodes);
                let wish = Wish { sequence: 2, tokens: short, tree: &grown, first_row };
                results.push(run(model, shape, &[wish]));
            }
        }
    };
    round(&long, &short, 0);
    // A path is accepted, with a token after it.
    long.extend([4, 5, 77]);
    short.extend([6, 3, 50]);
    round(&long, &short, 1);
    // Both go on from an earlier token.
    long.truncate(long.len() / 2);
    short.truncate(4);
    long.extend([9, 8]);
    short.extend([1, 7]);
    round(&long, &short, 2);
    results
}

/// Asserts that a GPU computes the reference's bits in rounds whose long prompt has `long` tokens.
fn assert_same(mut drafters: Drafters, long: u32, name: &str) {
    let (lengths, drafts) = ((drafters.width, long), &drafters.drafts);
    let found = outputs(&mut *drafters.gpu, lengths, drafts);
    let expected = outputs(&mut *drafters.reference, lengths, drafts);
    assert_eq!(found.len(), expected.len(), "{name}");
    let mut count = 0;
    for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{name}, step {step}");
        let different = found.iter().zip(expected).filter(|(found, expected)| found != expected);
        let different = different.count();
        let all = found.len();
        assert_eq!(different, 0, "{different} of {all} numbers differ: {name}, step {step}");
        count += all;
    }
    assert!(count > 1000, "{name}: {count} numbers");
}

/// The layouts of all drafters but EAGLE-3's options.
fn layouts() -> Vec<SpeculatorLayout> {
    use SpeculatorLayout as L;
    vec![
        L::Eagle,
        L::SharedEmbeddingEagle,
        L::ReducedEagle,
        L::Eagle3,
        L::PEagle,
        L::ParallelEagle,
        L::ReducedParallelEagle,
        L::ParallelMedusa,
        L::ReducedParallelMedusa,
        L::Medusa,
        L::VllmMedusa,
        L::SharedHeadMedusa,
        L::ReducedMedusa,
        L::Hydra,
        L::HydraPlusPlus,
        L::SharedHeadHydra,
        L::ReducedHydra,
        L::DFlash,
        L::JetSpec,
        L::DFlash2,
        L::DSpark(MarkovKind::Vanilla),
        L::DSpark(MarkovKind::Gated),
        L::DSpark(MarkovKind::Recurrent),
        L::Pard2,
    ]
}

#[test]
fn every_drafter_for_a_target_has_the_bits_of_the_reference() {
    let Some(device) = gpu() else { return };
    let target = target();
    let types = TYPES.into_iter().cycle();
    for (number, (layout, weight_type)) in layouts().into_iter().zip(types).enumerate() {
        let speculator = target.drafter(layout);
        let options = (ModelTypes::from(weight_type), number % 2 == 0);
        let drafters = target.load(device, &speculator, options).unwrap();
        let name = format!("{layout:?} in {weight_type}");
        // Some prompts have several splits of attention.
        let long = if number % 3 == 0 { 262 } else { 30 };
        assert_same(drafters, long, &name);
    }
}

/// A part of the target's head has the head's type: its rows are copied as they are.
#[test]
fn parts_of_heads_of_all_types_have_the_bits_of_the_reference() {
    let Some(device) = gpu() else { return };
    let target = target();
    for layout in [SpeculatorLayout::ReducedEagle, SpeculatorLayout::ReducedHydra] {
        let speculator = target.drafter(layout);
        for weight_type in TYPES {
            let types = (ModelTypes::from(weight_type), false);
            let drafters = target.load(device, &speculator, types).unwrap();
            assert_same(drafters, 30, &format!("{layout:?} in {weight_type}"));
        }
    }
}

/// A pass with more than 1 MiB of features, which are uploaded before the pass.
#[test]
fn many_features_have_the_bits_of_the_reference() {
    let Some(device) = gpu() else { return };
    let target = target_of(Config { hidden_size: 384, ..example_config() }, false);
    let speculator = target.drafter(SpeculatorLayout::Eagle3);
    let types = (ModelTypes::from(WeightType::F32), false);
    let drafters = target.load(device, &speculator, types).unwrap();
    // A pass reads 256 rows of a prompt at most.
    assert!(256 * drafters.width * size_of::<f32>() > 1 << 20);
    assert_same(drafters, 262, "features of 1.1 MiB");
}

/// A request that is cancelled fails, or has the right rows, and the next ones have the right rows in any case.
#[test]
fn cancelled_passes_of_drafters_leave_no_wrong_rows() {
    use SpeculatorLayout as L;
    let Some(device) = gpu() else { return };
    let target = target();
    let tokens: Vec<TokenId> = (0..40).map(|token| token * 7 % 250).collect();
    let tree = TokenTree::chain(&[4, 5]);
    for layout in [L::Eagle, L::HydraPlusPlus, L::Medusa] {
        let speculator = target.drafter(layout);
        let types = (ModelTypes::from(WeightType::F32), false);
        let Drafters { mut gpu, mut reference, width, .. } =
            target.load(device, &speculator, types).unwrap();
        let mut features = Features::new();
        let rows = (0..).zip(&tokens).flat_map(|(at, &token)| feature(at, token, width));
        features.push(FeatureRows::new(width, rows.collect()));
        for (len, moments) in [(12, None), (20, Some(100)), (30, Some(20_000)), (40, Some(100_000))]
        {
            let request = ForwardRequest {
                features: Some(&features),
                ..ForwardRequest::new(SequenceId(1), &tokens[..len], &tree)
            };
            let cancel = AtomicBool::new(moments.is_none());
            let cancelled = std::thread::scope(|scope| {
                scope.spawn(|| {
                    (0..moments.unwrap_or(0)).for_each(|_| std::hint::spin_loop());
                    cancel.store(true, Ordering::Relaxed);
                });
                gpu.logits(&ForwardRequest { cancel: &cancel, ..request })
            });
            let expected = reference.logits(&request).unwrap().logits;
            match cancelled {
                Ok(output) => assert_eq!(output.logits, expected, "{layout:?}"),
                Err(error) => assert_eq!(error, ModelError::Cancelled, "{layout:?}"),
            }
            let found = gpu.logits(&request).unwrap().logits;
            assert_eq!(found, expected, "{layout:?}, {len} tokens, after a cancelled pass");
        }
    }
}

/// All norms, and one or two layers.
#[test]
fn eagle_3_has_the_bits_of_the_reference_with_all_options() {
    let Some(device) = gpu() else { return };
    let target = target();
    for (number, options) in Eagle3Options::all().into_iter().enumerate() {
        let speculator = target.drafter(SpeculatorLayout::Eagle3With(options));
        let weight_type = TYPES[number % TYPES.len()];
        let types = (ModelTypes::from(weight_type), number % 2 == 0);
        let drafters = target.load(device, &speculator, types).unwrap();
        assert_same(drafters, 30, &format!("{options:?} in {weight_type}"));
    }
}

/// MTP heads: with compressed keys and values, experts, and gated attention.
#[test]
fn mtp_heads_have_the_bits_of_the_reference() {
    let Some(device) = gpu() else { return };
    let families = [Family::DeepseekV3, Family::Glm4Moe, Family::Qwen3Next];
    for family in families {
        // The last of two configurations of a family has the sizes that GPUs compute.
        let of_family = configs().into_iter().rfind(|config| config.family == family).unwrap();
        let target = target_of(of_family, true);
        let speculator = Speculator::open_mtp(&target.checkpoint).unwrap();
        let types = (ModelTypes::from(WeightType::F32), false);
        let drafters = target.load(device, &speculator, types).unwrap();
        assert_same(drafters, 30, &family.to_string());
    }
}

/// A target with factors, caps and a bias of the head, and one with layer norms and learned positions.
#[test]
fn drafters_for_other_families_have_the_bits_of_the_reference() {
    use SpeculatorLayout as L;
    let Some(device) = gpu() else { return };
    // A layer of Phi needs its norm, which EAGLE's layers lack.
    let layouts = [
        L::ReducedParallelMedusa,
        L::SharedHeadMedusa,
        L::ReducedHydra,
        L::SharedEmbeddingEagle,
        L::ReducedEagle,
    ];
    for (family, layouts) in [
        (Family::Granite, &layouts[..]),
        (Family::Gemma2, &layouts),
        (Family::Gpt2, &layouts),
        (Family::Phi, &layouts[..3]),
    ] {
        let config = configs().into_iter().find(|config| config.family == family).unwrap();
        let target = target_of(config, false);
        for layout in layouts {
            let speculator = target.drafter(*layout);
            let types = (ModelTypes::from(WeightType::F32), false);
            let drafters = target.load(device, &speculator, types).unwrap();
            assert_same(drafters, 30, &format!("{layout:?} for {family}"));
        }
    }
}

/// On a GPU whose kernels address 96 KiB of a buffer, the embedding and the head have several parts each.
#[test]
fn drafters_in_several_buffers_have_the_bits_of_the_reference() {
    use SpeculatorLayout as L;
    if gpu().is_none() {
        return;
    }
    let options = GpuOptions { max_binding_bytes: 96 << 10, ..GpuOptions::default() };
    let device = GpuDevice::open_with(gpu_number(), options).unwrap();
    let config = Config { vocab_size: 2000, ..example_config() };
    let target = target_of(config, false);
    for layout in [L::ReducedEagle, L::ReducedHydra, L::SharedHeadMedusa, L::Hydra] {
        let speculator = target.drafter(layout);
        let types = (ModelTypes::from(WeightType::F32), true);
        let drafters = target.load(&device, &speculator, types).unwrap();
        assert_same(drafters, 30, &format!("{layout:?} in several buffers"));
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
    use SpeculatorLayout as L;
    let Some(device) = gpu() else { return };
    let target = target();
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
        let target = target_of(config, false);
        let of_target = GpuWeights::load_final_norm(device, &target.checkpoint).unwrap();
        let error = refused(&of_target, &target.drafter(layout), WeightType::F32).to_string();
        assert!(error.contains("inputs, no multiple of 4 ("), "{layout:?}: {error}");
    }
}

/// The first layers or the final norm of a target lack the embedding and the head.
#[test]
fn drafters_need_what_they_share_with_their_target() {
    use SpeculatorLayout as L;
    let Some(device) = gpu() else { return };
    let target = target();
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

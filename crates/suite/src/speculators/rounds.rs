//! Rounds of drafting in which a device and the slow reference compute the same bits.

use super::*;
use forerun_formats::MarkovKind;

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

/// The shape of a drafter's requests.
pub(super) struct Shape {
    /// The numbers of a token's features.
    pub(super) width: usize,
    drafts: Drafts,
}

/// Loads a drafter's layers or heads on the reference, and what they share of the target.
fn reference<D: Device>(drafter: &Drafter<'_, D>, run: Run<D::Variant>) -> Arc<ReferenceModel> {
    let target = &drafter.target.checkpoint;
    let arithmetic = drafter.device.arithmetic(drafter.types, run.variant);
    let architecture = target.architecture().clone();
    Arc::new(ReferenceModel::load_with(architecture, target, arithmetic, None).unwrap())
}

/// Loads a drafter on a device and on the reference, as language models.
pub(super) fn models<D: Device>(
    drafter: &Drafter<'_, D>,
    run: Run<D::Variant>,
) -> ([Box<dyn LanguageModel>; 2], Shape) {
    let Drafter { device, speculator, types, .. } = drafter;
    let arithmetic = device.arithmetic(*types, run.variant);
    let target = reference(drafter, run);
    let on_reference = |layers| {
        let model = ReferenceModel::load_with(layers, speculator, arithmetic, Some(&target));
        ReferenceDevice::new(Arc::new(model.unwrap()))
    };
    let layers = match speculator.architecture().unwrap() {
        SpeculatorArchitecture::Layers(layers) => layers,
        SpeculatorArchitecture::Heads(heads) => {
            let prefix = heads.prefix.clone().map(on_reference);
            let prefix = prefix.map(|prefix| prefix.with_features(FeatureSource::LastHidden));
            let (width, depth) = (heads.hidden_size, heads.n_heads - 1);
            let slow = ReferenceHeads::load(heads, speculator, arithmetic, Arc::clone(&target));
            let slow = Box::new(HeadsModel::new(slow.unwrap(), prefix));
            let drafts = Drafts::Trees(depth);
            return ([Box::new(drafter.heads(run)), slow], Shape { width, drafts });
        }
    };
    let width = layers.feature_width();
    let masks: Vec<TokenId> = layers.mask_ids().collect();
    let drafts = match (speculator.kind(), speculator.block()) {
        (SpeculatorKind::Pard2 { mask }, _) => Drafts::Masks(vec![mask; POSITIONS]),
        (SpeculatorKind::PEagle, _) => Drafts::Masks(vec![masks[0]; POSITIONS]),
        (_, Some(block)) => Drafts::Blocks(block.mask),
        _ if masks.is_empty() => Drafts::Trees(usize::MAX),
        _ => Drafts::Masks(masks),
    };
    let (model, slow) = (drafter.layers(run), on_reference(layers));
    let models: [Box<dyn LanguageModel>; 2] = match (&drafts, speculator.kind()) {
        (Drafts::Blocks(_), _) | (_, SpeculatorKind::Pard2 { .. }) => {
            [Box::new(BlockModel::new(model)), Box::new(BlockModel::new(slow))]
        }
        (_, SpeculatorKind::Assistant) => {
            [Box::new(TargetKeysModel::new(model)), Box::new(TargetKeysModel::new(slow))]
        }
        _ if width == 0 => {
            [Box::new(CachedTransformer::new(model)), Box::new(CachedTransformer::new(slow))]
        }
        _ => [Box::new(EagleModel::new(model)), Box::new(EagleModel::new(slow))],
    };
    (models, Shape { width, drafts })
}

/// A request, with features of all tokens but the last.
struct Wish<'a> {
    sequence: u64,
    tokens: &'a [TokenId],
    tree: &'a TokenTree,
    first_row: usize,
}

/// Returns features of all tokens but the last, which depend on the token and its position.
fn features_before_the_last(tokens: &[TokenId], width: usize) -> Features {
    let mut features = Features::new();
    let read = tokens[..tokens.len() - 1].iter().enumerate();
    if width > 0 {
        let rows = read.flat_map(|(position, &token)| {
            let seed = position * 7919 + token as usize * 104_729 + 13;
            (0..width).map(move |index| ((seed + index * 31) % 1000) as f32 / 500.0 - 1.0)
        });
        features.push(FeatureRows::new(width, rows.collect()));
    }
    features
}

/// Returns the bits of all results of requests that share passes. Those of sequences with even
/// numbers read only the best tokens, unless states are returned: these are for heads, which read
/// all logits.
fn run(model: &mut dyn LanguageModel, shape: &Shape, wishes: &[Wish<'_>]) -> Vec<u32> {
    let vocab_size = model.vocab_size();
    let returns_states = matches!(shape.drafts, Drafts::Blocks(_));
    let features: Vec<Features> =
        wishes.iter().map(|wish| features_before_the_last(wish.tokens, shape.width)).collect();
    let requests = wishes.iter().zip(&features).map(|(wish, features)| ForwardRequest {
        first_row: wish.first_row,
        rows_for: match returns_states || wish.sequence % 2 == 1 {
            true => RowUse::Full,
            false => RowUse::best(3, vocab_size - 40),
        },
        features: (shape.width > 0).then_some(features),
        features_from: returns_states.then_some(0),
        ..ForwardRequest::new(SequenceId(wish.sequence), wish.tokens, wish.tree)
    });
    let requests: Vec<ForwardRequest<'_>> = requests.collect();
    let mut all = Vec::new();
    for (output, request) in run_all(model, &requests).into_iter().zip(&requests) {
        // A device may return whole rows.
        let output = reduced_to(output.unwrap(), request.rows_for);
        let best = output.best.iter().flat_map(|row| &row.ranked);
        all.extend(best.flat_map(|&(token, logit)| [token, logit.to_bits()]));
        all.extend(bits(&output));
    }
    all
}

/// Returns the bits of a drafter in rounds of three sequences: a `long` prompt, a short one, and a
/// single token after the first one.
fn outputs(model: &mut dyn LanguageModel, shape: &Shape, long: usize) -> Vec<Vec<u32>> {
    let (mut long, mut short, single) = (text(long, 7), text(9, 5), text(2, 11));
    let tree = match &shape.drafts {
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
    let has_trees = matches!(shape.drafts, Drafts::Trees(_));
    let alone = if has_trees { TokenTree::new() } else { tree.clone() };
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
                let tree = &tree.first(nodes);
                let wish = Wish { sequence: 2, tokens: short, tree, first_row };
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

/// Asserts that a device computes the reference's bits in rounds whose long prompt has `long`
/// tokens. `number` chooses how much of the target is on the device.
pub fn assert_same_rounds<D: Device>(
    device: &D,
    (target, speculator): (&Target, Speculator),
    (weight_type, run): (WeightType, Run<D::Variant>),
    (number, long): (usize, usize),
    name: &str,
) {
    let part = match number % 2 {
        _ if speculator.kind().is_model() => TargetPart::FinalNorm,
        0 => TargetPart::Whole,
        _ => TargetPart::WithoutLayers,
    };
    let drafter = Drafter { device, target, speculator, types: weight_type.into(), part };
    let (models, shape) = models(&drafter, run);
    let [found, expected] = models.map(|mut model| outputs(&mut *model, &shape, long));
    assert_eq!(found.len(), expected.len(), "{name}");
    let name = format!("{name} in {weight_type} ({run:?})");
    for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_same_bits(found, expected, &format!("{name}, step {step}"));
    }
    let count: usize = found.iter().map(Vec::len).sum();
    assert!(count > 1000, "{name}: {count} numbers");
}

/// Returns the layouts of all drafters but EAGLE-3's options, and their kinds.
#[must_use]
pub fn layouts() -> Vec<(SpeculatorLayout, SpeculatorKind)> {
    use SpeculatorKind as K;
    let markov = [MarkovKind::Vanilla, MarkovKind::Gated, MarkovKind::Recurrent];
    let others = [
        (L::Eagle, K::Eagle),
        (L::SharedEmbeddingEagle, K::Eagle),
        (L::ReducedEagle, K::Eagle),
        (L::Eagle3, K::Eagle3),
        (L::PEagle, K::PEagle),
        (L::ParallelEagle, K::ParallelEagle),
        (L::ReducedParallelEagle, K::ParallelEagle),
        (L::ParallelMedusa, K::ParallelMedusa),
        (L::ReducedParallelMedusa, K::ParallelMedusa),
        (L::Medusa, K::Medusa),
        (L::VllmMedusa, K::Medusa),
        (L::SharedHeadMedusa, K::Medusa),
        (L::ReducedMedusa, K::Medusa),
        (L::Hydra, K::Hydra),
        (L::HydraPlusPlus, K::Hydra),
        (L::SharedHeadHydra, K::Hydra),
        (L::ReducedHydra, K::Hydra),
        (L::DFlash, K::DFlash),
        (L::JetSpec, K::DFlash),
        (L::DFlash2, K::DFlash2),
        (L::Pard2, K::Pard2 { mask: 0 }),
    ];
    let with_markov_heads = markov.map(|kind| (L::DSpark(kind), K::DSpark));
    others.into_iter().chain(with_markov_heads).collect()
}

/// Some prompts have several splits of attention.
pub(super) fn every_drafter_for_a_target_has_the_bits_of_the_reference<D: Device>(device: &D) {
    let target = Target::plain();
    let types = device.offer().weight_types;
    let count = device.effort().types_of_drafters.min(types.len());
    let mut types = types.into_iter().cycle();
    let mut turns = device.turns();
    for (number, (layout, _)) in layouts().into_iter().enumerate() {
        for (turn, typed) in types.by_ref().take(count).zip(&mut turns).enumerate() {
            let long = if number % 3 == 0 && turn == 0 { 262 } else { 30 };
            let drafter = (&target, target.drafter(layout));
            let name = format!("{layout:?}");
            assert_same_rounds(device, drafter, typed, (number + turn, long), &name);
        }
    }
}

/// A part of the target's head has the head's type: its rows are copied as they are.
pub(super) fn parts_of_heads_of_all_types_have_the_bits_of_the_reference<D: Device>(device: &D) {
    let target = Target::plain();
    for layout in [L::ReducedEagle, L::ReducedHydra] {
        for typed in device.offer().weight_types.into_iter().zip(device.turns()) {
            let drafter = (&target, target.drafter(layout));
            assert_same_rounds(device, drafter, typed, (1, 30), &format!("{layout:?}"));
        }
    }
}

/// A pass with more than 1 MiB of features.
pub(super) fn many_features_have_the_bits_of_the_reference<D: Device>(device: &D) {
    let target = Target::of(Config { hidden_size: 384, ..example_config() }, false);
    let speculator = target.drafter(L::Eagle3);
    let width = speculator.features().unwrap().width(target.config.hidden_size);
    // A pass reads 256 rows of a prompt at most.
    assert!(256 * width * size_of::<f32>() > 1 << 20);
    let (typed, name) = ((WeightType::F32, device.best()), "features of 1.1 MiB");
    assert_same_rounds(device, (&target, speculator), typed, (1, 262), name);
}

/// All norms, and one or two layers, in f32 and other types by turns, or in one type by turns.
pub(super) fn eagle_3_has_the_bits_of_the_reference_with_all_options<D: Device>(device: &D) {
    let target = Target::plain();
    let mut types = device.offer().weight_types.into_iter().cycle();
    let mut turns = device.turns();
    let others = device.effort().types_of_drafters.min(3) - 1;
    for (number, options) in Eagle3Options::all().into_iter().enumerate() {
        let chosen: Vec<_> = match others {
            0 => types.by_ref().take(1).collect(),
            _ => [WeightType::F32].into_iter().chain(types.by_ref().take(others)).collect(),
        };
        for (turn, typed) in chosen.into_iter().zip(&mut turns).enumerate() {
            let drafter = (&target, target.drafter(L::Eagle3With(options)));
            let name = format!("{options:?}");
            assert_same_rounds(device, drafter, typed, (number + turn, 30), &name);
        }
    }
}

pub(super) fn mtp_heads_have_the_bits_of_the_reference<D: Device>(device: &D) {
    let configs = device.offer().configs.into_iter();
    for config in configs.filter(|config| WITH_MTP.contains(&config.family)) {
        let name = config.family.to_string();
        let target = Target::of(config, true);
        let speculator = Speculator::open_mtp(&target.checkpoint).unwrap();
        let typed = (WeightType::F32, device.best());
        assert_same_rounds(device, (&target, speculator), typed, (1, 30), &name);
    }
}

/// Targets with layers of two kinds, with shared keys, and with experts. Some prompts take two
/// passes.
pub(super) fn assistants_have_the_bits_of_the_reference<D: Device>(device: &D) {
    let types = device.offer().kinds_of_weights;
    let count = device.effort().types_of_drafters.min(types.len());
    let (mut types, mut turns) = (types.into_iter().cycle(), device.turns());
    let configs = device.offer().configs.into_iter();
    let configs = configs.filter(|config| config.family == Family::Gemma4);
    for (number, config) in configs.enumerate() {
        let target = Target::of(config, false);
        for (turn, typed) in types.by_ref().take(count).zip(&mut turns).enumerate() {
            let long = if number == 0 && turn == 0 { 262 } else { 30 };
            let (drafter, name) = (target.drafter(L::Assistant), format!("assistant {number}"));
            assert_same_rounds(device, (&target, drafter), typed, (number + turn, long), &name);
        }
    }
}

/// A target with factors, caps and a bias of the head, and one with layer norms and learned
/// positions.
pub(super) fn drafters_for_other_families_have_the_bits_of_the_reference<D: Device>(device: &D) {
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
        let config = examples().into_iter().find(|config| config.family == family).unwrap();
        let target = Target::of(config, false);
        for layout in layouts {
            let drafter = (&target, target.drafter(*layout));
            let (typed, name) =
                ((WeightType::F32, device.best()), format!("{layout:?} for {family}"));
            assert_same_rounds(device, drafter, typed, (1, 30), &name);
        }
    }
}

/// A block whose first rows the cache holds: the convolutions of DFlash 2 begin with the first new
/// row.
pub(super) fn the_rest_of_a_block_has_the_bits_of_the_reference<D: Device>(device: &D) {
    let target = Target::plain();
    let path = target.folder.path().join("five positions");
    let (layout, of) = (L::DFlash2, &target.config);
    RandomSpeculator { layout, target: of, seed: 3, positions: 5, target_embedding_sha256: None }
        .write(&path)
        .unwrap();
    let speculator = Speculator::open(&path, &target.checkpoint).unwrap().unwrap();
    let SpeculatorArchitecture::Layers(layers) = speculator.architecture().unwrap() else {
        panic!("layers")
    };
    let drafter = target.on(device, speculator);
    let (run, source) = (device.best(), &drafter.speculator);
    let arithmetic = device.arithmetic(drafter.types, run.variant);
    let of_target = Some(&*reference(&drafter, run));
    let slow = ReferenceModel::load_with(layers, source, arithmetic, of_target).unwrap();
    let found = rest_of_block(drafter.layers(run));
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

//! Targets and drafters on GPUs and on cores: every method gives the text of plain decoding with
//! the target on the same kind of device. Without a GPU the tests report that they are skipped. A
//! software driver, such as Mesa's lavapipe, is enough.
//!
//! Combinations of a method, a drafter and devices take turns at the requests. Each has all of them
//! with `FORERUN_CASES` (`just gpu`).

#![cfg(feature = "gpu")]
use crate::common::Pair;
use forerun::draft::EasySpec;
use forerun::gpu::GpuDevice;
use forerun::{
    Answer, DraftTokens, DrafterKind, DrafterOptions, Engine, ForerunError, LayerStrategy, Loader,
    Lookup, Method, MethodOptions, Options, Plan, RandomPair, Request, SamplingOptions, Step, Tree,
    WeightType,
};
use forerun_core::testing::is_complete;
use forerun_formats::checkpoint::random::{example_config, example_families, write_random_pair};
use forerun_formats::checkpoint::random_speculator::{RandomSpeculator, SpeculatorLayout};
use forerun_formats::{BlockType, Config, Family};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Returns whether there is a GPU, and says which one is used.
fn has_gpu() -> bool {
    let adapters = GpuDevice::adapters().unwrap();
    match adapters.first() {
        Some(adapter) => println!("{adapter}"),
        None => eprintln!("skipped: there is no GPU, and no software driver"),
    }
    !adapters.is_empty()
}

fn options(pair: &RandomPair, placement: &str) -> Options {
    let is_tensor = std::env::var("FORERUN_GPU_ARITHMETIC").is_ok_and(|name| name == "tensor");
    Options {
        // Tensor cores do not multiply the pair's f32.
        weight_type: is_tensor.then(|| WeightType::Bf16.into()),
        model: pair.target().into(),
        draft_model: Some(pair.drafter().into()),
        draft_tokens: DraftTokens::Fixed(3),
        placement: Some(placement.parse().unwrap()),
        ..Options::default()
    }
}

fn open(options: Options) -> Result<Engine, ForerunError> {
    Engine::open_with(&Plan::new(options)?, &mut Loader::new().with_software_gpus())
}

/// Of the rows, these read the best token, all logits, and some of the best tokens.
fn requests() -> [Request; 3] {
    let greedy = Request { max_tokens: 24, ..Request::default() };
    let nucleus = SamplingOptions { temperature: 0.9, top_p: 0.95, ..greedy.sampling.clone() };
    let top_k = SamplingOptions { top_k: 12, ..nucleus.clone() };
    let sampled =
        [nucleus, top_k].map(|sampling| Request { sampling, seed: Some(5), ..greedy.clone() });
    let [nucleus, top_k] = sampled;
    [greedy, nucleus, top_k]
}

/// Returns whether a combination has a request: every second one has the odd ones.
fn has(combination: usize, request: usize) -> bool {
    is_complete() || request % 2 == combination % 2
}

/// Each prompt is answered greedily, and with one of the two ways of sampling.
fn answers(engine: &Engine) -> Vec<Answer> {
    numbered_answers(engine, |_| true).into_iter().map(|(_, answer)| answer).collect()
}

/// The same for some of the four answers, with their numbers: 0 and 2 of one prompt, 1 and 3 of the
/// other one.
fn numbered_answers(engine: &Engine, is_wanted: impl Fn(usize) -> bool) -> Vec<(usize, Answer)> {
    let [greedy, nucleus, top_k] = requests();
    let [words, numbers] = ["the quick brown fox", "1 2 3 1 2 3 1 2"];
    let each = [(words, greedy.clone()), (numbers, greedy), (words, nucleus), (numbers, top_k)];
    complete(engine, each, is_wanted)
}

/// Returns the answers to some requests, with the numbers of these.
fn complete<'a>(
    engine: &Engine,
    requests: impl IntoIterator<Item = (&'a str, Request)>,
    is_wanted: impl Fn(usize) -> bool,
) -> Vec<(usize, Answer)> {
    let numbered = requests.into_iter().enumerate().filter(|(number, _)| is_wanted(*number));
    let answer = |(prompt, request): (&str, Request)| engine.complete(prompt, &request).unwrap();
    numbered.map(|(number, request)| (number, answer(request))).collect()
}

fn tokens(engine: &Engine) -> Vec<Vec<u32>> {
    answers(engine).into_iter().map(|answer| answer.tokens).collect()
}

fn tree() -> Option<MethodOptions> {
    let tree = Tree::Top { width: 3, depth: Some(3), budget: Some(8) };
    Some(MethodOptions::Speculative { tree, lookup: Lookup::None })
}

fn plain(pair: &RandomPair, device: &str) -> Vec<Vec<u32>> {
    let options = Options {
        method: Some(Method::Autoregressive.into()),
        ..options(pair, &format!("target={device}"))
    };
    tokens(&open(options).unwrap())
}

#[test]
fn every_method_gives_the_targets_text_on_any_devices() {
    if !has_gpu() {
        return;
    }
    let pair = RandomPair::make().unwrap();
    let (mut accepted, mut combination) = (0, 0);
    for target in ["gpu:0", "cpu:0"] {
        let expected = plain(&pair, target);
        for drafter in ["gpu:0", "cpu:0"] {
            let shared = if drafter == target { ",shared" } else { "" };
            let placement = format!("drafter={drafter},target={target}{shared}");
            for method in [Method::Speculative, Method::Pearl, Method::Dsi, Method::Ssd] {
                let options = Options { method: Some(method.into()), ..options(&pair, &placement) };
                let is_wanted = |number| has(combination, number);
                let answers = numbered_answers(&open(options).unwrap(), is_wanted);
                assert!(answers.len() >= 2);
                for (number, answer) in answers {
                    accepted += answer.statistics.accepted.iter().sum::<u64>();
                    assert_eq!(answer.tokens, expected[number], "{method}, {placement}, {number}");
                }
                combination += 1;
            }
            // The next drafter has the other requests with each method.
            combination += 1;
        }
    }
    assert!(accepted > 100, "{accepted} draft tokens are accepted");
}

/// A target between a GPU and cores, with a drafter on either.
#[test]
fn every_method_gives_the_text_of_a_split_target() {
    if !has_gpu() {
        return;
    }
    let pair = RandomPair::make().unwrap();
    let target = "gpu:0:1/cpu:0";
    let expected = plain(&pair, target);
    let mut accepted = 0;
    for drafter in ["gpu:0", "cpu:0"] {
        let placement = format!("drafter={drafter},target={target},shared");
        for method in [Method::Speculative, Method::Pearl, Method::Dsi, Method::Ssd] {
            let options = Options { method: Some(method.into()), ..options(&pair, &placement) };
            let answers = answers(&open(options).unwrap());
            accepted += answers.iter().flat_map(|own| &own.statistics.accepted).sum::<u64>();
            let tokens: Vec<_> = answers.into_iter().map(|answer| answer.tokens).collect();
            assert_eq!(tokens, expected, "{method}, {placement}");
        }
        let draft_tokens = DraftTokens::Auto;
        let tree = Options { draft_tokens, method: tree(), ..options(&pair, &placement) };
        assert_eq!(tokens(&open(tree).unwrap()), expected, "a tree, {placement}");
    }
    assert!(accepted > 50, "{accepted} draft tokens are accepted");
    // Two replicas on one GPU, with layers on the same cores.
    let replicas = format!("drafter=cpu:0,target={target},target={target},shared");
    let dsi = Options { method: Some(Method::Dsi.into()), ..options(&pair, &replicas) };
    assert_eq!(tokens(&open(dsi).unwrap()), expected);
    // The number of layers as an option, with the default placement.
    let cores = Options { placement: None, threads: Some(1), ..options(&pair, "target=cpu:0") };
    let engine = open(Options { gpu_layers: Some(1), ..cores }).unwrap();
    assert!(engine.plan().placement().to_string().contains("target=gpu:0:1/cpu:"));
    assert_eq!(tokens(&engine), expected);
}

/// As many layers as fit are on the GPU: all of a small model.
#[test]
fn the_layers_of_a_split_target_are_reported() {
    if !has_gpu() {
        return;
    }
    let pair = RandomPair::make().unwrap();
    let split = |placement: &str| {
        let alone = Options {
            draft_model: None,
            draft_tokens: DraftTokens::Auto,
            ..options(&pair, placement)
        };
        let mut found = None;
        let loader = Loader::new().with_software_gpus();
        let mut loader = loader.on_progress(|progress| {
            if let Step::Split { gpu, .. } = progress.step {
                found = Some((gpu, progress.done, progress.total));
            }
            ControlFlow::Continue(())
        });
        let opened = Engine::open_with(&Plan::new(alone).unwrap(), &mut loader);
        drop(loader);
        opened.map(|_| found.unwrap())
    };
    let (_, all, total) = split("target=gpu:0/cpu:0").unwrap();
    assert_eq!(all, total);
    assert_eq!(split("target=gpu:0:1/cpu:0").unwrap(), (0, 1, total));
    assert_eq!(split("target=gpu:0:99/cpu:0").unwrap(), (0, total, total));
}

#[test]
fn gpu_layers_need_a_target_that_can_be_split() {
    let pair = RandomPair::make().unwrap();
    let error = |placement: &str, layers| {
        let options = Options { gpu_layers: Some(layers), ..options(&pair, placement) };
        Plan::new(options).unwrap_err().to_string()
    };
    let on_gpu = error("drafter=cpu:0,target=gpu:0", 3);
    assert!(on_gpu.contains("`gpu_layers`") && on_gpu.contains("gpu:0/cpu:0-7"), "{on_gpu}");
    assert!(error("drafter=cpu:0,target=cpu:0,shared", 0).contains("at least 1"));
    let shared = error("drafter=gpu:0,target=cpu:0", 3);
    let written = "drafter=gpu:0,target=gpu:0:3/cpu:0,shared";
    assert!(shared.contains(written), "{shared}");
    Plan::new(options(&pair, written)).unwrap();
}

#[test]
fn trees_and_layer_groups_give_the_targets_text() {
    if !has_gpu() {
        return;
    }
    let pair = RandomPair::make().unwrap();
    let expected = plain(&pair, "gpu:0");
    let on_gpu = || options(&pair, "drafter=gpu:0,target=gpu:0,shared");
    let tree = Options { draft_tokens: DraftTokens::Auto, method: tree(), ..on_gpu() };
    assert_eq!(tokens(&open(tree).unwrap()), expected);
    for layers in [1, 2] {
        let easyspec = EasySpec { layers: LayerStrategy::Parallel(layers), ..EasySpec::default() };
        let drafter = Some(DrafterOptions::EasySpec(easyspec));
        assert_eq!(
            tokens(&open(Options { drafter, ..on_gpu() }).unwrap()),
            expected,
            "{layers} layers at a time"
        );
    }
    let lookup = Options {
        drafter: Some(DrafterKind::PromptLookup.into()),
        draft_model: None,
        ..options(&pair, "target=gpu:0")
    };
    assert_eq!(tokens(&open(lookup).unwrap()), expected);
}

/// Returns a small configuration of a family, with sizes that GPUs compute.
fn config_of(family: Family) -> Config {
    let mut config = example_families().into_iter().find(|config| config.family == family).unwrap();
    if let Some(latent) = &mut config.latent {
        latent.query_rank = latent.query_rank.map(|rank| rank.next_multiple_of(4));
        latent.rank = latent.rank.next_multiple_of(4);
        latent.value_dim = latent.value_dim.next_multiple_of(2);
    }
    config
}

/// Checks that a target on a GPU or on cores gives the text of plain decoding, with a drafter on
/// either.
fn check_family(config: &Config) {
    let pair = Pair::of_config(config);
    let options = |placement: &str, method: Method| Options {
        model: pair.target.clone().into(),
        draft_model: Some(pair.drafter.clone().into()),
        draft_tokens: DraftTokens::Fixed(3),
        method: Some(method.into()),
        placement: Some(placement.parse().unwrap()),
        ..Options::default()
    };
    // Six requests.
    let answers = |options: Options, is_wanted: &dyn Fn(usize) -> bool| {
        let prompts = pair.prompts[..2].iter();
        let each = prompts.flat_map(|prompt| requests().map(|own| (prompt.as_str(), own)));
        complete(&open(options).unwrap(), each, is_wanted)
    };
    let mut combination = 0;
    for target in ["gpu:0", "cpu:0"] {
        let plain = options(&format!("target={target}"), Method::Autoregressive);
        let expected = answers(plain, &|_| true);
        for drafter in ["gpu:0", "cpu:0"] {
            let shared = if drafter == target { ",shared" } else { "" };
            let placement = format!("drafter={drafter},target={target}{shared}");
            for method in [Method::Speculative, Method::Pearl] {
                let is_wanted = |number| has(combination, number);
                let found = answers(options(&placement, method), &is_wanted);
                let name = format!("{}, {method}, {placement}", config.family);
                assert!(found.len() >= 3, "{name}");
                for (number, answer) in found {
                    assert_eq!(answer.tokens, expected[number].1.tokens, "{name}, {number}");
                }
                combination += 1;
            }
            // The next drafter has the other requests with each method.
            combination += 1;
        }
    }
}

#[test]
fn mixtures_of_experts_give_the_targets_text_on_any_devices() {
    if has_gpu() {
        check_family(&Config { num_hidden_layers: 1, ..config_of(Family::Mixtral) });
    }
}

#[test]
fn compressed_keys_and_values_give_the_targets_text_on_any_devices() {
    if has_gpu() {
        check_family(&config_of(Family::DeepseekV3));
    }
}

#[test]
fn hybrids_give_the_targets_text_on_any_devices() {
    if has_gpu() {
        [Family::Lfm2, Family::Qwen3Next, Family::GraniteMoeHybrid]
            .map(config_of)
            .iter()
            .for_each(check_family);
    }
}

/// Two replicas on a GPU take turns.
#[test]
fn dsi_uses_replicas_on_gpus() {
    if !has_gpu() {
        return;
    }
    let pair = RandomPair::make().unwrap();
    let placement = "drafter=cpu:0,target=gpu:0,target=gpu:0,shared";
    let dsi = Options { method: Some(Method::Dsi.into()), ..options(&pair, placement) };
    assert_eq!(tokens(&open(dsi).unwrap()), plain(&pair, "gpu:0"));
}

/// Drafters on features of a target on a GPU: they compute on cores, with the target's embedding
/// and head, or with its final norm.
#[test]
fn drafters_on_features_read_those_of_a_gpu() {
    if !has_gpu() {
        return;
    }
    let (pair, speculators) = Pair::with_speculators();
    let on_features = |layout: &SpeculatorLayout| match layout {
        SpeculatorLayout::Eagle | SpeculatorLayout::Eagle3 => Some(DrafterKind::Eagle),
        SpeculatorLayout::Medusa | SpeculatorLayout::SharedHeadMedusa => Some(DrafterKind::Medusa),
        SpeculatorLayout::DFlash | SpeculatorLayout::JetSpec => Some(DrafterKind::DFlash),
        SpeculatorLayout::DFlash2 => Some(DrafterKind::DFlash2),
        SpeculatorLayout::Pard2 => Some(DrafterKind::Parallel),
        _ => None,
    };
    let on_device = |target: &str| {
        let answer = |drafter: Option<DrafterKind>, model: Option<PathBuf>| {
            let on_gpu = match drafter.is_some() {
                true => format!("drafter=cpu:0,target={target}"),
                false => format!("target={}", target.trim_end_matches(",shared")),
            };
            let options = Options {
                model: pair.target.clone().into(),
                draft_model: model.map(Into::into),
                method: Some(
                    drafter.map_or(Method::Autoregressive, |_| Method::Speculative).into(),
                ),
                drafter: drafter.map(DrafterKind::into),
                placement: Some(on_gpu.parse().unwrap()),
                weight_type: Some(WeightType::F32.into()),
                ..Options::default()
            };
            let request = Request { max_tokens: 20, ignore_eos: true, ..Request::default() };
            let answer = open(options).unwrap().complete(&pair.prompts[0], &request).unwrap();
            assert_eq!(answer.statistics.failures, Vec::<String>::new());
            answer
        };
        let expected = answer(None, None).tokens;
        for (layout, path) in &speculators {
            if let Some(kind) = on_features(layout) {
                let answer = answer(Some(kind), Some(path.clone()));
                assert_eq!(answer.tokens, expected, "{layout:?}, {target}");
                assert!(answer.statistics.drafts > 0, "{layout:?}, {target}");
            }
        }
    };
    on_device("gpu:0");
    on_device("gpu:0:1/cpu:0,shared");
}

/// Returns the kind that drafts with a layout, and whether it drafts trees, drafts ahead, and
/// drafts for DSI.
fn drafting(layout: &SpeculatorLayout) -> (DrafterKind, [bool; 3]) {
    use SpeculatorLayout as L;
    match layout {
        L::Medusa | L::VllmMedusa | L::SharedHeadMedusa | L::ReducedMedusa => {
            (DrafterKind::Medusa, [true, false, false])
        }
        L::Hydra | L::HydraPlusPlus | L::SharedHeadHydra | L::ReducedHydra => {
            (DrafterKind::Hydra, [true, false, false])
        }
        L::Eagle | L::SharedEmbeddingEagle | L::ReducedEagle | L::Eagle3 | L::Eagle3With(_) => {
            (DrafterKind::Eagle, [true, true, false])
        }
        L::DFlash | L::JetSpec => (DrafterKind::DFlash, [false, true, false]),
        L::DFlash2 => (DrafterKind::DFlash2, [false, true, false]),
        L::Assistant => (DrafterKind::Assistant, [true, true, false]),
        L::DSpark(_) => (DrafterKind::DSpark, [false, true, false]),
        L::ParallelMedusa | L::ReducedParallelMedusa => {
            (DrafterKind::Parallel, [false, true, true])
        }
        L::ParallelEagle | L::ReducedParallelEagle | L::PEagle | L::Pard2 => {
            (DrafterKind::Parallel, [false, true, false])
        }
    }
}

/// Whether a layout is tested with every placement. All are if `FORERUN_CASES` is set.
fn is_tested(layout: &SpeculatorLayout) -> bool {
    use SpeculatorLayout as L;
    let usual = [
        L::Eagle,
        L::Eagle3,
        L::SharedHeadMedusa,
        L::HydraPlusPlus,
        L::ReducedHydra,
        L::ParallelEagle,
        L::ParallelMedusa,
        L::DFlash2,
        L::Pard2,
        L::Assistant,
    ];
    usual.contains(layout) || is_complete()
}

/// Drafters that were trained for a target, with target and drafter on cores and on a GPU, and with
/// a split target: every method that each of them supports.
#[test]
fn drafters_trained_for_a_target_give_its_text_on_any_devices() {
    if !has_gpu() {
        return;
    }
    let (pair, speculators) = Pair::with_speculators();
    let accepted = accepted_on_any_devices(&pair, &speculators);
    println!("{accepted} draft tokens are accepted");
    assert!(accepted > 200, "{accepted} draft tokens are accepted");
    let families = example_families();
    let gemma4 = families.iter().find(|config| config.family == Family::Gemma4).unwrap();
    let (pair, assistant) = Pair::with_assistant(gemma4);
    accepted_on_any_devices(&pair, &assistant);
}

/// Checks the answers with each drafter, and returns the number of accepted draft tokens.
fn accepted_on_any_devices(pair: &Pair, speculators: &[(SpeculatorLayout, PathBuf)]) -> u64 {
    let mut loader = Loader::new().with_software_gpus().sharing_weights();
    let mut accepted = 0;
    for (target, drafters) in [
        ("gpu:0", &["gpu:0", "cpu:0"][..]),
        ("cpu:0", &["gpu:0", "cpu:0"]),
        ("gpu:0:1/cpu:0", &["gpu:0"]),
    ] {
        let mut combination = 0;
        let mut answers = |drafter: Option<(DrafterKind, &Path, &str)>, method, tree: Tree| {
            let placement = match drafter {
                None => format!("target={target}"),
                Some((_, _, device)) => {
                    let shared =
                        if device == target || target.contains('/') { ",shared" } else { "" };
                    format!("drafter={device},target={target}{shared}")
                }
            };
            let name = format!("{method}, {tree:?}, {placement}");
            let is_tree = tree != Tree::None;
            let options = Options {
                model: pair.target.clone().into(),
                draft_model: drafter.map(|(_, path, _)| path.to_owned().into()),
                drafter: drafter.map(|(kind, ..)| kind.into()),
                draft_tokens: match drafter.is_some() && !is_tree {
                    true => DraftTokens::Fixed(3),
                    false => DraftTokens::Auto,
                },
                method: Some(match is_tree {
                    true => MethodOptions::Speculative { tree, lookup: Lookup::None },
                    false => Method::into(method),
                }),
                placement: Some(placement.parse().unwrap()),
                weight_type: Some(WeightType::F32.into()),
                ..Options::default()
            };
            let engine = Engine::open_with(&Plan::new(options).unwrap(), &mut loader).unwrap();
            // The greedy one, and one of the two that sample.
            let is_wanted = |number| drafter.is_none() || number == 0 || has(combination, number);
            let each = requests().map(|request| {
                let request = Request { max_tokens: 12, ignore_eos: true, ..request };
                (pair.prompts[0].as_str(), request)
            });
            let answers = complete(&engine, each, is_wanted);
            combination += 1;
            (name, answers)
        };
        let (_, expected) = answers(None, Method::Autoregressive, Tree::None);
        for (layout, path) in speculators.iter().filter(|(layout, _)| is_tested(layout)) {
            let (kind, [drafts_trees, drafts_ahead, drafts_for_dsi]) = drafting(layout);
            for device in drafters {
                // Other tests have the drafters on cores for a target on cores.
                if *device == target && *device == "cpu:0" && kind != DrafterKind::Eagle {
                    continue;
                }
                let top = Tree::Top { width: 3, depth: Some(3), budget: Some(6) };
                let runs = [
                    (true, Method::Speculative, Tree::None),
                    (drafts_trees, Method::Speculative, top),
                    (drafts_ahead, Method::Pearl, Tree::None),
                    (drafts_for_dsi, Method::Dsi, Tree::None),
                ];
                for (_, method, tree) in runs.into_iter().filter(|(is_run, ..)| *is_run) {
                    let is_tree = tree != Tree::None;
                    let (name, found) = answers(Some((kind, path, device)), method, tree);
                    assert!(found.len() >= 2);
                    for (number, answer) in &found {
                        let expected = &expected[*number].1.tokens;
                        assert_eq!(&answer.tokens, expected, "{layout:?}, {name}, {number}");
                        let statistics = &answer.statistics;
                        assert_eq!(statistics.failures, Vec::<String>::new(), "{layout:?}, {name}");
                        // Whether automatic trees and drafters that work ahead draft depends on
                        // times.
                        let always_drafts = method == Method::Speculative && !is_tree;
                        assert!(statistics.drafts > 0 || !always_drafts, "{layout:?}, {name}");
                        accepted += statistics.accepted.iter().sum::<u64>();
                    }
                }
            }
        }
    }
    accepted
}

/// Returns the error of a drafter on a GPU for a target on cores.
fn refused(
    target: &Path,
    (layout, path): (&SpeculatorLayout, &Path),
    types: WeightType,
) -> Refused {
    let opened = open(Options {
        model: target.to_owned().into(),
        draft_model: Some(path.to_owned().into()),
        drafter: Some(drafting(layout).0.into()),
        placement: Some("drafter=gpu:0,target=cpu:0".parse().unwrap()),
        weight_type: Some(types.into()),
        ..Options::default()
    });
    let error = opened.err().unwrap();
    match &error {
        ForerunError::LoadOnGpu { model, cause } => {
            Refused { message: error.to_string(), model: model.clone(), cause: cause.to_string() }
        }
        ForerunError::SharedOnGpu { drafter, cause, .. } => {
            Refused { message: error.to_string(), model: drafter.clone(), cause: cause.to_string() }
        }
        _ => panic!("{layout:?}: {error}"),
    }
}

/// The error of a drafter on a GPU.
struct Refused {
    message: String,
    model: String,
    cause: String,
}

/// What GPUs do not compute is named with its tensor: of a drafter, or of the part of the target
/// that it needs.
#[test]
fn drafters_that_gpus_do_not_compute_are_refused_by_name() {
    if !has_gpu() {
        return;
    }
    let (pair, speculators) = Pair::with_speculators();
    for (layout, path) in &speculators {
        let q4_0 = WeightType::Quantized(BlockType::Q4_0);
        let Refused { message, model, cause } = refused(&pair.target, (layout, path), q4_0);
        assert_eq!(model, path.display().to_string(), "{layout:?}: {message}");
        let tensor = "weights in q4_0 (model.";
        assert!(cause.contains(tensor), "{layout:?}: {cause}");
        // PARD-2 needs the target's final norm only, which has no such type.
        let needs = "on gpu:0 needs a copy of the target's embedding and head there";
        assert_eq!(message.contains(needs), *layout != SpeculatorLayout::Pard2, "{message}");
        assert_eq!(message.contains("drafter=cpu:0"), message.contains(needs), "{message}");
    }
    // The target is on cores, which compute any number of inputs.
    let folder = tempfile::tempdir().unwrap();
    let (target, config) =
        (folder.path().join("target"), Config { intermediate_size: 90, ..example_config() });
    let drafter = folder.path().join("a drafter");
    write_random_pair(&target, &folder.path().join("unused"), &config, 2, 0.3, 3).unwrap();
    let layout = SpeculatorLayout::Eagle3;
    let random = RandomSpeculator {
        layout,
        target: &config,
        seed: 3,
        positions: 3,
        target_embedding_sha256: None,
    };
    random.write(&drafter).unwrap();
    let Refused { message, model, cause } = refused(&target, (&layout, &drafter), WeightType::F32);
    assert_eq!(model, drafter.display().to_string(), "{message}");
    assert!(message.contains("a drafter"), "{message}");
    let tensor = "90 inputs, no multiple of 4 (model.layers.0.mlp.down_proj";
    assert!(cause.contains(tensor), "{cause}");
}

/// The demonstration's trained drafters predict the target on any devices as well as on cores:
/// wrong features would give other drafts, most of which would be rejected.
#[test]
fn trained_drafters_on_features_are_as_right_on_any_devices() {
    if !has_gpu() {
        return;
    }
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let request = Request { max_tokens: 20, ignore_eos: true, ..Request::default() };
    for (kind, name) in [(DrafterKind::Eagle, "eagle"), (DrafterKind::Medusa, "medusa")] {
        let answer = |drafter: &str, target: &str| {
            let options = Options {
                model: models.join("target").into(),
                draft_model: Some(models.join(name).into()),
                method: Some(Method::Speculative.into()),
                drafter: Some(kind.into()),
                draft_tokens: DraftTokens::Fixed(2),
                placement: Some(format!("drafter={drafter},target={target}").parse().unwrap()),
                weight_type: Some(WeightType::F32.into()),
                ..Options::default()
            };
            open(options).unwrap().complete("Once upon a time", &request).unwrap()
        };
        let on_cores = answer("cpu:0", "cpu:0,shared");
        for (drafter, target) in [
            ("cpu:0", "gpu:0"),
            ("cpu:0", "gpu:0:2/cpu:0,shared"),
            ("gpu:0", "gpu:0,shared"),
            ("gpu:0", "cpu:0"),
        ] {
            let found = answer(drafter, target);
            assert_eq!(found.tokens, on_cores.tokens, "{name}: no two tokens are nearly as likely");
            let accepted = found.statistics.accepted;
            assert_eq!(accepted, on_cores.statistics.accepted, "{name}, {drafter}, {target}");
            assert!(accepted.iter().sum::<u64>() >= 6, "{name}: {accepted:?}");
        }
    }
}

#[test]
fn loading_on_a_gpu_is_reported_by_layer_and_can_be_cancelled() {
    if !has_gpu() {
        return;
    }
    let pair = RandomPair::make().unwrap();
    let plan = || {
        let alone =
            Options { draft_model: None, draft_tokens: DraftTokens::Auto, ..Options::default() };
        let options = options(&pair, "target=gpu:0");
        Plan::new(Options { model: options.model, placement: options.placement, ..alone }).unwrap()
    };
    let mut steps = Vec::new();
    let mut load = |stop_at: u64| {
        steps.clear();
        let mut loader = Loader::new().with_software_gpus().on_progress(|progress| {
            if let Step::Load { .. } = progress.step {
                steps.push((progress.done, progress.total));
            }
            match progress.done == stop_at {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        let opened = Engine::open_with(&plan(), &mut loader).map(|_| ());
        drop(loader);
        (opened, steps.clone())
    };
    let (opened, all) = load(u64::MAX);
    assert!(opened.is_ok());
    let total = all[0].1;
    assert_eq!(all, (0..=total).map(|layer| (layer, total)).collect::<Vec<_>>());
    let (opened, some) = load(1);
    assert!(matches!(opened, Err(ForerunError::Cancelled)));
    assert_eq!(some, [(0, total), (1, total)]);
}

#[test]
fn a_gpu_that_is_not_there_is_named() {
    let pair = RandomPair::make().unwrap();
    let placement = "drafter=cpu:0,target=gpu:77";
    let error = open(options(&pair, placement)).err().unwrap().to_string();
    assert!(error.contains("77"), "{error}");
}

#[test]
fn replicas_on_gpus_and_cores_would_differ() {
    let error =
        "drafter=cpu:0,target=gpu:0,target=cpu:1".parse::<forerun::Placement>().unwrap_err();
    assert!(error.to_string().contains("gpu:0"), "{error}");
}

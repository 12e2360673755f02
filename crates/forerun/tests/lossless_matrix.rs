//! Invariant 1 on whole models: every decoder × drafter × tree shape gives the very tokens of the
//! target alone, greedily, and with coupled verification at every temperature.
//!
//! The oracle is not the code under test: plain decoding's tokens and log-probabilities are first held
//! against a fresh, cache-less forward of the slow reference and the slow reference of sampling, then
//! everything else against them.
//!
//! `FORERUN_LOSSLESS_PROMPTS` sets how many prompts are run (`just lossless` runs 120);
//! `FORERUN_LOSSLESS_SEED` where the sample begins.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Pair;
use forerun::{
    AdditionalDrafter, Answer, CalibrationPolicy, Canceller, Checkpoint, DraftTokens, DrafterKind,
    EasySpec, Forerun, LayerStrategy, Method, Options, PearlOptions, Plan, Request, Statistics,
    TokenId, TokenLogprob, Tree, Verification, VerificationChoice, available_cores,
};
use forerun_core::{KeyedRandomness, Sampling, reference as sampling_reference};
use forerun_model::ReferenceModel;
use forerun_model::checkpoint::random_speculator::SpeculatorLayout;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// One way of decoding.
struct Cell {
    method: Method,
    drafter: DrafterKind,
    /// Drafters beside that one.
    also: &'static [Also],
    draft_tokens: DraftTokens,
    tree: Tree,
    pearl: PearlOptions,
    easyspec: Option<EasySpec>,
    /// The draft model, where it is not the pair's drafter.
    draft_model: Option<PathBuf>,
    /// Draft positions at which a rejection must have been seen.
    must_reject: usize,
    /// Draft positions at which a token must have been accepted.
    must_accept: usize,
}

/// A drafter beside the first one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Also {
    /// The pair's drafter.
    Drafter,
    /// The target itself, which is always right.
    Target,
    PromptLookup,
}

/// The whole matrix but for autoregressive decoding, which all else is compared with.
fn cells() -> Vec<Cell> {
    let trees = || {
        [
            (DraftTokens::Fixed(1), Tree::None, 1),
            (DraftTokens::Fixed(4), Tree::None, 4),
            (DraftTokens::Auto, Tree::None, 0),
            (DraftTokens::Auto, Tree::Top { width: 3, depth: Some(3), budget: None }, 0),
            (DraftTokens::Fixed(3), Tree::Top { width: 4, depth: None, budget: None }, 3),
            (DraftTokens::Fixed(4), Tree::Top { width: 4, depth: None, budget: Some(9) }, 2),
            (DraftTokens::Fixed(1), Tree::Sampled { branching: vec![3, 2, 1] }, 3),
        ]
    };
    let drafters = [DrafterKind::Model, DrafterKind::PromptLookup];
    let in_turn = drafters.into_iter().flat_map(|drafter| trees().map(|tree| (drafter, tree))).map(
        |(drafter, (draft_tokens, tree, must_reject))| Cell {
            method: Method::Speculative,
            drafter,
            also: &[],
            draft_tokens,
            tree,
            pearl: PearlOptions::default(),
            easyspec: None,
            draft_model: None,
            must_reject,
            must_accept: 0,
        },
    );
    in_turn.chain(schedule_cells()).chain(parallel_cells()).collect()
}

/// Assisted generation's lengths, the target's own n-grams, and phrases.
fn schedule_cells() -> impl Iterator<Item = Cell> {
    use DraftTokens::{Assisted, Auto, Fixed};
    use DrafterKind::{Lookahead, Model, Ouroboros, PromptLookup};
    let cell = |(drafter, draft_tokens, tree, must_reject)| Cell {
        method: Method::Speculative,
        drafter,
        draft_tokens,
        tree,
        pearl: PearlOptions::default(),
        easyspec: None,
        draft_model: None,
        also: &[],
        must_reject,
        must_accept: 0,
    };
    let all = [
        (Model, Assisted, Tree::None, 1),
        (PromptLookup, Assisted, Tree::None, 1),
        (Lookahead, Fixed(1), Tree::None, 1),
        (Lookahead, Fixed(10), Tree::None, 2),
        (Lookahead, Auto, Tree::None, 0),
        (Ouroboros, Fixed(1), Tree::None, 1),
        (Ouroboros, Fixed(4), Tree::None, 4),
        (Ouroboros, Auto, Tree::None, 0),
        (Ouroboros, Assisted, Tree::None, 1),
        (Ouroboros, Fixed(3), Tree::Top { width: 4, depth: None, budget: Some(9) }, 1),
        (Ouroboros, Fixed(1), Tree::Sampled { branching: vec![2, 1, 1, 1, 1, 1] }, 1),
    ];
    all.into_iter().map(cell)
}

/// Drafting beside verification, in every variant.
fn parallel_cells() -> impl Iterator<Item = Cell> {
    use DraftTokens::{Auto, Fixed};
    use DrafterKind::{Model, PromptLookup};
    let pearl = |drafter, draft_tokens, options: &str, must_reject| Cell {
        method: Method::Pearl,
        drafter,
        also: &[],
        draft_tokens,
        tree: Tree::None,
        pearl: options.parse().unwrap(),
        easyspec: None,
        draft_model: None,
        must_reject,
        must_accept: 0,
    };
    // Whether a late drafter's token is tested at all depends on who is first: rejections in every order
    // are those of `exact_distribution.rs` and of the runtime's `parallel_fuzz.rs`.
    let dsi = |drafter, draft_tokens| Cell {
        method: Method::Dsi,
        ..pearl(drafter, draft_tokens, "eager", 0)
    };
    [
        pearl(Model, Fixed(1), "eager", 1),
        pearl(Model, Fixed(4), "eager", 1),
        pearl(Model, Auto, "eager", 0),
        pearl(Model, Fixed(3), "paper", 3),
        pearl(Model, Auto, "paper", 0),
        pearl(Model, Fixed(3), "paper,no-pre-verify", 3),
        pearl(Model, Fixed(3), "paper,no-post-verify", 2),
        pearl(Model, Fixed(2), "eager,no-pre-verify,no-post-verify", 2),
        pearl(PromptLookup, Fixed(4), "eager", 1),
        pearl(PromptLookup, Fixed(3), "paper", 1),
        dsi(Model, Fixed(1)),
        dsi(Model, Fixed(3)),
        dsi(Model, Auto),
        dsi(PromptLookup, Fixed(3)),
        Cell { also: &[Also::PromptLookup], ..dsi(Model, Fixed(3)) },
        Cell { also: &[Also::Target], ..dsi(Model, Fixed(2)) },
        Cell { also: &[Also::Drafter, Also::Target], ..dsi(PromptLookup, Auto) },
    ]
    .into_iter()
}

/// Placements in turn, so that one and two threads, one and two devices, and up to three replicas all
/// take part.
fn placement(number: usize, cell: &Cell) -> Option<String> {
    let cores = available_cores();
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    let replicas = |count| vec![format!("target=cpu:{last}"); count].join(",");
    let also = cell.also.iter().filter(|&&own| own != Also::PromptLookup).count();
    let models = usize::from(cell.drafter.has_model()) + also;
    let with_replicas = |count| {
        let drafters = format!("drafter=cpu:{first},").repeat(models);
        format!("{drafters}{},shared", replicas(count))
    };
    match (number % 3, cell.drafter.has_model()) {
        (0, _) => None,
        (count, _) if cell.method == Method::Dsi => Some(with_replicas(count + 1)),
        (1, true) => Some(format!("drafter=cpu:{first},target=cpu:{first},shared")),
        (2, true) if first != last => {
            Some(format!("drafter=cpu:{first}+cpu:{last},target=cpu:{first}+cpu:{last},shared"))
        }
        _ => Some(format!("target=cpu:{last}")),
    }
    .filter(|text| !cell.drafter.has_model() || text.contains("drafter"))
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |value| value.parse().unwrap())
}

const TOKENS: usize = 40;

/// A prompt with its options and the tokens that are right.
struct Case {
    prompt: Vec<TokenId>,
    request: Request,
    expected: Vec<TokenId>,
    logprobs: Option<Vec<TokenLogprob>>,
}

/// Temperatures and filters for every prompt, and a third of the other options in turn. Every second
/// prompt wants log-probabilities.
fn requests(number: usize) -> Vec<Request> {
    let seed = number as u64;
    let logprobs = number.is_multiple_of(2).then_some(3);
    let base = Request { max_tokens: TOKENS, ignore_eos: true, logprobs, ..Request::default() };
    let coupled = |temperature, top_k, top_p| Request {
        temperature,
        top_k,
        top_p,
        seed: Some(seed),
        verification: VerificationChoice::Always(Verification::Coupled),
        ..base.clone()
    };
    let filters = [
        base.clone(),
        coupled(0.3, 0, 1.0),
        coupled(0.8, 20, 1.0),
        coupled(1.0, 0, 0.9),
        coupled(1.5, 0, 1.0),
    ];
    let mut others = vec![Request { min_p: 0.08, ..coupled(1.0, 0, 1.0) }];
    for warm in [base.clone(), coupled(0.9, 0, 1.0)] {
        let logit_bias = [(10, 2.5), (101, 3.0), (97, -100.0)].into();
        others.extend([
            Request { repetition_penalty: 1.3, ..warm.clone() },
            Request { frequency_penalty: 0.8, ..warm.clone() },
            Request { presence_penalty: 1.5, ..warm.clone() },
            // Negative penalties make text repeat itself, which prompt lookup likes.
            Request { frequency_penalty: -0.2, presence_penalty: -0.6, ..warm.clone() },
            Request { logit_bias, ..warm },
        ]);
    }
    for warm in [base.clone(), coupled(1.1, 40, 0.95)] {
        others.push(Request {
            min_p: 0.02,
            repetition_penalty: 1.15,
            frequency_penalty: 0.3,
            presence_penalty: 0.4,
            logit_bias: [(110, 1.5), (32, -1.0)].into(),
            ..warm
        });
    }
    let others = others.into_iter().skip(number % 3).step_by(3);
    filters.into_iter().chain(others).collect()
}

fn sampling(request: &Request) -> Sampling {
    Sampling {
        temperature: request.temperature,
        top_k: request.top_k,
        top_p: request.top_p,
        min_p: request.min_p,
        repetition_penalty: request.repetition_penalty,
        frequency_penalty: request.frequency_penalty,
        presence_penalty: request.presence_penalty,
        logit_bias: request.logit_bias.clone(),
        randomness: KeyedRandomness { seed: request.seed.unwrap_or(0), sample: 0 },
        verification: Verification::Coupled,
    }
}

fn answer(engine: &Forerun, prompt: &[TokenId], request: &Request) -> Answer {
    let go_on = |_: &str| ControlFlow::Continue(());
    engine.generate_tokens(prompt.to_vec(), request, &Canceller::new(), go_on).unwrap()
}

/// Plain decoding's tokens, each held against the reference.
fn cases(pair: &Pair) -> Vec<Case> {
    let options = Options { model: pair.target.clone(), ..Options::default() };
    let engine = Forerun::open(&Plan::new(options).unwrap()).unwrap();
    let reference = ReferenceModel::load(&Checkpoint::open(&pair.target).unwrap()).unwrap();
    let tokenizer = pair.tokenizer();
    let (count, start) =
        (setting("FORERUN_LOSSLESS_PROMPTS", 6), setting("FORERUN_LOSSLESS_SEED", 0));
    let mut cases = Vec::new();
    for index in start..start + count {
        let text = &pair.prompts[index % pair.prompts.len()];
        let prompt = tokenizer.encode(text).unwrap();
        for request in requests(index) {
            let answer = answer(&engine, &prompt, &request);
            assert_eq!(answer.tokens.len(), TOKENS);
            check_against_reference(&reference, &prompt, &answer, &request);
            let (expected, logprobs) = (answer.tokens, answer.logprobs);
            cases.push(Case { prompt: prompt.clone(), request, expected, logprobs });
        }
    }
    println!("{count} prompts from number {start}: {} oracle texts", cases.len());
    cases
}

fn check_against_reference(
    reference: &ReferenceModel,
    prompt: &[TokenId],
    answer: &Answer,
    request: &Request,
) {
    let tokens = &answer.tokens;
    let all = [prompt, &tokens[..tokens.len() - 1]].concat();
    let rows = reference.logits(&all);
    let sampling = sampling(request);
    assert_eq!(answer.logprobs.as_ref().map(Vec::len), request.logprobs.map(|_| tokens.len()));
    for (index, &token) in tokens.iter().enumerate() {
        let row = &rows[prompt.len() + index - 1];
        let expected = sampling_reference::token(&sampling, prompt, &tokens[..index], row);
        assert_eq!(token, expected, "plain decoding, token {index}, {request:?}");
        if let Some(told) = &answer.logprobs {
            check_logprobs(&told[index], token, row, request);
        }
    }
}

/// Log-probabilities are those of the raw logits, whatever the options.
fn check_logprobs(told: &TokenLogprob, token: TokenId, row: &[f32], request: &Request) {
    let exact = sampling_reference::logprobs(row);
    assert_eq!((told.token, told.top.len()), (token, request.logprobs.unwrap()));
    for &(token, logprob) in told.top.iter().chain([&(token, told.logprob)]) {
        assert!((f64::from(logprob) - exact[token as usize]).abs() < 1e-5, "{told:?}");
    }
    let least = told.top.last().unwrap().1;
    let better = row.iter().filter(|&&logit| logit > row[told.top.last().unwrap().0 as usize]);
    assert!(better.count() < told.top.len() && told.top.iter().all(|top| top.1 >= least));
}

fn further(own: Also, pair: &Pair) -> AdditionalDrafter {
    match own {
        Also::Drafter => AdditionalDrafter::Model(pair.drafter.clone()),
        Also::Target => AdditionalDrafter::Model(pair.target.clone()),
        Also::PromptLookup => AdditionalDrafter::PromptLookup,
    }
}

/// Runs the cells and returns what they were compared with.
fn run_matrix(pair: &Pair, cells: Vec<Cell>) -> Vec<Case> {
    run_part_of_matrix(pair, cells, 1)
}

/// The same for many cells: each takes one of so many parts of the texts, in turn.
fn run_part_of_matrix(pair: &Pair, cells: Vec<Cell>, parts: usize) -> Vec<Case> {
    run_matrix_at(pair, cells, parts, placement)
}

/// The same on certain devices.
fn run_matrix_at(
    pair: &Pair,
    cells: Vec<Cell>,
    parts: usize,
    placement: impl Fn(usize, &Cell) -> Option<String>,
) -> Vec<Case> {
    let cases = cases(pair);
    let (mut runs, count) = (0, cells.len());
    for (number, cell) in cells.into_iter().enumerate() {
        let options = Options {
            model: pair.target.clone(),
            draft_model: cell
                .draft_model
                .clone()
                .or_else(|| cell.drafter.has_model().then(|| pair.drafter.clone())),
            method: Some(cell.method),
            drafter: Some(cell.drafter),
            additional_drafters: cell.also.iter().map(|own| further(*own, pair)).collect(),
            draft_tokens: cell.draft_tokens,
            tree: cell.tree.clone(),
            pearl: cell.pearl,
            placement: placement(number, &cell),
            layers: cell.easyspec.as_ref().map(|own| own.layers.clone()),
            calibration: cell.easyspec.as_ref().map(|own| own.calibration),
            ..Options::default()
        };
        let plan = Plan::new(options).unwrap();
        let easyspec =
            cell.easyspec.as_ref().map(|own| format!(" {} {}", own.layers, own.calibration));
        let layout = cell.draft_model.iter().filter_map(|path| path.file_name());
        let layout: String = layout.map(|name| format!(" {}", name.display())).collect();
        let also = format!(" + {:?}", cell.also).repeat(cell.also.len().min(1));
        let drafter = format!("{}{layout}{}{also}", cell.drafter, easyspec.unwrap_or_default());
        let name = format!("{} ({}) × {drafter} × {:?}", cell.method, cell.pearl, plan.shape());
        let engine = Forerun::open(&plan).unwrap();
        let mut total = Statistics::default();
        for case in cases.iter().skip(number % parts).step_by(parts) {
            let answer = answer(&engine, &case.prompt, &case.request);
            let what = format!("{name}, {}, {:?}", plan.placement(), case.request);
            assert_eq!(answer.tokens, case.expected, "{what}");
            assert_eq!(answer.logprobs, case.logprobs, "{what}");
            total.add(&answer.statistics);
            runs += 1;
        }
        let rejections: Vec<u64> =
            total.tested.iter().zip(&total.accepted).map(|(tested, ok)| tested - ok).collect();
        println!(
            "{name} on {}: MAT {:.2}, accepted {:.2}, rejections by position {rejections:?}",
            plan.placement(),
            total.mean_accepted_tokens(),
            total.acceptance_rate()
        );
        for position in 0..cell.must_accept {
            let count = total.accepted.get(position).copied().unwrap_or(0);
            assert!(count > 0, "{name}: nothing accepted at position {position}");
        }
        for position in 0..cell.must_reject {
            let count = rejections.get(position).copied().unwrap_or(0);
            assert!(count > 0, "{name}: no rejection at position {position}, so nothing is shown");
        }
    }
    common::say(&format!(
        "lossless: {runs} runs of {count} cells on {} texts equal plain decoding, token by token",
        cases.len()
    ));
    cases
}

#[test]
fn every_way_of_decoding_gives_the_tokens_of_the_real_target() {
    if let Some(pair) = Pair::real() {
        run_matrix(&pair, cells());
    }
}

#[test]
fn every_way_of_decoding_gives_the_tokens_of_a_generated_target() {
    run_matrix(&Pair::generated(), cells());
}

/// Drafts that are translated by their text: chains only.
#[test]
fn drafts_of_another_vocabulary_give_the_tokens_of_the_target() {
    for pair in Pair::of_two_vocabularies().into_iter().flatten() {
        let is_chain = |cell: &Cell| cell.drafter == DrafterKind::Model && cell.tree == Tree::None;
        let chains = cells().into_iter().filter(is_chain);
        let first_place = |cell: Cell| Cell { must_reject: cell.must_reject.min(1), ..cell };
        run_matrix(&pair, chains.map(first_place).collect());
    }
}

/// One tokenizer, but models that are padded differently, one way round and the other: trees and chains
/// alike.
#[test]
fn drafters_with_another_number_of_tokens_give_the_tokens_of_the_target() {
    let found = Pair::of_padded_vocabularies().map(|pair| {
        let of_model = cells().into_iter().filter(|cell| cell.drafter == DrafterKind::Model);
        let cases = run_matrix(&pair, of_model.collect());
        let vocab_size = Checkpoint::open(&pair.drafter).unwrap().config().vocab_size;
        let beyond = |case: &Case| case.expected.iter().any(|&t| t as usize >= vocab_size);
        (cases.iter().filter(|case| beyond(case)).count(), cases.len())
    });
    // Some texts have tokens that the drafter lacks, and some have none.
    let [(none, _), (some, all)] = found;
    assert!(none == 0 && (1..all).contains(&some), "{found:?}");
}

#[test]
fn every_way_of_decoding_gives_the_tokens_of_a_target_of_another_family() {
    run_matrix(&Pair::of_another_family(), cells());
}

/// EasySpec: layer-parallel size × width × calibration, chains, sampled trees and groups of one's own.
fn easyspec_cells() -> Vec<Cell> {
    let policies = || {
        [
            CalibrationPolicy::EveryRound,
            CalibrationPolicy::OnMismatch,
            CalibrationPolicy::PrefillOnly,
            CalibrationPolicy::Never,
        ]
    };
    let trees = [1, 4, 8, 12].map(|width| Tree::Top { width, depth: None, budget: None });
    let sampled = Tree::Sampled { branching: vec![3, 2, 1] };
    let budget = Tree::Top { width: 4, depth: Some(4), budget: Some(9) };
    let shapes = trees.into_iter().chain([Tree::None, sampled, budget]);
    let own = "0-2,3-7,8".parse().unwrap();
    let strategies: Vec<_> = (1..=5).map(LayerStrategy::Parallel).chain([own]).collect();
    let cell = |(tree, layers, calibration): (Tree, LayerStrategy, CalibrationPolicy)| Cell {
        method: Method::Speculative,
        drafter: DrafterKind::EasySpec,
        also: &[],
        draft_tokens: DraftTokens::Fixed(5),
        // A wide tree holds nearly every first token.
        must_reject: usize::from(matches!(tree, Tree::None | Tree::Top { width: 1, .. })),
        tree,
        pearl: PearlOptions::default(),
        easyspec: Some(EasySpec { layers, calibration }),
        draft_model: None,
        must_accept: 0,
    };
    let with_policies = |(tree, layers): (Tree, LayerStrategy)| {
        policies().map(move |calibration| (tree.clone(), layers.clone(), calibration))
    };
    let in_turn = shapes
        .flat_map(|tree| strategies.clone().into_iter().map(move |layers| (tree.clone(), layers)))
        .flat_map(with_policies)
        .map(cell);
    // Beside verification, too, where drafts go on behind tokens that are not yet verified.
    let runs_in_parallel = [Method::Pearl, Method::Dsi].into_iter().flat_map(|method| {
        let layers = [1, 2, 4].map(LayerStrategy::Parallel);
        let all = layers.into_iter().map(|layers| (Tree::None, layers)).flat_map(with_policies);
        all.map(move |own| {
            let own = Cell { method, draft_tokens: DraftTokens::Fixed(3), ..cell(own) };
            // DSI does not wait for a late drafter.
            Cell { must_reject: if method == Method::Dsi { 0 } else { own.must_reject }, ..own }
        })
    });
    in_turn.chain(runs_in_parallel).collect()
}

#[test]
fn layers_in_parallel_give_the_tokens_of_the_target() {
    run_part_of_matrix(&Pair::deep(), easyspec_cells(), 13);
}

/// The target's layers on two devices, and every drafter with a model on both.
fn shared_placement(cell: &Cell) -> Option<String> {
    let cores = available_cores();
    let [first, .., last] = cores[..] else { return None };
    let both = format!("cpu:{first}/cpu:{last}");
    let also = cell.also.iter().filter(|&&own| own != Also::PromptLookup).count();
    let drafters = usize::from(cell.drafter.has_model()) + also;
    let replicas = if cell.method == Method::Dsi { 2 } else { 1 };
    let roles =
        [vec![format!("drafter={both}"); drafters], vec![format!("target={both}"); replicas]];
    let shared = if drafters + replicas > 1 { ",shared" } else { "" };
    Some(roles.concat().join(",") + shared)
}

/// PEARL's appendix G: a target cut into stages, alone and with its drafters on the same devices, under
/// every method.
#[test]
fn layers_on_several_devices_give_the_tokens_of_the_target() {
    let plain = Cell {
        method: Method::Autoregressive,
        drafter: DrafterKind::None,
        also: &[],
        draft_tokens: DraftTokens::Auto,
        tree: Tree::None,
        pearl: PearlOptions::default(),
        easyspec: None,
        draft_model: None,
        must_reject: 0,
        must_accept: 0,
    };
    if shared_placement(&plain).is_none() {
        return common::say("SKIPPED: layers on several devices take two cores");
    }
    // A third of the texts for each, so that not every place need see a rejection.
    let first_place = |cell: Cell| Cell { must_reject: cell.must_reject.min(1), ..cell };
    let all = std::iter::once(plain).chain(cells().into_iter().map(first_place)).collect();
    run_matrix_at(&Pair::generated(), all, 3, |_, cell| shared_placement(cell));
    let runs_in_parallel = |cell: &Cell| cell.method != Method::Speculative;
    let layer_parallel = easyspec_cells().into_iter().filter(runs_in_parallel).collect();
    run_matrix_at(&Pair::deep(), layer_parallel, 13, |_, cell| shared_placement(cell));
}

/// Drafters that belong to a target, in every layout: those on its features draft and verify in turn,
/// those on tokens go with every method.
fn speculator_cells(speculators: &[(SpeculatorLayout, PathBuf)]) -> Vec<Cell> {
    use SpeculatorLayout as L;
    let trees = [
        (DraftTokens::Fixed(1), Tree::None),
        (DraftTokens::Fixed(4), Tree::None),
        (DraftTokens::Auto, Tree::None),
        (DraftTokens::Fixed(3), Tree::Top { width: 4, depth: None, budget: None }),
        (DraftTokens::Fixed(4), Tree::Top { width: 4, depth: None, budget: Some(9) }),
        (DraftTokens::Fixed(1), Tree::Sampled { branching: vec![3, 2, 1] }),
    ];
    let mut cells = Vec::new();
    for (layout, path) in speculators {
        let (drafter, in_turn, chance) = match layout {
            L::Medusa | L::MedusaOfVllm | L::MedusaOnTargetHead => (DrafterKind::Medusa, true, 0),
            L::Hydra | L::HydraPlusPlus => (DrafterKind::Hydra, true, 0),
            L::Eagle | L::EagleOnTargetEmbedding => (DrafterKind::Eagle, true, 2),
            L::Eagle3 => (DrafterKind::Eagle, true, 0),
            L::ParallelMedusa => (DrafterKind::Parallel, false, 1),
            L::ParallelEagle => (DrafterKind::Parallel, true, 1),
        };
        let own = |method, draft_tokens: DraftTokens, tree: Tree, options: &str| Cell {
            method,
            drafter,
            draft_tokens,
            pearl: options.parse().unwrap(),
            easyspec: None,
            draft_model: Some(path.clone()),
            also: &[],
            // A wide tree holds nearly every first token, and nobody knows what `auto` drafts.
            must_reject: usize::from(
                matches!(tree, Tree::None) && draft_tokens != DraftTokens::Auto,
            ),
            must_accept: match draft_tokens {
                DraftTokens::Auto | DraftTokens::Assisted => 0,
                DraftTokens::Fixed(1) if tree == Tree::None => chance.min(1),
                DraftTokens::Fixed(_) => chance,
            },
            tree,
        };
        for (draft_tokens, tree) in trees.clone() {
            cells.push(own(Method::Speculative, draft_tokens, tree, "eager"));
        }
        if in_turn {
            continue;
        }
        let runs_in_parallel = |method, count, options| Cell {
            // Whether a late drafter's token is tested follows the clock.
            must_reject: 0,
            must_accept: 0,
            ..own(method, DraftTokens::Fixed(count), Tree::None, options)
        };
        cells.extend([
            runs_in_parallel(Method::Pearl, 3, "eager"),
            runs_in_parallel(Method::Pearl, 3, "paper"),
            runs_in_parallel(Method::Dsi, 2, "eager"),
        ]);
    }
    cells
}

#[test]
fn drafters_that_belong_to_a_target_give_its_tokens() {
    let (pair, speculators) = Pair::with_speculators();
    run_part_of_matrix(&pair, speculator_cells(&speculators), 3);
}

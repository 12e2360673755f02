//! Invariant 1 on whole models: every decoder × drafter × tree shape gives the very tokens of the
//! target alone, greedily, and with coupled verification at every temperature.
//!
//! The oracle is not the code under test: plain decoding's tokens are first held against a fresh,
//! cache-less forward of the slow reference, then everything else against them.
//!
//! `FORERUN_LOSSLESS_PROMPTS` sets how many prompts are run (`just lossless` runs 120);
//! `FORERUN_LOSSLESS_SEED` where the sample begins.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Pair;
use forerun::{
    Canceller, Checkpoint, DraftTokens, DrafterKind, Forerun, Method, Options, Plan, Request,
    Statistics, TokenId, Tree, Verification, VerificationChoice, available_cores,
};
use forerun_core::{KeyedRandomness, Sampling};
use forerun_model::ReferenceModel;
use std::ops::ControlFlow;

/// One way of decoding.
struct Cell {
    method: Method,
    drafter: DrafterKind,
    draft_tokens: DraftTokens,
    tree: Tree,
    /// Draft positions at which a rejection must have been seen.
    must_reject: usize,
}

/// The whole matrix but for autoregressive decoding, which all else is compared with.
fn cells() -> Vec<Cell> {
    let trees = || {
        [
            (DraftTokens::Fixed(1), Tree::None, 1),
            (DraftTokens::Fixed(4), Tree::None, 4),
            (DraftTokens::Auto, Tree::None, 0),
            (DraftTokens::Auto, Tree::Top { width: 3, depth: Some(3) }, 0),
            (DraftTokens::Fixed(3), Tree::Top { width: 4, depth: None }, 3),
            (DraftTokens::Fixed(1), Tree::Sampled { branching: vec![3, 2, 1] }, 3),
        ]
    };
    let drafters = [DrafterKind::Model, DrafterKind::PromptLookup];
    drafters
        .into_iter()
        .flat_map(|drafter| trees().map(|tree| (drafter, tree)))
        .map(|(drafter, (draft_tokens, tree, must_reject))| Cell {
            method: Method::Speculative,
            drafter,
            draft_tokens,
            tree,
            must_reject,
        })
        .collect()
}

/// Placements in turn, so that one and two threads, and one and two devices, all take part.
fn placement(number: usize, drafter: DrafterKind) -> Option<String> {
    let cores = available_cores();
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    match (number % 3, drafter) {
        (0, _) => None,
        (1, DrafterKind::Model) => Some(format!("drafter=cpu:{first},target=cpu:{first},shared")),
        (2, DrafterKind::Model) if first != last => {
            Some(format!("drafter=cpu:{first}+cpu:{last},target=cpu:{first}+cpu:{last},shared"))
        }
        _ => Some(format!("target=cpu:{last}")),
    }
    .filter(|text| drafter != DrafterKind::Model || text.contains("drafter"))
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
}

fn requests(seed: u64) -> Vec<Request> {
    let base = Request { max_tokens: TOKENS, ignore_eos: true, ..Request::default() };
    let coupled = |temperature, top_k, top_p| Request {
        temperature,
        top_k,
        top_p,
        seed: Some(seed),
        verification: VerificationChoice::Always(Verification::Coupled),
        ..base.clone()
    };
    vec![
        base.clone(),
        coupled(0.3, 0, 1.0),
        coupled(0.8, 20, 1.0),
        coupled(1.0, 0, 0.9),
        coupled(1.5, 0, 1.0),
    ]
}

fn sampling(request: &Request) -> Sampling {
    Sampling {
        temperature: request.temperature,
        top_k: request.top_k,
        top_p: request.top_p,
        randomness: KeyedRandomness { seed: request.seed.unwrap_or(0), sample: 0 },
        verification: Verification::Coupled,
    }
}

fn answer(engine: &Forerun, prompt: &[TokenId], request: &Request) -> (Vec<TokenId>, Statistics) {
    let go_on = |_: &str| ControlFlow::Continue(());
    let answer =
        engine.generate_tokens(prompt.to_vec(), request, &Canceller::new(), go_on).unwrap();
    (answer.tokens, answer.statistics)
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
        for request in requests(index as u64) {
            let (expected, _) = answer(&engine, &prompt, &request);
            assert_eq!(expected.len(), TOKENS);
            check_against_reference(&reference, &prompt, &expected, &request);
            cases.push(Case { prompt: prompt.clone(), request, expected });
        }
    }
    println!("{count} prompts from number {start}: {} oracle texts", cases.len());
    cases
}

fn check_against_reference(
    reference: &ReferenceModel,
    prompt: &[TokenId],
    expected: &[TokenId],
    request: &Request,
) {
    let all = [prompt, &expected[..expected.len() - 1]].concat();
    let rows = reference.logits(&all);
    let sampling = sampling(request);
    for (index, &token) in expected.iter().enumerate() {
        let position = prompt.len() + index;
        let row = sampling.distribution(&rows[position - 1], position).unwrap();
        assert_eq!(row.as_point(), Some(token), "plain decoding, token {index}, {request:?}");
    }
}

fn run_matrix(pair: &Pair, cells: Vec<Cell>) {
    let cases = cases(pair);
    let (mut runs, count) = (0, cells.len());
    for (number, cell) in cells.into_iter().enumerate() {
        let options = Options {
            model: pair.target.clone(),
            draft_model: (cell.drafter == DrafterKind::Model).then(|| pair.drafter.clone()),
            method: Some(cell.method),
            drafter: Some(cell.drafter),
            draft_tokens: cell.draft_tokens,
            tree: cell.tree.clone(),
            placement: placement(number, cell.drafter),
            ..Options::default()
        };
        let plan = Plan::new(options).unwrap();
        let name = format!("{} × {} × {:?}", cell.method, cell.drafter, plan.shape());
        let engine = Forerun::open(&plan).unwrap();
        let mut total = Statistics::default();
        for case in &cases {
            let (tokens, statistics) = answer(&engine, &case.prompt, &case.request);
            assert_eq!(tokens, case.expected, "{name}, {}, {:?}", plan.placement(), case.request);
            total.add(&statistics);
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
        for position in 0..cell.must_reject {
            let count = rejections.get(position).copied().unwrap_or(0);
            assert!(count > 0, "{name}: no rejection at position {position}, so nothing is shown");
        }
    }
    common::say(&format!(
        "lossless: {runs} runs of {count} cells on {} texts equal plain decoding, token by token",
        cases.len()
    ));
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

#[test]
fn every_way_of_decoding_gives_the_tokens_of_a_target_of_another_family() {
    run_matrix(&Pair::of_another_family(), cells());
}

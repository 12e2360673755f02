//! Losslessness above temperature 0 on whole models. `exact_distribution` proves it by enumeration
//! on three tokens. Here, samples are counted: the joint frequencies of the first three tokens over
//! many seeds must fit the exact probabilities, which the slow reference computes.
//! `FORERUN_CASES` sets the number of samples (`just samples` uses 10,000). Without it, the
//! generated pair and the real one take turns: each engine samples from one of them with rejection
//! sampling, and from the other one with coupled sampling.

use crate::common::Pair;
use forerun::checkpoint::Checkpoint;
use forerun::draft::EasySpec;
use forerun::{
    DraftTokens, DrafterKind, DrafterOptions, Engine, LayerStrategy, Lookup, Method, MethodOptions,
    Options, Request, SamplingOptions, TokenId, Tree, Verification, VerificationChoice,
};
use forerun_core::testing::env_number;
use forerun_core::{Sampling, reference as sampling_reference};
use forerun_reference::ReferenceModel;
use std::collections::BTreeMap;
use std::env;
use std::ops::ControlFlow;

/// The number of answers that are counted for each engine, if `FORERUN_CASES` does not set it.
const SAMPLES: u64 = 1_000;
const TOP_K: usize = 3;
/// The number of tokens whose joint frequencies are compared. The third one follows drafts that
/// were made while the target verified the second one.
const TOKENS: usize = 3;
/// Outcomes that are expected less often are counted together.
const LEAST_EXPECTED: f64 = 8.0;

type Joint = BTreeMap<[TokenId; TOKENS], f64>;

/// Options of an engine whose samples are counted.
struct Cell {
    name: &'static str,
    method: MethodOptions,
    drafter: DrafterOptions,
    draft_tokens: DraftTokens,
}

fn cells() -> Vec<Cell> {
    let cell = |name, drafter: DrafterKind, draft_tokens, tree| Cell {
        name,
        method: MethodOptions::Speculative { tree, lookup: Lookup::None },
        drafter: drafter.into(),
        draft_tokens: DraftTokens::Fixed(draft_tokens),
    };
    let parallel = |name, method, draft_tokens| Cell {
        method,
        ..cell(name, DrafterKind::Model, draft_tokens, Tree::None)
    };
    let easyspec = |name, method: Method, layers| Cell {
        method: method.into(),
        drafter: DrafterOptions::EasySpec(EasySpec {
            layers: LayerStrategy::Parallel(layers),
            ..EasySpec::default()
        }),
        ..cell(name, DrafterKind::EasySpec, 3, Tree::None)
    };
    let top = Tree::Top { width: 3, depth: None, budget: None };
    vec![
        Cell {
            method: Method::Autoregressive.into(),
            ..cell("plain decoding", DrafterKind::None, 1, Tree::None)
        },
        cell("a chain", DrafterKind::Model, 3, Tree::None),
        cell("a tree", DrafterKind::Model, 3, top),
        cell("a sampled tree", DrafterKind::Model, 1, Tree::Sampled { branching: vec![3, 2] }),
        cell("prompt lookup", DrafterKind::PromptLookup, 3, Tree::None),
        parallel("PEARL", Method::Pearl.into(), 2),
        parallel("PEARL's schedule", MethodOptions::Pearl("paper".parse().unwrap()), 2),
        parallel("DSI", Method::Dsi.into(), 1),
        parallel("SSD", Method::Ssd.into(), 2),
        easyspec("EasySpec", Method::Speculative, 2),
        easyspec("EasySpec with PEARL", Method::Pearl, 4),
    ]
}

fn exact(pair: &Pair, prompt: &[TokenId]) -> Joint {
    let reference = ReferenceModel::load(&Checkpoint::open(&pair.target).unwrap()).unwrap();
    let sampling = Sampling {
        options: SamplingOptions { temperature: 1.0, top_k: TOP_K, ..SamplingOptions::default() },
        ..Sampling::greedy()
    };
    let row = |answer: &[TokenId]| {
        let rows = reference.logits(&[prompt, answer].concat());
        let probabilities =
            sampling_reference::probabilities(&sampling, prompt, answer, rows.last().unwrap());
        (0..).zip(probabilities).filter(|&(_, probability)| probability > 0.0)
    };
    let mut joint = Joint::new();
    for (first, chance) in row(&[]) {
        for (second, then) in row(&[first]) {
            for (third, last) in row(&[first, second]) {
                joint.insert([first, second, third], chance * then * last);
            }
        }
    }
    joint
}

/// Returns the frequencies of the first tokens, and the number of drafts.
fn counted(
    engine: &Engine,
    prompt: &[TokenId],
    verification: Verification,
    samples: u64,
) -> (Joint, u64) {
    let (mut joint, mut drafts) = (Joint::new(), 0);
    for seed in 0..samples {
        let request = Request {
            sampling: SamplingOptions {
                temperature: 1.0,
                top_k: TOP_K,
                ..SamplingOptions::default()
            },
            max_tokens: 5,
            seed: Some(seed),
            verification: VerificationChoice::Always(verification),
            ignore_eos: true,
            ..Request::default()
        };
        let go_on = |_: &str| ControlFlow::Continue(());
        let answer = engine.generate_tokens(prompt.to_vec(), &request, go_on).unwrap();
        drafts += answer.statistics.drafts;
        *joint.entry(answer.tokens[..TOKENS].try_into().unwrap()).or_default() += 1.0;
    }
    (joint, drafts)
}

/// Returns the chi-squared statistic and its degrees of freedom.
fn chi_squared(counted: &Joint, exact: &Joint) -> (f64, usize) {
    let samples: f64 = counted.values().sum();
    let all = exact.iter().map(|(outcome, probability)| {
        (counted.get(outcome).copied().unwrap_or(0.0), probability * samples)
    });
    let (often, rarely): (Vec<_>, Vec<_>) =
        all.partition(|&(_, expected)| expected >= LEAST_EXPECTED);
    let rest = rarely.iter().fold((0.0, 0.0), |sum, rare| (sum.0 + rare.0, sum.1 + rare.1));
    let rest = (rest.1 > 0.0).then_some(rest);
    let terms =
        often.iter().chain(&rest).map(|(count, expected)| (count - expected).powi(2) / expected);
    let terms: Vec<f64> = terms.collect();
    (terms.iter().sum(), terms.len() - 1)
}

/// Returns the value that chi-squared exceeds about once in 100,000 cases (the approximation of
/// Wilson and Hilferty). Seeds are fixed, but what PEARL and DSI draft follows the clock.
fn limit(degrees: usize) -> f64 {
    let share = 2.0 / (9.0 * degrees as f64);
    degrees as f64 * (1.0 - share + 4.26 * share.sqrt()).powi(3)
}

/// Which of the two rules an engine has with a pair.
#[derive(Clone, Copy, PartialEq)]
enum Rules {
    All,
    /// The first rule for the first engine, the second one for the second engine, and so on.
    FirstByTurns,
    /// The other rules.
    SecondByTurns,
}

impl Rules {
    /// Returns `by_turns` if two pairs share the engines.
    fn of(by_turns: Self) -> Self {
        let is_complete = env::var_os("FORERUN_CASES").is_some() || Pair::real().is_none();
        if is_complete { Self::All } else { by_turns }
    }

    fn have(self, cell: usize, rule: usize) -> bool {
        match self {
            Self::All => true,
            Self::FirstByTurns => cell % 2 == rule,
            Self::SecondByTurns => cell % 2 != rule,
        }
    }
}

/// Checks engines with the given rules of verification. EasySpec needs a drafter with several
/// layers.
fn check(pair: &Pair, rules: Rules, has_easyspec: bool) {
    // A short prompt, because thousands of answers start with it.
    let mut prompt = pair.tokenizer().encode(&pair.prompts[0]).unwrap();
    prompt.truncate(5);
    let exact = exact(pair, &prompt);
    let samples = env_number("FORERUN_CASES", SAMPLES);
    for (number, cell) in cells().into_iter().enumerate() {
        let drafter = cell.drafter.kind();
        let is_easyspec = drafter == DrafterKind::EasySpec;
        if is_easyspec && !has_easyspec {
            continue;
        }
        // The other pair does not check it.
        let rules = if is_easyspec { Rules::All } else { rules };
        let all = [Verification::Rejection, Verification::Coupled].into_iter().enumerate();
        for (_, verification) in all.filter(|&(rule, _)| rules.have(number, rule)) {
            let options = Options {
                model: pair.target.clone().into(),
                draft_model: drafter.has_model().then(|| pair.drafter.clone()).map(Into::into),
                method: Some(cell.method.clone()),
                drafter: Some(cell.drafter.clone()),
                draft_tokens: cell.draft_tokens,
                ..Options::default()
            };
            let engine = Engine::open(options).unwrap();
            let (counted, drafts) = counted(&engine, &prompt, verification, samples);
            assert!(drafts > 0 || !drafter.has_model(), "{}: nothing was drafted", cell.name);
            let name = format!("{}, {verification:?}", cell.name);
            let is_possible = |outcome| exact.contains_key(outcome);
            assert!(counted.keys().all(is_possible), "{name}: filtered token");
            let (chi_squared, degrees) = chi_squared(&counted, &exact);
            println!("{name}: chi squared {chi_squared:.1}, {degrees} degrees of freedom");
            let limit = limit(degrees);
            assert!(
                chi_squared < limit,
                "{name}: {chi_squared} of {limit}: {counted:?}, {exact:?}"
            );
        }
    }
}

#[test]
fn samples_of_a_generated_pair_follow_the_targets_distribution() {
    // Its drafter has one layer.
    check(&Pair::generated(), Rules::of(Rules::FirstByTurns), false);
}

#[test]
fn samples_of_the_real_pair_follow_the_targets_distribution() {
    if let Some(pair) = Pair::real() {
        check(&pair, Rules::of(Rules::SecondByTurns), true);
    }
}

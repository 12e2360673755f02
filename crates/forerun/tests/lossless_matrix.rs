//! Losslessness on whole models: every combination of decoder, drafter and tree shape gives exactly
//! the tokens of the target alone, for greedy decoding, and with coupled verification at every
//! temperature.
//!
//! The oracle is not the code under test. First, the tokens and log-probabilities of plain decoding
//! are compared with those of the slow references of the forward pass, without caches, and of
//! sampling. Then everything else is compared with plain decoding.
//!
//! `FORERUN_CASES` sets the number of prompts (`just lossless` uses 120), and `FORERUN_CASE_SEED`
//! the first one. Without the number, each cell runs a sample of the texts.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{self, Pair};
use forerun::checkpoint::{Checkpoint, Config, Family};
use forerun::cpu::Isa;
use forerun::draft::{DraftContext, Drafter, DrafterEntry, DrafterTraits, EasySpec, ModelError};
use forerun::method::{AnswerDecoder, DecoderOptions, Drafting, MethodEntry, Need};
use forerun::placement::available_cores;
use forerun::text::GrammarKind;
use forerun::{
    AdditionalDrafter, Answer, CacheType, CalibrationPolicy, Canceller, DraftTokens, DrafterKind,
    Finish, Forerun, Grammar, LayerStrategy, Lookup, Method, Options, PearlOptions, Plan, Request,
    SamplingOptions, Statistics, TokenId, TokenLogprob, Tree, Verification, VerificationChoice,
};
use forerun_core::testing::env_number;
use forerun_core::{
    Cluster, Draft, DraftShape, KeyedRandomness, Sampling, SequenceId, TokenTree,
    reference as sampling_reference,
};
use forerun_decode::{
    AUTO_IN_TURNS, Autoregressive, DecodeError, Decoder, DraftLength, Sequence, Speculative,
    SpeculativeDraftLength,
};
use forerun_formats::ModelTypes;
use forerun_formats::checkpoint::random::example_families;
use forerun_formats::checkpoint::random_speculator::SpeculatorLayout;
use forerun_reference::ReferenceModel;
use std::env;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// One combination of options.
struct Cell {
    method: Method,
    drafter: DrafterKind,
    /// The additional drafters.
    additional: &'static [ExtraDrafter],
    lookup: Lookup,
    draft_tokens: DraftTokens,
    tree: Tree,
    pearl: PearlOptions,
    easyspec: Option<EasySpec>,
    /// The draft model, if it is not the pair's drafter.
    draft_model: Option<PathBuf>,
    /// The number of draft positions that must each have a rejection.
    must_reject: usize,
    /// The number of draft positions that must each have an accepted token.
    must_accept: usize,
}

/// A drafter in addition to the first one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ExtraDrafter {
    /// The pair's drafter.
    Drafter,
    /// The target itself, which is always right.
    Target,
    PromptLookup,
    /// The drafter of [`REPEAT`].
    Own,
}

/// Returns the whole matrix except autoregressive decoding, with which everything is compared. It
/// has all drafters of the registry that need no model.
fn cells() -> Vec<Cell> {
    let on_tokens = DrafterKind::all().filter(|kind| kind.is_on_tokens()).flat_map(cells_on_tokens);
    let of_model = speculative_cells(DrafterKind::Model).into_iter();
    let with_lookups = lookup_cells(DrafterKind::Model).into_iter();
    of_model
        .chain(with_lookups)
        .chain(on_tokens)
        .chain(feedback_cells())
        .chain(parallel_cells())
        .collect()
}

/// Returns the cells of a drafter some of whose drafts are replaced by lookups.
fn lookup_cells(drafter: DrafterKind) -> Vec<Cell> {
    use DraftTokens::{Assisted, Auto, Fixed};
    let top = Tree::Top { width: 4, depth: Some(4), budget: Some(9) };
    let all = [
        (Method::Speculative, Lookup::Suffix, Fixed(1), Tree::None),
        (Method::Speculative, Lookup::Suffix, Fixed(4), Tree::None),
        (Method::Speculative, Lookup::Suffix, Assisted, Tree::None),
        (Method::Speculative, Lookup::Suffix, Auto, Tree::None),
        (Method::Speculative, Lookup::Suffix, Fixed(4), top),
        (Method::Speculative, Lookup::Suffix, Auto, Tree::Auto),
        (Method::Speculative, Lookup::Suffix, Fixed(1), Tree::Sampled { branching: vec![3, 2] }),
        (Method::Ssd, Lookup::Suffix, Fixed(3), Tree::None),
        (Method::Ssd, Lookup::Suffix, Auto, Tree::None),
    ];
    let cell = |(method, lookup, draft_tokens, tree)| Cell {
        lookup,
        draft_tokens,
        tree,
        must_reject: usize::from(draft_tokens != Auto),
        ..cell(method, drafter)
    };
    all.into_iter().map(cell).collect()
}

/// Returns the cells of a drafter without a model, with all methods that offer what it needs.
fn cells_on_tokens(drafter: DrafterKind) -> Vec<Cell> {
    if !drafter.traits().needs.is_empty() {
        let lengths = [DraftTokens::Fixed(1), DraftTokens::Fixed(10), DraftTokens::Auto];
        let cell = |(draft_tokens, must_reject)| Cell {
            draft_tokens,
            must_reject,
            ..cell(Method::Speculative, drafter)
        };
        return lengths.into_iter().zip([1, 2, 0]).map(cell).collect();
    }
    let in_parallel = |method, count, pearl: &str, must_reject| Cell {
        draft_tokens: DraftTokens::Fixed(count),
        pearl: pearl.parse().unwrap(),
        must_reject,
        ..cell(method, drafter)
    };
    let mut cells = speculative_cells(drafter);
    cells.extend([
        in_parallel(Method::Pearl, 4, "eager", 1),
        in_parallel(Method::Pearl, 3, "paper", 1),
        // DSI does not wait for late drafters.
        in_parallel(Method::Dsi, 3, "eager", 0),
        in_parallel(Method::Ssd, 3, "eager", 1),
        in_parallel(auto_in_turns(), 3, "eager", 0),
    ]);
    cells
}

/// Returns `auto` with all of its methods in turn: in so short texts, the fastest one would decode
/// most.
fn auto_in_turns() -> Method {
    Method::new(&AUTO_IN_TURNS)
}

/// Returns a cell with default options.
fn cell(method: Method, drafter: DrafterKind) -> Cell {
    Cell {
        method,
        drafter,
        additional: &[],
        lookup: Lookup::None,
        draft_tokens: DraftTokens::Auto,
        tree: Tree::None,
        pearl: PearlOptions::default(),
        easyspec: None,
        draft_model: None,
        must_reject: 0,
        must_accept: 0,
    }
}

/// Returns the cells of chains and trees of a drafter that verifies them in turn with drafting.
fn speculative_cells(drafter: DrafterKind) -> Vec<Cell> {
    let trees = [
        (DraftTokens::Fixed(1), Tree::None, 1),
        (DraftTokens::Fixed(4), Tree::None, 4),
        (DraftTokens::Auto, Tree::None, 0),
        (DraftTokens::Auto, Tree::Top { width: 3, depth: Some(3), budget: None }, 0),
        (DraftTokens::Auto, Tree::Auto, 0),
        (DraftTokens::Fixed(3), Tree::Auto, 0),
        (DraftTokens::Fixed(4), Tree::Ranked { nodes: 9 }, 2),
        (DraftTokens::Fixed(3), Tree::Top { width: 4, depth: None, budget: None }, 3),
        (DraftTokens::Fixed(4), Tree::Top { width: 4, depth: None, budget: Some(9) }, 2),
        (DraftTokens::Fixed(1), Tree::Sampled { branching: vec![3, 2, 1] }, 3),
    ];
    let cell = |(draft_tokens, tree, must_reject): (_, _, usize)| {
        // A drafter that is never right has no rejections at later positions.
        let is_often_right =
            [DrafterKind::Model, DrafterKind::PromptLookup, DrafterKind::Suffix].contains(&drafter);
        let must_reject = if is_often_right { must_reject } else { must_reject.min(1) };
        Cell { draft_tokens, tree, must_reject, ..cell(Method::Speculative, drafter) }
    };
    trees.into_iter().map(cell).collect()
}

/// Returns the cells of assisted draft lengths and Ouroboros.
fn feedback_cells() -> impl Iterator<Item = Cell> {
    use DraftTokens::{Assisted, Auto, Fixed};
    const OUROBOROS: DrafterKind = DrafterKind::Ouroboros;
    let cell = |(drafter, draft_tokens, tree, must_reject)| Cell {
        draft_tokens,
        tree,
        must_reject,
        ..cell(Method::Speculative, drafter)
    };
    let all = [
        (DrafterKind::Model, Assisted, Tree::None, 1),
        (DrafterKind::PromptLookup, Assisted, Tree::None, 1),
        (OUROBOROS, Fixed(1), Tree::None, 1),
        (OUROBOROS, Fixed(4), Tree::None, 4),
        (OUROBOROS, Auto, Tree::None, 0),
        (OUROBOROS, Assisted, Tree::None, 1),
        (OUROBOROS, Fixed(3), Tree::Top { width: 4, depth: None, budget: Some(9) }, 1),
        (OUROBOROS, Fixed(1), Tree::Sampled { branching: vec![2, 1, 1, 1, 1, 1] }, 1),
    ];
    all.into_iter().map(cell)
}

/// Returns the cells of PEARL and DSI, in every variant, and of methods that choose between
/// drafters.
fn parallel_cells() -> impl Iterator<Item = Cell> {
    use DraftTokens::{Auto, Fixed};
    const MODEL: DrafterKind = DrafterKind::Model;
    let pearl = |drafter, draft_tokens, options: &str, must_reject| Cell {
        draft_tokens,
        pearl: options.parse().unwrap(),
        must_reject,
        ..cell(Method::Pearl, drafter)
    };
    // Whether the token of a late drafter is tested at all depends on timing. Rejections in every
    // order are tested by `exact_distribution` and by the runtime's `parallel_fuzz.rs`.
    let dsi = |drafter, draft_tokens| Cell {
        method: Method::Dsi,
        ..pearl(drafter, draft_tokens, "eager", 0)
    };
    [
        pearl(MODEL, Fixed(1), "eager", 1),
        pearl(MODEL, Fixed(4), "eager", 1),
        pearl(MODEL, Auto, "eager", 0),
        pearl(MODEL, Fixed(3), "paper", 3),
        pearl(MODEL, Auto, "paper", 0),
        pearl(MODEL, Fixed(3), "paper,no-pre-verify", 3),
        pearl(MODEL, Fixed(3), "paper,no-post-verify", 2),
        pearl(MODEL, Fixed(2), "eager,no-pre-verify,no-post-verify", 2),
        Cell { method: Method::Ssd, ..pearl(MODEL, Fixed(1), "eager", 1) },
        Cell { method: Method::Ssd, ..pearl(MODEL, Fixed(4), "eager", 4) },
        Cell { method: Method::Ssd, ..pearl(MODEL, Auto, "eager", 0) },
        dsi(MODEL, Fixed(1)),
        dsi(MODEL, Fixed(3)),
        dsi(MODEL, Auto),
        Cell { additional: &[ExtraDrafter::PromptLookup], ..dsi(MODEL, Fixed(3)) },
        Cell { additional: &[ExtraDrafter::Target], ..dsi(MODEL, Fixed(2)) },
        Cell {
            additional: &[ExtraDrafter::Drafter, ExtraDrafter::Target],
            ..dsi(DrafterKind::PromptLookup, Auto)
        },
        Cell { additional: &[ExtraDrafter::Target], ..pearl(MODEL, Auto, "eager", 0) },
        cell(Method::Auto, MODEL),
        Cell { draft_tokens: Fixed(3), ..cell(auto_in_turns(), MODEL) },
        Cell { additional: &[ExtraDrafter::PromptLookup], ..cell(Method::Auto, MODEL) },
        Cell { additional: &[ExtraDrafter::PromptLookup], ..cell(Method::Speculative, MODEL) },
        Cell {
            additional: &[ExtraDrafter::Drafter, ExtraDrafter::Target],
            draft_tokens: Fixed(3),
            ..cell(Method::Speculative, DrafterKind::PromptLookup)
        },
    ]
    .into_iter()
}

/// Returns one of several placements, so that one and two threads, one and two devices, and up to
/// three replicas all occur.
fn placement(number: usize, cell: &Cell) -> Option<String> {
    let cores = available_cores();
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    let replicas = |count| vec![format!("target=cpu:{last}"); count].join(",");
    let models = models_of(cell);
    let with_replicas = |count| {
        let drafters = format!("drafter=cpu:{first},").repeat(models);
        format!("{drafters}{},shared", replicas(count))
    };
    match (number % 3, cell.drafter.has_model()) {
        (0, _) => None,
        (count, _) if cell.method == Method::Dsi => Some(with_replicas(count + 1)),
        (1, _) if models > 0 => {
            let drafters = format!("drafter=cpu:{first},").repeat(models);
            Some(format!("{drafters}target=cpu:{first},shared"))
        }
        (2, _) if models > 0 && first != last => {
            let both = format!("cpu:{first}+cpu:{last}");
            let drafters = format!("drafter={both},").repeat(models);
            Some(format!("{drafters}target={both},shared"))
        }
        _ => Some(format!("target=cpu:{last}")),
    }
    .filter(|text| models == 0 || text.contains("drafter"))
}

const TOKENS: usize = 40;
/// The number of prompts, if `FORERUN_CASES` does not set it.
const PROMPTS: usize = 6;
/// The same for cells that run a small part of the texts. Three prompts have all requests.
const FEW_PROMPTS: usize = 3;

/// A prompt, its options, and the expected tokens.
struct Case {
    prompt: Vec<TokenId>,
    request: Request,
    /// Whether its grammar determines runs of tokens.
    is_forced: bool,
    expected: Vec<TokenId>,
    logprobs: Option<Vec<TokenLogprob>>,
}

/// Returns requests with all temperatures and filters, and with a third of the other options. Every
/// second prompt requests log-probabilities.
fn requests(number: usize) -> Vec<Request> {
    let seed = number as u64;
    let logprobs = number.is_multiple_of(2).then_some(3);
    let base = Request { max_tokens: TOKENS, ignore_eos: true, logprobs, ..Request::default() };
    let coupled = |temperature, top_k, top_p| Request {
        sampling: SamplingOptions { temperature, top_k, top_p, ..base.sampling.clone() },
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
    let mut others = vec![Request {
        sampling: SamplingOptions { min_p: 0.08, ..coupled(1.0, 0, 1.0).sampling },
        ..coupled(1.0, 0, 1.0)
    }];
    for warm in [base.clone(), coupled(0.9, 0, 1.0)] {
        let logit_bias = [(10, 2.5), (101, 3.0), (97, -100.0)].into();
        others.extend([
            Request {
                sampling: SamplingOptions { repetition_penalty: 1.3, ..warm.sampling.clone() },
                ..warm.clone()
            },
            Request {
                sampling: SamplingOptions { frequency_penalty: 0.8, ..warm.sampling.clone() },
                ..warm.clone()
            },
            Request {
                sampling: SamplingOptions { presence_penalty: 1.5, ..warm.sampling.clone() },
                ..warm.clone()
            },
            // Negative penalties make the text repetitive, as prompt lookup needs.
            Request {
                sampling: SamplingOptions {
                    frequency_penalty: -0.2,
                    presence_penalty: -0.6,
                    ..warm.sampling.clone()
                },
                ..warm.clone()
            },
            Request { sampling: SamplingOptions { logit_bias, ..warm.sampling.clone() }, ..warm },
        ]);
    }
    for warm in [base.clone(), coupled(1.1, 40, 0.95)] {
        others.push(Request {
            sampling: SamplingOptions {
                min_p: 0.02,
                repetition_penalty: 1.15,
                frequency_penalty: 0.3,
                presence_penalty: 0.4,
                logit_bias: [(110, 1.5), (32, -1.0)].into(),
                ..warm.sampling.clone()
            },
            ..warm
        });
    }
    // Texts that end, and texts that are cut off.
    let word = r"(\w{1,9}[ ,]){1,6}\w+[.!]";
    let list = "root ::= item (\",\" item)*\nitem ::= [a-f0-9]+ | \"(\" root \")\" | [^a-z]";
    let schema = r#"{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string",
        "maxLength":6},"tags":{"type":"array","items":{"enum":["a","bc"]}}},"required":["id","name"]}"#;
    let schema = Grammar::new(GrammarKind::JsonSchema, schema);
    for (warm, grammar) in [
        (base.clone(), schema.clone()),
        (coupled(1.0, 0, 1.0), schema),
        (coupled(0.9, 0, 0.95), Grammar::regex(word)),
        (coupled(1.2, 0, 1.0), Grammar::gbnf(list)),
        (base.clone(), Grammar::gbnf(list)),
        (coupled(1.0, 30, 1.0), Grammar::json_object()),
    ] {
        let mut sampling = warm.sampling.clone();
        // Quotes and brackets, so that some texts are complete.
        sampling.logit_bias = [(34, 2.0), (93, 1.0), (125, 2.0), (44, 1.0)].into();
        sampling.frequency_penalty = 0.3;
        others.push(Request { grammar: Some(grammar), ignore_eos: false, sampling, ..warm });
    }
    let others = others.into_iter().skip(number % 3).step_by(3);
    filters.into_iter().chain(others).collect()
}

/// Returns requests whose grammars determine runs of tokens, from the start or after tokens that
/// the model chooses. Biases and penalties are for or against these tokens.
fn forced_requests(number: usize) -> Vec<Request> {
    let schema = serde_json::json!({
        "type": "object",
        "properties": {
            "kind": {"enum": ["weather", "wind"]},
            "temperature": {"type": "integer"},
            "unit": {"const": "celsius"},
        },
        "required": ["kind", "temperature", "unit"],
        "additionalProperties": false,
    });
    let grammars = [Grammar::regex("(abc)+"), Grammar::json_schema(&schema)];
    let options = [
        SamplingOptions::default(),
        SamplingOptions { temperature: 1.0, ..SamplingOptions::default() },
        SamplingOptions {
            temperature: 0.9,
            repetition_penalty: 1.4,
            frequency_penalty: 0.8,
            logit_bias: [(98, -20.0), (99, -100.0), (101, 5.0)].into(),
            ..SamplingOptions::default()
        },
        SamplingOptions {
            presence_penalty: -0.6,
            logit_bias: [(97, 10.0), (116, -100.0)].into(),
            ..SamplingOptions::default()
        },
    ];
    let all = grammars.iter().flat_map(|grammar| options.iter().map(move |of| (grammar, of)));
    let request = |(grammar, sampling): (&Grammar, &SamplingOptions)| Request {
        max_tokens: TOKENS,
        grammar: Some(grammar.clone()),
        sampling: sampling.clone(),
        seed: Some(number as u64),
        logprobs: number.is_multiple_of(2).then_some(3),
        verification: VerificationChoice::Always(Verification::Coupled),
        ..Request::default()
    };
    // Two prompts have all of them.
    all.skip(number % 2).step_by(2).map(request).collect()
}

fn sampling(engine: &Forerun, request: &Request) -> Sampling {
    let constraint = |grammar| engine.constraint(grammar, &engine.config().eos_token_ids).unwrap();
    Sampling {
        options: request.sampling.clone(),
        randomness: KeyedRandomness { seed: request.seed.unwrap_or(0), sample: 0 },
        verification: Verification::Coupled,
        constraint: request.grammar.as_ref().map(constraint),
    }
}

fn answer(engine: &Forerun, prompt: &[TokenId], request: &Request) -> Answer {
    let go_on = |_: &str| ControlFlow::Continue(());
    engine.generate_tokens(prompt.to_vec(), request, &Canceller::new(), go_on).unwrap()
}

/// Returns the tokens of plain decoding after a number of prompts, each checked against the
/// reference.
fn cases(pair: &Pair, count: usize) -> Vec<Case> {
    let (model, cache_type) = (pair.target.clone().into(), pair.cache_type);
    let options = Options { model, cache_type, ..Options::default() };
    let engine = Forerun::open(&Plan::new(options).unwrap()).unwrap();
    let types = ModelTypes { cache: cache_type, ..ModelTypes::default() };
    let isa = Isa::from_environment().unwrap();
    let checkpoint = Checkpoint::open(&pair.target).unwrap();
    let reference = ReferenceModel::load_as(&checkpoint, types, isa).unwrap();
    let tokenizer = pair.tokenizer();
    // Grammars need characters that some vocabularies of stories lack.
    let ascii: String = (' '..='~').collect();
    let has_ascii =
        tokenizer.encode(&ascii).is_ok_and(|tokens| tokenizer.decode(&tokens).ends_with(&ascii));
    let start = env_number("FORERUN_CASE_SEED", 0) as usize;
    let mut cases = Vec::new();
    for index in start..start + count {
        let text = &pair.prompts[index % pair.prompts.len()];
        let prompt = tokenizer.encode(text).unwrap();
        let requests = requests(index).into_iter().map(|request| (request, false));
        let forced = forced_requests(index).into_iter().map(|request| (request, true));
        let all = requests.chain(forced);
        for (request, is_forced) in
            all.filter(|(request, _)| has_ascii || request.grammar.is_none())
        {
            let answer = answer(&engine, &prompt, &request);
            if request.grammar.is_none() || answer.finish != Finish::Eos {
                assert_eq!(answer.tokens.len(), TOKENS);
            }
            let sampling = sampling(&engine, &request);
            check_against_reference(&reference, &prompt, &answer, &request, &sampling);
            let (expected, logprobs) = (answer.tokens, answer.logprobs);
            cases.push(Case { prompt: prompt.clone(), request, is_forced, expected, logprobs });
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
    sampling: &Sampling,
) {
    let tokens = &answer.tokens;
    let all = [prompt, &tokens[..tokens.len() - 1]].concat();
    let rows = reference.logits(&all);
    assert_eq!(answer.logprobs.as_ref().map(Vec::len), request.logprobs.map(|_| tokens.len()));
    for (index, &token) in tokens.iter().enumerate() {
        let row = &rows[prompt.len() + index - 1];
        let expected = sampling_reference::token(sampling, prompt, &tokens[..index], row);
        assert_eq!(token, expected, "plain decoding, token {index}, {request:?}");
        if let Some(reported) = &answer.logprobs {
            check_logprobs(&reported[index], token, row, request);
        }
    }
}

/// Checks that log-probabilities are those of the raw logits, for all options.
fn check_logprobs(reported: &TokenLogprob, token: TokenId, row: &[f32], request: &Request) {
    let exact = sampling_reference::logprobs(row);
    assert_eq!((reported.token, reported.top.len()), (token, request.logprobs.unwrap()));
    for &(token, logprob) in reported.top.iter().chain([&(token, reported.logprob)]) {
        assert!((f64::from(logprob) - exact[token as usize]).abs() < 1e-5, "{reported:?}");
    }
    let (last, least) = *reported.top.last().unwrap();
    let better = row.iter().filter(|&&logit| logit > row[last as usize]);
    assert!(better.count() < reported.top.len());
    assert!(reported.top.iter().all(|top| top.1 >= least));
}

/// Counts a cell's drafters that are models.
fn models_of(cell: &Cell) -> usize {
    let on_tokens = [ExtraDrafter::PromptLookup, ExtraDrafter::Own];
    let additional = cell.additional.iter().filter(|&kind| !on_tokens.contains(kind));
    usize::from(cell.drafter.has_model()) + additional.count()
}

fn additional_drafter(kind: ExtraDrafter, pair: &Pair) -> AdditionalDrafter {
    match kind {
        ExtraDrafter::Drafter => AdditionalDrafter::Model(pair.drafter.clone().into()),
        ExtraDrafter::Target => AdditionalDrafter::Model(pair.target.clone().into()),
        ExtraDrafter::PromptLookup => AdditionalDrafter::Tokens(DrafterKind::PromptLookup),
        ExtraDrafter::Own => AdditionalDrafter::Tokens(DrafterKind::new(&REPEAT)),
    }
}

/// Runs all cells on all cases, and returns the cases.
fn run_matrix(pair: &Pair, cells: Vec<Cell>) -> Vec<Case> {
    run_matrix_at(pair, cells, (PROMPTS, 1), placement)
}

/// Runs all cells on a twelfth of the cases of a few prompts each, or on all cases if the number of
/// prompts is given.
fn run_sample_of_matrix(pair: &Pair, cells: Vec<Cell>) -> Vec<Case> {
    if env::var_os("FORERUN_CASES").is_some() {
        return run_matrix(pair, cells);
    }
    run_part_of_matrix(pair, cells.into_iter().map(with_few_texts).collect(), 12)
}

/// Returns a cell that runs too few texts for a rejection at every position. Wide trees hold nearly
/// every first token.
fn with_few_texts(cell: Cell) -> Cell {
    let must_reject = if cell.tree == Tree::None { cell.must_reject.min(1) } else { 0 };
    Cell { must_reject, ..cell }
}

/// Runs each of many cells on every `parts`-th case of a few prompts.
fn run_part_of_matrix(pair: &Pair, cells: Vec<Cell>, parts: usize) -> Vec<Case> {
    run_matrix_at(pair, cells, (FEW_PROMPTS, parts), placement)
}

/// Runs each cell on every `parts`-th case of a number of prompts, with the given placements.
fn run_matrix_at(
    pair: &Pair,
    cells: Vec<Cell>,
    (prompts, parts): (usize, usize),
    placement: impl Fn(usize, &Cell) -> Option<String>,
) -> Vec<Case> {
    let cases = cases(pair, env_number("FORERUN_CASES", prompts as u64) as usize);
    run_cases(pair, &cases, cells, |_| parts, placement);
    cases
}

/// Runs each cell on one of `parts` parts of the cases: every second one, or every third one, and
/// so on.
fn run_cases(
    pair: &Pair,
    cases: &[Case],
    cells: Vec<Cell>,
    parts: impl Fn(&Cell) -> usize,
    placement: impl Fn(usize, &Cell) -> Option<String>,
) {
    let (mut runs, count) = (0, cells.len());
    for (number, cell) in cells.into_iter().enumerate() {
        let options = Options {
            model: pair.target.clone().into(),
            cache_type: pair.cache_type,
            draft_model: cell
                .draft_model
                .clone()
                .or_else(|| cell.drafter.has_model().then(|| pair.drafter.clone()))
                .map(Into::into),
            method: Some(cell.method),
            drafter: Some(cell.drafter),
            additional_drafters: cell
                .additional
                .iter()
                .map(|kind| additional_drafter(*kind, pair))
                .collect(),
            lookup: cell.lookup,
            draft_tokens: cell.draft_tokens,
            tree: cell.tree.clone(),
            pearl: cell.pearl,
            placement: placement(number, &cell).map(|text| text.parse().unwrap()),
            layers: cell.easyspec.as_ref().map(|easyspec| easyspec.layers.clone()),
            calibration: cell.easyspec.as_ref().map(|easyspec| easyspec.calibration),
            ..Options::default()
        };
        let plan = Plan::new(options).unwrap();
        let easyspec = cell
            .easyspec
            .as_ref()
            .map(|easyspec| format!(" {} {}", easyspec.layers, easyspec.calibration));
        let layout = cell.draft_model.iter().filter_map(|path| path.file_name());
        let layout: String = layout.map(|name| format!(" {}", name.display())).collect();
        let additional = format!(" + {:?}", cell.additional).repeat(cell.additional.len().min(1));
        let easyspec = easyspec.unwrap_or_default();
        let drafter = format!("{}{layout}{easyspec}{additional}", cell.drafter);
        let lookup = match cell.lookup {
            Lookup::None => String::new(),
            lookup => format!(" + {lookup}"),
        };
        let drafter = drafter + &lookup;
        let (method, options) = (cell.method, cell.pearl);
        let name = format!("{method} ({options}) × {drafter} × {:?}", plan.shape());
        let engine = Forerun::open(&plan).unwrap();
        let mut total = Statistics::default();
        // Fewer texts may have nothing to look up.
        let parts = parts(&cell);
        let parts = if cell.lookup == Lookup::None { parts } else { parts.min(3) };
        let (forced, free): (Vec<&Case>, Vec<&Case>) =
            cases.iter().partition(|case| case.is_forced);
        let free = free.into_iter().skip(number % parts).step_by(parts);
        // Each cell runs some of them.
        let forced_parts = parts.min(forced.len().max(1));
        let forced = forced.into_iter().skip(number % forced_parts).step_by(forced_parts);
        for case in free.chain(forced) {
            let answer = answer(&engine, &case.prompt, &case.request);
            let what = format!("{name}, {}, {:?}", plan.placement(), case.request);
            assert_eq!(answer.tokens, case.expected, "{what}");
            assert_eq!(answer.logprobs, case.logprobs, "{what}");
            assert!(
                answer.statistics.failures.is_empty(),
                "{what}: {:?}",
                answer.statistics.failures
            );
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
        if cell.lookup != Lookup::None && cell.must_reject > 0 {
            let (lookups, drafts) = (total.lookups, total.drafts);
            assert!((1..drafts).contains(&lookups), "{name}: {lookups} of {drafts} were looked up");
        }
        for position in 0..cell.must_accept {
            let count = total.accepted.get(position).copied().unwrap_or(0);
            assert!(count > 0, "{name}: nothing accepted at position {position}");
        }
        for position in 0..cell.must_reject {
            let count = rejections.get(position).copied().unwrap_or(0);
            assert!(count > 0, "{name}: no rejection at position {position}, so nothing is shown");
        }
    }
    common::report(&format!(
        "lossless: {runs} runs of {count} cells on {} texts equal plain decoding, token by token",
        cases.len()
    ));
}

#[test]
fn all_options_give_the_tokens_of_the_real_target() {
    if let Some(pair) = Pair::real() {
        run_large_sample_of_matrix(&pair);
    }
}

/// Runs all cells on a part of the cases, or on all of them if the number of prompts is given.
fn run_large_sample_of_matrix(pair: &Pair) {
    if env::var_os("FORERUN_CASES").is_some() {
        run_matrix(pair, cells());
        return;
    }
    // Rejections at later positions need more texts.
    let cases = cases(pair, PROMPTS);
    let parts = |cell: &Cell| if cell.must_reject > 1 { 3 } else { 8 };
    run_cases(pair, &cases, cells(), parts, placement);
}

/// A small sample, if the real pair runs a large one.
#[test]
fn all_options_give_the_tokens_of_a_generated_target() {
    match Pair::real() {
        Some(_) => _ = run_sample_of_matrix(&Pair::generated(), cells()),
        None => run_large_sample_of_matrix(&Pair::generated()),
    }
}

/// Only chains can be translated by their text.
#[test]
fn drafts_of_another_vocabulary_give_the_tokens_of_the_target() {
    for pair in Pair::of_two_vocabularies().into_iter().flatten() {
        let is_chain = |cell: &Cell| cell.drafter == DrafterKind::Model && cell.tree == Tree::None;
        let chains = cells().into_iter().filter(is_chain);
        run_sample_of_matrix(&pair, chains.collect());
    }
}

/// Target and drafter have one tokenizer, but vocabularies of different sizes, in both directions.
#[test]
fn drafters_with_another_number_of_tokens_give_the_tokens_of_the_target() {
    let found = Pair::of_padded_vocabularies().map(|pair| {
        let of_model = cells().into_iter().filter(|cell| cell.drafter == DrafterKind::Model);
        let cases = run_sample_of_matrix(&pair, of_model.collect());
        let vocab_size = Checkpoint::open(&pair.drafter).unwrap().config().vocab_size;
        let beyond = |case: &Case| case.expected.iter().any(|&t| t as usize >= vocab_size);
        (cases.iter().filter(|case| beyond(case)).count(), cases.len())
    });
    // Some texts have tokens that the drafter lacks, and some have none.
    let [(none, _), (some, all)] = found;
    assert!(none == 0 && (1..all).contains(&some), "{found:?}");
}

#[test]
fn all_options_give_the_tokens_of_a_target_of_another_family() {
    run_sample_of_matrix(&Pair::of_another_family(), cells());
}

#[test]
fn all_options_give_the_tokens_of_a_granite_target() {
    run_sample_of_matrix(&Pair::of_granite(), cells());
}

#[test]
fn all_options_give_the_tokens_of_a_smollm3_target() {
    run_sample_of_matrix(&Pair::of_smollm3(), cells());
}

/// Each family is target and drafter in a tenth of the cells, another one than the family before.
#[test]
fn targets_of_every_family_give_their_tokens() {
    for (number, config) in example_families().iter().enumerate() {
        let pair = Pair::of_config(config);
        // One prompt has too few rejections for every position.
        let cells = cells().into_iter().skip(number % 10).step_by(10);
        let cells = cells.map(|cell| Cell { must_reject: 0, ..cell }).collect();
        run_cases(&pair, &cases(&pair, 1), cells, |_| 6, placement);
    }
}

/// The drafter is the MTP head of the target's checkpoint: chains and trees, and chains that are
/// drafted ahead.
#[test]
fn targets_with_an_mtp_head_give_their_tokens() {
    use Family as F;
    let has_head = |config: &&Config| {
        let family = config.family;
        matches!(family, F::DeepseekV3 | F::Glm4Moe | F::Qwen3Next | F::Qwen35 | F::Qwen35Moe)
    };
    let configs = example_families();
    let configs: Vec<&Config> = configs.iter().filter(has_head).collect();
    assert_eq!(configs.len(), 5);
    for config in configs {
        let pair = Pair::with_mtp_head(config);
        // One prompt has too few rejections for every position.
        let pearl = |(count, options): (usize, &str)| Cell {
            draft_tokens: DraftTokens::Fixed(count),
            pearl: options.parse().unwrap(),
            ..cell(Method::Pearl, DrafterKind::Mtp)
        };
        let pearl = [(3, "eager"), (3, "paper")].map(pearl);
        let cells = speculative_cells(DrafterKind::Mtp).into_iter().chain(pearl);
        let cells = cells.map(|cell| Cell { must_reject: 0, ..cell }).collect();
        run_cases(&pair, &cases(&pair, 1), cells, |_| 6, |_, _| None);
    }
}

/// The target is a GGUF file with several block types, also within a projection.
#[test]
fn a_target_of_mixed_block_types_gives_its_tokens() {
    let pair = Pair::of_mixed_types();
    let is_of_model = |cell: &Cell| cell.drafter == DrafterKind::Model && models_of(cell) == 1;
    // One prompt has too few rejections for every position.
    let cells = cells().into_iter().filter(is_of_model);
    let cells = cells.map(|cell| Cell { must_reject: 0, ..cell }).collect();
    run_cases(&pair, &cases(&pair, 1), cells, |_| 6, placement);
}

/// Keys and values of target and drafter are quantised.
#[test]
fn all_options_give_the_tokens_of_a_target_with_a_quantised_cache() {
    let mut pair = Pair::of_granite();
    pair.cache_type = Some(CacheType::Q8);
    run_sample_of_matrix(&pair, cells());
}

/// Returns the cells of EasySpec: layer-parallel sizes and custom groups × chains and trees ×
/// calibration.
fn easyspec_cells() -> Vec<Cell> {
    let policies = || [CalibrationPolicy::EveryRound, CalibrationPolicy::Never];
    let trees = [1, 4, 8, 12].map(|width| Tree::Top { width, depth: None, budget: None });
    let sampled = Tree::Sampled { branching: vec![3, 2, 1] };
    let budget = Tree::Top { width: 4, depth: Some(4), budget: Some(9) };
    let ranked = Tree::Ranked { nodes: 9 };
    let shapes = trees.into_iter().chain([Tree::None, sampled, budget, ranked]);
    let own = "0-2,3-7,8".parse().unwrap();
    let strategies: Vec<_> = (1..=5).map(LayerStrategy::Parallel).chain([own]).collect();
    let cell = |(tree, layers, calibration): (Tree, LayerStrategy, CalibrationPolicy)| Cell {
        method: Method::Speculative,
        drafter: DrafterKind::EasySpec,
        additional: &[],
        lookup: Lookup::None,
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
    let speculative = shapes
        .flat_map(|tree| strategies.clone().into_iter().map(move |layers| (tree.clone(), layers)))
        .flat_map(with_policies)
        .map(cell);
    // Parallel methods draft after tokens that are not verified yet.
    let runs_in_parallel = [Method::Pearl, Method::Dsi].into_iter().flat_map(|method| {
        let layers = [1, 2, 4].map(LayerStrategy::Parallel);
        let all = layers.into_iter().map(|layers| (Tree::None, layers)).flat_map(with_policies);
        all.map(move |combination| {
            let cell = Cell { method, draft_tokens: DraftTokens::Fixed(3), ..cell(combination) };
            // DSI does not wait for late drafters.
            Cell { must_reject: if method == Method::Dsi { 0 } else { cell.must_reject }, ..cell }
        })
    });
    speculative.chain(runs_in_parallel).collect()
}

#[test]
fn layer_parallel_drafts_give_the_tokens_of_the_target() {
    let pair = Pair::deep();
    let cases = cases(&pair, env_number("FORERUN_CASES", FEW_PROMPTS as u64) as usize);
    // Rejections need more texts.
    let parts = |cell: &Cell| if cell.must_reject > 0 { 8 } else { 24 };
    run_cases(&pair, &cases, easyspec_cells(), parts, placement);
}

/// Returns a placement of the target's layers on two devices, and of every draft model on both of
/// them.
fn shared_placement(cell: &Cell) -> Option<String> {
    let cores = available_cores();
    let [first, .., last] = cores[..] else { return None };
    let both = format!("cpu:{first}/cpu:{last}");
    let drafters = models_of(cell);
    let replicas = if cell.method == Method::Dsi { 2 } else { 1 };
    let roles =
        [vec![format!("drafter={both}"); drafters], vec![format!("target={both}"); replicas]];
    let shared = if drafters + replicas > 1 { ",shared" } else { "" };
    Some(roles.concat().join(",") + shared)
}

/// PEARL's appendix G: a target split into pipeline stages, alone and with its drafters on the same
/// devices, with every method.
#[test]
fn layers_on_several_devices_give_the_tokens_of_the_target() {
    let plain = cell(Method::Autoregressive, DrafterKind::None);
    if shared_placement(&plain).is_none() {
        return common::report("SKIPPED: layers on several devices need two cores");
    }
    let all = std::iter::once(plain).chain(cells().into_iter().map(with_few_texts)).collect();
    let parts = (FEW_PROMPTS, 12);
    run_matrix_at(&Pair::generated(), all, parts, |_, cell| shared_placement(cell));
    let runs_in_parallel = |cell: &Cell| cell.method != Method::Speculative;
    let layer_parallel = easyspec_cells().into_iter().filter(runs_in_parallel).collect();
    let parts = (FEW_PROMPTS, 26);
    run_matrix_at(&Pair::deep(), layer_parallel, parts, |_, cell| shared_placement(cell));
}

/// Returns the cells of drafters trained for a target, in every layout. Drafters on tokens support
/// all methods. Those on features support speculative decoding and, but for heads on one hidden
/// state, PEARL.
fn speculator_cells(speculators: &[(SpeculatorLayout, PathBuf)]) -> Vec<Cell> {
    use SpeculatorLayout as L;
    let trees = [
        (DraftTokens::Fixed(1), Tree::None),
        (DraftTokens::Fixed(4), Tree::None),
        (DraftTokens::Auto, Tree::None),
        (DraftTokens::Auto, Tree::Auto),
        (DraftTokens::Fixed(4), Tree::Ranked { nodes: 9 }),
        (DraftTokens::Fixed(3), Tree::Top { width: 4, depth: None, budget: None }),
        (DraftTokens::Fixed(4), Tree::Top { width: 4, depth: None, budget: Some(9) }),
        (DraftTokens::Fixed(1), Tree::Sampled { branching: vec![3, 2, 1] }),
    ];
    let mut cells = Vec::new();
    for (layout, path) in speculators {
        let (drafter, reads_features, must_accept) = match layout {
            L::Medusa | L::VllmMedusa | L::SharedHeadMedusa | L::ReducedMedusa => {
                (DrafterKind::Medusa, true, 0)
            }
            L::Hydra | L::HydraPlusPlus | L::SharedHeadHydra | L::ReducedHydra => {
                (DrafterKind::Hydra, true, 0)
            }
            L::Eagle | L::SharedEmbeddingEagle => (DrafterKind::Eagle, true, 2),
            L::ReducedEagle | L::Eagle3 | L::Eagle3With(_) => (DrafterKind::Eagle, true, 0),
            L::DFlash | L::JetSpec => (DrafterKind::DFlash, true, 0),
            L::DFlash2 => (DrafterKind::DFlash2, true, 0),
            L::DSpark(_) => (DrafterKind::DSpark, true, 0),
            L::ParallelMedusa => (DrafterKind::Parallel, false, 1),
            L::ReducedParallelMedusa => (DrafterKind::Parallel, false, 0),
            L::ParallelEagle => (DrafterKind::Parallel, true, 1),
            L::ReducedParallelEagle | L::PEagle | L::Pard2 => (DrafterKind::Parallel, true, 0),
        };
        let own = |method, draft_tokens: DraftTokens, tree: Tree, options: &str| Cell {
            method,
            drafter,
            draft_tokens,
            pearl: options.parse().unwrap(),
            easyspec: None,
            draft_model: Some(path.clone()),
            additional: &[],
            lookup: Lookup::None,
            // A wide tree holds nearly every first token, and the draft length of `auto` is not
            // known.
            must_reject: usize::from(
                matches!(tree, Tree::None) && draft_tokens != DraftTokens::Auto,
            ),
            must_accept: match draft_tokens {
                DraftTokens::Auto | DraftTokens::Assisted => 0,
                DraftTokens::Fixed(1) if tree == Tree::None => must_accept.min(1),
                DraftTokens::Fixed(_) => must_accept,
            },
            tree,
        };
        for (draft_tokens, tree) in trees.clone() {
            cells.push(own(Method::Speculative, draft_tokens, tree, "eager"));
        }
        // Drafts after rounds without the drafter.
        let budget = Tree::Top { width: 4, depth: None, budget: Some(9) };
        for tree in [Tree::None, budget] {
            cells.push(Cell {
                lookup: Lookup::Suffix,
                must_reject: 0,
                must_accept: 0,
                ..own(Method::Speculative, DraftTokens::Fixed(3), tree, "eager")
            });
        }
        // Drafts after rounds of other drafters.
        cells.push(Cell {
            additional: &[ExtraDrafter::Drafter, ExtraDrafter::PromptLookup],
            must_reject: 0,
            must_accept: 0,
            ..own(Method::Speculative, DraftTokens::Fixed(3), Tree::None, "eager")
        });
        if [DrafterKind::Medusa, DrafterKind::Hydra].contains(&drafter) {
            continue;
        }
        let runs_in_parallel = |method, count, options| Cell {
            // Whether the token of a late drafter is tested depends on timing.
            must_reject: 0,
            must_accept: 0,
            ..own(method, DraftTokens::Fixed(count), Tree::None, options)
        };
        cells.extend([
            runs_in_parallel(Method::Pearl, 3, "eager"),
            Cell {
                additional: &[ExtraDrafter::Drafter],
                ..runs_in_parallel(Method::Pearl, 3, "eager")
            },
            runs_in_parallel(Method::Pearl, 3, "paper"),
        ]);
        if !reads_features {
            let methods = [Method::Dsi, Method::Ssd];
            cells.extend(methods.map(|method| runs_in_parallel(method, 2, "eager")));
            cells.push(runs_in_parallel(auto_in_turns(), 3, "eager"));
        }
    }
    cells
}

/// A drafter of one's own: it proposes that the last token repeats.
struct Repeat;

impl Drafter for Repeat {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let Some(&last) = context.tokens.last() else { return Ok(Draft::empty()) };
        let tree = TokenTree::chain(&vec![last; context.shape.depth()]);
        Ok(Draft::deterministic(tree))
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

/// All that a drafter on tokens needs in addition to its code.
static REPEAT: DrafterEntry =
    DrafterEntry::on_tokens("repeat", "Repeats the last token", &|| Box::new(Repeat));

/// One entry gives a drafter plans, workers, and all methods.
#[test]
fn a_drafter_of_ones_own_gives_the_tokens_of_the_target() {
    let repeat = DrafterKind::new(&REPEAT);
    let mut cells = cells_on_tokens(repeat);
    cells.push(Cell { draft_tokens: DraftTokens::Assisted, ..cell(Method::Speculative, repeat) });
    cells.push(Cell { additional: &[ExtraDrafter::Drafter], ..cell(Method::Dsi, repeat) });
    let own = &[ExtraDrafter::Own];
    cells.push(Cell { additional: own, ..cell(Method::Dsi, DrafterKind::Model) });
    let methods = |method| cells.iter().filter(|cell| cell.method == method).count();
    assert!([Method::Speculative, Method::Pearl, Method::Dsi].into_iter().all(|m| methods(m) > 1));
    run_sample_of_matrix(&Pair::generated(), cells);
}

/// A method of one's own: it drafts for every second token of the target.
#[derive(Default)]
struct EverySecond {
    steps: usize,
}

impl Decoder for EverySecond {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        self.steps += 1;
        let shape = DraftShape::Chain { length: 2 };
        let draft_length = SpeculativeDraftLength::new(shape, DraftLength::Fixed);
        match self.steps % 2 {
            0 => Autoregressive.step(sequence, cluster),
            _ => Speculative::new(draft_length).step(sequence, cluster),
        }
    }
}

impl AnswerDecoder for EverySecond {
    fn for_next_answer(&self, _options: &DecoderOptions, _prompt: usize) -> Box<dyn AnswerDecoder> {
        Box::new(Self::default())
    }
}

/// All that a method needs in addition to its code.
static EVERY_SECOND: MethodEntry = MethodEntry {
    name: "every-second",
    help: "Drafts for every second token of the target",
    drafting: Drafting::BeforeVerification,
    several_targets: false,
    offers: &[Need::Features, Need::VerifiedPrefix, Need::Feedback],
    combines_drafters: false,
    decoder: |_| Box::new(EverySecond::default()),
};

/// One entry gives a method plans, placements, and all drafters whose needs it meets.
#[test]
fn a_method_of_ones_own_gives_the_tokens_of_the_target() {
    let method = Method::new(&EVERY_SECOND);
    let with = |drafter| Cell { must_reject: 1, ..cell(method, drafter) };
    let cells = [DrafterKind::Model, DrafterKind::PromptLookup, DrafterKind::new(&REPEAT)];
    run_sample_of_matrix(&Pair::generated(), cells.map(with).into_iter().collect());
    let (pair, speculators) = Pair::with_speculators();
    let eagle = |(layout, _): &&(SpeculatorLayout, PathBuf)| *layout == SpeculatorLayout::Eagle;
    let (_, path) = speculators.iter().find(eagle).unwrap();
    let cell = Cell { draft_model: Some(path.clone()), ..with(DrafterKind::Eagle) };
    run_part_of_matrix(&pair, vec![cell], 3);
    // It verifies no trees.
    let drafter = Some(DrafterKind::Lookahead);
    let options = Options { model: "target".into(), drafter, ..Options::default() };
    let error = Plan::new(Options { method: Some(method), ..options }).unwrap_err().to_string();
    assert!(error.starts_with("the drafter lookahead drafts trees"), "{error}");
}

/// A drafter of one's own that declares needs is refused where they are not met.
#[test]
fn the_needs_of_a_drafter_of_ones_own_are_checked() {
    static NEEDY: DrafterEntry =
        DrafterEntry::on_tokens("needy", "Repeats the last token", &|| Box::new(Repeat))
            .with_traits(DrafterTraits { needs: &[Need::Feedback], ..DrafterTraits::ON_TOKENS });
    let needy = DrafterKind::new(&NEEDY);
    let plan = |change: fn(&mut Options)| {
        let mut options =
            Options { model: "target".into(), drafter: Some(needy), ..Options::default() };
        change(&mut options);
        Plan::new(options).map(|plan| plan.method()).map_err(|error| error.to_string())
    };
    assert_eq!(plan(|_| ()), Ok(Method::Speculative));
    let error = plan(|options| options.method = Some(Method::Pearl)).unwrap_err();
    let expected = "the drafter needy learns from the target's last pass, which the method pearl";
    assert!(error.starts_with(expected), "{error}");
    let error = plan(|options| {
        (options.method, options.drafter) = (Some(Method::Dsi), Some(DrafterKind::PromptLookup));
        options.additional_drafters = vec![AdditionalDrafter::Tokens(DrafterKind::new(&NEEDY))];
    });
    assert!(error.unwrap_err().contains("the drafter needy learns"));
    // It needs no checkpoint.
    let error = plan(|options| options.draft_model = Some("drafter".into())).unwrap_err();
    assert!(error.contains("`drafter = needy` does not use a model"), "{error}");
    let error = plan(|options| options.layers = Some(LayerStrategy::Parallel(2))).unwrap_err();
    assert!(error.contains("`drafter = easyspec`"), "{error}");
}

#[test]
fn drafters_trained_for_a_target_give_its_tokens() {
    let (pair, speculators) = Pair::with_speculators();
    run_sample_of_matrix(&pair, speculator_cells(&speculators));
}

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

mod cells;
mod requests;

use crate::common::{self, Pair};
use cells::{
    Cell, ExtraDrafter, cell, cells, cells_on_tokens, easyspec_cells, models_of, parallel_cells,
    speculative_cells, speculator_cells, with_few_texts,
};
use forerun::checkpoint::{Checkpoint, Config, Family, NamedAdapter};
use forerun::cpu::Isa;
use forerun::draft::{DraftContext, Drafter, DrafterEntry, DrafterTraits, EasySpec, ModelError};
use forerun::method::{AnswerDecoder, DecoderOptions, Drafting, MethodEntry, Need};
use forerun::placement::available_cores;
use forerun::{
    AdditionalDrafter, Answer, CacheType, DraftTokens, DrafterKind, DrafterOptions, Engine, Finish,
    Lookup, Method, MethodOptions, Options, Plan, Request, Statistics, TokenId, TokenLogprob, Tree,
    Verification,
};
use forerun_core::testing::env_number;
use forerun_core::{
    Cluster, Draft, DraftShape, KeyedRandomness, Sampling, SequenceId, TokenTree,
    reference as sampling_reference,
};
use forerun_decode::{
    Autoregressive, DecodeError, Decoder, DraftLength, Sequence, Speculative,
    SpeculativeDraftLength,
};
use forerun_formats::ModelTypes;
use forerun_formats::checkpoint::random::{example_families, write_random_adapter};
use forerun_formats::checkpoint::random_speculator::SpeculatorLayout;
use forerun_reference::ReferenceModel;
use requests::{forced_requests, requests};
use std::env;
use std::ops::ControlFlow;
use std::path::PathBuf;

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

fn sampling(engine: &Engine, request: &Request) -> Sampling {
    let constraint = |grammar| engine.constraint(grammar, &engine.config().eos_token_ids).unwrap();
    Sampling {
        options: request.sampling.clone(),
        randomness: KeyedRandomness { seed: request.seed.unwrap_or(0), sample: 0 },
        verification: Verification::Coupled,
        constraint: request.grammar.as_ref().map(constraint),
        ..Sampling::greedy()
    }
}

fn answer(engine: &Engine, prompt: &[TokenId], request: &Request) -> Answer {
    let go_on = |_: &str| ControlFlow::Continue(());
    engine.generate_tokens(prompt.to_vec(), request, go_on).unwrap()
}

/// Returns the tokens of plain decoding after a number of prompts, each checked against the
/// reference.
fn cases(pair: &Pair, count: usize) -> Vec<Case> {
    let (model, cache_type) = (pair.target.clone().into(), pair.cache_type);
    let options = Options { model, cache_type, ..Options::default() };
    let engine = Engine::open(options).unwrap();
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

fn name_of(cell: &Cell, plan: &Plan) -> String {
    let mut drafter = cell.drafter.to_string();
    if let Some(layout) = cell.draft_model.as_ref().and_then(|path| path.file_name()) {
        drafter += &format!(" {}", layout.display());
    }
    if let Some(EasySpec { layers, calibration }) = &cell.easyspec {
        drafter += &format!(" {layers} {calibration}");
    }
    if !cell.additional.is_empty() {
        drafter += &format!(" + {:?}", cell.additional);
    }
    if cell.lookup != Lookup::None {
        drafter += &format!(" + {}", cell.lookup);
    }
    format!("{} ({}) × {drafter} × {:?}", cell.method, cell.pearl, plan.shape())
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
        let of_pair = || cell.drafter.has_model().then(|| pair.drafter.clone());
        let draft_model = cell.draft_model.clone().or_else(of_pair);
        let additional = cell.additional.iter().map(|kind| additional_drafter(*kind, pair));
        let options = Options {
            model: pair.target.clone().into(),
            cache_type: pair.cache_type,
            draft_model: draft_model.map(Into::into),
            method: MethodOptions::of(
                Some(cell.method),
                cell.tree.clone(),
                cell.lookup,
                cell.pearl,
            )
            .unwrap(),
            drafter: Some(
                cell.easyspec.clone().map_or(cell.drafter.into(), DrafterOptions::EasySpec),
            ),
            additional_drafters: additional.collect(),
            draft_tokens: cell.draft_tokens,
            placement: placement(number, &cell).map(|text| common::parse_placement(&text)),
            ..Options::default()
        };
        let plan = Plan::new(options).unwrap();
        let name = name_of(&cell, &plan);
        let engine = Engine::open_plan(&plan).unwrap();
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
            assert_eq!(answer.statistics.failures, Vec::<String>::new(), "{what}");
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
    // Rejections at later positions need more texts, and most of all without a model.
    let cases = cases(pair, PROMPTS);
    let parts = |cell: &Cell| match cell.must_reject {
        0 | 1 => 8,
        _ if !cell.drafter.has_model() => 1,
        _ => 3,
    };
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

/// The drafter attends to the target's keys and values, with and without inputs of each layer,
/// shared keys and experts.
#[test]
fn targets_with_an_assistant_give_their_tokens() {
    let configs = example_families();
    let configs: Vec<&Config> =
        configs.iter().filter(|config| config.family == Family::Gemma4).collect();
    assert_eq!(configs.len(), 3);
    for config in configs {
        let (pair, assistant) = Pair::with_assistant(config);
        // One prompt has too few rejections for every position.
        let cells = speculator_cells(&assistant)
            .into_iter()
            .map(|cell| Cell { must_reject: 0, ..cell })
            .collect();
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
    for cache_type in [CacheType::Q8, CacheType::Q4] {
        pair.cache_type = Some(cache_type);
        run_sample_of_matrix(&pair, cells());
    }
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

/// Returns a placement with a paced device for each model, all on one core, and three targets for
/// DSI.
fn paced_placement(cell: &Cell) -> Option<String> {
    let core = available_cores()[0];
    let drafters = format!("drafter=cpu:{core},").repeat(models_of(cell));
    let replicas = if cell.method == Method::Dsi { 3 } else { 1 };
    let targets = format!("target=cpu:{core},").repeat(replicas);
    Some(format!("{drafters}{targets}paced=300us-100us"))
}

#[test]
fn paced_devices_give_the_tokens_of_the_target() {
    let plain = cell(Method::Autoregressive, DrafterKind::None);
    let speculative = cell(Method::Speculative, DrafterKind::Model);
    let all = [plain, speculative].into_iter().chain(parallel_cells().map(with_few_texts));
    let parts = (FEW_PROMPTS, 12);
    run_matrix_at(&Pair::generated(), all.collect(), parts, |_, cell| paced_placement(cell));
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

/// A drafter of one's own that proposes a token which the target does not have.
struct Unknown;

impl Drafter for Unknown {
    fn draft(&mut self, _context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        Ok(Draft::deterministic(TokenTree::chain(&[9_999_999])))
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

#[test]
fn after_a_draft_outside_the_vocabulary_the_target_goes_on_alone() {
    let (pair, drafter) = (Pair::generated(), DrafterKind::own("unknown", || Box::new(Unknown)));
    let answer = |method: Method| {
        let options = Options {
            method: Some(method.into()),
            drafter: Some(drafter.into()),
            draft_tokens: DraftTokens::Fixed(2),
            ..Options::new(&*pair.target)
        };
        let request = Request { max_tokens: 12, ignore_eos: true, ..Request::default() };
        Engine::open(options).unwrap().complete(&pair.prompts[0], &request).unwrap()
    };
    let plain = answer(Method::Autoregressive);
    for method in Method::all().filter(|method| method.drafts()) {
        let Answer { tokens, statistics, .. } = answer(method);
        assert_eq!(tokens, plain.tokens, "{method}");
        let [failure] = &statistics.failures[..] else { panic!("{method}: {statistics:?}") };
        assert!(failure.starts_with("drafter 0 failed: "), "{method}: {failure}");
        assert!(failure.contains("token 9999999 is not in"), "{method}: {failure}");
    }
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
    let drafter = Some(DrafterKind::Lookahead.into());
    let options = Options { model: "target".into(), drafter, ..Options::default() };
    let error =
        Plan::new(Options { method: Some(method.into()), ..options }).unwrap_err().to_string();
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
            Options { model: "target".into(), drafter: Some(needy.into()), ..Options::default() };
        change(&mut options);
        Plan::new(options).map(|plan| plan.method()).map_err(|error| error.to_string())
    };
    assert_eq!(plan(|_| ()), Ok(Method::Speculative));
    let error = plan(|options| options.method = Some(Method::Pearl.into())).unwrap_err();
    let expected = "the drafter needy learns from the target's last pass, which the method pearl";
    assert!(error.starts_with(expected), "{error}");
    let error = plan(|options| {
        options.method = Some(Method::Dsi.into());
        options.drafter = Some(DrafterKind::PromptLookup.into());
        options.additional_drafters = vec![AdditionalDrafter::Tokens(DrafterKind::new(&NEEDY))];
    });
    assert!(error.unwrap_err().contains("the drafter needy learns"));
}

#[test]
fn drafters_trained_for_a_target_give_its_tokens() {
    let (pair, speculators) = Pair::with_speculators();
    run_sample_of_matrix(&pair, speculator_cells(&speculators));
}

/// Adapters of the target, which the drafter lacks, and the target itself, in turn on one engine.
#[test]
fn targets_with_adapters_give_their_tokens() {
    let (pair, folder) = (Pair::generated(), tempfile::tempdir().unwrap());
    let checkpoint = Checkpoint::open(&pair.target).unwrap();
    let adapters = [1, 2].map(|seed| {
        let (name, path) = (seed.to_string(), folder.path().join(seed.to_string()));
        write_random_adapter(&path, checkpoint.config(), seed).unwrap();
        NamedAdapter { name, path }
    });
    let open = |method: Method| {
        let drafter = method.drafts().then(|| pair.drafter.clone().into());
        Engine::open(Options {
            adapters: adapters.to_vec(),
            draft_model: drafter,
            method: Some(method.into()),
            draft_tokens: match method.drafts() {
                true => DraftTokens::Fixed(3),
                false => DraftTokens::default(),
            },
            ..Options::new(&*pair.target)
        })
        .unwrap()
    };
    let plain = open(Method::Autoregressive);
    for method in [Method::Speculative, Method::Pearl] {
        let (engine, mut total, mut different) = (open(method), Statistics::default(), 0);
        for index in 0..2 {
            let prompt = pair.tokenizer().encode(&pair.prompts[index]).unwrap();
            for request in requests(index) {
                let texts = [None, Some("1"), Some("2")].map(|name| {
                    let request = Request { adapter: name.map(str::to_owned), ..request.clone() };
                    let expected = answer(&plain, &prompt, &request);
                    let answer = answer(&engine, &prompt, &request);
                    assert_eq!(answer.tokens, expected.tokens, "{method}, {request:?}");
                    assert_eq!(answer.logprobs, expected.logprobs, "{method}, {request:?}");
                    total.add(&answer.statistics);
                    answer.tokens
                });
                different += usize::from(texts[0] != texts[1] && texts[1] != texts[2]);
            }
        }
        assert!(different > 10, "{method}: {different} texts depend on the adapter");
        assert!(total.accepted[0] > 0 && total.accepted[0] < total.tested[0], "{method}");
    }
}

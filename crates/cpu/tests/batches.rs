//! Row invariance with company: whatever other sequences share a pass, a request's rows and features
//! have the bits that the request has alone.
//!
//! Random schedules submit requests, cancel them, let them fail, release sequences, and run passes over
//! the unfinished requests. The caches have a budget of a few pages, so that sequences evict each other.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_cache::PAGE_ROWS;
use forerun_core::testing::cases;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_cpu::{Isa, Team, Transformer, Weights};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, example_families, scale_tensor, write_random_checkpoint,
};
use forerun_formats::{BlockType, Checkpoint, Config, FeatureSource, WeightType};
use forerun_lm::{
    BatchEntry, CachePart, ForwardOutput, ForwardRequest, LanguageModel, LayerGroups, LayerOrder,
    ModelError, Progress,
};
use forerun_model::CachedTransformer;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

const LAYERS: usize = 2;
const TYPES: [WeightType; 7] = [
    WeightType::F32,
    WeightType::Bf16,
    WeightType::F16,
    WeightType::INT8,
    WeightType::Quantized(BlockType::Q4_K),
    WeightType::Quantized(BlockType::Q6_K),
    WeightType::Quantized(BlockType::MXFP4),
];

/// A plain Llama model, then the features of other families.
fn configs() -> Vec<Config> {
    let all = [example_config()].into_iter().chain(example_families());
    all.map(|config| Config { max_position_embeddings: 700, ..config }).collect()
}

/// Every configuration in every weight type.
fn weights() -> &'static [Arc<Weights>] {
    static WEIGHTS: OnceLock<Vec<Arc<Weights>>> = OnceLock::new();
    WEIGHTS.get_or_init(|| {
        let load = |config: Config| {
            let dir = tempfile::tempdir().unwrap();
            write_random_checkpoint(dir.path(), &config, 5, RandomDtype::F32).unwrap();
            let checkpoint = Checkpoint::open(dir.path()).unwrap();
            TYPES.map(|weight_type| Arc::new(Weights::load_as(&checkpoint, weight_type).unwrap()))
        };
        configs().into_iter().flat_map(load).collect()
    })
}

fn model(weights: &Arc<Weights>, isa: Isa, members: usize) -> CachedTransformer<Transformer> {
    let team = Arc::new(Team::unpinned(members).unwrap().with_isa(isa));
    let transformer = Transformer::new(Arc::clone(weights), team);
    CachedTransformer::new(transformer.with_features(FeatureSource::Layers(vec![0, 1, LAYERS])))
}

/// A request that owns its parts.
#[derive(Clone, Debug)]
struct Request {
    sequence: u64,
    tokens: Vec<TokenId>,
    tree: TokenTree,
    first_row: usize,
    features_from: Option<usize>,
    /// Whether the rows of the tree are computed with layers in groups, after exact tokens.
    groups: Option<LayerGroups>,
}

impl Request {
    fn view<'a>(&'a self, cancel: &'a AtomicBool) -> ForwardRequest<'a> {
        let Self { sequence, tokens, tree, first_row, features_from, groups } = self;
        let order = groups.as_ref().map_or(LayerOrder::Sequential, LayerOrder::Groups);
        ForwardRequest {
            first_row: *first_row,
            features_from: *features_from,
            order,
            exact_tokens: tokens.len(),
            cancel,
            ..ForwardRequest::new(SequenceId(*sequence), tokens, tree)
        }
    }
}

/// What happens in a schedule.
#[derive(Clone, Debug)]
enum Event {
    Submit(Request),
    /// Cancels one of the unfinished requests (modulo their number).
    Cancel(usize),
    /// Releases a sequence.
    Release(u64),
    /// Runs a pass.
    Pass,
}

fn request() -> impl Strategy<Value = Request> {
    let nodes = prop::collection::vec((0..9_usize, 0..4_u32), 0..12);
    // Prompts begin alike, for up to several pages and for more than a pass takes.
    let len = prop_oneof![1..40_usize, 1..3 * PAGE_ROWS, 200..600_usize];
    let groups = prop::option::weighted(0.2, Just(vec![LAYERS]));
    (0..6_u64, len, 0..3_u32, 0..5_usize, nodes, 0..14_usize, any::<bool>(), groups).prop_map(
        |(sequence, len, text, branch, nodes, first_row, features, groups)| {
            let token = |index: usize| {
                let text = if index < branch * 50 { 0 } else { text };
                (index as u32 * 7 + text * 3) % 250
            };
            let tokens: Vec<TokenId> = (0..len).map(token).collect();
            let mut tree = TokenTree::new();
            for (parent, token) in nodes {
                tree.push(parent.checked_sub(1).filter(|&node| node < tree.len()), token);
            }
            let groups = groups.map(|sizes| LayerGroups::of_sizes(&sizes));
            // Rows of held approximate nodes depend on how these were computed.
            let first_row = if groups.is_some() { 0 } else { first_row.min(tree.len()) };
            let features_from = (features && groups.is_none()).then_some(len / 2);
            Request { sequence, tokens, tree, first_row, features_from, groups }
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => request().prop_map(Event::Submit),
        1 => (0..8_usize).prop_map(Event::Cancel),
        1 => (0..6_u64).prop_map(Event::Release),
        6 => Just(Event::Pass),
    ]
}

/// A request that has been submitted.
struct Submitted {
    request: Request,
    cancel: AtomicBool,
    progress: Progress,
}

/// Runs a pass over all unfinished requests, and checks the answers of those that end.
fn pass(
    model: &mut CachedTransformer<Transformer>,
    submitted: &mut Vec<Submitted>,
    solo: &dyn Fn(&Request) -> Result<ForwardOutput, ModelError>,
) -> Result<(), TestCaseError> {
    if submitted.is_empty() {
        return Ok(());
    }
    let done = |submitted: &[Submitted]| -> (usize, usize) {
        let computed = submitted.iter().map(|s| s.progress.computed_tokens).sum();
        (computed, submitted.iter().filter(|s| s.progress.result.is_some()).count())
    };
    let before = done(submitted);
    let batch = submitted.iter_mut().map(|Submitted { request, cancel, progress }| BatchEntry {
        request: request.view(cancel),
        progress,
    });
    model.forward(&mut batch.collect::<Vec<_>>());
    prop_assert!(done(submitted) != before, "a pass without progress");
    let mut ended = submitted.extract_if(.., |submitted| submitted.progress.result.is_some());
    ended.try_for_each(|Submitted { request, cancel, progress }| {
        let result = progress.result.unwrap();
        if cancel.load(Ordering::Relaxed) && result == Err(ModelError::Cancelled) {
            return Ok(());
        }
        let bits = |result: &Result<ForwardOutput, ModelError>| {
            let output = result.as_ref().map_err(Clone::clone)?;
            let logits: Vec<u32> = output.logits.iter().map(|logit| logit.to_bits()).collect();
            Ok::<_, ModelError>((logits, output.features.clone()))
        };
        prop_assert!(bits(&result) == bits(&solo(&request)), "{:?}", request);
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(100)))]

    #[test]
    fn a_request_has_the_same_bits_in_company(
        kind in 0..configs().len() * TYPES.len(),
        isa in prop::sample::select(Isa::available()),
        members in 1..3_usize,
        pages in 1..14_usize,
        events in prop::collection::vec(event(), 1..40),
        out_of_vocabulary in prop::option::weighted(0.3, 0..8_usize),
    ) {
        let weights = &weights()[kind];
        let mut model = model(weights, isa, members).with_page_budget(pages);
        let solo = |request: &Request| {
            let never = AtomicBool::new(false);
            self::model(weights, isa, 1).logits(&request.view(&never))
        };
        let mut submitted: Vec<Submitted> = Vec::new();
        for (number, event) in events.into_iter().enumerate() {
            match event {
                Event::Submit(mut request) => {
                    // At most one request of a sequence at a time.
                    if submitted.iter().all(|other| other.request.sequence != request.sequence) {
                        if out_of_vocabulary == Some(number) {
                            request.tokens[0] = 5_000;
                        }
                        let (cancel, progress) = (AtomicBool::new(false), Progress::default());
                        submitted.push(Submitted { request, cancel, progress });
                    }
                }
                Event::Cancel(index) if !submitted.is_empty() => {
                    let index = index % submitted.len();
                    submitted[index].cancel.store(true, Ordering::Relaxed);
                }
                Event::Cancel(_) => {}
                Event::Release(sequence) => model.release(SequenceId(sequence)),
                Event::Pass => pass(&mut model, &mut submitted, &solo)?,
            }
        }
        while !submitted.is_empty() {
            pass(&mut model, &mut submitted, &solo)?;
        }
        // Between passes, at most a pass's own pages exceed the budget.
        let needed = model.pool().allocated().min(pages);
        model.logits(&ForwardRequest::next_token(SequenceId(99), &[1])).unwrap();
        prop_assert!(model.pool().allocated() <= needed.max(1).max(pages), "more than the budget");
    }
}

/// A long pass keeps no state after the last row of the text if only later nodes are requested. The text's
/// features are still there when the pass has ended, also those of recurrent models.
#[test]
fn features_of_a_text_do_not_depend_on_states() {
    let tokens: Vec<TokenId> = (0..140).map(|index| index * 7 % 250).collect();
    let tree = TokenTree::chain(&[3, 4]);
    for weights in weights().iter().step_by(TYPES.len()) {
        let mut model = model(weights, Isa::best(), 1);
        let request = ForwardRequest::new(SequenceId(0), &tokens, &tree);
        let features = |first_row, model: &mut CachedTransformer<Transformer>| {
            let request = ForwardRequest { first_row, features_from: Some(32), ..request };
            model.logits(&request).unwrap().features
        };
        let later = features(2, &mut model);
        assert_eq!(later, features(0, &mut self::model(weights, Isa::best(), 1)));
    }
}

/// Eight sequences with one prompt: the pages and the rows of one, and of what is not a whole page.
#[test]
fn equal_prompts_are_computed_and_stored_once() {
    let weights = &weights()[0];
    let prompt: Vec<TokenId> = (0..7 * PAGE_ROWS as u32 + 9).map(|index| index * 7 % 250).collect();
    let rows_of = |sequences: u64| {
        let mut model = model(weights, Isa::best(), 1);
        let never = AtomicBool::new(false);
        let mut progress: BTreeMap<u64, Progress> =
            (0..sequences).map(|sequence| (sequence, Progress::default())).collect();
        while progress.values().any(|progress| progress.result.is_none()) {
            let batch = progress.iter_mut().map(|(&sequence, progress)| {
                let request = ForwardRequest::next_token(SequenceId(sequence), &prompt);
                BatchEntry { request: ForwardRequest { cancel: &never, ..request }, progress }
            });
            model.forward(&mut batch.collect::<Vec<_>>());
        }
        let outputs = progress.into_values().map(|progress| progress.result.unwrap().unwrap());
        let (logits, rows): (Vec<_>, Vec<_>) =
            outputs.map(|output| (output.logits, output.computed_tokens)).unzip();
        assert!(logits.windows(2).all(|pair| pair[0] == pair[1]));
        (model.pool().allocated(), rows.iter().sum::<usize>())
    };
    let (pages, rows) = rows_of(1);
    assert_eq!((pages, rows), (8, prompt.len()));
    // Each further sequence has one page of its own, and computes its rows.
    assert_eq!(rows_of(8), (8 + 7, prompt.len() + 7 * 9));
}

/// Two prompts, each of which needs more pages than the budget: neither takes the pages of the other
/// for ever.
#[test]
fn long_prompts_make_progress_with_a_small_budget() {
    let weights = &weights()[0];
    let mut model = model(weights, Isa::best(), 1).with_page_budget(2);
    let prompts = [3, 5].map(|seed| (0..600).map(|index| index * seed % 250).collect::<Vec<_>>());
    let mut progress = [(); 2].map(|()| Progress::default());
    for passes in 0.. {
        assert!(passes < 20, "the requests make no progress");
        let batch = progress.iter_mut().zip(&prompts).zip(0..).map(|((progress, prompt), id)| {
            BatchEntry { request: ForwardRequest::next_token(SequenceId(id), prompt), progress }
        });
        model.forward(&mut batch.collect::<Vec<_>>());
        if progress.iter().all(|progress| progress.result.is_some()) {
            break;
        }
    }
}

/// Keys and values that are just too large for an f16 cache for some tokens only: these requests fail,
/// whatever shares their pass, and the others have the bits of a model that they have alone.
#[test]
fn numbers_beyond_the_caches_range_fail_only_their_own_request() {
    for (tensor, part) in [("k_proj", CachePart::Key), ("v_proj", CachePart::Value)] {
        let dir = tempfile::tempdir().unwrap();
        write_random_checkpoint(dir.path(), &example_config(), 5, RandomDtype::F32).unwrap();
        let file = dir.path().join("model.safetensors");
        // The largest of 24 normally distributed numbers is between 1 and 4 for nearly all tokens.
        let name = format!("model.layers.1.self_attn.{tensor}.weight");
        scale_tensor(&file, &name, 30_000.0).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        for weight_type in TYPES {
            let weights = Arc::new(Weights::load_as(&checkpoint, weight_type).unwrap());
            let tokens: Vec<TokenId> = (0..12).collect();
            let tree = TokenTree::new();
            let run = |model: &mut CachedTransformer<Transformer>, tokens: &[TokenId]| {
                let mut progress: Vec<_> = tokens.iter().map(|_| Progress::default()).collect();
                let mut batch: Vec<_> = tokens
                    .iter()
                    .zip(&mut progress)
                    .map(|(token, progress)| {
                        let sequence = SequenceId(u64::from(*token));
                        let tokens = std::slice::from_ref(token);
                        BatchEntry {
                            request: ForwardRequest::new(sequence, tokens, &tree),
                            progress,
                        }
                    })
                    .collect();
                model.forward(&mut batch);
                progress.into_iter().map(|p| p.result.unwrap()).collect::<Vec<_>>()
            };
            let new_model = || model(&weights, Isa::best(), 2);
            let alone: Vec<_> =
                tokens.iter().flat_map(|&token| run(&mut new_model(), &[token])).collect();
            let mut model = new_model();
            // A request that failed fails again: the cache does not hold its row.
            for _ in 0..2 {
                let together = run(&mut model, &tokens);
                for (alone, together) in alone.iter().zip(together) {
                    match (alone, together) {
                        (Ok(alone), Ok(together)) => assert_eq!(alone.logits, together.logits),
                        (Err(alone), Err(together)) => assert_eq!(*alone, together),
                        (alone, together) => panic!("{alone:?}, {together:?}"),
                    }
                }
            }
            let failed = alone.iter().filter(|result| result.is_err()).count();
            let errors = alone.iter().filter_map(|result| result.as_ref().err());
            let expected = ModelError::CacheRange { layer: 1, part };
            assert!(errors.into_iter().all(|error| *error == expected));
            match weight_type {
                WeightType::F32 => assert_eq!(failed, 0),
                _ => assert!((1..tokens.len()).contains(&failed), "{weight_type:?}: {failed}"),
            }
        }
    }
}

//! Requests that share their passes get the bits that they get alone. Those that read only the best tokens get the best of the
//! whole rows.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{configs, gpu};
use crate::families::config_of;
use forerun_cache::PAGE_ROWS;
use forerun_core::testing::cases;
use forerun_core::{BestTokens, RowUse, SequenceId, TokenId, TokenTree};
use forerun_formats::checkpoint::random::{
    RandomDtype, RandomTensors, scale_tensor, write_random_checkpoint,
};
use forerun_formats::{Checkpoint, Family, FeatureSource, WeightType};
use forerun_gpu::{GpuModel, GpuWeights};
use forerun_lm::{
    BatchEntry, CachePart, ForwardOutput, ForwardRequest, LanguageModel, LayerGroups, LayerOrder,
    ModelError, Progress,
};
use forerun_model::CachedTransformer;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The models of the tests and their types: a plain one, windows and norms of heads, biases, a mixture of experts, recurrent layers
/// with matrices and with convolutions alone, and compressed keys and values.
const MODELS: [(Family, WeightType); 8] = [
    (Family::Llama, WeightType::F32),
    (Family::Gemma3, WeightType::Bf16),
    (Family::Qwen2, WeightType::F16),
    (Family::Qwen2Moe, WeightType::INT8),
    (Family::Qwen3Next, WeightType::F32),
    (Family::Lfm2, WeightType::Bf16),
    (Family::DeepseekV2, WeightType::F16),
    (Family::DeepseekV3, WeightType::F32),
];

fn all_weights() -> &'static [Arc<GpuWeights>] {
    static WEIGHTS: OnceLock<Vec<Arc<GpuWeights>>> = OnceLock::new();
    let load = || {
        let Some(device) = gpu() else { return Vec::new() };
        let models = MODELS.into_iter().map(|(family, weight_type)| {
            let config = match family {
                Family::Llama => configs().remove(0),
                _ => config_of(family),
            };
            let architecture = config.architecture();
            let tensors = RandomTensors::new(&architecture, 5);
            let weights =
                GpuWeights::load_architecture(device, architecture, &tensors, weight_type);
            Arc::new(weights.unwrap())
        });
        models.collect()
    };
    WEIGHTS.get_or_init(load)
}

fn model(weights: &Arc<GpuWeights>) -> CachedTransformer<GpuModel> {
    let features = FeatureSource::Layers(vec![0, 1, weights.architecture().layers.len()]);
    CachedTransformer::new(GpuModel::new(Arc::clone(weights)).with_features(features))
}

/// A request that owns its parts.
#[derive(Clone, Debug)]
struct Request {
    sequence: u64,
    tokens: Vec<TokenId>,
    tree: TokenTree,
    first_row: usize,
    rows_for: RowUse,
    features_from: Option<usize>,
    /// Whether the rows of the tree are computed with layers in one group, after exact tokens.
    is_grouped: bool,
}

impl Request {
    fn view<'a>(&'a self, groups: &'a LayerGroups, cancel: &'a AtomicBool) -> ForwardRequest<'a> {
        let Self { sequence, tokens, tree, first_row, rows_for, features_from, is_grouped } = self;
        let order = match is_grouped {
            true => LayerOrder::Groups(groups),
            false => LayerOrder::Sequential,
        };
        ForwardRequest {
            first_row: *first_row,
            rows_for: *rows_for,
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
    let len = prop_oneof![4 => 1..40_usize, 2 => 1..3 * PAGE_ROWS, 1 => 200..600_usize];
    let flags = (any::<bool>(), prop::bool::weighted(0.2));
    let best = |count| RowUse::Best { count, tokens: 240 };
    let rows_for = prop_oneof![
        2 => Just(RowUse::Full),
        2 => Just(best(1)),
        1 => (2..70_usize).prop_map(best)
    ];
    (0..6_u64, len, 0..3_u32, 0..5_usize, nodes, 0..14_usize, flags, rows_for).prop_map(
        |(sequence, len, text, branch, nodes, first_row, (features, is_grouped), rows_for)| {
            let token = |index: usize| {
                let text = if index < branch * 50 { 0 } else { text };
                (index as u32 * 7 + text * 3) % 250
            };
            let tokens: Vec<TokenId> = (0..len).map(token).collect();
            let mut tree = TokenTree::new();
            for (parent, token) in nodes {
                tree.push(parent.checked_sub(1).filter(|&node| node < tree.len()), token);
            }
            // Rows of held approximate nodes depend on how these were computed.
            let first_row = if is_grouped { 0 } else { first_row.min(tree.len()) };
            let features_from = (features && !is_grouped).then_some(len / 2);
            Request { sequence, tokens, tree, first_row, rows_for, features_from, is_grouped }
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
    model: &mut CachedTransformer<GpuModel>,
    submitted: &mut Vec<Submitted>,
    groups: &LayerGroups,
    solo: &dyn Fn(&Request) -> Result<ForwardOutput, ModelError>,
) -> Result<(), TestCaseError> {
    let batch = submitted.iter_mut().map(|Submitted { request, cancel, progress }| BatchEntry {
        request: request.view(groups, cancel),
        progress,
    });
    model.forward(&mut batch.collect::<Vec<_>>());
    let mut ended = submitted.extract_if(.., |submitted| submitted.progress.result.is_some());
    ended.try_for_each(|Submitted { request, cancel, progress }| {
        let result = progress.result.unwrap();
        if cancel.load(Ordering::Relaxed) && result == Err(ModelError::Cancelled) {
            return Ok(());
        }
        let bits = |result: &Result<ForwardOutput, ModelError>| {
            let output = result.as_ref().map_err(Clone::clone)?;
            let logits: Vec<u32> = output.logits.iter().map(|logit| logit.to_bits()).collect();
            Ok::<_, ModelError>((logits, best_bits(&output.best), output.features.clone()))
        };
        let mut expected = solo(&request);
        // If many tokens are read, rows are whole.
        if let (RowUse::Best { count: count @ ..=32, tokens }, Ok(output)) =
            (request.rows_for, &mut expected)
        {
            let rows = output.rows_truncated_to(tokens);
            output.best = rows.map(|row| BestTokens::of(row, count)).collect();
            output.logits.clear();
        }
        prop_assert!(bits(&result) == bits(&expected), "{:?}", request);
        Ok(())
    })
}

/// Returns the best tokens of rows with the bits of their logits.
fn best_bits(best: &[BestTokens]) -> Vec<(usize, Vec<(TokenId, u32)>)> {
    let ranked = |row: &BestTokens| {
        row.ranked.iter().map(|&(token, logit)| (token, logit.to_bits())).collect()
    };
    best.iter().map(|row| (row.tokens, ranked(row))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(12)))]

    #[test]
    fn a_request_has_the_same_bits_in_company(
        number in 0..MODELS.len(),
        pages in 1..14_usize,
        states in 1..60_usize,
        events in prop::collection::vec(event(), 1..30),
        out_of_vocabulary in prop::option::weighted(0.3, 0..8_usize),
    ) {
        let Some(weights) = all_weights().get(number) else { return Ok(()) };
        let groups = LayerGroups::of_sizes(&[weights.architecture().layers.len()]);
        let mut model = model(weights).with_page_budget(pages);
        if weights.architecture().state_bytes() > 0 {
            model = model.with_state_budget(states);
        }
        let solo = |request: &Request| {
            let never = AtomicBool::new(false);
            let whole = Request { rows_for: RowUse::Full, ..request.clone() };
            self::model(weights).logits(&whole.view(&groups, &never))
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
                Event::Pass => pass(&mut model, &mut submitted, &groups, &solo)?,
            }
        }
        while !submitted.is_empty() {
            pass(&mut model, &mut submitted, &groups, &solo)?;
        }
    }
}

/// Keys and values that are just too large for an f16 cache for some tokens only: these requests fail,
/// whatever shares their pass, and the others have the bits that they have alone.
#[test]
fn numbers_beyond_the_caches_range_fail_only_their_own_request() {
    let Some(device) = gpu() else { return };
    for (tensor, part) in [("k_proj", CachePart::Key), ("v_proj", CachePart::Value)] {
        let dir = tempfile::tempdir().unwrap();
        write_random_checkpoint(dir.path(), &configs()[0], 5, RandomDtype::F32).unwrap();
        let file = dir.path().join("model.safetensors");
        // The largest of 24 normally distributed numbers is between 1 and 4 for nearly all tokens.
        let name = format!("model.layers.1.self_attn.{tensor}.weight");
        scale_tensor(&file, &name, 30_000.0).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let weights = Arc::new(GpuWeights::load(device, &checkpoint, WeightType::Bf16).unwrap());
        let run = |model: &mut CachedTransformer<GpuModel>, tokens: &[TokenId]| {
            let tree = TokenTree::new();
            let mut progress: Vec<_> = tokens.iter().map(|_| Progress::default()).collect();
            let entries = tokens.iter().zip(&mut progress).map(|(token, progress)| {
                let sequence = SequenceId(u64::from(*token));
                let tokens = std::slice::from_ref(token);
                BatchEntry { request: ForwardRequest::new(sequence, tokens, &tree), progress }
            });
            model.forward(&mut entries.collect::<Vec<_>>());
            progress.into_iter().map(|p| p.result.unwrap()).collect::<Vec<_>>()
        };
        let tokens: Vec<TokenId> = (0..12).collect();
        let new_model = || CachedTransformer::new(GpuModel::new(Arc::clone(&weights)));
        let alone: Vec<_> =
            tokens.iter().flat_map(|&token| run(&mut new_model(), &[token])).collect();
        let mut model = new_model();
        // A request that failed fails again: the cache does not hold its row.
        for _ in 0..2 {
            assert!(alone == run(&mut model, &tokens));
        }
        let errors: Vec<_> = alone.iter().filter_map(|result| result.as_ref().err()).collect();
        assert!((1..tokens.len()).contains(&errors.len()), "{} failed", errors.len());
        let expected = ModelError::CacheRange { layer: 1, part };
        assert!(errors.into_iter().all(|error| *error == expected));
    }
}

/// Two models on one GPU, and two opened GPUs, at the same time.
#[test]
fn models_on_two_threads_have_the_same_bits() {
    let Some(weights) = all_weights().first() else { return };
    let tokens: Vec<TokenId> = (0..90).map(|index| index * 3 % 250).collect();
    let run = || {
        let mut model = model(weights);
        let ends = (10..tokens.len()).step_by(7);
        let logits = ends.flat_map(|end| {
            let request = ForwardRequest::next_token(SequenceId(1), &tokens[..end]);
            model.logits(&request).unwrap().logits
        });
        logits.map(f32::to_bits).collect::<Vec<_>>()
    };
    let alone = run();
    std::thread::scope(|scope| {
        let both = [scope.spawn(run), scope.spawn(run)];
        assert!(both.into_iter().all(|thread| thread.join().unwrap() == alone));
    });
}

/// A layer is ten dispatches, and a pass of few rows one submission that reads each matrix once.
#[test]
fn the_cost_of_a_pass_counts_its_dispatches_and_bytes() {
    let Some(weights) = all_weights().first() else { return };
    let mut model = CachedTransformer::new(GpuModel::new(Arc::clone(weights)));
    let tokens: Vec<TokenId> = (0..9).collect();
    let architecture = weights.architecture();
    let layers = architecture.layers.len();
    for end in [8, 9] {
        model.logits(&ForwardRequest::next_token(SequenceId(0), &tokens[..end])).unwrap();
        let cost = model.device().last_cost();
        assert_eq!((cost.rows, cost.submissions), (if end == 8 { 8 } else { 1 }, 1));
        // The embedding, and the norm and the product of the head.
        assert_eq!(cost.dispatches, 10 * layers + 3);
        let embedding = 4 * (architecture.vocab_size * architecture.hidden_size) as u64;
        assert_eq!(cost.weight_bytes, weights.bytes() - embedding);
        println!("{cost}");
    }
}

/// What comes home of a row is what is read of it: its logits, or a few tokens with theirs.
#[test]
fn only_what_is_read_of_rows_comes_home() {
    let Some(weights) = all_weights().first() else { return };
    let vocab_size = weights.architecture().vocab_size;
    let tokens: Vec<TokenId> = (0..9).collect();
    let tree = TokenTree::chain(&[4, 7, 9]);
    let read_back = |rows_for| {
        let mut model = CachedTransformer::new(GpuModel::new(Arc::clone(weights)));
        let request = ForwardRequest::new(SequenceId(0), &tokens, &tree);
        let output = model.logits(&ForwardRequest { rows_for, ..request }).unwrap();
        assert_eq!(output.best.is_empty(), rows_for == RowUse::Full);
        model.device().last_cost().read_back_bytes
    };
    // Whether the row's keys and values fit the cache's type.
    let overflows = 4 * (tokens.len() + tree.len()) as u64;
    let rows = (tree.len() + 1) as u64;
    assert_eq!(read_back(RowUse::Full), overflows + rows * 4 * vocab_size as u64);
    assert_eq!(read_back(RowUse::best(1, vocab_size)), overflows + rows * 8);
    assert_eq!(read_back(RowUse::best(20, vocab_size)), overflows + rows * 160);
}

//! Row invariance: a row's logits depend, bit for bit, only on the weights and on the row's own token
//! prefix.
//!
//! For any batch of rows, any tree, any number of threads and any state of the cache, every row must have
//! the bits that the slow reference model computes for its prefix in a fresh forward pass.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::testing::{cases, is_complete};
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_cpu::{Isa, Team, Transformer, Weights};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, example_families, write_random_checkpoint,
};
use forerun_formats::checkpoint::{LayerTensor, Tensor, gguf::write_gguf};
use forerun_formats::{BlockType, CacheType, Checkpoint, Config, Mix, ModelTypes, WeightType};
use forerun_lm::fake::row_prefix;
use forerun_lm::{ForwardRequest, LanguageModel, ModelError};
use forerun_model::CachedTransformer;
use forerun_reference::ReferenceModel;
use proptest::prelude::*;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

const SEQUENCE: SequenceId = SequenceId(0);

struct Models {
    reference: ReferenceModel,
    weights: Arc<Weights>,
}

/// The types of the caches, by turns over the configurations.
const CACHE_TYPES: [Option<CacheType>; 3] = [None, Some(CacheType::Q8), Some(CacheType::Bf16)];

/// Floats, bytes, and block types with minima, with scales for 16 weights, and with a table.
const TYPES: [WeightType; 7] = [
    WeightType::F32,
    WeightType::Bf16,
    WeightType::F16,
    WeightType::INT8,
    WeightType::Quantized(BlockType::Q4_K),
    WeightType::Quantized(BlockType::Q6_K),
    WeightType::Quantized(BlockType::MXFP4),
];

/// A weight type, an instruction set, and an index into [`configs`]. Each combination counts as a model
/// of its own. Without a weight type, the model is that of [`mixed_file`].
type Kind = (Option<WeightType>, Isa, usize);

/// A plain Llama model, then the features of other families: biases, norms of queries and keys, sliding
/// windows, scaled RoPE.
fn configs() -> Vec<Config> {
    let plain = Config { max_position_embeddings: 700, ..example_config() };
    let of_family = |config| Config { max_position_embeddings: 700, ..config };
    [plain].into_iter().chain(example_families().into_iter().map(of_family)).collect()
}

/// The number of configurations that are tested in every type on every instruction set.
const WHOLLY_TESTED: usize = 7;

/// Every combination of weight type, instruction set of this processor, and configuration, for the first
/// configurations. The others are tested in every type, on instruction sets by turns, and in f32 on the best one.
fn kinds() -> Vec<Kind> {
    let isas = Isa::available();
    let with_types = |isa| (0..TYPES.len()).map(move |weight_type| (weight_type, isa));
    let pairs = (0..isas.len()).flat_map(with_types);
    let all = pairs.flat_map(|(weight_type, isa)| {
        (0..configs().len()).map(move |config| (weight_type, isa, config))
    });
    let is_tested = |&(weight_type, isa, config): &(usize, usize, usize)| {
        config < WHOLLY_TESTED
            || (weight_type + isa + config).is_multiple_of(isas.len())
            || TYPES[weight_type] == WeightType::F32 && isas[isa] == Isa::best()
    };
    let kind = |(weight_type, isa, config): (usize, usize, usize)| {
        (Some(TYPES[weight_type]), isas[isa], config)
    };
    all.filter(is_tested).map(kind).chain([(None, Isa::best(), 0)]).collect()
}

/// Opens a GGUF file whose projection of queries, keys and values has Q4_K and Q6_K.
fn mixed_file(folder: &Path) -> Checkpoint {
    let config = Config {
        hidden_size: 256,
        intermediate_size: 256,
        num_hidden_layers: 1,
        num_attention_heads: 4,
        num_key_value_heads: 1,
        head_dim: 64,
        ..configs().remove(0)
    };
    write_random_checkpoint(folder, &config, 5, RandomDtype::F32).unwrap();
    let file = folder.join("mixed.gguf");
    write_gguf(&Checkpoint::open(folder).unwrap(), &file, Mix::Q4_K_M, &[]).unwrap();
    let checkpoint = Checkpoint::open(&file).unwrap();
    let block_type = |part| checkpoint.rows(Tensor::Layer(0, part)).unwrap().block_type();
    let types = [LayerTensor::Query, LayerTensor::Key, LayerTensor::Value].map(block_type);
    assert_eq!(types.map(Option::unwrap), [BlockType::Q4_K, BlockType::Q4_K, BlockType::Q6_K]);
    checkpoint
}

/// Random models, with sizes that leave tiles partly empty. They are loaded when a test first needs them.
fn models(kind: Kind) -> &'static Models {
    static MODELS: OnceLock<Vec<(Kind, OnceLock<Models>)>> = OnceLock::new();
    let load = |(weight_type, isa, config): Kind| {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = match weight_type {
            None => mixed_file(dir.path()),
            Some(_) => {
                write_random_checkpoint(dir.path(), &configs()[config], 5, RandomDtype::F32)
                    .unwrap();
                Checkpoint::open(dir.path()).unwrap()
            }
        };
        let types = weight_type.map_or(ModelTypes::default(), Into::into);
        let types = ModelTypes { cache: CACHE_TYPES[config % CACHE_TYPES.len()], ..types };
        Models {
            reference: ReferenceModel::load_as(&checkpoint, types, isa).unwrap(),
            weights: Arc::new(Weights::load_as(&checkpoint, types).unwrap()),
        }
    };
    let all =
        MODELS.get_or_init(|| kinds().into_iter().map(|kind| (kind, OnceLock::new())).collect());
    let (_, models) = all.iter().find(|(other, _)| *other == kind).unwrap();
    models.get_or_init(|| load(kind))
}

fn model(kind: Kind, members: usize) -> CachedTransformer<Transformer> {
    let team = Arc::new(Team::unpinned(members).unwrap().with_isa(kind.1));
    CachedTransformer::new(Transformer::new(Arc::clone(&models(kind).weights), team))
}

/// Any kind. Half of the cases use f32 on the best instruction set.
fn any_kind() -> impl Strategy<Value = Kind> {
    let full_precision = (0..configs().len()).prop_map(|c| (Some(WeightType::F32), Isa::best(), c));
    prop_oneof![full_precision, prop::sample::select(kinds())]
}

/// One request to a model, relative to the tokens of the previous request.
#[derive(Clone, Debug)]
struct Step {
    /// How many of the previous tokens and accepted nodes to keep (modulo their number).
    keep: usize,
    /// The last node of the previous tree's accepted path (modulo the number of nodes).
    follow: usize,
    append: Vec<TokenId>,
    /// The parent and the token of each node. The parent is taken modulo the number of nodes so far plus
    /// one, where 0 is the prefix.
    nodes: Vec<(usize, TokenId)>,
    first_row: usize,
}

fn step() -> impl Strategy<Value = Step> {
    // Few different tokens, so that sequences often agree by chance and the cache has rows to keep.
    let token = || 0..4_u32;
    (
        0..40_usize,
        0..64_usize,
        prop::collection::vec(token(), 0..6),
        prop::collection::vec((0..64_usize, token()), 0..64),
        0..8_usize,
    )
        .prop_map(|(keep, follow, append, nodes, first_row)| Step {
            keep,
            follow,
            append,
            nodes,
            first_row,
        })
}

/// The reference model's logits after a prefix, as bits.
fn expected(kind: Kind, prefix: &[TokenId]) -> Vec<u32> {
    let rows = models(kind).reference.logits(prefix);
    rows.last().unwrap().iter().map(|logit| logit.to_bits()).collect()
}

fn check_rows(
    kind: Kind,
    model: &mut CachedTransformer<Transformer>,
    tokens: &[TokenId],
    tree: &TokenTree,
    first_row: usize,
) -> Result<(), TestCaseError> {
    let context =
        ForwardRequest { tree, first_row, ..ForwardRequest::next_token(SEQUENCE, tokens) };
    let logits = model.logits(&context).unwrap();
    prop_assert_eq!(logits.rows().count(), tree.len() + 1 - first_row);
    for (row, logits) in (first_row..).zip(logits.rows()) {
        let prefix = row_prefix(tokens, tree, row.checked_sub(1));
        let bits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
        prop_assert_eq!(bits, expected(kind, &prefix), "row {} after {:?}", row, prefix);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(24)))]

    #[test]
    fn every_row_has_the_bits_of_a_fresh_forward(
        kind in any_kind(), members in 1..3_usize, steps in prop::collection::vec(step(), 1..6),
    ) {
        let mut model = model(kind, members);
        let (mut tokens, mut tree) = (vec![1], TokenTree::new());
        for step in steps {
            if !tree.is_empty() {
                let path = tree.path(step.follow % tree.len());
                tokens.extend(path.into_iter().map(|node| tree.token(node)));
            }
            tokens.truncate(1 + step.keep % tokens.len());
            tokens.extend(step.append);
            tree = TokenTree::new();
            for (parent, token) in step.nodes {
                tree.push((parent % (tree.len() + 1)).checked_sub(1), token);
            }
            let first_row = step.first_row % (tree.len() + 1);
            check_rows(kind, &mut model, &tokens, &tree, first_row)?;
        }
    }

    #[test]
    fn any_split_of_a_sequence_into_forwards_gives_the_same_bits(
        kind in any_kind(),
        members in 1..3_usize,
        tokens in prop::collection::vec(0..250_u32, 1..40),
        cuts in prop::collection::vec(1..12_usize, 40),
    ) {
        let mut model = model(kind, members);
        let mut end = 0;
        for cut in cuts {
            end = (end + cut).min(tokens.len());
            check_rows(kind, &mut model, &tokens[..end], &TokenTree::new(), 0)?;
            if end == tokens.len() {
                break;
            }
        }
    }

    #[test]
    fn a_tree_that_grows_node_by_node_gives_the_bits_of_one_forward(
        kind in any_kind(),
        members in 1..3_usize,
        nodes in prop::collection::vec((0..64_usize, 0..4_u32), 1..40),
        level in 1..9_usize,
    ) {
        let mut model = model(kind, members);
        let tokens = [1, 2, 3];
        let (mut tree, mut first_row) = (TokenTree::new(), 0);
        check_rows(kind, &mut model, &tokens, &tree, first_row)?;
        for level in nodes.chunks(level) {
            first_row = tree.len() + 1;
            for &(parent, token) in level {
                tree.push((parent % (tree.len() + 1)).checked_sub(1), token);
            }
            check_rows(kind, &mut model, &tokens, &tree, first_row)?;
        }
    }
}

/// Every sixth family, and all of them with `FORERUN_CASES`.
#[test]
fn a_long_prompt_in_several_passes_gives_the_bits_of_one() {
    let step = if is_complete() { 1 } else { 6 };
    let tokens: Vec<TokenId> = (0..600).map(|index| index * 7 % 250).collect();
    let configs = (0..configs().len()).step_by(step);
    let kinds = configs.map(|config| (Some(WeightType::F32), Isa::best(), config));
    for (number, kind) in kinds.chain([(Some(WeightType::INT8), Isa::best(), 0)]).enumerate() {
        let mut model = model(kind, 1 + number % 2);
        check_rows(kind, &mut model, &tokens, &TokenTree::chain(&[3, 4]), 0).unwrap();
    }
}

/// Every tenth kind, and all of them with `FORERUN_CASES`, in addition to the random cases: a prompt longer than
/// every window, followed by a tree with paths longer than the shortest window.
#[test]
fn deep_trees_after_long_prompts_have_the_same_bits_for_every_kind() {
    let step = if is_complete() { 1 } else { 10 };
    let tokens: Vec<TokenId> = (0..30).map(|index| index * 11 % 250).collect();
    let mut tree = TokenTree::chain(&[7, 8, 9]);
    let fork = tree.push(Some(0), 5);
    let long = (30..36).fold(fork, |parent, token| tree.push(Some(parent), token));
    tree.push(None, 4);
    for (number, kind) in kinds().into_iter().step_by(step).enumerate() {
        let mut model = model(kind, 1 + number % 2);
        check_rows(kind, &mut model, &tokens, &tree, 0).unwrap();
        // Again, with the long path accepted and a chain after it.
        let path = tree.path(long).into_iter().map(|node| tree.token(node));
        let accepted: Vec<TokenId> = tokens.iter().copied().chain(path).collect();
        check_rows(kind, &mut model, &accepted, &TokenTree::chain(&[1, 2]), 0).unwrap();
    }
}

/// Cancels from another thread at many different times: before the pass, between layers, and after the
/// last layer.
#[test]
fn a_cancelled_forward_leaves_the_cache_unchanged() {
    // The last configurations are hybrids.
    for config in [0, configs().len() - 1] {
        assert_that_cancelling_leaves_the_cache((Some(WeightType::F32), Isa::best(), config));
    }
}

fn assert_that_cancelling_leaves_the_cache(kind: Kind) {
    let mut model = model(kind, 1);
    let tokens: Vec<TokenId> = (0..80).map(|index| index * 5 % 250).collect();
    let (tree, mut cancelled, mut finished) = (TokenTree::chain(&[5, 6]), 0, 0);
    check_rows(kind, &mut model, &tokens[..3], &tree, 0).unwrap();
    for moment in 0..300 {
        let switch = AtomicBool::new(moment == 0);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..moment * 20 {
                    std::hint::spin_loop();
                }
                switch.store(true, Ordering::Relaxed);
            });
            let context = ForwardRequest::next_token(SEQUENCE, &tokens);
            model.logits(&ForwardRequest { tree: &tree, cancel: &switch, ..context })
        });
        match outcome {
            Err(error) => {
                assert_eq!(error, ModelError::Cancelled);
                cancelled += 1;
            }
            Ok(_) => finished += 1,
        }
        if moment % 40 == 0 {
            check_rows(kind, &mut model, &tokens[..3 + moment / 40], &tree, 0).unwrap();
        } else {
            // Drops most rows, so that the next forward takes long enough to be cancelled.
            check_rows(kind, &mut model, &tokens[..2], &TokenTree::new(), 0).unwrap();
        }
    }
    println!("{cancelled} forwards were cancelled, {finished} finished");
    assert!(cancelled > 0);
    check_rows(kind, &mut model, &tokens, &tree, 0).unwrap();
}

#[test]
fn invalid_requests_are_errors() {
    let mut model = model((Some(WeightType::F32), Isa::best(), 0), 1);
    let mut error = |tokens: &[TokenId], tree: &TokenTree| {
        let context = ForwardRequest { tree, ..ForwardRequest::next_token(SEQUENCE, tokens) };
        model.logits(&context).err().unwrap().to_string()
    };
    assert!(error(&[], &TokenTree::new()).contains("at least one token"));
    assert!(error(&[1, 5_000], &TokenTree::new()).contains("token 5000"));
    assert!(error(&vec![1; 701], &TokenTree::new()).contains("context of 700"));
    assert!(error(&vec![1; 699], &TokenTree::chain(&[1, 1])).contains("position 700"));
}

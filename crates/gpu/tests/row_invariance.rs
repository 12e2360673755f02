//! Row invariance on GPUs: a row's logits depend, bit for bit, only on the weights and on the row's own token prefix.
//!
//! For any batch of rows, any tree and any state of the cache, every row must have the bits that the slow reference
//! computes for its prefix in a fresh forward pass.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{configs, gpu};
use crate::families::config_of;
use crate::models::Models;
use forerun_core::testing::cases;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_formats::checkpoint::random::RandomTensors;
use forerun_formats::{BlockType, CacheType, Config, Family, ModelTypes, WeightType};
use forerun_gpu::{GpuLoadError, GpuModel};
use forerun_lm::fake::row_prefix;
use forerun_lm::{ForwardRequest, LanguageModel, ModelError};
use forerun_model::CachedTransformer;
use proptest::prelude::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

const SEQUENCE: SequenceId = SequenceId(0);

/// The types of weights and of caches, by turns over the configurations.
const TYPES: [(WeightType, Option<CacheType>); 8] = [
    (WeightType::F32, None),
    (WeightType::Bf16, None),
    (WeightType::F16, Some(CacheType::Bf16)),
    (WeightType::F32, Some(CacheType::F16)),
    (WeightType::Bf16, Some(CacheType::F32)),
    (WeightType::INT8, None),
    (WeightType::Quantized(BlockType::Q4_K), None),
    (WeightType::Quantized(BlockType::Q6_K), None),
];

/// The configurations that GPUs compute. Empty without a GPU.
fn all_models() -> &'static [Models] {
    static MODELS: OnceLock<Vec<Models>> = OnceLock::new();
    let load = || {
        let Some(device) = gpu() else { return Vec::new() };
        let types = TYPES.into_iter().cycle();
        let loaded = configs().into_iter().zip(types).filter_map(|(config, (weights, cache))| {
            let architecture = config.architecture();
            let tensors = RandomTensors::new(&architecture, 5);
            let types = ModelTypes { cache, ..weights.into() };
            match Models::load(device, &architecture, &tensors, types) {
                Ok(models) => Some(models),
                Err(GpuLoadError::Unsupported { .. }) => None,
                Err(error) => panic!("{error}"),
            }
        });
        loaded.collect()
    };
    MODELS.get_or_init(load)
}

/// Any model. Half of the cases use the first.
fn any_model() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 0..configs().len()]
}

fn model(number: usize) -> Option<(&'static Models, CachedTransformer<GpuModel>)> {
    let models = all_models();
    let chosen = models.get(number % models.len().max(1))?;
    Some((chosen, CachedTransformer::new(chosen.gpu())))
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
    let append = prop::collection::vec(token(), 0..6);
    let nodes = prop::collection::vec((0..64_usize, token()), 0..64);
    (0..40_usize, 0..64_usize, append, nodes, 0..8_usize).prop_map(
        |(keep, follow, append, nodes, first_row)| Step { keep, follow, append, nodes, first_row },
    )
}

fn check_rows(
    models: &Models,
    model: &mut CachedTransformer<GpuModel>,
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
        let expected = models.reference.logits(&prefix);
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        let is_same = bits(logits) == bits(expected.last().unwrap());
        prop_assert!(is_same, "row {} after {:?}", row, prefix);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(24)))]

    #[test]
    fn every_row_has_the_bits_of_a_fresh_forward(
        number in any_model(), steps in prop::collection::vec(step(), 1..6),
    ) {
        let Some((models, mut model)) = model(number) else { return Ok(()) };
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
            check_rows(models, &mut model, &tokens, &tree, first_row)?;
        }
    }

    #[test]
    fn any_split_of_a_sequence_into_forwards_gives_the_same_bits(
        number in any_model(),
        tokens in prop::collection::vec(0..250_u32, 1..40),
        cuts in prop::collection::vec(1..12_usize, 40),
    ) {
        let Some((models, mut model)) = model(number) else { return Ok(()) };
        let mut end = 0;
        for cut in cuts {
            end = (end + cut).min(tokens.len());
            check_rows(models, &mut model, &tokens[..end], &TokenTree::new(), 0)?;
            if end == tokens.len() {
                break;
            }
        }
    }

    #[test]
    fn a_tree_that_grows_node_by_node_gives_the_bits_of_one_forward(
        number in any_model(),
        nodes in prop::collection::vec((0..64_usize, 0..4_u32), 1..40),
        level in 1..9_usize,
    ) {
        let Some((models, mut model)) = model(number) else { return Ok(()) };
        let tokens = [1, 2, 3];
        let (mut tree, mut first_row) = (TokenTree::new(), 0);
        check_rows(models, &mut model, &tokens, &tree, first_row)?;
        for level in nodes.chunks(level) {
            first_row = tree.len() + 1;
            for &(parent, token) in level {
                tree.push((parent % (tree.len() + 1)).checked_sub(1), token);
            }
            check_rows(models, &mut model, &tokens, &tree, first_row)?;
        }
    }
}

/// A prompt of several splits of attention, with a tree across the border of two.
#[test]
fn a_long_prompt_in_several_passes_gives_the_bits_of_one() {
    for number in 0..all_models().len().min(4) {
        let (models, mut model) = model(number).unwrap();
        let tokens: Vec<TokenId> = (0..510).map(|index| index * 7 % 250).collect();
        let mut tree = TokenTree::chain(&[3, 4, 5, 6]);
        tree.push(Some(1), 7);
        check_rows(models, &mut model, &tokens, &tree, 0).unwrap();
    }
}

/// A prompt longer than every window, followed by a tree with paths longer than the shortest window.
#[test]
fn deep_trees_after_long_prompts_have_the_same_bits_for_every_model() {
    let tokens: Vec<TokenId> = (0..30).map(|index| index * 11 % 250).collect();
    let mut tree = TokenTree::chain(&[7, 8, 9]);
    let fork = tree.push(Some(0), 5);
    let long = (30..36).fold(fork, |parent, token| tree.push(Some(parent), token));
    tree.push(None, 4);
    for number in 0..all_models().len() {
        let (models, mut model) = model(number).unwrap();
        check_rows(models, &mut model, &tokens, &tree, 0).unwrap();
        // Again, with the long path accepted and a chain after it.
        let path = tree.path(long).into_iter().map(|node| tree.token(node));
        let accepted: Vec<TokenId> = tokens.iter().copied().chain(path).collect();
        check_rows(models, &mut model, &accepted, &TokenTree::chain(&[1, 2]), 0).unwrap();
    }
}

/// Cancels from another thread at many different times: before the pass, between layers, and after the last layer.
/// Each pass also accepts the second branch of a tree, whose rows are copied.
#[test]
fn a_cancelled_forward_leaves_the_cache_unchanged() {
    let Some((models, model)) = model(0) else { return };
    cancel_at_many_times(models, model, 60);
}

/// The same with states of recurrent layers, of which the cache has few, and with compressed keys and values.
#[test]
fn a_cancelled_forward_leaves_states_and_compressed_rows_unchanged() {
    for family in [Family::Qwen3Next, Family::Lfm2, Family::DeepseekV2] {
        let Some(models) = load(&config_of(family)) else { return };
        let mut model = CachedTransformer::new(models.gpu());
        if models.weights.architecture().state_bytes() > 0 {
            model = model.with_state_budget(12);
        }
        cancel_at_many_times(&models, model, 12);
    }
}

/// Loads a model in f32.
fn load(config: &Config) -> Option<Models> {
    let architecture = config.architecture();
    let tensors = RandomTensors::new(&architecture, 5);
    Some(Models::load(gpu()?, &architecture, &tensors, WeightType::F32).unwrap())
}

fn cancel_at_many_times(models: &Models, mut model: CachedTransformer<GpuModel>, moments: usize) {
    let tokens: Vec<TokenId> = (0..80).map(|index| index * 5 % 250).collect();
    let (mut cancelled, mut finished) = (0, 0);
    let mut tree = TokenTree::chain(&[9]);
    let branch = tree.push(None, 5);
    tree.push(Some(branch), 6);
    for moment in 0..moments {
        // Drops most rows, so that the next forward takes long enough to be cancelled.
        check_rows(models, &mut model, &tokens[..3], &tree, 0).unwrap();
        let accepted = [&tokens[..3], &[5, 6]].concat();
        let longer = [&accepted[..], &tokens[5..]].concat();
        let switch = AtomicBool::new(moment == 0);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..moment * 6000 / moments {
                    std::hint::spin_loop();
                }
                switch.store(true, Ordering::Relaxed);
            });
            let context = ForwardRequest::next_token(SEQUENCE, &longer);
            model.logits(&ForwardRequest { cancel: &switch, ..context })
        });
        match outcome {
            Err(error) => {
                assert_eq!(error, ModelError::Cancelled);
                cancelled += 1;
            }
            Ok(_) => finished += 1,
        }
        let first_row = 1 - moment % 2;
        check_rows(models, &mut model, &accepted, &TokenTree::chain(&[1]), first_row).unwrap();
    }
    println!("{cancelled} forwards were cancelled, {finished} finished");
    assert!(cancelled > 0);
}

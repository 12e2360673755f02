//! Invariant 2: a row's logits depend, bit for bit, only on the weights and on the row's own token
//! prefix. Whatever is forwarded together, in whatever tree, after whatever seek, on however many
//! threads: every row must have the bits of the slow reference's fresh forward of that prefix.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_model::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_model::{
    CachedTransformer, Checkpoint, Config, LanguageModel, ModelError, ReferenceModel, Team,
    Transformer, Weights,
};
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

const SEQUENCE: SequenceId = SequenceId(0);

struct Models {
    reference: ReferenceModel,
    weights: Arc<Weights>,
}

/// Random weights of odd sizes, so that no tile is ever full.
fn models() -> &'static Models {
    static MODELS: OnceLock<Models> = OnceLock::new();
    MODELS.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { max_position_embeddings: 700, ..example_config() };
        write_random_checkpoint(dir.path(), &config, 5, RandomDtype::F32).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let weights = Arc::new(Weights::load(&checkpoint).unwrap());
        Models { reference: ReferenceModel::load(&checkpoint).unwrap(), weights }
    })
}

fn model(members: usize) -> CachedTransformer {
    let team = Arc::new(Team::unpinned(members).unwrap());
    CachedTransformer::new(Transformer::new(Arc::clone(&models().weights), team))
}

/// One request to a model, relative to the tokens of the request before.
#[derive(Clone, Debug)]
struct Step {
    /// Tokens kept of those before (modulo their number), taken along one path of the tree.
    keep: usize,
    follow: usize,
    append: Vec<TokenId>,
    /// Each node's parent (modulo the nodes so far, plus one for the prefix) and token.
    nodes: Vec<(usize, TokenId)>,
    first_row: usize,
}

fn step() -> impl Strategy<Value = Step> {
    // Few tokens, so that sequences often agree by chance and seeks have something to find.
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

/// The reference's logits behind a prefix, as bits.
fn expected(prefix: &[TokenId]) -> Vec<u32> {
    let rows = models().reference.logits(prefix);
    rows.last().unwrap().iter().map(|logit| logit.to_bits()).collect()
}

fn check_rows(
    model: &mut CachedTransformer,
    tokens: &[TokenId],
    tree: &TokenTree,
    first_row: usize,
) -> Result<(), TestCaseError> {
    let cancel = AtomicBool::new(false);
    let logits = model.logits(SEQUENCE, tokens, tree, first_row, &cancel).unwrap();
    prop_assert_eq!(logits.rows().count(), tree.len() + 1 - first_row);
    for (row, logits) in (first_row..).zip(logits.rows()) {
        let mut prefix = tokens.to_vec();
        if let Some(node) = row.checked_sub(1) {
            prefix.extend(tree.path(node).into_iter().map(|node| tree.token(node)));
        }
        let bits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
        prop_assert_eq!(bits, expected(&prefix), "row {} behind {:?}", row, prefix);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("FORERUN_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(24)
    ))]

    #[test]
    fn every_row_has_the_bits_of_a_fresh_forward(
        members in 1..3_usize, steps in prop::collection::vec(step(), 1..6),
    ) {
        let mut model = model(members);
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
            check_rows(&mut model, &tokens, &tree, first_row)?;
        }
    }

    #[test]
    fn any_split_of_a_sequence_into_forwards_gives_the_same_bits(
        members in 1..3_usize,
        tokens in prop::collection::vec(0..250_u32, 1..40),
        cuts in prop::collection::vec(1..12_usize, 40),
    ) {
        let mut model = model(members);
        let mut end = 0;
        for cut in cuts {
            end = (end + cut).min(tokens.len());
            check_rows(&mut model, &tokens[..end], &TokenTree::new(), 0)?;
            if end == tokens.len() {
                break;
            }
        }
    }

    #[test]
    fn a_tree_that_grows_node_by_node_gives_the_bits_of_one_forward(
        members in 1..3_usize,
        nodes in prop::collection::vec((0..64_usize, 0..4_u32), 1..40),
        level in 1..9_usize,
    ) {
        let mut model = model(members);
        let tokens = [1, 2, 3];
        let (mut tree, mut first_row) = (TokenTree::new(), 0);
        check_rows(&mut model, &tokens, &tree, first_row)?;
        for level in nodes.chunks(level) {
            first_row = tree.len() + 1;
            for &(parent, token) in level {
                tree.push((parent % (tree.len() + 1)).checked_sub(1), token);
            }
            check_rows(&mut model, &tokens, &tree, first_row)?;
        }
    }
}

#[test]
fn a_long_prompt_in_several_passes_gives_the_bits_of_one() {
    let tokens: Vec<TokenId> = (0..600).map(|index| index * 7 % 250).collect();
    for members in [1, 2] {
        check_rows(&mut model(members), &tokens, &TokenTree::chain(&[3, 4]), 0).unwrap();
    }
}

#[test]
fn a_cancelled_forward_leaves_the_cache_as_it_was() {
    let mut model = model(1);
    let tree = TokenTree::chain(&[5, 6]);
    check_rows(&mut model, &[1, 2, 3], &tree, 0).unwrap();
    let cancelled = AtomicBool::new(true);
    let outcome = model.logits(SEQUENCE, &[1, 2, 3, 5, 9, 9], &tree, 0, &cancelled);
    assert_eq!(outcome.err(), Some(ModelError::Cancelled));
    check_rows(&mut model, &[1, 2, 3, 5], &tree, 0).unwrap();
    check_rows(&mut model, &[1, 2, 3, 5, 9, 9, 8], &tree, 0).unwrap();
}

#[test]
fn what_a_model_cannot_do_is_an_error() {
    let mut model = model(1);
    let cancel = AtomicBool::new(false);
    let mut error = |tokens: &[TokenId], tree: &TokenTree| {
        model.logits(SEQUENCE, tokens, tree, 0, &cancel).err().unwrap().to_string()
    };
    assert!(error(&[], &TokenTree::new()).contains("at least one token"));
    assert!(error(&[1, 5_000], &TokenTree::new()).contains("token 5000"));
    assert!(error(&vec![1; 701], &TokenTree::new()).contains("context of 700"));
    assert!(error(&vec![1; 699], &TokenTree::chain(&[1, 1])).contains("position 700"));
}

//! Hybrid models: what the states of recurrent layers cost.
//!
//! That their bits depend on a row's prefix alone is tested with all other families, in
//! `row_invariance.rs`, `batches.rs`, `layer_groups.rs` and `reference_device.rs`.

use forerun_cache::{ANCHOR_ROWS, RECENT_STATES};
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_cpu::{Team, Transformer, Weights};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, example_families, write_random_checkpoint,
};
use forerun_formats::{Checkpoint, Config};
use forerun_lm::{ForwardRequest, LanguageModel, ModelError};
use forerun_model::CachedTransformer;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

fn hybrids() -> Vec<Config> {
    let all = example_families().into_iter().filter(|config| config.recurrent.is_some());
    all.map(|config| Config { max_position_embeddings: 3000, ..config }).collect()
}

fn model(config: &Config) -> CachedTransformer<Transformer> {
    let dir = tempfile::tempdir().unwrap();
    write_random_checkpoint(dir.path(), config, 5, RandomDtype::F32).unwrap();
    let weights = Arc::new(Weights::load(&Checkpoint::open(dir.path()).unwrap()).unwrap());
    let team = Arc::new(Team::unpinned(2).unwrap());
    CachedTransformer::new(Transformer::new(weights, team))
}

fn request<'a>(id: u64, tokens: &'a [TokenId], tree: &'a TokenTree) -> ForwardRequest<'a> {
    ForwardRequest::new(SequenceId(id), tokens, tree)
}

/// Verification passes after 2048 tokens, with all kinds of verdicts: each computes its own rows
/// only, as in a model with attention alone, and the kept states stay few.
#[test]
fn a_rejection_costs_no_row() {
    let plain = Config { max_position_embeddings: 3000, ..example_config() };
    for config in hybrids() {
        let mut models = [model(&plain), model(&config)];
        let mut text: Vec<TokenId> = (0..2048).map(|index| index * 7 % 250).collect();
        // The times of rounds after which all drafts were rejected, and after which some were
        // accepted.
        let mut times = [Vec::new(), Vec::new()];
        let mut accepted_any = true;
        for round in 0..60 {
            let mut tree = TokenTree::chain(&[1, 2, 3, 4 + round % 3]);
            let fork = tree.push(Some(1), 9);
            tree.push(Some(fork), round);
            tree.push(None, 7);
            let request = request(0, &text, &tree);
            let new = tree.len() + if round == 0 { text.len() } else { 1 };
            let expected = models[0].logits(&request).unwrap().computed_tokens;
            let started = Instant::now();
            let found = models[1].logits(&request).unwrap().computed_tokens;
            if round > 0 {
                times[usize::from(accepted_any)].push(started.elapsed());
            }
            assert_eq!([found, expected], [new; 2], "{} in round {round}", config.family);
            // Accepts none, some or all nodes of a path, and adds another token.
            let path = tree.path([0, 1, 3, 5, 6][round as usize % 5]);
            let accepted = path.into_iter().take(round as usize % 6);
            accepted_any = accepted.len() > 0;
            text.extend(accepted.map(|node| tree.token(node)));
            text.push(100 + round);
        }
        let [_, model] = models;
        let bytes = model.architecture().state_bytes();
        let (states, anchors) = (model.pool().allocated_states(), text.len() / ANCHOR_ROWS);
        let name = config.family;
        println!("{name}: {states} states of {bytes} bytes after {} tokens", text.len());
        let [rejected, accepted] = times.map(|mut times| {
            times.sort();
            times[times.len() / 2]
        });
        println!(
            "{name}: {rejected:?} a round after a rejection, {accepted:?} after others (median)"
        );
        assert!(states <= RECENT_STATES + 2 * 9 + anchors, "{name}: {states} states");
    }
}

/// A conversation whose last message is edited continues where the old one agrees, at a row whose
/// state was kept.
#[test]
fn edited_histories_have_the_bits_of_fresh_ones() {
    let none = TokenTree::new();
    for config in hybrids() {
        let mut model = model(&config);
        let text: Vec<TokenId> = (0..700).map(|index| index * 11 % 250).collect();
        model.logits(&request(0, &text, &none)).unwrap();
        for (id, at) in [(0, 650), (0, 300), (1, 600), (0, 20)] {
            let mut edited = text.clone();
            edited[at] = 3;
            edited.truncate(at + 30);
            let found = model.logits(&request(id, &edited, &none)).unwrap();
            let fresh = self::model(&config).logits(&request(0, &edited, &none)).unwrap();
            assert_eq!(found.logits, fresh.logits, "{} edited at {at}", config.family);
            let kept = edited.len() - found.computed_tokens;
            assert!(kept >= at / ANCHOR_ROWS * ANCHOR_ROWS, "{kept} rows kept before {at}");
        }
    }
}

/// A cancelled pass leaves the old states: the same request afterwards computes no earlier row.
#[test]
fn a_cancelled_pass_leaves_the_states() {
    let none = TokenTree::new();
    for config in hybrids() {
        let mut model = model(&config);
        let text: Vec<TokenId> = (0..50).map(|index| index * 5 % 250).collect();
        model.logits(&request(0, &text, &none)).unwrap();
        let longer = [&text[..], &[1, 2, 3]].concat();
        let cancel = AtomicBool::new(true);
        let cancelled =
            model.logits(&ForwardRequest { cancel: &cancel, ..request(0, &longer, &none) });
        assert_eq!(cancelled.err(), Some(ModelError::Cancelled));
        let found = model.logits(&request(0, &longer, &none)).unwrap();
        assert_eq!(found.computed_tokens, 3, "{}", config.family);
        let fresh = self::model(&config).logits(&request(0, &longer, &none)).unwrap();
        assert_eq!(found.logits, fresh.logits, "{}", config.family);
    }
}

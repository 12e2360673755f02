//! Compares tiny random PARD-2 drafters with a numpy port of their forward pass
//! (`scripts/goldens`): the tokens that a drafter drafts in one pass, with every option. A misread
//! option would keep the text, so only such a comparison shows it. Also checks that a draft's bits
//! do not depend on how its tokens were read, and that what is not understood is refused by name.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::draft_goldens::{
    self, Golden, Opened, SEQUENCE, assert_drafts_on_cpu, assert_drafts_on_reference, best,
    goldens, open_with, weights,
};
use forerun::TokenId;
use forerun::checkpoint::Checkpoint;
use forerun::cpu::Team;
use forerun_core::{Features, SequenceId, TokenTree};
use forerun_cpu::Transformer;
use forerun_formats::{Speculator, SpeculatorKind};
use forerun_lm::{BatchEntry, ForwardRequest, LanguageModel, Progress};
use forerun_model::{BlockModel, CachedTransformer};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

const DRAFTERS: [&str; 7] = [
    "bias",
    "default-scale",
    "earlier-names",
    "earlier-states",
    "embedding",
    "four-states",
    "last-state",
];

const MASK: TokenId = 63;
const POSITIONS: usize = 5;

fn folder() -> PathBuf {
    draft_goldens::folder("pard2")
}

fn open(drafter: &str) -> Opened {
    let target = Checkpoint::open(&folder().join("target")).unwrap();
    let speculator = Speculator::open(&folder().join(drafter), &target).unwrap().unwrap();
    assert_eq!(speculator.kind(), SpeculatorKind::Pard2 { mask: MASK });
    let source = speculator.features().unwrap();
    (target, speculator, source)
}

fn masks() -> TokenTree {
    TokenTree::chain(&[MASK; POSITIONS - 1])
}

fn logits(
    model: &mut impl LanguageModel,
    sequence: SequenceId,
    tokens: &[TokenId],
    features: &Features,
) -> Vec<f32> {
    let masks = masks();
    let request = ForwardRequest::new(sequence, tokens, &masks);
    model.logits(&ForwardRequest { features: Some(features), ..request }).unwrap().logits
}

/// Drafts greedily, in one pass.
fn draft(model: &mut impl LanguageModel, golden: &Golden, features: &Features) -> Vec<TokenId> {
    let logits = logits(model, SEQUENCE, &golden.tokens(), features);
    model.release(SEQUENCE);
    logits.chunks_exact(model.vocab_size()).map(best).collect()
}

#[test]
fn every_golden_folder_is_tested() {
    draft_goldens::assert_all_tested(&folder(), &DRAFTERS);
}

#[test]
fn the_features_are_those_of_the_configuration() {
    draft_goldens::assert_features(&folder(), &DRAFTERS, open);
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    assert_drafts_on_reference(&folder(), &DRAFTERS, open, BlockModel::new, draft);
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    assert_drafts_on_cpu(&folder(), &DRAFTERS, open, BlockModel::new, draft);
}

#[test]
fn a_drafts_bits_do_not_depend_on_how_its_tokens_were_read() {
    for drafter in DRAFTERS {
        let opened = open(drafter);
        let [target, weights] = weights(&opened);
        let team = |cores| Arc::new(Team::unpinned(cores).unwrap());
        let target = Transformer::new(target, team(1)).with_features(opened.2);
        let mut target = CachedTransformer::new(target);
        let goldens = goldens(&folder().join(drafter)).prompts;
        let golden = goldens.last().unwrap();
        let features = draft_goldens::features(&mut target, golden, drafter);
        let tokens = golden.tokens();
        let new = |cores| BlockModel::new(Transformer::new(Arc::clone(&weights), team(cores)));
        let expected = logits(&mut new(1), SEQUENCE, &tokens, &features);
        let mut model = new(3);
        // One to four tokens come in a round, and rejected tokens are forgotten.
        let mut end = 1;
        for step in (1..=4).cycle() {
            logits(&mut model, SEQUENCE, &tokens[..end], &features);
            if end == tokens.len() {
                break;
            }
            // As a token, the mask reads other features than the mask that was in its place.
            let wrong = [&tokens[..end], &[MASK, 5]].concat();
            if wrong.len() <= tokens.len() {
                let found = logits(&mut model, SEQUENCE, &wrong, &features);
                let fresh = logits(&mut new(1), SEQUENCE, &wrong, &features);
                assert_eq!(found, fresh, "{drafter}");
            }
            end = (end + step).min(tokens.len());
        }
        assert_eq!(logits(&mut model, SEQUENCE, &tokens, &features), expected, "{drafter}");
        // Drafts of several sequences share a pass.
        let masks = masks();
        let lengths = [tokens.len(), 1, 9];
        let mut progress: [Progress; 3] = Default::default();
        while progress.iter().any(|progress| progress.result.is_none()) {
            let entries = lengths.iter().zip(1..).zip(&mut progress);
            let mut batch: Vec<BatchEntry<'_>> = entries
                .filter(|(_, progress)| progress.result.is_none())
                .map(|((&length, sequence), progress)| {
                    let tokens = &tokens[..length];
                    let request = ForwardRequest::new(SequenceId(sequence), tokens, &masks);
                    let request = ForwardRequest { features: Some(&features), ..request };
                    BatchEntry { request, progress }
                })
                .collect();
            model.forward(&mut batch);
        }
        for (progress, length) in progress.into_iter().zip(lengths) {
            let expected = logits(&mut new(1), SEQUENCE, &tokens[..length], &features);
            assert_eq!(progress.result.unwrap().unwrap().logits, expected, "{drafter}, {length}");
        }
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (drafter, option, value) in [
        ("four-states", "spd_type", json!("pard3")),
        ("four-states", "pard2", json!("yes")),
        ("four-states", "pard3_gate", json!(true)),
        ("four-states", "pard2_pad_scale", json!(0.5)),
        ("four-states", "pard_token", json!(67)),
        ("four-states", "pard2_target_layers", json!(null)),
        ("four-states", "pard2_target_layers", json!([])),
        ("four-states", "pard2_target_layers", json!([-1, -3, -5])),
        ("four-states", "pard2_target_layers", json!([-1, -3, -5, -10])),
        ("four-states", "pard2_target_layers", json!([-1, -3, -5, 9])),
        ("four-states", "pard2_target_layers", json!([-3, -1, -5, -7])),
        ("four-states", "pard2_target_layers", json!([-1, -3, -5, 8])),
        ("four-states", "pard2_target_layers", json!([-1, 0.5, -5, -7])),
        ("four-states", "pard2_target_dim", json!(63)),
        ("four-states", "pard2_scale", json!("large")),
        ("four-states", "pard2_proj_bias", json!(true)),
        ("bias", "pard2_proj_bias", json!(false)),
        // Without the option there is no bias.
        ("bias", "pard2_proj_bias", json!(null)),
        ("earlier-names", "pard_target_dim", json!(16)),
        ("earlier-names", "proj_bias", json!(false)),
    ] {
        let error = open_with(&folder(), drafter, &[option], value.clone());
        let error = error.err().unwrap().to_string();
        let name = if option == "pard2_target_layers" && value == json!([-1, -3, -5]) {
            // The projection shows that a state is missing.
            "pard2_target_dim"
        } else {
            option
        };
        assert!(error.contains(name), "{error} names {name}");
    }
    // The first name that is present counts.
    for (option, value) in [("feat_scale", json!(1.0)), ("pard2_ml", json!(true))] {
        open_with(&folder(), "earlier-names", &[option], value).unwrap();
    }
    // A model whose embeddings are scaled. Its authors' code adds the projection before that.
    let changed = [
        ("architectures", json!(["GraniteForCausalLM"])),
        ("model_type", json!("granite")),
        ("embedding_multiplier", json!(2.0)),
    ];
    let error = open_changed("last-state", &changed).err().unwrap().to_string();
    assert!(error.contains("model_type"), "{error}");
}

/// Opens a copy of a drafter with other options.
fn open_changed(
    drafter: &str,
    changes: &[(&str, serde_json::Value)],
) -> Result<Speculator, forerun::checkpoint::LoadError> {
    let copy = tempfile::tempdir().unwrap();
    let source = folder().join(drafter);
    for name in ["model.safetensors", "warp_model.safetensors"] {
        fs::copy(source.join(name), copy.path().join(name)).unwrap();
    }
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (name, value) in changes {
        config[*name] = value.clone();
    }
    fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    let target = Checkpoint::open(&folder().join("target")).unwrap();
    Speculator::open(copy.path(), &target).map(Option::unwrap)
}

#[test]
fn a_pickled_projection_is_refused_and_the_error_says_how_to_convert_it() {
    let copy = tempfile::tempdir().unwrap();
    let source = folder().join("last-state");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(source.join(name), copy.path().join(name)).unwrap();
    }
    let target = Checkpoint::open(&folder().join("target")).unwrap();
    let error = || Speculator::open(copy.path(), &target).err().unwrap().to_string();
    assert!(error().contains("warp_model.safetensors"), "{}", error());
    fs::write(copy.path().join("warp_model.bin"), b"PK\x03\x04...").unwrap();
    for word in ["warp_model.bin", "weights_only=True", "warp_model.safetensors"] {
        assert!(error().contains(word), "{} names {word}", error());
    }
    // Without the option it is a model of PARD, which drafts from tokens alone. PARD's type changes
    // nothing.
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    for options in ["\"pard2\": false", "\"spd_type\": \"pard\""] {
        let text = text.replace("\"pard2\": true", options);
        fs::write(copy.path().join("config.json"), text).unwrap();
        let kind = SpeculatorKind::of(copy.path()).unwrap();
        assert_eq!(kind, Some(SpeculatorKind::Pard { mask: MASK }));
        assert!(Speculator::open(copy.path(), &target).unwrap().is_none());
    }
}

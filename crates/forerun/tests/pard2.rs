//! Compares tiny random PARD-2 drafters with a numpy port of their forward pass
//! (`scripts/goldens`): the tokens that a drafter drafts in one pass, with every option. A misread
//! option would keep the text, so only such a comparison shows it. Also checks that a draft's bits
//! do not depend on how its tokens were read, and that what is not understood is refused by name.

use crate::draft_goldens::blocks::logits_from;
use crate::draft_goldens::{self, Golden, GoldenDrafters, SEQUENCE, best};
use forerun::TokenId;
use forerun::checkpoint::Checkpoint;
use forerun_core::{Features, TokenTree};
use forerun_formats::{Speculator, SpeculatorKind};
use forerun_lm::LanguageModel;
use forerun_model::BlockModel;
use serde_json::json;
use std::fs;

const PARD2: GoldenDrafters = GoldenDrafters {
    folder: "pard2",
    names: &[
        "bias",
        "default-scale",
        "earlier-names",
        "earlier-states",
        "embedding",
        "four-states",
        "last-state",
    ],
    open: draft_goldens::open,
};

const MASK: TokenId = 63;
const POSITIONS: usize = 5;

fn masks() -> TokenTree {
    TokenTree::chain(&[MASK; POSITIONS - 1])
}

/// Drafts greedily, in one pass.
fn draft(model: &mut impl LanguageModel, golden: &Golden, features: &Features) -> Vec<TokenId> {
    let logits = logits_from(0, model, &masks(), (&golden.tokens(), features));
    model.release(SEQUENCE);
    logits.chunks_exact(model.vocab_size()).map(best).collect()
}

#[test]
fn every_golden_folder_is_tested() {
    PARD2.assert_all_are_named();
}

#[test]
fn the_features_are_those_of_the_configuration() {
    PARD2.assert_features();
    for drafter in PARD2.names {
        let kind = PARD2.open(drafter).1.kind();
        assert_eq!(kind, SpeculatorKind::Pard2 { mask: MASK }, "{drafter}");
    }
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    PARD2.assert_drafts_on_reference(BlockModel::new, draft);
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    PARD2.assert_drafts_on_cpu(BlockModel::new, draft);
}

#[test]
fn a_drafts_bits_do_not_depend_on_how_its_tokens_were_read() {
    PARD2.assert_bits_do_not_depend_on_passes(|_| masks(), 0);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    PARD2.assert_refused(&[
        ("four-states", &["spd_type"], json!("pard3")),
        ("four-states", &["pard2"], json!("yes")),
        ("four-states", &["pard3_gate"], json!(true)),
        ("four-states", &["pard2_pad_scale"], json!(0.5)),
        ("four-states", &["pard_token"], json!(67)),
        ("four-states", &["pard2_target_layers"], json!(null)),
        ("four-states", &["pard2_target_layers"], json!([])),
        ("four-states", &["pard2_target_layers"], json!([-1, -3, -5, -10])),
        ("four-states", &["pard2_target_layers"], json!([-1, -3, -5, 9])),
        ("four-states", &["pard2_target_layers"], json!([-3, -1, -5, -7])),
        ("four-states", &["pard2_target_layers"], json!([-1, -3, -5, 8])),
        ("four-states", &["pard2_target_layers"], json!([-1, 0.5, -5, -7])),
        ("four-states", &["pard2_target_dim"], json!(63)),
        ("four-states", &["pard2_scale"], json!("large")),
        ("four-states", &["pard2_proj_bias"], json!(true)),
        ("bias", &["pard2_proj_bias"], json!(false)),
        // Without the option there is no bias.
        ("bias", &["pard2_proj_bias"], json!(null)),
        ("earlier-names", &["pard_target_dim"], json!(16)),
        ("earlier-names", &["proj_bias"], json!(false)),
    ]);
    // The projection shows that a state is missing.
    let error = PARD2.open_with("four-states", &["pard2_target_layers"], json!([-1, -3, -5]));
    let error = error.err().unwrap().to_string();
    assert!(error.contains("pard2_target_dim"), "{error}");
    // The first name that is present counts.
    for (option, value) in [("feat_scale", json!(1.0)), ("pard2_ml", json!(true))] {
        PARD2.open_with("earlier-names", &[option], value).unwrap();
    }
    // A model whose embeddings are scaled. Its authors' code adds the projection before that.
    let error = PARD2.open_changed("last-state", |config| {
        config["architectures"] = json!(["GraniteForCausalLM"]);
        config["model_type"] = json!("granite");
        config["embedding_multiplier"] = json!(2.0);
    });
    let error = error.err().unwrap().to_string();
    assert!(error.contains("model_type"), "{error}");
}

#[test]
fn a_pickled_projection_is_refused_and_the_error_says_how_to_convert_it() {
    let copy = tempfile::tempdir().unwrap();
    let source = PARD2.path("last-state");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(source.join(name), copy.path().join(name)).unwrap();
    }
    let target = Checkpoint::open(&PARD2.path("target")).unwrap();
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

//! Compares tiny random P-EAGLE drafters with a numpy port of their forward pass
//! (`scripts/goldens`): the tokens that a drafter drafts in one pass, for both storage layouts. A
//! misread option would keep the text, so only such a comparison shows it.

use crate::draft_goldens::{self, Golden, GoldenDrafters, SEQUENCE, best};
use forerun::TokenId;
use forerun_core::{Features, TokenTree};
use forerun_formats::SpeculatorKind;
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::EagleModel;
use serde_json::json;

const PEAGLE: GoldenDrafters = GoldenDrafters {
    folder: "peagle",
    names: &["authors", "speculators", "speculators-four-layers", "speculators-qwen3"],
    open: draft_goldens::open,
};

/// Drafts greedily, in one pass.
fn draft(model: &mut impl LanguageModel, golden: &Golden, features: &Features) -> Vec<TokenId> {
    let (tokens, mask) = (golden.tokens(), model.vocab_size() as TokenId);
    let masks = TokenTree::chain(&vec![mask; golden.draft_ids.len() - 1]);
    let request = ForwardRequest::new(SEQUENCE, &tokens, &masks);
    let output = model.logits(&ForwardRequest { features: Some(features), ..request }).unwrap();
    model.release(SEQUENCE);
    output.rows().map(best).collect()
}

#[test]
fn every_golden_folder_is_tested() {
    PEAGLE.assert_all_are_named();
}

#[test]
fn the_features_come_from_the_configured_layers() {
    PEAGLE.assert_features();
    for drafter in PEAGLE.names {
        assert_eq!(PEAGLE.open(drafter).1.kind(), SpeculatorKind::PEagle, "{drafter}");
    }
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    PEAGLE.assert_drafts_on_reference(EagleModel::new, draft);
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    PEAGLE.assert_drafts_on_cpu(EagleModel::new, draft);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    PEAGLE.assert_refused(&[
        ("speculators", &["mask_token_id"], json!(null)),
        ("speculators", &["mask_token_id"], json!(67)),
        ("speculators", &["ptd_token_id"], json!(5)),
        ("speculators", &["speculators_model_type"], json!("eagle3")),
        ("speculators", &["dflash_config"], json!({"mask_token_id": 63})),
        ("authors", &["num_hidden_layers"], json!(2)),
    ]);
    PEAGLE.open_with("speculators", &["para_depths"], json!(8)).unwrap();
    PEAGLE.open_with("speculators", &["ptd_token_id"], json!(63)).unwrap();
}

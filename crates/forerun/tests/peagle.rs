//! Compares tiny random P-EAGLE drafters with a numpy port of their forward pass
//! (`scripts/goldens`): the tokens that a drafter drafts in one pass, for both storage layouts. A
//! misread option would keep the text, so only such a comparison shows it.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::draft_goldens::{
    self, Golden, Opened, SEQUENCE, assert_drafts_on_cpu, assert_drafts_on_reference, best,
};
use forerun::TokenId;
use forerun::checkpoint::{Checkpoint, LoadError};
use forerun_core::{Features, TokenTree};
use forerun_formats::{Speculator, SpeculatorKind};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::EagleModel;
use serde_json::json;
use std::path::PathBuf;

const DRAFTERS: [&str; 4] =
    ["authors", "speculators", "speculators-four-layers", "speculators-qwen3"];

fn folder() -> PathBuf {
    draft_goldens::folder("peagle")
}

fn open(drafter: &str) -> Opened {
    let target = Checkpoint::open(&folder().join("target")).unwrap();
    let speculator = Speculator::open(&folder().join(drafter), &target).unwrap().unwrap();
    assert_eq!(speculator.kind(), SpeculatorKind::PEagle);
    let source = speculator.features().unwrap();
    (target, speculator, source)
}

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
    draft_goldens::assert_all_tested(&folder(), &DRAFTERS);
}

#[test]
fn the_features_come_from_the_configured_layers() {
    draft_goldens::assert_features(&folder(), &DRAFTERS, open);
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    assert_drafts_on_reference(&folder(), &DRAFTERS, open, EagleModel::new, draft);
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    assert_drafts_on_cpu(&folder(), &DRAFTERS, open, EagleModel::new, draft);
}

/// Opens a drafter whose configuration has another value, or lacks it.
fn open_with(drafter: &str, option: &str, value: serde_json::Value) -> Result<(), LoadError> {
    draft_goldens::open_with(&folder(), drafter, &[option], value)?.architecture().map(|_| ())
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (drafter, option, value) in [
        ("speculators", "mask_token_id", json!(null)),
        ("speculators", "mask_token_id", json!(67)),
        ("speculators", "ptd_token_id", json!(5)),
        ("speculators", "speculators_model_type", json!("eagle3")),
        ("speculators", "dflash_config", json!({"mask_token_id": 63})),
        ("authors", "num_hidden_layers", json!(2)),
    ] {
        let error = open_with(drafter, option, value).unwrap_err().to_string();
        assert!(error.contains(option), "{error} names {option}");
    }
    open_with("speculators", "para_depths", json!(8)).unwrap();
    open_with("speculators", "ptd_token_id", json!(63)).unwrap();
}

//! Compares tiny random EAGLE-3 drafters with a numpy port of their forward pass
//! (`scripts/goldens`): the target's features, and the tokens that a drafter drafts, for both
//! storage layouts and every option. A misread option would keep the text, so only such a
//! comparison shows it.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::draft_goldens::{
    self, Opened, assert_drafts_on_cpu, assert_drafts_on_reference, draft_one_by_one,
};
use forerun::checkpoint::Checkpoint;
use forerun_formats::Speculator;
use forerun_model::EagleModel;
use std::path::PathBuf;

const DRAFTERS: [&str; 13] = [
    "authors",
    "authors-3.1",
    "authors-eagle-config",
    "speculators",
    "speculators-3.1",
    "speculators-layer-ids",
    "speculators-narrow",
    "speculators-norm-before-fc",
    "speculators-norm-output",
    "speculators-qwen3",
    "speculators-target-head",
    "speculators-two-layers",
    "speculators-whole-vocabulary",
];

fn folder() -> PathBuf {
    draft_goldens::folder("eagle3")
}

fn open(drafter: &str) -> Opened {
    let target = Checkpoint::open(&folder().join("target")).unwrap();
    let speculator = Speculator::open(&folder().join(drafter), &target).unwrap().unwrap();
    let source = speculator.features().unwrap();
    (target, speculator, source)
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
    assert_drafts_on_reference(&folder(), &DRAFTERS, open, EagleModel::new, draft_one_by_one);
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    assert_drafts_on_cpu(&folder(), &DRAFTERS, open, EagleModel::new, draft_one_by_one);
}

//! Compares tiny random EAGLE-3 drafters with a numpy port of their forward pass
//! (`scripts/goldens`): the target's features, and the tokens that a drafter drafts, for both
//! storage layouts and every option. A misread option would keep the text, so only such a
//! comparison shows it.

use crate::draft_goldens::{self, GoldenDrafters, draft_one_by_one};
use forerun_model::EagleModel;

const EAGLE3: GoldenDrafters = GoldenDrafters {
    folder: "eagle3",
    names: &[
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
    ],
    open: draft_goldens::open,
};

#[test]
fn every_golden_folder_is_tested() {
    EAGLE3.assert_all_are_named();
}

#[test]
fn the_features_come_from_the_configured_layers() {
    EAGLE3.assert_features();
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    EAGLE3.assert_drafts_on_reference(EagleModel::new, draft_one_by_one);
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    EAGLE3.assert_drafts_on_cpu(EagleModel::new, draft_one_by_one);
}

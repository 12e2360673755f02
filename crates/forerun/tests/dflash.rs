//! Compares tiny random DFlash drafters with a numpy port of their forward pass
//! (`scripts/goldens`): the target's features, and the tokens of a block, for both storage layouts
//! and every option. A misread option would keep the text, so only such a comparison shows it. Also
//! checks that a block's bits do not depend on how its context was read, and that what is not
//! understood is refused by name.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::draft_goldens::blocks::{
    assert_bits_do_not_depend_on_passes, assert_only_causal_blocks_have_first_rows, block_logits,
    masks,
};
use crate::draft_goldens::{
    self, Golden, Opened, SEQUENCE, assert_drafts_on_cpu, assert_drafts_on_reference, best,
};
use forerun::TokenId;
use forerun::checkpoint::{Checkpoint, LoadError};
use forerun_core::Features;
use forerun_formats::{DraftBlock, Speculator, SpeculatorArchitecture};
use forerun_lm::LanguageModel;
use forerun_model::BlockModel;
use std::path::PathBuf;

const DRAFTERS: [&str; 13] = [
    "jetspec",
    "jetspec-bidirectional",
    "speculators",
    "speculators-all-sliding",
    "speculators-draft-vocabulary",
    "speculators-sliding",
    "speculators-sliding-not-causal",
    "z-lab",
    "z-lab-all-sliding",
    "z-lab-bias",
    "z-lab-causal",
    "z-lab-sliding",
    "z-lab-sliding-not-causal",
];

const BLOCK: DraftBlock = DraftBlock { mask: 63, size: 6, predicts_after: false, causal: false };

/// Drafters all of whose layers are causal.
const CAUSAL: [&str; 4] =
    ["jetspec", "speculators-all-sliding", "z-lab-all-sliding", "z-lab-causal"];

fn folder() -> PathBuf {
    draft_goldens::folder("dflash")
}

fn open(drafter: &str) -> Opened {
    let target = Checkpoint::open(&folder().join("target")).unwrap();
    let speculator = Speculator::open(&folder().join(drafter), &target).unwrap().unwrap();
    let source = speculator.features().unwrap();
    (target, speculator, source)
}

fn draft(model: &mut impl LanguageModel, golden: &Golden, features: &Features) -> Vec<TokenId> {
    let logits = block_logits(model, SEQUENCE, &masks(BLOCK), (&golden.tokens(), features));
    model.release(SEQUENCE);
    logits.chunks_exact(model.vocab_size()).map(best).collect()
}

#[test]
fn every_golden_folder_is_tested() {
    draft_goldens::assert_all_tested(&folder(), &DRAFTERS);
}

#[test]
fn the_block_and_the_features_are_those_of_the_configuration() {
    draft_goldens::assert_features(&folder(), &DRAFTERS, open);
    for drafter in DRAFTERS {
        let (_, speculator, _) = open(drafter);
        let block = DraftBlock { causal: CAUSAL.contains(&drafter), ..BLOCK };
        assert_eq!(speculator.block(), Some(block), "{drafter}");
    }
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
fn a_blocks_bits_do_not_depend_on_how_its_context_was_read() {
    assert_bits_do_not_depend_on_passes(&folder(), &DRAFTERS, open);
}

#[test]
fn the_rows_of_causal_blocks_do_not_depend_on_later_masks() {
    assert_only_causal_blocks_have_first_rows(&folder(), &DRAFTERS, open);
}

/// Opens a drafter whose configuration has another value.
fn open_with(
    drafter: &str,
    path: &[&str],
    value: serde_json::Value,
) -> Result<Speculator, LoadError> {
    draft_goldens::open_with(&folder(), drafter, path, value)
}

#[test]
fn options_of_training_and_of_the_target_are_accepted() {
    use serde_json::json;
    for (drafter, path, value) in [
        ("speculators", &["max_anchors"][..], json!(3072)),
        ("speculators", &["lambda_base_decay_steps"], json!(1000)),
        ("speculators", &["transformer_layer_config", "model_type"], json!("llama")),
    ] {
        open_with(drafter, path, value).unwrap();
    }
    let anchored = open_with("speculators", &["sample_from_anchor"], json!(true)).unwrap();
    assert_eq!(anchored.block(), Some(DraftBlock { predicts_after: true, ..BLOCK }));
    let capped = open_with("z-lab", &["final_logit_softcapping"], json!(30.0)).unwrap();
    let SpeculatorArchitecture::Layers(architecture) = capped.architecture().unwrap() else {
        panic!("a drafter of layers")
    };
    assert_eq!(architecture.logit_cap, Some(30.0));
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    use serde_json::json;
    for (drafter, path, value) in [
        ("z-lab", &["architectures"][..], json!(["DFlash2DraftModel"])),
        ("z-lab", &["model_type"], json!("llama")),
        ("z-lab", &["conv_kernel_size"], json!(4)),
        ("z-lab", &["final_logit_softcapping"], json!(-1.0)),
        ("z-lab", &["num_target_layers"], json!(9)),
        ("z-lab", &["block_size"], json!(1)),
        ("z-lab", &["block_size"], json!(null)),
        ("z-lab", &["dflash_config", "selector_rank"], json!(8)),
        ("z-lab", &["dflash_config", "mask_token_id"], json!(67)),
        ("z-lab", &["dflash_config", "mask_token_id"], json!(null)),
        ("z-lab", &["dflash_config", "target_layer_ids"], json!([1, 8])),
        ("z-lab", &["dflash_config", "target_layer_ids"], json!([])),
        ("z-lab-causal", &["is_causal"], json!(false)),
        ("z-lab-causal", &["dflash_config", "causal_head"], json!(false)),
        ("z-lab-sliding", &["dflash_config"], {
            let ids = [1, 4];
            json!({"mask_token_id": 63, "target_layer_ids": ids, "causal_head": true})
        }),
        ("jetspec", &["is_causal"], json!(false)),
        ("jetspec", &["dflash_config", "causal_head"], json!(1)),
        ("jetspec", &["dflash_config", "draft_shift"], json!(true)),
        ("jetspec", &["dflash_config", "target_hidden_size"], json!(8)),
        ("z-lab-sliding-not-causal", &["block_size"], json!(8)),
        ("speculators", &["aux_hidden_state_layer_ids"], json!([9])),
        ("speculators", &["draft_vocab_size"], json!(40)),
        ("speculators", &["markov_rank"], json!(4)),
        ("speculators", &["projector_type"], json!("domino")),
        ("speculators", &["sample_from_anchor"], json!(3)),
        ("speculators", &["shift_label"], json!(true)),
        ("speculators", &["speculators_model_type"], json!("dflash2")),
        ("speculators", &["target_hidden_size"], json!(8)),
    ] {
        let error = open_with(drafter, path, value).err().unwrap().to_string();
        let name = match path.last().unwrap() {
            // Windows, and a head that is causal.
            &"dflash_config" => "sliding_window",
            name => name,
        };
        assert!(error.contains(name), "{error} names {name}");
    }
}

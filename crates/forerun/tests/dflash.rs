//! Compares tiny random DFlash drafters with a numpy port of their forward pass
//! (`scripts/goldens`): the target's features, and the tokens of a block, for both storage layouts
//! and every option. A misread option would keep the text, so only such a comparison shows it. Also
//! checks that a block's bits do not depend on how its context was read, and that what is not
//! understood is refused by name.

use crate::draft_goldens::blocks::{block_logits, masks};
use crate::draft_goldens::{self, Golden, GoldenDrafters, SEQUENCE, best};
use forerun::TokenId;
use forerun_core::Features;
use forerun_formats::{DraftBlock, SpeculatorArchitecture};
use forerun_lm::LanguageModel;
use forerun_model::BlockModel;
use serde_json::json;

const DFLASH: GoldenDrafters = GoldenDrafters {
    folder: "dflash",
    names: &[
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
    ],
    open: draft_goldens::open,
};

const BLOCK: DraftBlock = DraftBlock { mask: 63, size: 6, predicts_after: false, causal: false };

/// Drafters all of whose layers are causal.
const CAUSAL: [&str; 4] =
    ["jetspec", "speculators-all-sliding", "z-lab-all-sliding", "z-lab-causal"];

fn draft(model: &mut impl LanguageModel, golden: &Golden, features: &Features) -> Vec<TokenId> {
    let logits = block_logits(model, &masks(BLOCK), (&golden.tokens(), features));
    model.release(SEQUENCE);
    logits.chunks_exact(model.vocab_size()).map(best).collect()
}

#[test]
fn every_golden_folder_is_tested() {
    DFLASH.assert_all_are_named();
}

#[test]
fn the_block_and_the_features_are_those_of_the_configuration() {
    DFLASH.assert_features();
    for drafter in DFLASH.names {
        let (_, speculator, _) = DFLASH.open(drafter);
        let block = DraftBlock { causal: CAUSAL.contains(drafter), ..BLOCK };
        assert_eq!(speculator.block(), Some(block), "{drafter}");
    }
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    DFLASH.assert_drafts_on_reference(BlockModel::new, draft);
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    DFLASH.assert_drafts_on_cpu(BlockModel::new, draft);
}

#[test]
fn a_blocks_bits_do_not_depend_on_how_its_context_was_read() {
    DFLASH.assert_bits_do_not_depend_on_passes(|one| masks(one.block().unwrap()), 1);
}

#[test]
fn the_rows_of_causal_blocks_do_not_depend_on_later_masks() {
    DFLASH.assert_only_causal_blocks_have_first_rows();
}

#[test]
fn options_of_training_and_of_the_target_are_accepted() {
    for (drafter, path, value) in [
        ("speculators", &["max_anchors"][..], json!(3072)),
        ("speculators", &["lambda_base_decay_steps"], json!(1000)),
        ("speculators", &["transformer_layer_config", "model_type"], json!("llama")),
    ] {
        DFLASH.open_with(drafter, path, value).unwrap();
    }
    let anchored = DFLASH.open_with("speculators", &["sample_from_anchor"], json!(true)).unwrap();
    assert_eq!(anchored.block(), Some(DraftBlock { predicts_after: true, ..BLOCK }));
    let capped = DFLASH.open_with("z-lab", &["final_logit_softcapping"], json!(30.0)).unwrap();
    let SpeculatorArchitecture::Layers(architecture) = capped.architecture().unwrap() else {
        panic!("a drafter of layers")
    };
    assert_eq!(architecture.logit_cap, Some(30.0));
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    DFLASH.assert_refused(&[
        ("z-lab", &["architectures"], json!(["DFlash2DraftModel"])),
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
    ]);
    // Windows, and a head that is causal.
    let config = json!({"mask_token_id": 63, "target_layer_ids": [1, 4], "causal_head": true});
    let error = DFLASH.open_with("z-lab-sliding", &["dflash_config"], config).err().unwrap();
    assert!(error.to_string().contains("sliding_window"), "{error}");
}

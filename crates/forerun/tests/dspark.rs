//! Compares tiny random DSpark drafters with a numpy port of their forward pass
//! (`scripts/goldens`): the tokens of a block after the Markov head, and the confidences, for both
//! storage layouts and all heads. A misread option would keep the text, so only such a comparison
//! shows it. Also checks where confidences end a draft, and that what is not understood is refused
//! by name.

use crate::draft_goldens::{
    self, Golden, GoldenDrafters, SEQUENCE, assert_drafts_with, best, cpu_heads, draft_chain,
    goldens, on_best_cpu, on_cpu, on_reference, reference_models,
};
use forerun::checkpoint::{Checkpoint, LoadError};
use forerun::{DrafterKind, TokenId};
use forerun_core::{Features, TokenTree};
use forerun_cpu::{BlockHeadWeights, Isa};
use forerun_draft::{Masks, ParallelEagleDrafter};
use forerun_formats::{DraftBlock, Speculator, SpeculatorKind, WeightType};
use forerun_lm::{BlockPosition, ForwardBlockHeads, ForwardRequest, LanguageModel};
use forerun_model::{BlockModel, Forward};
use forerun_reference::ReferenceBlockHeads;
use serde_json::json;
use std::fs;

const DSPARK: GoldenDrafters = GoldenDrafters {
    folder: "dspark",
    names: &[
        "authors",
        "authors-gated",
        "authors-rnn",
        "speculators",
        "speculators-gated-sliding",
        "speculators-in-place",
        "speculators-in-place-rnn",
        "speculators-no-heads",
        "speculators-no-markov",
    ],
    open: draft_goldens::open,
};

/// The tolerance of confidences.
const TOLERANCE: f32 = 1e-4;

/// The least probability with which the target must accept all tokens of a draft.
const MIN_SURVIVAL: f32 = 0.1;

/// The block of a golden drafter.
fn block(drafter: &str) -> DraftBlock {
    let predicts_after = !drafter.contains("in-place");
    DraftBlock { mask: 63, size: 6, predicts_after, causal: false }
}

/// Drafts greedily by hand: one pass, and then the heads, position by position. Checks the
/// confidences.
fn draft<F: Forward>(
    (model, heads): (&mut BlockModel<F>, Option<&mut dyn ForwardBlockHeads>),
    (golden, features): (&Golden, &Features),
    block: DraftBlock,
) -> Vec<TokenId> {
    let (tokens, masks) = (golden.tokens(), TokenTree::chain(&vec![block.mask; block.size - 1]));
    let first_row = block.size - block.positions();
    let request = ForwardRequest::new(SEQUENCE, &tokens, &masks);
    let features_from = Some(tokens.len() - 1);
    let request = ForwardRequest { first_row, features: Some(features), features_from, ..request };
    let output = model.logits(&request).unwrap();
    model.release(SEQUENCE);
    let hidden = output.features.clone().unwrap();
    assert_eq!(hidden.len(), block.size);
    let Some(heads) = heads else { return output.rows().map(best).collect() };
    let (mut drafted, mut state, mut confidences) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..block.size {
        let previous = match row.saturating_sub(first_row) {
            0 => *tokens.last().unwrap(),
            position => drafted[position - 1],
        };
        let (hidden, predicts) = (hidden.row(row).unwrap(), row >= first_row);
        let candidates = &[];
        let position = BlockPosition { hidden, previous, state: &state, predicts, candidates };
        let correction = heads.forward(&[position]).pop().unwrap();
        if let Some(row) = row.checked_sub(first_row) {
            let mut logits = output.rows().nth(row).unwrap().to_vec();
            logits.iter_mut().zip(&correction.logit_bias).for_each(|(logit, bias)| *logit += bias);
            drafted.push(best(&logits));
            confidences.push(correction.confidence);
        }
        state = correction.state;
    }
    for (found, expected) in confidences.iter().zip(&golden.confidences) {
        assert!((found - expected).abs() < TOLERANCE, "{confidences:?} {:?}", golden.confidences);
    }
    drafted
}

#[test]
fn every_golden_folder_is_tested() {
    DSPARK.assert_all_are_named();
}

#[test]
fn the_block_and_the_features_are_those_of_the_configuration() {
    DSPARK.assert_features();
    for drafter in DSPARK.names {
        let (_, speculator, _) = DSPARK.open(drafter);
        assert_eq!(speculator.block(), Some(block(drafter)), "{drafter}");
        let expected = match *drafter {
            "speculators-no-heads" => (SpeculatorKind::DFlash, DrafterKind::DFlash),
            _ => (SpeculatorKind::DSpark, DrafterKind::DSpark),
        };
        let found = speculator.kind();
        assert_eq!((found, DrafterKind::of(found)), expected, "{drafter}");
    }
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    for drafter in DSPARK.names {
        let opened = DSPARK.open(drafter);
        let [_, layers] = reference_models(&opened);
        let heads = opened.1.block_heads().unwrap();
        let mut heads =
            heads.map(|heads| ReferenceBlockHeads::load(heads, &opened.1, layers).unwrap());
        let (mut target, device) = on_reference(opened);
        let mut model = BlockModel::new(device);
        let path = DSPARK.path(drafter);
        assert_drafts_with(&path, &mut target, "the reference", |one, features| {
            let heads = heads.as_mut().map(|heads| heads as &mut dyn ForwardBlockHeads);
            draft((&mut model, heads), (one, features), block(drafter))
        });
    }
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    for drafter in DSPARK.names {
        let speculator = DSPARK.open(drafter).1;
        for (mut target, device, isa) in on_cpu(DSPARK.open(drafter)) {
            let mut heads = cpu_heads(&speculator, isa);
            let mut model = BlockModel::new(device);
            let path = DSPARK.path(drafter);
            assert_drafts_with(&path, &mut target, &isa.to_string(), |one, features| {
                let heads = heads.as_mut().map(|heads| heads as &mut dyn ForwardBlockHeads);
                draft((&mut model, heads), (one, features), block(drafter))
            });
        }
    }
}

/// The drafter drafts the same, up to the first token that the target would hardly accept. With
/// some of the tokens unverified, it goes on after them.
#[test]
fn confidences_end_drafts() {
    let [mut whole, mut cut] = [0; 2];
    for drafter in DSPARK.names {
        let opened = DSPARK.open(drafter);
        let heads = cpu_heads(&opened.1, Isa::best());
        let (mut target, device) = on_best_cpu(opened);
        let DraftBlock { mask, size, predicts_after, .. } = block(drafter);
        let masks = match predicts_after {
            true => Masks::AnchoredBlock { mask, size },
            false => Masks::Block { mask, size },
        };
        let mut drafts = ParallelEagleDrafter::new(BlockModel::new(device), masks);
        if let Some(heads) = heads {
            drafts = drafts.with_heads(Box::new(heads));
        }
        for golden in goldens(&DSPARK.path(drafter)).prompts {
            let features = draft_goldens::features(&mut target, &golden, drafter);
            let mut draft_after =
                |tokens: &[TokenId]| draft_chain(&mut drafts, tokens, &features, size);
            let mut survival = 1.0;
            let survives = |confidence: &&f32| {
                survival *= **confidence;
                survival >= MIN_SURVIVAL
            };
            let expected = match golden.confidences.is_empty() {
                true => golden.draft_ids.len(),
                false => golden.confidences.iter().take_while(survives).count(),
            };
            let drafted = draft_after(&golden.tokens());
            assert_eq!(drafted, golden.draft_ids[..expected], "{drafter}");
            whole += usize::from(expected == golden.draft_ids.len());
            cut += usize::from(expected < golden.draft_ids.len());
            let ahead = [&golden.tokens()[..], &golden.draft_ids[..2]].concat();
            assert!(draft_after(&ahead).len() <= golden.draft_ids.len() - 2, "{drafter}");
        }
    }
    assert!(whole > 3 && cut > 3, "{whole} whole drafts, {cut} cut ones");
}

#[test]
fn what_the_tensors_say_may_be_left_out() {
    for (drafter, option) in [
        ("authors-gated", "enable_confidence_head"),
        ("authors-gated", "confidence_head_with_markov"),
        ("authors", "markov_rank"),
        ("authors", "markov_head_type"),
        ("authors", "num_anchors"),
        ("speculators-no-markov", "markov_rank"),
    ] {
        let changed = DSPARK.open_with(drafter, &[option], json!(null)).unwrap();
        assert_eq!(changed.block_heads().unwrap(), DSPARK.open(drafter).1.block_heads().unwrap());
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    DSPARK.assert_refused(&[
        ("authors", &["architectures"], json!(["Gemma4DSparkModel"])),
        ("authors", &["architectures"], json!(["DSparkDraftModel"])),
        ("authors", &["architectures"], json!([])),
        ("authors", &["architectures"], json!(null)),
        ("authors", &["model_type"], json!("qwen3_5")),
        ("authors", &["dflash_config"], json!({"projector_type": "dspark"})),
        ("authors", &["confidence_temperatures"], json!([1.5])),
        ("authors", &["rope_is_neox_style"], json!(false)),
        ("authors", &["sample_from_anchor"], json!(true)),
        ("authors", &["final_logit_softcapping"], json!(30.0)),
        ("authors", &["target_layer_ids"], json!([1, 7])),
        ("authors", &["target_layer_ids"], json!([-2])),
        ("authors", &["target_layer_ids"], json!([])),
        ("authors", &["target_layer_ids"], json!(null)),
        ("authors", &["mask_token_id"], json!(67)),
        ("authors", &["block_size"], json!(0)),
        ("authors", &["num_target_layers"], json!(9)),
        ("authors", &["markov_rank"], json!(4)),
        ("authors", &["markov_rank"], json!(0)),
        ("authors", &["markov_head_type"], json!("fir")),
        ("authors", &["enable_confidence_head"], json!(false)),
        ("authors", &["confidence_head_with_markov"], json!(false)),
        ("authors-gated", &["confidence_head_with_markov"], json!(true)),
        ("speculators", &["architectures"], json!(["DFlashDraftModel"])),
        ("speculators", &["speculators_model_type"], json!("dflash")),
        ("speculators", &["speculators_config", "algorithm"], json!("dflash")),
        ("speculators", &["projector_type"], json!("domino")),
        ("speculators", &["shift_label"], json!(true)),
        ("speculators", &["dspark_draft_topk"], json!(64)),
        ("speculators", &["modality_head_rank"], json!(8)),
        ("speculators", &["draft_vocab_size"], json!(40)),
        ("speculators-no-heads", &["markov_rank"], json!(5)),
        ("speculators-no-heads", &["enable_confidence_head"], json!(true)),
    ]);
    let layers = json!(["sliding_attention", "full_attention"]);
    DSPARK.open_with("authors", &["layer_types"], layers).err().unwrap();
    // A kind of head whose tensors are not stored, and one with tensors that the kind does not
    // have.
    for (drafter, kind) in [("authors", "rnn"), ("authors-rnn", "vanilla")] {
        let Ok(speculator) = DSPARK.open_with(drafter, &["markov_head_type"], json!(kind)) else {
            continue;
        };
        let heads = speculator.block_heads().unwrap().unwrap();
        let error = BlockHeadWeights::load(heads, &speculator, WeightType::F32.into()).err();
        assert!(error.unwrap().to_string().contains("joint_proj"), "{drafter}");
    }
    // Nothing says what a row predicts.
    let path = ["speculators_config", "proposal_methods"];
    let error =
        DSPARK.open_with("speculators-in-place", &path, json!([])).err().unwrap().to_string();
    assert!(error.contains("sample_from_anchor"), "{error}");
}

/// Writes a checkpoint of empty tensors, whose sizes need no data, and opens it.
fn open_empty(tensors: &[(&str, [u64; 2])]) -> Result<Option<Speculator>, LoadError> {
    let hostile = tempfile::tempdir().unwrap();
    let source = DSPARK.path("authors").join("config.json");
    fs::copy(source, hostile.path().join("config.json")).unwrap();
    let tensor = |(name, shape): &(&str, [u64; 2])| {
        let value = json!({"dtype": "F32", "shape": shape, "data_offsets": [0, 0]});
        ((*name).to_owned(), value)
    };
    let header = serde_json::Value::Object(tensors.iter().map(tensor).collect()).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    fs::write(hostile.path().join("model.safetensors"), bytes).unwrap();
    let target = Checkpoint::open(&DSPARK.path("target")).unwrap();
    let speculator = Speculator::open(hostile.path(), &target)?;
    if let Some(speculator) = &speculator {
        speculator.architecture()?;
    }
    Ok(speculator)
}

#[test]
fn what_sizes_no_drafter_has_are_errors() {
    for size in [1 << 29, 1 << 60, u64::MAX] {
        let layers = [("fc.weight", [0, size]), ("hidden_norm.weight", [0, size])];
        for head in ["markov_head.markov_w1.weight", "confidence_head.proj.weight"] {
            let tensors = [&layers[..], &[(head, [0, size])]].concat();
            assert!(open_empty(&tensors).is_err(), "{head} with {size} columns");
        }
    }
}

#[test]
fn what_damaged_configurations_say_is_an_error_or_a_drafter() {
    let values = [
        json!(0),
        json!(1),
        json!(2),
        json!(-1),
        json!(0.5),
        json!(1_u64 << 40),
        json!(u64::MAX),
        json!(true),
        json!(false),
        json!(null),
        json!("rnn"),
        json!([]),
        json!([-1, 3]),
        json!([u64::MAX]),
        json!({}),
        json!([{"speculative_tokens": 6}]),
    ];
    let mut opened = 0;
    for drafter in ["authors-rnn", "speculators-in-place-rnn"] {
        let text = fs::read_to_string(DSPARK.path(drafter).join("config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&text).unwrap();
        for name in config.as_object().unwrap().keys() {
            for value in &values {
                if let Ok(speculator) = DSPARK.open_with(drafter, &[name.as_str()], value.clone()) {
                    let heads = speculator.block_heads().unwrap();
                    // Tensors of another shape are errors, too.
                    let load = |h| BlockHeadWeights::load(h, &speculator, WeightType::F32.into());
                    drop(heads.map(load));
                    opened += 1;
                }
            }
        }
    }
    assert!(opened > 20, "{opened} drafters could be opened");
}

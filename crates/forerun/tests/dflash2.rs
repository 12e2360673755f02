//! Compares tiny random DFlash 2 drafters with a numpy port of their forward pass
//! (`scripts/goldens`): the tokens that the selector chooses, for both storage layouts and every
//! option. A misread option would keep the text, so only such a comparison shows it. Also checks
//! that a block's bits do not depend on how its context was read, and that what is not understood
//! is refused by name.

use crate::draft_goldens::blocks::masks;
use crate::draft_goldens::{
    self, Golden, GoldenDrafters, assert_drafts_with, cpu_heads, draft_chain, goldens, on_best_cpu,
    on_cpu, on_reference, reference_models,
};
use forerun::checkpoint::Checkpoint;
use forerun::{DrafterKind, TokenId};
use forerun_core::Features;
use forerun_cpu::{BlockHeadWeights, Isa, SpeculatorWeights, Weights};
use forerun_draft::{Drafter, Masks, ParallelEagleDrafter};
use forerun_formats::{
    BlockConv, CandidateSelector, DraftBlock, SpeculatorArchitecture, SpeculatorKind, WeightType,
};
use forerun_lm::ForwardBlockHeads;
use forerun_model::{BlockModel, Forward};
use forerun_reference::ReferenceBlockHeads;
use serde_json::json;

const DFLASH2: GoldenDrafters = GoldenDrafters {
    folder: "dflash2",
    names: &[
        "speculators",
        "speculators-sliding-causal",
        "z-lab",
        "z-lab-causal",
        "z-lab-embedding-scale",
        "z-lab-one-tap",
        "z-lab-other-options",
        "z-lab-scales",
        "z-lab-sliding",
    ],
    open: draft_goldens::open,
};

const BLOCK: DraftBlock = DraftBlock { mask: 63, size: 6, predicts_after: false, causal: false };

/// Returns the block of a golden drafter.
fn block(drafter: &str) -> DraftBlock {
    DraftBlock { causal: drafter == "z-lab-causal", ..BLOCK }
}

fn drafter_of<F: Forward>(
    device: F,
    heads: impl ForwardBlockHeads + 'static,
    drafter: &str,
) -> ParallelEagleDrafter<BlockModel<F>> {
    let DraftBlock { mask, size, causal, .. } = block(drafter);
    let masks = match causal {
        true => Masks::CausalBlock { mask, size },
        false => Masks::Block { mask, size },
    };
    ParallelEagleDrafter::new(BlockModel::new(device), masks).with_heads(Box::new(heads))
}

fn draft_golden(drafter: &mut impl Drafter, golden: &Golden, features: &Features) -> Vec<TokenId> {
    draft_chain(drafter, &golden.tokens(), features, BLOCK.size)
}

#[test]
fn every_golden_folder_is_tested() {
    DFLASH2.assert_all_are_named();
}

#[test]
fn the_architecture_is_that_of_the_configuration() {
    DFLASH2.assert_features();
    for drafter in DFLASH2.names {
        let (_, speculator, _) = DFLASH2.open(drafter);
        assert_eq!(speculator.block(), Some(block(drafter)), "{drafter}");
        let kind = speculator.kind();
        assert_eq!(kind, SpeculatorKind::DFlash2, "{drafter}");
        assert_eq!(DrafterKind::of(kind), DrafterKind::DFlash2);
        let heads = speculator.block_heads().unwrap().unwrap();
        assert_eq!((heads.markov, heads.confidence), (None, None));
        let SpeculatorArchitecture::Layers(architecture) = speculator.architecture().unwrap()
        else {
            panic!("a drafter of layers")
        };
        let (conv, selector) = match *drafter {
            "z-lab-sliding" => ((4, 1), (5, 6)),
            "z-lab-causal" => ((6, 16), (5, 6)),
            "z-lab-one-tap" => ((1, 4), (5, 67)),
            "z-lab-other-options" => ((2, 4), (3, 2)),
            "speculators-sliding-causal" => ((3, 4), (5, 6)),
            _ => ((2, 4), (5, 6)),
        };
        let conv = BlockConv { taps: conv.0, group_size: conv.1 };
        let selector = CandidateSelector { rank: selector.0, candidates: selector.1 };
        assert!(architecture.layers.iter().all(|layer| layer.block_conv == Some(conv)));
        assert_eq!(heads.selector, Some(selector), "{drafter}");
        let has_scales = ["z-lab-scales", "z-lab-other-options"].contains(drafter);
        assert_eq!(architecture.logit_cap, has_scales.then_some(3.0), "{drafter}");
        assert_eq!(architecture.factors.logit_divisor == 2.5, has_scales, "{drafter}");
    }
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    for drafter in DFLASH2.names {
        let opened = DFLASH2.open(drafter);
        let [_, layers] = reference_models(&opened);
        let heads = opened.1.block_heads().unwrap().unwrap();
        let heads = ReferenceBlockHeads::load(heads, &opened.1, layers).unwrap();
        let (mut target, device) = on_reference(opened);
        let mut model = drafter_of(device, heads, drafter);
        let path = DFLASH2.path(drafter);
        assert_drafts_with(&path, &mut target, "the reference", |golden, features| {
            draft_golden(&mut model, golden, features)
        });
    }
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    for drafter in DFLASH2.names {
        let speculator = DFLASH2.open(drafter).1;
        for (mut target, device, isa) in on_cpu(DFLASH2.open(drafter)) {
            let heads = cpu_heads(&speculator, isa).unwrap();
            let mut model = drafter_of(device, heads, drafter);
            let path = DFLASH2.path(drafter);
            assert_drafts_with(&path, &mut target, &isa.to_string(), |golden, features| {
                draft_golden(&mut model, golden, features)
            });
        }
    }
}

/// A shorter draft is a prefix of a longer one, and after unverified tokens the block drafts fewer.
#[test]
fn drafts_have_the_asked_length_and_go_on_after_unverified_tokens() {
    for drafter in DFLASH2.names {
        let opened = DFLASH2.open(drafter);
        let heads = cpu_heads(&opened.1, Isa::best()).unwrap();
        let (mut target, device) = on_best_cpu(opened);
        let mut model = drafter_of(device, heads, drafter);
        for golden in goldens(&DFLASH2.path(drafter)).prompts {
            let features = draft_goldens::features(&mut target, &golden, drafter);
            let tokens = golden.tokens();
            for length in 1..BLOCK.size {
                let drafted = draft_chain(&mut model, &tokens, &features, length);
                assert_eq!(drafted, golden.draft_ids[..length], "{drafter}");
            }
            let ahead = [&tokens[..], &golden.draft_ids[..2]].concat();
            let drafted = draft_chain(&mut model, &ahead, &features, BLOCK.size);
            assert_eq!(drafted.len(), golden.draft_ids.len() - 2, "{drafter}");
        }
    }
}

#[test]
fn a_blocks_bits_do_not_depend_on_how_its_context_was_read() {
    DFLASH2.assert_bits_do_not_depend_on_passes(|one| masks(one.block().unwrap()), 1);
}

#[test]
fn the_rows_of_causal_blocks_do_not_depend_on_later_masks() {
    DFLASH2.assert_only_causal_blocks_have_first_rows();
}

#[test]
fn a_cap_of_0_is_none() {
    for path in [&["final_logit_softcapping"][..], &["dflash_config", "final_logit_softcapping"]] {
        let uncapped = DFLASH2.open_with("z-lab", path, json!(0)).unwrap();
        assert_eq!(
            uncapped.architecture().unwrap(),
            DFLASH2.open("z-lab").1.architecture().unwrap()
        );
    }
}

#[test]
fn options_may_be_in_both_places_if_they_agree() {
    let expected = DFLASH2.open("z-lab").1.architecture().unwrap();
    for (option, value) in [("block_size", json!(6)), ("selector_top_k", json!(6))] {
        for value in [value, json!(null)] {
            let both = DFLASH2.open_with("z-lab", &[option], value).unwrap();
            assert_eq!(both.architecture().unwrap(), expected, "{option}");
            assert_eq!(both.block(), Some(BLOCK), "{option}");
        }
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    const NESTED: &str = "dflash_config";
    DFLASH2.assert_refused(&[
        ("z-lab", &["architectures"], json!(["DFlashDraftModel"])),
        ("z-lab", &["model_type"], json!("llama")),
        ("z-lab", &["markov_rank"], json!(5)),
        ("z-lab", &[NESTED, "markov_rank"], json!(5)),
        ("z-lab", &[NESTED, "causal_head"], json!(false)),
        ("z-lab", &[NESTED, "selector_vocab_size"], json!(60)),
        ("z-lab", &[NESTED, "runtime_block_size"], json!(6)),
        ("z-lab", &[NESTED, "conv_kernel_size"], json!(null)),
        ("z-lab", &[NESTED, "conv_kernel_size"], json!(0)),
        ("z-lab", &[NESTED, "conv_kernel_size"], json!(7)),
        ("z-lab", &[NESTED, "conv_group_size"], json!(null)),
        ("z-lab", &[NESTED, "conv_group_size"], json!(0)),
        ("z-lab", &[NESTED, "conv_group_size"], json!(3)),
        ("z-lab", &[NESTED, "conv_group_size"], json!(32)),
        ("z-lab", &[NESTED, "selector_rank"], json!(null)),
        ("z-lab", &[NESTED, "selector_rank"], json!(0)),
        ("z-lab", &[NESTED, "selector_rank"], json!(u64::MAX)),
        ("z-lab", &[NESTED, "selector_top_k"], json!(null)),
        ("z-lab", &[NESTED, "selector_top_k"], json!(0)),
        ("z-lab", &[NESTED, "selector_top_k"], json!(68)),
        ("z-lab", &[NESTED, "final_logit_softcapping"], json!(-2.0)),
        ("z-lab", &[NESTED, "input_embedding_scale"], json!(0.0)),
        ("z-lab", &[NESTED, "output_multiplier"], json!(-1.0)),
        ("z-lab", &["output_multiplier"], json!(1e-44)),
        // Not as in `dflash_config`.
        ("z-lab", &["block_size"], json!(7)),
        ("z-lab", &["conv_group_size"], json!(8)),
        ("z-lab-scales", &["final_logit_softcapping"], json!(30.0)),
        ("z-lab-scales", &["output_multiplier"], json!(0.5)),
        ("z-lab-other-options", &[NESTED, "final_logit_softcapping"], json!(null)),
        ("z-lab-other-options", &["selector_top_k"], json!(68)),
        ("speculators", &["architectures"], json!(["DFlashDraftModel"])),
        ("speculators", &["speculators_model_type"], json!("dflash")),
        ("speculators", &["speculators_config", "algorithm"], json!("dflash")),
        ("speculators", &["sample_from_anchor"], json!(true)),
        ("speculators", &["conv_kernel_size"], json!(null)),
        ("speculators", &["draft_vocab_size"], json!(40)),
        ("speculators", &["draft_ffn_type"], json!("moe")),
        ("speculators", &["output_multiplier"], json!(0.5)),
        ("speculators", &["markov_rank"], json!(5)),
    ]);
}

/// Sizes that contradict the tensors.
#[test]
fn tensors_of_other_sizes_are_refused_by_name() {
    const NESTED: &str = "dflash_config";
    let target = Checkpoint::open(&DFLASH2.path("target")).unwrap();
    let target = Weights::load_as(&target, WeightType::F32).unwrap();
    for (option, value, tensor) in [
        ("conv_kernel_size", 3, "attention_conv.base_kernel"),
        ("conv_group_size", 8, "attention_conv.kernel_projection.weight"),
        ("selector_rank", 4, "candidate_selector."),
    ] {
        let speculator = DFLASH2.open_with("z-lab", &[NESTED, option], json!(value)).unwrap();
        let error = match option {
            "selector_rank" => {
                let heads = speculator.block_heads().unwrap().unwrap();
                BlockHeadWeights::load(heads, &speculator, WeightType::F32.into()).err()
            }
            _ => SpeculatorWeights::load(&speculator, &target, WeightType::F32.into()).err(),
        };
        let error = error.unwrap().to_string();
        assert!(error.contains(tensor), "{error} names {tensor}");
    }
}

//! Compares the MTP heads of tiny random models with transformers (`scripts/goldens`): the target's
//! features, and the tokens that a head drafts. A misread tensor would keep the text, so only such
//! a comparison shows it.

use crate::draft_goldens::{
    GoldenDrafters, Opened, assert_drafts_with, draft_one_by_one, on_reference,
};
use forerun::checkpoint::{Checkpoint, LoadError};
use forerun_formats::Speculator;
use forerun_model::EagleModel;
use std::fs;
use std::path::Path;

const MTP: GoldenDrafters = GoldenDrafters {
    folder: "mtp",
    names: &[
        "deepseek-v3",
        "deepseek-v3-bias",
        "deepseek-v3-halves",
        "glm4-moe",
        "glm4-moe-group",
        "glm4-moe-sparse",
        "qwen3-next",
        "qwen3-next-bias",
        "qwen3.5",
        "qwen3.5-moe-published",
        "qwen3.5-tied",
    ],
    open,
};

fn open(head: &Path) -> Opened {
    let target = Checkpoint::open(head).unwrap();
    let speculator = Speculator::open_mtp(&target).unwrap();
    let source = speculator.features().unwrap();
    (target, speculator, source)
}

#[test]
fn every_golden_folder_is_tested() {
    MTP.assert_all_are_named();
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    MTP.assert_drafts_on_reference(EagleModel::new, draft_one_by_one);
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    MTP.assert_drafts_on_cpu(EagleModel::new, draft_one_by_one);
}

/// The same models in GGUF files, as llama.cpp's conversion writes them.
#[test]
fn heads_in_gguf_files_draft_as_the_peer() {
    for head in ["glm4-moe", "qwen3.5"] {
        let file = MTP.path("../gguf-mtp").join(format!("{head}.gguf"));
        let (mut target, device) = on_reference(open(&file));
        let mut model = EagleModel::new(device);
        assert_drafts_with(&MTP.path(head), &mut target, "GGUF", |golden, features| {
            draft_one_by_one(&mut model, golden, features)
        });
    }
}

#[test]
fn a_target_without_a_head_is_refused_by_name() {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/families");
    for (family, words) in [
        ("llama2", "a model of the family DeepSeek-V3, GLM-4-MoE, Qwen3-Next or Qwen3.5"),
        ("deepseek-v3", "one with the tensor `model.layers.3.eh_proj.weight`"),
        ("qwen3.5-moe", "one with the tensor `mtp.fc.weight`"),
        ("../gguf/qwen3.5-tied.gguf", "one with \"nextn_predict_layers\" 1"),
    ] {
        let target = Checkpoint::open(&families.join(family)).unwrap();
        let error = Speculator::open_mtp(&target).err().unwrap();
        assert!(matches!(error, LoadError::NoMtpHead { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn tensors_that_are_not_computed_are_refused_by_name() {
    // The names have the same length. The first two are those of a second head.
    for (head, old, new) in [
        ("glm4-moe", "model.layers.3.hnorm.weight", "model.layers.4.hnorm.weight"),
        ("qwen3.5", "mtp.layers.0.input_layernorm.weight", "mtp.layers.1.input_layernorm.weight"),
        (
            "qwen3-next",
            "mtp.layers.0.self_attn.k_norm.weight",
            "mtp.layers.0.self_attn.r_norm.weight",
        ),
    ] {
        let error = error_after_change(head, old, new);
        assert!(error.contains(new) && error.contains("this MTP head"), "{error}");
    }
}

#[test]
fn a_quantized_head_is_refused_by_name() {
    // Words of 16 bits, as parts of quantised matrices have.
    let of_projection = |dtype| format!("eh_proj.weight\":{{\"dtype\":\"{dtype}\"");
    let error = error_after_change("glm4-moe-group", &of_projection("F16"), &of_projection("I16"));
    assert!(error.contains("head is stored in f32, f16 or bf16"), "{error}");
}

/// Returns the error of a head after a change of its file. Both texts have the same length.
fn error_after_change(head: &str, old: &str, new: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json", "generation_config.json"] {
        fs::copy(MTP.path(head).join(name), folder.path().join(name)).unwrap();
    }
    let bytes = fs::read(MTP.path(head).join("model.safetensors")).unwrap();
    let at = bytes.windows(old.len()).position(|window| window == old.as_bytes()).unwrap();
    let changed = [&bytes[..at], new.as_bytes(), &bytes[at + old.len()..]].concat();
    fs::write(folder.path().join("model.safetensors"), changed).unwrap();
    let target = Checkpoint::open(folder.path()).unwrap();
    Speculator::open_mtp(&target).err().unwrap().to_string()
}

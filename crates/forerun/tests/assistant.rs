//! Compares tiny random assistants of Gemma 4 with transformers (`scripts/goldens`): the features
//! from which the target's keys and values are computed, and the tokens that an assistant drafts.

use crate::draft_goldens::{
    GoldenDrafters, Opened, assert_drafts_with, draft_one_by_one, on_reference,
};
use forerun::DrafterKind;
use forerun::checkpoint::Checkpoint;
use forerun_formats::{Speculator, SpeculatorKind};
use forerun_model::TargetKeysModel;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const ASSISTANTS: GoldenDrafters = GoldenDrafters {
    folder: "assistant",
    names: &["gemma4", "gemma4-bias", "gemma4-inputs"],
    open,
};

/// The targets are among the goldens of families.
fn target(name: &str) -> Checkpoint {
    Checkpoint::open(&ASSISTANTS.path("../families").join(name)).unwrap()
}

fn open(drafter: &Path) -> Opened {
    let target = target(drafter.file_name().unwrap().to_str().unwrap());
    let speculator = Speculator::open(drafter, &target).unwrap().unwrap();
    let source = speculator.features().unwrap();
    (target, speculator, source)
}

#[test]
fn every_golden_folder_is_tested() {
    ASSISTANTS.assert_all_are_named();
    for name in ASSISTANTS.names {
        let kind = SpeculatorKind::of(&ASSISTANTS.path(name)).unwrap().unwrap();
        assert_eq!(DrafterKind::of(kind), DrafterKind::Assistant);
    }
}

#[test]
fn features_are_the_inputs_of_the_layers_with_the_keys_and_the_last_hidden_state() {
    ASSISTANTS.assert_features();
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    ASSISTANTS.assert_drafts_on_reference(TargetKeysModel::new, draft_one_by_one);
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    ASSISTANTS.assert_drafts_on_cpu(TargetKeysModel::new, draft_one_by_one);
}

/// The same in GGUF files, as llama.cpp's conversion writes them, alone and with their targets.
#[test]
fn assistants_in_gguf_files_draft_as_the_peer() {
    for name in ["gemma4", "gemma4-inputs"] {
        let file = format!("{name}.gguf");
        let [assistant, of_gguf] =
            ["../gguf-assistant", "../gguf"].map(|folder| ASSISTANTS.path(folder).join(&file));
        for target in [target(name), Checkpoint::open(&of_gguf).unwrap()] {
            let speculator = Speculator::open(&assistant, &target).unwrap().unwrap();
            assert_eq!(SpeculatorKind::of(&assistant).unwrap(), Some(speculator.kind()));
            let source = speculator.features().unwrap();
            let (mut target, device) = on_reference((target, speculator, source));
            let mut model = TargetKeysModel::new(device);
            assert_drafts_with(&ASSISTANTS.path(name), &mut target, "GGUF", |golden, features| {
                draft_one_by_one(&mut model, golden, features)
            });
        }
        let error = Checkpoint::open(&assistant).err().unwrap().to_string();
        assert!(error.contains("the draft model of its target"), "{error}");
    }
}

#[test]
fn what_does_not_fit_the_target_is_refused_by_name() {
    let error = |drafter: &str, on: &str, change: &dyn Fn(&mut Value)| {
        let changed = tempfile::tempdir().unwrap();
        let source = ASSISTANTS.path(drafter);
        let text = fs::read_to_string(source.join("config.json")).unwrap();
        let mut config = serde_json::from_str(&text).unwrap();
        change(&mut config);
        fs::write(changed.path().join("config.json"), config.to_string()).unwrap();
        let weights = "model.safetensors";
        fs::copy(source.join(weights), changed.path().join(weights)).unwrap();
        Speculator::open(changed.path(), &target(on)).err().unwrap().to_string()
    };
    let of_layers = [
        ("vocab_size", json!(130)),
        ("rms_norm_eps", json!(0.1)),
        ("num_kv_shared_layers", json!(1)),
        ("num_key_value_heads", json!(4)),
        ("sliding_window", json!(1)),
        ("layer_types", json!(["full_attention"])),
    ];
    for (option, value) in of_layers {
        let error = error("gemma4", "gemma4", &|config| {
            config["text_config"][option] = value.clone();
        });
        assert!(error.contains(option), "{error} names {option}");
    }
    for (option, value) in [("backbone_hidden_size", json!(7)), ("block_size", json!(3))] {
        let error = error("gemma4", "gemma4", &|config| config[option] = value.clone());
        assert!(error.contains(option), "{error} names {option}");
    }
    let unchanged = |_: &mut Value| ();
    assert!(error("gemma4", "gemma3", &unchanged).contains("model_type"));
    assert!(error("gemma4", "gemma4-bias", &unchanged).contains("backbone_hidden_size"));
}

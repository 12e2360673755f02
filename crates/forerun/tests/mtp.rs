//! Compares the MTP heads of tiny random models with transformers (`scripts/goldens`): the target's features, and the
//! tokens that a head drafts. A misread tensor would keep the text, so only such a comparison shows it.

#![expect(clippy::unwrap_used, reason = "tests")]

mod draft_goldens;

use draft_goldens::assert_drafts;
use forerun::{Checkpoint, LoadError, Team, WeightType, Weights};
use forerun_cpu::{Isa, SpeculatorWeights, Transformer};
use forerun_formats::{FeatureSource, Speculator, SpeculatorArchitecture};
use forerun_model::{CachedTransformer, EagleModel};
use forerun_reference::{Arithmetic, ReferenceDevice, ReferenceModel};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const HEADS: [&str; 11] = [
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
];

fn folder() -> PathBuf {
    draft_goldens::folder("mtp")
}

fn open(head: &str) -> (Checkpoint, Speculator, FeatureSource) {
    let target = Checkpoint::open(&folder().join(head)).unwrap();
    let speculator = Speculator::open_mtp(&target).unwrap();
    let source = speculator.features().unwrap();
    (target, speculator, source)
}

#[test]
fn every_golden_folder_is_tested() {
    let names = draft_goldens::names(&folder());
    assert_eq!(names, HEADS);
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    let isa = Isa::best();
    for head in HEADS {
        let (checkpoint, speculator, source) = open(head);
        let target = ReferenceModel::load_as(&checkpoint, WeightType::F32, isa).unwrap();
        let target = Arc::new(target);
        let SpeculatorArchitecture::Layers(layers) = speculator.architecture().unwrap() else {
            panic!("layers");
        };
        let arithmetic = Arithmetic::cpu(WeightType::F32, isa);
        let model = ReferenceModel::load_with(layers, &speculator, arithmetic, Some(&*target));
        let mut model = EagleModel::new(ReferenceDevice::new(Arc::new(model.unwrap())));
        let target = ReferenceDevice::new(target).with_features(source);
        let mut target = CachedTransformer::new(target);
        assert_drafts(&folder().join(head), &mut target, &mut model, "the reference");
    }
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    for head in HEADS {
        let (checkpoint, speculator, source) = open(head);
        let target = Arc::new(Weights::load_as(&checkpoint, WeightType::F32).unwrap());
        let types = WeightType::F32.into();
        let SpeculatorWeights::Layers(weights) =
            SpeculatorWeights::load(&speculator, &target, types).unwrap()
        else {
            panic!("layers");
        };
        for isa in Isa::available() {
            let team = Arc::new(Team::unpinned(2).unwrap().with_isa(isa));
            let target = Transformer::new(Arc::clone(&target), Arc::clone(&team));
            let mut target = CachedTransformer::new(target.with_features(source.clone()));
            let mut model = EagleModel::new(Transformer::new(Arc::clone(&weights), team));
            assert_drafts(&folder().join(head), &mut target, &mut model, &format!("{isa}"));
        }
    }
}

#[test]
fn a_target_without_a_head_is_refused_by_name() {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/families");
    for (family, words) in [
        ("llama2", "a model of the family DeepSeek-V3, GLM-4-MoE, Qwen3-Next or Qwen3.5"),
        ("deepseek-v3", "one with the tensor `model.layers.3.eh_proj.weight`"),
        ("qwen3.5-moe", "one with the tensor `mtp.fc.weight`"),
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
        fs::copy(self::folder().join(head).join(name), folder.path().join(name)).unwrap();
    }
    let bytes = fs::read(self::folder().join(head).join("model.safetensors")).unwrap();
    let at = bytes.windows(old.len()).position(|window| window == old.as_bytes()).unwrap();
    let changed = [&bytes[..at], new.as_bytes(), &bytes[at + old.len()..]].concat();
    fs::write(folder.path().join("model.safetensors"), changed).unwrap();
    let target = Checkpoint::open(folder.path()).unwrap();
    Speculator::open_mtp(&target).err().unwrap().to_string()
}

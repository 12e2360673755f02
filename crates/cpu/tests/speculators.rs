//! Drafters trained for a target: what all devices share, and which files are whose drafter, which
//! needs no device.

use crate::device::Cpu;
use forerun_cpu::SpeculatorWeights;
use forerun_formats::checkpoint::DRAFTER_FILES;
use forerun_formats::checkpoint::random_speculator::{
    Eagle3Options, RandomSpeculator, SpeculatorLayout as L,
};
use forerun_formats::{Config, ModelTypes, Speculator, SpeculatorKind, WeightType};
use forerun_suite::speculators::{POSITIONS, Target, layouts};
use forerun_suite::{Device, TargetPart};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use std::path::PathBuf;

forerun_suite::speculators!(Cpu);

#[test]
fn the_kind_of_a_drafter_is_detected_from_its_tensors() {
    let target = Target::plain();
    let folder = target.folder.path();
    let eagle3 = (L::Eagle3With(Eagle3Options::all()[23]), SpeculatorKind::Eagle3);
    for (layout, kind) in layouts().into_iter().chain([eagle3]) {
        assert_eq!(target.drafter(layout).kind(), kind, "{layout:?}");
        let found = SpeculatorKind::of(&folder.join(format!("{layout:?}"))).unwrap();
        assert_eq!(found, Some(kind), "{layout:?}");
    }
    let whole = folder.join("target");
    assert_eq!(SpeculatorKind::of(&whole).unwrap(), None);
    assert!(Speculator::open(&whole, &target.checkpoint).unwrap().is_none());
    let config = std::fs::read_to_string(whole.join("config.json")).unwrap();
    let [pard, pard2] = [SpeculatorKind::Pard { mask: 77 }, SpeculatorKind::Pard2 { mask: 77 }];
    for (options, kind) in [
        (r#""pard_token": 77"#, pard),
        (r#""pard_token": 77, "spd_type": "pard""#, pard),
        (r#""pard_token": 77, "spd_type": null"#, pard),
        (r#""pard_token": 77, "spd_type": "pard", "pard2": false"#, pard),
        (r#""pard_token": 77, "spd_type": "pard2""#, pard2),
        (r#""pard_token": 77, "spd_type": "pard", "pard2": true"#, pard2),
    ] {
        let config = config.replacen('{', &format!("{{{options},"), 1);
        std::fs::write(whole.join("config.json"), config).unwrap();
        assert_eq!(SpeculatorKind::of(&whole).unwrap(), Some(kind), "{options}");
    }
    assert_eq!(SpeculatorKind::of(&folder.join("nothing")).unwrap(), None);
}

/// A drafter that is broken before it is opened. Its errors come before anything is computed.
struct Broken {
    target: Target,
    path: PathBuf,
}

impl Broken {
    fn new() -> Self {
        let target = Target::plain();
        let path = target.folder.path().join("other");
        Self { target, path }
    }

    /// Writes a drafter for a target with a configuration, and the hash of its embedding.
    fn write_for(&self, layout: L, target: &Config, hash: Option<&str>) {
        drop(std::fs::remove_dir_all(&self.path));
        let target_embedding_sha256 = hash.map(str::to_owned);
        let positions = POSITIONS;
        RandomSpeculator { layout, target, seed: 3, positions, target_embedding_sha256 }
            .write(&self.path)
            .unwrap();
    }

    fn write(&self, layout: L) {
        self.write_for(layout, &self.target.config, None);
    }

    /// Asserts that the error of opening or loading the drafter contains these words.
    fn assert_refused(&self, words: &[&str]) {
        let types = WeightType::F32.into();
        let checkpoint = &self.target.checkpoint;
        let weights = Cpu.load_target(checkpoint, types, TargetPart::Whole);
        let opened = Speculator::open(&self.path, checkpoint);
        let loaded = opened.and_then(|speculator| {
            SpeculatorWeights::load(&speculator.unwrap(), &weights, ModelTypes::default())
        });
        let found = loaded.map(drop).unwrap_err().to_string();
        for words in words {
            assert!(found.contains(words), "{found}");
        }
    }

    /// Replaces text in the drafter's configuration.
    fn configure(&self, old: &str, new: &str) {
        let file = self.path.join("config.json");
        let config = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, config.replace(old, new)).unwrap();
    }

    /// Renames the drafter's tensors, and adds others. Those without a name are left out.
    fn change(&self, rename: impl Fn(&str) -> Option<&str>, others: Vec<(&str, TensorView<'_>)>) {
        let files = DRAFTER_FILES.map(|name| self.path.join(name));
        let file = files.into_iter().find(|path| path.exists()).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let renamed = tensors.iter().filter_map(|(name, view)| Some((rename(name)?, view)));
        let bytes = safetensors::serialize(renamed.chain(others).collect::<Vec<_>>(), None);
        std::fs::write(&file, bytes.unwrap()).unwrap();
    }

    fn rename(&self, rename: impl Fn(&str) -> Option<&str>) {
        self.change(rename, Vec::new());
    }

    /// Replaces the offsets of `d2t`.
    fn replace_tokens(&self, offsets: &[i64]) {
        let stored: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
        let shape = vec![offsets.len()];
        let tokens = TensorView::new(safetensors::Dtype::I64, shape, &stored).unwrap();
        self.change(|name| (name != "d2t").then_some(name), vec![("d2t", tokens)]);
    }
}

#[test]
fn drafters_of_other_targets_are_refused_with_a_reason() {
    let drafter = Broken::new();
    let config = drafter.target.config.clone();
    let wide = Config { hidden_size: 60, head_dim: 10, ..config.clone() };
    let many = Config { vocab_size: 300, ..config.clone() };
    for layout in [
        L::Medusa,
        L::SharedHeadMedusa,
        L::Hydra,
        L::HydraPlusPlus,
        L::Eagle,
        L::ParallelMedusa,
        L::ParallelEagle,
    ] {
        drafter.write_for(layout, &wide, None);
        drafter.assert_refused(&["hidden size is 60", "is 48"]);
        drafter.write_for(layout, &config, Some("0123"));
        drafter.assert_refused(&["the random target", "`model`"]);
    }
    for layout in [L::Eagle, L::ParallelMedusa] {
        drafter.write_for(layout, &many, None);
        drafter.assert_refused(&["vocabulary is 300", "is 259"]);
    }
    drafter.write_for(L::Medusa, &many, None);
    drafter.assert_refused(&["expected [259, 48]"]);
}

/// Also heads that read no tokens, and heads that read another hidden state.
#[test]
fn configurations_that_contradict_the_tensors_are_refused_with_a_reason() {
    let drafter = Broken::new();
    drafter.write(L::ParallelEagle);
    drafter.configure("\"n_mask_tokens\": 3", "\"n_mask_tokens\": 4");
    drafter.assert_refused(&["\"n_mask_tokens\" is 4; expected 3"]);
    drafter.write(L::Hydra);
    drafter.rename(|name| (!name.contains("res_connection")).then_some(name));
    drafter.assert_refused(&["grounded_heads"]);
    drafter.write(L::Hydra);
    drafter.configure("\"hidden_state_offset\": 0", "\"hidden_state_offset\": 1");
    drafter.assert_refused(&["\"hidden_state_offset\" is 1"]);
}

/// Tokens that are not the target's, and a vocabulary of another size than the heads' or the
/// configuration's.
#[test]
fn vocabularies_that_are_no_part_of_the_targets_are_refused_with_a_reason() {
    let drafter = Broken::new();
    let no_map = "has 130 tokens, but `d2t` does not";
    for layout in [L::ReducedMedusa, L::ReducedHydra, L::ReducedEagle, L::ReducedParallelMedusa] {
        for offset in [-130, 130, i64::MAX] {
            drafter.write(layout);
            drafter.replace_tokens(&[vec![0; 129], vec![offset]].concat());
            drafter.assert_refused(&[no_map, "map each of them to one of the vocabulary's 259"]);
        }
    }
    drafter.write(L::ReducedMedusa);
    drafter.replace_tokens(&[0; 50]);
    drafter.assert_refused(&["\"draft_vocab_size\" is 130; expected 50"]);
    std::fs::remove_file(drafter.path.join("config.json")).unwrap();
    drafter.assert_refused(&[no_map]);
    drafter.write(L::ReducedMedusa);
    drafter.rename(|name| (name != "d2t").then_some(name));
    drafter.assert_refused(&["there is no `d2t`"]);
    std::fs::remove_file(drafter.path.join("config.json")).unwrap();
    drafter.assert_refused(&["expected [259, 48]"]);
}

#[test]
fn missing_and_unexpected_tensors_of_drafters_are_named() {
    let drafter = Broken::new();
    for (layout, lost, named) in [
        (L::Eagle, "layers.0.mlp.up_proj.weight", "`layers.0.mlp.up_proj.weight`"),
        (L::ParallelEagle, "mask_features.weight", "`mask_features.weight`"),
        (L::ParallelMedusa, "layers.0.input_layernorm.weight", "input_layernorm.weight`"),
        (L::ParallelMedusa, "norm.weight", "`norm.weight`"),
        (L::Medusa, "1.1.weight", "`1.1.weight`"),
        (L::Hydra, "hydra_lm_head.2.weight", "`hydra_lm_head.2.weight`"),
        (
            L::HydraPlusPlus,
            "prefix_embeding_layer.layers.0.mlp.up_proj.weight",
            "layers.0.mlp.up_proj.weight`",
        ),
        (L::HydraPlusPlus, "hydra_mlp.2.3.linear.weight", "2.3.linear.weight`"),
        (L::Eagle3, "midlayer.mlp.down_proj.weight", "`midlayer.mlp.down_proj.weight`"),
    ] {
        drafter.write(layout);
        drafter.rename(|name| (name != lost).then_some(name));
        drafter.assert_refused(&[&format!("{named} is missing")]);
        drafter.write(layout);
        drafter.rename(|name| Some(if name == lost { "layers.9.magic" } else { name }));
        drafter.assert_refused(&["`layers.9.magic` is not part of"]);
    }
}

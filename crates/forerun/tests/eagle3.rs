//! Compares tiny random EAGLE-3 drafters with a numpy port of their forward pass (`scripts/goldens`): the
//! target's features, and the tokens that a drafter drafts, for both storage layouts and every option. A
//! misread option would keep the text, so only such a comparison shows it.

#![expect(clippy::unwrap_used, reason = "tests")]

mod draft_goldens;

use draft_goldens::{assert_drafts, goldens};
use forerun::{Checkpoint, Team, WeightType, Weights};
use forerun_cpu::{Isa, SpeculatorWeights, Transformer};
use forerun_formats::{FeatureSource, Speculator, SpeculatorArchitecture};
use forerun_model::{CachedTransformer, EagleModel};
use forerun_reference::{Arithmetic, ReferenceDevice, ReferenceModel};
use std::path::PathBuf;
use std::sync::Arc;

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

fn open(drafter: &str) -> (Checkpoint, Speculator, FeatureSource) {
    let target = Checkpoint::open(&folder().join("target")).unwrap();
    let speculator = Speculator::open(&folder().join(drafter), &target).unwrap().unwrap();
    let source = speculator.features().unwrap();
    (target, speculator, source)
}

#[test]
fn every_golden_folder_is_tested() {
    let names = draft_goldens::names(&folder());
    let target = ["target"];
    assert_eq!(names, DRAFTERS.iter().chain(&target).copied().collect::<Vec<_>>());
}

#[test]
fn the_features_come_from_the_configured_layers() {
    for drafter in DRAFTERS {
        let layers = goldens(&folder().join(drafter)).header.layers_before_features;
        assert_eq!(open(drafter).2, FeatureSource::Layers(layers), "{drafter}");
    }
}

#[test]
fn the_references_drafts_equal_those_of_the_peer() {
    let isa = Isa::best();
    for drafter in DRAFTERS {
        let (checkpoint, speculator, source) = open(drafter);
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
        assert_drafts(&folder().join(drafter), &mut target, &mut model, "the reference");
    }
}

#[test]
fn the_cpus_drafts_equal_those_of_the_peer() {
    for drafter in DRAFTERS {
        let (checkpoint, speculator, source) = open(drafter);
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
            assert_drafts(&folder().join(drafter), &mut target, &mut model, &format!("{isa}"));
        }
    }
}

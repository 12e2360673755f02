//! Compares tiny random EAGLE-3 drafters with a numpy port of their forward pass (`scripts/goldens`): the
//! target's features, and the tokens that a drafter drafts, for both storage layouts and every option. A
//! misread option would keep the text, so only such a comparison shows it.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun::{Checkpoint, Team, TokenId, WeightType, Weights};
use forerun_core::{Features, SequenceId, TokenTree};
use forerun_cpu::{Isa, SpeculatorWeights, Transformer};
use forerun_formats::{FeatureSource, Speculator, SpeculatorArchitecture};
use forerun_lm::{ForwardRequest, LanguageModel, LayeredModel};
use forerun_model::{CachedTransformer, EagleModel};
use forerun_reference::{Arithmetic, ReferenceDevice, ReferenceModel};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
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

const SEQUENCE: SequenceId = SequenceId(1);

/// The tolerance of features. The peer computes in f64.
const TOLERANCE: f64 = 1e-4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/eagle3")
}

#[derive(Deserialize)]
struct Goldens {
    header: Header,
    prompts: Vec<Golden>,
}

#[derive(Deserialize)]
struct Header {
    layers_before_features: Vec<usize>,
}

/// A prompt, the target's next token, the draft after it, and the features of the prompt's last token.
#[derive(Deserialize)]
struct Golden {
    prompt_ids: Vec<TokenId>,
    next_id: TokenId,
    draft_ids: Vec<TokenId>,
    last_features: Vec<f64>,
}

fn goldens(drafter: &str) -> Goldens {
    let text = fs::read_to_string(folder().join(drafter).join("golden.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn best(row: &[f32]) -> TokenId {
    let tokens = (0..).zip(row.iter().copied());
    tokens.max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap().0
}

/// Checks the target's next token and features, and returns the features of all tokens of the prompt.
fn features(target: &mut impl LayeredModel, golden: &Golden, what: &str) -> Features {
    let prompt = ForwardRequest::next_token(SEQUENCE, &golden.prompt_ids);
    let output = target.logits(&ForwardRequest { features_from: Some(0), ..prompt }).unwrap();
    assert_eq!(best(&output.logits), golden.next_id, "{what}");
    let mut features = Features::new();
    features.push(output.features.unwrap());
    let last = features.rows_from(golden.prompt_ids.len() - 1).next().unwrap();
    assert_eq!(last.len(), golden.last_features.len(), "{what}");
    for (found, expected) in last.iter().zip(&golden.last_features) {
        assert!((f64::from(*found) - expected).abs() < TOLERANCE, "{what}: {found} {expected}");
    }
    target.release(SEQUENCE);
    features
}

/// Drafts greedily, token after token.
fn draft(drafter: &mut impl LanguageModel, golden: &Golden, features: &Features) -> Vec<TokenId> {
    let tokens = [&golden.prompt_ids[..], &[golden.next_id]].concat();
    let mut drafted = Vec::new();
    for first_row in 0..golden.draft_ids.len() {
        let tree = TokenTree::chain(&drafted);
        let request = ForwardRequest::new(SEQUENCE, &tokens, &tree);
        let request = ForwardRequest { first_row, features: Some(features), ..request };
        drafted.push(best(&drafter.logits(&request).unwrap().logits));
    }
    drafter.release(SEQUENCE);
    drafted
}

/// Checks all goldens of a drafter with a target and a drafter on some device.
fn assert_drafts(
    drafter: &str,
    target: &mut impl LayeredModel,
    model: &mut impl LanguageModel,
    device: &str,
) {
    for (number, golden) in goldens(drafter).prompts.iter().enumerate() {
        let what = format!("{drafter}, prompt {number}, {device}");
        let features = features(target, golden, &what);
        assert_eq!(draft(model, golden, &features), golden.draft_ids, "{what}");
    }
}

fn open(drafter: &str) -> (Checkpoint, Speculator, FeatureSource) {
    let target = Checkpoint::open(&folder().join("target")).unwrap();
    let speculator = Speculator::open(&folder().join(drafter), &target).unwrap().unwrap();
    let source = speculator.features().unwrap();
    (target, speculator, source)
}

#[test]
fn every_golden_folder_is_tested() {
    let names = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    let target = ["target"];
    assert_eq!(names, DRAFTERS.iter().chain(&target).copied().collect::<Vec<_>>());
}

#[test]
fn the_features_come_from_the_configured_layers() {
    for drafter in DRAFTERS {
        let layers = goldens(drafter).header.layers_before_features;
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
        assert_drafts(drafter, &mut target, &mut model, "the reference");
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
            assert_drafts(drafter, &mut target, &mut model, &format!("{isa}"));
        }
    }
}

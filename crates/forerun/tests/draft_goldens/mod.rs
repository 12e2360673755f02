//! What the comparisons of drafters with their ports have in common (`scripts/goldens`): golden
//! files, the target's features, and greedy drafts.

#![expect(clippy::unwrap_used, reason = "tests")]

pub(crate) mod blocks;

use forerun::checkpoint::{Checkpoint, LoadError};
use forerun::cpu::{Team, Weights};
use forerun::{TokenId, WeightType};
use forerun_core::{Features, SequenceId, TokenTree};
use forerun_cpu::{Isa, SpeculatorWeights, Transformer};
use forerun_formats::{FeatureSource, Speculator, SpeculatorArchitecture};
use forerun_lm::{ForwardRequest, LanguageModel, LayeredModel};
use forerun_model::CachedTransformer;
use forerun_reference::{Arithmetic, ReferenceDevice, ReferenceModel};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const SEQUENCE: SequenceId = SequenceId(1);

/// The tolerance of features. The peers compute in f64, or add in another order.
const TOLERANCE: f64 = 1e-4;

/// Returns the folder of a kind of drafter.
pub(crate) fn folder(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(kind)
}

/// Opens a drafter of a folder of goldens whose configuration has another value at a path of names,
/// or `null`.
pub(crate) fn open_with(
    folder: &Path,
    drafter: &str,
    path: &[&str],
    value: serde_json::Value,
) -> Result<Speculator, LoadError> {
    let changed = tempfile::tempdir().unwrap();
    let source = folder.join(drafter);
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let (name, parents) = path.split_last().unwrap();
    let parent = parents.iter().fold(&mut config, |inner, parent| &mut inner[*parent]);
    parent[*name] = value;
    fs::write(changed.path().join("config.json"), config.to_string()).unwrap();
    let is_weights = |name: &&String| name.ends_with(".safetensors");
    for name in names(&source).iter().filter(is_weights) {
        fs::copy(source.join(name), changed.path().join(name)).unwrap();
    }
    let target = Checkpoint::open(&folder.join("target")).unwrap();
    Speculator::open(changed.path(), &target).map(Option::unwrap)
}

#[derive(Deserialize)]
pub(crate) struct Goldens {
    #[serde(default)]
    pub(crate) header: Header,
    pub(crate) prompts: Vec<Golden>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    pub(crate) layers_before_features: Vec<usize>,
}

/// A prompt, the target's next token, the draft after it, and the features of the prompt's last
/// token.
#[derive(Deserialize)]
pub(crate) struct Golden {
    pub(crate) prompt_ids: Vec<TokenId>,
    pub(crate) next_id: TokenId,
    pub(crate) draft_ids: Vec<TokenId>,
    /// The predicted probabilities of acceptance, of DSpark.
    #[serde(default)]
    pub(crate) confidences: Vec<f32>,
    last_features: Vec<f64>,
}

impl Golden {
    /// Returns the prompt and the target's next token.
    pub(crate) fn tokens(&self) -> Vec<TokenId> {
        [&self.prompt_ids[..], &[self.next_id]].concat()
    }
}

/// Reads the goldens of a drafter's folder.
pub(crate) fn goldens(drafter: &Path) -> Goldens {
    let text = fs::read_to_string(drafter.join("golden.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the names of everything in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Checks that these are all drafters in a folder of goldens, in order.
pub(crate) fn assert_all_tested(folder: &Path, drafters: &[&str]) {
    let mut names = names(folder);
    names.retain(|name| name != "target");
    assert_eq!(names, drafters);
}

/// Checks that each drafter reads the features that its peer does.
pub(crate) fn assert_features(folder: &Path, drafters: &[&str], open: fn(&str) -> Opened) {
    for drafter in drafters {
        let layers = goldens(&folder.join(drafter)).header.layers_before_features;
        assert_eq!(open(drafter).2, FeatureSource::Layers(layers), "{drafter}");
    }
}

/// A target, its drafter, and the features that the drafter reads.
pub(crate) type Opened = (Checkpoint, Speculator, FeatureSource);

/// Returns the target and the drafter's layers on the reference device.
pub(crate) fn on_reference(
    opened: Opened,
) -> (CachedTransformer<ReferenceDevice>, ReferenceDevice) {
    let [target, drafter] = reference_models(&opened);
    let target = ReferenceDevice::new(target).with_features(opened.2);
    (CachedTransformer::new(target), ReferenceDevice::new(drafter))
}

/// Returns the target and the drafter's layers as the reference reads them.
pub(crate) fn reference_models((checkpoint, speculator, _): &Opened) -> [Arc<ReferenceModel>; 2] {
    let isa = Isa::best();
    let target = ReferenceModel::load_as(checkpoint, WeightType::F32, isa).unwrap();
    let SpeculatorArchitecture::Layers(layers) = speculator.architecture().unwrap() else {
        panic!("layers");
    };
    let arithmetic = Arithmetic::cpu(WeightType::F32, isa);
    let model = ReferenceModel::load_with(layers, speculator, arithmetic, Some(&target));
    [target, model.unwrap()].map(Arc::new)
}

/// Returns the weights of the target and of the drafter's layers.
pub(crate) fn weights((checkpoint, speculator, _): &Opened) -> [Arc<Weights>; 2] {
    let target = Arc::new(Weights::load_as(checkpoint, WeightType::F32).unwrap());
    match SpeculatorWeights::load(speculator, &target, WeightType::F32.into()).unwrap() {
        SpeculatorWeights::Layers(weights) => [target, weights],
        SpeculatorWeights::Heads(_) => panic!("layers"),
    }
}

/// Returns the target and the drafter's layers on two threads with each instruction set, and its
/// name.
pub(crate) fn on_cpu(
    opened: Opened,
) -> impl Iterator<Item = (CachedTransformer<Transformer>, Transformer, String)> {
    let weights = weights(&opened);
    Isa::available().into_iter().map(move |isa| {
        let team = Arc::new(Team::unpinned(2).unwrap().with_isa(isa));
        let [target, drafter] = weights
            .each_ref()
            .map(|weights| Transformer::new(Arc::clone(weights), Arc::clone(&team)));
        let target = CachedTransformer::new(target.with_features(opened.2.clone()));
        (target, drafter, isa.to_string())
    })
}

/// Returns the token with the largest logit.
pub(crate) fn best(row: &[f32]) -> TokenId {
    let tokens = (0..).zip(row.iter().copied());
    tokens.max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap().0
}

/// Checks the target's next token and features, and returns the features of all tokens of the
/// prompt.
pub(crate) fn features(target: &mut impl LayeredModel, golden: &Golden, what: &str) -> Features {
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
pub(crate) fn draft_one_by_one(
    model: &mut impl LanguageModel,
    golden: &Golden,
    features: &Features,
) -> Vec<TokenId> {
    let tokens = golden.tokens();
    let mut drafted = Vec::new();
    for first_row in 0..golden.draft_ids.len() {
        let tree = TokenTree::chain(&drafted);
        let request = ForwardRequest::new(SEQUENCE, &tokens, &tree);
        let request = ForwardRequest { first_row, features: Some(features), ..request };
        drafted.push(best(&model.logits(&request).unwrap().logits));
    }
    model.release(SEQUENCE);
    drafted
}

/// Checks all goldens of drafters on the reference device. `model` makes a drafter of its layers,
/// which `draft` uses.
pub(crate) fn assert_drafts_on_reference<M>(
    folder: &Path,
    drafters: &[&str],
    open: impl Fn(&str) -> Opened,
    model: impl Fn(ReferenceDevice) -> M,
    draft: impl Fn(&mut M, &Golden, &Features) -> Vec<TokenId>,
) {
    for drafter in drafters {
        let (mut target, device) = on_reference(open(drafter));
        let mut model = model(device);
        assert_drafts_with(
            &folder.join(drafter),
            &mut target,
            "the reference",
            |golden, features| draft(&mut model, golden, features),
        );
    }
}

/// Checks all goldens of drafters with each instruction set, as [`assert_drafts_on_reference`]
/// does.
pub(crate) fn assert_drafts_on_cpu<M>(
    folder: &Path,
    drafters: &[&str],
    open: impl Fn(&str) -> Opened,
    model: impl Fn(Transformer) -> M,
    draft: impl Fn(&mut M, &Golden, &Features) -> Vec<TokenId>,
) {
    for drafter in drafters {
        for (mut target, device, isa) in on_cpu(open(drafter)) {
            let mut model = model(device);
            assert_drafts_with(&folder.join(drafter), &mut target, &isa, |golden, features| {
                draft(&mut model, golden, features)
            });
        }
    }
}

/// Checks all goldens of a drafter's folder with a target on some device.
pub(crate) fn assert_drafts_with(
    folder: &Path,
    target: &mut impl LayeredModel,
    device: &str,
    mut draft: impl FnMut(&Golden, &Features) -> Vec<TokenId>,
) {
    for (number, golden) in goldens(folder).prompts.iter().enumerate() {
        let what = format!("{}, prompt {number}, {device}", folder.display());
        let features = features(target, golden, &what);
        assert_eq!(draft(golden, &features), golden.draft_ids, "{what}");
    }
}

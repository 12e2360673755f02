//! What the comparisons of drafters with their ports have in common (`scripts/goldens`): golden
//! files, the target's features, and greedy drafts.

pub(crate) mod blocks;

use forerun::checkpoint::{Checkpoint, LoadError};
use forerun::cpu::{Team, Weights};
use forerun::{TokenId, WeightType};
use forerun_core::{DraftShape, Sampling, TargetFeedback};
use forerun_core::{Features, SequenceId, TokenTree};
use forerun_cpu::{BlockHeadWeights, CpuBlockHeads, Isa, SpeculatorWeights, Transformer};
use forerun_draft::{DraftContext, Drafter};
use forerun_formats::{FeatureSource, Speculator, SpeculatorArchitecture};
use forerun_lm::{ForwardRequest, LanguageModel, LayeredModel};
use forerun_model::CachedTransformer;
use forerun_reference::{Arithmetic, ReferenceDevice, ReferenceModel};
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(crate) const SEQUENCE: SequenceId = SequenceId(1);

/// The tolerance of features. The peers compute in f64, or add in another order.
const TOLERANCE: f64 = 1e-4;

/// A folder of goldens: drafters of one kind, and their target.
pub(crate) struct GoldenDrafters {
    /// The name of the folder in `tests/goldens`.
    pub(crate) folder: &'static str,
    /// The folders of the drafters, in order.
    pub(crate) names: &'static [&'static str],
    /// Opens the drafter of a folder.
    pub(crate) open: fn(&Path) -> Opened,
}

/// A target, its drafter, and the features that the drafter reads.
pub(crate) type Opened = (Checkpoint, Speculator, FeatureSource);

/// Opens a drafter whose target is in the folder next to it.
pub(crate) fn open(drafter: &Path) -> Opened {
    let target = Checkpoint::open(&drafter.with_file_name("target")).unwrap();
    let speculator = Speculator::open(drafter, &target).unwrap().unwrap();
    let source = speculator.features().unwrap();
    (target, speculator, source)
}

impl GoldenDrafters {
    pub(crate) fn path(&self, drafter: &str) -> PathBuf {
        let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
        goldens.join(self.folder).join(drafter)
    }

    pub(crate) fn open(&self, drafter: &str) -> Opened {
        (self.open)(&self.path(drafter))
    }

    /// Opens a drafter and its architecture after a change of its configuration: another value at a
    /// path of names, or `null`.
    pub(crate) fn open_with(
        &self,
        drafter: &str,
        path: &[&str],
        value: Value,
    ) -> Result<Speculator, LoadError> {
        let (name, parents) = path.split_last().unwrap();
        self.open_changed(drafter, |config| {
            let parent = parents.iter().fold(config, |inner, parent| &mut inner[*parent]);
            parent[*name] = value;
        })
    }

    /// Opens a drafter and its architecture after a change of its configuration.
    pub(crate) fn open_changed(
        &self,
        drafter: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<Speculator, LoadError> {
        let changed = tempfile::tempdir().unwrap();
        let source = self.path(drafter);
        let text = fs::read_to_string(source.join("config.json")).unwrap();
        let mut config = serde_json::from_str(&text).unwrap();
        change(&mut config);
        fs::write(changed.path().join("config.json"), config.to_string()).unwrap();
        let is_weights = |name: &&String| name.ends_with(".safetensors");
        for name in names(&source).iter().filter(is_weights) {
            fs::copy(source.join(name), changed.path().join(name)).unwrap();
        }
        let target = Checkpoint::open(&source.with_file_name("target")).unwrap();
        let speculator = Speculator::open(changed.path(), &target)?.unwrap();
        speculator.architecture()?;
        Ok(speculator)
    }

    /// Checks that each of these values is refused with its name.
    pub(crate) fn assert_refused(&self, cases: &[(&str, &[&str], Value)]) {
        for (drafter, path, value) in cases {
            let error = self.open_with(drafter, path, value.clone()).err().unwrap().to_string();
            let name = path.last().unwrap();
            assert!(error.contains(name), "{error} names {name}");
        }
    }

    /// Checks that these are all drafters of the folder.
    pub(crate) fn assert_all_are_named(&self) {
        let mut names = names(&self.path(""));
        names.retain(|name| name != "target");
        assert_eq!(names, self.names);
    }

    /// Checks that each drafter reads the features that its peer does.
    pub(crate) fn assert_features(&self) {
        for drafter in self.names {
            let layers = goldens(&self.path(drafter)).header.layers_before_features;
            assert_eq!(self.open(drafter).2, FeatureSource::Layers(layers), "{drafter}");
        }
    }

    /// Checks all goldens on the reference device. `model` makes a drafter of its layers, which
    /// `draft` uses.
    pub(crate) fn assert_drafts_on_reference<M>(
        &self,
        model: impl Fn(ReferenceDevice) -> M,
        draft: impl Fn(&mut M, &Golden, &Features) -> Vec<TokenId>,
    ) {
        for drafter in self.names {
            let (mut target, device) = on_reference(self.open(drafter));
            let (mut model, path) = (model(device), self.path(drafter));
            assert_drafts_with(&path, &mut target, "the reference", |golden, features| {
                draft(&mut model, golden, features)
            });
        }
    }

    /// Checks all goldens with each instruction set, as
    /// [`Self::assert_drafts_on_reference`] does.
    pub(crate) fn assert_drafts_on_cpu<M>(
        &self,
        model: impl Fn(Transformer) -> M,
        draft: impl Fn(&mut M, &Golden, &Features) -> Vec<TokenId>,
    ) {
        for drafter in self.names {
            for (mut target, device, isa) in on_cpu(self.open(drafter)) {
                let (mut model, path) = (model(device), self.path(drafter));
                assert_drafts_with(&path, &mut target, &isa.to_string(), |golden, features| {
                    draft(&mut model, golden, features)
                });
            }
        }
    }
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

/// Returns the target and the drafter's layers on two threads with each instruction set.
pub(crate) fn on_cpu(
    opened: Opened,
) -> impl Iterator<Item = (CachedTransformer<Transformer>, Transformer, Isa)> {
    let weights = weights(&opened);
    Isa::available().into_iter().map(move |isa| {
        let team = Arc::new(Team::unpinned(2).unwrap().with_isa(isa));
        let [target, drafter] = weights
            .each_ref()
            .map(|weights| Transformer::new(Arc::clone(weights), Arc::clone(&team)));
        let target = CachedTransformer::new(target.with_features(opened.2.clone()));
        (target, drafter, isa)
    })
}

/// Returns the same with the fastest instruction set.
pub(crate) fn on_best_cpu(opened: Opened) -> (CachedTransformer<Transformer>, Transformer) {
    let (target, drafter, _) = on_cpu(opened).find(|(.., isa)| *isa == Isa::best()).unwrap();
    (target, drafter)
}

/// Returns the heads of a block drafter, on two threads, if it has any.
pub(crate) fn cpu_heads(speculator: &Speculator, isa: Isa) -> Option<CpuBlockHeads> {
    let heads = speculator.block_heads().unwrap()?;
    let weights = BlockHeadWeights::load(heads, speculator, WeightType::F32.into()).unwrap();
    let team = Arc::new(Team::unpinned(2).unwrap().with_isa(isa));
    Some(CpuBlockHeads::new(Arc::new(weights), team))
}

/// Drafts a chain of at most `length` tokens greedily.
pub(crate) fn draft_chain(
    drafter: &mut impl Drafter,
    tokens: &[TokenId],
    features: &Features,
    length: usize,
) -> Vec<TokenId> {
    let sampling = Sampling::greedy();
    let context = DraftContext {
        sequence: SEQUENCE,
        tokens,
        prompt_len: 1,
        sampling: &sampling,
        randomness: &sampling.randomness,
        shape: &DraftShape::Chain { length },
        feedback: &TargetFeedback { features: features.clone(), last_draft: None },
        cancel: &AtomicBool::new(false),
        tokens_on_last_device: None,
    };
    let tokens = drafter.draft(&context).unwrap().tree.tokens().to_vec();
    drafter.release(SEQUENCE);
    tokens
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

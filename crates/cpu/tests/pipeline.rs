//! A model on several devices is bit-identical to the model on one: in logits, features and caches,
//! for every split into stages. A pass that ends between two stages leaves the cache unchanged.

use forerun_core::testing::cases;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_cpu::{
    AlternatingModel, CpuPages, ExclusiveDevice, PipelineError, PipelineParallelModel, Team,
    Transformer, Weights, snapshot,
};
use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_formats::{Checkpoint, Config, FeatureSource, WeightType};
use forerun_lm::{
    DeviceChoice, ForwardRequest, LanguageModel, LayerGroups, LayerOrder, LayeredModel, ModelError,
};
use forerun_model::{CachedTransformer, Forward};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const SEQUENCE: SequenceId = SequenceId(4);
const LAYERS: usize = 5;

/// What a device does after each use.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    Normal,
    /// It panics.
    Panics,
    /// It cancels the pass.
    Cancels,
}

/// A device that records its uses.
struct RecordingDevice {
    name: &'static str,
    team: Arc<Team>,
    free: bool,
    behaviour: Arc<Mutex<Behaviour>>,
    cancel: Arc<AtomicBool>,
    uses: Arc<Mutex<Vec<&'static str>>>,
}

impl ExclusiveDevice for RecordingDevice {
    fn team(&self) -> &Arc<Team> {
        &self.team
    }

    fn is_free(&self) -> bool {
        self.free
    }

    fn run_exclusive(&self, work: &mut dyn FnMut()) {
        self.uses.lock().unwrap().push(self.name);
        work();
        let behaviour = *self.behaviour.lock().unwrap();
        assert_ne!(behaviour, Behaviour::Panics, "something breaks");
        self.cancel.fetch_or(behaviour == Behaviour::Cancels, Ordering::Relaxed);
    }
}

/// The state that all devices of a test share.
#[derive(Clone, Default)]
struct Fixture {
    cancel: Arc<AtomicBool>,
    uses: Arc<Mutex<Vec<&'static str>>>,
}

impl Fixture {
    fn device(&self, name: &'static str, members: usize) -> RecordingDevice {
        RecordingDevice {
            name,
            team: Arc::new(Team::unpinned(members).unwrap()),
            free: true,
            behaviour: Arc::new(Mutex::new(Behaviour::Normal)),
            cancel: Arc::clone(&self.cancel),
            uses: Arc::clone(&self.uses),
        }
    }

    fn take_uses(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.uses.lock().unwrap())
    }
}

fn load(config: &Config, weight_type: WeightType) -> Arc<Weights> {
    let dir = tempfile::tempdir().unwrap();
    write_random_checkpoint(dir.path(), config, 5, RandomDtype::F32).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    Arc::new(Weights::load_as(&checkpoint, weight_type).unwrap())
}

/// Five layers in two weight types.
fn weights() -> &'static [Arc<Weights>] {
    static WEIGHTS: OnceLock<Vec<Arc<Weights>>> = OnceLock::new();
    WEIGHTS.get_or_init(|| {
        let config = Config { num_hidden_layers: LAYERS, ..example_config() };
        [WeightType::F32, WeightType::INT8].map(|own| load(&config, own)).into()
    })
}

fn source() -> FeatureSource {
    FeatureSource::Layers(vec![0, 2, LAYERS])
}

fn single_device(weights: &Arc<Weights>) -> CachedTransformer<Transformer> {
    let model = Transformer::new(Arc::clone(weights), Arc::new(Team::single_thread()));
    CachedTransformer::new(model.with_features(source()))
}

type OnDevices = CachedTransformer<Box<dyn Forward<Storage = CpuPages>>>;

fn pipeline(weights: &Arc<Weights>, devices: Vec<RecordingDevice>) -> OnDevices {
    let devices =
        devices.into_iter().map(|device| Box::new(device) as Box<dyn ExclusiveDevice>).collect();
    let pipeline = PipelineParallelModel::new(weights, devices).unwrap().with_features(&source());
    CachedTransformer::new(Box::new(pipeline))
}

fn bits(model: &mut impl LanguageModel, request: &Request, cancel: &AtomicBool) -> Vec<u32> {
    bits_of(model, &request.context(cancel))
}

fn bits_of(model: &mut impl LanguageModel, request: &ForwardRequest<'_>) -> Vec<u32> {
    let output = model.logits(request).unwrap();
    output.logits.iter().map(|logit| logit.to_bits()).collect()
}

#[derive(Clone, Debug)]
struct Request {
    tokens: Vec<TokenId>,
    tree: TokenTree,
    first_row: usize,
}

impl Request {
    fn context<'a>(&'a self, cancel: &'a AtomicBool) -> ForwardRequest<'a> {
        let Self { tokens, tree, first_row } = self;
        let request = ForwardRequest::new(SEQUENCE, tokens, tree);
        ForwardRequest { first_row: *first_row, cancel, ..request }
    }
}

/// Sequences of requests. Each continues the one before, or rolls back.
fn requests() -> impl Strategy<Value = Vec<Request>> {
    let nodes = prop::collection::vec((0..9_usize, 0..4_u32), 0..9);
    let step = (0..40_usize, prop::collection::vec(0..4_u32, 1..8), nodes, 0..6_usize);
    prop::collection::vec(step, 1..7).prop_map(|steps| {
        let mut tokens: Vec<TokenId> = Vec::new();
        let requests = steps.into_iter().map(|(keep, append, nodes, first_row)| {
            tokens.truncate(keep);
            tokens.extend(append);
            let mut tree = TokenTree::new();
            for (parent, token) in nodes {
                tree.push(parent.checked_sub(1).filter(|&node| node < tree.len()), token);
            }
            let first_row = first_row.min(tree.len());
            Request { tokens: tokens.clone(), tree, first_row }
        });
        requests.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(32)))]

    #[test]
    fn a_pipeline_has_the_bits_of_a_single_device(
        kind in 0..weights().len(), stages in 1..=LAYERS, members in 1..3_usize,
        requests in requests(),
    ) {
        let weights = &weights()[kind];
        let fixture = Fixture::default();
        let names = &["a", "b", "c", "d", "e"][..stages];
        let devices = names.iter().map(|name| fixture.device(name, members)).collect();
        let (mut single, mut pipelined) = (single_device(weights), pipeline(weights, devices));
        for request in &requests {
            let expected = bits(&mut single, request, &fixture.cancel);
            prop_assert_eq!(bits(&mut pipelined, request, &fixture.cancel), expected);
            prop_assert_eq!(fixture.take_uses(), names);
            prop_assert!(snapshot(&pipelined, SEQUENCE) == snapshot(&single, SEQUENCE));
            let context = request.context(&fixture.cancel);
            let context = ForwardRequest { features_from: Some(0), ..context };
            let features = pipelined.logits(&context).unwrap().features.unwrap();
            prop_assert_eq!(features.len(), request.tokens.len() + request.tree.len());
            prop_assert_eq!(Some(features), single.logits(&context).unwrap().features);
            fixture.take_uses();
        }
    }

    #[test]
    fn an_alternating_model_has_the_bits_of_a_single_device(
        kind in 0..weights().len(), shares in prop::collection::vec(0..4_usize, 7),
        requests in requests(),
    ) {
        let weights = &weights()[kind];
        let fixture = Fixture::default();
        let devices: [Box<dyn ExclusiveDevice>; 2] =
            [Box::new(fixture.device("first", 1)), Box::new(fixture.device("last", 2))];
        let alternating = AlternatingModel::new(weights, devices);
        let mut alternating = CachedTransformer::new(alternating);
        let mut single = single_device(weights);
        let groups = LayerGroups::of_sizes(&[1, LAYERS - 2, 1]);
        for (request, share) in requests.iter().zip(shares) {
            for pass in 0..2 {
                let expected = bits(&mut single, request, &fixture.cancel);
                let device = if share > pass { DeviceChoice::Last } else { DeviceChoice::First };
                let request = ForwardRequest { device, ..request.context(&fixture.cancel) };
                prop_assert_eq!(bits_of(&mut alternating, &request), expected);
            }
            let expected = [share > 0, share > 1].map(|last| if last { "last" } else { "first" });
            prop_assert_eq!(fixture.take_uses(), expected);
            // Also with layers in groups, as the layer-parallel drafter computes them.
            let (order, exact_tokens) = (LayerOrder::Groups(&groups), request.tokens.len());
            let context = request.context(&fixture.cancel);
            let context = ForwardRequest { order, exact_tokens, ..context };
            let approximate = [&mut single as &mut dyn LayeredModel, &mut alternating]
                .map(|model| model.logits(&context).unwrap().logits);
            prop_assert_eq!(&approximate[0], &approximate[1]);
            fixture.take_uses();
        }
    }
}

#[test]
fn passes_without_a_device_use_a_free_one() {
    let weights = &weights()[0];
    for (first_is_free, last_is_free, expected) in [
        (true, true, "last"),
        (true, false, "first"),
        (false, true, "last"),
        (false, false, "last"),
    ] {
        let fixture = Fixture::default();
        let device = |name, free| RecordingDevice { free, ..fixture.device(name, 1) };
        let devices: [Box<dyn ExclusiveDevice>; 2] =
            [Box::new(device("first", first_is_free)), Box::new(device("last", last_is_free))];
        let mut model = CachedTransformer::new(AlternatingModel::new(weights, devices));
        model.logits(&ForwardRequest::next_token(SEQUENCE, &[1, 2])).unwrap();
        assert_eq!(fixture.take_uses(), [expected]);
    }
}

/// A long prompt needs several passes, all of them on the request's device.
#[test]
fn all_passes_of_a_request_use_its_device() {
    let fixture = Fixture::default();
    let devices: [Box<dyn ExclusiveDevice>; 2] =
        [Box::new(fixture.device("first", 1)), Box::new(fixture.device("last", 1))];
    let mut model = CachedTransformer::new(AlternatingModel::new(&weights()[0], devices));
    let mut tokens: Vec<TokenId> = (0..400).map(|index| index % 7).collect();
    for device in [DeviceChoice::Last, DeviceChoice::Last, DeviceChoice::First] {
        let request = ForwardRequest::next_token(SEQUENCE, &tokens);
        model.logits(&ForwardRequest { device, ..request }).unwrap();
        tokens.push(3);
    }
    assert_eq!(fixture.take_uses(), ["last", "last", "last", "first"]);
}

#[test]
fn a_pass_that_ends_between_stages_leaves_the_cache_unchanged() {
    let weights = &weights()[0];
    let fixture = Fixture::default();
    let devices: Vec<RecordingDevice> = ["a", "b", "c"].map(|name| fixture.device(name, 1)).into();
    let behaviours: Vec<_> = devices.iter().map(|device| Arc::clone(&device.behaviour)).collect();
    let (mut pipelined, mut single) = (pipeline(weights, devices), single_device(weights));
    let request = |len: usize| Request {
        tokens: (0..len as TokenId).map(|index| index * 5 % 11).collect(),
        tree: TokenTree::chain(&[1, 2]),
        first_row: 0,
    };
    bits(&mut pipelined, &request(6), &fixture.cancel);
    fixture.take_uses();
    for (stage, held) in [(0, 6), (1, 12)] {
        *behaviours[stage].lock().unwrap() = Behaviour::Cancels;
        let request = request(12 + stage);
        let ended = pipelined.logits(&request.context(&fixture.cancel)).err();
        assert_eq!(ended, Some(ModelError::Cancelled));
        // The next stage checks for cancellation before its first layer.
        assert_eq!(fixture.take_uses(), &["a", "b", "c"][..stage + 2]);
        let (prefix, nodes, _) = snapshot(&pipelined, SEQUENCE).unwrap();
        assert_eq!((&prefix[..], nodes.len()), (&request.tokens[..held], 0));
        *behaviours[stage].lock().unwrap() = Behaviour::Normal;
        fixture.cancel.store(false, Ordering::Relaxed);
        assert_eq!(
            bits(&mut pipelined, &request, &fixture.cancel),
            bits(&mut single, &request, &fixture.cancel)
        );
        fixture.take_uses();
    }
    for (stage, behaviour) in behaviours.iter().enumerate() {
        *behaviour.lock().unwrap() = Behaviour::Panics;
        let request = request(20 + stage);
        let held = pipelined.cache(SEQUENCE).unwrap().index().slots();
        let run = AssertUnwindSafe(|| bits(&mut pipelined, &request, &fixture.cancel));
        assert!(catch_unwind(run).is_err());
        let kept = pipelined.cache(SEQUENCE).unwrap().index().slots();
        assert!(kept <= held, "no row of an interrupted pass counts as held");
        *behaviour.lock().unwrap() = Behaviour::Normal;
        assert_eq!(
            bits(&mut pipelined, &request, &fixture.cancel),
            bits(&mut single, &request, &fixture.cancel)
        );
    }
}

#[test]
fn more_stages_than_layers_are_an_error() {
    let config = Config { num_hidden_layers: 1, ..example_config() };
    let weights = load(&config, WeightType::F32);
    let fixture = Fixture::default();
    let devices =
        ["a", "b"].map(|name| Box::new(fixture.device(name, 1)) as Box<dyn ExclusiveDevice>).into();
    let error = PipelineParallelModel::new(&weights, devices).err().unwrap();
    assert_eq!(error, PipelineError { n_layers: 1, stages: 2 });
    let message = error.to_string();
    assert!(message.contains("1 layer cannot be split into 2 pipeline stages"), "{message}");
}

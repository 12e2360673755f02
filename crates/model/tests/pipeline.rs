//! A model on several devices in turn is the model on one: the same bits in logits, features and caches,
//! wherever it is cut; and what ends a pass between two stages leaves a cache as it was.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_model::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_model::{
    AlternatingModel, CachedTransformer, Checkpoint, Config, ExclusiveDevice, FeatureSource,
    Forward, LanguageModel, LayerGroups, LayeredModel, LogitsContext, ModelError, PassAssignment,
    PipelineError, PipelineParallelModel, Team, Transformer, WeightType, Weights,
};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const SEQUENCE: SequenceId = SequenceId(4);
const LAYERS: usize = 5;

/// What a place does to those who come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Calm,
    /// Something breaks when they are done.
    Panics,
    /// Nobody wants the pass any more when they are done.
    Cancels,
}

/// A device that notes who came.
struct Noting {
    name: &'static str,
    team: Arc<Team>,
    free: bool,
    mood: Arc<Mutex<Mood>>,
    cancel: Arc<AtomicBool>,
    visits: Arc<Mutex<Vec<&'static str>>>,
}

impl ExclusiveDevice for Noting {
    fn team(&self) -> &Arc<Team> {
        &self.team
    }

    fn is_free(&self) -> bool {
        self.free
    }

    fn visit(&self, work: &mut dyn FnMut()) {
        self.visits.lock().unwrap().push(self.name);
        work();
        let mood = *self.mood.lock().unwrap();
        assert_ne!(mood, Mood::Panics, "something breaks");
        self.cancel.fetch_or(mood == Mood::Cancels, Ordering::Relaxed);
    }
}

/// What places have in common, for tests to see and to change.
#[derive(Clone, Default)]
struct World {
    cancel: Arc<AtomicBool>,
    visits: Arc<Mutex<Vec<&'static str>>>,
}

impl World {
    fn place(&self, name: &'static str, members: usize) -> Noting {
        Noting {
            name,
            team: Arc::new(Team::unpinned(members).unwrap()),
            free: true,
            mood: Arc::new(Mutex::new(Mood::Calm)),
            cancel: Arc::clone(&self.cancel),
            visits: Arc::clone(&self.visits),
        }
    }

    fn take_visits(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.visits.lock().unwrap())
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
        [WeightType::F32, WeightType::Int8].map(|own| load(&config, own)).into()
    })
}

fn source() -> FeatureSource {
    FeatureSource::Layers(vec![0, 2, LAYERS])
}

/// The model on one device.
fn whole(weights: &Arc<Weights>) -> CachedTransformer {
    let model = Transformer::new(Arc::clone(weights), Arc::new(Team::single_thread()));
    CachedTransformer::new(model.with_features(source()))
}

type OnDevices = CachedTransformer<Box<dyn Forward>>;

fn pipeline(weights: &Arc<Weights>, places: Vec<Noting>) -> OnDevices {
    let places =
        places.into_iter().map(|place| Box::new(place) as Box<dyn ExclusiveDevice>).collect();
    let pipeline = PipelineParallelModel::new(weights, places).unwrap().with_features(&source());
    CachedTransformer::new(Box::new(pipeline))
}

fn bits(model: &mut impl LanguageModel, asked: &Asked, cancel: &AtomicBool) -> Vec<u32> {
    let logits = model.logits(&asked.context(cancel)).unwrap();
    logits.values.iter().map(|logit| logit.to_bits()).collect()
}

/// A request.
#[derive(Clone, Debug)]
struct Asked {
    tokens: Vec<TokenId>,
    tree: TokenTree,
    first_row: usize,
}

impl Asked {
    fn context<'a>(&'a self, cancel: &'a AtomicBool) -> LogitsContext<'a> {
        let Self { tokens, tree, first_row } = self;
        LogitsContext { sequence: SEQUENCE, tokens, tree, first_row: *first_row, cancel }
    }
}

/// Requests that go on behind one another, or go back.
fn requests() -> impl Strategy<Value = Vec<Asked>> {
    let nodes = prop::collection::vec((0..9_usize, 0..4_u32), 0..9);
    let step = (0..40_usize, prop::collection::vec(0..4_u32, 1..8), nodes, 0..6_usize);
    prop::collection::vec(step, 1..7).prop_map(|steps| {
        let mut tokens: Vec<TokenId> = Vec::new();
        let asked = steps.into_iter().map(|(keep, append, nodes, first_row)| {
            tokens.truncate(keep);
            tokens.extend(append);
            let mut tree = TokenTree::new();
            for (parent, token) in nodes {
                tree.push(parent.checked_sub(1).filter(|&node| node < tree.len()), token);
            }
            let first_row = first_row.min(tree.len());
            Asked { tokens: tokens.clone(), tree, first_row }
        });
        asked.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("FORERUN_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(32)
    ))]

    #[test]
    fn stages_are_the_model_bit_for_bit(
        kind in 0..weights().len(), stages in 1..=LAYERS, members in 1..3_usize,
        requests in requests(),
    ) {
        let weights = &weights()[kind];
        let world = World::default();
        let names = &["a", "b", "c", "d", "e"][..stages];
        let places = names.iter().map(|name| world.place(name, members)).collect();
        let (mut whole, mut cut) = (whole(weights), pipeline(weights, places));
        for asked in &requests {
            let expected = bits(&mut whole, asked, &world.cancel);
            prop_assert_eq!(bits(&mut cut, asked, &world.cancel), expected);
            prop_assert_eq!(world.take_visits(), names);
            let rows = 0..asked.tokens.len() + asked.tree.len();
            prop_assert_eq!(cut.features(SEQUENCE, rows.clone()), whole.features(SEQUENCE, rows));
            let held = |cache: Option<&forerun_model::kv_cache::KvCache>| cache.unwrap().snapshot();
            prop_assert!(held(cut.cache(SEQUENCE)) == held(whole.cache(SEQUENCE)));
        }
    }

    #[test]
    fn a_model_at_two_places_is_the_model_bit_for_bit(
        kind in 0..weights().len(), shares in prop::collection::vec(0..4_usize, 7),
        requests in requests(),
    ) {
        let weights = &weights()[kind];
        let world = World::default();
        let places: [Box<dyn ExclusiveDevice>; 2] =
            [Box::new(world.place("first", 1)), Box::new(world.place("last", 2))];
        let sharing = PassAssignment::default();
        let shuttle = AlternatingModel::new(weights, places, sharing.clone());
        let (mut whole, mut shuttle) = (whole(weights), CachedTransformer::new(shuttle));
        let groups = LayerGroups::of_sizes(&[1, LAYERS - 2, 1]);
        for (asked, share) in requests.iter().zip(shares) {
            sharing.assign_to_last(Some(share));
            for _ in 0..2 {
                let expected = bits(&mut whole, asked, &world.cancel);
                prop_assert_eq!(bits(&mut shuttle, asked, &world.cancel), expected);
            }
            let by_share = [share > 0, share > 1].map(|last| if last { "last" } else { "first" });
            prop_assert_eq!(world.take_visits(), by_share);
            // Layers in groups, as a fuzzy drafter computes them, too.
            let (context, exact) = (asked.context(&world.cancel), asked.tokens.len());
            let approximate = [&mut whole as &mut dyn LayeredModel, &mut shuttle]
                .map(|model| model.layer_parallel_logits(&context, &groups, exact).unwrap().values);
            prop_assert_eq!(&approximate[0], &approximate[1]);
            world.take_visits();
        }
    }
}

#[test]
fn passes_go_where_nobody_is_unless_they_are_shared_out() {
    let weights = &weights()[0];
    for (first_is_free, last_is_free, expected) in [
        (true, true, "last"),
        (true, false, "first"),
        (false, true, "last"),
        (false, false, "last"),
    ] {
        let world = World::default();
        let place = |name, free| Noting { free, ..world.place(name, 1) };
        let places: [Box<dyn ExclusiveDevice>; 2] =
            [Box::new(place("first", first_is_free)), Box::new(place("last", last_is_free))];
        let mut model = CachedTransformer::new(AlternatingModel::new(
            weights,
            places,
            PassAssignment::default(),
        ));
        model.logits(&LogitsContext::next_token(SEQUENCE, &[1, 2])).unwrap();
        assert_eq!(world.take_visits(), [expected]);
    }
}

/// A long prompt makes one token, in its last part.
#[test]
fn parts_of_a_prompt_count_for_no_token() {
    let world = World::default();
    let places: [Box<dyn ExclusiveDevice>; 2] =
        [Box::new(world.place("first", 1)), Box::new(world.place("last", 1))];
    let sharing = PassAssignment::default();
    let shuttle = AlternatingModel::new(&weights()[0], places, sharing.clone());
    let mut model = CachedTransformer::new(shuttle);
    let mut tokens: Vec<TokenId> = (0..400).map(|index| index % 7).collect();
    sharing.assign_to_last(Some(2));
    for _ in 0..3 {
        model.logits(&LogitsContext::next_token(SEQUENCE, &tokens)).unwrap();
        tokens.push(3);
    }
    assert_eq!(world.take_visits(), ["last", "last", "last", "first"]);
}

#[test]
fn what_ends_a_pass_between_stages_leaves_the_cache_as_it_was() {
    let weights = &weights()[0];
    let world = World::default();
    let places: Vec<Noting> = ["a", "b", "c"].map(|name| world.place(name, 1)).into();
    let moods: Vec<_> = places.iter().map(|place| Arc::clone(&place.mood)).collect();
    let (mut cut, mut whole) = (pipeline(weights, places), whole(weights));
    let asked = |len: usize| Asked {
        tokens: (0..len as TokenId).map(|index| index * 5 % 11).collect(),
        tree: TokenTree::chain(&[1, 2]),
        first_row: 0,
    };
    bits(&mut cut, &asked(6), &world.cancel);
    world.take_visits();
    for (stage, held) in [(0, 6), (1, 12)] {
        *moods[stage].lock().unwrap() = Mood::Cancels;
        let asked = asked(12 + stage);
        let ended = cut.logits(&asked.context(&world.cancel)).err();
        assert_eq!(ended, Some(ModelError::Cancelled));
        // The next stage looks before its first layer.
        assert_eq!(world.take_visits(), &["a", "b", "c"][..stage + 2]);
        let (prefix, nodes, _) = cut.cache(SEQUENCE).unwrap().snapshot();
        assert_eq!((&prefix[..], nodes.len()), (&asked.tokens[..held], 0));
        *moods[stage].lock().unwrap() = Mood::Calm;
        world.cancel.store(false, Ordering::Relaxed);
        assert_eq!(bits(&mut cut, &asked, &world.cancel), bits(&mut whole, &asked, &world.cancel));
        world.take_visits();
    }
    for (stage, mood) in moods.iter().enumerate() {
        *mood.lock().unwrap() = Mood::Panics;
        let asked = asked(20 + stage);
        let run = AssertUnwindSafe(|| bits(&mut cut, &asked, &world.cancel));
        assert!(catch_unwind(run).is_err());
        assert!(cut.cache(SEQUENCE).is_none(), "a cache that may be half written is gone");
        *mood.lock().unwrap() = Mood::Calm;
        assert_eq!(bits(&mut cut, &asked, &world.cancel), bits(&mut whole, &asked, &world.cancel));
    }
}

#[test]
fn more_stages_than_layers_are_refused() {
    let config = Config { num_hidden_layers: 1, ..example_config() };
    let weights = load(&config, WeightType::F32);
    let world = World::default();
    let places =
        ["a", "b"].map(|name| Box::new(world.place(name, 1)) as Box<dyn ExclusiveDevice>).into();
    let error = PipelineParallelModel::new(&weights, places).err().unwrap();
    assert_eq!(error, PipelineError { n_layers: 1, stages: 2 });
    let message = error.to_string();
    assert!(message.contains("1 layer cannot be cut into 2 stages"), "{message}");
}

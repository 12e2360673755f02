//! A model that several members compute together has the bits of one device: for every family, in
//! every weight type, on any number of members. Passes that fail or are cancelled leave no member
//! out of step.

use forerun_cache::PageStorage;
use forerun_core::testing::is_complete;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_cpu::{
    CorePart, Exchange, ExchangeError, Recipients, Share, Take, Team, TensorParallelFollower,
    TensorParallelModel, ThreadExchange, Transformer, Weights,
};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, example_families, scale_tensor, write_random_checkpoint,
};
use forerun_formats::{
    BlockType, CacheType, Checkpoint, Config, FeatureSource, ModelTypes, WeightType,
};
use forerun_lm::{
    BatchEntry, CachePart, ForwardOutput, ForwardRequest, LanguageModel, LayerGroups, LayerOrder,
    ModelError, Progress,
};
use forerun_model::{CachedTransformer, Forward};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub(crate) const TYPES: [WeightType; 8] = [
    WeightType::F32,
    WeightType::Bf16,
    WeightType::F16,
    WeightType::INT8,
    WeightType::Quantized(BlockType::Q4_K),
    WeightType::Quantized(BlockType::Q6_K),
    WeightType::Quantized(BlockType::Q4_0),
    WeightType::Quantized(BlockType::MXFP4),
];

pub(crate) const CACHES: [Option<CacheType>; 5] =
    [None, Some(CacheType::F16), Some(CacheType::Q8), Some(CacheType::Bf16), Some(CacheType::Q4)];

pub(crate) fn configs() -> Vec<Config> {
    let single_key = Config { num_key_value_heads: 1, ..example_config() };
    let tied = Config { tie_word_embeddings: true, ..example_config() };
    let all = [example_config(), single_key, tied].into_iter().chain(example_families());
    all.map(|config| Config { max_position_embeddings: 700, ..config }).collect()
}

pub(crate) fn checkpoint(config: &Config) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    write_random_checkpoint(dir.path(), config, 5, RandomDtype::F32).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

fn source(checkpoint: &Checkpoint) -> FeatureSource {
    FeatureSource::Layers(vec![0, checkpoint.architecture().layers.len()])
}

/// The model on one device.
fn alone(checkpoint: &Checkpoint, types: ModelTypes) -> CachedTransformer<Transformer> {
    let weights = Weights::load_as(checkpoint, types).unwrap();
    let model = Transformer::new(Arc::new(weights), Arc::new(Team::single_thread()));
    CachedTransformer::new(model.with_features(source(checkpoint)))
}

/// What a member's exchange does at a gathering. It receives the number of the gathering, from 0.
pub(crate) type Disturbance = Box<dyn Fn(usize) -> Behaviour + Send>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Behaviour {
    Normal,
    Panics,
    /// The member goes on without having gathered.
    Skips,
}

pub(crate) struct DisturbedExchange {
    pub(crate) exchange: ThreadExchange,
    /// How often the member has gathered, or sent numbers to another one.
    pub(crate) gathered: usize,
    pub(crate) disturbance: Disturbance,
}

impl Exchange for DisturbedExchange {
    fn member(&self) -> usize {
        self.exchange.member()
    }

    fn members(&self) -> usize {
        self.exchange.members()
    }

    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        self.exchange.send(message)
    }

    fn receive(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        self.exchange.receive()
    }

    fn gather(
        &mut self,
        own: &[f32],
        to: Recipients,
        take: &mut Take<'_>,
    ) -> Result<(), ExchangeError> {
        self.gathered += 1;
        match (self.disturbance)(self.gathered - 1) {
            Behaviour::Normal => self.exchange.gather(own, to, take),
            Behaviour::Panics => panic!("something breaks"),
            Behaviour::Skips => Ok(()),
        }
    }

    fn send_to(&mut self, member: usize, numbers: &[f32]) -> Result<(), ExchangeError> {
        self.gathered += 1;
        match (self.disturbance)(self.gathered - 1) {
            Behaviour::Normal => self.exchange.send_to(member, numbers),
            Behaviour::Panics => panic!("something breaks"),
            Behaviour::Skips => Ok(()),
        }
    }

    fn receive_from(
        &mut self,
        member: usize,
        patience: Option<Duration>,
    ) -> Result<Option<Vec<f32>>, ExchangeError> {
        self.exchange.receive_from(member, patience)
    }
}

/// A model on several threads.
struct Group {
    model: CachedTransformer<TensorParallelModel>,
    followers: Vec<JoinHandle<Result<(), ExchangeError>>>,
}

impl Group {
    fn start(checkpoint: &Checkpoint, types: ModelTypes, members: usize) -> Self {
        Self::disturbed(checkpoint, types, members, |_| Box::new(|_| Behaviour::Normal))
    }

    fn disturbed(
        checkpoint: &Checkpoint,
        types: ModelTypes,
        members: usize,
        disturbance: impl Fn(usize) -> Disturbance,
    ) -> Self {
        let load = |member| {
            let share = CorePart::Share(Share::new(member, members));
            let architecture = checkpoint.architecture().clone();
            let weights = Weights::load_part(share, architecture, checkpoint, types, &mut |_| ());
            Arc::new(weights.unwrap())
        };
        let mut exchanges = ThreadExchange::group(members).into_iter().enumerate();
        let mut exchange = || {
            let (member, exchange) = exchanges.next().unwrap();
            let disturbance = disturbance(member);
            Box::new(DisturbedExchange { exchange, gathered: 0, disturbance })
        };
        let leader = exchange();
        let follower = |member| {
            let (weights, exchange) = (load(member), exchange());
            thread::spawn(move || {
                // Members may have teams of different sizes.
                let team = Arc::new(Team::unpinned(1 + member % 2).unwrap());
                TensorParallelFollower::new(weights, team, exchange).run()
            })
        };
        let followers = (1..members).map(follower).collect();
        let team = Arc::new(Team::single_thread());
        let model = TensorParallelModel::new(load(0), team, leader);
        Self { model: CachedTransformer::new(model.with_features(source(checkpoint))), followers }
    }

    /// Ends the group. Returns whether each follower panicked.
    fn end(self) -> Vec<bool> {
        drop(self.model);
        self.followers.into_iter().map(|follower| follower.join().is_err()).collect()
    }
}

fn bits(output: &ForwardOutput) -> Vec<u32> {
    output.logits.iter().map(|logit| logit.to_bits()).collect()
}

pub(crate) fn tokens(count: u32, seed: u32) -> Vec<TokenId> {
    (0..count).map(|index| (index * 37 + seed * 11) % 259).collect()
}

fn tree() -> TokenTree {
    let mut tree = TokenTree::new();
    for (parent, token) in [(None, 3), (Some(0), 200), (Some(0), 7), (Some(2), 130), (None, 9)] {
        tree.push(parent, token);
    }
    tree
}

/// Computes prompts, drafts, rollbacks, passes of several sequences, and groups of layers if there
/// are any. Returns the bits of all outputs.
pub(crate) fn conversation(
    model: &mut CachedTransformer<impl Forward>,
    groups: Option<&LayerGroups>,
) -> Vec<Vec<u32>> {
    let (none, tree) = (TokenTree::new(), tree());
    let mut outputs = Vec::new();
    let mut run = |model: &mut CachedTransformer<_>, requests: &[ForwardRequest<'_>]| {
        let mut progress: Vec<Progress> = requests.iter().map(|_| Progress::default()).collect();
        while progress.iter().any(|progress| progress.result.is_none()) {
            let entries = requests.iter().zip(&mut progress);
            let mut entries: Vec<BatchEntry<'_>> = entries
                .filter(|(_, progress)| progress.result.is_none())
                .map(|(request, progress)| BatchEntry { request: *request, progress })
                .collect();
            model.forward(&mut entries);
        }
        for progress in progress {
            let output = progress.result.unwrap().unwrap();
            outputs.push(bits(&output));
            let features = output.features.iter().flat_map(forerun_core::FeatureRows::values);
            outputs.push(features.map(|value| value.to_bits()).collect());
        }
    };
    let (long, short) = (tokens(70, 1), tokens(9, 2));
    let first = |tokens, tree| ForwardRequest::new(SequenceId(1), tokens, tree);
    let second = |tokens, tree| ForwardRequest::new(SequenceId(2), tokens, tree);
    run(model, &[first(&long[..66], &none), second(&short, &tree)]);
    run(model, &[first(&long, &tree)]);
    // Rolls back, and takes a branch.
    let branch = [&short[..], &[3, 7]].concat();
    run(model, &[first(&long[..40], &tree), second(&branch, &none)]);
    let features = ForwardRequest { features_from: Some(0), ..second(&branch, &tree) };
    run(model, &[features]);
    let order = groups.map_or(LayerOrder::Sequential, LayerOrder::Groups);
    run(model, &[ForwardRequest { order, exact_tokens: short.len(), ..second(&branch, &tree) }]);
    outputs
}

/// Each family runs with every number of members; with `FORERUN_CASES`, each of its types does.
#[test]
fn every_family_and_type_has_the_bits_of_one_device() {
    let all = is_complete();
    for (number, config) in configs().into_iter().enumerate() {
        let (_dir, checkpoint) = checkpoint(&config);
        let groups = LayerGroups::of_sizes(&vec![1; checkpoint.architecture().layers.len()]);
        for (at, weights) in TYPES.into_iter().enumerate() {
            let cache = CACHES[(number + at) % CACHES.len()];
            let types = ModelTypes { weights: Some(weights.into()), cache };
            let expected = conversation(&mut alone(&checkpoint, types), Some(&groups));
            for members in (2..=4).filter(|members| all || (number + at) % 3 == members - 2) {
                let mut group = Group::start(&checkpoint, types, members);
                let found = conversation(&mut group.model, Some(&groups));
                assert!(found == expected, "{members} members, {weights}, {cache:?}, {config:?}");
                assert_eq!(group.end(), vec![false; members - 1]);
            }
        }
    }
}

/// A model whose pieces are of all kinds: split heads, experts and a shared one.
fn mixture() -> Config {
    let is_mixture = |config: &Config| config.experts.is_some() && config.recurrent.is_none();
    example_families().into_iter().find(is_mixture).unwrap()
}

pub(crate) fn logits(
    model: &mut CachedTransformer<impl Forward>,
    tokens: &[TokenId],
    cancel: &AtomicBool,
) -> Result<Vec<u32>, ModelError> {
    let none = TokenTree::new();
    let request = ForwardRequest { cancel, ..ForwardRequest::new(SequenceId(1), tokens, &none) };
    model.logits(&request).map(|output| bits(&output))
}

#[test]
fn the_leader_cancels_a_pass_on_all_members_at_the_same_layer() {
    let (_dir, checkpoint) = checkpoint(&mixture());
    let types = ModelTypes::default();
    let never = AtomicBool::new(false);
    let (first, second) = (tokens(20, 1), tokens(31, 1));
    let mut alone = alone(&checkpoint, types);
    let expected = [&first, &second].map(|tokens| logits(&mut alone, tokens, &never).unwrap());
    let cancelled_at = |at: Option<usize>| {
        let (cancel, gathered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let disturbance = |member| -> Disturbance {
            if member > 0 {
                return Box::new(|_| Behaviour::Normal);
            }
            let (cancel, gathered) = (Arc::clone(&cancel), Arc::clone(&gathered));
            Box::new(move |count| {
                cancel.fetch_or(Some(count) == at, Ordering::SeqCst);
                gathered.store(count + 1, Ordering::SeqCst);
                Behaviour::Normal
            })
        };
        let mut group = Group::disturbed(&checkpoint, types, 3, disturbance);
        let outcome = logits(&mut group.model, &first, &cancel);
        let after = gathered.load(Ordering::SeqCst);
        cancel.store(false, Ordering::SeqCst);
        assert_eq!(logits(&mut group.model, &second, &cancel).as_ref(), Ok(&expected[1]));
        assert_eq!(group.end(), [false, false]);
        match outcome {
            Ok(found) => assert_eq!(found, expected[0]),
            Err(error) => assert_eq!(error, ModelError::Cancelled),
        }
        after
    };
    let all = cancelled_at(None);
    let ends: Vec<usize> = (0..all).map(|at| cancelled_at(Some(at))).collect();
    assert!(ends[0] < all && ends[0] > 1, "{ends:?}");
    assert_eq!(ends.last(), Some(&all), "the last layer is not cancelled any more");
}

/// The panics of a test, without those that it expects.
pub(crate) fn panic_of<T>(work: impl FnOnce() -> T) -> String {
    let payload = catch_unwind(AssertUnwindSafe(work)).err().unwrap();
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap()
}

#[test]
fn a_member_that_fails_or_is_out_of_step_ends_the_passes() {
    let (_dir, checkpoint) = checkpoint(&example_config());
    let never = AtomicBool::new(false);
    let passes = |disturbed: usize, behaviour, at| {
        let disturbance = |member| -> Disturbance {
            Box::new(move |count| match (member, count) == (disturbed, at) {
                true => behaviour,
                false => Behaviour::Normal,
            })
        };
        let mut group = Group::disturbed(&checkpoint, ModelTypes::default(), 3, disturbance);
        let first = panic_of(|| logits(&mut group.model, &tokens(5, 1), &never));
        let second = panic_of(|| logits(&mut group.model, &tokens(6, 1), &never));
        assert!(group.end().contains(&true), "the followers notice");
        (first, second)
    };
    for at in [0, 3, 6] {
        let (first, second) = passes(2, Behaviour::Panics, at);
        assert!(first.contains("member 2 of the group that computes the model is gone"), "{first}");
        assert!(second.contains("out of step"), "{second}");
        let (first, second) = passes(0, Behaviour::Panics, at);
        assert_eq!(first, "something breaks");
        assert!(second.contains("out of step"), "{second}");
        let (first, _) = passes(1, Behaviour::Skips, at);
        let names = ["member 1 of the group that computes the model is at step", "is gone"];
        assert!(names.iter().any(|name| first.contains(name)), "{first}");
    }
}

/// The leader refuses a pass before the others hear of it, so the next one is right.
#[test]
fn a_wrong_request_does_not_disturb_the_group() {
    let (_dir, checkpoint) = checkpoint(&example_config());
    let never = AtomicBool::new(false);
    let mut group = Group::start(&checkpoint, ModelTypes::default(), 2);
    let (none, groups) = (TokenTree::new(), LayerGroups::of_sizes(&[1]));
    let request = ForwardRequest::new(SequenceId(1), &[1, 2], &none);
    let request = ForwardRequest { order: LayerOrder::Groups(&groups), ..request };
    let refused = panic_of(|| group.model.logits(&request));
    assert!(refused.contains("groups of all layers"), "{refused}");
    let expected = logits(&mut alone(&checkpoint, ModelTypes::default()), &[1, 2], &never);
    assert_eq!(logits(&mut group.model, &[1, 2], &never), expected);
    assert_eq!(group.end(), [false]);
}

#[test]
fn an_overflow_on_any_member_is_reported() {
    let config = example_config();
    let types = ModelTypes { weights: None, cache: Some(CacheType::F16) };
    let never = AtomicBool::new(false);
    for (tensor, part) in [("k_proj", CachePart::Key), ("v_proj", CachePart::Value)] {
        let (dir, _) = checkpoint(&config);
        let name = format!("model.layers.1.self_attn.{tensor}.weight");
        scale_tensor(&dir.path().join("model.safetensors"), &name, 1e6).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let mut group = Group::start(&checkpoint, types, 2);
        let mut alone = alone(&checkpoint, types);
        let expected = logits(&mut alone, &tokens(3, 1), &never);
        assert_eq!(expected, Err(ModelError::CacheRange { layer: 1, part }));
        assert_eq!(logits(&mut group.model, &tokens(3, 1), &never), expected);
        assert_eq!(group.end(), [false]);
    }
}

#[test]
fn pages_count_the_heads_of_all_members() {
    let (_dir, checkpoint) = checkpoint(&example_config());
    let bytes =
        |model: &CachedTransformer<TensorParallelModel>| model.pool().storage().page_bytes();
    let expected = alone(&checkpoint, ModelTypes::default()).pool().storage().page_bytes();
    for members in 1..=3 {
        let group = Group::start(&checkpoint, ModelTypes::default(), members);
        assert_eq!(bytes(&group.model), expected, "{members}");
    }
}

//! A model whose layers are on several members has the bits of one device: for every family, on two
//! to four members. Passes that fail or are cancelled leave no member out of step.

use crate::tensor_parallel::{
    Behaviour, CACHES, Disturbance, DisturbedExchange, TYPES, checkpoint, configs, conversation,
    logits, panic_of, tokens,
};
use forerun_cache::PageStorage;
use forerun_core::testing::is_complete;
use forerun_core::{SequenceId, TokenTree};
use forerun_cpu::{
    CorePart, ExchangeError, Stage, StageFollower, StagedModel, Team, ThreadExchange, Transformer,
    Weights,
};
use forerun_formats::checkpoint::random::{example_config, example_families, scale_tensor};
use forerun_formats::{
    CacheType, Checkpoint, Config, FeatureSource, LoadError, MixtureLayers, ModelTypes,
};
use forerun_lm::{CachePart, ForwardRequest, LanguageModel, LayerGroups, LayerOrder, ModelError};
use forerun_model::{CachedTransformer, Forward};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

/// Hidden states of all stages: the last ones first.
fn features(checkpoint: &Checkpoint) -> FeatureSource {
    let layers = checkpoint.architecture().layers.len();
    FeatureSource::Layers(std::iter::once(layers).chain(0..=layers).collect())
}

fn alone(
    checkpoint: &Checkpoint,
    types: ModelTypes,
    features: FeatureSource,
) -> CachedTransformer<Transformer> {
    let weights = Weights::load_as(checkpoint, types).unwrap();
    let model = Transformer::new(Arc::new(weights), Arc::new(Team::single_thread()));
    CachedTransformer::new(model.with_features(features))
}

/// A model whose layers are on several threads.
struct Pipeline {
    model: CachedTransformer<StagedModel>,
    followers: Vec<JoinHandle<Result<(), ExchangeError>>>,
}

impl Pipeline {
    fn start(
        checkpoint: &Checkpoint,
        types: ModelTypes,
        stages: usize,
        features: FeatureSource,
    ) -> Result<Self, LoadError> {
        let normal = |_| -> Disturbance { Box::new(|_| Behaviour::Normal) };
        Self::disturbed(checkpoint, types, stages, normal, features)
    }

    fn disturbed(
        checkpoint: &Checkpoint,
        types: ModelTypes,
        stages: usize,
        disturbance: impl Fn(usize) -> Disturbance,
        features: FeatureSource,
    ) -> Result<Self, LoadError> {
        let load = |member| {
            let stage = Stage::of_member(member, stages);
            load_stage(checkpoint, types, stage).map(Arc::new)
        };
        let weights = (0..stages).map(load).collect::<Result<Vec<_>, LoadError>>()?;
        let exchange = |(member, exchange)| {
            let disturbance = disturbance(member);
            Box::new(DisturbedExchange { exchange, gathered: 0, disturbance })
        };
        let exchanges = ThreadExchange::group(stages).into_iter().enumerate().map(exchange);
        let mut members = weights.into_iter().zip(exchanges);
        let (weights, exchange) = members.next().unwrap();
        let team = Arc::new(Team::single_thread());
        let model = StagedModel::new(weights, team, exchange).with_features(features);
        let follower = |(member, (weights, exchange)): (usize, (_, Box<DisturbedExchange>))| {
            thread::spawn(move || {
                let team = Arc::new(Team::unpinned(1 + member % 2).unwrap());
                StageFollower::new(weights, team, exchange).run()
            })
        };
        let followers = members.enumerate().map(follower).collect();
        Ok(Self { model: CachedTransformer::new(model), followers })
    }

    /// Ends the pipeline. Returns whether each follower failed.
    fn end(self) -> Vec<bool> {
        drop(self.model);
        let failed = |follower: JoinHandle<Result<_, _>>| !matches!(follower.join(), Ok(Ok(())));
        self.followers.into_iter().map(failed).collect()
    }
}

/// Each family runs with every number of members up to its largest; with `FORERUN_CASES`, each of
/// its types does.
#[test]
fn every_family_has_the_bits_of_one_device() {
    let all = is_complete();
    let mut pipelines = 0;
    for (number, config) in configs().into_iter().enumerate() {
        // The first ones are plain; families may name each of their layers.
        let config = if number < 3 { Config { num_hidden_layers: 5, ..config } } else { config };
        let (_dir, checkpoint) = checkpoint(&config);
        let layers = checkpoint.architecture().layers.len();
        for (at, weights) in TYPES.into_iter().enumerate() {
            let cache = CACHES[(number + at) % CACHES.len()];
            let types = ModelTypes { weights: Some(weights.into()), cache };
            if !all && at != number % TYPES.len() {
                continue;
            }
            let features = features(&checkpoint);
            let mut alone = alone(&checkpoint, types, features.clone());
            let expected = conversation(&mut alone, None);
            for stages in 2..=4 {
                let pipeline = Pipeline::start(&checkpoint, types, stages, features.clone());
                let mut pipeline = match pipeline {
                    Ok(pipeline) => pipeline,
                    // Layers with the keys of others are not split from them.
                    Err(LoadError::Stages { most, share_keys, .. }) => {
                        assert!(most < stages && (most == layers || share_keys), "{config:?}");
                        break;
                    }
                    Err(error) => panic!("{error}"),
                };
                let found = conversation(&mut pipeline.model, None);
                assert!(found == expected, "{stages} stages, {weights}, {cache:?}, {config:?}");
                assert_eq!(pipeline.end(), vec![false; stages - 1]);
                pipelines += 1;
            }
        }
    }
    assert!(pipelines > configs().len(), "{pipelines} pipelines");
}

#[test]
fn the_last_hidden_states_are_features_of_a_pipeline() {
    let (_dir, checkpoint) = checkpoint(&example_config());
    let (types, last) = (ModelTypes::default(), FeatureSource::LastHidden);
    let expected = conversation(&mut alone(&checkpoint, types, last.clone()), None);
    let mut pipeline = Pipeline::start(&checkpoint, types, 2, last).unwrap();
    assert!(conversation(&mut pipeline.model, None) == expected);
    assert_eq!(pipeline.end(), [false]);
}

#[test]
fn the_leader_cancels_a_pass_on_all_stages() {
    let config = Config { num_hidden_layers: 6, ..example_config() };
    let (_dir, checkpoint) = checkpoint(&config);
    let (types, none) = (ModelTypes::default(), FeatureSource::Layers(Vec::new()));
    let never = AtomicBool::new(false);
    let (first, second) = (tokens(20, 1), tokens(31, 1));
    let mut alone = alone(&checkpoint, types, none.clone());
    let expected = [&first, &second].map(|tokens| logits(&mut alone, tokens, &never).unwrap());
    // Cancels when a member has computed its stage, which it hands over only some time later.
    let cancelled_by = |member: usize| {
        let cancel = Arc::new(AtomicBool::new(false));
        let disturbance = |other| -> Disturbance {
            let cancel = Arc::clone(&cancel);
            Box::new(move |count| {
                if other == member && count == 0 {
                    cancel.store(true, Ordering::SeqCst);
                    // The leader returns without these rows.
                    while cancel.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                }
                Behaviour::Normal
            })
        };
        let pipeline = Pipeline::disturbed(&checkpoint, types, 3, disturbance, none.clone());
        let mut pipeline = pipeline.unwrap();
        assert_eq!(logits(&mut pipeline.model, &first, &cancel), Err(ModelError::Cancelled));
        cancel.store(false, Ordering::SeqCst);
        assert_eq!(logits(&mut pipeline.model, &second, &cancel).as_ref(), Ok(&expected[1]));
        assert_eq!(logits(&mut pipeline.model, &first, &cancel).as_ref(), Ok(&expected[0]));
        assert_eq!(pipeline.end(), [false, false]);
    };
    (1..3).for_each(cancelled_by);
    // The leader ends while the last of the other members has not yet handed over the rows of a
    // cancelled pass.
    let cancel = Arc::new(AtomicBool::new(false));
    let disturbance = |member| -> Disturbance {
        let cancel = Arc::clone(&cancel);
        Box::new(move |_| {
            if member == 2 {
                cancel.store(true, Ordering::SeqCst);
                while cancel.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                // A leader that did not wait for these rows would be gone by now.
                thread::sleep(std::time::Duration::from_millis(50));
            }
            Behaviour::Normal
        })
    };
    let pipeline = Pipeline::disturbed(&checkpoint, types, 3, disturbance, none.clone());
    let mut pipeline = pipeline.unwrap();
    let outcome = logits(&mut pipeline.model, &first, &cancel);
    assert_eq!(outcome, Err(ModelError::Cancelled));
    cancel.store(false, Ordering::SeqCst);
    assert_eq!(pipeline.end(), [false, false]);
}

#[test]
fn a_member_that_fails_or_is_out_of_step_ends_the_passes() {
    let config = Config { num_hidden_layers: 3, ..example_config() };
    let (_dir, checkpoint) = checkpoint(&config);
    let never = AtomicBool::new(false);
    let passes = |disturbed: usize, behaviour| {
        let disturbance = |member| -> Disturbance {
            Box::new(move |count| match (member, count) == (disturbed, 0) {
                true => behaviour,
                false => Behaviour::Normal,
            })
        };
        let (types, none) = (ModelTypes::default(), FeatureSource::Layers(Vec::new()));
        Pipeline::disturbed(&checkpoint, types, 3, disturbance, none).unwrap()
    };
    for member in [1, 2] {
        let mut pipeline = passes(member, Behaviour::Panics);
        let first = panic_of(|| logits(&mut pipeline.model, &tokens(5, 1), &never));
        let second = panic_of(|| logits(&mut pipeline.model, &tokens(6, 1), &never));
        let names = format!("member {member} of the group that computes the model is gone");
        assert!(first.contains(&names), "{first}");
        assert!(second.contains("out of step"), "{second}");
        assert!(pipeline.end().contains(&true), "the followers notice");
    }
    // A member goes on without having handed over its rows, and the leader waits until the pass is
    // cancelled. The next pass is right.
    let (skips, skipped) = channel();
    let disturbance = |member| -> Disturbance {
        let skips = skips.clone();
        Box::new(move |count| match (member, count) == (2, 0) {
            true => {
                skips.send(()).unwrap();
                Behaviour::Skips
            }
            false => Behaviour::Normal,
        })
    };
    let (types, none) = (ModelTypes::default(), FeatureSource::Layers(Vec::new()));
    let pipeline = Pipeline::disturbed(&checkpoint, types, 3, disturbance, none.clone());
    let mut pipeline = pipeline.unwrap();
    let cancel = &AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        scope.spawn(move || {
            skipped.recv().unwrap();
            // The leader looks several times in vain.
            thread::sleep(std::time::Duration::from_millis(5));
            cancel.store(true, Ordering::SeqCst);
        });
        logits(&mut pipeline.model, &tokens(5, 1), cancel)
    });
    assert_eq!(outcome, Err(ModelError::Cancelled));
    let mut alone = alone(&checkpoint, types, none);
    let expected = logits(&mut alone, &tokens(6, 1), &never);
    assert_eq!(logits(&mut pipeline.model, &tokens(6, 1), &never), expected);
    assert_eq!(pipeline.end(), [false, false]);
}

/// The leader refuses a pass before the others hear of it, so the next one is right.
#[test]
fn groups_of_layers_are_refused() {
    let (_dir, checkpoint) = checkpoint(&example_config());
    let (types, never) = (ModelTypes::default(), AtomicBool::new(false));
    let features = features(&checkpoint);
    let mut pipeline = Pipeline::start(&checkpoint, types, 2, features.clone()).unwrap();
    let layers = checkpoint.architecture().layers.len();
    let (none, groups) = (TokenTree::new(), LayerGroups::of_sizes(&vec![1; layers]));
    let request = ForwardRequest::new(SequenceId(1), &[1, 2], &none);
    let request = ForwardRequest { order: LayerOrder::Groups(&groups), ..request };
    let refused = panic_of(|| pipeline.model.logits(&request));
    assert!(refused.contains("layers one after another"), "{refused}");
    let expected = logits(&mut alone(&checkpoint, types, features), &[1, 2], &never);
    assert_eq!(logits(&mut pipeline.model, &[1, 2], &never), expected);
    assert_eq!(pipeline.end(), [false]);
}

#[test]
fn an_overflow_in_any_stage_is_reported() {
    let config = Config { num_hidden_layers: 3, ..example_config() };
    let types = ModelTypes { weights: None, cache: Some(CacheType::F16) };
    let (never, none) = (AtomicBool::new(false), FeatureSource::Layers(Vec::new()));
    for (layer, tensor, part) in [
        (0, "k_proj", CachePart::Key),
        (1, "v_proj", CachePart::Value),
        (2, "k_proj", CachePart::Key),
    ] {
        let (dir, _) = checkpoint(&config);
        let name = format!("model.layers.{layer}.self_attn.{tensor}.weight");
        scale_tensor(&dir.path().join("model.safetensors"), &name, 1e6).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let mut pipeline = Pipeline::start(&checkpoint, types, 3, none.clone()).unwrap();
        let expected = logits(&mut alone(&checkpoint, types, none.clone()), &tokens(9, 1), &never);
        assert_eq!(expected, Err(ModelError::CacheRange { layer, part }));
        assert_eq!(logits(&mut pipeline.model, &tokens(9, 1), &never), expected);
        assert_eq!(pipeline.end(), [false, false]);
    }
}

fn load_stage(
    checkpoint: &Checkpoint,
    types: ModelTypes,
    stage: Stage,
) -> Result<Weights, LoadError> {
    let architecture = checkpoint.architecture().clone();
    Weights::load_part(CorePart::Stage(stage), architecture, checkpoint, types, &mut |_| ())
}

/// Stages have a part of the weights and of the cache each, and the budget of the caches counts
/// all.
#[test]
fn stages_have_the_memory_of_their_layers() {
    let config = Config { num_hidden_layers: 6, tie_word_embeddings: true, ..example_config() };
    let (_dir, checkpoint) = checkpoint(&config);
    let types = ModelTypes::default();
    let whole = Weights::load(&checkpoint).unwrap();
    let head = config.vocab_size * config.hidden_size * size_of::<f32>();
    let stage = |number| Stage::new(number, 3);
    let load = |number| load_stage(&checkpoint, types, stage(number)).unwrap();
    let stages: Vec<Weights> = (0..3).map(load).collect();
    let bytes: usize = stages.iter().map(Weights::bytes).sum();
    // The first and the last stage have the embedding, which is the head.
    assert!(bytes.abs_diff(whole.bytes() + head) <= head / 8, "{bytes} {}", whole.bytes());
    assert_eq!(stages.iter().map(|stage| stage.packed_layers().len()).sum::<usize>(), 6);
    let architecture = checkpoint.architecture();
    let least_of = |part: CorePart| part.least_memory(architecture, &checkpoint, types).unwrap();
    let least = |number| least_of(CorePart::Stage(stage(number)));
    for (number, stage) in stages.iter().enumerate() {
        assert!(least(number) >= stage.bytes() && least(number) < stage.bytes() * 5 / 4);
    }
    let all = least_of(CorePart::Whole);
    assert!((0..3).all(|number| least(number) < all));
    let exchange = ThreadExchange::group(3).remove(0);
    let team = Arc::new(Team::single_thread());
    let last = Arc::new(load(2));
    let cache_type = last.cache_type();
    assert_eq!(cache_type, whole.cache_type());
    let pages = StagedModel::new(last, Arc::clone(&team), Box::new(exchange)).new_storage();
    let alone = Transformer::new(Arc::new(whole), team).new_storage();
    assert_eq!(pages.page_bytes(), alone.page_bytes());
}

/// The layers of a mixture that begins with dense layers differ in size.
#[test]
fn the_largest_stage_is_as_small_as_possible() {
    let mut mixtures = 0;
    for config in example_families() {
        let Some(experts) = config.experts.clone().filter(|it| !it.dense.is_empty()) else {
            continue;
        };
        let dense = vec![true, true, true, false, false, false];
        let experts = Some(MixtureLayers { dense, ..experts });
        let config = Config { num_hidden_layers: 6, experts, ..config };
        // Some list the kinds of another number of layers.
        if config.validate(Path::new("config.json")).is_err() {
            continue;
        }
        let (_dir, checkpoint) = checkpoint(&config);
        let types = ModelTypes::default();
        let load = |number, stages| {
            let stage = Stage::new(number, stages);
            let weights = load_stage(&checkpoint, types, stage).unwrap();
            let layers = CorePart::Stage(stage);
            let layers = layers.layers(checkpoint.architecture(), &checkpoint, types).unwrap();
            assert_eq!(weights.packed_layers(), layers);
            weights.bytes()
        };
        // The first layer with the embedding, and the last one with the head.
        let layers: Vec<usize> = (0..6).map(|layer| load(layer, 6)).collect();
        assert!(layers[3] > layers[2], "{layers:?}");
        for stages in 2..=5 {
            // Each bit is a cut after a layer.
            let divisions = (0_u32..1 << 5).filter(|cuts| cuts.count_ones() as usize + 1 == stages);
            let largest = |cuts: u32| {
                let (mut largest, mut size) = (0, 0);
                for (layer, bytes) in layers.iter().enumerate() {
                    size += bytes;
                    largest = largest.max(size);
                    if cuts >> layer & 1 == 1 {
                        size = 0;
                    }
                }
                largest
            };
            let found = (0..stages).map(|number| load(number, stages)).max();
            assert_eq!(found, divisions.map(largest).min(), "{stages} stages, {config:?}");
        }
        mixtures += 1;
    }
    assert!(mixtures > 1);
}

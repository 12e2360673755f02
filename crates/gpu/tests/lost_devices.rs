//! GPUs that are lost in the middle of something: rows that were computed before are right,
//! everything later is an error that names the GPU, and nothing hangs. With several replicas, DSI
//! goes on.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{configs, gpu, gpu_number};
use forerun_cache::{PAGE_ROWS, PageStorage};
use forerun_core::testing::cases;
use forerun_core::{
    KeyedRandomness, Role, Sampling, SamplingOptions, SequenceId, TokenId, TokenTree, Verification,
};
use forerun_decode::{
    Autoregressive, DecodeError, Decoder, DraftLength, Dsi, DsiLookahead, Limits, Sequence,
    Speculative, SpeculativeDraftLength, generate,
};
use forerun_draft::{EagleDrafter, MedusaDrafter, ModelDrafter};
use forerun_formats::checkpoint::random::{RandomDtype, RandomTensors, write_random_checkpoint};
use forerun_formats::checkpoint::random_speculator::{RandomSpeculator, SpeculatorLayout};
use forerun_formats::{Checkpoint, Speculator, SpeculatorArchitecture, WeightType};
use forerun_gpu::{
    GpuDevice, GpuFailure, GpuHeadWeights, GpuHeads, GpuLoadError, GpuModel, GpuOptions, GpuWeights,
};
use forerun_lm::{ForwardRequest, LanguageModel, ModelError};
use forerun_model::{CachedTransformer, EagleModel};
use forerun_runtime::testing::Dice;
use forerun_runtime::{BuildEngine, Engine, Runtime, TeamSpec, WorkerSpec};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn load(device: &Arc<GpuDevice>) -> Result<Arc<GpuWeights>, GpuLoadError> {
    let architecture = configs()[0].architecture();
    let tensors = RandomTensors::new(&architecture, 5);
    GpuWeights::load_architecture(device, architecture, &tensors, WeightType::F32).map(Arc::new)
}

fn model(weights: &Arc<GpuWeights>) -> CachedTransformer<GpuModel> {
    CachedTransformer::new(GpuModel::new(Arc::clone(weights)))
}

fn spin(moments: usize) {
    for _ in 0..moments {
        std::hint::spin_loop();
    }
}

/// Gives a GPU up a number of moments after `progress` has reached a number.
fn lose(device: &GpuDevice, progress: &AtomicUsize, (at, moments): (usize, usize)) {
    while progress.load(Ordering::Relaxed) < at {
        std::thread::yield_now();
    }
    spin(moments);
    device.destroy();
}

/// Ends the wait of [`lose`], also when a check fails: the scope of its thread would wait for it.
struct EndOfProgress<'a>(&'a AtomicUsize);

impl Drop for EndOfProgress<'_> {
    fn drop(&mut self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }
}

#[test]
fn a_failed_check_ends_the_test() {
    if gpu().is_none() {
        return;
    }
    let device = GpuDevice::open(gpu_number()).unwrap();
    let progress = AtomicUsize::new(0);
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| lose(&device, &progress, (1, 0)));
            let _end = EndOfProgress(&progress);
            panic!("a failed check");
        });
    }));
    assert!(failed.is_err());
}

/// Checks that a message names the GPU and says what to do.
fn check_message(device: &GpuDevice, message: &str) {
    for words in [&*device.adapter().name, "has failed", "target=cpu"] {
        assert!(message.contains(words), "{message}");
    }
}

/// Requests until a GPU is surely lost.
const REQUESTS: usize = 12;

/// Runs requests on a GPU that is lost at a random moment. Some are cancelled at a random moment.
fn lose_while_computing(seed: u64, healthy: &mut CachedTransformer<GpuModel>) -> [usize; 3] {
    let mut dice = Dice::new(seed);
    let device = GpuDevice::open(gpu_number()).unwrap();
    // From the upload of the weights to the last request.
    let moment = (dice.below(REQUESTS + 1), dice.below(300_000));
    let (requests, mut counts) = (AtomicUsize::new(0), [0; 3]);
    std::thread::scope(|scope| {
        let losing = scope.spawn(|| lose(&device, &requests, moment));
        let _end = EndOfProgress(&requests);
        let mut model = match load(&device) {
            Ok(weights) => model(&weights),
            Err(GpuLoadError::Failure(failure @ GpuFailure::Lost { .. })) => {
                return check_message(&device, &failure.to_string());
            }
            Err(error) => panic!("{error}"),
        };
        let mut losing = Some(losing);
        for step in 0.. {
            requests.store(step + 1, Ordering::Relaxed);
            if step == REQUESTS {
                // From now on it is surely lost.
                losing.take().into_iter().for_each(|losing| losing.join().unwrap());
            }
            let len = 1 + dice.below(150);
            let tokens: Vec<TokenId> = (0..len as u32).map(|token| token * 7 % 250).collect();
            let tree = TokenTree::chain(&[3, 4, 5][..dice.below(4)]);
            let is_cancelled = dice.below(3) == 0;
            let (cancel, until_cancelled) = (AtomicBool::new(false), dice.below(200_000));
            let request = ForwardRequest::new(SequenceId(dice.below(3) as u64), &tokens, &tree);
            let result = std::thread::scope(|scope| {
                if is_cancelled {
                    scope.spawn(|| {
                        spin(until_cancelled);
                        cancel.store(true, Ordering::Relaxed);
                    });
                }
                model.logits(&ForwardRequest { cancel: &cancel, ..request })
            });
            match result {
                Ok(output) => {
                    assert!(step < REQUESTS, "seed {seed}: results of a lost GPU");
                    let bits = |logits: &[f32]| -> Vec<u32> {
                        logits.iter().map(|logit| logit.to_bits()).collect()
                    };
                    let expected = healthy.logits(&request).unwrap();
                    assert_eq!(bits(&output.logits), bits(&expected.logits), "seed {seed}");
                    counts[0] += 1;
                }
                Err(ModelError::Cancelled) => {
                    assert!(is_cancelled, "seed {seed}");
                    counts[1] += 1;
                }
                Err(ModelError::Device { message }) => {
                    check_message(&device, &message);
                    check_message(&device, &device.check().unwrap_err().to_string());
                    counts[2] += 1;
                    // It never recovers.
                    let later = model.logits(&request).unwrap_err();
                    assert_eq!(later, ModelError::Device { message });
                    return;
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    });
    counts
}

#[test]
fn a_lost_gpu_is_an_error_and_earlier_rows_are_right() {
    let Some(device) = gpu() else { return };
    let mut healthy = model(&load(device).unwrap());
    let mut sums = [0; 3];
    for seed in 0..u64::from(cases(12)) {
        let counts = lose_while_computing(seed, &mut healthy);
        sums = std::array::from_fn(|at| sums[at] + counts[at]);
    }
    let [computed, cancelled, failed] = sums;
    println!("{computed} requests were computed, {cancelled} cancelled, {failed} found a lost GPU");
    assert!(computed > 0 && failed > 0);
    assert_eq!(device.check(), Ok(()), "other devices on the same GPU are not affected");
}

/// Memory that kernels cannot address is as if there was none.
#[test]
fn a_full_cache_is_an_error_and_the_gpu_goes_on() {
    let Some(device) = gpu() else { return };
    let options = GpuOptions { max_binding_bytes: 24 << 10, ..GpuOptions::default() };
    let small = GpuDevice::open_with(gpu_number(), options).unwrap();
    let (mut small_model, mut healthy) =
        (model(&load(&small).unwrap()), model(&load(device).unwrap()));
    let pages = small_model.device().max_cache_bytes() / small_model.pool().storage().page_bytes();
    assert!((1..8).contains(&pages), "{pages} pages");
    let tokens: Vec<TokenId> = (0..600).map(|token| token * 7 % 250).collect();
    for round in 0..3 {
        let too_long = &tokens[..(pages + 1) * PAGE_ROWS - round];
        let error =
            small_model.logits(&ForwardRequest::next_token(SequenceId(0), too_long)).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("the cache is full"), "{message}");
        assert!(message.contains(&*small.adapter().name), "{message}");
        assert_eq!(small.check(), Ok(()));
        let request = ForwardRequest::next_token(SequenceId(1), &tokens[round..pages * 50]);
        let [found, expected] =
            [&mut small_model, &mut healthy].map(|model| model.logits(&request).unwrap().logits);
        assert_eq!(found, expected);
    }
}

fn sequence(dice: &mut Dice) -> Sequence {
    let prompt = (0..3 + dice.below(8)).map(|_| dice.below(250) as TokenId).collect();
    let limits = Limits { max_tokens: 24, context_length: 600, eos: Vec::new() };
    let sampling = Sampling {
        options: SamplingOptions { temperature: 0.0, ..SamplingOptions::default() },
        verification: Verification::Coupled,
        randomness: KeyedRandomness { seed: 3, sample: 0 },
        constraint: None,
        dry_breakers: Arc::default(),
        adapter: None,
    };
    Sequence::new(SequenceId(0), prompt, sampling, limits)
}

/// Starts a worker for each model: the drafter, then target replicas.
fn start(drafter: &Arc<GpuWeights>, targets: &[&Arc<GpuWeights>]) -> Runtime {
    let spec = |name: String, role, weights: &Arc<GpuWeights>| {
        let weights = Arc::clone(weights);
        let engine = move || match role {
            Role::Drafter(index) => {
                Engine::new().with_drafter(index, ModelDrafter::new(model(&weights)))
            }
            Role::Target(index) => Engine::new().with_target(index, model(&weights)),
        };
        let build: BuildEngine = Box::new(move |_| Ok(engine()));
        WorkerSpec { name, team: TeamSpec::Unpinned(1), roles: vec![role], build }
    };
    let targets = targets.iter().enumerate();
    let targets = targets
        .map(|(index, weights)| spec(format!("target {index}"), Role::Target(index), weights));
    let drafter = spec("drafter".into(), Role::Drafter(0), drafter);
    Runtime::start([drafter].into_iter().chain(targets).collect()).unwrap()
}

/// Decodes while a GPU is lost at a random moment. Returns the sequence and the error, if any.
fn decode(
    decoder: &mut dyn Decoder,
    runtime: &Runtime,
    dice: &mut Dice,
    lost: Option<&Arc<GpuDevice>>,
) -> (Sequence, Result<(), DecodeError>) {
    let sequence = sequence(dice);
    decode_sequence(decoder, runtime, (sequence, dice), lost)
}

/// Decodes a sequence as [`decode`] does.
fn decode_sequence(
    decoder: &mut dyn Decoder,
    runtime: &Runtime,
    (mut sequence, dice): (Sequence, &mut Dice),
    lost: Option<&Arc<GpuDevice>>,
) -> (Sequence, Result<(), DecodeError>) {
    let mut cluster = runtime.cluster();
    // Before the first token, or after any but the last.
    let (moment, committed) = ((dice.below(24), dice.below(300_000)), AtomicUsize::new(0));
    let outcome = std::thread::scope(|scope| {
        if let Some(device) = lost {
            let committed = &committed;
            scope.spawn(move || lose(device, committed, moment));
        }
        let _end = EndOfProgress(&committed);
        let go_on = |tokens: &[_]| {
            committed.fetch_add(tokens.len(), Ordering::Relaxed);
            ControlFlow::Continue(())
        };
        generate(decoder, &mut sequence, &mut cluster, go_on).map(|_finish| ())
    });
    decoder.stop(&mut cluster);
    (sequence, outcome)
}

#[test]
fn dsi_goes_on_without_a_lost_gpu_and_others_name_it() {
    let Some(device) = gpu() else { return };
    let healthy = load(device).unwrap();
    let (mut replicas_failed, mut answers_failed) = (0, 0);
    for seed in 0..u64::from(cases(12)) / 2 {
        let expected = {
            let (runtime, mut dice) = (start(&healthy, &[&healthy]), Dice::new(seed));
            let (sequence, outcome) = decode(&mut Autoregressive, &runtime, &mut dice, None);
            outcome.unwrap();
            sequence
        };
        let lost = GpuDevice::open(gpu_number()).unwrap();
        let weights = load(&lost).unwrap();
        let name = &lost.adapter().name;
        if seed % 2 == 0 {
            let (runtime, mut dice) = (start(&healthy, &[&healthy, &weights]), Dice::new(seed));
            if seed == 0 {
                // However late the thread that loses the others is, one of each kind fails.
                lost.destroy();
            }
            let mut dsi = Dsi::new(2, DsiLookahead::new(2, DraftLength::Fixed, 2));
            let (sequence, outcome) = decode(&mut dsi, &runtime, &mut dice, Some(&lost));
            outcome.unwrap();
            assert_eq!(sequence.tokens(), expected.tokens(), "seed {seed}");
            let failures = &sequence.statistics().failures;
            assert!(failures.iter().all(|failure| failure.contains(&**name)), "{failures:?}");
            replicas_failed += failures.len();
        } else {
            let (runtime, mut dice) = (start(&healthy, &[&weights]), Dice::new(seed));
            if seed == 1 {
                lost.destroy();
            }
            let length = SpeculativeDraftLength::new(
                forerun_core::DraftShape::Chain { length: 3 },
                DraftLength::Fixed,
            );
            let mut speculative = Speculative::new(length);
            let (sequence, outcome) = decode(&mut speculative, &runtime, &mut dice, Some(&lost));
            let len = sequence.tokens().len();
            assert_eq!(sequence.tokens(), &expected.tokens()[..len], "seed {seed}");
            if let Err(error) = outcome {
                check_message(&lost, &error.to_string());
                answers_failed += 1;
            }
        }
    }
    println!("{replicas_failed} replicas and {answers_failed} answers failed");
    assert!(replicas_failed > 0 && answers_failed > 0);
}

/// Starts a worker with a drafter and one with a target.
fn start_pair(drafter: BuildEngine, target: BuildEngine) -> Runtime {
    let spec = |(role, build): (Role, BuildEngine)| WorkerSpec {
        name: format!("{role:?}"),
        team: TeamSpec::Unpinned(1),
        roles: vec![role],
        build,
    };
    let workers = [(Role::Drafter(0), drafter), (Role::Target(0), target)];
    Runtime::start(workers.into_iter().map(spec).collect()).unwrap()
}

/// Returns how a drafter is built that was trained for a target and is on a GPU, with a copy of
/// what it shares.
fn build_drafter(
    device: &Arc<GpuDevice>,
    target: &Checkpoint,
    speculator: &Speculator,
) -> BuildEngine {
    let types = WeightType::F32;
    let shared = GpuWeights::load_without_layers(device, target, types).unwrap();
    match speculator.architecture().unwrap() {
        SpeculatorArchitecture::Layers(layers) => {
            let weights = GpuWeights::load_drafter(&shared, layers, speculator, types).unwrap();
            let weights = Arc::new(weights);
            Box::new(move |_| {
                let model = EagleModel::new(GpuModel::new(weights));
                Ok(Engine::new().with_drafter(0, EagleDrafter::new(model)))
            })
        }
        SpeculatorArchitecture::Heads(heads) => {
            let n_heads = heads.n_heads;
            let weights = GpuHeadWeights::load(&shared, heads, speculator, types).unwrap();
            let weights = Arc::new(weights);
            Box::new(move |_| {
                let drafter = MedusaDrafter::new(GpuHeads::model(weights), n_heads);
                Ok(Engine::new().with_drafter(0, drafter))
            })
        }
    }
}

/// Drafters that were trained for a target, on a GPU that is lost: answers go on without them.
#[test]
fn answers_go_on_without_a_lost_drafter() {
    let Some(device) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (path, config) = (folder.path().join("target"), &configs()[0]);
    write_random_checkpoint(&path, config, 5, RandomDtype::F32).unwrap();
    let target = Checkpoint::open(&path).unwrap();
    let weights = Arc::new(GpuWeights::load(device, &target, WeightType::F32).unwrap());
    for layout in [SpeculatorLayout::Eagle, SpeculatorLayout::Medusa] {
        let path = folder.path().join(format!("{layout:?}"));
        let (of_target, positions) = (config, 3);
        let random = RandomSpeculator {
            layout,
            target: of_target,
            seed: 3,
            positions,
            target_embedding_sha256: None,
        };
        random.write(&path).unwrap();
        let speculator = Speculator::open(&path, &target).unwrap().unwrap();
        let (mut failed, mut drafts) = (0, 0);
        for seed in 0..u64::from(cases(12)) / 4 {
            let run = |decoder: &mut dyn Decoder, drafter: &Arc<GpuDevice>, is_lost: bool| {
                let build_target: BuildEngine = {
                    let (weights, features) = (Arc::clone(&weights), speculator.features());
                    Box::new(move |_| {
                        let model = GpuModel::new(weights).with_features(features.unwrap());
                        Ok(Engine::new().with_target(0, CachedTransformer::new(model)))
                    })
                };
                let drafter_engine = build_drafter(drafter, &target, &speculator);
                let runtime = start_pair(drafter_engine, build_target);
                let mut dice = Dice::new(seed);
                let sequence = sequence(&mut dice).with_features();
                let lost = is_lost.then_some(drafter);
                if seed == 0 && is_lost {
                    // However late the thread that loses the others is, one fails.
                    drafter.destroy();
                }
                let (sequence, outcome) =
                    decode_sequence(decoder, &runtime, (sequence, &mut dice), lost);
                outcome.unwrap();
                sequence
            };
            let expected = run(&mut Autoregressive, device, false);
            let lost = GpuDevice::open(gpu_number()).unwrap();
            let length = SpeculativeDraftLength::new(
                forerun_core::DraftShape::Chain { length: 2 },
                DraftLength::Fixed,
            );
            let sequence = run(&mut Speculative::new(length), &lost, true);
            assert_eq!(sequence.tokens(), expected.tokens(), "{layout:?}, seed {seed}");
            let statistics = sequence.statistics();
            for failure in &statistics.failures {
                check_message(&lost, failure);
            }
            failed += statistics.failures.len();
            drafts += statistics.drafts;
        }
        assert!(failed > 0 && drafts > 0, "{layout:?}: {failed} failures, {drafts} drafts");
    }
}

//! Workers that share devices: only one pass runs on a device at a time, also when jobs are
//! cancelled or panic.

use forerun_core::trace::{SpanKind, Trace};
use forerun_core::{
    Cluster, Job, JobError, JobOutput, Role, Sampling, ScoreJob, SequenceId, TokenId,
};
use forerun_cpu::ExclusiveDevice;
use forerun_decode::{
    Decoder, DraftLength, Dsi, DsiLookahead, Limits, Pearl, PearlDraftLength, Sequence, generate,
};
use forerun_draft::ModelDrafter;
use forerun_lm::fake::{one_hot, output_by_prefix};
use forerun_lm::{
    BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, ModelError, complete_each,
};
use forerun_runtime::{
    ClusterHandle, DeviceLease, Engine, Runtime, SharedDevice, TeamSpec, WorkerSpec,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const VOCAB: usize = 8;
/// The token that makes a pass panic on the second device.
const PANIC: TokenId = 6;
/// The token that makes a pass wait for cancellation on the second device.
const HANG: TokenId = 7;

/// A model that predicts the last token plus one, modulo 5, in passes over several devices.
struct MultiDeviceModel {
    leases: Vec<DeviceLease>,
}

impl MultiDeviceModel {
    /// Runs one device's part of a pass.
    fn run_on_device(index: usize, last: TokenId, cancel: &AtomicBool) -> Result<(), ModelError> {
        assert!(index == 0 || last != PANIC, "the model panics on this token");
        while index > 0 && last == HANG && !cancel.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        // Gives other threads a chance to use the device.
        (0..3).for_each(|_| std::thread::yield_now());
        if cancel.load(Ordering::Relaxed) { Err(ModelError::Cancelled) } else { Ok(()) }
    }
}

impl MultiDeviceModel {
    fn answer(&mut self, context: &ForwardRequest<'_>) -> Result<ForwardOutput, ModelError> {
        let last = *context.tokens.last().ok_or(ModelError::Empty)?;
        for (index, lease) in self.leases.iter().enumerate() {
            let mut outcome = Ok(());
            lease.run_exclusive(&mut || outcome = Self::run_on_device(index, last, context.cancel));
            outcome?;
        }
        Ok(output_by_prefix(context, VOCAB, |prefix| {
            one_hot(VOCAB, (prefix[prefix.len() - 1] + 1) % 5)
        }))
    }
}

impl LanguageModel for MultiDeviceModel {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_length(&self) -> usize {
        1_000
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| self.answer(request));
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

/// A number of targets, each on all three devices, and a drafter on the last device.
fn runtime(targets: usize) -> Runtime {
    let devices = ["a", "b", "c"].map(SharedDevice::unpinned);
    let worker = |role: Role| {
        let devices = devices.clone();
        WorkerSpec {
            name: format!("{role:?}"),
            team: TeamSpec::Unpinned(1),
            roles: vec![role],
            build: Box::new(move |_| {
                let engine = Engine::new();
                let lease = |device: &Arc<SharedDevice>| engine.lease(device);
                Ok(match role {
                    Role::Target(index) => {
                        let model =
                            MultiDeviceModel { leases: devices.iter().map(lease).collect() };
                        let model = engine.timed(model);
                        engine.with_target(index, model)
                    }
                    Role::Drafter(index) => {
                        let model =
                            engine.timed(MultiDeviceModel { leases: vec![lease(&devices[2])] });
                        engine.with_drafter(index, ModelDrafter::new(model))
                    }
                })
            }),
        }
    };
    let roles = (0..targets).map(Role::Target).chain([Role::Drafter(0)]);
    Runtime::start(roles.map(worker).collect()).unwrap()
}

/// Asserts that no two uses of a device overlap, and that a target's pass uses the devices in
/// order.
fn check(trace: &Trace) {
    let by_device = trace.by_device();
    assert_eq!(by_device.lanes.len(), 3);
    for lane in 0..by_device.lanes.len() {
        let spans = by_device.spans.iter().filter(|span| span.lane == lane);
        let mut times: Vec<[u64; 2]> = spans.map(|span| [span.start_ns, span.end_ns]).collect();
        times.sort_unstable();
        assert!(times.windows(2).all(|pair| pair[0][1] <= pair[1][0]), "{times:?}");
    }
    for span in trace.spans.iter().filter(|span| span.kind == SpanKind::Score) {
        let names = span.device_uses.iter().map(|used| trace.devices[used.device].as_str());
        let complete = names.clone().eq(["a", "b", "c"]);
        let mut pairs = ["a", "b", "c"].into_iter().zip(names);
        assert!(complete || span.rows == 0 && pairs.all(|(expected, name)| expected == name));
        // A pass over several devices is recorded as one forward pass.
        assert!(span.forwards_ns.len() == 1 || span.rows == 0);
    }
}

fn decode(runtime: &Runtime, id: u64, decoder: &mut dyn Decoder) {
    let limits = Limits { max_tokens: 60, context_length: 1_000, eos: Vec::new() };
    let mut sequence = Sequence::new(SequenceId(id), vec![0], Sampling::greedy(), limits);
    let mut cluster = runtime.cluster();
    generate(decoder, &mut sequence, &mut cluster, |_| ControlFlow::Continue(())).unwrap();
    decoder.stop(&mut cluster);
    cluster.cancel_and_wait();
    let expected: Vec<TokenId> = (0..60).map(|step| (1 + step) % 5).collect();
    assert_eq!(sequence.generated(), expected);
}

#[test]
fn drafter_and_target_never_use_a_device_at_the_same_time() {
    let runtime = runtime(1);
    for (number, options) in ["eager", "paper", "paper,no-pre-verify"].into_iter().enumerate() {
        let mut decoder = Pearl::new(
            options.parse().unwrap(),
            PearlDraftLength::new(4, DraftLength::Fixed, true),
        );
        decode(&runtime, number as u64, &mut decoder);
        let trace = runtime.take_trace();
        check(&trace);
        let by_device = trace.by_device();
        let on_last = by_device.spans.iter().filter(|span| by_device.lanes[span.lane] == "c");
        let drafts = on_last.clone().filter(|span| span.kind == SpanKind::Draft).count();
        assert!(drafts >= 10 && on_last.count() > drafts);
    }
}

#[test]
fn replicas_use_the_devices_one_after_another() {
    let runtime = runtime(3);
    for seed in 0..5 {
        let lookahead = DsiLookahead::new(2, DraftLength::Fixed, 3);
        decode(&runtime, seed, &mut Dsi::new(3, lookahead));
        check(&runtime.take_trace());
    }
}

fn score(sequence: u64, last: TokenId) -> Job {
    Job::Score(ScoreJob::greedy(SequenceId(sequence), [1, last]))
}

#[test]
fn a_pass_that_panics_or_is_cancelled_releases_its_device() {
    let runtime = runtime(2);
    let mut cluster = runtime.cluster();
    for round in 0..20 {
        let failing = cluster.submit(Role::Target(0), score(1, PANIC)).unwrap();
        let waiting = cluster.submit(Role::Target(0), score(2, HANG)).unwrap();
        let later = cluster.submit(Role::Target(1), score(3, 2)).unwrap();
        // In some rounds the job starts before it is cancelled.
        for _ in 0..round % 4 * 500 {
            std::thread::yield_now();
        }
        cluster.cancel(waiting);
        for _ in 0..3 {
            let completion = cluster.next_completion().unwrap();
            match completion.output {
                Err(JobError::Panicked { worker, message }) if completion.ticket == failing => {
                    assert!(worker == "Target(0)" && message.contains("panics on this token"));
                }
                Err(JobError::Cancelled) => assert_eq!(completion.ticket, waiting),
                Ok(JobOutput::Score(scores)) => {
                    assert_eq!((completion.ticket, scores.rows[0].as_point()), (later, Some(3)));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    check(&runtime.take_trace());
}

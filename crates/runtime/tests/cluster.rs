//! The cluster of threads as decoders use it: tickets, cancellation, failures, many sequences.

use forerun_core::{
    Cluster, ClusterError, Completion, Draft, DraftShape, FeatureRows, Features, Job, JobCost,
    JobError, JobOutput, Outcome, Role, Sampling, SamplingOptions, ScoreJob, SequenceId,
    TargetFeedback, Ticket, TokenId, TokenTree, VerifiedDraft, trace::SpanOutcome,
};
use forerun_decode::{
    DecodeError, Decoder, DraftLength, Dsi, DsiLookahead, Finish, Limits, Pearl, PearlDraftLength,
    Sequence, Speculative, SpeculativeDraftLength, generate,
};
use forerun_draft::ModelDrafter;
use forerun_lm::fake::{one_hot, output_by_prefix};
use forerun_lm::{
    BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, ModelError, complete_each,
};
use forerun_runtime::{Canceller, Engine, Runtime, TeamSpec, WorkerSpec, available_cores};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const VOCAB: usize = 8;
/// The token that makes the fake model panic if it is the last of a sequence.
const PANIC: TokenId = 6;
/// The token that makes the fake model wait for cancellation if it is the last of a sequence.
const HANG: TokenId = 7;

/// A model that predicts the last token plus one, modulo 5. It counts released sequences, and
/// panics once `calls_left` calls have been made.
#[derive(Clone)]
struct Fake {
    released: Arc<AtomicUsize>,
    calls_left: usize,
}

impl Default for Fake {
    fn default() -> Self {
        Self { released: Arc::default(), calls_left: usize::MAX }
    }
}

impl Fake {
    fn answer(&mut self, context: &ForwardRequest<'_>) -> Result<ForwardOutput, ModelError> {
        assert_ne!(self.calls_left, 0, "no calls left");
        self.calls_left -= 1;
        let last = *context.tokens.last().ok_or(ModelError::Empty)?;
        assert_ne!(last, PANIC, "the fake model panics on this token");
        if last == HANG {
            // A long forward pass, which checks for cancellation between its layers.
            while !context.cancel.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            return Err(ModelError::Cancelled);
        }
        Ok(output_by_prefix(context, VOCAB, |prefix| {
            one_hot(VOCAB, (prefix[prefix.len() - 1] + 1) % 5)
        }))
    }
}

impl LanguageModel for Fake {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_length(&self) -> usize {
        1_000
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| self.answer(request));
    }

    fn release(&mut self, _sequence: SequenceId) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }
}

fn runtime(fake: &Fake) -> Runtime {
    let (target, drafter) = (fake.clone(), fake.clone());
    Runtime::start(vec![
        WorkerSpec {
            name: "drafter".into(),
            team: TeamSpec::Unpinned(1),
            roles: vec![Role::Drafter(0)],
            build: Box::new(move |_| Ok(Engine::new().with_drafter(0, ModelDrafter::new(drafter)))),
        },
        WorkerSpec {
            name: "target".into(),
            team: TeamSpec::Unpinned(1),
            roles: vec![Role::Target(0)],
            build: Box::new(move |_| Ok(Engine::new().with_target(0, target))),
        },
    ])
    .unwrap()
}

fn score(sequence: u64, tokens: &[TokenId]) -> Job {
    Job::Score(ScoreJob::greedy(SequenceId(sequence), tokens))
}

fn token(completion: Completion) -> Option<TokenId> {
    match completion.output {
        Ok(JobOutput::Score(scores)) => scores.rows[0].as_point(),
        _ => None,
    }
}

fn sequence(id: u64, prompt: &[TokenId], max_tokens: usize) -> Sequence {
    let limits = Limits { max_tokens, context_length: 1_000, eos: Vec::new() };
    Sequence::new(SequenceId(id), prompt.to_vec(), Sampling::greedy(), limits)
}

fn speculate(cluster: &mut dyn Cluster, sequence: &mut Sequence) -> Result<Finish, DecodeError> {
    let draft_length =
        SpeculativeDraftLength::new(DraftShape::Chain { length: 3 }, DraftLength::Fixed);
    generate(&mut Speculative::new(draft_length), sequence, cluster, |_| ControlFlow::Continue(()))
}

#[test]
fn jobs_complete_at_the_handle_that_submitted_them() {
    let runtime = runtime(&Fake::default());
    let mut handles: Vec<_> = (0..4).map(|_| runtime.cluster()).collect();
    let tickets: Vec<Ticket> = handles
        .iter_mut()
        .zip(0..)
        .map(|(handle, last)| {
            handle.submit(Role::Target(0), score(u64::from(last), &[last])).unwrap()
        })
        .collect();
    for (handle, (ticket, last)) in handles.iter_mut().zip(tickets.into_iter().zip(0..4)).rev() {
        let completion = handle.next_completion().unwrap();
        assert_eq!(completion.ticket, ticket);
        assert!(completion.finished_ns >= completion.started_ns);
        assert_eq!(token(completion), Some(last + 1));
        assert_eq!(handle.next_completion(), Err(ClusterError::Idle));
    }
}

#[test]
fn many_sequences_share_the_workers() {
    let runtime = runtime(&Fake::default());
    std::thread::scope(|scope| {
        for id in 0..6 {
            let runtime = &runtime;
            scope.spawn(move || {
                let mut cluster = runtime.cluster();
                let mut sequence = sequence(id, &[id as TokenId % 5], 50);
                assert_eq!(speculate(&mut cluster, &mut sequence), Ok(Finish::MaxTokens));
                let expected: Vec<_> =
                    (0..50).map(|step| (id as TokenId % 5 + 1 + step) % 5).collect();
                assert_eq!(sequence.generated(), expected);
            });
        }
    });
}

#[test]
fn a_running_job_is_cancelled_and_a_waiting_one_never_runs() {
    let runtime = runtime(&Fake::default());
    let mut cluster = runtime.cluster();
    let running = cluster.submit(Role::Target(0), score(0, &[HANG])).unwrap();
    let waiting = cluster.submit(Role::Target(0), score(1, &[HANG])).unwrap();
    let last = cluster.submit(Role::Target(0), score(2, &[2])).unwrap();
    cluster.cancel(waiting);
    cluster.cancel(running);
    for ticket in [running, waiting] {
        let completion = cluster.next_completion().unwrap();
        assert_eq!((completion.ticket, completion.output), (ticket, Err(JobError::Cancelled)));
    }
    let completion = cluster.next_completion().unwrap();
    assert_eq!(completion.ticket, last);
    assert_eq!(token(completion), Some(3));
    let outcomes: Vec<SpanOutcome> =
        runtime.take_trace().spans.iter().map(|span| span.outcome).collect();
    assert_eq!(outcomes, [SpanOutcome::Wasted, SpanOutcome::Wasted, SpanOutcome::Open]);
}

#[test]
fn a_canceller_cancels_pending_jobs_and_all_later_ones() {
    let runtime = runtime(&Fake::default());
    let canceller = Canceller::new();
    let mut cluster = runtime.cluster_with(&canceller);
    cluster.submit(Role::Target(0), score(0, &[HANG])).unwrap();
    canceller.cancel();
    assert_eq!(cluster.next_completion().unwrap().output, Err(JobError::Cancelled));
    cluster.submit(Role::Target(0), score(0, &[1])).unwrap();
    assert_eq!(cluster.next_completion().unwrap().output, Err(JobError::Cancelled));
    let mut other = runtime.cluster();
    other.submit(Role::Target(0), score(0, &[1])).unwrap();
    assert_eq!(token(other.next_completion().unwrap()), Some(2));
}

#[test]
fn a_canceller_calls_its_actions_once() {
    let count = |calls: &Arc<AtomicUsize>, canceller: &Canceller| -> Arc<dyn Fn() + Send + Sync> {
        let (calls, canceller) = (Arc::clone(calls), canceller.clone());
        Arc::new(move || {
            // An action may use the canceller.
            assert!(canceller.is_cancelled());
            calls.fetch_add(1, Ordering::Relaxed);
        })
    };
    let (canceller, [before, dropped, after]) =
        (Canceller::new(), std::array::from_fn(|_| Arc::<AtomicUsize>::default()));
    let action = count(&before, &canceller);
    canceller.on_cancel(&action);
    canceller.on_cancel(&count(&dropped, &canceller));
    assert_eq!(before.load(Ordering::Relaxed), 0);
    canceller.cancel();
    canceller.cancel();
    canceller.on_cancel(&count(&after, &canceller));
    let calls = [before, dropped, after].map(|calls| calls.load(Ordering::Relaxed));
    assert_eq!(calls, [1, 0, 1]);
}

#[test]
fn completions_of_jobs_without_a_handle_go_to_a_function() {
    let runtime = runtime(&Fake::default());
    let (sender, completions) = std::sync::mpsc::channel();
    let submit = |role, job, canceller: &Canceller| {
        let sender = sender.clone();
        runtime.submit(role, job, canceller, move |completion| sender.send(completion).unwrap())
    };
    let canceller = Canceller::new();
    let refused = submit(Role::Target(3), score(0, &[1]), &canceller);
    assert_eq!(refused, Err(ClusterError::NoSuchRole(Role::Target(3))));
    let hanging = submit(Role::Target(0), score(1, &[HANG]), &canceller).unwrap();
    let ticket = submit(Role::Target(0), score(2, &[3]), &Canceller::new()).unwrap();
    assert!(ticket > hanging);
    canceller.cancel();
    let mut ended: Vec<Completion> = completions.iter().take(2).collect();
    ended.sort_by_key(|completion| completion.ticket);
    let [first, second] = ended.try_into().unwrap();
    assert_eq!((first.ticket, first.output), (hanging, Err(JobError::Cancelled)));
    assert_eq!((second.ticket, token(second)), (ticket, Some(4)));
    // The function of the refused job was dropped, and not called.
    drop(runtime);
    assert!(completions.try_recv().is_err());
}

#[test]
fn a_dropped_handle_cancels_its_jobs() {
    let runtime = runtime(&Fake::default());
    let mut dropped = runtime.cluster();
    dropped.submit(Role::Target(0), score(0, &[HANG])).unwrap();
    drop(dropped);
    let mut cluster = runtime.cluster();
    cluster.submit(Role::Target(0), score(1, &[0])).unwrap();
    assert_eq!(token(cluster.next_completion().unwrap()), Some(1));
}

#[test]
fn a_panic_is_an_error_for_its_sequence_and_the_worker_keeps_running() {
    let fake = Fake::default();
    let runtime = runtime(&fake);
    let mut cluster = runtime.cluster();
    let mut failing = sequence(0, &[PANIC], 10);
    let error = speculate(&mut cluster, &mut failing).unwrap_err();
    let drafter = failing.statistics().failures.join(", ");
    for (worker, message) in [("drafter", drafter), ("target", error.to_string())] {
        assert!(message.contains(&format!("{worker} panicked")), "{message}");
        assert!(message.contains("panics on this token"), "{message}");
    }
    assert_eq!(fake.released.load(Ordering::Relaxed), 2, "incomplete caches are dropped");
    cluster.submit(Role::Target(0), score(1, &[PANIC])).unwrap();
    let output = cluster.next_completion().unwrap().output;
    assert!(matches!(output, Err(JobError::Panicked { worker, .. }) if worker == "target"));
    let mut other = sequence(2, &[0], 10);
    assert_eq!(speculate(&mut cluster, &mut other), Ok(Finish::MaxTokens));
}

/// Jobs that wait for the same worker run as one batch.
#[test]
fn failing_jobs_do_not_disturb_the_others_of_their_batch() {
    let runtime = runtime(&Fake::default());
    for role in [Role::Target(0), Role::Drafter(0)] {
        let job = |sequence: u64, tokens: &[TokenId]| match role {
            Role::Target(_) => score(sequence, tokens),
            Role::Drafter(_) => Job::Draft {
                sequence: SequenceId(sequence),
                tokens: tokens.into(),
                prompt_len: tokens.len(),
                sampling: Sampling::greedy(),
                shape: DraftShape::Chain { length: 2 },
                feedback: TargetFeedback::default(),
            },
        };
        let mut cluster = runtime.cluster();
        // The worker is busy until all others are in its queue.
        let busy = cluster.submit(role, job(0, &[HANG])).unwrap();
        let prompts = [&[1][..], &[PANIC], &[2], &[], &[HANG], &[3]];
        let tickets: Vec<Ticket> = (1..)
            .zip(prompts)
            .map(|(sequence, tokens)| cluster.submit(role, job(sequence, tokens)).unwrap())
            .collect();
        cluster.cancel(tickets[4]);
        cluster.cancel(busy);
        let mut outputs: Vec<_> = (0..=prompts.len())
            .map(|_| cluster.next_completion().unwrap())
            .map(|completion| (completion.ticket, completion.output))
            .collect();
        outputs.sort_by_key(|(ticket, _)| *ticket);
        let outputs: Vec<_> = outputs.into_iter().map(|(_, output)| output).collect();
        let next = |output: &Result<JobOutput, JobError>| match output {
            Ok(JobOutput::Score(scores)) => scores.rows[0].as_point(),
            Ok(JobOutput::Draft(draft)) => draft.tree.tokens().first().copied(),
            Err(_) => None,
        };
        assert_eq!(outputs[0], Err(JobError::Cancelled));
        assert_eq!([1, 3, 6].map(|index: usize| next(&outputs[index])), [2, 3, 4].map(Some));
        assert!(matches!(outputs[2], Err(JobError::Panicked { .. })), "{:?}", outputs[2]);
        assert_eq!(next(&outputs[4]), None, "an empty sequence");
        assert_eq!(outputs[5], Err(JobError::Cancelled));
    }
}

#[test]
fn a_failed_job_names_the_worker_and_the_reason() {
    let runtime = runtime(&Fake::default());
    let mut cluster = runtime.cluster();
    cluster.submit(Role::Target(0), score(0, &[])).unwrap();
    let error = cluster.next_completion().unwrap().output.unwrap_err().to_string();
    assert!(error.contains("target") && error.contains("at least one token"), "{error}");
}

#[test]
fn a_role_without_a_worker_is_an_error() {
    let mut cluster = runtime(&Fake::default()).cluster();
    let refused = cluster.submit(Role::Target(3), score(0, &[1]));
    assert_eq!(refused, Err(ClusterError::NoSuchRole(Role::Target(3))));
    assert_eq!(cluster.next_completion(), Err(ClusterError::Idle));
}

#[test]
fn handles_keep_the_workers_running_after_the_runtime_is_dropped() {
    let runtime = runtime(&Fake::default());
    let mut cluster = runtime.cluster();
    drop(runtime);
    cluster.submit(Role::Target(0), score(0, &[3])).unwrap();
    assert_eq!(token(cluster.next_completion().unwrap()), Some(4));
}

#[test]
fn a_worker_that_cannot_load_reports_the_reason() {
    let start = |team: TeamSpec, build: forerun_runtime::BuildEngine| {
        let roles = vec![Role::Target(0)];
        let spec = WorkerSpec { name: "target cpu:0".into(), team, roles, build };
        Runtime::start(vec![spec]).err().unwrap().to_string()
    };
    let message = start(TeamSpec::Unpinned(1), Box::new(|_| Err("no weights".into())));
    assert_eq!(message, "target cpu:0: no weights");
    let message = start(TeamSpec::Unpinned(1), Box::new(|_| panic!("the model panics")));
    assert!(message.contains("the model panics"), "{message}");
    let message = start(TeamSpec::Unpinned(1), Box::new(|_| Ok(Engine::new())));
    assert!(message.contains("Target(0)"), "{message}");
    if cfg!(target_os = "linux") {
        let message = start(TeamSpec::Pinned(vec![100_000]), Box::new(|_| Ok(Engine::new())));
        assert!(message.contains("core 100000"), "{message}");
    }
}

#[test]
fn a_worker_is_pinned_only_if_its_team_names_cores() {
    let all = available_cores();
    let cores_of_worker = |team: TeamSpec| {
        let (send, receive) = std::sync::mpsc::channel();
        let build: forerun_runtime::BuildEngine = Box::new(move |team| {
            send.send((team.members(), available_cores())).unwrap();
            Ok(Engine::new().with_target(0, Fake::default()))
        });
        let roles = vec![Role::Target(0)];
        let spec = WorkerSpec { name: "target".into(), team, roles, build };
        drop(Runtime::start(vec![spec]).unwrap());
        receive.recv().unwrap()
    };
    assert_eq!(cores_of_worker(TeamSpec::Unpinned(2)), (2, all.clone()));
    if cfg!(target_os = "linux") {
        let last = vec![all[all.len() - 1]];
        assert_eq!(cores_of_worker(TeamSpec::Pinned(last.clone())), (1, last));
    }
}

#[test]
fn every_worker_frees_released_sequences() {
    let fake = Fake::default();
    let runtime = runtime(&fake);
    let mut cluster = runtime.cluster();
    assert_eq!(speculate(&mut cluster, &mut sequence(0, &[0], 5)), Ok(Finish::MaxTokens));
    cluster.release(SequenceId(0));
    drop((cluster, runtime)); // waits for the workers
    assert_eq!(fake.released.load(Ordering::Relaxed), 2);
}

#[test]
fn the_trace_contains_drafts_scores_and_outcomes() {
    let runtime = runtime(&Fake::default());
    let mut cluster = runtime.cluster();
    speculate(&mut cluster, &mut sequence(0, &[0], 8)).unwrap();
    let trace = runtime.take_trace();
    assert_eq!(trace.lanes, ["drafter", "target"]);
    let shown: Vec<_> = trace
        .spans
        .iter()
        .map(|span| (span.lane, span.rows, span.accepted, span.outcome))
        .collect();
    let all = SpanOutcome::Accepted;
    assert_eq!(shown, [(0, 3, 3, all), (1, 4, 3, all), (0, 3, 3, all), (1, 4, 3, all)]);
    assert!(runtime.take_trace().spans.is_empty(), "the spans were removed");
}

#[test]
fn jobs_and_completions_survive_serialisation() {
    let logit_bias = [(3, -1.5)].into();
    let sampling = Sampling {
        options: SamplingOptions {
            temperature: 0.7,
            top_k: 5,
            logit_bias,
            ..SamplingOptions::default()
        },
        ..Sampling::greedy()
    };
    let tokens: Arc<[TokenId]> = vec![1, 2, 3].into();
    let shape = DraftShape::Sampled { branching: vec![3, 2] };
    let (sequence, prompt_len) = (SequenceId(9), 2);
    let mut features = Features::new();
    features.push(FeatureRows::new(2, vec![0.5, -1.0, 0.25, 3.0]));
    let last_draft = VerifiedDraft { tree: TokenTree::chain(&[4]), tokens: vec![5, 6] };
    let feedback = TargetFeedback { features, last_draft: Some(Arc::new(last_draft)) };
    let draft = Job::Draft { sequence, tokens, prompt_len, sampling, shape, feedback };
    let jobs = [score(4, &[1, 2]), draft];
    for job in jobs {
        let text = serde_json::to_string(&job).unwrap();
        assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job);
    }
    let runtime = runtime(&Fake::default());
    let mut cluster = runtime.cluster();
    let Job::Score(ScoreJob { sequence, tokens, prompt_len, tree, sampling, .. }) = score(0, &[3])
    else {
        panic!()
    };
    let (logprobs, features_from) = (Some(2), None);
    let with_logprobs = Job::Score(ScoreJob {
        sequence,
        tokens,
        prompt_len,
        tree,
        sampling,
        logprobs,
        features_from,
    });
    cluster.submit(Role::Target(0), with_logprobs).unwrap();
    let draft = Completion {
        ticket: Ticket(3),
        output: Ok(JobOutput::Draft(Draft::empty())),
        started_ns: 1,
        finished_ns: 2,
        cost: JobCost {
            passes: 3,
            own_rows: 4,
            batch_rows: 9,
            batch_sequences: 6,
            busy_ns: 1,
            active_sequences: 8,
        },
    };
    let panicked = JobError::Panicked { worker: "w".into(), message: "m".into() };
    let failed = Completion { output: Err(panicked), ..draft.clone() };
    for completion in [cluster.next_completion().unwrap(), draft, failed] {
        let text = serde_json::to_string(&completion).unwrap();
        assert_eq!(serde_json::from_str::<Completion>(&text).unwrap(), completion);
    }
    let outcome = Outcome { ticket: Ticket(1), accepted: 2, outcome: SpanOutcome::Rejected };
    let text = serde_json::to_string(&outcome).unwrap();
    assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
}

/// Generates with a decoder while the worker of `role` panics after `calls_left` calls.
fn run_with_a_panic(decoder: &mut dyn Decoder, role: Role, calls_left: usize) -> Sequence {
    let worker = |own: Role| WorkerSpec {
        name: format!("{own:?}"),
        team: TeamSpec::Unpinned(1),
        roles: vec![own],
        build: Box::new(move |_| {
            let calls_left = if own == role { calls_left } else { usize::MAX };
            let model = Fake { calls_left, ..Fake::default() };
            Ok(match own {
                Role::Drafter(index) => Engine::new().with_drafter(index, ModelDrafter::new(model)),
                Role::Target(index) => Engine::new().with_target(index, model),
            })
        }),
    };
    let drafters = (0..2).map(Role::Drafter);
    let roles = drafters.chain((0..3).map(Role::Target));
    let runtime = Runtime::start(roles.map(worker).collect()).unwrap();
    let mut sequence = sequence(0, &[0], 60);
    let go_on = |_: &[_]| ControlFlow::Continue(());
    let finish = generate(decoder, &mut sequence, &mut runtime.cluster(), go_on);
    assert_eq!(finish, Ok(Finish::MaxTokens), "{role:?}");
    let text: Vec<TokenId> = (0..60).map(|step| (1 + step) % 5).collect();
    assert_eq!(sequence.generated(), text, "{role:?} {calls_left}");
    sequence
}

#[test]
fn decoding_continues_without_a_drafter_that_panics_and_reports_it() {
    let fixed = DraftLength::Fixed;
    let speculative = || -> Box<dyn Decoder> {
        let chain = DraftShape::Chain { length: 3 };
        Box::new(Speculative::new(SpeculativeDraftLength::new(chain, fixed)))
    };
    let pearl = |options: &str| -> Box<dyn Decoder> {
        Box::new(Pearl::new(options.parse().unwrap(), PearlDraftLength::new(3, fixed, true)))
    };
    for calls_left in [0, 1, 4, 7] {
        for (name, mut decoder) in [
            ("speculative", speculative()),
            ("eager", pearl("eager")),
            ("paper", pearl("paper")),
            ("paper,no-pre-verify", pearl("paper,no-pre-verify")),
            ("paper,no-post-verify", pearl("paper,no-post-verify")),
        ] {
            let sequence = run_with_a_panic(&mut *decoder, Role::Drafter(0), calls_left);
            let [failure] = &sequence.statistics().failures[..] else {
                panic!("{name} {calls_left}: {:?}", sequence.statistics().failures)
            };
            assert!(failure.starts_with("drafter 0 failed: Drafter(0) panicked: "), "{failure}");
            assert!(failure.contains("no calls left"), "{failure}");
        }
    }
}

#[test]
fn dsi_continues_without_a_failed_worker_and_reports_it() {
    let (mut certain, mut reported) = (0, 0);
    for calls_left in [0, 1, 4] {
        for role in [Role::Target(0), Role::Target(1), Role::Drafter(0), Role::Drafter(1)] {
            let lookahead = DsiLookahead::new(2, DraftLength::Fixed, 3);
            // A reproducible decoder waits for late drafters, so that it sees a failure before the
            // answer ends.
            let mut decoder = Dsi::new(3, lookahead).with_drafters(2).reproducible();
            let sequence = run_with_a_panic(&mut decoder, role, calls_left);
            let failures = &sequence.statistics().failures;
            // The number of jobs of each replica depends on timing, but the first replica always
            // gets the first job.
            let certainly_fails =
                matches!(role, Role::Drafter(_)) || (role, calls_left) == (Role::Target(0), 0);
            certain += usize::from(certainly_fails);
            reported += usize::from(certainly_fails && failures.len() == 1);
            for failure in failures {
                let start = match role {
                    Role::Drafter(index) => format!("drafter {index} failed"),
                    Role::Target(index) => format!("target replica {index} failed"),
                };
                let is_expected = failure.starts_with(&start) && failure.contains("no calls left");
                assert!(is_expected, "{failure}");
            }
        }
    }
    assert_eq!(reported, certain);
}

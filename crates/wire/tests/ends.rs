//! The two ends: what is asked for again, in which order commands arrive, and what is forgotten.

use forerun_core::{
    Completion, Distribution, DraftShape, FeatureRows, Features, Job, JobCost, JobError, JobOutput,
    Role, Sampling, SamplingOptions, ScoreJob, Scores, SequenceId, TargetFeedback, Ticket, TokenId,
    TokenTree,
};
use forerun_wire::{Command, HostEnd, Reply, WireError, WorkerEnd};

const BUDGET: usize = 1 << 20;

fn score(sequence: u64, tokens: &[TokenId]) -> Job {
    let job = ScoreJob::greedy(SequenceId(sequence), tokens);
    Job::Score(ScoreJob { prompt_len: 1, tree: TokenTree::chain(&[7]), ..job })
}

fn draft(sequence: u64, tokens: &[TokenId], features: &Features) -> Job {
    Job::Draft {
        sequence: SequenceId(sequence),
        tokens: tokens.into(),
        prompt_len: 1,
        sampling: Sampling::greedy(),
        shape: DraftShape::Chain { length: 4 },
        feedback: TargetFeedback { features: features.clone(), last_draft: None },
    }
}

fn run(ticket: u64, job: &Job) -> Command {
    Command::Run { ticket: Ticket(ticket), role: Role::Target(0), job: job.clone() }
}

/// A connection without a delay.
struct Connection {
    host: HostEnd,
    worker: WorkerEnd,
    submitted: u64,
    /// The number of jobs that were asked for again.
    missed: usize,
}

impl Connection {
    fn new(budget: usize) -> Self {
        Self { host: HostEnd::new(), worker: WorkerEnd::new(budget), submitted: 0, missed: 0 }
    }

    /// Submits a job and checks that it arrives. Returns the number of bytes that took.
    fn submit(&mut self, job: &Job) -> usize {
        let ticket = self.submitted;
        self.submitted += 1;
        let bytes = self.host.submit(Ticket(ticket), Role::Target(0), job.clone());
        let received = self.worker.receive(&bytes).unwrap();
        let Some(answer) = received.answer else {
            assert_eq!(received.commands, [run(ticket, job)]);
            return bytes.len();
        };
        assert!(received.commands.is_empty() && self.worker.is_waiting());
        self.missed += 1;
        let Reply::Resend(whole) = self.host.receive(&answer).unwrap() else { panic!("a resend") };
        let received = self.worker.receive(&whole).unwrap();
        assert_eq!((received.commands, received.answer), (vec![run(ticket, job)], None));
        bytes.len() + whole.len()
    }
}

#[test]
fn jobs_that_share_a_prefix_are_small() {
    let mut connection = Connection::new(BUDGET);
    let text: Vec<TokenId> = (0..5_000).collect();
    assert!(connection.submit(&score(0, &text[..4_000])) > 4_000);
    // Longer, shorter, the same, and other tokens at the end.
    for tokens in
        [&text[..4_005], &text[..3_990], &text[..3_990], &[&text[..3_980], &[1, 2]].concat()]
    {
        assert!(connection.submit(&score(0, tokens)) < 70);
    }
    // Nothing in common, and back.
    assert!(connection.submit(&score(0, &text[1..])) > 4_000);
    assert!(connection.submit(&score(0, &text)) > 4_000);
    // Another sequence has its own tokens.
    assert!(connection.submit(&score(1, &text)) > 4_000);
    assert!(connection.submit(&score(0, &text)) < 70);
    assert_eq!(connection.missed, 0);
}

#[test]
fn features_travel_once() {
    let mut connection = Connection::new(BUDGET);
    let rows = |count: usize, value: f32| FeatureRows::new(100, vec![value; 100 * count]);
    let mut features = Features::new();
    features.push(rows(10, 1.0));
    assert!(connection.submit(&draft(0, &[1; 11], &features)) > 4_000);
    // A score job in between changes nothing.
    assert!(connection.submit(&score(0, &[1; 12])) < 70);
    let before = features.clone();
    features.push(rows(2, 2.0));
    assert!((800..900).contains(&connection.submit(&draft(0, &[1; 13], &features))));
    assert!(connection.submit(&draft(0, &[1; 13], &features)) < 100);
    assert!(connection.submit(&draft(0, &[1; 11], &before)) < 100);
    // Equal rows in another allocation are the same rows, but the two zeros differ.
    let equal: Features = before.parts().iter().map(|part| (**part).clone().into()).collect();
    assert!(connection.submit(&draft(0, &[1; 11], &equal)) < 100);
    let mut zeros = [Features::new(), Features::new()];
    zeros[0].push(rows(10, 0.0));
    zeros[1].push(rows(10, -0.0));
    assert!(connection.submit(&draft(0, &[1; 11], &zeros[0])) > 4_000);
    assert!(connection.submit(&draft(0, &[1; 11], &zeros[1])) > 4_000);
    // No features, and then features that the worker no longer holds.
    connection.submit(&draft(0, &[1; 11], &Features::new()));
    connection.submit(&draft(0, &[1; 11], &features));
    connection.worker.forget();
    connection.submit(&score(0, &[1; 12]));
    assert_eq!(connection.missed, 1, "the tokens");
    connection.submit(&draft(0, &[1; 13], &features));
    assert_eq!(connection.missed, 2, "the features");
}

#[test]
fn commands_wait_for_a_missing_job_in_their_order() {
    let (mut host, mut worker) = (HostEnd::new(), WorkerEnd::new(BUDGET));
    let text: Vec<TokenId> = (0..100).collect();
    let jobs: Vec<Job> = (0..5).map(|at| score(u64::from(at == 3), &text[..90 + at])).collect();
    let role = Role::Target(0);
    let submit =
        |host: &mut HostEnd, at: usize| host.submit(Ticket(at as u64), role, jobs[at].clone());
    let first = submit(&mut host, 0);
    assert_eq!(worker.receive(&first).unwrap().commands, [run(0, &jobs[0])]);

    worker.forget();
    let missed = submit(&mut host, 1);
    let answer = worker.receive(&missed).unwrap().answer.unwrap();
    // These follow before the answer arrives: jobs of both sequences, cancellations and releases.
    let waiting = [
        submit(&mut host, 2),
        host.cancel(Ticket(1)),
        submit(&mut host, 3),
        host.cancel(Ticket(2)),
        host.release(SequenceId(0)),
        submit(&mut host, 4),
    ];
    for bytes in &waiting {
        assert_eq!(worker.receive(bytes), Ok(forerun_wire::Received::default()));
    }
    // The cancellation of a running job does not wait.
    let cancelled = worker.receive(&host.cancel(Ticket(0))).unwrap();
    assert_eq!(cancelled.commands, [Command::Cancel(Ticket(0))]);

    let Reply::Resend(whole) = host.receive(&answer).unwrap() else { panic!("a resend") };
    let received = worker.receive(&whole).unwrap();
    let expected = [
        run(1, &jobs[1]),
        Command::Cancel(Ticket(1)),
        run(2, &jobs[2]),
        Command::Cancel(Ticket(2)),
        run(3, &jobs[3]),
        Command::Release(SequenceId(0)),
        run(4, &jobs[4]),
    ];
    assert_eq!((received.commands, received.answer), (expected.to_vec(), None));
    assert!(!worker.is_waiting());
}

/// Otherwise the job could complete before its cancellation, which then came too late.
#[test]
fn a_cancellation_does_not_wait_for_a_missing_job_of_another_sequence() {
    let (mut host, mut worker) = (HostEnd::new(), WorkerEnd::new(BUDGET));
    let jobs = [score(0, &[1; 50]), score(1, &[2; 50])];
    let role = Role::Target(0);
    for (ticket, job) in (0..).zip(&jobs) {
        let bytes = host.submit(Ticket(ticket), role, job.clone());
        assert_eq!(worker.receive(&bytes).unwrap().commands, [run(ticket, job)]);
    }
    worker.forget();
    let again: Vec<_> =
        (2..).zip(&jobs).map(|(at, job)| host.submit(Ticket(at), role, job.clone())).collect();
    let first = worker.receive(&again[0]).unwrap().answer.unwrap();
    worker.receive(&again[1]).unwrap();
    worker.receive(&host.cancel(Ticket(2))).unwrap();
    worker.receive(&host.cancel(Ticket(3))).unwrap();
    let Reply::Resend(whole) = host.receive(&first).unwrap() else { panic!("a resend") };
    // The job of the other sequence is missing, too.
    let received = worker.receive(&whole).unwrap();
    assert_eq!(received.commands, [run(2, &jobs[0]), Command::Cancel(Ticket(2))]);
    let Reply::Resend(whole) = host.receive(&received.answer.unwrap()).unwrap() else { panic!() };
    let received = worker.receive(&whole).unwrap();
    assert_eq!(received.commands, [run(3, &jobs[1]), Command::Cancel(Ticket(3))]);
    assert!(received.answer.is_none() && !worker.is_waiting());
}

#[test]
fn cancelled_jobs_return_no_output() {
    let mut connection = Connection::new(BUDGET);
    let scores = |row| Scores { rows: vec![Distribution::point(row); 2], ..Scores::default() };
    let completion = |ticket, output| Completion {
        ticket: Ticket(ticket),
        output,
        started_ns: 3,
        finished_ns: 5,
        cost: JobCost::default(),
    };
    for ticket in 0..3 {
        connection.submit(&score(0, &[1, 2, 3]));
        if ticket == 1 {
            let bytes = connection.host.cancel(Ticket(1));
            connection.worker.receive(&bytes).unwrap();
        }
    }
    let panicked = JobError::Panicked { worker: "worker".into(), message: "no memory".into() };
    let (output, cancelled) = (Ok(JobOutput::Score(scores(4))), Err(JobError::Cancelled));
    for (sent, arrived) in [
        (completion(0, output.clone()), completion(0, output.clone())),
        (completion(1, output), completion(1, cancelled)),
        (completion(2, Err(panicked.clone())), completion(2, Err(panicked))),
    ] {
        let bytes = connection.worker.complete(sent);
        assert_eq!(connection.host.receive(&bytes), Ok(Reply::Completed(arrived.clone())));
        let error = connection.host.receive(&bytes);
        assert_eq!(error, Err(WireError::UnknownJob(arrived.ticket)), "it completes once");
    }
    assert_eq!(connection.host.in_flight().count(), 0);
    // A late cancellation of a completed job is no command.
    let late = connection.host.cancel(Ticket(0));
    assert_eq!(connection.worker.receive(&late), Ok(forerun_wire::Received::default()));
}

#[test]
fn the_sequences_used_last_stay_within_the_budget() {
    // One sequence takes about 400 bytes for its tokens, and 1,600 for their digests.
    let mut connection = Connection::new(5_000);
    let text: Vec<TokenId> = (0..100).collect();
    for sequence in [0, 1, 0, 2] {
        connection.submit(&score(sequence, &text));
    }
    assert!(connection.worker.held_bytes() <= 5_000);
    assert_eq!(connection.missed, 0);
    connection.submit(&score(0, &text));
    assert_eq!(connection.missed, 0);
    connection.submit(&score(1, &text));
    assert_eq!(connection.missed, 1);
    // A sequence larger than the budget is held as long as it is the last one.
    let long: Vec<TokenId> = (0..1_000).collect();
    connection.submit(&score(3, &long));
    assert!(connection.submit(&score(3, &long)) < 70);
    connection.submit(&score(0, &text));
    assert_eq!(connection.missed, 2);
    assert!(connection.worker.held_bytes() < 5_000);
    // Released sequences take nothing.
    for sequence in 0..4 {
        let bytes = connection.host.release(SequenceId(sequence));
        connection.worker.receive(&bytes).unwrap();
    }
    assert_eq!(connection.worker.held_bytes(), 0);
}

/// A host that restarted, so that its end and the worker's know different tokens, gets what it
/// submits.
#[test]
fn a_digest_of_other_tokens_or_options_is_a_miss() {
    let text: Vec<TokenId> = (0..50).collect();
    let other_text: Vec<TokenId> = (1..51).collect();
    let warm = |tokens: &[TokenId]| match score(0, tokens) {
        Job::Score(ScoreJob {
            sequence,
            tokens,
            prompt_len,
            tree,
            logprobs,
            features_from,
            ..
        }) => {
            let options = SamplingOptions { temperature: 0.5, ..SamplingOptions::default() };
            let sampling = Sampling { options, ..Sampling::greedy() };
            Job::Score(ScoreJob {
                sequence,
                tokens,
                prompt_len,
                tree,
                sampling,
                logprobs,
                features_from,
            })
        }
        draft @ Job::Draft { .. } => draft,
    };
    for (held, expected) in [
        (score(0, &text), 0),
        (score(0, &other_text), 1),
        (score(0, &text[..49]), 1),
        (warm(&text), 1),
    ] {
        let mut before = Connection::new(BUDGET);
        before.submit(&held);
        let mut connection = Connection { worker: before.worker, ..Connection::new(BUDGET) };
        // The new host has submitted this job to a worker that no longer exists.
        let _lost = connection.host.submit(Ticket(99), Role::Target(0), score(0, &text));
        connection.submit(&score(0, &[&text[..], &[3]].concat()));
        assert_eq!(connection.missed, expected);
        // Other options are sent with all tokens.
        connection.submit(&warm(&text));
        assert_eq!(connection.missed, expected);
    }
}

#[test]
fn a_digest_of_other_features_is_a_miss() {
    let features = |width, value| -> Features {
        [FeatureRows::new(width, vec![value; 12]).into()].into_iter().collect()
    };
    let longer = |mut features: Features| {
        features.push(FeatureRows::new(4, vec![5.0; 4]));
        features
    };
    for (held, expected) in
        [(features(4, 1.0), 0), (features(4, 2.0), 1), (features(6, 1.0), 1), (Features::new(), 1)]
    {
        let mut before = Connection::new(BUDGET);
        before.submit(&draft(0, &[1; 4], &held));
        let mut connection = Connection { worker: before.worker, ..Connection::new(BUDGET) };
        let lost = draft(0, &[1; 4], &features(4, 1.0));
        let _lost = connection.host.submit(Ticket(99), Role::Target(0), lost);
        connection.submit(&draft(0, &[1; 5], &longer(features(4, 1.0))));
        assert_eq!(connection.missed, expected);
    }
}

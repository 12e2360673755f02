//! Bytes from outside: every message gives a result or an error, without a panic, and without
//! memory out of proportion to its size.

use crate::common::Choices;
use forerun_core::testing::env_number;
use forerun_core::{
    Completion, Distribution, Draft, DraftShape, FeatureRows, Features, Job, JobCost, JobError,
    JobOutput, KeyedRandomness, Proposal, Role, RowLogprobs, Sampling, SamplingOptions, ScoreJob,
    Scores, SequenceId, TargetFeedback, Ticket, TokenTree, Verification, VerifiedDraft,
};
use forerun_wire::{HostEnd, WorkerEnd};
use std::sync::Arc;

fn jobs() -> Vec<Job> {
    let sampling = Sampling {
        options: SamplingOptions {
            temperature: 0.7,
            logit_bias: [(3, 1.0), (90_000, -1.0)].into(),
            ..SamplingOptions::default()
        },
        randomness: KeyedRandomness { seed: 7, sample: 1 },
        verification: Verification::Rejection,
        constraint: None,
        dry_breakers: Arc::default(),
        adapter: None,
    };
    let mut tree = TokenTree::chain(&[5, 6, 7]);
    tree.push(Some(0), 9);
    let mut features = Features::new();
    features.push(FeatureRows::new(4, vec![0.5; 8]));
    let last_draft = VerifiedDraft { tree: tree.clone(), tokens: vec![1, 2, 3, 4, 5] };
    let draft = |tokens: &[u32], features: &Features, shape| Job::Draft {
        sequence: SequenceId(3),
        tokens: tokens.into(),
        prompt_len: 2,
        sampling: sampling.clone(),
        shape,
        feedback: TargetFeedback {
            features: features.clone(),
            last_draft: Some(Arc::new(last_draft.clone())),
        },
    };
    let first = draft(&[1, 2, 300], &features, DraftShape::Chain { length: 4 });
    features.push(FeatureRows::new(4, vec![0.25; 4]));
    let branching = DraftShape::Sampled { branching: vec![2, 1] };
    let ranked = DraftShape::Ranked { children: vec![2, 0, 1] };
    let score = Job::Score(ScoreJob {
        sequence: SequenceId(3),
        tokens: [1, 2, 300, 4].into(),
        prompt_len: 2,
        tree,
        sampling: sampling.clone(),
        logprobs: Some(2),
        features_from: Some(1),
    });
    let last = [branching, ranked].map(|shape| draft(&[1, 2, 300, 4, 5], &features, shape));
    [first, score].into_iter().chain(last).collect()
}

fn completions() -> Vec<Completion> {
    let row = |first: u32| {
        Distribution::from_weights((0..20).map(|token| (first + 2 * token, 1.0 + token as f32)))
    };
    let tree = TokenTree::chain(&[10, 12]);
    let proposal = Proposal::Sampled(vec![row(0), row(4), Distribution::default()]);
    let draft = Draft::new(tree, proposal);
    let logits: Vec<f32> = (0..100).map(|logit| logit as f32 / 9.0).collect();
    let logprobs = |row: &Distribution| RowLogprobs::new(&logits, row, 3, 0).unwrap();
    let rows =
        vec![row(1), Distribution::point(7), Distribution::from_weights([(0, 1.0), (1, 3.0)])];
    let scores = Scores {
        logprobs: Some(rows.iter().map(logprobs).collect()),
        rows,
        features: Some(FeatureRows::new(3, vec![1.0; 9])),
    };
    let failed = JobError::Failed { worker: "worker".into(), message: "out of memory".into() };
    let outputs = [Ok(JobOutput::Draft(draft)), Ok(JobOutput::Score(scores)), Err(failed)];
    (0..)
        .zip(outputs)
        .map(|(ticket, output)| Completion {
            ticket: Ticket(ticket),
            output,
            started_ns: 5,
            finished_ns: 1 << 40,
            cost: JobCost::default(),
        })
        .collect()
}

/// Two ends in the middle of a conversation, and all of its messages: to the worker, and to the
/// host.
fn conversation() -> ((HostEnd, WorkerEnd), [Vec<Vec<u8>>; 2]) {
    let (mut host, mut worker) = (HostEnd::new(), WorkerEnd::new(10_000));
    let (mut to_worker, mut to_host) = (Vec::new(), Vec::new());
    for (ticket, job) in (0..).zip(jobs()) {
        let bytes = host.submit(Ticket(ticket), Role::Drafter(0), job);
        assert_eq!(worker.receive(&bytes).unwrap().commands.len(), 1);
        to_worker.push(bytes);
    }
    to_worker.push(host.cancel(Ticket(1)));
    to_worker.push(HostEnd::new().release(SequenceId(3)));
    let completions = completions().into_iter();
    to_host.extend(completions.map(|completion| WorkerEnd::new(0).complete(completion)));
    to_host.extend(WorkerEnd::new(0).receive(&to_worker[2]).unwrap().answer);
    assert_eq!(to_host.len(), 4);
    ((host, worker), [to_worker, to_host])
}

/// Changes, removes, inserts or replaces some bytes.
fn mutate(bytes: &mut Vec<u8>, choices: &mut Choices) {
    for _ in 0..1 + choices.below(4) {
        let at = choices.below(bytes.len() + 1);
        // Values that varints, tags and lengths react to.
        let any = choices.below(256) as u8;
        let byte = choices.of(&[0, 1, 2, 127, 128, 255, any]);
        match choices.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, byte),
            2 => bytes.extend_from_within(at..),
            3 => drop(bytes.splice(at.., [255, 255, 255, 255, 255, 255, 255, 255, 255, 1])),
            _ if at < bytes.len() => bytes[at] = byte,
            _ => bytes.push(byte),
        }
    }
}

#[test]
fn arbitrary_bytes_neither_panic_nor_take_much_memory() {
    let cases = env_number("FORERUN_CASES", 1_000_000);
    let ((mut host, mut worker), messages) = conversation();
    let (mut read, mut refused, mut most) = (0, 0, 0.0_f64);
    for case in 0..cases {
        let choices = &mut Choices::new(case);
        if case.is_multiple_of(64) {
            (host, worker) = conversation().0;
        }
        let to_host = choices.below(2);
        let bytes = match choices.below(4) {
            0 => {
                // The right format, then anything.
                let len = choices.below(80);
                [1].into_iter().chain((0..len).map(|_| choices.below(256) as u8)).collect()
            }
            _ => {
                let mut bytes = choices.of(&messages[to_host]);
                mutate(&mut bytes, choices);
                bytes
            }
        };
        let mut is_read = false;
        let measured = allocation_counter::measure(|| {
            is_read = match to_host {
                1 => host.receive(&bytes).is_ok(),
                _ => worker.receive(&bytes).is_ok(),
            };
        });
        *if is_read { &mut read } else { &mut refused } += 1;
        most = most.max((measured.bytes_max as f64 - 4_000.0) / bytes.len().max(1) as f64);
    }
    println!("{read} read, {refused} refused, up to {most:.0} bytes for each byte");
    assert!(read > cases / 50 && refused > cases / 2);
    assert!(most < 200.0, "{most} bytes for each byte of a message");
}

#[test]
fn truncated_messages_are_refused() {
    let (_, [to_worker, to_host]) = conversation();
    for bytes in &to_worker {
        for len in 0..bytes.len() {
            assert!(WorkerEnd::new(0).receive(&bytes[..len]).is_err());
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(WorkerEnd::new(0).receive(&longer).is_err());
    }
    for bytes in &to_host {
        for len in 0..bytes.len() {
            assert!(conversation().0.0.receive(&bytes[..len]).is_err());
        }
        assert!(conversation().0.0.receive(bytes).is_ok());
    }
    let mut other_format = to_worker[0].clone();
    other_format[0] += 1;
    let error = WorkerEnd::new(0).receive(&other_format).unwrap_err().to_string();
    assert!(error.contains("the same version"), "{error}");
}

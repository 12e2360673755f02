//! The production decoders compared with theory.

use crate::common::{MS, answer, pair};
use forerun_core::trace::{SpanKind, SpanOutcome, Trace};
use forerun_core::{
    Cluster, ClusterError, DraftShape, Job, JobError, Role, Sampling, ScoreJob, SequenceId,
    TargetFeedback, TokenTree,
};
use forerun_decode::{Autoregressive, Decoder, DraftLength, Speculative, SpeculativeDraftLength};
use forerun_sim::{
    AcceptanceModel, Cancellation, Cost, Fault, FaultKind, ForwardCost, Oracle, SimCluster,
    SimError,
};
use proptest::prelude::*;

const ID: SequenceId = SequenceId(0);
const PROMPT: usize = 5;

fn oracle(seed: u64, acceptance: AcceptanceModel) -> Oracle {
    Oracle { seed, drafters: vec![acceptance] }
}

fn cluster(oracle: &Oracle, draft_ns: u64, target_ns: u64, faults: Vec<Fault>) -> SimCluster {
    let devices = pair(Cost::constant(draft_ns), Cost::constant(target_ns));
    SimCluster::new(devices, oracle.clone(), Cancellation::Immediate, faults).unwrap()
}

fn speculative(length: usize) -> Box<dyn Decoder> {
    Box::new(Speculative::new(SpeculativeDraftLength::new(
        DraftShape::Chain { length },
        DraftLength::Fixed,
    )))
}

/// Returns the committed tokens and the draft tokens of each round.
fn rounds(trace: &Trace) -> Vec<(usize, usize)> {
    let scores = trace.spans.iter().filter(|span| span.kind == SpanKind::Score);
    scores.map(|span| (span.accepted + 1, span.rows - 1)).collect()
}

#[test]
fn plain_decoding_takes_the_sum_of_its_passes() {
    let oracle = oracle(3, AcceptanceModel::Iid(0.5));
    let target = Cost { first_ns: Some(90 * MS), ..Cost::constant(7 * MS) };
    let devices = pair(Cost::constant(MS), target);
    let mut cluster =
        SimCluster::new(devices, oracle.clone(), Cancellation::Layer, vec![]).unwrap();
    answer(&mut Autoregressive, &mut cluster, &oracle, PROMPT, 100).unwrap();
    assert_eq!(cluster.now_ns(), (90 + 99 * 7) * MS);
    // After its release, the sequence starts with a first pass again.
    cluster.release(ID);
    answer(&mut Autoregressive, &mut cluster, &oracle, PROMPT, 10).unwrap();
    assert_eq!(cluster.now_ns(), (90 + 99 * 7 + 90 + 9 * 7) * MS);
}

/// Leviathan 2023, equation 1 and theorem 3.8: a round commits `(1 − α^(γ+1)) / (1 − α)` tokens and
/// takes γ passes of the drafter and one of the target.
#[test]
fn speculative_decoding_matches_the_closed_form() {
    const TOKENS: usize = 4000;
    for (seed, alpha) in [0.0, 0.2, 0.5, 0.8, 0.95, 1.0].into_iter().enumerate() {
        for gamma in [1, 2, 4, 8] {
            let oracle = oracle(seed as u64, AcceptanceModel::Iid(alpha));
            let mut cluster = cluster(&oracle, 3 * MS, 20 * MS, vec![]);
            answer(&mut *speculative(gamma), &mut cluster, &oracle, PROMPT, TOKENS).unwrap();
            let mut rounds = rounds(cluster.trace());
            let ns = |&(_, drafted): &(usize, usize)| drafted as u64 * 3 * MS + 20 * MS;
            assert_eq!(cluster.now_ns(), rounds.iter().map(ns).sum::<u64>());
            // The last rounds have shorter drafts because the answer ends.
            rounds.retain(|&(_, drafted)| drafted == gamma);
            let count = rounds.len() as f64;
            let tokens = rounds.iter().map(|&(tokens, _)| tokens as f64);
            let mean = tokens.clone().sum::<f64>() / count;
            let variance = tokens.map(|tokens| (tokens - mean).powi(2)).sum::<f64>() / count;
            let power = alpha.powi(gamma as i32 + 1);
            let expected =
                if alpha == 1.0 { gamma as f64 + 1.0 } else { (1.0 - power) / (1.0 - alpha) };
            // Four standard errors, because there are 24 comparisons.
            let bound = 4.0 * (variance / count).sqrt() + 1e-9;
            assert!((mean - expected).abs() <= bound, "α {alpha} γ {gamma}: {mean} not {expected}");
        }
    }
}

#[test]
fn recorded_and_per_position_acceptance_are_applied() {
    let recorded =
        oracle(1, AcceptanceModel::Recorded(vec![true, true, false, true, false, false]));
    let mut with_record = cluster(&recorded, MS, 10 * MS, vec![]);
    answer(&mut *speculative(3), &mut with_record, &recorded, PROMPT, 8).unwrap();
    // Two accepted and a correction, one and a correction, the sixth is wrong, then none is right.
    let tokens: Vec<usize> = rounds(with_record.trace()).iter().map(|round| round.0).collect();
    assert_eq!(tokens, [3, 2, 1, 1, 1]);
    let by_position = oracle(1, AcceptanceModel::ByPosition(vec![1.0, 1.0, 0.0]));
    let mut with_positions = cluster(&by_position, MS, 10 * MS, vec![]);
    answer(&mut *speculative(5), &mut with_positions, &by_position, PROMPT, 30).unwrap();
    assert!(rounds(with_positions.trace()).iter().all(|&(tokens, _)| tokens <= 3));
}

#[test]
fn passes_take_the_measured_time_for_their_rows() {
    let oracle = oracle(1, AcceptanceModel::Iid(1.0));
    let points = vec![(1, 10 * MS), (5, 14 * MS)];
    let target = Cost { forward: ForwardCost::Rows { points }, ..Cost::constant(0) };
    let devices = pair(Cost { link_ns: MS, ..Cost::constant(2 * MS) }, target);
    let mut cluster =
        SimCluster::new(devices, oracle.clone(), Cancellation::Immediate, vec![]).unwrap();
    answer(&mut *speculative(4), &mut cluster, &oracle, PROMPT, 5).unwrap();
    // 1 ms to the drafter, four passes, 1 ms back; then a target pass of five rows.
    assert_eq!(cluster.now_ns(), (1 + 8 + 1 + 14) * MS);
}

fn score(tokens: usize) -> Job {
    Job::Score(ScoreJob {
        sequence: ID,
        tokens: vec![1; tokens].into(),
        prompt_len: 1,
        tree: TokenTree::new(),
        sampling: Sampling::greedy(),
        logprobs: None,
        features_from: None,
    })
}

/// Three jobs in a queue, with passes of 10 ms and four layers. The first one is cancelled after 4
/// ms (when another job completes), the last one while it waits.
#[test]
fn cancelled_jobs_end_by_the_cancellation_policy() {
    let ends = |cancellation| {
        let target = Cost { layers: 4, ..Cost::constant(10 * MS) };
        let devices = pair(Cost::constant(4 * MS), target);
        let oracle = oracle(1, AcceptanceModel::Iid(1.0));
        let mut cluster = SimCluster::new(devices, oracle, cancellation, vec![]).unwrap();
        let jobs: Vec<_> =
            (0..3).map(|_| cluster.submit(Role::Target(0), score(3)).unwrap()).collect();
        let draft = Job::Draft {
            sequence: ID,
            tokens: vec![1].into(),
            prompt_len: 1,
            sampling: Sampling::greedy(),
            shape: DraftShape::Chain { length: 1 },
            feedback: TargetFeedback::default(),
        };
        let draft = cluster.submit(Role::Drafter(0), draft).unwrap();
        assert_eq!(cluster.next_completion().unwrap().ticket, draft);
        cluster.cancel(jobs[0]);
        cluster.cancel(jobs[2]);
        let mut ended = Vec::new();
        while let Ok(completion) = cluster.next_completion() {
            let index = jobs.iter().position(|&ticket| ticket == completion.ticket).unwrap();
            let succeeded = completion.output != Err(JobError::Cancelled);
            assert!(completion.output.is_ok() == succeeded);
            ended.push((index, completion.finished_ns / 100_000, succeeded));
        }
        assert_eq!(cluster.next_completion(), Err(ClusterError::Idle));
        ended
    };
    use Cancellation::{Immediate, Layer, RunToEnd};
    assert_eq!(ends(Immediate), [(0, 40, false), (2, 40, false), (1, 140, true)]);
    assert_eq!(ends(Layer), [(2, 40, false), (0, 50, false), (1, 150, true)]);
    assert_eq!(ends(RunToEnd), [(2, 40, false), (0, 100, true), (1, 200, true)]);
}

#[test]
fn a_stall_delays_the_answer_and_a_death_fails_it() {
    let oracle = oracle(1, AcceptanceModel::Iid(1.0));
    let fault = |at_ms: u64, kind| Fault { device: 1, at_ns: at_ms * MS, kind };
    let stall = |at_ms, ms: u64| fault(at_ms, FaultKind::Stall { ns: ms * MS });
    let mut stalled = cluster(&oracle, MS, 10 * MS, vec![stall(15, 7), stall(30, 3)]);
    answer(&mut Autoregressive, &mut stalled, &oracle, PROMPT, 4).unwrap();
    assert_eq!(stalled.now_ns(), 50 * MS);
    let mut dead = cluster(&oracle, MS, 10 * MS, vec![fault(25, FaultKind::Die)]);
    let error = answer(&mut Autoregressive, &mut dead, &oracle, PROMPT, 4).unwrap_err().to_string();
    assert!(error.contains("target") && error.contains("died"), "{error}");
    assert_eq!(dead.now_ns(), 25 * MS);
    let gone = dead.submit(Role::Target(0), score(3));
    assert_eq!(gone, Err(ClusterError::WorkerGone(Role::Target(0))));
    assert_eq!(dead.trace().spans.last().unwrap().outcome, SpanOutcome::Wasted);
}

#[test]
fn invalid_clusters_are_rejected() {
    let error = |devices, faults| {
        let oracle = oracle(1, AcceptanceModel::Iid(1.0));
        SimCluster::new(devices, oracle, Cancellation::Layer, faults).err().unwrap()
    };
    let valid = || pair(Cost::constant(1), Cost::constant(2));
    let twice = [valid(), valid()].concat();
    assert!(matches!(error(twice, vec![]), SimError::RoleTwice { .. }));
    let fault = Fault { device: 2, at_ns: 0, kind: FaultKind::Die };
    assert_eq!(error(valid(), vec![fault]), SimError::NoSuchDevice { device: 2, devices: 2 });
    let no_layers = Cost { layers: 0, ..Cost::constant(1) };
    let devices = pair(no_layers.clone(), no_layers);
    assert!(matches!(error(devices, vec![]), SimError::NoLayers { .. }));
    let oracle = oracle(1, AcceptanceModel::Iid(1.0));
    let mut cluster = cluster(&oracle, 1, 1, vec![]);
    let submitted = cluster.submit(Role::Target(3), score(3));
    assert_eq!(submitted, Err(ClusterError::NoSuchRole(Role::Target(3))));
}

proptest! {
    /// With any faults, the text is the target's, and a repeated run is identical, even if a device
    /// dies.
    #[test]
    fn repeated_runs_are_identical(
        seed in any::<u64>(),
        alpha in 0.0_f64..=1.0,
        gamma in 1_usize..9,
        stalls in prop::collection::vec((0_usize..2, 0_u64..900, 0_u64..90), 0..4),
        death in prop::option::of((0_usize..2, 0_u64..900)),
    ) {
        let oracle = oracle(seed, AcceptanceModel::Iid(alpha));
        let stall = |&(device, at, ns): &(usize, u64, u64)| {
            Fault { device, at_ns: at * MS, kind: FaultKind::Stall { ns: ns * MS } }
        };
        let death = death
            .map(|(device, at)| Fault { device, at_ns: at * MS, kind: FaultKind::Die });
        let faults: Vec<Fault> = stalls.iter().map(stall).chain(death).collect();
        let outcome_of_a_run = || {
            let mut cluster = cluster(&oracle, 2 * MS, 11 * MS, faults.clone());
            let outcome = answer(&mut *speculative(gamma), &mut cluster, &oracle, PROMPT, 60);
            // Only the target's death makes an answer fail, and not before its time.
            match (&outcome, death) {
                (Ok(()), _) => {}
                (Err(_), Some(Fault { device: 1, at_ns, .. })) => {
                    assert!(cluster.now_ns() >= at_ns);
                }
                (Err(error), _) => panic!("{error}"),
            }
            (serde_json::to_string(cluster.trace()).unwrap(), outcome, cluster.now_ns())
        };
        prop_assert_eq!(outcome_of_a_run(), outcome_of_a_run());
    }
}

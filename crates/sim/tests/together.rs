//! Several sequences in one virtual time.

use crate::common::{MS, pair};
use forerun_core::trace::{SpanKind, Trace};
use forerun_core::{
    Cluster, ClusterError, DraftShape, Job, JobError, Role, Sampling, ScoreJob, SequenceId,
    TargetFeedback, TokenTree,
};
use forerun_decode::{
    DraftLength, Limits, Sequence, Speculative, SpeculativeDraftLength, generate,
};
use forerun_sim::{
    AcceptanceModel, Cancellation, Cost, Device, Fault, FaultKind, ForwardCost, Oracle, Parameters,
    SequenceCluster, SimCluster, SimulatedMethod, Simulation,
};
use proptest::prelude::*;
use std::ops::ControlFlow;

/// Returns the cost of passes of `ns` for one row and `row_ns` for each further one.
fn linear(ns: u64, row_ns: u64) -> Cost {
    let points = vec![(1, ns), (2, ns + row_ns)];
    Cost { forward: ForwardCost::Rows { points }, ..Cost::constant(0) }
}

fn simulation(method: SimulatedMethod, drafter: Cost, target: Cost) -> Simulation {
    let simulation = Parameters { method, ..Parameters::default() }.simulation(None).unwrap();
    Simulation {
        drafters: vec![drafter],
        targets: vec![target],
        acceptance: vec![AcceptanceModel::Iid(1.0)],
        draft_tokens: 4,
        max_tokens: 50,
        cancellation: Cancellation::Immediate,
        ..simulation
    }
}

/// Returns the lane, the times and the rows of a sequence's jobs.
fn work_of(trace: &Trace, sequence: u64) -> Vec<(usize, u64, u64, usize)> {
    let spans = trace.spans.iter().filter(|span| span.sequence == SequenceId(sequence));
    spans.map(|span| (span.lane, span.start_ns, span.end_ns, span.rows)).collect()
}

const METHODS: [SimulatedMethod; 8] = [
    SimulatedMethod::Autoregressive,
    SimulatedMethod::Speculative,
    SimulatedMethod::Pearl,
    SimulatedMethod::PearlPaper,
    SimulatedMethod::PearlNoPreVerify,
    SimulatedMethod::PearlNoPostVerify,
    SimulatedMethod::Dsi,
    SimulatedMethod::Ssd,
];

#[test]
fn one_sequence_together_is_the_same_as_alone() {
    for method in METHODS {
        let simulation = Simulation {
            acceptance: vec![AcceptanceModel::Iid(0.7)],
            ..simulation(method, linear(2 * MS, MS / 4), linear(20 * MS, MS))
        };
        let (alone, together) = (simulation.run().unwrap(), simulation.run_together(1).unwrap());
        assert_eq!(together.trace, alone.trace, "{method}");
        assert_eq!(together.answers, [(alone.total_ns, alone.statistics)], "{method}");
        assert_eq!((together.drafters, together.targets), (alone.drafters, alone.targets));
    }
}

/// If passes are bound by memory, rows are free, and all sequences do in lockstep what one does
/// alone.
#[test]
fn equal_sequences_take_the_time_of_one_if_rows_are_free() {
    for method in METHODS {
        let simulation = simulation(method, Cost::constant(2 * MS), Cost::constant(20 * MS));
        let alone = simulation.run().unwrap();
        // SSD has several jobs for each sequence, and a batch has at most 64.
        let most = if method == SimulatedMethod::Ssd { 8 } else { 64 };
        for sequences in [2, 8, 64].into_iter().filter(|count| *count <= most) {
            let together = simulation.run_together(sequences).unwrap();
            assert_eq!(together.total_ns, alone.total_ns, "{method}, {sequences}");
            assert_eq!(together.targets.busy_ns, alone.targets.busy_ns, "{method}, {sequences}");
            for sequence in 0..sequences as u64 {
                let work = work_of(&together.trace, sequence);
                assert_eq!(work, work_of(&alone.trace, 0), "{method}, {sequences}");
            }
        }
    }
}

/// If passes are bound by computation, N sequences take N times as long as one.
#[test]
fn equal_sequences_take_turns_if_time_is_proportional_to_rows() {
    for method in [SimulatedMethod::Autoregressive, SimulatedMethod::Speculative] {
        let simulation = simulation(method, linear(2 * MS, 2 * MS), linear(20 * MS, 20 * MS));
        let alone_ns = simulation.run().unwrap().total_ns;
        for sequences in [2, 5, 64] {
            let together = simulation.run_together(sequences).unwrap();
            assert_eq!(together.total_ns, sequences as u64 * alone_ns, "{method}, {sequences}");
        }
    }
}

/// Plain decoding of N sequences in lockstep: each of the tokens takes one pass with N rows.
#[test]
fn plain_decoding_in_lockstep_matches_its_closed_form() {
    let target = Cost { sequence_ns: 30, ..linear(1_000, 50) };
    let simulation = simulation(SimulatedMethod::Autoregressive, Cost::constant(1), target.clone());
    for sequences in [1_usize, 3, 16, 64] {
        let together = simulation.run_together(sequences).unwrap();
        let further = sequences as u64 - 1;
        assert_eq!(together.total_ns, 50 * (1_000 + further * (50 + 30)));
        assert_eq!(together.total_ns, 50 * target.pass_ns(sequences, sequences));
    }
}

/// Speculative decoding of N sequences that accept all γ tokens: a round of γ + 1 tokens takes γ
/// passes of the drafter, of which the first one also reads the last accepted draft token, and a
/// pass of the target with N (γ + 1) rows.
#[test]
fn speculative_decoding_in_lockstep_matches_its_closed_form() {
    const GAMMA: usize = 4;
    let drafter = Cost { sequence_ns: 3, ..linear(100, 10) };
    let target = Cost { sequence_ns: 30, ..linear(1_000, 50) };
    let simulation = simulation(SimulatedMethod::Speculative, drafter.clone(), target.clone());
    for sequences in [1_usize, 3, 16, 64] {
        let pass = |rows: usize| drafter.pass_ns(rows * sequences, sequences);
        let draft_ns = |first_rows| pass(first_rows) + (GAMMA as u64 - 1) * pass(1);
        let score_ns = target.pass_ns((GAMMA + 1) * sequences, sequences);
        let rounds = 50 / (GAMMA as u64 + 1);
        // The drafter has not read the last token of the draft, nor the bonus token.
        let expected = draft_ns(1) + (rounds - 1) * draft_ns(2) + rounds * score_ns;
        assert_eq!(simulation.run_together(sequences).unwrap().total_ns, expected, "{sequences}");
    }
}

/// Sequences that are not in step wait for the target, and then run together.
#[test]
fn sequences_of_different_acceptance_share_passes() {
    let target = linear(20 * MS, MS);
    let simulation = Simulation {
        acceptance: vec![AcceptanceModel::Iid(0.6)],
        ..simulation(SimulatedMethod::Speculative, linear(2 * MS, MS / 10), target)
    };
    let together = simulation.run_together(8).unwrap();
    let scores = together.trace.spans.iter().filter(|span| span.kind == SpanKind::Score);
    let mut passes: Vec<(u64, u64)> = scores.map(|span| (span.start_ns, span.end_ns)).collect();
    let jobs = passes.len();
    passes.sort_unstable();
    passes.dedup();
    assert!(passes.len() * 3 < jobs, "{} passes for {jobs} jobs", passes.len());
    // The target runs one pass at a time.
    assert!(passes.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{passes:?}");
}

fn score(sequence: u64) -> Job {
    Job::Score(ScoreJob {
        sequence: SequenceId(sequence),
        tokens: vec![1; 3].into(),
        prompt_len: 3,
        tree: TokenTree::new(),
        sampling: Sampling::greedy(),
        logprobs: None,
        features_from: None,
    })
}

fn draft(sequence: u64, length: usize) -> Job {
    Job::Draft {
        sequence: SequenceId(sequence),
        tokens: vec![1; 3].into(),
        prompt_len: 3,
        sampling: Sampling::greedy(),
        shape: DraftShape::Chain { length },
        feedback: TargetFeedback::default(),
    }
}

fn cluster(cost: &Cost, cancellation: Cancellation) -> SimCluster {
    let device =
        |name: &str, role| Device { name: name.into(), roles: vec![role], cost: cost.clone() };
    let devices = vec![device("drafter", Role::Drafter(0)), device("target", Role::Target(0))];
    let oracle = Oracle { seed: 1, drafters: vec![AcceptanceModel::Iid(1.0)] };
    SimCluster::new(devices, oracle, cancellation, Vec::new()).unwrap()
}

/// Returns the ends of all jobs in flight, by their ticket.
fn ends(cluster: &mut SimCluster) -> Vec<(u64, u64, bool)> {
    let mut ends = Vec::new();
    while let Ok(completion) = cluster.next_completion() {
        let succeeded = completion.output != Err(JobError::Cancelled);
        ends.push((completion.ticket.0, completion.finished_ns, succeeded));
    }
    ends.sort_unstable();
    ends
}

#[test]
fn a_device_runs_the_oldest_job_with_those_of_other_sequences() {
    let mut cluster = cluster(&linear(100, 10), Cancellation::Layer);
    // The first job starts with those that are submitted at the same time. The second job of
    // sequence 0 waits, and so does the job of sequence 2, which the 64 jobs of a batch leave out.
    for sequence in [0, 1, 0].into_iter().chain(10..72).chain([2]) {
        cluster.submit(Role::Target(0), score(sequence)).unwrap();
    }
    let ends = ends(&mut cluster);
    let first_ns = 100 + 63 * 10;
    assert!(ends.iter().all(|&(ticket, end_ns, succeeded)| {
        let expected = if [2, 65].contains(&ticket) { first_ns + 110 } else { first_ns };
        end_ns == expected && succeeded
    }));
}

#[test]
fn a_draft_is_answered_when_it_is_ready_and_later_passes_have_fewer_rows() {
    let mut cluster = cluster(&linear(100, 10), Cancellation::Layer);
    for (sequence, length) in [(0, 1), (1, 3), (2, 2)] {
        cluster.submit(Role::Drafter(0), draft(sequence, length)).unwrap();
    }
    let mut costs = Vec::new();
    let mut ends = Vec::new();
    while let Ok(completion) = cluster.next_completion() {
        ends.push((completion.ticket.0, completion.finished_ns));
        let cost = completion.cost;
        costs.push([cost.passes, cost.own_rows, cost.batch_rows, cost.batch_sequences]);
        assert_eq!(cost.busy_ns, completion.duration_ns());
    }
    assert_eq!(ends, [(0, 120), (2, 120 + 110), (1, 120 + 110 + 100)]);
    assert_eq!(costs, [[1, 1, 3, 3], [2, 2, 5, 5], [3, 3, 6, 6]]);
    let (_, usage) = cluster.usage().next().unwrap();
    assert_eq!((usage.jobs, usage.busy_ns), (3, 330));
}

/// A cancelled job leaves its neighbours after the pass that is running.
#[test]
fn a_cancelled_job_leaves_its_batch() {
    for (cancellation, cancelled_ns, other_ns) in [
        (Cancellation::Immediate, 110, 110 + 2 * 100),
        (Cancellation::Layer, 110, 110 + 2 * 100),
        (Cancellation::RunToEnd, 3 * 110, 3 * 110),
    ] {
        let mut cluster = cluster(&linear(100, 10), cancellation);
        let submitted = cluster.submit(Role::Drafter(0), draft(0, 3)).unwrap();
        cluster.submit(Role::Drafter(0), draft(1, 3)).unwrap();
        // The end of another job is the time of the cancellation.
        cluster.submit(Role::Target(0), score(2)).unwrap();
        assert_eq!(cluster.next_completion().unwrap().finished_ns, 100);
        cluster.cancel(submitted);
        let expected_ns = if cancellation == Cancellation::Immediate { 100 } else { cancelled_ns };
        let is_end = cancellation == Cancellation::RunToEnd;
        assert_eq!(ends(&mut cluster), [(0, expected_ns, is_end), (1, other_ns, true)]);
    }
}

#[test]
fn a_decoder_without_jobs_cannot_wait_and_others_continue() {
    let mut cluster = cluster(&Cost::constant(100), Cancellation::Layer);
    let run = |sequence: u64| {
        move |cluster: &mut SequenceCluster<'_, '_>| {
            let idle = cluster.next_completion().unwrap_err();
            let ticket = cluster.submit(Role::Target(0), score(sequence)).unwrap();
            // The first decoder ends without its completion.
            let own = sequence == 0 || cluster.next_completion().unwrap().ticket == ticket;
            cluster.release(SequenceId(sequence));
            (idle, own, cluster.now_ns())
        }
    };
    let results = cluster.run_together((0..3).map(run).collect()).unwrap();
    let expected = |now_ns| (ClusterError::Idle, true, now_ns);
    assert_eq!(results, [expected(0), expected(100), expected(100)]);
    let none: Vec<fn(&mut SequenceCluster<'_, '_>)> = Vec::new();
    assert_eq!(cluster.run_together(none).unwrap(), []);
}

#[test]
#[should_panic(expected = "this decoder panics")]
fn a_panic_of_a_decoder_does_not_block_the_others() {
    let mut cluster = cluster(&Cost::constant(100), Cancellation::Layer);
    let run = |sequence: u64| {
        move |cluster: &mut SequenceCluster<'_, '_>| {
            cluster.submit(Role::Target(0), score(sequence)).unwrap();
            assert_ne!(sequence, 1, "this decoder panics");
            cluster.next_completion().unwrap();
        }
    };
    cluster.run_together((0..3).map(run).collect()).unwrap();
}

/// The automatic draft length of sequences that share a world. With expensive rows, a sequence
/// drafts less among many than alone; with free ones it drafts what is best alone.
#[test]
fn automatic_lengths_follow_the_load() {
    let mean_draft = |sequences: u64, row_ns| {
        let mut cluster = {
            let cost = linear(20 * MS, row_ns);
            let devices = pair(Cost::constant(2 * MS), cost);
            let oracle = Oracle { seed: 4, drafters: vec![AcceptanceModel::Iid(0.8)] };
            SimCluster::new(devices, oracle, Cancellation::Layer, Vec::new()).unwrap()
        };
        let decode = |id: u64| {
            move |cluster: &mut SequenceCluster<'_, '_>| {
                let shape = DraftShape::Chain { length: 12 };
                let policy = SpeculativeDraftLength::new(shape, DraftLength::Auto);
                let limits =
                    Limits { max_tokens: 1_500, context_length: usize::MAX, eos: Vec::new() };
                let oracle = Oracle { seed: 4, drafters: Vec::new() }.of_sequence(SequenceId(id));
                let mut sequence =
                    Sequence::new(SequenceId(id), oracle.text(1), Sampling::greedy(), limits);
                let go_on = |_: &[u32]| ControlFlow::Continue(());
                generate(&mut Speculative::new(policy), &mut sequence, cluster, go_on).unwrap();
                assert_eq!(sequence.tokens(), oracle.text(1_501));
                let statistics = sequence.statistics();
                statistics.draft_tokens as f64 / statistics.drafts as f64
            }
        };
        let means = cluster.run_together((0..sequences).map(decode).collect()).unwrap();
        means.iter().sum::<f64>() / means.len() as f64
    };
    let free = [mean_draft(1, 0), mean_draft(8, 0)];
    // 20 ms for each round and 2 ms for each draft token: (1 - 0.8⁷) / 0.2 tokens in 32 ms are the
    // most.
    assert!(free.iter().all(|mean| (mean - 6.0).abs() < 1.0), "{free:?}");
    // Rounds of γ draft tokens take 20 + 3γ ms alone, so 4 or 5 are the best. Those of eight in turn
    // take 27 + 10γ ms, so 2 or 3 are.
    let [alone, eight] = [mean_draft(1, MS), mean_draft(8, MS)];
    assert!((alone - 4.5).abs() < 1.0 && (eight - 2.5).abs() < 1.0, "{alone}, {eight}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Every sequence gets its own text, with any method, cost, cancellation and stalls, and a
    /// repeated run is identical.
    #[test]
    fn every_sequence_gets_its_own_text(
        method in prop::sample::select(METHODS.to_vec()),
        (draft_ns, draft_row_ns) in (1..30_u64, 0..10_u64),
        (target_ns, row_ns, sequence_ns) in (1..100_u64, 0..20_u64, 0..20_u64),
        (sequences, drafters, targets) in (1..7_usize, 1..3_usize, 1..4_usize),
        (draft_tokens, max_tokens) in (1..7_usize, 1..30_usize),
        acceptance in 0.0..=1.0_f64,
        seed in 0..1_000_u64,
        (link_ns, prompt_ns) in (0..5_u64, prop::option::of(50..200_u64)),
        cancellation in prop::sample::select(vec![
            Cancellation::Immediate, Cancellation::Layer, Cancellation::RunToEnd,
        ]),
        stalls in prop::collection::vec((0_usize..2, 0_u64..900, 0_u64..90), 0..3),
    ) {
        let cost = |ns, row_ns| Cost {
            sequence_ns, layers: 3, link_ns, first_ns: prompt_ns, ..linear(ns, row_ns)
        };
        let fault = |&(device, at_ns, ns): &(usize, u64, u64)| {
            Fault { device, at_ns, kind: FaultKind::Stall { ns } }
        };
        let simulation = Simulation {
            drafters: vec![cost(draft_ns, draft_row_ns); drafters],
            targets: vec![cost(target_ns, row_ns); targets],
            acceptance: vec![AcceptanceModel::Iid(acceptance)],
            draft_tokens,
            max_tokens,
            seed,
            cancellation,
            faults: stalls.iter().map(fault).collect(),
            ..simulation(method, Cost::constant(1), Cost::constant(1))
        };
        // `run_together` compares each text with that of its oracle.
        let run = || simulation.run_together(sequences).unwrap();
        let (first, second) = (run(), run());
        prop_assert_eq!(&first.trace, &second.trace);
        prop_assert_eq!(first.answers, second.answers);
    }
}

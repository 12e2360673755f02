//! DSI's theorems and table 1 of its paper, checked with the production decoder in virtual time.

use crate::common::{MS, answer, device};
use forerun_core::Role;
use forerun_core::trace::{SpanKind, SpanOutcome};
use forerun_decode::{
    Autoregressive, DecodeError, Decoder, DraftLength, Dsi, DsiLookahead, Speculative,
    SpeculativeDraftLength,
};
use forerun_sim::{AcceptanceModel, Cancellation, Cost, Fault, FaultKind, Oracle, SimCluster};
use proptest::prelude::*;

/// A drafter, target replicas and a text.
#[derive(Clone, Debug)]
struct Scenario {
    draft_ns: u64,
    target_ns: u64,
    replicas: usize,
    lookahead: usize,
    /// The time of the first pass of a drafter and of a target, which reads the prompt, in later
    /// passes; `None` if the prompt takes no time.
    prompt_passes: Option<[f64; 2]>,
    /// The acceptance of each drafter.
    acceptance: Vec<AcceptanceModel>,
    seed: u64,
    tokens: usize,
    cancellation: Cancellation,
    faults: Vec<Fault>,
}

impl Scenario {
    /// Returns a scenario with enough replicas for the lookahead by the paper's equation 1.
    fn sized(draft_ns: u64, target_ns: u64, lookahead: usize, acceptance: f64, seed: u64) -> Self {
        let replicas = target_ns.div_ceil(lookahead as u64 * draft_ns) as usize;
        Self {
            draft_ns,
            target_ns,
            replicas,
            lookahead,
            prompt_passes: None,
            acceptance: vec![AcceptanceModel::Iid(acceptance)],
            seed,
            tokens: 60,
            cancellation: Cancellation::Immediate,
            faults: Vec::new(),
        }
    }

    /// Decodes, checks the text, and returns the time until the last token.
    fn run(&self, decoder: &mut dyn Decoder) -> Result<(u64, SimCluster), DecodeError> {
        let oracle = Oracle { seed: self.seed, drafters: self.acceptance.clone() };
        let timed = |name: String, role: Role, ns: u64| {
            let passes = self.prompt_passes.map(|[drafter, target]| match role {
                Role::Drafter(_) => drafter,
                Role::Target(_) => target,
            });
            let first_ns = passes.map(|passes| (ns as f64 * passes) as u64);
            device(name, role, Cost { layers: 4, first_ns, ..Cost::constant(ns) })
        };
        let drafters = self.acceptance.len();
        let drafter =
            |index| timed(format!("drafter {index}"), Role::Drafter(index), self.draft_ns);
        let target = |index| timed(format!("target {index}"), Role::Target(index), self.target_ns);
        let devices = (0..drafters).map(drafter).chain((0..self.replicas).map(target)).collect();
        let mut cluster =
            SimCluster::new(devices, oracle.clone(), self.cancellation, self.faults.clone())
                .unwrap();
        let prompt = if self.prompt_passes.is_some() { 50 } else { 3 };
        answer(decoder, &mut cluster, &oracle, prompt, self.tokens)?;
        Ok((cluster.now_ns(), cluster))
    }

    fn dsi(&self) -> (u64, SimCluster) {
        self.run(&mut self.decoder()).unwrap()
    }

    fn decoder(&self) -> Dsi {
        let drafters = self.acceptance.len();
        let replicas_per_drafter = self.replicas.div_ceil(drafters);
        let lookahead = DsiLookahead::new(self.lookahead, DraftLength::Fixed, replicas_per_drafter);
        Dsi::new(self.replicas, lookahead).with_drafters(drafters)
    }

    fn speculative_ns(&self) -> u64 {
        let shape = forerun_core::DraftShape::Chain { length: self.lookahead };
        let mut decoder = Speculative::new(SpeculativeDraftLength::new(shape, DraftLength::Fixed));
        self.run(&mut decoder).unwrap().0
    }

    fn plain_ns(&self) -> u64 {
        self.run(&mut Autoregressive).unwrap().0
    }
}

/// Generates scenarios in which the drafter is not slower than the target, with and without a time
/// of the prompt.
fn scenarios() -> impl Strategy<Value = Scenario> {
    let prompt_passes = prop::option::of([1.0..=10.0_f64, 1.0..=10.0_f64]);
    (1..=100_u64, 1..=12_usize, 0.0..=1.0_f64, any::<u64>(), prompt_passes).prop_map(
        |(percent, lookahead, acceptance, seed, prompt_passes)| {
            let scenario = Scenario::sized(percent * MS, 100 * MS, lookahead, acceptance, seed);
            Scenario { prompt_passes, ..scenario }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Theorem 1, also with fewer or more replicas than equation 1 gives.
    #[test]
    fn dsi_is_never_slower_than_the_target_alone(scenario in scenarios(), replicas in 1..=7_usize) {
        prop_assert!(scenario.dsi().0 <= scenario.plain_ns());
        let scenario = Scenario { replicas, ..scenario };
        prop_assert!(scenario.dsi().0 <= scenario.plain_ns());
    }

    /// Theorem 2, which is about the expectation. A single run may be up to a round slower, if its
    /// last tokens fall badly into the lookahead. It needs one replica more than equation 1 gives,
    /// for the pass at the frontier.
    #[test]
    fn dsi_is_not_slower_than_speculative_decoding(scenario in scenarios()) {
        let replicas = scenario.replicas + 1;
        let runs = (0..8).map(|run| {
            let seed = scenario.seed.wrapping_add(run);
            Scenario { replicas, seed, ..scenario.clone() }
        });
        let runs: Vec<Scenario> = runs.collect();
        let dsi: u64 = runs.iter().map(|run| run.dsi().0).sum();
        let speculative: u64 = runs.iter().map(Scenario::speculative_ns).sum();
        prop_assert!(dsi <= speculative, "{dsi} > {speculative}");
        let round = scenario.lookahead as u64 * scenario.draft_ns + scenario.target_ns;
        prop_assert!(runs.iter().all(|run| run.dsi().0 <= run.speculative_ns() + round));
    }

    /// Proposition 1, for lookahead 1: each accepted token takes at most the drafter's time, every
    /// other token at most the target's.
    #[test]
    fn dsi_meets_the_bound_of_proposition_one(percent in 1..=100_u64, bits in prop::collection::vec(any::<bool>(), 40)) {
        let scenario = Scenario {
            acceptance: vec![AcceptanceModel::Recorded(bits.clone())],
            tokens: 40,
            ..Scenario::sized(percent * MS, 100 * MS, 1, 0.0, 1)
        };
        let accepted = bits[..39].iter().filter(|&&right| right).count() as u64;
        let bound = accepted * percent * MS + (39 - accepted + 1) * 100 * MS;
        prop_assert!(scenario.dsi().0 <= bound, "{} > {bound}", scenario.dsi().0);
    }

    /// Theorem 1 with several drafters and any number of replicas.
    #[test]
    fn several_drafters_are_never_slower_than_the_target_alone(
        scenario in scenarios(),
        others in prop::collection::vec(0.0..=1.0_f64, 1..4),
        replicas in 1..=8_usize,
    ) {
        let others = others.into_iter().map(AcceptanceModel::Iid);
        let acceptance = scenario.acceptance.iter().cloned().chain(others).collect();
        let scenario = Scenario { acceptance, replicas, ..scenario };
        prop_assert!(scenario.dsi().0 <= scenario.plain_ns());
    }

    /// Faults, too few replicas and late cancellation cost time, but never change the text.
    #[test]
    fn the_text_is_the_targets_with_any_faults(
        scenario in scenarios(),
        replicas in 1..=4_usize,
        cancellation in prop::sample::select(vec![
            Cancellation::Immediate, Cancellation::Layer, Cancellation::RunToEnd,
        ]),
        faults in prop::collection::vec((0..7_usize, 0..4000_u64, any::<bool>()), 0..4),
        others in prop::collection::vec(0.0..=1.0_f64, 0..3),
    ) {
        let others = others.into_iter().map(AcceptanceModel::Iid);
        let acceptance: Vec<_> = scenario.acceptance.iter().cloned().chain(others).collect();
        let drafters = acceptance.len();
        let faults: Vec<Fault> = faults
            .into_iter()
            .filter(|&(device, ..)| device < drafters + replicas)
            .map(|(device, at, dies)| Fault {
                device,
                at_ns: at * MS,
                kind: if dies { FaultKind::Die } else { FaultKind::Stall { ns: 350 * MS } },
            })
            .collect();
        let dead = |device| faults.iter().any(|f| f.device == device && f.kind == FaultKind::Die);
        let all_dead = (drafters..drafters + replicas).all(dead);
        let faults = faults.clone();
        let scenario = Scenario { replicas, cancellation, faults, acceptance, ..scenario };
        let outcome = scenario.run(&mut scenario.decoder());
        // The answer fails only if no replica is left.
        prop_assert!(outcome.is_ok() || all_dead, "{:?}", outcome.err());
    }
}

/// Rows are reported as wasted if a rejection makes them useless. This includes rows that arrived
/// before those of a stalled replica, and rows of a job that ran on after its cancellation.
#[test]
fn unused_rows_are_reported_as_wasted() {
    for cancellation in [Cancellation::Immediate, Cancellation::RunToEnd] {
        let mut wasted = 0;
        for seed in 0..20 {
            let stall = |at: u64| Fault {
                device: 1 + at as usize % 5,
                at_ns: 310 * at * MS,
                kind: FaultKind::Stall { ns: 90 * MS },
            };
            let faults = (1..9).map(stall).collect();
            let scenario = Scenario::sized(20 * MS, 100 * MS, 1, 0.9, seed);
            let scenario = Scenario { cancellation, faults, ..scenario };
            let mut decoder = scenario.decoder();
            let (_, mut cluster) = scenario.run(&mut decoder).unwrap();
            decoder.stop(&mut cluster);
            let now_ns = cluster.now_ns();
            let scores = cluster.trace().spans.iter().filter(|span| span.kind == SpanKind::Score);
            for span in scores.filter(|span| span.end_ns < now_ns) {
                assert_ne!(span.outcome, SpanOutcome::Open, "{cancellation}, {seed}: {span:?}");
                wasted += usize::from(span.rows > 0 && span.outcome == SpanOutcome::Wasted);
            }
        }
        assert!(wasted > 0, "{cancellation}: no row was wasted, so nothing was tested");
    }
}

/// A pair of the paper's table 2 with the times to the first token of its table 3. Every replica
/// reads the prompt at once, and is not cancelled while it does. So a drafter that is always wrong
/// costs nothing, and further replicas do not slow an answer down.
#[test]
fn replicas_read_the_prompt_at_once() {
    let scenario = Scenario {
        prompt_passes: Some([1.04, 5.36]),
        tokens: 50,
        ..Scenario::sized(2_500_000, 37_700_000, 5, 0.0, 3)
    };
    for replicas in 1..=7 {
        let scenario = Scenario { replicas, ..scenario.clone() };
        let (total_ns, cluster) = scenario.dsi();
        assert_eq!(total_ns, scenario.plain_ns(), "{replicas} replicas");
        let targets = cluster.trace().spans.iter().filter(|span| span.lane > 0);
        let read = targets.filter(|span| span.start_ns == 0 && span.end_ns == 202_072_000);
        assert_eq!(read.count(), replicas);
    }
    let total_ns = |replicas| {
        let acceptance = vec![AcceptanceModel::Iid(0.63)];
        let scenario = Scenario { replicas, acceptance, ..scenario.clone() };
        (0..40).map(|seed| Scenario { seed, ..scenario.clone() }.dsi().0).sum::<u64>()
    };
    let totals: Vec<u64> = (1..=7).map(total_ns).collect();
    assert!(totals.is_sorted_by(|fewer, more| more <= fewer), "{totals:?}");
}

/// Theorem 2 with exactly the replicas of equation 1. It would not hold for a drafter nearly as
/// slow as the target: one replica would still be busy with the frontier when a task is due, which
/// costs 1.3 % if all drafts are accepted.
#[test]
fn dsi_is_not_slower_on_average_by_equation_one() {
    for (percent, lookahead) in
        [1, 10, 30, 60, 80].into_iter().flat_map(|p| [(p, 1), (p, 4), (p, 12)])
    {
        for acceptance in [0.0, 0.4, 0.8, 0.95, 1.0] {
            let scenarios = (0..20)
                .map(|seed| Scenario::sized(percent * MS, 100 * MS, lookahead, acceptance, seed));
            let times = scenarios.map(|scenario| [scenario.dsi().0, scenario.speculative_ns()]);
            let [dsi, speculative] = times.fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
            assert!(
                dsi <= speculative,
                "{percent} %, lookahead {lookahead}, acceptance {acceptance}"
            );
        }
    }
}

/// Table 1: the drafter takes a seventh of the target's time. The table has the number of tokens
/// after 2, 32/7, 8 and 64/7 target passes, if no draft token is right and if all are.
#[test]
fn table_one_of_the_paper_is_reproduced() {
    type Run = fn(&Scenario) -> u64;
    let (plain, speculative, dsi): (Run, Run, Run) =
        (Scenario::plain_ns, Scenario::speculative_ns, |scenario| scenario.dsi().0);
    for (acceptance, run, published) in [
        (0.0, plain, [2, 4, 8, 9]),
        (0.0, speculative, [1, 4, 7, 8]),
        (0.0, dsi, [2, 4, 8, 9]),
        (1.0, plain, [2, 4, 8, 9]),
        (1.0, speculative, [2, 8, 14, 16]),
        (1.0, dsi, [8, 26, 50, 58]),
    ] {
        let scenario = Scenario::sized(100, 700, 1, acceptance, 5);
        let total_ns = |tokens| run(&Scenario { tokens, ..scenario.clone() });
        for (at_ns, tokens) in [1400, 3200, 5600, 6400].into_iter().zip(published) {
            let case = format!("{tokens} tokens at {at_ns}, acceptance {acceptance}");
            assert!(total_ns(tokens) <= at_ns && total_ns(tokens + 1) > at_ns, "{case}");
        }
    }
}

/// A later block may be verified before an earlier one. If a replica dies, another one computes its
/// rows.
#[test]
fn another_replica_takes_over_the_rows_of_a_dead_one() {
    let scenario = Scenario {
        faults: vec![Fault { device: 2, at_ns: 130 * MS, kind: FaultKind::Die }],
        ..Scenario::sized(20 * MS, 100 * MS, 1, 1.0, 7)
    };
    assert_eq!(scenario.replicas, 5);
    let (total_ns, cluster) = scenario.dsi();
    let (whole_ns, _) = Scenario { faults: Vec::new(), ..scenario.clone() }.dsi();
    assert_eq!(whole_ns, 59 * 20 * MS + 100 * MS);
    assert!(total_ns > whole_ns && total_ns < scenario.plain_ns());
    let later = cluster.trace().spans.iter().filter(|span| span.lane == 2);
    assert!(later.clone().count() > 0 && later.into_iter().all(|span| span.end_ns <= 130 * MS));
}

#[test]
fn the_target_continues_alone_after_its_drafter_dies() {
    let scenario = Scenario {
        faults: vec![Fault { device: 0, at_ns: 1_000 * MS, kind: FaultKind::Die }],
        ..Scenario::sized(20 * MS, 100 * MS, 1, 1.0, 7)
    };
    let (total_ns, _) = scenario.dsi();
    // Fifty tokens are drafted within a second, so at most 16 passes follow for the rest.
    assert!(total_ns <= 1_000 * MS + 16 * 100 * MS, "{total_ns}");
}

/// Algorithm 1 with two drafters. Drafters that agree share rows. The first drafter is wrong at the
/// third token: the second one continues, while the first one restarts after the committed tokens
/// again and again. At the fifth token the second drafter is wrong, too, and both restart together.
/// At the seventh token only the first drafter is right.
#[test]
fn the_first_drafter_that_agrees_with_the_target_is_kept() {
    let recorded = |text: &str| AcceptanceModel::Recorded(text.chars().map(|c| c == 'y').collect());
    let scenario = Scenario {
        acceptance: vec![recorded("yynnyyyyyy"), recorded("yyyynynyyy")],
        replicas: 6,
        tokens: 8,
        ..Scenario::sized(MS, 3 * MS, 1, 0.0, 1)
    };
    let (both_ns, cluster) = scenario.dsi();
    let timeline = "\
drafter 0 |DDdxxxxDD...|
drafter 1 |DDDDdxxDd...|
target 0  |SSSxxxx..SSS|
target 1  |.SSSx....xx.|
target 2  |..SSS.......|
target 3  |...SSSx.SSS.|
target 4  |....sssSSS..|
target 5  |............|
";
    assert_eq!(cluster.trace().to_ascii(MS), timeline);
    let [first_ns, second_ns] = [0, 1].map(|index| {
        let acceptance = vec![scenario.acceptance[index].clone()];
        Scenario { acceptance, ..scenario.clone() }.dsi().0
    });
    assert!(both_ns < first_ns && both_ns < second_ns, "{both_ns} {first_ns} {second_ns}");
}

/// A second drafter with its own replicas helps on average, because it errs at other positions than
/// the first one.
#[test]
fn a_second_drafter_saves_time_on_average() {
    for (percent, lookahead, acceptance) in [(10, 1, 0.6), (10, 2, 0.8), (30, 1, 0.8), (50, 2, 0.5)]
    {
        let total_ns = |drafters: usize| {
            let scenarios = (0..20).map(|seed| {
                let one = Scenario::sized(percent * MS, 100 * MS, lookahead, acceptance, seed);
                let acceptance = vec![one.acceptance[0].clone(); drafters];
                Scenario { acceptance, replicas: (one.replicas + 1) * drafters, ..one }
            });
            scenarios.map(|scenario| scenario.dsi().0).sum::<u64>()
        };
        let [one, two] = [1, 2].map(total_ns);
        assert!(two < one, "{percent} %, lookahead {lookahead}, {acceptance}: {two}, not {one}");
    }
}

/// Every method decodes on without its drafter, wherever in the answer that dies.
#[test]
fn every_method_continues_without_a_dead_drafter_and_reports_it() {
    for (method, name) in forerun_sim::SimulatedMethod::NAMES.into_iter().skip(1) {
        for at_ns in (1..40).map(|at| at * 37 * MS / 10) {
            let simulation = forerun_sim::Simulation {
                method,
                drafters: vec![Cost::constant(3 * MS)],
                targets: vec![Cost::constant(10 * MS)],
                acceptance: vec![AcceptanceModel::Iid(0.8)],
                draft_tokens: 3,
                max_tokens: 60,
                seed: at_ns,
                cancellation: Cancellation::Immediate,
                faults: vec![Fault { device: 0, at_ns, kind: FaultKind::Die }],
            };
            // The simulation checks the text.
            let answer = simulation.run().unwrap();
            let [failure] = &answer.statistics.failures[..] else {
                panic!("{name} {at_ns}: {:?}", answer.statistics.failures)
            };
            assert!(failure.starts_with("drafter 0 failed: "), "{name} {at_ns}: {failure}");
            let late = answer.trace.spans.iter().filter(|span| span.start_ns > at_ns);
            assert!(late.into_iter().all(|span| span.lane == 1), "{name} {at_ns}");
        }
    }
}

#[test]
fn a_dead_drafter_and_a_dead_replica_are_reported() {
    let dies = |device, at| Fault { device, at_ns: at * MS, kind: FaultKind::Die };
    let scenario = Scenario {
        faults: vec![dies(2, 130), dies(0, 500)],
        ..Scenario::sized(20 * MS, 100 * MS, 1, 0.9, 3)
    };
    let oracle = Oracle { seed: scenario.seed, drafters: scenario.acceptance.clone() };
    let simulation = forerun_sim::Simulation {
        method: forerun_sim::SimulatedMethod::Dsi,
        drafters: vec![Cost::constant(scenario.draft_ns)],
        targets: vec![Cost::constant(scenario.target_ns); scenario.replicas],
        acceptance: oracle.drafters,
        draft_tokens: 1,
        max_tokens: 60,
        seed: scenario.seed,
        cancellation: Cancellation::Immediate,
        faults: scenario.faults,
    };
    let failures = simulation.run().unwrap().statistics.failures;
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert!(failures[0].starts_with("target replica 1 failed: "), "{failures:?}");
    assert!(failures[0].contains("died at"), "{failures:?}");
    assert!(failures[1].starts_with("drafter 0 failed: "), "{failures:?}");
}

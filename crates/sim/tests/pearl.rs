//! Figures and tables of the PEARL paper, checked with the production decoder in virtual time.

use crate::common::{MS, answer, pair, sequence};
use forerun_core::DraftShape;
use forerun_core::trace::SpanKind;
use forerun_decode::{
    Autoregressive, Decoder, DraftLength, Pearl, PearlDraftLength, PearlOptions, PearlSchedule,
    Policy, Speculative, SpeculativeDraftLength,
};
use forerun_sim::{
    AcceptanceModel, Cancellation, Cost, ForwardCost, Oracle, SharedDevices, SimCluster,
    SimulatedMethod, Simulation,
};
use proptest::prelude::*;

const PROMPT: usize = 4;

fn cluster(
    acceptance: AcceptanceModel,
    seed: u64,
    draft_ns: u64,
    target_ns: u64,
) -> (SimCluster, Oracle) {
    let oracle = Oracle { seed, drafters: vec![acceptance] };
    let devices = pair(Cost::constant(draft_ns), Cost::constant(target_ns));
    let cluster =
        SimCluster::new(devices, oracle.clone(), Cancellation::Immediate, Vec::new()).unwrap();
    (cluster, oracle)
}

fn pearl(length: usize, options: &str) -> Pearl {
    let options: PearlOptions = options.parse().unwrap();
    let is_eager = options.schedule == PearlSchedule::Eager;
    Pearl::new(options, PearlDraftLength::new(length, DraftLength::Fixed, is_eager))
}

/// Returns an acceptance model from a text with one letter for each position after the prompt: `y`
/// if the draft token is right.
fn recorded(text: &str) -> AcceptanceModel {
    AcceptanceModel::Recorded(text.chars().map(|letter| letter == 'y').collect())
}

/// Runs `count` rounds. Returns the committed and the unverified tokens of each round.
fn rounds(
    decoder: &mut Pearl,
    acceptance: &str,
    count: usize,
) -> (Vec<usize>, Vec<usize>, SimCluster) {
    let (mut cluster, oracle) = cluster(recorded(acceptance), 1, MS, 3 * MS);
    let mut sequence = sequence(&oracle, PROMPT, 100);
    let mut committed = Vec::new();
    for _ in 0..count {
        let before = sequence.generated().len();
        decoder.step(&mut sequence, &mut cluster).unwrap();
        committed.push(sequence.generated().len() - before);
    }
    assert_eq!(sequence.tokens(), oracle.text(sequence.tokens().len()));
    let scores = cluster.trace().spans.iter().filter(|span| span.kind == SpanKind::Score);
    let unverified = scores.map(|span| span.rows - 1).collect();
    (committed, unverified, cluster)
}

/// Figure 3: γ = 3. The first token is rejected in pre-verify and x₄ is accepted there. Post-verify
/// accepts x₅ to x₈ and rejects x₉; the tokens drafted after x₉ are dropped.
#[test]
fn figure_three_of_the_paper_is_reproduced() {
    let (committed, unverified, cluster) = rounds(&mut pearl(3, "paper"), "nyyyyyn", 4);
    assert_eq!((committed, unverified), (vec![1, 1, 3, 2], vec![0, 0, 2, 2]));
    let timeline = "\
drafter |dddDDDdddxxx|
target  |sssSSSSSSsss|
";
    assert_eq!(cluster.trace().to_ascii(MS), timeline);
}

/// Table 9: the first eight steps of "x+y = 4z, x*y = 4z^2, express x-y in z", word by word.
#[test]
fn table_nine_of_the_paper_is_reproduced() {
    // I|’ m|happy to|help you with|your question|! However , I notice|that the|equations
    let (committed, unverified, _) = rounds(&mut pearl(5, "paper"), "nyynyyyynyyyyyyyyn", 8);
    assert_eq!(committed, [1, 1, 2, 1, 4, 1, 5, 3]);
    assert_eq!(unverified, [0, 0, 4, 0, 4, 0, 4, 4]);
}

/// Table 4's ablations. Without pre-verify, the drafter runs alone while there are no unverified
/// tokens. Without post-verify, it waits while there are some, and full acceptance yields the bonus
/// token.
#[test]
fn ablations_leave_one_device_idle() {
    let (.., without_pre) = rounds(&mut pearl(3, "paper,no-pre-verify"), "nyyyyyyyyyyy", 3);
    let (.., without_post) = rounds(&mut pearl(3, "paper,no-post-verify"), "nyyyyyyyyyyy", 4);
    assert_eq!(
        without_pre.trace().to_ascii(MS),
        "\
drafter |dddxxxDDDDDDDDD|
target  |...sss...SSSSSS|
"
    );
    assert_eq!(
        without_post.trace().to_ascii(MS),
        "\
drafter |dddDDD...DDD|
target  |sssSSSSSSSSS|
"
    );
}

/// The paper's schedule always drafts γ tokens, even if the draft-length policy would allow more.
#[test]
fn the_papers_schedule_waits_for_gamma_tokens() {
    let options: PearlOptions = "paper".parse().unwrap();
    let mut decoder = Pearl::new(options, PearlDraftLength::new(3, DraftLength::Fixed, true));
    let (_, unverified, _) = rounds(&mut decoder, "nyyyyyn", 4);
    assert_eq!(unverified, [0, 0, 2, 2]);
    // The same holds for a reproducible decoder, which replaces the eager schedule by the paper's.
    let options: PearlOptions = "no-post-verify".parse().unwrap();
    let draft_length = PearlDraftLength::new(3, DraftLength::Fixed, true);
    let mut reproducible = Pearl::new(options, draft_length).reproducible();
    let (_, unverified, _) = rounds(&mut reproducible, "nyyyyyn", 4);
    assert_eq!(unverified, [0, 0, 2, 0]);
}

/// Beyond the paper: a drafter that has finished continues while the target is busy, and a late
/// drafter is neither interrupted nor waited for.
#[test]
fn eager_rounds_end_with_the_targets_pass() {
    let run = |options, draft_ns, acceptance| {
        let (mut cluster, oracle) = cluster(AcceptanceModel::Iid(acceptance), 1, draft_ns, 3 * MS);
        answer(&mut pearl(2, options), &mut cluster, &oracle, PROMPT, 60).unwrap();
        cluster.now_ns()
    };
    // A drafter of 1 ms makes three tokens during the target's pass, though γ is 2.
    assert!(run("eager", MS, 1.0) < run("paper", MS, 1.0));
    // A drafter of 2 ms is late with the second token, which is often rejected.
    assert!(run("eager", 2 * MS, 0.3) < run("paper", 2 * MS, 0.3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// If γ tokens are drafted within a target pass, a round takes no longer than that pass and
    /// commits at least one token.
    #[test]
    fn pearl_is_never_slower_than_the_target_alone(
        gamma in 1..=10_usize,
        acceptance in 0.0..=1.0_f64,
        eager in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let time = |decoder: &mut dyn Decoder| {
            let (mut cluster, oracle) = cluster(AcceptanceModel::Iid(acceptance), seed, 10 * MS, 100 * MS);
            answer(decoder, &mut cluster, &oracle, PROMPT, 60).unwrap();
            cluster.now_ns()
        };
        let plain_ns = time(&mut Autoregressive);
        let mut decoder = pearl(gamma, if eager { "eager" } else { "paper" });
        prop_assert!(time(&mut decoder) <= plain_ns);
        // The automatic length is not slower either, though it measures the target alone
        // periodically.
        let options = if eager { "eager" } else { "paper" }.parse().unwrap();
        let mut automatic = Pearl::new(options, PearlDraftLength::new(16, DraftLength::Auto, eager));
        prop_assert!(time(&mut automatic) <= plain_ns);
    }
}

/// The automatic length comes close to the best fixed one, whether or not a round holds a whole
/// number of draft tokens. Measuring the target alone, and starting again without draft tokens,
/// costs up to 2 %. If the drafter is fast and often wrong, it is faster than all fixed lengths,
/// because it drafts before a pass.
#[test]
fn the_automatic_length_is_as_fast_as_the_best_fixed_one() {
    let grid = [(80, 0.3), (80, 0.6), (200, 0.3)].into_iter();
    let uneven = [(28, 0.88), (31, 0.88), (53, 0.6), (53, 0.9), (75, 0.8), (100, 0.95)];
    for (target_ms, acceptance) in grid.chain(uneven) {
        let tokens_per_s = |make: &dyn Fn() -> Pearl| {
            let mut decoder = make();
            let (mut total_ns, mut tokens) = (0, 0);
            for seed in 0..20 {
                let (mut cluster, oracle) =
                    cluster(AcceptanceModel::Iid(acceptance), seed, 10 * MS, target_ms * MS);
                answer(&mut decoder, &mut cluster, &oracle, PROMPT, 200).unwrap();
                // As in the engine, the next answer continues with the learned draft length.
                decoder =
                    Pearl::new("eager".parse().unwrap(), decoder.draft_length().for_new_answer(3));
                (total_ns, tokens) = (total_ns + cluster.now_ns(), tokens + 200);
            }
            tokens as f64 * 1e9 / total_ns as f64
        };
        let of = |length, mode| {
            Pearl::new("eager".parse().unwrap(), PearlDraftLength::new(length, mode, true))
        };
        let lengths = [2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 20];
        let lengths = lengths.into_iter().filter(|&length| 10 * length <= target_ms as usize + 20);
        let fixed = lengths.map(|length| tokens_per_s(&|| of(length, DraftLength::Fixed)));
        let best = fixed.fold(0.0, f64::max);
        let automatic = tokens_per_s(&|| of(24, DraftLength::Auto));
        let ratio = automatic / best;
        eprintln!("c = {}, {acceptance}: {ratio:.3} of the best fixed length", target_ms / 10);
        let least = if target_ms >= 80 && acceptance < 0.5 { 1.04 } else { 0.98 };
        assert!(ratio > least, "{target_ms} ms, {acceptance}: {automatic} of {best} ({ratio})");
    }
}

/// With γ = c, PEARL is faster than speculative decoding, on average over texts.
#[test]
fn pearl_is_faster_than_speculative_decoding_at_the_same_length() {
    for acceptance in [0.3, 0.6, 0.8, 0.95] {
        let total_ns = |make: &dyn Fn() -> Box<dyn Decoder>| {
            let time = |seed| {
                let (mut cluster, oracle) =
                    cluster(AcceptanceModel::Iid(acceptance), seed, 20 * MS, 100 * MS);
                answer(&mut *make(), &mut cluster, &oracle, PROMPT, 200).unwrap();
                cluster.now_ns()
            };
            (0..20).map(time).sum::<u64>()
        };
        let chain = DraftShape::Chain { length: 5 };
        let speculative_ns = total_ns(&|| {
            Box::new(Speculative::new(SpeculativeDraftLength::new(
                chain.clone(),
                DraftLength::Fixed,
            )))
        });
        assert!(total_ns(&|| Box::new(pearl(5, "paper"))) < speculative_ns, "{acceptance}");
        assert!(total_ns(&|| Box::new(pearl(5, "eager"))) < speculative_ns, "{acceptance}");
    }
}

/// Appendix G: with the target's layers split over G devices and γ = c, drafter and target never
/// need the same device if 1/G ≤ ⌈γ/2⌉/γ ≤ 1 − 1/G. Then sharing costs nothing but the time of
/// sending the cache.
#[test]
fn devices_are_shared_without_conflicts_as_in_appendix_g() {
    for (devices, gamma) in (1..=5).flat_map(|g| (1..=6).map(move |gamma| (g, gamma))) {
        let simulation = Simulation {
            method: SimulatedMethod::PearlPaper,
            drafters: vec![Cost::constant(60 * MS)],
            targets: vec![Cost::constant(60 * MS * gamma as u64)],
            acceptance: vec![AcceptanceModel::Iid(0.8)],
            draft_tokens: gamma,
            max_tokens: 100,
            seed: 4,
            cancellation: Cancellation::Immediate,
            faults: Vec::new(),
        };
        let separate_ns = simulation.measure().unwrap().total_ns;
        let shared_ns_at = |transport_ns| {
            simulation
                .measure_on_shared_devices(SharedDevices { devices, transport_ns })
                .unwrap()
                .total_ns
        };
        let first = gamma.div_ceil(2);
        let fits = devices * first >= gamma && devices * first <= gamma * (devices - 1);
        let shared_ns = shared_ns_at(0);
        assert!(shared_ns >= separate_ns);
        assert_eq!(shared_ns == separate_ns, fits, "{devices} devices, γ {gamma}");
        assert!(!fits || shared_ns_at(MS) > shared_ns);
    }
}

/// Jobs of a layer-parallel drafter that extend its draft go on with its round, which has one exact
/// pass for five tokens. A restart begins a new one.
#[test]
fn a_layer_parallel_drafter_calibrates_once_in_five_tokens() {
    let groups = vec![1, 3];
    let forward = ForwardCost::Layers { attention_ns: MS, mlp_ns: 0, communication_ns: 0, groups };
    let (oracle, drafter) = (
        Oracle { seed: 1, drafters: vec![recorded(&"y".repeat(7))] },
        Cost { forward, ..Cost::constant(0) },
    );
    let devices = pair(drafter, Cost::constant(40 * MS));
    let mut cluster =
        SimCluster::new(devices, oracle.clone(), Cancellation::Immediate, Vec::new()).unwrap();
    answer(&mut pearl(8, "eager"), &mut cluster, &oracle, PROMPT, 10).unwrap();
    let drafts = cluster.trace().spans.iter().filter(|span| span.kind == SpanKind::Draft);
    let passes: Vec<u64> = drafts.map(|span| (span.end_ns - span.start_ns) / MS).collect();
    // The eighth token is wrong, and so are the tokens after it, which the drafter drafts, too.
    assert_eq!(passes, [4, 2, 2, 2, 2, 4, 2, 2, 2, 4]);
}

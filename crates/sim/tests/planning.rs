//! Plans: predictions from recorded and estimated profiles, and profiles from traces.

use forerun_core::SequenceId;
use forerun_core::trace::{Span, SpanKind};
use forerun_sim::planning::{
    HardwareProfile, MeasuredAnswer, MethodTiming, PlannedDraft, Prediction, Reason, Source, fit,
    rank,
};
use forerun_sim::{AcceptanceModel, Cancellation, Cost, ForwardCost, SimulatedMethod, Simulation};
use std::path::Path;

const RECORDED: &str = r#"
source = "measured"
hardware = "two cores"
answer-tokens = 8

[[drafter]]
name = "model"
agreement = ["111111111111", "000000000000"]

[[drafter]]
name = "prompt-lookup"
drafts = [[[0, 0], [0, 0], [3, 2], [3, 3], [0, 0], [0, 0], [0, 0], [0, 0]]]

[[timing]]
method = "autoregressive"
link-ms = 0
target = { model = "t", layers = 2, first-ms = 0, rows-ms = [[1, 10], [5, 14]] }

[[timing]]
method = "speculative"
drafter = "model"
link-ms = 0.5
target = { model = "t", layers = 2, first-ms = 50, rows-ms = [[1, 10], [5, 14]] }
draft = { model = "d", layers = 1, first-ms = 5, rows-ms = [[1, 2]], next-ms = 1 }

[[timing]]
method = "speculative"
drafter = "prompt-lookup"
link-ms = 0
target = { model = "t", layers = 2, first-ms = 10, rows-ms = [[1, 10], [5, 14]] }
draft = { model = "none", layers = 1, first-ms = 0, rows-ms = [[1, 0]], next-ms = 0 }
"#;

fn ranking(text: &str, lengths: &[usize]) -> Vec<Prediction> {
    let profile = HardwareProfile::parse(text).unwrap();
    let lengths: Vec<_> = lengths.iter().copied().map(PlannedDraft::Chain).collect();
    rank(&profile, &lengths).unwrap()
}

#[test]
fn a_recorded_profile_gives_exact_predictions() {
    let ranking = ranking(RECORDED, &[3]);
    let of = |drafter: Option<&str>| {
        ranking.iter().find(|prediction| prediction.drafter.as_deref() == drafter).unwrap()
    };
    let ms = |prediction: &Prediction| 1e3 / prediction.tokens_per_second;
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}");
    // Plain decoding takes 10 ms for each of seven tokens after the first.
    close(ms(of(None)), 10.0);
    close(of(None).speedup, 1.0);
    // Speeds are of the tokens after the first round. Prompt 0: after a first round of four tokens, a second one of four: a draft of 2 + 1 + 1 ms (its first pass has two rows), a pass
    // over 4 rows of 13 ms, and four links. Prompt 1: seven rounds of one token. A draft of n
    // tokens takes n + 1 ms, a pass over n + 1 rows n + 10, and links 2 ms; n is 3, 3, 3, 3, 2, 1,
    // 0 (without a draft, one link less).
    let first = 4.0 + 13.0 + 2.0;
    let rounds: f64 = [3, 3, 3, 2, 1].map(|n| f64::from(2 * n + 13)).iter().sum();
    let second = rounds + 19.0 + 11.0;
    close(ms(of(Some("model"))), (first + second) / 11.0);
    // Prompt lookup drafts before the third token, and two of three tokens are right: a token, a
    // pass over four rows that gives three, then three more tokens.
    close(ms(of(Some("prompt-lookup"))), (10.0 + 13.0 + 30.0) / 7.0);
    assert_eq!(ranking[0].drafter.as_deref(), Some("prompt-lookup"));
    assert!(ranking.iter().all(|prediction| prediction.source == Source::Measured));
}

/// A drafter on the target's hidden states: its records, and the costs of chains and of trees.
const ON_FEATURES: &str = r#"
source = "measured"
hardware = "two cores"
answer-tokens = 8

[[drafter]]
name = "eagle"
drafts = [[[0, 0], [16, 1], [16, 0], [16, 2], [16, 0], [16, 0], [16, 0], [16, 0]]]
ranks = [[[], [0, 1, 0], [1], [0, 0], [], [0], [1], [1]]]
reads-features = true

[[timing]]
method = "autoregressive"
link-ms = 0
target = { model = "t", layers = 2, first-ms = 0, rows-ms = [[1, 10], [5, 14]] }

[[timing]]
method = "speculative"
drafter = "eagle"
link-ms = 0
target = { model = "t", layers = 2, first-ms = 50, rows-ms = [[1, 10], [5, 14]] }
draft = { model = "d", layers = 1, first-ms = 5, rows-ms = [[1, 2], [3, 4]], next-ms = 1 }

[[timing]]
method = "speculative"
drafter = "eagle"
tree = true
link-ms = 0
scale = [[8, 2.0]]
target = { model = "t", layers = 2, first-ms = 50, rows-ms = [[1, 10]] }
draft = { model = "d", layers = 1, first-ms = 0, rows-ms = [[1, 0]], next-ms = 0 }
"#;

/// They come with the prompt's pass. In a short answer they are many, and would make a long draft
/// look fast.
#[test]
fn a_time_per_token_does_not_count_the_tokens_of_the_first_round() {
    let text = RECORDED.replace("\"111111111111\", \"000000000000\"", "\"111111111111\"");
    let ranking = ranking(&text, &[3]);
    let found = ranking.iter().find(|found| found.drafter.as_deref() == Some("model")).unwrap();
    // Four of eight tokens come in the first round, and four in a second one of 19 ms.
    let expected = 4e3 / 19.0;
    assert!((found.tokens_per_second - expected).abs() < 1e-6, "{}", found.tokens_per_second);
}

#[test]
fn drafters_on_hidden_states_are_replayed() {
    let profile = HardwareProfile::parse(ON_FEATURES).unwrap();
    let ranking = rank(&profile, &[PlannedDraft::Chain(3), PlannedDraft::Tree(8)]).unwrap();
    assert_eq!(ranking.len(), 3);
    let ms = |draft: PlannedDraft| {
        let found = ranking.iter().find(|prediction| prediction.draft == draft).unwrap();
        1e3 / found.tokens_per_second
    };
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}");
    // The first round has no draft and gives a token. The next draft reads the prompt in 5 ms, and
    // has a further row; one of its three tokens is right. Then the drafter reads two tokens that
    // the target has verified, and three after the next round, whose draft has one token. The last
    // token needs none.
    let rounds = [(5.0 + 1.0 + 2.0, 13.0), (3.0 + 2.0, 13.0), (4.0, 11.0), (0.0, 10.0)];
    close(
        ms(PlannedDraft::Chain(3)),
        rounds.map(|(draft, score)| draft + score).iter().sum::<f64>() / 7.0,
    );
    // The tree has the path of a best token, a second and a best one. So after the first round it
    // gives four tokens; then none of its candidates is right, and the next round has one token,
    // which is right.
    close(ms(PlannedDraft::Tree(8)), 2.0 * 3.0 * 10.0 / 7.0);
}

#[test]
fn sizes_that_are_chosen_while_decoding_are_predicted_of_methods_that_take_turns() {
    let profile = HardwareProfile::parse(ON_FEATURES).unwrap();
    let drafts = [PlannedDraft::AutoChain, PlannedDraft::AutoTree];
    let ranking = rank(&profile, &drafts).unwrap();
    let found: Vec<String> = ranking
        .iter()
        .map(|prediction| serde_json::to_value(prediction).unwrap())
        .map(|found| format!("{}{}", found["draft_tokens"], found["tree"]))
        .collect();
    let expected = ["\"0\"null", "\"auto\"null", "null\"auto\""];
    assert!(expected.iter().all(|expected| found.contains(&(*expected).into())), "{found:?}");
    let parallel = ON_FEATURES.replacen("\"speculative\"", "\"pearl\"", 1);
    let ranking = rank(&HardwareProfile::parse(&parallel).unwrap(), &drafts).unwrap();
    assert!(ranking.iter().all(|prediction| prediction.method != "pearl"));
}

#[test]
fn chains_beyond_the_positions_of_a_drafter_are_planned_once() {
    let text = ON_FEATURES.replace("reads-features = true", "reads-features = true\npositions = 5");
    let profile = HardwareProfile::parse(&text).unwrap();
    let lengths = [1, 4, 6, 8, 16].map(PlannedDraft::Chain);
    let mut found: Vec<PlannedDraft> = rank(&profile, &lengths)
        .unwrap()
        .iter()
        .filter(|prediction| prediction.drafter.is_some())
        .map(|prediction| prediction.draft)
        .collect();
    found.sort();
    assert_eq!(found, [1, 4, 6].map(PlannedDraft::Chain));
}

#[test]
fn reasons_name_what_a_drafter_would_have_to_cost() {
    let recorded = RECORDED.replace("000000000000", "110110110110");
    let slow =
        recorded.replace("rows-ms = [[1, 2]], next-ms = 1", "rows-ms = [[1, 18]], next-ms = 18");
    let ranking = ranking(&slow, &[3]);
    let slow = ranking.iter().find(|found| found.drafter.as_deref() == Some("model")).unwrap();
    let Reason::DrafterTooSlow { drafter_cost, break_even, tokens_per_pass } = slow.reason else {
        panic!("{:?}", slow.reason)
    };
    assert!((drafter_cost - 55.0 / 30.0).abs() < 1e-9, "{drafter_cost}");
    // Plain decoding is faster, so a draft token costs more than it may.
    assert!(slow.speedup < 1.0 && tokens_per_pass > 1.0, "{slow:?}");
    assert!(break_even < drafter_cost, "{break_even}");
    let text = slow.reason.to_string();
    assert!(text.starts_with("a draft token costs 1.83 of a plain token; for "), "{text}");
}

/// A drafter with four positions drafts four tokens, however many it is asked for.
#[test]
fn reasons_count_no_tokens_beyond_the_positions_of_a_drafter() {
    let costs = |more: &str| {
        let text = ON_FEATURES.replace("reads-features = true", more);
        // Verification costs too much for any drafter, and drafting much more.
        let text = text.replacen("rows-ms = [[1, 2], [3, 4]]", "rows-ms = [[1, 20]]", 1);
        let profile = HardwareProfile::parse(&text).unwrap();
        let ranking = rank(&profile, &[PlannedDraft::Chain(16)]).unwrap();
        let found = ranking.into_iter().find(|found| found.drafter.is_some()).unwrap();
        found.reason
    };
    let Reason::DrafterTooSlow { drafter_cost, break_even, .. } =
        costs("reads-features = true\npositions = 4")
    else {
        panic!()
    };
    // A first token of 20 ms, three of 1 ms, and a pass over five rows of 14 ms, in plain tokens of
    // 10 ms.
    assert!((drafter_cost - 23.0 / 40.0).abs() < 1e-9, "{drafter_cost}");
    assert!(break_even < drafter_cost, "{break_even}");
    let in_one_pass = costs("reads-features = true\npositions = 4\none-forward = true");
    let Reason::DrafterTooSlow { drafter_cost, .. } = in_one_pass else { panic!() };
    assert!((drafter_cost - 20.0 / 40.0).abs() < 1e-9, "{drafter_cost}");
}

#[test]
fn a_profile_reads_back_unchanged_and_refuses_nonsense() {
    for recorded in [RECORDED, ON_FEATURES] {
        let mut profile = HardwareProfile::parse(recorded).unwrap();
        profile.drafters[0].positions = Some(7);
        profile.drafters[0].one_forward = true;
        profile.timings[1].auto_scale = Some(1.25);
        profile.timings[1].cores = Some("drafter=cpu:0,target=cpu:1".into());
        (profile.dtype, profile.kv_type) = (Some("int8".into()), Some("q8".into()));
        (profile.threads, profile.pin) = (Some(2), true);
        let text = profile.to_toml("from\nhere");
        assert!(text.starts_with("# from\n# here\nsource = \"measured\"\n"), "{text}");
        assert_eq!(HardwareProfile::parse(&text).unwrap(), profile);
    }
    for (from, to, word) in [
        ("method = \"speculative\"", "method = \"guess\"", "there is no method \"guess\""),
        ("answer-tokens = 8", "answer-tokens = 1", "answer-tokens is 1"),
        ("name = \"model\"", "name = \"other\"", "no [[drafter]] with the name \"model\""),
        ("\"111111111111\"", "\"1x\"", "0s and 1s"),
        ("[3, 2]", "[3, 4]", "a draft of 3 tokens"),
        ("agreement = [", "acceptance = 0.5\nagreement = [", "has 2 of acceptance"),
        ("layers = 2", "layers = 0", "layers is 0"),
        ("link-ms = 0.5", "link-ms = -1", "link-ms"),
        ("link-ms = 0.5", "link-ms = 0.5\nscale = [[4, 1.0], [2, 1.0]]", "scale is"),
        ("method = \"autoregressive\"", "method = \"pearl\"", "needs `drafter`"),
        ("link-ms = 0.5", "link-ms = 0.5\ntree = true", "with `ranks`"),
        ("link-ms = 0.5", "link-ms = 0.5\nauto-scale = 0", "auto-scale is 0"),
        ("name = \"model\"", "name = \"model\"\npositions = 0", "positions of the drafter"),
    ] {
        let error = HardwareProfile::parse(&RECORDED.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(word), "{from}: {error}");
    }
}

/// The shipped profiles are valid, say that they are estimated, and give a ranking.
#[test]
fn shipped_profiles_are_labelled_and_can_be_planned() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/profiles");
    let mut found = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let profile = HardwareProfile::parse(&text).unwrap();
        assert_eq!(profile.source, Source::Estimated);
        assert!(profile.hardware.contains("estimated") && text.starts_with("# ESTIMATED"));
        let ranking = rank(&profile, &[PlannedDraft::Chain(4)]).unwrap();
        assert_eq!(ranking.len(), profile.timings.len());
        assert!(ranking.is_sorted_by(|a, b| a.tokens_per_second >= b.tokens_per_second));
        found += 1;
    }
    assert!(found > 0);
}

/// Costs that are fitted to traces are those of the devices that recorded the traces.
#[test]
fn fitted_costs_are_those_of_the_recorded_devices() {
    let us = 1_000;
    let cost = |points: &[(usize, u64)], next_ns| Cost {
        forward: ForwardCost::Rows { points: points.to_vec() },
        next_ns,
        layers: 4,
        link_ns: 20 * us,
        ..Cost::constant(0)
    };
    let target = cost(&[(1, 1_000 * us), (17, 1_800 * us)], None);
    let drafter = cost(&[(1, 300 * us), (2, 320 * us)], Some(200 * us));
    let record: Vec<bool> = (0..64).map(|token| token % 5 != 0).collect();
    let template = HardwareProfile::parse(RECORDED).unwrap();
    for (method, name) in [
        (SimulatedMethod::Speculative, "speculative"),
        (SimulatedMethod::Pearl, "pearl"),
        (SimulatedMethod::Dsi, "dsi"),
    ] {
        let answer = |draft_tokens| {
            let simulation = Simulation {
                method,
                drafters: vec![drafter.clone()],
                targets: vec![target.clone()],
                acceptance: vec![AcceptanceModel::Recorded(record.clone())],
                draft_tokens,
                max_tokens: 60,
                seed: 0,
                cancellation: Cancellation::Layer,
                faults: Vec::new(),
            };
            let answer = simulation.run().unwrap();
            assert!(answer.trace.spans.iter().all(|span| span.sequence == SequenceId(0)));
            let is_score = |span: &&Span| span.kind == SpanKind::Score;
            let first = answer.trace.spans.iter().find(is_score).unwrap();
            let decode_ns = (answer.total_ns - first.end_ns - 20 * us) as f64;
            // Of the methods, one drafts before the first tokens.
            let draft = answer.trace.spans.iter().find(|span| span.kind == SpanKind::Draft);
            let drafts_first = method == SimulatedMethod::Speculative;
            let accepted = draft.filter(|_| drafts_first).map_or(0, |draft| draft.accepted);
            let ns_per_token = decode_ns / (59 - accepted) as f64;
            let draft = PlannedDraft::Chain(draft_tokens);
            MeasuredAnswer { prompt: 0, draft, tokens: 60, ns_per_token, trace: answer.trace }
        };
        let answers: Vec<_> = [2, 4, 8].map(answer).into();
        let timing = MethodTiming { method: name.into(), ..template.timings[1].clone() };
        let mut drafter = template.drafters[0].clone();
        drafter.agreement =
            vec![record.iter().map(|&right| if right { '1' } else { '0' }).collect()];
        let fitted = fit(timing, &answers, Some(&drafter)).unwrap();
        assert!((fitted.link_ms - 0.02).abs() < 1e-3, "{name}: {}", fitted.link_ms);
        for &(rows, ms) in &fitted.target.rows_ms {
            let expected = 1.0 + 0.05 * (rows as f64 - 1.0);
            assert!((ms - expected).abs() < 1e-6, "{name}, {rows} rows: {ms}");
        }
        for (length, scale) in fitted.scale {
            assert!((scale - 1.0).abs() < 0.15, "{name}, {length} draft tokens: {scale}");
        }
    }
}

//! PEARL's appendix G with whole models: target and drafter share two devices, each half of a draft
//! is computed on one of them, and the trace records the devices.

use crate::common::{self, Pair};
use forerun::placement::available_cores;
use forerun::trace::{SpanKind, Trace};
use forerun::{DraftTokens, Engine, Method, MethodOptions, Options, Plan, Request};
use forerun_formats::checkpoint::random_speculator::SpeculatorLayout;
use std::ops::ControlFlow;

/// Returns the trace of an answer with drafter and target replicas on the same two devices, or
/// `None` on a machine with one core. The text is plain decoding's.
fn trace(
    pair: &Pair,
    method: MethodOptions,
    draft_tokens: usize,
    replicas: usize,
) -> Option<Trace> {
    let cores = available_cores();
    let [first, .., last] = cores[..] else {
        common::report("SKIPPED: layers on several devices need two cores");
        return None;
    };
    let both = format!("cpu:{first}/cpu:{last}");
    let targets = vec![format!("target={both}"); replicas].join(",");
    let plain = Options { model: pair.target.clone().into(), ..Options::default() };
    let options = Options {
        draft_model: Some(pair.drafter.clone().into()),
        method: Some(method),
        draft_tokens: DraftTokens::Fixed(draft_tokens),
        placement: Some(format!("drafter={both},{targets},shared").parse().unwrap()),
        ..plain.clone()
    };
    let request = Request { max_tokens: 80, ignore_eos: true, ..Request::default() };
    let [answer, plain] = [options, plain].map(|options| {
        let engine = Engine::open(options).unwrap();
        let prompt = engine.tokenizer().encode(&pair.prompts[0]).unwrap();
        let go_on = |_: &str| ControlFlow::Continue(());
        engine.generate_tokens(prompt, &request, go_on).unwrap()
    });
    assert_eq!(answer.tokens, plain.tokens);
    Some(answer.trace)
}

/// Returns the names of the devices that a span's job used, in order.
fn devices_of<'a>(trace: &'a Trace, span: &forerun::trace::Span) -> Vec<&'a str> {
    span.device_uses.iter().map(|used| trace.devices[used.device].as_str()).collect()
}

#[test]
fn no_device_is_used_by_two_models_at_a_time() {
    let pair = Pair::generated();
    let pearl = |options: &str| MethodOptions::Pearl(options.parse().unwrap());
    for (method, replicas) in [
        (pearl("paper"), 1),
        (pearl("eager"), 1),
        (pearl("paper,no-post-verify"), 1),
        (Method::Speculative.into(), 1),
        (Method::Dsi.into(), 1),
        (Method::Dsi.into(), 2),
    ] {
        let Some(trace) = trace(&pair, method.clone(), 4, replicas) else { return };
        let by_device = trace.by_device();
        assert_eq!(by_device.lanes.len(), 2, "{method:?}");
        for lane in 0..2 {
            let spans = by_device.spans.iter().filter(|span| span.lane == lane);
            let mut times: Vec<[u64; 2]> = spans.map(|span| [span.start_ns, span.end_ns]).collect();
            times.sort_unstable();
            assert!(times.len() > 10, "{method:?}");
            assert!(times.windows(2).all(|pair| pair[0][1] <= pair[1][0]), "{method:?}");
        }
    }
}

#[test]
fn a_pass_uses_the_devices_in_order_and_a_draft_has_a_half_on_each() {
    let pair = Pair::generated();
    let cores = available_cores();
    let names = [cores[0], cores[cores.len() - 1]].map(|core| format!("cpu:{core}"));
    let paper = MethodOptions::Pearl("paper".parse().unwrap());
    for gamma in [2, 3, 5] {
        let Some(trace) = trace(&pair, paper.clone(), gamma, 1) else { return };
        let (mut passes, mut drafts) = (0, 0);
        for span in trace.spans.iter().filter(|span| span.rows > 0) {
            let devices = devices_of(&trace, span);
            if span.kind == SpanKind::Score {
                passes += 1;
                assert!(span.forwards_ns.len() == 1 && devices == names);
            } else if span.rows > 1 {
                drafts += 1;
                let half = span.rows.div_ceil(2);
                let (on_last, on_first) = devices.split_at(half);
                assert_eq!(on_first.len(), span.rows - half);
                assert!(on_last.iter().all(|&name| name == names[1]), "{devices:?}");
                assert!(on_first.iter().all(|&name| name == names[0]), "{devices:?}");
            }
        }
        assert!(passes > 5 && drafts > 5, "{passes} passes, {drafts} drafts");
    }
}

/// Speculative pipeline decoding (arXiv 2605.30852): while the last stage computes a verification,
/// the first one begins the next.
#[test]
fn replicas_of_the_same_stages_fill_the_pipeline() {
    let pair = Pair::generated();
    let Some(trace) = trace(&pair, Method::Dsi.into(), 2, 2) else { return };
    let scores: Vec<_> = trace.spans.iter().filter(|span| span.kind == SpanKind::Score).collect();
    let overlaps = scores.iter().flat_map(|first| scores.iter().map(move |second| (first, second)));
    let in_pipe = overlaps.filter(|(first, second)| {
        first.lane < second.lane && first.start_ns < second.end_ns && second.start_ns < first.end_ns
    });
    assert!(in_pipe.count() > 5);
}

/// Drafters that read the target's hidden states need one device. Drafters that read only tokens
/// may use several.
#[test]
fn drafters_on_features_are_refused_on_several_devices() {
    let (pair, speculators) = Pair::with_speculators();
    let cores = available_cores();
    let [first, .., last] = cores[..] else {
        return common::report("SKIPPED: layers on several devices need two cores");
    };
    let both = format!("cpu:{first}/cpu:{last}");
    let (layouts, mut refused, mut texts) = (speculators.len(), 0, Vec::new());
    for (layout, path) in speculators {
        let options = Options {
            model: pair.target.clone().into(),
            draft_model: Some(path.into()),
            method: Some(Method::Speculative.into()),
            placement: Some(format!("drafter={both},target={both},shared").parse().unwrap()),
            ..Options::default()
        };
        let plan = match Plan::new(options) {
            Err(error) => {
                assert!(error.to_string().contains("needs one device"), "{error}");
                refused += 1;
                continue;
            }
            Ok(plan) => plan,
        };
        use SpeculatorLayout::{ParallelMedusa, ReducedParallelMedusa};
        assert!(matches!(layout, ParallelMedusa | ReducedParallelMedusa), "{layout:?}");
        let request = Request { max_tokens: 40, ignore_eos: true, ..Request::default() };
        let plain = Options { model: pair.target.clone().into(), ..Options::default() };
        for plan in [plan, Plan::new(plain).unwrap()] {
            let engine = Engine::open_plan(&plan).unwrap();
            texts.push(engine.complete(&pair.prompts[1], &request).unwrap().tokens);
        }
    }
    assert!(refused + 2 == layouts && texts.len() == 4);
    assert!(texts.iter().all(|text| *text == texts[0]));
}

#[test]
fn more_stages_than_layers_are_refused() {
    let cores = available_cores();
    let pair = Pair::generated();
    let layers =
        forerun::checkpoint::Checkpoint::open(&pair.target).unwrap().config().num_hidden_layers;
    if cores.len() <= layers {
        return common::report("SKIPPED: the test needs more cores than layers");
    }
    let stages: Vec<String> = cores[..=layers].iter().map(|core| format!("cpu:{core}")).collect();
    let placement = Some(format!("target={}", stages.join("/")).parse().unwrap());
    let options = Options { model: pair.target.clone().into(), placement, ..Options::default() };
    let error = Engine::open(options).err().unwrap().to_string();
    assert!(error.contains("stages") && error.contains("target cpu:"), "{error}");
}

//! Waits on threads do what the virtual time says; how long they take is not tested, since machines
//! are busy.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::trace::Trace;
use forerun_sim::{
    Cancellation, Fault, FaultKind, Parameters, SimError, SimulatedMethod, Simulation,
};

fn simulation(parameters: &Parameters) -> Simulation {
    parameters.simulation(None).unwrap()
}

/// What ran, in which order, with which outcome.
fn story(trace: &Trace) -> Vec<String> {
    let told = |span: &forerun_core::trace::Span| {
        format!("{} {:?} {} {} {:?}", span.lane, span.work, span.rows, span.accepted, span.fate)
    };
    trace.spans.iter().map(told).collect()
}

#[test]
fn threads_run_what_virtual_time_ran() {
    for method in SimulatedMethod::NAMES.map(|(method, _)| method) {
        for cancel in [Cancellation::Immediate, Cancellation::Layer, Cancellation::RunToEnd] {
            let simulation = simulation(&Parameters {
                method,
                cancel,
                target_ms: Some(2.0),
                row_ms: Some(0.1),
                draft_ms: Some(0.3),
                draft_first_ms: Some(1.0),
                acceptance: Some(0.7),
                draft_tokens: 3,
                targets: 2,
                max_tokens: 20,
                seed: 5,
                ..Parameters::default()
            });
            let (simulated, waited) =
                (simulation.run().unwrap(), simulation.run_in_real_time().unwrap());
            let (a, b) = (&waited.statistics, &simulated.statistics);
            assert_eq!(a.committed, b.committed, "{method} {cancel}");
            // Where devices work side by side, the text alone does not depend on who is first; a run
            // fails if that is another one.
            if matches!(method, SimulatedMethod::Autoregressive | SimulatedMethod::Speculative) {
                assert!(waited.total_ns >= simulated.total_ns, "{method} {cancel}");
                assert_eq!(story(&waited.trace), story(&simulated.trace), "{method} {cancel}");
                assert_eq!(a.accepted, b.accepted);
            }
        }
    }
}

#[test]
fn what_threads_cannot_do_is_refused() {
    let links = simulation(&Parameters { link_ms: Some(1.0), ..Parameters::default() });
    assert_eq!(links.run_in_real_time().err(), Some(SimError::VirtualOnly("links")));
    let mut faults = simulation(&Parameters::default());
    faults.faults = vec![Fault { device: 0, at_ns: 1, kind: FaultKind::Die }];
    assert_eq!(faults.run_in_real_time().err(), Some(SimError::VirtualOnly("faults")));
}

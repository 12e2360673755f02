//! Simulations on threads do the same work as in virtual time.
//!
//! Upper bounds on their times are not tested, because the machine may be busy.

use forerun_core::trace::Trace;
use forerun_sim::{
    Cancellation, Fault, FaultKind, Parameters, SimError, SimulatedMethod, Simulation,
};

fn simulation(parameters: &Parameters) -> Simulation {
    parameters.simulation(None).unwrap()
}

/// Returns all jobs of a trace with their outcomes, in order.
fn jobs(trace: &Trace) -> Vec<String> {
    let job = |span: &forerun_core::trace::Span| {
        format!("{} {:?} {} {} {:?}", span.lane, span.kind, span.rows, span.accepted, span.outcome)
    };
    trace.spans.iter().map(job).collect()
}

#[test]
fn threads_run_the_same_jobs_as_virtual_time() {
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
            let (simulated, measured) =
                (simulation.run().unwrap(), simulation.run_in_real_time().unwrap());
            let (a, b) = (&measured.statistics, &simulated.statistics);
            assert_eq!(a.committed, b.committed, "{method} {cancel}");
            // If devices work in parallel, the jobs depend on which device is first. Only the text
            // does not, and a run fails if its text is wrong.
            if matches!(method, SimulatedMethod::Autoregressive | SimulatedMethod::Speculative) {
                assert!(measured.total_ns >= simulated.total_ns, "{method} {cancel}");
                assert_eq!(jobs(&measured.trace), jobs(&simulated.trace), "{method} {cancel}");
                assert_eq!(a.accepted, b.accepted);
            }
        }
    }
}

#[test]
fn links_and_faults_are_rejected_in_real_time() {
    let links = simulation(&Parameters { link_ms: Some(1.0), ..Parameters::default() });
    assert_eq!(links.run_in_real_time().err(), Some(SimError::VirtualOnly("links")));
    let mut faults = simulation(&Parameters::default());
    faults.faults = vec![Fault { device: 0, at_ns: 1, kind: FaultKind::Die }];
    assert_eq!(faults.run_in_real_time().err(), Some(SimError::VirtualOnly("faults")));
}

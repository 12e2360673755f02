//! Simulations on threads do the same work as in virtual time.
//!
//! Upper bounds on their times are not tested, because the machine may be busy.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::trace::Trace;
use forerun_sim::{
    AcceptanceModel, Cancellation, Fault, FaultKind, Parameters, SimError, SimulatedMethod,
    Simulation,
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

/// A block drafter has the features of the same tokens on threads, and a full block takes no pass.
#[test]
fn drafters_of_blocks_run_the_same_jobs_as_in_virtual_time() {
    let parameters = Parameters {
        target_ms: Some(2.0),
        draft_ms: Some(0.5),
        draft_next_ms: Some(0.0),
        draft_tokens: 3,
        max_tokens: 20,
        seed: 5,
        ..Parameters::default()
    };
    for model in [
        AcceptanceModel::Block(vec![0.8; 3]),
        AcceptanceModel::Masks { positions: vec![0.8; 3], reads_features: true },
    ] {
        let mut simulation = simulation(&parameters);
        simulation.acceptance = vec![model];
        simulation.drafters[0].reads_features = true;
        let (simulated, measured) =
            (simulation.run().unwrap(), simulation.run_in_real_time().unwrap());
        assert_eq!(jobs(&measured.trace), jobs(&simulated.trace));
        assert_eq!(measured.statistics.accepted, simulated.statistics.accepted);
        assert!(measured.statistics.accepted.iter().any(|&count| count > 0));
        for method in [SimulatedMethod::Dsi, SimulatedMethod::Ssd] {
            let refused = Simulation { method, ..simulation.clone() };
            let error = refused.run().unwrap_err();
            assert_eq!(error, SimError::ReadsFeatures(method));
            assert!(error.to_string().contains(&format!("`{method}`")), "{error}");
            assert_eq!(refused.run_in_real_time().unwrap_err(), error);
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

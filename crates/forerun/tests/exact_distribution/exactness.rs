//! The assertions that a combination is exact.

use crate::experiment::Experiment;
use crate::options::{more_options, sampling, with_runs};
use crate::tables::target;
use forerun_core::{Sampling, Verification};
use forerun_decode::Decoder;
use forerun_draft::Drafter;

/// The seeds of the targets.
pub(crate) const TARGETS: [u64; 2] = [1, 2];

/// Asserts that a combination is exact for several targets and sampling options.
pub(crate) fn assert_exact(
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
) {
    assert_exact_of(name, drafter, decoder, (2, false));
}

/// Asserts that a combination is exact for the given number of tokens, and for a target with or
/// without features.
pub(crate) fn assert_exact_of(
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    (tokens, features): (usize, bool),
) {
    assert_exact_for(&TARGETS, name, drafter, decoder, (tokens, features));
}

/// Asserts the same for the given targets.
pub(crate) fn assert_exact_for(
    targets: &[u64],
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    (tokens, features): (usize, bool),
) {
    let rule = Verification::Rejection;
    assert_exact_by(rule, targets, name, (drafter, decoder), (tokens, features));
}

/// Asserts the same with another rule of verification.
pub(crate) fn assert_exact_with(
    verification: Verification,
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    (tokens, features): (usize, bool),
) {
    assert_exact_by(verification, &TARGETS, name, (drafter, decoder), (tokens, features));
}

type MakeDrafter<'a> = &'a dyn Fn() -> Box<dyn Drafter>;
type MakeDecoder<'a> = &'a dyn Fn() -> Box<dyn Decoder>;

fn assert_exact_by(
    verification: Verification,
    targets: &[u64],
    name: &str,
    (drafter, decoder): (MakeDrafter<'_>, MakeDecoder<'_>),
    (tokens, features): (usize, bool),
) {
    let mut branches = 0;
    for &seed in targets {
        let filters = [
            sampling(1.0, 0, 1.0),
            sampling(0.4, 0, 1.0),
            sampling(1.5, 2, 1.0),
            sampling(0.8, 0, 0.75),
        ];
        for sampling in filters.into_iter().chain(more_options()).chain(with_runs()) {
            let target = target(seed);
            let sampling = Sampling { verification, ..sampling };
            let experiment = Experiment::of(sampling, drafter, decoder);
            let experiment = Experiment { target, tokens, features, ..experiment };
            let (deviation, count) = experiment.deviation_and_branches();
            let sampling = &experiment.sampling;
            assert!(deviation < 1e-6, "{name}, target {seed}, {sampling:?}: off by {deviation}");
            branches += count;
        }
    }
    println!("{name}: exact in {branches} branches");
}

/// Asserts that a combination is exact for three tokens, and so over several rounds, with jobs in
/// any order.
pub(crate) fn assert_exact_in_any_order(
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
) {
    let mut branches = 0;
    let options = [sampling(1.0, 0, 1.0), more_options().pop().unwrap()];
    let orders = || [None, Some(1), Some(2), Some(3), Some(4)];
    let cases = options.iter().cycle().zip(orders());
    let runs = with_runs();
    for (sampling, order) in cases.chain(runs.iter().cycle().zip(orders())) {
        let experiment = Experiment::of(sampling.clone(), drafter, decoder);
        let experiment = Experiment { tokens: 3, order, ..experiment };
        let (deviation, count) = experiment.deviation_and_branches();
        assert!(deviation < 1e-6, "{name}, order {order:?}, {sampling:?}: off by {deviation}");
        branches += count;
    }
    println!("{name}: exact in {branches} branches");
}

//! Decoding goes on without a drafter that fails, and is exact.

use crate::drafters::{Make, failing_after, failing_on, model_drafter, other_drafter};
use crate::exactness::{assert_exact, assert_exact_in_any_order, assert_exact_of};
use crate::experiment::Experiment;
use crate::methods::{best, chain, dsi, iid, pearl, speculative};
use crate::options::sampling;
use crate::tables::{DRAFT_MODEL, FeatureTable, VOCAB};
use forerun_core::TokenId;
use forerun_decode::Decoder;
use forerun_draft::{Drafter, EagleDrafter};

#[test]
fn speculative_decoding_without_a_failed_drafter_is_exact() {
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(FeatureTable(DRAFT_MODEL))) };
    for jobs_left in 0..2 {
        let drafter = || failing_after(jobs_left, &model_drafter);
        for shape in [chain(2), best(3), iid(&[2, 1])] {
            let name = format!("speculative, {shape:?}, fails after {jobs_left} jobs");
            assert_exact(&name, &drafter, &|| speculative(&shape));
        }
        let on_features = || failing_after(jobs_left, &eagle);
        let name = format!("speculative, eagle, fails after {jobs_left} jobs");
        assert_exact_of(&name, &on_features, &|| speculative(&chain(2)), (3, true));
    }
}

/// The tokens that the drafter draws decide whether it fails.
#[test]
fn speculative_decoding_without_a_drafter_that_fails_on_its_tokens_is_exact() {
    for token in 0..VOCAB as TokenId {
        for shape in [chain(1), chain(3), best(5), iid(&[2, 1])] {
            let name = format!("speculative, {shape:?}, fails on token {token}");
            assert_exact(&name, &|| failing_on(token), &|| speculative(&shape));
        }
    }
}

#[test]
fn pearl_without_a_failed_drafter_is_exact() {
    for options in ["eager", "paper", "paper,no-pre-verify", "paper,no-post-verify"] {
        for number in 0..VOCAB {
            let name = format!("pearl, {options}, fails after {number} jobs");
            let drafter = || failing_after(number, &model_drafter);
            assert_exact_in_any_order(&name, &drafter, &|| pearl(2, options));
            let token = number as TokenId;
            let name = format!("pearl, {options}, fails on token {token}");
            assert_exact_in_any_order(&name, &|| failing_on(token), &|| pearl(2, options));
        }
    }
}

#[test]
fn dsi_without_a_failed_drafter_is_exact() {
    let plain = || -> Box<dyn Decoder> { Box::new(dsi(2, 1)) };
    let waits = || -> Box<dyn Decoder> { Box::new(dsi(2, 1).reproducible()) };
    for number in 0..VOCAB {
        let name = format!("dsi, fails after {number} jobs");
        let drafter = || failing_after(number, &model_drafter);
        assert_exact_in_any_order(&name, &drafter, &plain);
        assert_exact_in_any_order(&name, &drafter, &waits);
        // A job less changes the order of the others, so the decoder must not depend on it.
        let token = number as TokenId;
        let name = format!("dsi, fails on token {token}");
        assert_exact_in_any_order(&name, &|| failing_on(token), &waits);
    }
}

/// The other drafter goes on.
#[test]
fn dsi_without_one_of_two_drafters_is_exact() {
    let sampling = sampling(1.0, 0, 1.0);
    let assert_exact = |name: &str, drafter: Make<'_>, waits: bool| {
        let decoder = || -> Box<dyn Decoder> {
            let dsi = dsi(2, 1).with_drafters(2);
            Box::new(if waits { dsi.reproducible() } else { dsi })
        };
        for order in [None, Some(1), Some(2)] {
            let experiment = Experiment::of(sampling.clone(), drafter, &decoder);
            let experiment = Experiment { others: &[&other_drafter], order, ..experiment };
            let deviation = experiment.deviation();
            assert!(deviation < 1e-6, "dsi, two drafters, {name}: off by {deviation}");
        }
    };
    for number in 0..VOCAB {
        let drafter = || failing_after(number, &model_drafter);
        assert_exact(&format!("fails after {number} jobs"), &drafter, false);
        assert_exact(&format!("fails after {number} jobs"), &drafter, true);
        let token = number as TokenId;
        assert_exact(&format!("fails on token {token}"), &|| failing_on(token), true);
    }
}

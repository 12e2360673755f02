//! PEARL, DSI and SSD are exact.

use crate::drafters::{
    Make, failing_after, failing_on, layer_parallel_drafter, lookup_drafter, model_drafter,
    other_drafter,
};
use crate::exactness::{assert_exact, assert_exact_in_any_order};
use crate::experiment::Experiment;
use crate::methods::{InTurn, dsi, pearl, ssd};
use crate::options::{more_options, sampling, with_runs};
use crate::tables::{DRAFT_MODEL, FeatureTable, VOCAB};
use forerun_core::testing::is_complete;
use forerun_core::{Sampling, TokenId, Verification};
use forerun_decode::{Decoder, DraftLength, Pearl, PearlDraftLength, PearlOptions};
use forerun_draft::{CalibrationPolicy, Drafter, EagleDrafter, PromptLookup};

type MakeDecoder = Box<dyn Fn() -> Box<dyn Decoder>>;

/// Chains of drawn tokens and of runs that a constraint determines, over several rounds, with
/// drafters of all kinds.
#[test]
fn chains_of_drawn_and_forced_tokens_are_exact() {
    let mut on_tokens: Vec<(String, MakeDecoder)> = Vec::new();
    for (replicas, lookahead) in [(1, 1), (1, 3), (2, 2), (3, 1)] {
        let name = format!("dsi, {replicas} replicas, {lookahead}");
        on_tokens.push((name, Box::new(move || Box::new(dsi(replicas, lookahead)))));
    }
    for length in [1, 3] {
        on_tokens.push((format!("ssd, {length}"), Box::new(move || ssd(length, 3))));
    }
    let mut on_features: Vec<(String, MakeDecoder)> = Vec::new();
    for (length, options) in [(1, "eager"), (2, "eager"), (3, "eager"), (2, "paper"), (3, "paper")]
    {
        let name = format!("pearl {options}, {length}");
        on_features.push((name, Box::new(move || pearl(length, options))));
    }
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(FeatureTable(DRAFT_MODEL))) };
    let drafters: [(&str, Make<'_>, bool); 3] = [
        ("model", &model_drafter, false),
        ("lookup", &lookup_drafter, false),
        ("eagle", &eagle, true),
    ];
    for (drafter_name, drafter, features) in drafters {
        let on_tokens = on_tokens.iter().filter(|_| !features);
        for (name, decoder) in on_features.iter().chain(on_tokens) {
            for (number, sampling) in with_runs().into_iter().enumerate() {
                for order in [None, Some(1), Some(2)] {
                    let label = format!("{name}, {drafter_name}, {order:?}, runs {number}");
                    let experiment = Experiment::of(sampling.clone(), drafter, &**decoder);
                    // The first round has no features.
                    let tokens = 3 + usize::from(features);
                    let experiment = Experiment { tokens, features, order, ..experiment };
                    let deviation = experiment.deviation();
                    assert!(deviation < 1e-6, "{label}: off by {deviation}");
                }
            }
        }
    }
}

/// Rounds with and without unverified tokens, which are all accepted, partly accepted, or rejected.
#[test]
fn pearl_is_exact() {
    let variants = ["eager", "paper", "paper,no-pre-verify", "paper,no-post-verify"];
    for (options, length) in variants.into_iter().flat_map(|o| [1, 2, 3].map(|length| (o, length)))
    {
        let name = format!("pearl, {options}, model, chain {length}");
        let decoder = || pearl(length, options);
        assert_exact(&name, &model_drafter, &decoder);
        assert_exact_in_any_order(&name, &model_drafter, &decoder);
    }
    assert_exact("pearl, prompt-lookup", &|| Box::new(PromptLookup), &|| pearl(2, "eager"));
}

/// Each round has another drafter. The first one may fail.
#[test]
fn pearl_with_drafters_in_turn_is_exact() {
    let others: [Make<'_>; 2] = [&other_drafter, &lookup_drafter];
    let assert_exact = |name: &str, options: &str, drafter: Make<'_>| {
        let options: PearlOptions = options.parse().unwrap();
        let decoder = || -> Box<dyn Decoder> {
            let of_drafter = |drafter| -> Box<dyn Decoder> {
                let fixed = PearlDraftLength::new(2, DraftLength::Fixed, true);
                Box::new(Pearl::new(options, fixed).with_drafter(drafter))
            };
            Box::new(InTurn((0..3).map(of_drafter).collect()))
        };
        for (verification, order) in [Verification::Rejection, Verification::Block]
            .into_iter()
            .flat_map(|verification| [None, Some(1)].map(|order| (verification, order)))
        {
            let sampling = Sampling { verification, ..sampling(1.0, 0, 1.0) };
            let experiment = Experiment::of(sampling, drafter, &decoder);
            let experiment = Experiment { others: &others, tokens: 3, order, ..experiment };
            let deviation = experiment.deviation();
            assert!(deviation < 1e-6, "{name}, {verification:?}, {order:?}: off by {deviation}");
        }
    };
    for options in ["eager", "paper"] {
        assert_exact(&format!("pearl in turn, {options}"), options, &model_drafter);
        for number in 0..VOCAB {
            let name = format!("pearl in turn, {options}, fails after {number} jobs");
            assert_exact(&name, options, &|| failing_after(number, &model_drafter));
            let name = format!("pearl in turn, {options}, fails on token {number}");
            assert_exact(&name, options, &|| failing_on(number as TokenId));
        }
    }
}

/// Replicas finish in any order, jobs have several sizes, and the drafter is early or late.
#[test]
fn dsi_is_exact() {
    for (replicas, lookahead) in [(1, 1), (1, 2), (2, 1), (3, 1), (3, 2)] {
        let name = format!("dsi, {replicas} replicas, lookahead {lookahead}");
        let decoder = || -> Box<dyn Decoder> { Box::new(dsi(replicas, lookahead)) };
        assert_exact(&name, &model_drafter, &decoder);
        assert_exact_in_any_order(&name, &model_drafter, &decoder);
        let decoder = || -> Box<dyn Decoder> { Box::new(dsi(replicas, lookahead).reproducible()) };
        assert_exact_in_any_order(&format!("{name}, reproducible"), &model_drafter, &decoder);
    }
    let decoder = || -> Box<dyn Decoder> { Box::new(dsi(2, 2)) };
    assert_exact("dsi, prompt-lookup", &|| Box::new(PromptLookup), &decoder);
}

/// Drafts that were prepared for the verdict, or for others, or not at all, in blocks and token by
/// token.
#[test]
fn ssd_is_exact() {
    for (length, verdicts) in [(1, 1), (1, 3), (2, 1), (2, 3)] {
        let name = format!("ssd, model, chain {length}, {verdicts} verdicts");
        assert_exact_in_any_order(&name, &model_drafter, &|| ssd(length, verdicts));
    }
    let easyspec = || layer_parallel_drafter(CalibrationPolicy::EveryRound);
    assert_exact_in_any_order("ssd, easyspec", &easyspec, &|| ssd(2, 3));
    let (decoder, sampling) = (|| ssd(2, 3), sampling(1.0, 0, 1.0));
    for order in [None, Some(1), Some(2), Some(3)] {
        let sampling = Sampling { verification: Verification::Block, ..sampling.clone() };
        let experiment = Experiment::of(sampling, &model_drafter, &decoder);
        let deviation = Experiment { tokens: 3, order, ..experiment }.deviation();
        assert!(deviation < 1e-6, "ssd in blocks, order {order:?}: off by {deviation}");
    }
    for number in 0..VOCAB {
        let after = || failing_after(number, &model_drafter);
        let name = format!("ssd, fails after {number} jobs");
        assert_exact_in_any_order(&name, &after, &|| ssd(2, 2));
        let token = number as TokenId;
        let name = format!("ssd, fails on token {token}");
        assert_exact_in_any_order(&name, &|| failing_on(token), &|| ssd(2, 2));
    }
}

/// Several drafters: different models, one model twice, and different kinds. The tokens of each are
/// tested against the residual that earlier rejections left. Half of the combinations have a
/// decoder that waits, and the others have one that does not; with `FORERUN_CASES`, all have both
/// (`just exact`).
#[test]
fn dsi_with_several_drafters_is_exact() {
    let kinds: [(&str, Make<'_>, &[Make<'_>]); 5] = [
        ("two models", &model_drafter, &[&other_drafter]),
        ("one model twice", &model_drafter, &[&model_drafter]),
        ("a model and a lookup", &model_drafter, &[&lookup_drafter]),
        ("a lookup and a model", &lookup_drafter, &[&model_drafter]),
        ("three", &lookup_drafter, &[&model_drafter, &other_drafter]),
    ];
    let options = [sampling(1.0, 0, 1.0), more_options().pop().unwrap()];
    let is_complete = is_complete();
    for (kind, (name, drafter, others)) in kinds.into_iter().enumerate() {
        let mut branches = 0;
        let jobs = [(1, 1), (2, 1), (2, 2), (3, 1)].into_iter().enumerate();
        for (number, (replicas, lookahead)) in jobs {
            let orders = [None, Some(1), Some(2), Some(3)];
            let orders = options.iter().cycle().zip(orders).enumerate();
            for (at, (sampling, order)) in orders {
                let turn = (kind + number + at / 2) % 2 == 0;
                for waits in [false, true].into_iter().filter(|&it| is_complete || it == turn) {
                    let decoder = || -> Box<dyn Decoder> {
                        let dsi = dsi(replicas, lookahead).with_drafters(1 + others.len());
                        Box::new(if waits { dsi.reproducible() } else { dsi })
                    };
                    let experiment = Experiment::of(sampling.clone(), drafter, &decoder);
                    let experiment = Experiment { others, order, ..experiment };
                    let (deviation, count) = experiment.deviation_and_branches();
                    let label = format!("{name}, {replicas} {lookahead} {order:?} {sampling:?}");
                    assert!(deviation < 1e-6, "{label}: off by {deviation}");
                    branches += count;
                }
            }
        }
        println!("dsi, {name}: exact in {branches} branches");
    }
}

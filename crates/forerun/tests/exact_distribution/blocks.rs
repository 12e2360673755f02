//! Block verification is exact.

use crate::drafters::{
    Make, failing_after, failing_on, layer_parallel_drafter, lookup_drafter, model_drafter,
};
use crate::exactness::assert_exact_with;
use crate::experiment::Experiment;
use crate::methods::{chain, iid, speculative, top};
use crate::options::{more_options, sampling, with_runs};
use crate::tables::{DRAFT_MODEL, FeatureTable, VOCAB};
use forerun_core::{Sampling, TokenId, Verification};
use forerun_draft::{
    CalibrationPolicy, Drafter, EagleDrafter, Masks, ModelDrafter, OuroborosDrafter,
    ParallelDrafter,
};
use forerun_lm::fake::TableModel;

/// Block verification, over several rounds: where a round ends depends on the tokens that it drops.
#[test]
fn speculative_decoding_in_blocks_is_exact() {
    let rule = Verification::Block;
    for shape in [chain(1), chain(2), chain(3)] {
        let name = format!("speculative in blocks, model, {shape:?}");
        assert_exact_with(rule, &name, &model_drafter, &|| speculative(&shape), (2, false));
    }
    let penalised = more_options().pop().unwrap();
    for (shape, tokens, sampling) in [
        (chain(2), 3, sampling(1.0, 0, 1.0)),
        (chain(2), 4, sampling(1.0, 0, 1.0)),
        (chain(2), 3, penalised.clone()),
        // Drafts after forced tokens, drawn with keys of the draft's start.
        (chain(2), 4, with_runs()[0].clone()),
        (chain(3), 4, with_runs()[1].clone()),
        (iid(&[3]), 2, sampling(1.0, 0, 1.0)),
        (iid(&[2, 1]), 2, sampling(1.0, 0, 1.0)),
        (iid(&[2, 1]), 2, penalised),
        (iid(&[1, 2]), 2, sampling(1.0, 0, 1.0)),
    ] {
        let name = format!("speculative in blocks, model, {shape:?}, {tokens} tokens");
        let sampling = Sampling { verification: rule, ..sampling };
        let decoder = || speculative(&shape);
        let experiment = Experiment::of(sampling, &model_drafter, &decoder);
        let experiment = Experiment { tokens, ..experiment };
        let (deviation, branches) = experiment.deviation_and_branches();
        println!("{name}: off by {deviation:.1e} in {branches} branches");
        assert!(deviation < 1e-6, "{name}: off by {deviation}");
    }
}

/// Block verification with drafters of every kind: on tokens, on features, approximate, failing.
#[test]
fn drafters_of_all_kinds_in_blocks_are_exact() {
    let easyspec = || layer_parallel_drafter(CalibrationPolicy::EveryRound);
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(FeatureTable(DRAFT_MODEL))) };
    let fewer = TableModel { vocab_size: VOCAB - 1, ..DRAFT_MODEL };
    let fewer =
        || -> Box<dyn Drafter> { Box::new(ModelDrafter::new(fewer).with_vocab_size(VOCAB)) };
    let masks = Masks::PerPosition(VOCAB as TokenId..VOCAB as TokenId + 2);
    let parallel =
        || -> Box<dyn Drafter> { Box::new(ParallelDrafter::new(DRAFT_MODEL, masks.clone())) };
    let ouroboros = || -> Box<dyn Drafter> { Box::new(OuroborosDrafter::new(DRAFT_MODEL)) };
    let (on_token, after_one) = (|| failing_on(1), || failing_after(1, &model_drafter));
    let drafters: [(&str, Make<'_>, bool); 8] = [
        ("easyspec", &easyspec, false),
        ("eagle", &eagle, true),
        ("fewer tokens", &fewer, false),
        ("parallel", &parallel, false),
        ("ouroboros", &ouroboros, true),
        ("prompt-lookup", &lookup_drafter, false),
        ("fails on a token", &on_token, false),
        ("fails after a job", &after_one, false),
    ];
    for (name, drafter, features) in drafters {
        for shape in [chain(2), top(2, 2)] {
            let name = format!("speculative in blocks, {name}, {shape:?}");
            let (decoder, tokens) = (|| speculative(&shape), if features { 3 } else { 2 });
            assert_exact_with(Verification::Block, &name, drafter, &decoder, (tokens, features));
        }
    }
}

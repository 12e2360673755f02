//! Drafters of all kinds are exact: approximate ones, those on features, those that learn.

use crate::drafters::{Make, layer_parallel_drafter};
use crate::exactness::{
    TARGETS, assert_exact, assert_exact_for, assert_exact_in_any_order, assert_exact_of,
};
use crate::experiment::Experiment;
use crate::methods::{best, chain, dsi, iid, most_probable, pearl, ranked, speculative, ssd, top};
use crate::options::sampling;
use crate::tables::{DRAFT_MODEL, FeatureTable, HeadsTable, LayerParallelTable, VOCAB};
use forerun::{DrafterKind, Method};
use forerun_core::testing::is_complete;
use forerun_core::{DraftShape, TokenId};
use forerun_decode::Decoder;
use forerun_draft::{
    CalibrationPolicy, Drafter, EagleDrafter, HydraDrafter, LayerParallelDrafter, LookaheadDrafter,
    Masks, MedusaDrafter, OuroborosDrafter, ParallelDrafter, ParallelEagleDrafter,
};
use forerun_lm::LayerGroups;
use forerun_lm::fake::TableModel;

/// Every drafter on tokens, with every parallel method that offers what it needs.
#[test]
fn parallel_methods_with_all_drafters_on_tokens_are_exact() {
    for kind in DrafterKind::all().filter(|kind| kind.is_on_tokens()) {
        let drafter = || kind.make_on_tokens().unwrap();
        let offers = |method: Method| kind.traits().needs.iter().all(|&need| method.offers(need));
        for options in ["eager", "paper"].into_iter().filter(|_| offers(Method::Pearl)) {
            let name = format!("pearl, {options}, {kind}");
            assert_exact(&name, &drafter, &|| pearl(2, options));
        }
        if offers(Method::Dsi) {
            let decoder = || -> Box<dyn Decoder> { Box::new(dsi(2, 2)) };
            assert_exact_in_any_order(&format!("dsi, {kind}"), &drafter, &decoder);
        }
        if offers(Method::Ssd) {
            assert_exact_in_any_order(&format!("ssd, {kind}"), &drafter, &|| ssd(2, 3));
        }
    }
}

/// EasySpec, with calibration and without it.
#[test]
fn speculative_decoding_with_layer_parallel_rows_is_exact() {
    for calibration in [CalibrationPolicy::EveryRound, CalibrationPolicy::Never] {
        for shape in [
            chain(2),
            chain(3),
            top(2, 1),
            top(2, 2),
            top(3, 3),
            ranked(&[2, 1]),
            best(3),
            iid(&[2, 1]),
        ] {
            let name = format!("speculative, easyspec {calibration}, {shape:?}");
            assert_exact(&name, &|| layer_parallel_drafter(calibration), &|| speculative(&shape));
        }
    }
}

/// EasySpec with methods that draft after unverified tokens.
#[test]
fn parallel_methods_with_layer_parallel_rows_are_exact() {
    for calibration in [CalibrationPolicy::EveryRound, CalibrationPolicy::Never] {
        let drafter = || layer_parallel_drafter(calibration);
        let name = format!("pearl, easyspec {calibration}");
        assert_exact(&name, &drafter, &|| pearl(2, "eager"));
        let name = format!("dsi, easyspec {calibration}");
        assert_exact(&name, &drafter, &|| Box::new(dsi(2, 2)));
    }
    // Rounds of several jobs.
    let in_rounds = || -> Box<dyn Drafter> {
        let groups = LayerGroups::of_sizes(&[2]);
        let drafter = LayerParallelDrafter::new(
            LayerParallelTable(DRAFT_MODEL),
            groups,
            CalibrationPolicy::EveryRound,
        );
        Box::new(drafter.with_round_length(2))
    };
    assert_exact("pearl, easyspec in rounds", &in_rounds, &|| pearl(2, "eager"));
    assert_exact("dsi, easyspec in rounds", &in_rounds, &|| Box::new(dsi(2, 1).reproducible()));
}

/// DFlash, JetSpec, PARD-2, Medusa, Hydra and EAGLE. The first round has no features, so the
/// distribution is of three tokens.
///
/// The table stands for the model of PARD-2: what a drafter does with one mask that is also a token
/// is checked, not which features its rows read. Tests of forward passes check those.
///
/// The shapes of a drafter take turns at the two targets. With `FORERUN_CASES`, each has both
/// (`just exact`).
#[test]
fn speculative_decoding_on_features_is_exact() {
    let table = || FeatureTable(DRAFT_MODEL);
    let medusa = || -> Box<dyn Drafter> { Box::new(MedusaDrafter::new(HeadsTable(table()), 3)) };
    let hydra = || -> Box<dyn Drafter> { Box::new(HydraDrafter::new(table(), 2)) };
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(table())) };
    let masks = Masks::PerPosition(VOCAB as TokenId..VOCAB as TokenId + 2);
    let parallel =
        || -> Box<dyn Drafter> { Box::new(ParallelEagleDrafter::new(table(), masks.clone())) };
    let block = Masks::Block { mask: 1, size: 4 };
    let dflash =
        || -> Box<dyn Drafter> { Box::new(ParallelEagleDrafter::new(table(), block.clone())) };
    let causal = Masks::CausalBlock { mask: 1, size: 4 };
    let jetspec =
        || -> Box<dyn Drafter> { Box::new(ParallelEagleDrafter::new(table(), causal.clone())) };
    let pard2 =
        || -> Box<dyn Drafter> { Box::new(ParallelEagleDrafter::new(table(), Masks::Repeated(1))) };
    let drafters: [(&str, Make<'_>); 7] = [
        ("dflash", &dflash),
        ("jetspec", &jetspec),
        ("pard-2", &pard2),
        ("medusa", &medusa),
        ("hydra", &hydra),
        ("eagle", &eagle),
        ("parallelspec on eagle", &parallel),
    ];
    let is_complete = is_complete();
    for (kind, (name, drafter)) in drafters.into_iter().enumerate() {
        let shapes =
            [chain(1), chain(2), top(2, 2), ranked(&[2, 1]), most_probable(3), iid(&[2, 1])];
        for (number, shape) in shapes.into_iter().enumerate() {
            let name = format!("speculative, {name}, {shape:?}");
            let turn = &[1 + (kind + number) as u64 % 2][..];
            let targets = if is_complete { &TARGETS } else { turn };
            assert_exact_for(targets, &name, drafter, &|| speculative(&shape), (3, true));
        }
    }
}

/// EAGLE drafts ahead on predicted features, and starts afresh with the target's after a rejection.
/// DFlash, JetSpec, PARD-2, ParallelSpec and P-EAGLE read the target's features as they come.
#[test]
fn pearl_on_features_is_exact() {
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(FeatureTable(DRAFT_MODEL))) };
    assert_pearl_on_features_is_exact("eagle", &eagle);
    for (name, masks) in [
        ("dflash", Masks::Block { mask: 1, size: 7 }),
        ("dflash with a short block", Masks::Block { mask: 1, size: 4 }),
        ("jetspec", Masks::CausalBlock { mask: 1, size: 5 }),
        ("pard-2", Masks::Repeated(1)),
        ("parallelspec on eagle", Masks::PerPosition(VOCAB as TokenId..VOCAB as TokenId + 2)),
        ("p-eagle", Masks::Repeated(VOCAB as TokenId)),
    ] {
        let drafter = || -> Box<dyn Drafter> {
            Box::new(ParallelEagleDrafter::new(FeatureTable(DRAFT_MODEL), masks.clone()))
        };
        assert_pearl_on_features_is_exact(name, &drafter);
    }
}

pub(crate) fn assert_pearl_on_features_is_exact(drafter_name: &str, drafter: Make<'_>) {
    for (length, options) in [(1, "eager"), (2, "eager"), (2, "paper"), (3, "paper")] {
        let name = format!("pearl, {drafter_name}, {options}, chain {length}");
        assert_exact_of(&name, drafter, &|| pearl(length, options), (3, true));
        for order in [Some(1), Some(2), Some(3)] {
            let decoder = || pearl(length, options);
            let experiment = Experiment::of(sampling(1.0, 0, 1.0), drafter, &decoder);
            let experiment = Experiment { tokens: 3, features: true, order, ..experiment };
            let deviation = experiment.deviation();
            assert!(deviation < 1e-6, "{name}, order {order:?}: off by {deviation}");
        }
    }
}

/// Lookahead decoding, whose drafts depend on the target's feedback on earlier drafts.
#[test]
fn speculative_decoding_with_lookahead_is_exact() {
    let drafter = || -> Box<dyn Drafter> { Box::new(LookaheadDrafter::new()) };
    for shape in [chain(2), top(7, 1), top(7, 2), top(7, 10)] {
        let name = format!("speculative, lookahead, {shape:?}");
        assert_exact_of(&name, &drafter, &|| speculative(&shape), (4, true));
    }
}

/// Ouroboros, whose phrases depend on the text, on drafts, and on the target's feedback on them.
#[test]
fn speculative_decoding_with_phrases_is_exact() {
    let drafter = || -> Box<dyn Drafter> { Box::new(OuroborosDrafter::new(DRAFT_MODEL)) };
    let phrases =
        |length, phrase| DraftShape::Phrases { length, width: 2, phrase, budget: Some(6) };
    let shapes = [chain(1), chain(3), top(2, 2), top(3, 5), best(3), iid(&[2, 1])];
    for shape in shapes.into_iter().chain([phrases(1, 2), phrases(2, 3)]) {
        let name = format!("speculative, ouroboros, {shape:?}");
        assert_exact_of(&name, &drafter, &|| speculative(&shape), (4, true));
    }
    // A target with a token that the model lacks.
    let fewer = TableModel { vocab_size: VOCAB - 1, ..DRAFT_MODEL };
    let drafter =
        || -> Box<dyn Drafter> { Box::new(OuroborosDrafter::new(fewer).with_vocab_size(VOCAB)) };
    assert_exact_of("ouroboros, fewer tokens", &drafter, &|| speculative(&top(2, 5)), (4, true));
}

/// ParallelSpec on tokens, which has one row for each depth, independent of the tokens drawn
/// before.
#[test]
fn parallel_drafting_is_exact() {
    let own = Masks::PerPosition(VOCAB as TokenId..VOCAB as TokenId + 2);
    for masks in [own, Masks::Repeated(1)] {
        let drafter =
            || -> Box<dyn Drafter> { Box::new(ParallelDrafter::new(DRAFT_MODEL, masks.clone())) };
        let trees = [top(2, 2), top(3, 3), best(3), most_probable(4), iid(&[2, 1])];
        for shape in [chain(2), chain(3)].into_iter().chain(trees) {
            let name = format!("speculative, parallel {masks:?}, {shape:?}");
            assert_exact(&name, &drafter, &|| speculative(&shape));
        }
        let name = format!("parallel {masks:?}");
        assert_exact(&format!("pearl, {name}"), &drafter, &|| pearl(2, "eager"));
        assert_exact_in_any_order(&format!("pearl, {name}"), &drafter, &|| pearl(2, "paper"));
        let decoder = || -> Box<dyn Decoder> { Box::new(dsi(2, 2)) };
        assert_exact(&format!("dsi, {name}"), &drafter, &decoder);
    }
}

//! Rounds that verify a guess from earlier text in place of the drafter's draft are exact.

use crate::drafters::{Make, failing_after, layer_parallel_drafter, model_drafter};
use crate::exactness::{
    assert_exact, assert_exact_in_any_order, assert_exact_of, assert_exact_with,
};
use crate::experiment::PROMPT;
use crate::methods::{Counting, best, chain, iid, ranked, top};
use crate::options::sampling;
use crate::speculative::growing_draft_length;
use crate::tables::{DRAFT_MODEL, FeatureTable, HeadsTable, VOCAB, target};
use forerun_core::{DraftShape, Guesser, KeyedRandomness, SequenceId, TokenId, Verification};
use forerun_decode::{
    Decoder, DraftLength, Limits, Sequence, Speculative, SpeculativeDraftLength, Ssd, Statistics,
    generate,
};
use forerun_draft::{
    CalibrationPolicy, Drafter, EagleDrafter, Masks, MedusaDrafter, ParallelEagleDrafter,
    SuffixDrafter,
};
use forerun_runtime::{Engine, InlineCluster};
use std::ops::ControlFlow;
use std::sync::Arc;

type MakeGuesser = fn() -> Box<dyn Guesser>;

/// The lookup, and one that is always wrong or right about the next token.
const GUESSERS: [(&str, MakeGuesser); 2] =
    [("suffix", || Box::new(SuffixDrafter::new())), ("counting", || Box::new(Counting))];

fn suffix() -> Box<dyn Guesser> {
    Box::new(SuffixDrafter::new())
}

fn speculative(shape: &DraftShape, guesser: Box<dyn Guesser>) -> Box<dyn Decoder> {
    let draft_length = SpeculativeDraftLength::new(shape.clone(), DraftLength::Fixed);
    Box::new(Speculative::new(draft_length).with_lookup(guesser))
}

fn ssd(length: usize) -> Box<dyn Decoder> {
    let draft_length = SpeculativeDraftLength::new(chain(length), DraftLength::Fixed);
    Box::new(Ssd::new(draft_length).with_verdicts(3).with_lookup(suffix()))
}

#[test]
fn lookups_in_place_of_drafts_are_exact() {
    for (lookup, guesser) in GUESSERS {
        for shape in [chain(1), chain(2), top(2, 2), ranked(&[2, 1]), best(3), iid(&[2, 1])] {
            let name = format!("speculative, model + {lookup}, {shape:?}");
            assert_exact(&name, &model_drafter, &|| speculative(&shape, guesser()));
        }
    }
    // The choice follows what was accepted over several rounds.
    for shape in [chain(1), iid(&[2])] {
        let name = format!("speculative, model + suffix, {shape:?}");
        let decoder = || speculative(&shape, suffix());
        assert_exact_in_any_order(&name, &model_drafter, &decoder);
    }
    let decoder = || -> Box<dyn Decoder> {
        Box::new(Speculative::new(growing_draft_length()).with_lookup(suffix()))
    };
    assert_exact("speculative, model + suffix, assisted", &model_drafter, &decoder);
}

#[test]
fn lookups_next_to_prepared_drafts_are_exact() {
    for length in [1, 2] {
        let name = format!("ssd, model + suffix, chain {length}");
        assert_exact(&name, &model_drafter, &|| ssd(length));
        assert_exact_in_any_order(&name, &model_drafter, &|| ssd(length));
    }
}

/// Block verification decides on whole drafts, and a lookup's tokens are tested one by one.
#[test]
fn lookups_between_blocks_are_exact() {
    let rule = Verification::Block;
    for (shape, tokens) in [(chain(1), 3), (chain(2), 2)] {
        let name = format!("speculative in blocks, model + suffix, {shape:?}");
        let decoder = || speculative(&shape, suffix());
        assert_exact_with(rule, &name, &model_drafter, &decoder, (tokens, false));
    }
}

/// Drafters whose state depends on the rounds before.
#[test]
fn lookups_with_drafters_of_all_kinds_are_exact() {
    let table = || FeatureTable(DRAFT_MODEL);
    let medusa = || -> Box<dyn Drafter> { Box::new(MedusaDrafter::new(HeadsTable(table()), 3)) };
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(table())) };
    let masks = Masks::PerPosition(VOCAB as TokenId..VOCAB as TokenId + 2);
    let parallel =
        || -> Box<dyn Drafter> { Box::new(ParallelEagleDrafter::new(table(), masks.clone())) };
    let easyspec = || layer_parallel_drafter(CalibrationPolicy::EveryRound);
    let after_one = || failing_after(1, &model_drafter);
    let drafters: [(&str, Make<'_>); 5] = [
        ("medusa", &medusa),
        ("eagle", &eagle),
        ("parallelspec on eagle", &parallel),
        ("easyspec", &easyspec),
        ("failing", &after_one),
    ];
    for (name, drafter) in drafters {
        for shape in [chain(2), top(2, 2)] {
            let name = format!("speculative, {name} + suffix, {shape:?}");
            let decoder = || speculative(&shape, suffix());
            assert_exact_of(&name, drafter, &decoder, (3, true));
        }
    }
}

/// Decodes 40 tokens with a seed.
fn statistics_of(decoder: &mut dyn Decoder) -> (Vec<TokenId>, Statistics) {
    let engine = Engine::new().with_target(0, target(1)).with_drafter(0, model_drafter());
    let randomness = Arc::new(KeyedRandomness { seed: 3, sample: 0 });
    let mut cluster = InlineCluster::new(engine, randomness);
    let limits = Limits { max_tokens: 40, context_length: 64, eos: Vec::new() };
    let (id, mut sampling) = (SequenceId(0), sampling(0.7, 0, 1.0));
    sampling.randomness = KeyedRandomness { seed: 3, sample: 0 };
    let mut sequence = Sequence::new(id, PROMPT.to_vec(), sampling, limits);
    generate(decoder, &mut sequence, &mut cluster, |_| ControlFlow::Continue(())).unwrap();
    decoder.stop(&mut cluster);
    (sequence.generated().to_vec(), sequence.statistics().clone())
}

/// Both kinds of rounds occur, so both are enumerated. SSD makes the same choices.
#[test]
fn both_the_lookup_and_the_drafter_draft() {
    for length in [1, 2] {
        let (text, found) = statistics_of(&mut *speculative(&chain(length), suffix()));
        assert!((1..found.drafts).contains(&found.lookups), "{found:?}");
        assert_eq!(statistics_of(&mut *ssd(length)).0, text, "the text of a seed");
    }
}

//! Plain and speculative decoding with a drafter on tokens are exact.

use crate::drafters::{Make, lookup_drafter, model_drafter, other_drafter};
use crate::exactness::{
    assert_exact, assert_exact_in_any_order, assert_exact_of, assert_exact_with,
};
use crate::experiment::{Experiment, PROMPT};
use crate::methods::{InTurn, best, chain, iid, ranked, speculative, top};
use crate::options::{more_options, sampling};
use crate::tables::{DRAFT_MODEL, VOCAB, target};
use forerun::DrafterKind;
use forerun::method::Need;
use forerun_core::{
    Cluster, DraftShape, KeyedRandomness, Sampling, SequenceId, StopRule, TokenId, Verification,
};
use forerun_decode::{
    Autoregressive, DecodeError, Decoder, DraftLength, Limits, Policy, Round, Sequence,
    Speculative, SpeculativeDraftLength, Ssd, generate,
};
use forerun_draft::{Drafter, ModelDrafter};
use forerun_lm::fake::TableModel;
use forerun_runtime::{Engine, InlineCluster};
use std::ops::ControlFlow;
use std::sync::Arc;

#[test]
fn autoregressive_decoding_is_exact() {
    assert_exact("autoregressive", &model_drafter, &|| Box::new(Autoregressive));
}

#[test]
fn speculative_decoding_with_chains_is_exact() {
    for length in 1..=3 {
        let name = format!("speculative, model, chain {length}");
        assert_exact(&name, &model_drafter, &|| speculative(&chain(length)));
    }
}

/// Chains stop after tokens in which the drafter is unsure, sure, or either.
#[test]
fn chains_that_stop_by_confidence_are_exact() {
    let (unsure, sure) =
        ([1_000, 1_000, 900, 500, 300, 0, 0, 0], [0, 0, 0, 300, 500, 900, 1_000, 1_000]);
    for (acceptance, least) in [(unsure, 400), (sure, 400), (sure, 800)] {
        let stop = StopRule { acceptance, least };
        let shape = DraftShape::ConfidentChain { length: 3, stop };
        let name = format!("speculative, model, {shape:?}");
        let decoder = || speculative(&shape);
        assert_exact(&name, &model_drafter, &decoder);
        // With three tokens, the draft of a second round depends on the fate of the first.
        assert_exact_with(Verification::Block, &name, &model_drafter, &decoder, (3, false));
    }
}

#[test]
fn speculative_decoding_with_top_trees_is_exact() {
    for shape in [top(2, 1), top(3, 1), top(2, 2), top(3, 3), best(3), best(5)] {
        let name = format!("speculative, model, {shape:?}");
        assert_exact(&name, &model_drafter, &|| speculative(&shape));
    }
}

#[test]
fn speculative_decoding_with_ranked_trees_is_exact() {
    for shape in [ranked(&[2]), ranked(&[2, 1, 1]), ranked(&[3, 0, 2, 0, 1]), ranked(&[9, 9])] {
        let name = format!("speculative, model, {shape:?}");
        assert_exact(&name, &model_drafter, &|| speculative(&shape));
    }
}

/// Trees whose shape follows the verdicts, as those of the planner do.
pub(crate) struct FollowingVerdicts;

impl Decoder for FollowingVerdicts {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let accepted: u64 = sequence.statistics().accepted.iter().sum();
        let last = sequence.tokens().last().map_or(0, |&token| token as usize);
        let shape = match accepted as usize + last {
            sum if sum % 2 == 0 => ranked(&[1, 2]),
            _ => ranked(&[2, 0, 1]),
        };
        speculative(&shape).step(sequence, cluster)
    }
}

#[test]
fn trees_that_follow_the_verdicts_are_exact() {
    assert_exact("following verdicts", &model_drafter, &|| Box::new(FollowingVerdicts));
    assert_exact_of(
        "following verdicts, more tokens",
        &model_drafter,
        &|| Box::new(FollowingVerdicts),
        (3, false),
    );
}

#[test]
fn speculative_decoding_with_sampled_trees_is_exact() {
    for shape in [iid(&[2]), iid(&[3]), iid(&[2, 1]), iid(&[1, 2])] {
        let name = format!("speculative, model, {shape:?}");
        assert_exact(&name, &model_drafter, &|| speculative(&shape));
    }
}

/// A token that one drafter has drafted, and that was not tested, may be drafted by another one in
/// the next round.
#[test]
fn drafters_in_turn_are_exact() {
    let others: [Make<'_>; 2] = [&other_drafter, &lookup_drafter];
    for (name, shape) in [("chains", chain(2)), ("trees", iid(&[2, 1])), ("ranks", top(2, 2))] {
        let mut branches = 0;
        for verification in [Verification::Rejection, Verification::Block] {
            let decoder = || -> Box<dyn Decoder> {
                let of_drafter = |drafter| -> Box<dyn Decoder> {
                    let fixed = SpeculativeDraftLength::new(shape.clone(), DraftLength::Fixed);
                    Box::new(Speculative::new(fixed).with_drafter(drafter))
                };
                Box::new(InTurn((0..3).map(of_drafter).collect()))
            };
            for sampling in [sampling(1.0, 0, 1.0), more_options().pop().unwrap()] {
                let sampling = Sampling { verification, ..sampling };
                let experiment = Experiment::of(sampling.clone(), &model_drafter, &decoder);
                let experiment = Experiment { others: &others, tokens: 3, ..experiment };
                let (deviation, count) = experiment.deviation_and_branches();
                assert!(deviation < 1e-6, "{name}, {sampling:?}: off by {deviation}");
                branches += count;
            }
        }
        println!("drafters in turn, {name}: exact in {branches} branches");
    }
}

/// Drafters that lack a token of the target, or have additional ones.
#[test]
fn drafters_with_another_vocabulary_size_are_exact() {
    for vocab_size in [VOCAB - 1, VOCAB + 2] {
        let model = TableModel { vocab_size, ..DRAFT_MODEL };
        let drafter =
            || -> Box<dyn Drafter> { Box::new(ModelDrafter::new(model).with_vocab_size(VOCAB)) };
        for shape in [chain(2), top(3, 2), ranked(&[3, 1]), best(3), iid(&[3]), iid(&[2, 1])] {
            let name = format!("speculative, {vocab_size} tokens, {shape:?}");
            assert_exact(&name, &drafter, &|| speculative(&shape));
        }
    }
}

#[test]
fn speculative_decoding_with_all_drafters_on_tokens_is_exact() {
    for kind in DrafterKind::all().filter(|kind| kind.is_on_tokens()) {
        let drafter = || kind.make_on_tokens().unwrap();
        let feedback = kind.needs(Need::Feedback);
        for shape in [chain(1), chain(3), top(2, 2), best(3), iid(&[2, 1])] {
            let name = format!("speculative, {kind}, {shape:?}");
            assert_exact_of(&name, &drafter, &|| speculative(&shape), (2, feedback));
        }
    }
}

/// Returns a draft-length policy that has measured before, so that it drafts from the first round
/// on.
fn after_an_answer(
    policy: SpeculativeDraftLength,
    verification: Verification,
) -> SpeculativeDraftLength {
    let mut learner = Speculative::new(policy);
    // It learns with a drafter that is always right, so that drafting pays.
    let perfect = ModelDrafter::new(target(1));
    let engine = Engine::new().with_target(0, target(1)).with_drafter(0, perfect);
    let randomness = Arc::new(KeyedRandomness { seed: 1, sample: 0 });
    let mut cluster = InlineCluster::new(engine, randomness);
    let limits = Limits { max_tokens: 50, context_length: 64, eos: Vec::new() };
    let (id, sampling) = (SequenceId(0), sampling(1.0, 0, 1.0));
    let sampling = Sampling { verification, ..sampling };
    let mut sequence = Sequence::new(id, PROMPT.to_vec(), sampling, limits);
    generate(&mut learner, &mut sequence, &mut cluster, |_| ControlFlow::Continue(())).unwrap();
    let learned = learner.draft_length().for_new_answer(PROMPT.len());
    assert_ne!(learned.next_shape(), chain(0), "it drafts at once");
    learned
}

#[test]
fn an_adapting_draft_length_is_exact() {
    let policy = SpeculativeDraftLength::new(chain(2), DraftLength::Auto);
    let learned = after_an_answer(policy, Verification::Rejection);
    let decoder = || -> Box<dyn Decoder> { Box::new(Speculative::new(learned.clone())) };
    assert_exact("speculative, model, auto", &model_drafter, &decoder);
}

/// With rejection sampling, chains do not stop by confidence: the next drafts are drawn with the
/// same numbers, and would depend on where they stopped.
#[test]
fn an_adapting_draft_length_that_stops_by_confidence_is_exact() {
    let policy = SpeculativeDraftLength::new(chain(2), DraftLength::Auto).stopping_by_confidence();
    let mut learned = after_an_answer(policy, Verification::Block);
    assert!(matches!(learned.next_shape(), DraftShape::ConfidentChain { .. }));
    let decoder = || -> Box<dyn Decoder> { Box::new(Speculative::new(learned.clone())) };
    let name = "speculative, model, auto, by confidence";
    assert_exact(name, &model_drafter, &decoder);
    assert_exact_with(Verification::Block, name, &model_drafter, &decoder, (2, false));
    learned.set_may_stop(false);
    assert!(matches!(learned.next_shape(), DraftShape::Chain { .. }));
}

/// Returns the policy of assisted generation after drafts were rejected, so that its length changes
/// from 1 to 3 when a token is accepted.
pub(crate) fn growing_draft_length() -> SpeculativeDraftLength {
    let mut policy = SpeculativeDraftLength::new(chain(3), DraftLength::Assisted);
    let round = |accepted, rejected| Round { drafted: 1, accepted, rejected, ..Round::default() };
    (0..8).for_each(|_| policy.observe(&round(0, true)));
    assert_eq!(policy.next_shape(), chain(1));
    let mut after = policy.clone();
    after.observe(&round(1, false));
    assert_eq!(after.next_shape(), chain(3));
    policy
}

/// SSD also uses drafts that were prepared with another length.
#[test]
fn a_draft_length_that_follows_acceptance_is_exact() {
    let decoder = || -> Box<dyn Decoder> { Box::new(Speculative::new(growing_draft_length())) };
    assert_exact("speculative, model, assisted", &model_drafter, &decoder);
    assert_exact_in_any_order("speculative, model, assisted", &model_drafter, &decoder);
    let decoder =
        || -> Box<dyn Decoder> { Box::new(Ssd::new(growing_draft_length()).with_verdicts(3)) };
    assert_exact("ssd, model, assisted", &model_drafter, &decoder);
    assert_exact_in_any_order("ssd, model, assisted", &model_drafter, &decoder);
}

/// The target as its own drafter: every token is accepted.
#[test]
fn a_perfect_drafter_is_exact_and_never_rejected() {
    let drafter = || -> Box<dyn Drafter> { Box::new(ModelDrafter::new(target(1))) };
    for shape in [chain(3), iid(&[2, 1]), top(2, 2)] {
        let decoder = || speculative(&shape);
        let (target, sampling) = (target(1), sampling(1.0, 0, 1.0));
        let (drafter, decoder) = (&drafter, &decoder);
        let experiment = Experiment { target, ..Experiment::of(sampling, drafter, decoder) };
        assert!(experiment.deviation() < 1e-6, "{shape:?}");
        // The drafter applies all sampling options as the target does.
        for sampling in more_options() {
            let sampling = Sampling { verification: Verification::Coupled, ..sampling };
            let engine = Engine::new().with_target(0, target).with_drafter(0, drafter());
            let randomness = Arc::new(sampling.randomness);
            let mut cluster = InlineCluster::new(engine, randomness);
            let limits = Limits { max_tokens: 40, context_length: 64, eos: Vec::new() };
            let mut sequence =
                Sequence::new(SequenceId(0), PROMPT.to_vec(), sampling.clone(), limits);
            let go_on = |_: &[TokenId]| ControlFlow::Continue(());
            generate(&mut *decoder(), &mut sequence, &mut cluster, go_on).unwrap();
            let statistics = sequence.statistics();
            assert_eq!(statistics.accepted, statistics.tested, "{shape:?}, {sampling:?}");
        }
    }
}

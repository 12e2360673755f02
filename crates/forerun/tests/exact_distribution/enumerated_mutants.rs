//! The enumeration finds mutants: their distributions are visibly wrong.

use crate::drafters::{layer_parallel_drafter, model_drafter, other_drafter};
use crate::enumerator::Enumerator;
use crate::experiment::Experiment;
use crate::methods::{Counting, chain, iid, top};
use crate::mutants::{ChangedKeys, Models, Mutant, Setup, SharedModels, mutants, without_mistake};
use crate::options::sampling;
use crate::tables::{DRAFT_MODEL, LayerParallelTable, target};
use forerun_certify::SamplingTest;
use forerun_core::{Guesser, Node, Randomness, Sampling, TokenId, TokenTree};
use forerun_draft::{CalibrationPolicy, Drafter};
use forerun_lm::fake::{TableModel, row_prefix};
use std::rc::Rc;
use std::sync::Arc;

/// The seeds of the targets that mutants are enumerated with.
const TARGETS: std::ops::RangeInclusive<u64> = 1..=5;

/// Tables, with this target.
struct Tables(TableModel);

impl Models for Tables {
    fn target_row(&self, prefix: &[TokenId]) -> Vec<f32> {
        self.0.row(prefix)
    }

    fn draft_row(&self, prefix: &[TokenId]) -> Vec<f32> {
        DRAFT_MODEL.row(prefix)
    }

    fn layer_parallel_row(
        &self,
        tokens: &[TokenId],
        tree: &TokenTree,
        at: Option<Node>,
    ) -> Vec<f32> {
        let table = LayerParallelTable(DRAFT_MODEL).table(tokens, tokens.len(), at);
        table.row(&row_prefix(tokens, tree, at))
    }

    fn drafter(&self) -> Box<dyn Drafter> {
        model_drafter()
    }

    fn other_drafter(&self) -> Box<dyn Drafter> {
        other_drafter()
    }

    fn layer_parallel_drafter(&self) -> Box<dyn Drafter> {
        layer_parallel_drafter(CalibrationPolicy::EveryRound)
    }

    fn guesser(&self) -> Box<dyn Guesser> {
        Box::new(Counting)
    }
}

fn tables(seed: u64) -> SharedModels {
    Rc::new(Tables(target(seed)))
}

/// Calls `use_it` with the experiment of a setup on a target.
fn with_experiment<T>(
    setup: &Setup,
    sampling: &Sampling,
    seed: u64,
    use_it: impl FnOnce(&Experiment<'_>) -> T,
) -> T {
    let [first, others @ ..] = &setup.drafters[..] else { panic!("a drafter") };
    let others: Vec<&dyn Fn() -> Box<dyn Drafter>> = others.iter().map(|make| &**make).collect();
    let keys = |enumerator: Enumerator| -> Arc<dyn Randomness + Send + Sync> {
        Arc::new(ChangedKeys { randomness: enumerator, change: setup.keys })
    };
    let experiment = Experiment::of(sampling.clone(), &**first, &*setup.decoder);
    use_it(&Experiment { target: target(seed), others: &others, keys: &keys, ..experiment })
}

/// Returns the largest deviation of a setup over several targets.
fn worst_deviation(sampling: &Sampling, setup: impl Fn(&SharedModels) -> Setup) -> f64 {
    let of_setup = |experiment: &Experiment<'_>| experiment.deviation();
    let deviation = |seed| with_experiment(&setup(&tables(seed)), sampling, seed, of_setup);
    TARGETS.map(deviation).fold(0.0, f64::max)
}

/// Returns the probability of samples of several targets by the test of `forerun certify`.
fn certified(sampling: &Sampling, setup: impl Fn(&SharedModels) -> Setup) -> f64 {
    let mut test = SamplingTest::default();
    for seed in TARGETS {
        with_experiment(&setup(&tables(seed)), sampling, seed, |it| it.add_samples(&mut test));
    }
    test.result().probability()
}

/// Asserts that the joint distributions of these mutants are visibly wrong for some target, that
/// `forerun certify` finds them, and that without the mistake the distributions are exact.
fn assert_caught(topic: &str) {
    let all = mutants(&tables(1));
    let chosen = (0..all.len()).filter(|&index| all[index].name.starts_with(topic));
    let chosen: Vec<usize> = chosen.collect();
    assert!(!chosen.is_empty(), "there are mutants of \"{topic}\"");
    for index in chosen {
        let Mutant { name, rule, sampling, least_deviation, .. } = &all[index];
        let sampling = &Sampling { verification: *rule, ..sampling.clone() };
        let worst = worst_deviation(sampling, |models| mutants(models).swap_remove(index).original);
        assert!(worst < 1e-6, "without the mistake of \"{name}\" it is off by {worst}");
        let mutated = |models: &SharedModels| mutants(models).swap_remove(index).mutated;
        let worst = worst_deviation(sampling, mutated);
        let probability = certified(sampling, mutated);
        println!("mutant \"{name}\" is off by {worst:.4}; certify: p = {probability:.1e}");
        assert!(worst > *least_deviation, "\"{name}\" was not caught: off by {worst}");
        // So many samples do not show smaller deviations.
        if worst > 0.01 {
            assert!(probability < 1e-6, "`certify` did not find \"{name}\": p = {probability}");
        }
    }
}

/// Every mutant is in a test of this file.
#[test]
fn all_mutants_are_enumerated() {
    let source = include_str!("enumerated_mutants.rs");
    let topics: Vec<&str> = source
        .split("assert_caught(\"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"'))
        .map(|(topic, _)| topic)
        .collect();
    let all = mutants(&tables(1));
    for (index, Mutant { name, .. }) in all.iter().enumerate() {
        assert!(topics.iter().any(|topic| name.starts_with(topic)), "\"{name}\" is tested");
        assert!(all[..index].iter().all(|other| other.name != *name), "\"{name}\" occurs once");
    }
}

#[test]
fn mutant_one_acceptance_uniform_for_two_positions() {
    assert_caught("uniform reused between positions");
}

/// As in PEARL's published code: the position that is pre-verified shares its uniform with the next
/// one.
#[test]
fn mutant_one_acceptance_uniform_in_pearls_rounds() {
    assert_caught("uniform reused between PEARL's positions");
}

#[test]
fn mutant_one_uniform_for_all_siblings() {
    assert_caught("Accept uniform reused between siblings");
    assert_caught("Draft uniform reused between siblings");
}

/// The tokens of two drafters are tested with one uniform.
#[test]
fn mutant_one_uniform_for_several_drafters() {
    assert_caught("accept uniform shared by drafters");
}

/// As in EasySpec's published code: the most probable candidates are accepted with min(1,
/// target/draft).
#[test]
fn mutant_ratio_test_on_most_probable_candidates() {
    assert_caught("ratio test on");
}

/// The published rule for EasySpec's drafts. They are exact as they are verified here.
#[test]
fn mutant_ratio_test_on_layer_parallel_candidates() {
    assert_caught("layer-parallel ratio test on");
}

#[test]
fn mutant_a_repeated_sibling_is_tested_once() {
    assert_caught("repeated sibling tested once");
}

#[test]
fn mutant_a_token_is_dropped_for_its_own_low_confidence() {
    assert_caught("low confidence dropped");
}

#[test]
fn mutant_the_residual_is_not_subtracted() {
    assert_caught("residual not subtracted");
}

/// A lookup's token that is tested as the drafter's, or chosen by what the drafter has drawn.
#[test]
fn mutants_of_lookups() {
    assert_caught("lookup, ");
}

#[test]
fn mutants_of_block_verification() {
    assert_caught("block verification, ");
}

/// The next round draws or tests a position with the number that has decided where this round ends.
#[test]
fn mutants_of_the_keys_of_block_verification() {
    assert_caught("keys of draws by position");
    assert_caught("keys of tests by position");
}

#[test]
fn mutant_all_rows_of_a_tree_have_the_penalties_and_the_constraint_of_its_root() {
    assert_caught("the root's ");
}

#[test]
fn mutant_the_prompt_counts_as_part_of_the_answer() {
    assert_caught("prompt counted");
}

/// The harness of the mutants is exact without a mutation, so the mutations are what is caught.
#[test]
fn the_harness_of_mutants_is_exact_without_mutations() {
    let sampling = sampling(1.0, 0, 1.0);
    for shape in [chain(1), chain(2), top(2, 2), iid(&[2])] {
        let setup = |models: &SharedModels| without_mistake(models, shape.clone());
        assert!(worst_deviation(&sampling, setup) < 1e-6, "{shape:?}");
        let probability = certified(&sampling, setup);
        assert!(probability > 1e-3, "{shape:?}: p = {probability}");
    }
}

//! The experiment: a decoder's exact joint distribution, and that of the target.

use crate::drafters::Make;
use crate::enumerator::{Enumerator, unchanged};
use crate::tables::{TableWithFeatures, VOCAB, target};
use forerun_certify::SamplingTest;
use forerun_core::{
    Key, KeyedRandomness, Purpose, Randomness, Sampling, SequenceId, TokenId, reference,
};
use forerun_decode::{Decoder, Limits, Sequence, generate};
use forerun_draft::Drafter;
use forerun_lm::ModelError;
use forerun_lm::fake::TableModel;
use forerun_runtime::{Engine, InlineCluster};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The number of target replicas.
pub(crate) const REPLICAS: usize = 3;

/// The prompt lacks one token, so that penalties make a difference between paths.
pub(crate) const PROMPT: [TokenId; 6] = [0, 1, 0, 1, 0, 1];

pub(crate) type Joint = BTreeMap<Vec<TokenId>, f64>;

/// The setup of an enumeration.
pub(crate) struct Experiment<'a> {
    pub(crate) target: TableModel,
    pub(crate) sampling: Sampling,
    pub(crate) drafter: &'a dyn Fn() -> Box<dyn Drafter>,
    /// The additional drafters, for DSI.
    pub(crate) others: &'a [&'a dyn Fn() -> Box<dyn Drafter>],
    pub(crate) decoder: &'a dyn Fn() -> Box<dyn Decoder>,
    /// The number of tokens in the joint distribution.
    pub(crate) tokens: usize,
    /// The seed of the order of jobs ([`InlineCluster::with_random_order`]). `None` is the order of
    /// submission.
    pub(crate) order: Option<u64>,
    /// Whether the target reports its features and its feedback on drafts.
    pub(crate) features: bool,
    /// Wraps the enumerator, for mutants of the keys.
    pub(crate) keys: &'a dyn Fn(Enumerator) -> Arc<dyn Randomness + Send + Sync>,
}

impl<'a> Experiment<'a> {
    /// Creates an experiment on two tokens of the first target, with jobs in the order of
    /// submission.
    pub(crate) fn of(
        sampling: Sampling,
        drafter: &'a dyn Fn() -> Box<dyn Drafter>,
        decoder: &'a dyn Fn() -> Box<dyn Decoder>,
    ) -> Self {
        let (target, keys) = (target(1), &unchanged);
        let (order, features) = (None, false);
        Self { target, sampling, drafter, others: &[], decoder, tokens: 2, order, features, keys }
    }

    /// Returns the joint distribution of the first tokens, and the number of branches.
    pub(crate) fn enumerate(&self) -> (Joint, usize) {
        let enumerator = Enumerator::default();
        let (mut joint, mut branches) = (Joint::new(), 0);
        loop {
            let tokens = self.run((self.keys)(enumerator.clone()));
            branches += 1;
            let mut branch = enumerator.0.lock().unwrap();
            *joint.entry(tokens).or_default() += branch.weight();
            if !branch.advance() {
                return (joint, branches);
            }
        }
    }

    pub(crate) fn run(&self, randomness: Arc<dyn Randomness + Send + Sync>) -> Vec<TokenId> {
        let engine = Engine::new().with_drafter(0, (self.drafter)());
        let replica = || TableWithFeatures { table: self.target };
        let engine = (0..REPLICAS).fold(engine, |engine, at| engine.with_target(at, replica()));
        let others = (1..).zip(self.others);
        let with_drafter =
            |engine: Engine, (at, other): (usize, &Make<'_>)| engine.with_drafter(at, other());
        let engine = others.fold(engine, with_drafter);
        let mut cluster = InlineCluster::new(engine, Arc::clone(&randomness));
        if let Some(order) = self.order {
            cluster = cluster.with_random_order(order);
        }
        let limits = Limits { max_tokens: self.tokens + 2, context_length: 64, eos: Vec::new() };
        let (id, prompt) = (SequenceId(0), PROMPT.to_vec());
        let mut sequence =
            Sequence::with_randomness(id, prompt, self.sampling.clone(), limits, randomness);
        if self.features {
            sequence = sequence.with_features().with_draft_feedback();
        }
        let mut generated = 0;
        generate(&mut *(self.decoder)(), &mut sequence, &mut cluster, |tokens| {
            generated += tokens.len();
            if generated >= self.tokens {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
        // Only the drafters that fail on purpose do: at some job or token, or by an overflow.
        let on_purpose = [ModelError::Empty.to_string(), "overflow".to_owned()];
        let is_on_purpose = |failure: &String| on_purpose.iter().any(|one| failure.contains(one));
        let failures = &sequence.statistics().failures;
        assert!(failures.iter().all(is_on_purpose), "{failures:?}");
        sequence.generated()[..self.tokens].to_vec()
    }

    /// Returns the joint distribution of the target's own samples, by the chain rule and the slow
    /// reference.
    pub(crate) fn exact(&self) -> Joint {
        let mut joint = Joint::from([(Vec::new(), 1.0)]);
        for _ in 0..self.tokens {
            let mut longer = Joint::new();
            for (answer, chance) in &joint {
                let logits = self.target.row(&[&PROMPT[..], answer].concat());
                let row = reference::probabilities(&self.sampling, &PROMPT, answer, &logits);
                for (token, then) in (0..).zip(row) {
                    longer.insert([&answer[..], &[token]].concat(), chance * then);
                }
            }
            joint = longer;
        }
        joint
    }

    /// Samples answers, and adds their tokens to the test of `forerun certify`.
    pub(crate) fn add_samples(&self, test: &mut SamplingTest) {
        let ((found, _), exact) = (self.enumerate(), self.exact());
        let random = KeyedRandomness { seed: self.target.seed, sample: 0 };
        let number = |index: usize, candidate| {
            random.uniform(Key { position: index, purpose: Purpose::Sample, candidate })
        };
        let with_prefix = |prefix: &[TokenId]| -> f64 {
            exact.iter().filter(|(answer, _)| answer.starts_with(prefix)).map(|(_, p)| p).sum()
        };
        // The distribution after each prefix, best token first.
        let mut rows: BTreeMap<&[TokenId], Vec<(f64, TokenId)>> = BTreeMap::new();
        for answer in found.keys() {
            for length in 0..answer.len() {
                rows.entry(&answer[..length]).or_insert_with(|| {
                    let prefix = &answer[..length];
                    let all = with_prefix(prefix);
                    let chance = |token| with_prefix(&[prefix, &[token]].concat()) / all;
                    let mut row: Vec<_> =
                        (0..VOCAB as TokenId).map(|token| (chance(token), token)).collect();
                    row.sort_by(|a, b| b.0.total_cmp(&a.0));
                    row
                });
            }
        }
        for index in 0..CERTIFIED_ANSWERS {
            let (place, mut sum) = (number(index, 0), 0.0);
            let mut answers = found.iter();
            let drawn = answers.find(|(_, chance)| {
                sum += *chance;
                place < sum
            });
            let (answer, _) = drawn.or(found.last_key_value()).unwrap();
            test.start_answer(self.target.seed as usize);
            for (at, &token) in answer.iter().enumerate() {
                let row = &rows[&answer[..at]];
                let chances: Vec<f64> = row.iter().map(|&(chance, _)| chance).collect();
                let rank = row.iter().position(|&(_, other)| other == token).unwrap();
                test.add(&chances, rank, number(index, at as u32 + 1));
            }
        }
    }

    /// Returns the largest difference from the exact joint distribution.
    pub(crate) fn deviation(&self) -> f64 {
        self.deviation_and_branches().0
    }

    /// Returns the largest difference from the exact joint distribution, and the number of
    /// branches.
    pub(crate) fn deviation_and_branches(&self) -> (f64, usize) {
        let (found, branches) = self.enumerate();
        let total: f64 = found.values().sum();
        assert!((total - 1.0).abs() < 1e-9, "branches weigh {total} together");
        (deviation(&found, &self.exact()), branches)
    }
}

pub(crate) fn deviation(a: &Joint, b: &Joint) -> f64 {
    let at = |joint: &Joint, key: &Vec<TokenId>| joint.get(key).copied().unwrap_or(0.0);
    a.keys().chain(b.keys()).map(|key| (at(a, key) - at(b, key)).abs()).fold(0.0, f64::max)
}

/// Answers that are sampled of each target for the test of `forerun certify`.
pub(crate) const CERTIFIED_ANSWERS: usize = 40_000;

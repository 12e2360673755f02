//! Answers of known models.

use crate::known_models::{KNOWN_PROMPT, KnownPair};
use forerun_core::{
    Cluster, Key, KeyedRandomness, Randomness, Sampling, SamplingOptions, SequenceId, TokenId,
    Verification,
};
use forerun_decode::{DecodeError, Decoder, Limits, Sequence, generate};
use forerun_draft::Drafter;
use forerun_runtime::{Engine, InlineCluster};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How a configuration decodes, with any models.
pub struct Decoding<'a> {
    /// The drafters, by the index of their role.
    pub drafters: Vec<Box<dyn Drafter>>,
    /// The number of replicas of the target.
    pub replicas: usize,
    /// Makes the decoder of the answer with a number, from 0.
    pub decoder: Box<dyn Fn(usize) -> Box<dyn Decoder> + 'a>,
    /// Returns where random numbers come from, given those of the answers.
    pub randomness: Box<dyn Fn(AnswerNumbers) -> Arc<dyn Randomness + Send + Sync>>,
    /// Whether drafters learn from the target's tokens for their drafts.
    pub feedback: bool,
    /// Whether drafts are verified as a whole, so that they can be verified in blocks.
    pub verifies_whole_drafts: bool,
}

/// Makes what decodes with a pair of known models.
pub type MakeDecoding<'a> = Box<dyn Fn(&KnownPair) -> Decoding<'a> + Sync + 'a>;

/// The random numbers of the answer in progress.
#[derive(Clone, Debug, Default)]
pub struct AnswerNumbers(Arc<(AtomicU64, AtomicU32)>);

impl AnswerNumbers {
    /// Goes on with another answer's numbers.
    pub(crate) fn set(&self, numbers: KeyedRandomness) {
        self.0.0.store(numbers.seed, Ordering::Relaxed);
        self.0.1.store(numbers.sample, Ordering::Relaxed);
    }

    /// Returns the numbers as those of an unchanged configuration.
    #[must_use]
    pub fn unchanged(self) -> Arc<dyn Randomness + Send + Sync> {
        Arc::new(self)
    }
}

impl Randomness for AnswerNumbers {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        let (seed, sample) = (&self.0.0, &self.0.1);
        let (seed, sample) = (seed.load(Ordering::Relaxed), sample.load(Ordering::Relaxed));
        KeyedRandomness { seed, sample }.locate(key, thresholds)
    }
}

/// A configuration that decodes with a known pair, on the calling thread.
pub(crate) struct KnownAnswers<'a> {
    decoding: Decoding<'a>,
    temperature: f32,
    numbers: AnswerNumbers,
    randomness: Arc<dyn Randomness + Send + Sync>,
    cluster: InlineCluster,
    answers: usize,
}

impl<'a> KnownAnswers<'a> {
    /// Prepares answers of `pair` at `temperature`.
    #[must_use]
    pub(crate) fn new(pair: &KnownPair, temperature: f32, mut decoding: Decoding<'a>) -> Self {
        let numbers = AnswerNumbers::default();
        let randomness = (decoding.randomness)(numbers.clone());
        let target = pair.at_temperature(temperature).target;
        let engine = (0..decoding.replicas)
            .fold(Engine::new(), |engine, index| engine.with_target(index, target));
        let drafters = std::mem::take(&mut decoding.drafters).into_iter().enumerate();
        let engine =
            drafters.fold(engine, |engine, (index, drafter)| engine.with_drafter(index, drafter));
        let cluster = InlineCluster::new(engine, Arc::clone(&randomness));
        Self { decoding, temperature, numbers, randomness, cluster, answers: 0 }
    }

    /// Returns the first `length` tokens of an answer, and the number of its tokens that were drafted and accepted.
    ///
    /// # Errors
    /// If decoding fails.
    pub(crate) fn next_answer(
        &mut self,
        verification: Verification,
        randomness: KeyedRandomness,
        length: usize,
    ) -> Result<(Vec<TokenId>, usize), DecodeError> {
        self.numbers.set(randomness);
        let options =
            SamplingOptions { temperature: self.temperature, ..SamplingOptions::default() };
        let sampling = Sampling { options, verification, randomness, constraint: None };
        // Drafts do not get shorter before the end of the counted tokens.
        let limits =
            Limits { max_tokens: length + MAX_DRAFT, context_length: 1 << 20, eos: Vec::new() };
        let (id, numbers) = (SequenceId(0), Arc::clone(&self.randomness));
        let sequence =
            Sequence::with_randomness(id, KNOWN_PROMPT.to_vec(), sampling, limits, numbers);
        let mut sequence =
            if self.decoding.feedback { sequence.with_draft_feedback() } else { sequence };
        let mut decoder = (self.decoding.decoder)(self.answers);
        self.answers += 1;
        let mut generated = 0;
        generate(&mut *decoder, &mut sequence, &mut self.cluster, |tokens| {
            generated += tokens.len();
            match generated < length {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        decoder.stop(&mut self.cluster);
        while self.cluster.next_completion().is_ok() {}
        self.cluster.release(id);
        drop(self.cluster.take_trace());
        let accepted = sequence.statistics().accepted.iter().sum::<u64>() as usize;
        Ok((sequence.generated()[..length].to_vec(), accepted))
    }
}

/// Longer than the drafts of a round.
const MAX_DRAFT: usize = 64;

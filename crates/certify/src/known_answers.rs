//! Answers of known models.

use crate::drafts::Drafts;
use crate::known_models::{KNOWN_CONTEXT, KNOWN_PROMPT, KnownPair};
use forerun::Method;
use forerun::method::AnswerDecoders;
use forerun_core::{
    Cluster, Key, KeyedRandomness, Randomness, Sampling, SamplingOptions, SequenceId, TokenId,
    Verification,
};
use forerun_decode::{DecodeError, Decoder, Limits, Sequence, next_tokens};
use forerun_draft::Drafter;
use forerun_runtime::{Engine, InlineCluster};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How a configuration decodes, with any models.
pub struct DecoderSetup {
    /// The drafters, by the index of their role.
    pub drafters: Vec<Box<dyn Drafter>>,
    /// The names of drafters with models of their own, which `drafters` replace by models of the
    /// pair.
    pub replaced: Vec<String>,
    /// The number of replicas of the target.
    pub replicas: usize,
    /// Where decoders come from. The answers of each source are counted apart.
    pub decoders: Vec<DecoderSource>,
    /// Returns where random numbers come from, given those of the answers.
    pub randomness: Box<dyn Fn(AnswerRandomness) -> Arc<dyn Randomness + Send + Sync>>,
    /// Whether drafters learn from the target's tokens for their drafts.
    pub feedback: bool,
    /// Whether anything is drafted, by drafters or by lookups.
    pub drafts: bool,
    /// Whether drafts are verified as a whole, so that they can be verified in blocks.
    pub verifies_whole_drafts: bool,
}

/// Returns how a configuration decodes with a pair of known models.
pub type MakeDecoderSetup<'a> = Box<dyn Fn(&KnownPair) -> DecoderSetup + Sync + 'a>;

/// Where the decoders of answers come from.
pub enum DecoderSource {
    /// From an engine.
    Engine {
        /// The engine's decoders. They start with what earlier ones learned, unless they are
        /// reproducible.
        decoders: Box<AnswerDecoders>,
        /// The method.
        method: Method,
        /// Whether the answer must not depend on measured times, as with a seed.
        reproducible: bool,
    },
    /// From a function that makes the decoder of each answer.
    Function(Box<dyn Fn() -> Box<dyn Decoder>>),
}

impl DecoderSource {
    /// Calls `decode` with the decoder of the next answer, and lets the following ones learn from
    /// it.
    fn decode_next<T>(
        &mut self,
        decode: impl FnOnce(&mut dyn Decoder) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        match self {
            Self::Engine { decoders, method, reproducible } => {
                let mut decoder =
                    decoders.decoder(*method, KNOWN_PROMPT.len(), *reproducible, None);
                let result = decode(&mut *decoder);
                if !*reproducible {
                    decoders.learn(*method, decoder);
                }
                result
            }
            Self::Function(make) => decode(&mut *make()),
        }
    }
}

impl fmt::Display for DecoderSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Engine { reproducible: true, .. } => "with a seed",
            Self::Engine { reproducible: false, .. } => "without a seed",
            Self::Function(_) => "own decoders",
        })
    }
}

/// The random numbers of the answer in progress.
#[derive(Clone, Debug, Default)]
pub struct AnswerRandomness(Arc<(AtomicU64, AtomicU32)>);

impl AnswerRandomness {
    /// Continues with another answer's numbers.
    fn set(&self, numbers: KeyedRandomness) {
        self.0.0.store(numbers.seed, Ordering::Relaxed);
        self.0.1.store(numbers.sample, Ordering::Relaxed);
    }
}

impl Randomness for AnswerRandomness {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        let (seed, sample) = (&self.0.0, &self.0.1);
        let (seed, sample) = (seed.load(Ordering::Relaxed), sample.load(Ordering::Relaxed));
        KeyedRandomness { seed, sample }.locate(key, thresholds)
    }
}

/// A configuration that decodes with a known pair, on the calling thread.
pub(crate) struct KnownAnswers {
    setup: DecoderSetup,
    temperature: f32,
    numbers: AnswerRandomness,
    randomness: Arc<dyn Randomness + Send + Sync>,
    cluster: InlineCluster,
}

impl KnownAnswers {
    /// Prepares answers of `pair` at `temperature`. `seed` chooses how long jobs take.
    #[must_use]
    pub(crate) fn new(
        pair: &KnownPair,
        temperature: f32,
        mut setup: DecoderSetup,
        seed: u64,
    ) -> Self {
        let numbers = AnswerRandomness::default();
        let randomness = (setup.randomness)(numbers.clone());
        let target = pair.at_temperature(temperature).target;
        let engine = (0..setup.replicas)
            .fold(Engine::new(), |engine, index| engine.with_target(index, target));
        let drafters = std::mem::take(&mut setup.drafters).into_iter().enumerate();
        let engine =
            drafters.fold(engine, |engine, (index, drafter)| engine.with_drafter(index, drafter));
        let cluster =
            InlineCluster::new(engine, Arc::clone(&randomness)).with_parallel_devices(seed);
        Self { setup, temperature, numbers, randomness, cluster }
    }

    /// Returns the setup, without its drafters.
    pub(crate) fn setup(&self) -> &DecoderSetup {
        &self.setup
    }

    /// Returns the setup, without its drafters.
    pub(crate) fn into_setup(self) -> DecoderSetup {
        self.setup
    }

    /// Decodes the first `length` tokens of an answer with the decoders of the source at `source`.
    /// Returns them, and what became of their drafts.
    ///
    /// # Errors
    /// If decoding fails.
    pub(crate) fn next_answer(
        &mut self,
        source: usize,
        verification: Verification,
        randomness: KeyedRandomness,
        length: usize,
    ) -> Result<(Vec<TokenId>, Drafts), DecodeError> {
        self.numbers.set(randomness);
        let options =
            SamplingOptions { temperature: self.temperature, ..SamplingOptions::default() };
        let sampling = Sampling {
            options,
            verification,
            randomness,
            constraint: None,
            dry_breakers: Arc::default(),
            adapter: None,
        };
        // Drafts get shorter only near the end of an answer.
        let limits = Limits { max_tokens: 1 << 16, context_length: KNOWN_CONTEXT, eos: Vec::new() };
        let (id, numbers) = (SequenceId(0), Arc::clone(&self.randomness));
        let sequence =
            Sequence::with_randomness(id, KNOWN_PROMPT.to_vec(), sampling, limits, numbers);
        let mut sequence =
            if self.setup.feedback { sequence.with_draft_feedback() } else { sequence };
        let cluster = &mut self.cluster;
        self.setup.decoders[source].decode_next(|decoder| {
            decode(decoder, &mut sequence, cluster, length)?;
            decoder.stop(cluster);
            Ok(())
        })?;
        while cluster.next_completion().is_ok() {}
        cluster.release(id);
        drop(cluster.take_trace());
        let mut tokens = sequence.generated().to_vec();
        tokens.truncate(length);
        let mut drafts = Drafts::default();
        drafts.count(sequence.statistics());
        Ok((tokens, drafts))
    }
}

/// Decodes `length` tokens or more.
fn decode(
    decoder: &mut dyn Decoder,
    sequence: &mut Sequence,
    cluster: &mut InlineCluster,
    length: usize,
) -> Result<(), DecodeError> {
    while sequence.generated().len() < length {
        if next_tokens(decoder, sequence, cluster)?.is_some() {
            return Err(DecodeError::Answer("the decoder ended the answer early"));
        }
    }
    Ok(())
}

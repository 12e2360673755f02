//! Answers of known pairs, counted and tested against their exact probabilities.

use crate::certificate::IMPLAUSIBLE;
use crate::certifier::CertifyError;
use crate::known_answers::{Decoding, KnownAnswers};
use crate::known_models::KnownPair;
use crate::text_counts::{TextCounts, index_of, text_probabilities};
use forerun::{Canceller, ForerunError};
use forerun_core::{KeyedRandomness, TokenId, Verification};
use serde::{Deserialize, Serialize};
use std::thread::ScopedJoinHandle;

/// How answers of known pairs are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownCheck {
    /// The number of answers for each rule of verification, of all pairs together.
    pub answers: usize,
    /// The temperature. It does not change the distributions ([`KnownPair::at_temperature`]).
    pub temperature: f32,
    /// The first seed.
    pub seed: u64,
}

/// The verdict on answers of known pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownVerdict {
    /// The number of answers.
    pub answers: usize,
    /// The number of tokens.
    pub tokens: usize,
    /// How many of them were drafted and accepted.
    pub drafted: usize,
    /// A bound of the probability that some counts are as far from their expectations by chance.
    pub probability: f64,
    /// The counts that are the farthest from their expectations.
    pub farthest: String,
    /// Whether the answers could come from the distributions: the probability is at least 10⁻⁶.
    pub plausible: bool,
}

/// The texts of an answer that are counted: the position of the first token after the prompt, and the number of tokens.
/// Later texts follow rounds in which whole drafts were accepted.
const COUNTED: [(usize, usize); 5] = [(0, 1), (0, 2), (0, 3), (3, 3), (6, 3)];
/// The number of tokens of an answer.
const LENGTH: usize = 9;
/// The number of first tokens of two answers that are counted together, to see whether the answers are independent.
const OF_BOTH: usize = 2;

impl KnownCheck {
    /// Counts answers. `decoding` returns how to decode with a pair. Each pair has a thread.
    ///
    /// # Errors
    /// If decoding fails, or the certification is cancelled.
    pub fn run<'a>(
        &self,
        decoding: &(dyn Fn(&KnownPair) -> Decoding<'a> + Sync),
        canceller: &Canceller,
    ) -> Result<KnownVerdict, CertifyError> {
        let of_pair = |number: usize| {
            let pair = KnownPair::ALL[number].at_temperature(self.temperature);
            let name = format!("pair {}", number + 1);
            self.of_pair(&pair, &name, decoding(&pair), canceller)
        };
        let parts: Vec<Result<Part, CertifyError>> = std::thread::scope(|scope| {
            let start = |number| scope.spawn(move || of_pair(number));
            let threads: Vec<_> = (0..KnownPair::ALL.len()).map(start).collect();
            let join = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        let mut all = Part::default();
        for part in parts {
            let Part { answers, drafted, tests } = part?;
            all.answers += answers;
            all.drafted += drafted;
            all.tests.extend(tests);
        }
        let (answers, drafted, count) = (all.answers, all.drafted, all.tests.len() as f64);
        let least = all.tests.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let (farthest, least) = least.unwrap_or_default();
        // Bonferroni.
        let probability = (count * least).min(1.0);
        let plausible = probability >= IMPLAUSIBLE;
        let tokens = answers * LENGTH;
        Ok(KnownVerdict { answers, tokens, drafted, probability, farthest, plausible })
    }

    fn of_pair(
        &self,
        pair: &KnownPair,
        name: &str,
        decoding: Decoding<'_>,
        canceller: &Canceller,
    ) -> Result<Part, CertifyError> {
        let rules = match decoding.verifies_whole_drafts {
            true => &[Verification::Rejection, Verification::Block][..],
            false => &[Verification::Rejection],
        };
        // Two answers are counted together.
        let answers = self.answers.div_ceil(KnownPair::ALL.len()).next_multiple_of(2);
        let mut known = KnownAnswers::new(pair, self.temperature, decoding);
        let mut part = Part::default();
        for &rule in rules {
            let mut counts = Counts::new(pair);
            for answer in 0..answers {
                if canceller.is_cancelled() {
                    return Err(CertifyError::Cancelled);
                }
                // Two answers of one request.
                let seed = self.seed + (2 << 32) + (answer / 2) as u64;
                let numbers = KeyedRandomness { seed, sample: (answer % 2) as u32 };
                let (text, accepted) =
                    known.next_answer(rule, numbers, LENGTH).map_err(ForerunError::from)?;
                counts.add(&text);
                part.drafted += accepted;
            }
            part.answers += answers;
            let rule = match rule {
                Verification::Block => "block verification",
                _ => "rejection sampling",
            };
            let named = |(of, probability)| (format!("{of}, {rule}, {name}"), probability);
            part.tests.extend(counts.results().map(named));
        }
        Ok(part)
    }
}

/// What comes of one pair.
#[derive(Default)]
struct Part {
    answers: usize,
    drafted: usize,
    /// What is counted, and the probability of such counts.
    tests: Vec<(String, f64)>,
}

/// Counts of the answers of a pair with one rule.
struct Counts {
    texts: [TextCounts; COUNTED.len()],
    both: TextCounts,
    /// The index of the first tokens of the answer before, if it waits for a second one.
    first: Option<usize>,
}

impl Counts {
    fn new(pair: &KnownPair) -> Self {
        let texts = COUNTED.map(|(position, length)| {
            TextCounts::new(text_probabilities(&pair.target, position, length))
        });
        let one = text_probabilities(&pair.target, 0, OF_BOTH);
        let both = one.iter().flat_map(|first| one.iter().map(move |second| first * second));
        Self { texts, both: TextCounts::new(both.collect()), first: None }
    }

    fn add(&mut self, text: &[TokenId]) {
        for (counts, (position, length)) in self.texts.iter_mut().zip(COUNTED) {
            counts.add(index_of(&text[position..position + length]));
        }
        let index = index_of(&text[..OF_BOTH]);
        match self.first.take() {
            Some(first) => self.both.add(first * self.both.len().isqrt() + index),
            None => self.first = Some(index),
        }
    }

    /// Returns what is counted, with the probability of such counts.
    fn results(&self) -> impl Iterator<Item = (String, f64)> {
        let texts = self.texts.iter().zip(COUNTED).map(|(counts, (position, length))| {
            let (first, last) = (position + 1, position + length);
            (format!("tokens {first} to {last}"), counts.probability())
        });
        let both = ("two answers together".to_owned(), self.both.probability());
        texts.chain([both])
    }
}

//! Answers of known pairs, counted and tested against their exact probabilities.

use crate::certificate::IMPLAUSIBLE;
use crate::certifier::CertifyError;
use crate::known_answers::{Decoding, KnownAnswers};
use crate::known_models::KnownPair;
use crate::text_counts::{TextCounts, index_of, text_probabilities};
use forerun::{Canceller, ForerunError};
use forerun_core::{KeyedRandomness, Verification};
use serde::{Deserialize, Serialize};

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
const COUNTED: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (3, 3), (6, 3), (9, 3)];
/// The number of tokens of an answer.
const LENGTH: usize = 12;
/// The number of first tokens of two answers that are counted together, to see whether the answers are independent.
const OF_BOTH: usize = 2;

impl KnownCheck {
    /// Counts answers. `decoding` returns how to decode with a pair, or `None` if that is impossible. Then there is no
    /// verdict.
    ///
    /// # Errors
    /// If decoding fails, or the certification is cancelled.
    pub fn run<'a>(
        &self,
        decoding: impl Fn(&KnownPair) -> Option<Decoding<'a>>,
        canceller: &Canceller,
    ) -> Result<Option<KnownVerdict>, CertifyError> {
        let (mut tokens, mut drafted, mut tests) = (0, 0, Vec::new());
        let pairs = KnownPair::ALL.map(|pair| pair.at_temperature(self.temperature));
        // Two answers are counted together.
        let answers = (self.answers / pairs.len()).max(1).next_multiple_of(2);
        for (number, pair) in pairs.iter().enumerate() {
            let Some(decoding) = decoding(pair) else { return Ok(None) };
            let rules: &[Verification] = match decoding.verifies_whole_drafts {
                true => &[Verification::Rejection, Verification::Block],
                false => &[Verification::Rejection],
            };
            let mut known = KnownAnswers::new(pair, self.temperature, decoding);
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
                    tokens += text.len();
                    drafted += accepted;
                }
                let rule = match rule {
                    Verification::Block => "block verification",
                    _ => "rejection sampling",
                };
                let place = format!("{rule}, pair {}", number + 1);
                tests.extend(counts.results().map(|(name, p)| (p, format!("{name}, {place}"))));
            }
        }
        let all = tests.len() as f64;
        let farthest = tests.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let (least, farthest) = farthest.unwrap_or((1.0, String::new()));
        // Bonferroni.
        let probability = (all * least).min(1.0);
        let plausible = probability >= IMPLAUSIBLE;
        let answers = tokens / LENGTH;
        Ok(Some(KnownVerdict { answers, tokens, drafted, probability, farthest, plausible }))
    }
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

    fn add(&mut self, text: &[forerun_core::TokenId]) {
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

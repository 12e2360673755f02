//! Answers of known pairs, counted and tested against their exact probabilities.

use crate::certificate::IMPLAUSIBLE;
use crate::certifier::CertifyError;
use crate::drafts::Drafts;
use crate::known_answers::{DecoderSetup, KnownAnswers};
use crate::known_models::{KNOWN_VOCAB, KnownPair};
use crate::text_counts::{TextCounts, index_of, text_probabilities};
use forerun::{Canceller, ForerunError};
use forerun_core::{KeyedRandomness, TokenId, Verification};
use serde::{Deserialize, Serialize};
use std::thread::ScopedJoinHandle;

/// How answers of known pairs are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownCheck {
    /// The number of answers for each source of decoders and rule of verification, of all pairs
    /// together.
    pub answers: usize,
    /// The temperature. It does not change the distributions ([`KnownPair::at_temperature`]).
    pub temperature: f32,
    /// The first seed.
    pub seed: u64,
}

/// The verdict on answers of known pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownVerdict {
    /// The answers of each source of decoders: those with a seed and those without one, whose draft
    /// lengths may follow times.
    pub groups: Vec<KnownGroup>,
    /// The names of drafters with models of their own. Known draft models took their places.
    pub replaced_drafters: Vec<String>,
    /// A bound of the probability that some counts are as far from their expectations by chance.
    pub probability: f64,
    /// The counts that are the farthest from their expectations.
    pub farthest: String,
    /// Whether the answers could come from the distributions: the probability is at least 10⁻⁶.
    pub plausible: bool,
    /// Whether the configuration drafts.
    pub drafts: bool,
}

/// The answers of one source of decoders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownGroup {
    /// Where the decoders come from.
    pub decoders: String,
    /// The number of answers.
    pub answers: usize,
    /// The number of tokens.
    pub tokens: usize,
    /// What became of their drafts.
    #[serde(flatten)]
    pub drafts: Drafts,
}

impl KnownVerdict {
    /// Returns whether the answers could come from the distributions, and each group has drafted
    /// enough if the configuration drafts.
    #[must_use]
    pub fn passes(&self) -> bool {
        let mut groups = self.groups.iter();
        self.plausible && (!self.drafts || groups.all(|group| group.drafts.shortfall().is_none()))
    }

    /// Returns the number of answers of all groups.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.groups.iter().map(|group| group.answers).sum()
    }
}

/// The texts of an answer that are counted: the position of the first token after the prompt, and
/// the number of tokens. Later texts follow rounds in which whole drafts were accepted.
const COUNTED: [(usize, usize); 5] = [(0, 1), (0, 2), (0, 3), (3, 3), (6, 3)];
/// The number of tokens of an answer.
const LENGTH: usize = 9;
/// The number of first tokens of two answers that are counted together, to see whether the answers
/// are independent.
const PAIRED_TOKENS: usize = 2;
/// The number of answers of a pair after which progress is reported.
const PROGRESS_ANSWERS: usize = 100;

impl KnownCheck {
    /// Counts answers. `setup` returns how to decode with a pair. Each pair has a thread.
    ///
    /// # Errors
    /// If decoding fails, or the certification is cancelled.
    pub fn run(
        &self,
        setup: &(dyn Fn(&KnownPair) -> DecoderSetup + Sync),
        canceller: &Canceller,
    ) -> Result<KnownVerdict, CertifyError> {
        self.run_with_progress(setup, canceller, &mut |_, _| ())
    }

    /// As [`run`](Self::run). `progress` receives the number of answers of a pair that are counted,
    /// and that of all. The others are counted at the same time.
    pub(crate) fn run_with_progress(
        &self,
        setup: &(dyn Fn(&KnownPair) -> DecoderSetup + Sync),
        canceller: &Canceller,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<KnownVerdict, CertifyError> {
        let of_pair = |number: usize, progress: &mut dyn FnMut(usize, usize)| {
            let pair = KnownPair::ALL[number].at_temperature(self.temperature);
            let times = self.seed.wrapping_add((3 << 32) + number as u64);
            let known = KnownAnswers::new(&pair, self.temperature, setup(&pair), times);
            self.of_pair(&pair, &format!("pair {}", number + 1), known, canceller, progress)
        };
        let parts: Vec<Result<Part, CertifyError>> = std::thread::scope(|scope| {
            let start = |number| scope.spawn(move || of_pair(number, &mut |_, _| ()));
            let threads: Vec<_> = (1..KnownPair::ALL.len()).map(start).collect();
            let first = of_pair(0, progress);
            let join = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            std::iter::once(first).chain(threads.into_iter().map(join)).collect()
        });
        let parts = parts.into_iter().collect::<Result<Vec<Part>, _>>()?;
        Ok(Part::verdict(parts))
    }

    /// Counts the answers of one pair.
    fn of_pair(
        &self,
        pair: &KnownPair,
        name: &str,
        mut known: KnownAnswers,
        canceller: &Canceller,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Part, CertifyError> {
        let rules = match known.setup().verifies_whole_drafts {
            true => &[Verification::Rejection, Verification::Block][..],
            false => &[Verification::Rejection],
        };
        // Two answers are counted together.
        let answers = self.answers.div_ceil(KnownPair::ALL.len()).next_multiple_of(2);
        let (mut groups, mut tests) = (Vec::new(), Vec::new());
        let sources: Vec<String> = known.setup().decoders.iter().map(ToString::to_string).collect();
        let (mut counted, all) = (0, answers * rules.len() * sources.len());
        for (source, decoders) in sources.into_iter().enumerate() {
            let mut drafts = Drafts::default();
            for &rule in rules {
                let mut counts = Counts::new(pair);
                for answer in 0..answers {
                    if canceller.is_cancelled() {
                        return Err(CertifyError::Cancelled);
                    }
                    // Two answers of one request.
                    let seed = self.seed.wrapping_add((2 << 32) + (answer / 2) as u64);
                    let numbers = KeyedRandomness { seed, sample: (answer % 2) as u32 };
                    let (text, of_answer) = known
                        .next_answer(source, rule, numbers, LENGTH)
                        .map_err(ForerunError::from)?;
                    counts.add(&text);
                    drafts.add(&of_answer);
                    counted += 1;
                    if counted % PROGRESS_ANSWERS == 0 {
                        progress(counted, all);
                    }
                }
                let rule = match rule {
                    Verification::Block => "block verification",
                    _ => "rejection sampling",
                };
                let named =
                    |(of, probability)| (format!("{of}, {rule}, {name}, {decoders}"), probability);
                tests.extend(counts.results().map(named));
            }
            let answers = answers * rules.len();
            groups.push(KnownGroup { decoders, answers, tokens: answers * LENGTH, drafts });
        }
        let DecoderSetup { replaced: replaced_drafters, drafts, .. } = known.into_setup();
        Ok(Part { groups, replaced_drafters, drafts, tests })
    }
}

/// The answers of one pair.
struct Part {
    groups: Vec<KnownGroup>,
    replaced_drafters: Vec<String>,
    drafts: bool,
    /// What is counted, and the probability of such counts.
    tests: Vec<(String, f64)>,
}

impl Part {
    /// Returns the verdict on the answers of all pairs.
    fn verdict(parts: Vec<Self>) -> KnownVerdict {
        let mut verdict = KnownVerdict {
            groups: Vec::new(),
            replaced_drafters: Vec::new(),
            probability: 1.0,
            farthest: String::new(),
            plausible: false,
            drafts: false,
        };
        let count = parts.iter().map(|part| part.tests.len()).sum::<usize>() as f64;
        for Self { groups, replaced_drafters, drafts, tests } in parts {
            for (index, group) in groups.into_iter().enumerate() {
                match verdict.groups.get_mut(index) {
                    Some(sum) => sum.add(&group),
                    None => verdict.groups.push(group),
                }
            }
            verdict.replaced_drafters = replaced_drafters;
            verdict.drafts |= drafts;
            for (of, probability) in tests {
                // Bonferroni.
                let probability = count * probability;
                if probability < verdict.probability {
                    (verdict.probability, verdict.farthest) = (probability, of);
                }
            }
        }
        verdict.plausible = verdict.probability >= IMPLAUSIBLE;
        verdict
    }
}

impl KnownGroup {
    /// Adds the answers of another pair.
    fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.tokens += other.tokens;
        self.drafts.add(&other.drafts);
    }
}

/// Counts of the answers of a pair with one rule.
struct Counts {
    texts: [TextCounts; COUNTED.len()],
    both: TextCounts,
    /// The index of the first tokens of the answer before, if it waits for a second one.
    first: Option<usize>,
    /// The number of answers with a token outside the vocabulary.
    impossible: usize,
}

impl Counts {
    fn new(pair: &KnownPair) -> Self {
        let texts = COUNTED.map(|(position, length)| {
            TextCounts::new(text_probabilities(&pair.target, position, length))
        });
        let one = text_probabilities(&pair.target, 0, PAIRED_TOKENS);
        let both = one.iter().flat_map(|first| one.iter().map(move |second| first * second));
        Self { texts, both: TextCounts::new(both.collect()), first: None, impossible: 0 }
    }

    fn add(&mut self, text: &[TokenId]) {
        if text.iter().any(|&token| token as usize >= KNOWN_VOCAB) {
            self.impossible += 1;
            return;
        }
        for (counts, (position, length)) in self.texts.iter_mut().zip(COUNTED) {
            counts.add(index_of(&text[position..position + length]));
        }
        let index = index_of(&text[..PAIRED_TOKENS]);
        match self.first.take() {
            Some(first) => self.both.add(first * KNOWN_VOCAB.pow(PAIRED_TOKENS as u32) + index),
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
        let impossible = (self.impossible > 0).then(|| {
            (format!("{} answers with tokens outside the vocabulary", self.impossible), 0.0)
        });
        texts.chain([both]).chain(impossible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known_answers::DecoderSource;
    use forerun_core::{Cluster, Draft, Scores, Verdict};
    use forerun_decode::{Autoregressive, DecodeError, Decoder, Sequence};
    use std::sync::Arc;

    /// Counts answers of plain decoding, or of the decoder that `make` returns.
    fn count(make: impl Fn() -> Box<dyn Decoder> + Sync + Clone + 'static) -> KnownVerdict {
        let setup = |_: &KnownPair| DecoderSetup {
            drafters: Vec::new(),
            replaced: Vec::new(),
            replicas: 1,
            decoders: vec![DecoderSource::Function(Box::new(make.clone()))],
            randomness: Box::new(|randomness| Arc::new(randomness)),
            feedback: false,
            drafts: false,
            verifies_whole_drafts: false,
        };
        let check = KnownCheck { answers: 200, temperature: 0.8, seed: u64::MAX };
        check.run(&setup, &Canceller::new()).unwrap()
    }

    /// Commits one token all the time.
    struct Constant(TokenId);

    impl Decoder for Constant {
        fn step(
            &mut self,
            sequence: &mut Sequence,
            _cluster: &mut dyn Cluster,
        ) -> Result<(), DecodeError> {
            let token = Some(self.0);
            let verdict = Verdict { accepted: Vec::new(), token, rejected: false };
            sequence.commit(&Draft::empty(), &verdict, &Scores::default());
            Ok(())
        }
    }

    #[test]
    fn plain_decoding_passes() {
        let verdict = count(|| Box::new(Autoregressive));
        assert!(verdict.passes() && verdict.answers() == 200, "{verdict:?}");
        let drafts = KnownVerdict { drafts: true, ..verdict };
        assert!(!drafts.passes(), "nothing was drafted");
    }

    #[test]
    fn impossible_answers_fail() {
        let outside = count(|| Box::new(Constant(TokenId::MAX)));
        assert!(outside.probability == 0.0 && !outside.passes(), "{outside:?}");
        assert!(outside.farthest.contains("outside the vocabulary"), "{outside:?}");
        assert!(!count(|| Box::new(Constant(1))).passes());
    }

    #[test]
    fn one_impossible_text_fails() {
        let mut counts = Counts::new(&KnownPair::ALL[0]);
        counts.texts[0] = TextCounts::new(vec![0.5, 0.5, 0.0, 0.0]);
        (0..1_000).for_each(|_| counts.add(&[0; LENGTH]));
        counts.add(&[2, 0, 0, 0, 0, 0, 0, 0, 0]);
        let tests = counts.results().take(1).collect();
        let part = Part { groups: Vec::new(), replaced_drafters: Vec::new(), drafts: false, tests };
        let verdict = Part::verdict(vec![part]);
        assert!(verdict.probability == 0.0 && !verdict.passes(), "{verdict:?}");
    }
}

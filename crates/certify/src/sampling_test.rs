//! A test whether tokens were drawn from given distributions.

use crate::repeated_texts::RepeatedTexts;
use serde::{Deserialize, Serialize};

/// Tests whether the tokens of answers were drawn from given distributions, each token from one of
/// its own.
///
/// The *place* of a token is `F + u · p`, where `F` is the probability of all tokens before it in
/// the distribution's order, `p` its own, and `u` a uniform number. If tokens are drawn from their
/// distributions, places are uniform in [0, 1) and independent of each other (the probability
/// integral transform; Rosenblatt 1952, *Remarks on a Multivariate Transformation*), whatever the
/// distributions are. So tokens of different prompts and positions are tested together, in four
/// ways:
///
/// 1. whether places are uniform (Kolmogorov–Smirnov),
/// 2. whether pairs of consecutive places are independent (χ² on a grid of 4 × 4),
/// 3. whether tokens are as improbable as the distributions' entropies say (a z-test),
/// 4. whether tokens after the same text have the frequencies of their distribution (χ²). Errors
///    that cancel out over many texts show here.
#[derive(Clone, Debug, Default)]
pub struct SamplingTest {
    places: Vec<f64>,
    /// The place of the answer's last token, if it is not part of a pair.
    previous: Option<f64>,
    /// Counts of consecutive places, by quarters.
    pairs: [[u64; 4]; 4],
    /// The sum of `-ln p`, up to a limit, minus its expectation.
    surprise: f64,
    /// The sum of the variances.
    surprise_variance: f64,
    /// The number of tokens with probability 0.
    impossible: usize,
    repeated: RepeatedTexts,
}

/// The result of a [`SamplingTest`]. A probability close to 0 shows that the tokens were not drawn
/// from their distributions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingResult {
    /// The number of tested tokens.
    pub tokens: usize,
    /// The probability that places are at least as uneven by chance.
    pub uniform: f64,
    /// The probability that consecutive places are at least as dependent by chance.
    pub independent: f64,
    /// The probability that tokens are at least as improbable, or as probable, by chance.
    pub surprise: f64,
    /// The probability that tokens after the same text have frequencies at least as wrong by
    /// chance.
    pub repeated: f64,
}

/// The largest surprise of a token that counts, in nats. The mean over tokens would not be normally
/// distributed if a few very improbable ones dominated it.
const MAX_SURPRISE: f64 = 6.0;

fn surprise(probability: f64) -> f64 {
    (-probability.ln()).min(MAX_SURPRISE)
}

/// Number of pairs below which the χ² test says nothing.
const MIN_PAIRS: u64 = 80;

impl SamplingTest {
    /// Adds a token: its index in a distribution, whose probabilities add up to 1. `uniform` is a
    /// number in [0, 1) that does not depend on the token.
    ///
    /// # Panics
    /// If the distribution has no such index.
    pub fn add(&mut self, distribution: &[f64], token: usize, uniform: f64) {
        let before: f64 = distribution[..token].iter().sum();
        let place = (before + uniform * distribution[token]).clamp(0.0, 1.0 - f64::EPSILON);
        let quarter = |place: f64| (place * 4.0) as usize;
        // Pairs have no token in common, so that they are independent of each other.
        match self.previous.take() {
            Some(previous) => self.pairs[quarter(previous)][quarter(place)] += 1,
            None => self.previous = Some(place),
        }
        self.places.push(place);
        self.repeated.add(distribution, token);
        self.impossible += usize::from(distribution[token] == 0.0);
        let moment = |power: i32| {
            let term = |&p: &f64| if p > 0.0 { p * surprise(p).powi(power) } else { 0.0 };
            distribution.iter().map(term).sum::<f64>()
        };
        let expected = moment(1);
        self.surprise += surprise(distribution[token]) - expected;
        self.surprise_variance += (moment(2) - expected * expected).max(0.0);
    }

    /// Starts a new answer to the prompt with this index: its first token does not follow the last
    /// one.
    pub fn start_answer(&mut self, prompt: usize) {
        self.repeated.start_answer(prompt);
        self.previous = None;
    }

    /// Returns the result for the tokens so far.
    #[must_use]
    pub fn result(&self) -> SamplingResult {
        SamplingResult {
            tokens: self.places.len(),
            uniform: self.uniform_probability(),
            independent: self.independent_probability(),
            surprise: self.surprise_probability(),
            repeated: self.repeated.probability(),
        }
    }

    fn uniform_probability(&self) -> f64 {
        let mut places = self.places.clone();
        places.sort_by(f64::total_cmp);
        let count = places.len() as f64;
        let distance = places.iter().enumerate().fold(0.0_f64, |most, (index, &place)| {
            let (low, high) = (index as f64 / count, (index + 1) as f64 / count);
            most.max(place - low).max(high - place)
        });
        // The asymptotic distribution of Kolmogorov, with Stephens' correction for few samples.
        let root = count.sqrt();
        let lambda = (root + 0.12 + 0.11 / root) * distance;
        if places.is_empty() || lambda < 0.2 {
            return 1.0;
        }
        let term = |k: i32| {
            let sign = if k % 2 == 1 { 2.0 } else { -2.0 };
            sign * (-2.0 * f64::from(k * k) * lambda * lambda).exp()
        };
        (1..100).map(term).sum::<f64>().clamp(0.0, 1.0)
    }

    fn independent_probability(&self) -> f64 {
        let count: u64 = self.pairs.iter().flatten().sum();
        if count < MIN_PAIRS {
            return 1.0;
        }
        let expected = count as f64 / 16.0;
        let cells = self.pairs.iter().flatten();
        let square: f64 = cells.map(|&cell| (cell as f64 - expected).powi(2) / expected).sum();
        chi_square_tail_15(square)
    }

    fn surprise_probability(&self) -> f64 {
        if self.impossible > 0 {
            return 0.0;
        }
        if self.surprise_variance == 0.0 {
            return 1.0;
        }
        let z = self.surprise / self.surprise_variance.sqrt();
        libm::erfc(z.abs() / std::f64::consts::SQRT_2)
    }
}

impl SamplingResult {
    /// Returns the probability that one of the four tests gives at least as small a probability by
    /// chance, at most (Bonferroni).
    #[must_use]
    pub fn probability(&self) -> f64 {
        let least = self.uniform.min(self.independent).min(self.surprise).min(self.repeated);
        (4.0 * least).min(1.0)
    }
}

/// Returns the probability that a χ² variable with 15 degrees of freedom is at least `square`: the
/// regularized upper incomplete gamma function `Q(15/2, square/2)`, in its closed form for
/// half-integers.
fn chi_square_tail_15(square: f64) -> f64 {
    let x = square / 2.0;
    // term = x^(k − 1/2) e^(−x) / Γ(k + 1/2), for k = 1 to 7
    let mut term = (-x).exp() * x.sqrt() * 2.0 / std::f64::consts::PI.sqrt();
    let mut sum = libm::erfc(x.sqrt());
    for k in 1..=7 {
        sum += term;
        term *= x / (f64::from(k) + 0.5);
    }
    sum.clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repeated_texts::{COUNTED_TOKENS, RepeatedTexts};
    use forerun_core::{Key, KeyedRandomness, Purpose};

    struct Numbers(KeyedRandomness, u32);

    impl Numbers {
        fn new(seed: u64) -> Self {
            Self(KeyedRandomness { seed, sample: 0 }, 0)
        }

        fn next(&mut self) -> f64 {
            self.1 += 1;
            self.0.uniform(Key { position: 0, purpose: Purpose::Sample, candidate: self.1 })
        }

        fn draw(&mut self, distribution: &[f64]) -> usize {
            let (number, mut sum) = (self.next(), 0.0);
            let inside = |p: &f64| {
                sum += p;
                number < sum
            };
            distribution.iter().position(inside).unwrap_or(distribution.len() - 1)
        }

        fn distribution(&mut self) -> Vec<f64> {
            let mut weights: Vec<f64> = (0..6).map(|_| self.next().powi(3) + 1e-3).collect();
            weights.sort_by(|a, b| b.total_cmp(a));
            let total: f64 = weights.iter().sum();
            weights.iter().map(|weight| weight / total).collect()
        }
    }

    /// Runs a test on tokens that `draw` draws, given the distribution and the token before.
    fn run(
        seed: u64,
        tokens: usize,
        mut draw: impl FnMut(&mut Numbers, &[f64], usize) -> usize,
    ) -> SamplingResult {
        let (mut numbers, mut test, mut before) = (Numbers::new(seed), SamplingTest::default(), 0);
        for index in 0..tokens {
            if index % 50 == 0 {
                test.start_answer(index);
            }
            let distribution = numbers.distribution();
            before = draw(&mut numbers, &distribution, before);
            test.add(&distribution, before, numbers.next());
        }
        test.result()
    }

    #[test]
    fn the_tail_of_chi_square_has_the_values_of_tables() {
        for (square, tail) in [(7.261, 0.95), (24.996, 0.05), (37.697, 0.001)] {
            assert!((chi_square_tail_15(square) - tail).abs() < 1e-4 + 0.01 * tail);
        }
    }

    /// Probabilities of correct samples are uniform themselves, up to the tests' approximations.
    #[test]
    fn tokens_of_the_distributions_pass() {
        let results: Vec<_> =
            (0..200).map(|seed| run(seed, 500, |numbers, d, _| numbers.draw(d))).collect();
        for probability in [
            |result: &SamplingResult| result.uniform,
            |result: &SamplingResult| result.independent,
            |result: &SamplingResult| result.surprise,
        ] {
            let below = |limit: f64| results.iter().filter(|r| probability(r) < limit).count();
            assert!(below(0.5) > 70 && below(0.5) < 130, "{}", below(0.5));
            assert!(below(0.05) < 25 && below(1e-5) == 0, "{}, {}", below(0.05), below(1e-5));
        }
        assert!(results.iter().all(|result| result.probability() > 1e-4));
    }

    /// The same for frequencies after repeated texts. The distribution depends on the text.
    #[test]
    fn tokens_after_repeated_texts_pass() {
        let probability = |seed| {
            let (mut numbers, mut texts) = (Numbers::new(seed), RepeatedTexts::default());
            for answer in 0..400 {
                let mut text = answer % 2;
                texts.start_answer(text);
                for _ in 0..COUNTED_TOKENS {
                    let distribution = Numbers::new(1_000 + text as u64).distribution();
                    let token = numbers.draw(&distribution);
                    texts.add(&distribution, token);
                    text = 2 + 7 * text + token;
                }
            }
            texts.probability()
        };
        let all: Vec<f64> = (0..200).map(probability).collect();
        let below = |limit: f64| all.iter().filter(|&&probability| probability < limit).count();
        assert!(below(0.5) > 70 && below(0.5) < 130, "{}", below(0.5));
        assert!(below(0.05) < 25 && below(1e-4) == 0, "{}, {}", below(0.05), below(1e-4));
    }

    #[test]
    fn wrong_samplers_are_found() {
        let flat = run(1, 12_000, |numbers, d, _| match numbers.next() < 0.1 {
            true => (numbers.next() * d.len() as f64) as usize,
            false => numbers.draw(d),
        });
        let greedy_sometimes = run(2, 12_000, |numbers, d, _| match numbers.next() < 0.1 {
            true => 0,
            false => numbers.draw(d),
        });
        // Each token alone is drawn from its distribution.
        let mut last = 0.5;
        let dependent = run(3, 12_000, |numbers, d, _| {
            last = if numbers.next() < 0.3 { last } else { numbers.next() };
            let mut sum = 0.0;
            let inside = |p: &f64| {
                sum += p;
                last < sum
            };
            d.iter().position(inside).unwrap_or(d.len() - 1)
        });
        for (name, result) in
            [("flat", flat), ("greedy", greedy_sometimes), ("dependent", dependent)]
        {
            assert!(result.probability() < 1e-6, "{name}: {result:?}");
        }
        assert!(dependent.independent < 1e-6 && dependent.uniform > 1e-6, "{dependent:?}");
    }

    #[test]
    fn certain_tokens_and_no_tokens_prove_nothing() {
        assert_eq!(SamplingTest::default().result().probability(), 1.0);
        let (mut test, mut numbers) = (SamplingTest::default(), Numbers::new(4));
        (0..200).for_each(|_| test.add(&[1.0], 0, numbers.next()));
        assert!(test.result().probability() > 0.1);
        test.add(&[1.0, 0.0], 1, 0.5);
        assert_eq!(test.result().surprise, 0.0, "an impossible token is proof");
    }
}

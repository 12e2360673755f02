//! Counts of short texts, tested against their exact probabilities.

use crate::known_models::{KNOWN_PROMPT, KNOWN_VOCAB, KnownModel};
use forerun_core::TokenId;

/// Counts of texts of a few tokens, with the probability of each.
#[derive(Clone, Debug)]
pub(crate) struct TextCounts {
    /// The exact probability of each text.
    probabilities: Vec<f64>,
    counts: Vec<u64>,
}

impl TextCounts {
    /// Counts texts with these probabilities, by their index.
    #[must_use]
    pub(crate) fn new(probabilities: Vec<f64>) -> Self {
        let counts = vec![0; probabilities.len()];
        Self { probabilities, counts }
    }

    pub(crate) fn add(&mut self, index: usize) {
        self.counts[index] += 1;
    }

    /// Returns the relative entropy of the frequencies to the probabilities times the number of
    /// texts, in nats: half of the statistic of a G-test.
    #[must_use]
    pub(crate) fn divergence(&self) -> f64 {
        let all = self.counts.iter().sum::<u64>() as f64;
        let term = |(&count, &probability): (&u64, &f64)| match count {
            0 => 0.0,
            count => count as f64 * (count as f64 / (all * probability)).ln(),
        };
        self.counts.iter().zip(&self.probabilities).map(term).sum()
    }

    /// Returns a bound of the probability that frequencies diverge so far by chance, for any number
    /// of texts (Agrawal 2020, arXiv 1904.02291, theorem 1.2).
    #[must_use]
    pub(crate) fn probability(&self) -> f64 {
        let freedom = (self.probabilities.len() - 1) as f64;
        let divergence = self.divergence();
        // A text with probability 0 diverges infinitely.
        if !divergence.is_finite() {
            return 0.0;
        }
        match divergence > freedom {
            true => (freedom * (1.0 + (divergence / freedom).ln()) - divergence).exp(),
            false => 1.0,
        }
    }
}

/// Returns the index of a text among all texts of its length. Its tokens must be below
/// [`KNOWN_VOCAB`].
#[must_use]
pub(crate) fn index_of(text: &[TokenId]) -> usize {
    text.iter().fold(0, |index, &token| index * KNOWN_VOCAB + token as usize)
}

/// Returns the probabilities of all texts of `length` tokens that begin `position` tokens after the
/// prompt.
#[must_use]
pub(crate) fn text_probabilities(model: &KnownModel, position: usize, length: usize) -> Vec<f64> {
    let pair = |index: usize| [index / KNOWN_VOCAB, index % KNOWN_VOCAB].map(|at| at as TokenId);
    // The distribution of the two tokens before the text.
    let mut before = vec![0.0; KNOWN_VOCAB * KNOWN_VOCAB];
    before[index_of(&KNOWN_PROMPT[KNOWN_PROMPT.len() - 2..])] = 1.0;
    for _ in 0..position {
        let mut after = vec![0.0; before.len()];
        for (index, chance) in before.iter().enumerate() {
            for token in 0..KNOWN_VOCAB as TokenId {
                let then = chance * model.probability(&pair(index), token);
                after[index_of(&[pair(index)[1], token])] += then;
            }
        }
        before = after;
    }
    let mut all = vec![0.0; KNOWN_VOCAB.pow(length as u32)];
    for (index, chance) in before.into_iter().enumerate() {
        extend(model, &mut pair(index).to_vec(), chance, length, &mut all);
    }
    all
}

/// Adds the chances of all texts that continue this one by `left` tokens.
fn extend(model: &KnownModel, text: &mut Vec<TokenId>, chance: f64, left: usize, all: &mut [f64]) {
    if left == 0 {
        all[index_of(&text[2..])] += chance;
        return;
    }
    for token in 0..KNOWN_VOCAB as TokenId {
        let then = chance * model.probability(text, token);
        text.push(token);
        extend(model, text, then, left - 1, all);
        text.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known_models::KnownPair;
    use forerun_core::{Key, KeyedRandomness, Purpose};

    #[test]
    fn probabilities_follow_the_model() {
        let model = KnownPair::ALL[0].target;
        let whole = text_probabilities(&model, 0, 3);
        assert_eq!(whole.len(), KNOWN_VOCAB.pow(3));
        assert!((whole.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        // After 0, 1 the order moves by 3, and after 1, 2 by 1 + 6.
        let [first, second] = [2, 3].map(|token: TokenId| token as usize);
        let both = model.probabilities[(first + 3) % 4] * model.probabilities[(second + 7) % 4];
        let found: f64 = (0..4).map(|last| whole[index_of(&[2, 3, last])]).sum();
        assert!((found - both).abs() < 1e-12, "{found}, {both}");
        // The text after a token has the distribution of the later tokens of a longer text.
        let later = text_probabilities(&model, 1, 2);
        for (index, probability) in later.into_iter().enumerate() {
            let sum: f64 = (0..4).map(|first| whole[first * 16 + index]).sum();
            assert!((sum - probability).abs() < 1e-12);
        }
    }

    /// Counts draws from `drawn` against `expected`.
    fn probability(drawn: &[f64], expected: &[f64], seed: u64, texts: usize) -> f64 {
        let mut counts = TextCounts::new(expected.to_vec());
        let numbers = KeyedRandomness { seed, sample: 0 };
        for position in 0..texts {
            let key = Key { position, purpose: Purpose::Sample, candidate: 0 };
            let (number, mut sum) = (numbers.uniform(key), 0.0);
            let is_drawn = |probability: &f64| {
                sum += probability;
                number < sum
            };
            counts.add(drawn.iter().position(is_drawn).unwrap_or(0));
        }
        counts.probability()
    }

    #[test]
    fn the_bound_holds_for_right_draws() {
        for (expected, texts) in [
            (vec![0.5, 0.5], 1),
            (vec![0.25, 0.5, 0.2, 0.05], 100),
            (vec![0.9, 0.0999, 0.0001], 3_000),
            (text_probabilities(&KnownPair::ALL[1].target, 0, 2), 40),
        ] {
            let all = (0..400).map(|seed| probability(&expected, &expected, seed, texts));
            let all: Vec<f64> = all.collect();
            for limit in [0.5, 0.1, 0.02] {
                let below = all.iter().filter(|&&bound| bound < limit).count() as f64;
                assert!(below <= 400.0 * limit, "{expected:?}: {below} below {limit}");
            }
        }
    }

    #[test]
    fn wrong_draws_are_found() {
        let expected = [0.25, 0.25, 0.25, 0.25];
        let drawn = [0.28, 0.24, 0.24, 0.24];
        assert!(probability(&drawn, &expected, 1, 20_000) < 1e-6);
        assert!(probability(&drawn, &expected, 1, 200) > 1e-3);
        let mut counts = TextCounts::new(vec![1.0, 0.0]);
        counts.add(1);
        assert_eq!(counts.probability(), 0.0, "an impossible text is proof");
    }
}

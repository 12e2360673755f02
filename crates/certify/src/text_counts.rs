//! Counts of short texts, tested against their exact probabilities.

use crate::known_models::{KNOWN_PROMPT, KNOWN_VOCAB, KnownModel};
use forerun_core::TokenId;

/// Counts of texts of a few tokens, with the probability of each.
#[derive(Clone, Debug)]
pub struct TextCounts {
    /// The exact probability of each text.
    probabilities: Vec<f64>,
    counts: Vec<u64>,
}

impl TextCounts {
    /// Counts texts with these probabilities, by their index.
    #[must_use]
    pub fn new(probabilities: Vec<f64>) -> Self {
        let counts = vec![0; probabilities.len()];
        Self { probabilities, counts }
    }

    /// Returns the number of different texts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Counts a text. One without a place in the distribution is impossible.
    pub fn add(&mut self, index: usize) {
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
            self.probabilities.resize(index + 1, 0.0);
        }
        self.counts[index] += 1;
    }

    /// Returns the relative entropy of the frequencies to the probabilities times the number of texts, in nats: half of
    /// the statistic of a G-test.
    #[must_use]
    pub fn divergence(&self) -> f64 {
        let all = self.counts.iter().sum::<u64>() as f64;
        let term = |(&count, &probability): (&u64, &f64)| match count {
            0 => 0.0,
            count => count as f64 * (count as f64 / (all * probability)).ln(),
        };
        self.counts.iter().zip(&self.probabilities).map(term).sum()
    }

    /// Returns a bound of the probability that frequencies diverge so far by chance, whatever the number of texts (Agrawal
    /// 2020, arXiv 1904.02291, theorem 1.2).
    #[must_use]
    pub fn probability(&self) -> f64 {
        let freedom = (self.probabilities.len() - 1) as f64;
        let divergence = self.divergence();
        match divergence > freedom {
            true => (freedom * (1.0 + (divergence / freedom).ln()) - divergence).exp(),
            false => 1.0,
        }
    }
}

/// Returns the index of a text among all texts of its length.
#[must_use]
pub fn index_of(text: &[TokenId]) -> usize {
    text.iter().fold(0, |index, &token| index * KNOWN_VOCAB + token as usize)
}

/// Returns the probabilities of all texts of `length` tokens that begin `position` tokens after the prompt.
#[must_use]
pub fn text_probabilities(model: &KnownModel, position: usize, length: usize) -> Vec<f64> {
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

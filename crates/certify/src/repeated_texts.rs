//! A test whether the tokens after the same text have the frequencies of their distribution.

use std::collections::BTreeMap;

/// Counts the first tokens of many answers to the same prompts.
#[derive(Clone, Debug, Default)]
pub(crate) struct RepeatedTexts {
    /// Counts after each text: a prompt, and the tokens' indices in their distributions.
    after: BTreeMap<Vec<usize>, Counts>,
    text: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Counts {
    distribution: Vec<f64>,
    tokens: Vec<u64>,
}

/// The number of tokens of an answer that are counted. Longer texts hardly repeat.
pub(crate) const COUNTED_TOKENS: usize = 4;

/// The smallest expected number of tokens in a cell of the χ² test. Rarer tokens share cells.
const MIN_EXPECTED: f64 = 10.0;

impl RepeatedTexts {
    pub(crate) fn start_answer(&mut self, prompt: usize) {
        self.text = vec![prompt];
    }

    pub(crate) fn add(&mut self, distribution: &[f64], token: usize) {
        if self.text.is_empty() || self.text.len() > COUNTED_TOKENS {
            return;
        }
        let counts = self.after.entry(self.text.clone()).or_insert_with(|| Counts {
            distribution: distribution.to_vec(),
            tokens: vec![0; distribution.len()],
        });
        if let Some(count) = counts.tokens.get_mut(token) {
            *count += 1;
        }
        self.text.push(token);
    }

    /// Returns the probability that counts are at least as far from their expectations by chance
    /// (Pearson's χ² test over all texts together).
    pub(crate) fn probability(&self) -> f64 {
        let (mut square, mut freedom) = (0.0, 0);
        for counts in self.after.values() {
            let (of_text, cells) = counts.square();
            square += of_text;
            freedom += cells.saturating_sub(1);
        }
        if freedom == 0 {
            return 1.0;
        }
        chi_square_tail(square, freedom as f64)
    }
}

impl Counts {
    /// Returns the sum of squares and the number of cells.
    fn square(&self) -> (f64, usize) {
        let all: u64 = self.tokens.iter().sum();
        let mut cells: Vec<(f64, f64)> = Vec::new();
        let mut open = (0.0, 0.0);
        for (&probability, &count) in self.distribution.iter().zip(&self.tokens) {
            open = (open.0 + probability * all as f64, open.1 + count as f64);
            if open.0 >= MIN_EXPECTED {
                cells.push(std::mem::take(&mut open));
            }
        }
        match cells.last_mut() {
            Some(last) => *last = (last.0 + open.0, last.1 + open.1),
            None => return (0.0, 0),
        }
        let square = |&(expected, count): &(f64, f64)| (count - expected).powi(2) / expected;
        (cells.iter().map(square).sum(), cells.len())
    }
}

/// Returns about the probability that a χ² variable is at least `square` (Wilson and Hilferty 1931,
/// *The Distribution of Chi-Square*).
fn chi_square_tail(square: f64, freedom: f64) -> f64 {
    let variance = 2.0 / (9.0 * freedom);
    let z = ((square / freedom).cbrt() - (1.0 - variance)) / variance.sqrt();
    libm::erfc(z / std::f64::consts::SQRT_2) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_close_to_that_of_tables() {
        for (square, freedom, tail) in [
            (3.841, 1.0, 0.05),
            (24.996, 15.0, 0.05),
            (37.697, 15.0, 0.001),
            (149.449, 100.0, 0.001),
        ] {
            let found = chi_square_tail(square, freedom);
            assert!((found / tail - 1.0).abs() < 0.15, "{square}, {freedom}: {found}");
        }
    }

    #[test]
    fn wrong_frequencies_after_a_text_are_found() {
        let count = |tokens: [usize; 2]| {
            let mut texts = RepeatedTexts::default();
            for (token, &times) in tokens.iter().enumerate() {
                for _ in 0..times {
                    texts.start_answer(0);
                    texts.add(&[0.5, 0.5], token);
                }
            }
            texts.probability()
        };
        assert!(count([500, 500]) > 0.9);
        assert!(count([530, 470]) > 0.01);
        assert!(count([600, 400]) < 1e-6);
        assert_eq!(count([3, 0]), 1.0, "too few");
    }
}

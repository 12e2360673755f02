//! Models whose distributions are known, built in for `certify`.

use forerun_core::{SequenceId, TokenId, node_of_row};
use forerun_lm::{BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, complete_each};

/// The number of tokens of a [`KnownModel`].
pub const KNOWN_VOCAB: usize = 4;

/// The text that a [`KnownModel`] continues. Parts of it repeat, so that lookups draft.
pub const KNOWN_PROMPT: [TokenId; 8] = [0, 1, 2, 0, 1, 3, 0, 1];

/// The context length of a [`KnownModel`].
pub(crate) const KNOWN_CONTEXT: usize = 1 << 20;

/// A model whose next token depends on the last two tokens.
///
/// All rows have the same probabilities in another order: after tokens `a, b`, token `t` has the
/// probability at index `(t + shifts[0] · a + shifts[1] · b) mod 4`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownModel {
    /// The probabilities of a row, which add up to 1, in one of its orders.
    pub probabilities: [f64; KNOWN_VOCAB],
    /// How far the order moves for each of the last two tokens.
    pub shifts: [usize; 2],
    /// The temperature at which rows have these probabilities.
    pub temperature: f32,
}

/// A target, and draft models that often disagree with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownPair {
    /// The target.
    pub target: KnownModel,
    /// The draft models. Further drafters have them in turn.
    pub drafters: [KnownModel; 2],
}

impl KnownModel {
    const fn new(percent: [u8; KNOWN_VOCAB], shifts: [usize; 2]) -> Self {
        let mut probabilities = [0.0; KNOWN_VOCAB];
        let mut index = 0;
        while index < KNOWN_VOCAB {
            probabilities[index] = percent[index] as f64 / 100.0;
            index += 1;
        }
        Self { probabilities, shifts, temperature: 1.0 }
    }

    /// Returns the probability of a token after a text of two tokens or more.
    #[must_use]
    pub fn probability(&self, text: &[TokenId], token: TokenId) -> f64 {
        let [.., first, last] = *text else { return 0.0 };
        let place =
            token as usize + self.shifts[0] * first as usize + self.shifts[1] * last as usize;
        self.probabilities[place % KNOWN_VOCAB]
    }

    /// Returns the logits after a text of two tokens or more: `[KNOWN_VOCAB]`.
    #[must_use]
    pub fn row(&self, text: &[TokenId]) -> Vec<f32> {
        let logit = |token| self.probability(text, token).ln() as f32 * self.temperature;
        (0..KNOWN_VOCAB as TokenId).map(logit).collect()
    }
}

impl LanguageModel for KnownModel {
    fn vocab_size(&self) -> usize {
        KNOWN_VOCAB
    }

    fn context_length(&self) -> usize {
        KNOWN_CONTEXT
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            let ForwardRequest { tokens, tree, first_row, .. } = *request;
            let mut text = tokens[tokens.len().saturating_sub(2)..].to_vec();
            let before = text.len();
            let mut logits = Vec::with_capacity(request.rows() * KNOWN_VOCAB);
            for number in first_row..=tree.len() {
                let path = node_of_row(number).map_or(Vec::new(), |node| tree.path(node));
                text.truncate(before);
                text.extend(path.into_iter().map(|node| tree.token(node)));
                logits.extend(self.row(&text));
            }
            let computed_tokens = tokens.len() + tree.len();
            let (best, features) = (Vec::new(), None);
            Ok(ForwardOutput { logits, best, vocab_size: KNOWN_VOCAB, computed_tokens, features })
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl KnownPair {
    /// The built-in pairs. Of random ones, they show the mistakes of `exact_distribution` in the
    /// fewest answers together.
    pub const ALL: [Self; 4] = [
        Self {
            target: KnownModel::new([55, 20, 20, 5], [1, 3]),
            drafters: [
                KnownModel::new([40, 50, 5, 5], [1, 3]),
                KnownModel::new([15, 10, 65, 10], [1, 3]),
            ],
        },
        Self {
            target: KnownModel::new([15, 10, 40, 35], [1, 1]),
            drafters: [
                KnownModel::new([5, 5, 35, 55], [1, 1]),
                KnownModel::new([15, 10, 10, 65], [1, 1]),
            ],
        },
        Self {
            target: KnownModel::new([15, 20, 25, 40], [3, 2]),
            drafters: [
                KnownModel::new([35, 40, 20, 5], [3, 2]),
                KnownModel::new([20, 20, 15, 45], [3, 2]),
            ],
        },
        Self {
            target: KnownModel::new([20, 25, 20, 35], [0, 1]),
            drafters: [
                KnownModel::new([35, 50, 5, 10], [1, 1]),
                KnownModel::new([20, 40, 35, 5], [0, 1]),
            ],
        },
    ];

    /// Returns the pair whose distributions at `temperature` are those of this one at its own.
    #[must_use]
    pub fn at_temperature(self, temperature: f32) -> Self {
        let at = |model| KnownModel { temperature, ..model };
        Self { target: at(self.target), drafters: self.drafters.map(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_core::TokenTree;

    #[test]
    fn probabilities_add_up_and_drafters_disagree() {
        for KnownPair { target, drafters } in KnownPair::ALL {
            for model in [target, drafters[0], drafters[1]] {
                assert!((model.probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            }
            for drafter in drafters {
                let gap = |token| {
                    let gap = target.probability(&KNOWN_PROMPT, token)
                        - drafter.probability(&KNOWN_PROMPT, token);
                    gap.abs()
                };
                let gaps: f64 = (0..KNOWN_VOCAB as TokenId).map(gap).sum();
                assert!(gaps > 0.15, "{target:?}, {drafter:?}");
            }
        }
    }

    /// The rows after a text, and after each node of a tree, have the known probabilities at the
    /// temperature.
    #[test]
    fn rows_have_the_known_probabilities() {
        let mut tree = TokenTree::chain(&[3, 1]);
        tree.push(None, 2);
        for temperature in [0.3, 1.0, 1.7] {
            let mut model = KnownPair::ALL[2].at_temperature(temperature).target;
            let request = ForwardRequest::new(SequenceId(0), &KNOWN_PROMPT, &tree);
            let output = model.logits(&request).unwrap();
            let texts: [&[TokenId]; 4] = [&[0, 1], &[1, 3], &[3, 1], &[1, 2]];
            for (row, text) in output.rows().zip(texts) {
                for (token, logit) in (0..).zip(row) {
                    let probability = f64::from(logit / temperature).exp();
                    assert!((probability - model.probability(text, token)).abs() < 1e-6);
                }
            }
            assert_eq!(output.rows().count(), texts.len());
        }
    }
}

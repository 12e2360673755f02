//! Language models without weights, for tests of what stands on models.

use crate::language_model::{LanguageModel, Logits, LogitsContext, ModelError};
use forerun_core::{Key, KeyedRandomness, Node, Purpose, SequenceId, TokenId, TokenTree};

/// A model whose logits are a hash of the tokens before a row.
#[derive(Clone, Copy, Debug)]
pub struct TableModel {
    /// Which of all tables it is.
    pub seed: u64,
    /// Number of tokens in the vocabulary. Of two models with one seed, the smaller one's rows are parts of
    /// the larger one's.
    pub vocab_size: usize,
    /// Spread of the logits.
    pub spread: f32,
    /// How many of the last tokens a row depends on: of few, texts repeat themselves.
    pub reads: usize,
    /// Largest number of tokens in a sequence.
    pub context_length: usize,
}

impl TableModel {
    /// A model that reads all tokens.
    #[must_use]
    pub const fn new(seed: u64, vocab_size: usize, spread: f32) -> Self {
        Self { seed, vocab_size, spread, reads: usize::MAX, context_length: 1_000 }
    }

    /// The row behind some tokens: `[vocab_size]`.
    #[must_use]
    pub fn row(&self, prefix: &[TokenId]) -> Vec<f32> {
        let read = &prefix[prefix.len().saturating_sub(self.reads)..];
        let hash = read.iter().fold(self.seed, |hash, &token| {
            (hash ^ u64::from(token + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
        });
        let randomness = KeyedRandomness { seed: hash, sample: 0 };
        let logit = |position| {
            let key = Key { position, purpose: Purpose::Sample, candidate: 0 };
            (randomness.uniform(key) as f32 - 0.5) * self.spread
        };
        (0..self.vocab_size).map(logit).collect()
    }
}

impl LanguageModel for TableModel {
    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn context_length(&self) -> usize {
        self.context_length
    }

    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError> {
        Ok(answer(context, self.vocab_size, |prefix| self.row(prefix)))
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

/// The rows that are asked for, by a function of the tokens before each.
pub fn answer(
    context: &LogitsContext<'_>,
    vocab_size: usize,
    row: impl Fn(&[TokenId]) -> Vec<f32>,
) -> Logits {
    let LogitsContext { tokens, tree, first_row, .. } = *context;
    let row = |number: usize| row(&row_prefix(tokens, tree, number.checked_sub(1)));
    let values = (first_row..=tree.len()).flat_map(row).collect();
    Logits { values, vocab_size, computed_tokens: tokens.len() + tree.len() }
}

/// The tokens before a row: those before a tree, and those on the way to a node.
#[must_use]
pub fn row_prefix(tokens: &[TokenId], tree: &TokenTree, at: Option<Node>) -> Vec<TokenId> {
    let path = at.map_or(Vec::new(), |node| tree.path(node));
    tokens.iter().copied().chain(path.into_iter().map(|node| tree.token(node))).collect()
}

/// The row of a model that is sure of a token: `[vocab_size]`.
#[must_use]
pub fn one_hot(vocab_size: usize, token: TokenId) -> Vec<f32> {
    let mut row = vec![0.0; vocab_size];
    row[token as usize] = 10.0;
    row
}

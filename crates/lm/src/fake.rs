//! Language models without weights, for tests of code that uses models.

use crate::{BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, complete_each};
use forerun_core::{
    BestTokens, Key, KeyedRandomness, Node, Purpose, RowUse, SequenceId, TokenId, TokenTree,
    node_of_row,
};

/// A model that computes logits from a hash of the tokens before a row.
#[derive(Clone, Copy, Debug)]
pub struct TableModel {
    /// The seed of the hash. Models with different seeds have different logits.
    pub seed: u64,
    /// Number of tokens in the vocabulary. If two models have the same seed, the rows of the
    /// smaller model are prefixes of the larger model's.
    pub vocab_size: usize,
    /// Width of the range of the logits.
    pub spread: f32,
    /// The number of last tokens that a row depends on. With few, texts repeat themselves.
    pub history: usize,
    /// Maximum number of tokens in a sequence.
    pub context_length: usize,
}

impl TableModel {
    /// Creates a model that depends on all tokens.
    #[must_use]
    pub const fn new(seed: u64, vocab_size: usize, spread: f32) -> Self {
        Self { seed, vocab_size, spread, history: usize::MAX, context_length: 1_000 }
    }

    /// Computes the row of logits after the tokens of `prefix`: `[vocab_size]`.
    #[must_use]
    pub fn row(&self, prefix: &[TokenId]) -> Vec<f32> {
        let history = &prefix[prefix.len().saturating_sub(self.history)..];
        let hash = history.iter().fold(self.seed, |hash, &token| {
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

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            Ok(output_by_prefix(request, self.vocab_size, |prefix| self.row(prefix)))
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

/// Computes the requested rows of logits, or as many of their best tokens as are read. `row`
/// returns the row for the tokens before it.
pub fn output_by_prefix(
    request: &ForwardRequest<'_>,
    vocab_size: usize,
    row: impl Fn(&[TokenId]) -> Vec<f32>,
) -> ForwardOutput {
    let ForwardRequest { tokens, tree, first_row, .. } = *request;
    let row = |number: usize| row(&row_prefix(tokens, tree, node_of_row(number)));
    let logits = (first_row..=tree.len()).flat_map(row).collect();
    let computed_tokens = tokens.len() + tree.len();
    let (best, features) = (Vec::new(), None);
    let output = ForwardOutput { logits, best, vocab_size, computed_tokens, features };
    reduced_to(output, request.rows_for)
}

/// Reduces whole rows to the best tokens that are read of them.
#[must_use]
pub fn reduced_to(output: ForwardOutput, rows_for: RowUse) -> ForwardOutput {
    match rows_for {
        RowUse::Best { count, tokens } if output.best.is_empty() => {
            let rows = output.rows_truncated_to(tokens);
            let best = rows.map(|row| BestTokens::of(row, count)).collect();
            ForwardOutput { best, logits: Vec::new(), ..output }
        }
        _ => output,
    }
}

/// Returns the tokens before a row: the tokens before the tree, and those on the path to `node`.
#[must_use]
pub fn row_prefix(tokens: &[TokenId], tree: &TokenTree, node: Option<Node>) -> Vec<TokenId> {
    let path = node.map_or(Vec::new(), |node| tree.path(node));
    tokens.iter().copied().chain(path.into_iter().map(|node| tree.token(node))).collect()
}

/// Returns a row of logits that gives almost all probability to one token: `[vocab_size]`.
#[must_use]
pub fn one_hot(vocab_size: usize, token: TokenId) -> Vec<f32> {
    let mut row = vec![0.0; vocab_size];
    row[token as usize] = 10.0;
    row
}

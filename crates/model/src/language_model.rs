//! Language models as drafters and scorers use them: tokens in, logits out, caches inside.

use crate::kv_cache::KvCache;
use crate::transformer::Transformer;
use forerun_core::{RowLogprobs, Sampling, SamplingError, Scores, SequenceId, TokenId, TokenTree};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

/// Tokens of a prompt that are computed in one pass; cancellation is seen between passes too.
const PREFILL_ROWS: usize = 256;

/// Sequences whose caches a model keeps; the one unused for longest goes first.
const MAX_CACHES: usize = 64;

/// Rows of logits that were asked for.
pub struct Logits {
    /// `[rows, vocab_size]`.
    pub values: Vec<f32>,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Tokens that had to be computed for them.
    pub computed_tokens: usize,
}

impl Logits {
    /// The rows, in order.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> + '_ {
        self.values.chunks_exact(self.vocab_size)
    }

    /// The rows, without the tokens from `vocab_size` on.
    pub fn rows_below(&self, vocab_size: usize) -> impl Iterator<Item = &[f32]> + '_ {
        self.rows().map(move |row| &row[..vocab_size.min(row.len())])
    }
}

/// Why a model gave no logits.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum ModelError {
    /// It was asked to stop.
    #[error("the forward pass was cancelled")]
    Cancelled,
    /// Nothing to predict from.
    #[error("a sequence needs at least one token (a prompt, or the model's BOS token)")]
    Empty,
    /// More tokens than the model was made for.
    #[error("position {position} is beyond the model's context of {context} tokens")]
    Context {
        /// The position that was needed.
        position: usize,
        /// `max_position_embeddings`.
        context: usize,
    },
    /// A token that the model does not know.
    #[error("token {token} is not in the model's vocabulary of {vocab_size}")]
    Token {
        /// The token.
        token: TokenId,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// The logits cannot be sampled from.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

/// What drafters and scorers need of a model.
pub trait LanguageModel {
    /// Number of tokens in the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Largest number of tokens in a sequence.
    fn context_length(&self) -> usize;

    /// Logits of the rows from `first_row` on: row 0 predicts the token behind `tokens`, row
    /// `node + 1` the one behind a node of `tree`, which hangs behind `tokens`.
    ///
    /// What was computed before for the same sequence and agrees with these tokens is not computed
    /// again.
    ///
    /// # Errors
    /// See [`ModelError`].
    fn logits(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        tree: &TokenTree,
        first_row: usize,
        cancel: &AtomicBool,
    ) -> Result<Logits, ModelError>;

    /// Forgets a sequence.
    fn release(&mut self, sequence: SequenceId);
}

/// What is to be scored.
pub struct ScoreContext<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens before the first row.
    pub tokens: &'a [TokenId],
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// Candidates behind them.
    pub tree: &'a TokenTree,
    /// The request's sampling options.
    pub sampling: &'a Sampling,
    /// Whether log-probabilities are wanted, and how many of the best of each row.
    pub logprobs: Option<usize>,
    /// Set when the scores are no longer wanted; looked at between layers.
    pub cancel: &'a AtomicBool,
}

/// Scores a tree: the distributions of the token behind the prefix and behind each node.
///
/// # Errors
/// See [`ModelError`].
pub fn score(
    model: &mut dyn LanguageModel,
    context: &ScoreContext<'_>,
) -> Result<Scores, ModelError> {
    let ScoreContext { sequence, tokens, tree, cancel, .. } = *context;
    let logits = model.logits(sequence, tokens, tree, 0, cancel)?;
    let sampler = context.sampling.behind(tokens, context.prompt_len);
    let mut scores = Scores { rows: Vec::new(), logprobs: context.logprobs.map(|_| Vec::new()) };
    for (row, logits) in logits.rows().enumerate() {
        let at = row.checked_sub(1);
        let distribution = sampler.distribution(logits, tree, at)?;
        if let (Some(logprobs), Some(top)) = (&mut scores.logprobs, context.logprobs) {
            let position = tokens.len() + at.map_or(0, |node| tree.depth(node));
            logprobs.push(RowLogprobs::new(logits, &distribution, top, position)?);
        }
        scores.rows.push(distribution);
    }
    Ok(scores)
}

/// A [`Transformer`] with a cache for every sequence.
pub struct CachedTransformer {
    transformer: Transformer,
    caches: HashMap<SequenceId, (u64, KvCache)>,
    /// Counts calls, to find the cache that was unused for longest.
    calls: u64,
}

impl CachedTransformer {
    /// A model without any sequence.
    #[must_use]
    pub fn new(transformer: Transformer) -> Self {
        Self { transformer, caches: HashMap::new(), calls: 0 }
    }

    fn check(&self, tokens: &[TokenId], tree: &TokenTree) -> Result<(), ModelError> {
        let (context, vocab_size) = (self.context_length(), self.vocab_size());
        if tokens.is_empty() {
            return Err(ModelError::Empty);
        }
        let len = tokens.len() + tree.max_depth();
        if len > context {
            return Err(ModelError::Context { position: len - 1, context });
        }
        let mut all = tokens.iter().chain(tree.tokens());
        match all.find(|&&token| token as usize >= vocab_size) {
            Some(&token) => Err(ModelError::Token { token, vocab_size }),
            None => Ok(()),
        }
    }

    /// Takes the sequence's cache out, so that a panic in a forward pass cannot leave a broken one.
    fn take_cache(&mut self, sequence: SequenceId) -> KvCache {
        self.calls += 1;
        if let Some((_, cache)) = self.caches.remove(&sequence) {
            return cache;
        }
        if self.caches.len() >= MAX_CACHES
            && let Some(&oldest) = self.caches.iter().min_by_key(|(_, (used, _))| used).map(|e| e.0)
        {
            self.caches.remove(&oldest);
        }
        self.transformer.new_cache()
    }
}

impl LanguageModel for CachedTransformer {
    fn vocab_size(&self) -> usize {
        self.transformer.config().vocab_size
    }

    fn context_length(&self) -> usize {
        self.transformer.config().max_position_embeddings
    }

    fn logits(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        tree: &TokenTree,
        first_row: usize,
        cancel: &AtomicBool,
    ) -> Result<Logits, ModelError> {
        self.check(tokens, tree)?;
        let mut cache = self.take_cache(sequence);
        let output = forward(&mut self.transformer, &mut cache, tokens, tree, first_row, cancel);
        // Even a cancelled pass leaves the cache with what it held before.
        self.caches.insert(sequence, (self.calls, cache));
        let (values, computed_tokens) = output?;
        Ok(Logits { values, vocab_size: self.vocab_size(), computed_tokens })
    }

    fn release(&mut self, sequence: SequenceId) {
        self.caches.remove(&sequence);
    }
}

/// Seeks, computes what is missing of the prefix in passes of bounded size, then the tree. Returns the
/// logits and how many tokens were computed.
fn forward(
    transformer: &mut Transformer,
    cache: &mut KvCache,
    tokens: &[TokenId],
    tree: &TokenTree,
    first_row: usize,
    cancel: &AtomicBool,
) -> Result<(Vec<f32>, usize), ModelError> {
    // The rows that are wanted have to be computed, whether or not they were before.
    let held = match first_row.checked_sub(1) {
        Some(nodes) => cache.seek(tokens, &tree.first(nodes)),
        None => cache.seek(&tokens[..tokens.len() - 1], &TokenTree::new()),
    };
    let mut missing = &tokens[held.tokens..];
    let prefix = missing.len();
    while missing.len() > PREFILL_ROWS {
        let (now, later) = missing.split_at(PREFILL_ROWS);
        let none_wanted = now.len();
        pass(transformer, &TokenTree::chain(now), none_wanted, cache, cancel)?;
        cache.seek(&tokens[..tokens.len() - later.len()], &TokenTree::new());
        missing = later;
    }
    // The rest of the prefix and the tree behind it are one tree to the forward pass.
    let mut new = TokenTree::chain(missing);
    new.graft(missing.len().checked_sub(1), tree);
    let first_wanted = missing.len() + first_row - 1;
    let computed = prefix - missing.len() + new.len() - held.nodes;
    let logits = pass(transformer, &new, first_wanted, cache, cancel)?.to_vec();
    Ok((logits, computed))
}

fn pass<'a>(
    transformer: &'a mut Transformer,
    tree: &TokenTree,
    first_wanted: usize,
    cache: &mut KvCache,
    cancel: &AtomicBool,
) -> Result<&'a [f32], ModelError> {
    let output = transformer.forward(tree, first_wanted, cache, cancel);
    output.map_err(|_cancelled| ModelError::Cancelled)
}

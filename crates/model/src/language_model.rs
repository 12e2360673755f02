//! The interface of language models for drafters and target workers: tokens in, logits out. Models keep
//! their caches themselves.

use crate::caches::Caches;
use crate::config::Config;
use crate::forward::{Forward, Pass};
use crate::kv_cache::{Keep, KvCache};
use crate::layers::{LayerGroups, LayerOrder};
use crate::transformer::Transformer;
use forerun_core::{
    FeatureRows, Features, RowLogprobs, Sampling, SamplingError, Scores, SequenceId, TokenId,
    TokenTree,
};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

/// Largest number of prompt tokens that one pass computes. Cancellation is also checked between passes.
pub(crate) const PREFILL_ROWS: usize = 256;

/// The requested rows of logits.
pub struct Logits {
    /// `[rows, vocab_size]`.
    pub values: Vec<f32>,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Number of tokens that had to be computed for these rows.
    pub computed_tokens: usize,
}

impl Logits {
    /// Returns the rows, in order.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> + '_ {
        self.values.chunks_exact(self.vocab_size)
    }

    /// Returns the rows, truncated to the tokens below `vocab_size`.
    pub fn rows_truncated_to(&self, vocab_size: usize) -> impl Iterator<Item = &[f32]> + '_ {
        self.rows().map(move |row| &row[..vocab_size.min(row.len())])
    }
}

/// An error that prevents a model from computing logits.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum ModelError {
    /// The forward pass was cancelled.
    #[error("the forward pass was cancelled")]
    Cancelled,
    /// The sequence is empty, or too short for the model.
    #[error("a sequence needs at least one token (a prompt, or the model's BOS token)")]
    Empty,
    /// The sequence is longer than the model's context.
    #[error("position {position} is beyond the model's context of {context} tokens")]
    Context {
        /// The position that was needed.
        position: usize,
        /// `max_position_embeddings`.
        context: usize,
    },
    /// A token outside of the model's vocabulary.
    #[error("token {token} is not in the model's vocabulary of {vocab_size} tokens")]
    Token {
        /// The token.
        token: TokenId,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// Features were requested from a model that does not store any.
    #[error(
        "a drafter requested hidden states of the target, but the target was loaded without them"
    )]
    NoFeatures,
    /// Features of too few tokens, or of the wrong width.
    #[error(
        "the target's features of token {token} have width {found}, but the drafter needs width \
         {expected} (tokens needed: {tokens})"
    )]
    Features {
        /// Number of tokens whose features are needed.
        tokens: usize,
        /// The expected width: numbers per token.
        expected: usize,
        /// The first token with another width.
        token: usize,
        /// Its width; 0 if its features are missing.
        found: usize,
    },
    /// The logits cannot be sampled from.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

/// A request for the rows of logits from `first_row` on.
///
/// Row 0 predicts the token after `tokens`. Row `node + 1` predicts the token after a node of `tree`,
/// which follows `tokens`.
#[derive(Clone, Copy)]
pub struct LogitsContext<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens before the first row.
    pub tokens: &'a [TokenId],
    /// Candidates or mask tokens after `tokens`.
    pub tree: &'a TokenTree,
    /// The first requested row.
    pub first_row: usize,
    /// Set to cancel the request.
    pub cancel: &'a AtomicBool,
}

impl<'a> LogitsContext<'a> {
    /// Creates a request for the row after some tokens, which is never cancelled.
    #[must_use]
    pub fn next_token(sequence: SequenceId, tokens: &'a [TokenId]) -> Self {
        static EMPTY_TREE: TokenTree = TokenTree::new();
        static NEVER_CANCELLED: AtomicBool = AtomicBool::new(false);
        Self { sequence, tokens, tree: &EMPTY_TREE, first_row: 0, cancel: &NEVER_CANCELLED }
    }
}

/// A language model with a cache for every sequence.
pub trait LanguageModel {
    /// Returns the number of tokens in the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Returns the largest number of tokens in a sequence.
    fn context_length(&self) -> usize;

    /// Computes the requested rows of logits.
    ///
    /// Earlier results for the same sequence are reused as far as their tokens agree with the request's.
    ///
    /// # Errors
    /// See [`ModelError`].
    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError>;

    /// Returns the features that belong to the last call of [`LanguageModel::logits`]: row `i` is token
    /// `i`, and the tree's nodes follow the tokens. `None` if the model does not store features.
    fn features(&self, _sequence: SequenceId, _rows: Range<usize>) -> Option<FeatureRows> {
        None
    }

    /// Frees the state of a sequence.
    fn release(&mut self, sequence: SequenceId);
}

/// A model that reads the target's features in addition to tokens (EAGLE).
pub trait FeatureModel {
    /// Returns the number of tokens in the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Returns the largest number of tokens in a sequence.
    fn context_length(&self) -> usize;

    /// Computes the requested rows of logits, as [`LanguageModel::logits`] does.
    ///
    /// The request must have at least two tokens, and `features` the target's features of all tokens
    /// except the last (it may have more). The last token and the tree's nodes have no features of the
    /// target: the model uses the features that it predicts itself, and never reuses a row that was
    /// computed from them for the tokens of another call.
    ///
    /// # Errors
    /// See [`ModelError`].
    fn logits(
        &mut self,
        context: &LogitsContext<'_>,
        features: &Features,
    ) -> Result<Logits, ModelError>;

    /// Frees the state of a sequence.
    fn release(&mut self, sequence: SequenceId);
}

/// Draft heads that read the features of a single token (Medusa).
pub trait FeatureHeads {
    /// Returns the number of tokens in the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Computes one row of logits per head, given the features of the last token that the target has
    /// read.
    ///
    /// # Errors
    /// [`ModelError::Features`] if the features do not have the target's width.
    fn logits(&mut self, features: &[f32]) -> Result<Logits, ModelError>;
}

/// A language model whose layers can be computed in groups.
///
/// Grouping layers is an approximation, for drafting only. The model's caches distinguish approximate
/// rows from exact ones, and [`LanguageModel::logits`] never uses approximate rows.
pub trait LayeredModel: LanguageModel {
    /// Computes the requested rows of logits with layers in `groups`, after the first `exact` tokens.
    ///
    /// If the cache does not hold exact rows for the first `exact` tokens, all approximate rows are
    /// dropped and the rows of these tokens are computed layer by layer: EasySpec's calibration.
    ///
    /// # Errors
    /// See [`ModelError`].
    fn layer_parallel_logits(
        &mut self,
        context: &LogitsContext<'_>,
        groups: &LayerGroups,
        exact: usize,
    ) -> Result<Logits, ModelError>;
}

/// A request to score a tree.
pub struct ScoreContext<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens before the first row.
    pub tokens: &'a [TokenId],
    /// Number of leading tokens that belong to the prompt.
    pub prompt_len: usize,
    /// Candidates after `tokens`.
    pub tree: &'a TokenTree,
    /// The request's sampling options.
    pub sampling: &'a Sampling,
    /// Number of most likely tokens per row for which to return log-probabilities; `None` for no
    /// log-probabilities.
    pub logprobs: Option<usize>,
    /// The first token for which to return features; `None` for no features.
    pub features_from: Option<usize>,
    /// Set to cancel the request; checked between layers.
    pub cancel: &'a AtomicBool,
}

/// Scores a tree: computes the distributions of the token after the prefix and after each node.
///
/// # Errors
/// See [`ModelError`].
pub fn score(
    model: &mut dyn LanguageModel,
    context: &ScoreContext<'_>,
) -> Result<Scores, ModelError> {
    let ScoreContext { sequence, tokens, tree, cancel, .. } = *context;
    let logits = model.logits(&LogitsContext { sequence, tokens, tree, first_row: 0, cancel })?;
    let sampler = context.sampling.sampler(tokens, context.prompt_len);
    let features = |from: usize| {
        let features = model.features(sequence, from..tokens.len() + tree.len());
        features.ok_or(ModelError::NoFeatures)
    };
    let mut scores = Scores {
        rows: Vec::new(),
        logprobs: context.logprobs.map(|_| Vec::new()),
        features: context.features_from.map(features).transpose()?,
    };
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

/// A language model made of a [`Transformer`], or another implementation of [`Forward`], with a
/// key/value cache for every sequence.
pub struct CachedTransformer<F = Transformer> {
    transformer: F,
    caches: Caches<KvCache>,
}

impl<F: Forward> CachedTransformer<F> {
    /// Creates a model without any sequence.
    #[must_use]
    pub fn new(transformer: F) -> Self {
        Self { transformer, caches: Caches::new() }
    }

    fn check(&self, context: &LogitsContext<'_>) -> Result<(), ModelError> {
        let LogitsContext { tokens, tree, .. } = *context;
        let (context, vocab_size) = (self.context_length(), self.transformer.embedded_tokens());
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

    /// Runs passes on the sequence's cache. The cache is kept even if a pass fails.
    fn with_passes(
        &mut self,
        context: &LogitsContext<'_>,
        run: impl FnOnce(&mut Passes<'_>) -> Result<Vec<f32>, ModelError>,
    ) -> Result<Logits, ModelError> {
        self.check(context)?;
        let LogitsContext { sequence, cancel, .. } = *context;
        let cache = self.caches.take(sequence);
        let mut cache = cache.unwrap_or_else(|| self.transformer.new_cache());
        let mut passes = Passes {
            transformer: &mut self.transformer,
            cache: &mut cache,
            cancel,
            computed_tokens: 0,
        };
        let values = run(&mut passes);
        let computed_tokens = passes.computed_tokens;
        // A cancelled pass leaves the cache unchanged.
        self.caches.put(sequence, cache);
        Ok(Logits { values: values?, vocab_size: self.vocab_size(), computed_tokens })
    }

    /// Returns the cache of a sequence, if there is one. Tests inspect its contents.
    #[must_use]
    pub fn cache(&self, sequence: SequenceId) -> Option<&KvCache> {
        self.caches.get(sequence)
    }

    /// Returns the model's configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.transformer.config()
    }
}

impl<F: Forward> LanguageModel for CachedTransformer<F> {
    fn vocab_size(&self) -> usize {
        self.transformer.config().vocab_size
    }

    fn context_length(&self) -> usize {
        self.transformer.config().max_position_embeddings
    }

    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError> {
        self.with_passes(context, |passes| passes.logits(context))
    }

    fn features(&self, sequence: SequenceId, rows: Range<usize>) -> Option<FeatureRows> {
        self.cache(sequence)?.features(rows)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.caches.release(sequence);
    }
}

impl<F: Forward> LayeredModel for CachedTransformer<F> {
    fn layer_parallel_logits(
        &mut self,
        context: &LogitsContext<'_>,
        groups: &LayerGroups,
        exact: usize,
    ) -> Result<Logits, ModelError> {
        let exact = exact.min(context.tokens.len());
        self.with_passes(context, |passes| passes.layer_parallel_logits(context, groups, exact))
    }
}

/// The forward passes of one call.
struct Passes<'a> {
    transformer: &'a mut dyn Forward,
    cache: &'a mut KvCache,
    cancel: &'a AtomicBool,
    computed_tokens: usize,
}

impl Passes<'_> {
    /// Computes the requested rows exactly.
    fn logits(&mut self, request: &LogitsContext<'_>) -> Result<Vec<f32>, ModelError> {
        self.rows(request, LayerOrder::Sequential, Keep::Exact)
    }

    /// Computes the requested rows with layers in groups, after `exact` tokens. If the cache does not hold
    /// exact rows for these, computes them exactly first.
    fn layer_parallel_logits(
        &mut self,
        request: &LogitsContext<'_>,
        groups: &LayerGroups,
        exact: usize,
    ) -> Result<Vec<f32>, ModelError> {
        let LogitsContext { sequence, tokens, tree, mut first_row, .. } = *request;
        let keep = Keep::Approximate { exact };
        let mut logits = Vec::new();
        if self.seek(request, keep) < exact {
            // Bonus calibration. Its last row is either the first requested row or not needed.
            let last = self.logits(&LogitsContext::next_token(sequence, &tokens[..exact]))?;
            if exact == tokens.len() && first_row == 0 {
                (logits, first_row) = (last, 1);
            }
        }
        if first_row <= tree.len() {
            let request = LogitsContext { first_row, ..*request };
            logits.extend(self.rows(&request, LayerOrder::Groups(groups), keep)?);
        }
        Ok(logits)
    }

    /// Makes the cache keep the matching rows of the tokens and nodes before the requested rows. The
    /// requested rows themselves are always computed, even if the cache holds them. Returns the number of
    /// tokens kept.
    fn seek(&mut self, request: &LogitsContext<'_>, keep: Keep) -> usize {
        let LogitsContext { tokens, tree, first_row, .. } = *request;
        let held = match first_row.checked_sub(1) {
            Some(nodes) => self.cache.seek(tokens, &tree.first(nodes), keep),
            None => self.cache.seek(&tokens[..tokens.len() - 1], &TokenTree::new(), keep),
        };
        held.tokens
    }

    /// Seeks in the cache, computes the missing part of the prefix in passes of bounded size, and then
    /// the tree.
    fn rows(
        &mut self,
        request: &LogitsContext<'_>,
        order: LayerOrder<'_>,
        keep: Keep,
    ) -> Result<Vec<f32>, ModelError> {
        let LogitsContext { tokens, tree, first_row, .. } = *request;
        let held = self.seek(request, keep);
        let mut missing = &tokens[held..];
        while missing.len() > PREFILL_ROWS {
            let (now, later) = missing.split_at(PREFILL_ROWS);
            self.pass(&TokenTree::chain(now), now.len(), order)?;
            self.cache.seek(&tokens[..tokens.len() - later.len()], &TokenTree::new(), keep);
            missing = later;
        }
        // The last pass computes the rest of the prefix and the tree after it, as one tree.
        let mut new = TokenTree::chain(missing);
        new.graft(missing.len().checked_sub(1), tree);
        let logits = self.pass(&new, missing.len() + first_row - 1, order)?;
        Ok(logits)
    }

    /// Runs one forward pass and returns the logits of the nodes from `first_output` on.
    fn pass(
        &mut self,
        tree: &TokenTree,
        first_output: usize,
        order: LayerOrder<'_>,
    ) -> Result<Vec<f32>, ModelError> {
        let new = tree.len() - self.cache.tree_len();
        let pass = Pass::new(tree, first_output, order, self.cancel);
        let logits = self.transformer.forward(&pass, self.cache);
        let logits = logits.map_err(|_cancelled| ModelError::Cancelled)?.to_vec();
        self.computed_tokens += new;
        Ok(logits)
    }
}

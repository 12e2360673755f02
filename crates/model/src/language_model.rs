//! Language models as drafters and scorers use them: tokens in, logits out, caches inside.

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

/// Tokens of a prompt that are computed in one pass; cancellation is seen between passes too.
pub(crate) const PREFILL_ROWS: usize = 256;

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
    /// Features of a model that keeps none.
    #[error("features of the target were asked for, but it was loaded without")]
    NoFeatures,
    /// Features of too few tokens, or of another model.
    #[error(
        "the drafter needs {expected} numbers for each of {tokens} tokens from its target, but token \
         {token} has {found}"
    )]
    Features {
        /// Tokens whose features are needed.
        tokens: usize,
        /// Numbers of each.
        expected: usize,
        /// The first token whose features are not that.
        token: usize,
        /// Numbers that it has.
        found: usize,
    },
    /// The logits cannot be sampled from.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

/// What a model is asked for: the rows from `first_row` on. Row 0 predicts the token behind `tokens`, row
/// `node + 1` the one behind a node of `tree`, which hangs behind `tokens`.
#[derive(Clone, Copy)]
pub struct LogitsContext<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens before the first row.
    pub tokens: &'a [TokenId],
    /// Candidates, or masks, behind them.
    pub tree: &'a TokenTree,
    /// The first row wanted.
    pub first_row: usize,
    /// Set when the logits are no longer wanted.
    pub cancel: &'a AtomicBool,
}

impl<'a> LogitsContext<'a> {
    /// The row behind some tokens, which stays wanted.
    #[must_use]
    pub fn next_token(sequence: SequenceId, tokens: &'a [TokenId]) -> Self {
        static NOTHING: TokenTree = TokenTree::new();
        static NEVER: AtomicBool = AtomicBool::new(false);
        Self { sequence, tokens, tree: &NOTHING, first_row: 0, cancel: &NEVER }
    }
}

/// What drafters and scorers need of a model.
pub trait LanguageModel {
    /// Number of tokens in the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Largest number of tokens in a sequence.
    fn context_length(&self) -> usize;

    /// Logits of the rows that are asked for.
    ///
    /// What was computed before for the same sequence and agrees with these tokens is not computed
    /// again.
    ///
    /// # Errors
    /// See [`ModelError`].
    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError>;

    /// Features of what the last call of [`LanguageModel::logits`] was about: index `i` is token `i`,
    /// and the tree's nodes follow the tokens. `None` where the model keeps none.
    fn features(&self, _sequence: SequenceId, _rows: Range<usize>) -> Option<FeatureRows> {
        None
    }

    /// Forgets a sequence.
    fn release(&mut self, sequence: SequenceId);
}

/// A model that reads the target's features beside the tokens (EAGLE).
pub trait FeatureModel {
    /// Number of tokens in the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Largest number of tokens in a sequence.
    fn context_length(&self) -> usize;

    /// As [`LanguageModel::logits`], behind at least two tokens and the target's `features` of all of
    /// them but the last, or of more. What follows the tokens has none: the model takes its own
    /// prediction of them, and never keeps such a row for another call's tokens.
    ///
    /// # Errors
    /// See [`ModelError`].
    fn logits(
        &mut self,
        context: &LogitsContext<'_>,
        features: &Features,
    ) -> Result<Logits, ModelError>;

    /// Forgets a sequence.
    fn release(&mut self, sequence: SequenceId);
}

/// Heads that read one token's features alone (Medusa).
pub trait FeatureHeads {
    /// Number of tokens in the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Logits by each head, given the features of the last token that the target has read.
    ///
    /// # Errors
    /// [`ModelError::Features`] if they are not of the target's width.
    fn logits(&mut self, features: &[f32]) -> Result<Logits, ModelError>;
}

/// A language model of layers, which can be computed in groups. That is an approximation, for drafts
/// only: its caches tell approximate entries from exact ones, and [`LanguageModel::logits`] never uses any.
pub trait LayeredModel: LanguageModel {
    /// As [`LanguageModel::logits`], by groups of all layers behind the first `exact` tokens. Where these
    /// are not held exactly, everything fuzzy that is held is dropped, and they are computed layer by
    /// layer: EasySpec's calibration.
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
    /// The first token whose features are wanted.
    pub features_from: Option<usize>,
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

/// A [`Transformer`], or something else that computes passes, with a cache for every sequence.
pub struct CachedTransformer<F = Transformer> {
    transformer: F,
    caches: Caches<KvCache>,
}

impl<F: Forward> CachedTransformer<F> {
    /// A model without any sequence.
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

    /// Runs passes on the sequence's cache, which stays with what it then holds even if they fail.
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
        // Even a cancelled pass leaves the cache with what it held before.
        self.caches.put(sequence, cache);
        Ok(Logits { values: values?, vocab_size: self.vocab_size(), computed_tokens })
    }

    /// The cache of a sequence, if there is one. Tests look at what it holds.
    #[must_use]
    pub fn cache(&self, sequence: SequenceId) -> Option<&KvCache> {
        self.caches.get(sequence)
    }

    /// The model's shape.
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
    /// The rows as the model has them.
    fn logits(&mut self, wanted: &LogitsContext<'_>) -> Result<Vec<f32>, ModelError> {
        self.rows(wanted, LayerOrder::Sequential, Keep::Exact)
    }

    /// The rows behind `exact` tokens that are computed exactly unless they are held so, the others by
    /// groups of layers.
    fn layer_parallel_logits(
        &mut self,
        wanted: &LogitsContext<'_>,
        groups: &LayerGroups,
        exact: usize,
    ) -> Result<Vec<f32>, ModelError> {
        let LogitsContext { sequence, tokens, tree, mut first_row, .. } = *wanted;
        let keep = Keep::Approximate { exact };
        let mut logits = Vec::new();
        if self.seek(wanted, keep) < exact {
            // Bonus calibration. Its last row is the first that is wanted, or of no use.
            let last = self.logits(&LogitsContext::next_token(sequence, &tokens[..exact]))?;
            if exact == tokens.len() && first_row == 0 {
                (logits, first_row) = (last, 1);
            }
        }
        if first_row <= tree.len() {
            let wanted = LogitsContext { first_row, ..*wanted };
            logits.extend(self.rows(&wanted, LayerOrder::Groups(groups), keep)?);
        }
        Ok(logits)
    }

    /// Keeps what is held of the tokens and of the tree before the wanted rows: those have to be
    /// computed, whether or not they were before. Returns the number of tokens.
    fn seek(&mut self, wanted: &LogitsContext<'_>, keep: Keep) -> usize {
        let LogitsContext { tokens, tree, first_row, .. } = *wanted;
        let held = match first_row.checked_sub(1) {
            Some(nodes) => self.cache.seek(tokens, &tree.first(nodes), keep),
            None => self.cache.seek(&tokens[..tokens.len() - 1], &TokenTree::new(), keep),
        };
        held.tokens
    }

    /// Seeks, computes what is missing of the prefix in passes of bounded size, then the tree.
    fn rows(
        &mut self,
        wanted: &LogitsContext<'_>,
        order: LayerOrder<'_>,
        keep: Keep,
    ) -> Result<Vec<f32>, ModelError> {
        let LogitsContext { tokens, tree, first_row, .. } = *wanted;
        let held = self.seek(wanted, keep);
        let mut missing = &tokens[held..];
        while missing.len() > PREFILL_ROWS {
            let (now, later) = missing.split_at(PREFILL_ROWS);
            self.pass(&TokenTree::chain(now), now.len(), order)?;
            self.cache.seek(&tokens[..tokens.len() - later.len()], &TokenTree::new(), keep);
            missing = later;
        }
        // The rest of the prefix and the tree behind it are one tree to the forward pass.
        let mut new = TokenTree::chain(missing);
        new.graft(missing.len().checked_sub(1), tree);
        let logits = self.pass(&new, missing.len() + first_row - 1, order)?;
        Ok(logits)
    }

    /// One forward pass, with the logits of the nodes from `first_wanted` on.
    fn pass(
        &mut self,
        tree: &TokenTree,
        first_wanted: usize,
        order: LayerOrder<'_>,
    ) -> Result<Vec<f32>, ModelError> {
        let new = tree.len() - self.cache.tree_len();
        let pass = Pass::new(tree, first_wanted, order, self.cancel);
        let logits = self.transformer.forward(&pass, self.cache);
        let logits = logits.map_err(|_cancelled| ModelError::Cancelled)?.to_vec();
        self.computed_tokens += new;
        Ok(logits)
    }
}

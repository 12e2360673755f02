//! Language models as drafters and scorers use them: tokens in, logits out, caches inside.

use crate::caches::Caches;
use crate::config::Config;
use crate::kv_cache::{Keep, KvCache};
use crate::layers::{LayerGroups, LayerOrder};
use crate::pipeline::Forward;
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

    /// Features of what the last call of [`LanguageModel::logits`] was about: index `i` is token `i`,
    /// and the tree's nodes follow the tokens. `None` where the model keeps none.
    fn features(&self, _sequence: SequenceId, _rows: Range<usize>) -> Option<FeatureRows> {
        None
    }

    /// Forgets a sequence.
    fn release(&mut self, sequence: SequenceId);
}

/// The rows that a model on the target's features is asked for.
#[derive(Clone, Copy)]
pub struct FeatureContext<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens before the first row, at least two.
    pub tokens: &'a [TokenId],
    /// The target's features of all of them but the last, or more.
    pub features: &'a Features,
    /// Candidates, or masks, behind them.
    pub tree: &'a TokenTree,
    /// The first row wanted, as in [`LanguageModel::logits`].
    pub first_row: usize,
    /// Set when the logits are no longer wanted.
    pub cancel: &'a AtomicBool,
}

/// A model that reads the target's features beside the tokens (EAGLE).
pub trait FeatureModel {
    /// Number of tokens in the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Largest number of tokens in a sequence.
    fn context_length(&self) -> usize;

    /// As [`LanguageModel::logits`]. What follows the tokens has no features of the target's: the
    /// model takes its own prediction of them, and never keeps such a row for another call's tokens.
    ///
    /// # Errors
    /// See [`ModelError`].
    fn logits(&mut self, context: &FeatureContext<'_>) -> Result<Logits, ModelError>;

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

/// What a fuzzy pass is asked for: the rows of [`LanguageModel::logits`], computed by groups of layers.
#[derive(Clone, Copy)]
pub struct FuzzyContext<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens before the first row.
    pub tokens: &'a [TokenId],
    /// How many of them have to be exact. Where they are not held so, everything fuzzy that is held
    /// is dropped, and they are computed layer by layer: EasySpec's calibration.
    pub exact: usize,
    /// Candidates behind them.
    pub tree: &'a TokenTree,
    /// The first row wanted.
    pub first_row: usize,
    /// How the tokens behind the exact ones, and the tree, are computed: all layers of the model.
    pub groups: &'a LayerGroups,
    /// Set when the logits are no longer wanted.
    pub cancel: &'a AtomicBool,
}

/// A language model of layers, which can be computed in groups. That is an approximation, for drafts
/// only: its caches tell fuzzy entries from exact ones, and [`LanguageModel::logits`] never uses any.
pub trait LayeredModel: LanguageModel {
    /// As [`LanguageModel::logits`], by groups of layers.
    ///
    /// # Errors
    /// See [`ModelError`].
    fn fuzzy_logits(&mut self, context: &FuzzyContext<'_>) -> Result<Logits, ModelError>;
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
    let logits = model.logits(sequence, tokens, tree, 0, cancel)?;
    let sampler = context.sampling.behind(tokens, context.prompt_len);
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

    fn check(&self, tokens: &[TokenId], tree: &TokenTree) -> Result<(), ModelError> {
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
        sequence: SequenceId,
        cancel: &AtomicBool,
        run: impl FnOnce(&mut Passes<'_>) -> Result<Vec<f32>, ModelError>,
    ) -> Result<Logits, ModelError> {
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

    fn logits(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        tree: &TokenTree,
        first_row: usize,
        cancel: &AtomicBool,
    ) -> Result<Logits, ModelError> {
        self.check(tokens, tree)?;
        let wanted = Rows { tokens, tree, first: first_row };
        self.with_passes(sequence, cancel, |passes| passes.logits(wanted))
    }

    fn features(&self, sequence: SequenceId, rows: Range<usize>) -> Option<FeatureRows> {
        self.cache(sequence)?.features(rows)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.caches.release(sequence);
    }
}

impl<F: Forward> LayeredModel for CachedTransformer<F> {
    fn fuzzy_logits(&mut self, context: &FuzzyContext<'_>) -> Result<Logits, ModelError> {
        let FuzzyContext { sequence, tokens, tree, first_row, cancel, .. } = *context;
        self.check(tokens, tree)?;
        let wanted = Rows { tokens, tree, first: first_row };
        let (groups, exact) = (context.groups, context.exact.min(tokens.len()));
        self.with_passes(sequence, cancel, |passes| passes.fuzzy_logits(wanted, groups, exact))
    }
}

/// Rows that are wanted: those from `first` on.
#[derive(Clone, Copy)]
struct Rows<'a> {
    tokens: &'a [TokenId],
    tree: &'a TokenTree,
    first: usize,
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
    fn logits(&mut self, wanted: Rows<'_>) -> Result<Vec<f32>, ModelError> {
        self.rows(wanted, LayerOrder::Sequential, Keep::Exact)
    }

    /// The rows behind `exact` tokens that are computed exactly unless they are held so, the others by
    /// groups of layers.
    fn fuzzy_logits(
        &mut self,
        wanted: Rows<'_>,
        groups: &LayerGroups,
        exact: usize,
    ) -> Result<Vec<f32>, ModelError> {
        let Rows { tokens, tree, mut first } = wanted;
        let keep = Keep::Fuzzy { exact };
        let mut logits = Vec::new();
        if self.seek(wanted, keep) < exact {
            // Bonus calibration. Its last row is the first that is wanted, or of no use.
            let none = TokenTree::new();
            let last = self.logits(Rows { tokens: &tokens[..exact], tree: &none, first: 0 })?;
            if exact == tokens.len() && first == 0 {
                (logits, first) = (last, 1);
            }
        }
        if first <= tree.len() {
            let wanted = Rows { first, ..wanted };
            logits.extend(self.rows(wanted, LayerOrder::Groups(groups), keep)?);
        }
        Ok(logits)
    }

    /// Keeps what is held of the tokens and of the tree before the wanted rows: those have to be
    /// computed, whether or not they were before. Returns the number of tokens.
    fn seek(&mut self, wanted: Rows<'_>, keep: Keep) -> usize {
        let Rows { tokens, tree, first } = wanted;
        let held = match first.checked_sub(1) {
            Some(nodes) => self.cache.seek(tokens, &tree.first(nodes), keep),
            None => self.cache.seek(&tokens[..tokens.len() - 1], &TokenTree::new(), keep),
        };
        held.tokens
    }

    /// Seeks, computes what is missing of the prefix in passes of bounded size, then the tree.
    fn rows(
        &mut self,
        wanted: Rows<'_>,
        order: LayerOrder<'_>,
        keep: Keep,
    ) -> Result<Vec<f32>, ModelError> {
        let Rows { tokens, tree, first } = wanted;
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
        let logits = self.pass(&new, missing.len() + first - 1, order)?;
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
        let logits = self.transformer.forward(tree, first_wanted, order, self.cache, self.cancel);
        let logits = logits.map_err(|_cancelled| ModelError::Cancelled)?.to_vec();
        self.computed_tokens += new;
        Ok(logits)
    }
}

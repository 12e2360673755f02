//! Requests to a language model, their outputs, and batches of them.

use crate::{LayerOrder, ModelError};
use forerun_core::{
    AdapterId, BestTokens, FeatureRows, Features, RowLogits, RowUse, SequenceId, TokenId, TokenTree,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// A request for the rows of logits from `first_row` on.
///
/// Row 0 predicts the token after `tokens`. Row `node + 1` predicts the token after a node of
/// `tree`, which follows `tokens`.
///
/// ```rust
/// use forerun_core::{SequenceId, TokenTree};
/// use forerun_lm::ForwardRequest;
///
/// // The rows after the token 7 and after each of two candidates.
/// let tree = TokenTree::chain(&[8, 9]);
/// let request = ForwardRequest::new(SequenceId(0), &[5, 6, 7], &tree);
/// assert_eq!(request.rows(), 3);
/// assert_eq!(ForwardRequest { first_row: 2, ..request }.rows(), 1);
/// ```
#[derive(Clone, Copy)]
pub struct ForwardRequest<'a> {
    /// The sequence, under whose id the model keeps its cache.
    pub sequence: SequenceId,
    /// All tokens before the first row.
    pub tokens: &'a [TokenId],
    /// Candidates or mask tokens after `tokens`.
    pub tree: &'a TokenTree,
    /// The first requested row.
    pub first_row: usize,
    /// What is read of the requested rows. The model may return whole rows all the same.
    pub rows_for: RowUse,
    /// The adapter of the model's projections, or of the target that computed `features`.
    pub adapter: Option<AdapterId>,
    /// The order in which the layers are computed.
    pub order: LayerOrder<'a>,
    /// The number of leading tokens whose rows must be exact if `order` has groups. If the cache
    /// holds fewer exact rows, it drops all approximate rows, and the rows of these tokens are
    /// computed layer by layer (EasySpec's calibration).
    pub exact_tokens: usize,
    /// The target's features of the tokens, for models that read features.
    pub features: Option<&'a Features>,
    /// The first token whose features the output has, followed by those of all later tokens and of
    /// the tree's nodes; `None` for no features.
    pub features_from: Option<usize>,
    /// The device for the request's passes, if the model is on two.
    pub device: DeviceChoice,
    /// Set to cancel the request.
    pub cancel: &'a AtomicBool,
}

/// The device for a request's passes, if the model is on several devices that it shares with
/// another model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A free device, preferably the last.
    #[default]
    AnyFree,
    /// The first device.
    First,
    /// The last device.
    Last,
}

impl<'a> ForwardRequest<'a> {
    /// Creates an exact request for all rows of a tree, which is never cancelled.
    #[must_use]
    pub fn new(sequence: SequenceId, tokens: &'a [TokenId], tree: &'a TokenTree) -> Self {
        static NEVER_CANCELLED: AtomicBool = AtomicBool::new(false);
        Self {
            sequence,
            tokens,
            tree,
            first_row: 0,
            rows_for: RowUse::Full,
            adapter: None,
            order: LayerOrder::Sequential,
            exact_tokens: 0,
            features: None,
            features_from: None,
            device: DeviceChoice::AnyFree,
            cancel: &NEVER_CANCELLED,
        }
    }

    /// Creates an exact request for the row after some tokens, which is never cancelled.
    #[must_use]
    pub fn next_token(sequence: SequenceId, tokens: &'a [TokenId]) -> Self {
        static EMPTY_TREE: TokenTree = TokenTree::new();
        Self::new(sequence, tokens, &EMPTY_TREE)
    }

    /// Returns the number of requested rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        (self.tree.len() + 1).saturating_sub(self.first_row)
    }

    /// Returns whether the request has been cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardOutput {
    /// The requested rows: `[rows, vocab_size]`. Empty if `best` has them.
    pub logits: Vec<f32>,
    /// The best tokens of each requested row in place of its logits, if no more is read of it:
    /// `[rows]`, or empty.
    pub best: Vec<BestTokens>,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Number of tokens that had to be computed.
    pub computed_tokens: usize,
    /// The requested features.
    pub features: Option<FeatureRows>,
}

impl ForwardOutput {
    /// Returns the whole rows, in order.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> + '_ {
        debug_assert!(self.best.is_empty(), "the rows are whole");
        self.logits.chunks_exact(self.vocab_size)
    }

    /// Returns the whole rows, truncated to the tokens below `vocab_size`.
    pub fn rows_truncated_to(&self, vocab_size: usize) -> impl Iterator<Item = &[f32]> + '_ {
        self.rows().map(move |row| &row[..vocab_size.min(row.len())])
    }

    /// Returns the rows, whole or their best tokens, in order. They have the tokens below
    /// `vocab_size`, which the request for the best tokens must have named.
    pub fn rows_for_sampling(&self, vocab_size: usize) -> impl Iterator<Item = RowLogits<'_>> {
        let best = self.best.iter().map(RowLogits::Best);
        let whole = self.logits.chunks_exact(self.vocab_size);
        best.chain(whole.map(move |row| RowLogits::Full(&row[..vocab_size.min(row.len())])))
    }
}

/// The logit of a token that a drafter cannot draft, because it is not in its head or not among its
/// candidates. It is finite, but its probability is 0.
pub const EXCLUDED_LOGIT: f32 = -1e9;

/// How far a request has got.
///
/// A request may take several passes: the parts of a long prompt, or the levels of a tree. Between
/// passes, only this value and the model's caches remember it.
#[derive(Debug, Default)]
pub struct Progress {
    /// The requested rows that have been computed so far: `[rows, vocab_size]`.
    pub logits: Vec<f32>,
    /// The same of rows that are returned as their best tokens. All rows of a request are returned
    /// alike.
    pub best: Vec<BestTokens>,
    /// Number of tokens that have been computed so far.
    pub computed_tokens: usize,
    /// Most tokens of a prompt that the next pass should compute, for the sake of other requests.
    pub prompt_tokens: Option<usize>,
    /// The answer, once the request is complete.
    pub result: Option<Result<ForwardOutput, ModelError>>,
}

impl Progress {
    /// Returns the number of rows that have been computed so far.
    #[must_use]
    pub fn rows(&self, vocab_size: usize) -> usize {
        self.best.len() + self.logits.len() / vocab_size
    }

    /// Returns the answer without features, once all rows have been computed.
    #[must_use]
    pub fn take_output(&mut self, vocab_size: usize) -> ForwardOutput {
        let (logits, best) = (std::mem::take(&mut self.logits), std::mem::take(&mut self.best));
        debug_assert!(logits.is_empty() || best.is_empty(), "all rows are returned alike");
        let computed_tokens = self.computed_tokens;
        ForwardOutput { logits, best, vocab_size, computed_tokens, features: None }
    }
}

/// A request of a batch. A batch has at most one request for each sequence.
pub struct BatchEntry<'a> {
    /// The request. It must be the same in all passes.
    pub request: ForwardRequest<'a>,
    /// How far the request has got; at first, the default.
    pub progress: &'a mut Progress,
}

impl BatchEntry<'_> {
    /// Returns whether the request has an answer.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.progress.result.is_some()
    }

    /// Returns the number of tokens that have been computed so far; 0 if the request has failed.
    #[must_use]
    pub fn computed_tokens(&self) -> usize {
        match &self.progress.result {
            None => self.progress.computed_tokens,
            Some(result) => result.as_ref().map_or(0, |output| output.computed_tokens),
        }
    }

    /// Answers the request.
    pub fn complete(&mut self, result: Result<ForwardOutput, ModelError>) {
        self.progress.result = Some(result);
    }
}

/// Returns the requests that need a pass, with their indices in the batch. Answers those that have
/// been cancelled.
pub fn unfinished<'b, 'a>(
    batch: &'b mut [BatchEntry<'a>],
) -> impl Iterator<Item = (usize, &'b mut BatchEntry<'a>)> {
    batch.iter_mut().enumerate().filter_map(|(index, entry)| {
        if !entry.is_complete() && entry.request.is_cancelled() {
            entry.complete(Err(ModelError::Cancelled));
        }
        (!entry.is_complete()).then_some((index, entry))
    })
}

/// Answers every unfinished request of a batch by itself. Models that cannot compute several
/// requests in one pass use this as their forward pass.
pub fn complete_each(
    batch: &mut [BatchEntry<'_>],
    mut answer: impl FnMut(&ForwardRequest<'_>) -> Result<ForwardOutput, ModelError>,
) {
    for (_, entry) in unfinished(batch) {
        entry.complete(answer(&entry.request));
    }
}

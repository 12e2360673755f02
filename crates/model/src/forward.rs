//! Forward passes over the new tokens of several sequences, and the devices that compute them.

use forerun_cache::{HeldRows, PageStorage, StorageError};
use forerun_core::{AdapterId, BestTokens, Node, RowLogits, RowUse, TokenId, TokenTree};
use forerun_formats::{Architecture, DraftHeads};
use forerun_lm::{CachePart, DeviceChoice, LayerOrder, ModelError, Progress};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// The error of a forward pass that was cancelled between two layers.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the forward pass was cancelled")]
pub struct Cancelled;

/// Why a forward pass has no results.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PassError {
    /// No sequence needs its rows any more.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// The device has failed, or has no memory for the pass.
    #[error("{message}")]
    Device {
        /// What has failed: the message names the device.
        message: String,
    },
}

impl From<PassError> for ModelError {
    fn from(error: PassError) -> Self {
        match error {
            PassError::Cancelled(Cancelled) => Self::Cancelled,
            PassError::Device { message } => Self::Device { message },
        }
    }
}

/// Returns the error of a pass for whose rows the device has no memory.
pub(crate) fn no_storage(StorageError(message): StorageError) -> ModelError {
    ModelError::Device { message }
}

/// A forward pass over one or more sequences.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// The sequences, at least one.
    pub sequences: &'a [SequencePass<'a>],
    /// The order of the layers, for all sequences.
    pub order: LayerOrder<'a>,
    /// The device to use, if the model is on several.
    pub device: DeviceChoice,
}

/// The part of a pass that belongs to one sequence: those nodes of a tree after its cached prefix
/// that the cache does not hold yet.
#[derive(Clone, Copy)]
pub struct SequencePass<'a> {
    /// The sequence's cache. It holds the leading nodes of `tree`, and has pages for the others.
    pub cache: &'a dyn HeldRows,
    /// The nodes after the cached prefix.
    pub tree: &'a TokenTree,
    /// The first node whose logits are computed. Those of all later nodes are computed, too. It is
    /// `tree.len()` if no logits are needed, as in the first part of a long prompt.
    pub first_output: Node,
    /// What is read of the logits. Their tokens are the head's outputs. The device may return whole
    /// rows all the same.
    pub rows_for: RowUse,
    /// The adapter of the sequence's rows: one of [`Forward::adapters`].
    pub adapter: Option<AdapterId>,
    /// What each new node's row reads in addition to its token: `[new nodes]`. Empty for a model
    /// that reads tokens only.
    pub features: &'a [RowFeature<'a>],
    /// The number of the last new nodes whose hidden states are read.
    pub hidden_rows: usize,
    /// Set when the sequence's rows are no longer needed.
    pub cancel: &'a AtomicBool,
}

/// What a row reads in addition to its token, in a model that reads features.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowFeature<'a> {
    /// A feature of the target: `[feature width]`.
    Target(&'a [f32]),
    /// The same, where only the keys and values of the row are computed: that of a token before a
    /// block, or before rows on the target's keys. All rows of a pass are of this kind, or none.
    Context(&'a [f32]),
    /// The hidden state that the model itself has computed for the row before: `[hidden]`.
    Predicted(&'a [f32]),
    /// The trained feature of the row's mask token.
    Mask,
}

impl<'a> SequencePass<'a> {
    /// Creates the part of a sequence whose rows read tokens only, and whose logits are all read,
    /// but no hidden states.
    #[must_use]
    pub fn new(
        cache: &'a dyn HeldRows,
        tree: &'a TokenTree,
        first_output: Node,
        cancel: &'a AtomicBool,
    ) -> Self {
        Self {
            cache,
            tree,
            first_output,
            rows_for: RowUse::Full,
            adapter: None,
            features: &[],
            hidden_rows: 0,
            cancel,
        }
    }

    /// Returns the number of leading nodes that the cache holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.cache.tree_len()
    }

    /// Returns the number of rows to compute.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tree.len() - self.held()
    }

    /// Returns the number of rows whose logits are computed.
    #[must_use]
    pub fn output_rows(&self) -> usize {
        self.tree.len() - self.first_output
    }
}

impl Pass<'_> {
    /// Returns whether only the keys and values of the rows are computed.
    #[must_use]
    pub fn is_context(&self) -> bool {
        let mut features = self.sequences.iter().flat_map(|sequence| sequence.features);
        features.any(|feature| matches!(feature, RowFeature::Context(_)))
    }

    /// Returns whether none of the sequences needs its rows any more.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.sequences.iter().all(|sequence| sequence.cancel.load(Ordering::Relaxed))
    }

    /// Returns the rows whose hidden states are read, counted over all new nodes: a range for each
    /// sequence that has some.
    ///
    /// # Panics
    /// If more are read than a sequence has: a programming error.
    pub fn hidden_rows(&self) -> impl Iterator<Item = Range<usize>> {
        let mut end = 0;
        let ranges = self.sequences.iter().map(move |sequence| {
            assert!(sequence.hidden_rows <= sequence.rows(), "hidden states of new nodes");
            end += sequence.rows();
            end - sequence.hidden_rows..end
        });
        ranges.filter(|range| !range.is_empty())
    }

    /// Keeps those hidden states that are read, of those of all new nodes: `[rows, hidden]`.
    pub fn retain_hidden_rows(&self, hidden: &mut Vec<f32>) {
        let rows: usize = self.sequences.iter().map(SequencePass::rows).sum();
        let width = hidden.len() / rows.max(1);
        let mut kept = 0;
        for Range { start, end } in self.hidden_rows() {
            hidden.copy_within(start * width..end * width, kept);
            kept += (end - start) * width;
        }
        hidden.truncate(kept);
    }
}

/// The results of a forward pass, on the host.
#[derive(Clone, Copy, Debug)]
pub struct PassOutput<'a> {
    /// The logits of the output nodes, sequence by sequence: `[output rows, head outputs]`. Those
    /// of sequences in `best` are left out.
    pub logits: &'a [f32],
    /// For each sequence, the best outputs of each of its output nodes if no more is read of them
    /// ([`SequencePass::rows_for`]), or nothing: `[sequences][output rows]`. Empty if `logits` has
    /// all rows.
    pub best: &'a [Vec<BestTokens>],
    /// The hidden states that are read ([`SequencePass::hidden_rows`]), sequence by sequence, after
    /// the last layer and before any norm: `[read rows, hidden]`.
    pub hidden: &'a [f32],
    /// The keys and values that the storage could not hold. Rows of other sequences are not
    /// affected.
    pub overflows: &'a [CacheOverflow],
}

/// A key or a value that is too large for the number type of its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOverflow {
    /// The row, counted over all new nodes of the pass.
    pub row: usize,
    /// The layer.
    pub layer: usize,
    /// What is too large.
    pub part: CachePart,
}

/// For each part of a pass, whether it succeeded.
pub(crate) type Outcomes = Vec<Result<(), ModelError>>;

/// The output rows of a sequence: all logits, or the best outputs of each row.
#[derive(Default)]
pub(crate) struct OutputRows {
    pub(crate) logits: Vec<f32>, // [rows, head outputs]
    pub(crate) best: Vec<BestTokens>,
}

impl OutputRows {
    /// Adds a row after the others.
    pub(crate) fn push(&mut self, row: RowLogits<'_>) {
        match row {
            RowLogits::Full(logits) => self.logits.extend_from_slice(logits),
            RowLogits::Best(best) => self.best.push(best.clone()),
        }
    }

    /// Adds the rows to those of earlier passes for the same request.
    pub(crate) fn add_to(self, progress: &mut Progress) {
        let whole = self.logits.len() + progress.logits.len();
        let partial = self.best.len() + progress.best.len();
        debug_assert!(whole == 0 || partial == 0, "all rows of a request are returned alike");
        progress.best.extend(self.best);
        match progress.logits.is_empty() {
            true => progress.logits = self.logits,
            false => progress.logits.extend(self.logits),
        }
    }
}

impl PassOutput<'_> {
    /// Returns the rows of each sequence. `outputs` are their numbers.
    pub(crate) fn rows(
        &self,
        outputs: impl Iterator<Item = usize>,
        head_outputs: usize,
    ) -> Vec<OutputRows> {
        let mut logits = self.logits;
        let of_sequence = |(sequence, outputs): (usize, usize)| {
            let best = self.best.get(sequence).cloned().unwrap_or_default();
            let whole = if best.is_empty() { outputs * head_outputs } else { 0 };
            let (own, others) = logits.split_at(whole);
            logits = others;
            OutputRows { logits: own.to_vec(), best }
        };
        outputs.enumerate().map(of_sequence).collect()
    }

    /// Returns whether the parts of the pass succeeded: [`ModelError::CacheRange`] if the storage
    /// cannot hold a key or a value. `rows` are the numbers of their rows.
    pub(crate) fn outcomes(&self, rows: impl Iterator<Item = usize>) -> Outcomes {
        let mut end = 0;
        let outcome = |rows| {
            end += rows;
            let part = end - rows..end;
            match self.overflows.iter().find(|overflow| part.contains(&overflow.row)) {
                Some(&CacheOverflow { layer, part, .. }) => {
                    Err(ModelError::CacheRange { layer, part })
                }
                None => Ok(()),
            }
        };
        rows.map(outcome).collect()
    }
}

/// A model on a device, or on several: it computes forward passes. The caller owns the caches.
///
/// What a device cannot compute, it refuses when it loads the model, with
/// [`LoadError`](forerun_formats::LoadError). The final norm and the head are needed for the output
/// rows only, unless the normed states are features.
pub trait Forward {
    /// The memory of the caches' pages.
    type Storage: PageStorage;

    /// Returns what the model computes.
    fn architecture(&self) -> &Architecture;

    /// Creates a storage without pages.
    fn new_storage(&self) -> Self::Storage;

    /// Returns the number of the model's adapters.
    fn adapters(&self) -> usize {
        0
    }

    /// Computes the new nodes of all sequences. Writes their rows to `storage`, and returns the
    /// logits of all output nodes, or their best outputs where no more is read.
    ///
    /// A row's bits depend only on its own sequence's tokens up to it, never on other sequences.
    /// The caller records the rows in the caches.
    ///
    /// # Errors
    /// [`PassError::Cancelled`] once the `cancel` of all sequences is set, which is checked between
    /// layers, and [`PassError::Device`] if the device fails. Later passes may succeed.
    ///
    /// # Panics
    /// If a cache already holds a node from `first_output` on, if a token has no embedding, or if
    /// the layer groups do not cover this model's layers. All are programming errors.
    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut Self::Storage,
    ) -> Result<PassOutput<'_>, PassError>;
}

/// The first layers of a model on a device, without the embedding before them. A
/// [`SplitModel`](crate::SplitModel) joins them with the rest on another device.
pub trait ForwardLayers {
    /// The memory of the pages of these layers.
    type Storage: PageStorage;

    /// Returns the number of layers.
    fn n_layers(&self) -> usize;

    /// Creates a storage without pages. It keeps no features.
    fn new_storage(&self) -> Self::Storage;

    /// Computes the layers for the new nodes of all sequences, and writes their rows to `storage`.
    /// `inputs` are the hidden states before the first layer: `[rows, hidden]`. `kept` are the
    /// numbers of layers after which hidden states are returned, in ascending order from 1.
    ///
    /// # Errors
    /// As [`Forward::forward`].
    ///
    /// # Panics
    /// If the pass has groups of layers, or `kept` is not in order: programming errors.
    fn forward_layers(
        &mut self,
        pass: &Pass<'_>,
        inputs: &[f32],
        kept: &[usize],
        storage: &mut Self::Storage,
    ) -> Result<LayersOutput<'_>, PassError>;
}

/// The results of the first layers of a model, on the host.
#[derive(Clone, Copy, Debug)]
pub struct LayersOutput<'a> {
    /// The hidden states after each number of layers that was asked for: `[kept, rows, hidden]`.
    pub hidden: &'a [f32],
    /// The keys and values that the storage could not hold.
    pub overflows: &'a [CacheOverflow],
}

/// A model on a device that can leave its first layers to another one.
pub trait ForwardRest: Forward {
    /// Starts a pass: computes the input of the first layer for the new nodes of all sequences,
    /// `[rows, hidden]`.
    fn inputs(&mut self, pass: &Pass<'_>, storage: &mut Self::Storage) -> &[f32];

    /// Continues a pass: stores what is a feature among the hidden states after a number of layers.
    fn store_hidden(&mut self, layers: usize, hidden: &[f32], storage: &mut Self::Storage);

    /// Ends a pass: computes the layers from `first` on, and the logits. `hidden` are the hidden
    /// states before these layers: `[rows, hidden]`.
    ///
    /// # Errors
    /// As [`Forward::forward`].
    fn forward_rest(
        &mut self,
        pass: &Pass<'_>,
        first: usize,
        hidden: &[f32],
        storage: &mut Self::Storage,
    ) -> Result<PassOutput<'_>, PassError>;
}

/// Draft heads on a device. They have no cache.
pub trait ForwardHeads {
    /// Returns what the heads compute.
    fn architecture(&self) -> &DraftHeads;

    /// Computes the logits of rows, or their best tokens where no more is read. A row's bits depend
    /// only on the row.
    ///
    /// # Errors
    /// [`PassError::Device`] if the device fails. Later passes may succeed.
    fn forward(&mut self, rows: &[HeadRow<'_>]) -> Result<HeadOutput<'_>, PassError>;
}

/// The rows of draft heads, on the host.
#[derive(Clone, Copy, Debug)]
pub struct HeadOutput<'a> {
    /// The logits of the rows in their order: `[rows, outputs]`. Those of rows in `best` are left
    /// out.
    pub logits: &'a [f32],
    /// The best tokens of each row of which no more is read ([`HeadRow::rows_for`]). Empty if
    /// `logits` has all rows.
    pub best: &'a [Option<BestTokens>],
}

impl HeadOutput<'_> {
    /// Returns so many rows, in order.
    pub(crate) fn rows(&self, count: usize, outputs: usize) -> Vec<RowLogits<'_>> {
        let mut whole = self.logits.chunks_exact(outputs);
        let row = |row: usize| match self.best.get(row).and_then(Option::as_ref) {
            Some(best) => RowLogits::Best(best),
            None => RowLogits::Full(whole.next().unwrap_or_default()),
        };
        (0..count).map(row).collect()
    }
}

/// A row of a draft head.
#[derive(Clone, Copy, Debug)]
pub struct HeadRow<'a> {
    /// The head.
    pub head: usize,
    /// The state of the tokens that the target has read: `[hidden]`.
    pub state: &'a [f32],
    /// The tokens after them that the head reads: those of [`DraftHeads::tokens_read`].
    pub tokens: &'a [TokenId],
    /// What is read of the row's outputs. The device may return the whole row all the same.
    pub rows_for: RowUse,
}

impl<F: Forward + ?Sized> Forward for Box<F> {
    type Storage = F::Storage;

    fn architecture(&self) -> &Architecture {
        (**self).architecture()
    }

    fn new_storage(&self) -> Self::Storage {
        (**self).new_storage()
    }

    fn adapters(&self) -> usize {
        (**self).adapters()
    }

    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut Self::Storage,
    ) -> Result<PassOutput<'_>, PassError> {
        (**self).forward(pass, storage)
    }
}

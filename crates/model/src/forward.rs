//! Forward passes over the new tokens of several sequences, and the devices that compute them.

use crate::config::Config;
use forerun_cache::{PageStorage, SequenceCache};
use forerun_core::{Node, TokenTree};
use forerun_lm::{DeviceChoice, LayerOrder};
use std::sync::atomic::{AtomicBool, Ordering};

/// The error of a forward pass that was cancelled between two layers.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the forward pass was cancelled")]
pub struct Cancelled;

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

/// The part of a pass that belongs to one sequence: those nodes of a tree after its cached prefix that
/// the cache does not hold yet.
#[derive(Clone, Copy)]
pub struct SequencePass<'a> {
    /// The sequence's cache. It holds the leading nodes of `tree`, and has pages for the others.
    pub cache: &'a SequenceCache,
    /// The nodes after the cached prefix.
    pub tree: &'a TokenTree,
    /// The first node whose logits are computed. Those of all later nodes are computed, too.
    pub first_output: Node,
    /// The first layer's input rows for the new nodes; `None` for their tokens' embeddings.
    pub(crate) inputs: Option<Inputs<'a>>,
    /// Set when the sequence's rows are no longer needed.
    pub cancel: &'a AtomicBool,
}

/// Input rows that are not token embeddings.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) hidden: &'a [f32],     // [new nodes, hidden]
    pub(crate) embeddings: &'a [f32], // [new nodes, hidden], or empty
}

impl<'a> SequencePass<'a> {
    /// Creates the part of a sequence whose rows start from token embeddings.
    #[must_use]
    pub fn new(
        cache: &'a SequenceCache,
        tree: &'a TokenTree,
        first_output: Node,
        cancel: &'a AtomicBool,
    ) -> Self {
        Self { cache, tree, first_output, inputs: None, cancel }
    }

    /// Returns the number of leading nodes that the cache holds.
    pub(crate) fn held(&self) -> usize {
        self.cache.index().tree_len()
    }

    /// Returns the number of rows to compute.
    pub(crate) fn rows(&self) -> usize {
        self.tree.len() - self.held()
    }

    /// Returns the number of rows whose logits are computed.
    pub(crate) fn output_rows(&self) -> usize {
        self.tree.len() - self.first_output
    }
}

impl Pass<'_> {
    /// Returns whether none of the sequences needs its rows any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.sequences.iter().all(|sequence| sequence.cancel.load(Ordering::Relaxed))
    }
}

/// A device, or several, that computes forward passes of a model. The caller owns the caches.
pub trait Forward {
    /// The memory of the caches' pages.
    type Storage: PageStorage;

    /// Returns the model's configuration.
    fn config(&self) -> &Config;

    /// Returns the number of tokens that have an embedding.
    fn embedded_tokens(&self) -> usize;

    /// Creates a storage without pages.
    fn new_storage(&self) -> Self::Storage;

    /// Computes the new nodes of all sequences. Writes their rows to `storage`, and returns the logits
    /// of all output nodes, sequence by sequence: `[output rows, vocab]`.
    ///
    /// A row's bits depend only on its own sequence's tokens up to it, never on other sequences. The
    /// caller records the rows in the caches.
    ///
    /// # Errors
    /// [`Cancelled`] once the `cancel` of all sequences is set, which is checked between layers.
    ///
    /// # Panics
    /// If a cache already holds a node from `first_output` on, if a token has no embedding, or if the
    /// layer groups do not cover this model's layers. All are programming errors.
    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut Self::Storage,
    ) -> Result<&[f32], Cancelled>;
}

impl<F: Forward + ?Sized> Forward for Box<F> {
    type Storage = F::Storage;

    fn config(&self) -> &Config {
        (**self).config()
    }

    fn embedded_tokens(&self) -> usize {
        (**self).embedded_tokens()
    }

    fn new_storage(&self) -> Self::Storage {
        (**self).new_storage()
    }

    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut Self::Storage,
    ) -> Result<&[f32], Cancelled> {
        (**self).forward(pass, storage)
    }
}

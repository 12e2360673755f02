//! Forward passes, and the models that compute them.

use crate::config::Config;
use crate::kv_cache::KvCache;
use crate::layers::LayerOrder;
use forerun_core::{Node, TokenTree};
use std::sync::atomic::AtomicBool;

/// The error of a forward pass that was cancelled between two layers. The cache is unchanged.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the forward pass was cancelled")]
pub struct Cancelled;

/// A forward pass over those nodes of a tree that a cache does not hold yet.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    pub(crate) tree: &'a TokenTree,
    /// The first node whose logits are computed. Those of all later nodes are computed, too.
    pub(crate) first_output: Node,
    pub(crate) order: LayerOrder<'a>,
    /// The first layer's input rows for the new nodes; `None` for their tokens' embeddings.
    pub(crate) inputs: Option<Inputs<'a>>,
    /// Number of leading nodes whose rows are exact. The rows of the other nodes are approximate, for
    /// example because they are computed from predicted features.
    pub(crate) exact: usize,
    pub(crate) cancel: &'a AtomicBool,
}

/// Input rows that are not token embeddings.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) hidden: &'a [f32],     // [new nodes, hidden]
    pub(crate) embeddings: &'a [f32], // [new nodes, hidden], or empty
}

impl<'a> Pass<'a> {
    /// Creates a pass over tokens that computes the logits of the nodes from `first_output` on. It stops
    /// between two layers once `cancel` is set.
    #[must_use]
    pub fn new(
        tree: &'a TokenTree,
        first_output: Node,
        order: LayerOrder<'a>,
        cancel: &'a AtomicBool,
    ) -> Self {
        let exact = order.exact_among(tree.len());
        Self { tree, first_output, order, inputs: None, exact, cancel }
    }
}

/// A model that computes forward passes, on one device or on several. The caller owns the caches.
pub trait Forward {
    /// Returns the model's configuration.
    fn config(&self) -> &Config;

    /// Returns the number of tokens that have an embedding.
    fn embedded_tokens(&self) -> usize;

    /// Creates an empty cache for this model.
    fn new_cache(&self) -> KvCache;

    /// Computes the nodes of the pass's tree that `cache` does not hold yet, and returns the logits of
    /// the nodes from `first_output` on: `[tree.len() − first_output, vocab]`.
    ///
    /// The tree follows the cache's prefix, and the nodes that the cache holds must be its leading
    /// nodes, as after [`KvCache::seek`]. Afterwards the cache holds the whole tree, and has recorded
    /// which of its rows are exact.
    ///
    /// # Errors
    /// [`Cancelled`] once `cancel` is set, which is checked between layers.
    ///
    /// # Panics
    /// If the cache already holds a node from `first_output` on, if a token has no embedding, or if the
    /// layer groups do not cover this model's layers. All are programming errors.
    fn forward(&mut self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<&[f32], Cancelled>;
}

impl<F: Forward + ?Sized> Forward for Box<F> {
    fn config(&self) -> &Config {
        (**self).config()
    }

    fn embedded_tokens(&self) -> usize {
        (**self).embedded_tokens()
    }

    fn new_cache(&self) -> KvCache {
        (**self).new_cache()
    }

    fn forward(&mut self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<&[f32], Cancelled> {
        (**self).forward(pass, cache)
    }
}

//! What a forward pass is, and who computes it.

use crate::config::Config;
use crate::kv_cache::KvCache;
use crate::layers::LayerOrder;
use forerun_core::{Node, TokenTree};
use std::sync::atomic::AtomicBool;

/// A forward pass was cancelled between two layers; the cache holds what it held before.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the forward pass was cancelled")]
pub struct Cancelled;

/// A forward pass over the nodes of a tree that a cache does not hold.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    pub(crate) tree: &'a TokenTree,
    /// The first node whose logits are wanted.
    pub(crate) first_wanted: Node,
    pub(crate) order: LayerOrder<'a>,
    /// What the first layer reads of each new node; `None` is its token's embedding.
    pub(crate) inputs: Option<Inputs<'a>>,
    /// So many first nodes are what the model is; the others follow what is only guessed.
    pub(crate) exact: usize,
    pub(crate) cancel: &'a AtomicBool,
}

/// Rows that are made of something else than tokens.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) hidden: &'a [f32],     // [new nodes, hidden]
    pub(crate) embeddings: &'a [f32], // [new nodes, hidden], or nothing
}

impl<'a> Pass<'a> {
    /// A pass over tokens, with the logits of the nodes from `first_wanted` on, until `cancel` is set.
    #[must_use]
    pub fn new(
        tree: &'a TokenTree,
        first_wanted: Node,
        order: LayerOrder<'a>,
        cancel: &'a AtomicBool,
    ) -> Self {
        let exact = order.exact_among(tree.len());
        Self { tree, first_wanted, order, inputs: None, exact, cancel }
    }
}

/// What computes a model's forward passes, on one device or on several in turn. Caches are the caller's.
pub trait Forward {
    /// The model's shape.
    fn config(&self) -> &Config;

    /// Tokens that have an embedding.
    fn embedded_tokens(&self) -> usize;

    /// An empty cache for this model.
    fn new_cache(&self) -> KvCache;

    /// Computes the nodes of the pass's tree that `cache` does not hold yet, and returns the logits of
    /// those that are wanted: `[tree.len() − first_wanted, vocab]`.
    ///
    /// The tree hangs behind the cache's prefix, and the nodes that the cache holds must be the
    /// first of it (as [`KvCache::seek`] leaves them). Afterwards the cache holds all of the tree,
    /// and knows which of it is exact.
    ///
    /// # Errors
    /// [`Cancelled`] once `cancel` is set, looked at between layers.
    ///
    /// # Panics
    /// If a wanted node is held already, a token has no embedding, or the order's groups are not
    /// those of this model: a programming error.
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

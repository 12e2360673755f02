//! Forward passes of a single sequence, without requests. Measurements use it.

use crate::forward::{Forward, Pass, PassError, PassOutput, SequencePass};
use forerun_cache::{CacheHit, CachePool, Keep, SequenceCache, StorageError};
use forerun_core::{Node, RowUse, SequenceId, TokenTree};
use forerun_lm::{DeviceChoice, LayerOrder};
use std::sync::atomic::AtomicBool;

const SEQUENCE: SequenceId = SequenceId(0);

/// A model with the cache of one sequence.
pub struct SequenceRunner<F: Forward> {
    transformer: F,
    pool: CachePool<F::Storage>,
    rows_for: RowUse,
}

impl<F: Forward> SequenceRunner<F> {
    /// Creates a runner with an empty cache.
    #[must_use]
    pub fn new(transformer: F) -> Self {
        let mut pool = CachePool::new(transformer.new_storage(), usize::MAX);
        pool.seek(SEQUENCE, &[], &TokenTree::new(), Keep::Exact);
        Self { transformer, pool, rows_for: RowUse::Full }
    }

    /// Returns the same runner, which reads less of the rows of [`SequenceRunner::forward`] than
    /// all logits.
    #[must_use]
    pub fn with_rows_for(self, rows_for: RowUse) -> Self {
        Self { rows_for, ..self }
    }

    /// Returns the model.
    #[must_use]
    pub fn transformer(&self) -> &F {
        &self.transformer
    }

    /// Returns the model, to change what does not affect its cache.
    #[must_use]
    pub fn transformer_mut(&mut self) -> &mut F {
        &mut self.transformer
    }

    /// Keeps the longest part of `tokens` and `tree` that the cache holds. See
    /// [`CacheIndex::seek`](forerun_cache::CacheIndex::seek).
    pub fn seek(&mut self, tokens: &[u32], tree: &TokenTree, keep: Keep) -> CacheHit {
        self.pool.start_pass();
        self.pool.seek(SEQUENCE, tokens, tree, keep)
    }

    /// Returns the cache.
    ///
    /// # Panics
    /// Never: a runner always has its cache.
    #[must_use]
    pub fn cache(&self) -> &SequenceCache {
        self.pool.sequence(SEQUENCE).expect("a runner always has its cache")
    }

    /// Returns the memory of the cache.
    #[must_use]
    pub fn storage(&self) -> &F::Storage {
        self.pool.storage()
    }

    /// Computes the nodes of `tree` that the cache does not hold, with what is read of the logits
    /// of the nodes from `first_output` on.
    ///
    /// # Errors
    /// [`PassError::Cancelled`] once `cancel` is set, and [`PassError::Device`] if the device
    /// fails.
    pub fn forward(
        &mut self,
        tree: &TokenTree,
        first_output: Node,
        order: LayerOrder<'_>,
        cancel: &AtomicBool,
    ) -> Result<PassOutput<'_>, PassError> {
        self.reserve(tree, first_output)?;
        let (storage, sequences) = self.pool.storage_and_sequences();
        let part = SequencePass::new(&sequences[&SEQUENCE], tree, first_output, cancel);
        let sequences = [SequencePass { rows_for: self.rows_for, ..part }];
        let pass = Pass { sequences: &sequences, order, device: DeviceChoice::default() };
        let output = self.transformer.forward(&pass, storage)?;
        self.pool.record(SEQUENCE, tree, order.exact_among(tree.len()));
        Ok(output)
    }

    /// Calls `run` with the pass over all nodes of `tree` that the cache does not hold, and records
    /// their rows.
    ///
    /// # Errors
    /// If the device has no memory for the rows.
    pub fn with_pass<T>(
        &mut self,
        tree: &TokenTree,
        order: LayerOrder<'_>,
        run: impl FnOnce(&mut F, &Pass<'_>, &mut F::Storage) -> T,
    ) -> Result<T, PassError> {
        let never = AtomicBool::new(false);
        self.reserve(tree, tree.len())?;
        let (storage, sequences) = self.pool.storage_and_sequences();
        let cache = &sequences[&SEQUENCE];
        let sequences = [SequencePass::new(cache, tree, cache.index().tree_len(), &never)];
        let pass = Pass { sequences: &sequences, order, device: DeviceChoice::default() };
        let output = run(&mut self.transformer, &pass, storage);
        self.pool.record(SEQUENCE, tree, order.exact_among(tree.len()));
        Ok(output)
    }

    fn reserve(&mut self, tree: &TokenTree, first_output: Node) -> Result<(), PassError> {
        let reserved = self.pool.reserve(SEQUENCE, tree, first_output);
        reserved.map_err(|StorageError(message)| PassError::Device { message })
    }
}

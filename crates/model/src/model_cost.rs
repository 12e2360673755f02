//! Measures the time of a model's forward pass on a team, by the number of rows.

use crate::forward::{Forward, Pass};
use crate::kv_cache::{Keep, KvCache};
use crate::layers::{GroupParallelism, LayerOrder};
use crate::team::Team;
use crate::transformer::Transformer;
use crate::weights::Weights;
use forerun_core::{TokenId, TokenTree};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// A model with some tokens in its cache (the past), for measurements.
pub struct ModelProbe {
    transformer: Transformer,
    cache: KvCache,
    past: Vec<TokenId>,
}

impl ModelProbe {
    /// Computes a past of `past` tokens. It is shortened if the context has no space for it and for
    /// passes of up to `max_rows` rows.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>, past: usize, max_rows: usize) -> Self {
        let config = weights.config();
        let max_past = config.max_position_embeddings.saturating_sub(max_rows);
        let vocab_size = config.vocab_size;
        let past: Vec<TokenId> =
            (0..past.min(max_past)).map(|index| (index * 31 % vocab_size) as TokenId).collect();
        let transformer = Transformer::new(weights, team);
        let cache = transformer.new_cache();
        let mut probe = Self { transformer, cache, past };
        for start in (0..probe.past.len()).step_by(256) {
            let end = probe.past.len().min(start + 256);
            let chunk = TokenTree::chain(&probe.past[start..end]);
            probe.forward(&chunk, chunk.len(), LayerOrder::Sequential);
            probe.cache.seek(&probe.past[..end], &TokenTree::new(), Keep::Exact);
        }
        probe
    }

    /// Returns the probe with another way of sharing the attention of a layer group in the team.
    #[must_use]
    pub fn with_group_parallelism(self, group_parallelism: GroupParallelism) -> Self {
        Self { transformer: self.transformer.with_group_parallelism(group_parallelism), ..self }
    }

    /// Returns the number of tokens in the past.
    #[must_use]
    pub fn past(&self) -> usize {
        self.past.len()
    }

    /// Returns the size of the past's keys and values in bytes. Every pass reads them.
    #[must_use]
    pub fn past_bytes(&self) -> usize {
        self.cache.slot_bytes() * self.past.len()
    }

    /// Runs one forward pass over `rows` rows, with the logits of all of them. Returns the time in
    /// seconds.
    pub fn run(&mut self, rows: usize) -> f64 {
        self.run_in_order(rows, LayerOrder::Sequential)
    }

    /// Runs one forward pass as [`Self::run`] does, with the layers in another order.
    pub fn run_in_order(&mut self, rows: usize, order: LayerOrder<'_>) -> f64 {
        self.cache.seek(&self.past, &TokenTree::new(), Keep::Exact);
        let tree = TokenTree::chain(&vec![1; rows]);
        let started = Instant::now();
        self.forward(&tree, 0, order);
        started.elapsed().as_secs_f64()
    }

    fn forward(&mut self, tree: &TokenTree, first_row: usize, order: LayerOrder<'_>) {
        let never_cancelled = AtomicBool::new(false);
        let pass = Pass::new(tree, first_row, order, &never_cancelled);
        let logits = self.transformer.forward(&pass, &mut self.cache);
        std::hint::black_box(logits.map(<[f32]>::len).unwrap_or(0));
    }
}

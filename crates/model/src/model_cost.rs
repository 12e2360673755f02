//! What a forward pass of a model costs on a team, by its number of rows.

use crate::forward::{Forward, Pass};
use crate::kv_cache::{Keep, KvCache};
use crate::layers::{GroupWork, LayerOrder};
use crate::team::Team;
use crate::transformer::Transformer;
use crate::weights::Weights;
use forerun_core::{TokenId, TokenTree};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// A model behind a past of some tokens, ready to be measured.
pub struct ModelProbe {
    transformer: Transformer,
    cache: KvCache,
    past: Vec<TokenId>,
}

impl ModelProbe {
    /// Computes a past of `past` tokens. It is cut to what the context leaves room for.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>, past: usize, most_rows: usize) -> Self {
        let config = weights.config();
        let room = config.max_position_embeddings.saturating_sub(most_rows);
        let vocab_size = config.vocab_size;
        let past: Vec<TokenId> =
            (0..past.min(room)).map(|index| (index * 31 % vocab_size) as TokenId).collect();
        let transformer = Transformer::new(weights, team);
        let cache = transformer.new_cache();
        let mut probe = Self { transformer, cache, past };
        for end in (0..probe.past.len()).step_by(256) {
            let chunk = &probe.past[end..probe.past.len().min(end + 256)];
            let chunk = TokenTree::chain(chunk);
            probe.forward(&chunk, chunk.len(), LayerOrder::Sequential);
            let held = &probe.past[..(end + 256).min(probe.past.len())];
            probe.cache.seek(held, &TokenTree::new(), Keep::Exact);
        }
        probe
    }

    /// The same model, whose team shares the attention of a group of layers in this way.
    #[must_use]
    pub fn with_group_work(self, group_work: GroupWork) -> Self {
        Self { transformer: self.transformer.with_group_work(group_work), ..self }
    }

    /// Tokens of the past.
    #[must_use]
    pub fn past(&self) -> usize {
        self.past.len()
    }

    /// Bytes of the past's keys and values, which every pass reads.
    #[must_use]
    pub fn past_bytes(&self) -> usize {
        self.cache.slot_bytes() * self.past.len()
    }

    /// Seconds of one pass over `rows` rows, with the logits of all of them.
    pub fn run(&mut self, rows: usize) -> f64 {
        self.run_by(rows, LayerOrder::Sequential)
    }

    /// The same by another order of layers.
    pub fn run_by(&mut self, rows: usize, order: LayerOrder<'_>) -> f64 {
        self.cache.seek(&self.past, &TokenTree::new(), Keep::Exact);
        let tree = TokenTree::chain(&vec![1; rows]);
        let started = Instant::now();
        self.forward(&tree, 0, order);
        started.elapsed().as_secs_f64()
    }

    fn forward(&mut self, tree: &TokenTree, first_wanted: usize, order: LayerOrder<'_>) {
        let never = AtomicBool::new(false);
        let pass = Pass::new(tree, first_wanted, order, &never);
        let logits = self.transformer.forward(&pass, &mut self.cache);
        std::hint::black_box(logits.map(<[f32]>::len).unwrap_or(0));
    }
}

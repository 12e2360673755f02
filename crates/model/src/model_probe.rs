//! Measures the time of a model's forward pass on its device, by the number of rows.

use crate::forward::Forward;
use crate::sequence_runner::SequenceRunner;
use forerun_cache::{Keep, PAGE_ROWS, PageStorage};
use forerun_core::{RowUse, TokenId, TokenTree};
use forerun_lm::LayerOrder;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// A model with some tokens in its cache (the past), for measurements. As in greedy decoding, the
/// best token of each row is read, and a device with its own memory may return that alone.
pub struct ModelProbe<F: Forward> {
    runner: SequenceRunner<F>,
    past: Vec<TokenId>,
}

impl<F: Forward> ModelProbe<F> {
    /// Computes a past of `past` tokens. It is shortened if the context has no space for it and for
    /// passes of up to `max_rows` rows.
    #[must_use]
    pub fn new(model: F, past: usize, max_rows: usize) -> Self {
        let architecture = model.architecture();
        let max_past = architecture.context_length.saturating_sub(max_rows);
        let (vocab_size, outputs) = (architecture.vocab_size, architecture.head_size());
        let past: Vec<TokenId> =
            (0..past.min(max_past)).map(|index| token(index, vocab_size)).collect();
        let runner = SequenceRunner::new(model).with_rows_for(RowUse::best(1, outputs));
        let mut probe = Self { runner, past };
        for start in (0..probe.past.len()).step_by(256) {
            let end = probe.past.len().min(start + 256);
            let chunk = TokenTree::chain(&probe.past[start..end]);
            probe.forward(&chunk, chunk.len(), LayerOrder::Sequential);
            probe.runner.seek(&probe.past[..end], &TokenTree::new(), Keep::Exact);
        }
        probe
    }

    /// Returns the model.
    #[must_use]
    pub fn model(&self) -> &F {
        self.runner.transformer()
    }

    /// Returns the model, to change what does not affect its cache.
    #[must_use]
    pub fn model_mut(&mut self) -> &mut F {
        self.runner.transformer_mut()
    }

    /// Returns the number of tokens in the past.
    #[must_use]
    pub fn past(&self) -> usize {
        self.past.len()
    }

    /// Returns the size of the past's keys and values in bytes, and of its state if the model has
    /// recurrent layers. Every pass reads them.
    #[must_use]
    pub fn past_bytes(&self) -> usize {
        let storage = self.runner.storage();
        storage.page_bytes() / PAGE_ROWS * self.past.len() + storage.state_bytes()
    }

    /// Runs one forward pass over `rows` rows, each with its best token. Returns the time in
    /// seconds.
    pub fn run(&mut self, rows: usize) -> f64 {
        self.run_in_order(rows, LayerOrder::Sequential)
    }

    /// Runs one forward pass as [`Self::run`] does, with the layers in another order.
    pub fn run_in_order(&mut self, rows: usize, order: LayerOrder<'_>) -> f64 {
        self.runner.seek(&self.past, &TokenTree::new(), Keep::Exact);
        // Different tokens, which choose different experts in a mixture.
        let tokens: Vec<TokenId> = (0..rows).map(|row| self.measured_token(row + 7)).collect();
        let tree = TokenTree::chain(&tokens);
        let started = Instant::now();
        self.forward(&tree, 0, order);
        started.elapsed().as_secs_f64()
    }

    fn measured_token(&self, index: usize) -> TokenId {
        token(index, self.model().architecture().vocab_size)
    }

    fn forward(&mut self, tree: &TokenTree, first_row: usize, order: LayerOrder<'_>) {
        let never_cancelled = AtomicBool::new(false);
        let logits = self.runner.forward(tree, first_row, order, &never_cancelled);
        std::hint::black_box(logits.map_or(0, |output| output.logits.len()));
    }
}

/// Returns one of the tokens of measurements, which are all different in small numbers.
fn token(index: usize, vocab_size: usize) -> TokenId {
    (index * 31 % vocab_size) as TokenId
}

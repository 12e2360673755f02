//! A language model made of a device's forward passes and a pool of cache pages.

use crate::draft_logits::HeadOutputs;
use crate::forward::{Forward, Outcomes, OutputRows, Pass, SequencePass, no_storage};
use forerun_cache::{
    CacheHit, CachePool, Keep, PAGE_ROWS, PageName, PageStorage, PageStore, PoolUsage, Root,
    SequenceCache,
};
use forerun_core::{AdapterId, Node, SequenceId, TokenId, TokenTree};
use forerun_formats::{Architecture, Input};
use forerun_lm::{
    BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, LayerOrder, LayeredModel, ModelError,
    unfinished,
};
use std::sync::Arc;

/// Largest number of prompt tokens that one pass computes. Cancellation is also checked between
/// passes.
pub(crate) const PREFILL_ROWS: usize = 256;

/// A request with at most this many missing tokens joins every pass. With more it is a prompt,
/// which is computed in parts.
const DECODE_ROWS: usize = 32;

/// Memory for the pages of a model's caches, unless another budget is set.
pub const DEFAULT_CACHE_BYTES: usize = 4 << 30;

/// Memory for the pages of the caches of a drafter for a target, unless another budget is set.
pub const DRAFTER_CACHE_BYTES: usize = 1 << 30;

/// A language model made of a model on a device, and of caches of its sequences on shared pages.
///
/// Each call of [`LanguageModel::forward`] is one pass over all requests that can share it:
///
/// * A request computes the tokens that no cache holds. Whole pages of equal tokens are shared
///   between sequences. The rows that a request asks for are always computed.
/// * A prompt is computed in parts of up to 256 rows, or fewer if the request's
///   [`Progress`](forerun_lm::Progress) says so. So a pass may have rows without logits. Requests
///   with at most 32 missing tokens take part in every pass.
/// * An encoder computes each text as a whole, and shares nothing.
/// * Rows and pages of one adapter are never used with another one, or without.
/// * Requests with another order of layers, or for another device, wait for another pass.
pub struct CachedTransformer<F: Forward> {
    transformer: F,
    pool: CachePool<F::Storage>,
}

/// The next pass of a request.
struct PlannedPass<'a> {
    /// The index of its batch entry.
    entry: usize,
    request: ForwardRequest<'a>,
    /// The nodes after the cached prefix: missing tokens, and the tree after them.
    nodes: TokenTree,
    /// Number of missing tokens among them.
    missing: usize,
    /// Number of nodes that are not held.
    rows: usize,
    first_output: Node,
    order: LayerOrder<'a>,
    keep: Keep,
    /// Number of the request's tokens that are held after the pass.
    tokens_after: usize,
    /// Whether the pass completes the request.
    is_last: bool,
}

impl<F: Forward> CachedTransformer<F> {
    /// Creates a model without any sequence.
    ///
    /// # Panics
    /// If the model reads features: such models are drafters for [`EagleModel`](crate::EagleModel).
    #[must_use]
    pub fn new(transformer: F) -> Self {
        let architecture = transformer.architecture();
        assert_eq!(architecture.input, Input::Embedding, "a model that reads tokens only");
        let storage = transformer.new_storage();
        Self { pool: CachePool::with_memory(storage, DEFAULT_CACHE_BYTES), transformer }
    }

    /// Returns the model with another budget for its caches in bytes, if there is one.
    #[must_use]
    pub fn with_cache_bytes(self, bytes: Option<usize>) -> Self {
        Self { pool: self.pool.with_bytes(bytes), ..self }
    }

    /// Returns the model with another budget for its caches: a number of pages of [`PAGE_ROWS`]
    /// tokens.
    #[must_use]
    pub fn with_page_budget(self, pages: usize) -> Self {
        Self { pool: self.pool.with_budget(pages), ..self }
    }

    /// Returns the model with another budget for the states of its recurrent layers.
    #[must_use]
    pub fn with_state_budget(self, states: usize) -> Self {
        Self { pool: self.pool.with_state_budget(states), ..self }
    }

    /// Returns the model with a store for the pages of its caches. `weights` identifies its
    /// checkpoint. What else rows depend on (kernels, number types, layouts) is identified by the
    /// first page of a sample, which is computed now.
    ///
    /// Encoders, models with fewer positions than a page, and those whose pages the host cannot
    /// reach have no store.
    ///
    /// # Errors
    /// If the sample cannot be computed.
    pub fn with_store(
        mut self,
        store: Arc<dyn PageStore>,
        weights: &str,
    ) -> Result<Self, ModelError> {
        if self.architecture().is_encoder() || self.context_length() < PAGE_ROWS {
            return Ok(self);
        }
        let sequence = SequenceId(u64::MAX);
        let sample = (0..PAGE_ROWS).map(|row| (row * self.vocab_size() / PAGE_ROWS) as TokenId);
        let sample: Vec<TokenId> = sample.collect();
        self.logits(&ForwardRequest::next_token(sequence, &sample))?;
        let Some(rows) = self.pool.take_sample(sequence) else { return Ok(self) };
        let model = PageName::of_model(&[weights.as_bytes(), &rows]);
        Ok(Self { pool: self.pool.with_store(store, model), ..self })
    }

    /// Returns the model on its device.
    #[must_use]
    pub fn device(&self) -> &F {
        &self.transformer
    }

    /// Returns the cache of a sequence, if there is one. Tests inspect its contents.
    #[must_use]
    pub fn cache(&self, sequence: SequenceId) -> Option<&SequenceCache> {
        self.pool.sequence(sequence)
    }

    /// Returns the pool of cache pages.
    #[must_use]
    pub fn pool(&self) -> &CachePool<F::Storage> {
        &self.pool
    }

    /// Returns how many of the cache's pages are in use.
    #[must_use]
    pub fn cache_usage(&self) -> &Arc<PoolUsage> {
        self.pool.usage()
    }

    /// Returns what the model computes.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        self.transformer.architecture()
    }

    /// Plans the next pass of an unfinished request. `None` if it has to wait for another pass.
    /// Fails if the device has no memory for the request alone.
    fn plan<'a>(
        &mut self,
        index: usize,
        entry: &BatchEntry<'a>,
        planned: &[PlannedPass<'a>],
        prefill_rows: usize,
    ) -> Result<Option<PlannedPass<'a>>, ModelError> {
        let request = entry.request;
        let ForwardRequest { sequence, tokens, tree, adapter, .. } = request;
        self.pool.set_root(sequence, Root { adapter, ..Root::default() });
        let rows_done = entry.progress.rows(self.vocab_size());
        let mut step = Step {
            tokens: tokens.len(),
            first_row: Some(request.first_row + rows_done),
            order: request.order,
            keep: Keep::Exact,
        };
        if let LayerOrder::Groups(_) = request.order {
            let exact = request.exact_tokens.min(tokens.len());
            step.keep = Keep::Approximate { exact };
            if self.seek(&request, &step).tokens < exact {
                // Bonus calibration. Its last row is either the first requested row or not needed.
                let is_first_row = exact == tokens.len() && step.first_row == Some(0);
                let first_row = is_first_row.then_some(0);
                let (order, keep) = (LayerOrder::Sequential, Keep::Exact);
                step = Step { tokens: exact, first_row, order, keep };
            }
        }
        let is_calibration = step.order != request.order;
        if planned.first().is_some_and(|first| {
            first.order != step.order || first.request.device != request.device
        }) {
            return Ok(None);
        }
        let is_encoder = self.architecture().is_encoder();
        let held = match is_encoder {
            // All rows read one another, so a text is always computed as a whole.
            true => self.pool.seek(sequence, &[], &TokenTree::new(), Keep::Exact).tokens,
            false => self.seek(&request, &step).tokens,
        };
        let missing = &tokens[held..step.tokens];
        let (now, is_part) = match missing.len() {
            few if few <= DECODE_ROWS => (missing, false),
            many if is_encoder => match many > prefill_rows && !planned.is_empty() {
                true => return Ok(None),
                false => (missing, false),
            },
            _ if waits_for_another(&request, held, planned) || prefill_rows == 0 => {
                return Ok(None);
            }
            many if many > prefill_rows => (&missing[..prefill_rows], true),
            _ => (missing, false),
        };
        let mut nodes = TokenTree::chain(now);
        let mut first_output = nodes.len();
        if let (false, Some(first_row)) = (is_part, step.first_row) {
            if !is_calibration {
                nodes.graft(now.len().checked_sub(1), tree);
            }
            first_output = now.len() + first_row - 1;
        }
        let outputs = nodes.len() - first_output;
        let has_room = self.pool.free_slots() >= nodes.len() + PAGE_ROWS
            && self.pool.has_room_for_states(sequence, nodes.len(), outputs);
        if !planned.is_empty() && !has_room {
            return Ok(None);
        }
        match self.pool.reserve(sequence, &nodes, first_output) {
            // Once the pass is over, the pages of its sequences can be taken.
            Err(_) if !planned.is_empty() => return Ok(None),
            reserved => reserved.map_err(no_storage)?,
        }
        let held_nodes = self.pool.sequence(sequence).map_or(0, |cache| cache.index().tree_len());
        let rows_after = rows_done + nodes.len() - first_output;
        Ok(Some(PlannedPass {
            entry: index,
            request,
            missing: now.len(),
            rows: nodes.len() - held_nodes,
            first_output,
            order: step.order,
            keep: step.keep,
            tokens_after: held + now.len(),
            is_last: !is_part && rows_after == request.rows(),
            nodes,
        }))
    }

    /// Makes the cache keep the matching rows of the tokens and nodes before the step's first row.
    /// The requested rows themselves are always computed, even if the cache holds them.
    fn seek(&mut self, request: &ForwardRequest<'_>, step: &Step<'_>) -> CacheHit {
        let (tokens, tree) = (&request.tokens[..step.tokens], request.tree);
        let none = TokenTree::new();
        match step.first_row {
            Some(0) => {
                self.pool.seek(request.sequence, &tokens[..tokens.len() - 1], &none, step.keep)
            }
            Some(row) => self.pool.seek(request.sequence, tokens, &tree.first(row - 1), step.keep),
            None => self.pool.seek(request.sequence, tokens, &none, step.keep),
        }
    }

    /// Adds the features that a complete request asks for.
    fn with_features(
        &self,
        output: ForwardOutput,
        request: &ForwardRequest<'_>,
    ) -> Result<ForwardOutput, ModelError> {
        let Some(from) = request.features_from else { return Ok(output) };
        let cache = self.pool.sequence(request.sequence).ok_or(ModelError::NoFeatures)?;
        let end = request.tokens.len() + request.tree.len();
        let slots = from.min(end)..end;
        let features = self.pool.storage().features(cache.table(), slots);
        Ok(ForwardOutput { features: Some(features.ok_or(ModelError::NoFeatures)?), ..output })
    }

    /// Runs the planned passes as one, and records the rows of those that succeed. Returns the
    /// output rows of all of them, and whether each succeeded.
    fn run(
        &mut self,
        planned: &[PlannedPass<'_>],
    ) -> Result<(Vec<OutputRows>, Outcomes), ModelError> {
        let outputs = HeadOutputs::from(self.transformer.architecture());
        let (storage, sequences) = self.pool.storage_and_sequences();
        let parts = planned.iter().map(|plan| {
            let cache = &sequences[&plan.request.sequence];
            let part =
                SequencePass::new(cache, &plan.nodes, plan.first_output, plan.request.cancel);
            let rows_for = outputs.read_for(plan.request.rows_for);
            SequencePass { rows_for, adapter: plan.request.adapter, ..part }
        });
        let parts: Vec<SequencePass<'_>> = parts.collect();
        let (order, device) = (planned[0].order, planned[0].request.device);
        let pass = Pass { sequences: &parts, order, device };
        let output = self.transformer.forward(&pass, storage);
        let output = output.map_err(ModelError::from)?;
        let rows = output.rows(parts.iter().map(SequencePass::output_rows), outputs.count());
        let outcomes = output.outcomes(planned.iter().map(|plan| plan.rows));
        for (plan, outcome) in planned.iter().zip(&outcomes) {
            if outcome.is_err() {
                continue;
            }
            let PlannedPass { request, nodes, keep, tokens_after, missing, .. } = plan;
            self.pool.record(request.sequence, nodes, order.exact_among(nodes.len()));
            // Other sequences can use the pages of a prompt at once, but not those of an encoder.
            let is_shared = !self.transformer.architecture().is_encoder();
            if is_shared && tokens_after / PAGE_ROWS > (tokens_after - missing) / PAGE_ROWS {
                let tree = request.tree.first(nodes.len() - missing);
                self.pool.share(request.sequence, &request.tokens[..*tokens_after], &tree, *keep);
            }
        }
        Ok((rows, outcomes))
    }
}

/// What a request's next pass has to compute: all of its first tokens that are not held, and the
/// rows from `first_row` on, if they are needed.
struct Step<'a> {
    tokens: usize,
    first_row: Option<usize>,
    order: LayerOrder<'a>,
    keep: Keep,
}

/// Returns whether an earlier request of the pass computes pages that this one can use afterwards.
fn waits_for_another(
    request: &ForwardRequest<'_>,
    held: usize,
    planned: &[PlannedPass<'_>],
) -> bool {
    let end = (held / PAGE_ROWS + 1) * PAGE_ROWS;
    let start = request.tokens.get(..end);
    let computes = |plan: &PlannedPass<'_>, start| {
        plan.request.adapter == request.adapter && plan.request.tokens.starts_with(start)
    };
    start.is_some_and(|start| planned.iter().any(|plan| computes(plan, start)))
}

/// Checks that a model of this size can compute a request.
pub(crate) fn check_request(
    request: &ForwardRequest<'_>,
    context: usize,
    vocab_size: usize,
) -> Result<(), ModelError> {
    let ForwardRequest { tokens, tree, .. } = *request;
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

impl<F: Forward> LanguageModel for CachedTransformer<F> {
    fn vocab_size(&self) -> usize {
        self.architecture().vocab_size
    }

    fn context_length(&self) -> usize {
        self.architecture().context_length
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        self.pool.start_pass();
        let adapters = self.transformer.adapters();
        for (_, entry) in unfinished(batch) {
            let ForwardRequest { sequence, adapter, .. } = entry.request;
            if let Some(AdapterId(missing)) = adapter.filter(|id| id.0 as usize >= adapters) {
                entry.complete(Err(ModelError::Adapter(missing)));
                continue;
            }
            self.pool.protect_states(sequence);
        }
        let most = batch.iter().filter_map(|entry| entry.progress.prompt_tokens);
        let (mut planned, mut prefill_rows) = (Vec::new(), most.fold(PREFILL_ROWS, usize::min));
        for (index, entry) in unfinished(batch) {
            let embedded = self.architecture().embedded_tokens();
            if let Err(error) = check_request(&entry.request, self.context_length(), embedded) {
                entry.complete(Err(error));
                continue;
            }
            match self.plan(index, entry, &planned, prefill_rows) {
                Ok(Some(plan)) => {
                    if plan.missing > DECODE_ROWS || !plan.is_last {
                        prefill_rows = prefill_rows.saturating_sub(plan.missing);
                    }
                    planned.push(plan);
                }
                Ok(None) => {}
                Err(error) => entry.complete(Err(error)),
            }
        }
        if planned.is_empty() {
            return;
        }
        match self.run(&planned) {
            // A pass of its own may have the memory that a shared one lacks.
            Err(ModelError::Device { .. }) if planned.len() > 1 => {
                for plan in planned {
                    let alone = vec![plan];
                    let output = self.run(&alone);
                    self.finish(batch, alone, output);
                }
            }
            output => self.finish(batch, planned, output),
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.pool.release(sequence);
    }
}

impl<F: Forward> CachedTransformer<F> {
    /// Passes the rows of a pass on to the requests that it was for, or its error.
    fn finish(
        &mut self,
        batch: &mut [BatchEntry<'_>],
        planned: Vec<PlannedPass<'_>>,
        output: Result<(Vec<OutputRows>, Outcomes), ModelError>,
    ) {
        let (rows, outcomes) = match output {
            Ok(output) => output,
            Err(error) => {
                planned.iter().for_each(|plan| batch[plan.entry].complete(Err(error.clone())));
                return;
            }
        };
        let (vocab_size, outputs) = (self.vocab_size(), HeadOutputs::from(self.architecture()));
        for ((plan, rows), outcome) in planned.into_iter().zip(rows).zip(outcomes) {
            if let Err(error) = outcome {
                batch[plan.entry].complete(Err(error));
                continue;
            }
            let progress = &mut *batch[plan.entry].progress;
            outputs.expand(rows, plan.request.rows_for).add_to(progress);
            progress.computed_tokens += plan.rows;
            if plan.is_last {
                let output = progress.take_output(vocab_size);
                let result = self.with_features(output, &plan.request);
                progress.result = Some(result);
            }
        }
    }
}

impl<F: Forward> LayeredModel for CachedTransformer<F> {}

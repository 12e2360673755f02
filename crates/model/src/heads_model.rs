//! Draft heads, which read hidden states of the target.
//!
//! *Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads*, Cai et al.
//! 2024, arXiv 2401.10774, section 2.1.1. A head reads the last hidden state of the target, and no
//! token.
//!
//! *Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding*, Ankner et al. 2024, arXiv
//! 2402.05109, sections 3 and 4. A head also reads the tokens after that state:
//!
//! 1. The *state* is the target's last hidden state after the tokens that it has read. For Hydra++
//!    it is the normed output of a prefix layer, which has the target's shape and reads the
//!    features of all tokens so far.
//! 2. Head `h` reads the state, the last token and `h` drafted ones.
//! 3. The rows of a tree level share a head.
//!
//! Only the prefix layer has a cache. A token's state depends on the features up to that token, and
//! these depend on the tokens up to it, so the cache can compare tokens like any other.

use crate::cached_transformer::{DRAFTER_CACHE_BYTES, PREFILL_ROWS};
use crate::draft_logits::HeadOutputs;
use crate::forward::{
    Forward, ForwardHeads, HeadRow, OutputRows, Pass, RowFeature, SequencePass, no_storage,
};
use forerun_cache::{CachePool, Keep, PAGE_ROWS, PageStorage, Root};
use forerun_core::{Features, SequenceId, TokenId, TokenTree, node_of_row};
use forerun_formats::DraftHeads;
use forerun_lm::{
    BatchEntry, DeviceChoice, FeatureModel, ForwardRequest, LanguageModel, LayerOrder, ModelError,
    unfinished,
};

/// Medusa or Hydra heads on a device.
pub struct HeadsModel<H: ForwardHeads, F: Forward> {
    heads: H,
    /// The prefix layer of Hydra++. Its storage stores the states as features.
    prefix: Option<PrefixLayer<F>>,
}

/// The prefix layer of Hydra++, with the caches of its sequences.
struct PrefixLayer<F: Forward> {
    transformer: F,
    pool: CachePool<F::Storage>,
}

/// A request whose state is known.
struct ReadyRequest<'a> {
    /// The index of its batch entry.
    entry: usize,
    request: ForwardRequest<'a>,
    state: Vec<f32>, // [hidden]
}

/// The requests whose states are known after a pass, and the batch entries of those that failed.
#[derive(Default)]
struct States<'a> {
    ready: Vec<ReadyRequest<'a>>,
    failed: Vec<(usize, ModelError)>,
}

impl<H: ForwardHeads, F: Forward> HeadsModel<H, F> {
    /// Creates a model from heads on a device. `prefix` is their prefix layer, if they have one. It
    /// must store the last hidden state as features.
    #[must_use]
    pub fn new(heads: H, prefix: Option<F>) -> Self {
        let with_cache = |transformer: F| {
            let pool = CachePool::with_memory(transformer.new_storage(), DRAFTER_CACHE_BYTES);
            PrefixLayer { transformer, pool }
        };
        Self { heads, prefix: prefix.map(with_cache) }
    }

    /// Returns the model with another budget for its caches in bytes, if there is one.
    #[must_use]
    pub fn with_cache_bytes(self, bytes: Option<usize>) -> Self {
        let with_bytes =
            |prefix: PrefixLayer<F>| PrefixLayer { pool: prefix.pool.with_bytes(bytes), ..prefix };
        Self { prefix: self.prefix.map(with_bytes), ..self }
    }

    /// Returns the number of heads: the largest number of positions that can be drafted.
    #[must_use]
    pub fn n_heads(&self) -> usize {
        self.architecture().n_heads
    }

    fn architecture(&self) -> &DraftHeads {
        self.heads.architecture()
    }

    fn check<'a>(&self, request: &ForwardRequest<'a>) -> Result<&'a Features, ModelError> {
        let ForwardRequest { tokens, tree, .. } = *request;
        let architecture = self.architecture();
        let (vocab_size, context) = (architecture.vocab_size, architecture.context_length);
        if tokens.len() < 2 {
            return Err(ModelError::Empty);
        }
        if tokens.len() - 1 > context {
            return Err(ModelError::Context { position: tokens.len() - 2, context });
        }
        let n_heads = architecture.n_heads;
        if tree.max_depth() >= n_heads {
            return Err(ModelError::Context { position: tree.max_depth(), context: n_heads });
        }
        let mut all = tokens.iter().chain(tree.tokens());
        if let Some(&token) = all.find(|&&token| token as usize >= vocab_size) {
            return Err(ModelError::Token { token, vocab_size });
        }
        let (count, expected) = (tokens.len() - 1, architecture.hidden_size);
        let token = request.features.map_or(0, Features::len);
        let Some(features) = request.features.filter(|_| token >= count) else {
            return Err(ModelError::Features { tokens: count, expected, token, found: 0 });
        };
        // Without a prefix layer, only the last token's feature is read.
        let first = if self.prefix.is_some() { 0 } else { count - 1 };
        let widths = features.rows_from(first).take(count - first).map(<[f32]>::len);
        match (first..).zip(widths).find(|&(_, found)| found != expected) {
            Some((token, found)) => {
                Err(ModelError::Features { tokens: count, expected, token, found })
            }
            None => Ok(features),
        }
    }

    /// Computes the states of requests. Those of long prompts need several calls.
    fn states<'a>(
        &mut self,
        checked: Vec<(usize, ForwardRequest<'a>, &'a Features)>,
    ) -> Result<States<'a>, ModelError> {
        let Some(prefix) = &mut self.prefix else {
            let ready = checked.into_iter().map(|(entry, request, features)| {
                let last = features.rows_from(request.tokens.len() - 2).next();
                ReadyRequest { entry, request, state: last.unwrap_or_default().to_vec() }
            });
            return Ok(States { ready: ready.collect(), failed: Vec::new() });
        };
        prefix.states(checked)
    }

    /// Computes the rows of requests in one pass of the heads. Returns those of each request.
    fn rows(&mut self, ready: &[ReadyRequest<'_>]) -> Result<Vec<OutputRows>, ModelError> {
        let (mut paths, mut places) = (Vec::new(), Vec::new());
        for (index, ReadyRequest { request, .. }) in ready.iter().enumerate() {
            let ForwardRequest { tokens, tree, first_row, .. } = *request;
            let last = tokens[tokens.len() - 1];
            let mut of_depth: Vec<Option<usize>> = vec![None; tree.max_depth() + 1];
            let mut of_request = Vec::new();
            for row in first_row..=tree.len() {
                let node = node_of_row(row);
                let depth = node.map_or(0, |node| tree.depth(node));
                let reads = self.architecture().tokens_read(depth);
                // A head that reads no token has the same row for all nodes of a level.
                let known = of_depth[depth].filter(|_| reads == 0);
                let place = known.unwrap_or_else(|| {
                    let path = node.map_or(Vec::new(), |node| tree.path(node));
                    let path = path.into_iter().map(|node| tree.token(node));
                    let tokens: Vec<TokenId> = [last].into_iter().chain(path).take(reads).collect();
                    paths.push((index, depth, tokens));
                    paths.len() - 1
                });
                of_depth[depth] = Some(place);
                of_request.push(place);
            }
            places.push(of_request);
        }
        let outputs = HeadOutputs::from(self.architecture());
        let rows = paths.iter().map(|(index, head, tokens)| HeadRow {
            head: *head,
            state: &ready[*index].state,
            tokens,
            rows_for: outputs.read_for(ready[*index].request.rows_for),
        });
        let rows: Vec<HeadRow<'_>> = rows.collect();
        let computed = self.heads.forward(&rows).map_err(ModelError::from)?;
        let computed = computed.rows(rows.len(), outputs.count());
        let of_request = |(places, ready): (Vec<usize>, &ReadyRequest<'_>)| {
            let mut rows = OutputRows::default();
            places.into_iter().for_each(|place| rows.push(computed[place]));
            outputs.expand(rows, ready.request.rows_for)
        };
        Ok(places.into_iter().zip(ready).map(of_request).collect())
    }
}

impl<F: Forward> PrefixLayer<F> {
    /// Runs the layer once, on the features of those tokens for which the caches hold no state.
    /// Returns the requests whose last token's state is known then.
    fn states<'a>(
        &mut self,
        checked: Vec<(usize, ForwardRequest<'a>, &'a Features)>,
    ) -> Result<States<'a>, ModelError> {
        let Self { transformer, pool } = self;
        pool.start_pass();
        let (none, mut rows_left) = (TokenTree::new(), PREFILL_ROWS);
        // For each request: the missing tokens, and their features.
        let mut missing: Vec<(TokenTree, Vec<RowFeature<'_>>, usize)> = Vec::new();
        for (_, request, features) in &checked {
            let read = &request.tokens[..request.tokens.len() - 1];
            let root = Root { adapter: request.adapter, ..Root::default() };
            pool.set_root(request.sequence, root);
            let held = pool.seek(request.sequence, read, &none, Keep::Exact).tokens;
            let mut end = read.len().min(held + rows_left);
            if !missing.is_empty() && pool.free_slots() < end - held + PAGE_ROWS {
                end = held;
            }
            rows_left -= end - held;
            let rows = features.rows_from(held).take(end - held).map(RowFeature::Target);
            let tree = TokenTree::chain(&read[held..end]);
            pool.reserve(request.sequence, &tree, tree.len()).map_err(no_storage)?;
            missing.push((tree, rows.collect(), end));
        }
        let (storage, sequences) = pool.storage_and_sequences();
        let parts = checked.iter().zip(&missing).filter(|(_, (tree, ..))| !tree.is_empty()).map(
            |((_, request, _), (tree, features, _))| {
                let cache = &sequences[&request.sequence];
                // No logits are requested, so the head is never computed.
                let part = SequencePass::new(cache, tree, tree.len(), request.cancel);
                SequencePass { features, ..part }
            },
        );
        let parts: Vec<SequencePass<'_>> = parts.collect();
        let mut outcomes = vec![Ok(()); checked.len()];
        if !parts.is_empty() {
            let (order, device) = (LayerOrder::Sequential, DeviceChoice::default());
            let pass = Pass { sequences: &parts, order, device };
            let output = transformer.forward(&pass, storage);
            let output = output.map_err(ModelError::from)?;
            // Requests without missing tokens have no rows.
            outcomes = output.outcomes(missing.iter().map(|(tree, ..)| tree.len()));
        }
        let mut states = States::default();
        let checked = checked.into_iter().zip(missing).zip(outcomes);
        for (((entry, request, _), (tree, _, end)), outcome) in checked {
            if let Err(error) = outcome {
                states.failed.push((entry, error));
                continue;
            }
            let read = &request.tokens[..request.tokens.len() - 1];
            pool.record(request.sequence, &tree, tree.len());
            pool.seek(request.sequence, &read[..end], &none, Keep::Exact);
            if end == read.len() {
                let table = pool.sequence(request.sequence).map(|cache| cache.table());
                let last = pool.storage().features(table.unwrap_or_default(), end - 1..end);
                let state = last.and_then(|rows| rows.row(0).map(<[f32]>::to_vec));
                states.ready.push(ReadyRequest {
                    entry,
                    request,
                    state: state.unwrap_or_default(),
                });
            }
        }
        Ok(states)
    }
}

impl<H: ForwardHeads, F: Forward> LanguageModel for HeadsModel<H, F> {
    fn vocab_size(&self) -> usize {
        self.architecture().vocab_size
    }

    fn context_length(&self) -> usize {
        self.architecture().context_length
    }

    /// See [`LanguageModel::forward`]. A row after a node whose depth is the number of heads or
    /// more is [`ModelError::Context`].
    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        let mut checked = Vec::new();
        for (index, entry) in unfinished(batch) {
            match self.check(&entry.request) {
                Ok(features) => checked.push((index, entry.request, features)),
                Err(error) => entry.complete(Err(error)),
            }
        }
        let entries: Vec<usize> = checked.iter().map(|(entry, ..)| *entry).collect();
        let States { ready, failed } = match self.states(checked) {
            Ok(states) => states,
            Err(error) => {
                entries.iter().for_each(|&entry| batch[entry].complete(Err(error.clone())));
                return;
            }
        };
        failed.into_iter().for_each(|(entry, error)| batch[entry].complete(Err(error)));
        let vocab_size = self.vocab_size();
        let rows = match self.rows(&ready) {
            Ok(rows) => rows,
            Err(error) => {
                ready.iter().for_each(|ready| batch[ready.entry].complete(Err(error.clone())));
                return;
            }
        };
        for (ReadyRequest { entry, request, .. }, rows) in ready.into_iter().zip(rows) {
            let progress = &mut *batch[entry].progress;
            progress.computed_tokens += request.rows();
            rows.add_to(progress);
            progress.result = Some(Ok(progress.take_output(vocab_size)));
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        if let Some(prefix) = &mut self.prefix {
            prefix.pool.release(sequence);
        }
    }
}

impl<H: ForwardHeads, F: Forward> FeatureModel for HeadsModel<H, F> {}

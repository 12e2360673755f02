//! Drafters that read the target's features of the tokens, and draft in one pass of masks: DFlash
//! and PARD-2.
//!
//! *DFlash: Block Diffusion for Flash Speculative Decoding*, 2026, arXiv 2602.06036, section 4.
//!
//! 1. The context is all tokens but the last. A token has keys and values in every layer, which are
//!    computed from the target's features of it alone, at its own position. It has no hidden
//!    states.
//! 2. The block is the last token and masks, at the positions after the context. Its rows attend to
//!    the context and to one another: to those before them, if the drafter is causal (JetSpec,
//!    arXiv 2606.18394). The row of a mask predicts the token in its place.
//! 3. The rows of the context are kept; those of a block never are.
//!
//! DSpark (arXiv 2607.05147) drafts from the hidden states of the block as well: a request for
//! features gets them.
//!
//! A round takes a pass that adds the newly accepted tokens to the context, and a pass over the
//! block.
//!
//! *PARD-2: Target-Aligned Parallel Draft Model for Dual-Mode Speculative Decoding*, An et al.
//! 2026, arXiv 2605.08632.
//!
//! 1. The row of each token reads the features of the token before it. The first token reads zeros.
//! 2. Masks follow the tokens. All of them read the last features that are known.
//! 3. The rows of the tokens are kept; those of masks never are.
//!
//! A round takes one pass over the newly accepted tokens and the masks.

use crate::cached_transformer::{DRAFTER_CACHE_BYTES, PREFILL_ROWS, check_request};
use crate::draft_logits::HeadOutputs;
use crate::forward::{Forward, Outcomes, OutputRows, Pass, RowFeature, SequencePass, no_storage};
use forerun_cache::{CachePool, Keep, Root, SequenceCache};
use forerun_core::{FeatureRows, Features, Node, SequenceId, TokenTree};
use forerun_formats::{Architecture, Input};
use forerun_lm::{
    BatchEntry, DeviceChoice, FeatureModel, ForwardOutput, ForwardRequest, LanguageModel,
    LayerOrder, ModelError, unfinished,
};
use std::ops::Range;
use std::sync::Arc;

/// A block drafter on a device, with caches of its sequences.
///
/// A request's block is its last token and its tree, which must be a chain. Its rows may depend on
/// the whole block, so a request's rows are computed in one pass; a shorter block of a causal
/// drafter has the same first rows. A request that asks for features gets the hidden states of the
/// rows of its block after the last layer, before the final norm: `[block, hidden]`. The first
/// token that it asks for makes no difference.
///
/// A model that adds features to the embeddings (PARD-2) reads any tree after the tokens in place
/// of a block, and has no hidden states for requests.
pub struct BlockModel<F: Forward> {
    transformer: F,
    pool: CachePool<F::Storage>,
    /// What the first token reads in place of the features of a token before it.
    no_feature: Arc<[f32]>,
}

/// The next pass of a request.
struct PlannedPass<'a> {
    /// The index of its batch entry.
    entry: usize,
    request: ForwardRequest<'a>,
    /// The rows to compute.
    nodes: TokenTree,
    /// The number of rows that stay in the cache.
    kept: usize,
    /// The first node whose logits are computed.
    first_output: Node,
    /// The features of the rows; empty for the block of DFlash.
    features: Vec<Feature<'a>>,
    /// Whether the pass completes the request.
    is_last: bool,
}

impl PlannedPass<'_> {
    /// Returns the number of rows whose hidden states are read: those of a block whose request asks
    /// for them.
    fn hidden_rows(&self) -> usize {
        let is_read = self.is_last && self.request.features_from.is_some();
        if is_read { self.nodes.len() } else { 0 }
    }
}

/// What a row reads in addition to its token.
enum Feature<'a> {
    OfContext(&'a [f32]),
    OfTarget(&'a [f32]),
    None(Arc<[f32]>),
}

impl Feature<'_> {
    fn row(&self) -> RowFeature<'_> {
        match self {
            Self::OfContext(values) => RowFeature::Context(values),
            Self::OfTarget(values) => RowFeature::Target(values),
            Self::None(values) => RowFeature::Target(values),
        }
    }
}

/// The results of a pass: its output rows, and the hidden states that are read.
struct BlockRows {
    outputs: Vec<OutputRows>,
    hidden: Vec<f32>, // [read rows, hidden]
}

impl<F: Forward> BlockModel<F> {
    /// Creates a drafter from its layers on a device.
    #[must_use]
    pub fn new(transformer: F) -> Self {
        let pool = CachePool::with_memory(transformer.new_storage(), DRAFTER_CACHE_BYTES);
        let width = transformer.architecture().feature_width();
        Self { transformer, pool, no_feature: vec![0.0; width].into() }
    }

    /// Returns the drafter with another budget for its caches in bytes, if there is one.
    #[must_use]
    pub fn with_cache_bytes(self, bytes: Option<usize>) -> Self {
        Self { pool: self.pool.with_bytes(bytes), ..self }
    }

    /// Returns the layers on their device.
    #[must_use]
    pub fn device(&self) -> &F {
        &self.transformer
    }

    /// Returns the cache of a sequence, if there is one. Tests inspect its contents.
    #[must_use]
    pub fn cache(&self, sequence: SequenceId) -> Option<&SequenceCache> {
        self.pool.sequence(sequence)
    }

    fn architecture(&self) -> &Architecture {
        self.transformer.architecture()
    }

    /// Plans the next pass of an unfinished request, over at most `prefill_rows` rows of its
    /// context. `None` if it has to wait for another pass.
    fn plan<'a>(
        &mut self,
        entry: usize,
        request: ForwardRequest<'a>,
        prefill_rows: usize,
    ) -> Result<Option<PlannedPass<'a>>, ModelError> {
        let root = Root { adapter: request.adapter, ..Root::default() };
        self.pool.set_root(request.sequence, root);
        if let Input::EmbeddingPlusFeature { .. } = self.architecture().input {
            return self.plan_tokens_and_masks(entry, request, prefill_rows);
        }
        let features = context_features(&request, self.architecture())?;
        let ForwardRequest { sequence, tokens, tree, first_row, .. } = request;
        let (context, block) = tokens.split_at(tokens.len() - 1);
        let held = self.pool.seek(sequence, context, &TokenTree::new(), Keep::Exact).tokens;
        let missing = &context[held..];
        if !missing.is_empty() && prefill_rows == 0 {
            return Ok(None);
        }
        let missing = &missing[..missing.len().min(prefill_rows)];
        let sizes = (context.len(), self.architecture().feature_width());
        let rows = feature_rows(features, held..held + missing.len(), sizes)?;
        let features = rows.into_iter().map(Feature::OfContext).collect();
        let mut nodes = TokenTree::chain(if missing.is_empty() { block } else { missing });
        let (mut first_output, is_last) = (nodes.len(), missing.is_empty());
        if is_last {
            nodes.graft(Some(0), tree);
            first_output = first_row;
        }
        self.pool.reserve(sequence, &nodes, nodes.len()).map_err(no_storage)?;
        let kept = missing.len();
        Ok(Some(PlannedPass { entry, request, nodes, kept, first_output, features, is_last }))
    }

    /// Plans the next pass of a model that adds features to the embeddings: tokens, and after the
    /// last one the tree.
    fn plan_tokens_and_masks<'a>(
        &mut self,
        entry: usize,
        request: ForwardRequest<'a>,
        prefill_rows: usize,
    ) -> Result<Option<PlannedPass<'a>>, ModelError> {
        let features = context_features(&request, self.architecture())?;
        let ForwardRequest { sequence, tokens, tree, first_row, .. } = request;
        // The row of the last token is always computed, because it predicts.
        let before = &tokens[..tokens.len() - 1];
        let held = self.pool.seek(sequence, before, &TokenTree::new(), Keep::Exact).tokens;
        let missing = &tokens[held..];
        let is_last = missing.len() <= prefill_rows;
        if !is_last && prefill_rows == 0 {
            return Ok(None);
        }
        let missing = &missing[..missing.len().min(prefill_rows)];
        // The row of token `p` reads the features of token `p - 1`.
        let read = held.saturating_sub(1)..held + missing.len() - 1;
        let sizes = (before.len(), self.architecture().feature_width());
        let rows = feature_rows(features, read, sizes)?;
        let none = || Feature::None(Arc::clone(&self.no_feature));
        let mut features: Vec<Feature<'a>> = Vec::new();
        if held == 0 {
            features.push(none());
        }
        let last = rows.last().copied();
        features.extend(rows.into_iter().map(Feature::OfTarget));
        let mut nodes = TokenTree::chain(missing);
        let mut first_output = nodes.len();
        if is_last {
            nodes.graft(Some(missing.len() - 1), tree);
            first_output = missing.len() - 1 + first_row;
            features.extend((0..tree.len()).map(|_| last.map_or_else(none, Feature::OfTarget)));
        }
        self.pool.reserve(sequence, &nodes, nodes.len()).map_err(no_storage)?;
        let kept = missing.len();
        Ok(Some(PlannedPass { entry, request, nodes, kept, first_output, features, is_last }))
    }

    /// Runs the planned passes as one, and records the rows that stay in the cache of those that
    /// succeed. Returns the results of all of them, and whether each succeeded.
    fn run(&mut self, planned: &[PlannedPass<'_>]) -> Result<(BlockRows, Outcomes), ModelError> {
        let Self { transformer, pool, .. } = self;
        let head = HeadOutputs::from(transformer.architecture());
        let (storage, sequences) = pool.storage_and_sequences();
        let features = planned.iter().map(|plan| plan.features.iter().map(Feature::row).collect());
        let features: Vec<Vec<RowFeature<'_>>> = features.collect();
        let parts = planned.iter().zip(&features).map(|(plan, features)| {
            let PlannedPass { request, nodes, first_output, .. } = plan;
            let cache = &sequences[&request.sequence];
            let part = SequencePass::new(cache, nodes, *first_output, request.cancel);
            let rows_for = head.read_for(request.rows_for);
            SequencePass { rows_for, features, hidden_rows: plan.hidden_rows(), ..part }
        });
        let parts: Vec<SequencePass<'_>> = parts.collect();
        let (order, device) = (LayerOrder::Sequential, DeviceChoice::default());
        let output = transformer.forward(&Pass { sequences: &parts, order, device }, storage);
        let output = output.map_err(ModelError::from)?;
        let outcomes = output.outcomes(planned.iter().map(|plan| plan.nodes.len()));
        let outputs = output.rows(parts.iter().map(SequencePass::output_rows), head.count());
        let rows = BlockRows { outputs, hidden: output.hidden.to_vec() };
        for (plan, _) in planned.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            if plan.kept > 0 {
                pool.record(plan.request.sequence, &plan.nodes, plan.kept);
            }
        }
        Ok((rows, outcomes))
    }
}

impl<F: Forward> LanguageModel for BlockModel<F> {
    fn vocab_size(&self) -> usize {
        self.architecture().vocab_size
    }

    fn context_length(&self) -> usize {
        self.architecture().context_length
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        self.pool.start_pass();
        let (mut planned, mut prefill_rows) = (Vec::<PlannedPass<'_>>::new(), PREFILL_ROWS);
        for (index, entry) in unfinished(batch) {
            match self.plan(index, entry.request, prefill_rows) {
                Ok(Some(plan)) => {
                    prefill_rows -= plan.kept;
                    planned.push(plan);
                }
                Ok(None) => {}
                Err(error) => entry.complete(Err(error)),
            }
        }
        // A pass is of rows with features or of blocks. Contexts come first, so that the blocks
        // share a pass.
        let has_features = |plan: &PlannedPass<'_>| !plan.features.is_empty();
        if planned.iter().any(has_features) {
            planned.retain(has_features);
        }
        if planned.is_empty() {
            return;
        }
        let (BlockRows { outputs, hidden }, outcomes) = match self.run(&planned) {
            Ok(output) => output,
            Err(error) => {
                planned.iter().for_each(|plan| batch[plan.entry].complete(Err(error.clone())));
                return;
            }
        };
        let (vocab_size, size) = (self.vocab_size(), self.architecture().hidden_size);
        let head = HeadOutputs::from(self.architecture());
        let mut hidden = hidden.chunks(size);
        for ((plan, rows), outcome) in planned.into_iter().zip(outputs).zip(outcomes) {
            let hidden: Vec<f32> =
                hidden.by_ref().take(plan.hidden_rows()).flatten().copied().collect();
            if let Err(error) = outcome {
                batch[plan.entry].complete(Err(error));
                continue;
            }
            let progress = &mut *batch[plan.entry].progress;
            progress.computed_tokens += plan.nodes.len();
            if plan.is_last {
                head.expand(rows, plan.request.rows_for).add_to(progress);
                let output = progress.take_output(vocab_size);
                let features = plan.request.features_from.map(|_| FeatureRows::new(size, hidden));
                progress.result = Some(Ok(ForwardOutput { features, ..output }));
            }
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.pool.release(sequence);
    }
}

impl<F: Forward> FeatureModel for BlockModel<F> {}

/// Checks a request, and returns the features of its context: all its tokens but the last.
pub(crate) fn context_features<'a>(
    request: &ForwardRequest<'a>,
    model: &Architecture,
) -> Result<&'a Features, ModelError> {
    check_request(request, model.context_length, model.embedded_tokens())?;
    let context = request.tokens.len() - 1;
    let token = request.features.map_or(0, Features::len);
    match request.features {
        Some(features) if token >= context => Ok(features),
        _ => {
            let expected = model.feature_width();
            Err(ModelError::Features { tokens: context, expected, token, found: 0 })
        }
    }
}

/// Returns the features of these tokens, of a context of so many tokens, with a width.
pub(crate) fn feature_rows(
    features: &Features,
    read: Range<usize>,
    (tokens, expected): (usize, usize),
) -> Result<Vec<&[f32]>, ModelError> {
    let rows: Vec<&[f32]> = features.rows_from(read.start).take(read.len()).collect();
    match rows.iter().position(|row| row.len() != expected) {
        Some(row) => {
            let (token, found) = (read.start + row, rows[row].len());
            Err(ModelError::Features { tokens, expected, token, found })
        }
        None => Ok(rows),
    }
}

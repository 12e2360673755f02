//! Drafters whose rows attend to keys and values of the target: Gemma 4's assistants.
//!
//! 1. The context is all tokens but the last. Its keys and values are the target's, in some of its
//!    layers. They are computed from the hidden states that the target reports as features.
//! 2. A row reads a token and the hidden state before it: the target's for the last token, and for
//!    a candidate what the row above predicts. It attends to the context, and neither to itself nor
//!    to other rows. All rows are at the position of the last token.
//! 3. The rows of the context are kept; others never are.
//!
//! A round takes a pass that adds the newly accepted tokens to the context, and a pass for each
//! depth of the draft.

use crate::block_model::{context_features, feature_rows};
use crate::cached_transformer::{DRAFTER_CACHE_BYTES, PREFILL_ROWS};
use crate::draft_logits::HeadOutputs;
use crate::forward::{Forward, Outcomes, OutputRows, Pass, RowFeature, SequencePass, no_storage};
use forerun_cache::{CachePool, Keep, Root, SequenceCache};
use forerun_core::{Node, SequenceId, TokenId, TokenTree, node_of_row, row_of};
use forerun_formats::Architecture;
use forerun_lm::{
    BatchEntry, DeviceChoice, FeatureModel, ForwardRequest, LanguageModel, LayerOrder, ModelError,
    unfinished,
};
use std::collections::HashMap;
use std::ops::Range;

/// A drafter on the target's keys and values on a device, with caches of its sequences.
pub struct TargetKeysModel<F: Forward> {
    transformer: F,
    pool: CachePool<F::Storage>,
    rounds: HashMap<SequenceId, Round>,
}

/// The rows after a context that have been computed.
#[derive(Default)]
struct Round {
    /// The number of tokens of the request, and the last of them.
    tokens: usize,
    last: TokenId,
    tree: TokenTree,
    /// The hidden states of the row of the last token and of those of the tree's nodes.
    states: Vec<f32>, // [rows, hidden]
}

/// The next pass of a request.
struct PlannedPass<'a> {
    /// The index of its batch entry.
    entry: usize,
    request: ForwardRequest<'a>,
    /// The tokens of the rows: a chain of the context, or siblings after it.
    nodes: TokenTree,
    first_output: Node,
    /// The target's features of the context's rows, or of the token before the last one.
    features: Vec<&'a [f32]>,
    /// The request's rows that the pass computes; `None` for a part of the context.
    rows: Option<Range<usize>>,
}

impl PlannedPass<'_> {
    /// Returns what the rows read in addition to their tokens.
    fn row_features<'r>(&'r self, round: &'r Round, size: usize) -> Vec<RowFeature<'r>> {
        let Some(rows) = &self.rows else {
            return self.features.iter().copied().map(RowFeature::Context).collect();
        };
        let feature = |row| match row_above(self.request.tree, row) {
            None => RowFeature::Target(self.features[0]),
            Some(above) => RowFeature::Predicted(&round.states[above * size..][..size]),
        };
        rows.clone().map(feature).collect()
    }

    /// Returns the number of rows whose hidden states are read.
    fn hidden_rows(&self) -> usize {
        self.rows.as_ref().map_or(0, ExactSizeIterator::len)
    }
}

/// Returns the row that predicts what this row of a tree reads.
fn row_above(tree: &TokenTree, row: usize) -> Option<usize> {
    node_of_row(row).map(|node| row_of(tree.parent(node)))
}

impl Round {
    /// Keeps the first rows that are those of a request: at most `most`, and at most all but the
    /// last of the request. Returns their number.
    fn resume(&mut self, request: &ForwardRequest<'_>, most: usize, size: usize) -> usize {
        let (tree, tokens) = (request.tree, request.tokens);
        let last = tokens.last().copied().unwrap_or_default();
        let goes_on = (self.tokens, self.last) == (tokens.len(), last) && !self.states.is_empty();
        let is_common = |&node: &Node| {
            self.tree.parent(node) == tree.parent(node) && self.tree.token(node) == tree.token(node)
        };
        let common = (0..self.tree.len().min(tree.len())).take_while(is_common).count();
        let kept = if goes_on { (1 + common).min(most).min(tree.len()) } else { 0 };
        (self.tokens, self.last) = (tokens.len(), last);
        self.states.truncate(kept * size);
        self.tree.copy_from(tree, kept.saturating_sub(1));
        kept
    }
}

impl<F: Forward> TargetKeysModel<F> {
    /// Creates a drafter from its layers on a device.
    #[must_use]
    pub fn new(transformer: F) -> Self {
        let pool = CachePool::with_memory(transformer.new_storage(), DRAFTER_CACHE_BYTES);
        Self { transformer, pool, rounds: HashMap::new() }
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
        (request, rows_done): (ForwardRequest<'a>, usize),
        prefill_rows: usize,
    ) -> Result<Option<PlannedPass<'a>>, ModelError> {
        let ForwardRequest { sequence, tokens, tree, .. } = request;
        let features = context_features(&request, self.architecture())?;
        let Some((&last, context)) = tokens.split_last().filter(|(_, rest)| !rest.is_empty())
        else {
            return Err(ModelError::Empty);
        };
        let root = Root { adapter: request.adapter, ..Root::default() };
        self.pool.set_root(sequence, root);
        let (size, width) = (self.architecture().hidden_size, self.architecture().feature_width());
        let held = self.pool.seek(sequence, context, &TokenTree::new(), Keep::Exact).tokens;
        if held < context.len() {
            self.rounds.remove(&sequence);
            let end = context.len().min(held + prefill_rows);
            if end == held {
                return Ok(None);
            }
            let features = feature_rows(features, held..end, (context.len(), width))?;
            let nodes = TokenTree::chain(&context[held..end]);
            let first_output = nodes.len();
            self.pool.reserve(sequence, &nodes, first_output).map_err(no_storage)?;
            let rows = None;
            return Ok(Some(PlannedPass { entry, request, nodes, first_output, features, rows }));
        }
        let before_last = context.len() - 1..context.len();
        let features = feature_rows(features, before_last, (context.len(), width))?;
        let wanted = request.first_row + rows_done;
        let first = self.rounds.entry(sequence).or_default().resume(&request, wanted, size);
        let is_next = |row: &usize| row_above(tree, *row).is_none_or(|above| above < first);
        let rows = first..first + (first..=tree.len()).take_while(is_next).count();
        let mut nodes = TokenTree::new();
        for row in rows.clone() {
            nodes.push(None, node_of_row(row).map_or(last, |node| tree.token(node)));
        }
        let first_output = wanted.saturating_sub(first).min(nodes.len());
        self.pool.reserve(sequence, &nodes, first_output).map_err(no_storage)?;
        let rows = Some(rows);
        Ok(Some(PlannedPass { entry, request, nodes, first_output, features, rows }))
    }

    /// Runs the planned passes as one. Keeps the rows of contexts and the hidden states of others of
    /// those that succeed. Returns the output rows of all of them, and whether each succeeded.
    fn run(
        &mut self,
        planned: &[PlannedPass<'_>],
    ) -> Result<(Vec<OutputRows>, Outcomes), ModelError> {
        let Self { transformer, pool, rounds } = self;
        let size = transformer.architecture().hidden_size;
        let head = HeadOutputs::from(transformer.architecture());
        let no_round = Round::default();
        let features = planned.iter().map(|plan| {
            let round = rounds.get(&plan.request.sequence).unwrap_or(&no_round);
            plan.row_features(round, size)
        });
        let features: Vec<Vec<RowFeature<'_>>> = features.collect();
        let (storage, sequences) = pool.storage_and_sequences();
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
        let outputs = output.rows(parts.iter().map(SequencePass::output_rows), head.count());
        let outcomes = output.outcomes(planned.iter().map(|plan| plan.nodes.len()));
        let mut states = output.hidden;
        for (plan, outcome) in planned.iter().zip(&outcomes) {
            let (own, others) = states.split_at(plan.hidden_rows() * size);
            states = others;
            let PlannedPass { request, nodes, rows, .. } = plan;
            match (outcome, rows, rounds.get_mut(&request.sequence)) {
                (Ok(()), None, _) => pool.record(request.sequence, nodes, nodes.len()),
                (Ok(()), Some(rows), Some(round)) => {
                    round.states.extend_from_slice(own);
                    round.tree.copy_from(request.tree, rows.end - 1);
                }
                _ => {}
            }
        }
        Ok((outputs, outcomes))
    }
}

impl<F: Forward> LanguageModel for TargetKeysModel<F> {
    fn vocab_size(&self) -> usize {
        self.architecture().vocab_size
    }

    fn context_length(&self) -> usize {
        self.architecture().context_length
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        self.pool.start_pass();
        let vocab_size = self.vocab_size();
        let (mut planned, mut prefill_rows) = (Vec::<PlannedPass<'_>>::new(), PREFILL_ROWS);
        for (index, entry) in unfinished(batch) {
            let rows_done = entry.progress.rows(vocab_size);
            match self.plan(index, (entry.request, rows_done), prefill_rows) {
                Ok(Some(plan)) => {
                    prefill_rows -= if plan.rows.is_none() { plan.nodes.len() } else { 0 };
                    planned.push(plan);
                }
                Ok(None) => {}
                Err(error) => entry.complete(Err(error)),
            }
        }
        // A pass is of contexts or of rows after them. Contexts come first, so that the rows share
        // a pass.
        if planned.iter().any(|plan| plan.rows.is_none()) {
            planned.retain(|plan| plan.rows.is_none());
        }
        if planned.is_empty() {
            return;
        }
        let (outputs, outcomes) = match self.run(&planned) {
            Ok(output) => output,
            Err(error) => {
                planned.iter().for_each(|plan| batch[plan.entry].complete(Err(error.clone())));
                return;
            }
        };
        let head = HeadOutputs::from(self.architecture());
        for ((plan, rows), outcome) in planned.into_iter().zip(outputs).zip(outcomes) {
            if let Err(error) = outcome {
                batch[plan.entry].complete(Err(error));
                continue;
            }
            let progress = &mut *batch[plan.entry].progress;
            progress.computed_tokens += plan.nodes.len();
            head.expand(rows, plan.request.rows_for).add_to(progress);
            if plan.rows.is_some_and(|rows| rows.end > plan.request.tree.len()) {
                progress.result = Some(Ok(progress.take_output(vocab_size)));
            }
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.rounds.remove(&sequence);
        self.pool.release(sequence);
    }
}

impl<F: Forward> FeatureModel for TargetKeysModel<F> {}

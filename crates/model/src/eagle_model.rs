//! EAGLE: draft layers that read the target's features in addition to tokens.
//!
//! *EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty*, Li et al. 2024, arXiv
//! 2401.15077, section 3.1; with masks as in *ParallelSpec*, Xiao et al. 2024, arXiv 2410.05589.
//!
//! 1. Row `i` combines token `i + 1` with the target's feature `f[i]`:
//!    `fc(cat(embedding, feature))`, at RoPE position `i`. So `n` tokens give `n − 1` rows.
//! 2. The layers' output for the row predicts `f[i + 1]`. The target's head on this prediction
//!    predicts token `i + 2`.
//! 3. After the last token there are no features of the target. A candidate's row uses the feature
//!    that the row before it predicts (EAGLE); a mask's row uses the mask's own trained feature
//!    (ParallelSpec).
//! 4. Only rows that were computed from the target's features are kept. Rows that were computed
//!    from predicted features are computed again each round.
//!
//! EAGLE-3 (Li et al. 2025, arXiv 2503.01840) differs in the input of a row: `fc(feature)`, or the
//! predicted feature itself, or its norm in EAGLE-3.1. The embedding is a separate input of the
//! attention.
//!
//! The cache marks rows that were computed from predicted features as approximate. Each round
//! starts with the exact rows.

use crate::cached_transformer::{DRAFTER_CACHE_BYTES, PREFILL_ROWS, check_request};
use crate::draft_logits::HeadOutputs;
use crate::forward::{Forward, Outcomes, OutputRows, Pass, RowFeature, SequencePass, no_storage};
use forerun_cache::{CachePool, Keep, PageStorage, Root, SequenceCache};
use forerun_core::{Features, Node, SequenceId, TokenId, TokenTree, row_of};
use forerun_formats::Architecture;
use forerun_lm::{
    BatchEntry, DeviceChoice, FeatureModel, ForwardRequest, LanguageModel, LayerOrder, ModelError,
    unfinished,
};
use std::collections::HashMap;
use std::ops::Range;

/// An EAGLE drafter on a device, with caches of its sequences.
///
/// Slot `i` of a cache holds token `i + 1`. Token 0 has no row of its own, but all features depend
/// on it, so it is the root of the cache.
pub struct EagleModel<F: Forward> {
    transformer: F,
    pool: CachePool<F::Storage>,
    rounds: HashMap<SequenceId, Round>,
}

/// The current round of a sequence.
#[derive(Default)]
struct Round {
    /// What the request before predicted, if this one goes on with its tokens.
    earlier: Predictions,
    /// The request's tokens and its nodes before the masks.
    tokens: Vec<TokenId>,
    /// The predicted features: after the round's tokens, then after each node of its tree.
    predicted: Vec<f32>, // [1 + nodes, hidden]
    /// Number of rows with features of the target; the tree follows them.
    rows: usize,
    tree: TokenTree,
}

/// The features that a request with masks predicted. They stand in for those of the tokens after
/// the masks' positions were filled.
#[derive(Default)]
struct Predictions {
    /// The request's tokens and its nodes before the masks.
    tokens: Vec<TokenId>,
    /// The row that predicts the first feature.
    first_row: usize,
    features: Vec<f32>, // [rows, hidden]
}

/// The next pass of a request.
struct PlannedPass<'a> {
    /// The index of its batch entry.
    entry: usize,
    request: ForwardRequest<'a>,
    /// The target's features of all tokens.
    features: &'a Features,
    /// The nodes after the cached prefix: missing tokens, and the nodes of the tree after them.
    nodes: TokenTree,
    /// The rows of the missing tokens.
    missing: Range<usize>,
    first_output: Node,
    /// The request's nodes that the pass computes; `None` for a part of a long prompt.
    level: Option<Range<Node>>,
}

impl PlannedPass<'_> {
    /// Returns the request's nodes that the pass computes.
    fn level(&self) -> Range<Node> {
        self.level.clone().unwrap_or_default()
    }

    fn rows(&self) -> usize {
        self.missing.len() + self.level().len()
    }

    /// Returns the number of the last rows whose hidden states predict features: that of the last
    /// missing token, too.
    fn predictions(&self) -> usize {
        match &self.level {
            Some(level) => level.len() + usize::from(!self.missing.is_empty()),
            None => 0,
        }
    }

    /// Returns what the rows read in addition to their tokens.
    fn row_features<'r>(
        &'r self,
        round: &'r Round,
        architecture: &Architecture,
    ) -> Vec<RowFeature<'r>> {
        let (tree, size) = (self.request.tree, architecture.hidden_size);
        let of_tokens = self.features.rows_from(self.missing.start).take(self.missing.len());
        let of_node = |node| match tree.token(node) as usize {
            token if token >= architecture.vocab_size => RowFeature::Mask,
            _ => {
                let predicted = round.prediction(tree, tree.parent(node), size);
                RowFeature::Predicted(predicted.expect("the pass ends before nodes without it"))
            }
        };
        of_tokens.map(RowFeature::Target).chain(self.level().map(of_node)).collect()
    }
}

impl<F: Forward> EagleModel<F> {
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

    fn check<'a>(&self, request: &ForwardRequest<'a>) -> Result<&'a Features, ModelError> {
        let ForwardRequest { tokens, .. } = *request;
        let Some((_, shifted)) = tokens.split_first().filter(|(_, shifted)| !shifted.is_empty())
        else {
            return Err(ModelError::Empty);
        };
        let embedded = self.architecture().embedded_tokens();
        // A sequence has one row less than tokens.
        let of_rows = ForwardRequest { tokens: shifted, ..*request };
        check_request(&of_rows, self.context_length(), embedded)?;
        if let Some(&token) = tokens.first().filter(|&&token| token as usize >= embedded) {
            return Err(ModelError::Token { token, vocab_size: embedded });
        }
        let expected = self.architecture().feature_width();
        let found = request.features.map_or(0, Features::len);
        match request.features {
            Some(features) if found >= shifted.len() => Ok(features),
            _ => {
                let tokens = shifted.len();
                Err(ModelError::Features { tokens, expected, token: found, found: 0 })
            }
        }
    }

    fn architecture(&self) -> &Architecture {
        self.transformer.architecture()
    }

    /// Plans the next pass of an unfinished request. `None` if it has to wait for another pass.
    fn plan<'a>(
        &mut self,
        entry: usize,
        (request, rows_done): (ForwardRequest<'a>, usize),
        prefill_rows: usize,
    ) -> Result<Option<PlannedPass<'a>>, ModelError> {
        let features = self.check(&request)?;
        let ForwardRequest { sequence, tokens, tree, .. } = request;
        let (first_row, shifted) = (request.first_row + rows_done, &tokens[1..]);
        let root = Root { token: Some(tokens[0]), adapter: request.adapter };
        self.pool.set_root(sequence, root);
        let mut round = self.rounds.remove(&sequence).unwrap_or_default();
        let (tokens_read, earlier) = round.continued_by(&request, self.architecture());
        let mut missing: &[TokenId] = &[];
        let continued = match first_row.checked_sub(1) {
            Some(nodes) => round.resume(&mut self.pool, sequence, shifted, &tree.first(nodes)),
            None => None,
        };
        if continued.is_none() {
            // A new round. Exact rows stay, except for the last one, whose prediction is needed.
            let before = &shifted[..shifted.len() - 1];
            let held = self.pool.seek(sequence, before, &TokenTree::new(), Keep::Exact).tokens;
            missing = &shifted[held..];
            round = Round { rows: shifted.len(), ..Round::default() };
        }
        (round.tokens, round.earlier) = (tokens_read, earlier);
        let first = shifted.len() - missing.len();
        let is_part = missing.len() > prefill_rows;
        if is_part {
            missing = &missing[..prefill_rows];
        }
        if is_part && missing.is_empty() {
            return Ok(None);
        }
        let computed = first..first + missing.len();
        self.check_widths(features, computed.clone())?;
        let mut nodes = TokenTree::chain(missing);
        let (mut first_output, mut level) = (nodes.len(), None);
        if !is_part {
            let done = continued.unwrap_or(0);
            let end = self.end_of_level(&round, tree, done);
            nodes.graft(missing.len().checked_sub(1), &tree.first(end));
            // Row 0 is that of the last missing token, and row `node + 1` that of a node.
            let first_computed = if missing.is_empty() { done + 1 } else { 0 };
            first_output = first_row.max(first_computed).min(end + 1) + missing.len() - 1;
            level = Some(done..end);
        }
        self.pool.reserve(sequence, &nodes, nodes.len()).map_err(no_storage)?;
        self.rounds.insert(sequence, round);
        let missing = computed;
        Ok(Some(PlannedPass { entry, request, features, nodes, missing, first_output, level }))
    }

    fn check_widths(&self, features: &Features, rows: Range<usize>) -> Result<(), ModelError> {
        let expected = self.architecture().feature_width();
        let widths = features.rows_from(rows.start).map(<[f32]>::len);
        match rows.clone().zip(widths).find(|&(_, found)| found != expected) {
            Some((token, found)) => {
                Err(ModelError::Features { tokens: rows.end, expected, token, found })
            }
            None => Ok(()),
        }
    }

    /// Returns the first node from `done` on that needs a feature which has not been predicted yet.
    fn end_of_level(&self, round: &Round, tree: &TokenTree, done: usize) -> Node {
        let first_mask = self.architecture().vocab_size;
        let size = self.architecture().hidden_size;
        let has_input = |&node: &Node| {
            tree.token(node) as usize >= first_mask
                || round.prediction(tree, tree.parent(node), size).is_some()
        };
        (done..tree.len()).find(|node| !has_input(node)).unwrap_or(tree.len())
    }

    /// Runs the planned passes as one, and records the rows of those that succeed. Returns the
    /// output rows of all of them, and whether each succeeded.
    fn run(
        &mut self,
        planned: &[PlannedPass<'_>],
    ) -> Result<(Vec<OutputRows>, Outcomes), ModelError> {
        let Self { transformer, pool, rounds } = self;
        let no_round = Round::default();
        let features = planned.iter().map(|plan| {
            let round = rounds.get(&plan.request.sequence).unwrap_or(&no_round);
            plan.row_features(round, transformer.architecture())
        });
        let features: Vec<Vec<RowFeature<'_>>> = features.collect();
        let outputs = HeadOutputs::from(transformer.architecture());
        let (storage, sequences) = pool.storage_and_sequences();
        let parts = planned.iter().zip(&features).map(|(plan, features)| {
            let PlannedPass { request, nodes, first_output, .. } = plan;
            let cache = &sequences[&request.sequence];
            let part = SequencePass::new(cache, nodes, *first_output, request.cancel);
            let rows_for = outputs.read_for(request.rows_for);
            SequencePass { rows_for, features, hidden_rows: plan.predictions(), ..part }
        });
        let parts: Vec<SequencePass<'_>> = parts.collect();
        let (order, device) = (LayerOrder::Sequential, DeviceChoice::default());
        let size = transformer.architecture().hidden_size;
        let output = transformer.forward(&Pass { sequences: &parts, order, device }, storage);
        let output = output.map_err(ModelError::from)?;
        let rows = output.rows(parts.iter().map(SequencePass::output_rows), outputs.count());
        let outcomes = output.outcomes(planned.iter().map(PlannedPass::rows));
        let mut predicted = output.hidden;
        for (plan, outcome) in planned.iter().zip(&outcomes) {
            let PlannedPass { request, nodes, missing, level, .. } = plan;
            let (own, others) = predicted.split_at(plan.predictions() * size);
            predicted = others;
            if outcome.is_err() {
                continue;
            }
            pool.record(request.sequence, nodes, missing.len());
            let (Some(level), Some(round)) = (level, rounds.get_mut(&request.sequence)) else {
                continue;
            };
            round.predicted.extend_from_slice(own);
            round.tree.copy_from(request.tree, level.end);
        }
        Ok((rows, outcomes))
    }
}

impl<F: Forward> LanguageModel for EagleModel<F> {
    fn vocab_size(&self) -> usize {
        self.architecture().vocab_size
    }

    fn context_length(&self) -> usize {
        self.architecture().context_length
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        self.pool.start_pass();
        let vocab_size = self.vocab_size();
        let (mut planned, mut prefill_rows) = (Vec::new(), PREFILL_ROWS);
        for (index, entry) in unfinished(batch) {
            let rows_done = entry.progress.rows(vocab_size);
            match self.plan(index, (entry.request, rows_done), prefill_rows) {
                Ok(Some(plan)) => {
                    prefill_rows -= plan.missing.len();
                    planned.push(plan);
                }
                Ok(None) => {}
                Err(error) => entry.complete(Err(error)),
            }
        }
        if planned.is_empty() {
            return;
        }
        let (rows, outcomes) = match self.run(&planned) {
            Ok(output) => output,
            Err(error) => {
                planned.iter().for_each(|plan| batch[plan.entry].complete(Err(error.clone())));
                return;
            }
        };
        let outputs = HeadOutputs::from(self.architecture());
        for ((plan, rows), outcome) in planned.into_iter().zip(rows).zip(outcomes) {
            if let Err(error) = outcome {
                batch[plan.entry].complete(Err(error));
                continue;
            }
            let progress = &mut *batch[plan.entry].progress;
            outputs.expand(rows, plan.request.rows_for).add_to(progress);
            progress.computed_tokens += plan.rows();
            if plan.level.is_some_and(|level| level.end == plan.request.tree.len()) {
                progress.result = Some(Ok(progress.take_output(vocab_size)));
            }
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.rounds.remove(&sequence);
        self.pool.release(sequence);
    }
}

impl<F: Forward> FeatureModel for EagleModel<F> {}

impl Round {
    /// Returns the tokens of a request with its nodes before the masks, and what this round
    /// predicted if the request goes on with its tokens. Both are empty without masks.
    fn continued_by(
        &mut self,
        request: &ForwardRequest<'_>,
        architecture: &Architecture,
    ) -> (Vec<TokenId>, Predictions) {
        if architecture.mask_ids().is_empty() {
            return Default::default();
        }
        let nodes = request.tree.tokens().iter();
        let drafted = nodes.take_while(|&&token| (token as usize) < architecture.vocab_size);
        let tokens: Vec<TokenId> = request.tokens.iter().chain(drafted).copied().collect();
        let earlier = match self.tree.is_empty() {
            true => std::mem::take(&mut self.earlier),
            false => Predictions {
                tokens: std::mem::take(&mut self.tokens),
                first_row: self.rows - 1,
                features: self.predicted.clone(),
            },
        };
        let goes_on = tokens.starts_with(&earlier.tokens);
        (tokens, if goes_on { earlier } else { Predictions::default() })
    }

    /// Returns the predicted feature after a node of a request's tree, or after its tokens: from
    /// the row there, or from the mask that stood there before.
    fn prediction(&self, tree: &TokenTree, at: Option<Node>, size: usize) -> Option<&[f32]> {
        let of_row = |features: &'_ [f32], row: usize| -> Option<Range<usize>> {
            let range = row * size..(row + 1) * size;
            (range.end <= features.len()).then_some(range)
        };
        if let Some(range) = of_row(&self.predicted, row_of(at)) {
            return Some(&self.predicted[range]);
        }
        let row = self.rows - 1 + at.map_or(0, |node| tree.depth(node));
        let row = row.checked_sub(self.earlier.first_row)?;
        of_row(&self.earlier.features, row).map(|range| &self.earlier.features[range])
    }

    /// Makes the cache hold exactly the round's tokens and those leading nodes of its tree that
    /// `tree` has, too. Returns their number, or `None` if the round has other tokens or has lost
    /// its rows.
    fn resume(
        &mut self,
        pool: &mut CachePool<impl PageStorage>,
        sequence: SequenceId,
        shifted: &[TokenId],
        tree: &TokenTree,
    ) -> Option<usize> {
        if self.rows != shifted.len() || self.predicted.is_empty() {
            return None;
        }
        let is_common = |&node: &Node| {
            self.tree.parent(node) == tree.parent(node) && self.tree.token(node) == tree.token(node)
        };
        let common = (0..self.tree.len().min(tree.len())).take_while(is_common).count();
        let keep = Keep::Approximate { exact: shifted.len() };
        let held = pool.seek(sequence, shifted, &tree.first(common), keep);
        let size = self.predicted.len() / (self.tree.len() + 1);
        self.predicted.truncate(size * (common + 1));
        self.tree.copy_from(tree, common);
        ((held.tokens, held.nodes) == (shifted.len(), common)).then_some(common)
    }
}

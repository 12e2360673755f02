//! EAGLE: draft layers that read the target's features in addition to tokens.
//!
//! *EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty*, Li et al. 2024, arXiv
//! 2401.15077, section 3.1; with masks as in *ParallelSpec*, Xiao et al. 2024, arXiv 2410.05589.
//!
//! 1. Row `i` combines token `i + 1` with the target's feature `f[i]`: `fc(cat(embedding, feature))`, at
//!    RoPE position `i`. So `n` tokens give `n − 1` rows.
//! 2. The layers' output for the row predicts `f[i + 1]`. The target's head on this prediction predicts
//!    token `i + 2`.
//! 3. After the last token there are no features of the target. A candidate's row uses the feature that
//!    the row before it predicts (EAGLE); a mask's row uses the mask's own trained feature (ParallelSpec).
//! 4. Only rows that were computed from the target's features are kept. Rows that were computed from
//!    predicted features are computed again each round.
//!
//! EAGLE-3 (Li et al. 2025, arXiv 2503.01840) differs in the input of a row: see `Fusion`.
//!
//! The cache marks rows that were computed from predicted features as approximate. Each round starts
//! with the exact rows.

use crate::cached_transformer::{PREFILL_ROWS, check_request};
use crate::cpu_pages::CpuPages;
use crate::forward::{Forward, Inputs, Pass, SequencePass};
use crate::kernels::{Activations, linear};
use crate::speculator::EagleWeights;
use crate::team::Team;
use crate::transformer::Transformer;
use forerun_cache::{CachePool, Keep, SequenceCache};
use forerun_core::{Features, Node, SequenceId, TokenId, TokenTree};
use forerun_lm::{
    BatchEntry, DeviceChoice, FeatureModel, ForwardRequest, LanguageModel, LayerOrder, ModelError,
    unfinished,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Memory for the pages of a drafter's caches.
const CACHE_BYTES: usize = 1 << 30;

/// An EAGLE drafter on a team, with caches of its sequences.
///
/// Slot `i` of a cache holds token `i + 1`. Token 0 has no row of its own, but all features depend on
/// it, so it is the root of the cache.
pub struct EagleModel {
    weights: Arc<EagleWeights>,
    transformer: Transformer,
    fusion: Fusion,
    pool: CachePool<CpuPages>,
    rounds: HashMap<SequenceId, Round>,
}

/// The current round of a sequence.
#[derive(Default)]
struct Round {
    /// The predicted features: after the round's tokens, then after each node of its tree.
    predicted: Vec<f32>, // [1 + nodes, hidden]
    /// Number of rows with features of the target; the tree follows them.
    rows: usize,
    tree: TokenTree,
}

/// The next pass of a request.
struct PlannedPass<'a> {
    /// The index of its batch entry.
    entry: usize,
    request: ForwardRequest<'a>,
    /// The nodes after the cached prefix: missing tokens, and the nodes of the tree after them.
    nodes: TokenTree,
    /// Number of missing tokens among them.
    missing: usize,
    first_output: Node,
    /// The request's nodes that the pass computes; `None` for a part of a long prompt.
    level: Option<Range<Node>>,
    /// The pass's rows in the batch.
    rows: Range<usize>,
}

/// Computes the layers' input rows.
///
/// With EAGLE a row is `fc(cat(embedding, feature))`, for features of the target and predicted features
/// alike. With EAGLE-3 a row is `fc(features)`, or the predicted feature itself; the embeddings are a
/// separate input of the attention.
struct Fusion {
    team: Arc<Team>,
    fused: Vec<f32>,     // [fused rows, inputs of `fc`]
    predicted: Vec<f32>, // [predicted rows, hidden]
    /// For each row of the batch, whether it is the next fused or the next predicted row.
    is_fused: Vec<bool>,
    outputs: Vec<f32>,    // [fused rows, hidden]
    embeddings: Vec<f32>, // [rows, hidden]
    hidden: Vec<f32>,     // [rows, hidden]
    activations: Activations,
}

impl Fusion {
    fn new(team: Arc<Team>) -> Self {
        let [fused, predicted, outputs, embeddings, hidden] = [(); 5].map(|()| Vec::new());
        let (is_fused, activations) = (Vec::new(), Activations::default());
        Self { team, fused, predicted, is_fused, outputs, embeddings, hidden, activations }
    }

    /// Removes all rows.
    fn clear(&mut self) {
        for rows in [&mut self.fused, &mut self.predicted, &mut self.embeddings] {
            rows.clear();
        }
        self.is_fused.clear();
    }

    /// Returns the number of rows.
    fn rows(&self) -> usize {
        self.is_fused.len()
    }

    /// Adds the row of a token with a feature of the target, or with a mask's feature.
    fn add(&mut self, weights: &EagleWeights, token: TokenId, feature: &[f32]) {
        let pairs = weights.fuses_embeddings();
        embed(weights, token, if pairs { &mut self.fused } else { &mut self.embeddings });
        self.fused.extend_from_slice(feature);
        self.is_fused.push(true);
    }

    /// Adds the row of a token with a predicted feature.
    fn add_predicted(&mut self, weights: &EagleWeights, token: TokenId, prediction: &[f32]) {
        if weights.fuses_embeddings() {
            return self.add(weights, token, prediction);
        }
        embed(weights, token, &mut self.embeddings);
        self.predicted.extend_from_slice(prediction);
        self.is_fused.push(false);
    }

    /// Computes the inputs of all rows.
    fn compute(&mut self, weights: &EagleWeights) {
        let Self { team, fused, predicted, is_fused, outputs, hidden, activations, .. } = self;
        let (fusion, size) = (&weights.fusion, weights.fusion.outputs());
        outputs.resize(fused.len() / fusion.inputs() * size, 0.0);
        if !fused.is_empty() {
            linear(team, fused, fusion, activations, outputs);
        }
        let (mut outputs, mut predicted) =
            (outputs.chunks_exact(size), predicted.chunks_exact(size));
        hidden.clear();
        for &is_fused in &*is_fused {
            let row = if is_fused { outputs.next() } else { predicted.next() };
            hidden.extend_from_slice(row.unwrap_or_default());
        }
    }

    /// Returns the input rows of one sequence.
    fn inputs(&self, rows: Range<usize>) -> Inputs<'_> {
        let size = self.hidden.len() / self.rows().max(1);
        let part = rows.start * size..rows.end * size;
        let hidden = &self.hidden[part.clone()];
        Inputs { hidden, embeddings: self.embeddings.get(part).unwrap_or_default() }
    }
}

/// Appends a token's embedding to `rows`.
fn embed(weights: &EagleWeights, token: TokenId, rows: &mut Vec<f32>) {
    let start = rows.len();
    rows.resize(start + weights.layers.config.hidden_size, 0.0);
    weights.layers.embed(token, &mut rows[start..]);
}

impl EagleModel {
    /// Creates a drafter whose passes run on `team`.
    #[must_use]
    pub fn new(weights: Arc<EagleWeights>, team: Arc<Team>) -> Self {
        let transformer = Transformer::new(Arc::clone(&weights.layers), Arc::clone(&team));
        let pool = CachePool::with_memory(transformer.new_storage(), CACHE_BYTES);
        Self { weights, transformer, fusion: Fusion::new(team), pool, rounds: HashMap::new() }
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
        let embedded = self.transformer.embedded_tokens();
        // A sequence has one row less than tokens.
        let of_rows = ForwardRequest { tokens: shifted, ..*request };
        check_request(&of_rows, self.context_length(), embedded)?;
        if let Some(&token) = tokens.first().filter(|&&token| token as usize >= embedded) {
            return Err(ModelError::Token { token, vocab_size: embedded });
        }
        let expected = self.weights.feature_width();
        let found = request.features.map_or(0, Features::len);
        match request.features {
            Some(features) if found >= shifted.len() => Ok(features),
            _ => {
                let tokens = shifted.len();
                Err(ModelError::Features { tokens, expected, token: found, found: 0 })
            }
        }
    }

    /// Plans the next pass of an unfinished request, and adds its input rows. `None` if it has to wait
    /// for another pass.
    fn plan<'a>(
        &mut self,
        entry: usize,
        (request, rows_done): (ForwardRequest<'a>, usize),
        prefill_rows: usize,
    ) -> Result<Option<PlannedPass<'a>>, ModelError> {
        let features = self.check(&request)?;
        let ForwardRequest { sequence, tokens, tree, .. } = request;
        let (first_row, shifted) = (request.first_row + rows_done, &tokens[1..]);
        self.pool.set_root(sequence, tokens[0]);
        let mut round = self.rounds.remove(&sequence).unwrap_or_default();
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
        let first = shifted.len() - missing.len();
        let is_part = missing.len() > prefill_rows;
        if is_part {
            missing = &missing[..prefill_rows];
        }
        if is_part && missing.is_empty() {
            return Ok(None);
        }
        let row_start = self.fusion.rows();
        self.add_rows(missing, first, features)?;
        let mut nodes = TokenTree::chain(missing);
        let (mut first_output, mut level) = (nodes.len(), None);
        if !is_part {
            let done = continued.unwrap_or(0);
            let end = self.end_of_level(&round, tree, done);
            self.add_level(&round, tree, done..end);
            nodes.graft(missing.len().checked_sub(1), &tree.first(end));
            // Row 0 is that of the last missing token, and row `node + 1` that of a node.
            let computed = if missing.is_empty() { done + 1 } else { 0 };
            first_output = first_row.max(computed).min(end + 1) + missing.len() - 1;
            level = Some(done..end);
        }
        self.pool.reserve(sequence, nodes.len());
        self.rounds.insert(sequence, round);
        let (missing, rows) = (missing.len(), row_start..self.fusion.rows());
        Ok(Some(PlannedPass { entry, request, nodes, missing, first_output, level, rows }))
    }

    /// Adds the input rows of `tokens`, of which the first belongs to row `first`.
    fn add_rows(
        &mut self,
        tokens: &[TokenId],
        first: usize,
        features: &Features,
    ) -> Result<(), ModelError> {
        let expected = self.weights.feature_width();
        let rows = || (first..).zip(tokens).zip(features.rows_from(first));
        if let Some(((token, _), row)) = rows().find(|(_, row)| row.len() != expected) {
            let (tokens, found) = (first + tokens.len(), row.len());
            return Err(ModelError::Features { tokens, expected, token, found });
        }
        for ((_, &token), feature) in rows() {
            self.fusion.add(&self.weights, token, feature);
        }
        Ok(())
    }

    /// Adds the input rows of nodes.
    fn add_level(&mut self, round: &Round, tree: &TokenTree, level: Range<Node>) {
        let Self { weights, fusion, transformer, .. } = self;
        let size = transformer.config().hidden_size;
        for node in level {
            let token = tree.token(node);
            let row = tree.parent(node).map_or(0, |parent| parent + 1);
            match (token as usize).checked_sub(weights.layers.config.vocab_size) {
                Some(mask) => {
                    fusion.add(weights, token, &weights.mask_features[mask * size..][..size]);
                }
                None => {
                    let prediction = &round.predicted[row * size..][..size];
                    fusion.add_predicted(weights, token, prediction);
                }
            }
        }
    }

    /// Returns the first node from `done` on that needs a feature which has not been predicted yet.
    fn end_of_level(&self, round: &Round, tree: &TokenTree, done: usize) -> Node {
        let first_mask = self.weights.layers.config.vocab_size;
        let predictions = round.predicted.len() / self.transformer.config().hidden_size;
        let has_input = |&node: &Node| {
            let row = tree.parent(node).map_or(0, |parent| parent + 1);
            tree.token(node) as usize >= first_mask || row < predictions
        };
        (done..tree.len()).find(|node| !has_input(node)).unwrap_or(tree.len())
    }

    /// Runs the planned passes as one, and records their rows. Returns their logits.
    fn run(&mut self, planned: &[PlannedPass<'_>]) -> Result<Vec<f32>, ModelError> {
        self.fusion.compute(&self.weights);
        let (storage, sequences) = self.pool.storage_and_sequences();
        let parts = planned.iter().map(|plan| {
            let cache = &sequences[&plan.request.sequence];
            let inputs = Some(self.fusion.inputs(plan.rows.clone()));
            let cancel = plan.request.cancel;
            SequencePass {
                inputs,
                ..SequencePass::new(cache, &plan.nodes, plan.first_output, cancel)
            }
        });
        let parts: Vec<SequencePass<'_>> = parts.collect();
        let (order, device) = (LayerOrder::Sequential, DeviceChoice::default());
        let pass = Pass { sequences: &parts, order, device };
        let logits = self.transformer.forward(&pass, storage);
        let logits = logits.map_err(|_cancelled| ModelError::Cancelled)?.to_vec();
        let size = self.transformer.config().hidden_size;
        for plan in planned {
            let PlannedPass { request, nodes, missing, level, rows, .. } = plan;
            self.pool.record(request.sequence, nodes, *missing);
            let (Some(level), Some(round)) = (level, self.rounds.get_mut(&request.sequence)) else {
                continue;
            };
            // The row of the last missing token predicts, too.
            let predictions = level.len() + usize::from(*missing > 0);
            let hidden = &self.transformer.hidden()[..rows.end * size];
            round.predicted.extend_from_slice(&hidden[hidden.len() - predictions * size..]);
            round.tree.copy_from(request.tree, level.end);
        }
        Ok(logits)
    }
}

impl LanguageModel for EagleModel {
    fn vocab_size(&self) -> usize {
        self.transformer.config().vocab_size
    }

    fn context_length(&self) -> usize {
        self.transformer.config().max_position_embeddings
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        self.pool.start_pass();
        self.fusion.clear();
        let vocab_size = self.vocab_size();
        let (mut planned, mut prefill_rows) = (Vec::new(), PREFILL_ROWS);
        for (index, entry) in unfinished(batch) {
            let rows_done = entry.progress.logits.len() / vocab_size;
            match self.plan(index, (entry.request, rows_done), prefill_rows) {
                Ok(Some(plan)) => {
                    prefill_rows -= plan.missing;
                    planned.push(plan);
                }
                Ok(None) => {}
                Err(error) => entry.complete(Err(error)),
            }
        }
        if planned.is_empty() {
            return;
        }
        let logits = match self.run(&planned) {
            Ok(logits) => logits,
            Err(error) => {
                planned.iter().for_each(|plan| batch[plan.entry].complete(Err(error.clone())));
                return;
            }
        };
        let mut logits = &logits[..];
        let head_size = self.weights.layers.head().outputs();
        for plan in planned {
            let progress = &mut *batch[plan.entry].progress;
            let outputs = plan.nodes.len() - plan.first_output;
            let (rows, rest) = logits.split_at(outputs * head_size);
            logits = rest;
            progress.logits.extend(self.weights.expand_logits(rows.to_vec()));
            progress.computed_tokens += plan.rows.len();
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

impl FeatureModel for EagleModel {}

impl Round {
    /// Makes the cache hold exactly the round's tokens and those leading nodes of its tree that `tree`
    /// has, too. Returns their number, or `None` if the round has other tokens or has lost its rows.
    fn resume(
        &mut self,
        pool: &mut CachePool<CpuPages>,
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

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

use crate::caches::Caches;
use crate::forward::{Forward, Inputs, Pass};
use crate::kernels::{Activations, linear};
use crate::kv_cache::{Keep, KvCache};
use crate::language_model::{FeatureModel, Logits, LogitsContext, ModelError, PREFILL_ROWS};
use crate::layers::LayerOrder;
use crate::speculator::EagleWeights;
use crate::team::Team;
use crate::transformer::Transformer;
use forerun_core::{Features, Node, SequenceId, TokenId, TokenTree};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// An EAGLE drafter on a team, with a cache for every sequence.
pub struct EagleModel {
    weights: Arc<EagleWeights>,
    transformer: Transformer,
    fusion: Fusion,
    sequences: Caches<SequenceState>,
}

/// The state of one sequence.
struct SequenceState {
    /// Keys and values; slot `i` holds token `i + 1`.
    cache: KvCache,
    /// Token 0, which has no row of its own, but which all features depend on.
    first_token: Option<TokenId>,
    /// The features predicted in the current round: after its tokens, then after each node of its tree.
    predicted: Vec<f32>, // [1 + nodes, hidden]
    /// Number of the round's rows with features of the target; its tree follows them.
    rows: usize,
    /// The round's tree.
    tree: TokenTree,
}

/// Computes the layers' input rows.
///
/// With EAGLE a row is `fc(cat(embedding, feature))`, for features of the target and predicted features
/// alike. With EAGLE-3 a row is `fc(features)`, or the predicted feature itself; the embeddings are a
/// separate input of the attention.
struct Fusion {
    team: Arc<Team>,
    fused: Vec<f32>,      // [rows, inputs of `fc`]
    predicted: Vec<f32>,  // [rows after those, hidden]
    embeddings: Vec<f32>, // [rows, hidden]
    hidden: Vec<f32>,     // [rows, hidden]
    activations: Activations,
}

impl Fusion {
    fn new(team: Arc<Team>) -> Self {
        let [fused, predicted, embeddings, hidden] = [(); 4].map(|()| Vec::new());
        Self { team, fused, predicted, embeddings, hidden, activations: Activations::default() }
    }

    /// Discards rows that no pass has used.
    fn clear(&mut self) {
        for rows in [&mut self.fused, &mut self.predicted, &mut self.embeddings] {
            rows.clear();
        }
    }

    /// Adds the row of a token with a feature of the target, or with a mask's feature.
    fn add(&mut self, weights: &EagleWeights, token: TokenId, feature: &[f32]) {
        let pairs = weights.fuses_embeddings();
        embed(weights, token, if pairs { &mut self.fused } else { &mut self.embeddings });
        self.fused.extend_from_slice(feature);
    }

    /// Adds the row of a token with a predicted feature. Such rows must follow those of
    /// [`Fusion::add`].
    fn add_predicted(&mut self, weights: &EagleWeights, token: TokenId, prediction: &[f32]) {
        if weights.fuses_embeddings() {
            return self.add(weights, token, prediction);
        }
        embed(weights, token, &mut self.embeddings);
        self.predicted.extend_from_slice(prediction);
    }

    /// Computes the inputs of the rows that were added.
    fn compute(&mut self, weights: &EagleWeights) {
        let Self { team, fused, predicted, hidden, activations, .. } = self;
        let fusion = &weights.fusion;
        hidden.resize(fused.len() / fusion.inputs() * fusion.outputs(), 0.0);
        if !fused.is_empty() {
            linear(team, fused, fusion, activations, hidden);
        }
        hidden.extend_from_slice(predicted);
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
        Self { weights, transformer, fusion: Fusion::new(team), sequences: Caches::new() }
    }

    /// Returns the cache of a sequence, if there is one. Tests inspect its contents.
    #[must_use]
    pub fn cache(&self, sequence: SequenceId) -> Option<&KvCache> {
        self.sequences.get(sequence).map(|state| &state.cache)
    }

    fn check(&self, context: &LogitsContext<'_>, features: &Features) -> Result<(), ModelError> {
        let LogitsContext { tokens, tree, .. } = *context;
        if tokens.len() < 2 {
            return Err(ModelError::Empty);
        }
        let len = tokens.len() - 1 + tree.max_depth();
        let (context, vocab_size) = (self.context_length(), self.transformer.embedded_tokens());
        if len > context {
            return Err(ModelError::Context { position: len - 1, context });
        }
        let mut all = tokens.iter().chain(tree.tokens());
        if let Some(&token) = all.find(|&&token| token as usize >= vocab_size) {
            return Err(ModelError::Token { token, vocab_size });
        }
        if features.len() + 1 < tokens.len() {
            let (tokens, expected) = (tokens.len() - 1, self.weights.feature_width());
            return Err(ModelError::Features { tokens, expected, token: features.len(), found: 0 });
        }
        Ok(())
    }
}

impl FeatureModel for EagleModel {
    fn vocab_size(&self) -> usize {
        self.transformer.config().vocab_size
    }

    fn context_length(&self) -> usize {
        self.transformer.config().max_position_embeddings
    }

    fn logits(
        &mut self,
        context: &LogitsContext<'_>,
        features: &Features,
    ) -> Result<Logits, ModelError> {
        self.check(context, features)?;
        let mut state = self.sequences.take(context.sequence).unwrap_or_else(|| SequenceState {
            cache: self.transformer.new_cache(),
            first_token: None,
            predicted: Vec::new(),
            rows: 0,
            tree: TokenTree::new(),
        });
        let Self { weights, transformer, fusion, .. } = self;
        // A call that failed may have left rows.
        fusion.clear();
        let mut passes = Passes { weights, transformer, fusion, computed_tokens: 0 };
        let values = passes.logits(&mut state, context, features);
        let computed_tokens = passes.computed_tokens;
        self.sequences.put(context.sequence, state);
        let values = self.weights.expand_logits(values?);
        Ok(Logits { values, vocab_size: self.vocab_size(), computed_tokens })
    }

    fn release(&mut self, sequence: SequenceId) {
        self.sequences.release(sequence);
    }
}

/// The passes of one call.
struct Passes<'a> {
    weights: &'a EagleWeights,
    transformer: &'a mut Transformer,
    fusion: &'a mut Fusion,
    computed_tokens: usize,
}

impl Passes<'_> {
    fn logits(
        &mut self,
        state: &mut SequenceState,
        context: &LogitsContext<'_>,
        features: &Features,
    ) -> Result<Vec<f32>, ModelError> {
        let LogitsContext { tokens, tree, first_row, cancel, .. } = *context;
        let shifted = &tokens[1..];
        if state.first_token != Some(tokens[0]) {
            state.cache.seek(&[], &TokenTree::new(), Keep::Exact);
            state.first_token = Some(tokens[0]);
        }
        let mut missing: &[TokenId] = &[];
        let mut done = first_row.saturating_sub(1);
        if first_row == 0 || !state.continues(shifted, &tree.first(done)) {
            // A new round. Exact rows stay, except for the last one, whose prediction is needed.
            let before = &shifted[..shifted.len() - 1];
            let held = state.cache.seek(before, &TokenTree::new(), Keep::Exact).tokens;
            missing = self.prefill(state, shifted, held, features, cancel)?;
            state.start_round(shifted.len());
            done = 0;
        }
        let mut logits = Vec::new();
        // One pass is enough, unless a node needs a feature that the pass has yet to predict.
        while !missing.is_empty() || done < tree.len() {
            let end = self.end_of_level(state, tree, done);
            let now = Level { missing, tree, done, end, first_row };
            self.level(state, &now, features, &mut logits, cancel)?;
            // The missing tokens are computed now: the cache holds them before its tree.
            (missing, done) = (&[], end);
            if end < tree.len() {
                state.cache.seek(
                    shifted,
                    &tree.first(end),
                    Keep::Approximate { exact: shifted.len() },
                );
            }
        }
        Ok(logits)
    }

    /// Computes rows with features of the target in passes of bounded size. Returns the tokens of the
    /// rows that remain for the last pass.
    fn prefill<'t>(
        &mut self,
        state: &mut SequenceState,
        shifted: &'t [TokenId],
        held: usize,
        features: &Features,
        cancel: &AtomicBool,
    ) -> Result<&'t [TokenId], ModelError> {
        let (mut missing, none) = (&shifted[held..], TokenTree::new());
        while missing.len() > PREFILL_ROWS {
            let (now, later) = missing.split_at(PREFILL_ROWS);
            self.add_rows(now, shifted.len() - missing.len(), features)?;
            let chain = TokenTree::chain(now);
            self.pass(state, &chain, chain.len(), chain.len(), cancel)?;
            state.cache.seek(&shifted[..shifted.len() - later.len()], &none, Keep::Exact);
            missing = later;
        }
        Ok(missing)
    }

    /// Adds the input rows of `tokens`, of which the first belongs to row `first`.
    fn add_rows(
        &mut self,
        tokens: &[TokenId],
        first: usize,
        features: &Features,
    ) -> Result<(), ModelError> {
        let expected = self.weights.feature_width();
        for ((row, &token), feature) in (first..).zip(tokens).zip(features.rows_from(first)) {
            if feature.len() != expected {
                let (tokens, found) = (first + tokens.len(), feature.len());
                return Err(ModelError::Features { tokens, expected, token: row, found });
            }
            self.fusion.add(self.weights, token, feature);
        }
        Ok(())
    }

    /// Returns the first node from `done` on that needs a feature which has not been predicted yet.
    fn end_of_level(&self, state: &SequenceState, tree: &TokenTree, done: usize) -> Node {
        let first_mask = self.weights.layers.config.vocab_size;
        let predictions = state.predicted.len() / self.transformer.config().hidden_size;
        let has_input = |&node: &Node| {
            let row = tree.parent(node).map_or(0, |parent| parent + 1);
            tree.token(node) as usize >= first_mask || row < predictions
        };
        (done..tree.len()).find(|node| !has_input(node)).unwrap_or(tree.len())
    }

    /// Computes the rows of missing tokens and of the nodes after them, and appends the requested logits.
    fn level(
        &mut self,
        state: &mut SequenceState,
        level: &Level<'_>,
        features: &Features,
        logits: &mut Vec<f32>,
        cancel: &AtomicBool,
    ) -> Result<(), ModelError> {
        let Level { missing, tree, done, end, first_row } = *level;
        self.add_rows(missing, state.rows - missing.len(), features)?;
        let size = self.transformer.config().hidden_size;
        let first_mask = self.weights.layers.config.vocab_size;
        for node in done..end {
            let token = tree.token(node);
            let row = tree.parent(node).map_or(0, |parent| parent + 1);
            match (token as usize).checked_sub(first_mask) {
                Some(mask) => {
                    let feature = &self.weights.mask_features[mask * size..][..size];
                    self.fusion.add(self.weights, token, feature);
                }
                None => {
                    let prediction = &state.predicted[row * size..][..size];
                    self.fusion.add_predicted(self.weights, token, prediction);
                }
            }
        }
        let mut new = TokenTree::chain(missing);
        new.graft(missing.len().checked_sub(1), &tree.first(end));
        // Row 0 is that of the last missing token, and row `node + 1` that of a node.
        let computed = if missing.is_empty() { done + 1 } else { 0 };
        let first_output = first_row.max(computed).min(end + 1) + missing.len() - 1;
        let rows = self.pass(state, &new, first_output, missing.len(), cancel)?;
        logits.extend_from_slice(rows);
        let predictions = end + 1 - computed;
        let hidden = self.transformer.hidden();
        state.predicted.extend_from_slice(&hidden[hidden.len() - predictions * size..]);
        state.tree.copy_from(tree, end);
        Ok(())
    }

    /// Runs one forward pass over the rows that were added: the nodes of `new` that the cache does not
    /// hold.
    fn pass(
        &mut self,
        state: &mut SequenceState,
        new: &TokenTree,
        first_output: Node,
        exact: usize,
        cancel: &AtomicBool,
    ) -> Result<&[f32], ModelError> {
        let count = new.len() - state.cache.tree_len();
        self.fusion.compute(self.weights);
        let inputs = Inputs { hidden: &self.fusion.hidden, embeddings: &self.fusion.embeddings };
        let pass = Pass::new(new, first_output, LayerOrder::Sequential, cancel);
        let pass = Pass { inputs: Some(inputs), exact, ..pass };
        let logits = self.transformer.forward(&pass, &mut state.cache);
        self.fusion.clear();
        self.computed_tokens += count;
        logits.map_err(|_cancelled| ModelError::Cancelled)
    }
}

/// The rows that one pass computes: those of missing tokens, then those of the nodes `done..end`.
#[derive(Clone, Copy)]
struct Level<'a> {
    missing: &'a [TokenId],
    tree: &'a TokenTree,
    done: Node,
    end: Node,
    first_row: usize,
}

impl SequenceState {
    /// Starts a round without predictions, after `rows` rows with features of the target.
    fn start_round(&mut self, rows: usize) {
        self.predicted.clear();
        self.tree.copy_from(&TokenTree::new(), 0);
        self.rows = rows;
    }

    /// Returns whether the current round has these tokens and this tree. If so, the cache afterwards
    /// holds exactly both.
    fn continues(&mut self, shifted: &[TokenId], tree: &TokenTree) -> bool {
        if self.rows != shifted.len() || self.tree.len() < tree.len() {
            return false;
        }
        let keep = Keep::Approximate { exact: shifted.len() };
        let held = self.cache.seek(shifted, tree, keep);
        let continues = (held.tokens, held.nodes) == (shifted.len(), tree.len())
            && self.tree.first(tree.len()) == *tree;
        let size = self.predicted.len() / (self.tree.len() + 1);
        self.predicted.truncate(size * (tree.len() + 1));
        self.tree.copy_from(tree, tree.len());
        continues
    }
}

//! A drafter's layers that read the target's features beside tokens.
//!
//! *EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty*, Li et al. 2024, arXiv
//! 2401.15077, section 3.1; with masks as in *ParallelSpec*, Xiao et al. 2024, arXiv 2410.05589.
//!
//! 1. Row `i` is made of token `i + 1` and of the target's feature `f[i]`: `fc(cat(embedding, feature))`,
//!    at RoPE position `i`. So of `n` tokens there are `n − 1` rows.
//! 2. What the layers make of it is a guess of `f[i + 1]`, and the target's head on that a guess of
//!    token `i + 2`.
//! 3. Behind the last token there is no feature of the target's: a candidate's row takes the guess of the
//!    row before it (EAGLE), a mask its own trained feature (ParallelSpec).
//! 4. Only rows made of the target's features are kept; guesses are made anew each round.
//!
//! EAGLE-3 (Li et al. 2025, arXiv 2503.01840) differs in how a row is made: `Fusion` tells.
//!
//! That a row is a guess is noted in its cache as a fuzzy one: a round opens with what is exact.

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

/// Such a drafter on a team, with a cache for every sequence.
pub struct EagleModel {
    weights: Arc<EagleWeights>,
    transformer: Transformer,
    fusion: Fusion,
    rounds: Caches<Round>,
}

/// What is kept of a sequence.
struct Round {
    /// Keys and values; the token of slot `i` is token `i + 1`.
    cache: KvCache,
    /// Token 0 has no row of its own, but all features depend on it.
    first_token: Option<TokenId>,
    /// The present round's guesses of features: behind its tokens, then behind the nodes of its tree.
    guessed: Vec<f32>, // [1 + nodes, hidden]
    /// How many rows of exact features the guesses are behind, and the tree.
    rows: usize,
    tree: TokenTree,
}

/// Makes input rows: EAGLE's are `fc(cat(embedding, feature))` of features and guesses alike. EAGLE-3's are
/// `fc(features)`, or a guess as it is, with the embedding beside them.
struct Fusion {
    team: Arc<Team>,
    fused: Vec<f32>,      // [rows, inputs of `fc`]
    guessed: Vec<f32>,    // [rows behind those, hidden]
    embeddings: Vec<f32>, // [rows, hidden]
    hidden: Vec<f32>,     // [rows, hidden]
    activations: Activations,
}

impl Fusion {
    fn new(team: Arc<Team>) -> Self {
        let [fused, guessed, embeddings, hidden] = [(); 4].map(|()| Vec::new());
        Self { team, fused, guessed, embeddings, hidden, activations: Activations::default() }
    }

    /// Leaves nothing of rows that no pass took.
    fn clear(&mut self) {
        for rows in [&mut self.fused, &mut self.guessed, &mut self.embeddings] {
            rows.clear();
        }
    }

    /// Adds the row of a token and of the feature before it, the target's or a mask's.
    fn add(&mut self, weights: &EagleWeights, token: TokenId, feature: &[f32]) {
        let pairs = weights.has_pairs();
        embed(weights, token, if pairs { &mut self.fused } else { &mut self.embeddings });
        self.fused.extend_from_slice(feature);
    }

    /// Adds the row of a token and of a guessed feature, behind those of the target's.
    fn add_guessed(&mut self, weights: &EagleWeights, token: TokenId, guess: &[f32]) {
        if weights.has_pairs() {
            return self.add(weights, token, guess);
        }
        embed(weights, token, &mut self.embeddings);
        self.guessed.extend_from_slice(guess);
    }

    /// Makes the inputs of the rows that were added.
    fn make(&mut self, weights: &EagleWeights) {
        let Self { team, fused, guessed, hidden, activations, .. } = self;
        let fusion = &weights.fusion;
        hidden.resize(fused.len() / fusion.inputs() * fusion.outputs(), 0.0);
        if !fused.is_empty() {
            linear(team, fused, fusion, activations, hidden);
        }
        hidden.extend_from_slice(guessed);
    }
}

/// Adds a token's embedding to some rows.
fn embed(weights: &EagleWeights, token: TokenId, rows: &mut Vec<f32>) {
    let start = rows.len();
    rows.resize(start + weights.layers.config.hidden_size, 0.0);
    weights.layers.embed(token, &mut rows[start..]);
}

impl EagleModel {
    /// A drafter whose passes run on `team`.
    #[must_use]
    pub fn new(weights: Arc<EagleWeights>, team: Arc<Team>) -> Self {
        let transformer = Transformer::new(Arc::clone(&weights.layers), Arc::clone(&team));
        Self { weights, transformer, fusion: Fusion::new(team), rounds: Caches::new() }
    }

    /// The cache of a sequence, if there is one. Tests look at what it holds.
    #[must_use]
    pub fn cache(&self, sequence: SequenceId) -> Option<&KvCache> {
        self.rounds.get(sequence).map(|round| &round.cache)
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
        let mut round = self.rounds.take(context.sequence).unwrap_or_else(|| Round {
            cache: self.transformer.new_cache(),
            first_token: None,
            guessed: Vec::new(),
            rows: 0,
            tree: TokenTree::new(),
        });
        let Self { weights, transformer, fusion, .. } = self;
        // A call that failed may have left some.
        fusion.clear();
        let mut passes = Passes { weights, transformer, fusion, computed_tokens: 0 };
        let values = passes.logits(&mut round, context, features);
        let computed_tokens = passes.computed_tokens;
        self.rounds.put(context.sequence, round);
        let values = self.weights.of_all_tokens(values?);
        Ok(Logits { values, vocab_size: self.vocab_size(), computed_tokens })
    }

    fn release(&mut self, sequence: SequenceId) {
        self.rounds.release(sequence);
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
        round: &mut Round,
        context: &LogitsContext<'_>,
        features: &Features,
    ) -> Result<Vec<f32>, ModelError> {
        let LogitsContext { tokens, tree, first_row, cancel, .. } = *context;
        let own = &tokens[1..];
        if round.first_token != Some(tokens[0]) {
            round.cache.seek(&[], &TokenTree::new(), Keep::Exact);
            round.first_token = Some(tokens[0]);
        }
        let mut missing: &[TokenId] = &[];
        let mut done = first_row.saturating_sub(1);
        if first_row == 0 || !round.goes_on(own, &tree.first(done)) {
            // A round opens: exact rows stay, but for the last one, whose guess is wanted.
            let before = &own[..own.len() - 1];
            let held = round.cache.seek(before, &TokenTree::new(), Keep::Exact).tokens;
            missing = self.prefill(round, own, held, features, cancel)?;
            round.open(own.len());
            done = 0;
        }
        let mut logits = Vec::new();
        // One pass, unless nodes follow nodes whose guesses are not there yet.
        while !missing.is_empty() || done < tree.len() {
            let end = self.within_reach(round, tree, done);
            let now = Level { missing, tree, done, end, first_row };
            self.level(round, &now, features, &mut logits, cancel)?;
            // What was missing is still in front of the cache's tree, but no longer to be computed.
            (missing, done) = (&[], end);
            if end < tree.len() {
                round.cache.seek(own, &tree.first(end), Keep::Approximate { exact: own.len() });
            }
        }
        Ok(logits)
    }

    /// Computes rows of the target's features until few are left, and returns the tokens of those.
    fn prefill<'t>(
        &mut self,
        round: &mut Round,
        own: &'t [TokenId],
        held: usize,
        features: &Features,
        cancel: &AtomicBool,
    ) -> Result<&'t [TokenId], ModelError> {
        let (mut missing, none) = (&own[held..], TokenTree::new());
        while missing.len() > PREFILL_ROWS {
            let (now, later) = missing.split_at(PREFILL_ROWS);
            self.add_rows(now, own.len() - missing.len(), features)?;
            let chain = TokenTree::chain(now);
            self.pass(round, &chain, chain.len(), chain.len(), cancel)?;
            round.cache.seek(&own[..own.len() - later.len()], &none, Keep::Exact);
            missing = later;
        }
        Ok(missing)
    }

    /// Adds the input rows of tokens, the first of which is that of row `first`.
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

    /// The first node from `done` on that needs a guess which is not there yet.
    fn within_reach(&self, round: &Round, tree: &TokenTree, done: usize) -> Node {
        let first_mask = self.weights.layers.config.vocab_size;
        let guesses = round.guessed.len() / self.transformer.config().hidden_size;
        let is_ready = |&node: &Node| {
            let row = tree.parent(node).map_or(0, |parent| parent + 1);
            tree.token(node) as usize >= first_mask || row < guesses
        };
        (done..tree.len()).find(|node| !is_ready(node)).unwrap_or(tree.len())
    }

    /// Computes the rows of missing tokens and of the nodes behind them, and adds the wanted logits.
    fn level(
        &mut self,
        round: &mut Round,
        level: &Level<'_>,
        features: &Features,
        logits: &mut Vec<f32>,
        cancel: &AtomicBool,
    ) -> Result<(), ModelError> {
        let Level { missing, tree, done, end, first_row } = *level;
        self.add_rows(missing, round.rows - missing.len(), features)?;
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
                    let guess = &round.guessed[row * size..][..size];
                    self.fusion.add_guessed(self.weights, token, guess);
                }
            }
        }
        let mut new = TokenTree::chain(missing);
        new.graft(missing.len().checked_sub(1), &tree.first(end));
        // The last missing token's row is row 0, and a node's is its number and one.
        let computed = if missing.is_empty() { done + 1 } else { 0 };
        let wanted = first_row.max(computed).min(end + 1) + missing.len() - 1;
        let rows = self.pass(round, &new, wanted, missing.len(), cancel)?;
        logits.extend_from_slice(rows);
        let guesses = end + 1 - computed;
        let hidden = self.transformer.hidden();
        round.guessed.extend_from_slice(&hidden[hidden.len() - guesses * size..]);
        round.tree.copy_from(tree, end);
        Ok(())
    }

    /// One forward pass over the rows that were added: those of `new` that the cache does not hold.
    fn pass(
        &mut self,
        round: &mut Round,
        new: &TokenTree,
        first_wanted: Node,
        exact: usize,
        cancel: &AtomicBool,
    ) -> Result<&[f32], ModelError> {
        let count = new.len() - round.cache.tree_len();
        self.fusion.make(self.weights);
        let inputs = Inputs { hidden: &self.fusion.hidden, embeddings: &self.fusion.embeddings };
        let pass = Pass::new(new, first_wanted, LayerOrder::Sequential, cancel);
        let pass = Pass { inputs: Some(inputs), exact, ..pass };
        let logits = self.transformer.forward(&pass, &mut round.cache);
        self.fusion.clear();
        self.computed_tokens += count;
        logits.map_err(|_cancelled| ModelError::Cancelled)
    }
}

/// Rows that one pass computes: those of missing tokens, then of the nodes from `done` to `end`.
#[derive(Clone, Copy)]
struct Level<'a> {
    missing: &'a [TokenId],
    tree: &'a TokenTree,
    done: Node,
    end: Node,
    first_row: usize,
}

impl Round {
    /// Starts without guesses, behind so many rows.
    fn open(&mut self, rows: usize) {
        self.guessed.clear();
        self.tree.copy_from(&TokenTree::new(), 0);
        self.rows = rows;
    }

    /// Whether the present round is behind these tokens and has this tree; then its cache holds both.
    fn goes_on(&mut self, own: &[TokenId], tree: &TokenTree) -> bool {
        if self.rows != own.len() || self.tree.len() < tree.len() {
            return false;
        }
        let keep = Keep::Approximate { exact: own.len() };
        let held = self.cache.seek(own, tree, keep);
        let goes_on = (held.tokens, held.nodes) == (own.len(), tree.len())
            && self.tree.first(tree.len()) == *tree;
        let size = self.guessed.len() / (self.tree.len() + 1);
        self.guessed.truncate(size * (tree.len() + 1));
        self.tree.copy_from(tree, tree.len());
        goes_on
    }
}

//! Hydra heads: each reads a hidden state of the target and the tokens drafted before it.
//!
//! *Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding*, Ankner et al. 2024, arXiv 2402.05109,
//! section 3, and its appendix on Hydra++.
//!
//! 1. The state is the target's feature of the last token that the target has read. With Hydra++ it is
//!    the normed output of a prefix layer, which has the target's shape and reads the features of all
//!    tokens so far.
//! 2. Head `h` reads `cat(state, embedding of the last token, … of h drafted ones)`:
//!    `x = A · cat + a + SiLU(B · cat + b)`, residual layers `x += SiLU(W · x + w)`, and its own matrix.
//! 3. The rows of a tree level share a head. They are computed together, one level after another.
//!
//! Only the prefix layer has a cache. A token's state depends on the features up to that token, and
//! these depend on the tokens up to it, so the cache can compare tokens like any other.

use crate::cached_transformer::PREFILL_ROWS;
use crate::cpu_pages::CpuPages;
use crate::features::FeatureSource;
use crate::forward::{Forward, Inputs, Pass, SequencePass};
use crate::kernels::{Activations, exp, linear};
use crate::speculator::{HydraHead, HydraWeights};
use crate::team::Team;
use crate::transformer::Transformer;
use forerun_cache::{CachePool, Keep, PageStorage};
use forerun_core::{Features, SequenceId, TokenId, TokenTree, node_of_row};
use forerun_lm::{
    BatchEntry, DeviceChoice, FeatureModel, ForwardOutput, ForwardRequest, LanguageModel,
    LayerOrder, ModelError, complete_each,
};
use std::sync::Arc;

/// Memory for the pages of the prefix layer's caches.
const CACHE_BYTES: usize = 1 << 30;

/// Hydra heads on a team.
pub struct HydraModel {
    weights: Arc<HydraWeights>,
    team: Arc<Team>,
    /// The prefix layer of Hydra++. Its caches store the states as features.
    prefix: Option<PrefixLayer>,
    activations: Activations,
}

/// The prefix layer of Hydra++, with the caches of its sequences.
struct PrefixLayer {
    transformer: Transformer,
    pool: CachePool<CpuPages>,
}

impl HydraModel {
    /// Creates heads that run on `team`.
    #[must_use]
    pub fn new(weights: Arc<HydraWeights>, team: Arc<Team>) -> Self {
        let prefix = weights.prefix.as_ref().map(|layer| {
            let layer = Transformer::new(Arc::clone(layer), Arc::clone(&team));
            let transformer = layer.with_features(FeatureSource::LastHidden);
            let pool = CachePool::with_memory(transformer.new_storage(), CACHE_BYTES);
            PrefixLayer { transformer, pool }
        });
        Self { weights, team, prefix, activations: Activations::default() }
    }

    /// Returns the number of heads: the largest number of positions that can be drafted.
    #[must_use]
    pub fn n_heads(&self) -> usize {
        self.weights.n_heads()
    }

    fn check<'a>(&self, request: &ForwardRequest<'a>) -> Result<&'a Features, ModelError> {
        let ForwardRequest { tokens, tree, .. } = *request;
        let (vocab_size, context) = (self.weights.vocab_size, self.weights.context_length);
        if tokens.len() < 2 {
            return Err(ModelError::Empty);
        }
        if tokens.len() - 1 > context {
            return Err(ModelError::Context { position: tokens.len() - 2, context });
        }
        let mut all = tokens.iter().chain(tree.tokens());
        if let Some(&token) = all.find(|&&token| token as usize >= vocab_size) {
            return Err(ModelError::Token { token, vocab_size });
        }
        let (count, expected) = (tokens.len() - 1, self.weights.hidden_size);
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

    /// Computes the state of the tokens that the target has read, which all heads read: `[hidden]`.
    fn state(
        &mut self,
        request: &ForwardRequest<'_>,
        tokens: &[TokenId],
        features: &Features,
    ) -> Result<Vec<f32>, ModelError> {
        match &mut self.prefix {
            Some(prefix) => prefix.last_state(request, tokens, features),
            None => {
                let feature = features.rows_from(tokens.len() - 1).next();
                Ok(feature.unwrap_or_default().to_vec())
            }
        }
    }

    fn answer(&mut self, request: &ForwardRequest<'_>) -> Result<ForwardOutput, ModelError> {
        let features = self.check(request)?;
        let ForwardRequest { tokens, tree, first_row, .. } = *request;
        let (read, last) = tokens.split_at(tokens.len() - 1);
        let state = self.state(request, read, features)?;
        let depth = |row: usize| node_of_row(row).map_or(0, |node| tree.depth(node));
        let (mut logits, mut row) = (Vec::new(), first_row);
        while row <= tree.len() {
            if request.is_cancelled() {
                return Err(ModelError::Cancelled);
            }
            // Rows of the same depth share a head.
            let head = depth(row);
            if head >= self.n_heads() {
                return Err(ModelError::Context { position: head, context: self.n_heads() });
            }
            let mut inputs = Vec::new();
            while row <= tree.len() && depth(row) == head {
                let path = node_of_row(row).map_or(Vec::new(), |node| tree.path(node));
                let path = path.into_iter().map(|node| tree.token(node));
                self.append_inputs(&state, last.iter().copied().chain(path), &mut inputs);
                row += 1;
            }
            logits.extend(self.head_logits(head, &inputs));
        }
        let (vocab_size, computed_tokens) = (self.weights.vocab_size, request.rows());
        Ok(ForwardOutput { logits, vocab_size, computed_tokens, features: None })
    }

    /// Computes a head's logits `[rows, vocab]` from `inputs`: `[rows, (1 + reads) · hidden]`.
    fn head_logits(&mut self, head: usize, inputs: &[f32]) -> Vec<f32> {
        let Self { weights, team, activations, .. } = self;
        let HydraHead { first: [activated, residual], layers, head } = &weights.heads[head];
        let rows = inputs.len() / activated.inputs();
        let mut states = vec![0.0; rows * weights.hidden_size]; // [rows, hidden]
        let mut delta = states.clone();
        linear(team, inputs, residual, activations, &mut states);
        linear(team, inputs, activated, activations, &mut delta);
        add_silu(&mut states, &delta);
        for layer in layers {
            linear(team, &states, layer, activations, &mut delta);
            add_silu(&mut states, &delta);
        }
        let mut logits = vec![0.0; rows * weights.vocab_size]; // [rows, vocab]
        linear(team, &states, head, activations, &mut logits);
        logits
    }

    /// Appends the input of a row's head to `inputs`: the state, then the embeddings of the path's
    /// tokens, which begin with the last token.
    fn append_inputs(
        &self,
        state: &[f32],
        path: impl Iterator<Item = TokenId>,
        inputs: &mut Vec<f32>,
    ) {
        inputs.extend_from_slice(state);
        for token in path {
            let start = inputs.len();
            inputs.resize(start + self.weights.hidden_size, 0.0);
            self.weights.embedding.unpack_row(token as usize, &mut inputs[start..]);
        }
    }
}

/// Computes `states += SiLU(delta)`.
fn add_silu(states: &mut [f32], delta: &[f32]) {
    for (state, delta) in states.iter_mut().zip(delta) {
        *state += delta / (1.0 + exp(-delta));
    }
}

impl PrefixLayer {
    /// Runs the layer on the features of those tokens for which the cache holds no state, and returns
    /// the state of the last token.
    fn last_state(
        &mut self,
        request: &ForwardRequest<'_>,
        tokens: &[TokenId],
        features: &Features,
    ) -> Result<Vec<f32>, ModelError> {
        let Self { transformer, pool } = self;
        let (sequence, cancel, none) = (request.sequence, request.cancel, TokenTree::new());
        pool.start_pass();
        let mut held = pool.seek(sequence, tokens, &none, Keep::Exact).tokens;
        while held < tokens.len() {
            let end = tokens.len().min(held + PREFILL_ROWS);
            let tree = TokenTree::chain(&tokens[held..end]);
            let rows = features.rows_from(held).take(end - held);
            let hidden: Vec<f32> = rows.flatten().copied().collect();
            let inputs = Some(Inputs { hidden: &hidden, embeddings: &[] });
            pool.reserve(sequence, tree.len());
            let (storage, sequences) = pool.storage_and_sequences();
            // No logits are requested, so the head is never computed.
            let part = SequencePass::new(&sequences[&sequence], &tree, tree.len(), cancel);
            let sequences = [SequencePass { inputs, ..part }];
            let (order, device) = (LayerOrder::Sequential, DeviceChoice::default());
            let pass = Pass { sequences: &sequences, order, device };
            transformer.forward(&pass, storage).map_err(|_cancelled| ModelError::Cancelled)?;
            pool.record(sequence, &tree, tree.len());
            pool.seek(sequence, &tokens[..end], &none, Keep::Exact);
            held = end;
        }
        let table = pool.sequence(sequence).map(|cache| cache.table()).unwrap_or_default();
        let last = pool.storage().features(table, tokens.len() - 1..tokens.len());
        Ok(last.and_then(|rows| rows.row(0).map(<[f32]>::to_vec)).unwrap_or_default())
    }
}

impl LanguageModel for HydraModel {
    fn vocab_size(&self) -> usize {
        self.weights.vocab_size
    }

    fn context_length(&self) -> usize {
        self.weights.context_length
    }

    /// See [`LanguageModel::forward`]. A row after a node whose depth is the number of heads or more is
    /// [`ModelError::Context`].
    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| self.answer(request));
    }

    fn release(&mut self, sequence: SequenceId) {
        if let Some(prefix) = &mut self.prefix {
            prefix.pool.release(sequence);
        }
    }
}

impl FeatureModel for HydraModel {}

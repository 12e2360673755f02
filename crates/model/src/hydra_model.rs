//! Hydra's heads: each reads one hidden state of the target and the tokens that were drafted before it.
//!
//! *Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding*, Ankner et al. 2024, arXiv 2402.05109,
//! section 3, and its appendix on Hydra++.
//!
//! 1. The state is the target's feature of the last token that it has read; with Hydra++ what a layer of
//!    the target's shape makes of the features of all tokens so far, normed.
//! 2. Head `h` reads `cat(state, embedding of the last token, … of h drafted ones)`:
//!    `x = A · cat + a + SiLU(B · cat + b)`, residual layers `x += SiLU(W · x + w)`, and its own matrix.
//! 3. So rows of a level are computed together, one level after another.
//!
//! Only the layer in front keeps anything: a token's state depends on the features up to it, and those on
//! the tokens up to it, so its cache seeks as any other.

use crate::caches::Caches;
use crate::features::FeatureSource;
use crate::forward::{Forward, Inputs, Pass};
use crate::kernels::{Activations, exp, linear};
use crate::kv_cache::{Keep, KvCache};
use crate::language_model::{FeatureModel, Logits, LogitsContext, ModelError, PREFILL_ROWS};
use crate::layers::LayerOrder;
use crate::speculator::{HydraHead, HydraWeights};
use crate::team::Team;
use crate::transformer::Transformer;
use forerun_core::{Features, SequenceId, TokenId, TokenTree};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Such heads on a team.
pub struct HydraModel {
    weights: Arc<HydraWeights>,
    team: Arc<Team>,
    /// Hydra++'s layer, whose caches keep the states.
    prefix: Option<Transformer>,
    caches: Caches<KvCache>,
    activations: Activations,
}

impl HydraModel {
    /// Heads that are computed on `team`.
    #[must_use]
    pub fn new(weights: Arc<HydraWeights>, team: Arc<Team>) -> Self {
        let prefix = weights.prefix.as_ref().map(|layer| {
            let layer = Transformer::new(Arc::clone(layer), Arc::clone(&team));
            layer.with_features(FeatureSource::LastHidden)
        });
        let (caches, activations) = (Caches::new(), Activations::default());
        Self { weights, team, prefix, caches, activations }
    }

    /// Positions that it guesses at the most.
    #[must_use]
    pub fn n_heads(&self) -> usize {
        self.weights.n_heads()
    }

    fn check(&self, context: &LogitsContext<'_>, features: &Features) -> Result<(), ModelError> {
        let LogitsContext { tokens, tree, .. } = *context;
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
        if features.len() < count {
            let token = features.len();
            return Err(ModelError::Features { tokens: count, expected, token, found: 0 });
        }
        // Where nothing reads the others, the last one is enough.
        let first = if self.prefix.is_some() { 0 } else { count - 1 };
        let widths = features.rows_from(first).take(count - first).map(<[f32]>::len);
        match (first..).zip(widths).find(|&(_, found)| found != expected) {
            Some((token, found)) => {
                Err(ModelError::Features { tokens: count, expected, token, found })
            }
            None => Ok(()),
        }
    }

    /// What all heads read of the tokens that the target has read: `[hidden]`.
    fn state(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        features: &Features,
        cancel: &AtomicBool,
    ) -> Result<Vec<f32>, ModelError> {
        let Some(prefix) = &mut self.prefix else {
            let feature = features.rows_from(tokens.len() - 1).next();
            return Ok(feature.unwrap_or_default().to_vec());
        };
        let mut cache = self.caches.take(sequence).unwrap_or_else(|| prefix.new_cache());
        let state = last_state(prefix, &mut cache, tokens, features, cancel);
        self.caches.put(sequence, cache);
        state
    }

    /// A head's logits: `inputs` is `[rows, (1 + reads) · hidden]`.
    fn head(&mut self, head: usize, inputs: &[f32]) -> Vec<f32> {
        let Self { weights, team, activations, .. } = self;
        let HydraHead { first: [acted, carried], layers, head } = &weights.heads[head];
        let rows = inputs.len() / acted.inputs();
        let mut states = vec![0.0; rows * weights.hidden_size]; // [rows, hidden]
        let mut delta = states.clone();
        linear(team, inputs, carried, activations, &mut states);
        linear(team, inputs, acted, activations, &mut delta);
        add_silu(&mut states, &delta);
        for layer in layers {
            linear(team, &states, layer, activations, &mut delta);
            add_silu(&mut states, &delta);
        }
        let mut logits = vec![0.0; rows * weights.vocab_size]; // [rows, vocab]
        linear(team, &states, head, activations, &mut logits);
        logits
    }

    /// The inputs of a row's head: the state, and the embeddings of the last token and of a path.
    fn inputs(&self, state: &[f32], path: impl Iterator<Item = TokenId>, inputs: &mut Vec<f32>) {
        inputs.extend_from_slice(state);
        for token in path {
            let start = inputs.len();
            inputs.resize(start + self.weights.hidden_size, 0.0);
            self.weights.embedding.unpack_row(token as usize, &mut inputs[start..]);
        }
    }
}

/// `states += SiLU(delta)`.
fn add_silu(states: &mut [f32], delta: &[f32]) {
    for (state, delta) in states.iter_mut().zip(delta) {
        *state += delta / (1.0 + exp(-delta));
    }
}

/// Lets the layer read the features of those tokens whose states the cache does not hold, and returns
/// the last one's state.
fn last_state(
    prefix: &mut Transformer,
    cache: &mut KvCache,
    tokens: &[TokenId],
    features: &Features,
    cancel: &AtomicBool,
) -> Result<Vec<f32>, ModelError> {
    let none = TokenTree::new();
    let mut held = cache.seek(tokens, &none, Keep::Exact).tokens;
    while held < tokens.len() {
        let end = tokens.len().min(held + PREFILL_ROWS);
        let tree = TokenTree::chain(&tokens[held..end]);
        let rows = features.rows_from(held).take(end - held);
        let hidden: Vec<f32> = rows.flatten().copied().collect();
        let inputs = Some(Inputs { hidden: &hidden, embeddings: &[] });
        // No row's logits are wanted: the head is never read.
        let pass = Pass::new(&tree, tree.len(), LayerOrder::Sequential, cancel);
        let pass = Pass { inputs, ..pass };
        prefix.forward(&pass, cache).map_err(|_cancelled| ModelError::Cancelled)?;
        cache.seek(&tokens[..end], &none, Keep::Exact);
        held = end;
    }
    let last = cache.features(tokens.len() - 1..tokens.len());
    Ok(last.and_then(|rows| rows.row(0).map(<[f32]>::to_vec)).unwrap_or_default())
}

impl FeatureModel for HydraModel {
    fn vocab_size(&self) -> usize {
        self.weights.vocab_size
    }

    fn context_length(&self) -> usize {
        self.weights.context_length
    }

    /// As the trait has it; there are no rows behind more nodes than heads allow.
    fn logits(
        &mut self,
        context: &LogitsContext<'_>,
        features: &Features,
    ) -> Result<Logits, ModelError> {
        self.check(context, features)?;
        let LogitsContext { sequence, tokens, tree, first_row, cancel } = *context;
        let (read, last) = tokens.split_at(tokens.len() - 1);
        let state = self.state(sequence, read, features, cancel)?;
        let depth = |row: usize| row.checked_sub(1).map_or(0, |node| tree.depth(node));
        let (mut values, mut row) = (Vec::new(), first_row);
        while row <= tree.len() {
            if cancel.load(Ordering::Relaxed) {
                return Err(ModelError::Cancelled);
            }
            // Rows of one depth have one head.
            let head = depth(row);
            if head >= self.n_heads() {
                return Err(ModelError::Context { position: head, context: self.n_heads() });
            }
            let mut inputs = Vec::new();
            while row <= tree.len() && depth(row) == head {
                let path = row.checked_sub(1).map_or(Vec::new(), |node| tree.path(node));
                let path = path.into_iter().map(|node| tree.token(node));
                self.inputs(&state, last.iter().copied().chain(path), &mut inputs);
                row += 1;
            }
            values.extend(self.head(head, &inputs));
        }
        let computed_tokens = (tree.len() + 1).saturating_sub(first_row);
        Ok(Logits { values, vocab_size: self.weights.vocab_size, computed_tokens })
    }

    fn release(&mut self, sequence: SequenceId) {
        self.caches.release(sequence);
    }
}

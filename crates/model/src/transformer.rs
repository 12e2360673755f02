//! The forward pass of a Llama-family Transformer over a tree of tokens.

use crate::LoadError;
use crate::checkpoint::{Checkpoint, LayerTensor, Tensor};
use crate::config::Config;
use crate::kernels::{
    AttentionShape, PackedMatrix, Rope, Visible, add, attention, linear, rms_norm, silu_times,
};
use crate::kv_cache::KvCache;
use crate::team::Team;
use forerun_core::{Node, TokenTree};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Packed weights; replicas on devices that share memory share them.
pub struct Weights {
    config: Config,
    embedding: PackedMatrix,
    layers: Vec<LayerWeights>,
    final_norm: Vec<f32>,
    /// `None` if tied to the embedding.
    head: Option<PackedMatrix>,
}

struct LayerWeights {
    attention_norm: Vec<f32>, // [hidden]
    query: PackedMatrix,      // [n_heads · head_dim, hidden]
    key: PackedMatrix,        // [n_kv_heads · head_dim, hidden]
    value: PackedMatrix,      // [n_kv_heads · head_dim, hidden]
    output: PackedMatrix,     // [hidden, n_heads · head_dim]
    mlp_norm: Vec<f32>,       // [hidden]
    gate: PackedMatrix,       // [intermediate, hidden]
    up: PackedMatrix,         // [intermediate, hidden]
    down: PackedMatrix,       // [hidden, intermediate]
}

impl Weights {
    /// Reads and packs all tensors of a checkpoint.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        let config = checkpoint.config().clone();
        let vector = |tensor| checkpoint.tensor(tensor).map(std::borrow::Cow::into_owned);
        let matrix = |tensor| {
            let shape = checkpoint.shape(tensor);
            Ok::<_, LoadError>(PackedMatrix::pack(&checkpoint.tensor(tensor)?, shape[0], shape[1]))
        };
        let layer = |index| {
            let at = |tensor| Tensor::Layer(index, tensor);
            Ok::<_, LoadError>(LayerWeights {
                attention_norm: vector(at(LayerTensor::AttentionNorm))?,
                query: matrix(at(LayerTensor::Query))?,
                key: matrix(at(LayerTensor::Key))?,
                value: matrix(at(LayerTensor::Value))?,
                output: matrix(at(LayerTensor::Output))?,
                mlp_norm: vector(at(LayerTensor::MlpNorm))?,
                gate: matrix(at(LayerTensor::Gate))?,
                up: matrix(at(LayerTensor::Up))?,
                down: matrix(at(LayerTensor::Down))?,
            })
        };
        let head = if config.tie_word_embeddings { None } else { Some(matrix(Tensor::Head)?) };
        Ok(Self {
            embedding: matrix(Tensor::Embedding)?,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_, _>>()?,
            final_norm: vector(Tensor::FinalNorm)?,
            head,
            config,
        })
    }

    /// The model's shape.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of packed weights.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let layer = |layer: &LayerWeights| {
            let LayerWeights { query, key, value, output, gate, up, down, .. } = layer;
            [query, key, value, output, gate, up, down]
                .map(PackedMatrix::bytes)
                .iter()
                .sum::<usize>()
        };
        let layers: usize = self.layers.iter().map(layer).sum();
        layers + self.embedding.bytes() + self.head.as_ref().map_or(0, PackedMatrix::bytes)
    }

    fn head(&self) -> &PackedMatrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// A forward pass was cancelled between two layers; the cache holds what it held before.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the forward pass was cancelled")]
pub struct Cancelled;

/// A model on a team: weights and the scratch memory of its forward passes.
pub struct Transformer {
    weights: Arc<Weights>,
    team: Arc<Team>,
    rope: Rope,
    shape: AttentionShape,
    scratch: Scratch,
}

/// Activations, kept between passes so that no pass allocates once they have grown.
#[derive(Default)]
struct Scratch {
    hidden: Vec<f32>,      // [rows, hidden]
    normed: Vec<f32>,      // [rows, hidden]
    queries: Vec<f32>,     // [rows, n_heads, head_dim]
    attended: Vec<f32>,    // [rows, n_heads, head_dim]
    gate: Vec<f32>,        // [rows, intermediate]
    up: Vec<f32>,          // [rows, intermediate]
    delta: Vec<f32>,       // [rows, hidden]
    rope_tables: Vec<f32>, // [rows, 2, head_dim/2]
    scores: Vec<f32>,      // [members, longest visible]
    logits: Vec<f32>,      // [wanted rows, vocab]
}

impl Transformer {
    /// A model whose forward passes run on `team`.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>) -> Self {
        let config = &weights.config;
        let rope = Rope::new(config.rope_theta, config.head_dim);
        let shape = AttentionShape {
            n_heads: config.num_attention_heads,
            n_kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        };
        Self { weights, team, rope, shape, scratch: Scratch::default() }
    }

    /// The model's shape.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.weights.config
    }

    /// An empty cache for this model.
    #[must_use]
    pub fn new_cache(&self) -> KvCache {
        KvCache::new(self.weights.layers.len(), self.shape.kv_width())
    }

    /// Computes the nodes of `tree` that `cache` does not hold yet, and returns the logits of the
    /// nodes from `first_wanted` on: `[tree.len() − first_wanted, vocab]`.
    ///
    /// The tree hangs behind the cache's prefix, and the nodes that the cache holds must be the
    /// first of `tree` (as [`KvCache::seek`] leaves them). Afterwards the cache holds all of
    /// `tree`.
    ///
    /// # Errors
    /// [`Cancelled`] once `cancel` is set, looked at between layers.
    ///
    /// # Panics
    /// If a node from `first_wanted` on is held already, or a token is not in the vocabulary: a
    /// programming error.
    pub fn forward(
        &mut self,
        tree: &TokenTree,
        first_wanted: Node,
        cache: &mut KvCache,
        cancel: &AtomicBool,
    ) -> Result<&[f32], Cancelled> {
        let held = cache.tree_len();
        assert!(held <= first_wanted && first_wanted <= tree.len(), "wanted rows are new rows");
        cache.reserve(tree.len());
        self.embed(&tree.tokens()[held..]);
        let first_slot = cache.prefix_len();
        let depths = (held..tree.len()).map(|node| tree.depth(node));
        self.rotate_tables(depths.map(|depth| first_slot + depth - 1));
        let visible = visible(tree, held, first_slot);
        for layer in 0..self.weights.layers.len() {
            if cancel.load(Ordering::Relaxed) {
                return Err(Cancelled);
            }
            self.attention_block(layer, first_slot + held, &visible, cache);
            self.mlp_block(layer);
        }
        cache.record(tree);
        Ok(self.logits(first_wanted - held))
    }

    /// `hidden[row] = embedding[token]`.
    fn embed(&mut self, tokens: &[u32]) {
        let size = self.weights.config.hidden_size;
        self.scratch.hidden.resize(tokens.len() * size, 0.0);
        for (row, &token) in self.scratch.hidden.chunks_exact_mut(size).zip(tokens) {
            self.weights.embedding.unpack_row(token as usize, row);
        }
    }

    fn rotate_tables(&mut self, positions: impl ExactSizeIterator<Item = usize>) {
        let size = self.rope.table_len();
        self.scratch.rope_tables.resize(positions.len() * size, 0.0);
        for (table, position) in self.scratch.rope_tables.chunks_exact_mut(size).zip(positions) {
            self.rope.table(position, table);
        }
    }

    /// `hidden += o(attention(norm(hidden)))`; the rows' keys and values go to the cache's slots
    /// from `first_slot` on.
    fn attention_block(
        &mut self,
        layer: usize,
        first_slot: usize,
        visible: &[Visible],
        cache: &mut KvCache,
    ) {
        let Self { weights, team, rope, shape, scratch } = self;
        let (config, weights) = (&weights.config, &weights.layers[layer]);
        let rows = visible.len();
        scratch.normed.resize(scratch.hidden.len(), 0.0);
        scratch.queries.resize(rows * weights.query.outputs(), 0.0);
        scratch.attended.resize(scratch.queries.len(), 0.0);
        scratch.delta.resize(scratch.hidden.len(), 0.0);
        let epsilon = config.rms_norm_eps;
        rms_norm(&scratch.hidden, &weights.attention_norm, epsilon, &mut scratch.normed);
        let width = shape.kv_width();
        let cached = cache.layer_mut(layer);
        let new = first_slot * width..(first_slot + rows) * width;
        linear(team, &scratch.normed, &weights.query, &mut scratch.queries);
        linear(team, &scratch.normed, &weights.key, &mut cached.keys[new.clone()]);
        linear(team, &scratch.normed, &weights.value, &mut cached.values[new.clone()]);
        let tables = scratch.rope_tables.chunks_exact(rope.table_len());
        let queries = scratch.queries.chunks_exact_mut(weights.query.outputs());
        for ((table, query), key) in
            tables.zip(queries).zip(cached.keys[new].chunks_exact_mut(width))
        {
            rope.rotate(query, table);
            rope.rotate(key, table);
        }
        let kv = (&cached.keys[..], &cached.values[..]);
        let (scores, attended) = (&mut scratch.scores, &mut scratch.attended);
        attention(team, *shape, &scratch.queries, kv, visible, scores, attended);
        linear(team, &scratch.attended, &weights.output, &mut scratch.delta);
        add(&mut scratch.hidden, &scratch.delta);
    }

    /// `hidden += down(silu(gate(norm(hidden))) · up(norm(hidden)))`.
    fn mlp_block(&mut self, layer: usize) {
        let Self { weights, team, scratch, .. } = self;
        let (config, weights) = (&weights.config, &weights.layers[layer]);
        let rows = scratch.hidden.len() / config.hidden_size;
        scratch.gate.resize(rows * config.intermediate_size, 0.0);
        scratch.up.resize(rows * config.intermediate_size, 0.0);
        rms_norm(&scratch.hidden, &weights.mlp_norm, config.rms_norm_eps, &mut scratch.normed);
        linear(team, &scratch.normed, &weights.gate, &mut scratch.gate);
        linear(team, &scratch.normed, &weights.up, &mut scratch.up);
        silu_times(&mut scratch.gate, &scratch.up);
        linear(team, &scratch.gate, &weights.down, &mut scratch.delta);
        add(&mut scratch.hidden, &scratch.delta);
    }

    /// `head(norm(hidden))` of the rows from `first_row` on.
    fn logits(&mut self, first_row: usize) -> &[f32] {
        let Self { weights, team, scratch, .. } = self;
        let config = &weights.config;
        let hidden = &scratch.hidden[first_row * config.hidden_size..];
        let normed = &mut scratch.normed[..hidden.len()];
        rms_norm(hidden, &weights.final_norm, config.rms_norm_eps, normed);
        scratch.logits.resize(hidden.len() / config.hidden_size * config.vocab_size, 0.0);
        linear(team, normed, weights.head(), &mut scratch.logits);
        &scratch.logits
    }
}

/// What each node from `held` on sees, the tree's slots starting at `first_slot`.
fn visible(tree: &TokenTree, held: usize, first_slot: usize) -> Vec<Visible> {
    let slots = |node| tree.path(node).into_iter().map(|node| first_slot + node).collect();
    let see = |node| Visible { prefix: first_slot, path: slots(node) };
    (held..tree.len()).map(see).collect()
}

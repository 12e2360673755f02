//! The forward pass of a Transformer of the Llama kind over a tree of tokens.

mod observed;

pub(crate) use observed::{Observed, STATES};

use crate::LoadError;
use crate::checkpoint::{Checkpoint, Dtype, LayerTensor, Tensor};
use crate::config::Config;
use crate::kernels::{
    Activations, AttentionShape, KeysValues, PackedMatrix, Queries, Rope, Visible, WeightType, add,
    attention, linear, norm_heads, rms_norm, silu_times,
};
use crate::kv_cache::KvCache;
use crate::layers::LayerOrder;
use crate::team::{Parts, Team};
use forerun_core::{Node, TokenTree};
use std::collections::BTreeMap;
use std::ops::Range;
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
    attention_norm: Vec<f32>,        // [hidden]
    qkv: PackedMatrix,               // [(n_heads + 2 · n_kv_heads) · head_dim, hidden]
    qk_norms: Option<[Vec<f32>; 2]>, // [head_dim] of queries, of keys
    window: Option<usize>,           // positions that a row sees
    output: PackedMatrix,            // [hidden, n_heads · head_dim]
    mlp_norm: Vec<f32>,              // [hidden]
    gate_up: PackedMatrix,           // [2 · intermediate, hidden]
    down: PackedMatrix,              // [hidden, intermediate]
}

/// The smallest weight type in which none of a checkpoint's matrices loses anything.
pub(crate) fn own_type(checkpoint: &Checkpoint) -> Result<WeightType, LoadError> {
    let is_matrix = |tensor: &Tensor| checkpoint.shape(*tensor).len() == 2;
    let mut own = None;
    for tensor in Tensor::all(checkpoint.config()).filter(is_matrix) {
        let dtype = checkpoint.dtype(tensor)?;
        if own.is_some_and(|own| own != dtype) {
            // Neither half keeps all of the other's values.
            return Ok(WeightType::F32);
        }
        own = Some(dtype);
    }
    Ok(match own {
        Some(Dtype::Bf16) => WeightType::Bf16,
        Some(Dtype::F16) => WeightType::F16,
        Some(Dtype::F32) | None => WeightType::F32,
    })
}

impl Weights {
    /// Reads and packs all tensors of a checkpoint, in its own type.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        Self::load_with(checkpoint, None, &mut |_| ())
    }

    /// Reads all tensors and packs the matrices in a given type, on all cores. Beside the packed
    /// weights that takes the memory of a few rows.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_as(checkpoint: &Checkpoint, weight_type: WeightType) -> Result<Self, LoadError> {
        Self::load_with(checkpoint, Some(weight_type), &mut |_| ())
    }

    /// The same, `None` being the checkpoint's own type; `on_layer` is told how many layers are
    /// packed.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_with(
        checkpoint: &Checkpoint,
        weight_type: Option<WeightType>,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        let weight_type = weight_type.map_or_else(|| own_type(checkpoint), Ok)?;
        let config = checkpoint.config().clone();
        let vector = |tensor| checkpoint.tensor(tensor);
        // Row by row: no tensor is ever in memory as a whole but in its packed form.
        let matrices = |tensors: &[Tensor]| {
            let tensors = tensors.iter().map(|&tensor| checkpoint.rows(tensor));
            let tensors = tensors.collect::<Result<Vec<_>, LoadError>>()?;
            let rows = tensors.iter().flat_map(|rows| (0..rows.len()).map(move |row| (rows, row)));
            let (rows, inputs): (Vec<_>, _) = (rows.collect(), tensors[0].columns());
            let read = |output: usize, row: &mut [f32]| {
                let (tensor, index) = rows[output];
                tensor.read(index, row)
            };
            PackedMatrix::pack_rows(weight_type, [rows.len(), inputs], read)
        };
        let mut layer = |index| {
            on_layer(index);
            use LayerTensor as T;
            let vector = |tensor| vector(Tensor::Layer(index, tensor));
            let projection = |weights: &[LayerTensor], biases: &[LayerTensor]| {
                let weights: Vec<_> = weights.iter().map(|&w| Tensor::Layer(index, w)).collect();
                let biases = biases.iter().filter(|bias| bias.is_in(&config));
                let biases = biases.map(|&bias| vector(bias)).collect::<Result<Vec<_>, _>>()?;
                let bias = (!biases.is_empty()).then(|| biases.concat());
                Ok::<_, LoadError>(matrices(&weights)?.with_bias(bias))
            };
            let qk_norms = || Ok::<_, LoadError>([vector(T::QueryNorm)?, vector(T::KeyNorm)?]);
            Ok::<_, LoadError>(LayerWeights {
                attention_norm: vector(T::AttentionNorm)?,
                qkv: projection(
                    &[T::Query, T::Key, T::Value],
                    &[T::QueryBias, T::KeyBias, T::ValueBias],
                )?,
                qk_norms: config.qk_norm.then(qk_norms).transpose()?,
                window: config.window(index),
                output: projection(&[T::Output], &[T::OutputBias])?,
                mlp_norm: vector(T::MlpNorm)?,
                gate_up: projection(&[T::Gate, T::Up], &[T::GateBias, T::UpBias])?,
                down: projection(&[T::Down], &[T::DownBias])?,
            })
        };
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(matrices(&[Tensor::Head])?),
        };
        let embedding = matrices(&[Tensor::Embedding])?;
        let layers =
            (0..config.num_hidden_layers).map(&mut layer).collect::<Result<Vec<_>, _>>()?;
        on_layer(layers.len());
        Ok(Self { embedding, layers, final_norm: vector(Tensor::FinalNorm)?, head, config })
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
            let LayerWeights { qkv, output, gate_up, down, .. } = layer;
            [qkv, output, gate_up, down].map(PackedMatrix::bytes).iter().sum::<usize>()
        };
        let layers: usize = self.layers.iter().map(layer).sum();
        layers + self.embedding.bytes() + self.head.as_ref().map_or(0, PackedMatrix::bytes)
    }

    /// Bytes of weights that a pass with logits reads: all but an embedding that is not the head.
    #[must_use]
    pub fn bytes_read(&self) -> usize {
        self.bytes() - self.head.as_ref().map_or(0, |_| self.embedding.bytes())
    }

    /// The type of the packed matrices.
    #[must_use]
    pub fn weight_type(&self) -> WeightType {
        self.embedding.weight_type()
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
    /// The team in so many parts, made when they are first needed.
    parts: BTreeMap<usize, Parts>,
}

/// Activations, kept between passes so that no pass allocates once they have grown.
#[derive(Default)]
struct Scratch {
    hidden: Vec<f32>,      // [rows, hidden]
    normed: Vec<f32>,      // [rows, hidden]
    gate_up: Vec<f32>,     // [rows, 2, intermediate]
    inner: Vec<f32>,       // [rows, intermediate]
    delta: Vec<f32>,       // [rows, hidden]
    rope_tables: Vec<f32>, // [rows, 2, head_dim/2]
    logits: Vec<f32>,      // [wanted rows, vocab]
    visible: Visible,
    activations: Activations,
    /// One for each layer of the largest group so far.
    blocks: Vec<AttentionBlock>,
}

/// What one layer's attention needs, so that several can be computed at the same time.
#[derive(Default)]
struct AttentionBlock {
    normed: Vec<f32>,    // [rows, hidden]
    qkv: Vec<f32>,       // [rows, n_heads + 2 · n_kv_heads, head_dim]
    attended: Vec<f32>,  // [rows, n_heads, head_dim]
    delta: Vec<f32>,     // [rows, hidden]
    attention: Vec<f32>, // what `attention` needs
    activations: Activations,
}

/// What the attention of all layers of a group has in common.
struct AttentionInput<'a> {
    rope: &'a Rope,
    shape: AttentionShape,
    epsilon: f32,
    hidden: &'a [f32],      // [rows, hidden]
    rope_tables: &'a [f32], // [rows, 2, head_dim/2]
    visible: &'a Visible,
    /// The rows' keys and values go to the slots from here on.
    first_slot: usize,
}

impl AttentionBlock {
    /// `delta = o(attention(norm(hidden)))`.
    fn run(
        &mut self,
        team: &Team,
        input: &AttentionInput<'_>,
        weights: &LayerWeights,
        cached: &mut KeysValues,
    ) {
        let AttentionInput { rope, shape, epsilon, hidden, visible, first_slot, .. } = *input;
        let (q_width, kv_width) = (shape.n_heads * shape.head_dim, shape.kv_width());
        let (rows, width) = (visible.rows(), q_width + 2 * kv_width);
        self.normed.resize(hidden.len(), 0.0);
        self.qkv.resize(rows * width, 0.0);
        self.attended.resize(rows * q_width, 0.0);
        self.delta.resize(hidden.len(), 0.0);
        rms_norm(team.isa(), hidden, &weights.attention_norm, epsilon, &mut self.normed);
        linear(team, &self.normed, &weights.qkv, &mut self.activations, &mut self.qkv);
        let tables = input.rope_tables.chunks_exact(rope.table_len());
        for (row, (table, qkv)) in tables.zip(self.qkv.chunks_exact_mut(width)).enumerate() {
            let (rotated, values) = qkv.split_at_mut(q_width + kv_width);
            if let Some([query_norm, key_norm]) = &weights.qk_norms {
                let (queries, keys) = rotated.split_at_mut(q_width);
                norm_heads(team.isa(), queries, query_norm, epsilon);
                norm_heads(team.isa(), keys, key_norm, epsilon);
            }
            rope.rotate(team.isa(), rotated, table);
            cached.write(team.isa(), first_slot + row, &rotated[q_width..], values);
        }
        let queries = Queries { rows: &self.qkv, stride: width };
        let (memory, attended) = (&mut self.attention, &mut self.attended);
        let shape = AttentionShape { window: weights.window, ..shape };
        attention(team, shape, queries, cached, visible, memory, attended);
        linear(team, attended, &weights.output, &mut self.activations, &mut self.delta);
    }
}

impl Transformer {
    /// A model whose forward passes run on `team`.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>) -> Self {
        let config = &weights.config;
        let rope = Rope::new(config);
        let shape = AttentionShape {
            n_heads: config.num_attention_heads,
            n_kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            window: None,
        };
        Self { weights, team, rope, shape, scratch: Scratch::default(), parts: BTreeMap::new() }
    }

    /// The model's shape.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.weights.config
    }

    /// An empty cache for this model.
    #[must_use]
    pub fn new_cache(&self) -> KvCache {
        KvCache::new(self.weights.layers.len(), self.shape, self.weights.weight_type())
    }

    /// Computes the nodes of `tree` that `cache` does not hold yet, and returns the logits of the
    /// nodes from `first_wanted` on: `[tree.len() − first_wanted, vocab]`.
    ///
    /// The tree hangs behind the cache's prefix, and the nodes that the cache holds must be the
    /// first of `tree` (as [`KvCache::seek`] leaves them). Afterwards the cache holds all of
    /// `tree`, and knows which of it is exact.
    ///
    /// # Errors
    /// [`Cancelled`] once `cancel` is set, looked at between layers.
    ///
    /// # Panics
    /// If a node from `first_wanted` on is held already, a token is not in the vocabulary, or the
    /// order's groups are not those of this model: a programming error.
    pub fn forward(
        &mut self,
        tree: &TokenTree,
        first_wanted: Node,
        order: LayerOrder<'_>,
        cache: &mut KvCache,
        cancel: &AtomicBool,
    ) -> Result<&[f32], Cancelled> {
        let held = cache.tree_len();
        assert!(held <= first_wanted && first_wanted <= tree.len(), "wanted rows are new rows");
        let first_slot = self.begin(tree, order, cache);
        let n_layers = self.weights.layers.len();
        for index in 0..order.len(n_layers) {
            if cancel.load(Ordering::Relaxed) {
                return Err(Cancelled);
            }
            let layers = order.group(index);
            self.attention_blocks(layers.clone(), first_slot, cache);
            self.mlp_blocks(layers);
        }
        cache.record(tree, order);
        Ok(self.logits(first_wanted - held))
    }

    /// Makes ready for the rows of the nodes that are not held; returns the first one's slot.
    fn begin(&mut self, tree: &TokenTree, order: LayerOrder<'_>, cache: &mut KvCache) -> usize {
        if let LayerOrder::Groups(groups) = order {
            assert_eq!(groups.n_layers(), self.weights.layers.len(), "groups of all layers");
        }
        let (held, first_slot) = (cache.tree_len(), cache.prefix_len());
        cache.reserve(tree.len());
        self.embed(&tree.tokens()[held..]);
        let depths = (held..tree.len()).map(|node| tree.depth(node));
        self.rotate_tables(depths.map(|depth| first_slot + depth - 1));
        self.look(tree, held, first_slot);
        first_slot + held
    }

    /// What each node from `held` on sees, the tree's slots starting at `first_slot`.
    fn look(&mut self, tree: &TokenTree, held: usize, first_slot: usize) {
        let visible = &mut self.scratch.visible;
        visible.clear();
        // A node whose depth counts all nodes up to it ends a chain of all of them.
        let ends_chain = |node: Node| tree.depth(node) == node + 1;
        for node in held..tree.len() {
            let mut upwards = std::iter::successors(Some(node), |&node| tree.parent(node));
            let straight =
                upwards.clone().find(|&node| ends_chain(node)).map_or(0, |node| node + 1);
            let rest = upwards.by_ref().take_while(|&node| !ends_chain(node));
            visible.push(first_slot + straight, rest.map(|node| first_slot + node));
        }
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

    /// The first half of a group of layers (EasySpec, algorithm 2): the attention of all of them reads
    /// one hidden state, each into its own block, by parts of the team at the same time. The rows'
    /// keys and values go to the cache's slots from `first_slot` on.
    fn attention_blocks(&mut self, layers: Range<usize>, first_slot: usize, cache: &mut KvCache) {
        let Self { weights, team, rope, shape, scratch, parts } = self;
        let first = layers.start;
        let Scratch { blocks, hidden, rope_tables, visible, .. } = scratch;
        let epsilon = weights.config.rms_norm_eps;
        let input = AttentionInput {
            rope,
            shape: *shape,
            epsilon,
            hidden,
            rope_tables,
            visible,
            first_slot,
        };
        if blocks.len() < layers.len() {
            blocks.resize_with(layers.len(), AttentionBlock::default);
        }
        let mut left = layers;
        while !left.is_empty() {
            let (done, count) = (left.start - first, at_the_same_time(left.len(), team.members()));
            let now = left.start..left.start + count;
            left.start = now.end;
            let blocks = &mut blocks[done..done + count];
            let (weights, cached) = (&weights.layers[now.clone()], cache.layers_mut(now));
            if count == 1 || team.members() == 1 {
                for ((block, weights), cached) in blocks.iter_mut().zip(weights).zip(cached) {
                    block.run(team, &input, weights, cached);
                }
                continue;
            }
            let wanted = count.min(team.members());
            let parts = parts.entry(wanted).or_insert_with(|| team.parts(wanted));
            team.each(parts, blocks, cached, |team, index, block, cached| {
                block.run(team, &input, &weights[index], cached);
            });
        }
    }

    /// The second half: layer by layer, `hidden += attention; hidden += mlp(hidden)`. So a layer alone
    /// is computed exactly.
    fn mlp_blocks(&mut self, layers: Range<usize>) {
        for (index, layer) in layers.enumerate() {
            let scratch = &mut self.scratch;
            add(self.team.isa(), &mut scratch.hidden, &scratch.blocks[index].delta);
            self.mlp_block(layer);
        }
    }

    /// `hidden += down(silu(gate(norm(hidden))) · up(norm(hidden)))`.
    fn mlp_block(&mut self, layer: usize) {
        let Self { weights, team, scratch, .. } = self;
        let (config, weights) = (&weights.config, &weights.layers[layer]);
        let (rows, size) = (scratch.visible.rows(), config.intermediate_size);
        scratch.gate_up.resize(rows * 2 * size, 0.0);
        scratch.inner.resize(rows * size, 0.0);
        scratch.normed.resize(scratch.hidden.len(), 0.0);
        scratch.delta.resize(scratch.hidden.len(), 0.0);
        let (normed, epsilon) = (&mut scratch.normed, config.rms_norm_eps);
        rms_norm(team.isa(), &scratch.hidden, &weights.mlp_norm, epsilon, normed);
        linear(team, normed, &weights.gate_up, &mut scratch.activations, &mut scratch.gate_up);
        silu_times(team, &scratch.gate_up, size, &mut scratch.inner);
        linear(team, &scratch.inner, &weights.down, &mut scratch.activations, &mut scratch.delta);
        add(team.isa(), &mut scratch.hidden, &scratch.delta);
    }

    /// `head(norm(hidden))` of the rows from `first_row` on.
    fn logits(&mut self, first_row: usize) -> &[f32] {
        let Self { weights, team, scratch, .. } = self;
        let config = &weights.config;
        let hidden = &scratch.hidden[first_row * config.hidden_size..];
        let normed = &mut scratch.normed[..hidden.len()];
        rms_norm(team.isa(), hidden, &weights.final_norm, config.rms_norm_eps, normed);
        scratch.logits.resize(hidden.len() / config.hidden_size * config.vocab_size, 0.0);
        if !hidden.is_empty() {
            let (activations, logits) = (&mut scratch.activations, &mut scratch.logits);
            linear(team, normed, weights.head(), activations, logits);
        }
        &scratch.logits
    }
}

/// Of so many layers whose attention can be computed at the same time, those to be computed now: as
/// many as occupy all members equally, or, if there are fewer than members, all, each on several.
fn at_the_same_time(layers: usize, members: usize) -> usize {
    match layers / members {
        0 => layers,
        each => each * members,
    }
}

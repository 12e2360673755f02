//! The forward pass of a Llama-like Transformer over a tree of tokens.

mod attention_block;
mod observed;

pub(crate) use observed::{Observed, STATES};

use crate::config::Config;
use crate::features::FeatureSource;
use crate::forward::{Cancelled, Forward, Inputs, Pass};
use crate::kernels::{
    Activations, AttentionShape, Rope, TreeMask, add, linear, rms_norm, silu_times,
};
use crate::kv_cache::KvCache;
use crate::layers::{GroupParallelism, LayerOrder};
use crate::team::{SubTeams, Team};
use crate::weights::Weights;
use attention_block::{AttentionBlock, AttentionInput, Group};
use forerun_core::{Node, TokenTree};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A model on a team: its weights, and the scratch memory of its forward passes.
pub struct Transformer {
    weights: Arc<Weights>,
    team: Arc<Team>,
    rope: Rope,
    shape: AttentionShape,
    scratch: Scratch,
    /// The splits of the team into sub-teams, by their number; created when they are first needed.
    sub_teams: BTreeMap<usize, SubTeams>,
    /// How the team parallelises the attention of a group of layers.
    group_parallelism: GroupParallelism,
    /// The hidden states that caches store as features for drafters.
    features: Option<FeatureSource>,
}

/// Buffers that are kept between passes, so that passes stop allocating once the buffers have grown.
#[derive(Default)]
struct Scratch {
    hidden: Vec<f32>,      // [rows, hidden]
    embeddings: Vec<f32>,  // [rows, hidden], if attention also reads embeddings (EAGLE-3)
    normed: Vec<f32>,      // [rows, hidden]
    gate_up: Vec<f32>,     // [rows, 2, intermediate]
    inner: Vec<f32>,       // [rows, intermediate]
    delta: Vec<f32>,       // [rows, hidden]
    rope_tables: Vec<f32>, // [rows, 2, head_dim/2]
    logits: Vec<f32>,      // [output rows, vocab]
    tree_mask: TreeMask,
    activations: Activations,
    /// One block for each layer of the largest group so far.
    blocks: Vec<AttentionBlock>,
}

impl Transformer {
    /// Creates a model whose forward passes run on `team`.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>) -> Self {
        let config = weights.config();
        let rope = Rope::new(config);
        let shape = AttentionShape {
            n_heads: config.num_attention_heads,
            n_kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            window: None,
        };
        let (scratch, sub_teams) = (Scratch::default(), BTreeMap::new());
        let group_parallelism = GroupParallelism::default();
        Self { weights, team, rope, shape, scratch, sub_teams, group_parallelism, features: None }
    }

    /// Returns the same model with another way to parallelise the attention of a group of layers.
    #[must_use]
    pub fn with_group_parallelism(self, group_parallelism: GroupParallelism) -> Self {
        Self { group_parallelism, ..self }
    }

    /// Returns the same model, configured so that new caches store each token's features.
    #[must_use]
    pub fn with_features(self, features: FeatureSource) -> Self {
        Self { features: Some(features), ..self }
    }
}

impl Forward for Transformer {
    fn config(&self) -> &Config {
        self.weights.config()
    }

    fn embedded_tokens(&self) -> usize {
        self.weights.embedded_tokens()
    }

    fn new_cache(&self) -> KvCache {
        let cache = KvCache::new(self.weights.layers.len(), self.shape, self.weights.weight_type());
        match &self.features {
            Some(features) => cache.with_features(features.width(self.config().hidden_size)),
            None => cache,
        }
    }

    fn forward(&mut self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<&[f32], Cancelled> {
        self.run_layers(pass, 0..self.weights.layers.len(), cache)?;
        self.finish(pass, cache);
        Ok(self.last_logits())
    }
}

impl Transformer {
    /// Runs some of a pass's layers: the groups that begin within `layers`. Unless these are the first
    /// layers, the pass's inputs must be the [`Transformer::hidden`] that the layers before them left.
    ///
    /// # Errors
    /// [`Cancelled`] once `cancel` is set, which is checked before each group of layers.
    pub(crate) fn run_layers(
        &mut self,
        pass: &Pass<'_>,
        layers: Range<usize>,
        cache: &mut KvCache,
    ) -> Result<(), Cancelled> {
        let Pass { tree, first_output, order, inputs, cancel, .. } = *pass;
        let held = cache.tree_len();
        assert!(held <= first_output && first_output <= tree.len(), "output rows must be new rows");
        let first_slot = self.prepare(tree, order, inputs, cache);
        if layers.start == 0 {
            self.store_features(0, first_slot, cache);
        }
        let groups = (0..order.len(self.weights.layers.len())).map(|index| order.group(index));
        for group in groups.filter(|group| layers.contains(&group.start)) {
            if cancel.load(Ordering::Relaxed) {
                return Err(Cancelled);
            }
            self.attention_blocks(group.clone(), first_slot, cache);
            self.mlp_blocks(group.clone());
            self.store_features(group.end, first_slot, cache);
        }
        Ok(())
    }

    /// Completes a pass after its last layer: records the new rows in the cache, and computes the logits
    /// of the output rows.
    pub(crate) fn finish(&mut self, pass: &Pass<'_>, cache: &mut KvCache) {
        let Pass { tree, first_output, exact, .. } = *pass;
        let held = cache.tree_len();
        let (first_slot, first_row) = (cache.prefix_len() + held, first_output - held);
        cache.record(tree, exact);
        match (&self.features, cache.features_mut()) {
            (Some(FeatureSource::LastHidden), Some(features)) => {
                self.final_norm(0);
                let size = self.weights.config().hidden_size;
                features.write(first_slot, 0, &self.scratch.normed, size);
            }
            _ => self.final_norm(first_row),
        }
        self.logits(first_row);
    }

    /// Returns the logits of the last pass's output rows: `[rows, vocab]`.
    pub(crate) fn last_logits(&self) -> &[f32] {
        &self.scratch.logits
    }

    /// Returns the hidden states of the last pass's rows after the last layer that ran, before any norm:
    /// `[rows, hidden]`.
    pub(crate) fn hidden(&self) -> &[f32] {
        &self.scratch.hidden
    }

    /// Stores the rows' hidden states in the cache, if the hidden states after this number of layers are
    /// part of the features.
    fn store_features(&self, layers: usize, first_slot: usize, cache: &mut KvCache) {
        let Some(FeatureSource::Layers(chosen)) = &self.features else { return };
        let Some(features) = cache.features_mut() else { return };
        for (part, _) in chosen.iter().enumerate().filter(|(_, after)| **after == layers) {
            let size = self.weights.config().hidden_size;
            features.write(first_slot, part, &self.scratch.hidden, size);
        }
    }

    /// Prepares the inputs, RoPE tables, tree mask and cache for the nodes that the cache does not hold.
    /// Returns the slot of the first of them.
    fn prepare(
        &mut self,
        tree: &TokenTree,
        order: LayerOrder<'_>,
        inputs: Option<Inputs<'_>>,
        cache: &mut KvCache,
    ) -> usize {
        if let LayerOrder::Groups(groups) = order {
            assert_eq!(groups.n_layers(), self.weights.layers.len(), "groups of all layers");
        }
        let (held, first_slot) = (cache.tree_len(), cache.prefix_len());
        cache.reserve(tree.len());
        match inputs {
            None => self.embed(&tree.tokens()[held..]),
            Some(Inputs { hidden, embeddings }) => {
                let scratch = &mut self.scratch;
                for (kept, rows) in
                    [(&mut scratch.hidden, hidden), (&mut scratch.embeddings, embeddings)]
                {
                    kept.clear();
                    kept.extend_from_slice(rows);
                }
            }
        }
        let depths = (held..tree.len()).map(|node| tree.depth(node));
        self.fill_rope_tables(depths.map(|depth| first_slot + depth - 1));
        self.build_tree_mask(tree, held, first_slot);
        first_slot + held
    }

    /// Builds the attention mask of the nodes from `held` on. The tree's slots start at `first_slot`.
    fn build_tree_mask(&mut self, tree: &TokenTree, held: usize, first_slot: usize) {
        let tree_mask = &mut self.scratch.tree_mask;
        tree_mask.clear();
        // A node's ancestors and itself are the nodes `0..=node` exactly if its depth is `node + 1`.
        let ends_chain = |node: Node| tree.depth(node) == node + 1;
        for node in held..tree.len() {
            let mut upwards = std::iter::successors(Some(node), |&node| tree.parent(node));
            let chain = upwards.clone().find(|&node| ends_chain(node)).map_or(0, |node| node + 1);
            let rest = upwards.by_ref().take_while(|&node| !ends_chain(node));
            tree_mask.push(first_slot + chain, rest.map(|node| first_slot + node));
        }
    }

    /// Computes `hidden[row] = embedding[token]`.
    fn embed(&mut self, tokens: &[u32]) {
        let size = self.weights.config().hidden_size;
        self.scratch.hidden.resize(tokens.len() * size, 0.0);
        for (row, &token) in self.scratch.hidden.chunks_exact_mut(size).zip(tokens) {
            self.weights.embed(token, row);
        }
    }

    /// Computes the RoPE tables of the rows' positions.
    fn fill_rope_tables(&mut self, positions: impl ExactSizeIterator<Item = usize>) {
        let size = self.rope.table_len();
        self.scratch.rope_tables.resize(positions.len() * size, 0.0);
        for (table, position) in self.scratch.rope_tables.chunks_exact_mut(size).zip(positions) {
            self.rope.table(position, table);
        }
    }

    /// Computes the first half of a group of layers (EasySpec, algorithm 2): the attention of all its
    /// layers, each into its own block, from the same hidden state. Writes the rows' keys and values to
    /// the cache's slots from `first_slot` on.
    fn attention_blocks(&mut self, layers: Range<usize>, first_slot: usize, cache: &mut KvCache) {
        let Self { weights, team, rope, shape, scratch, sub_teams, group_parallelism, .. } = self;
        let Scratch { blocks, hidden, embeddings, rope_tables, tree_mask, .. } = scratch;
        let input = AttentionInput {
            rope,
            shape: *shape,
            epsilon: weights.config().rms_norm_eps,
            hidden,
            embeddings,
            rope_tables,
            tree_mask,
            first_slot,
        };
        if blocks.len() < layers.len() {
            blocks.resize_with(layers.len(), AttentionBlock::default);
        }
        let blocks = &mut blocks[..layers.len()];
        let mut group = Group { team, sub_teams, input, weights: &weights.layers[layers.clone()] };
        group.run(*group_parallelism, blocks, cache.layers_mut(layers));
    }

    /// Computes the second half of a group: layer by layer, `hidden += attention; hidden +=
    /// mlp(hidden)`. A group of a single layer is therefore computed exactly.
    fn mlp_blocks(&mut self, layers: Range<usize>) {
        for (index, layer) in layers.enumerate() {
            let scratch = &mut self.scratch;
            add(self.team.isa(), &mut scratch.hidden, &scratch.blocks[index].delta);
            self.mlp_block(layer);
        }
    }

    /// Computes `hidden += down(silu(gate(norm(hidden))) · up(norm(hidden)))`.
    fn mlp_block(&mut self, layer: usize) {
        let Self { weights, team, scratch, .. } = self;
        let (config, weights) = (weights.config(), &weights.layers[layer]);
        let (rows, size) = (scratch.tree_mask.rows(), config.intermediate_size);
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

    /// Computes `normed = norm(hidden)` for the rows from `first_row` on.
    fn final_norm(&mut self, first_row: usize) {
        let Self { weights, team, scratch, .. } = self;
        let config = weights.config();
        scratch.normed.resize(scratch.hidden.len(), 0.0);
        let first = first_row * config.hidden_size;
        let (hidden, normed) = (&scratch.hidden[first..], &mut scratch.normed[first..]);
        match &weights.final_norm {
            Some(norm) => rms_norm(team.isa(), hidden, norm, config.rms_norm_eps, normed),
            None => normed.copy_from_slice(hidden),
        }
    }

    /// Computes `logits = head(normed)` for the rows from `first_row` on, and returns them.
    fn logits(&mut self, first_row: usize) -> &[f32] {
        let Self { weights, team, scratch, .. } = self;
        let config = weights.config();
        let normed = &scratch.normed[first_row * config.hidden_size..];
        let rows = normed.len() / config.hidden_size;
        scratch.logits.resize(rows * weights.head().outputs(), 0.0);
        if !normed.is_empty() {
            let (activations, logits) = (&mut scratch.activations, &mut scratch.logits);
            linear(team, normed, weights.head(), activations, logits);
        }
        &scratch.logits
    }
}

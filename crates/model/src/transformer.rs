//! The forward pass of a Transformer of the Llama kind over a tree of tokens.

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
use crate::layers::{GroupWork, LayerOrder};
use crate::team::{Parts, Team};
use crate::weights::Weights;
use attention_block::{AttentionBlock, AttentionInput, Group};
use forerun_core::{Node, TokenTree};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A model on a team: weights and the scratch memory of its forward passes.
pub struct Transformer {
    weights: Arc<Weights>,
    team: Arc<Team>,
    rope: Rope,
    shape: AttentionShape,
    scratch: Scratch,
    /// The team in so many parts, made when they are first needed.
    parts: BTreeMap<usize, Parts>,
    /// How the team shares the attention of a group of layers.
    group_work: GroupWork,
    /// The hidden states that caches keep for drafters.
    features: Option<FeatureSource>,
}

/// Activations, kept between passes so that no pass allocates once they have grown.
#[derive(Default)]
struct Scratch {
    hidden: Vec<f32>,      // [rows, hidden]
    embeddings: Vec<f32>,  // [rows, hidden] of embeddings, where attention reads them
    normed: Vec<f32>,      // [rows, hidden]
    gate_up: Vec<f32>,     // [rows, 2, intermediate]
    inner: Vec<f32>,       // [rows, intermediate]
    delta: Vec<f32>,       // [rows, hidden]
    rope_tables: Vec<f32>, // [rows, 2, head_dim/2]
    logits: Vec<f32>,      // [wanted rows, vocab]
    visible: TreeMask,
    activations: Activations,
    /// One for each layer of the largest group so far.
    blocks: Vec<AttentionBlock>,
}

impl Transformer {
    /// A model whose forward passes run on `team`.
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
        let (scratch, parts) = (Scratch::default(), BTreeMap::new());
        let group_work = GroupWork::default();
        Self { weights, team, rope, shape, scratch, parts, group_work, features: None }
    }

    /// The same model, whose team shares the attention of a group of layers in this way.
    #[must_use]
    pub fn with_group_work(self, group_work: GroupWork) -> Self {
        Self { group_work, ..self }
    }

    /// The same model, whose caches keep each token's features.
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
    /// The part of a pass that is these layers' (of groups, those that begin there). Where they are not
    /// the first, the pass's inputs are what those before them have left in [`Transformer::hidden`].
    pub(crate) fn run_layers(
        &mut self,
        pass: &Pass<'_>,
        layers: Range<usize>,
        cache: &mut KvCache,
    ) -> Result<(), Cancelled> {
        let Pass { tree, first_wanted, order, inputs, cancel, .. } = *pass;
        let held = cache.tree_len();
        assert!(held <= first_wanted && first_wanted <= tree.len(), "wanted rows are new rows");
        let first_slot = self.begin(tree, order, inputs, cache);
        if layers.start == 0 {
            self.keep_hidden(0, first_slot, cache);
        }
        let groups = (0..order.len(self.weights.layers.len())).map(|index| order.group(index));
        for group in groups.filter(|group| layers.contains(&group.start)) {
            if cancel.load(Ordering::Relaxed) {
                return Err(Cancelled);
            }
            self.attention_blocks(group.clone(), first_slot, cache);
            self.mlp_blocks(group.clone());
            self.keep_hidden(group.end, first_slot, cache);
        }
        Ok(())
    }

    /// What follows the last layer: the cache holds the pass's rows, and the wanted ones' logits are
    /// computed.
    pub(crate) fn finish(&mut self, pass: &Pass<'_>, cache: &mut KvCache) {
        let Pass { tree, first_wanted, exact, .. } = *pass;
        let held = cache.tree_len();
        let (first_slot, wanted) = (cache.prefix_len() + held, first_wanted - held);
        cache.record(tree, exact);
        match (&self.features, cache.features_mut()) {
            (Some(FeatureSource::LastHidden), Some(features)) => {
                self.final_norm(0);
                let size = self.weights.config().hidden_size;
                features.write(first_slot, 0, &self.scratch.normed, size);
            }
            _ => self.final_norm(wanted),
        }
        self.logits(wanted);
    }

    /// The logits of the last pass's wanted rows: `[rows, vocab]`.
    pub(crate) fn last_logits(&self) -> &[f32] {
        &self.scratch.logits
    }

    /// The hidden states of the last pass's rows behind the last layer, before any norm: `[rows,
    /// hidden]`.
    pub(crate) fn hidden(&self) -> &[f32] {
        &self.scratch.hidden
    }

    /// Keeps the rows' hidden states behind so many layers, where they are a part of their features.
    fn keep_hidden(&self, layers: usize, first_slot: usize, cache: &mut KvCache) {
        let Some(FeatureSource::Layers(chosen)) = &self.features else { return };
        let Some(features) = cache.features_mut() else { return };
        for (part, _) in chosen.iter().enumerate().filter(|(_, behind)| **behind == layers) {
            let size = self.weights.config().hidden_size;
            features.write(first_slot, part, &self.scratch.hidden, size);
        }
    }

    /// Makes ready for the rows of the nodes that are not held; returns the first one's slot.
    fn begin(
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
        self.rotate_tables(depths.map(|depth| first_slot + depth - 1));
        self.build_tree_mask(tree, held, first_slot);
        first_slot + held
    }

    /// What each node from `held` on sees, the tree's slots starting at `first_slot`.
    fn build_tree_mask(&mut self, tree: &TokenTree, held: usize, first_slot: usize) {
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
        let size = self.weights.config().hidden_size;
        self.scratch.hidden.resize(tokens.len() * size, 0.0);
        for (row, &token) in self.scratch.hidden.chunks_exact_mut(size).zip(tokens) {
            self.weights.embed(token, row);
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
    /// one hidden state, each into its own block. The rows' keys and values go to the cache's slots
    /// from `first_slot` on.
    fn attention_blocks(&mut self, layers: Range<usize>, first_slot: usize, cache: &mut KvCache) {
        let Self { weights, team, rope, shape, scratch, parts, group_work, .. } = self;
        let Scratch { blocks, hidden, embeddings, rope_tables, visible, .. } = scratch;
        let input = AttentionInput {
            rope,
            shape: *shape,
            epsilon: weights.config().rms_norm_eps,
            hidden,
            embeddings,
            rope_tables,
            visible,
            first_slot,
        };
        if blocks.len() < layers.len() {
            blocks.resize_with(layers.len(), AttentionBlock::default);
        }
        let blocks = &mut blocks[..layers.len()];
        let mut group = Group { team, parts, input, weights: &weights.layers[layers.clone()] };
        group.run(*group_work, blocks, cache.layers_mut(layers));
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
        let (config, weights) = (weights.config(), &weights.layers[layer]);
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

    /// `normed = norm(hidden)` of the rows from `first_row` on.
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

    /// `head(normed)` of the rows from `first_row` on.
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

//! The forward pass of a decoder-only Transformer over the token trees of several sequences.

mod attention_block;
mod block_convs;
mod latent_block;
mod mlp_block;
mod observed;
mod routing;

pub use attention_block::GroupParallelism;
pub(crate) use observed::{Observed, STATES};

use crate::cpu_pages::CpuPages;
use crate::kernels::{
    Activations, Isa, NormWeights, TreeMask, activate, add_scaled, divide, linear, norm_parts,
    norm_rows, soft_cap,
};
use crate::team::{SubTeams, Team};
use crate::tensor_parallel::Members;
use crate::weights::{PackedOwnInput, Weights};
use attention_block::{AttentionBlock, AttentionInput, Group};
use block_convs::BlockConvs;
use forerun_cache::StateStep;
use forerun_core::{Node, TokenId};
use forerun_formats::{Architecture, FeatureSource, Input, OwnInput};
use forerun_lm::LayerOrder;
use forerun_model::{
    CacheOverflow, Cancelled, Forward, ForwardRest, Pass, PassError, PassOutput, RowFeature,
    SequencePass,
};
use mlp_block::{MlpBlock, Workers};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A model on a team: its weights, and the scratch memory of its forward passes.
pub struct Transformer {
    weights: Arc<Weights>,
    team: Arc<Team>,
    scratch: Scratch,
    /// The splits of the team into sub-teams, by their number; created when they are first needed.
    sub_teams: BTreeMap<usize, SubTeams>,
    /// How the team parallelises the attention of a group of layers.
    group_parallelism: GroupParallelism,
    /// The hidden states that are stored as features for drafters.
    features: Option<FeatureSource>,
    /// The other members that compute the rest of the model, if the weights are a share of it.
    members: Option<Members>,
}

/// Buffers that are kept between passes, so that passes stop allocating once the buffers have
/// grown.
#[derive(Default)]
struct Scratch {
    hidden: Vec<f32>,             // [rows, hidden]
    collected_features: Vec<f32>, // [numbers of layers, rows, hidden]
    embeddings: Vec<f32>,         // [rows, hidden], if attention also reads embeddings (EAGLE-3)
    fusion: FusionInputs,
    own_inputs: OwnInputs,
    normed: Vec<f32>,        // [rows, hidden]
    normed_output: Vec<f32>, // [rows, hidden], if what is added is normed
    delta: Vec<f32>,         // [rows, hidden]
    mlp: MlpBlock,
    mlp_convs: BlockConvs,
    rope_tables: Vec<Vec<f32>>, // [position embeddings][rows, 2, head_dim/2]
    logits: Vec<f32>,           // [output rows, vocab]
    tree_mask: TreeMask,
    /// The mask of layers whose rows see their whole block. Empty unless the pass is of blocks.
    block_mask: TreeMask,
    /// The index of each row in its block: `[rows]`, if the model drafts blocks.
    block_rows: Vec<usize>,
    steps: Vec<StateStep>, // [rows], if there are recurrent layers
    activations: Activations,
    /// One block for each layer of the largest group so far.
    blocks: Vec<AttentionBlock>,
    /// The keys and values of the pass that the cache cannot hold.
    overflows: Vec<CacheOverflow>,
}

/// The inputs that layers have next to the hidden state, and what is computed from them.
#[derive(Default)]
struct OwnInputs {
    embeddings: Vec<f32>, // [rows, hidden]
    inputs: Vec<f32>,     // [rows, layers, width]
    stored: Vec<f32>,     // [layers, width]
    gate: Vec<f32>,       // [rows, width]
    gate_input: Vec<f32>, // [rows, 2, width]
    gated: Vec<f32>,      // [rows, width]
    activations: Activations,
}

/// The rows of the projection to the first layer's input.
#[derive(Default)]
struct FusionInputs {
    inputs: Vec<f32>, // [fused rows, inputs]
    /// The row of each input.
    rows: Vec<usize>,
    outputs: Vec<f32>, // [fused rows, hidden]
    /// An embedding or a feature before its norm.
    unnormed: Vec<f32>,
}

impl Transformer {
    /// Creates a model whose forward passes run on `team`.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>) -> Self {
        let (scratch, sub_teams) = (Scratch::default(), BTreeMap::new());
        let group_parallelism = GroupParallelism::default();
        let (features, members) = (None, None);
        Self { weights, team, scratch, sub_teams, group_parallelism, features, members }
    }

    /// Returns the same model, which computes together with the members that have the rest of the
    /// weights.
    #[must_use]
    pub(crate) fn with_members(self, members: Members) -> Self {
        Self { members: Some(members), ..self }
    }

    /// Returns the members that compute the model together, if they are several.
    pub(crate) fn members(&self) -> Option<&Members> {
        self.members.as_ref()
    }

    /// Returns the same model with another way to parallelise the attention of a group of layers.
    #[must_use]
    pub fn with_group_parallelism(self, group_parallelism: GroupParallelism) -> Self {
        Self { group_parallelism, ..self }
    }

    /// Returns the same model, configured so that new storages store each token's features.
    #[must_use]
    pub fn with_features(self, features: FeatureSource) -> Self {
        Self { features: Some(features), ..self }
    }
}

impl Forward for Transformer {
    type Storage = CpuPages;

    fn architecture(&self) -> &Architecture {
        self.weights.architecture()
    }

    fn new_storage(&self) -> CpuPages {
        let storage = CpuPages::new(self.weights.own_layers(), self.weights.cache_type());
        match &self.features {
            Some(features) => storage.with_features(features.width(self.hidden_size())),
            None => storage,
        }
    }

    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut CpuPages,
    ) -> Result<PassOutput<'_>, PassError> {
        match is_of_context(self.weights.architecture(), pass) {
            true => self.run_context(pass, storage)?,
            false => {
                self.run_layers(pass, None, 0..self.weights.n_layers(), storage)?;
                self.finish(pass, storage);
            }
        }
        Ok(self.output())
    }
}

impl ForwardRest for Transformer {
    fn inputs(&mut self, pass: &Pass<'_>, storage: &mut CpuPages) -> &[f32] {
        self.start(pass, None, storage);
        self.hidden()
    }

    fn store_hidden(&mut self, layers: usize, hidden: &[f32], storage: &mut CpuPages) {
        self.scratch.hidden.clear();
        self.scratch.hidden.extend_from_slice(hidden);
        self.store_features(layers, storage);
    }

    fn forward_rest(
        &mut self,
        pass: &Pass<'_>,
        first: usize,
        hidden: &[f32],
        storage: &mut CpuPages,
    ) -> Result<PassOutput<'_>, PassError> {
        self.run_layers(pass, Some(hidden), first..self.weights.n_layers(), storage)?;
        self.finish(pass, storage);
        Ok(self.output())
    }
}

impl Transformer {
    /// Runs some of a pass's layers: the groups that begin within `layers`. Unless these are the
    /// first layers, `hidden` must be the [`Transformer::hidden`] that the layers before them left.
    ///
    /// # Errors
    /// [`Cancelled`] once all sequences are cancelled, which is checked before each group of
    /// layers.
    pub(crate) fn run_layers(
        &mut self,
        pass: &Pass<'_>,
        hidden: Option<&[f32]>,
        layers: Range<usize>,
        storage: &mut CpuPages,
    ) -> Result<(), Cancelled> {
        self.start(pass, hidden, storage);
        let order = pass.order;
        let groups = (0..order.len(self.weights.n_layers())).map(|index| order.group(index));
        for group in groups.filter(|group| layers.contains(&group.start)) {
            if self.is_cancelled(pass) {
                return Err(Cancelled);
            }
            self.run_group(group, storage);
        }
        Ok(())
    }

    /// Starts a pass: with the embeddings of its tokens, or with the `hidden` states that earlier
    /// layers left.
    pub(crate) fn start(
        &mut self,
        pass: &Pass<'_>,
        hidden: Option<&[f32]>,
        storage: &mut CpuPages,
    ) {
        self.prepare(pass, hidden);
        if hidden.is_none() {
            self.store_features(0, storage);
        }
    }

    /// Runs a group of layers. With several, this is EasySpec's layer-parallel pass (arXiv
    /// 2502.02493, algorithm 2): the attention of all of them reads the hidden state before the
    /// group. Then each layer in turn adds its attention, and what its MLP computes.
    pub(crate) fn run_group(&mut self, group: Range<usize>, storage: &mut CpuPages) {
        self.attention_blocks(group.clone(), storage);
        self.mlp_blocks(group.clone());
        self.store_features(group.end, storage);
    }

    /// Returns whether the pass ends here. All members end it at the same layer.
    fn is_cancelled(&self, pass: &Pass<'_>) -> bool {
        match &self.members {
            Some(members) => members.agree_to_cancel(pass.is_cancelled()),
            None => pass.is_cancelled(),
        }
    }

    /// Computes the keys and values that all layers have of the tokens before a block, from the
    /// target's features.
    ///
    /// # Errors
    /// [`Cancelled`] once all sequences are cancelled, which is checked before each layer.
    fn run_context(&mut self, pass: &Pass<'_>, storage: &mut CpuPages) -> Result<(), Cancelled> {
        self.prepare(pass, None);
        let Self { weights, team, scratch, .. } = self;
        let norm = weights.architecture().norm;
        if let Some(context_norm) = &weights.context_norm {
            scratch.normed.resize(scratch.hidden.len(), 0.0);
            norm_rows(team.isa(), norm, &scratch.hidden, context_norm, &mut scratch.normed);
            std::mem::swap(&mut scratch.hidden, &mut scratch.normed);
        }
        if scratch.blocks.is_empty() {
            scratch.blocks.push(AttentionBlock::default());
        }
        for layer in 0..weights.n_layers() {
            if pass.is_cancelled() {
                return Err(Cancelled);
            }
            let input = AttentionInput {
                ropes: &weights.ropes,
                norm,
                epsilon: weights.architecture().norm_epsilon,
                hidden: &scratch.hidden,
                embeddings: &[],
                rope_tables: &scratch.rope_tables,
                tree_mask: &scratch.tree_mask,
                block_mask: &scratch.block_mask,
                block_rows: &[],
                steps: &[],
                members: None,
            };
            let block = &mut scratch.blocks[0];
            let cached = &mut storage.layers_mut(layer..layer + 1)[0];
            block.store_context(team, &input, weights.layer(layer), cached);
            let of_layer = block.overflows.iter();
            let of_layer = of_layer.map(|&(row, part)| CacheOverflow { row, layer, part });
            scratch.overflows.extend(of_layer);
        }
        scratch.logits.clear();
        pass.retain_hidden_rows(&mut scratch.hidden);
        Ok(())
    }

    /// Completes a pass after its last layer: computes the logits of the output rows, and keeps the
    /// hidden states that are read.
    pub(crate) fn finish(&mut self, pass: &Pass<'_>, storage: &mut CpuPages) {
        let stores_normed = self.features == Some(FeatureSource::LastHidden);
        let rows = self.scratch.tree_mask.rows();
        self.scratch.normed.resize(self.scratch.hidden.len(), 0.0);
        if stores_normed && let Some(features) = storage.features_mut() {
            self.final_norm(0..rows, 0);
            let size = self.hidden_size();
            features.write(self.scratch.tree_mask.places(), 0, &self.scratch.normed, size);
        }
        // Gathers the output rows at the start of `normed`.
        let size = self.hidden_size();
        let (mut first_row, mut outputs) = (0, 0);
        for sequence in pass.sequences {
            let end = first_row + sequence.rows();
            let rows = end - sequence.output_rows()..end;
            match stores_normed {
                true => {
                    let normed = &mut self.scratch.normed;
                    normed.copy_within(rows.start * size..rows.end * size, outputs * size);
                }
                false => self.final_norm(rows, outputs),
            }
            (first_row, outputs) = (end, outputs + sequence.output_rows());
        }
        self.logits(outputs);
        pass.retain_hidden_rows(&mut self.scratch.hidden);
        if let Some(members) = &self.members {
            members.gather_overflows(&mut self.scratch.overflows, self.weights.cache_type());
        }
    }

    /// Returns the results of the last pass.
    pub(crate) fn output(&self) -> PassOutput<'_> {
        let Scratch { logits, hidden, overflows, .. } = &self.scratch;
        PassOutput { logits, best: &[], hidden, overflows }
    }

    fn hidden_size(&self) -> usize {
        self.weights.architecture().hidden_size
    }

    /// Returns the hidden states of the last pass's rows after the last layer that ran, before any
    /// norm: `[rows, hidden]`.
    pub(crate) fn hidden(&self) -> &[f32] {
        &self.scratch.hidden
    }

    /// Returns the hidden states of the last pass that are features and have no place in the
    /// storage: `[numbers of layers, rows, hidden]`.
    pub(crate) fn collected_features(&self) -> &[f32] {
        &self.scratch.collected_features
    }

    /// Chooses the hidden states that are features from now on.
    pub(crate) fn set_features(&mut self, features: FeatureSource) {
        self.features = Some(features);
    }

    /// Stores the rows' hidden states as features, if the hidden states after this number of layers
    /// are part of the features. If the storage has no features, they are collected for another
    /// device.
    fn store_features(&mut self, layers: usize, storage: &mut CpuPages) {
        let Some(FeatureSource::Layers(chosen)) = &self.features else { return };
        let Some(features) = storage.features_mut() else {
            if chosen.contains(&layers) {
                self.scratch.collected_features.extend_from_slice(&self.scratch.hidden);
            }
            return;
        };
        for (part, _) in chosen.iter().enumerate().filter(|(_, after)| **after == layers) {
            let size = self.hidden_size();
            let Scratch { tree_mask, hidden, .. } = &self.scratch;
            features.write(tree_mask.places(), part, hidden, size);
        }
    }

    /// Prepares the inputs, RoPE tables and tree mask of the pass's rows. `hidden` replaces the
    /// inputs.
    fn prepare(&mut self, pass: &Pass<'_>, hidden: Option<&[f32]>) {
        if let LayerOrder::Groups(groups) = pass.order {
            assert_eq!(groups.n_layers(), self.weights.n_layers(), "groups of all layers");
        }
        let n_ropes = self.weights.ropes.len();
        let Scratch {
            hidden: inputs,
            embeddings,
            fusion,
            rope_tables,
            tree_mask,
            block_mask,
            block_rows,
            steps,
            overflows,
            collected_features,
            ..
        } = &mut self.scratch;
        rope_tables.resize_with(n_ropes, Vec::new);
        rope_tables
            .iter_mut()
            .chain([&mut *inputs, embeddings, &mut fusion.inputs, collected_features])
            .for_each(Vec::clear);
        fusion.rows.clear();
        tree_mask.clear();
        block_mask.clear();
        block_rows.clear();
        steps.clear();
        overflows.clear();
        inputs.extend_from_slice(hidden.unwrap_or_default());
        for sequence in pass.sequences {
            let (held, tree) = (sequence.held(), sequence.tree);
            let outputs = held..=tree.len();
            assert!(outputs.contains(&sequence.first_output), "output rows must be new rows");
            if hidden.is_none() {
                self.add_inputs(&tree.tokens()[held..], sequence.features);
            }
            let first_slot = sequence.cache.prefix_len();
            let depths = (held..tree.len()).map(|node| tree.depth(node));
            let positions = depths.map(|depth| first_slot + depth - 1);
            if hidden.is_none() {
                self.add_positions(&positions);
            }
            self.add_rope_tables(&positions);
            self.add_to_tree_mask(sequence, first_slot);
            if self.weights.has_states() {
                sequence.cache.add_state_steps(tree, &mut self.scratch.steps);
            }
        }
        self.fuse();
        if let Some(members) = &self.members {
            let (size, vocabulary) = (self.hidden_size(), &self.weights.vocabulary);
            let hidden = &mut self.scratch.hidden;
            members.gather_tokens(hidden, size, vocabulary, &mut new_tokens(pass));
        }
        self.compute_own_inputs(pass);
    }

    /// Computes the inputs that layers have next to the hidden state, if they have any.
    fn compute_own_inputs(&mut self, pass: &Pass<'_>) {
        let Self { weights, team, scratch, members, .. } = self;
        let architecture = weights.architecture();
        let (Some(packed), Some(OwnInput { width, .. })) =
            (&weights.own_inputs, architecture.own_input())
        else {
            return;
        };
        let OwnInputs { embeddings, inputs, stored, activations, .. } = &mut scratch.own_inputs;
        let tokens = || new_tokens(pass);
        embeddings.clear();
        tokens().for_each(|token| embed(weights, &[token], embeddings));
        if let Some(members) = members {
            let size = architecture.hidden_size;
            members.gather_tokens(embeddings, size, &weights.vocabulary, &mut tokens());
        }
        let (rows, all) = (tokens().count(), architecture.own_inputs_width());
        inputs.resize(rows * all, 0.0);
        stored.resize(all, 0.0);
        linear(team, embeddings, &packed.projection, activations, inputs);
        let scale = 1.0 / (architecture.hidden_size as f32).sqrt();
        let factor = (width as f32).sqrt();
        for (row, token) in inputs.chunks_exact_mut(all).zip(tokens()) {
            row.iter_mut().for_each(|x| *x *= scale);
            let norm = (&packed.norm[..], width);
            norm_parts(team.isa(), architecture.norm, row, norm, architecture.norm_epsilon);
            packed.stored(token, stored);
            for (x, stored) in row.iter_mut().zip(&*stored) {
                *x = (*x + stored * factor) * std::f32::consts::FRAC_1_SQRT_2;
            }
        }
    }

    /// Adds the first layer's input rows of a sequence.
    fn add_inputs(&mut self, tokens: &[TokenId], features: &[RowFeature<'_>]) {
        let Self { weights, team, scratch, .. } = self;
        let (isa, Scratch { hidden, embeddings, fusion, .. }) = (team.isa(), scratch);
        let input = weights.architecture().input;
        if input == Input::Embedding {
            return embed(weights, tokens, hidden);
        }
        if matches!(input, Input::Block { .. }) && features.is_empty() {
            return embed(weights, tokens, hidden);
        }
        assert_eq!(features.len(), tokens.len(), "a feature for each row");
        let size = weights.architecture().hidden_size;
        for (&token, &feature) in tokens.iter().zip(features) {
            let values = match feature {
                RowFeature::Target(values) | RowFeature::Predicted(values) => values,
                RowFeature::Mask => weights.mask_feature(token),
            };
            let fused = match (input, feature) {
                (Input::EmbeddingAndFeature, _) => {
                    embed(weights, &[token], &mut fusion.inputs);
                    true
                }
                (Input::NormedEmbeddingAndFeature, _) => {
                    fusion.unnormed.clear();
                    embed(weights, &[token], &mut fusion.unnormed);
                    let norms = weights.embedding_norm.as_slice();
                    extend_normed(weights, isa, norms, &fusion.unnormed, &mut fusion.inputs);
                    true
                }
                (Input::Feature { .. }, _) => {
                    embed(weights, &[token], embeddings);
                    !matches!(feature, RowFeature::Predicted(_))
                }
                (Input::Block { .. }, _) => true,
                (Input::EmbeddingPlusFeature { .. }, _) => true,
                (Input::Embedding | Input::UnprojectedFeature, _) => false,
            };
            if fused {
                let values = match (input, feature) {
                    (Input::NormedEmbeddingAndFeature, RowFeature::Predicted(predicted)) => {
                        fusion.unnormed.clear();
                        let norms = weights.final_norm.as_slice();
                        extend_normed(weights, isa, norms, predicted, &mut fusion.unnormed);
                        &fusion.unnormed
                    }
                    _ => values,
                };
                extend_normed(weights, isa, &weights.feature_norms, values, &mut fusion.inputs);
                fusion.rows.push(hidden.len() / size);
                match input {
                    Input::EmbeddingPlusFeature { .. } => embed(weights, &[token], hidden),
                    _ => hidden.resize(hidden.len() + size, 0.0),
                }
            } else {
                let normed = matches!(input, Input::Feature { normed_predictions: true, .. });
                let norms = weights.final_norm.as_slice();
                extend_normed(weights, isa, if normed { norms } else { &[] }, values, hidden);
            }
        }
    }

    /// Adds the embeddings of positions to the last rows, if the model has any.
    fn add_positions(&mut self, positions: &(impl ExactSizeIterator<Item = usize> + Clone)) {
        let Architecture { input, positions: table, .. } = self.weights.architecture();
        if table.is_none() || *input != Input::Embedding {
            return;
        }
        let size = self.hidden_size();
        let hidden = &mut self.scratch.hidden;
        let first = hidden.len() - positions.len() * size;
        for (row, position) in hidden[first..].chunks_exact_mut(size).zip(positions.clone()) {
            self.weights.add_position(position, row);
        }
    }

    /// Projects the rows that need it to the first layer's input.
    fn fuse(&mut self) {
        let Self { weights, team, scratch, .. } = self;
        let Scratch {
            hidden, fusion: FusionInputs { inputs, rows, outputs, .. }, activations, ..
        } = scratch;
        let Some(matrix) = weights.fusion.as_ref().filter(|_| !rows.is_empty()) else { return };
        let size = matrix.outputs();
        outputs.resize(rows.len() * size, 0.0);
        linear(team, inputs, matrix, activations, outputs);
        for (row, output) in rows.iter().zip(outputs.chunks_exact(size)) {
            let hidden = &mut hidden[row * size..][..size];
            match weights.architecture().input {
                Input::EmbeddingPlusFeature { scale, .. } => {
                    hidden.iter_mut().zip(output).for_each(|(x, output)| *x += scale * output);
                }
                _ => hidden.copy_from_slice(output),
            }
        }
    }

    /// Adds a sequence's rows to the attention mask. Its tree's slots start at `first_slot`.
    fn add_to_tree_mask(&mut self, sequence: &SequencePass<'_>, first_slot: usize) {
        let tree = sequence.tree;
        if matches!(self.weights.architecture().input, Input::Block { .. }) {
            let block_mask = &mut self.scratch.block_mask;
            block_mask.push_sequence(sequence.cache.table());
            let slots = first_slot + sequence.held()..first_slot + tree.len();
            slots.for_each(|slot| block_mask.push_of_block(slot, first_slot + tree.len()));
            self.scratch.block_rows.extend(0..sequence.rows());
        }
        let tree_mask = &mut self.scratch.tree_mask;
        tree_mask.push_sequence(sequence.cache.table());
        // A node's ancestors and itself are the nodes `0..=node` exactly if its depth is
        // `node + 1`.
        let ends_chain = |node: Node| tree.depth(node) == node + 1;
        for node in sequence.held()..tree.len() {
            let mut upwards = std::iter::successors(Some(node), |&node| tree.parent(node));
            let chain = upwards.clone().find(|&node| ends_chain(node)).map_or(0, |node| node + 1);
            let rest = upwards.by_ref().take_while(|&node| !ends_chain(node));
            let rest = rest.map(|node| first_slot + node);
            tree_mask.push(first_slot + node, first_slot + chain, rest);
        }
    }

    /// Adds the RoPE tables of rows at these positions.
    fn add_rope_tables(&mut self, positions: &(impl ExactSizeIterator<Item = usize> + Clone)) {
        for (rope, tables) in self.weights.ropes.iter().zip(&mut self.scratch.rope_tables) {
            let (size, start) = (rope.table_len(), tables.len());
            tables.resize(start + positions.len() * size, 0.0);
            for (table, position) in tables[start..].chunks_exact_mut(size).zip(positions.clone()) {
                rope.table(position, table);
            }
        }
    }

    /// Computes the first half of a group of layers (EasySpec, algorithm 2): the attention of all
    /// its layers, each into its own block, from the same hidden state. Writes the rows' keys and
    /// values.
    fn attention_blocks(&mut self, layers: Range<usize>, storage: &mut CpuPages) {
        let Self { weights, team, scratch, sub_teams, group_parallelism, members, .. } = self;
        let Scratch {
            blocks,
            hidden,
            embeddings,
            rope_tables,
            tree_mask,
            block_mask,
            block_rows,
            steps,
            overflows,
            ..
        } = scratch;
        let input = AttentionInput {
            ropes: &weights.ropes,
            norm: weights.architecture().norm,
            epsilon: weights.architecture().norm_epsilon,
            hidden,
            embeddings,
            rope_tables,
            tree_mask,
            block_mask,
            block_rows,
            steps,
            members: members.as_ref(),
        };
        if blocks.len() < layers.len() {
            blocks.resize_with(layers.len(), AttentionBlock::default);
        }
        let blocks = &mut blocks[..layers.len()];
        let mut group = Group { team, sub_teams, input, weights: weights.layers(layers.clone()) };
        group.run(*group_parallelism, layers.start, blocks, storage);
        for (layer, block) in layers.zip(blocks) {
            let of_block = block.overflows.iter();
            overflows.extend(of_block.map(|&(row, part)| CacheOverflow { row, layer, part }));
        }
    }

    /// Computes the second half of a group, layer by layer: adds attention and then the MLP to the
    /// hidden state. A group of a single layer is therefore computed exactly.
    fn mlp_blocks(&mut self, layers: Range<usize>) {
        for (index, layer) in layers.enumerate() {
            self.finish_layer(index, layer);
        }
    }

    /// Adds the attention of a layer, which is in the block with this index, to the hidden state,
    /// and then what its MLP and its experts compute.
    fn finish_layer(&mut self, index: usize, layer: usize) {
        let Self { weights, team, scratch, members, .. } = self;
        let Architecture { norm, factors, .. } = *weights.architecture();
        let (isa, weights) = (team.isa(), weights.layer(layer));
        let Scratch {
            hidden,
            normed,
            normed_output,
            delta,
            blocks,
            mlp,
            mlp_convs,
            block_rows,
            own_inputs,
            ..
        } = scratch;
        normed.resize(hidden.len(), 0.0);
        delta.resize(hidden.len(), 0.0);
        blocks[index].start_residual(&weights.attention_norm, hidden);
        let mut mlp_input = |hidden: &[f32]| match &weights.mlp_norm {
            Some(mlp_norm) => norm_rows(isa, norm, hidden, mlp_norm, normed),
            None => normed.copy_from_slice(hidden),
        };
        if weights.mlp_is_before_attention {
            mlp_input(hidden);
        }
        let mut add = |hidden: &mut Vec<f32>, added: &[f32], output_norm: &Option<NormWeights>| {
            match output_norm {
                Some(output_norm) => {
                    normed_output.resize(added.len(), 0.0);
                    norm_rows(isa, norm, added, output_norm, normed_output);
                    add_scaled(isa, hidden, normed_output, factors.residual);
                }
                None => add_scaled(isa, hidden, added, factors.residual),
            }
        };
        add(hidden, &blocks[index].delta, &weights.attention_output_norm);
        if !weights.mlp_is_before_attention {
            mlp_input(hidden);
        }
        if let Some(conv) = &weights.mlp_conv {
            mlp_convs.before(team, conv, block_rows, normed);
        }
        let workers = Workers { team, members: members.as_ref(), widths: &weights.widths };
        mlp.run(workers, (weights.mlp.as_ref(), weights.experts.as_ref()), (hidden, normed), delta);
        if let Some(conv) = &weights.mlp_conv {
            mlp_convs.after(team, conv, block_rows, delta);
        }
        add(hidden, delta, &weights.mlp_output_norm);
        if let Some(own) = &weights.own_input {
            own_inputs.gate(team, own, layer, hidden);
            linear(team, &own_inputs.gated, &own.up, &mut own_inputs.activations, delta);
            norm_rows(isa, norm, delta, &own.norm, normed);
            add_scaled(isa, hidden, normed, factors.residual);
        }
        if let Some(factor) = weights.scalar {
            hidden.iter_mut().for_each(|x| *x *= factor);
        }
    }

    /// Computes `normed[to + i] = norm(hidden[rows.start + i])`, for all of `rows`.
    fn final_norm(&mut self, rows: Range<usize>, to: usize) {
        let Self { weights, team, scratch, .. } = self;
        let Architecture { hidden_size: size, norm, .. } = *weights.architecture();
        let hidden = &scratch.hidden[rows.start * size..rows.end * size];
        let normed = &mut scratch.normed[to * size..(to + rows.len()) * size];
        match &weights.final_norm {
            Some(final_norm) => norm_rows(team.isa(), norm, hidden, final_norm, normed),
            None => normed.copy_from_slice(hidden),
        }
    }

    /// Computes `logits = head(normed)` for the first `rows` rows.
    fn logits(&mut self, rows: usize) {
        let Self { weights, team, scratch, members, .. } = self;
        let Scratch { normed, activations, logits, .. } = scratch;
        logits.resize(rows * weights.head.outputs(), 0.0);
        if rows > 0 {
            let normed = &normed[..rows * weights.architecture().hidden_size];
            linear(team, normed, &weights.head, activations, logits);
            if let Some(members) = members {
                members.gather_for_leader(logits, rows, &weights.vocabulary);
            }
            let divisor = weights.architecture().factors.logit_divisor;
            if divisor != 1.0 {
                divide(team.isa(), logits, divisor);
            }
            if let Some(cap) = weights.architecture().logit_cap {
                soft_cap(team.isa(), logits, cap);
            }
        }
    }
}

impl OwnInputs {
    /// Computes `gated = activation(gate(hidden)) · input`, with the inputs of a layer.
    fn gate(&mut self, team: &Team, packed: &PackedOwnInput, layer: usize, hidden: &[f32]) {
        let Self { inputs, gate, gate_input, gated, activations, .. } = self;
        let width = packed.gate.outputs();
        let rows = hidden.len() / packed.gate.inputs();
        let stride = inputs.len() / rows.max(1);
        gate.resize(rows * width, 0.0);
        linear(team, hidden, &packed.gate, activations, gate);
        gate_input.clear();
        for (gate, inputs) in gate.chunks_exact(width).zip(inputs.chunks_exact(stride.max(1))) {
            gate_input.extend_from_slice(gate);
            gate_input.extend_from_slice(&inputs[layer * width..][..width]);
        }
        gated.resize(rows * width, 0.0);
        activate(team, &packed.shape, gate_input, gated);
    }
}

/// Returns the tokens of the new rows of all sequences.
fn new_tokens(pass: &Pass<'_>) -> impl Iterator<Item = TokenId> {
    let sequences = pass.sequences.iter();
    sequences.flat_map(|sequence| sequence.tree.tokens()[sequence.held()..].iter().copied())
}

/// Returns whether a pass only adds the context of blocks: its rows have features.
fn is_of_context(architecture: &Architecture, pass: &Pass<'_>) -> bool {
    let has_features = pass.sequences.iter().any(|sequence| !sequence.features.is_empty());
    matches!(architecture.input, Input::Block { .. }) && has_features
}

/// Appends a row to `rows`: with a norm of each of its parts, or as it is if there are no `norms`.
fn extend_normed(
    weights: &Weights,
    isa: Isa,
    norms: &[NormWeights], // [parts][part width]
    row: &[f32],
    rows: &mut Vec<f32>,
) {
    let start = rows.len();
    rows.extend_from_slice(row);
    let Some(width) = norms.first().map(|norm| norm.weight.len()) else { return };
    let parts = row.chunks_exact(width).zip(rows[start..].chunks_exact_mut(width));
    for ((part, out), norm) in parts.zip(norms) {
        norm_rows(isa, weights.architecture().norm, part, norm, out);
    }
}

/// Appends the embeddings of tokens to `rows`.
fn embed(weights: &Weights, tokens: &[TokenId], rows: &mut Vec<f32>) {
    let (size, start) = (weights.architecture().hidden_size, rows.len());
    rows.resize(start + tokens.len() * size, 0.0);
    for (row, &token) in rows[start..].chunks_exact_mut(size).zip(tokens) {
        weights.embed(token, row);
    }
}

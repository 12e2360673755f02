//! The forward pass of a decoder-only Transformer over the token trees of several sequences.

mod attention_block;
mod block_convs;
mod inputs;
mod latent_block;
mod mlp_block;
mod observed;
mod own_inputs;
mod routing;
mod rows;

pub use attention_block::GroupParallelism;
pub(crate) use observed::{Observed, STATES};

use crate::adapters::AdapterWeights;
use crate::cpu_pages::CpuPages;
use crate::kernels::{Activations, NormWeights, add_scaled, divide, linear, norm_rows, soft_cap};
use crate::team::{SubTeams, Team};
use crate::tensor_parallel::Members;
use crate::weights::{PackedNorm, Weights};
use attention_block::{AttentionBlock, AttentionInput, Group};
use block_convs::BlockConvs;
use forerun_formats::{Architecture, FeatureSource, Input};
use forerun_lm::LayerOrder;
use forerun_model::{
    CacheOverflow, Cancelled, Forward, ForwardRest, Pass, PassError, PassOutput, RowFeature,
};
use inputs::Inputs;
use mlp_block::{MlpBlock, Workers};
use own_inputs::OwnInputs;
use rows::{Adapted, Rows, new_tokens};
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
    adapters: Vec<Arc<AdapterWeights>>,
}

/// Buffers that are kept between passes, so that passes stop allocating once the buffers have
/// grown.
#[derive(Default)]
struct Scratch {
    hidden: Vec<f32>,             // [rows, hidden]
    collected_features: Vec<f32>, // [numbers of layers, rows, hidden]
    inputs: Inputs,
    own_inputs: OwnInputs,
    rows: Rows,
    normed: Vec<f32>,        // [rows, hidden]
    normed_output: Vec<f32>, // [rows, hidden], if what is added is normed
    delta: Vec<f32>,         // [rows, hidden]
    mlp: MlpBlock,
    mlp_convs: BlockConvs,
    logits: Vec<f32>, // [output rows, vocab]
    activations: Activations,
    /// One block for each layer of the largest group so far.
    blocks: Vec<AttentionBlock>,
    /// The keys and values of the pass that the cache cannot hold.
    overflows: Vec<CacheOverflow>,
}

impl Transformer {
    /// Creates a model whose forward passes run on `team`.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>) -> Self {
        let (scratch, sub_teams) = (Scratch::default(), BTreeMap::new());
        let group_parallelism = GroupParallelism::default();
        let (features, members, adapters) = (None, None, Vec::new());
        Self { weights, team, scratch, sub_teams, group_parallelism, features, members, adapters }
    }

    /// Returns the same model with adapters, which sequences name by their index.
    #[must_use]
    pub fn with_adapters(self, adapters: Vec<Arc<AdapterWeights>>) -> Self {
        Self { adapters, ..self }
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

    fn adapters(&self) -> usize {
        self.adapters.len()
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
        match pass.is_context() {
            true => self.run_context(pass, storage)?,
            false => {
                let first = self.weights.architecture().key_layers();
                self.run_layers(pass, None, first..self.weights.n_layers(), storage)?;
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

    /// Computes the keys and values that layers have of the tokens before a block, from the target's
    /// features: all layers from one projection of them, or each from its part.
    ///
    /// # Errors
    /// [`Cancelled`] once all sequences are cancelled, which is checked before each layer.
    fn run_context(&mut self, pass: &Pass<'_>, storage: &mut CpuPages) -> Result<(), Cancelled> {
        self.prepare(pass, None);
        let Self { weights, team, scratch, .. } = self;
        let norm = weights.architecture().norm;
        if let Some(context_norm) = &weights.inputs.context_norm {
            scratch.normed.resize(scratch.hidden.len(), 0.0);
            norm_rows(team.isa(), norm, &scratch.hidden, context_norm, &mut scratch.normed);
            std::mem::swap(&mut scratch.hidden, &mut scratch.normed);
        }
        if scratch.blocks.is_empty() {
            scratch.blocks.push(AttentionBlock::default());
        }
        let input = weights.architecture().input;
        let layers = match input {
            Input::TargetKeys { .. } => weights.architecture().key_layers(),
            _ => weights.n_layers(),
        };
        for layer in 0..layers {
            if pass.is_cancelled() {
                return Err(Cancelled);
            }
            let of_layer = weights.layer(layer);
            let norm_before = match input {
                Input::TargetKeys { width } => {
                    copy_part(pass, layer * width..(layer + 1) * width, &mut scratch.hidden);
                    &of_layer.attention_norm
                }
                _ => &PackedNorm::None,
            };
            let input = AttentionInput {
                ropes: &weights.ropes,
                norm,
                epsilon: weights.architecture().norm_epsilon,
                hidden: &scratch.hidden,
                embeddings: &[],
                rows: &scratch.rows,
                members: None,
            };
            let block = &mut scratch.blocks[0];
            let cached = &mut storage.layers_mut(layer..layer + 1)[0];
            block.store_context(team, &input, (of_layer, norm_before), cached);
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
        self.scratch.normed.resize(self.scratch.hidden.len(), 0.0);
        if stores_normed && let Some(features) = storage.features_mut() {
            self.final_norm(0..self.scratch.rows.len(), 0);
            let size = self.hidden_size();
            features.write(self.scratch.rows.places(), 0, &self.scratch.normed, size);
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
            let Scratch { rows, hidden, .. } = &self.scratch;
            features.write(rows.places(), part, hidden, size);
        }
    }

    /// Prepares the pass's rows and their inputs. The hidden states that `earlier` layers left
    /// replace the inputs.
    fn prepare(&mut self, pass: &Pass<'_>, earlier: Option<&[f32]>) {
        if let LayerOrder::Groups(groups) = pass.order {
            assert_eq!(groups.n_layers(), self.weights.n_layers(), "groups of all layers");
        }
        let Self { weights, team, scratch, members, adapters, .. } = self;
        let Scratch { hidden, inputs, own_inputs, rows, overflows, collected_features, .. } =
            scratch;
        hidden.clear();
        hidden.extend_from_slice(earlier.unwrap_or_default());
        inputs.clear();
        rows.clear();
        overflows.clear();
        collected_features.clear();
        for sequence in pass.sequences {
            let outputs = sequence.held()..=sequence.tree.len();
            assert!(outputs.contains(&sequence.first_output), "output rows must be new rows");
            if earlier.is_none() {
                inputs.add(weights, team, sequence, hidden);
            }
            rows.add(weights, adapters, sequence);
        }
        inputs.fuse(weights, team, hidden);
        if let Some(members) = members {
            let size = weights.architecture().hidden_size;
            members.gather_tokens(hidden, size, &weights.vocabulary, &mut new_tokens(pass));
        }
        own_inputs.compute((weights, team), members.as_ref(), pass);
    }

    /// Computes the first half of a group of layers (EasySpec, algorithm 2): the attention of all
    /// its layers, each into its own block, from the same hidden state. Writes the rows' keys and
    /// values.
    fn attention_blocks(&mut self, layers: Range<usize>, storage: &mut CpuPages) {
        let Self { weights, team, scratch, sub_teams, group_parallelism, members, .. } = self;
        let Scratch { blocks, hidden, inputs, rows, overflows, .. } = scratch;
        let input = AttentionInput {
            ropes: &weights.ropes,
            norm: weights.architecture().norm,
            epsilon: weights.architecture().norm_epsilon,
            hidden,
            embeddings: inputs.embeddings(),
            rows,
            members: members.as_ref(),
        };
        if blocks.len() < layers.len() {
            blocks.resize_with(layers.len(), AttentionBlock::default);
        }
        let blocks = &mut blocks[..layers.len()];
        for (block, layer) in blocks.iter_mut().zip(layers.clone()) {
            block.layer = layer;
        }
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
            rows,
            own_inputs,
            ..
        } = scratch;
        normed.resize(hidden.len(), 0.0);
        delta.resize(hidden.len(), 0.0);
        blocks[index].start_residual(weights, hidden);
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
        if weights.post_norm {
            hidden.copy_from_slice(normed);
        }
        if let Some(conv) = &weights.mlp_conv {
            mlp_convs.before(team, conv, rows.in_blocks(), normed);
        }
        let workers = Workers { team, members: members.as_ref(), widths: &weights.widths };
        let parts = (weights.mlp.as_ref(), weights.experts.as_ref());
        mlp.run(workers, parts, Adapted { rows, layer }, (hidden, normed), delta);
        if let Some(conv) = &weights.mlp_conv {
            mlp_convs.after(team, conv, rows.in_blocks(), delta);
        }
        add(hidden, delta, &weights.mlp_output_norm);
        if let Some(own) = &weights.own_input {
            own_inputs.project(team, own, layer, hidden, delta);
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

/// Copies a part of the features of all rows of a context: `[rows, part]`.
fn copy_part(pass: &Pass<'_>, part: Range<usize>, hidden: &mut Vec<f32>) {
    hidden.clear();
    for feature in pass.sequences.iter().flat_map(|sequence| sequence.features) {
        if let RowFeature::Context(values) = feature {
            hidden.extend_from_slice(&values[part.clone()]);
        }
    }
}

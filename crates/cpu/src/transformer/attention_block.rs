//! The attention half of a layer, for one layer and for a group of layers that read the same hidden
//! state (EasySpec, algorithm 2).

use super::block_convs::BlockConvs;
use super::latent_block::LatentBlock;
use super::rows::{Adapted, Rows};
use crate::adapters::{AdapterScratch, Projected};
use crate::cpu_pages::{CpuPages, LayerCache};
use crate::kernels::{
    Activations, KeysValues, Product, Queries, RecurrentScratch, Rope, attention, gate_rows,
    linear_group, norm_parts, norm_rows, recur,
};
use crate::team::{SubTeams, Team};
use crate::tensor_parallel::Members;
use crate::weights::{LayerWeights, PackedNorm};
use forerun_formats::Norm;
use forerun_lm::CachePart;
use std::collections::BTreeMap;

/// How a team parallelises the attention of a group's layers. The results are bit-identical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupParallelism {
    /// Whole layers in parallel, each on a sub-team; on a single core one after another.
    #[default]
    Layers,
    /// The whole team computes all layers' query, key and value projections together, and all their
    /// output projections together. Attention in between runs as with [`GroupParallelism::Layers`].
    /// It took 1 to 8 % longer on two cores.
    Products,
}

/// The buffers of one layer's attention or recurrent mixer. Each layer of a group has its own, so
/// that the layers can be computed in parallel.
#[derive(Default)]
pub(super) struct AttentionBlock {
    pub(super) layer: usize,
    pub(super) normed: Vec<f32>, // [rows, hidden]
    pub(super) qkv: Vec<f32>,    // [rows, projected width]
    /// The buffers of compressed keys and values. `qkv` has absorbed queries and the key then.
    pub(super) latent: LatentBlock,
    pub(super) attended: Vec<f32>, // [rows, n_heads, value_dim]
    pub(super) delta: Vec<f32>,    // [rows, hidden]
    scratch: Vec<f32>,             // of the attention kernel
    recurrent: RecurrentScratch,
    convs: BlockConvs,
    /// The rows with a key or a value that the cache cannot hold.
    pub(super) overflows: Vec<(usize, CachePart)>,
    activations: Activations,
    adapters: AdapterScratch,
}

/// The input that the attention of all layers of a group has in common.
#[derive(Clone, Copy)]
pub(super) struct AttentionInput<'a> {
    pub(super) ropes: &'a [Rope],
    pub(super) norm: Norm,
    pub(super) epsilon: f32,
    pub(super) hidden: &'a [f32],     // [rows, hidden]
    pub(super) embeddings: &'a [f32], // [rows, hidden], if attention also reads embeddings (EAGLE-3)
    pub(super) rows: &'a Rows,
    /// The other members that compute the layers' other heads and outputs, if there are any.
    pub(super) members: Option<&'a Members>,
}

impl AttentionBlock {
    /// Computes `delta = o(attention(norm(hidden)))`.
    fn run(
        &mut self,
        team: &Team,
        input: &AttentionInput<'_>,
        weights: &LayerWeights,
        cached: &mut LayerCache,
    ) {
        self.prepare(team, input, weights);
        self.projection(weights).compute(team);
        self.adapt_projection(team, input);
        self.mix(team, input, weights, cached);
        self.add_output(team, input, weights);
    }

    /// Stores the keys and values of the tokens before a block, whose projections read `hidden`
    /// after the norm. The queries of the same product, if there are any, are not used.
    pub(super) fn store_context(
        &mut self,
        team: &Team,
        input: &AttentionInput<'_>,
        (weights, norm): (&LayerWeights, &PackedNorm),
        cached: &mut LayerCache,
    ) {
        self.overflows.clear();
        self.qkv.resize(input.rows.len() * weights.row_width(), 0.0);
        self.norm(team, input, norm);
        self.projection(weights).compute(team);
        self.rotate_and_store(team, input, weights, Some(&mut cached.keys_values));
    }

    /// Resizes the buffers for the rows, and computes the input of the projections.
    fn prepare(&mut self, team: &Team, input: &AttentionInput<'_>, weights: &LayerWeights) {
        let rows = input.rows.len();
        self.overflows.clear();
        self.qkv.resize(rows * weights.row_width(), 0.0);
        self.attended.resize(rows * weights.mixed_width(), 0.0);
        if let Some(latent) = &weights.latent {
            self.latent.prepare(latent, rows);
        }
        self.delta.resize(rows * weights.output.outputs(), 0.0);
        self.norm(team, input, &weights.attention_norm);
        if let Some(conv) = &weights.attention_conv {
            self.convs.before(team, conv, input.rows.in_blocks(), &mut self.normed);
        }
    }

    /// Computes the input of the projections, `normed`.
    fn norm(&mut self, team: &Team, input: &AttentionInput<'_>, norm: &PackedNorm) {
        let AttentionInput { hidden, embeddings, norm: kind, .. } = *input;
        let (isa, normed) = (team.isa(), &mut self.normed);
        match norm {
            PackedNorm::None => {
                normed.clear();
                normed.extend_from_slice(hidden);
            }
            PackedNorm::Hidden(norm) => {
                normed.resize(hidden.len(), 0.0);
                norm_rows(isa, kind, hidden, norm, normed);
            }
            PackedNorm::EmbeddingAndHidden { embedding, hidden: of_hidden, .. } => {
                let size = of_hidden.weight.len();
                normed.resize(2 * hidden.len(), 0.0);
                let rows = embeddings.chunks_exact(size).zip(hidden.chunks_exact(size));
                for (out, (embeddings, hidden)) in normed.chunks_exact_mut(2 * size).zip(rows) {
                    let (first, second) = out.split_at_mut(size);
                    norm_rows(isa, kind, embeddings, embedding, first);
                    norm_rows(isa, kind, hidden, of_hidden, second);
                }
            }
        }
    }

    /// Replaces the hidden states by those that the layer adds to: the normed ones if its norm says
    /// so.
    pub(super) fn start_residual(&self, weights: &LayerWeights, hidden: &mut [f32]) {
        if weights.post_norm {
            return hidden.copy_from_slice(&self.normed);
        }
        let PackedNorm::EmbeddingAndHidden { hidden: weight, normed_residual: true, .. } =
            &weights.attention_norm
        else {
            return;
        };
        let size = weight.weight.len();
        let normed = self.normed.chunks_exact(2 * size);
        for (hidden, normed) in hidden.chunks_exact_mut(size).zip(normed) {
            hidden.copy_from_slice(&normed[size..]);
        }
    }

    /// The projection that computes queries, keys and values, before their norms and RoPE, latent
    /// vectors, or what a mixer reads.
    fn projection<'a>(&'a mut self, weights: &'a LayerWeights) -> Product<'a> {
        let Self { normed, activations, qkv, latent, .. } = self;
        let out = if weights.latent.is_some() { &mut latent.down } else { qkv };
        Product { x: normed, weights: weights.qkv.matrices(), activations, out }
    }

    /// Adds what the rows' adapters add to queries, keys and values.
    fn adapt_projection(&mut self, team: &Team, input: &AttentionInput<'_>) {
        let Self { layer, normed, qkv, adapters, .. } = self;
        let adapted = Adapted { rows: input.rows, layer: *layer };
        adapted.add(team, Projected::QueriesKeysValues, normed, qkv, adapters);
    }

    /// Adds what the rows' adapters add to the output projection.
    fn adapt_output(&mut self, team: &Team, input: &AttentionInput<'_>) {
        let Self { layer, attended, delta, adapters, .. } = self;
        let adapted = Adapted { rows: input.rows, layer: *layer };
        adapted.add(team, Projected::Output, attended, delta, adapters);
    }

    /// Computes attention or the recurrent mixer from the projections.
    fn mix(
        &mut self,
        team: &Team,
        input: &AttentionInput<'_>,
        weights: &LayerWeights,
        cached: &mut LayerCache,
    ) {
        match (&weights.recurrent, &mut cached.states) {
            (Some(mixer), Some(states)) => {
                let Self { qkv, recurrent, attended, .. } = self;
                recur(team, mixer, qkv, &input.rows.steps, states, recurrent, attended);
            }
            _ => self.attend(team, input, weights, cached),
        }
    }

    /// Applies the norms of queries and keys and RoPE, writes keys and values to the cache, and
    /// computes attention.
    fn attend(
        &mut self,
        team: &Team,
        input: &AttentionInput<'_>,
        weights: &LayerWeights,
        cached: &mut LayerCache,
    ) {
        self.rotate_and_store(team, input, weights, Some(&mut cached.keys_values));
        self.attend_to(team, input, weights, &cached.keys_values);
    }

    /// Computes `delta = o(attention(norm(hidden)))` over keys and values of an earlier layer.
    fn run_with_keys_of(
        &mut self,
        team: &Team,
        input: &AttentionInput<'_>,
        weights: &LayerWeights,
        cached: &KeysValues,
    ) {
        self.prepare(team, input, weights);
        self.projection(weights).compute(team);
        self.adapt_projection(team, input);
        self.rotate_and_store(team, input, weights, None);
        self.attend_to(team, input, weights, cached);
        self.add_output(team, input, weights);
    }

    /// Computes `delta` from what attention or the mixer has computed.
    fn add_output(&mut self, team: &Team, input: &AttentionInput<'_>, weights: &LayerWeights) {
        let rows = input.rows.len();
        if let Some(members) = input.members {
            let of_heads = match &weights.latent {
                Some(_) => &mut self.latent.values,
                None => &mut self.attended,
            };
            members.gather(of_heads, rows, &weights.widths.attended);
        }
        self.output(weights).compute(team);
        self.adapt_output(team, input);
        if let Some(members) = input.members {
            members.gather(&mut self.delta, rows, &weights.widths.attention);
        }
        self.convolve_output(team, input, weights);
    }

    /// Convolves what is added, if the layer does so.
    fn convolve_output(&mut self, team: &Team, input: &AttentionInput<'_>, weights: &LayerWeights) {
        if let Some(conv) = &weights.attention_conv {
            self.convs.after(team, conv, input.rows.in_blocks(), &mut self.delta);
        }
    }

    /// Applies the norms of queries, keys and values and RoPE, and writes keys and values to the
    /// cache, if the layer has any.
    fn rotate_and_store(
        &mut self,
        team: &Team,
        input: &AttentionInput<'_>,
        weights: &LayerWeights,
        mut cached: Option<&mut KeysValues>,
    ) {
        let AttentionInput { norm, epsilon, rows, .. } = *input;
        let shape = weights.shape;
        // A member may have no heads.
        if shape.row_width() == 0 {
            return;
        }
        let kv_width = if shape.has_keys { shape.kv_width() } else { 0 };
        let (q_width, width) = (shape.q_width(), shape.row_width());
        if let Some(latent) = &weights.latent {
            self.latent.expand_queries(team, latent, &mut self.qkv);
        }
        for (row, qkv) in self.qkv.chunks_exact_mut(width).enumerate() {
            let (rotated, rest) = qkv.split_at_mut(q_width + kv_width);
            // A latent vector's value is a part of its key.
            let n_values = kv_width.min(rest.len());
            let values = &mut rest[..n_values];
            if let Some(norms) = &weights.qk_norms {
                let (queries, keys) = rotated.split_at_mut(q_width);
                let parts = [(queries, &norms.queries), (keys, &norms.keys)];
                for (x, weights) in parts.into_iter().filter(|(x, _)| !x.is_empty()) {
                    let width = if norms.whole { x.len() } else { shape.head_dim };
                    norm_parts(team.isa(), norm, x, (weights, width), epsilon);
                }
            }
            if let Some(ones) = &weights.value_norm {
                norm_parts(team.isa(), norm, values, (ones, shape.head_dim), epsilon);
            }
            if let Some(limit) = weights.qkv_limit {
                let numbers = rotated.iter_mut().chain(&mut *values);
                numbers.for_each(|x| *x = x.clamp(-limit, limit));
            }
            if let Some(index) = weights.rope {
                let (rope, tables) = (&input.ropes[index], &rows.rope_tables[index]);
                let table = &tables[row * rope.table_len()..][..rope.table_len()];
                rope.rotate(team.isa(), rotated, table);
            }
            if let Some(cached) = &mut cached {
                let place = rows.place(row);
                let overflow = cached.write(team.isa(), place, &rotated[q_width..], values);
                self.overflows.extend(overflow.map(|part| (row, part)));
            }
        }
    }

    /// Computes attention over cached keys and values.
    fn attend_to(
        &mut self,
        team: &Team,
        input: &AttentionInput<'_>,
        weights: &LayerWeights,
        cached: &KeysValues,
    ) {
        let shape = weights.shape;
        if shape.n_heads == 0 {
            return;
        }
        let mask = input.rows.mask(weights.sees_block);
        let (q_width, width) = (shape.q_width(), shape.row_width());
        let sinks = weights.sinks.as_deref();
        for row in self.qkv.chunks_exact_mut(width) {
            cached.rotate_queries(shape.head_dim, &mut row[..q_width]);
        }
        let queries = Queries { rows: &self.qkv, stride: width, sinks };
        let (scratch, attended) = (&mut self.scratch, &mut self.attended);
        attention(team, shape, queries, cached, mask, scratch, attended);
        if shape.gate {
            gate_rows(team, attended, q_width, &self.qkv, (width - q_width, width));
        }
        if let Some(latent) = &weights.latent {
            self.latent.expand_values(team, latent, &self.attended);
        }
    }

    /// The output projection, whose result `delta` is added to the hidden state.
    fn output<'a>(&'a mut self, weights: &'a LayerWeights) -> Product<'a> {
        let Self { attended, activations, delta, latent, .. } = self;
        let x: &[f32] = if weights.latent.is_some() { &latent.values } else { attended };
        Product { x, weights: weights.output.matrices(), activations, out: delta }
    }

    /// Returns what the output projection reads.
    pub(super) fn output_input(&self, weights: &LayerWeights) -> &[f32] {
        if weights.latent.is_some() { &self.latent.values } else { &self.attended }
    }
}

/// A group of layers, computed on a team.
pub(super) struct Group<'a> {
    pub(super) team: &'a Team,
    /// The splits of the team into sub-teams, by their number; created when they are first needed.
    pub(super) sub_teams: &'a mut BTreeMap<usize, SubTeams>,
    pub(super) input: AttentionInput<'a>,
    pub(super) weights: &'a [LayerWeights],
}

impl Group<'_> {
    /// Computes the attention of all layers, which begin at `first`, each into its own block.
    /// Layers that attend to the keys and values of an earlier one come after the layers before
    /// them, one after another.
    pub(super) fn run(
        &mut self,
        work: GroupParallelism,
        first: usize,
        blocks: &mut [AttentionBlock],
        storage: &mut CpuPages,
    ) {
        let (team, input, weights) = (self.team, self.input, self.weights);
        let mut done = 0;
        for run in weights.chunk_by(|one, next| one.keys_of.is_none() && next.keys_of.is_none()) {
            let now = done..done + run.len();
            done = now.end;
            let blocks = &mut blocks[now.clone()];
            match run {
                [LayerWeights { keys_of: Some(source), .. }] => {
                    let cached = storage.keys_values_of(*source);
                    blocks[0].run_with_keys_of(team, &input, &run[0], cached);
                }
                _ => {
                    let cached = storage.layers_mut(first + now.start..first + now.end);
                    self.weights = run;
                    self.run_with_own_keys(work, blocks, cached);
                }
            }
        }
        self.weights = weights;
    }

    /// Computes the attention of layers with keys and values of their own, each into its own block.
    fn run_with_own_keys(
        &mut self,
        work: GroupParallelism,
        blocks: &mut [AttentionBlock],
        cached: &mut [LayerCache],
    ) {
        let (team, input, weights) = (self.team, self.input, self.weights);
        match work {
            // All members gather in the same order.
            _ if input.members.is_some() => {
                for ((block, weights), cached) in blocks.iter_mut().zip(weights).zip(cached) {
                    block.run(team, &input, weights, cached);
                }
            }
            GroupParallelism::Layers => {
                self.on_sub_teams(blocks, cached, |team, weights, block, cached| {
                    block.run(team, &input, weights, cached);
                });
            }
            GroupParallelism::Products => {
                for (block, weights) in blocks.iter_mut().zip(weights) {
                    block.prepare(team, &input, weights);
                }
                linear_group(team, blocks.iter_mut().zip(weights).map(|(b, w)| b.projection(w)));
                self.on_sub_teams(blocks, cached, |team, weights, block, cached| {
                    block.adapt_projection(team, &input);
                    block.mix(team, &input, weights, cached);
                });
                linear_group(team, blocks.iter_mut().zip(weights).map(|(b, w)| b.output(w)));
                for (block, weights) in blocks.iter_mut().zip(weights) {
                    block.adapt_output(team, &input);
                    block.convolve_output(team, &input, weights);
                }
            }
        }
    }

    /// Calls `work(team, weights, block, cached)` once for every layer, in parallel on sub-teams.
    fn on_sub_teams(
        &mut self,
        blocks: &mut [AttentionBlock],
        cached: &mut [LayerCache],
        work: impl Fn(&Team, &LayerWeights, &mut AttentionBlock, &mut LayerCache) + Sync,
    ) {
        let Self { team, sub_teams, weights, .. } = self;
        let mut done = 0;
        while done < blocks.len() {
            let count = concurrent_layers(blocks.len() - done, team.own_members());
            let now = done..done + count;
            done = now.end;
            let (blocks, cached) = (&mut blocks[now.clone()], &mut cached[now.clone()]);
            let weights = &weights[now];
            if count == 1 || team.own_members() == 1 {
                for ((block, weights), cached) in blocks.iter_mut().zip(weights).zip(cached) {
                    work(team, weights, block, cached);
                }
                continue;
            }
            let n_sub_teams = count.min(team.own_members());
            let sub_teams =
                sub_teams.entry(n_sub_teams).or_insert_with(|| team.sub_teams(n_sub_teams));
            team.for_each_pair(sub_teams, blocks, cached, |team, index, block, cached| {
                work(team, &weights[index], block, cached);
            });
        }
    }
}

/// Returns how many of the remaining `layers` to compute in parallel next: the largest multiple of
/// `members`, so that all members are equally busy; or, if there are fewer layers than members, all
/// of them, each on a sub-team of several members.
fn concurrent_layers(layers: usize, members: usize) -> usize {
    match layers / members {
        0 => layers,
        each => each * members,
    }
}

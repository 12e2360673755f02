//! What attention adds to the hidden state: of one layer, and of all layers of a group, which read the
//! same one (EasySpec, algorithm 2).

use crate::kernels::{
    Activations, AttentionShape, KeysValues, Product, Queries, Rope, TreeMask, attention,
    linear_group, norm_heads, rms_norm,
};
use crate::layers::GroupWork;
use crate::team::{Parts, Team};
use crate::weights::{AttentionNorm, LayerWeights};
use std::collections::BTreeMap;

/// What one layer's attention needs, so that several can be computed at the same time.
#[derive(Default)]
pub(super) struct AttentionBlock {
    normed: Vec<f32>,           // [rows, hidden]
    pub(super) qkv: Vec<f32>,   // [rows, n_heads + 2 · n_kv_heads, head_dim]
    attended: Vec<f32>,         // [rows, n_heads, head_dim]
    pub(super) delta: Vec<f32>, // [rows, hidden]
    attention: Vec<f32>,        // what `attention` needs
    activations: Activations,
}

/// What the attention of all layers of a group has in common.
#[derive(Clone, Copy)]
pub(super) struct AttentionInput<'a> {
    pub(super) rope: &'a Rope,
    pub(super) shape: AttentionShape,
    pub(super) epsilon: f32,
    pub(super) hidden: &'a [f32],      // [rows, hidden]
    pub(super) embeddings: &'a [f32],  // [rows, hidden] of embeddings, where attention reads them
    pub(super) rope_tables: &'a [f32], // [rows, 2, head_dim/2]
    pub(super) visible: &'a TreeMask,
    /// The rows' keys and values go to the slots from here on.
    pub(super) first_slot: usize,
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
        self.begin(team, input, weights);
        self.projection(weights).compute(team);
        self.attend(team, input, weights, cached);
        self.output(weights).compute(team);
    }

    /// Makes room for the rows, and computes what the projections read.
    fn begin(&mut self, team: &Team, input: &AttentionInput<'_>, weights: &LayerWeights) {
        let AttentionInput { shape, hidden, visible, .. } = *input;
        let (q_width, rows) = (shape.n_heads * shape.head_dim, visible.rows());
        self.qkv.resize(rows * (q_width + 2 * shape.kv_width()), 0.0);
        self.attended.resize(rows * q_width, 0.0);
        self.delta.resize(hidden.len(), 0.0);
        self.norm(team, input, &weights.attention_norm);
    }

    /// What the projections read, in `normed`.
    fn norm(&mut self, team: &Team, input: &AttentionInput<'_>, norm: &AttentionNorm) {
        let AttentionInput { hidden, embeddings, epsilon, .. } = *input;
        let (isa, normed) = (team.isa(), &mut self.normed);
        match norm {
            AttentionNorm::None => {
                normed.clear();
                normed.extend_from_slice(hidden);
            }
            AttentionNorm::Hidden(norm) => {
                normed.resize(hidden.len(), 0.0);
                rms_norm(isa, hidden, norm, epsilon, normed);
            }
            AttentionNorm::Both { embedding, hidden: of_hidden } => {
                let size = of_hidden.len();
                normed.resize(2 * hidden.len(), 0.0);
                let rows = embeddings.chunks_exact(size).zip(hidden.chunks_exact(size));
                for (out, (embeddings, hidden)) in normed.chunks_exact_mut(2 * size).zip(rows) {
                    let (first, second) = out.split_at_mut(size);
                    rms_norm(isa, embeddings, embedding, epsilon, first);
                    rms_norm(isa, hidden, of_hidden, epsilon, second);
                }
            }
        }
    }

    /// Queries, keys and values, before anything is done to them.
    fn projection<'a>(&'a mut self, weights: &'a LayerWeights) -> Product<'a> {
        let Self { normed, activations, qkv, .. } = self;
        Product { x: normed, weights: &weights.qkv, activations, out: qkv }
    }

    /// Puts keys and values into the cache, and computes attention.
    fn attend(
        &mut self,
        team: &Team,
        input: &AttentionInput<'_>,
        weights: &LayerWeights,
        cached: &mut KeysValues,
    ) {
        let AttentionInput { rope, shape, epsilon, visible, first_slot, .. } = *input;
        let (q_width, kv_width) = (shape.n_heads * shape.head_dim, shape.kv_width());
        let width = q_width + 2 * kv_width;
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
    }

    /// What is added to the hidden state.
    fn output<'a>(&'a mut self, weights: &'a LayerWeights) -> Product<'a> {
        let Self { attended, activations, delta, .. } = self;
        Product { x: attended, weights: &weights.output, activations, out: delta }
    }
}

/// The layers of a group, on a team.
pub(super) struct Group<'a> {
    pub(super) team: &'a Team,
    /// The team in so many parts, made when they are first needed.
    pub(super) parts: &'a mut BTreeMap<usize, Parts>,
    pub(super) input: AttentionInput<'a>,
    pub(super) weights: &'a [LayerWeights],
}

impl Group<'_> {
    /// The attention of all layers, each into its own block.
    pub(super) fn run(
        &mut self,
        work: GroupWork,
        blocks: &mut [AttentionBlock],
        cached: &mut [KeysValues],
    ) {
        let (team, input, weights) = (self.team, self.input, self.weights);
        match work {
            GroupWork::Layers => self.on_parts(blocks, cached, |team, weights, block, cached| {
                block.run(team, &input, weights, cached);
            }),
            GroupWork::Products => {
                for (block, weights) in blocks.iter_mut().zip(weights) {
                    block.begin(team, &input, weights);
                }
                linear_group(team, blocks.iter_mut().zip(weights).map(|(b, w)| b.projection(w)));
                self.on_parts(blocks, cached, |team, weights, block, cached| {
                    block.attend(team, &input, weights, cached);
                });
                linear_group(team, blocks.iter_mut().zip(weights).map(|(b, w)| b.output(w)));
            }
        }
    }

    /// Calls `work(team, weights, block, cached)` for every layer, on parts of the team at the same time.
    fn on_parts(
        &mut self,
        blocks: &mut [AttentionBlock],
        cached: &mut [KeysValues],
        work: impl Fn(&Team, &LayerWeights, &mut AttentionBlock, &mut KeysValues) + Sync,
    ) {
        let Self { team, parts, weights, .. } = self;
        let mut done = 0;
        while done < blocks.len() {
            let count = at_the_same_time(blocks.len() - done, team.members());
            let now = done..done + count;
            done = now.end;
            let (blocks, cached) = (&mut blocks[now.clone()], &mut cached[now.clone()]);
            let weights = &weights[now];
            if count == 1 || team.members() == 1 {
                for ((block, weights), cached) in blocks.iter_mut().zip(weights).zip(cached) {
                    work(team, weights, block, cached);
                }
                continue;
            }
            let wanted = count.min(team.members());
            let parts = parts.entry(wanted).or_insert_with(|| team.parts(wanted));
            team.each(parts, blocks, cached, |team, index, block, cached| {
                work(team, &weights[index], block, cached);
            });
        }
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

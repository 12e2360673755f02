//! The parts of a layer's attention that only compressed keys and values have, in the absorbed form
//! ([`forerun_formats::Latent`]).

use crate::kernels::PackedMatrix;
use crate::kernels::{Activations, Product, linear_group, norm_parts};
use crate::team::Team;
use crate::weights::PackedLatent;
use forerun_formats::Norm;

/// The number of heads that are computed together.
const HEADS_TOGETHER: usize = 8;

/// The buffers of one layer.
#[derive(Default)]
pub(super) struct LatentBlock {
    /// The latent vectors, with the rotated part of the key:
    /// `[rows, query_rank + rank + rope_dim]`. If queries are not compressed, they are in the place
    /// of the first one.
    pub(super) down: Vec<f32>,
    /// The normed latent vectors of queries.
    pub(super) compressed: Vec<f32>, // [rows, query_rank]
    queries: Vec<f32>, // [rows, n_heads, query_dim]
    inputs: Vec<f32>,  // [n_heads, rows, plain_dim or rank]
    outputs: Vec<f32>, // [n_heads, rows, rank or value_dim]
    /// What the output projection reads.
    pub(super) values: Vec<f32>, // [rows, n_heads, value_dim]
    activations: Activations,
    of_heads: [Activations; HEADS_TOGETHER],
}

impl LatentBlock {
    /// Resizes the output of the projections to latent vectors.
    pub(super) fn prepare(&mut self, packed: &PackedLatent, rows: usize) {
        self.down.resize(rows * (query_part(packed) + packed.shape.key_dim()), 0.0);
        self.values.resize(rows * packed.n_heads * packed.shape.value_dim, 0.0);
    }

    /// Computes absorbed queries and the key, before RoPE, from the latent vectors. `out`:
    /// `[rows, n_heads + 1, rope_dim + rank]`.
    pub(super) fn expand_queries(&mut self, team: &Team, packed: &PackedLatent, out: &mut [f32]) {
        let (shape, n_heads) = (packed.shape, packed.n_heads);
        let (query_dim, key_dim, rank) = (shape.query_dim(), shape.key_dim(), shape.rank);
        let part = query_part(packed);
        let norm = |x: &mut [f32], weights: &[f32]| {
            let width = weights.len();
            norm_parts(team.isa(), Norm::Rms, x, (weights, width), shape.norm_epsilon);
        };
        let Self { down, compressed, queries, inputs, outputs, activations, of_heads, .. } = self;
        let rows = down.len() / (part + key_dim);
        let firsts = down.chunks_exact(part + key_dim).map(|row| &row[..part]);
        match &packed.queries {
            None => {
                queries.clear();
                firsts.for_each(|row| queries.extend_from_slice(row));
            }
            Some((weights, up)) => {
                compressed.clear();
                firsts.for_each(|row| compressed.extend_from_slice(row));
                norm(compressed, weights);
                queries.resize(rows * n_heads * query_dim, 0.0);
                let weights = up.matrices();
                Product { x: compressed, weights, activations, out: queries }.compute(team);
            }
        }
        let heads = queries.chunks_exact(query_dim);
        by_head(&heads.map(|head| &head[..shape.plain_dim]), n_heads, inputs);
        outputs.resize(n_heads * rows * rank, 0.0);
        multiply_heads(team, &packed.keys, inputs, of_heads, outputs);
        let width = (n_heads + 1) * key_dim;
        for (row, (out, down)) in
            out.chunks_exact_mut(width).zip(down.chunks_exact(part + key_dim)).enumerate()
        {
            let (absorbed, key) = out.split_at_mut(n_heads * key_dim);
            for (head, out) in absorbed.chunks_exact_mut(key_dim).enumerate() {
                let query = &queries[(row * n_heads + head) * query_dim..][..query_dim];
                let (rotated, latent) = out.split_at_mut(shape.rope_dim);
                rotated.copy_from_slice(&query[shape.plain_dim..]);
                latent.copy_from_slice(&outputs[(head * rows + row) * rank..][..rank]);
            }
            let (rotated, latent) = key.split_at_mut(shape.rope_dim);
            latent.copy_from_slice(&down[part..part + rank]);
            norm(latent, &packed.norm);
            rotated.copy_from_slice(&down[part + rank..]);
        }
    }

    /// Expands the weighted sums of latent vectors to values. `attended`: `[rows, n_heads, rank]`.
    pub(super) fn expand_values(&mut self, team: &Team, packed: &PackedLatent, attended: &[f32]) {
        let (n_heads, dim) = (packed.n_heads, packed.shape.value_dim);
        let Self { inputs, outputs, of_heads, values, .. } = self;
        by_head(&attended.chunks_exact(packed.shape.rank), n_heads, inputs);
        outputs.resize(values.len(), 0.0);
        multiply_heads(team, &packed.values, inputs, of_heads, outputs);
        let rows = values.len() / (n_heads * dim);
        for (index, out) in values.chunks_exact_mut(dim).enumerate() {
            let (row, head) = (index / n_heads, index % n_heads);
            out.copy_from_slice(&outputs[(head * rows + row) * dim..][..dim]);
        }
    }
}

/// Returns the width of what precedes the latent vector of keys and values in a row.
fn query_part(packed: &PackedLatent) -> usize {
    let of_all_heads = packed.n_heads * packed.shape.query_dim();
    packed.shape.query_rank.unwrap_or(of_all_heads)
}

/// Reorders parts, `[rows, n_heads]`, to `[n_heads, rows]`.
fn by_head<'a>(
    parts: &(impl Iterator<Item = &'a [f32]> + Clone),
    n_heads: usize,
    out: &mut Vec<f32>,
) {
    out.clear();
    for head in 0..n_heads {
        parts.clone().skip(head).step_by(n_heads).for_each(|part| out.extend_from_slice(part));
    }
}

/// Multiplies the rows of each head with its own matrix. `x`, `out`: `[n_heads, rows, …]`.
fn multiply_heads(
    team: &Team,
    matrices: &[PackedMatrix],
    x: &[f32],
    activations: &mut [Activations; HEADS_TOGETHER],
    out: &mut [f32],
) {
    let [inputs, outputs] = [x.len(), out.len()].map(|length| length / matrices.len().max(1));
    if outputs == 0 {
        return;
    }
    let together = matrices.chunks(HEADS_TOGETHER).zip(x.chunks(HEADS_TOGETHER * inputs));
    for ((matrices, x), out) in together.zip(out.chunks_mut(HEADS_TOGETHER * outputs)) {
        let products =
            matrices.iter().zip(x.chunks_exact(inputs)).zip(out.chunks_exact_mut(outputs));
        let products = products.zip(activations.iter_mut());
        linear_group(
            team,
            products.map(|(((matrix, x), out), activations)| Product {
                x,
                weights: std::slice::from_ref(matrix),
                activations,
                out,
            }),
        );
    }
}

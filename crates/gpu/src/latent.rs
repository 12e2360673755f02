//! The dispatches that only compressed keys and values have (DeepSeek's multi-head latent
//! attention), in the absorbed form: queries are turned into queries of the cached rows, so the
//! cache holds one latent vector for all heads.
//!
//! In the place of the dispatch for heads, there are the norm and the expansion of compressed
//! queries, their parts, the absorption, the projection to the latent vector, the cached row, and
//! the expansion of values. Each head has matrices of its own, which are one dispatch together.

use crate::attention::half_rotated;
use crate::head_matrix::HeadMatrix;
use crate::kernel::Kernel;
use crate::layer_weights::{AttentionWeights, LatentWeights};
use crate::pacer::work_of_product;
use crate::parameters::{self, Linear};
use crate::pass::PassRun;
use crate::product::{Store, linear_groups};
use wgpu::Buffer;

/// Where the inputs or the results of heads are, in numbers: their first one, and those of a row
/// and of a head.
#[derive(Clone, Copy)]
struct HeadPlaces {
    offset: usize,
    stride: usize,
    head: usize,
}

/// Returns the numbers of the part without RoPE, filled up to whole vectors.
pub(crate) fn plain_stride(weights: &LatentWeights) -> usize {
    weights.shape.plain_dim.next_multiple_of(4)
}

impl<'a> PassRun<'a> {
    /// Records a layer's queries of the cached rows, and the row of the cache.
    pub(crate) fn latent_heads(
        &mut self,
        index: usize,
        (weights, latent): (&AttentionWeights, &LatentWeights),
        input: &Buffer,
    ) {
        let (shape, scratch, rows) = (latent.shape, self.scratch, self.row_count());
        let projected = scratch.projected.get();
        let queries = match &latent.queries {
            None => projected,
            Some((norm, up)) => {
                let (normed, expanded) =
                    (scratch.latent.normed.get(), scratch.latent.queries.get());
                let size = [rows, up.inputs as u32];
                self.norm_parts(norm, (projected, normed), size, shape.norm_epsilon);
                self.linear(up, normed, expanded, Store::Set);
                expanded
            }
        };
        let heads = weights.shape.n_heads;
        let (key_dim, plain_stride) = (shape.key_dim(), plain_stride(latent));
        let parameters = parameters::LatentQuery {
            heads: heads as u32,
            plain_dim: shape.plain_dim as u32,
            plain_stride: plain_stride as u32,
            rope_dim: shape.rope_dim as u32,
            key_dim: key_dim as u32,
            half_rotated: half_rotated(&weights.shape),
            table: self.rope_table(weights),
        };
        let (plain, absorbed) = (scratch.latent.plain.get(), scratch.queries.get());
        let buffers = [queries, scratch.tables.get(), plain, absorbed];
        let groups = [heads as u32, rows, 1];
        self.recorder.dispatch(Kernel::LatentQuery, &buffers, &parameters, groups);
        let places = [
            HeadPlaces { offset: 0, stride: heads * plain_stride, head: plain_stride },
            HeadPlaces { offset: shape.rope_dim, stride: heads * key_dim, head: key_dim },
        ];
        self.linear_heads(&latent.keys, (plain, absorbed), places);
        self.latent_key(index, (weights, latent), input);
    }

    /// Records the row of the cache: the part of the key with RoPE, then the latent vector.
    fn latent_key(
        &mut self,
        index: usize,
        (weights, latent): (&AttentionWeights, &LatentWeights),
        input: &Buffer,
    ) {
        let (shape, scratch) = (latent.shape, self.scratch);
        let down = scratch.latent.down.get();
        self.linear(&latent.down, input, down, Store::Set);
        let parameters = parameters::LatentKey {
            rank: shape.rank as u32,
            rope_dim: shape.rope_dim as u32,
            half_rotated: half_rotated(&weights.shape),
            table: self.rope_table(weights),
            epsilon: shape.norm_epsilon,
            layer: index as u32,
        };
        let [keys, _] = self.pages.layer(index);
        let buffers = [
            down,
            scratch.tables.get(),
            &latent.norm,
            scratch.rows.get(),
            keys,
            scratch.overflows.get(),
        ];
        let kernel = Kernel::LatentKey(self.weights.cache_type());
        self.recorder.dispatch(kernel, &buffers, &parameters, [self.row_count(), 1, 1]);
    }

    /// Records the expansion of each head's weighted sum of latent vectors, and returns the buffer
    /// with the values.
    pub(crate) fn latent_values(&mut self, latent: &LatentWeights) -> &'a Buffer {
        let (shape, scratch) = (latent.shape, self.scratch);
        let heads = latent.values.heads();
        let (attended, values) = (scratch.attended.get(), scratch.latent.values.get());
        let places = [shape.rank, shape.value_dim].map(|head| HeadPlaces {
            offset: 0,
            stride: heads * head,
            head,
        });
        self.linear_heads(&latent.values, (attended, values), places);
        values
    }

    /// Records the product of each head with its own matrix. The places of inputs are multiples of
    /// four.
    fn linear_heads(
        &mut self,
        matrix: &HeadMatrix,
        (x, y): (&Buffer, &Buffer),
        [from, to]: [HeadPlaces; 2],
    ) {
        let (rows, outputs) = (self.row_count(), matrix.outputs as u32);
        let shapes = self.weights.device().product_shapes();
        let kernel = Kernel::linear(matrix.weight_type, [rows, outputs], shapes);
        for part in &matrix.parts {
            let parameters = Linear {
                x_offset: (from.offset + part.first_head * from.head) as u32 / 4,
                x_stride: from.stride as u32 / 4,
                x_head: from.head as u32 / 4,
                y_offset: (to.offset + part.first_head * to.head) as u32,
                y_stride: to.stride as u32,
                y_head: to.head as u32,
                ..Linear::new([rows, outputs, matrix.inputs as u32])
            };
            let [x_groups, y_groups, _] = linear_groups(kernel, outputs, rows);
            let groups = [x_groups, y_groups, part.heads as u32];
            let buffers = [&part.weights, x, &self.weights.unused, y];
            self.recorder.dispatch(kernel, &buffers, &parameters, groups);
            self.recorder.add_work(work_of_product(part.weights.size(), rows));
        }
        self.recorder.cost.weight_bytes += matrix.bytes();
    }
}

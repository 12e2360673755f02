//! Compressed keys and values (DeepSeek's multi-head latent attention) for one row, in the absorbed
//! form.

use crate::matrix::Matrix;
use crate::weights::{ReferenceModel, rotate};
use forerun_formats::Latent;
use forerun_formats::checkpoint::{LayerTensor, Tensor};

/// A head's expansions of the latent vector.
#[derive(Clone)]
pub(crate) struct HeadExpansion {
    /// The transposed expansion of keys: `[rank, plain_dim]`.
    pub(crate) keys: Matrix,
    /// The expansion of values: `[value_dim, rank]`.
    pub(crate) values: Matrix,
}

impl HeadExpansion {
    /// Splits the stored expansion into those of the heads.
    pub(crate) fn of_heads(stored: &Matrix, latent: Latent) -> Vec<Self> {
        let rows: Vec<Vec<f32>> = (0..stored.outputs()).map(|row| stored.weights(row)).collect();
        let matrix = |weights, inputs| Matrix::new(stored.weight_type(), weights, inputs);
        let of_head = |rows: &[Vec<f32>]| {
            let (keys, values) = rows.split_at(latent.plain_dim);
            let column = |at: usize| keys.iter().map(move |row| row[at]);
            let transposed = (0..latent.rank).flat_map(column).collect();
            let keys = matrix(transposed, latent.plain_dim);
            Self { keys, values: matrix(values.concat(), latent.rank) }
        };
        rows.chunks(latent.plain_dim + latent.value_dim).map(of_head).collect()
    }
}

impl ReferenceModel {
    /// Computes a row's queries of the cached rows: for each head, the part with RoPE and the
    /// absorbed rest.
    pub(crate) fn latent_queries(
        &self,
        layer: usize,
        latent: Latent,
        input: &[f32],
        position: usize,
    ) -> Vec<f32> {
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(layer, part);
        let queries = match latent.query_rank {
            None => self.project(of_layer(T::Query), of_layer(T::QueryBias), input),
            Some(_) => {
                let down = self.project(of_layer(T::QueryDown), of_layer(T::QueryDownBias), input);
                let normed = self.latent_norm(layer, T::QueryLatentNorm, latent, &down);
                self.linear(of_layer(T::QueryUp), &normed)
            }
        };
        let heads = queries.chunks(latent.query_dim()).zip(self.expansions(layer));
        let absorbed = heads.flat_map(|(query, head)| {
            let (plain, rotated) = query.split_at(latent.plain_dim);
            [rotated.to_vec(), self.multiply(&head.keys, plain)].concat()
        });
        let mut absorbed: Vec<f32> = absorbed.collect();
        rotate(self.attention(layer), &mut absorbed, position);
        let heads = absorbed.chunks_mut(latent.rope_dim + latent.rank);
        heads.for_each(|head| self.cache_type.hadamard(&mut head[..latent.rope_dim]));
        absorbed
    }

    /// Computes what the cache stores of a row: the rotated part of its key, and the latent vector.
    pub(crate) fn latent_key(
        &self,
        layer: usize,
        latent: Latent,
        input: &[f32],
        position: usize,
    ) -> Vec<f32> {
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(layer, part);
        let down = self.project(of_layer(T::LatentDown), of_layer(T::LatentDownBias), input);
        let (compressed, rotated) = down.split_at(latent.rank);
        let normed = self.latent_norm(layer, T::LatentNorm, latent, compressed);
        let mut key = [rotated.to_vec(), normed].concat();
        rotate(self.attention(layer), &mut key, position);
        self.cache_type.hadamard(&mut key[..latent.rope_dim]);
        key
    }

    /// Expands each head's weighted sum of latent vectors to its value.
    pub(crate) fn latent_values(&self, layer: usize, latent: Latent, sums: &[f32]) -> Vec<f32> {
        let heads = sums.chunks(latent.rank).zip(self.expansions(layer));
        heads.flat_map(|(sum, head)| self.multiply(&head.values, sum)).collect()
    }

    fn latent_norm(&self, layer: usize, norm: LayerTensor, latent: Latent, x: &[f32]) -> Vec<f32> {
        self.rms_norm(x, self.values(Tensor::Layer(layer, norm)), latent.norm_epsilon)
    }
}

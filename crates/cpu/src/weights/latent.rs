//! The packed weights of multi-head latent attention.

use super::layer_packer::LayerPacker;
use super::packer::Projection;
use crate::kernels::PackedMatrix;
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{Latent, Layer, LoadError, MatrixTypes};

/// The packed weights of compressed queries, keys and values, without the projections to latent
/// vectors: those are [`LayerWeights::qkv`](super::LayerWeights::qkv).
pub(crate) struct PackedLatent {
    pub(crate) shape: Latent,
    pub(crate) n_heads: usize,
    /// The norm of the latent vector of queries and their expansion, if queries are compressed.
    pub(crate) queries: Option<(Vec<f32>, Projection)>, // [query_rank]; [n_heads · query_dim, query_rank]
    /// The norm of the latent vector of keys and values.
    pub(crate) norm: Vec<f32>, // [rank]
    /// What turns each head's queries into queries of the latent vector: the transposed expansion
    /// of its keys.
    pub(crate) keys: Vec<PackedMatrix>, // [n_heads][rank, plain_dim]
    /// The expansion of each head's values.
    pub(crate) values: Vec<PackedMatrix>, // [n_heads][value_dim, rank]
}

impl PackedLatent {
    pub(super) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let queries = self.queries.iter().flat_map(|(_, up)| up.matrices());
        queries.chain(&self.keys).chain(&self.values)
    }

    /// Returns the bytes of the matrices that are packed from the expansion of keys and values.
    pub(super) fn expansion_bytes(types: &MatrixTypes, index: usize, layer: &Layer) -> usize {
        let Some(attention) = &layer.attention else { return 0 };
        let Some(latent) = &attention.latent else { return 0 };
        let weight_type = types.of(Tensor::Layer(index, LayerTensor::LatentUp));
        let sizes = [[latent.rank, latent.plain_dim], [latent.value_dim, latent.rank]];
        let of_head = sizes.map(|size| PackedMatrix::packed_bytes(weight_type, size));
        of_head.iter().sum::<usize>().saturating_mul(attention.n_heads)
    }
}

impl LayerPacker<'_> {
    pub(super) fn latent(&self, shape: Latent) -> Result<PackedLatent, LoadError> {
        use LayerTensor as T;
        let n_heads = self.own.attention.as_ref().map_or(0, |attention| attention.n_heads);
        let up = Tensor::Layer(self.index, T::LatentUp);
        let weight_type = self.packer.types.of(up);
        let expansion = self.vector(T::LatentUp)?;
        let (rank, dim) = (shape.rank, shape.plain_dim);
        let heads = expansion.chunks_exact((dim + shape.value_dim) * rank);
        let (keys, values) = heads
            .map(|head| {
                let (keys, values) = head.split_at(dim * rank);
                let column = |at: usize| keys[at..].iter().step_by(rank).copied();
                let transposed: Vec<f32> = (0..rank).flat_map(column).collect();
                let pack = |weights, inputs| PackedMatrix::pack(weight_type, weights, inputs);
                (pack(&transposed, dim), pack(values, rank))
            })
            .unzip();
        let queries = || {
            let up = self.projection(&[T::QueryUp], &[])?;
            Ok::<_, LoadError>((self.vector(T::QueryLatentNorm)?, up))
        };
        Ok(PackedLatent {
            shape,
            n_heads,
            queries: shape.query_rank.map(|_| queries()).transpose()?,
            norm: self.vector(T::LatentNorm)?,
            keys,
            values,
        })
    }

    /// Packs the projections to latent vectors, or to queries. Queries that are not compressed have
    /// no bias.
    pub(super) fn latent_projection(&self) -> Result<Projection, LoadError> {
        use LayerTensor as T;
        let projection = self.projection(LayerTensor::PROJECTIONS[0], &[])?;
        if !self.layer.attention.as_ref().is_some_and(|attention| attention.qkv_bias) {
            return Ok(projection);
        }
        let bias = self.vector(T::LatentDownBias)?;
        let outputs = projection.matrices().iter().map(PackedMatrix::outputs).sum::<usize>();
        let queries = match self.layer.has(T::QueryDownBias, self.architecture.norm) {
            true => self.vector(T::QueryDownBias)?,
            false => vec![0.0; outputs - bias.len()],
        };
        Ok(projection.with_bias(&[queries, bias].concat()))
    }
}

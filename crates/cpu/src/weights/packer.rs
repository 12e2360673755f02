//! Reads tensors and packs them.

use super::part::PackedPart;
use crate::kernels::{NormWeights, PackedMatrix};
use forerun_formats::checkpoint::{Tensor, TensorRows};
use forerun_formats::{Architecture, BlockType, LoadError, MatrixTypes, TensorSource, WeightType};
use std::ops::Range;

/// Reads and packs tensors.
pub(crate) struct WeightPacker<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) types: MatrixTypes,
    /// The part of a model to pack, if it is not the whole.
    pub(crate) part: Option<(&'a Architecture, PackedPart<'a>)>,
}

impl WeightPacker<'_> {
    /// Reads a norm, a bias, or another tensor that no matrix kernel reads.
    pub(crate) fn floats(&self, tensor: Tensor, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let mut values = self.source.rows(tensor, shape)?.read_all()?;
        let (rows, width) = (self.rows(tensor, shape), shape.iter().skip(1).product::<usize>());
        values.truncate(rows.end * width);
        values.drain(..rows.start * width);
        Ok(values)
    }

    /// Reads a norm of hidden states, whose weights are 1 if the model stores none.
    pub(super) fn norm(
        &self,
        architecture: &Architecture,
        weight: Tensor,
        bias: Option<Tensor>,
    ) -> Result<NormWeights, LoadError> {
        let floats = |tensor| self.floats(tensor, &architecture.shape(tensor));
        Ok(NormWeights {
            weight: match architecture.norm.has_weights() {
                true => floats(weight)?,
                false => vec![1.0; architecture.hidden_size],
            },
            bias: bias.map(floats).transpose()?,
            epsilon: architecture.norm_epsilon,
        })
    }

    /// Returns the rows of a tensor to pack.
    fn rows(&self, tensor: Tensor, shape: &[usize]) -> Range<usize> {
        match &self.part {
            Some((architecture, part)) => part.rows(architecture, tensor),
            None => 0..shape.first().copied().unwrap_or(0),
        }
    }

    /// Packs a matrix.
    pub(crate) fn matrix(
        &self,
        tensor: Tensor,
        shape: &[usize],
    ) -> Result<PackedMatrix, LoadError> {
        self.part(tensor, shape)?.pack()
    }

    /// Packs a projection from tensors with the same inputs.
    pub(super) fn projection(
        &self,
        tensors: &[(Tensor, Vec<usize>)],
    ) -> Result<Projection, LoadError> {
        let parts = self.parts(tensors)?;
        Ok(Projection(parts.iter().map(ProjectionPart::pack).collect::<Result<_, _>>()?))
    }

    pub(super) fn projection_bytes(
        &self,
        tensors: &[(Tensor, Vec<usize>)],
    ) -> Result<usize, LoadError> {
        let parts = self.parts(tensors)?;
        Ok(parts.iter().map(ProjectionPart::packed_bytes).fold(0, usize::saturating_add))
    }

    pub(crate) fn matrix_bytes(&self, tensor: Tensor, shape: &[usize]) -> Result<usize, LoadError> {
        Ok(self.part(tensor, shape)?.packed_bytes())
    }

    fn part(&self, tensor: Tensor, shape: &[usize]) -> Result<ProjectionPart<'_>, LoadError> {
        let rows = self.source.rows(tensor, shape)?;
        let weight_type = self.types.of(tensor);
        let block_type = rows.block_type();
        let stored = block_type.filter(|stored| weight_type == WeightType::Quantized(*stored));
        let wanted = self.rows(tensor, shape);
        Ok(ProjectionPart { weight_type, stored, tensors: vec![(rows, wanted)] })
    }

    /// Joins successive tensors that are packed in the same way.
    fn parts(
        &self,
        tensors: &[(Tensor, Vec<usize>)],
    ) -> Result<Vec<ProjectionPart<'_>>, LoadError> {
        let mut parts: Vec<ProjectionPart<'_>> = Vec::new();
        for (tensor, shape) in tensors {
            let part = self.part(*tensor, shape)?;
            let is_same = |last: &&mut ProjectionPart<'_>| {
                (last.weight_type, last.stored) == (part.weight_type, part.stored)
            };
            match parts.last_mut().filter(is_same) {
                Some(last) => last.tensors.extend(part.tensors),
                None => parts.push(part),
            }
        }
        Ok(parts)
    }
}

/// Tensors with the same inputs that are packed as one matrix, with their outputs one after
/// another.
struct ProjectionPart<'a> {
    weight_type: WeightType,
    /// The type of the stored blocks, if they are packed as they are.
    stored: Option<BlockType>,
    /// With the rows to pack.
    tensors: Vec<(TensorRows<'a>, Range<usize>)>,
}

impl ProjectionPart<'_> {
    fn size(&self) -> [usize; 2] {
        let outputs = self.tensors.iter().map(|(_, rows)| rows.len()).sum();
        [outputs, self.tensors.first().map_or(0, |(tensor, _)| tensor.columns())]
    }

    fn packed_bytes(&self) -> usize {
        PackedMatrix::packed_bytes(self.weight_type, self.size())
    }

    /// Reads the tensors row by row, so that only their packed form is in memory as a whole.
    fn pack(&self) -> Result<PackedMatrix, LoadError> {
        let rows = self.tensors.iter();
        let rows = rows.flat_map(|(tensor, rows)| rows.clone().map(move |row| (tensor, row)));
        let rows: Vec<_> = rows.collect();
        let packed = match self.stored {
            Some(block_type) => PackedMatrix::pack_blocks(block_type, self.size(), |output| {
                let (tensor, index) = rows[output];
                Ok::<_, LoadError>(tensor.stored(index)?.unwrap_or_default())
            })?,
            None => PackedMatrix::pack_rows(
                self.weight_type,
                self.size(),
                |output, row: &mut [f32]| {
                    let (tensor, index) = rows[output];
                    tensor.read(index, row)
                },
            )?,
        };
        self.tensors.iter().for_each(|(tensor, _)| tensor.release());
        Ok(packed)
    }
}

/// A linear layer as matrices whose outputs follow one another: one for each [`ProjectionPart`].
/// The matrices are either of one float type or all quantised.
pub(crate) struct Projection(Vec<PackedMatrix>);

impl Projection {
    pub(crate) fn matrices(&self) -> &[PackedMatrix] {
        &self.0
    }

    pub(crate) fn inputs(&self) -> usize {
        self.0.first().map_or(0, PackedMatrix::inputs)
    }

    /// Returns the number of outputs: those of a share.
    pub(crate) fn outputs(&self) -> usize {
        self.0.iter().map(PackedMatrix::outputs).sum()
    }

    /// Returns the same projection with a bias: `[outputs]`.
    pub(super) fn with_bias(self, mut bias: &[f32]) -> Self {
        let with_part = |matrix: PackedMatrix| {
            let (part, rest) = bias.split_at(matrix.outputs());
            bias = rest;
            matrix.with_bias(Some(part.to_vec()))
        };
        Self(self.0.into_iter().map(with_part).collect())
    }
}

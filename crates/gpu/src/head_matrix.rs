//! Matrices of attention heads in a GPU's memory: each head has its own.

use crate::device::GpuDevice;
use crate::error::GpuLoadError;
use crate::matrix::{extend_row, row_bytes, row_values};
use forerun_formats::WeightType;
use wgpu::Buffer;

/// A matrix for each head: `[heads, outputs, inputs]`, in one or several buffers.
pub(crate) struct HeadMatrix {
    pub(crate) weight_type: WeightType,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    pub(crate) parts: Vec<HeadPart>,
}

/// The matrices of successive heads.
pub(crate) struct HeadPart {
    pub(crate) first_head: usize,
    pub(crate) heads: usize,
    pub(crate) weights: Buffer, // [heads, outputs, inputs]
}

impl HeadMatrix {
    /// Uploads the matrices of all heads: `[heads, outputs, inputs]`. A part ends where a buffer
    /// would exceed what a kernel can read. Fails if there is no memory.
    pub(crate) fn upload(
        device: &GpuDevice,
        name: &str,
        (weights, weight_type): (&[f32], WeightType),
        [outputs, inputs]: [usize; 2],
    ) -> Result<Self, GpuLoadError> {
        let mut matrix = Self { weight_type, outputs, inputs, parts: Vec::new() };
        let head_bytes = (outputs * row_bytes(weight_type, inputs)).max(1) as u64;
        let most = ((device.max_binding_bytes() / head_bytes) as usize).max(1);
        let mut values = vec![0.0; row_values(weight_type, inputs)];
        let mut first_head = 0;
        for part in weights.chunks(most * outputs * inputs) {
            let heads = part.len() / (outputs * inputs);
            let mut bytes = Vec::new();
            for row in part.chunks_exact(inputs) {
                values[..inputs].copy_from_slice(row);
                extend_row(&mut bytes, weight_type, &values);
            }
            let weights = device.allocate(name, bytes.len() as u64)?;
            device.upload(&weights, 0, &bytes)?;
            matrix.parts.push(HeadPart { first_head, heads, weights });
            first_head += heads;
        }
        Ok(matrix)
    }

    pub(crate) fn heads(&self) -> usize {
        self.parts.iter().map(|part| part.heads).sum()
    }

    /// Returns the bytes that a product with all heads reads.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.weights.size()).sum()
    }
}

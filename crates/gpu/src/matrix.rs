//! Matrices in a GPU's memory.

use crate::device::GpuDevice;
use crate::error::GpuLoadError;
use forerun_formats::checkpoint::TensorRows;
use forerun_formats::{LoadError, WeightType};
use half::{bf16, f16};
use wgpu::Buffer;

/// The largest number of workgroups in one direction.
pub(crate) const MAX_WORKGROUPS: u32 = 65_535;

/// Outputs of a workgroup of `linear.wgsl`.
pub(crate) const GROUP_OUTPUTS: u32 = 4;

/// Weights are converted in parts of this size before they are uploaded.
const CONVERTED_BYTES: usize = 8 << 20;

/// A matrix `[outputs, inputs]`, row by row, in one or several buffers.
pub(crate) struct GpuMatrix {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) parts: Vec<MatrixPart>,
}

/// Successive outputs of a matrix, of one type.
pub(crate) struct MatrixPart {
    pub(crate) weight_type: WeightType,
    pub(crate) first_output: usize,
    pub(crate) outputs: usize,
    pub(crate) weights: Buffer,      // [outputs, inputs]
    pub(crate) bias: Option<Buffer>, // [outputs]
}

/// A tensor that becomes outputs of a matrix.
pub(crate) struct MatrixSource<'a> {
    pub(crate) rows: TensorRows<'a>,
    pub(crate) weight_type: WeightType,
    /// `[outputs]`, or empty.
    pub(crate) bias: Vec<f32>,
}

impl GpuMatrix {
    /// Uploads tensors, whose outputs follow one another. A part ends where the type changes, or where a buffer
    /// would exceed what a kernel can read or compute at once.
    ///
    /// # Errors
    /// If a value is not finite, or there is no memory.
    pub(crate) fn upload(
        device: &GpuDevice,
        name: &str,
        sources: &[MatrixSource<'_>],
    ) -> Result<Self, GpuLoadError> {
        let inputs = sources.first().map_or(0, |source| source.rows.columns());
        let mut matrix = Self { inputs, outputs: 0, parts: Vec::new() };
        for source in sources {
            let row_bytes = inputs * element_bytes(source.weight_type);
            let most = device.max_binding_bytes() / row_bytes.max(1) as u64;
            let most = most.min(u64::from(MAX_WORKGROUPS * GROUP_OUTPUTS)) as usize;
            for first in (0..source.rows.len()).step_by(most.max(1)) {
                let outputs = most.min(source.rows.len() - first);
                let part = matrix.upload_part(device, name, (source, first), outputs)?;
                matrix.outputs += outputs;
                matrix.parts.push(part);
            }
            source.rows.release();
        }
        Ok(matrix)
    }

    fn upload_part(
        &self,
        device: &GpuDevice,
        name: &str,
        (source, first): (&MatrixSource<'_>, usize),
        outputs: usize,
    ) -> Result<MatrixPart, GpuLoadError> {
        let row_bytes = self.inputs * element_bytes(source.weight_type);
        let weights = device.allocate(name, (outputs * row_bytes) as u64)?;
        let (mut values, mut bytes, mut offset) = (vec![0.0; self.inputs], Vec::new(), 0);
        for row in first..first + outputs {
            source.rows.read(row, &mut values)?;
            extend_converted(&mut bytes, source.weight_type, &values);
            if bytes.len() >= CONVERTED_BYTES || row + 1 == first + outputs {
                device.upload(&weights, offset, &bytes);
                offset += bytes.len() as u64;
                bytes.clear();
            }
        }
        let bias = source.bias.get(first..first + outputs);
        let bias = bias.filter(|bias| !bias.is_empty());
        let bias = bias.map(|bias| upload_floats(device, name, bias)).transpose()?;
        let (weight_type, first_output) = (source.weight_type, self.outputs);
        Ok(MatrixPart { weight_type, first_output, outputs, weights, bias })
    }

    /// Returns the bytes that a product with the matrix reads.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.weights.size()).sum()
    }
}

/// Uploads numbers as f32.
pub(crate) fn upload_floats(
    device: &GpuDevice,
    name: &str,
    values: &[f32],
) -> Result<Buffer, GpuLoadError> {
    let buffer = device.allocate(name, size_of_val(values) as u64)?;
    device.upload(&buffer, 0, bytemuck::cast_slice(values));
    Ok(buffer)
}

/// Reads a tensor that is no matrix.
pub(crate) fn read_floats(rows: &TensorRows<'_>) -> Result<Vec<f32>, LoadError> {
    rows.read_all()
}

fn element_bytes(weight_type: WeightType) -> usize {
    match weight_type {
        WeightType::F32 => size_of::<f32>(),
        WeightType::Bf16 | WeightType::F16 => size_of::<u16>(),
        WeightType::Quantized(_) => unreachable!("refused when the model was loaded"),
    }
}

fn extend_converted(bytes: &mut Vec<u8>, weight_type: WeightType, values: &[f32]) {
    match weight_type {
        WeightType::F32 => bytes.extend_from_slice(bytemuck::cast_slice(values)),
        WeightType::Bf16 => {
            bytes.extend(values.iter().flat_map(|value| bf16::from_f32(*value).to_ne_bytes()));
        }
        WeightType::F16 => {
            bytes.extend(values.iter().flat_map(|value| f16::from_f32(*value).to_ne_bytes()));
        }
        WeightType::Quantized(_) => unreachable!("refused when the model was loaded"),
    }
}

//! Matrices in a GPU's memory.

use crate::device::GpuDevice;
use crate::error::GpuLoadError;
use crate::kernel::TEAMS;
use forerun_core::TokenId;
use forerun_formats::blocks::quantize;
use forerun_formats::checkpoint::TensorRows;
use forerun_formats::{BlockType, LoadError, WeightType};
use half::{bf16, f16};
use wgpu::Buffer;

/// The largest number of workgroups in one direction.
pub(crate) const MAX_WORKGROUPS: u32 = 65_535;

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
    /// Uploads tensors, whose outputs follow one another. A part ends where the type changes, or
    /// where a buffer would exceed what a kernel can read or compute at once. Fails if a value is
    /// not finite, or there is no memory.
    pub(crate) fn upload(
        device: &GpuDevice,
        name: &str,
        sources: &[MatrixSource<'_>],
    ) -> Result<Self, GpuLoadError> {
        let inputs = sources.first().map_or(0, |source| source.rows.columns());
        let mut matrix = Self { inputs, outputs: 0, parts: Vec::new() };
        for same_type in sources.chunk_by(|one, next| one.weight_type == next.weight_type) {
            let rows = same_type.iter();
            let rows = rows.flat_map(|source| (0..source.rows.len()).map(move |row| (source, row)));
            let rows: Vec<(&MatrixSource<'_>, usize)> = rows.collect();
            let row_bytes = row_bytes(same_type[0].weight_type, inputs) as u64;
            for rows in rows.chunks(most_outputs(device, row_bytes)) {
                let weight_type = same_type[0].weight_type;
                let (weights, bias) = upload_rows(device, name, rows)?;
                let (first_output, outputs) = (matrix.outputs, rows.len());
                matrix.outputs += outputs;
                matrix.parts.push(MatrixPart { weight_type, first_output, outputs, weights, bias });
            }
            same_type.iter().for_each(|source| source.rows.release());
        }
        Ok(matrix)
    }

    /// Copies some outputs, in the given order, to a matrix of their own.
    ///
    /// # Errors
    /// If there is no memory.
    ///
    /// # Panics
    /// If the matrix does not have an output.
    pub(crate) fn select(
        &self,
        device: &GpuDevice,
        outputs: &[TokenId],
    ) -> Result<Self, GpuLoadError> {
        let mut selected = Self { inputs: self.inputs, outputs: 0, parts: Vec::new() };
        let part_of = |output: TokenId| {
            let has = |part: &&MatrixPart| {
                (part.first_output..part.first_output + part.outputs).contains(&(output as usize))
            };
            self.parts.iter().find(has).expect("an output of the matrix")
        };
        let same_type =
            |one: &TokenId, next: &TokenId| part_of(*one).weight_type == part_of(*next).weight_type;
        let successive = |one: &TokenId, next: &TokenId| {
            one.checked_add(1) == Some(*next) && std::ptr::eq(part_of(*one), part_of(*next))
        };
        for same_type in outputs.chunk_by(same_type) {
            let weight_type = part_of(same_type[0]).weight_type;
            let row_bytes = row_bytes(weight_type, self.inputs) as u64;
            for outputs in same_type.chunks(most_outputs(device, row_bytes)) {
                let weights =
                    device.allocate("a part of a head", outputs.len() as u64 * row_bytes)?;
                let has_bias = part_of(outputs[0]).bias.is_some();
                let bias_bytes = (outputs.len() * size_of::<f32>()) as u64;
                let bias = || device.allocate("biases of a part of a head", bias_bytes);
                let bias = has_bias.then(bias).transpose()?;
                let mut encoder = device.new_encoder();
                let mut to = 0;
                for run in outputs.chunk_by(successive) {
                    let (part, count) = (part_of(run[0]), run.len() as u64);
                    let from = u64::from(run[0]) - part.first_output as u64;
                    let rows = (Some(&part.weights), Some(&weights), row_bytes);
                    let of_bias = (part.bias.as_ref(), bias.as_ref(), size_of::<f32>() as u64);
                    for (stored, copy, bytes) in [rows, of_bias] {
                        if let (Some(stored), Some(copy)) = (stored, copy) {
                            let (from, to, bytes) = (from * bytes, to * bytes, count * bytes);
                            encoder.copy_buffer_to_buffer(stored, from, copy, to, bytes);
                        }
                    }
                    to += count;
                }
                device.wait(device.submit(encoder))?;
                let first_output = selected.outputs;
                let outputs = outputs.len();
                selected.outputs += outputs;
                selected.parts.push(MatrixPart {
                    weight_type,
                    first_output,
                    outputs,
                    weights,
                    bias,
                });
            }
        }
        Ok(selected)
    }

    /// Creates a matrix that is on another device.
    pub(crate) fn elsewhere(inputs: usize) -> Self {
        Self { inputs, outputs: 0, parts: Vec::new() }
    }

    /// Returns the bytes that a product with the matrix reads.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.weights.size()).sum()
    }
}

/// Returns the largest number of outputs of a part.
fn most_outputs(device: &GpuDevice, row_bytes: u64) -> usize {
    let most = device.max_binding_bytes() / row_bytes.max(1);
    // No product has fewer outputs in a workgroup.
    (most.min(u64::from(MAX_WORKGROUPS * TEAMS)) as usize).max(1)
}

/// Uploads rows of tensors of one type, one after another, and their biases, if they have some.
/// Fails if a value is not finite, or there is no memory.
pub(crate) fn upload_rows(
    device: &GpuDevice,
    name: &str,
    rows: &[(&MatrixSource<'_>, usize)],
) -> Result<(Buffer, Option<Buffer>), GpuLoadError> {
    let (weight_type, inputs) = (rows[0].0.weight_type, rows[0].0.rows.columns());
    let row_bytes = row_bytes(weight_type, inputs);
    let weights = device.allocate(name, (rows.len() * row_bytes) as u64)?;
    let (mut bytes, mut offset) = (Vec::new(), 0);
    let mut values = vec![0.0; row_values(weight_type, inputs)];
    for (index, (source, row)) in rows.iter().enumerate() {
        extend_converted(&mut bytes, source, *row, &mut values)?;
        if bytes.len() >= CONVERTED_BYTES || index + 1 == rows.len() {
            device.upload(&weights, offset, &bytes)?;
            offset += bytes.len() as u64;
            bytes.clear();
        }
    }
    // All tensors of a projection have a bias, or none.
    let bias = rows.iter().filter_map(|(source, row)| source.bias.get(*row).copied());
    let bias: Vec<f32> = bias.collect();
    let upload = || upload_floats(device, name, &bias);
    let bias = (bias.len() == rows.len()).then(upload).transpose()?;
    Ok((weights, bias))
}

pub(crate) fn upload_floats(
    device: &GpuDevice,
    name: &str,
    values: &[f32],
) -> Result<Buffer, GpuLoadError> {
    let buffer = device.allocate(name, size_of_val(values) as u64)?;
    device.upload(&buffer, 0, bytemuck::cast_slice(values))?;
    Ok(buffer)
}

/// Returns the bytes of a row on a GPU. Rows are padded to eight weights, and blocks to whole words
/// of 32 bits.
pub(crate) fn row_bytes(weight_type: WeightType, inputs: usize) -> usize {
    match weight_type {
        WeightType::F32 => inputs.next_multiple_of(8) * size_of::<f32>(),
        WeightType::Bf16 | WeightType::F16 => inputs.next_multiple_of(8) * size_of::<u16>(),
        WeightType::Quantized(block_type) => {
            inputs.div_ceil(block_type.weights()) * block_type.bytes().next_multiple_of(4)
        }
    }
}

/// Returns the number of weights of a row, with those that fill it.
pub(crate) fn row_values(weight_type: WeightType, inputs: usize) -> usize {
    match weight_type {
        WeightType::Quantized(block_type) => inputs.next_multiple_of(block_type.weights()),
        _ => inputs.next_multiple_of(8),
    }
}

/// Appends a row as kernels read it. Stored blocks of the type stay as they are. `values` is as
/// long as the row with its last block, and zero after its inputs.
fn extend_converted(
    bytes: &mut Vec<u8>,
    source: &MatrixSource<'_>,
    row: usize,
    values: &mut [f32],
) -> Result<(), LoadError> {
    let (rows, weight_type) = (&source.rows, source.weight_type);
    if let WeightType::Quantized(block_type) = weight_type
        && rows.block_type() == Some(block_type)
        && let Some(blocks) = rows.stored(row)?
    {
        extend_blocks(bytes, block_type, &blocks);
        return Ok(());
    }
    rows.read(row, &mut values[..rows.columns()])?;
    extend_row(bytes, weight_type, values);
    Ok(())
}

/// Appends a row as kernels read it. `values` has [`row_values`] numbers.
pub(crate) fn extend_row(bytes: &mut Vec<u8>, weight_type: WeightType, values: &[f32]) {
    match weight_type {
        WeightType::F32 => bytes.extend_from_slice(bytemuck::cast_slice(values)),
        WeightType::Bf16 => {
            bytes.extend(values.iter().flat_map(|value| bf16::from_f32(*value).to_ne_bytes()));
        }
        WeightType::F16 => {
            bytes.extend(values.iter().flat_map(|value| f16::from_f32(*value).to_ne_bytes()));
        }
        WeightType::Quantized(block_type) => {
            let mut blocks = Vec::new();
            quantize(block_type, values, None, &mut blocks);
            extend_blocks(bytes, block_type, &blocks);
        }
    }
}

/// Appends blocks, each padded to whole words of 32 bits.
fn extend_blocks(bytes: &mut Vec<u8>, block_type: BlockType, blocks: &[u8]) {
    for block in blocks.chunks_exact(block_type.bytes()) {
        bytes.extend_from_slice(block);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;

    /// Selected outputs come from several parts, in any order, alone or in runs, with their biases.
    #[test]
    fn outputs_are_selected_with_their_biases() {
        let Some(device) = gpu() else { return };
        let part = |first_output: usize, outputs: usize| {
            let all = first_output..first_output + outputs;
            let row = |output: usize| (0..8).map(move |input| (output * 10 + input) as f32);
            let weights: Vec<f32> = all.clone().flat_map(row).collect();
            let bias: Vec<f32> = all.map(|output| output as f32 + 0.5).collect();
            let bias = Some(upload_floats(&device, "biases", &bias).unwrap());
            let weights = upload_floats(&device, "weights", &weights).unwrap();
            let weight_type = WeightType::F32;
            MatrixPart { weight_type, first_output, outputs, weights, bias }
        };
        let matrix = GpuMatrix { inputs: 8, outputs: 5, parts: vec![part(0, 3), part(3, 2)] };
        let selected = matrix.select(&device, &[4, 0, 1, 3, 4]).unwrap();
        assert_eq!((selected.inputs, selected.outputs), (8, 5));
        let [part] = &selected.parts[..] else { panic!("one part") };
        let read = |buffer: &Buffer, numbers: usize| {
            let bytes = (numbers * size_of::<f32>()) as u64;
            let staging = device.allocate_staging("numbers", bytes).unwrap();
            let mut encoder = device.new_encoder();
            encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, bytes);
            let mut found = Vec::new();
            let visit =
                |bytes: &[u8]| found.extend_from_slice(bytemuck::cast_slice::<_, f32>(bytes));
            device.read(&staging, bytes, device.submit(encoder), visit).unwrap();
            found
        };
        let first: Vec<f32> = read(&part.weights, 40).into_iter().step_by(8).collect();
        assert_eq!(first, [40.0, 0.0, 10.0, 30.0, 40.0]);
        assert_eq!(read(part.bias.as_ref().unwrap(), 5), [4.5, 0.5, 1.5, 3.5, 4.5]);
    }
}

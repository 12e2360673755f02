//! The matrices of a layer's experts in a GPU's memory.

use crate::device::GpuDevice;
use crate::error::GpuLoadError;
use crate::matrix::{MatrixSource, row_bytes, upload_rows};
use forerun_formats::WeightType;
use std::ops::Range;
use wgpu::Buffer;

/// One projection of all experts of a layer: `[experts, outputs, inputs]`, in one or several
/// buffers.
pub(crate) struct ExpertMatrix {
    pub(crate) inputs: usize,
    /// Outputs of an expert.
    pub(crate) outputs: usize,
    pub(crate) parts: Vec<ExpertPart>,
}

/// Successive outputs of successive experts, of one type.
pub(crate) struct ExpertPart {
    pub(crate) weight_type: WeightType,
    pub(crate) first_expert: usize,
    pub(crate) experts: usize,
    pub(crate) first_output: usize,
    pub(crate) outputs: usize,
    pub(crate) weights: Buffer,      // [experts, outputs, inputs]
    pub(crate) bias: Option<Buffer>, // [experts, outputs]
}

impl ExpertMatrix {
    /// Uploads the tensors of a projection: `[kinds][experts]`, such as the gates and then the ups.
    /// The outputs of an expert's kinds follow one another. A part ends where the type changes, or
    /// where a buffer would exceed what a kernel can read. Fails if a value is not finite, or there
    /// is no memory.
    pub(crate) fn upload(
        device: &GpuDevice,
        name: &str,
        kinds: &[Vec<MatrixSource<'_>>],
    ) -> Result<Self, GpuLoadError> {
        let first = kinds.first().and_then(|kind| kind.first());
        let inputs = first.map_or(0, |source| source.rows.columns());
        let mut matrix = Self { inputs, outputs: 0, parts: Vec::new() };
        for kinds in kinds.chunk_by(|one, next| have_same_types(one, next)) {
            matrix.upload_kinds(device, name, kinds)?;
        }
        kinds.iter().flatten().for_each(|source| source.rows.release());
        Ok(matrix)
    }

    /// Uploads kinds with the same types.
    fn upload_kinds(
        &mut self,
        device: &GpuDevice,
        name: &str,
        kinds: &[Vec<MatrixSource<'_>>],
    ) -> Result<(), GpuLoadError> {
        let outputs: usize = kinds.iter().map(|kind| kind[0].rows.len()).sum();
        // The kind and the row of each output.
        let rows = kinds.iter().enumerate();
        let rows = rows.flat_map(|(kind, of)| (0..of[0].rows.len()).map(move |row| (kind, row)));
        let rows: Vec<(usize, usize)> = rows.collect();
        let mut first_expert = 0;
        for same_type in kinds[0].chunk_by(|one, next| one.weight_type == next.weight_type) {
            let weight_type = same_type[0].weight_type;
            let bytes = row_bytes(weight_type, self.inputs).max(1) as u64;
            let most = ((device.max_binding_bytes() / bytes) as usize).max(1);
            let end = first_expert + same_type.len();
            for (experts, part) in pieces(first_expert..end, outputs, most) {
                let of_expert = |expert: usize| {
                    let source = move |&(kind, row): &(usize, usize)| (&kinds[kind][expert], row);
                    rows[part.clone()].iter().map(source)
                };
                let all: Vec<_> = experts.clone().flat_map(of_expert).collect();
                let (weights, bias) = upload_rows(device, name, &all)?;
                self.parts.push(ExpertPart {
                    weight_type,
                    first_expert: experts.start,
                    experts: experts.len(),
                    first_output: self.outputs + part.start,
                    outputs: part.len(),
                    weights,
                    bias,
                });
            }
            first_expert = end;
        }
        self.outputs += outputs;
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.weights.size()).sum()
    }
}

fn have_same_types(one: &[MatrixSource<'_>], other: &[MatrixSource<'_>]) -> bool {
    one.iter().zip(other).all(|(one, other)| one.weight_type == other.weight_type)
}

/// Splits experts with `outputs` each into pieces of at most `most` outputs in all: several whole
/// experts, or a part of one.
fn pieces(experts: Range<usize>, outputs: usize, most: usize) -> Vec<(Range<usize>, Range<usize>)> {
    let at_once = (most / outputs.max(1)).max(1);
    let experts =
        experts.clone().step_by(at_once).map(|first| first..experts.end.min(first + at_once));
    let most = if at_once > 1 { outputs } else { most };
    let parts = |experts: Range<usize>| {
        let starts = (0..outputs).step_by(most.max(1));
        starts.map(move |first| (experts.clone(), first..outputs.min(first + most)))
    };
    experts.flat_map(parts).collect()
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn buffers_hold_whole_experts_or_a_part_of_one() {
        assert_eq!(pieces(2..7, 10, 25), [(2..4, 0..10), (4..6, 0..10), (6..7, 0..10)]);
        assert_eq!(pieces(0..2, 10, 10), [(0..1, 0..10), (1..2, 0..10)]);
        let halves = [(0..1, 0..6), (0..1, 6..10), (1..2, 0..6), (1..2, 6..10)];
        assert_eq!(pieces(0..2, 10, 6), halves);
        assert_eq!(pieces(0..9, 10, 1000), [(0..9, 0..10)]);
    }
}

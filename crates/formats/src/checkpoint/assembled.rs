//! Tensors that are assembled of several stored ones.

use super::tensor_rows::decode;
use super::{Dtype, WeightFile};
use std::ops::Range;

/// The place of one of the stored tensors.
pub(super) struct StoredPart {
    pub(super) file: usize,
    pub(super) bytes: Range<usize>,
    pub(super) dtype: Dtype,
}

/// A tensor that is assembled of several stored ones.
pub(super) enum Assembled {
    /// The expansion of DeepSeek's compressed keys and values, as llama.cpp stores it.
    Expansion(SplitExpansion),
    /// A vector whose parts follow one another (the norms of StableLM's heads).
    Vector(Vec<StoredPart>),
}

impl Assembled {
    pub(super) fn stored_bytes(&self) -> usize {
        match self {
            Self::Expansion(SplitExpansion { keys, values, .. }) => {
                keys.bytes.len() + values.bytes.len()
            }
            Self::Vector(parts) => parts.iter().map(|part| part.bytes.len()).sum(),
        }
    }

    /// Reads a row of a matrix, or the whole vector.
    fn read(&self, files: &[WeightFile], row: usize, out: &mut [f32]) {
        match self {
            Self::Expansion(expansion) => expansion.read(files, row, out),
            Self::Vector(parts) => {
                let width = out.len() / parts.len().max(1);
                for (part, out) in parts.iter().zip(out.chunks_mut(width.max(1))) {
                    let StoredPart { file, bytes, dtype } = part;
                    decode(*dtype, &files[*file].bytes()[bytes.clone()], out);
                }
            }
        }
    }
}

/// An expansion whose rows are, head by head, those of keys and then those of values. Keys and
/// values are stored apart, and keys are transposed.
pub(super) struct SplitExpansion {
    /// `[heads, rank, plain_dim]`.
    pub(super) keys: StoredPart,
    /// `[heads, value_dim, rank]`.
    pub(super) values: StoredPart,
    pub(super) rank: usize,
    pub(super) plain_dim: usize,
    pub(super) value_dim: usize,
}

impl SplitExpansion {
    /// Reads a row of the expansion: `[rank]`.
    fn read(&self, files: &[WeightFile], row: usize, out: &mut [f32]) {
        let &Self { rank, plain_dim, value_dim, .. } = self;
        let of_head = plain_dim + value_dim;
        let (head, row) = (row / of_head, row % of_head);
        match row.checked_sub(plain_dim) {
            Some(row) => {
                let StoredPart { file, bytes, dtype } = &self.values;
                let size = dtype.row_bytes(rank);
                let stored = &files[*file].bytes()[bytes.clone()];
                decode(*dtype, &stored[(head * value_dim + row) * size..][..size], out);
            }
            None => {
                let StoredPart { file, bytes, dtype } = &self.keys;
                // The values of a row lie in a column, each in a block of its own.
                let width = match dtype {
                    Dtype::Block(block_type) => block_type.weights(),
                    _ => 1,
                };
                let (size, block_bytes) = (dtype.row_bytes(plain_dim), dtype.row_bytes(width));
                let stored = &files[*file].bytes()[bytes.clone()];
                let mut block = vec![0.0; width];
                for (number, out) in out.iter_mut().enumerate() {
                    let start = (head * rank + number) * size + row / width * block_bytes;
                    decode(*dtype, &stored[start..][..block_bytes], &mut block);
                    *out = block[row % width];
                }
            }
        }
    }
}

/// An assembled tensor and the files that hold it.
pub(super) struct AssembledRows<'a> {
    pub(super) tensor: &'a Assembled,
    pub(super) files: &'a [WeightFile],
}

impl AssembledRows<'_> {
    pub(super) fn read(&self, row: usize, out: &mut [f32]) {
        self.tensor.read(self.files, row, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_type::BlockType;
    use crate::blocks;

    /// Stores a matrix of this many columns in a type, and returns it with the values that it holds
    /// then.
    fn stored(dtype: Dtype, columns: usize, seed: usize) -> (Vec<u8>, Vec<f32>) {
        let value = |index: usize| ((index * 7919 + seed) % 211) as f32 / 64.0 - 1.5;
        let values: Vec<f32> = (0..6 * columns).map(value).collect();
        let mut bytes = Vec::new();
        for row in values.chunks(columns) {
            match dtype {
                Dtype::Block(block) => blocks::quantize(block, row, None, &mut bytes),
                _ => bytes.extend(row.iter().flat_map(|value| value.to_le_bytes())),
            }
        }
        let mut restored = vec![0.0; values.len()];
        let size = dtype.row_bytes(columns);
        for (row, out) in bytes.chunks(size).zip(restored.chunks_mut(columns)) {
            decode(dtype, row, out);
        }
        (bytes, restored)
    }

    #[test]
    fn rows_are_columns_of_keys_and_rows_of_values() {
        // Two heads with a rank of 3, keys of 64 and values of 3 numbers.
        let q8 = Dtype::Block(BlockType::Q8_0);
        for dtype in [Dtype::F32, q8] {
            let (key_bytes, keys) = stored(dtype, 64, 1);
            let (value_bytes, values) = stored(Dtype::F32, 3, 5);
            let split = key_bytes.len();
            let bytes = [key_bytes, value_bytes].concat();
            let part = |bytes, dtype| StoredPart { file: 0, bytes, dtype };
            let expansion = SplitExpansion {
                keys: part(0..split, dtype),
                values: part(split..bytes.len(), Dtype::F32),
                rank: 3,
                plain_dim: 64,
                value_dim: 3,
            };
            let files = [WeightFile::from_bytes("a.gguf".into(), bytes)];
            let mut row = [0.0; 3];
            for head in 0..2 {
                for dim in 0..64 {
                    expansion.read(&files, head * 67 + dim, &mut row);
                    let expected = [0, 1, 2].map(|rank| keys[(head * 3 + rank) * 64 + dim]);
                    assert_eq!(row, expected, "{dtype}");
                }
                for dim in 0..3 {
                    expansion.read(&files, head * 67 + 64 + dim, &mut row);
                    assert_eq!(row, values[(head * 3 + dim) * 3..][..3]);
                }
            }
        }
    }
}

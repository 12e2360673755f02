//! The rows of a stored tensor. They are read one at a time, so no whole tensor must be in memory.

use super::assembled::AssembledRows;
use super::quantized::QuantizedRows;
use super::row_layout::RowLayout;
use super::{Dtype, WeightFile};
use crate::block_type::BlockType;
use crate::blocks;
use crate::load_error::LoadError;
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::borrow::Cow;
use std::ops::Range;

/// A tensor of a mapped file, for reading row by row. The rows are the outputs of a matrix; a norm
/// or a bias is one row.
pub struct TensorRows<'a> {
    pub(super) file: &'a WeightFile,
    /// The tensor's name, for errors.
    pub(super) tensor: String,
    /// The place in the file of the stored tensor's row-major values.
    pub(super) bytes: Range<usize>,
    pub(super) dtype: Dtype,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Where the rows are in the stored tensor. A vector is one row, and this says where its values
    /// are.
    pub(super) layout: RowLayout,
    /// Whether this is a vector rather than a matrix, which may have one row, too.
    pub(super) is_vector: bool,
    /// The parts of a quantised matrix. `bytes` are its quants, and `dtype` holds its weights
    /// exactly.
    pub(super) quantized: Option<QuantizedRows<'a>>,
    /// The stored tensors that hold the rows, if they are several. `bytes` and `dtype` are those of
    /// one of them.
    pub(super) assembled: Option<AssembledRows<'a>>,
}

/// After this many bytes of a tensor, the pages that have been read are released.
const RELEASED: usize = 4 << 20;

impl<'a> TensorRows<'a> {
    /// Returns the rows of a tensor that is stored whole, row-major and not quantised.
    pub(super) fn plain(
        file: &'a WeightFile,
        tensor: String,
        bytes: Range<usize>,
        dtype: Dtype,
        shape: &[usize],
    ) -> Self {
        Self {
            file,
            tensor,
            bytes,
            dtype,
            rows: shape.iter().rev().skip(1).product(),
            columns: shape.last().copied().unwrap_or(0),
            layout: RowLayout::PLAIN,
            is_vector: shape.len() == 1,
            quantized: None,
            assembled: None,
        }
    }
}

impl TensorRows<'_> {
    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows. Checkpoints that open successfully have no empty tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of values in a row.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the type of the blocks that the rows consist of, if they are quantised in blocks.
    #[must_use]
    pub fn block_type(&self) -> Option<BlockType> {
        match self.dtype {
            Dtype::Block(block) => Some(block),
            _ => None,
        }
    }

    /// Returns the blocks of a row, if the rows consist of blocks, or of quants that blocks hold
    /// exactly. The order of rows is that of [`Self::read`], and the file's pages are released in
    /// the same way.
    ///
    /// # Errors
    /// [`LoadError::NonFinite`] if a scale is NaN or infinite.
    ///
    /// # Panics
    /// If `row` is out of range.
    pub fn stored(&self, row: usize) -> Result<Option<Cow<'_, [u8]>>, LoadError> {
        let Some(block_type) = self.block_type().filter(|_| self.assembled.is_none()) else {
            return Ok(None);
        };
        let stored = match &self.quantized {
            Some(quantized) => {
                Cow::Owned(quantized.blocks(block_type, self.layout.index(row), self.columns))
            }
            None => Cow::Borrowed(&self.file.bytes()[self.place(row)]),
        };
        self.release_before(row);
        match blocks::first_non_finite(block_type, &stored) {
            None => Ok(Some(stored)),
            Some((block, found)) => Err(LoadError::NonFinite {
                file: self.file.path().to_owned(),
                tensor: self.tensor.clone(),
                index: row * self.columns + block * block_type.weights(),
                found,
            }),
        }
    }

    /// Reads a row into `out`, `[columns]`. The values are exact: f32 as stored, bf16 and f16
    /// widened, blocks as ggml restores them in f32, and other quants times their scale, rounded
    /// once to f32. Rows of queries and keys are in the half-split order of RoPE for every file
    /// format.
    ///
    /// Rows should be read in ascending order: the file's pages are released after them, so that
    /// they do not count as this process's memory.
    ///
    /// # Errors
    /// [`LoadError::NonFinite`] if a value is NaN or infinite.
    ///
    /// # Panics
    /// If `row` is out of range, or `out` does not have the length of a row.
    pub fn read(&self, row: usize, out: &mut [f32]) -> Result<(), LoadError> {
        assert_eq!(out.len(), self.columns, "a row of {}", self.tensor);
        match (&self.quantized, self.layout.transposed) {
            _ if self.assembled.is_some() => {
                self.assembled.iter().for_each(|tensor| tensor.read(row, out));
            }
            (Some(quantized), _) => {
                quantized.read(self.layout.index(row), out);
                self.release_before(row);
            }
            (None, Some(outputs)) => self.read_column(row, outputs, out),
            (None, None) if self.is_vector && self.layout != RowLayout::PLAIN => {
                self.read_values(out);
            }
            (None, None) => {
                self.decode(&self.file.bytes()[self.place(row)], out);
                self.release_before(row);
            }
        }
        if self.layout.offset != 0.0 {
            out.iter_mut().for_each(|value| *value += self.layout.offset);
        }
        match first_non_finite(out) {
            None => Ok(()),
            Some(column) => Err(LoadError::NonFinite {
                file: self.file.path().to_owned(),
                tensor: self.tensor.clone(),
                index: row * self.columns + column,
                found: out[column],
            }),
        }
    }

    /// Converts stored values to f32, exactly.
    fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        decode(self.dtype, bytes, out);
    }

    /// Reads a row of a matrix that is stored as `[inputs, outputs]`: a column there.
    fn read_column(&self, row: usize, outputs: usize, out: &mut [f32]) {
        let (size, column) = (self.dtype.row_bytes(1), self.layout.index(row));
        let stored = &self.file.bytes()[self.bytes.clone()];
        // Values are converted together, which is faster than one by one.
        let mut gathered = vec![0; out.len() * size];
        match size {
            2 => gather::<2>(stored, column, outputs, &mut gathered),
            _ => gather::<4>(stored, column, outputs, &mut gathered),
        }
        self.decode(&gathered, out);
    }

    /// Reads the values of a vector that are in another order, or a part of the stored ones.
    fn read_values(&self, out: &mut [f32]) {
        let stored = &self.file.bytes()[self.bytes.clone()];
        let mut values = vec![0.0; stored.len() / self.dtype.row_bytes(1)];
        self.decode(stored, &mut values);
        for (index, out) in out.iter_mut().enumerate() {
            *out = values[self.layout.index(index)];
        }
    }

    /// Reads all rows, one after another.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    pub fn read_all(&self) -> Result<Vec<f32>, LoadError> {
        let mut values = vec![0.0; self.len() * self.columns];
        for (row, values) in values.chunks_exact_mut(self.columns).enumerate() {
            self.read(row, values)?;
        }
        self.release();
        Ok(values)
    }

    /// Releases the pages of the whole tensor, which can be read again.
    pub fn release(&self) {
        self.file.release(self.bytes.clone());
    }

    /// Returns the place of a row in the file, which is empty if rows are not stored one after
    /// another.
    fn place(&self, row: usize) -> Range<usize> {
        let row_bytes = match &self.quantized {
            Some(quantized) => quantized.row_bytes(self.columns).unwrap_or(0),
            None => self.dtype.row_bytes(self.columns),
        };
        let start = self.bytes.start + self.layout.index(row) * row_bytes;
        start..start + row_bytes
    }

    /// Releases the pages up to the end of a row that has been read, if they are many.
    fn release_before(&self, row: usize) {
        let row = self.place(row);
        if row.is_empty() {
            return;
        }
        // Other threads may read rows next to this one. They map a released page again.
        let [start, end] = [row.start, row.end].map(|byte| byte / RELEASED * RELEASED);
        if start < end {
            self.file.release(start.max(self.bytes.start)..end);
        }
    }
}

/// Converts stored values of a type to f32, exactly.
pub(super) fn decode(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        // A bf16 is the upper half of an f32.
        Dtype::Bf16 => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        Dtype::F16 => widen_f16(bytes, out),
        Dtype::Block(block) => blocks::dequantize(block, bytes, out),
    }
}

/// Copies a column of a matrix with this number of columns, of values of `N` bytes.
fn gather<const N: usize>(stored: &[u8], column: usize, columns: usize, out: &mut [u8]) {
    let values = stored.as_chunks::<N>().0.iter().skip(column).step_by(columns);
    for (out, value) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *out = *value;
    }
}

/// Widens the little-endian f16 values in `bytes` to f32, exactly.
fn widen_f16(bytes: &[u8], out: &mut [f32]) {
    // Slices are converted by the processor's instructions, if it has them.
    let mut halves = [f16::ZERO; 256];
    for (out, bytes) in out.chunks_mut(halves.len()).zip(bytes.chunks(2 * halves.len())) {
        let halves = &mut halves[..out.len()];
        for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        halves.convert_to_f32_slice(out);
    }
}

/// Returns the index of the first NaN or infinity. The compiler vectorises the test of whole
/// blocks.
fn first_non_finite(values: &[f32]) -> Option<usize> {
    const BLOCK: usize = 4096;
    let has_non_finite =
        |block: &[f32]| block.iter().fold(false, |found, value| found | !value.is_finite());
    let block = values.chunks(BLOCK).position(has_non_finite)?;
    let within = values[block * BLOCK..].iter().position(|value| !value.is_finite())?;
    Some(block * BLOCK + within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::row_layout::Interleaved;

    fn file(bytes: &[u8]) -> WeightFile {
        WeightFile::from_bytes("a.safetensors".into(), bytes.to_vec())
    }

    fn rows(file: &WeightFile, dtype: Dtype, columns: usize) -> TensorRows<'_> {
        let bytes = 0..file.bytes().len();
        let rows = bytes.len() / dtype.row_bytes(columns);
        let shape = [rows, columns];
        let shape = if rows == 1 { &shape[1..] } else { &shape[..] };
        TensorRows::plain(file, "model.embed_tokens.weight".into(), bytes, dtype, shape)
    }

    /// Rows of heads of this size whose neighbours RoPE rotates.
    fn halves(head_dim: usize) -> RowLayout {
        RowLayout { interleaved: Some(Interleaved::whole(head_dim)), ..RowLayout::PLAIN }
    }

    #[test]
    fn f32_values_do_not_depend_on_alignment() {
        let expected = [1.0f32, -0.5, 3.25e-20, 7.0];
        let bytes: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
        for offset in 0..4 {
            let mut shifted = vec![0; offset];
            shifted.extend_from_slice(&bytes);
            let file = file(&shifted);
            let bytes = offset..shifted.len();
            let rows = TensorRows { bytes, rows: 2, ..rows(&file, Dtype::F32, 2) };
            assert_eq!((rows.len(), rows.read_all().unwrap()), (2, expected.to_vec()));
            let mut row = [0.0; 2];
            rows.read(1, &mut row).unwrap();
            assert_eq!(row, expected[2..]);
        }
    }

    #[test]
    fn bf16_widens_exactly() {
        let values = [1.0f32, -0.125, 3.389_531_4e38, -0.0];
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| half::bf16::from_f32(*value).to_bits().to_le_bytes())
            .collect();
        let mut read = [1.0; 4];
        rows(&file(&bytes), Dtype::Bf16, 4).read(0, &mut read).unwrap();
        assert_eq!(read.map(f32::to_bits), values.map(f32::to_bits));
    }

    #[test]
    fn f16_widens_exactly() {
        // The last but one is the smallest positive f16, a subnormal.
        let samples = [1.0f32, -0.125, 65_504.0, 5.960_464_5e-8, -0.0];
        let values: Vec<f32> = samples.into_iter().cycle().take(600).collect();
        let bytes: Vec<u8> =
            values.iter().flat_map(|value| f16::from_f32(*value).to_bits().to_le_bytes()).collect();
        assert_eq!(rows(&file(&bytes), Dtype::F16, 300).read_all().unwrap(), values);
    }

    #[test]
    fn interleaved_pairs_become_halves_within_each_head() {
        // [8 rows, 2 columns], heads of 4 rows. Each value is the index of its row.
        let values: Vec<u8> =
            (0..8u8).flat_map(|row| [f32::from(row); 2]).flat_map(f32::to_le_bytes).collect();
        let file = file(&values);
        let split = TensorRows { layout: halves(4), ..rows(&file, Dtype::F32, 2) };
        let order: Vec<f32> = split.read_all().unwrap().chunks(2).map(|row| row[0]).collect();
        assert_eq!(order, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }

    #[test]
    fn an_interleaved_bias_becomes_halves_within_each_head() {
        let values: Vec<u8> = (0..8u8).map(f32::from).flat_map(f32::to_le_bytes).collect();
        let file = file(&values);
        let bias = TensorRows { layout: halves(4), ..rows(&file, Dtype::F32, 8) };
        assert_eq!(bias.read_all().unwrap(), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }

    /// Rows 0 to 11 of two columns, with the row's index as values.
    fn numbered_rows() -> WeightFile {
        let values = (0..12u8).flat_map(|row| [f32::from(row); 2]).flat_map(f32::to_le_bytes);
        file(&values.collect::<Vec<_>>())
    }

    #[test]
    fn a_tensor_may_be_a_part_of_a_stored_one() {
        let file = numbered_rows();
        let first_values = |rows: usize, layout| {
            let part = TensorRows { rows, layout, ..rows_of(&file) };
            let values = part.read_all().unwrap();
            values.chunks(2).map(|row| row[0]).collect::<Vec<_>>()
        };
        assert_eq!(first_values(3, RowLayout::from_row(5)), [5.0, 6.0, 7.0]);
        assert_eq!(first_values(1, RowLayout::from_row(5)), [5.0]);
        // Heads of two rows, of which queries, keys and values follow one another.
        assert_eq!(first_values(4, RowLayout::runs(2, 2, 6)), [2.0, 3.0, 8.0, 9.0]);
        // Every second row.
        assert_eq!(first_values(3, RowLayout::runs(1, 1, 2)), [1.0, 3.0, 5.0]);
        // The first two rows of each head of three are rotated.
        let interleaved = Some(Interleaved { head_dim: 6, first: 0, dims: 4 });
        let partial = RowLayout { interleaved, ..RowLayout::PLAIN };
        let expected = [0.0, 2.0, 1.0, 3.0, 4.0, 5.0, 6.0, 8.0, 7.0, 9.0, 10.0, 11.0];
        assert_eq!(first_values(12, partial), expected);
        let offset = RowLayout { offset: 1.0, ..RowLayout::PLAIN };
        assert_eq!(first_values(2, offset), [1.0, 2.0]);
    }

    fn rows_of(file: &WeightFile) -> TensorRows<'_> {
        rows(file, Dtype::F32, 2)
    }

    #[test]
    fn a_matrix_may_be_stored_with_its_inputs_first() {
        // [3 inputs, 4 outputs], of which the odd outputs are read.
        let values: Vec<u8> = (0..12u8).map(f32::from).flat_map(f32::to_le_bytes).collect();
        let file = file(&values);
        let layout = RowLayout { transposed: Some(4), ..RowLayout::runs(1, 1, 2) };
        let part = TensorRows { rows: 2, layout, ..rows(&file, Dtype::F32, 3) };
        assert_eq!(part.read_all().unwrap(), [1.0, 5.0, 9.0, 3.0, 7.0, 11.0]);
    }

    #[test]
    fn blocks_can_be_read_as_values_and_as_stored() {
        // Rows of one block, two heads of two rows: f16 scales 1, 2, 3 and 4, and quants −16…15.
        let scales = [1.0, 2.0, 3.0, 4.0_f32];
        let block = |scale| {
            let quants = (-16..16).map(|quant: i8| quant as u8);
            f16::from_f32(scale).to_le_bytes().into_iter().chain(quants)
        };
        let bytes: Vec<u8> = scales.into_iter().flat_map(block).collect();
        let file = file(&bytes);
        let rows = rows(&file, Dtype::Block(BlockType::Q8_0), 32);
        let split = TensorRows { layout: halves(4), ..rows };
        assert_eq!((split.len(), split.block_type()), (4, Some(BlockType::Q8_0)));
        let mut values = [0.0; 32];
        for (row, stored) in [0, 2, 1, 3].into_iter().enumerate() {
            assert_eq!(*split.stored(row).unwrap().unwrap(), bytes[34 * stored..][..34]);
            split.read(row, &mut values).unwrap();
            assert_eq!((values[0], values[31]), (-16.0 * scales[stored], 15.0 * scales[stored]));
        }
        let floats = TensorRows { dtype: Dtype::F32, columns: 2, ..split };
        assert_eq!((floats.stored(0).unwrap(), floats.block_type()), (None, None));
    }

    #[test]
    fn errors_give_the_index_of_a_non_finite_value() {
        let mut values = [0.5_f32; 12];
        values[7] = f32::NAN;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let message = rows(&file(&bytes), Dtype::F32, 4).read_all().unwrap_err().to_string();
        assert!(
            message.contains("model.embed_tokens.weight") && message.contains('7'),
            "{message}"
        );
    }

    #[test]
    fn the_first_non_finite_value_is_found_in_any_block() {
        let mut values = vec![0.5; 10_000];
        assert_eq!(first_non_finite(&values), None);
        values[9_999] = f32::NEG_INFINITY;
        assert_eq!(first_non_finite(&values), Some(9_999));
        values[4_096] = f32::NAN;
        assert_eq!(first_non_finite(&values), Some(4_096));
        assert_eq!(first_non_finite(&[]), None);
    }
}

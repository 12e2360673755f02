//! Weight matrices in the layout of the kernels: tiles of 16 outputs, each matrix in a type of its
//! own.

use super::LANES;
use super::block_format::BlockFormat;
use super::block_tile::BlockRows;
use super::lines::Lines;
use forerun_core::TokenId;
use forerun_formats::{BlockType, LoadError, QUANT_BLOCK as BLOCK, WeightType};
use half::{bf16, f16};
use std::borrow::Cow;
use std::convert::Infallible;
use std::num::NonZero;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Number of weights for which another packing thread is worthwhile.
const WEIGHTS_PER_THREAD: usize = 1 << 18;

/// A weight matrix `[outputs, inputs]` in tiles of 16 outputs. The last tile is zero-padded. Inputs
/// are zero-padded, too: to an even number, or to whole blocks.
///
/// A tile holds, in ascending order of inputs:
/// * f32, f16: `[inputs][16]`;
/// * bf16: `[inputs/2][16][2]`, so that one 64-byte vector holds two inputs;
/// * block types: the chunks of `block_format.rs`.
pub struct PackedMatrix {
    lines: Lines,
    weight_type: WeightType,
    /// The bias of a linear layer: `[outputs]`.
    bias: Option<Vec<f32>>,
    outputs: usize,
    inputs: usize,
    tile_bytes: usize,
}

impl PackedMatrix {
    /// Packs row-major weights `[outputs, inputs]`.
    #[must_use]
    pub fn pack(weight_type: WeightType, weights: &[f32], inputs: usize) -> Self {
        Self::pack_all(weight_type, &[weights], inputs)
    }

    /// Packs matrices with the same number of inputs into one, with their outputs one after
    /// another.
    #[must_use]
    pub fn pack_all(weight_type: WeightType, matrices: &[&[f32]], inputs: usize) -> Self {
        let rows: Vec<&[f32]> =
            matrices.iter().flat_map(|matrix| matrix.chunks_exact(inputs)).collect();
        let copy = |output: usize, row: &mut [f32]| {
            row.copy_from_slice(rows[output]);
            Ok::<(), Infallible>(())
        };
        let shape = [rows.len(), inputs];
        let lines = Self::reserve(weight_type, shape).unwrap_or_else(|error| panic!("{error}"));
        let Ok(packed) = Self::pack_into(lines, weight_type, shape, copy);
        packed
    }

    /// Packs rows on all cores. `read(output, row)` must write the weights of one output to `row`:
    /// `[inputs]`.
    ///
    /// Each core reads the rows of one tile at a time, so that only one tile per core is in memory
    /// as floats.
    ///
    /// # Errors
    /// If rows cannot be read (the error of the first such row), or the memory cannot be allocated.
    pub(crate) fn pack_rows(
        weight_type: WeightType,
        shape: [usize; 2],
        read: impl Fn(usize, &mut [f32]) -> Result<(), LoadError> + Sync,
    ) -> Result<Self, LoadError> {
        Self::pack_into(Self::reserve(weight_type, shape)?, weight_type, shape, read)
    }

    /// Allocates the memory of a packed matrix.
    fn reserve(weight_type: WeightType, shape: [usize; 2]) -> Result<Lines, LoadError> {
        Lines::zeroed(Self::packed_bytes(weight_type, shape))
    }

    /// Returns the size of a packed matrix `[outputs, inputs]` in bytes, as [`Self::bytes`] does.
    pub(crate) fn packed_bytes(weight_type: WeightType, [outputs, inputs]: [usize; 2]) -> usize {
        outputs.div_ceil(LANES).saturating_mul(tile_bytes(weight_type, inputs))
    }

    /// Packs rows into `lines`, as [`Self::pack_tiles`] does.
    fn pack_into<E: Send>(
        lines: Lines,
        weight_type: WeightType,
        [outputs, inputs]: [usize; 2],
        read: impl Fn(usize, &mut [f32]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let new_rows = || TileRows::new(inputs);
        let pack = |rows: &mut TileRows, outputs, tile: &mut [u8]| {
            rows.read(outputs, &read)?;
            rows.pack(weight_type, tile);
            Ok(())
        };
        Self::pack_tiles(lines, weight_type, [outputs, inputs], new_rows, pack)
    }

    /// Packs the stored blocks of rows on all cores. `read(output)` must return the blocks of one
    /// output. The number of inputs must be a multiple of the blocks' weights.
    ///
    /// # Errors
    /// If rows cannot be read (the error of the first such row), or the memory cannot be allocated.
    pub(crate) fn pack_blocks<'a>(
        block_type: BlockType,
        [outputs, inputs]: [usize; 2],
        read: impl Fn(usize) -> Result<Cow<'a, [u8]>, LoadError> + Sync,
    ) -> Result<Self, LoadError> {
        let new_rows = || BlockRows::new(block_type, inputs);
        let pack = |rows: &mut BlockRows, outputs: Range<usize>, tile: &mut [u8]| {
            let stored = outputs.map(&read).collect::<Result<Vec<_>, _>>()?;
            rows.pack(&stored, tile);
            Ok(())
        };
        let (weight_type, shape) = (WeightType::Quantized(block_type), [outputs, inputs]);
        Self::pack_tiles(Self::reserve(weight_type, shape)?, weight_type, shape, new_rows, pack)
    }

    /// Packs tiles on all cores, into `lines`, which are zeros and have room for them.
    /// `pack(rows, outputs, tile)` must pack at most 16 outputs into a tile that is filled with
    /// zeros. Each core has its own `rows`.
    fn pack_tiles<R, E: Send>(
        mut lines: Lines,
        weight_type: WeightType,
        [outputs, inputs]: [usize; 2],
        new_rows: impl Fn() -> R + Sync,
        pack: impl Fn(&mut R, Range<usize>, &mut [u8]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let tile_bytes = tile_bytes(weight_type, inputs);
        let tiles = Mutex::new(lines.as_bytes_mut().chunks_exact_mut(tile_bytes).enumerate());
        let failure: Mutex<Option<(usize, E)>> = Mutex::new(None);
        let work = || {
            let mut rows = new_rows();
            loop {
                let Some((tile, bytes)) = lock(&tiles).next() else { return };
                let outputs = tile * LANES..outputs.min((tile + 1) * LANES);
                if let Err(error) = pack(&mut rows, outputs, bytes) {
                    // Threads take tiles in order: earlier tiles are in progress already, and an
                    // error in a later tile would not be the first.
                    let mut first = lock(&failure);
                    if first.as_ref().is_none_or(|(other, _)| tile < *other) {
                        *first = Some((tile, error));
                    }
                    lock(&tiles).by_ref().for_each(drop);
                    return;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..packing_threads(outputs * inputs) {
                // If a thread cannot be started, packing only takes longer.
                drop(thread::Builder::new().name("forerun-pack".into()).spawn_scoped(scope, work));
            }
            work();
        });
        if let Some((_, error)) = lock(&failure).take() {
            return Err(error);
        }
        Ok(Self { lines, weight_type, bias: None, outputs, inputs, tile_bytes })
    }

    /// Returns the same matrix with a full-precision bias `[outputs]`, or without a bias.
    #[must_use]
    pub(crate) fn with_bias(mut self, bias: Option<Vec<f32>>) -> Self {
        debug_assert!(bias.as_ref().is_none_or(|bias| bias.len() == self.outputs));
        self.bias = bias;
        self
    }

    /// Returns the bias: `[outputs]`.
    pub(crate) fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// Returns the number of outputs.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Returns the number of inputs.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the element type.
    #[must_use]
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// Returns the size of the packed weights in bytes, with padding but without the bias.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lines.as_bytes().len()
    }

    /// Writes the weights of one output (for example, a token's embedding) to `row`: `[inputs]`.
    pub(crate) fn unpack_row(&self, output: usize, row: &mut [f32]) {
        let (tile, lane) = (self.tile(output / LANES), output % LANES);
        let half = |at: usize| u16::from_le_bytes([tile[at], tile[at + 1]]);
        let float = |input: usize| match self.weight_type {
            WeightType::F32 => {
                let at = (input * LANES + lane) * 4;
                f32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]])
            }
            WeightType::Bf16 => bf16::from_bits(half(bf16_offset(input, lane))).to_f32(),
            _ => f16::from_bits(half((input * LANES + lane) * 2)).to_f32(),
        };
        match self.weight_type {
            WeightType::Quantized(block_type) => {
                let format = BlockFormat::of(block_type);
                format.weights(tile, padded_inputs(self.weight_type, self.inputs), lane, row);
            }
            _ => (0..).zip(row).for_each(|(input, value)| *value = float(input)),
        }
    }

    /// Packs some outputs of the matrix, in the given order, into a matrix of the same type. Block
    /// types are quantised again, so their weights may differ a little.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub(crate) fn select(&self, outputs: &[TokenId]) -> Result<Self, LoadError> {
        let shape = [outputs.len(), self.inputs];
        let selected = Self::pack_rows(self.weight_type, shape, |output, row| {
            self.unpack_row(outputs[output] as usize, row);
            Ok(())
        })?;
        let bias = self.bias.as_ref();
        let bias = bias.map(|bias| outputs.iter().map(|&output| bias[output as usize]).collect());
        Ok(selected.with_bias(bias))
    }

    /// Returns a copy without the bias, in memory of its own.
    ///
    /// # Panics
    /// If the memory cannot be allocated.
    pub(crate) fn copy(&self) -> Self {
        let mut lines = Self::reserve(self.weight_type, [self.outputs, self.inputs])
            .unwrap_or_else(|error| panic!("{error}"));
        lines.as_bytes_mut().copy_from_slice(self.lines.as_bytes());
        Self { lines, bias: None, ..*self }
    }

    /// Returns the number of tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    /// Returns the size of one tile in bytes.
    pub(crate) fn tile_bytes(&self) -> usize {
        self.tile_bytes
    }

    /// Returns the bytes of one tile, aligned to 64.
    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        &self.lines.as_bytes()[tile * self.tile_bytes..(tile + 1) * self.tile_bytes]
    }
}

/// Returns the number of packing threads: one per core, but fewer for small matrices.
fn packing_threads(weights: usize) -> usize {
    let worthwhile = weights / WEIGHTS_PER_THREAD;
    match worthwhile {
        0 | 1 => 1,
        _ => thread::available_parallelism().map_or(1, NonZero::get).min(worthwhile),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The weights of one tile before they are packed.
struct TileRows {
    values: Vec<f32>, // [16, inputs + PADDING]
    inputs: usize,
}

/// Zeros after each row, which pad its last group of inputs. Without them, the rows of most
/// matrices would also be a multiple of 4096 bytes apart and compete for the same cache lines.
const PADDING: usize = LANES;

impl TileRows {
    fn new(inputs: usize) -> Self {
        Self { values: vec![0.0; LANES * (inputs + PADDING)], inputs }
    }

    /// Reads the rows of at most 16 outputs. The remaining rows become zeros.
    fn read<E>(
        &mut self,
        mut outputs: Range<usize>,
        read: impl Fn(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let rows = self.values.chunks_exact_mut(self.inputs + PADDING);
        rows.map(|row| &mut row[..self.inputs]).try_for_each(|row| match outputs.next() {
            Some(output) => read(output, row),
            None => {
                row.fill(0.0);
                Ok(())
            }
        })
    }

    /// Packs the rows into a tile, which must be filled with zeros.
    fn pack(&self, weight_type: WeightType, tile: &mut [u8]) {
        match weight_type {
            WeightType::F32 => self.pack_floats(tile, |[weight]| weight.to_le_bytes()),
            WeightType::F16 => {
                self.pack_floats(tile, |[weight]| f16::from_f32(weight).to_le_bytes());
            }
            WeightType::Bf16 => self.pack_floats(tile, |pair: [f32; 2]| {
                let [[a, b], [c, d]] = pair.map(|weight| bf16::from_f32(weight).to_le_bytes());
                [a, b, c, d]
            }),
            WeightType::Quantized(block_type) => {
                let rows = self.values.chunks_exact(self.inputs + PADDING);
                let rows = rows.map(|row| &row[..self.inputs]);
                BlockRows::new(block_type, self.inputs).pack_floats(rows, tile);
            }
        }
    }

    /// Packs `INPUTS` inputs of an output at a time. They are adjacent in the tile.
    fn pack_floats<const INPUTS: usize, const BYTES: usize>(
        &self,
        tile: &mut [u8],
        convert: impl Fn([f32; INPUTS]) -> [u8; BYTES],
    ) {
        let groups = tile.as_chunks_mut().0.chunks_exact_mut(LANES);
        for (group, places) in groups.take(self.inputs.div_ceil(INPUTS)).enumerate() {
            let rows = self.values.chunks_exact(self.inputs + PADDING);
            for (place, row) in places.iter_mut().zip(rows) {
                *place = convert(row.as_chunks().0[group]);
            }
        }
    }
}

/// Returns the number of inputs of a tile, with padding.
fn padded_inputs(weight_type: WeightType, inputs: usize) -> usize {
    match weight_type {
        WeightType::Quantized(_) => inputs.next_multiple_of(BLOCK),
        _ => inputs.next_multiple_of(2),
    }
}

/// Returns the size of one tile in bytes, rounded up to whole cache lines.
fn tile_bytes(weight_type: WeightType, inputs: usize) -> usize {
    let padded = padded_inputs(weight_type, inputs);
    let bytes = match weight_type {
        WeightType::F32 => padded * LANES * 4,
        WeightType::Bf16 | WeightType::F16 => padded * LANES * 2,
        WeightType::Quantized(block_type) => BlockFormat::of(block_type).tile_bytes(padded),
    };
    bytes.next_multiple_of(64)
}

/// Returns the offset of a bf16 weight in its tile, in bytes.
fn bf16_offset(input: usize, lane: usize) -> usize {
    ((input / 2 * LANES + lane) * 2 + input % 2) * 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_reference::Matrix;

    const TYPES: [WeightType; 4] =
        [WeightType::F32, WeightType::Bf16, WeightType::F16, WeightType::INT8];

    /// Values of both signs and of many magnitudes.
    fn values(count: usize) -> Vec<f32> {
        let value = |index: u32| {
            let hash = index.wrapping_mul(2_654_435_761).rotate_left(13);
            (hash as f32 / 2_147_483_648.0 - 1.0) * 2.0_f32.powi(hash as i32 % 12)
        };
        (0..count as u32).map(value).collect()
    }

    /// Enough weights for several threads; the last tile and the last block of inputs are not full.
    #[test]
    fn every_row_unpacks_after_packing_on_many_threads() {
        let (outputs, inputs) = (805, 1003);
        assert!(outputs * inputs > 3 * WEIGHTS_PER_THREAD);
        let weights = values(outputs * inputs);
        for weight_type in TYPES {
            let packed = PackedMatrix::pack(weight_type, &weights, inputs);
            let mut row = vec![0.0; inputs];
            let slow = Matrix::new(weight_type, weights.clone(), inputs);
            for output in 0..outputs {
                packed.unpack_row(output, &mut row);
                assert!(row == slow.weights(output), "{weight_type}, row {output}");
            }
        }
    }

    /// Padding must equal explicit zeros byte for byte, because the kernels multiply it, too.
    #[test]
    fn tiles_are_padded_with_zeros() {
        for weight_type in TYPES {
            let inputs = 37;
            let packed = PackedMatrix::pack(weight_type, &values(3 * inputs), inputs);
            let padded = |inputs: usize| {
                let mut matrix = vec![0.0; 16 * inputs];
                for (filled, row) in matrix.chunks_mut(inputs).zip(values(3 * 37).chunks(37)) {
                    filled[..37].copy_from_slice(row);
                }
                PackedMatrix::pack(weight_type, &matrix, inputs)
            };
            let whole = padded(if weight_type == WeightType::INT8 { 64 } else { 38 });
            assert!(packed.lines.as_bytes() == whole.lines.as_bytes(), "{weight_type}");
        }
    }

    #[test]
    fn the_error_of_the_first_unreadable_row_is_returned() {
        let read = |bad: &[usize]| {
            let read = |output: usize, row: &mut [f32]| {
                row.fill(1.0);
                if bad.contains(&output) { Err(output) } else { Ok(()) }
            };
            let lines = PackedMatrix::reserve(WeightType::INT8, [4000, 256]).unwrap();
            PackedMatrix::pack_into(lines, WeightType::INT8, [4000, 256], read)
                .map(|packed| packed.bytes())
        };
        for _ in 0..20 {
            assert_eq!(read(&[3999, 1717, 1719, 1733, 1801]), Err(1717));
        }
        assert_eq!(read(&[0]), Err(0));
        assert_eq!(read(&[]), Ok(4000 / 16 * 8 * (512 + 32)));
    }

    #[test]
    fn too_little_memory_is_an_error() {
        let rows = usize::MAX / 4096;
        let packed = PackedMatrix::pack_rows(WeightType::F32, [rows, 64], |_, _| Ok(()));
        let needed = match packed {
            Err(LoadError::OutOfMemory { bytes }) => Some(bytes),
            _ => None,
        };
        assert_eq!(needed, Some(rows.div_ceil(16) * 64 * 16 * 4));
    }
}

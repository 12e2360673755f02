//! Quantised matrices of safetensors files, read row by row.
//!
//! In every format a weight is `(quant − zero) · scale`. The difference is exact, and the product
//! is rounded once, to f32. Formats differ in where a quant, a zero point and a scale are stored,
//! so they are data here: [`Words`] and [`Scales`]. `locate` finds the parts of a matrix in a
//! checkpoint.

mod locate;

pub(super) use locate::LocatedMatrix;

use super::WeightFile;
use crate::block_type::BlockType;
use crate::blocks;
use crate::weight_type::Dtype;
use half::{bf16, f16};
use std::ops::Range;

/// The bytes of a stored tensor, or of an expert's part of it.
#[derive(Clone)]
struct Part {
    file: usize,
    bytes: Range<usize>,
}

impl Part {
    fn bytes<'a>(&self, files: &'a [WeightFile]) -> &'a [u8] {
        &files[self.file].bytes()[self.bytes.clone()]
    }
}

/// A quantised matrix `[rows, columns]`, whose rows are outputs.
pub(super) struct QuantizedMatrix {
    quants: Quants,
    scales: Scales,
    zeros: Zeros,
    groups: Groups,
}

enum Quants {
    /// 8-bit floats (E4M3), row-major.
    Floats(Part),
    /// 8-bit integers, row-major.
    Integers(Part),
    /// 4-bit floats (E2M1), row-major, two in a byte, the first one in its lower half.
    TinyFloats(Part),
    /// Integers in words.
    Words(Words),
}

/// The zero points.
enum Zeros {
    /// All are this number.
    All(u8),
    /// They are stored: that of row `r` and group `g` is the integer `[r, g]`.
    Stored(Words),
}

/// Integers that are packed in 32-bit words, at `[row, column]`.
struct Words {
    part: Part,
    /// The bits of an integer, 4 or 8.
    bits: usize,
    /// Whether the integers of a word belong to successive rows, rather than columns.
    along_rows: bool,
    /// The distance in words between successive words of a column, and of a row.
    strides: [usize; 2],
    /// Whether a word has its integers in AutoAWQ's order.
    interleaved: bool,
    /// What is added to each word.
    added: u32,
}

/// The place in a word of each of AutoAWQ's successive integers.
const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl Words {
    /// Returns how many integers a word has.
    fn per_word(&self) -> usize {
        32 / self.bits
    }

    fn word(&self, bytes: &[u8], index: usize) -> u32 {
        let bytes = bytes[4 * index..][..4].try_into().unwrap_or_default();
        u32::from_le_bytes(bytes).wrapping_add(self.added)
    }

    fn integer(&self, word: u32, place: usize) -> u8 {
        let place = if self.interleaved { AWQ_ORDER[place] } else { place };
        (word >> (place * self.bits)) as u8 & (0xff >> (8 - self.bits))
    }

    fn at(&self, bytes: &[u8], row: usize, column: usize) -> u8 {
        let [row_word, column_word] = self.word_of(row, column);
        let word = self.word(bytes, row_word * self.strides[0] + column_word * self.strides[1]);
        self.integer(word, if self.along_rows { row } else { column } % self.per_word())
    }

    fn word_of(&self, row: usize, column: usize) -> [usize; 2] {
        match self.along_rows {
            true => [row / self.per_word(), column],
            false => [row, column / self.per_word()],
        }
    }

    /// Reads the first integers of a row.
    fn read_row(&self, bytes: &[u8], row: usize, out: &mut [f32]) {
        let start = self.word_of(row, 0)[0] * self.strides[0];
        let per_word = self.per_word();
        if self.along_rows {
            for (column, out) in out.iter_mut().enumerate() {
                let word = self.word(bytes, start + column * self.strides[1]);
                *out = f32::from(self.integer(word, row % per_word));
            }
        } else {
            for (index, out) in out.chunks_mut(per_word).enumerate() {
                let word = self.word(bytes, start + index * self.strides[1]);
                for (place, out) in out.iter_mut().enumerate() {
                    *out = f32::from(self.integer(word, place));
                }
            }
        }
    }
}

/// The scales of rows and groups.
struct Scales {
    part: Part,
    kind: ScaleType,
    /// The number of successive rows that share a scale.
    rows: usize,
    /// The distance between the scales of successive rows (or sets of rows that share one), and of
    /// successive groups.
    strides: [usize; 2],
}

/// The type in which scales are stored.
#[derive(Clone, Copy, PartialEq)]
enum ScaleType {
    F32,
    F16,
    Bf16,
    /// A power of two, 2^(byte − 127), where 255 is NaN (E8M0).
    Power,
}

impl ScaleType {
    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Power => 1,
        }
    }

    /// Widens a stored scale, exactly.
    fn widen(self, bytes: &[u8]) -> f32 {
        let two = || [bytes[0], bytes[1]];
        match self {
            Self::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Self::F16 => f16::from_le_bytes(two()).to_f32(),
            Self::Bf16 => bf16::from_le_bytes(two()).to_f32(),
            Self::Power => match bytes[0] {
                0 => f32::MIN_POSITIVE / 2.0,
                u8::MAX => f32::NAN,
                exponent => f32::from_bits(u32::from(exponent) << 23),
            },
        }
    }
}

impl Scales {
    fn at(&self, bytes: &[u8], row: usize, group: usize) -> f32 {
        let index = row / self.rows * self.strides[0] + group * self.strides[1];
        self.kind.widen(&bytes[index * self.kind.bytes()..])
    }

    /// Returns all scales, as stored.
    fn all<'a>(&self, files: &'a [WeightFile]) -> impl Iterator<Item = f32> + use<'a> {
        let kind = self.kind;
        self.part.bytes(files).chunks_exact(kind.bytes()).map(move |bytes| kind.widen(bytes))
    }
}

/// The columns that share a scale.
struct Groups {
    /// The number of successive columns of a group.
    size: usize,
    /// The group of each column as a 32-bit integer, if it does not follow from the size.
    table: Option<Part>,
}

/// The lowest and highest power of two by which 8-bit floats (E4M3) can be multiplied without
/// leaving bf16.
const BF16_POWERS: [f32; 2] = [f32::from_bits(3 << 23), f32::from_bits((127 + 119) << 23)];

impl QuantizedMatrix {
    /// Returns the smallest type that holds all weights of a matrix with this number of columns
    /// exactly, or f32.
    fn exact_type(&self, files: &[WeightFile], columns: usize) -> Dtype {
        let weights_of_blocks = 32;
        let divides = |size: usize| size >= columns || size.is_multiple_of(weights_of_blocks);
        let in_blocks = columns.is_multiple_of(weights_of_blocks)
            && divides(self.groups.size)
            && self.groups.table.is_none();
        let all_scales = |holds: fn(f32) -> bool| self.scales.all(files).all(holds);
        let are_halves = || all_scales(|scale| f16::from_f32(scale).to_f32() == scale);
        let is_power = |scale: f32| {
            let [lowest, highest] = BF16_POWERS;
            scale == 0.0
                || scale.to_bits().trailing_zeros() >= 23 && (lowest..=highest).contains(&scale)
        };
        match &self.quants {
            Quants::Floats(_) if all_scales(is_power) => Dtype::Bf16,
            Quants::TinyFloats(_) => Dtype::Block(BlockType::MXFP4),
            Quants::Integers(_) if in_blocks && are_halves() => Dtype::Block(BlockType::Q8_0),
            Quants::Words(words) if in_blocks && are_halves() => {
                let middle = 1 << (words.bits - 1);
                match (words.bits, self.zeros.all_are(files, middle)) {
                    (4, true) => Dtype::Block(BlockType::Q4_0),
                    (4, false) => Dtype::Block(BlockType::Q5_0),
                    (_, true) => Dtype::Block(BlockType::Q8_0),
                    (_, false) => Dtype::F32,
                }
            }
            _ => Dtype::F32,
        }
    }

    /// Returns the bytes of scales, zero points and the table of groups.
    pub(super) fn other_bytes(&self) -> usize {
        let zeros = match &self.zeros {
            Zeros::All(_) => None,
            Zeros::Stored(words) => Some(&words.part),
        };
        let parts = [Some(&self.scales.part), zeros, self.groups.table.as_ref()];
        parts.into_iter().flatten().map(|part| part.bytes.len()).sum()
    }

    /// Returns the number of bytes of a row, if rows are stored one after another.
    fn row_bytes(&self, columns: usize) -> Option<usize> {
        match &self.quants {
            Quants::Floats(_) | Quants::Integers(_) => Some(columns),
            Quants::TinyFloats(_) => Some(columns / 2),
            Quants::Words(words) => (!words.along_rows && words.strides[1] == 1)
                .then_some(columns.div_ceil(words.per_word()) * 4),
        }
    }

    /// Reads a row of `quant − zero`, without the scale.
    fn levels(&self, files: &[WeightFile], row: usize, out: &mut [f32]) {
        let columns = out.len();
        let row_of = |part: &Part, bytes: usize| &part.bytes(files)[row * bytes..][..bytes];
        match &self.quants {
            Quants::Floats(part) => {
                for (out, byte) in out.iter_mut().zip(row_of(part, columns)) {
                    *out = E4M3[usize::from(*byte)];
                }
            }
            Quants::Integers(part) => {
                for (out, byte) in out.iter_mut().zip(row_of(part, columns)) {
                    *out = f32::from(*byte as i8);
                }
            }
            Quants::TinyFloats(part) => {
                let level = |code: u8| f32::from(blocks::MXFP4_LEVELS[usize::from(code)]) / 2.0;
                let bytes = row_of(part, columns / 2);
                for (out, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                    *out = [level(byte & 15), level(byte >> 4)];
                }
            }
            Quants::Words(words) => words.read_row(words.part.bytes(files), row, out),
        }
        match &self.zeros {
            Zeros::All(0) => {}
            Zeros::All(zero) => out.iter_mut().for_each(|level| *level -= f32::from(*zero)),
            Zeros::Stored(words) => {
                let bytes = words.part.bytes(files);
                self.by_group(files, out, |group, levels| {
                    let zero = f32::from(words.at(bytes, row, group));
                    levels.iter_mut().for_each(|level| *level -= zero);
                });
            }
        }
    }

    /// Calls `change` for the group of successive values of a row, and these values.
    fn by_group(
        &self,
        files: &[WeightFile],
        row: &mut [f32],
        mut change: impl FnMut(usize, &mut [f32]),
    ) {
        match &self.groups.table {
            None => {
                let groups = row.chunks_mut(self.groups.size).enumerate();
                groups.for_each(|(group, values)| change(group, values));
            }
            Some(table) => {
                let groups = table.bytes(files).as_chunks::<4>().0;
                for (value, group) in row.iter_mut().zip(groups) {
                    change(u32::from_le_bytes(*group) as usize, std::slice::from_mut(value));
                }
            }
        }
    }

    fn read(&self, files: &[WeightFile], row: usize, out: &mut [f32]) {
        self.levels(files, row, out);
        let scales = self.scales.part.bytes(files);
        self.by_group(files, out, |group, weights| {
            let scale = self.scales.at(scales, row, group);
            weights.iter_mut().for_each(|weight| *weight *= scale);
        });
    }

    /// Returns a row as blocks of its exact type. `columns` is a multiple of 32.
    fn blocks(
        &self,
        files: &[WeightFile],
        block_type: BlockType,
        row: usize,
        columns: usize,
    ) -> Vec<u8> {
        let mut levels = vec![0.0; columns];
        self.levels(files, row, &mut levels);
        let scales = self.scales.part.bytes(files);
        let mut stored = vec![0; columns / block_type.weights() * block_type.bytes()];
        let mut block = blocks::UnpackedBlock::new(block_type);
        // MXFP4's levels are twice the floats.
        let factor = if block_type == BlockType::MXFP4 { 2.0 } else { 1.0 };
        let parts = levels.chunks_exact(block_type.weights());
        let parts = parts.zip(stored.chunks_exact_mut(block_type.bytes())).enumerate();
        for (index, (levels, stored)) in parts {
            let scale = self.scales.at(scales, row, index * 32 / self.groups.size);
            block.set(scale / factor, levels.iter().map(|level| (level * factor) as i8));
            block.write(stored);
        }
        stored
    }
}

impl Zeros {
    fn all_are(&self, files: &[WeightFile], middle: u8) -> bool {
        match self {
            Self::All(zero) => *zero == middle,
            Self::Stored(words) => {
                let all = (0..words.per_word())
                    .fold(0, |all, place| all | u32::from(middle) << (place * words.bits));
                let bytes = words.part.bytes(files);
                (0..bytes.len() / 4).all(|index| words.word(bytes, index) == all)
            }
        }
    }
}

/// The rows of a quantised matrix.
#[derive(Clone, Copy)]
pub(super) struct QuantizedRows<'a> {
    pub(super) matrix: &'a QuantizedMatrix,
    pub(super) files: &'a [WeightFile],
}

impl QuantizedRows<'_> {
    /// Returns the number of bytes of a row's quants, if rows are stored one after another.
    pub(super) fn row_bytes(&self, columns: usize) -> Option<usize> {
        self.matrix.row_bytes(columns)
    }

    /// Reads the weights of a stored row.
    pub(super) fn read(&self, row: usize, out: &mut [f32]) {
        self.matrix.read(self.files, row, out);
    }

    /// Returns a stored row as blocks that hold its weights exactly.
    pub(super) fn blocks(&self, block_type: BlockType, row: usize, columns: usize) -> Vec<u8> {
        self.matrix.blocks(self.files, block_type, row, columns)
    }
}

/// The values of 8-bit floats with 4 bits of exponent and 3 of mantissa. Both signs of 127 are NaN,
/// and there are no infinities (Micikevicius et al. 2022, arXiv:2209.05433, table 1).
static E4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (sign, exponent, mantissa) = (byte >> 7, byte >> 3 & 15, byte & 7);
        let magnitude = if exponent == 0 {
            mantissa as f32 / 512.0
        } else if exponent == 15 && mantissa == 7 {
            f32::NAN
        } else {
            f32::from_bits((exponent + 120) << 23 | mantissa << 20)
        };
        values[byte as usize] = if sign == 1 { -magnitude } else { magnitude };
        byte += 1;
    }
    values
};

//! Weight matrices as the kernels read them: tiles of 16 outputs, in one of four element types.

use super::LANES;
use half::{bf16, f16};
use std::fmt;
use std::str::FromStr;

/// Element type of packed weights. Each is a model of its own: outputs are bit-identical within a
/// type, not across types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// bfloat16, widened exactly in the kernels.
    Bf16,
    /// IEEE half precision, widened exactly in the kernels.
    F16,
    /// 8-bit integers in blocks of 32 inputs with one half-precision scale each (as Q8_0);
    /// activations are quantised alike, products are exact.
    Int8,
}

/// A name that is no element type.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not one of auto, f32, bf16, f16, int8")]
pub struct UnknownWeightType(pub String);

impl FromStr for WeightType {
    type Err = UnknownWeightType;

    fn from_str(text: &str) -> Result<Self, UnknownWeightType> {
        let all = [Self::F32, Self::Bf16, Self::F16, Self::Int8];
        let found = all.into_iter().find(|dtype| dtype.to_string() == text);
        found.ok_or_else(|| UnknownWeightType(text.to_owned()))
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        })
    }
}

/// Inputs of one int8 block, which share a scale.
pub(crate) const BLOCK: usize = 32;

/// A cache line; packed weights start on one.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// A weight matrix `[outputs, inputs]` in tiles of 16 outputs; the last tile is filled up with
/// zeros. Inputs are filled up with zeros, too: to an even number, or to whole blocks for int8.
///
/// A tile holds, in ascending order of inputs:
/// * f32, f16: `[inputs][16]`;
/// * bf16: `[inputs/2][16][2]`, so that one 64-byte vector holds two inputs;
/// * int8: quants `[inputs/32][8][16][4]` as `u8` with 128 added, then scales `[inputs/32][16]` as
///   f16.
pub struct PackedMatrix {
    lines: Vec<Line>,
    weight_type: WeightType,
    /// What a linear layer adds to its products: `[outputs]`.
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

    /// Packs matrices of the same inputs as one, their outputs one after another.
    #[must_use]
    pub fn pack_all(weight_type: WeightType, matrices: &[&[f32]], inputs: usize) -> Self {
        let rows: Vec<&[f32]> =
            matrices.iter().flat_map(|matrix| matrix.chunks_exact(inputs)).collect();
        let outputs = rows.len();
        let tile_bytes = tile_bytes(weight_type, inputs);
        let lines = vec![Line([0; 64]); outputs.div_ceil(LANES) * tile_bytes / 64];
        let mut packed = Self { lines, weight_type, bias: None, outputs, inputs, tile_bytes };
        for (tile, rows) in rows.chunks(LANES).enumerate() {
            let bytes = packed.tile_mut(tile);
            match weight_type {
                WeightType::Int8 => pack_int8(bytes, rows, inputs),
                _ => pack_floats(weight_type, bytes, rows),
            }
        }
        packed
    }

    /// The same with a bias `[outputs]`, in full precision, which a linear layer adds to its
    /// products, or with none.
    #[must_use]
    pub(crate) fn with_bias(mut self, bias: Option<Vec<f32>>) -> Self {
        debug_assert!(bias.as_ref().is_none_or(|bias| bias.len() == self.outputs));
        self.bias = bias;
        self
    }

    /// What is added to the products: `[outputs]`.
    pub(crate) fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// Number of outputs.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of inputs.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Element type.
    #[must_use]
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// Bytes of packed weights.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&self.lines[..])
    }

    /// Writes the weights of one output (an embedding's row) to `row`: `[inputs]`.
    pub(crate) fn unpack_row(&self, output: usize, row: &mut [f32]) {
        let (tile, lane) = (self.tile(output / LANES), output % LANES);
        let half = |at: usize| u16::from_le_bytes([tile[at], tile[at + 1]]);
        for (input, value) in row.iter_mut().enumerate() {
            *value = match self.weight_type {
                WeightType::F32 => {
                    let at = (input * LANES + lane) * 4;
                    f32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]])
                }
                WeightType::Bf16 => bf16::from_bits(half(bf16_offset(input, lane))).to_f32(),
                WeightType::F16 => f16::from_bits(half((input * LANES + lane) * 2)).to_f32(),
                WeightType::Int8 => {
                    let scale = half(scale_offset(self.inputs, input, lane));
                    let quant = f32::from(tile[quant_offset(input, lane)]) - 128.0;
                    quant * f16::from_bits(scale).to_f32()
                }
            };
        }
    }

    /// Number of tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    /// Bytes of one tile.
    pub(crate) fn tile_bytes(&self) -> usize {
        self.tile_bytes
    }

    /// The bytes of one tile, aligned to 64.
    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        &self.as_bytes()[tile * self.tile_bytes..(tile + 1) * self.tile_bytes]
    }

    fn as_bytes(&self) -> &[u8] {
        // SAFETY: a line is 64 bytes without padding, and any bytes are valid bytes.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.bytes()) }
    }

    fn tile_mut(&mut self, tile: usize) -> &mut [u8] {
        let (start, len) = (tile * self.tile_bytes, self.bytes());
        // SAFETY: as above, and the borrow is exclusive.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) };
        &mut bytes[start..start + self.tile_bytes]
    }
}

/// Bytes of one tile, in whole cache lines.
fn tile_bytes(weight_type: WeightType, inputs: usize) -> usize {
    let even = inputs.next_multiple_of(2);
    let bytes = match weight_type {
        WeightType::F32 => even * LANES * 4,
        WeightType::Bf16 | WeightType::F16 => even * LANES * 2,
        WeightType::Int8 => inputs.div_ceil(BLOCK) * (BLOCK * LANES + LANES * 2),
    };
    bytes.next_multiple_of(64)
}

/// Where a bf16 weight lies in its tile, in bytes.
fn bf16_offset(input: usize, lane: usize) -> usize {
    ((input / 2 * LANES + lane) * 2 + input % 2) * 2
}

/// Where an int8 weight lies in its tile, in bytes.
fn quant_offset(input: usize, lane: usize) -> usize {
    let (group, within) = (input / 4, input % 4);
    (group * LANES + lane) * 4 + within
}

/// Where a block's scale lies in its tile, in bytes.
fn scale_offset(inputs: usize, input: usize, lane: usize) -> usize {
    inputs.div_ceil(BLOCK) * BLOCK * LANES + (input / BLOCK * LANES + lane) * 2
}

fn pack_floats(weight_type: WeightType, bytes: &mut [u8], rows: &[&[f32]]) {
    for (lane, row) in rows.iter().enumerate() {
        for (input, &weight) in row.iter().enumerate() {
            let place = input * LANES + lane;
            match weight_type {
                WeightType::F32 => {
                    bytes[place * 4..place * 4 + 4].copy_from_slice(&weight.to_le_bytes());
                }
                WeightType::Bf16 => {
                    let at = bf16_offset(input, lane);
                    bytes[at..at + 2].copy_from_slice(&bf16::from_f32(weight).to_le_bytes());
                }
                _ => {
                    let half = f16::from_f32(weight).to_le_bytes();
                    bytes[place * 2..place * 2 + 2].copy_from_slice(&half);
                }
            }
        }
    }
}

fn pack_int8(bytes: &mut [u8], rows: &[&[f32]], inputs: usize) {
    // A quant of 0 is stored as 128, also where there is no weight.
    bytes[..inputs.div_ceil(BLOCK) * BLOCK * LANES].fill(128);
    for (lane, row) in rows.iter().enumerate() {
        for (block, weights) in row.chunks(BLOCK).enumerate() {
            let (quants, scale) = quantize_weights(weights);
            let at = scale_offset(inputs, block * BLOCK, lane);
            bytes[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            for (offset, quant) in quants.enumerate() {
                // Two's complement plus 128, modulo 256.
                bytes[quant_offset(block * BLOCK + offset, lane)] = (quant as u8) ^ 0x80;
            }
        }
    }
}

/// The nearest integer, ties to even, of a number in −127.5…127.5: adding 1.5 · 2²³ leaves no bits
/// behind the point, and the integer in the lowest ones.
#[inline(always)]
pub(crate) fn round_to_i8(value: f32) -> i8 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT).to_bits() as i8
}

/// One block of weights as integers in −127…127 and the scale that gives them back.
pub(crate) fn quantize_weights(weights: &[f32]) -> (impl Iterator<Item = i8> + '_, f16) {
    let peak = weights.iter().fold(0.0_f32, |peak, weight| peak.max(weight.abs()));
    let scale = f16::from_f32(peak / 127.0);
    let inverse = if scale.to_f32() > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
    let quantize = move |weight: &f32| round_to_i8((weight * inverse).clamp(-127.0, 127.0));
    (weights.iter().map(quantize), scale)
}

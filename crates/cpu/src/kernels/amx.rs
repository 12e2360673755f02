//! Linear kernels for AMX: tiles of 16 outputs × up to 16 rows in the registers of the matrix unit.
//!
//! Tiles of bf16 weights have the layout of the unit's second operand as they are stored: `[inputs/2][16][2]`. So do
//! unpacked quants: `[inputs/4][16][4]`. The unit multiplies bytes exactly, so the bits are those of the kernels for AVX-512.
//!
//! The compiler never uses the unit's registers, so they keep their contents between `asm!` blocks. A kernel sets their shapes
//! first, and releases them at its end.

use super::LANES;
use super::activations::QuantizedRows;
use super::avx512::prefetch;
use super::block_format::{BlockFormat, CHUNK, GROUPS};
use super::operands::{Operands, TileSums, UnpackedTile};
use forerun_formats::{BlockType, QUANT_BLOCK as BLOCK};
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

/// Largest number of rows of a row block.
pub(super) const ROW_BLOCK: usize = 16;

/// Smallest number of rows for which the unit multiplies bytes. It was clearly faster than AVX-512 from 16 rows on, and not
/// always at 8 or fewer.
pub(super) const MIN_ROWS_OF_BYTES: usize = 9;

/// The bf16 inputs that one instruction multiplies.
const STEP: usize = 2 * LANES;
/// The bytes of a register's row.
const ROW_BYTES: usize = 64;
/// The weights of 16 outputs and [`STEP`] inputs.
const STEP_BYTES: usize = LANES * ROW_BYTES;

/// The shapes of the unit's registers, as `LDTILECFG` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// No register is used.
    const NONE: Self =
        Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };

    /// Sets the number of rows, and of bytes in a row, of a register.
    const fn with(mut self, register: usize, rows: usize, row_bytes: usize) -> Self {
        self.rows[register] = rows as u8;
        self.row_bytes[register] = row_bytes as u16;
        self
    }
}

/// Adds the products of an input range to the sums of both tiles, for every row of the block. The first range starts
/// from zero.
///
/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL and VNNI, and AMX with bf16, and the system must permit its use.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn compute(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    let Operands { tiles, rows, inputs, start, ref input_range, activations, .. } = *operands;
    assert!((1..=ROW_BLOCK).contains(&rows) && input_range.start.is_multiple_of(STEP));
    let plan = operands.prefetch_plan();
    let steps = input_range.start / STEP..input_range.end.div_ceil(STEP);
    // Pairs of bf16 numbers: [inputs/32][rows][16]
    let x = &activations.pairs[start / 2..(start + rows * inputs) / 2];
    assert!(steps.end * rows * LANES <= x.len());
    let mut padded = [Step([0; STEP_BYTES]), Step([0; STEP_BYTES])];
    // Sums of both tiles [rows][16], activations [rows][32], and weights of both tiles [16][16][2].
    let shapes = Shapes::NONE
        .with(0, rows, ROW_BYTES)
        .with(1, rows, ROW_BYTES)
        .with(2, rows, ROW_BYTES)
        .with(3, LANES, ROW_BYTES)
        .with(4, LANES, ROW_BYTES);
    let [left, right] = sums;
    // SAFETY: the caller guarantees the features. Sums have `rows` rows of 64 bytes, the activations of a step have
    // `rows` rows of 64 bytes, and its weights, padded at a tile's end, have 16 rows of 64 bytes.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack));
        if input_range.start == 0 {
            asm!("tilezero tmm0", "tilezero tmm1", options(nostack));
        } else {
            asm!(
                "tileloadd tmm0, [{left} + {stride}]",
                "tileloadd tmm1, [{right} + {stride}]",
                left = in(reg) left.as_ptr(),
                right = in(reg) right.as_ptr(),
                stride = in(reg) ROW_BYTES,
                options(nostack),
            );
        }
        for step in steps.clone() {
            prefetch(plan, (step - steps.start) * LANES, LANES);
            let [left, right] = [0, 1].map(|side| weights_of(tiles[side], step, &mut padded[side]));
            asm!(
                "tileloadd tmm2, [{x} + {stride}]",
                "tileloadd tmm3, [{left} + {stride}]",
                "tdpbf16ps tmm0, tmm2, tmm3",
                "tileloadd tmm4, [{right} + {stride}]",
                "tdpbf16ps tmm1, tmm2, tmm4",
                x = in(reg) x.as_ptr().add(step * rows * LANES),
                left = in(reg) left,
                right = in(reg) right,
                stride = in(reg) ROW_BYTES,
                options(nostack),
            );
        }
        asm!(
            "tilestored [{left} + {stride}], tmm0",
            "tilestored [{right} + {stride}], tmm1",
            "tilerelease",
            left = in(reg) left.as_mut_ptr(),
            right = in(reg) right.as_mut_ptr(),
            stride = in(reg) ROW_BYTES,
            options(nostack),
        );
    }
}

/// The weights of a step.
#[repr(align(64))]
struct Step([u8; STEP_BYTES]);

/// Returns the address of a step's weights: in the tile, or in `padded` at the end of a tile without whole steps.
#[inline(always)]
fn weights_of(tile: &[u8], step: usize, padded: &mut Step) -> *const u8 {
    let weights = &tile[step * STEP_BYTES..];
    match weights.get(..STEP_BYTES) {
        Some(whole) => whole.as_ptr(),
        None => {
            padded.0[..weights.len()].copy_from_slice(weights);
            padded.0.as_ptr()
        }
    }
}

/// How many exact sums leave the unit before they are scaled: few enough for the L1 cache, and enough to hide the unit's
/// latency.
const PARTS: usize = 4;

/// Exact sums of products: of parts, each for all rows and 16 outputs.
#[repr(align(64))]
struct Dots([[[i32; LANES]; ROW_BLOCK]; PARTS]);

/// Adds the products of an input range of unpacked tiles, without their zeros, to the sums of both tiles, as `compute`
/// does.
///
/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL and VNNI, and AMX with bytes, and the system must permit its use. The
/// input range of the tiles must be unpacked.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn compute_blocks(
    block_type: BlockType,
    unpacked: &[UnpackedTile; 2],
    operands: &Operands<'_>,
    sums: &mut [TileSums; 2],
) {
    let Operands { rows, inputs, start, ref input_range, activations, .. } = *operands;
    assert!((1..=ROW_BLOCK).contains(&rows) && input_range.start.is_multiple_of(CHUNK));
    let (first_place, blocks) = (start / BLOCK, inputs / BLOCK);
    let range = QuantizedRange {
        x: activations.quantized(first_place..first_place + rows * blocks),
        rows,
        format: BlockFormat::of(block_type),
        first_block: input_range.start / BLOCK,
    };
    assert!(input_range.end / BLOCK <= blocks);
    let parts = range.format.scales_per_block();
    let all_parts = input_range.len() / BLOCK * parts;
    let plan = operands.prefetch_plan();
    let lines =
        range.format.tile_bytes(input_range.end) - range.format.tile_bytes(input_range.start);
    let steps = all_parts.div_ceil(PARTS);
    let lines = (lines / 64).div_ceil(2 * steps);
    // Exact sums of four parts [rows][16], activations [rows][32 or 16], and weights [8 or 4][16][4].
    let shapes = Shapes::NONE.with(0, rows, ROW_BYTES).with(1, rows, BLOCK / parts).with(
        2,
        GROUPS / parts,
        ROW_BYTES,
    );
    let mut dots = Dots([[[0; LANES]; ROW_BLOCK]; PARTS]);
    // SAFETY: the caller guarantees the features.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack)) };
    for (side, (tile, sums)) in unpacked.iter().zip(sums).enumerate() {
        let sums = &mut sums[..rows];
        if input_range.start == 0 {
            sums.fill([0.0; LANES]);
        }
        for step in 0..steps {
            prefetch(plan, (side * steps + step) * lines, lines);
            let parts = step * PARTS..all_parts.min((step + 1) * PARTS);
            // SAFETY: the caller guarantees the features and the range, whose activations were checked above.
            unsafe {
                for (part, dots) in parts.clone().zip(&mut dots.0) {
                    range.multiply(part, tile, dots);
                }
                range.add(parts, tile, &dots, sums);
            }
        }
    }
    // SAFETY: as above.
    unsafe { asm!("tilerelease", options(nostack)) };
}

/// A range of inputs of quantised activations. A part of it has one scale: 32 or 16 inputs.
struct QuantizedRange<'a> {
    x: QuantizedRows<'a>, // [blocks of all inputs][rows]
    rows: usize,
    format: BlockFormat,
    first_block: usize,
}

impl QuantizedRange<'_> {
    /// Computes the exact sums of the products of a part.
    ///
    /// # Safety
    /// The processor must have AMX, with registers for these rows and parts, and the part must be in the range.
    #[inline(always)]
    unsafe fn multiply(
        &self,
        part: usize,
        tile: &UnpackedTile,
        dots: &mut [[i32; LANES]; ROW_BLOCK],
    ) {
        let parts = self.format.scales_per_block();
        let (block, within) = (part / parts, part % parts);
        let quants = &tile.quants[part * GROUPS / parts..][..GROUPS / parts];
        let place = (self.first_block + block) * self.rows;
        // SAFETY: the caller guarantees the features and the part. A register reads `rows` rows of activations that are 32
        // bytes apart, and writes `rows` rows of exact sums.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm1, [{x} + {x_stride}]",
                "tileloadd tmm2, [{quants} + {stride}]",
                "tdpbssd tmm0, tmm1, tmm2",
                "tilestored [{dots} + {stride}], tmm0",
                x = in(reg) self.x.quants_from(place, within * BLOCK / parts),
                x_stride = in(reg) BLOCK,
                quants = in(reg) quants.as_ptr(),
                dots = in(reg) dots.as_mut_ptr(),
                stride = in(reg) ROW_BYTES,
                options(nostack),
            );
        }
    }

    /// Scales the exact sums of successive parts, and adds them to the sums of every row.
    ///
    /// # Safety
    /// The processor must have AVX-512, and the parts must be in the range.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn add(
        &self,
        parts: Range<usize>,
        tile: &UnpackedTile,
        dots: &Dots,
        sums: &mut [[f32; LANES]],
    ) {
        let per_block = self.format.scales_per_block();
        let has_minima = self.format.scales.has_minima();
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller guarantees the features and the parts. Rows of sums have 16 lanes.
            unsafe {
                let mut total = _mm512_loadu_ps(sums.as_ptr());
                for (part, dots) in parts.clone().zip(&dots.0) {
                    let place = (self.first_block + part / per_block) * self.rows + row;
                    let dot = _mm512_load_si512(dots[row].as_ptr().cast());
                    let scale = _mm512_load_ps(tile.scales[part].as_ptr().cast());
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(self.x.scale(place)));
                    total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, total);
                    if has_minima {
                        let minimum = _mm512_load_ps(tile.minima[part].as_ptr().cast());
                        let sum =
                            _mm512_set1_ps(self.x.scaled_sum(place, part % per_block, per_block));
                        total = _mm512_fmadd_ps(minimum, sum, total);
                    }
                }
                _mm512_storeu_ps(sums.as_mut_ptr(), total);
            }
        }
    }
}

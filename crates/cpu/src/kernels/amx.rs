//! Linear kernels for AMX: tiles of 16 outputs × up to 16 rows in the registers of the matrix unit.
//!
//! Only bf16 weights use them: their tiles have the layout of the unit's second operand as they are
//! stored, `[inputs/2][16][2]`. Blocks of quants do not: their sums leave the unit after every 32
//! inputs to be scaled, which takes as long as AVX-512 takes for all of it
//! (docs/experiments/quantised-kernels.md).
//!
//! The compiler never uses the unit's registers, so they keep their contents between `asm!` blocks.
//! A kernel sets their shapes first, and releases them at its end.

use super::LANES;
use super::avx512::prefetch;
use super::operands::{Operands, TileSums};
use std::arch::asm;

/// Largest number of rows of a row block.
pub(super) const ROW_BLOCK: usize = 16;

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

/// Adds the products of an input range to the sums of both tiles, for every row of the block. The
/// first range starts from zero.
///
/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL and VNNI, and AMX with bf16, and the system must
/// permit its use.
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
    // SAFETY: the caller guarantees the features. Sums have `rows` rows of 64 bytes, the
    // activations of a step have `rows` rows of 64 bytes, and its weights, padded at a tile's end,
    // have 16 rows of 64 bytes.
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

/// Returns the address of a step's weights: in the tile, or in `padded` at the end of a tile
/// without whole steps.
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

//! ggml's reference for the types of 32 weights, without a search for better scales. The blocks are
//! equal to those of the Python package `gguf` as long as their scales are finite.

use super::{UnpackedBlock, peak, peak_of, to_half};
use half::f16;

/// The scale makes the weight of the largest magnitude the lowest level: [`BlockType::Q4_0`] and
/// [`BlockType::Q5_0`], whose lowest level is minus `middle`.
///
/// [`BlockType::Q4_0`]: crate::BlockType::Q4_0
/// [`BlockType::Q5_0`]: crate::BlockType::Q5_0
pub(super) fn from_peak(block: &mut UnpackedBlock, weights: &[f32], middle: u8) {
    let middle = f32::from(middle);
    let (scale, inverse) = scale_and_inverse(peak_of(weights.iter().copied()) / -middle);
    block.scale = scale;
    for (quant, weight) in block.quants.iter_mut().zip(weights) {
        *quant = (weight * inverse + (middle + 0.5)).min(2.0 * middle - 1.0) as u8;
    }
}

/// The lowest weight becomes level 0, and the highest becomes `highest`: [`BlockType::Q4_1`] and
/// [`BlockType::Q5_1`].
///
/// [`BlockType::Q4_1`]: crate::BlockType::Q4_1
/// [`BlockType::Q5_1`]: crate::BlockType::Q5_1
pub(super) fn from_range(block: &mut UnpackedBlock, weights: &[f32], highest: u8) {
    let low = weights.iter().fold(f16::MAX.to_f32(), |low, weight| low.min(*weight));
    let low = low.max(f16::MIN.to_f32());
    let high = weights.iter().fold(f32::MIN, |high, weight| high.max(*weight));
    let highest = f32::from(highest);
    let (scale, inverse) = scale_and_inverse((high - low) / highest);
    (block.scale, block.minimum) = (scale, -f16::from_f32(low).to_f32());
    for (quant, weight) in block.quants.iter_mut().zip(weights) {
        *quant = ((weight - low) * inverse + 0.5).min(highest) as u8;
    }
}

/// The weight of the largest magnitude becomes 127 or −127: [`BlockType::Q8_0`].
///
/// [`BlockType::Q8_0`]: crate::BlockType::Q8_0
pub(super) fn from_magnitude(block: &mut UnpackedBlock, weights: &[f32]) {
    let (scale, inverse) = scale_and_inverse(peak(weights) / 127.0);
    block.scale = scale;
    for (quant, weight) in block.quants.iter_mut().zip(weights) {
        *quant = (weight * inverse).round() as i8 as u8;
    }
}

/// Returns a scale as f16, and the inverse of the scale before it was rounded. Scales that are too
/// large for f16 become the largest.
fn scale_and_inverse(scale: f32) -> (f32, f32) {
    let rounded = to_half(scale);
    let exact = if rounded.abs() == f16::MAX.to_f32() { rounded } else { scale };
    (rounded, if exact == 0.0 { 0.0 } else { 1.0 / exact })
}

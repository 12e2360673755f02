//! The values of GGUF's block types.

use half::f16;

use crate::block_type::BlockType;

/// Converts whole blocks to their values. `out` has [`BlockType::weights`] values for each block in
/// `bytes`. Values of types that are not converted yet are NaN.
pub(crate) fn dequantize(block: BlockType, bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.chunks_exact(block.bytes()).zip(out.chunks_exact_mut(block.weights()));
    for (bytes, out) in blocks {
        let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        let quants = &bytes[2..];
        match block {
            BlockType::Q8_0 => {
                for (value, quant) in out.iter_mut().zip(quants) {
                    *value = scale * f32::from(*quant as i8);
                }
            }
            BlockType::Q4_0 => {
                let (low, high) = out.split_at_mut(quants.len());
                for ((low, high), pair) in low.iter_mut().zip(high).zip(quants) {
                    *low = scale * (f32::from(pair & 15) - 8.0);
                    *high = scale * (f32::from(pair >> 4) - 8.0);
                }
            }
            _ => out.fill(f32::NAN),
        }
    }
}

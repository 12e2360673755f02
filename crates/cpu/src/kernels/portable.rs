//! Portable linear kernels: plain loops, for any processor.

use super::LANES;
use super::block_format::BlockFormat;
use super::operands::{MAX_ROW_BLOCK, Operands, TileSums};
use forerun_formats::{BlockType, QUANT_BLOCK as BLOCK, WeightType};
use half::{bf16, f16};

/// Computes the sums of both tiles for every row of the block.
pub(crate) fn compute(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    for (tile, sums) in operands.tiles.into_iter().zip(sums) {
        *sums = [[0.0; LANES]; MAX_ROW_BLOCK];
        match operands.weight_type {
            WeightType::Quantized(block_type) => blocks(block_type, operands, tile, sums),
            _ => floats(operands, tile, sums),
        }
    }
}

fn floats(operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
    let Operands { weight_type, rows, inputs, start, .. } = *operands;
    let x = &operands.activations.floats[start..start + rows * inputs];
    for (input, x) in x.chunks_exact(rows).enumerate() {
        let weights: [f32; LANES] = match weight_type {
            WeightType::F32 => std::array::from_fn(|lane| {
                let at = (input * LANES + lane) * 4;
                f32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]])
            }),
            WeightType::Bf16 => std::array::from_fn(|lane| {
                let at = ((input / 2 * LANES + lane) * 2 + input % 2) * 2;
                bf16::from_le_bytes([tile[at], tile[at + 1]]).to_f32()
            }),
            _ => std::array::from_fn(|lane| {
                let at = (input * LANES + lane) * 2;
                f16::from_le_bytes([tile[at], tile[at + 1]]).to_f32()
            }),
        };
        for (sums, &x) in sums.iter_mut().zip(x) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += x * weight;
            }
        }
    }
}

fn blocks(block_type: BlockType, operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
    let Operands { rows, inputs, start, activations, .. } = *operands;
    let format = BlockFormat::of(block_type);
    let parts = format.scales_per_block();
    let part_inputs = BLOCK / parts;
    for part in 0..inputs / part_inputs {
        let (block, within) = (part / parts, part % parts);
        let first_input = part * part_inputs;
        let place = format.place(inputs, block);
        for lane in 0..LANES {
            let mut weights = [0; BLOCK];
            for (input, weight) in (first_input..).zip(&mut weights[..part_inputs]) {
                let quant = format.quant(tile, place, input, lane);
                *weight = i32::from(quant) - format.zero;
            }
            let [scale, minimum] = format.scale(tile, place, first_input, lane);
            for (row, sums) in sums.iter_mut().enumerate().take(rows) {
                let place = start / BLOCK + block * rows + row;
                let x = &activations.quants(place)[within * part_inputs..][..part_inputs];
                let products = weights.iter().zip(x).map(|(weight, &x)| weight * i32::from(x));
                let dot: i32 = products.sum();
                sums[lane] += dot as f32 * (scale * activations.scale(place));
                if format.scales.has_minima() {
                    sums[lane] += minimum * activations.scaled_sum(place, within, parts);
                }
            }
        }
    }
}

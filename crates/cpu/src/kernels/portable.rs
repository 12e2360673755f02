//! Portable linear kernels: plain loops, for any processor.

use super::LANES;
use super::operands::{MAX_ROW_BLOCK, Operands, TileSums};
use forerun_formats::{QUANT_BLOCK as BLOCK, WeightType};
use half::{bf16, f16};

/// Computes the sums of both tiles for every row of the block.
pub(crate) fn compute(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    for (tile, sums) in operands.tiles.into_iter().zip(sums) {
        *sums = [[0.0; LANES]; MAX_ROW_BLOCK];
        match operands.weight_type {
            WeightType::Int8 => int8(operands, tile, sums),
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

fn int8(operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
    let Operands { rows, inputs, start, activations, .. } = *operands;
    let (quants, scales) = tile.split_at(inputs * LANES);
    let blocks = inputs / BLOCK;
    for block in 0..blocks {
        let weights = &quants[block * BLOCK * LANES..(block + 1) * BLOCK * LANES];
        let scale = |lane: usize| {
            let at = (block * LANES + lane) * 2;
            f16::from_le_bytes([scales[at], scales[at + 1]]).to_f32()
        };
        for (row, sums) in sums.iter_mut().enumerate().take(rows) {
            let place = start / BLOCK + block * rows + row;
            let x = &activations.quants[place * BLOCK..(place + 1) * BLOCK];
            for (lane, sum) in sums.iter_mut().enumerate() {
                let mut dot = 0_i32;
                for (input, &x) in x.iter().enumerate() {
                    let weight = weights[(input / 4 * LANES + lane) * 4 + input % 4];
                    dot += (i32::from(weight) - 128) * i32::from(x);
                }
                *sum += dot as f32 * (scale(lane) * activations.scales[place]);
            }
        }
    }
}

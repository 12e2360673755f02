//! Reference implementations of the kernels in plain loops, for parity tests and for the slow reference
//! model.

use super::activations::quantize_activations;
use super::packed::{BLOCK, WeightType, quantize_weights};
use half::{bf16, f16};

/// Returns weights `[outputs, inputs]`, rounded to the values that a weight type can hold.
pub(crate) fn rounded(weight_type: WeightType, weights: &[f32], inputs: usize) -> Vec<f32> {
    match weight_type {
        WeightType::F32 => weights.to_vec(),
        WeightType::Bf16 => weights.iter().map(|&w| bf16::from_f32(w).to_f32()).collect(),
        WeightType::F16 => weights.iter().map(|&w| f16::from_f32(w).to_f32()).collect(),
        WeightType::Int8 => {
            let block = |weights: &[f32]| {
                let (quants, scale) = quantize_weights(weights);
                quants.map(|quant| f32::from(quant) * scale.to_f32()).collect::<Vec<_>>()
            };
            weights.chunks(inputs).flat_map(|row| row.chunks(BLOCK)).flat_map(block).collect()
        }
    }
}

/// Computes `weights · x` for every row of `x`. `weights`: `[outputs, inputs]`, already [`rounded`],
/// except for int8.
pub(crate) fn linear(
    weight_type: WeightType,
    fused: bool,
    weights: &[f32],
    x: &[f32],
    inputs: usize,
) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| match weight_type {
        WeightType::Int8 => int8_dot(fused, w, x),
        _ => float_dot(fused, w, x),
    };
    x.chunks(inputs)
        .flat_map(|x| weights.chunks(inputs).map(move |w| dot(x, w)).collect::<Vec<_>>())
        .collect()
}

/// Adds the products in ascending order. If their number is odd, adds a product of zeros.
fn float_dot(fused: bool, weights: &[f32], x: &[f32]) -> f32 {
    let products = weights.iter().zip(x);
    let sum = products.fold(0.0, |sum, (&weight, &x)| multiply_add(fused, x, weight, sum));
    if x.len() % 2 == 1 { multiply_add(fused, 0.0, 0.0, sum) } else { sum }
}

/// Adds the blocks in ascending order: each is the integer sum of its products, times the product of both
/// scales.
fn int8_dot(fused: bool, weights: &[f32], x: &[f32]) -> f32 {
    weights.chunks(BLOCK).zip(x.chunks(BLOCK)).fold(0.0, |sum, (weights, x)| {
        let (mut values, mut quants) = ([0.0; BLOCK], [0; BLOCK]);
        values[..x.len()].copy_from_slice(x);
        let x_scale = quantize_activations(&values, &mut quants);
        let (weights, scale) = quantize_weights(weights);
        let products = weights.zip(&quants).map(|(w, &x)| i32::from(w) * i32::from(x));
        multiply_add(fused, products.sum::<i32>() as f32, scale.to_f32() * x_scale, sum)
    })
}

fn multiply_add(fused: bool, a: f32, b: f32, sum: f32) -> f32 {
    if fused { a.mul_add(b, sum) } else { sum + a * b }
}

//! `x + mlp(norm(x))` with SwiGLU: the second half of a Transformer layer.

use super::attention_block::row_slice;
use super::elementwise::{rms_norm, swiglu, swiglu_backward};
use super::matrix::{Matrix, add_product, set_product, transpose};
use super::projection::Projected;
use super::{CHUNK_ROWS, Operation, split};
use candle_core::Result;
use forerun_formats::Config;

/// The shape of an MLP block. Its weights are one vector: gate and up,
/// `[2 · intermediate, hidden]`, then down, `[hidden, intermediate]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MlpShape {
    /// Width of a row.
    pub(crate) hidden: usize,
    /// Width between the projections.
    pub(crate) intermediate: usize,
    /// The constant that the norm adds to the mean square.
    pub(crate) epsilon: f32,
}

impl MlpShape {
    /// Returns the shape of a model's MLP blocks.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            epsilon: config.rms_norm_eps,
        }
    }

    /// Returns the number of weights of the gate and up projections.
    pub(crate) fn gate_up_weight_count(&self) -> usize {
        2 * self.intermediate * self.hidden
    }

    /// Returns the number of weights, without the norm's.
    pub(crate) fn weight_count(&self) -> usize {
        3 * self.intermediate * self.hidden
    }
}

/// The MLP block as an operation.
///
/// Inputs: `x`, `[rows, hidden]`; `norm`, `[hidden]`; `weights`, see [`MlpShape`].
pub(crate) struct MlpBlock {
    pub(crate) shape: MlpShape,
}

/// Intermediate results that the backward pass needs.
pub(crate) struct Saved {
    /// Reciprocal root mean squares of the norm, `[rows]`.
    r: Vec<f32>,
    /// Results of the gate and up projections, `[rows, 2, intermediate]`.
    gate_up: Vec<f32>,
}

impl Operation for MlpBlock {
    const NAME: &'static str = "mlp-block";
    type Saved = Saved;

    fn forward(&self, [x, norm, weights]: [&[f32]; 3]) -> (Vec<f32>, Saved) {
        let MlpShape { hidden, intermediate, epsilon } = self.shape;
        let rows = x.len() / hidden;
        let mut result = x.to_vec();
        let mut saved = Saved { r: vec![0.0; rows], gate_up: vec![0.0; rows * 2 * intermediate] };
        let (input_weights, output_weights) = weights.split_at(self.shape.gate_up_weight_count());
        let (input_weights, output_weights) =
            (transpose(input_weights, hidden), transpose(output_weights, intermediate));
        let ranges = split::ranges(rows);
        let tasks: Vec<_> = split::parts(&mut result, &ranges, hidden)
            .into_iter()
            .zip(split::parts(&mut saved.r, &ranges, 1))
            .zip(split::parts(&mut saved.gate_up, &ranges, 2 * intermediate))
            .collect();
        split::map(tasks, |((result, r), gate_up)| {
            let mut normed = vec![0.0; CHUNK_ROWS * hidden];
            let mut activations = vec![0.0; CHUNK_ROWS * intermediate];
            let chunks = result
                .chunks_mut(CHUNK_ROWS * hidden)
                .zip(r.chunks_mut(CHUNK_ROWS))
                .zip(gate_up.chunks_mut(CHUNK_ROWS * 2 * intermediate));
            for ((result, r), gate_up) in chunks {
                let normed = &mut normed[..result.len()];
                let activations = &mut activations[..r.len() * intermediate];
                rms_norm(result, norm, epsilon, normed, r);
                set_product(
                    gate_up,
                    Matrix::new(normed, hidden),
                    Matrix::new(&input_weights, 2 * intermediate),
                );
                swiglu(gate_up, intermediate, activations);
                add_product(
                    result,
                    Matrix::new(activations, intermediate),
                    Matrix::new(&output_weights, hidden),
                );
            }
        });
        (result, saved)
    }

    fn backward(
        &self,
        mut saved: Saved,
        [x, norm, weights]: [&[f32]; 3],
        dresult: &[f32],
    ) -> Result<[Vec<f32>; 3]> {
        let MlpShape { hidden, intermediate, .. } = self.shape;
        let (input_weights, output_weights) = weights.split_at(self.shape.gate_up_weight_count());
        let mut dx = dresult.to_vec();
        let ranges = split::ranges(x.len() / hidden);
        let tasks: Vec<_> = ranges
            .iter()
            .zip(split::parts(&mut dx, &ranges, hidden))
            .zip(split::parts(&mut saved.gate_up, &ranges, 2 * intermediate))
            .collect();
        let partial = split::map(tasks, |((range, dx), gate_up)| {
            let mut dnorm = vec![0.0; hidden];
            let mut dweights = vec![0.0; weights.len()];
            let (dinput_weights, doutput_weights) = dweights.split_at_mut(input_weights.len());
            let mut normed = vec![0.0; CHUNK_ROWS * hidden];
            let mut dnormed = normed.clone();
            let mut activations = vec![0.0; CHUNK_ROWS * intermediate];
            let mut dactivations = activations.clone();
            let chunks = dx
                .chunks_mut(CHUNK_ROWS * hidden)
                .zip(gate_up.chunks_mut(CHUNK_ROWS * 2 * intermediate));
            let mut first = range.start;
            for (dx, gate_up) in chunks {
                let rows = dx.len() / hidden;
                let (x, r) =
                    (row_slice(x, first, rows, hidden), row_slice(&saved.r, first, rows, 1));
                let dresult = Matrix::new(row_slice(dresult, first, rows, hidden), hidden);
                let activations = &mut activations[..rows * intermediate];
                swiglu(gate_up, intermediate, activations);
                add_product(
                    doutput_weights,
                    dresult.transposed(),
                    Matrix::new(activations, intermediate),
                );
                let dactivations = &mut dactivations[..rows * intermediate];
                set_product(dactivations, dresult, Matrix::new(output_weights, intermediate));
                swiglu_backward(gate_up, intermediate, dactivations);
                Projected { x, hidden, norm, r, weights: input_weights }.backward(
                    Matrix::new(gate_up, 2 * intermediate),
                    [&mut normed, &mut dnormed],
                    [dx, &mut dnorm, dinput_weights],
                );
                first += rows;
            }
            (dnorm, dweights)
        });
        let (dnorm, dweights) = partial.into_iter().unzip();
        Ok([dx, split::sum(dnorm), split::sum(dweights)])
    }
}

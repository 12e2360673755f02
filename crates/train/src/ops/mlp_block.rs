//! `x + mlp(norm(x))` with SwiGLU: the second half of a Transformer layer.

use super::attention_block::part;
use super::elementwise::{rms_norm, swiglu, swiglu_backward};
use super::matrix::{Matrix, MatrixMut, Write, multiply, transpose};
use super::projection::Projected;
use super::{CHUNK_ROWS, Operation, split};
use candle_core::Result;
use forerun_model::Config;

/// Sizes of an MLP block. Its weights are one vector: gate and up, `[2 · intermediate, hidden]`, then
/// down, `[hidden, intermediate]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MlpShape {
    /// Size of a row.
    pub(crate) hidden: usize,
    /// Size between the projections.
    pub(crate) intermediate: usize,
    /// What the norm adds to the mean square.
    pub(crate) epsilon: f32,
}

impl MlpShape {
    /// Those of a model's layers.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            epsilon: config.rms_norm_eps,
        }
    }

    /// Weights of gate and up.
    pub(crate) fn gate_up_weights(&self) -> usize {
        2 * self.intermediate * self.hidden
    }

    /// Weights in all, the norm's not counted.
    pub(crate) fn weights(&self) -> usize {
        3 * self.intermediate * self.hidden
    }
}

/// `x`: `[rows, hidden]`, `norm`: `[hidden]`, `weights`: see [`MlpShape`].
pub(crate) struct MlpBlock {
    pub(crate) shape: MlpShape,
}

/// What the backward pass needs of the forward pass, by row.
pub(crate) struct Saved {
    /// Of the norm.
    r: Vec<f32>,
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
        let (into, out_of) = weights.split_at(self.shape.gate_up_weights());
        let (into, out_of) = (transpose(into, hidden), transpose(out_of, intermediate));
        let ranges = split::ranges(rows);
        let tasks: Vec<_> = split::parts(&mut result, &ranges, hidden)
            .into_iter()
            .zip(split::parts(&mut saved.r, &ranges, 1))
            .zip(split::parts(&mut saved.gate_up, &ranges, 2 * intermediate))
            .collect();
        split::all(tasks, |((result, r), gate_up)| {
            let mut normed = vec![0.0; CHUNK_ROWS * hidden];
            let mut inner = vec![0.0; CHUNK_ROWS * intermediate];
            let chunks = result
                .chunks_mut(CHUNK_ROWS * hidden)
                .zip(r.chunks_mut(CHUNK_ROWS))
                .zip(gate_up.chunks_mut(CHUNK_ROWS * 2 * intermediate));
            for ((result, r), gate_up) in chunks {
                let normed = &mut normed[..result.len()];
                let inner = &mut inner[..r.len() * intermediate];
                rms_norm(result, norm, epsilon, normed, r);
                multiply(
                    &mut MatrixMut::new(gate_up, 2 * intermediate),
                    Matrix::new(normed, hidden),
                    Matrix::new(&into, 2 * intermediate),
                    1.0,
                    Write::Replace,
                );
                swiglu(gate_up, intermediate, inner);
                multiply(
                    &mut MatrixMut::new(result, hidden),
                    Matrix::new(inner, intermediate),
                    Matrix::new(&out_of, hidden),
                    1.0,
                    Write::Add,
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
        let (into, out_of) = weights.split_at(self.shape.gate_up_weights());
        let mut dx = dresult.to_vec();
        let ranges = split::ranges(x.len() / hidden);
        let tasks: Vec<_> = ranges
            .iter()
            .zip(split::parts(&mut dx, &ranges, hidden))
            .zip(split::parts(&mut saved.gate_up, &ranges, 2 * intermediate))
            .collect();
        let partial = split::all(tasks, |((range, dx), gate_up)| {
            let mut dnorm = vec![0.0; hidden];
            let mut dweights = vec![0.0; weights.len()];
            let (dinto, dout_of) = dweights.split_at_mut(into.len());
            let mut normed = vec![0.0; CHUNK_ROWS * hidden];
            let mut dnormed = normed.clone();
            let mut inner = vec![0.0; CHUNK_ROWS * intermediate];
            let mut dinner = inner.clone();
            let chunks = dx
                .chunks_mut(CHUNK_ROWS * hidden)
                .zip(gate_up.chunks_mut(CHUNK_ROWS * 2 * intermediate));
            let mut first = range.start;
            for (dx, gate_up) in chunks {
                let rows = dx.len() / hidden;
                let (x, r) = (part(x, first, rows, hidden), part(&saved.r, first, rows, 1));
                let dresult = Matrix::new(part(dresult, first, rows, hidden), hidden);
                let inner = &mut inner[..rows * intermediate];
                swiglu(gate_up, intermediate, inner);
                multiply(
                    &mut MatrixMut::new(dout_of, intermediate),
                    dresult.transposed(),
                    Matrix::new(inner, intermediate),
                    1.0,
                    Write::Add,
                );
                let dinner = &mut dinner[..rows * intermediate];
                multiply(
                    &mut MatrixMut::new(dinner, intermediate),
                    dresult,
                    Matrix::new(out_of, intermediate),
                    1.0,
                    Write::Replace,
                );
                swiglu_backward(gate_up, intermediate, dinner);
                Projected { x, hidden, norm, r, weights: into }.backward(
                    Matrix::new(gate_up, 2 * intermediate),
                    [&mut normed, &mut dnormed],
                    [dx, &mut dnorm, dinto],
                );
                first += rows;
            }
            (dnorm, dweights)
        });
        let (dnorm, dweights) = partial.into_iter().unzip();
        Ok([dx, split::total(dnorm), split::total(dweights)])
    }
}

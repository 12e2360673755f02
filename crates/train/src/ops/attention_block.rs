//! `x + attention(norm(x))`: the first half of a Transformer layer.

use super::attention::{self, HeadLayout, Rope};
use super::groups::Groups;
use super::matrix::{Matrix, add_product, set_product, transpose};
use super::projection::{Projected, norm_rows};
use super::{CHUNK_ROWS, Operation, split};
use candle_core::Result;
use forerun_formats::Config;
use std::sync::Arc;

/// The shape of an attention block. Its weights are one vector: the projections to queries, keys
/// and values, `[(heads + 2 · kv_heads) · head_dim, hidden]`, then the output projection,
/// `[hidden, heads · head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AttentionShape {
    /// Width of a row.
    pub(crate) hidden: usize,
    /// Number of query heads.
    pub(crate) heads: usize,
    /// Number of key and value heads.
    pub(crate) kv_heads: usize,
    /// Width of a head.
    pub(crate) head_dim: usize,
    /// The constant that the norm adds to the mean square.
    pub(crate) epsilon: f32,
}

impl AttentionShape {
    /// Returns the shape of a model's attention blocks.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            hidden: config.hidden_size,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            epsilon: config.rms_norm_eps,
        }
    }

    pub(crate) fn head_layout(&self) -> HeadLayout {
        HeadLayout { heads: self.heads, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    /// Returns the number of weights of the projections to queries, keys and values.
    pub(crate) fn qkv_weight_count(&self) -> usize {
        self.head_layout().width() * self.hidden
    }

    /// Returns the number of weights, without the norm's.
    pub(crate) fn weight_count(&self) -> usize {
        self.qkv_weight_count() + self.head_layout().q_size() * self.hidden
    }
}

/// The attention block as an operation.
///
/// Inputs: `x`, `[sequences · rows, hidden]`; `norm`, `[hidden]` or none; `weights`, see
/// [`AttentionShape`].
pub(crate) struct AttentionBlock {
    pub(crate) shape: AttentionShape,
    pub(crate) rope: Arc<Rope>,
    /// The rows of each sequence.
    pub(crate) groups: Arc<Groups>,
}

/// Intermediate results that the backward pass needs.
pub(crate) struct Saved {
    /// Reciprocal root mean squares of the norm, `[rows]`.
    r: Vec<f32>,
    /// Rotated queries, rotated keys, and values, `[rows, width]`.
    qkv: Vec<f32>,
    /// The attention's result before the output projection, `[rows, q_size]`.
    out: Vec<f32>,
    /// Log-sum-exp of the scores, `[sequences, heads, rows of a sequence]`.
    log_sum_exp: Vec<f32>,
}

impl AttentionBlock {
    /// Returns the number of rows that a thread processes at once: whole sequences.
    fn chunk(&self) -> usize {
        let rows = self.groups.rows();
        (CHUNK_ROWS / rows).max(1) * rows
    }
}

impl Operation for AttentionBlock {
    const NAME: &'static str = "attention-block";
    type Saved = Saved;

    fn forward(&self, [x, norm, weights]: [&[f32]; 3]) -> (Vec<f32>, Saved) {
        let (hidden, heads) = (self.shape.hidden, self.shape.head_layout());
        let (width, q_size) = (heads.width(), heads.q_size());
        let (rows, sequence_rows) = (x.len() / hidden, self.groups.rows());
        let mut result = x.to_vec();
        let mut saved = Saved {
            r: vec![0.0; rows],
            qkv: vec![0.0; rows * width],
            out: vec![0.0; rows * q_size],
            log_sum_exp: vec![0.0; rows * heads.heads],
        };
        let (input_weights, output_weights) = weights.split_at(self.shape.qkv_weight_count());
        let (input_weights, output_weights) =
            (transpose(input_weights, hidden), transpose(output_weights, q_size));
        let ranges = split::ranges(rows / sequence_rows);
        let split_rows = |values, size| split::parts(values, &ranges, sequence_rows * size);
        let tasks: Vec<_> = split_rows(&mut result, hidden)
            .into_iter()
            .zip(split_rows(&mut saved.r, 1))
            .zip(split_rows(&mut saved.qkv, width))
            .zip(split_rows(&mut saved.out, q_size))
            .zip(split_rows(&mut saved.log_sum_exp, heads.heads))
            .collect();
        split::map(tasks, |((((result, r), qkv), out), log_sum_exp)| {
            let chunk = self.chunk();
            let mut normed = vec![0.0; chunk * hidden];
            let chunks = result
                .chunks_mut(chunk * hidden)
                .zip(r.chunks_mut(chunk))
                .zip(qkv.chunks_mut(chunk * width))
                .zip(out.chunks_mut(chunk * q_size))
                .zip(log_sum_exp.chunks_mut(chunk * heads.heads));
            for ((((result, r), qkv), out), log_sum_exp) in chunks {
                let normed = &mut normed[..result.len()];
                norm_rows(result, norm, self.shape.epsilon, normed, r);
                set_product(qkv, Matrix::new(normed, hidden), Matrix::new(&input_weights, width));
                let sequences = qkv
                    .chunks_mut(sequence_rows * width)
                    .zip(out.chunks_mut(sequence_rows * q_size))
                    .zip(log_sum_exp.chunks_mut(sequence_rows * heads.heads));
                for ((qkv, out), log_sum_exp) in sequences {
                    self.rope.rotate(qkv, heads, &self.groups, false);
                    attention::forward(heads, &self.groups, qkv, out, log_sum_exp);
                }
                add_product(result, Matrix::new(out, q_size), Matrix::new(&output_weights, hidden));
            }
        });
        (result, saved)
    }

    fn backward(
        &self,
        saved: Saved,
        [x, norm, weights]: [&[f32]; 3],
        dresult: &[f32],
    ) -> Result<[Vec<f32>; 3]> {
        let (hidden, heads) = (self.shape.hidden, self.shape.head_layout());
        let (width, q_size, sequence_rows) = (heads.width(), heads.q_size(), self.groups.rows());
        let (input_weights, output_weights) = weights.split_at(self.shape.qkv_weight_count());
        let mut dx = dresult.to_vec();
        let ranges = split::ranges(x.len() / hidden / sequence_rows);
        let tasks: Vec<_> =
            ranges.iter().zip(split::parts(&mut dx, &ranges, sequence_rows * hidden)).collect();
        let partial = split::map(tasks, |(range, dx)| {
            let mut dnorm = vec![0.0; norm.len()];
            let mut dweights = vec![0.0; weights.len()];
            let (dinput_weights, doutput_weights) = dweights.split_at_mut(input_weights.len());
            let mut normed = vec![0.0; self.chunk() * hidden];
            let mut dnormed = normed.clone();
            let mut dout = vec![0.0; self.chunk() * q_size];
            let mut dqkv = vec![0.0; self.chunk() * width];
            let mut first = range.start * sequence_rows;
            for dx in dx.chunks_mut(self.chunk() * hidden) {
                let rows = dx.len() / hidden;
                let of = |values, size| row_slice(values, first, rows, size);
                let (x, qkv, out) = (of(x, hidden), of(&saved.qkv, width), of(&saved.out, q_size));
                let (r, log_sum_exp) = (of(&saved.r, 1), of(&saved.log_sum_exp, heads.heads));
                let dresult = Matrix::new(of(dresult, hidden), hidden);
                let dout = &mut dout[..rows * q_size];
                set_product(dout, dresult, Matrix::new(output_weights, q_size));
                add_product(doutput_weights, dresult.transposed(), Matrix::new(out, q_size));
                let dqkv = &mut dqkv[..rows * width];
                dqkv.fill(0.0);
                for (sequence, dqkv) in dqkv.chunks_exact_mut(sequence_rows * width).enumerate() {
                    let of = |values, size| {
                        row_slice(values, sequence * sequence_rows, sequence_rows, size)
                    };
                    let results = (of(out, q_size), of(log_sum_exp, heads.heads), of(dout, q_size));
                    attention::backward(heads, &self.groups, of(qkv, width), results, dqkv);
                    self.rope.rotate(dqkv, heads, &self.groups, true);
                }
                Projected { x, hidden, norm, r, weights: input_weights }.backward(
                    Matrix::new(dqkv, width),
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

/// Returns the values of `rows` rows of width `size`, starting with row `first`.
pub(super) fn row_slice(values: &[f32], first: usize, rows: usize, size: usize) -> &[f32] {
    &values[first * size..(first + rows) * size]
}

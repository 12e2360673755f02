//! `x + attention(norm(x))`: the first half of a Transformer layer.

use super::attention::{self, Heads, Rope};
use super::groups::Groups;
use super::matrix::{Matrix, MatrixMut, Write, multiply, transpose};
use super::projection::{Projected, norm_rows};
use super::{CHUNK_ROWS, Operation, split};
use candle_core::Result;
use forerun_model::Config;
use std::sync::Arc;

/// Sizes of an attention block. Its weights are one vector: the projections of queries, keys and
/// values, `[(heads + 2 · kv_heads) · head_dim, hidden]`, then that of the output,
/// `[hidden, heads · head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AttentionShape {
    /// Size of a row.
    pub(crate) hidden: usize,
    /// Query heads.
    pub(crate) heads: usize,
    /// Key and value heads.
    pub(crate) kv_heads: usize,
    /// Numbers of a head.
    pub(crate) head_dim: usize,
    /// What the norm adds to the mean square.
    pub(crate) epsilon: f32,
}

impl AttentionShape {
    /// Those of a model's layers.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            hidden: config.hidden_size,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            epsilon: config.rms_norm_eps,
        }
    }

    pub(crate) fn of_heads(&self) -> Heads {
        Heads { heads: self.heads, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    /// Weights of the projections of queries, keys and values.
    pub(crate) fn qkv_weights(&self) -> usize {
        self.of_heads().width() * self.hidden
    }

    /// Weights in all, the norm's not counted.
    pub(crate) fn weights(&self) -> usize {
        self.qkv_weights() + self.of_heads().q_size() * self.hidden
    }
}

/// `x`: `[sequences · rows, hidden]`, `norm`: `[hidden]`, or none, `weights`: see [`AttentionShape`].
pub(crate) struct AttentionBlock {
    pub(crate) shape: AttentionShape,
    pub(crate) rope: Arc<Rope>,
    /// Rows of each sequence.
    pub(crate) groups: Arc<Groups>,
}

/// What the backward pass needs of the forward pass, each by row.
pub(crate) struct Saved {
    /// Of the norm.
    r: Vec<f32>,
    /// Rotated.
    qkv: Vec<f32>,
    out: Vec<f32>,
    /// By sequence and head.
    levels: Vec<f32>,
}

impl AttentionBlock {
    fn chunk(&self) -> usize {
        let rows = self.groups.rows();
        (CHUNK_ROWS / rows).max(1) * rows
    }
}

impl Operation for AttentionBlock {
    const NAME: &'static str = "attention-block";
    type Saved = Saved;

    fn forward(&self, [x, norm, weights]: [&[f32]; 3]) -> (Vec<f32>, Saved) {
        let (hidden, heads) = (self.shape.hidden, self.shape.of_heads());
        let (width, q_size) = (heads.width(), heads.q_size());
        let (rows, own_rows) = (x.len() / hidden, self.groups.rows());
        let mut result = x.to_vec();
        let mut saved = Saved {
            r: vec![0.0; rows],
            qkv: vec![0.0; rows * width],
            out: vec![0.0; rows * q_size],
            levels: vec![0.0; rows * heads.heads],
        };
        let (into, out_of) = weights.split_at(self.shape.qkv_weights());
        let (into, out_of) = (transpose(into, hidden), transpose(out_of, q_size));
        let ranges = split::ranges(rows / own_rows);
        let part = |values, size| split::parts(values, &ranges, own_rows * size);
        let tasks: Vec<_> = part(&mut result, hidden)
            .into_iter()
            .zip(part(&mut saved.r, 1))
            .zip(part(&mut saved.qkv, width))
            .zip(part(&mut saved.out, q_size))
            .zip(part(&mut saved.levels, heads.heads))
            .collect();
        split::all(tasks, |((((result, r), qkv), out), levels)| {
            let chunk = self.chunk();
            let mut normed = vec![0.0; chunk * hidden];
            let chunks = result
                .chunks_mut(chunk * hidden)
                .zip(r.chunks_mut(chunk))
                .zip(qkv.chunks_mut(chunk * width))
                .zip(out.chunks_mut(chunk * q_size))
                .zip(levels.chunks_mut(chunk * heads.heads));
            for ((((result, r), qkv), out), levels) in chunks {
                let normed = &mut normed[..result.len()];
                norm_rows(result, norm, self.shape.epsilon, normed, r);
                multiply(
                    &mut MatrixMut::new(qkv, width),
                    Matrix::new(normed, hidden),
                    Matrix::new(&into, width),
                    1.0,
                    Write::Replace,
                );
                let sequences = qkv
                    .chunks_mut(own_rows * width)
                    .zip(out.chunks_mut(own_rows * q_size))
                    .zip(levels.chunks_mut(own_rows * heads.heads));
                for ((qkv, out), levels) in sequences {
                    self.rope.rotate(qkv, heads, &self.groups, false);
                    attention::forward(heads, &self.groups, qkv, out, levels);
                }
                multiply(
                    &mut MatrixMut::new(result, hidden),
                    Matrix::new(out, q_size),
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
        saved: Saved,
        [x, norm, weights]: [&[f32]; 3],
        dresult: &[f32],
    ) -> Result<[Vec<f32>; 3]> {
        let (hidden, heads) = (self.shape.hidden, self.shape.of_heads());
        let (width, q_size, own_rows) = (heads.width(), heads.q_size(), self.groups.rows());
        let (into, out_of) = weights.split_at(self.shape.qkv_weights());
        let mut dx = dresult.to_vec();
        let ranges = split::ranges(x.len() / hidden / own_rows);
        let tasks: Vec<_> =
            ranges.iter().zip(split::parts(&mut dx, &ranges, own_rows * hidden)).collect();
        let partial = split::all(tasks, |(range, dx)| {
            let mut dnorm = vec![0.0; norm.len()];
            let mut dweights = vec![0.0; weights.len()];
            let (dinto, dout_of) = dweights.split_at_mut(into.len());
            let mut normed = vec![0.0; self.chunk() * hidden];
            let mut dnormed = normed.clone();
            let mut dout = vec![0.0; self.chunk() * q_size];
            let mut dqkv = vec![0.0; self.chunk() * width];
            let mut first = range.start * own_rows;
            for dx in dx.chunks_mut(self.chunk() * hidden) {
                let rows = dx.len() / hidden;
                let of = |values, size| part(values, first, rows, size);
                let (x, qkv, out) = (of(x, hidden), of(&saved.qkv, width), of(&saved.out, q_size));
                let (r, levels) = (of(&saved.r, 1), of(&saved.levels, heads.heads));
                let dresult = Matrix::new(of(dresult, hidden), hidden);
                let dout = &mut dout[..rows * q_size];
                multiply(
                    &mut MatrixMut::new(dout, q_size),
                    dresult,
                    Matrix::new(out_of, q_size),
                    1.0,
                    Write::Replace,
                );
                multiply(
                    &mut MatrixMut::new(dout_of, q_size),
                    dresult.transposed(),
                    Matrix::new(out, q_size),
                    1.0,
                    Write::Add,
                );
                let dqkv = &mut dqkv[..rows * width];
                dqkv.fill(0.0);
                for (sequence, dqkv) in dqkv.chunks_exact_mut(own_rows * width).enumerate() {
                    let of = |values, size| part(values, sequence * own_rows, own_rows, size);
                    let passed = (of(out, q_size), of(levels, heads.heads), of(dout, q_size));
                    attention::backward(heads, &self.groups, of(qkv, width), passed, dqkv);
                    self.rope.rotate(dqkv, heads, &self.groups, true);
                }
                Projected { x, hidden, norm, r, weights: into }.backward(
                    Matrix::new(dqkv, width),
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

/// The numbers of `rows` rows from `first` on.
pub(super) fn part(values: &[f32], first: usize, rows: usize, size: usize) -> &[f32] {
    &values[first * size..(first + rows) * size]
}

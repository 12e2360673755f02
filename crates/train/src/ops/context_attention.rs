//! `x + attention(norm(x))` for the rows of draft blocks: the first half of a layer of DFlash
//! (arXiv 2602.06036, §4).
//!
//! Keys and values of the tokens before a block are projections of their context rows, which have
//! no norm of the layer and no queries. Each head of queries and keys is normed, as in Qwen3.

use super::attention::{self, HeadLayout, Rope};
use super::attention_block::AttentionShape;
use super::elementwise::{rms_norm, rms_norm_backward};
use super::groups::Groups;
use super::matrix::{Matrix, MatrixMut, Write, add_product, multiply, set_product, transpose};
use super::projection::Projected;
use super::{Operation, split};
use candle_core::{Result, Shape};
use std::sync::Arc;

/// The attention of draft blocks as an operation. The result has the rows of the blocks alone:
/// `[sequences · rows of blocks, hidden]`.
///
/// Inputs: `x`, `[sequences · rows, hidden]`, the context rows of each sequence and then those of
/// its blocks; the norms of the blocks' rows, of queries and of keys, `[hidden + 2 · head_dim]`;
/// the weights, see [`AttentionShape`].
pub(crate) struct ContextAttention {
    pub(crate) shape: AttentionShape,
    pub(crate) rope: Arc<Rope>,
    /// The rows of each sequence: draft blocks.
    pub(crate) groups: Arc<Groups>,
}

/// Intermediate results of a sequence that the backward pass needs.
pub(crate) struct Saved {
    /// Reciprocal root mean squares of the norm of the blocks' rows, `[rows of blocks]`.
    r: Vec<f32>,
    /// Queries, keys and values before their norms, `[rows, width]`.
    projected: Vec<f32>,
    /// Reciprocal root mean squares of the norms of queries and keys, `[rows, heads + kv_heads]`.
    head_r: Vec<f32>,
    /// Rotated queries, rotated keys, and values, `[rows, width]`.
    qkv: Vec<f32>,
    /// The attention's result before the output projection, `[rows, q_size]`.
    out: Vec<f32>,
    /// Log-sum-exp of the scores, `[heads, rows]`.
    log_sum_exp: Vec<f32>,
}

/// The weights of the norms of the blocks' rows, of queries and of keys, or their gradients.
type Norms<T> = [T; 3];

/// The gradients of a sequence: of its rows, of the norms and of the weights.
type Gradients = (Vec<f32>, Vec<f32>, Vec<f32>);

impl ContextAttention {
    fn heads(&self) -> HeadLayout {
        self.shape.head_layout()
    }

    /// Number of values of a row's queries and keys.
    fn qk_size(&self) -> usize {
        self.heads().q_size() + self.shape.kv_heads * self.shape.head_dim
    }

    fn norms<'a>(&self, norms: &'a [f32]) -> Norms<&'a [f32]> {
        let (of_rows, of_heads) = norms.split_at(self.shape.hidden);
        let (of_queries, of_keys) = of_heads.split_at(self.shape.head_dim);
        [of_rows, of_queries, of_keys]
    }

    /// Computes a sequence's rows. The weights are transposed.
    fn sequence(
        &self,
        x: &[f32],
        [row_norm, query_norm, key_norm]: Norms<&[f32]>,
        [input_weights, output_weights]: [&[f32]; 2],
    ) -> (Vec<f32>, Saved) {
        let AttentionShape { hidden, heads: query_heads, kv_heads, epsilon, .. } = self.shape;
        let (heads, tokens, rows) = (self.heads(), self.groups.tokens(), self.groups.rows());
        let (width, q_size, qk_size) = (heads.width(), heads.q_size(), self.qk_size());
        let (context, block) = x.split_at(tokens * hidden);
        let mut saved = Saved {
            r: vec![0.0; rows - tokens],
            projected: vec![0.0; rows * width],
            head_r: vec![0.0; rows * (query_heads + kv_heads)],
            qkv: Vec::new(),
            out: vec![0.0; rows * q_size],
            log_sum_exp: vec![0.0; rows * query_heads],
        };
        let mut normed = vec![0.0; block.len()];
        rms_norm(block, row_norm, epsilon, &mut normed, &mut saved.r);
        let (of_context, of_block) = saved.projected.split_at_mut(tokens * width);
        multiply(
            &mut MatrixMut::strided(&mut of_context[q_size..], tokens, width - q_size, width),
            Matrix::new(context, hidden),
            Matrix::strided(&input_weights[q_size..], hidden, width - q_size, width),
            1.0,
            Write::Replace,
        );
        set_product(of_block, Matrix::new(&normed, hidden), Matrix::new(input_weights, width));
        saved.qkv = saved.projected.clone();
        let each = saved.projected.chunks_exact(width).zip(saved.qkv.chunks_exact_mut(width));
        for ((projected, qkv), r) in each.zip(saved.head_r.chunks_exact_mut(query_heads + kv_heads))
        {
            let (query_r, key_r) = r.split_at_mut(query_heads);
            let (queries, keys) = (0..q_size, q_size..qk_size);
            rms_norm(&projected[queries.clone()], query_norm, epsilon, &mut qkv[queries], query_r);
            rms_norm(&projected[keys.clone()], key_norm, epsilon, &mut qkv[keys], key_r);
        }
        self.rope.rotate(&mut saved.qkv, heads, &self.groups, false);
        let Saved { qkv, out, log_sum_exp, .. } = &mut saved;
        attention::forward(heads, &self.groups, qkv, out, log_sum_exp);
        let mut result = block.to_vec();
        add_product(
            &mut result,
            Matrix::new(&out[tokens * q_size..], q_size),
            Matrix::new(output_weights, hidden),
        );
        (result, saved)
    }

    /// Computes the gradients of a sequence, given the gradient of its result.
    fn sequence_backward(
        &self,
        saved: &Saved,
        [x, norms, weights]: [&[f32]; 3],
        dresult: &[f32],
    ) -> Gradients {
        let (hidden, heads, tokens) = (self.shape.hidden, self.heads(), self.groups.tokens());
        let (width, q_size) = (heads.width(), heads.q_size());
        let (input_weights, output_weights) = weights.split_at(self.shape.qkv_weight_count());
        let (mut dx, mut dnorms, mut dweights) =
            (vec![0.0; x.len()], vec![0.0; norms.len()], vec![0.0; weights.len()]);
        let (dinput_weights, doutput_weights) = dweights.split_at_mut(input_weights.len());

        let dresult_rows = Matrix::new(dresult, hidden);
        let mut dout = vec![0.0; saved.out.len()];
        let of_block = &mut MatrixMut::new(&mut dout[tokens * q_size..], q_size);
        let output = Matrix::new(output_weights, q_size);
        multiply(of_block, dresult_rows, output, 1.0, Write::Replace);
        let out = Matrix::new(&saved.out[tokens * q_size..], q_size);
        let doutput = &mut MatrixMut::new(doutput_weights, q_size);
        multiply(doutput, dresult_rows.transposed(), out, 1.0, Write::Add);

        let mut dqkv = vec![0.0; saved.qkv.len()];
        let results = (&saved.out[..], &saved.log_sum_exp[..], &dout[..]);
        attention::backward(heads, &self.groups, &saved.qkv, results, &mut dqkv);
        self.rope.rotate(&mut dqkv, heads, &self.groups, true);
        let (drow_norm, dhead_norms) = dnorms.split_at_mut(hidden);
        let [row_norm, ..] = self.norms(norms);
        let dprojected = self.head_norms_backward(saved, norms, &dqkv, dhead_norms);

        let (context, block) = x.split_at(tokens * hidden);
        let (dcontext, dblock) = dx.split_at_mut(context.len());
        dblock.copy_from_slice(dresult);
        let buffers = &mut [vec![0.0; x.len()], vec![0.0; x.len()]];
        let of_rows =
            Projected { x: block, hidden, norm: row_norm, r: &saved.r, weights: input_weights };
        of_rows.backward(
            Matrix::new(&dprojected[tokens * width..], width),
            buffers.each_mut().map(|buffer| &mut buffer[..]),
            [dblock, drow_norm, dinput_weights],
        );
        // Context rows have keys and values alone.
        let first = q_size * hidden;
        let of_context =
            Projected { x: context, hidden, norm: &[], r: &[], weights: &input_weights[first..] };
        of_context.backward(
            Matrix::strided(&dprojected[q_size..], tokens, width - q_size, width),
            buffers.each_mut().map(|buffer| &mut buffer[..]),
            [dcontext, &mut [], &mut dinput_weights[first..]],
        );
        (dx, dnorms, dweights)
    }

    /// Returns the gradients of queries, keys and values before the norms of heads,
    /// `[rows, width]`, and adds those of the norms' weights to `dnorms`.
    fn head_norms_backward(
        &self,
        saved: &Saved,
        norms: &[f32],
        dqkv: &[f32],
        dnorms: &mut [f32],
    ) -> Vec<f32> {
        let AttentionShape { heads: query_heads, kv_heads, head_dim, .. } = self.shape;
        let (width, q_size, qk_size) =
            (self.heads().width(), self.heads().q_size(), self.qk_size());
        let [_, query_norm, key_norm] = self.norms(norms);
        let (dquery_norm, dkey_norm) = dnorms.split_at_mut(head_dim);
        let mut dprojected = dqkv.to_vec();
        let rows = dprojected.chunks_exact_mut(width).zip(dqkv.chunks_exact(width));
        let rows = rows.zip(saved.projected.chunks_exact(width));
        for (((dx, dy), x), r) in rows.zip(saved.head_r.chunks_exact(query_heads + kv_heads)) {
            dx[..qk_size].fill(0.0);
            let (query_r, key_r) = r.split_at(query_heads);
            let (queries, keys) = (0..q_size, q_size..qk_size);
            let (dq, q) = (&dy[queries.clone()], &x[queries.clone()]);
            rms_norm_backward(dq, q, query_norm, query_r, &mut dx[queries], dquery_norm);
            let (dk, k) = (&dy[keys.clone()], &x[keys.clone()]);
            rms_norm_backward(dk, k, key_norm, key_r, &mut dx[keys], dkey_norm);
        }
        dprojected
    }

    fn block_rows(&self) -> usize {
        self.groups.rows() - self.groups.tokens()
    }
}

impl Operation for ContextAttention {
    const NAME: &'static str = "context-attention";
    type Saved = Vec<Saved>;

    fn forward(&self, [x, norms, weights]: [&[f32]; 3]) -> (Vec<f32>, Vec<Saved>) {
        let (input_weights, output_weights) = weights.split_at(self.shape.qkv_weight_count());
        let transposed = [
            transpose(input_weights, self.shape.hidden),
            transpose(output_weights, self.heads().q_size()),
        ];
        let weights = transposed.each_ref().map(|weights| &weights[..]);
        let sequences = x.chunks_exact(self.groups.rows() * self.shape.hidden).collect();
        let norms = self.norms(norms);
        let (results, saved): (Vec<Vec<f32>>, _) =
            split::map(sequences, |x| self.sequence(x, norms, weights)).into_iter().unzip();
        (results.concat(), saved)
    }

    fn shape(&self, input: &Shape) -> Shape {
        let hidden = self.shape.hidden;
        let sequences = input.elem_count() / hidden / self.groups.rows();
        Shape::from((sequences * self.block_rows(), hidden))
    }

    fn backward(
        &self,
        saved: Vec<Saved>,
        [x, norms, weights]: [&[f32]; 3],
        dresult: &[f32],
    ) -> Result<[Vec<f32>; 3]> {
        let hidden = self.shape.hidden;
        let tasks: Vec<_> = saved
            .iter()
            .zip(x.chunks_exact(self.groups.rows() * hidden))
            .zip(dresult.chunks_exact(self.block_rows() * hidden))
            .collect();
        let gradients = split::map(tasks, |((saved, x), dresult)| {
            self.sequence_backward(saved, [x, norms, weights], dresult)
        });
        let (mut dx, mut dnorms, mut dweights) = (Vec::new(), Vec::new(), Vec::new());
        for (of_rows, of_norms, of_weights) in gradients {
            dx.extend(of_rows);
            dnorms.push(of_norms);
            dweights.push(of_weights);
        }
        Ok([dx, split::sum(dnorms), split::sum(dweights)])
    }
}

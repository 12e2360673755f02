//! Attention over one sequence with rotary positions, forward and backward. A row attends to
//! tokens, and to rows of its own group ([`Groups`]).
//!
//! Queries are processed in blocks of one depth. The scores of a block come in two parts:
//!
//! 1. One score for each row of its group that the query attends to, by inner products.
//! 2. One score for each token that the block's last query attends to, by one matrix product.
//!
//! With the scores of the group first, the scores that a query may use are a prefix of its row.

use super::elementwise::{
    add_scaled, exponentials, exponentials_relative_to, inner_product, scale_by, softmax_backward,
};
use super::groups::{Block, Groups};
use super::matrix::{Matrix, MatrixMut, Write, multiply};
use std::ops::Range;

/// Maximum number of queries in a block. Tokens after the block's last anchor need no score.
const QUERY_BLOCK: usize = 64;

/// Layout of a row of queries, keys and values, which are stored in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeadLayout {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl HeadLayout {
    /// Number of values of a row's queries.
    pub(crate) fn q_size(self) -> usize {
        self.heads * self.head_dim
    }

    /// Number of values of a row: queries, keys and values.
    pub(crate) fn width(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    fn scale(self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Returns the offsets in a row of a head's query, key and value.
    fn offsets(self, head: usize) -> (usize, usize, usize) {
        let kv_head = head / (self.heads / self.kv_heads);
        let key = self.q_size() + kv_head * self.head_dim;
        (head * self.head_dim, key, key + self.kv_heads * self.head_dim)
    }

    /// Returns the vectors at `offset` of each of `rows`: `[rows, head_dim]`.
    fn vectors(self, qkv: &[f32], offset: usize, rows: Range<usize>) -> Matrix<'_> {
        let width = self.width();
        Matrix::strided(&qkv[rows.start * width + offset..], rows.len(), self.head_dim, width)
    }

    /// Returns the vector at `offset` of one row: `[head_dim]`.
    fn vector(self, qkv: &[f32], offset: usize, row: usize) -> &[f32] {
        &qkv[row * self.width() + offset..][..self.head_dim]
    }

    fn vector_mut(self, qkv: &mut [f32], offset: usize, row: usize) -> &mut [f32] {
        &mut qkv[row * self.width() + offset..][..self.head_dim]
    }

    fn vectors_mut(self, qkv: &mut [f32], offset: usize, rows: Range<usize>) -> MatrixMut<'_> {
        let width = self.width();
        let from = rows.start * width + offset;
        MatrixMut::strided(&mut qkv[from..], rows.len(), self.head_dim, width)
    }
}

/// Cosines and sines of the rotary embedding, for each position and pair.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// `(cosine, sine)`, `[positions, head_dim / 2]`.
    table: Vec<(f32, f32)>,
    pair_count: usize,
}

impl Rope {
    /// Creates the table of a rotary embedding (RoPE, arXiv 2104.09864) over pairs
    /// `(i, i + head_dim / 2)`, with the angles `position · frequencies[i]`.
    pub(crate) fn new(frequencies: &[f32], positions: usize) -> Self {
        let angle = |position: usize, frequency: f32| position as f32 * frequency;
        let table = (0..positions)
            .flat_map(|position| frequencies.iter().map(move |&f| angle(position, f)))
            .map(|angle| (angle.cos(), angle.sin()))
            .collect();
        Self { table, pair_count: frequencies.len() }
    }

    /// Rotates the queries and keys of a sequence's rows. With `backward`, rotates by the negative
    /// angles, which turns gradients of rotated vectors into gradients of the original ones.
    pub(crate) fn rotate(
        &self,
        qkv: &mut [f32],
        heads: HeadLayout,
        groups: &Groups,
        backward: bool,
    ) {
        let sign = if backward { -1.0 } else { 1.0 };
        let rotated = heads.width() - heads.kv_heads * heads.head_dim;
        for (row, values) in qkv.chunks_exact_mut(heads.width()).enumerate() {
            let table = &self.table[groups.position(row) * self.pair_count..][..self.pair_count];
            for head in values[..rotated].chunks_exact_mut(heads.head_dim) {
                let (low, high) = head.split_at_mut(self.pair_count);
                for ((low, high), &(cos, sin)) in low.iter_mut().zip(high).zip(table) {
                    let (a, b, sin) = (*low, *high, sin * sign);
                    (*low, *high) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
    }
}

/// Computes the attention of every head.
///
/// - `qkv`: `[rows, width]`, already rotated.
/// - `out`: `[rows, q_size]`, the result.
/// - `log_sum_exp`: `[heads, rows]`, the log-sum-exp of each row's scores, which [`backward`]
///   needs.
pub(crate) fn forward(
    heads: HeadLayout,
    groups: &Groups,
    qkv: &[f32],
    out: &mut [f32],
    log_sum_exp: &mut [f32],
) {
    let q_size = heads.q_size();
    let mut scores = vec![0.0; QUERY_BLOCK * (groups.tokens() + groups.further_rows())];
    for (head, log_sum_exp) in (0..heads.heads).zip(log_sum_exp.chunks_exact_mut(groups.rows())) {
        let head = AttentionHead::new(heads, groups, qkv, head);
        for block in groups.blocks(QUERY_BLOCK) {
            let scores = head.score(&block, &mut scores);
            let columns = block.columns();
            for (row, scores) in block.rows.clone().zip(scores.chunks_exact_mut(columns)) {
                let (visible, masked) = scores.split_at_mut(block.visible_scores(groups, row));
                let (largest, sum) = exponentials(visible);
                scale_by(visible, 1.0 / sum);
                masked.fill(0.0);
                log_sum_exp[row] = largest + sum.ln();
            }
            let from = block.rows.start * q_size + head.query;
            let mut block_out =
                MatrixMut::strided(&mut out[from..], block.rows.len(), heads.head_dim, q_size);
            let values = heads.vectors(qkv, head.value, 0..block.tokens);
            multiply(&mut block_out, block.token_scores(scores), values, 1.0, Write::Replace);
            for (row, p) in block.rows.clone().zip(scores.chunks_exact(columns)) {
                let row_out = &mut out[row * q_size + head.query..][..heads.head_dim];
                for (key, &p) in groups.own_keys(row).zip(p) {
                    add_scaled(row_out, heads.vector(qkv, head.value, key), p);
                }
            }
        }
    }
}

/// Adds the gradients of the rotated queries, keys and values to `dqkv`, given the results of
/// [`forward`] and the gradient `dout` of its `out`.
pub(crate) fn backward(
    heads: HeadLayout,
    groups: &Groups,
    qkv: &[f32],
    (out, log_sum_exp, dout): (&[f32], &[f32], &[f32]),
    dqkv: &mut [f32],
) {
    let size = QUERY_BLOCK * (groups.tokens() + groups.further_rows());
    let mut buffers = (vec![0.0; size], vec![0.0; size]);
    for (head, log_sum_exp) in (0..heads.heads).zip(log_sum_exp.chunks_exact(groups.rows())) {
        let head = AttentionHead::new(heads, groups, qkv, head);
        for block in groups.blocks(QUERY_BLOCK) {
            let p = head.score(&block, &mut buffers.0);
            let dp = &mut buffers.1[..p.len()];
            head.softmax_gradients(&block, (out, log_sum_exp, dout), p, dp);
            head.add_gradients(&block, dout, (p, dp), dqkv);
        }
    }
}

impl Block {
    /// Number of scores of a query: those of rows of its group, then those of tokens.
    fn columns(&self) -> usize {
        self.own_keys + self.tokens
    }

    /// Number of a query's scores that its row may attend to. They come first.
    fn visible_scores(&self, groups: &Groups, row: usize) -> usize {
        self.own_keys + groups.visible_tokens(groups.anchor_and_depth(row).0)
    }

    /// Returns the part of a block's scores that belongs to tokens: `[queries, tokens]`.
    fn token_scores<'a>(&self, scores: &'a [f32]) -> Matrix<'a> {
        Matrix::strided(&scores[self.own_keys..], self.rows.len(), self.tokens, self.columns())
    }

    fn token_scores_mut<'a>(&self, scores: &'a mut [f32]) -> MatrixMut<'a> {
        let columns = self.columns();
        MatrixMut::strided(&mut scores[self.own_keys..], self.rows.len(), self.tokens, columns)
    }
}

/// One head of a sequence, with the offsets of its vectors in a row.
struct AttentionHead<'a> {
    heads: HeadLayout,
    groups: &'a Groups,
    qkv: &'a [f32],
    query: usize,
    key: usize,
    value: usize,
}

impl<'a> AttentionHead<'a> {
    fn new(heads: HeadLayout, groups: &'a Groups, qkv: &'a [f32], head: usize) -> Self {
        let (query, key, value) = heads.offsets(head);
        Self { heads, groups, qkv, query, key, value }
    }

    /// Returns the head's part of a block's rows, `[queries, head_dim]`, from values laid out as
    /// the attention's result.
    fn block_slice<'b>(&self, values: &'b [f32], block: &Block) -> Matrix<'b> {
        let q_size = self.heads.q_size();
        let from = block.rows.start * q_size + self.query;
        Matrix::strided(&values[from..], block.rows.len(), self.heads.head_dim, q_size)
    }

    /// Returns the head's part of one row, `[head_dim]`, from values laid out as the attention's
    /// result.
    fn row_slice<'b>(&self, values: &'b [f32], row: usize) -> &'b [f32] {
        &values[row * self.heads.q_size() + self.query..][..self.heads.head_dim]
    }

    /// Computes a block's scaled scores, `[queries, columns]`, in `buffer`. Scores of tokens that a
    /// query does not attend to are computed, too, and must be ignored.
    fn score<'b>(&self, block: &Block, buffer: &'b mut [f32]) -> &'b mut [f32] {
        let heads = self.heads;
        let scores = &mut buffer[..block.rows.len() * block.columns()];
        let keys = heads.vectors(self.qkv, self.key, 0..block.tokens).transposed();
        let queries = heads.vectors(self.qkv, self.query, block.rows.clone());
        let mut token_scores = block.token_scores_mut(scores);
        multiply(&mut token_scores, queries, keys, heads.scale(), Write::Replace);
        for (row, scores) in block.rows.clone().zip(scores.chunks_exact_mut(block.columns())) {
            let query = heads.vector(self.qkv, self.query, row);
            for (key, score) in self.groups.own_keys(row).zip(scores) {
                *score =
                    heads.scale() * inner_product(query, heads.vector(self.qkv, self.key, key));
            }
        }
        scores
    }

    /// Turns a block's scores `p` into probabilities and writes the gradients of the scores to
    /// `dp`.
    fn softmax_gradients(
        &self,
        block: &Block,
        (out, log_sum_exp, dout): (&[f32], &[f32], &[f32]),
        p: &mut [f32],
        dp: &mut [f32],
    ) {
        let heads = self.heads;
        let values = heads.vectors(self.qkv, self.value, 0..block.tokens).transposed();
        let mut token_scores = block.token_scores_mut(dp);
        multiply(&mut token_scores, self.block_slice(dout, block), values, 1.0, Write::Replace);
        let columns = block.columns();
        let row_pairs = p.chunks_exact_mut(columns).zip(dp.chunks_exact_mut(columns));
        for (row, (p, dp)) in block.rows.clone().zip(row_pairs) {
            let (out, dout) = (self.row_slice(out, row), self.row_slice(dout, row));
            for (key, dp) in self.groups.own_keys(row).zip(dp.iter_mut()) {
                *dp = inner_product(dout, heads.vector(self.qkv, self.value, key));
            }
            let (visible, masked) = p.split_at_mut(block.visible_scores(self.groups, row));
            let (dvisible, dmasked) = dp.split_at_mut(visible.len());
            exponentials_relative_to(visible, log_sum_exp[row]);
            softmax_backward(visible, inner_product(out, dout), heads.scale(), dvisible);
            masked.fill(0.0);
            dmasked.fill(0.0);
        }
    }

    /// Adds a block's contribution to the gradients of queries, keys and values.
    fn add_gradients(
        &self,
        block: &Block,
        dout: &[f32],
        (p, dp): (&[f32], &[f32]),
        dqkv: &mut [f32],
    ) {
        let (heads, qkv) = (self.heads, self.qkv);
        let (token_p, token_dp) = (block.token_scores(p), block.token_scores(dp));
        let keys = heads.vectors(qkv, self.key, 0..block.tokens);
        let queries = heads.vectors(qkv, self.query, block.rows.clone());
        let mut dqueries = heads.vectors_mut(dqkv, self.query, block.rows.clone());
        multiply(&mut dqueries, token_dp, keys, 1.0, Write::Add);
        let mut dkeys = heads.vectors_mut(dqkv, self.key, 0..block.tokens);
        multiply(&mut dkeys, token_dp.transposed(), queries, 1.0, Write::Add);
        let mut dvalues = heads.vectors_mut(dqkv, self.value, 0..block.tokens);
        multiply(
            &mut dvalues,
            token_p.transposed(),
            self.block_slice(dout, block),
            1.0,
            Write::Add,
        );
        let columns = block.columns();
        let row_pairs = p.chunks_exact(columns).zip(dp.chunks_exact(columns));
        for (row, (p, dp)) in block.rows.clone().zip(row_pairs) {
            let query = heads.vector(qkv, self.query, row);
            for (own, (&p, &dp)) in self.groups.own_keys(row).zip(p.iter().zip(dp)) {
                let key = heads.vector(qkv, self.key, own);
                add_scaled(heads.vector_mut(dqkv, self.query, row), key, dp);
                add_scaled(heads.vector_mut(dqkv, self.key, own), query, dp);
                add_scaled(heads.vector_mut(dqkv, self.value, own), self.row_slice(dout, row), p);
            }
        }
    }
}

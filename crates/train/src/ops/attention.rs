//! Attention of one sequence with rotary positions, forward and backward: causal, and to the masks of
//! a row's own group ([`Groups`]).
//!
//! A block of queries of one depth has a score for each token up to its last anchor, by one product,
//! and in front of these one for each of the query's own masks, by inner products. So what a query
//! sees is a prefix of its scores.

use super::elementwise::{
    add_scaled, exponentials, exponentials_above, inner, scale_by, softmax_backward,
};
use super::groups::{Block, Groups};
use super::matrix::{Matrix, MatrixMut, Write, multiply};
use std::ops::Range;

/// Queries that are computed at once; tokens behind the last of them need no score.
const QUERIES: usize = 64;

/// Sizes of a sequence's queries, keys and values, which lie side by side in rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Heads {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl Heads {
    /// Numbers of all queries of a row.
    pub(crate) fn q_size(self) -> usize {
        self.heads * self.head_dim
    }

    /// Numbers of a row: queries, keys, values.
    pub(crate) fn width(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    fn scale(self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Where the query, key and value of a head begin in a row.
    fn places(self, head: usize) -> (usize, usize, usize) {
        let kv_head = head / (self.heads / self.kv_heads);
        let key = self.q_size() + kv_head * self.head_dim;
        (head * self.head_dim, key, key + self.kv_heads * self.head_dim)
    }

    /// The vectors at `place` of rows.
    fn vectors(self, qkv: &[f32], place: usize, rows: Range<usize>) -> Matrix<'_> {
        let width = self.width();
        Matrix::strided(&qkv[rows.start * width + place..], rows.len(), self.head_dim, width)
    }

    /// The vector at `place` of a row.
    fn vector(self, qkv: &[f32], place: usize, row: usize) -> &[f32] {
        &qkv[row * self.width() + place..][..self.head_dim]
    }

    fn vector_mut(self, qkv: &mut [f32], place: usize, row: usize) -> &mut [f32] {
        &mut qkv[row * self.width() + place..][..self.head_dim]
    }

    fn vectors_mut(self, qkv: &mut [f32], place: usize, rows: Range<usize>) -> MatrixMut<'_> {
        let width = self.width();
        let from = rows.start * width + place;
        MatrixMut::strided(&mut qkv[from..], rows.len(), self.head_dim, width)
    }
}

/// Cosines and sines of every position and pair.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// `[positions, head_dim / 2]`, each a cosine and a sine.
    table: Vec<(f32, f32)>,
    pairs: usize,
}

impl Rope {
    /// Rotary embedding (Su et al. 2021) over pairs `(i, i + head_dim / 2)` of angles
    /// `position · frequencies[i]`.
    pub(crate) fn new(frequencies: &[f32], positions: usize) -> Self {
        let angle = |position: usize, frequency: f32| position as f32 * frequency;
        let table = (0..positions)
            .flat_map(|position| frequencies.iter().map(move |&own| angle(position, own)))
            .map(|angle| (angle.cos(), angle.sin()))
            .collect();
        Self { table, pairs: frequencies.len() }
    }

    /// Rotates queries and keys of a sequence's rows; `backward` turns them back, as gradients are.
    pub(crate) fn rotate(&self, qkv: &mut [f32], heads: Heads, groups: &Groups, backward: bool) {
        let sign = if backward { -1.0 } else { 1.0 };
        let rotated = heads.width() - heads.kv_heads * heads.head_dim;
        for (row, numbers) in qkv.chunks_exact_mut(heads.width()).enumerate() {
            let table = &self.table[groups.position(row) * self.pairs..][..self.pairs];
            for head in numbers[..rotated].chunks_exact_mut(heads.head_dim) {
                let (low, high) = head.split_at_mut(self.pairs);
                for ((low, high), &(cos, sin)) in low.iter_mut().zip(high).zip(table) {
                    let (a, b, sin) = (*low, *high, sin * sign);
                    (*low, *high) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
    }
}

/// Attention of every head: `qkv`: `[rows, width]`, rotated; `out`: `[rows, q_size]`; `levels`:
/// `[heads, rows]`, the logarithms of the softmaxes' sums, which the backward pass needs.
pub(crate) fn forward(
    heads: Heads,
    groups: &Groups,
    qkv: &[f32],
    out: &mut [f32],
    levels: &mut [f32],
) {
    let q_size = heads.q_size();
    let mut scores = vec![0.0; QUERIES * (groups.tokens() + groups.masks())];
    for (head, levels) in (0..heads.heads).zip(levels.chunks_exact_mut(groups.rows())) {
        let head = Head::new(heads, groups, qkv, head);
        for block in groups.blocks(QUERIES) {
            let scores = head.score(&block, &mut scores);
            let columns = block.columns();
            for (row, scores) in block.rows.clone().zip(scores.chunks_exact_mut(columns)) {
                let (seen, unseen) = scores.split_at_mut(block.seen(groups, row));
                let (most, sum) = exponentials(seen);
                scale_by(seen, 1.0 / sum);
                unseen.fill(0.0);
                levels[row] = most + sum.ln();
            }
            let from = block.rows.start * q_size + head.query;
            let mut of_block =
                MatrixMut::strided(&mut out[from..], block.rows.len(), heads.head_dim, q_size);
            let values = heads.vectors(qkv, head.value, 0..block.tokens);
            multiply(&mut of_block, block.of_tokens(scores), values, 1.0, Write::Replace);
            for (row, p) in block.rows.clone().zip(scores.chunks_exact(columns)) {
                let own = &mut out[row * q_size + head.query..][..heads.head_dim];
                for (mask, &p) in groups.own(row, block.depth).zip(p) {
                    add_scaled(own, heads.vector(qkv, head.value, mask), p);
                }
            }
        }
    }
}

/// Adds the gradients of rotated queries, keys and values to `dqkv`, given what [`forward`] returned
/// and the gradient of it, `dout`.
pub(crate) fn backward(
    heads: Heads,
    groups: &Groups,
    qkv: &[f32],
    (out, levels, dout): (&[f32], &[f32], &[f32]),
    dqkv: &mut [f32],
) {
    let size = QUERIES * (groups.tokens() + groups.masks());
    let mut buffers = (vec![0.0; size], vec![0.0; size]);
    for (head, levels) in (0..heads.heads).zip(levels.chunks_exact(groups.rows())) {
        let head = Head::new(heads, groups, qkv, head);
        for block in groups.blocks(QUERIES) {
            let p = head.score(&block, &mut buffers.0);
            let dp = &mut buffers.1[..p.len()];
            head.softmax_gradients(&block, (out, levels, dout), p, dp);
            head.add_gradients(&block, dout, (p, dp), dqkv);
        }
    }
}

impl Block {
    /// Scores of a query: its own masks, then tokens.
    fn columns(&self) -> usize {
        self.depth + self.tokens
    }

    /// How many of them count.
    fn seen(&self, groups: &Groups, row: usize) -> usize {
        self.depth + groups.place(row).0 + 1
    }

    /// The scores of tokens.
    fn of_tokens<'a>(&self, scores: &'a [f32]) -> Matrix<'a> {
        Matrix::strided(&scores[self.depth..], self.rows.len(), self.tokens, self.columns())
    }

    fn of_tokens_mut<'a>(&self, scores: &'a mut [f32]) -> MatrixMut<'a> {
        let columns = self.columns();
        MatrixMut::strided(&mut scores[self.depth..], self.rows.len(), self.tokens, columns)
    }
}

/// A head of a sequence: where its vectors begin in a row.
struct Head<'a> {
    heads: Heads,
    groups: &'a Groups,
    qkv: &'a [f32],
    query: usize,
    key: usize,
    value: usize,
}

impl<'a> Head<'a> {
    fn new(heads: Heads, groups: &'a Groups, qkv: &'a [f32], head: usize) -> Self {
        let (query, key, value) = heads.places(head);
        Self { heads, groups, qkv, query, key, value }
    }

    /// A block's `[rows, head_dim]` of what lies as `out` does.
    fn of_block<'b>(&self, values: &'b [f32], block: &Block) -> Matrix<'b> {
        let q_size = self.heads.q_size();
        let from = block.rows.start * q_size + self.query;
        Matrix::strided(&values[from..], block.rows.len(), self.heads.head_dim, q_size)
    }

    /// A row's `[head_dim]` of the same.
    fn of_row<'b>(&self, values: &'b [f32], row: usize) -> &'b [f32] {
        &values[row * self.heads.q_size() + self.query..][..self.heads.head_dim]
    }

    /// `[queries, columns]` scaled products in `buffer`; those with later tokens mean nothing.
    fn score<'b>(&self, block: &Block, buffer: &'b mut [f32]) -> &'b mut [f32] {
        let heads = self.heads;
        let scores = &mut buffer[..block.rows.len() * block.columns()];
        let keys = heads.vectors(self.qkv, self.key, 0..block.tokens).transposed();
        let queries = heads.vectors(self.qkv, self.query, block.rows.clone());
        let mut of_tokens = block.of_tokens_mut(scores);
        multiply(&mut of_tokens, queries, keys, heads.scale(), Write::Replace);
        for (row, scores) in block.rows.clone().zip(scores.chunks_exact_mut(block.columns())) {
            let query = heads.vector(self.qkv, self.query, row);
            for (mask, score) in self.groups.own(row, block.depth).zip(scores) {
                *score = heads.scale() * inner(query, heads.vector(self.qkv, self.key, mask));
            }
        }
        scores
    }

    /// Turns a block's scores into probabilities `p` and puts the scores' gradients into `dp`.
    fn softmax_gradients(
        &self,
        block: &Block,
        (out, levels, dout): (&[f32], &[f32], &[f32]),
        p: &mut [f32],
        dp: &mut [f32],
    ) {
        let heads = self.heads;
        let values = heads.vectors(self.qkv, self.value, 0..block.tokens).transposed();
        let mut of_tokens = block.of_tokens_mut(dp);
        multiply(&mut of_tokens, self.of_block(dout, block), values, 1.0, Write::Replace);
        let columns = block.columns();
        let lines = p.chunks_exact_mut(columns).zip(dp.chunks_exact_mut(columns));
        for (row, (p, dp)) in block.rows.clone().zip(lines) {
            let (out, dout) = (self.of_row(out, row), self.of_row(dout, row));
            for (mask, dp) in self.groups.own(row, block.depth).zip(dp.iter_mut()) {
                *dp = inner(dout, heads.vector(self.qkv, self.value, mask));
            }
            let (seen, unseen) = p.split_at_mut(block.seen(self.groups, row));
            let (dseen, dunseen) = dp.split_at_mut(seen.len());
            exponentials_above(seen, levels[row]);
            softmax_backward(seen, inner(out, dout), heads.scale(), dseen);
            unseen.fill(0.0);
            dunseen.fill(0.0);
        }
    }

    /// Adds what a block's queries give to the gradients of queries, keys and values.
    fn add_gradients(
        &self,
        block: &Block,
        dout: &[f32],
        (p, dp): (&[f32], &[f32]),
        dqkv: &mut [f32],
    ) {
        let (heads, qkv) = (self.heads, self.qkv);
        let (of_p, of_dp) = (block.of_tokens(p), block.of_tokens(dp));
        let keys = heads.vectors(qkv, self.key, 0..block.tokens);
        let queries = heads.vectors(qkv, self.query, block.rows.clone());
        let mut dqueries = heads.vectors_mut(dqkv, self.query, block.rows.clone());
        multiply(&mut dqueries, of_dp, keys, 1.0, Write::Add);
        let mut dkeys = heads.vectors_mut(dqkv, self.key, 0..block.tokens);
        multiply(&mut dkeys, of_dp.transposed(), queries, 1.0, Write::Add);
        let mut dvalues = heads.vectors_mut(dqkv, self.value, 0..block.tokens);
        multiply(&mut dvalues, of_p.transposed(), self.of_block(dout, block), 1.0, Write::Add);
        let columns = block.columns();
        let lines = p.chunks_exact(columns).zip(dp.chunks_exact(columns));
        for (row, (p, dp)) in block.rows.clone().zip(lines) {
            let query = heads.vector(qkv, self.query, row);
            for (mask, (&p, &dp)) in self.groups.own(row, block.depth).zip(p.iter().zip(dp)) {
                let key = heads.vector(qkv, self.key, mask);
                add_scaled(heads.vector_mut(dqkv, self.query, row), key, dp);
                add_scaled(heads.vector_mut(dqkv, self.key, mask), query, dp);
                add_scaled(heads.vector_mut(dqkv, self.value, mask), self.of_row(dout, row), p);
            }
        }
    }
}

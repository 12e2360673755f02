//! Causal attention of one sequence with rotary positions, forward and backward.

use super::elementwise::{exponentials, exponentials_above, inner, scale_by, softmax_backward};
use super::matrix::{Matrix, MatrixMut, Write, multiply};
use std::ops::Range;

/// Queries that are computed at once; keys behind the last of them need no score.
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
    pub(crate) fn rotate(&self, qkv: &mut [f32], heads: Heads, backward: bool) {
        let sign = if backward { -1.0 } else { 1.0 };
        let rotated = heads.width() - heads.kv_heads * heads.head_dim;
        for (row, table) in
            qkv.chunks_exact_mut(heads.width()).zip(self.table.chunks_exact(self.pairs))
        {
            for head in row[..rotated].chunks_exact_mut(heads.head_dim) {
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
pub(crate) fn forward(heads: Heads, qkv: &[f32], out: &mut [f32], levels: &mut [f32]) {
    let rows = qkv.len() / heads.width();
    let mut scores = vec![0.0; QUERIES * rows];
    for (head, levels) in (0..heads.heads).zip(levels.chunks_exact_mut(rows)) {
        for start in (0..rows).step_by(QUERIES) {
            let queries = start..rows.min(start + QUERIES);
            let scores = &mut scores[..queries.len() * queries.end];
            score(heads, head, qkv, &queries, scores);
            for (row, scores) in queries.clone().zip(scores.chunks_exact_mut(queries.end)) {
                let (seen, unseen) = scores.split_at_mut(row + 1);
                let (most, sum) = exponentials(seen);
                scale_by(seen, 1.0 / sum);
                unseen.fill(0.0);
                levels[row] = most + sum.ln();
            }
            let place = heads.places(head);
            let from = queries.start * heads.q_size() + place.0;
            let mut out =
                MatrixMut::strided(&mut out[from..], queries.len(), heads.head_dim, heads.q_size());
            let values = heads.vectors(qkv, place.2, 0..queries.end);
            multiply(&mut out, Matrix::new(scores, queries.end), values, 1.0, Write::Replace);
        }
    }
}

/// `[queries, keys]` scaled products; those with later keys mean nothing.
fn score(heads: Heads, head: usize, qkv: &[f32], queries: &Range<usize>, scores: &mut [f32]) {
    let (query, key, _) = heads.places(head);
    let keys = heads.vectors(qkv, key, 0..queries.end).transposed();
    let queries_ = heads.vectors(qkv, query, queries.clone());
    let mut scores = MatrixMut::new(scores, queries.end);
    multiply(&mut scores, queries_, keys, heads.scale(), Write::Replace);
}

/// Adds the gradients of rotated queries, keys and values to `dqkv`, given what [`forward`] returned
/// and the gradient of it, `dout`.
pub(crate) fn backward(
    heads: Heads,
    qkv: &[f32],
    out: &[f32],
    levels: &[f32],
    dout: &[f32],
    dqkv: &mut [f32],
) {
    let rows = qkv.len() / heads.width();
    let q_size = heads.q_size();
    let mut buffers = (vec![0.0; QUERIES * rows], vec![0.0; QUERIES * rows]);
    for (head, levels) in (0..heads.heads).zip(levels.chunks_exact(rows)) {
        let (query, key, value) = heads.places(head);
        for start in (0..rows).step_by(QUERIES) {
            let queries = start..rows.min(start + QUERIES);
            let size = queries.len() * queries.end;
            let (p, dp) = (&mut buffers.0[..size], &mut buffers.1[..size]);
            let from = queries.start * q_size + query;
            let own = Matrix::strided(&dout[from..], queries.len(), heads.head_dim, q_size);
            score(heads, head, qkv, &queries, p);
            let values = heads.vectors(qkv, value, 0..queries.end).transposed();
            multiply(&mut MatrixMut::new(dp, queries.end), own, values, 1.0, Write::Replace);
            let lines = p.chunks_exact_mut(queries.end).zip(dp.chunks_exact_mut(queries.end));
            for (row, (p, dp)) in queries.clone().zip(lines) {
                let (seen, unseen) = p.split_at_mut(row + 1);
                let (dseen, dunseen) = dp.split_at_mut(row + 1);
                exponentials_above(seen, levels[row]);
                let at = row * q_size + query;
                let along = inner(&out[at..at + heads.head_dim], &dout[at..at + heads.head_dim]);
                softmax_backward(seen, along, heads.scale(), dseen);
                unseen.fill(0.0);
                dunseen.fill(0.0);
            }
            let (p, dp) = (Matrix::new(p, queries.end), Matrix::new(dp, queries.end));
            let keys = heads.vectors(qkv, key, 0..queries.end);
            let of_queries = heads.vectors(qkv, query, queries.clone());
            let mut dqueries = heads.vectors_mut(dqkv, query, queries.clone());
            multiply(&mut dqueries, dp, keys, 1.0, Write::Add);
            let mut dkeys = heads.vectors_mut(dqkv, key, 0..queries.end);
            multiply(&mut dkeys, dp.transposed(), of_queries, 1.0, Write::Add);
            let mut dvalues = heads.vectors_mut(dqkv, value, 0..queries.end);
            multiply(&mut dvalues, p.transposed(), own, 1.0, Write::Add);
        }
    }
}

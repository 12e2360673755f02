//! Attention of one row over the keys that it sees.

use super::LANES;
use super::isa::Isa;
use super::shared::SharedSlice;
use super::vector::{Lanes, Vectorized, dot, exp, sum, vectorize};
use crate::team::Team;
use std::ops::Range;

/// Sizes of one attention layer.
#[derive(Clone, Copy)]
pub(crate) struct AttentionShape {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl AttentionShape {
    /// Width of a cached key or value row.
    pub(crate) fn kv_width(self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

/// The cache slots that each row sees, in order of position: the prefix, whose slots are its
/// positions, then the row's path through the tree behind it (the row itself last).
#[derive(Default)]
pub(crate) struct Visible {
    prefix: usize,
    slots: Vec<usize>,
    /// Each row's part of `slots`.
    paths: Vec<Range<usize>>,
}

impl Visible {
    /// Starts anew, behind a prefix of this length.
    pub(crate) fn reset(&mut self, prefix: usize) {
        self.prefix = prefix;
        self.slots.clear();
        self.paths.clear();
    }

    /// Adds a row by the slots of its path, the row's own first.
    pub(crate) fn push_upwards(&mut self, slots: impl Iterator<Item = usize>) {
        let start = self.slots.len();
        self.slots.extend(slots);
        self.slots[start..].reverse();
        self.paths.push(start..self.slots.len());
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.paths.len()
    }

    fn row(&self, row: usize) -> (usize, &[usize]) {
        (self.prefix, &self.slots[self.paths[row].clone()])
    }

    fn longest(&self) -> usize {
        self.prefix + self.paths.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }
}

/// Attention of every row over what it sees.
///
/// `queries`: rows of `query_stride` numbers that begin with `[n_heads, head_dim]`; `out`: `[rows,
/// n_heads, head_dim]`; `keys`, `values`: `[slots, n_kv_heads, head_dim]`. Sums are anchored to
/// positions, never to slots. `scores` is scratch, resized to `[members, longest visible]`.
pub(crate) fn attention(
    team: &Team,
    shape: AttentionShape,
    (queries, query_stride): (&[f32], usize),
    (keys, values): (&[f32], &[f32]),
    visible: &Visible,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let (head_dim, kv_width) = (shape.head_dim, shape.kv_width());
    let longest = visible.longest();
    scores.resize(longest * team.members(), 0.0);
    let (scores, out) = (SharedSlice::new(scores), SharedSlice::new(out));
    let tasks = visible.rows() * shape.n_heads;
    team.run(&|member| {
        // SAFETY: every member has its own part.
        let scores = unsafe { scores.part(member * longest..(member + 1) * longest) };
        for task in (member..tasks).step_by(team.members()) {
            let (row, head) = (task / shape.n_heads, task % shape.n_heads);
            let kv_head = head / (shape.n_heads / shape.n_kv_heads);
            let query = &queries[row * query_stride + head * head_dim..][..head_dim];
            // SAFETY: every (row, head) is one task of one member.
            let out = unsafe { out.part(task * head_dim..(task + 1) * head_dim) };
            let (prefix, path) = visible.row(row);
            let offset = kv_head * head_dim;
            let scores = &mut scores[..prefix + path.len()];
            attend(
                team.isa(),
                Attend { query, keys, values, offset, kv_width, prefix, path, scores, out },
            );
        }
    });
}

fn attend(isa: Isa, work: Attend<'_>) {
    vectorize(isa, work);
}

/// One head of one row: softmax of scaled dot products, then the weighted sum of values.
struct Attend<'a> {
    query: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
    /// Where this head's part of a cached row begins.
    offset: usize,
    kv_width: usize,
    prefix: usize,
    path: &'a [usize],
    scores: &'a mut [f32],
    out: &'a mut [f32],
}

/// Lanes of an output that stay in registers while all values pass: 64 numbers.
const OUT_LANES: usize = 4;

impl Vectorized for Attend<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { query, keys, values, offset, kv_width, prefix, path, scores, out } = self;
        let head_dim = query.len();
        let scale = 1.0 / (head_dim as f32).sqrt();
        let mut peak = f32::NEG_INFINITY;
        let slots = (0..prefix).chain(path.iter().copied());
        for (score, slot) in scores.iter_mut().zip(slots) {
            let key = &keys[slot * kv_width + offset..][..head_dim];
            *score = dot::<L>(query, key) * scale;
            peak = if *score > peak { *score } else { peak };
        }
        for score in scores.iter_mut() {
            *score = exp(*score - peak);
        }
        let total = sum::<L>(scores);
        let (whole, rest) = out.as_chunks_mut::<{ OUT_LANES * LANES }>();
        for (block, out) in whole.iter_mut().enumerate() {
            let at = offset + block * OUT_LANES * LANES;
            let mut sums = [L::splat(0.0); OUT_LANES];
            let slots = (0..prefix).chain(path.iter().copied());
            for (&score, slot) in scores.iter().zip(slots) {
                let (value, _) = values[slot * kv_width + at..].as_chunks();
                let score = L::splat(score);
                for (sum, value) in sums.iter_mut().zip(&value[..OUT_LANES]) {
                    *sum = sum.add_product(score, L::load(value));
                }
            }
            for (out, sum) in out.as_chunks_mut().0.iter_mut().zip(sums) {
                sum.store(out);
            }
        }
        let at = offset + head_dim - rest.len();
        rest.fill(0.0);
        let slots = (0..prefix).chain(path.iter().copied());
        for (&score, slot) in scores.iter().zip(slots) {
            for (out, &value) in rest.iter_mut().zip(&values[slot * kv_width + at..]) {
                *out += score * value;
            }
        }
        for out in out.iter_mut() {
            *out /= total;
        }
    }
}

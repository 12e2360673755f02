//! Attention of one row over the keys that it sees.

use super::{lane_sum, shared::SharedSlice};
use crate::team::Team;

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

/// The cache slots that a row sees, in order of position: the prefix, whose slots are its
/// positions, then the row's path through the tree behind it (the row itself last).
pub(crate) struct Visible {
    pub(crate) prefix: usize,
    pub(crate) path: Vec<usize>,
}

impl Visible {
    fn len(&self) -> usize {
        self.prefix + self.path.len()
    }

    fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.prefix).chain(self.path.iter().copied())
    }
}

/// Attention of every row over what it sees.
///
/// `queries`, `out`: `[rows, n_heads, head_dim]`; `keys`, `values`: `[slots, n_kv_heads,
/// head_dim]`. Sums are anchored to positions, never to slots. `scores` is scratch, resized to
/// `[members, longest visible]`.
pub(crate) fn attention(
    team: &Team,
    shape: AttentionShape,
    queries: &[f32],
    (keys, values): (&[f32], &[f32]),
    visible: &[Visible],
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let head_dim = shape.head_dim;
    let longest = visible.iter().map(Visible::len).max().unwrap_or(0);
    scores.resize(longest * team.members(), 0.0);
    let (scores, out) = (SharedSlice::new(scores), SharedSlice::new(out));
    let tasks = visible.len() * shape.n_heads;
    team.run(&|member| {
        // SAFETY: every member has its own part.
        let scores = unsafe { scores.part(member * longest..(member + 1) * longest) };
        for task in (member..tasks).step_by(team.members()) {
            let head = task % shape.n_heads;
            let kv_head = head / (shape.n_heads / shape.n_kv_heads);
            let query = &queries[task * head_dim..(task + 1) * head_dim];
            // SAFETY: every (row, head) is one task of one member.
            let out = unsafe { out.part(task * head_dim..(task + 1) * head_dim) };
            let at = |slot: usize| {
                let start = slot * shape.kv_width() + kv_head * head_dim;
                start..start + head_dim
            };
            let seen = &visible[task / shape.n_heads];
            attend(query, seen, scores, out, |slot| (&keys[at(slot)], &values[at(slot)]));
        }
    });
}

/// One head of one row: softmax of scaled dot products, then the weighted sum of values.
fn attend<'a>(
    query: &[f32],
    visible: &Visible,
    scores: &mut [f32],
    out: &mut [f32],
    key_and_value: impl Fn(usize) -> (&'a [f32], &'a [f32]),
) {
    let scores = &mut scores[..visible.len()];
    let scale = 1.0 / (query.len() as f32).sqrt();
    let mut peak = f32::NEG_INFINITY;
    for (score, slot) in scores.iter_mut().zip(visible.slots()) {
        let (key, _) = key_and_value(slot);
        *score = lane_sum(query.len(), |index| query[index] * key[index]) * scale;
        peak = peak.max(*score);
    }
    for score in scores.iter_mut() {
        *score = (*score - peak).exp();
    }
    let total = lane_sum(scores.len(), |position| scores[position]);
    out.fill(0.0);
    for (&score, slot) in scores.iter().zip(visible.slots()) {
        let (_, value) = key_and_value(slot);
        for (out, &value) in out.iter_mut().zip(value) {
            *out += score * value;
        }
    }
    for out in out.iter_mut() {
        *out /= total;
    }
}

//! Attention of several rows over the keys that each of them sees.
//!
//! A score adds its products in order of dimensions, an output its weighted values in order of
//! positions, and a row's weights are summed by absolute position. So neither what else is computed
//! nor where in the cache a key lies changes a bit.

use super::LANES;
use super::attention_shape::AttentionShape;
use super::keys_values::{Cached, KeysValues, Slots};
use super::shared::SharedSlice;
use crate::team::Team;
use forerun_vector::{Lanes, Vectorized, exp, sum, vectorize};
use std::ops::Range;

/// Queries that one task computes together, at the most: so they read keys and values once.
const MOST_QUERIES: usize = 16;
/// Queries that share a register tile.
const QUERIES: usize = 4;
/// Blocks of keys that share one.
const KEY_BLOCKS: usize = 4;
/// Lanes of an output that stay in registers while values pass: 64 numbers.
const OUT_LANES: usize = 4;

/// The cache slots that each row sees, in order of position: first slots that are their positions
/// (the prefix, and behind it the tree's first chain), then the rest of its path through the tree.
/// A layer's window leaves out the first of them.
#[derive(Default)]
pub(crate) struct TreeMask {
    rows: Vec<VisibleRow>,
    /// The rest of all rows' paths.
    slots: Vec<usize>,
}

/// What one row sees.
#[derive(Clone)]
struct VisibleRow {
    /// Positions up to here lie in slots of the same number.
    straight: usize,
    /// Part of [`TreeMask::slots`].
    rest: Range<usize>,
}

impl VisibleRow {
    /// Number of positions up to the row's own.
    fn len(&self) -> usize {
        self.straight + self.rest.len()
    }

    /// The first position that a window leaves in sight.
    fn first(&self, window: Option<usize>) -> usize {
        window.map_or(0, |window| self.len().saturating_sub(window))
    }
}

impl TreeMask {
    /// Starts anew.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.slots.clear();
    }

    /// Adds a row that sees the first `straight` slots and then others, which are given from the
    /// last (its own) upwards.
    pub(crate) fn push(&mut self, straight: usize, rest_upwards: impl Iterator<Item = usize>) {
        let start = self.slots.len();
        self.slots.extend(rest_upwards);
        self.slots[start..].reverse();
        self.rows.push(VisibleRow { straight, rest: start..self.slots.len() });
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The slots of a row's path behind its straight ones.
    fn rest(&self, row: &VisibleRow) -> &[usize] {
        &self.slots[row.rest.clone()]
    }

    /// Number of slots in which everything lies that a row sees.
    fn extent(&self, row: &VisibleRow) -> usize {
        self.rest(row).last().map_or(row.straight, |&last| last + 1)
    }
}

/// Queries of all rows: each row is `stride` numbers that begin with `[n_heads, head_dim]`.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    pub(crate) rows: &'a [f32],
    pub(crate) stride: usize,
}

/// Attention of every row over what it sees.
///
/// `out`: `[rows, n_heads, head_dim]`. `scratch` is resized to what the members need.
pub(crate) fn attention(
    team: &Team,
    shape: AttentionShape,
    queries: Queries<'_>,
    cached: &KeysValues,
    visible: &TreeMask,
    scratch: &mut Vec<f32>,
    out: &mut [f32],
) {
    match cached {
        KeysValues::Full(slots) => by_task(team, shape, queries, slots, visible, scratch, out),
        KeysValues::Half(slots) => by_task(team, shape, queries, slots, visible, scratch, out),
    }
}

fn by_task<C: Cached>(
    team: &Team,
    shape: AttentionShape,
    queries: Queries<'_>,
    cached: &Slots<C>,
    visible: &TreeMask,
    scratch: &mut Vec<f32>,
    out: &mut [f32],
) {
    // A key/value head's queries: those of its group of heads, in all rows.
    let group = shape.n_heads / shape.n_kv_heads;
    let of_a_head = visible.rows() * group;
    let share = (of_a_head * shape.n_kv_heads).div_ceil(team.members());
    let tasks = of_a_head.div_ceil(share.clamp(1, MOST_QUERIES));
    let most = of_a_head.div_ceil(tasks);
    let extents = visible.rows.iter().map(|row| visible.extent(row));
    let longest = extents.max().unwrap_or(0).next_multiple_of(LANES);
    let part = most * (longest + cached.lanes() * LANES);
    scratch.resize(part * team.members(), 0.0);
    let (scratch, out) = (SharedSlice::new(scratch), SharedSlice::new(out));
    team.share(shape.n_kv_heads * tasks, |member, number| {
        let (kv_head, task) = (number / tasks, number % tasks);
        let first = task * of_a_head / tasks;
        let count = (task + 1) * of_a_head / tasks - first;
        // SAFETY: every member has its own part.
        let scratch = unsafe { scratch.part(member * part..(member + 1) * part) };
        let (scores, sums) = scratch.split_at_mut(most * longest);
        let sums = &mut sums[..count * cached.lanes() * LANES];
        let out = &out;
        let task = Task {
            shape,
            queries,
            cached,
            visible,
            kv_head,
            first,
            count,
            scores,
            longest,
            sums,
            out,
        };
        vectorize(team.isa(), task);
    });
}

/// Some queries of one key/value head.
struct Task<'a, C> {
    shape: AttentionShape,
    queries: Queries<'a>,
    cached: &'a Slots<C>,
    visible: &'a TreeMask,
    kv_head: usize,
    /// The queries, counted through rows and the heads of the group.
    first: usize,
    count: usize,
    /// Scores by slot, then weights by position: `[count, longest]`.
    scores: &'a mut [f32],
    longest: usize,
    /// Weighted values: `[count, lanes, 16]`.
    sums: &'a mut [f32],
    out: &'a SharedSlice<'a>,
}

impl<C: Cached> Vectorized for Task<'_, C> {
    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        self.score::<L>();
        let mut totals = [0.0; MOST_QUERIES];
        for (query, total) in totals.iter_mut().enumerate().take(self.count) {
            *total = self.soften::<L>(query);
        }
        self.weigh::<L>();
        self.store(&totals);
    }
}

impl<C: Cached> Task<'_, C> {
    /// The row and the head of a query.
    #[inline(always)]
    fn place(&self, query: usize) -> (usize, usize) {
        let group = self.shape.n_heads / self.shape.n_kv_heads;
        let query = self.first + query;
        (query / group, self.kv_head * group + query % group)
    }

    #[inline(always)]
    fn query(&self, query: usize) -> &[f32] {
        let (row, head) = self.place(query);
        let dim = self.shape.head_dim;
        &self.queries.rows[row * self.queries.stride + head * dim..][..dim]
    }

    #[inline(always)]
    fn row(&self, query: usize) -> &VisibleRow {
        &self.visible.rows[self.place(query).0]
    }

    /// The first position that a query sees.
    #[inline(always)]
    fn first_seen(&self, query: usize) -> usize {
        self.row(query).first(self.shape.window)
    }

    /// Scaled products of all queries with all keys between the first and the last that one of them
    /// sees, by slot.
    #[inline(always)]
    fn score<L: Lanes>(&mut self) {
        let extents = (0..self.count).map(|query| self.visible.extent(self.row(query)));
        let blocks = extents.max().unwrap_or(0).div_ceil(LANES);
        // A position lies in the slot of its number, or in one behind all straight ones.
        let first = |query| self.first_seen(query).min(self.row(query).straight);
        let mut block = (0..self.count).map(first).min().unwrap_or(0) / LANES;
        while block < blocks {
            let step = if block + KEY_BLOCKS <= blocks { KEY_BLOCKS } else { 1 };
            let mut query = 0;
            while query < self.count {
                let rows = if query + QUERIES <= self.count { QUERIES } else { 1 };
                match (rows, step) {
                    (QUERIES, KEY_BLOCKS) => self.multiply::<L, QUERIES, KEY_BLOCKS>(query, block),
                    (_, KEY_BLOCKS) => self.multiply::<L, 1, KEY_BLOCKS>(query, block),
                    (QUERIES, _) => self.multiply::<L, QUERIES, 1>(query, block),
                    _ => self.multiply::<L, 1, 1>(query, block),
                }
                query += rows;
            }
            block += step;
        }
    }

    /// Scores of `Q` queries with the keys of `B` blocks.
    #[inline(always)]
    fn multiply<L: Lanes, const Q: usize, const B: usize>(&mut self, query: usize, block: usize) {
        let dim = self.shape.head_dim;
        let mut queries = [&[][..]; Q];
        for (index, slot) in queries.iter_mut().enumerate() {
            *slot = &self.query(query + index)[..dim];
        }
        let mut keys = [&[][..]; B];
        for (index, slot) in keys.iter_mut().enumerate() {
            *slot = &self.cached.keys(block + index, self.kv_head)[..dim];
        }
        let mut sums = [[L::splat(0.0); B]; Q];
        for at in 0..dim {
            let mut key = [L::splat(0.0); B];
            for (key, keys) in key.iter_mut().zip(&keys) {
                *key = keys[at].load();
            }
            for (sums, query) in sums.iter_mut().zip(&queries) {
                let x = L::splat(query[at]);
                for (sum, &key) in sums.iter_mut().zip(&key) {
                    *sum = sum.mul_add(x, key);
                }
            }
        }
        let scale = L::splat(1.0 / (dim as f32).sqrt());
        for (index, sums) in sums.iter().enumerate() {
            let at = (query + index) * self.longest + block * LANES;
            let (scores, _) = self.scores[at..].as_chunks_mut();
            for (scores, &sum) in scores.iter_mut().zip(sums) {
                sum.mul(scale).store(scores);
            }
        }
    }

    /// Softmax without its division: what the query's row sees comes into order of positions, scores
    /// become weights. Returns the weights' sum.
    #[inline(always)]
    fn soften<L: Lanes>(&mut self, query: usize) -> f32 {
        let (row, seen) = (&self.visible.rows[self.place(query).0], self.first_seen(query));
        let scores = &mut self.scores[query * self.longest..(query + 1) * self.longest];
        // A path's slots ascend and lie behind the places to which they go.
        for (place, &slot) in self.visible.rest(row).iter().enumerate() {
            scores[row.straight + place] = scores[slot];
        }
        // Lanes are anchored to positions, so what is summed begins at a whole block of them.
        let (start, end) = (seen / LANES * LANES, row.len().next_multiple_of(LANES));
        scores[start..seen].fill(f32::NEG_INFINITY);
        scores[row.len()..end].fill(f32::NEG_INFINITY);
        let (chunks, _) = scores[start..end].as_chunks_mut::<LANES>();
        let mut peaks = L::splat(f32::NEG_INFINITY);
        for chunk in &*chunks {
            peaks = peaks.max(L::load(chunk));
        }
        let mut lanes = [0.0; LANES];
        peaks.store(&mut lanes);
        let peak = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
        for chunk in &mut *chunks {
            for score in chunk {
                *score = exp(*score - peak);
            }
        }
        sum::<L>(chunks.as_flattened())
    }

    /// Sums of values, each by its weight: for each query what it sees before the others do, for all
    /// together what all see straight, then for each what only it sees.
    #[inline(always)]
    fn weigh<L: Lanes>(&mut self) {
        self.sums.fill(0.0);
        let straight = (0..self.count).map(|query| self.row(query).straight);
        let common = straight.min().unwrap_or(0);
        let first_seen = (0..self.count).map(|query| self.first_seen(query));
        let all_see = first_seen.max().unwrap_or(0).min(common);
        for query in 0..self.count {
            let first = self.first_seen(query).min(all_see);
            self.add::<L, 1>(query, first..all_see, first);
        }
        for first in (all_see..common).step_by(KEY_BLOCKS * LANES) {
            let slots = first..common.min(first + KEY_BLOCKS * LANES);
            let mut query = 0;
            while query + QUERIES <= self.count {
                self.add::<L, QUERIES>(query, slots.clone(), first);
                query += QUERIES;
            }
            for query in query..self.count {
                self.add::<L, 1>(query, slots.clone(), first);
            }
        }
        for query in 0..self.count {
            let (visible, row, seen) = (self.visible, self.place(query).0, self.first_seen(query));
            let row = &visible.rows[row];
            let first = seen.clamp(common, row.straight);
            self.add::<L, 1>(query, first..row.straight, first);
            let unseen = seen.saturating_sub(row.straight);
            for (place, &slot) in visible.rest(row).iter().enumerate().skip(unseen) {
                self.add::<L, 1>(query, slot..slot + 1, row.straight + place);
            }
        }
    }

    /// Adds the weighted values of neighbouring slots, the first of which lies at `position`.
    #[inline(always)]
    fn add<L: Lanes, const Q: usize>(
        &mut self,
        query: usize,
        slots: Range<usize>,
        position: usize,
    ) {
        let mut lane = 0;
        while lane < self.cached.lanes() {
            if lane + OUT_LANES <= self.cached.lanes() {
                self.add_lanes::<L, Q, OUT_LANES>(query, slots.clone(), position, lane);
                lane += OUT_LANES;
            } else {
                self.add_lanes::<L, Q, 1>(query, slots.clone(), position, lane);
                lane += 1;
            }
        }
    }

    #[inline(always)]
    fn add_lanes<L: Lanes, const Q: usize, const N: usize>(
        &mut self,
        query: usize,
        slots: Range<usize>,
        position: usize,
        lane: usize,
    ) {
        let lanes = self.cached.lanes();
        let mut weights = [&[][..]; Q];
        for (index, slot) in weights.iter_mut().enumerate() {
            let at = (query + index) * self.longest + position;
            *slot = &self.scores[at..at + slots.len()];
        }
        let mut sums = [[L::splat(0.0); N]; Q];
        for (index, sums) in sums.iter_mut().enumerate() {
            let at = ((query + index) * lanes + lane) * LANES;
            let (stored, _) = self.sums[at..at + N * LANES].as_chunks();
            for (sum, stored) in sums.iter_mut().zip(stored) {
                *sum = L::load(stored);
            }
        }
        let mut slot = slots.start;
        while slot < slots.end {
            let end = slots.end.min((slot / LANES + 1) * LANES);
            let values = self.cached.values(slot / LANES, self.kv_head);
            for slot in slot..end {
                let at = slot % LANES * lanes + lane;
                let values = &values[at..at + N];
                for (sums, weights) in sums.iter_mut().zip(&weights) {
                    let weight = L::splat(weights[slot - slots.start]);
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = sum.mul_add(weight, value.load());
                    }
                }
            }
            slot = end;
        }
        for (index, sums) in sums.iter().enumerate() {
            let at = ((query + index) * lanes + lane) * LANES;
            let (stored, _) = self.sums[at..at + N * LANES].as_chunks_mut();
            for (sum, stored) in sums.iter().zip(stored) {
                sum.store(stored);
            }
        }
    }

    /// Writes the queries' outputs: their sums over the totals of their weights.
    #[inline(always)]
    fn store(&self, totals: &[f32]) {
        let (dim, width) = (self.shape.head_dim, self.cached.lanes() * LANES);
        for ((query, sums), total) in self.sums.chunks_exact(width).enumerate().zip(totals) {
            let (row, head) = self.place(query);
            let at = (row * self.shape.n_heads + head) * dim;
            // SAFETY: every (row, head) is a query of one task.
            let out = unsafe { self.out.part(at..at + dim) };
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = sum / total;
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::packed::WeightType;
    use super::*;
    use crate::kernels::Isa;
    use half::f16;
    use proptest::prelude::*;

    fn value(index: usize, seed: usize) -> f32 {
        let hash = (index as u32 ^ (seed as u32) << 20).wrapping_mul(2_654_435_761);
        (hash.rotate_left(13).wrapping_mul(0x9E37_79B9) as f32 / 2_147_483_648.0 - 1.0) * 2.0
    }

    /// Softmax of scaled products over the keys of `seen` slots, times their values, in plain loops.
    /// The slots are those of all positions from `first` on.
    fn expected(
        (query, seen, first): (&[f32], &[usize], usize),
        (keys, values): (impl Fn(usize) -> Vec<f32>, impl Fn(usize) -> Vec<f32>),
        fused: bool,
    ) -> Vec<f32> {
        let plus = |sum: f32, a: f32, b: f32| if fused { a.mul_add(b, sum) } else { sum + a * b };
        let scale = 1.0 / (query.len() as f32).sqrt();
        let score = |&slot: &usize| {
            query.iter().zip(keys(slot)).fold(0.0, |sum, (&q, k)| plus(sum, q, k)) * scale
        };
        let scores: Vec<f32> = seen.iter().map(score).collect();
        let peak = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = scores.iter().map(|score| exp(score - peak)).collect();
        let mut lanes = [0.0_f32; LANES];
        for (position, weight) in weights.iter().enumerate() {
            lanes[(first + position) % LANES] += weight;
        }
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
        }
        let mut out = vec![0.0; query.len()];
        for (&slot, &weight) in seen.iter().zip(&weights) {
            for (out, value) in out.iter_mut().zip(values(slot)) {
                *out = plus(*out, weight, value);
            }
        }
        out.iter().map(|out| out / lanes[0]).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Heads of any width, groups, trees behind prefixes of several segments, windows or none,
        /// both precisions, on every instruction set.
        #[test]
        fn equals_plain_loops_bit_for_bit(
            head_dim in prop::sample::select(vec![2_usize, 8, 16, 20, 64, 72, 128]),
            n_kv_heads in 1..4_usize,
            group in 1..4_usize,
            prefix in 0..300_usize,
            parents in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
            members in 1..3_usize,
            window in prop::option::of(1..70_usize),
        ) {
            let n_heads = n_kv_heads * group;
            let shape = AttentionShape { n_heads, n_kv_heads, head_dim, window };
            // Each node hangs under an earlier one, mostly under the last, or behind the prefix.
            let mut paths: Vec<Vec<usize>> = Vec::new();
            for (node, index) in parents.iter().enumerate() {
                let parent = match index.index(3) {
                    0 => index.index(node + 1).checked_sub(1),
                    _ => node.checked_sub(1),
                };
                let above = parent.map_or(Vec::new(), |parent| paths[parent].clone());
                paths.push([above, vec![node]].concat());
            }
            let (rows, slots) = (paths.len(), prefix + paths.len());
            let mut visible = TreeMask::default();
            for path in &paths {
                let straight = path.iter().enumerate().take_while(|(at, node)| at == *node).count();
                let rest = path[straight..].iter().rev().map(|node| prefix + node);
                visible.push(prefix + straight, rest);
            }
            let stride = shape.n_heads * head_dim + 5;
            let queries: Vec<f32> = (0..rows * stride).map(|index| value(index, 1)).collect();
            let row = |slot: usize, seed| -> Vec<f32> {
                let width = shape.kv_width();
                (0..width).map(|index| value(slot * width + index, seed)).collect()
            };
            let kinds = Isa::available().into_iter();
            let kinds = kinds.flat_map(|isa| [(WeightType::F32, isa), (WeightType::Bf16, isa)]);
            for (weight_type, isa) in kinds {
                let mut cached = KeysValues::new(shape, weight_type);
                cached.reserve(slots);
                for slot in 0..slots {
                    cached.write(isa, slot, &row(slot, 2), &row(slot, 3));
                }
                let team = Team::unpinned(members).unwrap().with_isa(isa);
                let mut out = vec![f32::NAN; rows * shape.n_heads * head_dim];
                let queries_of = Queries { rows: &queries, stride };
                attention(&team, shape, queries_of, &cached, &visible, &mut Vec::new(), &mut out);
                let kept = |value: f32| match weight_type {
                    WeightType::F32 => value,
                    _ => f16::from_f32(value).to_f32(),
                };
                let outs = out.chunks_exact(head_dim).enumerate();
                for (index, out) in outs {
                    let (number, head) = (index / shape.n_heads, index % shape.n_heads);
                    let part = head / group * head_dim..(head / group + 1) * head_dim;
                    let of = |seed| {
                        let part = part.clone();
                        move |slot| row(slot, seed)[part.clone()].iter().map(|&v| kept(v)).collect()
                    };
                    let query = &queries[number * stride + head * head_dim..][..head_dim];
                    let path = paths[number].iter().map(|node| prefix + node);
                    let seen: Vec<usize> = (0..prefix).chain(path).collect();
                    let first = window.map_or(0, |window| seen.len().saturating_sub(window));
                    let seen = (query, &seen[first..], first);
                    let expected = expected(seen, (of(2), of(3)), isa.is_fused());
                    let bits = |values: &[f32]| -> Vec<u32> {
                        values.iter().map(|value| value.to_bits()).collect()
                    };
                    prop_assert_eq!(bits(out), bits(&expected), "{} on {}", weight_type, isa);
                }
            }
        }
    }
}

//! Attention of several rows of several sequences, each over the keys that are visible to it.
//!
//! A score adds its products in order of dimensions, an output adds its weighted values in order of
//! positions, and a row's weights are summed by absolute position. So a row's bits depend neither
//! on the other rows of the pass nor on the slots in which its keys are stored.

use super::LANES;
use super::attention_shape::AttentionShape;
use super::cached::Cached;
use super::keys_values::{Keys, KeysValues, Pages, SequenceRows, of_type};
use super::shared::SharedSlice;
use crate::team::Team;
use forerun_cache::{PageId, PageTable, RowPlace};
use forerun_vector::{Lanes, Vectorized, exp, sum, tanh, vectorize};
use std::ops::Range;

/// Largest number of queries in one task. The queries of a task read keys and values only once.
const MAX_TASK_QUERIES: usize = 16;
/// Queries in a register tile.
const QUERY_TILE: usize = 4;
/// Key blocks in a register tile.
const KEY_TILE: usize = 4;
/// Output vectors of 16 lanes that stay in registers while values are accumulated: 64 numbers.
const OUT_LANES: usize = 4;

/// The tree attention mask: for each row, the slots of its own sequence's cache that are visible to
/// it, in order of position.
///
/// A row's slots are first those whose number is their position (the prefix, and after it the
/// tree's first chain), and then the rest of the row's path through the tree. A sliding window
/// hides the first of them; it is applied when the mask is read.
#[derive(Default)]
pub(crate) struct TreeMask {
    rows: Vec<MaskRow>,
    /// The slots of the rests of all rows' paths.
    slots: Vec<usize>,
    sequences: Vec<MaskSequence>,
    /// The pages of all sequences.
    pages: Vec<PageId>,
}

/// The part of a mask that belongs to one sequence.
#[derive(Clone)]
struct MaskSequence {
    rows: Range<usize>,
    /// Its pages, as a range of [`TreeMask::pages`].
    pages: Range<usize>,
}

/// The slots that are visible to one row.
#[derive(Clone)]
struct MaskRow {
    /// Where the row's own key and value are.
    own: RowPlace,
    /// The positions below this number are in the slots of the same number.
    contiguous: usize,
    /// The row's other slots, as a range of [`TreeMask::slots`].
    rest: Range<usize>,
    /// The row's own position plus 1, at which its window ends.
    window_end: usize,
}

impl MaskRow {
    /// Returns the number of visible positions without a window: those up to and including the
    /// row's own, or up to the end of its block.
    fn len(&self) -> usize {
        self.contiguous + self.rest.len()
    }

    /// Returns the first position that is visible with a sliding window, or 0 without one.
    fn first_position(&self, window: Option<usize>) -> usize {
        window.map_or(0, |window| self.window_end.saturating_sub(window))
    }
}

impl TreeMask {
    /// Removes all sequences.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.slots.clear();
        self.sequences.clear();
        self.pages.clear();
    }

    /// Adds a sequence without rows, whose slots are on these pages.
    pub(crate) fn push_sequence(&mut self, table: PageTable<'_>) {
        let (rows, pages) = (self.rows.len(), self.pages.len());
        self.pages.extend_from_slice(table.pages);
        self.sequences.push(MaskSequence { rows: rows..rows, pages: pages..self.pages.len() });
    }

    /// Adds a row of the last sequence, in the slot `own`. The first `contiguous` slots are visible
    /// to it, and then the slots of `rest_reversed`. These are given in reverse order, from the
    /// row's own slot up to its ancestors.
    ///
    /// # Panics
    /// If there is no sequence: a programming error.
    pub(crate) fn push(
        &mut self,
        own: usize,
        contiguous: usize,
        rest_reversed: impl Iterator<Item = usize>,
    ) {
        let start = self.slots.len();
        self.slots.extend(rest_reversed);
        self.slots[start..].reverse();
        let sequence = self.sequences.last_mut().expect("a sequence");
        sequence.rows.end += 1;
        let own = PageTable { pages: &self.pages[sequence.pages.clone()] }.place(own);
        let rest = start..self.slots.len();
        let window_end = contiguous + rest.len();
        self.rows.push(MaskRow { own, contiguous, rest, window_end });
    }

    /// Adds a row of a block of the last sequence, in the slot `own`, which is also its position.
    /// All slots below `block_end` are visible to it, except those that are too early for a window.
    ///
    /// # Panics
    /// If there is no sequence: a programming error.
    pub(crate) fn push_of_block(&mut self, own: usize, block_end: usize) {
        self.push(own, block_end, std::iter::empty());
        self.rows.last_mut().expect("the new row").window_end = own + 1;
    }

    /// Adds a row of the last sequence at the position `end`, in the slot `own`, which has no key and
    /// no value. The slots below `end` are visible to it, except those that are too early for a
    /// window.
    ///
    /// # Panics
    /// If there is no sequence: a programming error.
    pub(crate) fn push_after(&mut self, own: usize, end: usize) {
        self.push(own, end, std::iter::empty());
        self.rows.last_mut().expect("the new row").window_end = end + 1;
    }

    /// Returns the place of a row's own key and value.
    pub(crate) fn place(&self, row: usize) -> RowPlace {
        self.rows[row].own
    }

    /// Returns the places of all rows' own keys and values.
    pub(crate) fn places(&self) -> impl Iterator<Item = RowPlace> + '_ {
        self.rows.iter().map(|row| row.own)
    }

    fn table(&self, sequence: &MaskSequence) -> PageTable<'_> {
        PageTable { pages: &self.pages[sequence.pages.clone()] }
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Returns the slots of a row's path after its contiguous slots.
    fn rest(&self, row: &MaskRow) -> &[usize] {
        &self.slots[row.rest.clone()]
    }

    /// Returns the number of leading slots that include all slots visible to a row.
    fn extent(&self, row: &MaskRow) -> usize {
        self.rest(row).last().map_or(row.contiguous, |&last| last + 1)
    }
}

/// The queries of all rows. Each row is `stride` numbers that begin with `[n_heads, head_dim]`.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    pub(crate) rows: &'a [f32],
    pub(crate) stride: usize,
    /// The score of each head's attention sink, if there are any: `[n_heads]`.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// Computes the attention of every row over the slots of its sequence that are visible to it.
///
/// `out`: `[rows, n_heads, value_dim]`. `scratch` is resized as needed.
pub(crate) fn attention(
    team: &Team,
    shape: AttentionShape,
    queries: Queries<'_>,
    cached: &KeysValues,
    mask: &TreeMask,
    scratch: &mut Vec<f32>,
    out: &mut [f32],
) {
    of_type!(cached, pages => run_tasks(team, shape, queries, pages, mask, scratch, out));
}

fn run_tasks<C: Cached>(
    team: &Team,
    shape: AttentionShape,
    queries: Queries<'_>,
    pages: &Pages<C>,
    mask: &TreeMask,
    scratch: &mut Vec<f32>,
    out: &mut [f32],
) {
    // In a sequence, the queries of a key/value head are those of its group of query heads in all
    // rows.
    let group = shape.n_heads / shape.n_kv_heads;
    let queries_per_member = (mask.rows() * shape.n_heads).div_ceil(team.members());
    let task_queries = queries_per_member.clamp(1, MAX_TASK_QUERIES);
    let queries_per_kv_head = |sequence: &MaskSequence| sequence.rows.len() * group;
    let tasks = |sequence: &MaskSequence| queries_per_kv_head(sequence).div_ceil(task_queries);
    let pieces = |sequence: &MaskSequence| tasks(sequence) * shape.n_kv_heads;
    let max_task_queries =
        mask.sequences.iter().map(|s| queries_per_kv_head(s).div_ceil(tasks(s).max(1)));
    let max_task_queries = max_task_queries.max().unwrap_or(0);
    let extents = mask.rows.iter().map(|row| mask.extent(row));
    let score_stride = extents.max().unwrap_or(0).next_multiple_of(LANES);
    let value_width = shape.value_dim().next_multiple_of(LANES);
    // The values of a block of keys, if they are a part of the keys.
    let unpacked = if shape.first_value.is_some() { LANES * value_width } else { 0 };
    let member_scratch = max_task_queries * (score_stride + value_width) + unpacked;
    scratch.resize(member_scratch * team.members(), 0.0);
    let (scratch, out) = (SharedSlice::new(scratch), SharedSlice::new(out));
    team.for_each_piece(mask.sequences.iter().map(pieces).sum(), |member, mut number| {
        let mut sequences = mask.sequences.iter();
        let sequence = sequences.find(|sequence| {
            let is_in = number < pieces(sequence);
            number -= if is_in { 0 } else { pieces(sequence) };
            is_in
        });
        let sequence = sequence.expect("a sequence of this piece");
        let (tasks, queries_per_kv_head) = (tasks(sequence), queries_per_kv_head(sequence));
        let (kv_head, task) = (number / tasks, number % tasks);
        let first_query = task * queries_per_kv_head / tasks;
        let count = (task + 1) * queries_per_kv_head / tasks - first_query;
        // SAFETY: every member has a scratch range of its own.
        let scratch =
            unsafe { scratch.range_mut(member * member_scratch..(member + 1) * member_scratch) };
        let (unpacked, scratch) = scratch.split_at_mut(unpacked);
        let (scores, sums) = scratch.split_at_mut(max_task_queries * score_stride);
        let sums = &mut sums[..count * value_width];
        let out = &out;
        let task = Task {
            shape,
            queries,
            cached: SequenceRows { pages, table: mask.table(sequence) },
            mask,
            kv_head,
            first_query: sequence.rows.start * group + first_query,
            count,
            scores,
            score_stride,
            sums,
            value_lanes: value_width / LANES,
            unpacked,
            unpacked_block: None,
            out,
        };
        vectorize(team.isa(), task);
    });
}

/// The attention of some queries of one key/value head.
struct Task<'a, C: Cached> {
    shape: AttentionShape,
    queries: Queries<'a>,
    cached: SequenceRows<'a, C>,
    mask: &'a TreeMask,
    kv_head: usize,
    /// The index of the first query. Queries are numbered by row, then by head of the group.
    first_query: usize,
    count: usize,
    /// First scores by slot, later weights by position: `[count, score_stride]`.
    scores: &'a mut [f32],
    score_stride: usize,
    /// Sums of weighted values: `[count, lanes, 16]`.
    sums: &'a mut [f32],
    /// Vectors of 16 lanes in a value.
    value_lanes: usize,
    /// The values of a block of 16 slots, if they are a part of the keys: `[16, lanes, 16]`.
    unpacked: &'a mut [f32],
    /// The block that is unpacked.
    unpacked_block: Option<usize>,
    out: &'a SharedSlice<'a>,
}

impl<C: Cached> Vectorized for Task<'_, C> {
    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        self.score::<L>();
        let mut totals = [0.0; MAX_TASK_QUERIES];
        for (query, total) in totals.iter_mut().enumerate().take(self.count) {
            *total = self.softmax::<L>(query);
        }
        self.accumulate_values::<L>();
        self.store(&totals);
    }
}

impl<C: Cached> Task<'_, C> {
    /// Returns the row and the head of a query.
    #[inline(always)]
    fn row_and_head(&self, query: usize) -> (usize, usize) {
        let group = self.shape.n_heads / self.shape.n_kv_heads;
        let query = self.first_query + query;
        (query / group, self.kv_head * group + query % group)
    }

    #[inline(always)]
    fn query(&self, query: usize) -> &[f32] {
        let (row, head) = self.row_and_head(query);
        let dim = self.shape.head_dim;
        &self.queries.rows[row * self.queries.stride + head * dim..][..dim]
    }

    #[inline(always)]
    fn row(&self, query: usize) -> &MaskRow {
        &self.mask.rows[self.row_and_head(query).0]
    }

    /// Returns the first position that is visible to a query.
    #[inline(always)]
    fn first_visible(&self, query: usize) -> usize {
        self.row(query).first_position(self.shape.window)
    }

    /// Computes the scaled products of all queries with all keys from the first to the last slot
    /// that is visible to any of them. Stores them by slot.
    #[inline(always)]
    fn score<L: Lanes>(&mut self) {
        let extents = (0..self.count).map(|query| self.mask.extent(self.row(query)));
        let blocks = extents.max().unwrap_or(0).div_ceil(LANES);
        // A position is in the slot of the same number, or in a slot after all contiguous ones.
        let first = |query| self.first_visible(query).min(self.row(query).contiguous);
        let mut block = (0..self.count).map(first).min().unwrap_or(0) / LANES;
        while block < blocks {
            let step = if block + KEY_TILE <= blocks { KEY_TILE } else { 1 };
            let mut query = 0;
            while query < self.count {
                let rows = if query + QUERY_TILE <= self.count { QUERY_TILE } else { 1 };
                match (rows, step) {
                    (QUERY_TILE, KEY_TILE) if L::FEW_REGISTERS => {
                        for block in block..block + KEY_TILE {
                            self.multiply::<L, QUERY_TILE, 1>(query, block);
                        }
                    }
                    (QUERY_TILE, KEY_TILE) => {
                        self.multiply::<L, QUERY_TILE, KEY_TILE>(query, block);
                    }
                    (_, KEY_TILE) => self.multiply::<L, 1, KEY_TILE>(query, block),
                    (QUERY_TILE, _) => self.multiply::<L, QUERY_TILE, 1>(query, block),
                    _ => self.multiply::<L, 1, 1>(query, block),
                }
                query += rows;
            }
            block += step;
        }
    }

    /// Computes the scores of `Q` queries with the keys of `B` blocks.
    #[inline(always)]
    fn multiply<L: Lanes, const Q: usize, const B: usize>(&mut self, query: usize, block: usize) {
        let dim = self.shape.head_dim;
        let mut queries = [&[][..]; Q];
        for (index, slot) in queries.iter_mut().enumerate() {
            *slot = &self.query(query + index)[..dim];
        }
        let mut keys = [Keys::default(); B];
        for (index, slot) in keys.iter_mut().enumerate() {
            *slot = self.cached.keys(block + index, self.kv_head);
        }
        let mut sums = [[L::splat(0.0); B]; Q];
        for at in 0..dim {
            let mut key = [L::splat(0.0); B];
            for (key, keys) in key.iter_mut().zip(&keys) {
                *key = keys.load(at);
            }
            for (sums, query) in sums.iter_mut().zip(&queries) {
                let x = L::splat(query[at]);
                for (sum, &key) in sums.iter_mut().zip(&key) {
                    *sum = sum.mul_add(x, key);
                }
            }
        }
        let scale = L::splat(self.shape.score_scale);
        for (index, sums) in sums.iter().enumerate() {
            let at = (query + index) * self.score_stride + block * LANES;
            let (scores, _) = self.scores[at..].as_chunks_mut();
            for (scores, &sum) in scores.iter_mut().zip(sums) {
                sum.mul(scale).store(scores);
            }
        }
    }

    /// Computes the softmax of a query's scores, without the division: sorts the visible scores by
    /// position, and turns them into weights. Returns the sum of the weights.
    #[inline(always)]
    fn softmax<L: Lanes>(&mut self, query: usize) -> f32 {
        let (row, head) = self.row_and_head(query);
        let sink = self.queries.sinks.map(|sinks| sinks[head]);
        let (row, first) = (&self.mask.rows[row], self.first_visible(query));
        let scores = &mut self.scores[query * self.score_stride..(query + 1) * self.score_stride];
        // A path's slots ascend, and none is before the position to which it moves.
        for (index, &slot) in self.mask.rest(row).iter().enumerate() {
            scores[row.contiguous + index] = scores[slot];
        }
        if let Some(cap) = self.shape.score_cap {
            for score in &mut scores[first..row.len()] {
                *score = cap * tanh(*score / cap);
            }
        }
        // Lanes belong to absolute positions, so the sum begins at a whole block of positions.
        let (start, end) = (first / LANES * LANES, row.len().next_multiple_of(LANES));
        scores[start..first].fill(f32::NEG_INFINITY);
        scores[row.len()..end].fill(f32::NEG_INFINITY);
        let (chunks, _) = scores[start..end].as_chunks_mut::<LANES>();
        let mut peaks = L::splat(f32::NEG_INFINITY);
        for chunk in &*chunks {
            peaks = peaks.max(L::load(chunk));
        }
        let mut lanes = [0.0; LANES];
        peaks.store(&mut lanes);
        let mut peak = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
        peak = sink.map_or(peak, |sink| peak.max(sink));
        for chunk in &mut *chunks {
            for score in chunk {
                *score = exp(*score - peak);
            }
        }
        let total = sum::<L>(chunks.as_flattened());
        sink.map_or(total, |sink| total + exp(sink - peak))
    }

    /// Sums the weighted values in order of positions: first, for each query, the positions before
    /// those that are visible to all; then the contiguous positions that are visible to all
    /// queries, for all queries together; then, for each query, its remaining positions.
    #[inline(always)]
    fn accumulate_values<L: Lanes>(&mut self) {
        self.sums.fill(0.0);
        let contiguous = (0..self.count).map(|query| self.row(query).contiguous);
        let common = contiguous.min().unwrap_or(0);
        let first_visible = (0..self.count).map(|query| self.first_visible(query));
        let all_visible = first_visible.max().unwrap_or(0).min(common);
        for query in 0..self.count {
            let first = self.first_visible(query).min(all_visible);
            self.add::<L, 1>(query, first..all_visible, first);
        }
        // Values that are a part of the keys are unpacked for one block at a time.
        let step = if self.shape.first_value.is_some() { LANES } else { KEY_TILE * LANES };
        let mut first = all_visible;
        while first < common {
            let slots = first..common.min((first / LANES * LANES) + step);
            let mut query = 0;
            while query + QUERY_TILE <= self.count {
                self.add::<L, QUERY_TILE>(query, slots.clone(), first);
                query += QUERY_TILE;
            }
            for query in query..self.count {
                self.add::<L, 1>(query, slots.clone(), first);
            }
            first = slots.end;
        }
        for query in 0..self.count {
            let (mask, first_visible) = (self.mask, self.first_visible(query));
            let row = &mask.rows[self.row_and_head(query).0];
            let first = first_visible.clamp(common, row.contiguous);
            self.add::<L, 1>(query, first..row.contiguous, first);
            let hidden = first_visible.saturating_sub(row.contiguous);
            for (index, &slot) in mask.rest(row).iter().enumerate().skip(hidden) {
                self.add::<L, 1>(query, slot..slot + 1, row.contiguous + index);
            }
        }
    }

    /// Adds the weighted values of consecutive slots. The first of them is at `position`.
    #[inline(always)]
    fn add<L: Lanes, const Q: usize>(
        &mut self,
        query: usize,
        slots: Range<usize>,
        position: usize,
    ) {
        let Some(first_value) = self.shape.first_value else {
            return self.add_all_lanes::<L, Q, false>(query, slots, position);
        };
        let mut slot = slots.start;
        while slot < slots.end {
            let (block, end) = (slot / LANES, slots.end.min((slot / LANES + 1) * LANES));
            if self.unpacked_block != Some(block) {
                let keys = self.cached.keys(block, self.kv_head);
                keys.transpose::<L>(first_value, self.unpacked, self.value_lanes * LANES);
                self.unpacked_block = Some(block);
            }
            self.add_all_lanes::<L, Q, true>(query, slot..end, position + slot - slots.start);
            slot = end;
        }
    }

    #[inline(always)]
    fn add_all_lanes<L: Lanes, const Q: usize, const UNPACKED: bool>(
        &mut self,
        query: usize,
        slots: Range<usize>,
        position: usize,
    ) {
        let mut lane = 0;
        let one_by_one = L::FEW_REGISTERS && Q > 1;
        while lane < self.value_lanes {
            if !one_by_one && lane + OUT_LANES <= self.value_lanes {
                self.add_lanes::<L, Q, OUT_LANES, UNPACKED>(query, slots.clone(), position, lane);
                lane += OUT_LANES;
            } else {
                self.add_lanes::<L, Q, 1, UNPACKED>(query, slots.clone(), position, lane);
                lane += 1;
            }
        }
    }

    #[inline(always)]
    fn add_lanes<L: Lanes, const Q: usize, const N: usize, const UNPACKED: bool>(
        &mut self,
        query: usize,
        slots: Range<usize>,
        position: usize,
        lane: usize,
    ) {
        let lanes = self.value_lanes;
        let mut weights = [&[][..]; Q];
        for (index, slot) in weights.iter_mut().enumerate() {
            let at = (query + index) * self.score_stride + position;
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
                let values: [L; N] = match UNPACKED {
                    true => {
                        let row = &self.unpacked[(slot % LANES * lanes + lane) * LANES..];
                        let (chunks, _) = row.as_chunks();
                        std::array::from_fn(|index| L::load(&chunks[index]))
                    }
                    false => values.load(slot % LANES, lane),
                };
                for (sums, weights) in sums.iter_mut().zip(&weights) {
                    let weight = L::splat(weights[slot - slots.start]);
                    for (sum, &value) in sums.iter_mut().zip(&values) {
                        *sum = sum.mul_add(weight, value);
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

    /// Writes the outputs of the queries: their sums, divided by the totals of their weights.
    #[inline(always)]
    fn store(&self, totals: &[f32]) {
        let (dim, width) = (self.shape.value_dim(), self.value_lanes * LANES);
        for ((query, sums), total) in self.sums.chunks_exact(width).enumerate().zip(totals) {
            let (row, head) = self.row_and_head(query);
            let at = (row * self.shape.n_heads + head) * dim;
            // SAFETY: every (row, head) is a query of only one task.
            let out = unsafe { self.out.range_mut(at..at + dim) };
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = sum / total;
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::kernels::Isa;
    use forerun_cache::PAGE_ROWS;
    use forerun_formats::CacheType;
    use proptest::prelude::*;

    fn value(index: usize, seed: usize) -> f32 {
        let hash = (index as u32 ^ (seed as u32) << 20).wrapping_mul(2_654_435_761);
        (hash.rotate_left(13).wrapping_mul(0x9E37_79B9) as f32 / 2_147_483_648.0 - 1.0) * 2.0
    }

    /// Attention in plain loops: the softmax of the scaled products with the keys of the `visible`
    /// slots, times their values. `visible` has the slots of all positions from `first` on.
    fn expected(
        (query, visible, first): (&[f32], &[usize], usize),
        (keys, values): (impl Fn(usize) -> Vec<f32>, impl Fn(usize) -> Vec<f32>),
        (cap, sink, fused): (Option<f32>, Option<f32>, bool),
    ) -> Vec<f32> {
        let plus = |sum: f32, a: f32, b: f32| if fused { a.mul_add(b, sum) } else { sum + a * b };
        let scale = 1.0 / (query.len() as f32).sqrt();
        let score = |&slot: &usize| {
            let sum = query.iter().zip(keys(slot)).fold(0.0, |sum, (&q, k)| plus(sum, q, k));
            cap.map_or(sum * scale, |cap| cap * tanh(sum * scale / cap))
        };
        let scores: Vec<f32> = visible.iter().map(score).collect();
        let peak = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
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
        let mut out = vec![0.0; values(visible[0]).len()];
        for (&slot, &weight) in visible.iter().zip(&weights) {
            for (out, value) in out.iter_mut().zip(values(slot)) {
                *out = plus(*out, weight, value);
            }
        }
        let total = sink.map_or(lanes[0], |sink| lanes[0] + exp(sink - peak));
        out.iter().map(|out| out / total).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Heads of any width, groups, trees after prefixes of several segments, with and without
        /// sliding windows, with values of their own and with a part of the keys as values, in all
        /// types, on every instruction set.
        #[test]
        fn equals_plain_loops_bit_for_bit(
            head_dim in prop::sample::select(vec![2_usize, 8, 16, 20, 64, 72, 128]),
            n_kv_heads in 1..4_usize,
            group in 1..4_usize,
            prefix in 0..300_usize,
            parents in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
            members in 1..3_usize,
            window in prop::option::of(1..70_usize),
            has_cap in any::<bool>(),
            has_sinks in any::<bool>(),
            first_value in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let n_heads = n_kv_heads * group;
            let score_scale = 1.0 / (head_dim as f32).sqrt();
            let score_cap = has_cap.then_some(1.5);
            let first_value = first_value.map(|index| index.index(head_dim));
            let shape = AttentionShape {
                n_heads, n_kv_heads, head_dim, score_scale, score_cap, window, gate: false,
                first_value,
                has_keys: true,
            };
            let sinks: Option<Vec<f32>> =
                has_sinks.then(|| (0..n_heads).map(|head| value(head, 4)).collect());
            // Each node's parent is an earlier node, mostly the last one, or the end of the prefix.
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
            // The pages are not in order, and there is a gap between them.
            let n_pages = slots.div_ceil(PAGE_ROWS) as u32;
            let table: Vec<_> = (0..n_pages).rev().map(|page| PageId(2 * page)).collect();
            let table = PageTable { pages: &table };
            let mut mask = TreeMask::default();
            mask.push_sequence(table);
            for (node, path) in paths.iter().enumerate() {
                let in_order = path.iter().enumerate().take_while(|(at, node)| at == *node);
                let contiguous = in_order.count();
                let rest = path[contiguous..].iter().rev().map(|node| prefix + node);
                mask.push(prefix + node, prefix + contiguous, rest);
            }
            let stride = shape.n_heads * head_dim + 5;
            let queries: Vec<f32> = (0..rows * stride).map(|index| value(index, 1)).collect();
            let row = |slot: usize, seed| -> Vec<f32> {
                let width = shape.kv_width();
                (0..width).map(|index| value(slot * width + index, seed)).collect()
            };
            let kinds = Isa::available().into_iter();
            let types = CacheType::ALL;
            let kinds = kinds.flat_map(|isa| types.map(|cache_type| (cache_type, isa)));
            for (cache_type, isa) in kinds {
                let mut cached = KeysValues::new(shape, cache_type);
                table.pages.iter().for_each(|&page| cached.reserve(page));
                for slot in 0..slots {
                    let values = if first_value.is_some() { Vec::new() } else { row(slot, 3) };
                    cached.write(isa, table.place(slot), &row(slot, 2), &values);
                }
                let team = Team::unpinned(members).unwrap().with_isa(isa);
                let mut out = vec![f32::NAN; rows * shape.out_width()];
                let queries_of = Queries { rows: &queries, stride, sinks: sinks.as_deref() };
                attention(&team, shape, queries_of, &cached, &mask, &mut Vec::new(), &mut out);
                let outs = out.chunks_exact(shape.value_dim()).enumerate();
                for (index, out) in outs {
                    let (number, head) = (index / shape.n_heads, index % shape.n_heads);
                    let dims = head / group * head_dim..(head / group + 1) * head_dim;
                    let of = |seed, first| {
                        let dims = dims.clone();
                        let select = move |row: &[f32]| -> Vec<f32> {
                            let mut head = row[dims.clone()].to_vec();
                            if seed == 2 {
                                cache_type.hadamard(&mut head[..first_value.unwrap_or(head_dim)]);
                            }
                            cache_type.round(&mut head);
                            head.split_off(first)
                        };
                        move |slot| select(&row(slot, seed))
                    };
                    let values = match first_value {
                        Some(first) => of(2, first),
                        None => of(3, 0),
                    };
                    let query = &queries[number * stride + head * head_dim..][..head_dim];
                    let path = paths[number].iter().map(|node| prefix + node);
                    let visible: Vec<usize> = (0..prefix).chain(path).collect();
                    let first = window.map_or(0, |window| visible.len().saturating_sub(window));
                    let visible = (query, &visible[first..], first);
                    let sink = sinks.as_ref().map(|sinks| sinks[head]);
                    let pieces = (score_cap, sink, isa.is_fused());
                    let expected = expected(visible, (of(2, 0), values), pieces);
                    let bits = |values: &[f32]| -> Vec<u32> {
                        values.iter().map(|value| value.to_bits()).collect()
                    };
                    prop_assert_eq!(bits(out), bits(&expected), "{} on {}", cache_type, isa);
                }
            }
        }
    }
}

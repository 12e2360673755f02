//! The best tokens of rows of logits: whole rows come home only where all their logits are read.

use crate::kernel::{BEST_SLICE, Kernel};
use crate::pacer::work_of_selection;
use crate::parameters::Best;
use crate::recorder::Recorder;
use forerun_core::{BestTokens, RowUse};
use std::ops::Range;
use wgpu::Buffer;

/// The largest number of best tokens that is selected. A row of which more are read comes home as a
/// whole, because the time of a selection grows with them.
const MAX_COUNT: usize = 32;

/// How many of the best of a row's first tokens are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) count: u32,
    pub(crate) tokens: u32,
}

impl Selection {
    /// Returns the selection for rows of so many head outputs. `None` if whole rows come home: that
    /// is also done if a selection would have as many bytes.
    pub(crate) fn of(rows_for: RowUse, outputs: usize) -> Option<Self> {
        let RowUse::Best { count, tokens } = rows_for else { return None };
        let is_small = (1..=MAX_COUNT).contains(&count) && 2 * count < tokens;
        let selection = Self { count: count as u32, tokens: tokens as u32 };
        (is_small && tokens <= outputs).then_some(selection)
    }

    /// Returns the number of candidates of each step. A step selects so many of each slice of them.
    fn steps(self) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(self.tokens), move |&candidates| {
            let slices = candidates.div_ceil(BEST_SLICE);
            (slices > 1).then_some(slices * self.count)
        })
    }

    /// Returns the number of candidates of a row between its steps.
    pub(crate) fn between(self) -> u32 {
        self.steps().skip(1).sum()
    }
}

/// Where rows are whose best tokens are selected, and where these go.
#[derive(Clone, Copy)]
pub(crate) struct SelectedRows {
    pub(crate) rows: u32,
    /// The first logit, and the number of logits from a row to the next one.
    pub(crate) first: u32,
    pub(crate) stride: u32,
    /// The first result.
    pub(crate) to: u32,
    /// The first of the candidates between steps.
    pub(crate) between: u32,
}

impl Recorder<'_> {
    /// Records the selection of the best tokens of rows. `best` gets `[rows, count]` tokens with
    /// the bits of their logits.
    pub(crate) fn select_best(
        &mut self,
        (logits, best): (&Buffer, &Buffer),
        selection: Selection,
        selected: SelectedRows,
    ) {
        let SelectedRows { rows, mut first, mut stride, to: results, mut between } = selected;
        let count = selection.count;
        for (step, candidates) in selection.steps().enumerate() {
            let slices = candidates.div_ceil(BEST_SLICE);
            let to = if slices == 1 { results } else { between };
            let reads_logits = (step == 0).into();
            let parameters = Best { candidates, count, reads_logits, first, stride, slices, to };
            let groups = [slices, rows, 1];
            self.dispatch(Kernel::Best, &[logits, best], &parameters, groups);
            self.add_work(work_of_selection(u64::from(rows) * u64::from(candidates), count));
            (first, stride) = (to, slices * count);
            between += rows * slices * count;
        }
    }
}

/// The output rows of a pass, by what is read of them.
#[derive(Default)]
pub(crate) struct OutputRows {
    runs: Vec<OutputRun>,
    /// The number of rows of each sequence, and what is selected of each.
    sequences: Vec<(u32, Option<Selection>)>,
    /// Rows that come home as a whole.
    whole: u32,
    /// Tokens that are selected of the others.
    selected: u32,
}

/// Successive output rows of which the same is read.
struct OutputRun {
    rows: Range<u32>,
    selection: Option<Selection>,
    /// The number of the first row among those that come home as a whole, or of the first selected
    /// token.
    first_result: u32,
}

impl OutputRows {
    /// Adds the output rows of the next sequence. It shares the selection of the sequence before it
    /// if the same is read of both.
    pub(crate) fn add(&mut self, rows: u32, selection: Option<Selection>) {
        self.sequences.push((rows, selection));
        let start = self.runs.last().map_or(0, |run| run.rows.end);
        let first_result = match selection {
            None => self.whole,
            Some(_) => self.selected,
        };
        match self.runs.last_mut() {
            Some(run) if run.selection == selection => run.rows.end += rows,
            _ => {
                let rows = start..start + rows;
                self.runs.push(OutputRun { rows, selection, first_result });
            }
        }
        match selection {
            None => self.whole += rows,
            Some(Selection { count, .. }) => self.selected += rows * count,
        }
    }

    /// Returns the number of rows that come home as a whole.
    pub(crate) fn whole(&self) -> usize {
        self.whole as usize
    }

    pub(crate) fn selected(&self) -> u32 {
        self.selected
    }

    /// Returns the largest number of candidates between steps.
    pub(crate) fn between(&self) -> u64 {
        let of_run = |run: &OutputRun| {
            let of_row = run.selection.map_or(0, Selection::between);
            run.rows.len() as u64 * u64::from(of_row)
        };
        self.runs.iter().map(of_run).max().unwrap_or(0)
    }

    /// Returns the best tokens of each sequence's rows, from the selected tokens and the bits of
    /// their logits.
    pub(crate) fn best_tokens(&self, mut selected: &[[u32; 2]]) -> Vec<Vec<BestTokens>> {
        let of_sequence = |&(rows, selection): &(u32, Option<Selection>)| {
            let Some(Selection { count, tokens }) = selection else { return Vec::new() };
            let (own, others) = selected.split_at((rows * count) as usize);
            selected = others;
            let ranked = |row: &[[u32; 2]]| {
                row.iter().map(|&[token, bits]| (token, f32::from_bits(bits))).collect()
            };
            let rows = own.chunks_exact(count as usize).map(ranked);
            rows.map(|ranked| BestTokens { ranked, tokens: tokens as usize }).collect()
        };
        self.sequences.iter().map(of_sequence).collect()
    }
}

/// The logits of a chunk of the output rows, and where their best tokens go.
#[derive(Clone, Copy)]
pub(crate) struct ChunkLogits<'a> {
    pub(crate) logits: &'a Buffer, // [rows of the chunk, width]
    pub(crate) width: u32,
    pub(crate) best: &'a Buffer, // [selected tokens, 2], then candidates
}

impl Recorder<'_> {
    /// Records the selections of a chunk of output rows, and copies the others' logits to the
    /// staging buffer, which has them from this byte on.
    pub(crate) fn keep_outputs(
        &mut self,
        outputs: &OutputRows,
        (chunk, computed): (&Range<u32>, ChunkLogits<'_>),
        (staging, start): (&Buffer, u64),
    ) {
        let ChunkLogits { logits, width, best } = computed;
        let row_bytes = u64::from(width) * size_of::<f32>() as u64;
        let parts = || {
            outputs.runs.iter().filter_map(|run| {
                let rows = run.rows.start.max(chunk.start)..run.rows.end.min(chunk.end);
                (!rows.is_empty()).then_some((run, rows))
            })
        };
        for (run, rows) in parts() {
            let Some(selection) = run.selection else { continue };
            let selected = SelectedRows {
                rows: rows.len() as u32,
                first: (rows.start - chunk.start) * width,
                stride: width,
                to: run.first_result + (rows.start - run.rows.start) * selection.count,
                between: outputs.selected,
            };
            self.select_best((logits, best), selection, selected);
        }
        for (run, rows) in parts().filter(|(run, _)| run.selection.is_none()) {
            let from = u64::from(rows.start - chunk.start) * row_bytes;
            let to = u64::from(run.first_result + rows.start - run.rows.start) * row_bytes;
            let bytes = rows.len() as u64 * row_bytes;
            self.copy((logits, from), (staging, start + to), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::GpuDevice;
    use crate::pacer::Pacer;
    use crate::recorder::BoundBuffers;
    use crate::testing::gpu;

    /// Returns the best tokens of rows of this width, with the bits of their logits, as the kernel
    /// selects them.
    fn selected(
        device: &GpuDevice,
        logits: &[f32],
        width: usize,
        selection: Selection,
    ) -> Vec<Vec<(u32, u32)>> {
        let rows = (logits.len() / width) as u32;
        let (results, row) = (rows * selection.count, selection.between());
        let bytes = u64::from(results) * 8;
        let input = device.allocate("logits", size_of_val(logits) as u64).unwrap();
        device.upload(&input, 0, bytemuck::cast_slice(logits)).unwrap();
        let best = device.allocate("tokens", bytes + u64::from(rows * row) * 8).unwrap();
        let staging = device.allocate_staging("tokens", bytes).unwrap();
        let (mut bound, mut pacer) = (BoundBuffers::default(), Pacer::default());
        let mut recorder = Recorder::new(device, &mut bound, &mut pacer);
        let (first, stride) = (0, width as u32);
        let rows = SelectedRows { rows, first, stride, to: 0, between: results };
        recorder.select_best((&input, &best), selection, rows);
        recorder.copy((&best, 0), (&staging, 0), bytes);
        let submission = recorder.finish().submission;
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        let read = |bytes: &[u8]| {
            let all: &[[u32; 2]] = bytemuck::cast_slice(bytes);
            pairs = all.iter().map(|&[token, bits]| (token, bits)).collect();
        };
        device.read(&staging, bytes, submission, read).unwrap();
        pairs.chunks(selection.count as usize).map(<[_]>::to_vec).collect()
    }

    /// A plain loop: the best of all tokens that are left, again and again.
    fn expected(row: &[f32], count: usize) -> Vec<(u32, u32)> {
        let mut left: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        let mut best = Vec::new();
        for _ in 0..count {
            let mut at = 0;
            for (index, &(_, logit)) in left.iter().enumerate() {
                let largest = left[at].1;
                // A logit that is not finite comes before all others. Ties go to the token that was
                // there before.
                if largest.is_finite() && (!logit.is_finite() || logit > largest) {
                    at = index;
                }
            }
            let (token, logit) = left.remove(at);
            best.push((token, logit.to_bits()));
        }
        best
    }

    /// Returns logits of one of several kinds: spread, with many ties, all equal, zeros of both
    /// signs, and with a few that are not finite.
    fn logits(kind: usize, len: usize) -> Vec<f32> {
        let mut state = 0x9e37_79b9_u32.wrapping_add(kind as u32 * 77);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        let mut logit = || match kind % 6 {
            0 => (next() as f32 / u32::MAX as f32 - 0.5) * 40.0,
            1 => (next() % 7) as f32 - 3.0,
            2 => -2.5,
            3 => [0.0, -0.0, -1.0][next() as usize % 3],
            // Numbers of all magnitudes, also subnormal ones.
            4 => f32::from_bits(next()),
            _ => [f32::NEG_INFINITY, f32::NAN, f32::INFINITY, -f32::NAN]
                .get(next() as usize % 400)
                .copied()
                .unwrap_or_else(|| (next() % 1000) as f32),
        };
        (0..len).map(|_| logit()).collect()
    }

    #[test]
    fn the_best_tokens_are_those_of_a_plain_loop() {
        let Some(device) = gpu() else { return };
        // Less than a slice, exactly one, and several that are not full.
        let widths = [3, 130, 255, 4096, 4097, 9001];
        for (number, width) in widths.into_iter().enumerate() {
            for (index, count) in [1, 2, 5, 40, 64].into_iter().enumerate() {
                let rows = [1, 3, 7][(number + index) % 3];
                let all: Vec<f32> =
                    (0..rows).flat_map(|row| logits(row + number + index, width)).collect();
                // All tokens, and only the first ones.
                for tokens in [width, width - width / 3] {
                    if count > tokens {
                        continue;
                    }
                    let selection = Selection { count: count as u32, tokens: tokens as u32 };
                    let found = selected(&device, &all, width, selection);
                    let expected: Vec<_> =
                        all.chunks(width).map(|row| expected(&row[..tokens], count)).collect();
                    assert_eq!(found, expected, "{count} of {tokens} of {width}");
                }
            }
        }
    }

    #[test]
    fn many_rows_and_large_vocabularies_have_their_best_tokens() {
        let Some(device) = gpu() else { return };
        for (rows, width, count) in [(64, 1000, 1), (2, 151_936, 1), (1, 262_208, 64)] {
            let all: Vec<f32> = (0..rows).flat_map(|row| logits(row, width)).collect();
            let selection = Selection { count, tokens: width as u32 };
            let found = selected(&device, &all, width, selection);
            for (row, found) in all.chunks(width).zip(found) {
                let best = BestTokens::of(row, count as usize).ranked;
                let best = best.into_iter().map(|(token, logit)| (token, logit.to_bits()));
                assert_eq!(found, best.collect::<Vec<_>>(), "{count} of {width}");
            }
        }
    }

    #[test]
    fn large_selections_and_unknown_outputs_are_whole_rows() {
        let of = |count, tokens| Selection::of(RowUse::Best { count, tokens }, 1000);
        assert_eq!(of(1, 1000), Some(Selection { count: 1, tokens: 1000 }));
        assert_eq!(of(32, 200), Some(Selection { count: 32, tokens: 200 }));
        assert_eq!(of(33, 1000), None);
        assert_eq!(of(30, 60), None);
        assert_eq!(of(1, 1001), None);
        assert_eq!(of(0, 1000), None);
        assert_eq!(Selection::of(RowUse::Full, 1000), None);
        // Three steps, of which the last has one slice.
        let selection = Selection { count: 64, tokens: 262_208 };
        assert_eq!(selection.steps().collect::<Vec<_>>(), [262_208, 65 * 64, 2 * 64]);
        assert_eq!(selection.between(), 65 * 64 + 2 * 64);
    }

    #[test]
    fn successive_sequences_share_a_selection() {
        let one = Some(Selection { count: 1, tokens: 9 });
        let two = Some(Selection { count: 2, tokens: 9 });
        let mut outputs = OutputRows::default();
        for (rows, selection) in
            [(2, None), (1, one), (0, one), (3, one), (1, two), (1, None), (2, None)]
        {
            outputs.add(rows, selection);
        }
        let runs: Vec<_> =
            outputs.runs.iter().map(|run| (run.rows.clone(), run.first_result)).collect();
        assert_eq!(runs, [(0..2, 0), (2..6, 0), (6..7, 4), (7..10, 2)]);
        assert_eq!((outputs.whole(), outputs.selected()), (5, 6));
        let selected: Vec<[u32; 2]> = (0..6).map(|token| [token, 0]).collect();
        let best = outputs.best_tokens(&selected);
        let tokens = |rows: &[BestTokens]| -> Vec<Vec<u32>> {
            rows.iter().map(|row| row.ranked.iter().map(|(token, _)| *token).collect()).collect()
        };
        let found: Vec<_> = best.iter().map(|rows| tokens(rows)).collect();
        let none = Vec::<Vec<u32>>::new;
        let third = vec![vec![1], vec![2], vec![3]];
        let expected = [none(), vec![vec![0]], none(), third, vec![vec![4, 5]], none(), none()];
        assert_eq!(found, expected);
    }
}

//! The rows of a pass, as kernels read them.

use crate::attention::window;
use crate::best::{OutputRows, Selection};
use crate::features::{FeatureRun, feature_runs};
use crate::pages::place_number;
use crate::states::step_numbers;
use crate::weights::GpuWeights;
use bytemuck::{Pod, Zeroable};
use forerun_cache::RowPlace;
use forerun_formats::{Attention, Input, Rope};
use forerun_model::{Pass, SequencePass};
use std::ops::Range;

/// What kernels know of a row: the struct of `row.wgsl`, which describes the fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Row {
    pub(crate) token: u32,
    pub(crate) position: u32,
    pub(crate) table: u32,
    pub(crate) chain: u32,
    pub(crate) rest: u32,
    pub(crate) place: u32,
    pub(crate) output: u32,
    pub(crate) block_end: u32,
    pub(crate) in_block: u32,
}

/// The rows of a pass.
#[derive(Default)]
pub(crate) struct PassRows {
    pub(crate) rows: Vec<Row>,
    /// The page tables of the sequences, and the places of nodes of trees.
    pub(crate) places: Vec<u32>,
    pub(crate) own_places: Vec<RowPlace>,
    /// The cosines and the sines of rotations: `[ropes][rows, 2, pairs]`.
    pub(crate) tables: Vec<f32>,
    /// Where the table of each position embedding begins.
    pub(crate) table_starts: Vec<usize>,
    /// The rows whose logits are computed.
    pub(crate) outputs: Vec<u32>,
    /// What is read of their logits.
    pub(crate) output_rows: OutputRows,
    /// Where each row's recurrence starts and ends, if there are recurrent layers.
    pub(crate) steps: Vec<[u32; 2]>,
    /// What the rows read in addition to their tokens; empty if they read nothing else.
    pub(crate) features: Vec<FeatureRun>,
    /// The rows whose hidden states are read.
    pub(crate) hidden: Vec<Range<usize>>,
    /// Whether the rows only have keys and values, for blocks after them.
    pub(crate) is_context: bool,
    /// Whether the rows see the context before them, and neither themselves nor other rows.
    pub(crate) on_target_keys: bool,
}

impl PassRows {
    /// Collects the rows of all sequences, with the steps of recurrent layers if there are any.
    ///
    /// # Panics
    /// If a cache already holds an output row, or a row of a drafter lacks its features.
    pub(crate) fn new(pass: &Pass<'_>, weights: &GpuWeights, has_states: bool) -> Self {
        let architecture = weights.architecture();
        let masks =
            weights.features.as_ref().map_or(&[][..], |features| &features.mask_features[..]);
        let features = feature_runs(pass, architecture, masks);
        let is_block = matches!(architecture.input, Input::Block { .. });
        let is_context = pass.is_context();
        let on_target_keys = matches!(architecture.input, Input::TargetKeys { .. }) && !is_context;
        let mut rows = Self { features, is_context, on_target_keys, ..Self::default() };
        for read in pass.hidden_rows() {
            rows.add_hidden(read);
        }
        let mut steps = Vec::new();
        for sequence in pass.sequences {
            rows.add_sequence(sequence, is_block);
            let selection = Selection::of(sequence.rows_for, weights.head.outputs);
            rows.output_rows.add(sequence.output_rows() as u32, selection);
            if has_states {
                sequence.cache.add_state_steps(sequence.tree, &mut steps);
            }
        }
        rows.steps = steps.iter().map(step_numbers).collect();
        for (row, output) in rows.rows.iter_mut().zip(&rows.outputs) {
            row.output = *output;
        }
        for rope in &weights.ropes {
            rows.add_table(rope);
        }
        rows
    }

    /// Adds rows whose hidden states are read. Those of neighbours are one part, so that they are
    /// copied together.
    fn add_hidden(&mut self, read: Range<usize>) {
        match self.hidden.last_mut().filter(|last| last.end == read.start) {
            Some(last) => last.end = read.end,
            None => self.hidden.push(read),
        }
    }

    fn add_sequence(&mut self, sequence: &SequencePass<'_>, is_block: bool) {
        let (held, tree) = (sequence.held(), sequence.tree);
        let outputs = held..=tree.len();
        assert!(outputs.contains(&sequence.first_output), "output rows must be new rows");
        let table = sequence.cache.table();
        let start = self.places.len();
        self.places.extend(table.pages.iter().map(|page| page.0));
        let prefix = sequence.cache.prefix_len();
        for node in held..tree.len() {
            let path = tree.path(node);
            // The first nodes of the tree that are the first ones of the path are at slots of their
            // positions.
            let in_order = path.iter().enumerate().take_while(|&(index, node)| index == *node);
            // A block is a chain, whose rows may see all of it.
            let chain = match self.on_target_keys {
                true => 0,
                false if is_block => tree.len(),
                false => in_order.count(),
            };
            let rest = self.places.len();
            let later = path.iter().skip(chain).map(|node| table.place(prefix + node));
            self.places.extend(later.map(place_number));
            let place = table.place(prefix + node);
            self.own_places.push(place);
            if node >= sequence.first_output {
                self.outputs.push(self.rows.len() as u32);
            }
            self.rows.push(Row {
                token: tree.token(node),
                position: (prefix + path.len() - 1) as u32,
                table: start as u32,
                chain: (prefix + chain) as u32,
                rest: rest as u32,
                place: place_number(place),
                block_end: (prefix + chain) as u32,
                in_block: (node - held) as u32,
                ..Row::default()
            });
        }
    }

    fn add_table(&mut self, rope: &Rope) {
        self.table_starts.push(self.tables.len());
        let amplitude = rope.amplitude();
        for row in &self.rows {
            let angle = |pair| f64::from(row.position as f32 * rope.frequency(pair));
            let pairs = 0..rope.dims / 2;
            self.tables.extend(pairs.clone().map(|pair| angle(pair).cos() as f32 * amplitude));
            self.tables.extend(pairs.map(|pair| angle(pair).sin() as f32 * amplitude));
        }
    }

    /// Returns the number of rows whose hidden states are read.
    pub(crate) fn hidden_count(&self) -> usize {
        self.hidden.iter().map(Range::len).sum()
    }

    /// Returns whether rows see what is before the end of their block, not up to themselves. The
    /// block of a row on the target's keys ends before it.
    pub(crate) fn see_block(&self, attention: &Attention) -> bool {
        attention.sees_block || self.on_target_keys
    }

    /// Returns the positions that each row sees.
    fn seen(&self, attention: &Attention) -> impl Iterator<Item = Range<u32>> {
        let (window, sees_block) = (window(attention), self.see_block(attention));
        self.rows.iter().map(move |row| {
            let before = row.position + 1;
            before - before.min(window)..if sees_block { row.block_end } else { before }
        })
    }

    /// Returns the largest number of splits of what a row sees.
    pub(crate) fn splits(&self, attention: &Attention) -> u32 {
        let splits =
            self.seen(attention).map(|seen| (seen.end - 1) / SPLIT - seen.start / SPLIT + 1);
        splits.max().unwrap_or(0)
    }

    /// Returns the number of positions that all rows see.
    pub(crate) fn visible(&self, attention: &Attention) -> u64 {
        self.seen(attention).map(|seen| seen.len() as u64).sum()
    }
}

/// Positions of a split of attention, as in `attention.wgsl`.
pub(crate) const SPLIT: u32 = 256;

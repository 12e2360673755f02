//! The rows of a pass: where they are, what they see, and what rotates them.

use crate::adapters::{AdapterScratch, AdapterWeights, Projected};
use crate::kernels::TreeMask;
use crate::team::Team;
use crate::weights::Weights;
use forerun_cache::{RowPlace, StateStep};
use forerun_core::{Node, TokenId};
use forerun_formats::Input;
use forerun_model::{Pass, SequencePass};
use std::ops::Range;
use std::sync::Arc;

/// The rows that a pass computes, those of all sequences in order.
#[derive(Default)]
pub(super) struct Rows {
    tree_mask: TreeMask,
    /// The mask of layers whose rows see their whole block. An encoder's texts are blocks.
    block_mask: TreeMask,
    /// See [`Rows::in_blocks`].
    in_blocks: Vec<usize>,
    pub(super) rope_tables: Vec<Vec<f32>>, // [position embeddings][rows, 2, head_dim/2]
    pub(super) steps: Vec<StateStep>,      // [rows], if there are recurrent layers
    /// The rows with an adapter, in order.
    adapted: Vec<(Arc<AdapterWeights>, Range<usize>)>,
}

/// The rows of a pass at a layer, for what their adapters add there.
#[derive(Clone, Copy)]
pub(super) struct Adapted<'a> {
    pub(super) rows: &'a Rows,
    pub(super) layer: usize,
}

impl Adapted<'_> {
    /// Adds what the rows' adapters add to a projection. `x`: `[rows, inputs]`, `out`:
    /// `[rows, outputs]`.
    pub(super) fn add(
        self,
        team: &Team,
        projected: Projected,
        x: &[f32],
        out: &mut [f32],
        scratch: &mut AdapterScratch,
    ) {
        for (adapter, rows) in &self.rows.adapted {
            let [inputs, outputs] = [x.len(), out.len()].map(|values| values / self.rows.len());
            let x = &x[rows.start * inputs..rows.end * inputs];
            let out = &mut out[rows.start * outputs..rows.end * outputs];
            adapter.add(team, (self.layer, projected), x, out, scratch);
        }
    }
}

impl Rows {
    pub(super) fn len(&self) -> usize {
        self.tree_mask.rows()
    }

    /// Returns the place of a row's own key and value.
    pub(super) fn place(&self, row: usize) -> RowPlace {
        self.tree_mask.place(row)
    }

    /// Returns the places of all rows' own keys and values.
    pub(super) fn places(&self) -> impl Iterator<Item = RowPlace> + '_ {
        self.tree_mask.places()
    }

    /// Returns the attention mask of a layer.
    pub(super) fn mask(&self, sees_block: bool) -> &TreeMask {
        if sees_block { &self.block_mask } else { &self.tree_mask }
    }

    /// Returns the index of each row in its block: `[rows]`. It is empty if there are
    /// no blocks.
    pub(super) fn in_blocks(&self) -> &[usize] {
        &self.in_blocks
    }

    pub(super) fn clear(&mut self) {
        self.tree_mask.clear();
        self.block_mask.clear();
        self.in_blocks.clear();
        self.rope_tables.iter_mut().for_each(Vec::clear);
        self.steps.clear();
        self.adapted.clear();
    }

    /// Adds the new rows of a sequence, whose adapter is one of `adapters`.
    pub(super) fn add(
        &mut self,
        weights: &Weights,
        adapters: &[Arc<AdapterWeights>],
        sequence: &SequencePass<'_>,
    ) {
        if let Some(id) = sequence.adapter {
            let (adapter, first) = (&adapters[id.0 as usize], self.len());
            let end = first + sequence.rows();
            match self.adapted.last_mut() {
                Some((last, rows)) if rows.end == first && Arc::ptr_eq(last, adapter) => {
                    rows.end = end;
                }
                _ => self.adapted.push((Arc::clone(adapter), first..end)),
            }
        }
        self.rope_tables.resize_with(weights.ropes.len(), Vec::new);
        for (rope, tables) in weights.ropes.iter().zip(&mut self.rope_tables) {
            let (size, start) = (rope.table_len(), tables.len());
            tables.resize(start + sequence.rows() * size, 0.0);
            for (table, position) in tables[start..].chunks_exact_mut(size).zip(positions(sequence))
            {
                rope.table(position, table);
            }
        }
        let first_slot = sequence.cache.prefix_len();
        let architecture = weights.architecture();
        if matches!(architecture.input, Input::Block { .. }) || architecture.is_encoder() {
            self.add_to_block_mask(sequence, first_slot);
        }
        let on_target_keys = matches!(architecture.input, Input::TargetKeys { .. });
        self.add_to_tree_mask(sequence, first_slot, on_target_keys);
        if weights.has_states() {
            sequence.cache.add_state_steps(sequence.tree, &mut self.steps);
        }
    }

    fn add_to_block_mask(&mut self, sequence: &SequencePass<'_>, first_slot: usize) {
        let end = first_slot + sequence.tree.len();
        self.block_mask.push_sequence(sequence.cache.table());
        let slots = first_slot + sequence.held()..end;
        slots.for_each(|slot| self.block_mask.push_of_block(slot, end));
        self.in_blocks.extend(0..sequence.rows());
    }

    /// Adds a sequence to the tree mask. Its tree's slots start at `first_slot`. Rows on the target's
    /// keys see those before it.
    fn add_to_tree_mask(
        &mut self,
        sequence: &SequencePass<'_>,
        first_slot: usize,
        on_target_keys: bool,
    ) {
        let tree = sequence.tree;
        self.tree_mask.push_sequence(sequence.cache.table());
        if on_target_keys {
            let slots = first_slot + sequence.held()..first_slot + tree.len();
            return slots.for_each(|slot| self.tree_mask.push_after(slot, first_slot));
        }
        // A node's ancestors and itself are the nodes `0..=node` exactly if its depth is
        // `node + 1`.
        let ends_chain = |node: Node| tree.depth(node) == node + 1;
        for node in sequence.held()..tree.len() {
            let mut upwards = std::iter::successors(Some(node), |&node| tree.parent(node));
            let chain = upwards.clone().find(|&node| ends_chain(node)).map_or(0, |node| node + 1);
            let rest = upwards.by_ref().take_while(|&node| !ends_chain(node));
            let rest = rest.map(|node| first_slot + node);
            self.tree_mask.push(first_slot + node, first_slot + chain, rest);
        }
    }
}

/// Returns the positions of a sequence's new rows.
pub(super) fn positions(sequence: &SequencePass<'_>) -> impl Iterator<Item = usize> {
    let (tree, first_slot) = (sequence.tree, sequence.cache.prefix_len());
    (sequence.held()..tree.len()).map(move |node| first_slot + tree.depth(node) - 1)
}

/// Returns the tokens of the new rows of all sequences.
pub(super) fn new_tokens(pass: &Pass<'_>) -> impl Iterator<Item = TokenId> {
    let sequences = pass.sequences.iter();
    sequences.flat_map(|sequence| sequence.tree.tokens()[sequence.held()..].iter().copied())
}

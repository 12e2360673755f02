//! The hidden states that are a token's features, and their storage in a cache.

use std::ops::Range;

/// The hidden states that drafters read as a token's features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeatureSource {
    /// The input of the head: the last hidden state, after the final norm (Medusa, EAGLE).
    LastHidden,
    /// The residual stream after each of these numbers of layers, concatenated (EAGLE-3).
    Layers(Vec<usize>),
}

impl FeatureSource {
    /// Returns the width of a token's features in a model with this hidden size.
    #[must_use]
    pub fn width(&self, hidden_size: usize) -> usize {
        match self {
            Self::LastHidden => hidden_size,
            Self::Layers(layers) => layers.len() * hidden_size,
        }
    }
}

/// The features of a cache's slots, stored in addition to keys and values.
pub(crate) struct FeatureSlots {
    width: usize,
    values: Vec<f32>, // [slots, width]
}

impl FeatureSlots {
    /// Creates a storage without slots.
    pub(crate) fn new(width: usize) -> Self {
        Self { width, values: Vec::new() }
    }

    /// Ensures that there is space for `slots` slots.
    pub(crate) fn reserve(&mut self, slots: usize) {
        if self.values.len() < slots * self.width {
            self.values.resize(slots * self.width, 0.0);
        }
    }

    /// Copies a slot's features to another slot.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        let from = from * self.width..(from + 1) * self.width;
        self.values.copy_within(from, to * self.width);
    }

    /// Writes `states`, `[rows, size]`, as part number `part` of the slots from `first` on.
    pub(crate) fn write(&mut self, first: usize, part: usize, states: &[f32], size: usize) {
        let slots = self.values.chunks_exact_mut(self.width).skip(first);
        for (slot, state) in slots.zip(states.chunks_exact(size)) {
            slot[part * size..(part + 1) * size].copy_from_slice(state);
        }
    }

    /// Returns the features of some slots, which must have been written: `[slots, width]`.
    pub(crate) fn rows(&self, slots: Range<usize>) -> &[f32] {
        &self.values[slots.start * self.width..slots.end * self.width]
    }

    /// Returns the width of a slot's features.
    pub(crate) fn width(&self) -> usize {
        self.width
    }
}

//! A model between two devices: its first layers on one, and everything else on the other.

use crate::forward::{
    CacheOverflow, Forward, ForwardLayers, ForwardRest, LayersOutput, Pass, PassError, PassOutput,
};
use forerun_cache::{PageId, PageStorage, PageTable, RowPlace, StateId, StorageError};
use forerun_core::FeatureRows;
use forerun_formats::{Architecture, FeatureSource};
use std::ops::Range;

/// A model whose first layers are on one device, such as a GPU. The embedding, the other layers and
/// the head are on another one, such as cores, which may also have the experts of the first layers.
/// Only hidden states move between them: each row's once there and once back in a pass, and once
/// more for each layer whose experts are elsewhere.
///
/// A layer has the bits of its device.
pub struct SplitModel<L, R> {
    first: L,
    rest: R,
    /// The numbers of layers after which the first device returns hidden states: those of features,
    /// and its last.
    kept: Vec<usize>,
    inputs: Vec<f32>, // [rows, hidden]
    /// The keys and values of the last pass that a cache cannot hold.
    overflows: Vec<CacheOverflow>,
}

impl<L: ForwardLayers, R: ForwardRest> SplitModel<L, R> {
    /// Joins the first layers of a model with the rest. `features` are those that `rest` stores for
    /// drafters, if any.
    ///
    /// # Panics
    /// If `first` has no layers, or more than the model.
    #[must_use]
    pub fn new(first: L, rest: R, features: Option<&FeatureSource>) -> Self {
        let n_layers = first.n_layers();
        let all = rest.architecture().layers.len();
        assert!((1..=all).contains(&n_layers), "{n_layers} layers of {all}");
        let mut kept = match features {
            Some(FeatureSource::Layers(chosen)) => chosen.clone(),
            Some(FeatureSource::LastHidden) | None => Vec::new(),
        };
        kept.retain(|layers| (1..n_layers).contains(layers));
        kept.push(n_layers);
        kept.sort_unstable();
        kept.dedup();
        Self { first, rest, kept, inputs: Vec::new(), overflows: Vec::new() }
    }

    /// Returns the device with the first layers.
    #[must_use]
    pub fn first(&self) -> &L {
        &self.first
    }
}

impl<L: ForwardLayers, R: ForwardRest> Forward for SplitModel<L, R> {
    type Storage = SplitPages<L::Storage, R::Storage>;

    fn architecture(&self) -> &Architecture {
        self.rest.architecture()
    }

    fn new_storage(&self) -> Self::Storage {
        SplitPages { first: self.first.new_storage(), rest: self.rest.new_storage() }
    }

    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut Self::Storage,
    ) -> Result<PassOutput<'_>, PassError> {
        let Self { first, rest, kept, inputs, overflows } = self;
        let n_layers = first.n_layers();
        inputs.clear();
        inputs.extend_from_slice(rest.inputs(pass, &mut storage.rest));
        let size = inputs.len();
        let experts = &mut |layer, states: [&[f32]; 2], output: &mut Vec<f32>| {
            rest.experts(layer, states, output);
        };
        let computed = first.forward_layers(pass, inputs, kept, experts, &mut storage.first)?;
        let LayersOutput { hidden, overflows: of_first } = computed;
        overflows.clear();
        overflows.extend_from_slice(of_first);
        for (layers, hidden) in kept.iter().zip(hidden.chunks_exact(size.max(1))) {
            rest.store_hidden(*layers, hidden, &mut storage.rest);
        }
        let last = &hidden[hidden.len() - size..];
        let output = rest.forward_rest(pass, n_layers, last, &mut storage.rest)?;
        overflows.extend_from_slice(output.overflows);
        Ok(PassOutput { overflows, ..output })
    }
}

/// The pages of a [`SplitModel`]: a page has a part on each device.
pub struct SplitPages<L, R> {
    first: L,
    /// Features are here.
    rest: R,
}

impl<L: PageStorage, R: PageStorage> SplitPages<L, R> {
    /// Returns the part of the device with the first layers.
    #[must_use]
    pub fn first(&self) -> &L {
        &self.first
    }
}

impl<L: PageStorage, R: PageStorage> PageStorage for SplitPages<L, R> {
    fn page_bytes(&self) -> usize {
        self.first.page_bytes() + self.rest.page_bytes()
    }

    fn set_budget(&mut self, pages: usize) {
        self.first.set_budget(pages);
        self.rest.set_budget(pages);
    }

    fn reserve(&mut self, page: PageId) -> Result<(), StorageError> {
        self.first.reserve(page)?;
        self.rest.reserve(page)
    }

    fn copy_row(&mut self, from: RowPlace, to: RowPlace) {
        self.first.copy_row(from, to);
        self.rest.copy_row(from, to);
    }

    fn features(&self, table: PageTable<'_>, slots: Range<usize>) -> Option<FeatureRows> {
        self.rest.features(table, slots)
    }

    fn release(&mut self, page: PageId) {
        self.first.release(page);
        self.rest.release(page);
    }

    fn state_bytes(&self) -> usize {
        self.first.state_bytes() + self.rest.state_bytes()
    }

    fn set_state_budget(&mut self, states: usize) {
        self.first.set_state_budget(states);
        self.rest.set_state_budget(states);
    }

    fn reserve_state(&mut self, state: StateId) -> Result<(), StorageError> {
        self.first.reserve_state(state)?;
        self.rest.reserve_state(state)
    }

    fn release_state(&mut self, state: StateId) {
        self.first.release_state(state);
        self.rest.release_state(state);
    }
}

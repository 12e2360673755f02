//! The pages of a model's caches in main memory.

use crate::feature_pages::FeaturePages;
use crate::kernels::{AttentionShape, KeysValues, RecurrentStates};
use crate::tensor_parallel::PageOperation;
use forerun_cache::{PAGE_ROWS, PageId, PageStorage, PageTable, RowPlace, StateId, StorageError};
use forerun_core::FeatureRows;
use forerun_formats::{CacheType, Layer};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Keys, values and features of all pages, and states of recurrent layers, in main memory.
pub struct CpuPages {
    layers: Vec<LayerCache>,
    /// The features of all rows, if the model stores features.
    features: Option<FeaturePages>,
    /// The pages of the other members of a tensor-parallel group, if there are any.
    mirror: Option<Mirror>,
}

/// The storages that have been dropped and still exist on other members.
pub(crate) type DroppedStorages = Arc<Mutex<Vec<u32>>>;

/// The other members' parts of a storage: pages of the same numbers with other heads. What happens
/// to these pages is noted, for the message of the next pass.
pub(crate) struct Mirror {
    storage: u32,
    operations: Vec<PageOperation>,
    /// The bytes of a page and of a state, of all other members together.
    bytes: (usize, usize),
    dropped: DroppedStorages,
}

impl Mirror {
    /// Creates the other members' parts of the storage with this number. `bytes` are those of their
    /// pages and states.
    pub(crate) fn new(storage: u32, bytes: (usize, usize), dropped: DroppedStorages) -> Self {
        Self { storage, operations: Vec::new(), bytes, dropped }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.storage);
    }
}

/// Returns the storages that have been dropped since the last call.
pub(crate) fn take_dropped(storages: &DroppedStorages) -> Vec<u32> {
    std::mem::take(&mut storages.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What a layer keeps. A layer with a recurrent mixer, or without keys of its own, has keys and
/// values of no heads.
pub(crate) struct LayerCache {
    pub(crate) keys_values: KeysValues,
    pub(crate) states: Option<RecurrentStates>,
}

impl CpuPages {
    /// Creates a storage without pages for these layers.
    pub(crate) fn new(layers: &[Layer], cache_type: CacheType) -> Self {
        let cache = |layer: &Layer| LayerCache {
            keys_values: KeysValues::new(AttentionShape::of_cache(layer), cache_type),
            states: layer.recurrent.map(RecurrentStates::new),
        };
        Self { layers: layers.iter().map(cache).collect(), features: None, mirror: None }
    }

    /// Returns the same storage, configured to store features of this width.
    pub(crate) fn with_features(self, width: usize) -> Self {
        Self { features: Some(FeaturePages::new(width)), ..self }
    }

    /// Returns the same storage, of which other members have parts, too.
    pub(crate) fn with_mirror(self, mirror: Mirror) -> Self {
        Self { mirror: Some(mirror), ..self }
    }

    /// Returns the storage's number, and what has happened to its pages since the last call, if
    /// other members have parts of it.
    pub(crate) fn take_operations(&mut self) -> Option<(u32, Vec<PageOperation>)> {
        let mirror = self.mirror.as_mut()?;
        Some((mirror.storage, std::mem::take(&mut mirror.operations)))
    }

    fn note(&mut self, operation: PageOperation) {
        if let Some(mirror) = &mut self.mirror {
            mirror.operations.push(operation);
        }
    }

    /// Returns what several layers keep.
    pub(crate) fn layers_mut(&mut self, layers: Range<usize>) -> &mut [LayerCache] {
        &mut self.layers[layers]
    }

    pub(crate) fn keys_values_of(&self, layer: usize) -> &KeysValues {
        &self.layers[layer].keys_values
    }

    /// Returns the features, so that a pass can write them along with keys and values.
    pub(crate) fn features_mut(&mut self) -> Option<&mut FeaturePages> {
        self.features.as_mut()
    }

    /// Returns the allocated memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let features = self.features.as_ref().map_or(0, FeaturePages::bytes);
        let states: usize = self.states().map(RecurrentStates::bytes).sum();
        self.keys_values().map(KeysValues::bytes).sum::<usize>() + states + features
    }

    /// Returns the size of one row's keys and values in bytes, without padding.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.keys_values().map(KeysValues::row_bytes).sum()
    }

    fn keys_values(&self) -> impl Iterator<Item = &KeysValues> {
        self.layers.iter().map(|layer| &layer.keys_values)
    }

    fn keys_values_mut(&mut self) -> impl Iterator<Item = &mut KeysValues> {
        self.layers.iter_mut().map(|layer| &mut layer.keys_values)
    }

    fn states(&self) -> impl Iterator<Item = &RecurrentStates> {
        self.layers.iter().filter_map(|layer| layer.states.as_ref())
    }

    fn states_mut(&mut self) -> impl Iterator<Item = &mut RecurrentStates> {
        self.layers.iter_mut().filter_map(|layer| layer.states.as_mut())
    }

    /// Returns the bits of each layer's keys and values in a range of slots. Tests compare them.
    #[must_use]
    pub fn bits(&self, table: PageTable<'_>, slots: Range<usize>) -> Vec<Vec<u32>> {
        let bits = |layer: &KeysValues| {
            let rows = slots.clone().flat_map(|slot| layer.row(table.place(slot)));
            rows.map(f32::to_bits).collect()
        };
        self.keys_values().map(bits).collect()
    }
}

impl CpuPages {
    pub(crate) fn allocate(&mut self, page: PageId) {
        self.note(PageOperation::Reserve(page.0));
        self.keys_values_mut().for_each(|layer| layer.reserve(page));
        self.features.iter_mut().for_each(|features| features.reserve(page));
    }

    pub(crate) fn allocate_state(&mut self, state: StateId) {
        self.note(PageOperation::ReserveState(state.0));
        self.states_mut().for_each(|layer| layer.reserve(state));
    }
}

impl PageStorage for CpuPages {
    fn page_bytes(&self) -> usize {
        let features = self.features.as_ref().map_or(0, FeaturePages::row_bytes);
        let of_others = self.mirror.as_ref().map_or(0, |mirror| mirror.bytes.0);
        PAGE_ROWS * (self.row_bytes() + features) + of_others
    }

    fn reserve(&mut self, page: PageId) -> Result<(), StorageError> {
        self.allocate(page);
        Ok(())
    }

    fn copy_row(&mut self, from: RowPlace, to: RowPlace) {
        self.note(PageOperation::copy_row(from, to));
        self.keys_values_mut().for_each(|layer| layer.copy(from, to));
        self.features.iter_mut().for_each(|features| features.copy(from, to));
    }

    fn features(&self, table: PageTable<'_>, slots: Range<usize>) -> Option<FeatureRows> {
        let features = self.features.as_ref()?;
        let rows = slots.flat_map(|slot| features.row(table.place(slot)));
        Some(FeatureRows::new(features.width(), rows.copied().collect()))
    }

    fn release(&mut self, page: PageId) {
        self.note(PageOperation::Release(page.0));
        self.keys_values_mut().for_each(|layer| layer.release(page));
        self.features.iter_mut().for_each(|features| features.release(page));
    }

    fn page_parts(&mut self, page: PageId) -> Option<Vec<&mut [u8]>> {
        if self.mirror.is_some() {
            return None;
        }
        let Self { layers, features, .. } = self;
        let layers = layers.iter_mut().flat_map(|layer| layer.keys_values.page_parts(page));
        Some(layers.chain(features.iter_mut().map(|features| features.part(page))).collect())
    }

    fn state_bytes(&self) -> usize {
        let of_others = self.mirror.as_ref().map_or(0, |mirror| mirror.bytes.1);
        self.states().map(RecurrentStates::state_bytes).sum::<usize>() + of_others
    }

    fn reserve_state(&mut self, state: StateId) -> Result<(), StorageError> {
        self.allocate_state(state);
        Ok(())
    }

    fn release_state(&mut self, state: StateId) {
        self.note(PageOperation::ReleaseState(state.0));
        self.states_mut().for_each(|layer| layer.release(state));
    }

    fn state_parts(&mut self, state: StateId) -> Option<Vec<&mut [u8]>> {
        match self.mirror {
            Some(_) => None,
            None => Some(self.states_mut().flat_map(|layer| layer.parts(state)).collect()),
        }
    }
}

//! The pages of a model's caches in a GPU's memory.

use crate::device::GpuDevice;
use crate::error::GpuFailure;
use crate::kernel::Kernel;
use crate::parameters::CopyRows;
use crate::recorder::Recorder;
use crate::weights::LayerWeights;
use forerun_cache::{PAGE_ROWS, PageId, PageStorage, PageTable, RowPlace, StorageError};
use forerun_core::FeatureRows;
use forerun_formats::CacheType;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use wgpu::Buffer;

/// Keys and values of all pages in a GPU's memory. The memory of a released page is kept for the next one.
///
/// Features of drafters are in main memory.
pub struct GpuPages {
    device: Arc<GpuDevice>,
    layers: Vec<LayerPages>,
    /// Number of pages with memory.
    capacity: usize,
    /// Number of pages beyond which memory is allocated for needed pages only.
    budget: usize,
    /// Rows to copy before the next pass, in this order: the numbers of their places.
    copies: Vec<[u32; 2]>,
    features: Option<HostFeatures>,
}

/// The keys and values of a layer. A layer that attends to those of another one has none.
struct LayerPages {
    /// Words of 32 bits of a row's keys, and of its values.
    row_words: usize,
    keys: Buffer,   // [places, row_words]
    values: Buffer, // [places, row_words]
}

/// The features of rows, in main memory.
struct HostFeatures {
    width: usize,
    rows: HashMap<RowPlace, Vec<f32>>,
}

/// Returns the number of a place, as kernels count rows of pages.
pub(crate) fn place_number(place: RowPlace) -> u32 {
    (place.page.index() * PAGE_ROWS + place.row) as u32
}

impl GpuPages {
    /// Creates a storage without pages. The keys and values of layers without pages are `empty`.
    pub(crate) fn new(
        device: &Arc<GpuDevice>,
        layers: &[LayerWeights],
        cache_type: CacheType,
        empty: &[Buffer; 2],
    ) -> Self {
        let per_word = if cache_type == CacheType::F32 { 1 } else { 2 };
        let [keys, values] = empty;
        let layers = layers.iter().map(|layer| LayerPages {
            row_words: layer.own_key_heads() * layer.attention.head_dim / per_word,
            keys: keys.clone(),
            values: values.clone(),
        });
        let layers = layers.collect();
        let device = Arc::clone(device);
        Self { device, layers, capacity: 0, budget: usize::MAX, copies: Vec::new(), features: None }
    }

    /// Returns the same storage, configured to store features of this width.
    pub(crate) fn with_features(self, width: usize) -> Self {
        Self { features: Some(HostFeatures { width, rows: HashMap::new() }), ..self }
    }

    /// Returns the largest number of pages that kernels can address.
    #[must_use]
    pub fn max_pages(&self) -> usize {
        let page_bytes = self.layers.iter().map(|layer| layer.row_words * PAGE_ROWS * 4).max();
        (self.device.max_binding_bytes() / page_bytes.unwrap_or(0).max(1) as u64) as usize
    }

    /// Returns the number of pages with memory. Buffers are replaced when it changes.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the keys and the values of a layer.
    pub(crate) fn layer(&self, layer: usize) -> [&Buffer; 2] {
        [&self.layers[layer].keys, &self.layers[layer].values]
    }

    /// Returns the bytes of a row's keys and values in a layer.
    pub(crate) fn row_bytes(&self, layer: usize) -> u64 {
        (2 * 4 * self.layers[layer].row_words) as u64
    }

    /// Records the copies of rows that have not been made yet. Returns whether there are any: they must be submitted.
    ///
    /// # Errors
    /// If there is no memory for their list. They are recorded with the next pass then.
    pub(crate) fn record_copies(
        &mut self,
        recorder: &mut Recorder<'_>,
    ) -> Result<bool, GpuFailure> {
        if self.copies.is_empty() {
            return Ok(false);
        }
        let bytes: &[u8] = bytemuck::cast_slice(&self.copies);
        let list = self.device.allocate("copies of rows", bytes.len() as u64)?;
        self.device.write(&list, 0, bytes);
        for layer in self.layers.iter().filter(|layer| layer.row_words > 0) {
            let words = layer.row_words as u32;
            let parameters = CopyRows { words, copies: self.copies.len() as u32 };
            for cache in [&layer.keys, &layer.values] {
                let groups = [words.div_ceil(64), 1, 1];
                recorder.dispatch_once(Kernel::CopyRows, &[&list, cache], &parameters, groups);
            }
        }
        self.copies.clear();
        Ok(true)
    }

    /// Stores the features of rows: `[rows, width]`.
    pub(crate) fn store_features(&mut self, places: &[RowPlace], features: &[f32]) {
        if let Some(stored) = &mut self.features {
            let rows = places.iter().zip(features.chunks_exact(stored.width));
            stored.rows.extend(rows.map(|(place, row)| (*place, row.to_vec())));
        }
    }

    /// Whether rows have features.
    pub(crate) fn has_features(&self) -> bool {
        self.features.is_some()
    }

    /// Moves all pages to buffers for `capacity` pages. Nothing changes if there is no memory.
    fn grow(&mut self, capacity: usize) -> Result<(), GpuFailure> {
        let device = &self.device;
        let page_bytes = |layer: &LayerPages| (layer.row_words * PAGE_ROWS * 4) as u64;
        let with_pages = |layer: &&mut LayerPages| layer.row_words > 0;
        let mut larger = Vec::new();
        for layer in self.layers.iter_mut().filter(with_pages) {
            let bytes = capacity as u64 * page_bytes(layer);
            let allocate = || device.allocate("keys and values", bytes);
            larger.push([allocate()?, allocate()?]);
        }
        let mut encoder = device.new_encoder();
        for (layer, [keys, values]) in self.layers.iter_mut().filter(with_pages).zip(larger) {
            let held = self.capacity as u64 * page_bytes(layer);
            for (from, to) in [(&mut layer.keys, keys), (&mut layer.values, values)] {
                if held > 0 {
                    encoder.copy_buffer_to_buffer(from, 0, &to, 0, held);
                }
                *from = to;
            }
        }
        device.submit(encoder);
        self.capacity = capacity;
        Ok(())
    }
}

/// Returns the number of pages to have memory for, so that a cache that grows slowly is moved rarely: a half more than
/// before, but not more than the budget unless these pages are needed.
fn roomy_capacity(needed: usize, capacity: usize, budget: usize, max: usize) -> usize {
    (capacity + capacity / 2).min(budget).max(needed).min(max)
}

impl PageStorage for GpuPages {
    fn page_bytes(&self) -> usize {
        let words: usize = self.layers.iter().map(|layer| 2 * layer.row_words).sum();
        let features = self.features.as_ref().map_or(0, |features| features.width);
        PAGE_ROWS * 4 * (words + features)
    }

    fn set_budget(&mut self, pages: usize) {
        self.budget = pages;
    }

    /// # Errors
    /// If there is no memory for the page, or kernels cannot address so many. All pages keep their rows then.
    fn reserve(&mut self, page: PageId) -> Result<(), StorageError> {
        let needed = page.index() + 1;
        if needed <= self.capacity {
            return Ok(());
        }
        let (max, gpu) = (self.max_pages(), &self.device.adapter().name);
        if needed > max {
            return Err(StorageError(format!(
                "GPU {gpu}: the cache is full: it can have {max} pages of {PAGE_ROWS} tokens"
            )));
        }
        let roomy = roomy_capacity(needed, self.capacity, self.budget, max);
        let grown = self.grow(roomy);
        let grown = grown.or_else(|error| match needed < roomy {
            true => self.grow(needed),
            false => Err(error),
        });
        grown.map_err(StorageError::from)
    }

    fn copy_row(&mut self, from: RowPlace, to: RowPlace) {
        self.copies.push([place_number(from), place_number(to)]);
        if let Some(features) = &mut self.features
            && let Some(row) = features.rows.get(&from).cloned()
        {
            features.rows.insert(to, row);
        }
    }

    fn features(&self, table: PageTable<'_>, slots: Range<usize>) -> Option<FeatureRows> {
        let features = self.features.as_ref()?;
        let rows = slots.flat_map(|slot| &features.rows[&table.place(slot)]);
        Some(FeatureRows::new(features.width, rows.copied().collect()))
    }

    fn release(&mut self, page: PageId) {
        if let Some(features) = &mut self.features {
            features.rows.retain(|place, _| place.page != page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::roomy_capacity;

    #[test]
    fn memory_grows_by_a_half_within_the_budget() {
        assert_eq!(roomy_capacity(1, 0, 100, 1000), 1);
        assert_eq!(roomy_capacity(41, 40, 100, 1000), 60);
        assert_eq!(roomy_capacity(91, 90, 100, 1000), 100);
        assert_eq!(roomy_capacity(101, 100, 100, 1000), 101, "a pass that needs more gets it");
        assert_eq!(roomy_capacity(101, 100, 1000, 120), 120);
    }
}

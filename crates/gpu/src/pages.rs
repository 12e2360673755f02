//! The pages of a model's caches in a GPU's memory.

use crate::device::GpuDevice;
use crate::error::GpuFailure;
use crate::kernel::Kernel;
use crate::layer_weights::{AttentionWeights, LayerWeights};
use crate::parameters::CopyRows;
use crate::recorder::Recorder;
use crate::scratch::GrowingBuffer;
use crate::states::{GpuStates, roomy_capacity};
use forerun_cache::{PAGE_ROWS, PageId, PageStorage, PageTable, RowPlace, StateId, StorageError};
use forerun_core::FeatureRows;
use forerun_formats::CacheType;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use wgpu::Buffer;

/// The smallest list of copies: that of most passes.
const COPY_LIST_BYTES: u64 = 4096;

/// Keys and values of all pages, and the states of recurrent layers, in a GPU's memory. The memory
/// of a released page or state is kept for the next one.
///
/// Features of drafters are in main memory.
pub struct GpuPages {
    layers: Vec<LayerPages>,
    states: GpuStates,
    /// Counts how often buffers were replaced.
    generation: usize,
    /// Number of pages beyond which memory is allocated for needed pages only.
    budget: usize,
    /// Rows to copy before the next pass, in this order: the numbers of their places.
    copies: Vec<[u32; 2]>,
    /// Their list for the kernel. It stays, so that passes with copies have the same commands.
    copy_list: GrowingBuffer,
    features: Option<HostFeatures>,
    /// Dropped after the buffers.
    device: Arc<GpuDevice>,
}

/// The keys and values of a layer. A layer that attends to those of another one has none, and one
/// with compressed keys and values has no others.
struct LayerPages {
    /// Words of 32 bits of a row's keys, and of its values.
    row_words: [usize; 2],
    capacity: usize,
    buffers: [Buffer; 2], // [places, row_words]
}

impl LayerPages {
    fn has_rows(&self) -> bool {
        self.row_words[0] > 0
    }

    fn page_bytes(&self) -> [u64; 2] {
        self.row_words.map(|words| (words * PAGE_ROWS * 4) as u64)
    }

    /// Moves all pages to larger buffers. Fails if there is no memory, or the GPU has failed.
    /// Nothing has changed then.
    fn grow(&mut self, device: &GpuDevice, capacity: usize) -> Result<(), GpuFailure> {
        let page_bytes = self.page_bytes();
        self.buffers = device.move_to_larger(
            "keys and values",
            &self.buffers,
            page_bytes.map(|bytes| [self.capacity as u64 * bytes, capacity as u64 * bytes]),
        )?;
        self.capacity = capacity;
        Ok(())
    }
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
        let per_word = 4 / number_bytes(cache_type);
        let states = GpuStates::new(layers, empty);
        let layers = layers.iter().map(|layer| LayerPages {
            row_words: layer.attention().map_or([0, 0], cached_numbers).map(|n| n / per_word),
            capacity: 0,
            buffers: empty.clone(),
        });
        let layers = layers.collect();
        let device = Arc::clone(device);
        Self {
            device,
            layers,
            states,
            generation: 0,
            budget: usize::MAX,
            copies: Vec::new(),
            copy_list: GrowingBuffer::default(),
            features: None,
        }
    }

    /// Returns the same storage, configured to store features of this width.
    pub(crate) fn with_features(self, width: usize) -> Self {
        Self { features: Some(HostFeatures { width, rows: HashMap::new() }), ..self }
    }

    /// Returns the largest number of pages that kernels can address.
    #[must_use]
    pub fn max_pages(&self) -> usize {
        let page_bytes = self.layers.iter().flat_map(LayerPages::page_bytes).max();
        (self.device.max_binding_bytes() / page_bytes.unwrap_or(0).max(1)) as usize
    }

    /// Returns the number of pages with memory in every layer.
    fn capacity(&self) -> usize {
        let with_pages = self.layers.iter().filter(|layer| layer.has_rows());
        with_pages.map(|layer| layer.capacity).min().unwrap_or(usize::MAX)
    }

    /// Returns how often buffers were replaced.
    pub(crate) fn generation(&self) -> usize {
        self.generation
    }

    pub(crate) fn layer(&self, layer: usize) -> [&Buffer; 2] {
        self.layers[layer].buffers.each_ref()
    }

    pub(crate) fn row_bytes(&self, layer: usize) -> u64 {
        4 * self.layers[layer].row_words.iter().sum::<usize>() as u64
    }

    /// Returns the states of a layer: the inputs of its convolution, and its matrices.
    pub(crate) fn states(&self, layer: usize) -> [&Buffer; 2] {
        self.states.layer(layer)
    }

    /// Returns the largest number of states that kernels can address.
    #[must_use]
    pub fn max_states(&self) -> usize {
        self.states.max_slots(self.device.max_binding_bytes())
    }

    /// Returns the largest budget in bytes of a cache for which kernels can address everything, if
    /// a page has `page_bytes` and a state has `state_bytes`, on all devices that have a part of
    /// them.
    #[must_use]
    pub fn max_cache_bytes(&self, page_bytes: usize, state_bytes: usize) -> usize {
        let pages = self.max_pages().saturating_mul(page_bytes);
        let states = self.max_states().saturating_mul(state_bytes);
        match (page_bytes, state_bytes) {
            (_, 0) => pages,
            (0, _) => states,
            // Each may have a half of the budget.
            _ => pages.min(states).saturating_mul(2),
        }
    }

    /// Records the copies of rows that have not been made yet. Returns whether there are any: they
    /// must be submitted. Fails if there is no memory for their list. They are recorded with the
    /// next pass then.
    pub(crate) fn record_copies(
        &mut self,
        recorder: &mut Recorder<'_>,
    ) -> Result<bool, GpuFailure> {
        if self.copies.is_empty() {
            return Ok(false);
        }
        let bytes: &[u8] = bytemuck::cast_slice(&self.copies);
        self.copy_list.reserve(&self.device, (bytes.len() as u64).max(COPY_LIST_BYTES))?;
        let list = self.copy_list.get();
        self.device.write(list, 0, bytes);
        for layer in self.layers.iter().filter(|layer| layer.has_rows()) {
            for (cache, words) in layer.buffers.iter().zip(layer.row_words) {
                let parameters = CopyRows { words: words as u32, copies: self.copies.len() as u32 };
                let groups = [parameters.words.div_ceil(64), 1, 1];
                if words > 0 {
                    let buffers = [list, cache];
                    recorder.dispatch_once(Kernel::CopyRows, &buffers, &parameters, groups);
                }
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

    pub(crate) fn has_features(&self) -> bool {
        self.features.is_some()
    }

    /// Moves the pages of all layers to buffers for `roomy` pages, or for `needed` ones where there
    /// is no memory for that. Layers move one after another, so both buffers of only one layer are
    /// in memory. Fails if there is no memory, or the GPU has failed. All pages keep their rows;
    /// some layers may have room for more.
    fn grow(&mut self, needed: usize, roomy: usize) -> Result<(), GpuFailure> {
        let mut pages = roomy;
        let small = |layer: &&mut LayerPages| layer.has_rows() && layer.capacity < needed;
        for layer in self.layers.iter_mut().filter(small) {
            self.generation += 1;
            if pages > needed {
                match layer.grow(&self.device, pages) {
                    Err(GpuFailure::OutOfMemory { .. }) => pages = needed,
                    grown => grown?,
                }
            }
            if layer.capacity < needed {
                layer.grow(&self.device, pages)?;
            }
        }
        Ok(())
    }
}

/// Returns the numbers of a row's keys and of its values.
fn cached_numbers(attention: &AttentionWeights) -> [usize; 2] {
    let keys = attention.own_key_heads() * attention.shape.head_dim;
    [keys, if attention.latent.is_some() { 0 } else { keys }]
}

impl PageStorage for GpuPages {
    fn page_bytes(&self) -> usize {
        let words: usize = self.layers.iter().flat_map(|layer| layer.row_words).sum();
        let features = self.features.as_ref().map_or(0, |features| features.width);
        PAGE_ROWS * 4 * (words + features)
    }

    fn set_budget(&mut self, pages: usize) {
        self.budget = pages;
    }

    /// Fails if there is no memory for the page, or kernels cannot address so many. All pages keep
    /// their rows then.
    fn reserve(&mut self, page: PageId) -> Result<(), StorageError> {
        let needed = page.index() + 1;
        if needed <= self.capacity() {
            return Ok(());
        }
        let (max, gpu) = (self.max_pages(), &self.device.adapter().name);
        if needed > max {
            return Err(StorageError(format!(
                "GPU {gpu}: the cache is full: it can have {max} pages of {PAGE_ROWS} tokens"
            )));
        }
        let roomy = roomy_capacity(needed, self.capacity(), self.budget, max);
        self.grow(needed, roomy).map_err(StorageError::from)
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

    fn state_bytes(&self) -> usize {
        self.states.state_bytes()
    }

    fn set_state_budget(&mut self, states: usize) {
        self.states.budget = states;
    }

    /// Fails if there is no memory for the state, or kernels cannot address so many. All states
    /// keep their numbers then.
    fn reserve_state(&mut self, state: StateId) -> Result<(), StorageError> {
        let (needed, max) = (state.index() + 1, self.max_states());
        if needed > max {
            let gpu = &self.device.adapter().name;
            return Err(StorageError(format!(
                "GPU {gpu}: the cache is full: it can have {max} states of recurrent layers"
            )));
        }
        let moved = self.states.allocate(&self.device, needed);
        // After an error, the states of some layers may have moved.
        self.generation += usize::from(*moved.as_ref().unwrap_or(&true));
        moved.map(drop).map_err(StorageError::from)
    }
}

pub(crate) fn number_bytes(cache: CacheType) -> usize {
    if cache == CacheType::F32 { 4 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::GpuOptions;
    use crate::testing::{gpu, gpu_with, hybrid, load};
    use forerun_formats::Architecture;
    use forerun_formats::checkpoint::random::example_config;
    use std::sync::atomic::Ordering;

    fn storage(device: &Arc<GpuDevice>, architecture: &Architecture) -> GpuPages {
        let weights = load(device, architecture);
        GpuPages::new(device, &weights.layers, CacheType::F32, &weights.empty_pages)
    }

    #[test]
    fn layers_move_one_after_another_and_without_memory_only_as_far_as_needed() {
        let Some(device) = gpu() else { return };
        let mut pages = storage(&device, &example_config().architecture());
        let layers = pages.layers.len();
        assert!(layers > 1);
        let capacities = |pages: &GpuPages| -> Vec<usize> {
            pages.layers.iter().map(|layer| layer.capacity).collect()
        };
        let with_memory_for = |pages: &mut GpuPages, buffers: usize, page: u32| {
            device.buffers_left.store(buffers, Ordering::Relaxed);
            let reserved = pages.reserve(PageId(page));
            device.buffers_left.store(usize::MAX, Ordering::Relaxed);
            reserved
        };
        pages.set_budget(8);
        // Memory for the first layer only: it keeps what it has, and the cache stays as large as it
        // was.
        with_memory_for(&mut pages, 2 * layers, 3).unwrap();
        assert_eq!(capacities(&pages), vec![4; layers]);
        let error = with_memory_for(&mut pages, 3, 4).unwrap_err();
        assert!(error.0.contains(&device.adapter().name), "{error}");
        assert_eq!((capacities(&pages)[..2].to_vec(), pages.capacity()), (vec![6, 4], 4));
        // With memory again, the others follow.
        let generation = pages.generation();
        pages.reserve(PageId(4)).unwrap();
        assert_eq!((capacities(&pages), pages.capacity()), (vec![6; layers], 6));
        assert!(pages.generation() > generation);
        assert_eq!(device.check(), Ok(()));
    }

    #[test]
    fn budgets_are_what_kernels_can_address() {
        let Some(device) = gpu() else { return };
        let mut architecture = hybrid();
        let both = storage(&device, &architecture);
        let (page, state) = (both.page_bytes(), both.state_bytes());
        assert!(page > 0 && state > 0);
        let (pages, states) = (both.max_pages() * page, both.max_states() * state);
        assert_eq!(both.max_cache_bytes(page, state), 2 * pages.min(states));
        // Of a split model, each page and state has a part on another device.
        let [larger_page, larger_state] = [both.max_pages() * 10 * page, 2 * states];
        assert_eq!(both.max_cache_bytes(10 * page, 2 * state), 2 * larger_page.min(larger_state));
        assert_eq!(both.max_cache_bytes(page, 0), pages);
        // Without attention, states have the whole budget.
        architecture.layers.truncate(1);
        let recurrent = storage(&device, &architecture);
        assert_eq!(recurrent.page_bytes(), 0);
        assert_eq!(recurrent.max_cache_bytes(0, state), states);
    }

    #[test]
    fn states_beyond_what_kernels_can_address_are_refused() {
        let options = GpuOptions { max_binding_bytes: 24 << 10, ..GpuOptions::default() };
        let Some(device) = gpu_with(options) else { return };
        let mut pages = storage(&device, &hybrid());
        let max = pages.max_states();
        // The memory grows by a half, but never beyond what can be addressed.
        for state in 0..max {
            pages.reserve_state(StateId(state as u32)).unwrap();
        }
        let largest = pages.states.buffer_bytes();
        assert!(max > 1 && largest <= 24 << 10, "{max} states, {largest} bytes");
        let error = pages.reserve_state(StateId(max as u32)).unwrap_err().to_string();
        assert!(error.contains(&format!("{max} states of recurrent layers")), "{error}");
        assert_eq!(device.check(), Ok(()));
    }

    #[test]
    fn memory_grows_by_a_half_within_the_budget() {
        assert_eq!(roomy_capacity(1, 0, 100, 1000), 1);
        assert_eq!(roomy_capacity(41, 40, 100, 1000), 60);
        assert_eq!(roomy_capacity(91, 90, 100, 1000), 100);
        assert_eq!(roomy_capacity(101, 100, 100, 1000), 101, "a pass that needs more gets it");
        assert_eq!(roomy_capacity(101, 100, 1000, 120), 120);
    }
}

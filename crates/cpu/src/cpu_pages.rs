//! The pages of a model's caches in main memory.

use crate::feature_pages::FeaturePages;
use crate::kernels::{AttentionShape, KeysValues};
use forerun_cache::{PAGE_ROWS, PageId, PageStorage, PageTable, RowPlace};
use forerun_core::FeatureRows;
use forerun_formats::CacheType;
use std::ops::Range;

/// Keys, values and features of all pages, in main memory.
pub struct CpuPages {
    layers: Vec<KeysValues>,
    /// The features of all rows, if the model stores features.
    features: Option<FeaturePages>,
}

impl CpuPages {
    /// Creates a storage without pages for layers of these shapes.
    pub(crate) fn new(shapes: impl Iterator<Item = AttentionShape>, cache_type: CacheType) -> Self {
        let layers = shapes.map(|shape| KeysValues::new(shape, cache_type)).collect();
        Self { layers, features: None }
    }

    /// Returns the same storage, configured to store features of this width.
    pub(crate) fn with_features(self, width: usize) -> Self {
        Self { features: Some(FeaturePages::new(width)), ..self }
    }

    /// Returns the keys and values of several layers.
    pub(crate) fn layers_mut(&mut self, layers: Range<usize>) -> &mut [KeysValues] {
        &mut self.layers[layers]
    }

    /// Returns the features, so that a pass can write them along with keys and values.
    pub(crate) fn features_mut(&mut self) -> Option<&mut FeaturePages> {
        self.features.as_mut()
    }

    /// Returns the allocated memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let features = self.features.as_ref().map_or(0, FeaturePages::bytes);
        self.layers.iter().map(KeysValues::bytes).sum::<usize>() + features
    }

    /// Returns the size of one row's keys and values in bytes, without padding.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.layers.iter().map(KeysValues::row_bytes).sum()
    }

    /// Returns the bits of each layer's keys and values in a range of slots. Tests compare them.
    #[must_use]
    pub fn bits(&self, table: PageTable<'_>, slots: Range<usize>) -> Vec<Vec<u32>> {
        let bits = |layer: &KeysValues| {
            let rows = slots.clone().flat_map(|slot| layer.row(table.place(slot)));
            rows.map(f32::to_bits).collect()
        };
        self.layers.iter().map(bits).collect()
    }
}

impl PageStorage for CpuPages {
    fn page_bytes(&self) -> usize {
        let features = self.features.as_ref().map_or(0, FeaturePages::row_bytes);
        PAGE_ROWS * (self.row_bytes() + features)
    }

    fn reserve(&mut self, page: PageId) {
        self.layers.iter_mut().for_each(|layer| layer.reserve(page));
        self.features.iter_mut().for_each(|features| features.reserve(page));
    }

    fn copy_row(&mut self, from: RowPlace, to: RowPlace) {
        self.layers.iter_mut().for_each(|layer| layer.copy(from, to));
        self.features.iter_mut().for_each(|features| features.copy(from, to));
    }

    fn features(&self, table: PageTable<'_>, slots: Range<usize>) -> Option<FeatureRows> {
        let features = self.features.as_ref()?;
        let rows = slots.flat_map(|slot| features.row(table.place(slot)));
        Some(FeatureRows::new(features.width(), rows.copied().collect()))
    }

    fn release(&mut self, page: PageId) {
        self.layers.iter_mut().for_each(|layer| layer.release(page));
        self.features.iter_mut().for_each(|features| features.release(page));
    }
}

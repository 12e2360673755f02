//! The GPUs of this process, and the models on them.

use crate::error::ForerunError;
use forerun_formats::ModelTypes;
use forerun_gpu::{GpuDevice, GpuModel, GpuWeights};
use forerun_model::{CachedTransformer, DEFAULT_CACHE_BYTES};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The GPUs that were opened, and the weights that were loaded on them.
#[derive(Default)]
pub(crate) struct Gpus {
    devices: HashMap<usize, Arc<GpuDevice>>,
    weights: HashMap<(usize, PathBuf, ModelTypes), Arc<GpuWeights>>,
}

impl Gpus {
    /// Returns a GPU. It is opened once.
    pub(crate) fn open(&mut self, gpu: usize) -> Result<Arc<GpuDevice>, ForerunError> {
        if let Some(device) = self.devices.get(&gpu) {
            return Ok(Arc::clone(device));
        }
        let device = GpuDevice::open(gpu).map_err(|error| ForerunError::Gpu(Box::new(error)))?;
        self.devices.insert(gpu, Arc::clone(&device));
        Ok(device)
    }

    pub(crate) fn loaded(
        &self,
        gpu: usize,
        key: &(PathBuf, ModelTypes),
    ) -> Option<Arc<GpuWeights>> {
        self.weights.get(&(gpu, key.0.clone(), key.1)).map(Arc::clone)
    }

    /// Remembers weights, for other roles and engines.
    pub(crate) fn insert(
        &mut self,
        gpu: usize,
        (path, types): (PathBuf, ModelTypes),
        weights: &Arc<GpuWeights>,
    ) {
        self.weights.insert((gpu, path, types), Arc::clone(weights));
    }
}

/// Returns a model with caches on its GPU. They use `cache_bytes`, or the default, as far as kernels can address
/// them.
pub(crate) fn with_caches(
    model: GpuModel,
    cache_bytes: Option<usize>,
) -> CachedTransformer<GpuModel> {
    let most = model.max_cache_bytes();
    let bytes = cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES).min(most);
    CachedTransformer::new(model).with_cache_bytes(Some(bytes))
}

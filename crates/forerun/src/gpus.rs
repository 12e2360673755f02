//! The GPUs of this process, and the models on them.

use crate::error::ForerunError;
use crate::loader::GpuPart;
use forerun_cache::PageStorage;
use forerun_cpu::Transformer;
use forerun_formats::ModelTypes;
use forerun_gpu::{GpuDevice, GpuLayers, GpuModel, GpuRules, GpuWeights};
use forerun_model::{
    CachedTransformer, DEFAULT_CACHE_BYTES, DRAFTER_CACHE_BYTES, Forward, SplitModel,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// What is on a GPU of a checkpoint, and the types of its matrices and of its cache.
pub(crate) type GpuKey = (GpuPart, PathBuf, ModelTypes);

/// The GPUs that were opened, and the weights that were loaded on them.
pub(crate) struct Gpus {
    rules: GpuRules,
    devices: HashMap<usize, Arc<GpuDevice>>,
    /// Weights that some role or engine has.
    weights: HashMap<GpuKey, Weak<GpuWeights>>,
    /// Weights that are kept for later engines.
    kept: Vec<Arc<GpuWeights>>,
}

impl Default for Gpus {
    fn default() -> Self {
        Self {
            rules: GpuRules::from_environment(),
            devices: HashMap::new(),
            weights: HashMap::new(),
            kept: Vec::new(),
        }
    }
}

impl Gpus {
    /// Lets drivers be used that compute on the processor.
    pub(crate) fn allow_software(&mut self) {
        self.rules.software = true;
    }

    /// Returns a GPU. It is opened once, and again after it was lost.
    pub(crate) fn open(&mut self, gpu: usize) -> Result<Arc<GpuDevice>, ForerunError> {
        if let Some(device) = self.devices.get(&gpu)
            && device.check().is_ok()
        {
            return Ok(Arc::clone(device));
        }
        let device = self.rules.open(gpu).map_err(|error| ForerunError::Gpu(Box::new(error)))?;
        self.kept.retain(|weights| weights.device().check().is_ok());
        self.devices.insert(gpu, Arc::clone(&device));
        Ok(device)
    }

    /// Checks that GPUs with replicas of a model compute the same bits.
    pub(crate) fn check_replicas(&mut self, gpus: &[usize]) -> Result<(), ForerunError> {
        let devices = gpus.iter().map(|&gpu| self.open(gpu)).collect::<Result<Vec<_>, _>>()?;
        GpuRules::check_replicas(&devices).map_err(|error| ForerunError::Gpu(Box::new(error)))
    }

    /// Returns weights that are loaded on a GPU that works.
    pub(crate) fn loaded(&self, key: &GpuKey) -> Option<Arc<GpuWeights>> {
        let weights = self.weights.get(key)?.upgrade()?;
        weights.device().check().is_ok().then_some(weights)
    }

    /// Remembers weights for other roles and engines, for as long as one has them, or for good if
    /// they are `kept`.
    pub(crate) fn insert(&mut self, key: GpuKey, weights: &Arc<GpuWeights>, kept: bool) {
        self.weights.insert(key, Arc::downgrade(weights));
        self.kept.extend(kept.then(|| Arc::clone(weights)));
    }
}

/// Returns the budget of a drafter's caches on a GPU: `asked`, or the default, as far as kernels
/// can address them.
pub(crate) fn drafter_cache_bytes(asked: Option<usize>, most: usize) -> Option<usize> {
    Some(asked.unwrap_or(DRAFTER_CACHE_BYTES).min(most))
}

/// Returns a model with caches on its GPU. They use `cache_bytes`, or the default, as far as
/// kernels can address them.
pub(crate) fn with_caches(
    model: GpuModel,
    cache_bytes: Option<usize>,
) -> CachedTransformer<GpuModel> {
    let most = model.max_cache_bytes();
    let bytes = cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES).min(most);
    CachedTransformer::new(model).with_cache_bytes(Some(bytes))
}

/// Returns a model between a GPU and cores with caches, as [`with_caches`] does. `cache_bytes`
/// count both parts.
pub(crate) fn with_split_caches(
    model: SplitModel<GpuLayers, Transformer>,
    cache_bytes: Option<usize>,
) -> CachedTransformer<SplitModel<GpuLayers, Transformer>> {
    let storage = model.new_storage();
    let most = model.first().max_cache_bytes(storage.page_bytes(), storage.state_bytes());
    let bytes = cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES).min(most);
    CachedTransformer::new(model).with_cache_bytes(Some(bytes))
}

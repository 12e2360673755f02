//! How models are found and loaded.

use crate::drafter_weights::DrafterWeights;
use crate::error::ForerunError;
use crate::progress::{Progress, Step};
use forerun_model::{Checkpoint, LoadError, WeightType, Weights};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A checkpoint and the type in which its matrices are kept.
type SharedKey = (PathBuf, Option<WeightType>);

/// What was loaded before.
#[derive(Default)]
struct Shared {
    models: HashMap<SharedKey, Arc<Weights>>,
    /// Drafters that belong to a target, by the target's checkpoint, too.
    drafters: HashMap<(SharedKey, PathBuf), DrafterWeights>,
}

/// Finds models, on disk or on the hub, loads them, and tells how far it is.
///
/// A path that exists is that path. What else looks like a hub id (`owner/name`, or
/// `owner/name@revision`) is fetched into the cache that Hugging Face's own tools use, where the
/// feature `hub` is on; `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE`
/// mean what they mean there.
pub struct Loader<'a> {
    offline: bool,
    /// What was loaded before, where engines share it.
    shared: Option<Shared>,
    on_progress: Box<dyn FnMut(Progress<'_>) -> ControlFlow<()> + 'a>,
}

impl Default for Loader<'_> {
    fn default() -> Self {
        Self { offline: false, shared: None, on_progress: Box::new(|_| ControlFlow::Continue(())) }
    }
}

impl<'a> Loader<'a> {
    /// A loader that asks the hub for what is not there, and tells nobody how far it is.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether to take hub models from the cache alone; `HF_HUB_OFFLINE` does the same.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Lets all engines that are opened with this loader share the weights of a checkpoint in one
    /// type, so that many plans fit the memory of one. The loader keeps them until it is dropped.
    #[must_use]
    pub fn sharing_weights(mut self) -> Self {
        self.shared = Some(Shared::default());
        self
    }

    /// Calls `on_progress` every now and then. Breaking ends a download at once (what has come is
    /// kept for the next time) and a load after its model, both with [`ForerunError::Cancelled`].
    #[must_use]
    pub fn on_progress(
        mut self,
        on_progress: impl FnMut(Progress<'_>) -> ControlFlow<()> + 'a,
    ) -> Self {
        self.on_progress = Box::new(on_progress);
        self
    }

    /// The path of a model: the given one, or the folder of a hub model's files.
    ///
    /// # Errors
    /// If a hub model cannot be had, or its download was cancelled.
    pub fn locate(&mut self, model: &Path) -> Result<PathBuf, ForerunError> {
        #[cfg(feature = "hub")]
        if !model.exists()
            && let Some(id) = model.to_str().and_then(crate::hub::ModelId::parse)
        {
            let hub = crate::hub::Hub::from_environment(self.offline);
            let hub = hub.map_err(crate::hub::FetchError::from)?;
            return Ok(hub.fetch(&id, &mut *self.on_progress)?);
        }
        Ok(model.to_owned())
    }

    /// A model's weights, packed in the given type or else the checkpoint's own; `model` is its name
    /// for whoever watches.
    pub(crate) fn load(
        &mut self,
        model: &Path,
        checkpoint: &Checkpoint,
        weight_type: Option<WeightType>,
    ) -> Result<Arc<Weights>, ForerunError> {
        let key = (checkpoint.path().to_owned(), weight_type);
        if let Some(weights) = self.shared.as_ref().and_then(|shared| shared.models.get(&key)) {
            return Ok(Arc::clone(weights));
        }
        let name = model.to_string_lossy();
        let total = checkpoint.config().num_hidden_layers as u64;
        let mut flow = ControlFlow::Continue(());
        let mut on_layer = |layers: usize| {
            let (step, done) = (Step::Load { model: &name }, layers as u64);
            if flow.is_continue() {
                flow = (self.on_progress)(Progress { step, done, total });
            }
        };
        let weights = Arc::new(Weights::load_with(checkpoint, weight_type, &mut on_layer)?);
        if flow.is_break() {
            return Err(ForerunError::Cancelled);
        }
        if let Some(shared) = &mut self.shared {
            shared.models.insert(key, Arc::clone(&weights));
        }
        Ok(weights)
    }

    /// A drafter that belongs to the target at `target`, read by `read` unless it was before.
    pub(crate) fn load_drafter(
        &mut self,
        key: SharedKey,
        target: &Path,
        read: impl FnOnce() -> Result<DrafterWeights, LoadError>,
    ) -> Result<DrafterWeights, ForerunError> {
        let key = (key, target.to_owned());
        if let Some(weights) = self.shared.as_ref().and_then(|shared| shared.drafters.get(&key)) {
            return Ok(weights.clone());
        }
        let weights = read()?;
        if let Some(shared) = &mut self.shared {
            shared.drafters.insert(key, weights.clone());
        }
        Ok(weights)
    }
}

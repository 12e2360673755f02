//! Finding, downloading and loading models.

use crate::drafter::SharedPart;
use crate::drafter_parts::DrafterParts;
use crate::error::ForerunError;
use crate::memory;
use crate::model_source::ModelSource;
use crate::open_model::{OpenModel, open_embedded, open_located};
use crate::placed_weights::{FirstLayers, FirstLayersPlace, PlacedWeights};
use crate::progress::{Progress, Step};
use forerun_cpu::{CorePart, Weights};
use forerun_formats::{Checkpoint, MatrixTypes, ModelTypes};
#[cfg(feature = "gpu")]
use forerun_gpu::{GpuDevice, GpuLoadError, GpuWeights, LayerCount, LayerOptions};
#[cfg(feature = "hub")]
use forerun_hub::{FetchError, FetchEvent, Hub};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

/// A checkpoint, and the type in which its matrices are kept.
type SharedKey = (PathBuf, ModelTypes);

/// Called with the number of layers that have been uploaded. It may stop the upload.
#[cfg(feature = "gpu")]
type OnLayer<'a> = &'a mut dyn FnMut(usize) -> ControlFlow<()>;

/// A part of a model on a GPU.
#[cfg(feature = "gpu")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GpuPart {
    gpu: usize,
    part: ModelPart,
}

/// What of a model is on a GPU.
#[cfg(feature = "gpu")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ModelPart {
    Whole,
    /// With the number of layers without experts.
    FirstLayers(LayerCount, usize),
    /// What a drafter shares with a target that is elsewhere.
    Shared(SharedPart),
}

/// The weights that engines share.
#[derive(Default)]
struct Shared {
    models: HashMap<(PathBuf, ModelTypes, CorePart), Arc<Weights>>,
    /// Parts of targets that are elsewhere.
    target_parts: HashMap<(SharedKey, SharedPart), Arc<Weights>>,
    /// Drafters trained for a target, with the part of it that they share.
    drafters: HashMap<SpeculatorKey, (DrafterParts, PlacedWeights)>,
}

/// A drafter that was trained for a target, and where it is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct SpeculatorKey {
    pub(crate) path: PathBuf,
    pub(crate) types: ModelTypes,
    /// The target's checkpoint.
    pub(crate) target: PathBuf,
    /// The GPU, if it is not on cores.
    pub(crate) gpu: Option<usize>,
    /// The part of the target of which it uses a copy, if the target's own weights are not on its
    /// device.
    pub(crate) copied: Option<SharedPart>,
}

/// Finds models on disk or on the Hugging Face hub, loads them, and reports progress.
///
/// With the feature `hub`, a hub model is downloaded to the cache that Hugging Face's tools share
/// (see [`ModelSource`] for what is a hub model). `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`,
/// `HF_TOKEN` and `HF_HUB_OFFLINE` have the same meaning as for those tools.
///
/// ```
/// use forerun::{Engine, Loader, Options, Plan, RandomPair, Step};
/// use std::ops::ControlFlow;
///
/// let pair = RandomPair::make()?;
/// let plan = Plan::new(Options::new(pair.target()))?;
/// let mut loader = Loader::new().offline(true).on_progress(|progress| {
///     let percent = 100 * progress.done / progress.total.max(1);
///     match progress.step {
///         Step::Download { model, file } => eprintln!("{model}: {file} {percent} %"),
///         Step::Cached { model } => eprintln!("{model}: from the cache"),
///         Step::Load { model, .. } | Step::Export { model } => eprintln!("{model}: {percent} %"),
///         Step::Split { gpu, .. } => eprintln!("{} layers on gpu:{gpu}", progress.done),
///     }
///     ControlFlow::Continue(())
/// });
/// let engine = Engine::open_with(&plan, &mut loader)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Loader<'a> {
    offline: bool,
    /// The weights loaded so far, if engines share them.
    shared: Option<Shared>,
    #[cfg(feature = "gpu")]
    gpus: crate::gpus::Gpus,
    on_progress: Box<dyn FnMut(Progress<'_>) -> ControlFlow<()> + 'a>,
}

impl Default for Loader<'_> {
    fn default() -> Self {
        Self {
            offline: false,
            shared: None,
            #[cfg(feature = "gpu")]
            gpus: crate::gpus::Gpus::default(),
            on_progress: Box::new(|_| ControlFlow::Continue(())),
        }
    }
}

impl<'a> Loader<'a> {
    /// Creates a loader that may use the hub, and reports no progress.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether hub models come from the cache only. The variable `HF_HUB_OFFLINE` has the same
    /// effect.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Lets all engines that this loader opens share weights, so that several plans need the memory
    /// of one. Weights are shared if checkpoint and type are the same. The loader keeps them until
    /// it is dropped.
    #[must_use]
    pub fn sharing_weights(mut self) -> Self {
        self.shared = Some(Shared::default());
        self
    }

    /// Lets placements name drivers of GPUs that compute on the processor, such as lavapipe. They
    /// are for tests. The environment variable `FORERUN_GPU_SOFTWARE=1` has the same effect.
    #[cfg(feature = "gpu")]
    #[must_use]
    pub fn with_software_gpus(mut self) -> Self {
        self.gpus.allow_software();
        self
    }

    /// Sets a callback that receives progress reports and may cancel.
    ///
    /// Returning [`ControlFlow::Break`] stops a download at once; the next run resumes it. It stops
    /// loading after the current model, on a GPU after the current layer. Both fail with
    /// [`ForerunError::Cancelled`].
    #[must_use]
    pub fn on_progress(
        mut self,
        on_progress: impl FnMut(Progress<'_>) -> ControlFlow<()> + 'a,
    ) -> Self {
        self.on_progress = Box::new(on_progress);
        self
    }

    /// Returns the path of a model: the given one, or the cache folder of a hub model, which is
    /// downloaded if necessary. A given path may not exist.
    ///
    /// # Errors
    /// If a hub model cannot be downloaded, the progress callback cancels the download, or the
    /// model is part of the program.
    pub fn locate(&mut self, model: &ModelSource) -> Result<PathBuf, ForerunError> {
        match model {
            ModelSource::Path(path) => Ok(path.clone()),
            ModelSource::Embedded(model) => Err(ForerunError::Embedded(model.name)),
            #[cfg(feature = "hub")]
            ModelSource::Hub(id) => {
                let hub = Hub::from_environment(self.offline).map_err(FetchError::from)?;
                let model = &id.to_string();
                Ok(hub.fetch(id, &mut |event| {
                    (self.on_progress)(match event {
                        FetchEvent::Cached => {
                            Progress { step: Step::Cached { model }, done: 1, total: 1 }
                        }
                        FetchEvent::Download { file, done, total } => {
                            Progress { step: Step::Download { model, file }, done, total }
                        }
                    })
                })?)
            }
        }
    }

    /// Opens the checkpoint of a model, which is located first, and its tokenizer.
    ///
    /// # Errors
    /// As [`Self::locate`], or if a file is malformed or missing.
    pub fn open(&mut self, model: &ModelSource) -> Result<OpenModel, ForerunError> {
        match model {
            ModelSource::Embedded(model) => open_embedded(model),
            model => open_located(&self.locate(model)?, model),
        }
    }

    /// Reports progress that cannot be cancelled.
    pub(crate) fn report(&mut self, step: Step<'_>, done: usize, total: usize) {
        let _ = (self.on_progress)(Progress { step, done: done as u64, total: total as u64 });
    }

    /// Returns whether engines share weights, so that a plan may need less memory than its models.
    pub(crate) fn shares_weights(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns a model's weights for cores, in the given types or the checkpoint's own. `model` is
    /// its name in progress reports.
    ///
    /// # Errors
    /// If a tensor cannot be read, the weights do not fit into memory, or the progress callback
    /// stops the loading.
    pub fn load(
        &mut self,
        model: &ModelSource,
        checkpoint: &Checkpoint,
        types: ModelTypes,
    ) -> Result<Arc<Weights>, ForerunError> {
        self.load_part(model, checkpoint, (types, CorePart::Whole))
    }

    /// Returns a part of a model's weights, as [`Self::load`] does.
    pub(crate) fn load_part(
        &mut self,
        model: &ModelSource,
        checkpoint: &Checkpoint,
        (types, part): (ModelTypes, CorePart),
    ) -> Result<Arc<Weights>, ForerunError> {
        let key = (checkpoint.path().to_owned(), types, part);
        if let Some(weights) = self.shared.as_ref().and_then(|shared| shared.models.get(&key)) {
            return Ok(Arc::clone(weights));
        }
        let architecture = checkpoint.architecture();
        let layers = match part {
            CorePart::Stage(_) => part.layers(architecture, checkpoint, types)?.len(),
            _ => checkpoint.config().num_hidden_layers,
        };
        let weights = self.by_layer(model, checkpoint, (types, layers), |on_layer| {
            let mut flow = ControlFlow::Continue(());
            let mut on_layer = |layers: usize| {
                if flow.is_continue() {
                    flow = on_layer(layers);
                }
            };
            memory::check(memory::of_model(checkpoint, types, part)?)?;
            let architecture = architecture.clone();
            let weights = Weights::load_part(part, architecture, checkpoint, types, &mut on_layer)?;
            match flow {
                ControlFlow::Continue(()) => Ok(Arc::new(weights)),
                ControlFlow::Break(()) => Err(ForerunError::Cancelled),
            }
        })?;
        if let Some(shared) = &mut self.shared {
            shared.models.insert(key, Arc::clone(&weights));
        }
        Ok(weights)
    }

    /// Returns what a drafter needs of a target that is elsewhere: on a GPU, or on cores if there
    /// is no `gpu`.
    pub(crate) fn load_shared(
        &mut self,
        gpu: Option<usize>,
        (model, checkpoint): (&ModelSource, &Checkpoint),
        (types, part): (ModelTypes, SharedPart),
        drafter: &ModelSource,
    ) -> Result<PlacedWeights, ForerunError> {
        match gpu {
            Some(gpu) => self.upload_shared(gpu, (model, checkpoint), (types, part), drafter),
            None => self.load_shared_on_cores(checkpoint, types, part).map(PlacedWeights::Cores),
        }
    }

    fn load_shared_on_cores(
        &mut self,
        checkpoint: &Checkpoint,
        types: ModelTypes,
        part: SharedPart,
    ) -> Result<Arc<Weights>, ForerunError> {
        let key = ((checkpoint.path().to_owned(), types), part);
        let loaded = self.shared.as_ref().and_then(|shared| shared.target_parts.get(&key));
        if let Some(loaded) = loaded {
            return Ok(Arc::clone(loaded));
        }
        memory::check(memory::of_shared(checkpoint, types, part)?)?;
        let loaded = Arc::new(match part {
            SharedPart::EmbeddingAndHead => Weights::load_without_layers(checkpoint, types)?,
            SharedPart::FinalNorm => Weights::load_final_norm(checkpoint)?,
        });
        if let Some(shared) = &mut self.shared {
            shared.target_parts.insert(key, Arc::clone(&loaded));
        }
        Ok(loaded)
    }

    /// Calls `load` with a function that reports how many of the layers have been loaded, and says
    /// whether to go on.
    fn by_layer<T>(
        &mut self,
        model: &ModelSource,
        checkpoint: &Checkpoint,
        (types, layers): (ModelTypes, usize),
        load: impl FnOnce(&mut dyn FnMut(usize) -> ControlFlow<()>) -> Result<T, ForerunError>,
    ) -> Result<T, ForerunError> {
        let matrices = MatrixTypes::of_model(types.weights, checkpoint.architecture(), checkpoint)?;
        let (name, type_names) = (model.to_string(), matrices.names(checkpoint.architecture()));
        load(&mut |done| {
            let step = Step::Load { model: &name, types: &type_names };
            (self.on_progress)(Progress { step, done: done as u64, total: layers as u64 })
        })
    }

    /// Returns a model's weights on a GPU, or for cores if there is no `gpu`.
    pub(crate) fn load_on(
        &mut self,
        gpu: Option<usize>,
        model: &ModelSource,
        checkpoint: &Checkpoint,
        types: ModelTypes,
    ) -> Result<PlacedWeights, ForerunError> {
        let Some(gpu) = gpu else {
            return self.load(model, checkpoint, types).map(PlacedWeights::Cores);
        };
        #[cfg(feature = "gpu")]
        return self
            .upload(
                GpuPart { gpu, part: ModelPart::Whole },
                model,
                (checkpoint, types),
                |device, on_layer| GpuWeights::load_with(device, checkpoint, types, on_layer),
            )
            .map(PlacedWeights::Gpu);
        #[cfg(not(feature = "gpu"))]
        Err(ForerunError::NoGpuSupport { gpu })
    }

    /// Returns a model's first layers on a GPU: this number, or as many as fit.
    pub(crate) fn load_first_layers(
        &mut self,
        place: FirstLayersPlace,
        model: &ModelSource,
        checkpoint: &Checkpoint,
        types: ModelTypes,
    ) -> Result<FirstLayers, ForerunError> {
        #[cfg(feature = "gpu")]
        {
            let FirstLayersPlace { gpu, layers, without_experts, replicas, reserved_bytes } = place;
            let count = layers.map_or(LayerCount::AsManyAsFit, LayerCount::Exactly);
            let part = GpuPart { gpu, part: ModelPart::FirstLayers(count, without_experts) };
            let options = LayerOptions { types, count, without_experts, replicas, reserved_bytes };
            let upload = |device: &Arc<GpuDevice>, on_layer: OnLayer<'_>| {
                let architecture = checkpoint.architecture().clone();
                GpuWeights::load_first_layers(device, architecture, checkpoint, options, on_layer)
            };
            let weights = self.upload(part, model, (checkpoint, types), upload)?;
            // Engines that name this number share them.
            let count = LayerCount::Exactly(weights.n_layers());
            let part = GpuPart { gpu, part: ModelPart::FirstLayers(count, without_experts) };
            self.gpus.insert((part, checkpoint.path().to_owned(), types), &weights, false);
            let found = FirstLayers::new(weights);
            let total = checkpoint.config().num_hidden_layers;
            let name = model.to_string();
            self.report(Step::Split { model: &name, gpu }, found.layers, total);
            Ok(found)
        }
        #[cfg(not(feature = "gpu"))]
        {
            let _ = (model, checkpoint, types);
            Err(ForerunError::NoGpuSupport { gpu: place.gpu })
        }
    }

    fn upload_shared(
        &mut self,
        gpu: usize,
        (model, checkpoint): (&ModelSource, &Checkpoint),
        (types, part): (ModelTypes, SharedPart),
        drafter: &ModelSource,
    ) -> Result<PlacedWeights, ForerunError> {
        #[cfg(feature = "gpu")]
        {
            let layers = checkpoint.config().num_hidden_layers;
            let upload = |device: &Arc<GpuDevice>, on_layer: OnLayer<'_>| {
                let mut report = |done| match on_layer(done) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(GpuLoadError::Cancelled),
                };
                report(0)?;
                let loaded = match part {
                    SharedPart::EmbeddingAndHead => {
                        GpuWeights::load_without_layers(device, checkpoint, types)?
                    }
                    SharedPart::FinalNorm => GpuWeights::load_final_norm(device, checkpoint)?,
                };
                report(layers)?;
                Ok(loaded)
            };
            let key = GpuPart { gpu, part: ModelPart::Shared(part) };
            let loaded = self.upload(key, model, (checkpoint, types), upload);
            loaded.map(PlacedWeights::Gpu).map_err(|error| match error {
                ForerunError::LoadOnGpu { cause, .. } => {
                    let (drafter, part) = (drafter.to_string(), part.name());
                    ForerunError::SharedOnGpu { drafter, gpu, part, cause }
                }
                error => error,
            })
        }
        #[cfg(not(feature = "gpu"))]
        {
            let _ = (model, checkpoint, types, part, drafter);
            Err(ForerunError::NoGpuSupport { gpu })
        }
    }

    /// Returns whether a GPU's memory is the processor's.
    pub(crate) fn shares_main_memory(&mut self, gpu: usize) -> Result<bool, ForerunError> {
        #[cfg(feature = "gpu")]
        return Ok(self.gpus.open(gpu)?.adapter().shares_main_memory());
        #[cfg(not(feature = "gpu"))]
        Err(ForerunError::NoGpuSupport { gpu })
    }

    /// Checks that all GPUs with replicas of a model compute the same bits.
    pub(crate) fn check_replicas(&mut self, gpus: &[usize]) -> Result<(), ForerunError> {
        #[cfg(feature = "gpu")]
        return self.gpus.check_replicas(gpus);
        #[cfg(not(feature = "gpu"))]
        match gpus.first() {
            Some(&gpu) => Err(ForerunError::NoGpuSupport { gpu }),
            None => Ok(()),
        }
    }

    /// Uploads weights to a GPU, unless they are there.
    #[cfg(feature = "gpu")]
    fn upload(
        &mut self,
        part: GpuPart,
        model: &ModelSource,
        (checkpoint, types): (&Checkpoint, ModelTypes),
        upload: impl FnOnce(&Arc<GpuDevice>, OnLayer<'_>) -> Result<GpuWeights, GpuLoadError>,
    ) -> Result<Arc<GpuWeights>, ForerunError> {
        let key = (part, checkpoint.path().to_owned(), types);
        if let Some(weights) = self.gpus.loaded(&key) {
            return Ok(weights);
        }
        let device: Arc<GpuDevice> = self.gpus.open(part.gpu)?;
        let layers = checkpoint.config().num_hidden_layers;
        let weights = self.by_layer(model, checkpoint, (types, layers), |on_layer| {
            upload(&device, on_layer).map(Arc::new).map_err(|cause| match cause {
                GpuLoadError::Cancelled => ForerunError::Cancelled,
                cause => {
                    ForerunError::LoadOnGpu { model: model.to_string(), cause: Box::new(cause) }
                }
            })
        })?;
        self.gpus.insert(key, &weights, self.shared.is_some());
        Ok(weights)
    }

    /// Returns the weights of a drafter that was trained for a target. Calls `read` unless they are
    /// shared already: it also returns the part of the target that they use.
    pub(crate) fn load_drafter(
        &mut self,
        key: SpeculatorKey,
        read: impl FnOnce(&mut Self) -> Result<(DrafterParts, PlacedWeights), ForerunError>,
    ) -> Result<DrafterParts, ForerunError> {
        let loaded = self.shared.as_ref().and_then(|shared| shared.drafters.get(&key));
        if let Some((parts, _)) = loaded.filter(|(_, target)| target.device_works()) {
            return Ok(parts.clone());
        }
        let (parts, target) = read(self)?;
        if let Some(shared) = &mut self.shared {
            shared.drafters.insert(key, (parts.clone(), target));
        }
        Ok(parts)
    }
}

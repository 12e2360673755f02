//! What a drafter with a checkpoint is built from: its model, its weights, and a worker's device.

use crate::easyspec::EasySpec;
use crate::page_folder::ModelPages;
use crate::placed_weights::{PlacedHeads, PlacedWeights};
use crate::ranks::lead;
use crate::translation::Translation;
use forerun_cpu::{
    AlternatingModel, CpuHeads, CpuPages, Exchange, ExclusiveDevice, Team, Transformer, Weights,
};
use forerun_decode::DraftPattern;
use forerun_draft::Drafter;
use forerun_formats::{Checkpoint, SpeculatorKind};
use forerun_lm::{FeatureModel, LayeredModel};
use forerun_model::{BlockModel, CachedTransformer, EagleModel, Forward, TargetKeysModel};
use forerun_runtime::{Engine, PassTimes, SharedDevice, TimedModel};
use std::sync::{Arc, Mutex, PoisonError};

/// An open language model that is about to draft.
pub(crate) struct DraftModel<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    /// The layout that shows what the model was trained for, such as PARD's.
    pub(crate) layout: Option<SpeculatorKind>,
    /// EasySpec's options, if it drafts.
    pub(crate) easyspec: Option<&'a EasySpec>,
    /// How drafts are translated, if the model's vocabulary is not the target's.
    pub(crate) translation: Option<Arc<Translation>>,
}

/// A drafter's weights, and how it drafts with them.
#[derive(Clone)]
pub(crate) struct DrafterParts {
    pub(crate) pattern: DraftPattern,
    pub(crate) build: Arc<BuildDrafter>,
}

/// Builds a drafter on a worker.
pub(crate) type BuildDrafter = dyn Fn(&Site<'_>) -> Result<Box<dyn Drafter>, String> + Send + Sync;

impl DrafterParts {
    /// Creates the parts of a drafter with this pattern. `build` fails if the drafter cannot run on
    /// the site's device.
    pub(crate) fn new(
        pattern: DraftPattern,
        build: impl Fn(&Site<'_>) -> Result<Box<dyn Drafter>, String> + Send + Sync + 'static,
    ) -> Self {
        Self { pattern, build: Arc::new(build) }
    }
}

/// Where a drafter is built: the device of a worker.
pub(crate) struct Site<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) device: &'a DrafterDevice<'a>,
    /// How long its passes take, if it is paced.
    pub(crate) times: Option<&'a PassTimes>,
    /// The number of the target's tokens.
    pub(crate) vocab_size: usize,
    /// The memory of the caches, if it is not the default.
    pub(crate) cache_bytes: Option<usize>,
    /// Its pages in a folder, if there is one.
    pub(crate) pages: Option<&'a ModelPages>,
}

impl Site<'_> {
    /// Wraps a model so that its passes appear in the trace, and take their time on a paced device.
    pub(crate) fn timed<M>(&self, model: M) -> TimedModel<M> {
        self.engine.timed(model).paced(self.times)
    }

    /// Returns a language model with caches of its own.
    ///
    /// # Errors
    /// If another model uses the connection to the ranks that compute it.
    pub(crate) fn model(&self, weights: &PlacedWeights) -> Result<Box<dyn LayeredModel>, String> {
        Ok(match weights {
            PlacedWeights::Cores(weights) => {
                let passes = self.device.passes(self.engine, Arc::clone(weights))?;
                let model = CachedTransformer::new(passes).with_cache_bytes(self.cache_bytes);
                Box::new(self.timed(match self.pages {
                    Some(pages) => pages.of(model)?,
                    None => model,
                }))
            }
            #[cfg(feature = "gpu")]
            PlacedWeights::Gpu(weights) => {
                let model = forerun_gpu::GpuModel::new(Arc::clone(weights));
                Box::new(self.timed(crate::gpus::with_caches(model, self.cache_bytes)))
            }
        })
    }

    /// Returns a drafter that predicts the target's features, with caches of its own.
    ///
    /// # Errors
    /// If the device is shared, or consists of several ranks.
    pub(crate) fn eagle(&self, weights: &PlacedWeights) -> Result<Box<dyn FeatureModel>, String> {
        Ok(match weights {
            PlacedWeights::Cores(weights) => {
                let model = EagleModel::new(Transformer::new(Arc::clone(weights), self.team()?));
                Box::new(self.timed(model.with_cache_bytes(self.cache_bytes)))
            }
            #[cfg(feature = "gpu")]
            PlacedWeights::Gpu(weights) => {
                let (model, bytes) = self.on_gpu(weights);
                Box::new(self.timed(EagleModel::new(model).with_cache_bytes(bytes)))
            }
        })
    }

    /// Returns a drafter of blocks on the target's features, with caches of its own.
    ///
    /// # Errors
    /// As [`Self::eagle`].
    pub(crate) fn block(&self, weights: &PlacedWeights) -> Result<Box<dyn FeatureModel>, String> {
        Ok(match weights {
            PlacedWeights::Cores(weights) => {
                let model = BlockModel::new(Transformer::new(Arc::clone(weights), self.team()?));
                Box::new(self.timed(model.with_cache_bytes(self.cache_bytes)))
            }
            #[cfg(feature = "gpu")]
            PlacedWeights::Gpu(weights) => {
                let (model, bytes) = self.on_gpu(weights);
                Box::new(self.timed(BlockModel::new(model).with_cache_bytes(bytes)))
            }
        })
    }

    /// Returns a drafter on the target's keys and values, with caches of its own.
    ///
    /// # Errors
    /// As [`Self::eagle`].
    pub(crate) fn on_target_keys(
        &self,
        weights: &PlacedWeights,
    ) -> Result<Box<dyn FeatureModel>, String> {
        Ok(match weights {
            PlacedWeights::Cores(weights) => {
                let layers = Transformer::new(Arc::clone(weights), self.team()?);
                let model = TargetKeysModel::new(layers).with_cache_bytes(self.cache_bytes);
                Box::new(self.timed(model))
            }
            #[cfg(feature = "gpu")]
            PlacedWeights::Gpu(weights) => {
                let (model, bytes) = self.on_gpu(weights);
                Box::new(self.timed(TargetKeysModel::new(model).with_cache_bytes(bytes)))
            }
        })
    }

    /// Returns the model of draft heads.
    ///
    /// # Errors
    /// As [`Self::eagle`].
    pub(crate) fn heads(&self, weights: &PlacedHeads) -> Result<Box<dyn FeatureModel>, String> {
        Ok(match weights {
            PlacedHeads::Cores(weights) => {
                let model = CpuHeads::model(Arc::clone(weights), &self.team()?);
                Box::new(self.timed(model.with_cache_bytes(self.cache_bytes)))
            }
            #[cfg(feature = "gpu")]
            PlacedHeads::Gpu(weights) => {
                let most = weights.max_cache_bytes();
                let bytes = crate::gpus::drafter_cache_bytes(self.cache_bytes, most);
                let model = forerun_gpu::GpuHeads::model(Arc::clone(weights));
                Box::new(self.timed(model.with_cache_bytes(bytes)))
            }
        })
    }

    /// Returns a drafter's model on a GPU, and the budget of its caches.
    #[cfg(feature = "gpu")]
    fn on_gpu(
        &self,
        weights: &Arc<forerun_gpu::GpuWeights>,
    ) -> (forerun_gpu::GpuModel, Option<usize>) {
        let model = forerun_gpu::GpuModel::new(Arc::clone(weights));
        let bytes = crate::gpus::drafter_cache_bytes(self.cache_bytes, model.max_cache_bytes());
        (model, bytes)
    }

    /// Returns the team of a device that no other worker uses.
    ///
    /// # Errors
    /// If the device is shared, or consists of several ranks.
    pub(crate) fn team(&self) -> Result<Arc<Team>, String> {
        match self.device {
            DrafterDevice::Team(team) => Ok(Arc::clone(team)),
            // `Plan` refuses such placements.
            DrafterDevice::Shared { .. } => Err("this drafter cannot move between devices".into()),
            // So does the engine.
            DrafterDevice::Ranks { .. } => Err("this drafter cannot be on several ranks".into()),
        }
    }
}

/// The device of a drafter's model.
pub(crate) enum DrafterDevice<'a> {
    /// A device that no other worker uses.
    Team(&'a Arc<Team>),
    /// Several ranks that compute the model together.
    Ranks {
        /// The team of the first of them.
        team: &'a Arc<Team>,
        /// The connection to the others, until a model uses it.
        exchange: &'a Mutex<Option<Box<dyn Exchange>>>,
    },
    /// The first and the last of the target's devices.
    Shared {
        devices: [&'a Arc<SharedDevice>; 2],
        /// Whether each half of a draft is computed on one of the devices. If not, each token is
        /// computed on the device that is free.
        halves: bool,
    },
}

impl DrafterDevice<'_> {
    /// Returns the forward passes of a model on this device, for a worker of `engine`.
    fn passes(
        &self,
        engine: &Engine,
        weights: Arc<Weights>,
    ) -> Result<Box<dyn Forward<Storage = CpuPages>>, String> {
        Ok(match self {
            Self::Team(team) => Box::new(Transformer::new(weights, Arc::clone(team))),
            Self::Shared { devices, .. } => {
                let lease = |device| Box::new(engine.lease(device)) as Box<dyn ExclusiveDevice>;
                Box::new(AlternatingModel::new(&weights, devices.map(lease)))
            }
            Self::Ranks { team, exchange } => {
                let exchange = exchange.lock().unwrap_or_else(PoisonError::into_inner).take();
                let exchange = exchange.ok_or("these ranks compute another model already")?;
                lead(weights, team, exchange, None)
            }
        })
    }
}

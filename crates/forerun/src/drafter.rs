//! The drafters of a plan that have checkpoints: opened, checked against the target, loaded, and
//! installed on a device. How each of them is built stands in `drafter_builders.rs`.

use crate::drafter_builders::{self, UseWeights};
use crate::error::ForerunError;
use crate::loader::Loader;
use crate::model_source::ModelSource;
use crate::open_model::{OpenModel, open_embedded, open_located};
use crate::plan::Plan;
use crate::registry::{DrafterKind, is_model};
use forerun_core::DraftShape;
use forerun_cpu::{AlternatingModel, CpuPages, ExclusiveDevice, Team, Transformer, Weights};
use forerun_decode::DraftPattern;
use forerun_draft::{Drafter, TwoDeviceDrafter};
use forerun_formats::{FeatureSource, LoadError, Speculator, SpeculatorKind};
use forerun_model::{CachedTransformer, Forward};
use forerun_runtime::{Engine, SharedDevice, TimedModel};
use std::sync::Arc;

/// An open drafter checkpoint that fits the target.
pub(crate) struct OpenDrafter<'p> {
    /// The index among all drafters.
    index: usize,
    name: &'p ModelSource,
    checkpoint: DrafterCheckpoint,
}

/// An open checkpoint of a drafter.
enum DrafterCheckpoint {
    /// A whole model.
    Model {
        model: OpenModel,
        /// Whether its vocabulary is not the target's, so that drafts are translated.
        translates: bool,
        use_weights: UseWeights,
    },
    /// A layer or heads that share the target's embedding or head.
    Speculator(Speculator),
}

/// An open language model that is about to draft.
pub(crate) struct DraftModel<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) kind: DrafterKind,
    /// The layout that shows what the model was trained for, such as PARD's.
    pub(crate) layout: Option<SpeculatorKind>,
    pub(crate) target: &'a OpenModel,
    pub(crate) model: &'a OpenModel,
    /// Whether its vocabulary is not the target's, so that drafts are translated.
    pub(crate) translates: bool,
}

impl<'p> OpenDrafter<'p> {
    /// Opens all draft models of the plan.
    ///
    /// # Errors
    /// If one cannot be read, is not of the plan's kind, or does not fit the target.
    pub(crate) fn all(
        plan: &'p Plan,
        target: &OpenModel,
        loader: &mut Loader<'_>,
    ) -> Result<Vec<Self>, ForerunError> {
        let open = |(index, name)| {
            let kind = if index == 0 { plan.drafter() } else { DrafterKind::Model };
            let checkpoint = DrafterCheckpoint::open(plan, (name, kind), target, loader)?;
            Ok(Self { index, name, checkpoint })
        };
        plan.drafters_with_models().into_iter().map(open).collect()
    }

    /// Returns whether its drafts are translated by their text.
    pub(crate) fn translates(&self) -> bool {
        matches!(self.checkpoint, DrafterCheckpoint::Model { translates: true, .. })
    }

    /// Returns the target's features that it reads in addition to tokens, if any.
    pub(crate) fn features(&self, target: &OpenModel) -> Option<FeatureSource> {
        match &self.checkpoint {
            DrafterCheckpoint::Model { .. } => None,
            DrafterCheckpoint::Speculator(speculator) => {
                speculator.kind().features(target.checkpoint.config())
            }
        }
    }

    /// Loads its weights.
    ///
    /// # Errors
    /// If a tensor is missing or broken.
    pub(crate) fn load(
        self,
        plan: &Plan,
        target: (&OpenModel, &Arc<Weights>),
        loader: &mut Loader<'_>,
    ) -> Result<LoadedDrafter, ForerunError> {
        let (target, target_weights) = target;
        let Self { index, name, checkpoint } = self;
        let weight_type = plan.weight_type();
        let parts = match checkpoint {
            DrafterCheckpoint::Model { model, use_weights, .. } => {
                use_weights(loader.load(name, &model.checkpoint, weight_type)?)
            }
            DrafterCheckpoint::Speculator(speculator) => {
                let key = (speculator.path().to_owned(), weight_type);
                loader.load_drafter(key, target.checkpoint.path(), || {
                    drafter_builders::speculator(&speculator, target_weights, weight_type)
                })?
            }
        };
        Ok(LoadedDrafter { index, parts })
    }
}

impl DrafterCheckpoint {
    /// Opens the checkpoint `name` for a drafter of the kind `requested`.
    fn open(
        plan: &Plan,
        (name, requested): (&ModelSource, DrafterKind),
        target: &OpenModel,
        loader: &mut Loader<'_>,
    ) -> Result<Self, ForerunError> {
        let (path, embedded) = match name {
            ModelSource::Embedded(model) => (model.path().to_owned(), true),
            name => (loader.locate(name)?, false),
        };
        let found = match SpeculatorKind::of(&path) {
            _ if embedded => None,
            Err(error @ LoadError::Pickle { .. }) => return Err(error.into()),
            // Opening a model gives a better error.
            Err(_) if !requested.belongs_to_target() => None,
            found => found?,
        };
        match (found, requested.build_model()) {
            (Some(found), _) if !requested.can_use(Some(found)) => {
                Err(ForerunError::WrongDrafterKind { path, found, requested })
            }
            (layout, Some(build)) if is_model(layout) && requested.can_use(layout) => {
                let model = match name {
                    ModelSource::Embedded(model) => open_embedded(model)?,
                    name => open_located(&path, name)?,
                };
                let translates = !target.tokenizer.agrees_with(&model.tokenizer);
                if translates {
                    check_translation((plan, requested), target, &model)?;
                }
                let kind = requested;
                let open = DraftModel { plan, kind, layout, target, model: &model, translates };
                let use_weights = build(&open)?;
                Ok(Self::Model { model, translates, use_weights })
            }
            (Some(found), _) => {
                plan.check_layout(found)?;
                match Speculator::open(&path, &target.checkpoint)? {
                    Some(speculator) => Ok(Self::Speculator(speculator)),
                    None => Err(ForerunError::NotADrafter { path, requested }),
                }
            }
            _ if !embedded && !path.exists() => Err(LoadError::NotFound { path }.into()),
            _ => Err(ForerunError::NotADrafter { path, requested }),
        }
    }
}

/// Refuses translation for trees, and for drafters that cannot translate.
fn check_translation(
    (plan, kind): (&Plan, DrafterKind),
    target: &OpenModel,
    drafter: &OpenModel,
) -> Result<(), ForerunError> {
    if !kind.translates() {
        let [target, drafter] = [target, drafter].map(|model| model.checkpoint.path().to_owned());
        return Err(ForerunError::UntranslatableDrafter { kind, target, drafter });
    }
    if matches!(plan.shape(), DraftShape::Chain { .. }) {
        return Ok(());
    }
    Err(ForerunError::UntranslatableTree {
        target: target.checkpoint.path().to_owned(),
        drafter: drafter.checkpoint.path().to_owned(),
        target_size: target.checkpoint.config().vocab_size,
        drafter_size: drafter.checkpoint.config().vocab_size,
    })
}

/// A drafter's weights, and how it drafts with them.
#[derive(Clone)]
pub(crate) struct DrafterParts {
    pattern: DraftPattern,
    build: Arc<BuildDrafter>,
}

/// Builds a drafter on a worker.
type BuildDrafter = dyn Fn(&Site<'_>) -> Result<Box<dyn Drafter>, String> + Send + Sync;

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
    engine: &'a Engine,
    device: &'a DrafterDevice<'a>,
    /// The number of the target's tokens.
    pub(crate) vocab_size: usize,
}

impl Site<'_> {
    /// Wraps a model so that its passes appear in the trace.
    pub(crate) fn timed<M>(&self, model: M) -> TimedModel<M> {
        self.engine.timed(model)
    }

    /// Returns a language model with caches of its own.
    pub(crate) fn model(
        &self,
        weights: &Arc<Weights>,
    ) -> TimedModel<CachedTransformer<Box<dyn Forward<Storage = CpuPages>>>> {
        let passes = self.device.passes(self.engine, Arc::clone(weights));
        self.timed(CachedTransformer::new(passes))
    }

    /// Returns the team of a device that no other worker uses.
    ///
    /// # Errors
    /// If the device is shared.
    pub(crate) fn team(&self) -> Result<Arc<Team>, String> {
        match self.device {
            DrafterDevice::Team(team) => Ok(Arc::clone(team)),
            // `Plan` refuses such placements.
            DrafterDevice::Shared { .. } => Err("this drafter cannot move between devices".into()),
        }
    }
}

/// A loaded drafter, with its index among all drafters.
#[derive(Clone)]
pub(crate) struct LoadedDrafter {
    index: usize,
    parts: DrafterParts,
}

/// The device of a drafter's model.
pub(crate) enum DrafterDevice<'a> {
    /// A device that no other worker uses.
    Team(&'a Arc<Team>),
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
    ) -> Box<dyn Forward<Storage = CpuPages>> {
        match self {
            Self::Team(team) => Box::new(Transformer::new(weights, Arc::clone(team))),
            Self::Shared { devices, .. } => {
                let lease = |device| Box::new(engine.lease(device)) as Box<dyn ExclusiveDevice>;
                Box::new(AlternatingModel::new(&weights, devices.map(lease)))
            }
        }
    }
}

impl LoadedDrafter {
    /// Returns its index among all drafters.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Returns the number of positions that it drafts, and in how many passes.
    pub(crate) fn pattern(&self) -> DraftPattern {
        self.parts.pattern
    }

    /// Returns the engine with this drafter on `device`, for a target with `vocab_size` tokens.
    ///
    /// # Errors
    /// If the drafter cannot run on that device.
    pub(crate) fn install(
        &self,
        engine: Engine,
        device: &DrafterDevice<'_>,
        vocab_size: usize,
    ) -> Result<Engine, String> {
        let drafter = (self.parts.build)(&Site { engine: &engine, device, vocab_size })?;
        Ok(match device {
            DrafterDevice::Shared { halves: true, .. } => {
                engine.with_drafter(self.index, TwoDeviceDrafter::new(drafter))
            }
            _ => engine.with_drafter(self.index, drafter),
        })
    }
}

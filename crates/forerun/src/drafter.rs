//! The drafters of a plan: opened, checked against the target, loaded, and installed on a device.

use crate::decoding::DraftPattern;
use crate::drafter_weights::DrafterWeights;
use crate::error::ForerunError;
use crate::loader::Loader;
use crate::model_source::ModelSource;
use crate::open_model::{OpenModel, open_located};
use crate::plan::{AdditionalDrafter, DrafterKind, Plan};
use crate::translation::Translation;
use forerun_core::{DraftShape, TokenId};
use forerun_cpu::{
    AlternatingModel, CpuHeads, CpuPages, ExclusiveDevice, Team, Transformer, Weights,
};
use forerun_draft::{
    CalibrationPolicy, Drafter, EagleDrafter, HydraDrafter, LayerParallelDrafter, Masks,
    MedusaDrafter, ModelDrafter, OuroborosDrafter, ParallelDrafter, ParallelEagleDrafter,
    TwoDeviceDrafter, VocabTranslationDrafter,
};
use forerun_formats::{FeatureSource, LoadError, Speculator, SpeculatorKind};
use forerun_lm::LayerGroups;
use forerun_model::{CachedTransformer, EagleModel, Forward};
use forerun_runtime::{Engine, SharedDevice};
use std::sync::Arc;

/// The number of tokens in a round of EasySpec if drafting runs ahead: the paper's draft length.
const LAYER_PARALLEL_ROUND: usize = 5;

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
    Model(DraftModel),
    /// A layer or heads that share the target's embedding or head.
    Speculator(Speculator),
}

/// A whole model that drafts.
struct DraftModel {
    model: OpenModel,
    /// EasySpec's layer groups, if it drafts.
    layer_parallel: Option<(LayerGroups, CalibrationPolicy)>,
    /// Whether phrases extend its drafts (Ouroboros).
    phrases: bool,
    /// The mask token (PARD).
    mask: Option<TokenId>,
    /// Whether its vocabulary is not the target's, so that drafts are translated.
    translates: bool,
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
        let first = plan.draft_model().map(|name| (0, name, plan.drafter()));
        let model = |(index, drafter): (usize, &'p AdditionalDrafter)| match drafter {
            AdditionalDrafter::Model(name) => Some((index, name, DrafterKind::Model)),
            AdditionalDrafter::PromptLookup => None,
        };
        let additional = (1..).zip(plan.additional_drafters()).filter_map(model);
        let open = |(index, name, kind)| {
            let checkpoint = DrafterCheckpoint::open(plan, (name, kind), target, loader)?;
            Ok(Self { index, name, checkpoint })
        };
        first.into_iter().chain(additional).map(open).collect()
    }

    /// Returns whether its drafts are translated by their text.
    pub(crate) fn translates(&self) -> bool {
        matches!(self.checkpoint, DrafterCheckpoint::Model(DraftModel { translates: true, .. }))
    }

    /// Returns the target's features that it reads in addition to tokens, if any.
    pub(crate) fn features(&self, target: &OpenModel) -> Option<FeatureSource> {
        match &self.checkpoint {
            DrafterCheckpoint::Model(_) => None,
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
        let weights = match checkpoint {
            DrafterCheckpoint::Model(draft_model) => {
                let checkpoint = &draft_model.model.checkpoint;
                let weights = loader.load(name, checkpoint, weight_type)?;
                draft_model.with_weights(weights, target)
            }
            DrafterCheckpoint::Speculator(speculator) => {
                let key = (speculator.path().to_owned(), weight_type);
                loader.load_drafter(key, target.checkpoint.path(), || {
                    DrafterWeights::load(&speculator, target_weights, weight_type)
                })?
            }
        };
        Ok(LoadedDrafter { index, weights })
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
        let path = loader.locate(name)?;
        let found = match SpeculatorKind::of(&path) {
            Err(error @ LoadError::Pickle { .. }) => return Err(error.into()),
            // Opening a model gives a better error.
            Err(_) if !requested.belongs_to_target() => None,
            found => found?,
        };
        let mask = match (requested, found) {
            // A PARD model is also an ordinary language model.
            (
                DrafterKind::Model | DrafterKind::EasySpec | DrafterKind::Ouroboros,
                None | Some(SpeculatorKind::Pard { .. }),
            ) => None,
            (DrafterKind::Parallel, Some(SpeculatorKind::Pard { mask })) => Some(mask),
            (_, Some(found)) if DrafterKind::of(found) == requested => {
                plan.check_features(found)?;
                return match Speculator::open(&path, &target.checkpoint)? {
                    Some(speculator) => Ok(Self::Speculator(speculator)),
                    None => Err(ForerunError::NotADrafter { path, requested }),
                };
            }
            (_, Some(found)) => {
                return Err(ForerunError::WrongDrafterKind { path, found, requested });
            }
            (_, None) if !path.exists() => return Err(LoadError::NotFound { path }.into()),
            (_, None) => return Err(ForerunError::NotADrafter { path, requested }),
        };
        let model = open_located(&path, name)?;
        let translates = !target.tokenizer.agrees_with(&model.tokenizer);
        if translates {
            check_translation((plan, requested), target, &model)?;
        }
        let layer_parallel = match requested {
            DrafterKind::EasySpec => layer_parallel(plan, &model)?,
            _ => None,
        };
        let phrases = requested == DrafterKind::Ouroboros;
        Ok(Self::Model(DraftModel { model, layer_parallel, phrases, mask, translates }))
    }
}

impl DraftModel {
    fn with_weights(self, weights: Arc<Weights>, target: &OpenModel) -> DrafterWeights {
        let Self { model, layer_parallel, phrases, mask, translates } = self;
        if phrases {
            return DrafterWeights::Ouroboros(weights);
        }
        if let Some(mask) = mask {
            return DrafterWeights::Parallel { weights, masks: Masks::Repeated(mask) };
        }
        let translation = translates.then(|| {
            let ends = &model.checkpoint.config().eos_token_ids;
            let target_config = target.checkpoint.config();
            let target = (Arc::clone(&target.tokenizer), &target_config.eos_token_ids[..]);
            let drafter = (Arc::clone(&model.tokenizer), &ends[..]);
            Arc::new(Translation::new(target, target_config.vocab_size, drafter))
        });
        DrafterWeights::Model { weights, layer_parallel, translation }
    }
}

/// Refuses translation for trees, and for drafters other than [`DrafterKind::Model`].
fn check_translation(
    (plan, kind): (&Plan, DrafterKind),
    target: &OpenModel,
    drafter: &OpenModel,
) -> Result<(), ForerunError> {
    if kind != DrafterKind::Model {
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

/// Returns EasySpec's layer groups for a drafter, if the plan uses EasySpec.
fn layer_parallel(
    plan: &Plan,
    drafter: &OpenModel,
) -> Result<Option<(LayerGroups, CalibrationPolicy)>, ForerunError> {
    let Some(easyspec) = plan.easyspec() else { return Ok(None) };
    let groups = easyspec.layers.groups(drafter.checkpoint.config().num_hidden_layers);
    let groups = groups.map_err(|cause| {
        let drafter = drafter.checkpoint.path().to_owned();
        ForerunError::LayerGroups { cause, drafter }
    })?;
    Ok(Some((groups, easyspec.calibration)))
}

/// A loaded drafter, with its index among all drafters.
#[derive(Clone)]
pub(crate) struct LoadedDrafter {
    index: usize,
    weights: DrafterWeights,
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

    /// Returns the team of a device that no other worker uses.
    ///
    /// # Errors
    /// If the device is shared.
    fn team(&self) -> Result<&Arc<Team>, String> {
        match self {
            Self::Team(team) => Ok(team),
            // `Plan` refuses such placements.
            Self::Shared { .. } => Err("this drafter cannot move between devices".into()),
        }
    }

    /// Returns the engine with a drafter whose model is on this device.
    fn install(&self, engine: Engine, index: usize, drafter: impl Drafter + 'static) -> Engine {
        match self {
            Self::Shared { halves: true, .. } => {
                engine.with_drafter(index, TwoDeviceDrafter::new(drafter))
            }
            _ => engine.with_drafter(index, drafter),
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
        let with_masks =
            |masks: usize| DraftPattern { positions: Some(masks + 1), one_forward: true };
        match &self.weights {
            DrafterWeights::Model { .. } | DrafterWeights::Ouroboros(_) => DraftPattern::default(),
            DrafterWeights::Parallel { masks: Masks::Repeated(_), .. } => {
                DraftPattern { positions: None, one_forward: true }
            }
            DrafterWeights::Parallel { masks: Masks::PerPosition(masks), .. } => {
                with_masks(masks.len())
            }
            DrafterWeights::Eagle(weights) => match weights.architecture().mask_tokens {
                0 => DraftPattern::default(),
                masks => with_masks(masks),
            },
            DrafterWeights::Heads(weights) => {
                let heads = weights.architecture();
                // Heads that read drafted tokens run one after another.
                DraftPattern { positions: Some(heads.n_heads), one_forward: !heads.reads_tokens }
            }
        }
    }

    /// Returns the engine with this drafter on `device`, for a target with `vocab_size` tokens.
    ///
    /// # Errors
    /// If the drafter cannot run on that device.
    pub(crate) fn install(
        self,
        engine: Engine,
        device: &DrafterDevice<'_>,
        vocab_size: usize,
    ) -> Result<Engine, String> {
        let model = |engine: &Engine, weights| {
            engine.timed(CachedTransformer::new(device.passes(engine, weights)))
        };
        let index = self.index;
        Ok(match self.weights {
            DrafterWeights::Model { weights, layer_parallel, translation } => {
                let model = model(&engine, weights);
                match (translation, layer_parallel) {
                    (None, None) => {
                        let drafter = ModelDrafter::new(model).with_vocab_size(vocab_size);
                        device.install(engine, index, drafter)
                    }
                    (None, Some((groups, calibration))) => {
                        let drafter = LayerParallelDrafter::new(model, groups, calibration);
                        let drafter = drafter.with_round_length(LAYER_PARALLEL_ROUND);
                        device.install(engine, index, drafter.with_vocab_size(vocab_size))
                    }
                    (Some(translation), _) => device.install(
                        engine,
                        index,
                        VocabTranslationDrafter::new(model, translation),
                    ),
                }
            }
            DrafterWeights::Parallel { weights, masks } => {
                let drafter = ParallelDrafter::new(model(&engine, weights), masks);
                device.install(engine, index, drafter.with_vocab_size(vocab_size))
            }
            DrafterWeights::Eagle(weights) => {
                let masks = weights.architecture().mask_ids();
                let layers = Transformer::new(weights, Arc::clone(device.team()?));
                let model = engine.timed(EagleModel::new(layers));
                match masks.is_empty() {
                    true => engine.with_drafter(index, EagleDrafter::new(model)),
                    false => {
                        let drafter = ParallelEagleDrafter::new(model, Masks::PerPosition(masks));
                        engine.with_drafter(index, drafter)
                    }
                }
            }
            DrafterWeights::Heads(weights) => {
                let (n_heads, reads_tokens) =
                    (weights.architecture().n_heads, weights.architecture().reads_tokens);
                let model = engine.timed(CpuHeads::model(weights, device.team()?));
                match reads_tokens {
                    true => engine.with_drafter(index, HydraDrafter::new(model, n_heads)),
                    false => engine.with_drafter(index, MedusaDrafter::new(model, n_heads)),
                }
            }
            DrafterWeights::Ouroboros(weights) => {
                let drafter = OuroborosDrafter::new(model(&engine, weights));
                device.install(engine, index, drafter.with_vocab_size(vocab_size))
            }
        })
    }
}

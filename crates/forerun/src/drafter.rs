//! The drafters of a plan: what their folders hold, loaded, and put to work on a device's team.

use crate::decoding::DraftPattern;
use crate::drafter_weights::DrafterWeights;
use crate::error::ForerunError;
use crate::loader::Loader;
use crate::open_model::{OpenModel, open_located};
use crate::plan::{AdditionalDrafter, DrafterKind, Plan};
use crate::translation::Translation;
use forerun_core::{DraftShape, TokenId};
use forerun_draft::{
    CalibrationPolicy, Drafter, EagleDrafter, HydraDrafter, LayerParallelDrafter, Masks,
    MedusaDrafter, ModelDrafter, OuroborosDrafter, ParallelDrafter, ParallelEagleDrafter,
    TwoDeviceDrafter, VocabTranslationDrafter,
};
use forerun_model::{
    AlternatingModel, CachedTransformer, EagleModel, ExclusiveDevice, FeatureSource, Forward,
    HydraModel, LayerGroups, LoadError, MedusaHeads, PassAssignment, Speculator, SpeculatorKind,
    Team, Transformer, Weights,
};
use forerun_runtime::{Engine, SharedDevice};
use std::path::Path;
use std::sync::Arc;

/// Tokens of EasySpec's rounds where drafting runs ahead: the paper's draft length.
const LAYER_PARALLEL_ROUND: usize = 5;

/// A drafter whose files are there and fit the target.
pub(crate) struct OpenDrafter<'p> {
    /// Among all drafters.
    index: usize,
    name: &'p Path,
    files: Files,
}

/// What a drafter's folder holds.
enum Files {
    /// A whole model.
    Model(WholeModel),
    /// A layer or heads that share the target's embedding or head.
    Speculator(Speculator),
}

/// A whole model as the drafter.
struct WholeModel {
    model: OpenModel,
    /// EasySpec's layer groups.
    layer_parallel: Option<(LayerGroups, CalibrationPolicy)>,
    /// Whether phrases lengthen its drafts.
    phrases: bool,
    /// The token that stands for what is to be guessed (PARD).
    mask: Option<TokenId>,
    /// Whether its vocabulary is another.
    translates: bool,
}

impl<'p> OpenDrafter<'p> {
    /// Opens the plan's draft models, of which there may be none.
    ///
    /// # Errors
    /// If one cannot be read, is no drafter of the plan's kind, or does not fit the target.
    pub(crate) fn all(
        plan: &'p Plan,
        target: &OpenModel,
        loader: &mut Loader<'_>,
    ) -> Result<Vec<Self>, ForerunError> {
        let first = plan.draft_model().map(|name| (0, name, plan.drafter()));
        let further = (1..).zip(plan.additional_drafters()).filter_map(|(index, own)| match own {
            AdditionalDrafter::Model(name) => Some((index, name.as_path(), DrafterKind::Model)),
            AdditionalDrafter::PromptLookup => None,
        });
        let open = |(index, name, asked)| {
            let files = Files::open(plan, (name, asked), target, loader)?;
            Ok(Self { index, name, files })
        };
        first.into_iter().chain(further).map(open).collect()
    }

    /// Whether its drafts have to be translated by their text.
    pub(crate) fn translates(&self) -> bool {
        matches!(self.files, Files::Model(WholeModel { translates: true, .. }))
    }

    /// What of the target's it reads beside tokens.
    pub(crate) fn features(&self, target: &OpenModel) -> Option<FeatureSource> {
        match &self.files {
            Files::Model(_) => None,
            Files::Speculator(own) => own.kind().features(target.checkpoint.config()),
        }
    }

    /// Reads its weights.
    ///
    /// # Errors
    /// If a tensor is missing or broken.
    pub(crate) fn load(
        self,
        plan: &Plan,
        target: (&OpenModel, &Arc<Weights>),
        loader: &mut Loader<'_>,
    ) -> Result<LoadedDrafter, ForerunError> {
        let (target, shared) = target;
        let Self { index, name, files } = self;
        let asked = plan.weight_type();
        let weights = match files {
            Files::Model(whole) => {
                let weights = loader.load(name, &whole.model.checkpoint, asked)?;
                whole.loaded(weights, target)
            }
            Files::Speculator(speculator) => {
                let (own, target) = (speculator.path().to_owned(), target.checkpoint.path());
                loader.load_drafter((own, asked), target, || {
                    DrafterWeights::of(&speculator, shared, asked)
                })?
            }
        };
        Ok(LoadedDrafter { index, weights })
    }
}

impl Files {
    /// What `name` holds, for a drafter of the kind `asked`.
    fn open(
        plan: &Plan,
        (name, asked): (&Path, DrafterKind),
        target: &OpenModel,
        loader: &mut Loader<'_>,
    ) -> Result<Self, ForerunError> {
        let path = loader.locate(name)?;
        let found = match SpeculatorKind::of(&path) {
            Err(error @ LoadError::Pickle { .. }) => return Err(error.into()),
            // Opening it will tell better what is wrong with a model's files.
            Err(_) if !asked.belongs_to_target() => None,
            found => found?,
        };
        let mask = match (asked, found) {
            // A PARD model continues texts, too.
            (
                DrafterKind::Model | DrafterKind::EasySpec | DrafterKind::Ouroboros,
                None | Some(SpeculatorKind::Pard { .. }),
            ) => None,
            (DrafterKind::Parallel, Some(SpeculatorKind::Pard { mask })) => Some(mask),
            (_, Some(found)) if DrafterKind::of(found) == asked => {
                plan.check_features(found)?;
                return match Speculator::open(&path, &target.checkpoint)? {
                    Some(speculator) => Ok(Self::Speculator(speculator)),
                    None => Err(ForerunError::NoSuchDrafter { path, asked }),
                };
            }
            (_, Some(found)) => {
                return Err(ForerunError::OtherDrafter { path, found, asked });
            }
            (_, None) if !path.exists() => return Err(LoadError::NotFound { path }.into()),
            (_, None) => return Err(ForerunError::NoSuchDrafter { path, asked }),
        };
        let model = open_located(&path, name)?;
        let translates = !target.tokenizer.agrees_with(&model.tokenizer);
        if translates {
            check_translation((plan, asked), target, &model)?;
        }
        let layer_parallel = match asked {
            DrafterKind::EasySpec => layer_parallel(plan, &model)?,
            _ => None,
        };
        let phrases = asked == DrafterKind::Ouroboros;
        Ok(Self::Model(WholeModel { model, layer_parallel, phrases, mask, translates }))
    }
}

impl WholeModel {
    fn loaded(self, weights: Arc<Weights>, target: &OpenModel) -> DrafterWeights {
        let Self { model, layer_parallel, phrases, mask, translates } = self;
        if phrases {
            return DrafterWeights::Ouroboros(weights);
        }
        if let Some(mask) = mask {
            return DrafterWeights::Parallel { weights, masks: Masks::Repeated(mask) };
        }
        let translation = translates.then(|| {
            let ends = &model.checkpoint.config().eos_token_ids;
            let of_target = target.checkpoint.config();
            let target = (Arc::clone(&target.tokenizer), &of_target.eos_token_ids[..]);
            let drafter = (Arc::clone(&model.tokenizer), &ends[..]);
            Arc::new(Translation::new(target, of_target.vocab_size, drafter))
        });
        DrafterWeights::Model { weights, layer_parallel, translation }
    }
}

/// Only chains can be translated, and only those of an ordinary drafter.
fn check_translation(
    (plan, kind): (&Plan, DrafterKind),
    target: &OpenModel,
    drafter: &OpenModel,
) -> Result<(), ForerunError> {
    if kind != DrafterKind::Model {
        let [target, drafter] = [target, drafter].map(|model| model.checkpoint.path().to_owned());
        return Err(ForerunError::NoTranslation { kind, target, drafter });
    }
    if matches!(plan.shape(), DraftShape::Chain { .. }) {
        return Ok(());
    }
    Err(ForerunError::Vocabulary {
        target: target.checkpoint.path().to_owned(),
        drafter: drafter.checkpoint.path().to_owned(),
        target_size: target.checkpoint.config().vocab_size,
        drafter_size: drafter.checkpoint.config().vocab_size,
    })
}

/// EasySpec's layer groups for a drafter, where the plan asks for it.
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

/// A drafter that is loaded, and its place among all drafters.
#[derive(Clone)]
pub(crate) struct LoadedDrafter {
    index: usize,
    weights: DrafterWeights,
}

/// Where a drafter's model is.
pub(crate) enum DrafterDevice<'a> {
    /// On a device that its worker has for itself.
    Team(&'a Arc<Team>),
    /// On the first and the last of the target's.
    Shared {
        devices: [&'a Arc<SharedDevice>; 2],
        /// Each draft is made in halves, by what is told here; else each token where nobody is.
        halves: Option<PassAssignment>,
    },
}

impl DrafterDevice<'_> {
    /// What computes a model's passes here, for a worker of that engine.
    fn passes(&self, engine: &Engine, weights: Arc<Weights>) -> Box<dyn Forward> {
        match self {
            Self::Team(team) => Box::new(Transformer::new(weights, Arc::clone(team))),
            Self::Shared { devices, halves } => {
                let place = |device| Box::new(engine.lease(device)) as Box<dyn ExclusiveDevice>;
                let sharing = halves.clone().unwrap_or_default();
                Box::new(AlternatingModel::new(&weights, devices.map(place), sharing))
            }
        }
    }

    /// The team of a device that the worker has for itself.
    fn team(&self) -> Result<&Arc<Team>, String> {
        match self {
            Self::Team(team) => Ok(team),
            // The plan has refused it.
            Self::Shared { .. } => Err("this drafter cannot go from device to device".into()),
        }
    }

    /// An engine with a drafter whose model is here.
    fn engine_with(&self, engine: Engine, index: usize, drafter: impl Drafter + 'static) -> Engine {
        match self {
            Self::Shared { halves: Some(sharing), .. } => {
                engine.with_drafter(index, TwoDeviceDrafter::new(drafter, sharing.clone()))
            }
            _ => engine.with_drafter(index, drafter),
        }
    }
}

impl LoadedDrafter {
    /// Which of the drafters it is.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// How it drafts.
    pub(crate) fn pattern(&self) -> DraftPattern {
        let with_masks =
            |masks: usize| DraftPattern { positions: Some(masks + 1), one_forward: true };
        match &self.weights {
            DrafterWeights::Model { .. } | DrafterWeights::Ouroboros(_) => DraftPattern::default(),
            DrafterWeights::Parallel { masks: Masks::Repeated(_), .. } => {
                DraftPattern { positions: None, one_forward: true }
            }
            DrafterWeights::Parallel { masks: Masks::Own(masks), .. } => with_masks(masks.len()),
            DrafterWeights::Eagle(weights) => match weights.layers().mask_tokens().len() {
                0 => DraftPattern::default(),
                masks => with_masks(masks),
            },
            DrafterWeights::Medusa(weights) => {
                DraftPattern { positions: Some(weights.n_heads()), one_forward: true }
            }
            DrafterWeights::Hydra(weights) => {
                DraftPattern { positions: Some(weights.n_heads()), one_forward: false }
            }
        }
    }

    /// An engine that drafts with it, at `device`, for a target of that vocabulary.
    ///
    /// # Errors
    /// If it cannot draft there.
    pub(crate) fn on(
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
                        device.engine_with(engine, index, drafter)
                    }
                    (None, Some((groups, calibration))) => {
                        let drafter = LayerParallelDrafter::new(model, groups, calibration);
                        let drafter = drafter.with_round_length(LAYER_PARALLEL_ROUND);
                        device.engine_with(engine, index, drafter.with_vocab_size(vocab_size))
                    }
                    (Some(by_text), _) => device.engine_with(
                        engine,
                        index,
                        VocabTranslationDrafter::new(model, by_text),
                    ),
                }
            }
            DrafterWeights::Parallel { weights, masks } => {
                let drafter = ParallelDrafter::new(model(&engine, weights), masks);
                device.engine_with(engine, index, drafter.with_vocab_size(vocab_size))
            }
            DrafterWeights::Eagle(weights) => {
                let masks = weights.layers().mask_tokens();
                let model = engine.timed(EagleModel::new(weights, Arc::clone(device.team()?)));
                match masks.is_empty() {
                    true => engine.with_drafter(index, EagleDrafter::new(model)),
                    false => {
                        let drafter = ParallelEagleDrafter::new(model, Masks::Own(masks));
                        engine.with_drafter(index, drafter)
                    }
                }
            }
            DrafterWeights::Medusa(weights) => {
                let heads = engine.timed(MedusaHeads::new(weights, Arc::clone(device.team()?)));
                engine.with_drafter(index, MedusaDrafter::new(heads))
            }
            DrafterWeights::Hydra(weights) => {
                let heads = weights.n_heads();
                let model = engine.timed(HydraModel::new(weights, Arc::clone(device.team()?)));
                engine.with_drafter(index, HydraDrafter::new(model, heads))
            }
            DrafterWeights::Ouroboros(weights) => {
                let drafter = OuroborosDrafter::new(model(&engine, weights));
                device.engine_with(engine, index, drafter.with_vocab_size(vocab_size))
            }
        })
    }
}

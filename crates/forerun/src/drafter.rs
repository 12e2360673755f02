//! The drafter of a plan: what its folder holds, loaded, and put to work on a device's team.

use crate::decoding::Pattern;
use crate::engine::{ForerunError, OpenModel, open_located};
use crate::loader::Loader;
use crate::plan::{DrafterKind, Plan};
use crate::translation::Translation;
use forerun_core::{DraftShape, TokenId};
use forerun_draft::{
    Calibration, EagleDrafter, FuzzyDrafter, Masks, MedusaDrafter, ModelDrafter, ParallelDrafter,
    ParallelEagleDrafter, TextDrafter,
};
use forerun_model::speculator::{EagleWeights, MedusaWeights};
use forerun_model::{
    CachedTransformer, EagleModel, FeatureSource, LayerGroups, LoadError, MedusaHeads, Speculator,
    SpeculatorKind, Team, Transformer, Weights,
};
use forerun_runtime::Engine;
use std::path::Path;
use std::sync::Arc;

/// A drafter whose files are there and fit the target.
pub(crate) enum OpenDrafter {
    /// A whole model.
    Model(WholeModel),
    /// A layer or heads that share the target's embedding or head.
    Speculator(Speculator),
}

/// A whole model as the drafter.
pub(crate) struct WholeModel {
    model: OpenModel,
    /// EasySpec's layer groups.
    fuzzy: Option<(LayerGroups, Calibration)>,
    /// The token that stands for what is to be guessed (PARD).
    mask: Option<TokenId>,
    /// Whether its vocabulary is another.
    translates: bool,
}

impl OpenDrafter {
    /// Opens the plan's draft model, if it has one.
    ///
    /// # Errors
    /// If it cannot be read, is no drafter of the plan's kind, or does not fit the target.
    pub(crate) fn open(
        plan: &Plan,
        target: &OpenModel,
        loader: &mut Loader<'_>,
    ) -> Result<Option<Self>, ForerunError> {
        let Some(name) = plan.draft_model() else { return Ok(None) };
        let path = loader.locate(name)?;
        let asked = plan.drafter();
        let found = match SpeculatorKind::of(&path) {
            // Opening it will tell better what is wrong with a model's files.
            Err(_) if !asked.belongs_to_target() => None,
            found => found?,
        };
        let mask = match (asked, found) {
            // A PARD model continues texts, too.
            (
                DrafterKind::Model | DrafterKind::EasySpec,
                None | Some(SpeculatorKind::Pard { .. }),
            ) => None,
            (DrafterKind::Parallel, Some(SpeculatorKind::Pard { mask })) => Some(mask),
            (_, Some(found)) if DrafterKind::of(found) == asked => {
                plan.check_features(found)?;
                let speculator = Speculator::open(&path, &target.checkpoint)?;
                return Ok(speculator.map(Self::Speculator));
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
            check_translation(plan, target, &model)?;
        }
        let fuzzy = fuzzy(plan, &model)?;
        Ok(Some(Self::Model(WholeModel { model, fuzzy, mask, translates })))
    }

    /// Whether its drafts have to be translated by their text.
    pub(crate) fn translates(&self) -> bool {
        matches!(self, Self::Model(WholeModel { translates: true, .. }))
    }

    /// What of the target's it reads beside tokens.
    pub(crate) fn features(&self, target: &OpenModel) -> Option<FeatureSource> {
        match self {
            Self::Model(_) => None,
            Self::Speculator(own) => own.kind().features(target.checkpoint.config()),
        }
    }

    /// Reads its weights.
    ///
    /// # Errors
    /// If a tensor is missing or broken.
    pub(crate) fn load(
        self,
        name: &Path,
        plan: &Plan,
        target: (&OpenModel, &Arc<Weights>),
        loader: &mut Loader<'_>,
    ) -> Result<LoadedDrafter, ForerunError> {
        let (target, shared) = target;
        let asked = plan.weight_type();
        let speculator = match self {
            Self::Model(whole) => {
                let weights = loader.load(name, &whole.model.checkpoint, asked)?;
                return Ok(whole.loaded(weights, target));
            }
            Self::Speculator(speculator) => speculator,
        };
        Ok(match speculator.kind() {
            SpeculatorKind::Medusa => {
                LoadedDrafter::Medusa(Arc::new(speculator.medusa(shared, asked)?))
            }
            SpeculatorKind::Eagle | SpeculatorKind::Eagle3 | SpeculatorKind::ParallelEagle => {
                LoadedDrafter::Eagle(Arc::new(speculator.eagle(shared, asked)?))
            }
            SpeculatorKind::ParallelMedusa | SpeculatorKind::Pard { .. } => {
                let weights = Arc::new(speculator.parallel(shared, asked)?);
                let masks = Masks::Own(weights.mask_tokens());
                LoadedDrafter::Parallel { weights, masks }
            }
        })
    }
}

impl WholeModel {
    fn loaded(self, weights: Arc<Weights>, target: &OpenModel) -> LoadedDrafter {
        let Self { model, fuzzy, mask, translates } = self;
        if let Some(mask) = mask {
            return LoadedDrafter::Parallel { weights, masks: Masks::Repeated(mask) };
        }
        let translation = translates.then(|| {
            let ends = &model.checkpoint.config().eos_token_ids;
            let of_target = target.checkpoint.config();
            let target = (Arc::clone(&target.tokenizer), &of_target.eos_token_ids[..]);
            let drafter = (Arc::clone(&model.tokenizer), &ends[..]);
            Arc::new(Translation::new(target, of_target.vocab_size, drafter))
        });
        LoadedDrafter::Model { weights, fuzzy, translation }
    }
}

/// Only chains can be translated, and only those of an ordinary drafter.
fn check_translation(
    plan: &Plan,
    target: &OpenModel,
    drafter: &OpenModel,
) -> Result<(), ForerunError> {
    if plan.drafter() != DrafterKind::Model {
        let [target, drafter] = [target, drafter].map(|model| model.checkpoint.path().to_owned());
        return Err(ForerunError::NoTranslation { kind: plan.drafter(), target, drafter });
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
fn fuzzy(
    plan: &Plan,
    drafter: &OpenModel,
) -> Result<Option<(LayerGroups, Calibration)>, ForerunError> {
    let Some(easyspec) = plan.easyspec() else { return Ok(None) };
    let groups = easyspec.layers.groups(drafter.checkpoint.config().num_hidden_layers);
    let groups = groups.map_err(|cause| {
        let drafter = drafter.checkpoint.path().to_owned();
        ForerunError::LayerGroups { cause, drafter }
    })?;
    Ok(Some((groups, easyspec.calibration)))
}

/// A drafter's weights, and what it takes to draft with them.
#[derive(Clone)]
pub(crate) enum LoadedDrafter {
    /// A model that continues the text.
    Model {
        weights: Arc<Weights>,
        /// EasySpec's layer groups.
        fuzzy: Option<(LayerGroups, Calibration)>,
        /// How its tokens become the target's where they are others.
        translation: Option<Arc<Translation>>,
    },
    /// One that reads masks.
    Parallel { weights: Arc<Weights>, masks: Masks },
    /// A layer on the target's features, with masks or without.
    Eagle(Arc<EagleWeights>),
    /// Heads on the target's last feature.
    Medusa(Arc<MedusaWeights>),
}

impl LoadedDrafter {
    /// How it drafts.
    pub(crate) fn pattern(&self) -> Pattern {
        let with_masks = |masks: usize| Pattern { positions: Some(masks + 1), at_once: true };
        match self {
            Self::Model { .. } => Pattern::default(),
            Self::Parallel { masks: Masks::Repeated(_), .. } => {
                Pattern { positions: None, at_once: true }
            }
            Self::Parallel { masks: Masks::Own(masks), .. } => with_masks(masks.len()),
            Self::Eagle(weights) => match weights.layers().mask_tokens().len() {
                0 => Pattern::default(),
                masks => with_masks(masks),
            },
            Self::Medusa(weights) => Pattern { positions: Some(weights.n_heads()), at_once: true },
        }
    }

    /// An engine that drafts with it, on `team`, for a target of that vocabulary.
    pub(crate) fn on(self, engine: Engine, team: &Arc<Team>, vocab_size: usize) -> Engine {
        let model = |engine: &Engine, weights| {
            let transformer = Transformer::new(weights, Arc::clone(team));
            engine.timed(CachedTransformer::new(transformer))
        };
        match self {
            Self::Model { weights, fuzzy, translation } => {
                let model = model(&engine, weights);
                match (translation, fuzzy) {
                    (None, None) => {
                        let drafter = ModelDrafter::new(model).for_vocabulary(vocab_size);
                        engine.with_drafter(0, drafter)
                    }
                    (None, Some((groups, calibration))) => {
                        let drafter = FuzzyDrafter::new(model, groups, calibration);
                        engine.with_drafter(0, drafter.for_vocabulary(vocab_size))
                    }
                    (Some(by_text), _) => engine.with_drafter(0, TextDrafter::new(model, by_text)),
                }
            }
            Self::Parallel { weights, masks } => {
                let drafter = ParallelDrafter::new(model(&engine, weights), masks);
                engine.with_drafter(0, drafter.for_vocabulary(vocab_size))
            }
            Self::Eagle(weights) => {
                let masks = weights.layers().mask_tokens();
                let model = engine.timed(EagleModel::new(weights, Arc::clone(team)));
                match masks.is_empty() {
                    true => engine.with_drafter(0, EagleDrafter::new(model)),
                    false => {
                        let drafter = ParallelEagleDrafter::new(model, Masks::Own(masks));
                        engine.with_drafter(0, drafter)
                    }
                }
            }
            Self::Medusa(weights) => {
                let heads = engine.timed(MedusaHeads::new(weights, Arc::clone(team)));
                engine.with_drafter(0, MedusaDrafter::new(heads))
            }
        }
    }
}

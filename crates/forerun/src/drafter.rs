//! The drafters of a plan that have checkpoints: opened, checked against the target, loaded, and
//! installed on a device. How each of them is built stands in `drafter_builders.rs`.

use crate::drafter_builders::{self, UnsuitableModel, UseWeights};
use crate::drafter_parts::{DraftModel, DrafterDevice, DrafterParts, Site};
use crate::error::ForerunError;
use crate::loader::{Loader, SpeculatorKey};
use crate::memory;
use crate::model_source::ModelSource;
use crate::open_model::{OpenModel, open_embedded, open_located};
use crate::page_folder::{ModelPages, PageFolder};
use crate::placed_weights::PlacedWeights;
use crate::plan::{Plan, TYPICAL_RATIO};
use crate::registry::{DrafterKind, is_model};
use crate::translation::Translation;
use forerun_core::{DraftShape, Role};
use forerun_cpu::{BlockHeadWeights, CorePart, SpeculatorWeights, Weights};
use forerun_decode::DraftPattern;
use forerun_draft::TwoDeviceDrafter;
use forerun_formats::{
    FeatureSource, LoadError, Speculator, SpeculatorArchitecture, SpeculatorKind,
};
use forerun_runtime::{DeviceGroup, DeviceGroups, Engine, PassTimes};
use std::sync::Arc;

/// An open drafter checkpoint that fits the target.
pub(crate) struct OpenDrafter<'p> {
    /// The index among all drafters.
    index: usize,
    /// The GPU on which it drafts, if not on cores.
    gpu: Option<usize>,
    /// The part of its model that this process computes.
    part: CorePart,
    name: &'p ModelSource,
    checkpoint: DrafterCheckpoint,
}

/// The weights of a target that drafters use. The larger part has the smaller one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SharedPart {
    /// The final norm, for a drafter that is a whole model (PARD-2).
    FinalNorm,
    /// The embedding and the head, and the final norm.
    EmbeddingAndHead,
}

impl SharedPart {
    /// Returns the part that a drafter trained for the target uses.
    fn of(speculator: &Speculator) -> Self {
        match speculator.kind().is_model() {
            true => Self::FinalNorm,
            false => Self::EmbeddingAndHead,
        }
    }

    /// Returns its name.
    #[cfg(feature = "gpu")]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FinalNorm => "final norm",
            Self::EmbeddingAndHead => "embedding and head",
        }
    }
}

/// An open checkpoint of a drafter.
enum DrafterCheckpoint {
    /// A whole model.
    Model {
        model: Box<OpenModel>,
        /// Whether its vocabulary is not the target's, so that drafts are translated.
        translates: bool,
        use_weights: UseWeights,
    },
    /// A layer or heads that share the target's embedding or head.
    Speculator(Box<Speculator>),
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
        let only_embeds =
            |model: &OpenModel, name: &ModelSource| match model.checkpoint.config().pooling {
                Some(_) => Err(ForerunError::OnlyEmbeddings { model: name.clone() }),
                None => Ok(()),
            };
        if !plan.drafters_with_models().is_empty() {
            only_embeds(target, plan.model())?;
        }
        let open = |(group, (index, name)): (usize, (usize, &'p ModelSource))| {
            let kind = if index == 0 { plan.drafter() } else { DrafterKind::Model };
            let checkpoint = DrafterCheckpoint::open(plan, (name, kind), target, loader)?;
            if let DrafterCheckpoint::Model { model, .. } = &checkpoint {
                only_embeds(model, name)?;
            }
            let gpu = plan.placement().gpu_of(Role::Drafter(group));
            let groups = plan.placement().drafter(group);
            let has_several_ranks = |groups: &&DeviceGroups| {
                groups.as_slice().iter().any(DeviceGroup::has_several_ranks)
            };
            match (&checkpoint, groups.filter(has_several_ranks)) {
                (DrafterCheckpoint::Speculator(_), Some(ranks)) => {
                    let (drafter, ranks) = (name.to_string(), ranks.to_string());
                    Err(ForerunError::DrafterOnRanks { drafter, ranks })
                }
                _ => Ok(Self { index, gpu, part: CorePart::Whole, name, checkpoint }),
            }
        };
        plan.drafters_with_models().into_iter().enumerate().map(open).collect()
    }

    /// Returns its index among all drafters.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Returns the GPU on which it drafts, if not on cores.
    pub(crate) fn gpu(&self) -> Option<usize> {
        self.gpu
    }

    /// Sets the part of its model that this process computes, if several ranks compute it together.
    pub(crate) fn set_part(&mut self, part: CorePart) {
        self.part = part;
    }

    /// Returns the part of its model that this process computes.
    pub(crate) fn part(&self) -> CorePart {
        self.part
    }

    /// Returns the part of the target's weights that it uses, if any.
    pub(crate) fn shared_part(&self) -> Option<SharedPart> {
        match &self.checkpoint {
            DrafterCheckpoint::Model { .. } => None,
            DrafterCheckpoint::Speculator(speculator) => Some(SharedPart::of(speculator)),
        }
    }

    /// Returns its name, as the options give it.
    pub(crate) fn name(&self) -> String {
        self.name.to_string()
    }

    /// Returns the length of its context in tokens, if it has one of its own.
    pub(crate) fn context_length(&self) -> Option<usize> {
        match &self.checkpoint {
            DrafterCheckpoint::Model { model, .. } => {
                Some(model.checkpoint.architecture().context_length)
            }
            DrafterCheckpoint::Speculator(speculator) => match speculator.architecture() {
                Ok(SpeculatorArchitecture::Layers(layers)) => Some(layers.context_length),
                _ => None,
            },
        }
    }

    /// Returns whether its drafts are translated by their text.
    pub(crate) fn translates(&self) -> bool {
        matches!(self.checkpoint, DrafterCheckpoint::Model { translates: true, .. })
    }

    /// Returns the target's features that it reads in addition to tokens, if any.
    pub(crate) fn features(&self) -> Option<FeatureSource> {
        match &self.checkpoint {
            DrafterCheckpoint::Model { .. } => None,
            DrafterCheckpoint::Speculator(speculator) => speculator.features(),
        }
    }

    /// Returns the memory that drafters need on a GPU in bytes, next to a target that is not there
    /// as a whole. They have one copy of what they share with it.
    ///
    /// # Errors
    /// If a tensor is missing or broken.
    pub(crate) fn memory_on_gpu(
        drafters: &[Self],
        gpu: usize,
        plan: &Plan,
        target: &OpenModel,
    ) -> Result<u64, LoadError> {
        let there = || drafters.iter().filter(|drafter| drafter.gpu == Some(gpu));
        let own = there().try_fold(0_u64, |sum, drafter| {
            let own = match &drafter.checkpoint {
                DrafterCheckpoint::Model { model, .. } => {
                    memory::of_model_on_gpu(&model.checkpoint, plan.types())?
                }
                DrafterCheckpoint::Speculator(speculator) => {
                    memory::of_speculator_on_gpu(speculator, plan.types())?
                }
            };
            Ok::<_, LoadError>(sum.saturating_add(own))
        })?;
        let shared = there().filter_map(Self::shared_part).max();
        let shared = shared
            .map(|part| memory::of_shared_on_gpu(&target.checkpoint, plan.types(), part))
            .transpose()?;
        Ok(own.saturating_add(shared.unwrap_or(0)))
    }

    /// Returns the memory that it needs at least in addition to the target, in bytes. What it needs
    /// on a GPU does not count.
    ///
    /// # Errors
    /// If a tensor is missing or broken.
    pub(crate) fn memory(&self, plan: &Plan) -> Result<usize, LoadError> {
        match &self.checkpoint {
            DrafterCheckpoint::Model { .. } if self.gpu.is_some() => Ok(0),
            DrafterCheckpoint::Model { model, .. } => {
                memory::of_model(&model.checkpoint, plan.types(), self.part)
            }
            DrafterCheckpoint::Speculator(speculator) if self.gpu.is_some() => {
                // Heads after a block are on cores.
                let heads = speculator.block_heads()?;
                let bytes =
                    |heads| BlockHeadWeights::least_memory(&heads, &**speculator, plan.types());
                heads.map_or(Ok(0), bytes)
            }
            DrafterCheckpoint::Speculator(speculator) => {
                SpeculatorWeights::least_memory(speculator, plan.types())
            }
        }
    }

    /// Returns the stored bytes that a forward pass reads, in thousandths of those of a pass of the
    /// target. Drafters that were trained for a target use its head, and have the typical share.
    fn pass_per_mille(&self, target: &OpenModel) -> u32 {
        let share = match &self.checkpoint {
            DrafterCheckpoint::Model { model, .. } => {
                let [drafter, target] =
                    [model, target].map(|model| model.checkpoint.pass_bytes() as f64);
                drafter / target.max(1.0)
            }
            DrafterCheckpoint::Speculator(_) => 1.0 / TYPICAL_RATIO,
        };
        (1_000.0 * share).round() as u32
    }

    /// Loads its weights, and a copy of the [part](Self::shared_part) of the target that it uses,
    /// unless the target's weights are on its device.
    ///
    /// # Errors
    /// If a tensor is missing or broken.
    pub(crate) fn load(
        self,
        plan: &Plan,
        (target, on_device): (&OpenModel, Option<PlacedWeights>),
        loader: &mut Loader<'_>,
        folder: Option<&Arc<PageFolder>>,
    ) -> Result<LoadedDrafter, ForerunError> {
        let pass_per_mille = self.pass_per_mille(target);
        let pages = match (&self.checkpoint, folder) {
            (DrafterCheckpoint::Model { model, .. }, Some(folder)) if self.gpu.is_none() => {
                Some(ModelPages::new(folder, (self.name, model), None)?)
            }
            (_, Some(folder)) => {
                folder.warn_of(self.name);
                None
            }
            (_, None) => None,
        };
        let Self { index, gpu, part, name, checkpoint } = self;
        let types = plan.types();
        let mut member_weights = None;
        let parts = match checkpoint {
            DrafterCheckpoint::Model { model, use_weights, .. } if part != CorePart::Whole => {
                let weights = loader.load_part(name, &model.checkpoint, (types, part))?;
                member_weights = Some(Arc::clone(&weights));
                use_weights(PlacedWeights::Cores(weights))
            }
            DrafterCheckpoint::Model { model, use_weights, .. } => {
                use_weights(loader.load_on(gpu, name, &model.checkpoint, types)?)
            }
            DrafterCheckpoint::Speculator(speculator) => {
                let part = SharedPart::of(&speculator);
                let key = SpeculatorKey {
                    path: speculator.path().to_owned(),
                    types,
                    target: target.checkpoint.path().to_owned(),
                    gpu,
                    copied: on_device.is_none().then_some(part),
                };
                loader.load_drafter(key, |loader| {
                    let shared = match on_device {
                        Some(on_device) => on_device,
                        None => {
                            let model = (plan.model(), &target.checkpoint);
                            loader.load_shared(gpu, model, (types, part), name)?
                        }
                    };
                    let parts = drafter_builders::speculator(&speculator, &shared, types)?;
                    Ok((parts, shared))
                })?
            }
        };
        Ok(LoadedDrafter { index, parts, pass_per_mille, member_weights, pages })
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
        if requested.is_in_target() {
            return Ok(Self::Speculator(Box::new(Speculator::open_mtp(&target.checkpoint)?)));
        }
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
        match (found, requested.build_model(found)) {
            (Some(found), _) if !requested.can_use(Some(found)) => {
                Err(ForerunError::WrongDrafterKind { path, found, requested })
            }
            (layout, Some(build)) if is_model(layout) => {
                let model = match name {
                    ModelSource::Embedded(model) => open_embedded(model)?,
                    name => open_located(&path, name)?,
                };
                let translates = !target.tokenizer.agrees_with(&model.tokenizer);
                if translates {
                    check_translation((plan, requested), target, &model)?;
                }
                let open = DraftModel {
                    checkpoint: &model.checkpoint,
                    layout,
                    easyspec: plan.easyspec(),
                    translation: translates.then(|| translation(target, &model)),
                };
                let use_weights = build(&open).map_err(|cause| {
                    let path = model.checkpoint.path().to_owned();
                    match cause {
                        UnsuitableModel::LayerGroups(cause) => {
                            ForerunError::LayerGroups { cause, drafter: path }
                        }
                        UnsuitableModel::NotADrafter => {
                            ForerunError::NotADrafter { path, requested }
                        }
                    }
                })?;
                Ok(Self::Model { model: Box::new(model), translates, use_weights })
            }
            (Some(found), _) => {
                plan.check_layout(found)?;
                match Speculator::open(&path, &target.checkpoint)? {
                    Some(speculator) => Ok(Self::Speculator(Box::new(speculator))),
                    None => Err(ForerunError::NotADrafter { path, requested }),
                }
            }
            _ if !embedded && !path.exists() => Err(LoadError::NotFound { path }.into()),
            _ => Err(ForerunError::NotADrafter { path, requested }),
        }
    }
}

/// Returns the translation of the drafts of `drafter`, which has another vocabulary than `target`.
fn translation(target: &OpenModel, drafter: &OpenModel) -> Arc<Translation> {
    let target_config = target.checkpoint.config();
    let ends = &drafter.checkpoint.config().eos_token_ids[..];
    Arc::new(Translation::new(
        (Arc::clone(&target.tokenizer), &target_config.eos_token_ids[..]),
        target_config.vocab_size,
        (Arc::clone(&drafter.tokenizer), ends),
    ))
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

/// A loaded drafter, with its index among all drafters.
#[derive(Clone)]
pub(crate) struct LoadedDrafter {
    index: usize,
    parts: DrafterParts,
    /// The stored bytes of a forward pass ([`DraftPattern::pass_per_mille`]).
    pass_per_mille: u32,
    /// The weights of this rank, if several ranks compute the drafter's model together.
    member_weights: Option<Arc<Weights>>,
    /// The pages of its model in a folder, if there is one.
    pages: Option<ModelPages>,
}

impl LoadedDrafter {
    /// Returns its index among all drafters.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Returns the weights of this rank, if several ranks compute its model together.
    pub(crate) fn member_weights(&self) -> Option<&Arc<Weights>> {
        self.member_weights.as_ref()
    }

    /// Returns the number of positions that it drafts, and in how many passes.
    pub(crate) fn pattern(&self) -> DraftPattern {
        DraftPattern { pass_per_mille: self.pass_per_mille, ..self.parts.pattern }
    }

    /// Returns the engine with this drafter on `device`, whose passes take `times` if it is paced,
    /// for a target with `vocab_size` tokens.
    /// Jobs address it by `index`. Its caches may use `cache_bytes`, or the default.
    ///
    /// # Errors
    /// If the drafter cannot run on that device.
    pub(crate) fn install(
        &self,
        index: usize,
        engine: Engine,
        (device, times): (&DrafterDevice<'_>, Option<&PassTimes>),
        (vocab_size, cache_bytes): (usize, Option<usize>),
    ) -> Result<Engine, String> {
        let pages = self.pages.as_ref();
        let site = Site { engine: &engine, device, times, vocab_size, cache_bytes, pages };
        let drafter = (self.parts.build)(&site)?;
        Ok(match device {
            DrafterDevice::Shared { halves: true, .. } => {
                engine.with_drafter(index, TwoDeviceDrafter::new(drafter))
            }
            _ => engine.with_drafter(index, drafter),
        })
    }
}

#[cfg(all(test, feature = "gpu"))]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::plan::Options;
    use forerun_formats::checkpoint::random::{example_config, write_random_pair};
    use forerun_formats::checkpoint::random_speculator::{RandomSpeculator, SpeculatorLayout};

    /// Drafters on one GPU have one copy of what they share with their target.
    #[test]
    fn shared_memory_is_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let [target, model, drafter] =
            ["target", "model", "drafter"].map(|name| folder.path().join(name));
        let config = example_config();
        write_random_pair(&target, &model, &config, 2, 0.3, 3).unwrap();
        let random = RandomSpeculator {
            layout: SpeculatorLayout::Eagle3,
            target: &config,
            seed: 3,
            positions: 3,
            target_embedding_sha256: None,
        };
        random.write(&drafter).unwrap();
        let plan = Plan::new(Options {
            model: target.into(),
            draft_model: Some(drafter.into()),
            drafter: Some(DrafterKind::Eagle.into()),
            placement: Some("drafter=gpu:0,target=cpu:0".parse().unwrap()),
            ..Options::default()
        });
        let (plan, mut loader) = (plan.unwrap(), Loader::new());
        let target = loader.open(plan.model()).unwrap();
        let mut drafters = OpenDrafter::all(&plan, &target, &mut loader).unwrap();
        let memory = |drafters: &[OpenDrafter<'_>], gpu| {
            OpenDrafter::memory_on_gpu(drafters, gpu, &plan, &target).unwrap()
        };
        let one = memory(&drafters, 0);
        let part = SharedPart::EmbeddingAndHead;
        let shared = memory::of_shared_on_gpu(&target.checkpoint, plan.types(), part).unwrap();
        assert!(shared > 0);
        drafters.extend(OpenDrafter::all(&plan, &target, &mut loader).unwrap());
        assert_eq!(memory(&drafters, 0), 2 * one - shared);
        assert_eq!(memory(&drafters, 1), 0);
    }
}

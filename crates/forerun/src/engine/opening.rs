//! Opening a plan: its models are loaded where they compute, and its workers start.

use super::Engine;
use crate::decoding::AnswerDecoders;
use crate::drafter::{LoadedDrafter, OpenDrafter};
use crate::drafter_context::DrafterContext;
use crate::error::ForerunError;
use crate::loader::Loader;
use crate::memory;
use crate::open_model::OpenModel;
use crate::page_folder::{ModelPages, PageFolder};
use crate::placed_weights::{FirstLayers, FirstLayersPlace, PlacedWeights};
use crate::plan::{Plan, PlanError};
use crate::ranks::RankPart;
use crate::workers::{Loaded, worker_specs};
use forerun_core::Role;
use forerun_cpu::{AdapterWeights, CorePart, Isa, Weights};
use forerun_decode::DraftPattern;
use forerun_formats::{Config, FeatureSource, ModelTypes};
use forerun_runtime::{DeviceGroup, Runtime, Workers};
use forerun_text::{GrammarCompiler, SequenceBreakers, Tokenizer};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

/// A plan whose models are loaded, as far as this process runs them.
pub(crate) struct OpenedPlan {
    plan: Plan,
    config: Config,
    tokenizer: Arc<Tokenizer>,
    translates: bool,
    drafter_context: DrafterContext,
    loaded: Arc<Loaded>,
}

impl OpenedPlan {
    /// Loads the models and starts the workers of this process: those of `part`, or all.
    pub(crate) fn start(
        plan: &Plan,
        loader: &mut Loader<'_>,
        part: Option<&RankPart>,
    ) -> Result<(Self, Runtime), ForerunError> {
        Isa::from_environment()?;
        let target = loader.open(plan.model())?;
        let config = config(plan, &target)?;
        check_experts(plan, &target)?;
        let mut drafters = OpenDrafter::all(plan, &target, loader)?;
        if config.pooling.is_some() && !plan.adapters().is_empty() {
            return Err(PlanError::conflict(
                format!(
                    "the model {} gives embeddings, which adapters cannot change",
                    plan.model()
                ),
                "leave `adapters` out",
            )
            .into());
        }
        let adapters = plan.adapters().iter().map(|adapter| {
            let adapter = adapter.open(&target.checkpoint)?;
            let packed = AdapterWeights::pack(&adapter, target.checkpoint.architecture());
            Ok::<_, ForerunError>(Arc::new(packed))
        });
        let adapters = adapters.collect::<Result<Vec<_>, _>>()?;
        let translates = drafters.iter().any(OpenDrafter::translates);
        let drafter_context = DrafterContext::of(&drafters, config.max_position_embeddings);
        let features = match config.pooling {
            Some(_) => Some(FeatureSource::LastHidden),
            None => drafters.iter().find_map(OpenDrafter::features),
        };
        let is_here = |role: Role| {
            let mut workers =
                plan.workers().into_iter().filter(|worker| worker.roles().contains(&role));
            part.is_none_or(|part| workers.any(|worker| part.has(&worker)))
        };
        for (drafter, part) in drafters.iter_mut().flat_map(|drafter| Some((drafter, part?))) {
            drafter.set_part(part.of_role(Role::Drafter(drafter.index())));
        }
        drafters.retain(|drafter| {
            drafter.part() != CorePart::Whole || is_here(Role::Drafter(drafter.index()))
        });
        let targets =
            (0..plan.placement().replicas()).map(Role::Target).filter(|&role| is_here(role));
        let gpus: Vec<Option<usize>> = targets.map(|role| plan.placement().gpu_of(role)).collect();
        let on_cores = gpus.contains(&None);
        let gpus: Vec<usize> = gpus.into_iter().flatten().collect();
        loader.check_replicas(&gpus)?;
        // What does not fit on a GPU is for the cores, so its layers are loaded first.
        let first_layers = first_layers(plan, (&gpus, &target), &drafters, loader)?;
        let of_target = part.map_or(CorePart::Whole, RankPart::of_target);
        let is_member = of_target != CorePart::Whole;
        let needs_target = on_cores || is_member || first_layers.is_some();
        let (core_part, target_types) = match &first_layers {
            Some((first, _)) => {
                let (cache, experts) = (Some(first.cache_type), plan.cpu_moe());
                let part = CorePart::FromLayer { first: first.layers, experts };
                (part, ModelTypes { cache, ..plan.types() })
            }
            None => (of_target, plan.types()),
        };
        // A drafter on cores may use the head of a target that is elsewhere.
        let drafters_on_cores = drafters.iter().filter(|drafter| drafter.gpu().is_none());
        let shared_part = drafters_on_cores.filter_map(OpenDrafter::shared_part).max();
        let shared_part = shared_part.filter(|_| !needs_target);
        if !loader.shares_weights() {
            // All at once, so that a drafter that does not fit is found before the target is
            // loaded.
            let (checkpoint, types) = (&target.checkpoint, plan.types());
            let needed = match (needs_target, shared_part) {
                (true, _) => memory::of_model(checkpoint, target_types, core_part)?,
                (false, Some(part)) => memory::of_shared(checkpoint, types, part)?,
                (false, None) => 0,
            };
            let needed = drafters.iter().try_fold(needed, |needed, drafter| {
                Ok::<_, ForerunError>(needed.saturating_add(drafter.memory(plan)?))
            })?;
            memory::check(needed)?;
        }
        let folder = plan.cache_dir().map(|(folder, bytes)| PageFolder::open(folder, bytes));
        let folder = folder.transpose()?.map(Arc::new);
        let part_types = (target_types, core_part);
        let mut load = || loader.load_part(plan.model(), &target.checkpoint, part_types);
        let weights = needs_target.then(&mut load).transpose()?;
        let on_gpus = gpus.into_iter().map(|gpu| {
            let target = loader.load_on(Some(gpu), plan.model(), &target.checkpoint, plan.types());
            target.map(|target| (gpu, target))
        });
        let is_split = first_layers.is_some();
        let gpu_targets = match first_layers {
            Some((_, on_gpus)) => on_gpus,
            None => on_gpus.collect::<Result<HashMap<_, _>, _>>()?,
        };
        let pages = folder
            .as_ref()
            .map(|folder| ModelPages::new(folder, (plan.model(), &target), features.as_ref()));
        let load = |drafter: OpenDrafter<'_>| {
            let of_target = match drafter.gpu() {
                Some(gpu) => gpu_targets.get(&gpu).filter(|_| !is_split).cloned(),
                None => weights.clone().map(PlacedWeights::Cores),
            };
            drafter.load(plan, (&target, of_target), loader, folder.as_ref())
        };
        let drafters = drafters.into_iter().map(load);
        let drafters = drafters.collect::<Result<Vec<_>, _>>()?;
        let vocab_size = target.checkpoint.architecture().vocab_size;
        let grammars = GrammarCompiler::new(Arc::clone(&target.tokenizer), config.vocab_size);
        let loaded = Arc::new(Loaded {
            target: weights,
            adapters,
            gpu_targets,
            vocab_size,
            features,
            drafters,
            pages: pages.transpose()?,
            grammars: Arc::new(grammars),
            cache_usage: Mutex::default(),
        });
        let runtime = Runtime::start(worker_specs(plan, &loaded, part)?)?;
        let (plan, tokenizer) = (plan.clone(), target.tokenizer);
        Ok((Self { plan, config, tokenizer, translates, drafter_context, loaded }, runtime))
    }

    /// Returns the weights of a model that this rank computes together with others.
    pub(crate) fn member_weights(&self, role: Role) -> Option<&Arc<Weights>> {
        match role {
            Role::Target(_) => self.loaded.target.as_ref(),
            Role::Drafter(index) => {
                let mut drafters = self.loaded.drafters.iter();
                drafters.find(|drafter| drafter.index() == index)?.member_weights()
            }
        }
    }

    /// Returns what a drafter drafts in one job, if it has a checkpoint and is in this process.
    pub(crate) fn pattern(&self, index: usize) -> Option<DraftPattern> {
        let drafter = self.loaded.drafters.iter().find(|drafter| drafter.index() == index);
        drafter.map(LoadedDrafter::pattern)
    }

    /// Returns what each drafter drafts in one job, as far as that is known in this process.
    pub(super) fn patterns(&self) -> Vec<DraftPattern> {
        let drafters = 0..=self.plan.additional_drafters().len();
        drafters.map(|index| self.pattern(index).unwrap_or_default()).collect()
    }

    /// Returns the engine, which reaches its workers through `workers`.
    /// `patterns`: what each drafter drafts in one job.
    pub(crate) fn into_engine(
        self,
        workers: Box<dyn Workers>,
        patterns: &[DraftPattern],
    ) -> Engine {
        let Self { plan, config, tokenizer, translates, drafter_context, loaded } = self;
        Engine {
            learned: Mutex::new(AnswerDecoders::new(&plan, patterns)),
            breakers: SequenceBreakers::new(Arc::clone(&tokenizer), config.vocab_size),
            plan,
            config,
            tokenizer,
            grammars: Arc::clone(&loaded.grammars),
            translates,
            drafter_context,
            reads_features: loaded.features.is_some(),
            target_arithmetic: loaded.gpu_targets.values().find_map(PlacedWeights::arithmetic),
            workers,
            sequences: AtomicU64::new(0),
            cache_usage: loaded.cache_usage().clone(),
        }
    }
}

/// Returns the target's configuration, with the context length of the plan.
fn config(plan: &Plan, target: &OpenModel) -> Result<Config, ForerunError> {
    let mut config = target.checkpoint.config().clone();
    let of_embeddings = config.pooling.and_then(|pooling| pooling.max_tokens);
    let context = config.max_position_embeddings.min(of_embeddings.unwrap_or(usize::MAX));
    match plan.context_length() {
        Some(found) if found > context => {
            let model = plan.model().clone();
            Err(ForerunError::ContextLength { found, context, model })
        }
        limit => {
            config.max_position_embeddings = limit.unwrap_or(context);
            Ok(config)
        }
    }
}

/// Refuses [`Options::cpu_moe`](crate::Options::cpu_moe) for layers without experts.
fn check_experts(plan: &Plan, target: &OpenModel) -> Result<(), PlanError> {
    let mut layers = target.checkpoint.architecture().layers.iter().take(plan.cpu_moe());
    match plan.cpu_moe() == 0 || layers.any(|layer| layer.experts.is_some()) {
        true => Ok(()),
        false => Err(PlanError::conflict(
            format!(
                "`cpu_moe` keeps experts on cores, but the layers of {} that it names have none",
                plan.model()
            ),
            "leave it out, or set `gpu_layers` to what fits on the GPU",
        )),
    }
}

/// Loads the first layers of a target that is split between GPUs and cores: those of the first GPU,
/// and by GPU. All replicas have the same number of layers there. `None` if it is not split.
#[expect(clippy::type_complexity, reason = "a pair")]
fn first_layers(
    plan: &Plan,
    (gpus, target): (&[usize], &OpenModel),
    drafters: &[OpenDrafter<'_>],
    loader: &mut Loader<'_>,
) -> Result<Option<(FirstLayers, HashMap<usize, PlacedWeights>)>, ForerunError> {
    let Some(DeviceGroup::GpuAndCores { gpu, layers, .. }) =
        plan.placement().target(0).and_then(|groups| groups.as_slice().first())
    else {
        return Ok(None);
    };
    let (checkpoint, types) = (&target.checkpoint, plan.types());
    let on_cores = drafters.iter().try_fold(0_usize, |sum, drafter| {
        Ok::<_, ForerunError>(sum.saturating_add(drafter.memory(plan)?))
    })?;
    if let Some(layers) = *layers
        && !loader.shares_weights()
    {
        // Before anything is uploaded.
        let first = layers.min(checkpoint.architecture().layers.len());
        let part = CorePart::FromLayer { first, experts: plan.cpu_moe() };
        let rest = memory::of_model(checkpoint, types, part)?;
        memory::check(rest.saturating_add(on_cores))?;
    }
    let mut load = |gpu: usize, layers: Option<usize>| {
        let mut reserved_bytes = OpenDrafter::memory_on_gpu(drafters, gpu, plan, target)?;
        if loader.shares_main_memory(gpu)? {
            let first = checkpoint.architecture().layers.len();
            let part = CorePart::FromLayer { first, experts: plan.cpu_moe() };
            let rest = memory::of_model(checkpoint, types, part)?;
            reserved_bytes = reserved_bytes.saturating_add(rest.saturating_add(on_cores) as u64);
        }
        let replicas = gpus.iter().filter(|other| **other == gpu).count();
        let without_experts = plan.cpu_moe();
        let place = FirstLayersPlace { gpu, layers, without_experts, replicas, reserved_bytes };
        loader.load_first_layers(place, plan.model(), checkpoint, types)
    };
    let first = load(*gpu, *layers)?;
    let mut by_gpu = HashMap::from([(*gpu, first.weights.clone())]);
    for other in gpus {
        if !by_gpu.contains_key(other) {
            by_gpu.insert(*other, load(*other, Some(first.layers))?.weights);
        }
    }
    Ok(Some((first, by_gpu)))
}

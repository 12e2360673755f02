//! Starts the workers of a plan in this process.

use crate::drafter::LoadedDrafter;
use crate::drafter_parts::DrafterDevice;
use crate::page_folder::ModelPages;
use crate::placed_weights::PlacedWeights;
use crate::plan::{Method, Plan, WorkerDescription, WorkerDevice};
use crate::ranks::{RankPart, lead};
use crate::registry::DrafterKind;
use forerun_cache::PoolUsage;
use forerun_core::Role;
use forerun_cpu::{
    AdapterWeights, CpuPages, Exchange, ExclusiveDevice, PipelineParallelModel, Team, Transformer,
    Weights,
};
use forerun_decode::PearlSchedule;
use forerun_formats::FeatureSource;
#[cfg(feature = "gpu")]
use forerun_model::SplitModel;
use forerun_model::{CachedTransformer, Forward};
use forerun_runtime::{
    BuildEngine, DeviceGroup, Engine, Placement, SharedDevice, StartError, TeamSpec, WorkerSpec,
};
use forerun_text::GrammarCompiler;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The loaded models of a plan.
pub(crate) struct Loaded {
    /// `None` in a process that does not need them.
    pub(crate) target: Option<Arc<Weights>>,
    /// Those of the plan, in their order.
    pub(crate) adapters: Vec<Arc<AdapterWeights>>,
    /// The target on each GPU that has a replica, or its first layers.
    pub(crate) gpu_targets: HashMap<usize, PlacedWeights>,
    /// The number of the target's tokens.
    pub(crate) vocab_size: usize,
    /// The target's hidden states that a drafter reads, if any.
    pub(crate) features: Option<FeatureSource>,
    pub(crate) drafters: Vec<LoadedDrafter>,
    pub(crate) grammars: Arc<GrammarCompiler>,
    /// The target's pages in a folder, if there is one.
    pub(crate) pages: Option<ModelPages>,
    /// The usage of the target's caches, one for each replica that a worker of this process has.
    pub(crate) cache_usage: Mutex<Vec<Arc<PoolUsage>>>,
}

impl Loaded {
    pub(crate) fn cache_usage(&self) -> MutexGuard<'_, Vec<Arc<PoolUsage>>> {
        self.cache_usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the workers of a plan, ready to start: those of `part`, or all.
///
/// # Errors
/// If the threads of a shared device cannot be started.
pub(crate) fn worker_specs(
    plan: &Plan,
    loaded: &Arc<Loaded>,
    part: Option<&RankPart>,
) -> Result<Vec<WorkerSpec>, StartError> {
    let mut shared: Vec<(DeviceGroup, Arc<SharedDevice>)> = Vec::new();
    let mut shared_device = |group: &DeviceGroup| {
        if let Some((_, device)) = shared.iter().find(|(other, _)| other.is_same_device(group)) {
            return Ok(Arc::clone(device));
        }
        let device = SharedDevice::new(group)?;
        shared.push((group.clone(), Arc::clone(&device)));
        Ok(device)
    };
    let on_tokens = plan.drafters_on_tokens();
    // In the paper's rounds, one job drafts all tokens of a round.
    let halves = plan.method() == Method::Pearl && plan.pearl().schedule == PearlSchedule::Paper;
    let spec = |worker: WorkerDescription| {
        let roles = worker.roles();
        let devices: Result<Vec<_>, StartError> = match &worker.device {
            WorkerDevice::InTurn(groups) => groups.iter().map(&mut shared_device).collect(),
            WorkerDevice::Thread | WorkerDevice::Own(_) => Ok(Vec::new()),
        };
        let team = team(&worker, part);
        let has_members = matches!(&worker.device, WorkerDevice::Own(it) if it.has_several_ranks());
        let exchange = part.filter(|_| has_members).and_then(RankPart::take_exchange);
        let models = WorkerModels {
            exchange: Mutex::new(exchange),
            loaded: Arc::clone(loaded),
            roles: roles.clone(),
            on_tokens: on_tokens.clone(),
            n_drafters: plan.n_drafters(),
            devices: devices?,
            placement: plan.placement().clone(),
            halves,
            cache_bytes: plan.cache_bytes(),
        };
        let build: BuildEngine = Box::new(move |team| models.engine(&team));
        Ok(WorkerSpec { name: worker.name, team, roles, build })
    };
    let is_here = |worker: &WorkerDescription| part.is_none_or(|part| part.has(worker));
    plan.workers().into_iter().filter(is_here).map(spec).collect()
}

/// Returns the team of a worker of `part`. One that moves between devices leads their teams.
pub(crate) fn team(worker: &WorkerDescription, part: Option<&RankPart>) -> TeamSpec {
    let cores = |group: &DeviceGroup| match part.filter(|_| group.rank().is_some()) {
        Some(part) => part.cores.clone(),
        None => group.cores().to_vec(),
    };
    match &worker.device {
        // The thread that gives the GPU its work.
        WorkerDevice::Own(DeviceGroup::Gpu(_)) => TeamSpec::Unpinned(1),
        WorkerDevice::Own(group) if worker.pinned => TeamSpec::Pinned(cores(group)),
        WorkerDevice::Own(group) => TeamSpec::Preferring(cores(group)),
        WorkerDevice::Thread | WorkerDevice::InTurn(_) => TeamSpec::Unpinned(1),
    }
}

/// The models of one worker.
struct WorkerModels {
    loaded: Arc<Loaded>,
    roles: Vec<Role>,
    /// The plan's drafters that need no model.
    on_tokens: Vec<(usize, DrafterKind)>,
    /// The number of the plan's drafters, without repetitions.
    n_drafters: usize,
    /// The devices that it shares with other workers, if it has none of its own.
    devices: Vec<Arc<SharedDevice>>,
    /// Which target replicas are on GPUs, as a whole or in part, and how long passes take.
    placement: Placement,
    /// The connection to the other ranks that compute the model together with this one, until it is
    /// in use.
    exchange: Mutex<Option<Box<dyn Exchange>>>,
    /// Whether each half of a draft is computed on one of two devices.
    halves: bool,
    /// The memory of each model's caches, if it is not the default.
    cache_bytes: Option<usize>,
}

impl WorkerModels {
    fn engine(&self, team: &Arc<Team>) -> Result<Engine, String> {
        for device in &self.devices {
            device.check().map_err(|error| error.to_string())?;
        }
        let leads = self.exchange.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let device = match &self.devices[..] {
            [first, .., last] => {
                DrafterDevice::Shared { devices: [first, last], halves: self.halves }
            }
            _ if leads => DrafterDevice::Ranks { team, exchange: &self.exchange },
            _ => DrafterDevice::Team(team),
        };
        let Loaded { vocab_size, drafters, grammars, .. } = &*self.loaded;
        let grammars = Arc::clone(grammars) as _;
        let mut engine =
            Engine::new().with_constraint_compiler(grammars).with_vocab_size(*vocab_size);
        for &role in &self.roles {
            let index = match role {
                Role::Target(index) => {
                    engine = self.with_replica(index, engine, team)?;
                    continue;
                }
                Role::Drafter(index) => index,
            };
            let own = index % self.n_drafters;
            let on_tokens = self.on_tokens.iter().find(|(other, _)| *other == own);
            if let Some(drafter) = on_tokens.and_then(|(_, kind)| kind.make_on_tokens()) {
                engine = engine.with_drafter(index, drafter);
            } else if let Some(drafter) = drafters.iter().find(|other| other.index() == own) {
                let times = self.placement.pass_times(role);
                let model = (*vocab_size, self.cache_bytes);
                engine = drafter.install(index, engine, (&device, times), model)?;
            } else {
                return Err(format!("drafter {own} is not loaded in this process"));
            }
        }
        Ok(engine)
    }

    /// Returns the engine with a replica of the target.
    fn with_replica(
        &self,
        index: usize,
        engine: Engine,
        team: &Arc<Team>,
    ) -> Result<Engine, String> {
        #[cfg(feature = "gpu")]
        if let Some(gpu) = self.placement.gpu_of(Role::Target(index)) {
            let Some(PlacedWeights::Gpu(weights)) = self.loaded.gpu_targets.get(&gpu) else {
                return Err("the target is not loaded on the GPU".into());
            };
            if self.placement.is_split(index) {
                let first = forerun_gpu::GpuLayers::new(Arc::clone(weights));
                let features = self.loaded.features.as_ref();
                let replica = SplitModel::new(first, self.on_team(team)?, features);
                let replica = crate::gpus::with_split_caches(replica, self.cache_bytes);
                return Ok(self.install(index, replica, engine));
            }
            let replica = forerun_gpu::GpuModel::new(Arc::clone(weights));
            let replica = match self.loaded.features.clone() {
                Some(features) => replica.with_features(features),
                None => replica,
            };
            return Ok(self.install(
                index,
                crate::gpus::with_caches(replica, self.cache_bytes),
                engine,
            ));
        }
        let replica = CachedTransformer::new(self.replica(&engine, team)?);
        let replica = replica.with_cache_bytes(self.cache_bytes);
        let replica = match &self.loaded.pages {
            Some(pages) => pages.of(replica)?,
            None => replica,
        };
        Ok(self.install(index, replica, engine))
    }

    fn install(
        &self,
        index: usize,
        replica: CachedTransformer<impl Forward + 'static>,
        engine: Engine,
    ) -> Engine {
        self.loaded.cache_usage().push(Arc::clone(replica.cache_usage()));
        let times = self.placement.pass_times(Role::Target(index));
        let replica = engine.timed(replica).paced(times);
        engine.with_target(index, replica)
    }

    /// Returns the target on a team of its own.
    fn on_team(&self, team: &Arc<Team>) -> Result<Transformer, String> {
        let Loaded { target, adapters, features, .. } = &*self.loaded;
        let target = target.as_ref().ok_or("the target is not loaded in this process")?;
        let whole =
            Transformer::new(Arc::clone(target), Arc::clone(team)).with_adapters(adapters.clone());
        Ok(match features.clone() {
            Some(features) => whole.with_features(features),
            None => whole,
        })
    }

    /// Returns the target on a team, with those of other ranks or without, or its layers spread
    /// over several devices.
    fn replica(
        &self,
        engine: &Engine,
        team: &Arc<Team>,
    ) -> Result<Box<dyn Forward<Storage = CpuPages>>, String> {
        let Loaded { target, features, .. } = &*self.loaded;
        let target = target.as_ref().ok_or("the target is not loaded in this process")?;
        let exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(exchange) = exchange {
            return Ok(lead(Arc::clone(target), team, exchange, features.clone()));
        }
        if self.devices.is_empty() {
            return Ok(Box::new(self.on_team(team)?));
        }
        let lease = |device| Box::new(engine.lease(device)) as Box<dyn ExclusiveDevice>;
        let pipeline = PipelineParallelModel::new(target, self.devices.iter().map(lease).collect());
        let pipeline = pipeline.map_err(|error| error.to_string())?;
        Ok(Box::new(match features {
            Some(features) => pipeline.with_features(features),
            None => pipeline,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Options, PlanError};

    /// Returns the teams of a plan on the cores 2, 3 and 4.
    fn teams(change: impl FnOnce(&mut Options)) -> Result<Vec<TeamSpec>, PlanError> {
        let mut options = Options {
            model: "target".into(),
            draft_model: Some("drafter".into()),
            method: Some(Method::Pearl.into()),
            ..Options::default()
        };
        change(&mut options);
        let plan = Plan::on_cores(options, &[2, 3, 4])?;
        Ok(plan.workers().iter().map(|worker| team(worker, None)).collect())
    }

    #[test]
    fn only_named_cores_and_the_option_pin_teams() -> Result<(), PlanError> {
        let preferring = |cores: &[usize]| TeamSpec::Preferring(cores.to_vec());
        let pinned = |cores: &[&[usize]]| {
            cores.iter().map(|cores| TeamSpec::Pinned(cores.to_vec())).collect::<Vec<_>>()
        };
        assert_eq!(teams(|_| ())?, [preferring(&[2]), preferring(&[3, 4])]);
        assert_eq!(teams(|options| options.pin = true)?, pinned(&[&[2], &[3, 4]]));
        let named = |text: &str| teams(|options| options.placement = text.parse().ok());
        assert_eq!(named("drafter=cpu:4,target=cpu:2-3")?, pinned(&[&[4], &[2, 3]]));
        // The drafter and the target are on both devices, whose teams they lead in turn.
        let in_turn = named("drafter=cpu:2/cpu:3,target=cpu:2/cpu:3,shared")?;
        assert_eq!(in_turn, [TeamSpec::Unpinned(1), TeamSpec::Unpinned(1)]);
        Ok(())
    }
}

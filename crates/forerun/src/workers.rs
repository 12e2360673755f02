//! The workers of a plan: which models each thread runs, and on which cores.

use crate::drafter::{DrafterDevice, LoadedDrafter};
use crate::plan::{AdditionalDrafter, Method, Plan};
use crate::registry::DrafterKind;
use forerun_core::Role;
use forerun_decode::PearlSchedule;
use forerun_model::{
    CachedTransformer, CpuPages, ExclusiveDevice, FeatureSource, Forward, PipelineParallelModel,
    Team, Transformer, Weights,
};
use forerun_runtime::{BuildEngine, DeviceGroup, Engine, SharedDevice, StartError, WorkerSpec};
use std::sync::Arc;

/// The loaded models of a plan.
pub(crate) struct Loaded {
    pub(crate) target: Arc<Weights>,
    /// The target's hidden states that a drafter reads, if any.
    pub(crate) features: Option<FeatureSource>,
    pub(crate) drafters: Vec<LoadedDrafter>,
}

/// Returns the plan's workers: one for each device group, one for each role that moves between
/// several groups, and one for each drafter on tokens that does not share the target's.
///
/// The plan's drafter groups belong to the drafters with models, in their order.
///
/// # Errors
/// If the threads of a shared device cannot be started.
pub(crate) fn workers(plan: &Plan, loaded: &Loaded) -> Result<Vec<WorkerSpec>, StartError> {
    let in_turn = plan.placement().multi_device_roles();
    let mut shared: Vec<(DeviceGroup, Arc<SharedDevice>)> = Vec::new();
    let (mut fixed, mut moving) = (Vec::new(), Vec::new());
    for (group, mut roles) in plan.placement().devices() {
        let all = roles.len();
        roles.retain(|role| in_turn.iter().all(|(own, _)| own != role));
        if let Some(worker_plan) = WorkerPlan::new(plan, loaded, &roles) {
            let cores = group.cores().to_vec();
            fixed.push(worker_plan.worker(&group.to_string(), cores, Vec::new()));
        }
        if roles.len() < all {
            let device = SharedDevice::new(&group)?;
            shared.push((group, device));
        }
    }
    for (role, groups) in in_turn {
        let device = |group: &DeviceGroup| {
            let same = shared.iter().find(|(other, _)| other.same_cores(group));
            same.map(|(_, device)| Arc::clone(device))
        };
        if let Some(worker_plan) = WorkerPlan::new(plan, loaded, &[role]) {
            let devices = groups.as_slice().iter().filter_map(device).collect();
            moving.push(worker_plan.worker(&groups.to_string(), Vec::new(), devices));
        }
    }
    let additional = (1..).zip(plan.additional_drafters());
    let additional = additional.filter_map(|(index, drafter)| match drafter {
        AdditionalDrafter::Tokens(kind) => Some((index, *kind)),
        AdditionalDrafter::Model(_) => None,
    });
    // A drafter on tokens needs no device, so it runs on the target's worker unless both run at the
    // same time.
    let first = on_tokens(plan).filter(|_| plan.method().is_parallel());
    let own_workers = first.map(|kind| (0, kind)).into_iter().chain(additional);
    let own_workers = own_workers.map(|(index, kind)| WorkerSpec {
        name: "drafter".into(),
        cores: Vec::new(),
        roles: vec![Role::Drafter(index)],
        build: Box::new(move |_| Ok(with_drafter_on_tokens(Engine::new(), index, kind))),
    });
    Ok(own_workers.chain(fixed).chain(moving).collect())
}

/// Returns the first drafter if it needs no model.
fn on_tokens(plan: &Plan) -> Option<DrafterKind> {
    Some(plan.drafter()).filter(|kind| kind.is_on_tokens())
}

/// Returns the engine with a drafter that needs no model.
fn with_drafter_on_tokens(engine: Engine, index: usize, kind: DrafterKind) -> Engine {
    match kind.make_on_tokens() {
        Some(drafter) => engine.with_drafter(index, drafter),
        None => engine,
    }
}

/// The models and roles of one worker.
struct WorkerPlan {
    target: Arc<Weights>,
    features: Option<FeatureSource>,
    /// The indices of the worker's target replicas.
    replicas: Vec<usize>,
    drafters: Vec<LoadedDrafter>,
    /// The drafter on tokens that shares the target's worker, if any.
    on_tokens: Option<DrafterKind>,
    /// Whether each half of a draft is computed on one of two devices.
    halves: bool,
}

impl WorkerPlan {
    /// Returns the plan of a worker with these roles of the placement, if they need one.
    fn new(plan: &Plan, loaded: &Loaded, roles: &[Role]) -> Option<Self> {
        let Loaded { target, features, drafters } = loaded;
        let replicas: Vec<usize> = roles.iter().filter_map(|role| role.target()).collect();
        let groups = drafters.iter().zip(0..);
        let own = groups.filter(|&(_, group)| roles.contains(&Role::Drafter(group)));
        let shares_worker = !plan.method().is_parallel() && replicas.contains(&0);
        let worker_plan = Self {
            target: Arc::clone(target),
            features: features.clone(),
            replicas,
            drafters: own.map(|(drafter, _)| drafter.clone()).collect(),
            on_tokens: on_tokens(plan).filter(|_| shares_worker),
            // In the paper's rounds, one job drafts all tokens of a round.
            halves: plan.method() == Method::Pearl && plan.pearl().schedule == PearlSchedule::Paper,
        };
        (!worker_plan.roles().is_empty()).then_some(worker_plan)
    }

    /// Returns the roles by which decoders address this worker.
    fn roles(&self) -> Vec<Role> {
        let targets = self.replicas.iter().map(|&index| Role::Target(index));
        let drafters = self.drafters.iter().map(|drafter| Role::Drafter(drafter.index()));
        let on_tokens = self.on_tokens.map(|_| Role::Drafter(0));
        targets.chain(drafters).chain(on_tokens).collect()
    }

    /// Returns the worker's name in the trace.
    fn name(&self, groups: &str) -> String {
        let drafts = !self.drafters.is_empty() || self.on_tokens.is_some();
        match !self.replicas.is_empty() {
            true if drafts => format!("target and drafter {groups}"),
            true => format!("target {groups}"),
            false => format!("drafter {groups}"),
        }
    }

    /// Returns a worker on its own cores, or on `devices` that it shares with others.
    fn worker(
        self,
        groups: &str,
        cores: Vec<usize>,
        devices: Vec<Arc<SharedDevice>>,
    ) -> WorkerSpec {
        let (name, roles) = (self.name(groups), self.roles());
        let build: BuildEngine = Box::new(move |team| self.engine(&team, &devices));
        WorkerSpec { name, cores, roles, build }
    }

    fn engine(self, team: &Arc<Team>, devices: &[Arc<SharedDevice>]) -> Result<Engine, String> {
        for device in devices {
            device.check().map_err(|error| error.to_string())?;
        }
        let mut engine = Engine::new();
        for &index in &self.replicas {
            let replica = CachedTransformer::new(self.replica(&engine, team, devices)?);
            let replica = engine.timed(replica);
            engine = engine.with_target(index, replica);
        }
        let device = match devices {
            [first, .., last] => {
                DrafterDevice::Shared { devices: [first, last], halves: self.halves }
            }
            _ => DrafterDevice::Team(team),
        };
        let vocab_size = self.target.config().vocab_size;
        for drafter in &self.drafters {
            engine = drafter.install(engine, &device, vocab_size)?;
        }
        Ok(match self.on_tokens {
            Some(kind) => with_drafter_on_tokens(engine, 0, kind),
            None => engine,
        })
    }

    /// Returns the target on a team, or its layers spread over several devices.
    fn replica(
        &self,
        engine: &Engine,
        team: &Arc<Team>,
        devices: &[Arc<SharedDevice>],
    ) -> Result<Box<dyn Forward<Storage = CpuPages>>, String> {
        if devices.is_empty() {
            let whole = Transformer::new(Arc::clone(&self.target), Arc::clone(team));
            return Ok(Box::new(match self.features.clone() {
                Some(features) => whole.with_features(features),
                None => whole,
            }));
        }
        let lease = |device| Box::new(engine.lease(device)) as Box<dyn ExclusiveDevice>;
        let pipeline =
            PipelineParallelModel::new(&self.target, devices.iter().map(lease).collect());
        let pipeline = pipeline.map_err(|error| error.to_string())?;
        Ok(Box::new(match &self.features {
            Some(features) => pipeline.with_features(features),
            None => pipeline,
        }))
    }
}

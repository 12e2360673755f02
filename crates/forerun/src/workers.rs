//! The workers of a plan: which thread plays what, on which cores.

use crate::drafter::{DrafterDevice, LoadedDrafter};
use crate::plan::{AdditionalDrafter, DrafterKind, Method, Plan};
use forerun_core::Role;
use forerun_decode::PearlSchedule;
use forerun_draft::{LookaheadDrafter, PromptLookup};
use forerun_model::{
    CachedTransformer, ExclusiveDevice, FeatureSource, Forward, PassAssignment,
    PipelineParallelModel, Team, Transformer, Weights,
};
use forerun_runtime::{BuildEngine, DeviceGroup, Engine, SharedDevice, StartError, WorkerSpec};
use std::sync::Arc;

/// What the workers of a plan run.
pub(crate) struct Loaded {
    pub(crate) target: Arc<Weights>,
    /// What of the target's hidden states a drafter reads.
    pub(crate) features: Option<FeatureSource>,
    pub(crate) drafters: Vec<LoadedDrafter>,
}

/// A worker for every device group of the plan, whose drafter groups are those of the drafters in turn; and
/// one for everybody who has several groups in turn.
///
/// # Errors
/// If the threads of a device that several have in turn cannot be started.
pub(crate) fn workers(plan: &Plan, loaded: &Loaded) -> Result<Vec<WorkerSpec>, StartError> {
    let in_turn = plan.placement().in_turn();
    let mut shared: Vec<(DeviceGroup, Arc<SharedDevice>)> = Vec::new();
    let (mut whole, mut moving) = (Vec::new(), Vec::new());
    for (group, mut roles) in plan.placement().devices() {
        let all = roles.len();
        roles.retain(|role| in_turn.iter().all(|(own, _)| own != role));
        if let Some(worker_plan) = WorkerPlan::new(plan, loaded, &roles) {
            let cores = group.cores().to_vec();
            whole.push(worker_plan.worker(&group.to_string(), cores, Vec::new()));
        }
        if roles.len() < all {
            let device = SharedDevice::new(&group)?;
            shared.push((group, device));
        }
    }
    for (role, groups) in in_turn {
        let device = |group: &DeviceGroup| {
            let known = shared.iter().find(|(own, _)| own.same_cores(group));
            known.map(|(_, device)| Arc::clone(device))
        };
        if let Some(worker_plan) = WorkerPlan::new(plan, loaded, &[role]) {
            let devices = groups.each().iter().filter_map(device).collect();
            moving.push(worker_plan.worker(&groups.to_string(), Vec::new(), devices));
        }
    }
    let lookup = |index| WorkerSpec {
        name: "drafter".into(),
        cores: Vec::new(),
        roles: vec![Role::Drafter(index)],
        build: Box::new(move |_| Ok(Engine::new().with_drafter(index, PromptLookup))),
    };
    let further = (1..).zip(plan.additional_drafters());
    let further = further.filter(|(_, own)| **own == AdditionalDrafter::PromptLookup);
    let alone = looks_up_alone(plan).then_some(0);
    let lookups = alone.into_iter().chain(further.map(|(index, _)| index));
    Ok(lookups.map(lookup).chain(whole).chain(moving).collect())
}

/// Looking tokens up takes no device of its own: it is done beside the target, unless both are to happen at
/// the same time.
fn looks_up_alone(plan: &Plan) -> bool {
    looks_up(plan) && plan.method().is_parallel()
}

fn looks_up(plan: &Plan) -> bool {
    matches!(plan.drafter(), DrafterKind::PromptLookup | DrafterKind::Lookahead)
}

/// What one worker plays.
struct WorkerPlan {
    target: Arc<Weights>,
    features: Option<FeatureSource>,
    /// Of the target.
    replicas: Vec<usize>,
    drafters: Vec<LoadedDrafter>,
    /// Who looks tokens up beside the target.
    lookup: Option<DrafterKind>,
    /// Whether drafts on two devices are made in halves.
    halves: bool,
}

impl WorkerPlan {
    /// What is played by roles of the placement, if anything.
    fn new(plan: &Plan, loaded: &Loaded, roles: &[Role]) -> Option<Self> {
        let Loaded { target, features, drafters } = loaded;
        let replicas: Vec<usize> = roles.iter().filter_map(|role| role.target()).collect();
        let own = drafters.iter().zip(0..);
        let own = own.filter(|&(_, group)| roles.contains(&Role::Drafter(group)));
        let draft_on_target = looks_up(plan) && !looks_up_alone(plan) && replicas.contains(&0);
        let worker_plan = Self {
            target: Arc::clone(target),
            features: features.clone(),
            replicas,
            drafters: own.map(|(drafter, _)| drafter.clone()).collect(),
            lookup: draft_on_target.then(|| plan.drafter()),
            // In the paper's rounds, a job makes all of a round's tokens.
            halves: plan.method() == Method::Pearl && plan.pearl().schedule == PearlSchedule::Paper,
        };
        (!worker_plan.roles().is_empty()).then_some(worker_plan)
    }

    /// The roles as decoders know them.
    fn roles(&self) -> Vec<Role> {
        let targets = self.replicas.iter().map(|&index| Role::Target(index));
        let drafters = self.drafters.iter().map(|drafter| Role::Drafter(drafter.index()));
        let lookup = self.lookup.map(|_| Role::Drafter(0));
        targets.chain(drafters).chain(lookup).collect()
    }

    /// The worker's name in the trace.
    fn name(&self, groups: &str) -> String {
        let drafts = !self.drafters.is_empty() || self.lookup.is_some();
        match !self.replicas.is_empty() {
            true if drafts => format!("target and drafter {groups}"),
            true => format!("target {groups}"),
            false => format!("drafter {groups}"),
        }
    }

    /// A worker on cores of its own, or on devices that it has in turn.
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
            [first, .., last] => DrafterDevice::Shared {
                devices: [first, last],
                halves: self.halves.then(PassAssignment::default),
            },
            _ => DrafterDevice::Team(team),
        };
        let vocab_size = self.target.config().vocab_size;
        for drafter in self.drafters {
            engine = drafter.on(engine, &device, vocab_size)?;
        }
        Ok(match self.lookup {
            Some(DrafterKind::Lookahead) => engine.with_drafter(0, LookaheadDrafter::new()),
            Some(_) => engine.with_drafter(0, PromptLookup),
            None => engine,
        })
    }

    /// The target on a team, or its layers on several devices.
    fn replica(
        &self,
        engine: &Engine,
        team: &Arc<Team>,
        devices: &[Arc<SharedDevice>],
    ) -> Result<Box<dyn Forward>, String> {
        if devices.is_empty() {
            let whole = Transformer::new(Arc::clone(&self.target), Arc::clone(team));
            return Ok(Box::new(match self.features.clone() {
                Some(features) => whole.with_features(features),
                None => whole,
            }));
        }
        let place = |device| Box::new(engine.lease(device)) as Box<dyn ExclusiveDevice>;
        let pipeline =
            PipelineParallelModel::new(&self.target, devices.iter().map(place).collect());
        let pipeline = pipeline.map_err(|error| error.to_string())?;
        Ok(Box::new(match &self.features {
            Some(features) => pipeline.with_features(features),
            None => pipeline,
        }))
    }
}

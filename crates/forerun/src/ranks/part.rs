//! The part of a plan that one rank runs, alone or together with others.

use super::{DECODING_RANK, RankError, RankSite};
use crate::error::ForerunError;
use crate::plan::{WorkerDescription, WorkerDevice, WorkerModel};
use forerun_core::Role;
use forerun_cpu::{
    CorePart, CpuPages, Exchange, Share, Stage, StageFollower, StagedModel, Team,
    TensorParallelFollower, TensorParallelModel, Weights,
};
use forerun_formats::{FeatureSource, LoadError};
use forerun_model::Forward;
use forerun_runtime::{DeviceGroup, TeamSpec};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The part of a plan that one process runs.
pub(crate) struct RankPart {
    rank: usize,
    /// The cores of the rank's device.
    pub(crate) cores: Vec<usize>,
    /// What this rank computes together with others. Such a rank has no other model.
    pub(super) membership: Option<Membership>,
    /// The connection to these others, until it is in use.
    exchange: Mutex<Option<Box<dyn Exchange>>>,
}

/// What a rank computes of a model whose other parts are on other ranks.
pub(super) struct Membership {
    pub(super) role: Role,
    part: CorePart,
    /// The model, as the options name it.
    model: String,
    /// The group of the placement.
    ranks: String,
}

impl RankPart {
    pub(super) fn new(workers: &[WorkerDescription], site: RankSite<'_>) -> Self {
        let RankSite { rank, cores, connect } = site;
        let group = group_of(workers, rank);
        let membership = group.and_then(|worker| {
            let (ranks, group) = (worker.ranks(), worker.group()?);
            let member = ranks.iter().position(|other| *other == rank)?;
            let of_model = |model: &WorkerModel| Some((model.role, model.checkpoint.clone()?));
            let (role, model) = worker.models.iter().find_map(of_model)?;
            let part = match group.has_rank_stages() {
                true => CorePart::Stage(Stage::of_member(member, ranks.len())),
                false => CorePart::Share(Share::new(member, ranks.len())),
            };
            Some(Membership { role, part, model, ranks: group.to_string() })
        });
        let exchange = group.map(|worker| connect(&worker.ranks()));
        Self { rank, cores: cores.to_vec(), membership, exchange: Mutex::new(exchange) }
    }

    /// Returns the part of a model that this rank computes, if it has the model.
    pub(crate) fn of_role(&self, role: Role) -> CorePart {
        self.part_of(|own| own == role)
    }

    /// Returns the part of the target that this rank computes, if it has a replica.
    pub(crate) fn of_target(&self) -> CorePart {
        self.part_of(|own| own.target().is_some())
    }

    fn part_of(&self, is_wanted: impl Fn(Role) -> bool) -> CorePart {
        let membership = self.membership.as_ref().filter(|membership| is_wanted(membership.role));
        membership.map_or(CorePart::Whole, |membership| membership.part)
    }

    /// Adds the model and its ranks to an error about pipeline stages.
    pub(super) fn with_names(&self, error: ForerunError) -> ForerunError {
        match (error, &self.membership) {
            (
                ForerunError::Load(cause @ LoadError::Stages { .. }),
                Some(Membership { model, ranks, .. }),
            ) => {
                let (model, ranks, cause) = (model.clone(), ranks.clone(), Box::new(cause));
                ForerunError::Stages { model, ranks, cause }
            }
            (error, _) => error,
        }
    }

    /// Returns the connection to the other ranks of a model. Whoever takes it first computes this
    /// rank's part.
    pub(crate) fn take_exchange(&self) -> Option<Box<dyn Exchange>> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn has(&self, worker: &WorkerDescription) -> bool {
        worker.rank() == self.rank
    }
}

impl WorkerDescription {
    /// Returns the rank whose process runs the worker: 0 without ranks in the placement.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.group().and_then(DeviceGroup::rank).unwrap_or(DECODING_RANK)
    }

    /// Returns the ranks that compute the worker's models: its own, and those that it leads.
    #[must_use]
    pub fn ranks(&self) -> Vec<usize> {
        match self.group() {
            Some(group) if group.rank().is_some() => group.ranks(),
            _ => vec![self.rank()],
        }
    }

    fn group(&self) -> Option<&DeviceGroup> {
        match &self.device {
            WorkerDevice::Own(group) => Some(group),
            WorkerDevice::Thread | WorkerDevice::InTurn(_) => None,
        }
    }
}

/// Returns the worker whose models a rank computes together with others.
pub(super) fn group_of(workers: &[WorkerDescription], rank: usize) -> Option<&WorkerDescription> {
    workers
        .iter()
        .map(|worker| (worker, worker.ranks()))
        .find_map(|(worker, ranks)| (ranks.len() > 1 && ranks.contains(&rank)).then_some(worker))
}

/// Returns a model that this rank leads. `exchange` connects it with the ranks that have the other
/// parts.
pub(crate) fn lead(
    weights: Arc<Weights>,
    team: &Arc<Team>,
    exchange: Box<dyn Exchange>,
    features: Option<FeatureSource>,
) -> Box<dyn Forward<Storage = CpuPages>> {
    let team = Arc::clone(team);
    match weights.has_all_layers() {
        true => {
            let leader = TensorParallelModel::new(weights, team, exchange);
            Box::new(match features {
                Some(features) => leader.with_features(features),
                None => leader,
            })
        }
        false => {
            let leader = StagedModel::new(weights, team, exchange);
            Box::new(match features {
                Some(features) => leader.with_features(features),
                None => leader,
            })
        }
    }
}

/// Starts the thread that computes a part of a model until the leader ends.
pub(super) fn follow(
    weights: Arc<Weights>,
    team: TeamSpec,
    exchange: Box<dyn Exchange>,
) -> Result<(), RankError> {
    let body = move || {
        // A panic ends the job, and names this rank.
        let team = team.start_team().unwrap_or_else(|error| panic!("{error}"));
        let team = Arc::new(team);
        let ended = match weights.has_all_layers() {
            true => TensorParallelFollower::new(weights, team, exchange).run(),
            false => StageFollower::new(weights, team, exchange).run(),
        };
        ended.unwrap_or_else(|error| panic!("{error}"));
    };
    let thread = thread::Builder::new().name("forerun-follower".into()).spawn(body);
    thread.map(drop).map_err(|error| RankError::Thread(error.to_string()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::plan::{AdditionalDrafter, Options, Plan};
    use crate::registry::DrafterKind;

    /// Rank 0 also has a drafter that needs no model, on a thread.
    #[test]
    fn a_rank_that_follows_belongs_to_its_group() {
        for (method, drafter, placement, group) in [
            ("dsi", "model", "drafter=rank:1+rank:0,target=rank:2", "drafter rank:1+rank:0"),
            ("pearl", "prompt-lookup", "target=rank:1+rank:0", "target rank:1+rank:0"),
        ] {
            let kind: DrafterKind = drafter.parse().unwrap();
            let also = AdditionalDrafter::Tokens("suffix".parse().unwrap());
            let options = Options {
                model: "target".into(),
                draft_model: kind.has_model().then(|| "drafter".into()),
                method: Some(method.parse::<crate::Method>().unwrap().into()),
                drafter: Some(kind.into()),
                additional_drafters: if kind.has_model() { vec![also] } else { Vec::new() },
                placement: Some(placement.parse().unwrap()),
                ..Options::default()
            };
            let workers = Plan::new(options).unwrap().workers();
            assert_eq!(workers[0].ranks(), [0], "the drafter without a model");
            for rank in [0, 1] {
                assert_eq!(group_of(&workers, rank).unwrap().name, group);
            }
            assert_eq!(group_of(&workers, 2), None);
        }
    }
}

//! Engines whose workers are on the ranks of an MPI job.
//!
//! All ranks make the same plan, and each loads the models that the placement gives it. Rank 0
//! decodes.

mod error;
mod facts;
mod fingerprint;
mod part;

pub use error::RankError;
pub use facts::RankFacts;
pub(crate) use part::{RankPart, lead};

use crate::engine::{Engine, OpenedPlan};
use crate::error::ForerunError;
use crate::loader::Loader;
use crate::model_source::ModelSource;
use crate::plan::Plan;
use crate::workers::team;
pub(crate) use fingerprint::Fingerprint;
use forerun_cpu::{Exchange, Isa, IsaError};
use forerun_decode::DraftPattern;
use forerun_runtime::{Runtime, Workers};
use part::{Membership, follow, group_of};
use std::sync::Arc;

/// The rank whose process decodes. Drafters that need no device run there, too.
pub const DECODING_RANK: usize = 0;

/// The place of a process in an MPI job.
#[derive(Clone, Copy)]
pub struct RankSite<'a> {
    /// The rank.
    pub rank: usize,
    /// The cores of the rank's device.
    pub cores: &'a [usize],
    /// Connects this rank with the others that compute a model together. It receives their ranks,
    /// the leader first.
    pub connect: &'a dyn Fn(&[usize]) -> Box<dyn Exchange>,
}

/// A rank of an MPI job that has loaded its models, and runs its workers.
///
/// Each rank calls [`Rank::start`]. The others then run the jobs that rank 0 sends them, on
/// [`Rank::into_runtime`]. Rank 0 collects the facts of all ranks and calls [`Rank::open`].
pub struct Rank {
    opened: OpenedPlan,
    runtime: Runtime,
    facts: RankFacts,
}

impl Rank {
    /// Loads the models that `plan` places on this rank, and starts their workers on the cores of
    /// `site`. If the rank computes a model with others, and another one leads, a thread computes
    /// its share from now on.
    ///
    /// # Errors
    /// As [`Engine::open_with`].
    pub fn start(
        plan: &Plan,
        loader: &mut Loader<'_>,
        site: RankSite<'_>,
    ) -> Result<Self, ForerunError> {
        let workers = plan.workers();
        let part = RankPart::new(&workers, site);
        let mut of_rank = workers.iter().filter(|worker| worker.ranks().contains(&site.rank));
        let models = plan.drafters_with_models().into_iter().map(|(_, model)| model);
        let models = std::iter::once(plan.model()).chain(models).map(|model| {
            let fingerprint = match model {
                ModelSource::Embedded(_) => "embedded".to_owned(),
                model => Fingerprint::of(&loader.locate(model)?)?.content,
            };
            Ok((model.to_string(), fingerprint))
        });
        let models = models.collect::<Result<Vec<_>, ForerunError>>()?;
        let started = OpenedPlan::start(plan, loader, Some(&part));
        let (opened, runtime) = started.map_err(|error| part.with_names(error))?;
        let has_target =
            of_rank.any(|worker| worker.roles().iter().any(|it| it.target().is_some()));
        let group = group_of(&workers, site.rank);
        if let Some(Membership { role, .. }) = part.membership
            && let Some(worker) = group.filter(|worker| !part.has(worker))
            && let Some(exchange) = part.take_exchange()
            && let Some(weights) = opened.member_weights(role)
        {
            follow(Arc::clone(weights), team(worker, Some(&part)), exchange)?;
        }
        let drafts_with_others = part.membership.is_some() && !has_target;
        let computed = match group.filter(|_| drafts_with_others) {
            Some(worker) => Some(format!("the {}", worker.name)),
            None => has_target.then(|| "the target".to_owned()),
        };
        let isa = computed.map(|model| Ok((model, Isa::from_environment()?.to_string())));
        let isa = isa.transpose().map_err(|error: IsaError| ForerunError::from(error))?;
        let patterns = (0..=plan.additional_drafters().len()).map(|index| {
            let pattern = opened.pattern(index)?;
            Some((pattern.positions, pattern.one_forward, pattern.pass_per_mille))
        });
        let facts = RankFacts {
            version: env!("CARGO_PKG_VERSION").into(),
            plan: format!("{plan:?}"),
            models,
            isa,
            patterns: patterns.collect(),
        };
        Ok(Self { opened, runtime, facts })
    }

    /// Returns what rank 0 must know of this rank.
    #[must_use]
    pub fn facts(&self) -> &RankFacts {
        &self.facts
    }

    /// Returns the workers of this rank.
    #[must_use]
    pub fn into_runtime(self) -> Runtime {
        self.runtime
    }

    /// Opens the engine on rank 0. `others` are the facts of the other ranks, from 1 upwards.
    /// `connect` makes handles to the workers of all ranks; it receives those of rank 0.
    ///
    /// # Errors
    /// [`RankError`] if the ranks do not fit together.
    pub fn open(
        self,
        others: &[RankFacts],
        connect: impl FnOnce(Runtime) -> Box<dyn Workers>,
    ) -> Result<Engine, ForerunError> {
        facts::check(&self.facts, others)?;
        let patterns = (0..self.facts.patterns.len()).map(|index| {
            let mut facts = std::iter::once(&self.facts).chain(others);
            let pattern = facts.find_map(|facts| *facts.patterns.get(index)?).unwrap_or_default();
            let (positions, one_forward, pass_per_mille) = pattern;
            DraftPattern { positions, one_forward, pass_per_mille }
        });
        let patterns: Vec<_> = patterns.collect();
        Ok(self.opened.into_engine(connect(self.runtime), &patterns))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{Options, RandomPair, Step};
    use forerun_cpu::ThreadExchange;
    use std::ops::ControlFlow;

    /// Starts a rank of a plan whose other ranks do nothing.
    fn start(
        pair: &RandomPair,
        placement: &str,
        rank: usize,
        loader: &mut Loader<'_>,
    ) -> Result<Rank, ForerunError> {
        let options = Options {
            model: pair.target().into(),
            draft_model: Some(pair.drafter().into()),
            placement: Some(placement.parse().unwrap()),
            ..Options::default()
        };
        let plan = Plan::new(options).unwrap();
        let connect = |ranks: &[usize]| -> Box<dyn Exchange> {
            let member = ranks.iter().position(|it| *it == rank).unwrap();
            Box::new(ThreadExchange::group(ranks.len()).swap_remove(member))
        };
        Rank::start(&plan, loader, RankSite { rank, cores: &[0], connect: &connect })
    }

    #[test]
    fn too_many_stages_are_an_error_that_names_model_and_ranks() {
        let pair = RandomPair::make().unwrap();
        let error = |placement: &str, rank| {
            start(&pair, placement, rank, &mut Loader::new()).err().unwrap().to_string()
        };
        let nine = (0..9).map(|rank| format!("rank:{rank}")).collect::<Vec<_>>().join("/");
        for rank in [0, 4, 8] {
            let expected = format!(
                "cannot put the layers of {} on {nine}: the model can be split into 8 pipeline stages at most, not into 9; \
                 separate fewer ranks by '/' for it",
                pair.target().display(),
            );
            assert_eq!(error(&format!("drafter=rank:9,target={nine}"), rank), expected);
        }
        let drafter = error("drafter=rank:1/rank:2,target=rank:0", 1);
        let expected = format!(
            "cannot put the layers of {} on rank:1/rank:2: the model can be split into 1 pipeline stage at most, not into 2",
            pair.drafter().display(),
        );
        assert!(drafter.starts_with(&expected), "{drafter}");
    }

    /// Each rank reports the layers of its own stage.
    #[test]
    fn the_progress_of_every_stage_reaches_its_total() {
        let pair = RandomPair::make().unwrap();
        let mut layers = 0;
        for rank in 0..3 {
            let mut reports = Vec::new();
            let mut loader = Loader::new().on_progress(|progress| {
                assert!(matches!(progress.step, Step::Load { .. }));
                reports.push((progress.done, progress.total));
                ControlFlow::Continue(())
            });
            start(&pair, "drafter=rank:3,target=rank:0/rank:1/rank:2", rank, &mut loader).unwrap();
            drop(loader);
            let total = reports[0].1;
            assert_eq!(reports, (0..=total).map(|done| (done, total)).collect::<Vec<_>>());
            layers += total;
        }
        assert_eq!(layers, 8);
    }
}

//! Commands that run on the ranks of an MPI job, as `--placement drafter=rank:0,target=rank:1`
//! asks.
//!
//! `mpirun` starts the same command on all ranks. Rank 0 does what the command says; the others run
//! its jobs.

/// A process that does what its command says.
pub(crate) struct Member {
    #[cfg(feature = "mpi")]
    group: Option<forerun_mpi::Group>,
}

/// Reports how the clocks of ranks differ.
#[derive(Default)]
pub(crate) struct Clocks {
    #[cfg(feature = "mpi")]
    observer: Option<forerun_mpi::Observer>,
}

#[cfg(not(feature = "mpi"))]
mod without_mpi {
    use super::{Clocks, Member};
    use crate::arguments::EngineArguments;
    use anyhow::bail;
    use forerun::{Engine, Loader, Placement, Plan};

    impl Member {
        /// Fails if the placement names ranks.
        pub(crate) fn join(arguments: &mut EngineArguments) -> anyhow::Result<Option<Self>> {
            let ranks = arguments.placement.as_ref().map(Placement::ranks).unwrap_or_default();
            if let Some(rank) = ranks.first() {
                bail!(
                    "--placement names rank:{rank}, but this build has no MPI: it needs the feature mpi. Install \
                     Open MPI and libclang (Debian: openmpi-bin, libopenmpi-dev, clang and libclang-dev), and in a \
                     clone of the repository `cargo install --locked --path crates/cli --features mpi`"
                );
            }
            Ok(Some(Self {}))
        }

        /// Opens the engine in this process.
        pub(crate) fn open(
            self,
            plan: &Plan,
            loader: &mut Loader<'_>,
        ) -> anyhow::Result<(Engine, Clocks)> {
            Ok((Engine::open_with(plan, loader)?, Clocks::default()))
        }
    }

    impl Clocks {
        /// Prints nothing: all times are on one clock.
        pub(crate) fn report(&self) {}
    }
}

#[cfg(feature = "mpi")]
mod on_mpi {
    use super::{Clocks, Member};
    use crate::arguments::EngineArguments;
    use crate::generate::options;
    use crate::{flags, interrupts, note, progress};
    use anyhow::anyhow;
    use forerun::cpu::Exchange;
    use forerun::placement::Topology;
    use forerun::runtime::{DECODING_RANK, Rank, RankFacts, RankSite};
    use forerun::{Engine, Loader, Plan};
    use forerun_mpi::{Group, GroupOptions, MpiError};
    use std::time::Duration;

    impl Member {
        /// Joins the MPI job, if the placement names ranks. Then only rank 0 goes on with its
        /// command. On the others, this returns `None` when the job has ended.
        pub(crate) fn join(arguments: &mut EngineArguments) -> anyhow::Result<Option<Self>> {
            let Some(placement) = &arguments.placement else {
                return Ok(Some(Self { group: None }));
            };
            let names = placement.ranks().into_iter().map(|rank| {
                let devices = placement.devices().into_iter();
                let mut devices = devices.filter(|(group, _)| group.ranks().contains(&rank));
                let roles = devices.next().map(|(_, roles)| roles).unwrap_or_default();
                let target = roles.iter().any(|role| role.target().is_some());
                let drafter = roles.iter().any(|role| role.target().is_none());
                let name = match (target, drafter) {
                    (true, true) => "target and drafter",
                    (true, false) => "target",
                    (false, _) => "drafter",
                };
                (rank, name.to_owned())
            });
            let options = GroupOptions {
                timeout: Duration::from_secs(arguments.rank_timeout),
                cores: Topology::of_this_machine().default_cores(),
                names: names.collect(),
                on_failure: Box::new(|error| {
                    note::error(flags::with_flags(&format!("{error}; the job ends")));
                    interrupts::end();
                }),
            };
            if options.names.is_empty() {
                return Ok(Some(Self { group: None }));
            }
            let group = Group::join(options)?;
            if group.rank() == DECODING_RANK {
                return Ok(Some(Self { group: Some(group) }));
            }
            // Rank 0 gets the same signal from `mpirun`, and ends the job.
            interrupts::listen(|| false)?;
            serve(group, arguments)?;
            Ok(None)
        }

        /// Opens the engine: in this process, or on all ranks.
        pub(crate) fn open(
            self,
            plan: &Plan,
            loader: &mut Loader<'_>,
        ) -> anyhow::Result<(Engine, Clocks)> {
            let Some(group) = self.group else {
                return Ok((Engine::open_with(plan, loader)?, Clocks::default()));
            };
            let own = start(plan, loader, &group)?;
            let facts = group.gather()?.into_iter().zip(1..).map(|(bytes, rank)| {
                serde_json::from_slice::<RankFacts>(&bytes)
                    .map_err(|error| MpiError::Rank { rank, message: error.to_string() })
            });
            let facts = facts.collect::<Result<Vec<_>, _>>()?;
            let workers = plan.workers().into_iter();
            let workers: Vec<_> = workers
                .map(|worker| (worker.rank(), worker.name.clone(), worker.roles()))
                .collect();
            let mut clocks = Clocks::default();
            let engine = own.open(&facts, |runtime| {
                let workers = group.into_workers(runtime, &workers);
                clocks.observer = Some(workers.observer());
                Box::new(workers)
            })?;
            Ok((engine, clocks))
        }
    }

    /// Starts the workers of this rank.
    fn start(plan: &Plan, loader: &mut Loader<'_>, group: &Group) -> anyhow::Result<Rank> {
        let connect = |ranks: &[usize]| -> Box<dyn Exchange> { Box::new(group.exchange(ranks)) };
        let site = RankSite { rank: group.rank(), cores: group.cores(), connect: &connect };
        Ok(Rank::start(plan, loader, site)?)
    }

    /// Runs the jobs of rank 0 until it ends the job.
    fn serve(group: Group, arguments: &mut EngineArguments) -> anyhow::Result<()> {
        let mut loader = progress::loader(arguments.offline, false);
        let load = |group: &Group| {
            let mut load = || -> anyhow::Result<_> {
                let plan = Plan::new(options(arguments)?)?;
                let rank = start(&plan, &mut loader, group)?;
                let facts = serde_json::to_vec(rank.facts())?;
                Ok((rank.into_runtime(), facts))
            };
            load().map_err(|error| format!("{error:#}"))
        };
        group.serve(load).map_err(|error| anyhow!(error))
    }

    impl Clocks {
        /// Prints the offset of each rank's clock, which has been subtracted from its times.
        pub(crate) fn report(&self) {
            for clock in self.observer.iter().flat_map(forerun_mpi::Observer::clocks) {
                let drift = match clock.drift_ppm {
                    Some(drift) => format!("{drift:+.2} ppm"),
                    None => "not known in less than a second".to_owned(),
                };
                note(format_args!(
                    "clock of rank {}: {:+.3} ms ± {:.1} µs, drift {drift}",
                    clock.rank,
                    clock.offset_ns as f64 / 1e6,
                    clock.uncertainty_ns as f64 / 1e3,
                ));
            }
        }
    }
}

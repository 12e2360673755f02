//! Engines whose workers are on the ranks of an MPI job.
//!
//! All ranks make the same plan, and each loads the models that the placement gives it. Rank 0
//! decodes.

use crate::engine::{Forerun, OpenedPlan};
use crate::error::ForerunError;
use crate::loader::Loader;
use crate::memory::CorePart;
use crate::model_source::ModelSource;
use crate::plan::{Plan, WorkerDescription, WorkerDevice, WorkerModel};
use crate::workers::team;
use forerun_core::Role;
use forerun_cpu::{
    CpuPages, Exchange, Isa, IsaError, Share, Stage, StageFollower, StagedModel, Team,
    TensorParallelFollower, TensorParallelModel, Weights,
};
use forerun_decode::DraftPattern;
use forerun_formats::{FeatureSource, LoadError};
use forerun_model::Forward;
use forerun_runtime::{DeviceGroup, Runtime, TeamSpec, Workers};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

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

/// The part of a plan that one process runs.
pub(crate) struct RankPart {
    rank: usize,
    /// The cores of the rank's device.
    pub(crate) cores: Vec<usize>,
    /// What this rank computes together with others. Such a rank has no other model.
    membership: Option<Membership>,
    /// The connection to these others, until it is in use.
    exchange: Mutex<Option<Box<dyn Exchange>>>,
}

/// What a rank computes of a model whose other parts are on other ranks.
struct Membership {
    role: Role,
    part: CorePart,
    /// The model, as the options name it.
    model: String,
    /// The group of the placement.
    ranks: String,
}

impl RankPart {
    fn new(workers: &[WorkerDescription], site: RankSite<'_>) -> Self {
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
    fn with_names(&self, error: ForerunError) -> ForerunError {
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

/// What all ranks of a plan must agree on, and what rank 0 must know of the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFacts {
    version: String,
    plan: String,
    /// The models of the plan with a fingerprint of their files.
    models: Vec<(String, String)>,
    /// A model that other ranks must compute with the same bits, and the instruction set of this
    /// rank.
    isa: Option<(String, String)>,
    /// What each drafter drafts in one job, if it is on this rank: the fields of [`DraftPattern`].
    patterns: Vec<Option<(Option<usize>, bool, u32)>>,
}

/// Why the ranks of a job cannot work together.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum RankError {
    /// The placement names ranks, but the engine is opened in a single process.
    #[error(
        "the placement {0:?} names ranks of an MPI job, which only `generate`, `serve` and programs that open a \
         `Rank` use: name cores instead, as in target=cpu:0"
    )]
    NoJob(String),
    /// A rank runs another version of this program.
    #[error(
        "rank {rank} runs forerun {found}, but rank 0 runs {expected}: install the same version on all machines"
    )]
    Version {
        /// The rank.
        rank: usize,
        /// Its version.
        found: String,
        /// The version of rank 0.
        expected: String,
    },
    /// A rank has another plan.
    #[error(
        "rank {rank} has other options than rank 0: start all ranks with the same command line and configuration"
    )]
    Plan {
        /// The rank.
        rank: usize,
    },
    /// A rank has other files of a model.
    #[error(
        "the model {model} of rank {rank} differs from that of rank 0: copy the same files to all machines"
    )]
    Model {
        /// The rank.
        rank: usize,
        /// The model, as the options name it.
        model: String,
    },
    /// Two ranks compute the same model with different instruction sets.
    #[error(
        "rank {rank} computes {model} with {found}, and rank {other} with {expected}, so their results could differ: \
         set FORERUN_ISA to the lower one on all ranks, as in mpirun -x FORERUN_ISA=avx2"
    )]
    Isa {
        /// The model.
        model: String,
        /// The rank.
        rank: usize,
        /// Its instruction set.
        found: String,
        /// A rank before it with the model.
        other: usize,
        /// The instruction set of that rank.
        expected: String,
    },
    /// A thread cannot be started.
    #[error("cannot start the thread of a part of a model: {0}")]
    Thread(String),
    /// A model's file cannot be read.
    #[error("cannot read {}: {message}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        message: String,
    },
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
    /// As [`Forerun::open_with`].
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
                model => fingerprint(&loader.locate(model)?)?,
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
    ) -> Result<Forerun, ForerunError> {
        check(&self.facts, others)?;
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

/// Returns the worker whose models a rank computes together with others.
fn group_of(workers: &[WorkerDescription], rank: usize) -> Option<&WorkerDescription> {
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
fn follow(
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

/// Checks that the ranks fit together.
fn check(own: &RankFacts, others: &[RankFacts]) -> Result<(), RankError> {
    let mut isas = BTreeMap::new();
    isas.extend(own.isa.as_ref().map(|(model, isa)| (model, (DECODING_RANK, isa))));
    for (rank, facts) in (1..).zip(others) {
        if facts.version != own.version {
            let (found, expected) = (facts.version.clone(), own.version.clone());
            return Err(RankError::Version { rank, found, expected });
        }
        if facts.plan != own.plan {
            return Err(RankError::Plan { rank });
        }
        let different = facts.models.iter().zip(&own.models).find(|(theirs, own)| theirs != own);
        if let Some(((model, _), _)) = different {
            return Err(RankError::Model { rank, model: model.clone() });
        }
        let Some((model, found)) = &facts.isa else { continue };
        let (other, expected) = *isas.entry(model).or_insert((rank, found));
        if found != expected {
            let (model, found, expected) = (model.clone(), found.clone(), expected.clone());
            return Err(RankError::Isa { model, rank, found, other, expected });
        }
    }
    Ok(())
}

/// The files of a model's directory that decide what it computes.
const MODEL_FILES: [&str; 6] = ["safetensors", "gguf", "json", "bin", "model", "txt"];

/// Files up to this size are read as a whole.
const WHOLE_FILE: u64 = 64 << 20;

/// Of larger files, one block is read in each stretch of this size. Another checkpoint, also of the
/// same model, differs nearly everywhere.
const STRETCH: u64 = 1 << 18;
const BLOCK: u64 = 1 << 12;

/// Returns a fingerprint of a model's files, by which two machines can compare them.
fn fingerprint(model: &Path) -> Result<String, RankError> {
    let error = |path: &Path, error: &io::Error| RankError::Read {
        path: path.to_owned(),
        message: error.to_string(),
    };
    let mut hash = Sha256::new();
    for path in model_files(model).map_err(|cause| error(model, &cause))? {
        add_file(&mut hash, &path).map_err(|cause| error(&path, &cause))?;
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the files of a directory, or a file with the other parts of its checkpoint, in order.
fn model_files(model: &Path) -> io::Result<Vec<PathBuf>> {
    let name = model.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    let (folder, prefix) = match name.split_once("-00001-of-") {
        _ if model.is_dir() => (model, String::new()),
        Some((prefix, _)) => (model.parent().unwrap_or(Path::new(".")), prefix.to_owned()),
        None => return Ok(vec![model.to_owned()]),
    };
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        if path.is_file() && name.starts_with(&prefix) && MODEL_FILES.contains(&extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn add_file(hash: &mut Sha256, path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    hash.update(path.file_name().map(OsStr::as_encoded_bytes).unwrap_or_default());
    hash.update(length.to_le_bytes());
    if length <= WHOLE_FILE {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        hash.update(bytes);
        return Ok(());
    }
    let mut block = Vec::new();
    for start in (0..length).step_by(STRETCH as usize) {
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        (&mut file).take(BLOCK).read_to_end(&mut block)?;
        hash.update(&block);
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{AdditionalDrafter, DrafterKind, Options, RandomPair, Step};
    use forerun_cpu::ThreadExchange;
    use std::fs;
    use std::io::Write;
    use std::ops::ControlFlow;

    fn facts() -> RankFacts {
        RankFacts {
            version: "1".into(),
            plan: "plan".into(),
            models: vec![("target".into(), "a".into()), ("drafter".into(), "b".into())],
            isa: None,
            patterns: Vec::new(),
        }
    }

    #[test]
    fn ranks_that_differ_are_named() {
        let error = |changes: [fn(&mut RankFacts); 3]| {
            let all = changes.map(|change| {
                let mut facts = facts();
                change(&mut facts);
                facts
            });
            check(&all[0], &all[1..]).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let same = |_: &mut RankFacts| {};
        let avx2 = |facts: &mut RankFacts| {
            facts.isa = Some(("the target".into(), "avx2".into()));
        };
        assert_eq!(error([same, same, same]), "");
        assert_eq!(error([same, avx2, avx2]), "");
        assert!(
            error([same, same, |facts| facts.plan.clear()]).starts_with("rank 2 has other options")
        );
        assert!(
            error([same, |facts| facts.version = "2".into(), same])
                .starts_with("rank 1 runs forerun 2")
        );
        let other = error([same, same, |facts| facts.models[1].1 = "c".into()]);
        assert!(other.starts_with("the model drafter of rank 2 differs"), "{other}");
        let portable = |facts: &mut RankFacts| {
            facts.isa = Some(("the target".into(), "portable".into()));
        };
        let isa = error([same, avx2, portable]);
        assert!(
            isa.contains("rank 2 computes the target with portable, and rank 1 with avx2"),
            "{isa}"
        );
        let drafts = |facts: &mut RankFacts| {
            facts.isa = Some(("the drafter rank:2+rank:3".into(), "portable".into()));
        };
        let reason = "other bits of a draft do not change the distribution of the text";
        assert_eq!(error([avx2, avx2, drafts]), "", "{reason}");
    }

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
                method: Some(method.parse().unwrap()),
                drafter: Some(kind),
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

    #[test]
    fn fingerprints_follow_the_files_that_decide() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).unwrap();
        write("config.json", b"{}");
        write("model.safetensors", b"weights");
        let first = fingerprint(folder.path()).unwrap();
        write("README.md", b"text");
        assert_eq!(fingerprint(folder.path()).unwrap(), first);
        write("model.safetensors", b"weighty");
        assert_ne!(fingerprint(folder.path()).unwrap(), first);
        assert!(fingerprint(&folder.path().join("nothing")).is_err());
        // A large file without blocks on the disk, and a change in its middle.
        let large = folder.path().join("large.gguf");
        let mut file = File::create(&large).unwrap();
        file.set_len(WHOLE_FILE + 1).unwrap();
        let zeros = fingerprint(&large).unwrap();
        let mut bytes = vec![0; STRETCH as usize];
        bytes.fill(1);
        file.seek(SeekFrom::Start(WHOLE_FILE / 2)).unwrap();
        file.write_all(&bytes).unwrap();
        assert_ne!(fingerprint(&large).unwrap(), zeros);
    }
}

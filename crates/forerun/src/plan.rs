//! Turns options into a validated, immutable plan of what runs where. Each module decides one part.

mod adapters;
mod cores;
mod drafters;
pub(crate) mod drafts;
mod error;
pub(crate) mod method;
mod options;
#[cfg(test)]
mod tests;
mod workers;

pub use adapters::NamedAdapter;
pub(crate) use cores::TYPICAL_RATIO;
pub use cores::typical_placement;
pub use drafters::{AdditionalDrafter, DrafterOptions};
pub use drafts::{DraftTokens, Lookup, Tree};
pub use error::PlanError;
pub use method::{Method, MethodOptions};
pub use options::Options;
pub use workers::{WorkerDescription, WorkerDevice, WorkerModel};

use crate::easyspec::EasySpec;
use crate::model_source::ModelSource;
use crate::page_folder::DEFAULT_FOLDER_BYTES;
use crate::registry::DrafterKind;
use drafts::Drafts;
use forerun_core::{DraftShape, Role};
use forerun_decode::{DraftLength, PearlOptions, TreeLimits};
use forerun_formats::{CacheType, ModelTypes, SpeculatorKind, WeightTypes};
use forerun_runtime::{Placement, Topology};
use std::path::{Path, PathBuf};

/// A validated plan: which models run, on which cores, by which method.
///
/// ```
/// use forerun::{Method, Options, Plan};
///
/// let options = Options::new("models/target");
/// let plan = Plan::new(options.clone())?;
/// assert_eq!(plan.method(), Method::Autoregressive);
///
/// let options = Options { method: Some(Method::Pearl.into()), ..options };
/// let error = Plan::new(options).unwrap_err();
/// assert!(error.to_string().starts_with("the method pearl needs a drafter: set `draft_model`"));
/// # Ok::<(), forerun::PlanError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    model: ModelSource,
    draft_model: Option<ModelSource>,
    method: Method,
    drafter: DrafterKind,
    additional_drafters: Vec<AdditionalDrafter>,
    drafts: Drafts,
    lookup: Lookup,
    pearl: PearlOptions,
    types: ModelTypes,
    cache_bytes: Option<usize>,
    /// The folder of cached pages, and its budget in bytes.
    cache_dir: Option<(PathBuf, usize)>,
    context_length: Option<usize>,
    placement: Placement,
    cpu_moe: Option<usize>,
    pinned: bool,
    easyspec: Option<EasySpec>,
    adapters: Vec<NamedAdapter>,
}

impl Plan {
    /// Checks options against each other and against this machine's cores.
    ///
    /// Checkpoints are loaded later, by [`Engine::open_plan`](crate::Engine::open_plan).
    /// Here, a draft model that is on disk is checked for the kind of its tensors, and the sizes of both models'
    /// tensors decide how PEARL and `auto` divide the cores.
    ///
    /// # Errors
    /// Returns an error that names the options that do not work together, and a way out.
    pub fn new(options: Options) -> Result<Self, PlanError> {
        Self::build(options, &Topology::of_this_machine())
    }

    /// Checks options as [`Plan::new`] does, but for a machine with the given cores, all alike.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn on_cores(options: Options, cores: &[usize]) -> Result<Self, PlanError> {
        Self::build(options, &Topology::uniform(cores))
    }

    fn build(options: Options, topology: &Topology) -> Result<Self, PlanError> {
        if let Some(found) = options.context_length.filter(|&tokens| tokens < 2) {
            return Err(PlanError::Range {
                option: "context_length",
                found: found.to_string(),
                expected: "at least 2, for a prompt and an answer".into(),
            });
        }
        // A missing or broken checkpoint is reported when it is opened.
        let on_disk = options.draft_model.as_ref().and_then(ModelSource::path);
        let found = on_disk.and_then(|path| SpeculatorKind::of(path).ok()?);
        let (method, drafter) = drafters::method_and_drafter(&options, found)?;
        let drafts = drafts::drafts(options.draft_tokens, options.tree(), drafter)?;
        drafters::check_drafter_is_set(&options, method, drafter)?;
        let found = match drafter.is_in_target() {
            true => Some(SpeculatorKind::Mtp),
            false => found.filter(|&found| DrafterKind::of(found) == drafter),
        };
        if let Some(found) = found {
            method::check_layout(found, method)?;
        }
        method::check_needs(&options, method, drafter)?;
        let lookup = options.lookup();
        let pearl = match options.method {
            Some(MethodOptions::Pearl(pearl)) => pearl,
            _ => PearlOptions::default(),
        };
        let additional_drafters = drafters::additional_drafters(&options, method, drafter)?;
        let easyspec = drafters::easyspec(&options, drafter)?;
        let models = drafters::count_models(drafter, &additional_drafters);
        let placement = cores::placement(&options, method, models, topology)?;
        drafters::check_stages(easyspec.as_ref(), &placement)?;
        adapters::check(&options.adapters, &placement)?;
        let cache_dir = cache_dir(&options, &placement)?;
        cores::check_experts(options.cpu_moe, &placement)?;
        // A rank's process finds its cores itself.
        // Paced devices wait most of the time, so more of them than cores can use each core.
        let names_cores = options
            .placement
            .as_ref()
            .is_some_and(|given| given.ranks().is_empty() && given.pace().is_none());
        let pinned = options.pin || names_cores;
        if let Some(found) = found {
            cores::check_device(found, &placement)?;
        }
        let draft_model = match drafter.is_in_target() {
            true => Some(options.model.clone()),
            false => options.draft_model.filter(|_| drafter.has_model()),
        };
        let Options {
            model,
            weight_type,
            cache_type,
            cache_bytes,
            context_length,
            cpu_moe,
            adapters,
            ..
        } = options;
        Ok(Self {
            model,
            draft_model,
            method,
            drafter,
            additional_drafters,
            drafts,
            lookup,
            pearl,
            types: ModelTypes { weights: weight_type, cache: cache_type },
            cache_bytes,
            cache_dir,
            context_length,
            placement,
            cpu_moe,
            pinned,
            easyspec,
            adapters,
        })
    }

    /// Checks that this plan's method and placement support a drafter of the kind that its
    /// checkpoint turned out to be.
    pub(crate) fn check_layout(&self, found: SpeculatorKind) -> Result<(), PlanError> {
        method::check_layout(found, self.method)?;
        cores::check_device(found, &self.placement)
    }

    /// Returns EasySpec's options, if it drafts.
    #[must_use]
    pub fn easyspec(&self) -> Option<&EasySpec> {
        self.easyspec.as_ref()
    }

    /// Returns the target's checkpoint, as the options name it.
    #[must_use]
    pub fn model(&self) -> &ModelSource {
        &self.model
    }

    /// Returns the target's adapters.
    #[must_use]
    pub fn adapters(&self) -> &[NamedAdapter] {
        &self.adapters
    }

    /// Returns the drafter's checkpoint, as the options name it, if the drafter has one. That of an
    /// MTP head is the target's.
    #[must_use]
    pub fn draft_model(&self) -> Option<&ModelSource> {
        self.draft_model.as_ref()
    }

    /// Returns the decoding method.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// Returns the kind of the first drafter.
    #[must_use]
    pub fn drafter(&self) -> DrafterKind {
        self.drafter
    }

    /// Returns the additional drafters.
    #[must_use]
    pub fn additional_drafters(&self) -> &[AdditionalDrafter] {
        &self.additional_drafters
    }

    /// Returns the shape of drafts, with their maximum length.
    #[must_use]
    pub fn shape(&self) -> &DraftShape {
        &self.drafts.shape
    }

    /// Returns the largest tree, if trees grow. [`shape`](Self::shape) is the one that is drafted
    /// where nothing may depend on measured times.
    #[must_use]
    pub fn trees(&self) -> Option<TreeLimits> {
        self.drafts.trees
    }

    /// Returns how the number of draft tokens adapts, if it does.
    #[must_use]
    pub fn length(&self) -> DraftLength {
        self.drafts.length
    }

    /// Returns the lookup of earlier text in addition to the drafter.
    #[must_use]
    pub fn lookup(&self) -> Lookup {
        self.lookup
    }

    /// Returns the variant of PEARL.
    #[must_use]
    pub fn pearl(&self) -> PearlOptions {
        self.pearl
    }

    /// Returns the type in which weight matrices are kept. `None` is each checkpoint's own.
    #[must_use]
    pub fn weight_type(&self) -> Option<WeightTypes> {
        self.types.weights
    }

    /// Returns the type of cached keys and values. `None` is each model's default.
    #[must_use]
    pub fn cache_type(&self) -> Option<CacheType> {
        self.types.cache
    }

    pub(crate) fn types(&self) -> ModelTypes {
        self.types
    }

    /// Returns the memory of each model's caches in bytes, if it is not the default.
    #[must_use]
    pub fn cache_bytes(&self) -> Option<usize> {
        self.cache_bytes
    }

    pub(crate) fn cache_dir(&self) -> Option<(&Path, usize)> {
        self.cache_dir.as_ref().map(|(folder, bytes)| (&**folder, *bytes))
    }

    /// Returns the most tokens of a prompt and its answer, if they are fewer than the model's.
    #[must_use]
    pub fn context_length(&self) -> Option<usize> {
        self.context_length
    }

    /// Returns the cores of each role.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns how many of the target's first layers leave their experts on the cores, if a GPU has
    /// them: [`Options::cpu_moe`].
    pub(crate) fn cpu_moe(&self) -> usize {
        self.cpu_moe.unwrap_or(0)
    }

    /// Returns the number of drafters, at least 1.
    pub(crate) fn n_drafters(&self) -> usize {
        1 + self.additional_drafters.len()
    }

    /// Returns whether each thread stays on its core of the placement. Otherwise, the system places
    /// the threads, and the placement is their number.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }
}

/// Returns the folder of cached pages and its budget in bytes.
fn cache_dir(
    options: &Options,
    placement: &Placement,
) -> Result<Option<(PathBuf, usize)>, PlanError> {
    let Some(folder) = &options.cache_dir else {
        return match options.cache_dir_size {
            Some(_) => Err(PlanError::no_effect("cache_dir_size", "`cache_dir`")),
            None => Ok(None),
        };
    };
    if options.cache_dir_size == Some(0) {
        return Err(PlanError::Range {
            option: "cache_dir_size",
            found: "0".into(),
            expected: "at least 1".into(),
        });
    }
    let is_on_cores = |replica| placement.gpu_of(Role::Target(replica)).is_none();
    if !placement.ranks().is_empty() || !(0..placement.replicas()).all(is_on_cores) {
        return Err(PlanError::conflict(
            "`cache_dir` keeps pages of a target on the cores of one machine, and `placement` has it \
             elsewhere",
            "leave `cache_dir` out, or place the target on cores",
        ));
    }
    Ok(Some((folder.clone(), options.cache_dir_size.unwrap_or(DEFAULT_FOLDER_BYTES))))
}

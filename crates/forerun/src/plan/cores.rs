//! The placement of targets and drafters on cores.

use super::{Method, Options, PlanError};
use crate::model_source::ModelSource;
use forerun_decode::drafter_cores;
use forerun_formats::{Checkpoint, SpeculatorKind};
use forerun_runtime::{DeviceGroups, Placement, Topology};

/// The largest number of target replicas that an automatic placement gives DSI.
const AUTO_REPLICAS: usize = 4;

/// How many times the bytes of a draft step a pass of the target reads, if that is not known.
pub(crate) const TYPICAL_RATIO: f64 = 10.0;

/// Returns the requested placement, or an automatic one, for `models` drafters that are models.
pub(super) fn placement(
    options: &Options,
    method: Method,
    models: usize,
    topology: &Topology,
) -> Result<Placement, PlanError> {
    // Target and drafter share the same cores, unless they run at the same time.
    let separate = models > 0 && method.is_parallel();
    let replicas = if method.has_replicas() { AUTO_REPLICAS } else { 1 };
    let placement = match &options.placement {
        Some(_) if options.threads.is_some() => {
            return Err(PlanError::conflict(
                "`threads` and `placement` are both set, but a placement names its cores",
                "leave one out",
            ));
        }
        Some(placement) => {
            placement.check_cores(&topology.processors())?;
            placement.clone()
        }
        None => {
            let cores = used_cores(options.threads, topology)?;
            // The split of cores is that of PEARL's rounds. Others have replicas, or draft for
            // several outcomes.
            let is_split = method == Method::Pearl || method == Method::Auto;
            let drafter = separate.then(|| match is_split {
                true => drafter_cores(cores.len(), cost_ratio(options)),
                false => 1,
            });
            let placement = Placement::automatic(&cores, drafter, replicas);
            // Only DSI's drafters work at the same time.
            match method == Method::Dsi {
                true => placement.with_drafters(models),
                false => placement.with_drafters_in_turn(models),
            }
        }
    };
    placement.check_roles(models, method.has_replicas())?;
    match options.gpu_layers {
        None => Ok(placement),
        Some(0) => Err(PlanError::Range {
            option: "gpu_layers",
            found: "0".into(),
            expected: "at least 1 (for a target on cores alone, leave it out)".into(),
        }),
        Some(layers) => {
            let text = placement.to_string();
            let shared = placement.has_drafter_on_gpu_of_target();
            match placement.with_gpu_layers(layers) {
                None => Err(PlanError::conflict(
                    format!(
                        "`gpu_layers` splits a target between a GPU and cores, but the placement \
                         is {text}"
                    ),
                    "write, for example, `placement = target=gpu:0/cpu:0-7`, or leave `gpu_layers` \
                     out",
                )),
                Some(split) if split.has_drafter_on_gpu_of_target() && !shared => {
                    Err(PlanError::conflict(
                        "`gpu_layers` would put layers of the target on a drafter's GPU",
                        format!(
                            "to let them share it, leave `gpu_layers` out and write `placement = \
                             {split}`; otherwise name another GPU, as in `target=gpu:1/cpu:0-7`"
                        ),
                    ))
                }
                Some(split) => Ok(split),
            }
        }
    }
}

/// Checks that a target whose experts are to stay on cores is split between a GPU and cores.
pub(super) fn check_experts(
    cpu_moe: Option<usize>,
    placement: &Placement,
) -> Result<(), PlanError> {
    match cpu_moe {
        Some(0) => Err(PlanError::Range {
            option: "cpu_moe",
            found: "0".into(),
            expected: "at least 1 (for experts on the GPU, leave it out)".into(),
        }),
        Some(_) if !(0..placement.replicas()).all(|replica| placement.is_split(replica)) => {
            Err(PlanError::conflict(
                format!(
                    "`cpu_moe` keeps experts of layers that are on a GPU on cores, but the \
                     placement is {placement}"
                ),
                "set `gpu_layers`, or write, for example, `placement = target=gpu:0/cpu:0-7`",
            ))
        }
        _ => Ok(()),
    }
}

/// Returns the automatic placement of a target and one drafter on these cores, for PEARL and `auto`
/// (`separate`) or for methods that draft before verification. The drafter reads a tenth of the
/// target's bytes; the placement of given models follows from theirs
/// ([`Plan::placement`](super::Plan::placement)).
#[must_use]
pub fn typical_placement(cores: &[usize], separate: bool) -> Placement {
    let drafter = separate.then(|| drafter_cores(cores.len(), TYPICAL_RATIO));
    Placement::automatic(cores, drafter, 1)
}

/// Returns how many times the stored bytes of a draft step a pass of the target reads. If a
/// checkpoint is not on disk yet, or is not a whole model, as heads on the target's features are,
/// it is [`TYPICAL_RATIO`]. That a type of weights may be converted in memory, and that a drafter
/// may make several tokens in a pass, is not considered.
fn cost_ratio(options: &Options) -> f64 {
    let pass_bytes = |source: &ModelSource| {
        let checkpoint = match source {
            ModelSource::Path(path) => Checkpoint::open(path).ok()?,
            ModelSource::Embedded(model) => Checkpoint::open_embedded(model).ok()?,
            #[cfg(feature = "hub")]
            ModelSource::Hub(_) => return None,
        };
        Some(checkpoint.pass_bytes() as f64).filter(|&bytes| bytes > 0.0)
    };
    let drafter = options.draft_model.as_ref().and_then(pass_bytes);
    let both = drafter.and_then(|drafter| Some(pass_bytes(&options.model)? / drafter));
    both.unwrap_or(TYPICAL_RATIO)
}

/// Returns the cores that an automatic placement uses: the default ones, or as many as there are
/// threads.
fn used_cores(threads: Option<usize>, topology: &Topology) -> Result<Vec<usize>, PlanError> {
    let Some(found) = threads else { return Ok(topology.default_cores()) };
    let cores = topology.processors().len();
    topology.cores_for(found).ok_or_else(|| PlanError::Range {
        option: "threads",
        found: found.to_string(),
        expected: format!("1 to {cores}, the number of cores that this process may use"),
    })
}

/// Refuses several devices for a drafter on the target's features: its caches cannot move to
/// another device.
pub(super) fn check_device(found: SpeculatorKind, placement: &Placement) -> Result<(), PlanError> {
    let moves = placement.drafter(0).is_some_and(DeviceGroups::has_several);
    match moves && found.reads_features() {
        true => Err(PlanError::conflict(
            format!("{found} needs one device, but the placement gives it several"),
            "give it one of its own, as in `placement = drafter=cpu:0,target=cpu:1/cpu:2`",
        )),
        false => Ok(()),
    }
}

//! The placement of targets and drafters on cores.

use super::{Method, Options, PlanError};
use forerun_formats::SpeculatorKind;
use forerun_runtime::{DeviceGroups, Placement, Topology};

/// The largest number of target replicas that an automatic placement gives DSI.
const AUTO_REPLICAS: usize = 4;

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
        Some(_) if options.threads.is_some() => return Err(PlanError::ThreadsAndPlacement),
        Some(placement) => {
            placement.check_cores(&topology.processors())?;
            placement.clone()
        }
        None => {
            let cores = used_cores(options.threads, topology)?;
            Placement::automatic(&cores, separate, replicas).with_drafters(models)
        }
    };
    placement.check_roles(models, method.has_replicas())?;
    match options.gpu_layers {
        None => Ok(placement),
        Some(0) => Err(PlanError::Range {
            option: "gpu_layers",
            found: "0".into(),
            expected: "at least 1 (for a target on cores alone, leave it out)",
        }),
        Some(layers) => {
            let text = placement.to_string();
            let shared = placement.has_drafter_on_gpu_of_target();
            match placement.with_gpu_layers(layers) {
                None => Err(PlanError::Unsplit { placement: text }),
                Some(split) if split.has_drafter_on_gpu_of_target() && !shared => {
                    Err(PlanError::SharesGpuOfDrafter { placement: split.to_string() })
                }
                Some(split) => Ok(split),
            }
        }
    }
}

/// Returns the cores that an automatic placement uses: the default ones, or as many as there are threads.
fn used_cores(threads: Option<usize>, topology: &Topology) -> Result<Vec<usize>, PlanError> {
    let Some(found) = threads else { return Ok(topology.default_cores()) };
    let cores = topology.processors().len();
    topology.cores_for(found).ok_or(PlanError::Threads { found, cores })
}

/// Refuses several devices for a drafter on the target's features: its caches cannot move to another
/// device.
pub(super) fn check_device(found: SpeculatorKind, placement: &Placement) -> Result<(), PlanError> {
    let moves = placement.drafter(0).is_some_and(DeviceGroups::has_several);
    match moves && found.reads_features() {
        true => Err(PlanError::NeedsSingleDevice(found)),
        false => Ok(()),
    }
}

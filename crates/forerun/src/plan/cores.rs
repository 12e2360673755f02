//! The placement of targets and drafters on cores.

use super::{Method, Options, PlanError};
use forerun_formats::SpeculatorKind;
use forerun_runtime::{DeviceGroups, Placement};

/// The largest number of target replicas that an automatic placement gives DSI.
const AUTO_REPLICAS: usize = 4;

/// Returns the requested placement on any of `cores`, or an automatic one on the cores `granted`,
/// for `models` drafters that are models.
pub(super) fn placement(
    options: &Options,
    method: Method,
    models: usize,
    [cores, granted]: [&[usize]; 2],
) -> Result<Placement, PlanError> {
    // Target and drafter share the same cores, unless they run at the same time.
    let separate = models > 0 && method.is_parallel();
    let replicas = if method.has_replicas() { AUTO_REPLICAS } else { 1 };
    let placement = match &options.placement {
        Some(_) if options.threads.is_some() => return Err(PlanError::ThreadsAndPlacement),
        Some(placement) => {
            placement.check_cores(cores)?;
            placement.clone()
        }
        None => {
            let used = used_cores(options.threads, cores, granted)?;
            Placement::automatic(&used, separate, replicas).with_drafters(models)
        }
    };
    placement.check_roles(models, method.has_replicas())?;
    Ok(placement)
}

/// Returns the cores that an automatic placement uses: those within the quota, or as many as there are
/// threads.
fn used_cores(
    threads: Option<usize>,
    cores: &[usize],
    granted: &[usize],
) -> Result<Vec<usize>, PlanError> {
    let Some(threads) = threads else { return Ok(granted.to_vec()) };
    if threads == 0 || threads > cores.len() {
        return Err(PlanError::Threads { found: threads, cores: cores.len() });
    }
    // A quota does not forbid cores, so more threads than it allows may be requested.
    let others = cores.iter().filter(|core| !granted.contains(core));
    Ok(granted.iter().chain(others).take(threads).copied().collect())
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

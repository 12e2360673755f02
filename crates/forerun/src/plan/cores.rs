//! Decides which cores do what.

use super::{Method, Options, PlanError};
use forerun_model::SpeculatorKind;
use forerun_runtime::{Groups, Placement};

/// Target replicas of DSI where nobody says how many.
const AUTO_REPLICAS: usize = 4;

/// A placement on any of `cores`, by default on those `granted`, for so many drafters that are models.
pub(super) fn placement(
    options: &Options,
    method: Method,
    models: usize,
    [cores, granted]: [&[usize]; 2],
) -> Result<Placement, PlanError> {
    // Target and drafter have the same devices in turn, unless both are to run at the same time.
    let separate = models > 0 && method.is_parallel();
    let replicas = if method == Method::Dsi { AUTO_REPLICAS } else { 1 };
    let placement = match &options.placement {
        Some(text) => Placement::parse(text, cores)?,
        None => Placement::automatic(granted, separate, replicas).with_drafters(models),
    };
    placement.check_roles(models, method == Method::Dsi)?;
    Ok(placement)
}

/// What reads features has no caches that another device could go on with.
pub(super) fn check_device(found: SpeculatorKind, placement: &Placement) -> Result<(), PlanError> {
    let moves = placement.drafter(0).is_some_and(Groups::are_several);
    match moves && found.reads_features() {
        true => Err(PlanError::OneDevice(found)),
        false => Ok(()),
    }
}

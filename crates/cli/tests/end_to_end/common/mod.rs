//! Helpers: runs of the binary, and checkpoints for them.

mod checkpoints;
#[cfg(feature = "hub")]
mod hub_server;
mod run;

pub(crate) use checkpoints::{Models, Weights, edit_json};
#[cfg(feature = "hub")]
pub(crate) use hub_server::{Hub, Quirk, small_etag};
#[cfg(all(feature = "server", target_os = "linux"))]
pub(crate) use run::Running;
pub(crate) use run::{Finished, Reader, Run};

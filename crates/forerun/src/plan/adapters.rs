//! The adapters of the target.

use super::PlanError;
use forerun_formats::{Adapter, Checkpoint, LoadError};
use forerun_runtime::{DeviceGroup, Placement};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A LoRA adapter of the target, and its name in requests
/// ([`Request::adapter`](crate::Request::adapter)).
///
/// Parsed from `NAME=PATH`, or from a path alone, whose last part without `.gguf` is the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAdapter {
    /// The name.
    pub name: String,
    /// A folder of PEFT, or a GGUF file of llama.cpp.
    pub path: PathBuf,
}

impl NamedAdapter {
    /// Reads the adapter for a model.
    pub(crate) fn open(&self, target: &Checkpoint) -> Result<Adapter, LoadError> {
        Adapter::open(&self.path, target.config(), target.architecture())
    }
}

impl FromStr for NamedAdapter {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        if let Some((name, path)) = text.split_once('=').filter(|_| !Path::new(text).exists()) {
            return Ok(Self { name: name.into(), path: path.into() });
        }
        let name = Path::new(text).file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| text.to_owned());
        let name = name.strip_suffix(".gguf").unwrap_or(&name).to_owned();
        Ok(Self { name, path: text.into() })
    }
}

/// Checks the names of adapters, and that every target replica is on one group of cores.
pub(super) fn check(adapters: &[NamedAdapter], placement: &Placement) -> Result<(), PlanError> {
    for (index, NamedAdapter { name, path }) in adapters.iter().enumerate() {
        if name.is_empty() || adapters[..index].iter().any(|other| other.name == *name) {
            let path = path.display();
            return Err(PlanError::conflict(
                format!("the adapter {path} has the name {name:?}, which is empty or another's"),
                format!("give it a name of its own, as in `adapters = NAME={path}`"),
            ));
        }
    }
    let on_cores = |replica| {
        let groups = placement.target(replica);
        groups.is_some_and(|groups| matches!(groups.as_slice(), [DeviceGroup::Cores(_)]))
    };
    if adapters.is_empty() || (0..placement.replicas()).all(on_cores) {
        return Ok(());
    }
    Err(PlanError::conflict(
        format!("adapters run on one group of cores, but the placement is {placement}"),
        "set a `placement` such as target=cpu:0-3, leave `gpu_layers` out, or merge the adapter \
         into the model",
    ))
}

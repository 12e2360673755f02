//! States of a run that it can go on from: folders that appear whole or not at all.
//!
//! Each is the directory of what is trained, its weights in f32, with the optimizer's moments and the
//! run's position beside them. The batches follow from the step, so there is nothing else to keep.

use crate::export::{ExportError, Weights};
use crate::files::{sync_folder, write_atomically};
use crate::optimizer::AdamW;
use forerun_model::checkpoint::Dtype as WeightType;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Checkpoints that are kept, the newest ones.
const KEPT: usize = 2;
const PREFIX: &str = "step-";
const STATE: &str = "training_state.json";
const MOMENTS: &str = "optimizer.safetensors";

/// Where a run stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State<O> {
    /// What the run was started with.
    pub(crate) options: O,
    /// What else was said of that which is trained.
    #[serde(default)]
    pub(crate) learner: Value,
    /// Steps that are done.
    pub(crate) step: u64,
    /// Tokens that were learnt from.
    pub(crate) tokens: u64,
    /// Seconds of training.
    pub(crate) elapsed_s: f64,
}

/// Why a state was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file or folder that cannot be used.
    #[error("cannot use {path}: {cause}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's or a parser's reason.
        cause: io::Error,
    },
    /// See [`ExportError`].
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Moments of another model.
    #[error(
        "{path} does not belong to this model: {reason}; delete the folder to go on from an older \
             state"
    )]
    Moments {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |cause| CheckpointError::File { path, cause }
}

/// Writes a state into `folder`, then removes older ones. `write` writes the weights into a folder that
/// it makes.
pub(crate) fn save<O: Serialize>(
    folder: &Path,
    write: impl FnOnce(&Path) -> Result<(), ExportError>,
    optimizer: &AdamW,
    state: &State<O>,
) -> Result<PathBuf, CheckpointError> {
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let name = format!("{PREFIX}{:08}", state.step);
    let (partial, whole) = (folder.join(format!(".partial-{name}")), folder.join(name));
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(failed(&partial))?;
    }
    write(&partial)?;
    let moments = partial.join(MOMENTS);
    write_atomically(&moments, &moments_file(optimizer).map_err(failed(&moments))?)
        .map_err(failed(&moments))?;
    let file = partial.join(STATE);
    let text = serde_json::to_vec_pretty(state).map_err(|error| failed(&file)(error.into()))?;
    write_atomically(&file, &text).map_err(failed(&file))?;
    if whole.exists() {
        fs::remove_dir_all(&whole).map_err(failed(&whole))?;
    }
    fs::rename(&partial, &whole).map_err(failed(&whole))?;
    sync_folder(folder).map_err(failed(folder))?;
    for (_, old) in all(folder)?.iter().rev().skip(KEPT) {
        fs::remove_dir_all(old).map_err(failed(old))?;
    }
    Ok(whole)
}

/// The newest state in `folder`.
pub(crate) fn newest(folder: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    Ok(all(folder)?.pop().map(|(_, path)| path))
}

/// States by their steps.
fn all(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed(folder))?,
    };
    let mut states = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(Ok(step)) = name.strip_prefix(PREFIX).map(str::parse) {
            states.push((step, path));
        }
    }
    states.sort();
    Ok(states)
}

/// The position of a state.
pub(crate) fn state<O: for<'a> Deserialize<'a>>(path: &Path) -> Result<State<O>, CheckpointError> {
    let file = path.join(STATE);
    let text = fs::read(&file).map_err(failed(&file))?;
    serde_json::from_slice(&text).map_err(|error| failed(&file)(error.into()))
}

/// Gives an optimizer the moments of a state.
pub(crate) fn restore(
    path: &Path,
    steps: u64,
    optimizer: &mut AdamW,
) -> Result<(), CheckpointError> {
    let file = path.join(MOMENTS);
    let wrong = |reason: String| CheckpointError::Moments { path: file.clone(), reason };
    let bytes = fs::read(&file).map_err(failed(&file))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| wrong(error.to_string()))?;
    let names: Vec<String> =
        optimizer.parameters().iter().map(|parameter| parameter.name.clone()).collect();
    for (name, moments) in names.iter().zip(&mut optimizer.moments) {
        for (which, values) in [("first", &mut moments.first), ("second", &mut moments.second)] {
            let name = format!("{name}.{which}");
            let tensor = tensors.tensor(&name).map_err(|error| wrong(error.to_string()))?;
            if tensor.dtype() != Dtype::F32 || tensor.data().len() != 4 * values.len() {
                return Err(wrong(format!("{name} has another type or size")));
            }
            for (value, bytes) in values.iter_mut().zip(tensor.data().as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
    }
    optimizer.steps = steps;
    Ok(())
}

fn moments_file(optimizer: &AdamW) -> io::Result<Vec<u8>> {
    let tensor = |values: &[f32]| Weights::new(values, vec![values.len()], WeightType::F32);
    let mut tensors = Vec::new();
    for (parameter, moments) in optimizer.parameters().iter().zip(&optimizer.moments) {
        tensors.push((format!("{}.first", parameter.name), tensor(&moments.first)));
        tensors.push((format!("{}.second", parameter.name), tensor(&moments.second)));
    }
    let views = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
    safetensors::serialize(views, None).map_err(io::Error::other)
}

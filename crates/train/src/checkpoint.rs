//! Checkpoints of a training run, from which it can be resumed.
//!
//! A checkpoint is a folder, written atomically: the model directory with the weights in f32, the
//! optimizer's moments, and the state of the run. The batches are derived from the step, so nothing
//! else has to be stored.

use crate::export::ExportError;
use crate::optimizer::Optimizer;
use forerun_formats::checkpoint::SerializedTensor;
use forerun_formats::checkpoint::{Dtype as WeightType, write_safetensors};
use forerun_output::OutputFolder;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Number of checkpoints to keep: the newest ones.
const KEPT: usize = 2;
const PREFIX: &str = "step-";
const STATE: &str = "training_state.json";
const MOMENTS: &str = "optimizer.safetensors";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunState<O> {
    pub(crate) options: O,
    /// The description of the learner ([`Learner::description`](crate::Learner::description)).
    #[serde(default)]
    pub(crate) learner: Value,
    /// Number of completed steps.
    pub(crate) step: u64,
    /// Number of tokens trained on.
    pub(crate) tokens: u64,
    /// Seconds of training.
    pub(crate) elapsed_s: f64,
}

/// An error of writing or reading a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file or folder cannot be read or written.
    #[error("cannot use {path}: {cause}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system or of the parser.
        cause: io::Error,
    },
    /// See [`ExportError`].
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The optimizer's moments do not fit the model.
    #[error(
        "{path} does not belong to this model: {reason}. Delete its folder to resume from an older \
         checkpoint"
    )]
    Moments {
        /// The file.
        path: PathBuf,
        /// What does not match.
        reason: String,
    },
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |cause| CheckpointError::File { path, cause }
}

/// Writes a checkpoint into `folder`, then removes old ones. `write` writes the model into a
/// folder, which it creates.
pub(crate) fn save<O: Serialize>(
    folder: &Path,
    write: impl FnOnce(&Path) -> Result<(), ExportError>,
    optimizer: &Optimizer,
    state: &RunState<O>,
) -> Result<PathBuf, CheckpointError> {
    fs::create_dir_all(folder).map_err(file_error(folder))?;
    let name = format!("{PREFIX}{:08}", state.step);
    let complete = folder.join(name);
    let partial = OutputFolder::create(&complete).map_err(file_error(&complete))?;
    write(partial.path())?;
    let moments = partial.path().join(MOMENTS);
    write_safetensors(&moments, moment_tensors(optimizer)).map_err(file_error(&moments))?;
    let file = partial.path().join(STATE);
    let text = serde_json::to_vec_pretty(state).map_err(|error| file_error(&file)(error.into()))?;
    forerun_output::write(&file, &text).map_err(file_error(&file))?;
    partial.finish().map_err(file_error(&complete))?;
    for (_, old) in list(folder)?.iter().rev().skip(KEPT) {
        fs::remove_dir_all(old).map_err(file_error(old))?;
    }
    Ok(complete)
}

pub(crate) fn newest_first(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    Ok(list(folder)?.into_iter().rev().map(|(_, path)| path).collect())
}

/// Lists the checkpoints in `folder`, ordered by step.
fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(file_error(folder))?,
    };
    let mut checkpoints = Vec::new();
    for entry in entries {
        let path = entry.map_err(file_error(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(Ok(step)) = name.strip_prefix(PREFIX).map(str::parse) {
            checkpoints.push((step, path));
        }
    }
    checkpoints.sort();
    Ok(checkpoints)
}

/// Reads the state of the run from a checkpoint.
pub(crate) fn read_state<O: for<'a> Deserialize<'a>>(
    path: &Path,
) -> Result<RunState<O>, CheckpointError> {
    let file = path.join(STATE);
    let text = fs::read(&file).map_err(file_error(&file))?;
    serde_json::from_slice(&text).map_err(|error| file_error(&file)(error.into()))
}

/// Restores the optimizer's moments from a checkpoint.
pub(crate) fn restore_optimizer(
    path: &Path,
    steps: u64,
    optimizer: &mut Optimizer,
) -> Result<(), CheckpointError> {
    let file = path.join(MOMENTS);
    let mismatch = |reason: String| CheckpointError::Moments { path: file.clone(), reason };
    let bytes = fs::read(&file).map_err(file_error(&file))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| mismatch(error.to_string()))?;
    let names: Vec<String> =
        optimizer.parameters().iter().map(|parameter| parameter.name.clone()).collect();
    for (name, moments) in names.iter().zip(&mut optimizer.moments) {
        for (which, values) in [("first", &mut moments.first), ("second", &mut moments.second)] {
            let name = format!("{name}.{which}");
            let tensor = tensors.tensor(&name).map_err(|error| mismatch(error.to_string()))?;
            if tensor.dtype() != Dtype::F32 || tensor.data().len() != 4 * values.len() {
                return Err(mismatch(format!("{name} has another type or size")));
            }
            for (value, bytes) in values.iter_mut().zip(tensor.data().as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
    }
    optimizer.steps = steps;
    Ok(())
}

fn moment_tensors(optimizer: &Optimizer) -> Vec<(String, SerializedTensor)> {
    let tensor =
        |values: &[f32]| SerializedTensor::new(values, vec![values.len()], WeightType::F32);
    let mut tensors = Vec::new();
    for (parameter, moments) in optimizer.parameters().iter().zip(&optimizer.moments) {
        tensors.push((format!("{}.first", parameter.name), tensor(&moments.first)));
        tensors.push((format!("{}.second", parameter.name), tensor(&moments.second)));
    }
    tensors
}

//! A target's features in files, so that several drafters learn from one pass over a text.

use crate::model::ModelError;
use candle_core::{Result, bail};
use forerun_formats::checkpoint::{Checkpoint, hexadecimal};
use forerun_output::OutputFile;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The features of sequences that a target has read, one file per sequence: `[tokens, width]` in
/// f32.
///
/// Features depend on the target, on the layers that are read and on the sequence alone, and files
/// are named after these. A run with the cache has the bits of one without.
pub(crate) struct FeatureCache {
    /// The folder that targets share.
    shared: PathBuf,
    /// The name of the target.
    target: String,
    /// The folder of the target and the layers.
    folder: PathBuf,
}

impl FeatureCache {
    /// Opens the cache of a target in a folder that targets can share. `layers` are the numbers of
    /// layers after which block drafters read hidden states; none for features.
    ///
    /// # Errors
    /// If a weight of the target cannot be read, or the folder cannot be created.
    pub(crate) fn open(
        folder: &Path,
        target: &Checkpoint,
        layers: &[usize],
    ) -> std::result::Result<Self, ModelError> {
        Self::create(folder.to_owned(), target_sha256(target)?[..16].to_owned(), layers)
    }

    /// Opens the cache of the same target for other layers.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub(crate) fn of_layers(&self, layers: &[usize]) -> std::result::Result<Self, ModelError> {
        Self::create(self.shared.clone(), self.target.clone(), layers)
    }

    fn create(
        shared: PathBuf,
        target: String,
        layers: &[usize],
    ) -> std::result::Result<Self, ModelError> {
        let mut name = target.clone();
        if !layers.is_empty() {
            let numbers: Vec<String> = layers.iter().map(usize::to_string).collect();
            name = format!("{name}-layers-{}", numbers.join("-"));
        }
        let folder = shared.join(name);
        fs::create_dir_all(&folder)
            .map_err(|cause| ModelError::Folder { path: folder.clone(), cause })?;
        Ok(Self { shared, target, folder })
    }

    /// Returns the features of a sequence, `[tokens, width]`; `None` if they are not there.
    ///
    /// # Errors
    /// If the file cannot be read, or has another size.
    pub(crate) fn read(&self, sequence: &[u32], width: usize) -> Result<Option<Vec<f32>>> {
        let path = self.path(sequence);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => bail!("cannot read the features in {}: {error}", path.display()),
        };
        if bytes.len() != sequence.len() * width * size_of::<f32>() {
            bail!(
                "{} has {} bytes, not the features of {} tokens: delete it",
                path.display(),
                bytes.len(),
                sequence.len()
            );
        }
        Ok(Some(bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()))
    }

    /// Writes the features of a sequence.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(&self, sequence: &[u32], features: &[f32]) -> Result<()> {
        let path = self.path(sequence);
        let bytes: Vec<u8> = features.iter().flat_map(|feature| feature.to_le_bytes()).collect();
        let write = || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            let mut file = OutputFile::create(&path)?;
            file.write_all(&bytes)?;
            file.finish()
        };
        match write() {
            Ok(()) => Ok(()),
            Err(error) => bail!("cannot write the features to {}: {error}", path.display()),
        }
    }

    fn path(&self, sequence: &[u32]) -> PathBuf {
        let mut hash = Sha256::new();
        sequence.iter().for_each(|token| hash.update(token.to_le_bytes()));
        let name = hexadecimal(&hash.finalize());
        // Many files in one folder would make each new one slow.
        self.folder.join(&name[..2]).join(format!("{}.f32", &name[2..34]))
    }
}

/// Returns the SHA-256 of the configuration and of all weights, in hexadecimal.
fn target_sha256(target: &Checkpoint) -> std::result::Result<String, ModelError> {
    let mut hash = Sha256::new();
    // Earlier versions computed features with the trainer's own pass.
    hash.update("features of the engine");
    hash.update(format!("{:?}", target.config()));
    for tensor in target.architecture().tensors() {
        for value in target.tensor(tensor)? {
            hash.update(value.to_le_bytes());
        }
    }
    Ok(hexadecimal(&hash.finalize()))
}

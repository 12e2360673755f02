//! A target's features in files, so that several drafters learn from one pass over a text.

use crate::model::Llama;
use candle_core::{Result, bail};
use forerun_formats::checkpoint::hexadecimal;
use forerun_output::OutputFile;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The features of sequences that a target has read, one file per sequence: `[context, hidden]` in f32.
///
/// Features depend on the target and on the sequence alone, and files are named after both. A run with the
/// cache has the bits of one without, if the cached batches were those of this run: another batch size may round
/// differently.
pub(crate) struct FeatureCache {
    folder: PathBuf,
}

impl FeatureCache {
    /// Opens the cache of a target in a folder that targets can share.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub(crate) fn open(folder: &Path, target: &Llama) -> io::Result<Self> {
        let folder = folder.join(&target_sha256(target)[..16]);
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Returns the features of all sequences, `[sequences · context, hidden]`; `None` if one of them is not there.
    ///
    /// # Errors
    /// If a file cannot be read, or has another size.
    pub(crate) fn read(
        &self,
        tokens: &[u32],
        context: usize,
        hidden: usize,
    ) -> Result<Option<Vec<f32>>> {
        let mut features = Vec::with_capacity(tokens.len() * hidden);
        for sequence in tokens.chunks_exact(context) {
            let path = self.path(sequence);
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => bail!("cannot read the features in {}: {error}", path.display()),
            };
            if bytes.len() != context * hidden * size_of::<f32>() {
                bail!(
                    "{} has {} bytes, not the features of {context} tokens: delete it",
                    path.display(),
                    bytes.len()
                );
            }
            features.extend(bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes));
        }
        Ok(Some(features))
    }

    /// Writes the features of all sequences.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(crate) fn write(&self, tokens: &[u32], context: usize, features: &[f32]) -> Result<()> {
        let sequences = tokens.chunks_exact(context);
        let size = features.len() / (tokens.len() / context).max(1);
        for (sequence, features) in sequences.zip(features.chunks_exact(size)) {
            let path = self.path(sequence);
            let bytes: Vec<u8> =
                features.iter().flat_map(|feature| feature.to_le_bytes()).collect();
            let write = || {
                path.parent().map_or(Ok(()), fs::create_dir_all)?;
                let mut file = OutputFile::create(&path)?;
                file.write_all(&bytes)?;
                file.finish()
            };
            if let Err(error) = write() {
                bail!("cannot write the features to {}: {error}", path.display());
            }
        }
        Ok(())
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
fn target_sha256(target: &Llama) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{:?}", target.config()));
    for parameter in target.parameters() {
        let values = parameter.values.flatten_all().and_then(|values| values.to_vec1::<f32>());
        let values = values.expect("parameters are f32");
        values.iter().for_each(|value| hash.update(value.to_le_bytes()));
    }
    hexadecimal(&hash.finalize())
}

//! Fingerprints of models' files, by which machines compare them.

use super::RankError;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The files of a model's directory that decide what it computes.
const MODEL_FILES: [&str; 6] = ["safetensors", "gguf", "json", "bin", "model", "txt"];

/// Files up to this size are read as a whole.
const WHOLE_FILE: u64 = 64 << 20;

/// Of larger files, one block is read in each stretch of this size. Another checkpoint, also of the
/// same model, differs nearly everywhere.
const STRETCH: u64 = 1 << 18;
const BLOCK: u64 = 1 << 12;

/// What is known of a model's files without reading all of them.
pub(crate) struct Fingerprint {
    /// A digest of a part of their bytes, by which two machines can compare them.
    pub(crate) content: String,
    /// When each was changed, by which a process can tell whether a later one reads the same files.
    pub(crate) changed: Vec<Option<SystemTime>>,
}

impl Fingerprint {
    /// Returns the fingerprint of a model's file, or of the files in its directory.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn of(model: &Path) -> Result<Self, RankError> {
        let error = |path: &Path, error: &io::Error| RankError::Read {
            path: path.to_owned(),
            message: error.to_string(),
        };
        let (mut hash, mut changed) = (Sha256::new(), Vec::new());
        for path in model_files(model).map_err(|cause| error(model, &cause))? {
            let modified = add_file(&mut hash, &path).map_err(|cause| error(&path, &cause))?;
            changed.push(modified);
        }
        let content = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { content, changed })
    }
}

/// Returns the files of a directory, or a file with the other parts of its checkpoint, in order.
fn model_files(model: &Path) -> io::Result<Vec<PathBuf>> {
    let name = model.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    let (folder, prefix) = match name.split_once("-00001-of-") {
        _ if model.is_dir() => (model, String::new()),
        Some((prefix, _)) => (model.parent().unwrap_or(Path::new(".")), prefix.to_owned()),
        None => return Ok(vec![model.to_owned()]),
    };
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        if path.is_file() && name.starts_with(&prefix) && MODEL_FILES.contains(&extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Adds a file to a digest. Returns when it was changed, if the system knows that.
fn add_file(hash: &mut Sha256, path: &Path) -> io::Result<Option<SystemTime>> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let (length, changed) = (metadata.len(), metadata.modified().ok());
    hash.update(path.file_name().map(OsStr::as_encoded_bytes).unwrap_or_default());
    hash.update(length.to_le_bytes());
    if length <= WHOLE_FILE {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        hash.update(bytes);
        return Ok(changed);
    }
    let mut block = Vec::new();
    for start in (0..length).step_by(STRETCH as usize) {
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        (&mut file).take(BLOCK).read_to_end(&mut block)?;
        hash.update(&block);
    }
    Ok(changed)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    fn content(model: &Path) -> Result<String, RankError> {
        Fingerprint::of(model).map(|fingerprint| fingerprint.content)
    }

    #[test]
    fn fingerprints_follow_the_files_that_decide() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).unwrap();
        write("config.json", b"{}");
        write("model.safetensors", b"weights");
        let first = content(folder.path()).unwrap();
        write("README.md", b"text");
        assert_eq!(content(folder.path()).unwrap(), first);
        write("model.safetensors", b"weighty");
        assert_ne!(content(folder.path()).unwrap(), first);
        assert!(content(&folder.path().join("nothing")).is_err());
        // A large file without blocks on the disk, and a change in its middle.
        let large = folder.path().join("large.gguf");
        let mut file = File::create(&large).unwrap();
        file.set_len(WHOLE_FILE + 1).unwrap();
        let zeros = content(&large).unwrap();
        let mut bytes = vec![0; STRETCH as usize];
        bytes.fill(1);
        file.seek(SeekFrom::Start(WHOLE_FILE / 2)).unwrap();
        file.write_all(&bytes).unwrap();
        assert_ne!(content(&large).unwrap(), zeros);
    }
}

//! A file of weights as bytes, mapped into memory or held in it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::load_error::LoadError;

/// A file of weights: its path, for messages, and its bytes.
pub struct WeightFile {
    path: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl WeightFile {
    /// Maps the file at `path` into memory; nothing is read until it is used.
    ///
    /// # Errors
    ///
    /// When there is no such file, or it cannot be read.
    pub fn map(path: PathBuf) -> Result<Self, LoadError> {
        let mapping = open(&path).and_then(|file| {
            // SAFETY: the mapping is private and never written through. What must hold is that
            // nobody shortens or rewrites the file while it is mapped. Checkpoints are written
            // once, and tools that replace them rename a new file into place, which leaves this
            // mapping intact.
            unsafe { Mmap::map(&file) }
        });
        match mapping {
            Ok(mapping) => Ok(Self { path, bytes: Bytes::Mapped(mapping) }),
            Err(cause) => Err(read_error(&path, cause)),
        }
    }

    /// A file that is already in memory; `path` is only its name in messages.
    pub fn from_bytes(path: PathBuf, bytes: Vec<u8>) -> Self {
        Self { path, bytes: Bytes::Owned(bytes) }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All of the file.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(mapping) => mapping,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// The text of the small file at `path`.
pub(crate) fn read_text(path: &Path) -> Result<String, LoadError> {
    /// The longest index known is 9 MB; a configuration beyond this is some other file.
    const LIMIT: u64 = 64 << 20;
    let read = || {
        let mut text = String::new();
        let length = open(path)?.take(LIMIT + 1).read_to_string(&mut text)?;
        if length as u64 > LIMIT {
            return Err(io::Error::other(format!(
                "expected at most {LIMIT} bytes of JSON, found more"
            )));
        }
        Ok(text)
    };
    read().map_err(|cause| read_error(path, cause))
}

/// Opens regular files only: opening a pipe would wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other(
            "expected a regular file, found a directory or something else",
        ));
    }
    File::open(path)
}

pub(crate) fn read_error(path: &Path, cause: io::Error) -> LoadError {
    let path = path.to_owned();
    match cause.kind() {
        io::ErrorKind::NotFound => {
            LoadError::MissingFile { path, hint: "the checkpoint is incomplete: download it again" }
        }
        _ => LoadError::Read { path, cause },
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_not_read_as_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let message = read_text(directory.path()).unwrap_err().to_string();
        assert!(message.contains("regular file"), "{message}");
    }

    #[test]
    fn an_empty_file_maps_to_no_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("empty");
        fs::write(&path, []).unwrap();
        assert!(WeightFile::map(path).unwrap().bytes().is_empty());
    }
}

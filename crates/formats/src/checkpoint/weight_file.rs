//! The bytes of a weight file, mapped into memory, owned, or part of the program.

use crate::load_error::LoadError;
use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A file of weights: its bytes, and its path for messages.
pub struct WeightFile {
    path: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
    Embedded(&'static [u8]),
}

impl WeightFile {
    /// Maps the file at `path` into memory. Pages are read when they are first used.
    ///
    /// # Errors
    /// When the file does not exist or cannot be read.
    pub fn map(path: PathBuf) -> Result<Self, LoadError> {
        let mapping = open(&path).and_then(|file| {
            // SAFETY: the mapping is never written through. The file must not be
            // truncated or rewritten while it is mapped. Checkpoints are written once, and tools
            // that replace them rename a new file into place, which leaves this mapping intact.
            unsafe { Mmap::map(&file) }
        });
        match mapping {
            Ok(mapping) => Ok(Self { path, bytes: Bytes::Mapped(mapping) }),
            Err(cause) => Err(read_error(&path, cause)),
        }
    }

    /// Creates a file from bytes in memory. Messages refer to it as `path`.
    pub fn from_bytes(path: PathBuf, bytes: Vec<u8>) -> Self {
        Self { path, bytes: Bytes::Owned(bytes) }
    }

    /// Creates a file from bytes that are part of the program. Messages refer to it as `path`.
    pub fn embedded(path: PathBuf, bytes: &'static [u8]) -> Self {
        Self { path, bytes: Bytes::Embedded(bytes) }
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes of the whole file.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(mapping) => mapping,
            Bytes::Owned(bytes) => bytes,
            Bytes::Embedded(bytes) => bytes,
        }
    }

    /// Releases the pages of these bytes, which have been read, so that they no longer count as
    /// this process's memory. They can be read again.
    pub(crate) fn release(&self, bytes: Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Mapped(mapping) = &self.bytes {
            // SAFETY: the mapping is shared and read-only, so that no change can be lost. The next
            // read of a page maps the same bytes of the file again.
            let released = unsafe {
                mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, bytes.start, bytes.len())
            };
            // If the system cannot do it, the pages stay until it needs the memory.
            drop(released);
        }
        #[cfg(not(unix))]
        let _ = bytes;
    }
}

/// Reads the text of a small file.
pub(crate) fn read_text(path: &Path) -> Result<String, LoadError> {
    /// The longest known index has 9 MB, so a larger file is not a configuration or an index.
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

/// Opens a regular file. Other files are rejected, because opening a pipe would wait for a writer.
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
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_not_read_as_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let message = read_text(directory.path()).unwrap_err().to_string();
        assert!(message.contains("regular file"), "{message}");
    }

    #[test]
    fn released_bytes_can_be_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bytes");
        let bytes: Vec<u8> = (0..100_000).map(|index| (index % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        for file in [WeightFile::map(path.clone()), Ok(WeightFile::from_bytes(path, bytes.clone()))]
        {
            let file = file.unwrap();
            for range in [0..100_000, 5000..5001, 99_999..100_000, 7..7] {
                assert!(file.bytes() == bytes);
                file.release(range);
            }
            assert!(file.bytes() == bytes);
        }
    }

    #[test]
    fn an_empty_file_maps_to_no_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("empty");
        fs::write(&path, []).unwrap();
        assert!(WeightFile::map(path).unwrap().bytes().is_empty());
    }
}

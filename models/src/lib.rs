//! The demonstration models, trained by forerun itself, for a first run without any checkpoint. The
//! crate's `README.md` describes their data, their training and their quality.
//!
//! The target and its drafter are part of the binary. This crate only writes to the temporary folder
//! into which it unpacks them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The error of a demonstration pair that could not be unpacked.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot unpack the demonstration models to {path}: {cause}; set the environment variable TMPDIR to \
     a folder with 20 MB of free space, or set `model` to your own model"
)]
pub struct UnpackError {
    /// The file or folder that could not be written.
    pub path: PathBuf,
    /// The operating system's error.
    pub cause: io::Error,
}

/// The files of a checkpoint: names and contents.
type Files = [(&'static str, &'static [u8]); 5];

macro_rules! files {
    ($folder:literal) => {
        [
            ("config.json", include_bytes!(concat!("../", $folder, "/config.json"))),
            (
                "generation_config.json",
                include_bytes!(concat!("../", $folder, "/generation_config.json")),
            ),
            ("model.safetensors", include_bytes!(concat!("../", $folder, "/model.safetensors"))),
            ("tokenizer.json", include_bytes!(concat!("../", $folder, "/tokenizer.json"))),
            (
                "tokenizer_config.json",
                include_bytes!(concat!("../", $folder, "/tokenizer_config.json")),
            ),
        ]
    };
}

const TARGET: Files = files!("target");
const DRAFTER: Files = files!("drafter");

/// The target and its drafter as Hugging Face directories. They are in a temporary folder that is
/// removed when this value is dropped.
#[derive(Debug)]
pub struct DemonstrationPair {
    folder: TempDir,
}

impl DemonstrationPair {
    /// Unpacks both models into a temporary folder.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn unpack() -> Result<Self, UnpackError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |cause| UnpackError { path, cause }
        };
        let folder = TempDir::with_prefix("forerun-demonstration-")
            .map_err(failed(&std::env::temp_dir()))?;
        let pair = Self { folder };
        for (directory, files) in [(pair.target(), &TARGET), (pair.drafter(), &DRAFTER)] {
            fs::create_dir(&directory).map_err(failed(&directory))?;
            for (name, bytes) in files {
                let file = directory.join(name);
                fs::write(&file, bytes).map_err(failed(&file))?;
            }
        }
        Ok(pair)
    }

    /// Returns the directory of the target's checkpoint.
    #[must_use]
    pub fn target(&self) -> PathBuf {
        self.folder.path().join("target")
    }

    /// Returns the directory of the drafter's checkpoint.
    #[must_use]
    pub fn drafter(&self) -> PathBuf {
        self.folder.path().join("drafter")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pair_is_unpacked_and_removed_when_dropped() -> Result<(), UnpackError> {
        let pair = DemonstrationPair::unpack()?;
        for folder in [pair.target(), pair.drafter()] {
            assert!(folder.join("model.safetensors").is_file());
            assert!(folder.join("tokenizer.json").is_file());
        }
        let folder = pair.folder.path().to_owned();
        drop(pair);
        assert!(!folder.exists());
        Ok(())
    }
}

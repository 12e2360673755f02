//! The demonstration family: models that were trained by forerun itself, for a first run without any
//! checkpoint. `README.md` beside this crate says from what, how, and how good they are.
//!
//! The target and its drafter are part of the binary. This crate may touch nothing but the temporary
//! folder into which it unpacks them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A family that could not be unpacked.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot unpack the demonstration models to {path}: {cause}; point TMPDIR to a folder with 20 MB of \
     room, or name models of your own with --model"
)]
pub struct UnpackError {
    /// The file or folder.
    pub path: PathBuf,
    /// The system's answer.
    pub cause: io::Error,
}

/// The files of a checkpoint.
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

/// The target and its drafter as Hugging Face directories, in a temporary folder that goes with this
/// value.
#[derive(Debug)]
pub struct DemonstrationPair {
    folder: TempDir,
}

impl DemonstrationPair {
    /// Unpacks them.
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
        for (to, files) in [(pair.target(), &TARGET), (pair.drafter(), &DRAFTER)] {
            fs::create_dir(&to).map_err(failed(&to))?;
            for (name, bytes) in files {
                let file = to.join(name);
                fs::write(&file, bytes).map_err(failed(&file))?;
            }
        }
        Ok(pair)
    }

    /// The target's checkpoint.
    #[must_use]
    pub fn target(&self) -> PathBuf {
        self.folder.path().join("target")
    }

    /// The drafter's checkpoint.
    #[must_use]
    pub fn drafter(&self) -> PathBuf {
        self.folder.path().join("drafter")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pair_is_unpacked_and_cleared_away() -> Result<(), UnpackError> {
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

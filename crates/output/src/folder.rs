//! Folders that are complete or absent.

use crate::destination::{folder, folder_of};
use crate::file::sync_folder;
use crate::partial::{Partial, remove};
use crate::system::{exchange, open, sync_entries};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A folder that is being written. It gets its name in [`OutputFolder::finish`]; dropped before, it
/// is removed.
pub struct OutputFolder {
    path: PathBuf,
    partial: Partial,
}

impl OutputFolder {
    /// Begins a folder.
    ///
    /// # Errors
    /// If the folder cannot be created, or a file, device or symbolic link has its name.
    pub fn create(path: &Path) -> io::Result<Self> {
        folder(path)?;
        let partial = Partial::create(path, |partial| {
            fs::create_dir(partial)?;
            open(partial)
        })?;
        Ok(Self { path: path.to_owned(), partial })
    }

    /// Returns the folder's temporary path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.partial.path()
    }

    /// Gives the folder its name. A folder that already has the name is replaced.
    ///
    /// # Errors
    /// If the folder cannot be renamed.
    pub fn finish(self) -> io::Result<()> {
        sync_entries(&self.partial.handle)?;
        let exists = folder(&self.path)?;
        self.partial.finish(|partial| {
            if !exists {
                return fs::rename(partial, &self.path);
            }
            if exchange(partial, &self.path).is_ok() {
                remove(partial);
                return Ok(());
            }
            // The system cannot exchange two names.
            fs::remove_dir_all(&self.path)?;
            fs::rename(partial, &self.path)
        })?;
        sync_folder(folder_of(&self.path))
    }
}

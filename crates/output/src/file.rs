//! Files that are complete or absent.

use crate::destination::{folder_of, regular_file};
use crate::partial::Partial;
use crate::space;
use crate::system::{self, open, sync_entries};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that is being written. It gets its name in [`OutputFile::finish`]; dropped before, it is
/// removed.
pub struct OutputFile {
    path: PathBuf,
    partial: Partial,
    out: BufWriter<File>,
    /// The size of the whole file in bytes, if it was reserved.
    reserved_bytes: u64,
    written_bytes: u64,
}

impl OutputFile {
    /// Begins a file. Its permissions will be those of the file that it replaces, else those of the
    /// process's umask.
    ///
    /// # Errors
    /// If the file cannot be written, as in [`check`](crate::check).
    pub fn create(path: &Path) -> io::Result<Self> {
        let replaced = regular_file(path)?;
        let options = || OpenOptions::new().write(true).create_new(true).to_owned();
        let partial = Partial::create(path, |partial| options().open(partial))?;
        if let Some(replaced) = replaced {
            fs::set_permissions(partial.path(), replaced.permissions())?;
        }
        let out = BufWriter::with_capacity(1 << 18, partial.handle.try_clone()?);
        Ok(Self { path: path.to_owned(), partial, out, reserved_bytes: 0, written_bytes: 0 })
    }

    /// Reserves space on the disk for a file of `bytes` bytes, if the file system can.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.reserved_bytes = bytes;
        if bytes == 0 {
            return Ok(());
        }
        system::reserve(&self.partial.handle, bytes).map_err(|error| self.explained(error))
    }

    /// Writes everything to the disk and gives the file its name.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.partial.handle.sync_all().map_err(|error| self.explained(error))?;
        regular_file(&self.path)?;
        self.partial.finish(|partial| fs::rename(partial, &self.path))?;
        sync_folder(folder_of(&self.path))
    }

    fn explained(&self, error: io::Error) -> io::Error {
        let needed = self.reserved_bytes.max(self.written_bytes);
        let on_disk = self.partial.handle.metadata().map_or(0, |metadata| metadata.len());
        space::explain(error, &self.partial.handle, on_disk, needed)
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written_bytes += bytes.len() as u64;
        match self.out.write(bytes) {
            Ok(count) => {
                self.written_bytes -= (bytes.len() - count) as u64;
                Ok(count)
            }
            Err(error) => Err(self.explained(error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush().map_err(|error| self.explained(error))
    }
}

/// Writes a whole file.
///
/// # Errors
/// If the file cannot be written, as in [`check`](crate::check).
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let bytes = bytes.as_ref();
    let mut file = OutputFile::create(path)?;
    file.reserve(bytes.len() as u64)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Syncs the entries of a folder to the disk. Only then is a rename durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    sync_entries(&open(folder)?)
}

//! Locks of files and folders that grow over time.

use crate::destination::{folder_of, name_of};
use crate::partial::{register, remove_registered};
use crate::system::is_linked;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The exclusive use of a file or folder, until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// The lock file. The operating system's lock on it counts; its content is for messages.
    _file: File,
}

impl Lock {
    /// Locks a folder, by the file `.lock` in it.
    ///
    /// # Errors
    /// If another process has locked it, or the lock file cannot be written.
    pub fn folder(folder: &Path) -> io::Result<Self> {
        Self::take(folder.join(".lock"))
    }

    /// Locks a file, by a file `.NAME.lock` beside it.
    ///
    /// # Errors
    /// As [`Lock::folder`].
    pub fn file(file: &Path) -> io::Result<Self> {
        let mut name = OsString::from(".");
        name.push(name_of(file)?);
        name.push(".lock");
        Self::take(folder_of(file).join(name))
    }

    fn take(path: PathBuf) -> io::Result<Self> {
        loop {
            let mut options = OpenOptions::new();
            let mut file =
                options.read(true).write(true).create(true).truncate(false).open(&path)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(busy(&mut file)),
                // A file system without locks has always lived with the risk.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            // The last owner may have removed the file after it was opened here.
            if !is_linked(&file) {
                continue;
            }
            file.set_len(0)?;
            writeln!(file, "{}", std::process::id())?;
            register(path.clone());
            return Ok(Self { path, _file: file });
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        remove_registered(&self.path);
    }
}

fn busy(file: &mut File) -> io::Error {
    let mut pid = String::new();
    drop(file.read_to_string(&mut pid));
    let pid = pid.trim();
    let owner = if pid.is_empty() { "another process".into() } else { format!("process {pid}") };
    let reason = format!(
        "{owner} is working on it: wait until that ends, stop it, or choose another output"
    );
    io::Error::new(io::ErrorKind::ResourceBusy, reason)
}

//! Temporary names: `.NAME.XXXXXXXX.partial`, beside the final name.
//!
//! A process holds the lock of each of its temporary files and folders. One without a lock belongs
//! to a process that was killed.

use crate::destination::{folder_of, name_of};
use crate::system::{is_linked, open};
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const ENDING: &str = ".partial";
/// The number of characters of a final name that are part of a temporary name, which file systems
/// limit to 255 bytes.
const NAME_CHARACTERS: usize = 50;
/// The number of random digits in a temporary name.
const DIGITS: usize = 8;

/// What this process removes when it ends early.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all unfinished outputs and all locks of this process, which must end now: later attempts
/// to begin or finish an output block.
pub fn remove_unfinished() {
    let mut paths = unfinished();
    for path in mem::take(&mut *paths) {
        remove(&path);
    }
    mem::forget(paths);
}

/// A temporary file or folder. It is removed when it is dropped.
pub(crate) struct Partial {
    path: PathBuf,
    /// The open file or folder, with its lock.
    pub(crate) handle: File,
}

impl Partial {
    /// Creates a temporary file or folder for `path`, and removes those that killed processes left.
    /// `create` creates it under a new name and opens it.
    pub(crate) fn create(
        path: &Path,
        create: impl Fn(&Path) -> io::Result<File>,
    ) -> io::Result<Self> {
        let name = name_of(path)?.to_string_lossy();
        let start: String =
            [".", &name].concat().chars().take(NAME_CHARACTERS).chain(['.']).collect();
        remove_abandoned(folder_of(path), &start);
        loop {
            let random = RandomState::new().hash_one(0) as u32;
            let partial = folder_of(path).join(format!("{start}{random:08x}{ENDING}"));
            let mut paths = unfinished();
            let handle = match create(&partial) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created?,
            };
            paths.insert(partial.clone());
            drop(paths);
            let partial = Self { path: partial, handle };
            // Another process may have taken it for an abandoned one before it was locked.
            if lock(&partial.handle) && is_linked(&partial.handle) {
                return Ok(partial);
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `rename`, which moves the temporary file or folder to its final name.
    pub(crate) fn finish(&self, rename: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let mut paths = unfinished();
        rename(&self.path)?;
        paths.remove(&self.path);
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // One with its final name is no longer in the list.
        if unfinished().remove(&self.path) {
            remove(&self.path);
        }
    }
}

/// Adds a path to those that [`remove_unfinished`] removes.
pub(crate) fn register(path: PathBuf) {
    unfinished().insert(path);
}

/// Removes a path that [`register`] added.
pub(crate) fn remove_registered(path: &Path) {
    if unfinished().remove(path) {
        remove(path);
    }
}

/// Removes a file or folder. Failures are ignored, because the process cannot do anything about
/// them.
pub(crate) fn remove(path: &Path) {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => drop(fs::remove_dir_all(path)),
        _ => drop(fs::remove_file(path)),
    }
}

/// Removes the temporary files and folders in `folder` with names that begin with `start` and that
/// no process has locked.
fn remove_abandoned(folder: &Path, start: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let middle = name.to_str().and_then(|name| name.strip_prefix(start)?.strip_suffix(ENDING));
        let is_random = |middle: &str| {
            middle.len() == DIGITS && middle.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if is_link || !middle.is_some_and(is_random) {
            continue;
        }
        if open(&entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            remove(&entry.path());
        }
    }
}

/// Locks a file or folder that this process created. Returns whether this succeeded, or whether the
/// file system has no locks.
fn lock(handle: &File) -> bool {
    match handle.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => true,
    }
}

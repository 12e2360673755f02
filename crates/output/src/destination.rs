//! What may be written to: regular files, folders, and new names.

use crate::system::special_file;
use std::ffi::OsStr;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// Checks that a file can be written: that it does not exist, in an existing folder, or is a
/// regular file that is not read-only. Commands call it before long work, whose result would be
/// lost.
///
/// Symbolic links are refused, because a rename would replace the link, and because links such as
/// `/dev/stdout` lead to files that are open elsewhere.
///
/// # Errors
/// If the file cannot be written.
pub fn check(file: &Path) -> io::Result<()> {
    regular_file(file).map(drop)
}

/// Opens a file for appending, and creates it if it does not exist.
///
/// # Errors
/// If the file cannot be written, as in [`check`].
pub fn append(file: &Path) -> io::Result<File> {
    check(file)?;
    OpenOptions::new().create(true).append(true).open(file)
}

/// Returns the metadata of an existing regular file; `None` for a new name.
pub(crate) fn regular_file(file: &Path) -> io::Result<Option<Metadata>> {
    let Some(metadata) = existing(file)? else { return Ok(None) };
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(refused("it is a folder: give the name of a file"));
    }
    if !kind.is_file() {
        return Err(refused(&format!(
            "it is {}, not a regular file: choose another name",
            a(kind)
        )));
    }
    if metadata.permissions().readonly() {
        return Err(refused("it is read-only: make it writable, or choose another name"));
    }
    Ok(Some(metadata))
}

/// Returns whether a folder exists. Everything else with its name is an error.
pub(crate) fn folder(path: &Path) -> io::Result<bool> {
    match existing(path)? {
        None => Ok(false),
        Some(metadata) if metadata.is_dir() => Ok(true),
        Some(metadata) => {
            let kind = a(metadata.file_type());
            Err(refused(&format!("it is {kind}, not a folder: choose another name")))
        }
    }
}

/// Returns the metadata of what has this name. The folder above must exist.
fn existing(path: &Path) -> io::Result<Option<Metadata>> {
    name_of(path)?;
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => {
            let target = fs::read_link(path)?;
            let target = target.display();
            Err(refused(&format!(
                "it is a symbolic link to {target}: give the path of a file itself"
            )))
        }
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = folder_of(path);
            match fs::metadata(above) {
                Ok(above) if above.is_dir() => Ok(None),
                _ => {
                    let reason =
                        format!("the folder {} does not exist: create it first", above.display());
                    Err(io::Error::new(io::ErrorKind::NotFound, reason))
                }
            }
        }
        Err(error) => Err(error),
    }
}

/// Returns the last component of a path.
pub(crate) fn name_of(path: &Path) -> io::Result<&OsStr> {
    path.file_name().ok_or_else(|| refused("it has no name: give the name of a file or folder"))
}

/// Returns the folder that contains a path.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn a(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_file() => "a file",
        kind => special_file(kind),
    }
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

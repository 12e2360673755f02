//! What operating systems do differently. Only Linux has all of it. Without it, outputs are still
//! complete or absent, with the exceptions that are named here.

use std::fs::{File, FileType};
use std::io;
use std::path::Path;

/// Reserves space on the disk for a file of `bytes` bytes, more than zero. Where the system or the
/// file system cannot do it, a full disk is noticed when the file is written. Fails if the disk or
/// the quota is full.
#[cfg(target_os = "linux")]
pub(crate) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT)) => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn reserve(_file: &File, _bytes: u64) -> io::Result<()> {
    Ok(())
}

/// Exchanges the names of two folders. Fails if the system or the file system cannot do it. Then a
/// folder is replaced in two steps, and is absent in between.
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
pub(crate) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
pub(crate) fn exchange(_one: &Path, _other: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the free bytes of the disk with this file, if the system tells.
#[cfg(unix)]
pub(crate) fn free_bytes(file: &File) -> Option<u64> {
    let space = rustix::fs::fstatvfs(file).ok()?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

#[cfg(not(unix))]
pub(crate) fn free_bytes(_file: &File) -> Option<u64> {
    None
}

/// Returns whether an open file or folder still has a name, or whether the system does not tell. If
/// it has none, another process has taken it for an abandoned one.
#[cfg(unix)]
pub(crate) fn is_linked(handle: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    handle.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
}

#[cfg(not(unix))]
pub(crate) fn is_linked(_handle: &File) -> bool {
    true
}

/// Opens a file or a folder, so that it can be locked.
#[cfg(not(windows))]
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

#[cfg(windows)]
pub(crate) fn open(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    /// Without this flag, Windows opens no folders.
    const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x0200_0000;
    File::options().read(true).custom_flags(FILE_FLAG_BACKUP_SEMANTICS).open(path)
}

/// Syncs the entries of an open folder to the disk. Only then is a rename durable. Windows cannot
/// do it.
#[cfg(not(windows))]
pub(crate) fn sync_entries(folder: &File) -> io::Result<()> {
    folder.sync_all()
}

#[cfg(windows)]
pub(crate) fn sync_entries(_folder: &File) -> io::Result<()> {
    Ok(())
}

/// Names what is neither a file nor a folder.
#[cfg(unix)]
pub(crate) fn special_file(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
pub(crate) fn special_file(_kind: FileType) -> &'static str {
    "a device"
}

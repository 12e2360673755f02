//! Atomic writing of files, and hashes.

#[cfg(unix)]
use std::fs;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use forerun_formats::checkpoint::hexadecimal;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

/// Writes a file atomically: under a temporary name, synced to the disk, then renamed.
///
/// If the process is killed, either the old file or the complete new one exists.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = folder_of(path);
    let mut file = partial_file(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    sync_folder(folder)
}

/// Creates a file with a temporary name, which is removed when it is dropped. If the process is killed,
/// a file `.partial-…` remains.
pub(crate) fn partial_file(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".partial-");
    // By default only the owner can read temporary files, but this one becomes an ordinary file.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Syncs the entries of a folder to the disk. Only then is a rename durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Returns the folder of a file.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Computes the SHA-256 of a reader's contents, in hexadecimal.
pub(crate) fn sha256_of(mut reader: impl Read) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(hexadecimal(&hash.finalize())),
            Ok(length) => hash.update(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

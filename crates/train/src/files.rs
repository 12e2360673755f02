//! Hashes of files, and syncs of folders.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use forerun_formats::checkpoint::hexadecimal;
use sha2::{Digest, Sha256};

/// Syncs the entries of a folder to the disk. Only then is a removal durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
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

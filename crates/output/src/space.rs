//! Errors of full disks.

use crate::system::free_bytes;
use std::fs::File;
use std::io;

/// Adds the needed and the free bytes to an error of a full disk. `written` bytes of the file are
/// on the disk already; `needed` is its whole size.
pub(crate) fn explain(error: io::Error, file: &File, written: u64, needed: u64) -> io::Error {
    let kind = error.kind();
    if !matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        return error;
    }
    let disk = if kind == io::ErrorKind::StorageFull {
        "the disk is full"
    } else {
        "the disk quota is used up"
    };
    let free = free_bytes(file)
        .map_or(String::new(), |free| format!(" and {} are free", bytes(free + written)));
    let needed = bytes(needed);
    let advice = "free some space, or choose another folder";
    io::Error::new(kind, format!("{disk}: the file needs at least {needed}{free}; {advice}"))
}

/// Formats a number of bytes.
fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} bytes"),
        10_000..10_000_000 => format!("{} kB ({count} bytes)", count / 1000),
        _ => format!("{} MB ({count} bytes)", count / 1_000_000),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_says_how_much_is_needed_and_free() {
        let file = tempfile::tempfile().unwrap();
        let error = explain(io::ErrorKind::StorageFull.into(), &file, 5, 12_345_678);
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let text = error.to_string();
        assert!(
            text.starts_with("the disk is full: the file needs at least 12 MB (12345678 bytes)")
        );
        assert!(text.contains("are free; free some space"), "{text}");
        let other = explain(io::ErrorKind::NotFound.into(), &file, 0, 0);
        assert_eq!(other.kind(), io::ErrorKind::NotFound);
    }
}

//! Text that users give in files.

use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::path::Path;

/// The longest text, in bytes. A device such as `/dev/zero` never ends.
const LONGEST: u64 = 256 << 20;

/// Reads a text in UTF-8. `-` is standard input.
///
/// # Errors
/// If the file cannot be read, is no UTF-8, or is longer than 256 MB.
pub(crate) fn read(file: &Path) -> std::io::Result<String> {
    match file.to_str() {
        Some("-") => read_from(std::io::stdin(), LONGEST),
        _ => read_from(File::open(file)?, LONGEST),
    }
}

fn read_from(source: impl Read, longest: u64) -> std::io::Result<String> {
    let mut text = String::new();
    source.take(longest + 1).read_to_string(&mut text)?;
    if text.len() as u64 > longest {
        let message = format!("it is longer than {} MB", longest >> 20);
        return Err(Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_an_end_is_an_error() {
        let error = read_from(std::io::repeat(b'a'), 1 << 20).unwrap_err();
        assert_eq!(error.to_string(), "it is longer than 1 MB");
        assert_eq!(read_from(&b"caf\xc3\xa9"[..], 5).unwrap(), "café");
        assert!(read_from(&b"caf\xe9"[..], 5).unwrap_err().to_string().contains("UTF-8"));
    }
}

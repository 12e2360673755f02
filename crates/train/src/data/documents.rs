//! Reads text files document by document.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::error::{DataError, read_error};

/// A self-contained text, such as a book, an article or a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The text, without surrounding blank lines.
    pub text: String,
    /// The number of the document in its file, counted from 1.
    pub number: usize,
}

/// An iterator over the documents of a file, in order.
///
/// The documents of a text file are separated by form feeds. A `.jsonl` file has one document per
/// line, in the field `text`. Both may be compressed (`.gz`). Documents of white space only are
/// skipped. Only one document at a time is in memory.
pub struct Documents {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    format: Format,
    /// Bytes of the file read so far, before decompression.
    read_bytes: Arc<AtomicU64>,
    /// Offset of the next part in the text.
    offset: u64,
    /// Number of documents returned.
    documents: usize,
    /// Number of parts read: texts between form feeds, or lines.
    parts_read: u64,
}

#[derive(Clone, Copy)]
enum Format {
    Text,
    JsonLines,
}

impl Documents {
    /// Opens a file. The extension of its name determines the format.
    ///
    /// # Errors
    /// If the file cannot be opened, or is not a regular file.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(read_error(path))?;
        if !file.metadata().map_err(read_error(path))?.is_file() {
            let cause = io::Error::other("expected a file, found a folder or a special file");
            return Err(DataError::Read { path: path.to_owned(), cause });
        }
        let read_bytes = Arc::new(AtomicU64::new(0));
        let counted = BufReader::new(CountingReader { file, read_bytes: read_bytes.clone() });
        let gz = path.extension().is_some_and(|extension| extension == "gz");
        let inner = if gz { path.with_extension("") } else { path.to_owned() };
        let json = inner.extension().is_some_and(|extension| extension == "jsonl");
        let reader: Box<dyn BufRead + Send> = if gz {
            Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(counted)))
        } else {
            Box::new(counted)
        };
        let format = if json { Format::JsonLines } else { Format::Text };
        let path = path.to_owned();
        Ok(Self { path, reader, format, read_bytes, offset: 0, documents: 0, parts_read: 0 })
    }

    /// Returns the number of bytes of the file read so far, before decompression.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Reads the text up to the next separator; `None` at the end of the file.
    fn next_part(&mut self) -> Result<Option<String>, DataError> {
        let separator = match self.format {
            Format::Text => b'\x0C',
            Format::JsonLines => b'\n',
        };
        let mut bytes = Vec::new();
        let length =
            self.reader.read_until(separator, &mut bytes).map_err(read_error(&self.path))? as u64;
        if length == 0 {
            return Ok(None);
        }
        if bytes.last() == Some(&separator) {
            bytes.pop();
        }
        let text = String::from_utf8(bytes).map_err(|error| DataError::NotUtf8 {
            path: self.path.clone(),
            offset: self.offset + error.utf8_error().valid_up_to() as u64,
        })?;
        self.offset += length;
        self.parts_read += 1;
        Ok(Some(text))
    }

    fn next_document(&mut self) -> Result<Option<Document>, DataError> {
        while let Some(part) = self.next_part()? {
            let text = match self.format {
                Format::Text => part,
                Format::JsonLines if part.trim().is_empty() => continue,
                Format::JsonLines => self.parse_line(&part)?,
            };
            let text = without_blank_lines_around(&text);
            if !text.is_empty() {
                self.documents += 1;
                return Ok(Some(Document { text: text.to_owned(), number: self.documents }));
            }
        }
        Ok(None)
    }

    /// Returns the text of a line of a `.jsonl` file.
    fn parse_line(&self, line: &str) -> Result<String, DataError> {
        #[derive(serde::Deserialize)]
        struct Line {
            text: String,
        }
        let line: Result<Line, _> = serde_json::from_str(line);
        line.map(|line| line.text).map_err(|error| DataError::Json {
            path: self.path.clone(),
            line: self.parts_read,
            reason: error.to_string(),
        })
    }
}

impl Iterator for Documents {
    type Item = Result<Document, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_document().transpose()
    }
}

/// Removes blank lines and trailing white space. Keeps the spaces before the first word, because
/// the indentation of verse is significant.
fn without_blank_lines_around(text: &str) -> &str {
    let text = text.trim_end();
    let blank = text.len() - text.trim_start().len();
    let start = text[..blank].rfind('\n').map_or(0, |newline| newline + 1);
    &text[start..]
}

/// A file that counts the bytes read from it.
struct CountingReader {
    file: File,
    read_bytes: Arc<AtomicU64>,
}

impl Read for CountingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read(buffer)?;
        self.read_bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn texts(name: &str, bytes: &[u8]) -> Result<Vec<String>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let mut documents = Documents::open(&path)?;
        let texts = documents.by_ref().map(|document| document.map(|d| d.text)).collect();
        assert!(documents.read_bytes() <= bytes.len() as u64);
        texts
    }

    fn compressed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn form_feeds_and_lines_separate_documents() {
        let text = "\n\n  Verse é\n\nmore\n\n\x0C \n\x0C\n\nsecond\x0Cthird";
        let expected = ["  Verse é\n\nmore", "second", "third"];
        assert_eq!(texts("a.txt", text.as_bytes()).unwrap(), expected);
        assert_eq!(texts("a.txt.gz", &compressed(text.as_bytes())).unwrap(), expected);
        // A compressed file may have several members, as `cat a.gz b.gz` creates it.
        let (head, tail) = text.as_bytes().split_at(12);
        let joined = [compressed(head), compressed(tail)].concat();
        assert_eq!(texts("a.gz", &joined).unwrap(), expected);
        let lines = "{\"text\": \"one\\n\\u000Ctwo\", \"id\": 3}\n\n{\"text\": \"three\"}";
        assert_eq!(texts("a.jsonl", lines.as_bytes()).unwrap(), ["one\n\x0Ctwo", "three"]);
        let packed = compressed(lines.as_bytes());
        assert_eq!(texts("a.jsonl.gz", &packed).unwrap(), ["one\n\x0Ctwo", "three"]);
        assert!(texts("a.txt", b"").unwrap().is_empty());
    }

    #[test]
    fn errors_name_the_file_and_the_position() {
        let error = |name, bytes: &[u8]| texts(name, bytes).unwrap_err().to_string();
        let message = error("latin.txt", b"first\x0Csecond \xE9!");
        assert!(message.contains("latin.txt") && message.contains("at byte 13"), "{message}");
        let message = error("a.jsonl", b"{\"text\": \"a\"}\n\n{\"txt\": 1}\n");
        assert!(message.contains("line 3") && message.contains("`text`"), "{message}");
        let whole = compressed(&[b'a'; 4096]);
        let message = error("cut.txt.gz", &whole[..whole.len() - 9]);
        assert!(message.contains("cut.txt.gz"), "{message}");
        let folder = tempfile::tempdir().unwrap();
        let message = Documents::open(folder.path()).err().unwrap().to_string();
        assert!(message.contains("expected a file"), "{message}");
    }
}

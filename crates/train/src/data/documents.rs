//! Text files, read document by document.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::error::{DataError, reading};

/// A text that stands for itself: a book, an article, a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its text, without the blank lines around it.
    pub text: String,
    /// Its number in the file, counted from 1.
    pub number: usize,
}

/// The documents of one file, in order.
///
/// A text file is cut at its form feeds, a `.jsonl` file has one document a line in the field
/// `text`. Either may be compressed (`.gz`). Documents of white space alone are passed over.
/// One document at a time is in memory.
pub struct Documents {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    format: Format,
    /// Bytes of the file that were read, before decompression.
    read_bytes: Arc<AtomicU64>,
    /// Bytes of text before the next part.
    offset: u64,
    /// Documents that were given out.
    documents: usize,
    /// Form feeds or lines that were passed.
    parts: u64,
}

#[derive(Clone, Copy)]
enum Format {
    Text,
    JsonLines,
}

impl Documents {
    /// Opens a file; its name says how it is to be read.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(reading(path))?;
        if !file.metadata().map_err(reading(path))?.is_file() {
            let cause = io::Error::other("expected a file, found a folder or something else");
            return Err(DataError::Read { path: path.to_owned(), cause });
        }
        let read_bytes = Arc::new(AtomicU64::new(0));
        let counted = BufReader::new(Counted { file, read_bytes: read_bytes.clone() });
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
        Ok(Self { path, reader, format, read_bytes, offset: 0, documents: 0, parts: 0 })
    }

    /// Bytes of the file that were read so far, before decompression.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// The text up to the next separator, or nothing at the end of the file.
    fn next_part(&mut self) -> Result<Option<String>, DataError> {
        let separator = match self.format {
            Format::Text => b'\x0C',
            Format::JsonLines => b'\n',
        };
        let mut bytes = Vec::new();
        let length =
            self.reader.read_until(separator, &mut bytes).map_err(reading(&self.path))? as u64;
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
        self.parts += 1;
        Ok(Some(text))
    }

    fn next_document(&mut self) -> Result<Option<Document>, DataError> {
        while let Some(part) = self.next_part()? {
            let text = match self.format {
                Format::Text => part,
                Format::JsonLines if part.trim().is_empty() => continue,
                Format::JsonLines => self.text_of(&part)?,
            };
            let text = without_blank_lines_around(&text);
            if !text.is_empty() {
                self.documents += 1;
                return Ok(Some(Document { text: text.to_owned(), number: self.documents }));
            }
        }
        Ok(None)
    }

    fn text_of(&self, line: &str) -> Result<String, DataError> {
        #[derive(serde::Deserialize)]
        struct Line {
            text: String,
        }
        let line: Result<Line, _> = serde_json::from_str(line);
        line.map(|line| line.text).map_err(|error| DataError::Json {
            path: self.path.clone(),
            line: self.parts,
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

/// The spaces in front of the first word stay, those of a verse say something.
fn without_blank_lines_around(text: &str) -> &str {
    let text = text.trim_end();
    let blank = text.len() - text.trim_start().len();
    let start = text[..blank].rfind('\n').map_or(0, |newline| newline + 1);
    &text[start..]
}

/// A file that tells how much of it was read.
struct Counted {
    file: File,
    read_bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read(buffer)?;
        self.read_bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
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
    fn form_feeds_and_lines_part_documents() {
        let text = "\n\n  Verse é\n\nmore\n\n\x0C \n\x0C\n\nsecond\x0Cthird";
        let expected = ["  Verse é\n\nmore", "second", "third"];
        assert_eq!(texts("a.txt", text.as_bytes()).unwrap(), expected);
        assert_eq!(texts("a.txt.gz", &compressed(text.as_bytes())).unwrap(), expected);
        // Members of a compressed file follow each other, as `cat a.gz b.gz` makes them.
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
    fn errors_name_file_and_place() {
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

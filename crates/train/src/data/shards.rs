//! Opens a prepared data set: tokens in memory-mapped files.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::error::{DataError, read_error};
use super::index::{Index, shard_name};
use crate::files::sha256_of;

/// The split of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Documents for training.
    Training,
    /// Documents for evaluation. They are never trained on.
    HeldOut,
}

/// A prepared data set. [`Dataset::prepare`] creates it, [`Dataset::open`] opens an existing one.
pub struct Dataset {
    folder: PathBuf,
    index: Index,
    training: TokenStream,
    held_out: TokenStream,
}

impl Dataset {
    /// Opens the data set of a folder. Reads all its files once to verify their hashes.
    ///
    /// # Errors
    /// If the folder contains no complete data set, or a file is corrupt.
    pub fn open(folder: &Path) -> Result<Self, DataError> {
        let index = Index::read(folder)?;
        let training = TokenStream::open(folder, &index, false)?;
        let held_out = TokenStream::open(folder, &index, true)?;
        Ok(Self { folder: folder.to_owned(), index, training, held_out })
    }

    /// Returns the folder of the data set.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the tokens of a split: all documents, each followed by a separator.
    #[must_use]
    pub fn tokens(&self, split: Split) -> &TokenStream {
        match split {
            Split::Training => &self.training,
            Split::HeldOut => &self.held_out,
        }
    }

    /// Returns the number of documents of a split.
    #[must_use]
    pub fn documents(&self, split: Split) -> usize {
        self.entries(split).count()
    }

    /// Returns the number of bytes of UTF-8 text of a split.
    #[must_use]
    pub fn text_bytes(&self, split: Split) -> u64 {
        self.entries(split).map(|entry| entry.bytes).sum()
    }

    fn entries(&self, split: Split) -> impl Iterator<Item = &super::index::DocumentEntry> {
        let held_out = split == Split::HeldOut;
        self.index.documents.iter().filter(move |entry| entry.held_out == held_out)
    }

    /// Returns the vocabulary size of the tokenizer.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.index.token_bytes.len()
    }

    /// Returns the token after every document.
    #[must_use]
    pub fn separator(&self) -> u32 {
        self.index.recipe.separator
    }

    /// Returns the number of bytes of UTF-8 text that tokens represent. Separators represent none.
    #[must_use]
    pub fn bytes_of(&self, tokens: &[u32]) -> u64 {
        let bytes = |&token: &u32| self.index.token_bytes.get(token as usize).copied().unwrap_or(0);
        tokens.iter().map(|token| u64::from(bytes(token))).sum()
    }

    /// Checks that the data set was prepared with the given `tokenizer.json`.
    ///
    /// # Errors
    /// If it was prepared with another one, or the file cannot be read.
    pub fn check_tokenizer(&self, tokenizer: &Path) -> Result<(), DataError> {
        let sha256 = File::open(tokenizer).and_then(sha256_of).map_err(read_error(tokenizer))?;
        if sha256 == self.index.recipe.tokenizer_sha256 {
            return Ok(());
        }
        Err(DataError::OtherTokenizer {
            folder: self.folder.clone(),
            tokenizer: tokenizer.to_owned(),
        })
    }

    /// Returns the SHA-256 of the `tokenizer.json` of the data set, in hexadecimal.
    #[must_use]
    pub fn tokenizer_sha256(&self) -> &str {
        &self.index.recipe.tokenizer_sha256
    }
}

/// A sequence of tokens in zero or more files.
pub struct TokenStream {
    shards: Vec<Shard>,
    width_bytes: usize,
    length: u64,
}

struct Shard {
    /// Position of the shard's first token in the stream.
    first: u64,
    tokens: u64,
    /// The mapped file. It is not empty, because some systems cannot map empty files.
    map: Mmap,
}

impl TokenStream {
    fn open(folder: &Path, index: &Index, held_out: bool) -> Result<Self, DataError> {
        let mut stream =
            Self { shards: Vec::new(), width_bytes: index.token_width_bytes as usize, length: 0 };
        for (number, entry) in index.shards(held_out).iter().enumerate() {
            let path = folder.join(shard_name(held_out, number));
            let file = match File::open(&path) {
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                    let reason = "the index lists the file, but it is not there".to_owned();
                    return Err(DataError::Corrupt { path, reason });
                }
                opened => opened.map_err(read_error(&path))?,
            };
            let found = file.metadata().map_err(read_error(&path))?.len();
            let expected = entry.tokens.saturating_mul(index.token_width_bytes);
            if found != expected || found == 0 {
                let reason = format!("expected {expected} bytes, found {found}");
                return Err(DataError::Corrupt { path, reason });
            }
            // SAFETY: the mapping is private and read-only. The file must not be truncated or
            // rewritten while it is mapped. Shards are renamed into place when they are complete,
            // and never written again. A rebuild replaces them with new files, which leaves
            // existing mappings intact.
            let map = unsafe { Mmap::map(&file) }.map_err(read_error(&path))?;
            let sha256 = sha256_of(&map[..]).map_err(read_error(&path))?;
            if sha256 != entry.sha256 {
                let reason = format!("expected SHA-256 {}, found {sha256}", entry.sha256);
                return Err(DataError::Corrupt { path, reason });
            }
            stream.shards.push(Shard { first: stream.length, tokens: entry.tokens, map });
            stream.length += entry.tokens;
        }
        Ok(stream)
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether the stream is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends `count` tokens, starting at position `start`, to `tokens`. Appends fewer at the end
    /// of the stream.
    pub fn read(&self, start: u64, count: usize, tokens: &mut Vec<u32>) {
        let end = start.saturating_add(count as u64).min(self.length);
        let mut position = start;
        let mut shard = self.shards.partition_point(|shard| shard.first + shard.tokens <= start);
        while position < end {
            let Shard { first, tokens: shard_tokens, map } = &self.shards[shard];
            let stop = end.min(first + shard_tokens);
            let offset = |position: u64| (position - first) as usize * self.width_bytes;
            let bytes = &map[offset(position)..offset(stop)];
            if self.width_bytes == 2 {
                let (words, _) = bytes.as_chunks::<2>();
                tokens.extend(words.iter().map(|&word| u32::from(u16::from_le_bytes(word))));
            } else {
                let (words, _) = bytes.as_chunks::<4>();
                tokens.extend(words.iter().map(|&word| u32::from_le_bytes(word)));
            }
            position = stop;
            shard += 1;
        }
    }
}

//! A prepared data set: tokens in memory-mapped files.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::error::{DataError, reading};
use super::index::{Index, shard_name};
use crate::files::sha256_of;

/// What a document is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// To learn from.
    Training,
    /// To test what was learnt; never learnt from.
    HeldOut,
}

impl Split {
    /// Its name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::HeldOut => "held-out",
        }
    }
}

/// A prepared data set. [`Dataset::prepare`] makes it, [`Dataset::open`] finds it again.
pub struct Dataset {
    folder: PathBuf,
    index: Index,
    training: TokenStream,
    held_out: TokenStream,
}

impl Dataset {
    /// Opens what was prepared in a folder. All of it is read once to check that it is whole.
    ///
    /// # Errors
    /// If nothing was prepared there to the end, or a file is not what was written.
    pub fn open(folder: &Path) -> Result<Self, DataError> {
        let index = Index::read(folder)?;
        let training = TokenStream::open(folder, &index, false)?;
        let held_out = TokenStream::open(folder, &index, true)?;
        Ok(Self { folder: folder.to_owned(), index, training, held_out })
    }

    /// Where it lies.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The tokens of one half: document behind document, a separator behind each.
    #[must_use]
    pub fn tokens(&self, split: Split) -> &TokenStream {
        match split {
            Split::Training => &self.training,
            Split::HeldOut => &self.held_out,
        }
    }

    /// Number of documents of one half.
    #[must_use]
    pub fn documents(&self, split: Split) -> usize {
        self.entries(split).count()
    }

    /// Bytes of UTF-8 text of one half.
    #[must_use]
    pub fn text_bytes(&self, split: Split) -> u64 {
        self.entries(split).map(|entry| entry.bytes).sum()
    }

    fn entries(&self, split: Split) -> impl Iterator<Item = &super::index::DocumentEntry> {
        let held_out = split == Split::HeldOut;
        self.index.documents.iter().filter(move |entry| entry.held_out == held_out)
    }

    /// Number of tokens that its tokenizer knows.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.index.token_bytes.len()
    }

    /// The token behind every document.
    #[must_use]
    pub fn separator(&self) -> u32 {
        self.index.recipe.separator
    }

    /// Bytes of UTF-8 text that tokens stand for. Separators stand for none.
    #[must_use]
    pub fn bytes_of(&self, tokens: &[u32]) -> u64 {
        let bytes = |&token: &u32| self.index.token_bytes.get(token as usize).copied().unwrap_or(0);
        tokens.iter().map(|token| u64::from(bytes(token))).sum()
    }

    /// Checks that a `tokenizer.json` is the one that the data set was prepared with.
    ///
    /// # Errors
    /// If it is another, or cannot be read.
    pub fn check_tokenizer(&self, tokenizer: &Path) -> Result<(), DataError> {
        let sha256 = File::open(tokenizer).and_then(sha256_of).map_err(reading(tokenizer))?;
        if sha256 == self.index.recipe.tokenizer_sha256 {
            return Ok(());
        }
        Err(DataError::ForeignTokenizer {
            folder: self.folder.clone(),
            tokenizer: tokenizer.to_owned(),
        })
    }

    /// SHA-256 of the `tokenizer.json` that it was prepared with, in hexadecimal.
    #[must_use]
    pub fn tokenizer_sha256(&self) -> &str {
        &self.index.recipe.tokenizer_sha256
    }
}

/// Tokens, one behind the other, in one or more files.
pub struct TokenStream {
    shards: Vec<Shard>,
    width_bytes: usize,
    length: u64,
}

struct Shard {
    /// Its first token's place in the stream.
    first: u64,
    tokens: u64,
    /// A file without tokens cannot be mapped everywhere, so there is none.
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
                    let reason = "the index names it, but it is not there".to_owned();
                    return Err(DataError::Broken { path, reason });
                }
                opened => opened.map_err(reading(&path))?,
            };
            let found = file.metadata().map_err(reading(&path))?.len();
            let expected = entry.tokens.saturating_mul(index.token_width_bytes);
            if found != expected || found == 0 {
                let reason = format!("expected {expected} bytes, found {found}");
                return Err(DataError::Broken { path, reason });
            }
            // SAFETY: the mapping is private and never written through. What must hold is that
            // nobody shortens or rewrites the file while it is mapped. Shards are renamed into place
            // when they are whole, and never written again; a data set that is prepared anew
            // replaces them by other files, which leaves this mapping intact.
            let map = unsafe { Mmap::map(&file) }.map_err(reading(&path))?;
            let sha256 = sha256_of(&map[..]).map_err(reading(&path))?;
            if sha256 != entry.sha256 {
                let reason = format!("expected SHA-256 {}, found {sha256}", entry.sha256);
                return Err(DataError::Broken { path, reason });
            }
            stream.shards.push(Shard { first: stream.length, tokens: entry.tokens, map });
            stream.length += entry.tokens;
        }
        Ok(stream)
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends `count` tokens from place `start` on to `tokens`; fewer where the stream ends before.
    pub fn read(&self, start: u64, count: usize, tokens: &mut Vec<u32>) {
        let end = start.saturating_add(count as u64).min(self.length);
        let mut place = start;
        let mut shard = self.shards.partition_point(|shard| shard.first + shard.tokens <= start);
        while place < end {
            let Shard { first, tokens: held, map } = &self.shards[shard];
            let stop = end.min(first + held);
            let bytes = |place: u64| (place - first) as usize * self.width_bytes;
            let bytes = &map[bytes(place)..bytes(stop)];
            if self.width_bytes == 2 {
                let (words, _) = bytes.as_chunks::<2>();
                tokens.extend(words.iter().map(|&word| u32::from(u16::from_le_bytes(word))));
            } else {
                let (words, _) = bytes.as_chunks::<4>();
                tokens.extend(words.iter().map(|&word| u32::from_le_bytes(word)));
            }
            place = stop;
            shard += 1;
        }
    }
}

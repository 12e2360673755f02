//! Prepares a data set: encodes documents, splits them, and packs them into shards.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use forerun_formats::checkpoint::hexadecimal;
use forerun_output::{Lock, OutputFile};
use sha2::{Digest, Sha256};

use super::documents::{Document, Documents};
use super::encoder::{BATCH_BYTES, Encoder};
use super::error::{DataError, read_error, write_error};
use super::index::{
    DocumentEntry, INDEX_FILE, Index, Recipe, ShardEntry, Source, is_dataset_file, shard_name,
};
use super::permutation::{hash_words, map_to_range};
use super::progress::{OnProgress, Phase, Progress};
use super::shards::Dataset;
use crate::files::{sha256_of, sync_folder};

/// The token that separates documents in tokenizers trained by this crate. It is also their BOS and
/// EOS.
pub(crate) const SEPARATOR: &str = "<|endoftext|>";

const MILLION: u32 = 1_000_000;

/// The tokens around documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framing {
    /// For training a language model: this token after every document. The loss is measured per
    /// byte, so the tokenizer must be byte-level.
    Separated(String),
    /// For training a drafter: the documents as the target reads them, with its tokenizer of any
    /// kind.
    Target {
        /// The tokens before a prompt: the BOS, or none.
        bos: Vec<u32>,
        /// The token that ends the target's answers.
        eos: u32,
    },
}

/// Options of preparing a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareOptions {
    /// Validation files. All their documents are held out.
    pub validation_files: Vec<PathBuf>,
    /// Share of the training files' documents that is held out in addition: from 0 to 1, rounded to
    /// millionths. If there are so few documents that none or all of them would be held out, it is
    /// this share of their text, from the end.
    pub held_out_share: f64,
    /// The seed that, together with their text, selects these documents.
    pub seed: u64,
    /// The tokens around documents.
    pub framing: Framing,
    /// Whether the text of a special token, such as a marker of a chat template, is that token.
    /// Otherwise it is ordinary text.
    pub special_tokens: bool,
    /// Maximum number of tokens of a shard.
    pub shard_tokens: u64,
    /// Whether to replace a data set in the folder that was made from other inputs or is corrupt.
    pub rebuild: bool,
}

impl Default for PrepareOptions {
    fn default() -> Self {
        Self {
            validation_files: Vec::new(),
            held_out_share: 0.0,
            seed: 0,
            framing: Framing::Separated(SEPARATOR.to_owned()),
            special_tokens: false,
            shard_tokens: 1 << 27,
            rebuild: false,
        }
    }
}

impl Dataset {
    /// Prepares a data set in `folder` from text files (see [`Documents`]) and a `tokenizer.json`.
    ///
    /// If the folder already contains a data set of the same inputs, it is opened unchanged. The
    /// index is written last, so an interrupted preparation does not look like a complete one; the
    /// next preparation starts over. The same inputs give the same bytes.
    ///
    /// # Errors
    /// If a file cannot be read or written, a text is not UTF-8, the tokenizer does not reproduce a
    /// text although the framing requires it, a training document is also a validation document, or
    /// the folder contains another data set.
    pub fn prepare(
        files: &[PathBuf],
        tokenizer: &Path,
        folder: &Path,
        options: &PrepareOptions,
        on_progress: OnProgress<'_>,
    ) -> Result<Self, DataError> {
        let encoder = Encoder::load(tokenizer, &options.framing, options.special_tokens)?;
        let recipe = recipe(files, &encoder, options, on_progress)?;
        fs::create_dir_all(folder).map_err(write_error(folder))?;
        let _lock = Lock::folder(folder).map_err(|cause| match cause.kind() {
            ErrorKind::ResourceBusy => DataError::Locked { folder: folder.to_owned(), cause },
            _ => DataError::Write { path: folder.to_owned(), cause },
        })?;
        match Index::read(folder) {
            Ok(index) => match index.recipe.difference(&recipe) {
                None if encoder.is_exact() && index.inexact => {
                    return Err(DataError::OtherDataset {
                        folder: folder.to_owned(),
                        difference: "tokenizers",
                    });
                }
                None => match Self::open(folder) {
                    Err(DataError::Corrupt { .. }) if options.rebuild => {}
                    opened => return opened,
                },
                Some(_) if options.rebuild => {}
                Some(difference) => {
                    return Err(DataError::OtherDataset { folder: folder.to_owned(), difference });
                }
            },
            Err(DataError::NotPrepared(_)) => {}
            Err(DataError::Corrupt { .. }) if options.rebuild => {}
            Err(error) => return Err(error),
        }
        clear(folder)?;
        let held_out_from = held_out_from(files, &recipe, on_progress)?;
        let mut preparation = Preparation::new(folder, &encoder, recipe, held_out_from);
        // The validation files come first, so that the training files can be checked against them.
        for validation in [true, false] {
            let files = if validation { &options.validation_files[..] } else { files };
            preparation.add_files(files, validation, on_progress)?;
        }
        preparation.finish(files)?;
        Self::open(folder)
    }
}

/// Removes the files of an earlier preparation. The index is removed first, so that the folder is
/// not a data set any more.
fn clear(folder: &Path) -> Result<(), DataError> {
    let index = folder.join(INDEX_FILE);
    if index.exists() {
        fs::remove_file(&index).map_err(write_error(&index))?;
        sync_folder(folder).map_err(write_error(folder))?;
    }
    for entry in fs::read_dir(folder).map_err(read_error(folder))? {
        let path = entry.map_err(read_error(folder))?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(is_dataset_file) {
            fs::remove_file(&path).map_err(write_error(&path))?;
        }
    }
    Ok(())
}

/// Checks the options, hashes the source files, and returns the inputs of the data set.
fn recipe(
    files: &[PathBuf],
    encoder: &Encoder,
    options: &PrepareOptions,
    on_progress: OnProgress<'_>,
) -> Result<Recipe, DataError> {
    if !(0.0..=1.0).contains(&options.held_out_share) {
        return Err(DataError::Option {
            option: "held_out_share",
            found: options.held_out_share.to_string(),
            expected: "a share from 0 to 1".to_owned(),
        });
    }
    if options.shard_tokens == 0 {
        return Err(DataError::Option {
            option: "shard_tokens",
            found: "0".to_owned(),
            expected: "at least one token".to_owned(),
        });
    }
    let all = || {
        let validation = options.validation_files.iter().map(|file| (file, true));
        validation.chain(files.iter().map(|file| (file, false)))
    };
    let total_bytes = all().flat_map(|(file, _)| fs::metadata(file)).map(|file| file.len()).sum();
    let (mut sources, mut done_bytes) = (Vec::new(), 0);
    for (path, validation) in all() {
        let file = File::open(path).map_err(read_error(path))?;
        let bytes = file.metadata().map_err(read_error(path))?.len();
        let sha256 = sha256_of(file).map_err(read_error(path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        sources.push(Source { name, bytes, sha256, validation });
        done_bytes += bytes;
        on_progress(Progress { phase: Phase::Hashing, done_bytes, total_bytes });
    }
    Ok(Recipe {
        tokenizer_sha256: encoder.sha256().to_owned(),
        prefix: encoder.prefix().to_vec(),
        separator: encoder.separator(),
        special_tokens: options.special_tokens,
        held_out_ppm: (options.held_out_share * f64::from(MILLION)).round() as u32,
        seed: options.seed,
        shard_tokens: options.shard_tokens,
        sources,
    })
}

/// Returns the byte of the training files' text at which held-out text begins. `None` if documents
/// are held out by their hashes.
fn held_out_from(
    files: &[PathBuf],
    recipe: &Recipe,
    on_progress: OnProgress<'_>,
) -> Result<Option<u64>, DataError> {
    if [0, MILLION].contains(&recipe.held_out_ppm) {
        return Ok(None);
    }
    let sources = recipe.sources.iter().filter(|source| !source.validation);
    let total_bytes = sources.map(|source| source.bytes).sum();
    let (mut bytes, mut read_bytes, mut held_out, mut kept) = (0, 0, false, false);
    for path in files {
        let mut documents = Documents::open(path)?;
        while let Some(Document { text, .. }) = documents.next().transpose()? {
            match recipe.holds_out(&digest(&text)) {
                true => held_out = true,
                false => kept = true,
            }
            if held_out && kept {
                return Ok(None);
            }
            bytes += text.len() as u64;
            let done_bytes = read_bytes + documents.read_bytes();
            on_progress(Progress { phase: Phase::Counting, done_bytes, total_bytes });
        }
        read_bytes += documents.read_bytes();
    }
    let share = u128::from(bytes) * u128::from(recipe.held_out_ppm);
    Ok(Some(bytes - share.div_ceil(u128::from(MILLION)) as u64))
}

/// Cuts a text at a character boundary, at most `at` bytes from its start.
fn split(text: &str, at: u64) -> (&str, &str) {
    let at = usize::try_from(at).unwrap_or(usize::MAX).min(text.len());
    let at = (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text.split_at(at)
}

/// A data set in preparation.
struct Preparation<'a> {
    folder: &'a Path,
    encoder: &'a Encoder,
    index: Index,
    training: ShardWriter,
    held_out: ShardWriter,
    /// Hashes of the validation files' documents.
    validation: HashSet<[u8; 32]>,
    /// The byte of the training files' text at which held-out text begins.
    held_out_from: Option<u64>,
    /// Bytes of the training files' text so far.
    text_bytes: u64,
    /// Number of files added.
    sources: usize,
    /// Number of bytes of these files.
    done_bytes: u64,
}

impl<'a> Preparation<'a> {
    fn new(
        folder: &'a Path,
        encoder: &'a Encoder,
        recipe: Recipe,
        held_out_from: Option<u64>,
    ) -> Self {
        let writer = |held_out| ShardWriter::new(folder, held_out, recipe.shard_tokens);
        let (training, held_out) = (writer(false), writer(true));
        let index = Index::new(recipe, encoder.token_bytes().to_vec());
        Self {
            folder,
            encoder,
            index,
            training,
            held_out,
            validation: HashSet::new(),
            held_out_from,
            text_bytes: 0,
            sources: 0,
            done_bytes: 0,
        }
    }

    fn add_files(
        &mut self,
        files: &[PathBuf],
        validation: bool,
        on_progress: OnProgress<'_>,
    ) -> Result<(), DataError> {
        let total_bytes = self.index.recipe.sources.iter().map(|source| source.bytes).sum();
        for path in files {
            let mut documents = Documents::open(path)?;
            loop {
                let mut batch = Vec::new();
                let mut bytes = 0;
                while bytes < BATCH_BYTES
                    && let Some(document) = documents.next().transpose()?
                {
                    bytes += document.text.len();
                    batch.push(document);
                }
                if batch.is_empty() {
                    break;
                }
                self.add(&batch, path, validation)?;
                let done_bytes = self.done_bytes + documents.read_bytes();
                on_progress(Progress { phase: Phase::Encoding, done_bytes, total_bytes });
            }
            self.done_bytes += documents.read_bytes();
            self.sources += 1;
        }
        Ok(())
    }

    /// Encodes documents of one file, and writes each to the shards of its split.
    fn add(&mut self, batch: &[Document], path: &Path, validation: bool) -> Result<(), DataError> {
        let mut parts = Vec::new();
        for document in batch {
            parts.extend(self.split(document, path, validation)?);
        }
        let texts: Vec<&str> = parts.iter().map(|part| part.text).collect();
        let encoded = self.encoder.encode(&texts)?;
        for (Part { number, text, held_out }, text_tokens) in parts.into_iter().zip(encoded) {
            let bytes = text.len() as u64;
            let decoded_bytes = self.encoder.text_bytes(&text_tokens);
            if decoded_bytes != bytes {
                if self.encoder.is_exact() {
                    let path = path.to_owned();
                    return Err(DataError::NotReproduced {
                        path,
                        document: number,
                        decoded_bytes,
                        bytes,
                    });
                }
                self.index.inexact = true;
            }
            let mut tokens = self.encoder.prefix().to_vec();
            tokens.extend(text_tokens);
            tokens.push(self.encoder.separator());
            let writer = if held_out { &mut self.held_out } else { &mut self.training };
            let shards = if held_out { &mut self.index.held_out } else { &mut self.index.training };
            writer.write(&tokens, self.index.token_width_bytes, shards)?;
            self.index.documents.push(DocumentEntry {
                source: self.sources,
                tokens: tokens.len() as u64,
                bytes,
                held_out,
            });
        }
        Ok(())
    }

    /// Returns a document's parts for training and for evaluation. Normally, there is one part.
    fn split<'d>(
        &mut self,
        document: &'d Document,
        path: &Path,
        validation: bool,
    ) -> Result<Vec<Part<'d>>, DataError> {
        let Document { text, number } = document;
        let part = |text, held_out| Part { number: *number, text, held_out };
        let digest = digest(text);
        if validation {
            self.validation.insert(digest);
            return Ok(vec![part(text, true)]);
        }
        if self.validation.contains(&digest) {
            return Err(DataError::LeakedDocument { path: path.to_owned(), document: *number });
        }
        let Some(from) = self.held_out_from else {
            return Ok(vec![part(text, self.index.recipe.holds_out(&digest))]);
        };
        let (training, held_out) = split(text, from.saturating_sub(self.text_bytes));
        self.text_bytes += text.len() as u64;
        let parts = [part(training, false), part(held_out, true)];
        Ok(parts.into_iter().filter(|part| !part.text.is_empty()).collect())
    }

    /// Completes the last shards and writes the index.
    fn finish(mut self, files: &[PathBuf]) -> Result<(), DataError> {
        self.training.complete(&mut self.index.training)?;
        self.held_out.complete(&mut self.index.held_out)?;
        if self.index.documents.is_empty() {
            return Err(DataError::NoText { files: files.to_vec() });
        }
        sync_folder(self.folder).map_err(write_error(self.folder))?;
        self.index.write(self.folder)
    }
}

/// A part of a document: text that is either trained on or held out.
struct Part<'a> {
    /// The number of the document in its file, counted from 1.
    number: usize,
    text: &'a str,
    held_out: bool,
}

impl Recipe {
    /// Returns whether a document of a training file is held out. This depends only on its text:
    /// adding or removing other documents does not change it, and copies are in the same split.
    fn holds_out(&self, digest: &[u8; 32]) -> bool {
        let (words, _) = digest.as_chunks::<8>();
        let word = hash_words(&[self.seed, u64::from_le_bytes(words[0])]);
        map_to_range(word, u64::from(MILLION)) < u64::from(self.held_out_ppm)
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// Writes the shards of one split, one after another.
struct ShardWriter {
    folder: PathBuf,
    held_out: bool,
    shard_tokens: u64,
    current: Option<Shard>,
}

/// A shard that is being written, under a temporary name.
struct Shard {
    path: PathBuf,
    file: OutputFile,
    tokens: u64,
    hash: Sha256,
}

impl ShardWriter {
    fn new(folder: &Path, held_out: bool, shard_tokens: u64) -> Self {
        Self { folder: folder.to_owned(), held_out, shard_tokens, current: None }
    }

    /// Appends tokens, and starts a new shard whenever the current one is full.
    fn write(
        &mut self,
        mut tokens: &[u32],
        width_bytes: u64,
        shards: &mut Vec<ShardEntry>,
    ) -> Result<(), DataError> {
        while !tokens.is_empty() {
            let mut shard = match self.current.take() {
                Some(shard) => shard,
                None => Shard::new(self.folder.join(shard_name(self.held_out, shards.len())))?,
            };
            let room = (self.shard_tokens - shard.tokens).min(tokens.len() as u64);
            let (head, tail) = tokens.split_at(room as usize);
            let mut bytes = Vec::with_capacity(head.len() * width_bytes as usize);
            for token in head {
                bytes.extend_from_slice(&token.to_le_bytes()[..width_bytes as usize]);
            }
            shard.hash.update(&bytes);
            shard.file.write_all(&bytes).map_err(write_error(&shard.path))?;
            shard.tokens += room;
            self.current = Some(shard);
            if self.current.as_ref().is_some_and(|shard| shard.tokens == self.shard_tokens) {
                self.complete(shards)?;
            }
            tokens = tail;
        }
        Ok(())
    }

    /// Syncs the current shard to the disk and renames it to its final name.
    fn complete(&mut self, shards: &mut Vec<ShardEntry>) -> Result<(), DataError> {
        let Some(shard) = self.current.take() else {
            return Ok(());
        };
        shard.file.finish().map_err(write_error(&shard.path))?;
        let sha256 = hexadecimal(&shard.hash.finalize());
        shards.push(ShardEntry { tokens: shard.tokens, sha256 });
        Ok(())
    }
}

impl Shard {
    fn new(path: PathBuf) -> Result<Self, DataError> {
        let file = OutputFile::create(&path).map_err(write_error(&path))?;
        Ok(Self { path, file, tokens: 0, hash: Sha256::new() })
    }
}

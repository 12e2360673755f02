//! Trains a byte-level BPE tokenizer (arXiv 1508.07909) on the training text.
//!
//! Text is split into words by GPT-2's pattern, with two changes. Each digit is a word, so a number
//! has only one tokenization. A run of line ends is one word, so a paragraph break can be one
//! token, where GPT-2's pattern gives two. All 256 bytes are in the vocabulary, so every text can
//! be encoded, and decoding restores it exactly.

use std::path::{Path, PathBuf};

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    SplitDelimiterBehavior, TokenizerImpl, Trainer,
};

use crate::data::{DataError, Documents, OnProgress, Phase, Progress, SEPARATOR, pieces};

/// The pattern of a word. No token extends over two words.
const WORDS: &str = concat!(
    r"'s|'t|'re|'ve|'m|'ll|'d",
    r"| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// The separator and the 256 bytes.
const MIN_VOCAB_SIZE: usize = 257;

/// Size of the chunks of text that are sampled, in bytes.
const CHUNK_BYTES: usize = 1 << 16;

/// A BPE tokenizer of the `tokenizers` crate.
type Bpe = TokenizerImpl<
    BPE,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// Options of a tokenizer's training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerOptions {
    /// Size of the vocabulary: the separator, the 256 bytes, and the merges.
    pub vocab_size: usize,
    /// Maximum number of bytes of text to train on. If the files have more, a sample is spread
    /// evenly over all of them. The sample may exceed the limit by up to one chunk of 64 KiB.
    pub max_bytes: u64,
    /// The seed that selects the sample.
    pub seed: u64,
}

impl Default for TokenizerOptions {
    fn default() -> Self {
        Self { vocab_size: 4096, max_bytes: 30_000_000, seed: 0 }
    }
}

/// A trained tokenizer that is not yet saved.
pub struct TrainedTokenizer {
    tokenizer: Bpe,
    sample_bytes: u64,
}

/// Trains a tokenizer on text files (see [`Documents`]).
///
/// The same files and options give the same tokenizer, for any number of threads.
///
/// # Errors
/// If a file cannot be read or is not UTF-8, if there is no text, or if an option is too small. The
/// vocabulary must have room for the separator and all bytes.
pub fn train_tokenizer(
    files: &[PathBuf],
    options: &TokenizerOptions,
    on_progress: OnProgress<'_>,
) -> Result<TrainedTokenizer, DataError> {
    if options.vocab_size < MIN_VOCAB_SIZE {
        return Err(DataError::Option {
            option: "vocab_size",
            found: options.vocab_size.to_string(),
            expected: format!("at least {MIN_VOCAB_SIZE}: the separator and the 256 bytes"),
        });
    }
    if options.max_bytes == 0 {
        return Err(DataError::Option {
            option: "max_bytes",
            found: "0".to_owned(),
            expected: "at least one byte of text".to_owned(),
        });
    }
    let total_bytes = text_bytes(files, on_progress)?;
    let mut sampler = ChunkSampler::new(total_bytes, options);
    let planned_bytes = total_bytes.min(options.max_bytes);
    let mut tokenizer = untrained_tokenizer()?;
    let mut trainer = trainer(options.vocab_size);
    let (mut sample_bytes, mut failure) = (0, None);
    let chosen = files.iter().flat_map(|file| chunks(file)).map_while(|chunk| match chunk {
        Err(error) => {
            failure = Some(error);
            None
        }
        Ok(chunk) if sampler.select(chunk.len()) => {
            sample_bytes += chunk.len() as u64;
            let done_bytes = sample_bytes.min(planned_bytes);
            on_progress(Progress {
                phase: Phase::Sampling,
                done_bytes,
                total_bytes: planned_bytes,
            });
            Some(Some(chunk))
        }
        Ok(_) => Some(None),
    });
    let fed = trainer.feed(chosen.flatten(), |text| words(&tokenizer, text));
    if let Some(failure) = failure {
        return Err(failure);
    }
    let training_error = |error: tokenizers::Error| DataError::TokenizerTraining(error.to_string());
    fed.map_err(training_error)?;
    if sample_bytes == 0 {
        return Err(DataError::NoText { files: files.to_vec() });
    }
    on_progress(Progress { phase: Phase::Merging, done_bytes: 0, total_bytes: sample_bytes });
    let mut model = BPE::default();
    let special_tokens = trainer.train(&mut model).map_err(training_error)?;
    tokenizer.with_model(model);
    tokenizer.add_special_tokens(special_tokens).map_err(training_error)?;
    on_progress(Progress {
        phase: Phase::Merging,
        done_bytes: sample_bytes,
        total_bytes: sample_bytes,
    });
    Ok(TrainedTokenizer { tokenizer, sample_bytes })
}

impl TrainedTokenizer {
    /// Returns the size of the vocabulary. It is smaller than requested if the text has too few
    /// repeated pairs.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Returns the number of bytes of text that the tokenizer was trained on.
    #[must_use]
    pub fn sample_bytes(&self) -> u64 {
        self.sample_bytes
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json`, in the format of Hugging Face's
    /// `PreTrainedTokenizerFast`, into a folder. Returns the path of `tokenizer.json`.
    ///
    /// # Errors
    /// If the folder cannot be created or written.
    pub fn save(&self, folder: &Path) -> Result<PathBuf, DataError> {
        let write_error = |cause| DataError::Write { path: folder.to_owned(), cause };
        std::fs::create_dir_all(folder).map_err(write_error)?;
        let json = self
            .tokenizer
            .to_string(true)
            .map_err(|error| DataError::TokenizerTraining(error.to_string()))?;
        // Encoding and decoding do not change the text, and encoding adds no tokens.
        let config = serde_json::json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SEPARATOR,
            "eos_token": SEPARATOR,
            "pad_token": SEPARATOR,
            "add_bos_token": false,
            "add_eos_token": false,
            "clean_up_tokenization_spaces": false,
        });
        let file = folder.join("tokenizer.json");
        forerun_output::write(&file, format!("{json}\n")).map_err(write_error)?;
        forerun_output::write(&folder.join("tokenizer_config.json"), format!("{config:#}\n"))
            .map_err(write_error)?;
        Ok(file)
    }
}

/// Creates a tokenizer without a vocabulary.
fn untrained_tokenizer() -> Result<Bpe, DataError> {
    let training_error = |error: tokenizers::Error| DataError::TokenizerTraining(error.to_string());
    let pattern = SplitPattern::Regex(WORDS.to_owned());
    let split =
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(training_error)?;
    let bytes = ByteLevel::new(false, false, false);
    let parts = vec![PreTokenizerWrapper::from(split), PreTokenizerWrapper::from(bytes)];
    let mut tokenizer = Bpe::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(Sequence::new(parts)));
    tokenizer.with_decoder(Some(bytes));
    Ok(tokenizer)
}

fn trainer(vocab_size: usize) -> BpeTrainer {
    // Special tokens come first, so the separator is token 0.
    BpeTrainer::builder()
        .vocab_size(vocab_size)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(vec![AddedToken::from(SEPARATOR, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build()
}

/// Splits a text into words, as the tokenizer does.
fn words(tokenizer: &Bpe, text: &str) -> tokenizers::Result<Vec<String>> {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
    let mut words = PreTokenizedString::from(text);
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut words)?;
    }
    let splits = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
    Ok(splits.into_iter().map(|(word, _, _)| word.to_owned()).collect())
}

/// Counts the bytes of text in all documents.
fn text_bytes(files: &[PathBuf], on_progress: OnProgress<'_>) -> Result<u64, DataError> {
    let total_bytes = files.iter().flat_map(std::fs::metadata).map(|file| file.len()).sum();
    let (mut previous_bytes, mut bytes) = (0, 0);
    for file in files {
        let mut documents = Documents::open(file)?;
        while let Some(document) = documents.next() {
            bytes += document?.text.len() as u64;
            let done_bytes = previous_bytes + documents.read_bytes();
            on_progress(Progress { phase: Phase::Counting, done_bytes, total_bytes });
        }
        previous_bytes += documents.read_bytes();
    }
    Ok(bytes)
}

/// Splits the documents of a file into chunks, in order.
fn chunks(file: &Path) -> Box<dyn Iterator<Item = Result<String, DataError>> + Send> {
    let documents = match Documents::open(file) {
        Ok(documents) => documents,
        Err(error) => return Box::new(std::iter::once(Err(error))),
    };
    Box::new(documents.flat_map(|document| match document {
        Err(error) => vec![Err(error)],
        Ok(document) => {
            pieces(&document.text, CHUNK_BYTES).map(|piece| Ok(piece.to_owned())).collect()
        }
    }))
}

/// Selects chunks for a sample, so that the sampled bytes are spread evenly over the text.
struct ChunkSampler {
    /// The sampled share of the text.
    share: f64,
    /// The lag of the sample, in chunks: from 0 to 1.
    phase: f64,
    /// Size of the sample. The last chunk may exceed it.
    max_bytes: u64,
    /// Bytes of all chunks so far.
    seen_bytes: u64,
    /// Bytes of the selected chunks.
    selected_bytes: u64,
}

impl ChunkSampler {
    fn new(total_bytes: u64, options: &TokenizerOptions) -> Self {
        let share = options.max_bytes as f64 / total_bytes.max(1) as f64;
        let phase = crate::data::uniform(&[options.seed]);
        Self { share, phase, max_bytes: options.max_bytes, seen_bytes: 0, selected_bytes: 0 }
    }

    /// Decides whether the next chunk of the text, of `bytes` bytes, belongs to the sample.
    fn select(&mut self, bytes: usize) -> bool {
        self.seen_bytes += bytes as u64;
        // The sample follows its share of the text with a lag of a part of a chunk. The lag is less
        // than the whole sample, so the sample is not empty at the end of the text.
        let lag_bytes = self.phase * (bytes as f64).min(self.max_bytes as f64);
        let due = self.share * self.seen_bytes as f64 - lag_bytes;
        let selected = self.share >= 1.0 || due > self.selected_bytes as f64;
        if selected {
            self.selected_bytes += bytes as u64;
        }
        selected
    }
}

//! A tokenizer made from the training text: byte-level BPE.
//!
//! Words are found as GPT-2 finds them, with two changes. Digits stand alone, so that a number is
//! spelt in one way. A run of line ends stays together: between paragraphs GPT-2's pattern leaves
//! two tokens, this one leaves one. All 256 bytes are in the vocabulary, so every text can be
//! spelt, and decoding gives back exactly what was encoded.

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
use crate::files::write_atomically;

/// What is one word: no token reaches from one into the next.
const WORDS: &str = concat!(
    r"'s|'t|'re|'ve|'m|'ll|'d",
    r"| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// The separator and the 256 bytes.
const LEAST_VOCABULARY: usize = 257;

/// Bytes of text that are chosen or passed over together.
const CHUNK_BYTES: usize = 1 << 16;

/// A tokenizer of the library's own type, with the parts that training needs to know.
type Bpe = TokenizerImpl<
    BPE,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// How a tokenizer is trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerOptions {
    /// Tokens in all: the separator, the 256 bytes, and as many merges as remain.
    pub vocab_size: usize,
    /// Bytes of text that it is made from, up to a chunk of 64 KiB more: evenly spread over all files
    /// where there are more.
    pub max_bytes: u64,
    /// Chooses which parts of the text these are.
    pub seed: u64,
}

impl Default for TokenizerOptions {
    fn default() -> Self {
        Self { vocab_size: 4096, max_bytes: 30_000_000, seed: 0 }
    }
}

/// A tokenizer that was trained and not yet written.
pub struct TrainedTokenizer {
    tokenizer: Bpe,
    sample_bytes: u64,
}

/// Trains a tokenizer on text files (see [`Documents`]).
///
/// The same files, options and seed give the same tokenizer, on any number of threads.
///
/// # Errors
/// If a file cannot be read or is not UTF-8, if there is no text, or if an option is too small: a
/// vocabulary must hold all bytes.
pub fn train_tokenizer(
    files: &[PathBuf],
    options: &TokenizerOptions,
    on_progress: OnProgress<'_>,
) -> Result<TrainedTokenizer, DataError> {
    if options.vocab_size < LEAST_VOCABULARY {
        return Err(DataError::Option {
            option: "vocab_size",
            found: options.vocab_size.to_string(),
            expected: format!("at least {LEAST_VOCABULARY}: the separator and the 256 bytes"),
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
    let mut sample = Sample::new(total_bytes, options);
    let planned_bytes = total_bytes.min(options.max_bytes);
    let mut tokenizer = untrained()?;
    let mut trainer = trainer(options.vocab_size);
    let (mut sample_bytes, mut failure) = (0, None);
    let chosen = files.iter().flat_map(|file| chunks(file)).map_while(|chunk| match chunk {
        Err(error) => {
            failure = Some(error);
            None
        }
        Ok(chunk) if sample.takes(chunk.len()) => {
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
    let failed = |error: tokenizers::Error| DataError::TokenizerTraining(error.to_string());
    fed.map_err(failed)?;
    if sample_bytes == 0 {
        return Err(DataError::NoText { files: files.to_vec() });
    }
    on_progress(Progress { phase: Phase::Merging, done_bytes: 0, total_bytes: sample_bytes });
    let mut model = BPE::default();
    let special_tokens = trainer.train(&mut model).map_err(failed)?;
    tokenizer.with_model(model);
    tokenizer.add_special_tokens(&special_tokens);
    on_progress(Progress {
        phase: Phase::Merging,
        done_bytes: sample_bytes,
        total_bytes: sample_bytes,
    });
    Ok(TrainedTokenizer { tokenizer, sample_bytes })
}

impl TrainedTokenizer {
    /// Tokens in all: fewer than were asked for where the text has no more pairs that repeat.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Bytes of text that it was made from.
    #[must_use]
    pub fn sample_bytes(&self) -> u64 {
        self.sample_bytes
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json` into a folder and returns the first's
    /// path. The files are those of Hugging Face's `PreTrainedTokenizerFast`.
    ///
    /// # Errors
    /// If the folder cannot be made or written.
    pub fn save(&self, folder: &Path) -> Result<PathBuf, DataError> {
        let failed = |cause| DataError::Write { path: folder.to_owned(), cause };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let json = self
            .tokenizer
            .to_string(true)
            .map_err(|error| DataError::TokenizerTraining(error.to_string()))?;
        // No text is changed on the way in or out, and none gets a token in front unasked.
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
        write_atomically(&file, format!("{json}\n").as_bytes()).map_err(failed)?;
        write_atomically(&folder.join("tokenizer_config.json"), format!("{config:#}\n").as_bytes())
            .map_err(failed)?;
        Ok(file)
    }
}

/// A tokenizer with everything but its vocabulary.
fn untrained() -> Result<Bpe, DataError> {
    let failed = |error: tokenizers::Error| DataError::TokenizerTraining(error.to_string());
    let pattern = SplitPattern::Regex(WORDS.to_owned());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(failed)?;
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

/// The words of a text, as the library would cut them for training.
fn words(tokenizer: &Bpe, text: &str) -> tokenizers::Result<Vec<String>> {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
    let mut words = PreTokenizedString::from(text);
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut words)?;
    }
    let splits = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
    Ok(splits.into_iter().map(|(word, _, _)| word.to_owned()).collect())
}

/// Bytes of text in all documents.
fn text_bytes(files: &[PathBuf], on_progress: OnProgress<'_>) -> Result<u64, DataError> {
    let total_bytes = files.iter().flat_map(std::fs::metadata).map(|file| file.len()).sum();
    let (mut passed, mut bytes) = (0, 0);
    for file in files {
        let mut documents = Documents::open(file)?;
        while let Some(document) = documents.next() {
            bytes += document?.text.len() as u64;
            let done_bytes = passed + documents.read_bytes();
            on_progress(Progress { phase: Phase::Counting, done_bytes, total_bytes });
        }
        passed += documents.read_bytes();
    }
    Ok(bytes)
}

/// A file's documents in chunks; those of one document follow each other.
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

/// Which chunks are in the sample: evenly spread bytes of the text, wherever chunks begin.
struct Sample {
    /// Bytes wanted of each byte of text.
    share: f64,
    /// How late it begins, in chunks.
    phase: f64,
    /// Bytes wanted in all; the last chunk may bring a few more.
    max_bytes: u64,
    /// Bytes of the text that were decided upon.
    passed_bytes: u64,
    /// Bytes of them that are in the sample.
    taken_bytes: u64,
}

impl Sample {
    fn new(total_bytes: u64, options: &TokenizerOptions) -> Self {
        let share = options.max_bytes as f64 / total_bytes.max(1) as f64;
        let phase = crate::data::uniform(&[options.seed]);
        Self { share, phase, max_bytes: options.max_bytes, passed_bytes: 0, taken_bytes: 0 }
    }

    /// Whether the next chunk of the text, of `bytes` bytes, is in the sample.
    fn takes(&mut self, bytes: usize) -> bool {
        self.passed_bytes += bytes as u64;
        // The sample keeps up with its share of the text, a part of a chunk behind; at the text's end
        // that is never all of the sample.
        let behind_bytes = self.phase * (bytes as f64).min(self.max_bytes as f64);
        let due = self.share * self.passed_bytes as f64 - behind_bytes;
        let takes = self.share >= 1.0 || due > self.taken_bytes as f64;
        if takes {
            self.taken_bytes += bytes as u64;
        }
        takes
    }
}

//! What can be wrong with training data.

use std::io;
use std::path::PathBuf;

/// Data that cannot be read, prepared or used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file that cannot be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write {path}: {cause}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// Text that is not UTF-8.
    #[error(
        "{path} is not UTF-8 at byte {offset} of its text: convert it first (for example with iconv)"
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first wrong byte, counted in the text as it is behind decompression.
        offset: u64,
    },
    /// A line of a `.jsonl` file that holds no text.
    #[error("line {line} of {path}: expected a JSON object with a string `text`, found {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What the parser says.
        reason: String,
    },
    /// Files without any text.
    #[error("there is no text in {}", names(.files))]
    NoText {
        /// The files.
        files: Vec<PathBuf>,
    },
    /// An option that makes no sense.
    #[error("{option} is {found}: expected {expected}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What was given.
        found: String,
        /// What can be given.
        expected: String,
    },
    /// A tokenizer that cannot be trained, loaded or used for training.
    #[error("cannot use the tokenizer {path}: {reason}")]
    Tokenizer {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The library could not train a tokenizer.
    #[error("cannot train a tokenizer: {0}")]
    TokenizerTraining(String),
    /// A document whose tokens do not spell it.
    #[error(
        "the tokens of document {document} of {path} spell {spelt} bytes of {bytes}: the tokenizer \
         changes the text (a normalizer, or a space in front), so its loss cannot be counted by bytes"
    )]
    NotSpelt {
        /// The document's file.
        path: PathBuf,
        /// Its number in the file, counted from 1.
        document: usize,
        /// Bytes that its tokens stand for.
        spelt: u64,
        /// Bytes that it has.
        bytes: u64,
    },
    /// A document that is to be learnt and to test what was learnt.
    #[error(
        "document {document} of {path} is among the validation files, too: take it out of the \
         training files"
    )]
    LeakedDocument {
        /// The training file.
        path: PathBuf,
        /// The document's number in the file, counted from 1.
        document: usize,
    },
    /// A folder without a finished data set.
    #[error(
        "there is no prepared data set in {0}: prepare it first (one that was interrupted is begun anew)"
    )]
    NotPrepared(PathBuf),
    /// An index or shard that is not what was written.
    #[error("{path} is broken: {reason}; prepare the data set anew")]
    Broken {
        /// The file.
        path: PathBuf,
        /// What was expected and found.
        reason: String,
    },
    /// A data set that was made of something else.
    #[error(
        "{folder} holds another data set: {what} differ; choose another folder, or ask to rebuild it"
    )]
    Differs {
        /// The data set's folder.
        folder: PathBuf,
        /// What is not as asked for.
        what: &'static str,
    },
    /// A data set of another tokenizer.
    #[error(
        "{folder} was prepared with another tokenizer than {tokenizer}: its tokens mean other text"
    )]
    ForeignTokenizer {
        /// The data set's folder.
        folder: PathBuf,
        /// The tokenizer that does not belong to it.
        tokenizer: PathBuf,
    },
    /// Another process prepares the same folder.
    #[error("another process prepares {0}: wait for it, or choose another folder")]
    Busy(PathBuf),
    /// Too little text for the context that is asked for.
    #[error(
        "the {split} tokens of {folder} are too few: {found}, a context of {context} needs {needed}"
    )]
    TooFewTokens {
        /// The data set's folder.
        folder: PathBuf,
        /// Which half of it.
        split: &'static str,
        /// Tokens that there are.
        found: u64,
        /// The context asked for, in tokens.
        context: usize,
        /// Tokens that it needs.
        needed: u64,
    },
}

fn names(files: &[PathBuf]) -> String {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    if names.is_empty() { "no files at all".to_owned() } else { names.join(", ") }
}

/// Names the file that could not be read.
pub(crate) fn reading(path: &std::path::Path) -> impl FnOnce(io::Error) -> DataError + '_ {
    |cause| DataError::Read { path: path.to_owned(), cause }
}

/// Names the file that could not be written.
pub(crate) fn writing(path: &std::path::Path) -> impl FnOnce(io::Error) -> DataError + '_ {
    |cause| DataError::Write { path: path.to_owned(), cause }
}

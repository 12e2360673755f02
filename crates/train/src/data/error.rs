//! Errors of training data.

use std::io;
use std::path::PathBuf;

/// An error of reading, preparing or using training data.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file cannot be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// A file or folder cannot be written.
    #[error("cannot write {path}: {cause}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// A text is not UTF-8.
    #[error(
        "{path} is not UTF-8 at byte {offset} of its text: convert it to UTF-8 first (for example \
         with iconv)"
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The offset of the first invalid byte in the decompressed text.
        offset: u64,
    },
    /// A line of a `.jsonl` file is not a JSON object with a text.
    #[error("line {line} of {path}: expected a JSON object with a string `text`, found {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The parser's reason.
        reason: String,
    },
    /// The files contain no text.
    #[error("{}", no_text(.files))]
    NoText {
        /// The files.
        files: Vec<PathBuf>,
    },
    /// An option is invalid.
    #[error("`{option}` is {found}: expected {expected}")]
    Option {
        /// The name of the option.
        option: &'static str,
        /// The value of the option.
        found: String,
        /// The valid values.
        expected: String,
    },
    /// A tokenizer cannot be loaded, or cannot be used for training.
    #[error("cannot use the tokenizer {path}: {reason}")]
    Tokenizer {
        /// The tokenizer's file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A tokenizer cannot be trained.
    #[error("cannot train a tokenizer: {0}")]
    TokenizerTraining(String),
    /// The tokens of a document do not reproduce its text.
    #[error(
        "the tokens of document {document} of {path} represent {decoded_bytes} of its {bytes} bytes: \
         the tokenizer changes the text (it has a normalizer, or adds a space in front), so the loss \
         per byte is undefined. Choose a tokenizer that reproduces the text"
    )]
    NotReproduced {
        /// The document's file.
        path: PathBuf,
        /// The number of the document in the file, counted from 1.
        document: usize,
        /// Number of bytes that the tokens represent.
        decoded_bytes: u64,
        /// Number of bytes of the document.
        bytes: u64,
    },
    /// A training document is also a validation document.
    #[error(
        "document {document} of {path} is also in a validation file: remove it from the training files"
    )]
    LeakedDocument {
        /// The training file.
        path: PathBuf,
        /// The number of the document in the file, counted from 1.
        document: usize,
    },
    /// A folder contains no complete data set.
    #[error(
        "there is no prepared data set in {0}: prepare it first (an interrupted preparation starts over)"
    )]
    NotPrepared(PathBuf),
    /// An index or a shard was changed after it was written.
    #[error("{path} is corrupt: {reason}. Remove the data set's folder")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The expected and the actual contents.
        reason: String,
    },
    /// A folder contains a data set that was made from other inputs.
    #[error(
        "{folder} contains another data set: the {difference} differ. Use the same as before, or \
         remove the folder"
    )]
    OtherDataset {
        /// The data set's folder.
        folder: PathBuf,
        /// The inputs that differ.
        difference: &'static str,
    },
    /// A data set was prepared with another tokenizer.
    #[error(
        "{folder} was prepared with another tokenizer than {tokenizer}, so its tokens are not valid for \
         it: use the tokenizer of the data set, or prepare the data set in another folder"
    )]
    OtherTokenizer {
        /// The data set's folder.
        folder: PathBuf,
        /// The tokenizer that does not belong to it.
        tokenizer: PathBuf,
    },
    /// Another process is preparing the same folder.
    #[error("cannot prepare {folder}: {cause}")]
    Locked {
        /// The folder.
        folder: PathBuf,
        /// Which process it is.
        cause: io::Error,
    },
    /// There is too little text for the requested context.
    #[error(
        "the training tokens of {folder} are too few: there are {found} tokens, and a context of \
         {context} requires {needed}. Use more text, or a smaller `context`"
    )]
    TooFewTokens {
        /// The data set's folder.
        folder: PathBuf,
        /// Number of training tokens.
        found: u64,
        /// The requested context, in tokens.
        context: usize,
        /// Number of tokens that the context requires.
        needed: u64,
    },
    /// There is no text for evaluations.
    #[error(
        "there are no held-out tokens in {folder}: hold out more with `held_out_share`, give held-out text \
         with `validation`, or turn evaluations off with `evaluation_tokens = 0`"
    )]
    NoHeldOutText {
        /// The data set's folder.
        folder: PathBuf,
    },
}

fn no_text(files: &[PathBuf]) -> String {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    if names.is_empty() {
        return "there is no text to train on: no files were given".to_owned();
    }
    format!("there is no text in {}: choose files with text", names.join(", "))
}

/// Returns a function that turns a system error into [`DataError::Read`].
pub(crate) fn read_error(path: &std::path::Path) -> impl FnOnce(io::Error) -> DataError + '_ {
    |cause| DataError::Read { path: path.to_owned(), cause }
}

/// Returns a function that turns a system error into [`DataError::Write`].
pub(crate) fn write_error(path: &std::path::Path) -> impl FnOnce(io::Error) -> DataError + '_ {
    |cause| DataError::Write { path: path.to_owned(), cause }
}

//! The errors of hub models.

use std::path::PathBuf;

/// Why a hub model cannot be downloaded.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The loader is offline, and the model is not in the cache.
    #[error(
        "{model} is not a path on this machine, and as a hub model it is not in the cache {cache} \
         ({missing}); the hub is not used because `offline` or HF_HUB_OFFLINE is set: unset it, or \
         download the model while there is a network: `forerun models pull` or `hf download {repository} --revision {revision}`"
    )]
    NotCached {
        /// The model's id.
        model: String,
        /// The id without the revision.
        repository: String,
        /// The requested revision.
        revision: String,
        /// The cache's folder.
        cache: PathBuf,
        /// What is missing in the cache.
        missing: String,
    },
    /// The hub does not answer.
    #[error(
        "cannot reach {address} for the hub model {model}: {reason}; check the network and HF_ENDPOINT"
    )]
    Unreachable {
        /// The model's id.
        model: String,
        /// The address of the request.
        address: String,
        /// What happened.
        reason: String,
    },
    /// The hub has no such model.
    #[error(
        "{model} is not a path on this machine, and the hub has no such model (404 from {address}): \
         check the id and the revision; for a private model set HF_TOKEN to a token that may read it"
    )]
    NoModel {
        /// The model's id.
        model: String,
        /// The address of the request.
        address: String,
    },
    /// The hub has the model, but not the revision.
    #[error(
        "the hub model {repository} has no revision {revision} (404 from {address}): name another \
         branch, tag or commit"
    )]
    NoRevision {
        /// The id without the revision.
        repository: String,
        /// The requested revision.
        revision: String,
        /// The address of the request.
        address: String,
    },
    /// The repository lacks a file that its index names.
    #[error(
        "the hub model {model} lacks a file that it names (404 from {address}): it is incomplete, so \
         choose another revision or repository"
    )]
    NoFile {
        /// The model's id.
        model: String,
        /// The address of the request.
        address: String,
    },
    /// A token is missing, or may not read the model.
    #[error(
        "the hub does not give access to {model} ({status} from {address}): {}",
        if *with_token {
            "the model or its revision may not exist, or the token (HF_TOKEN) may not read it"
        } else {
            "the model or its revision may not exist; if it is private or gated, set HF_TOKEN to a \
             token that may read it"
        }
    )]
    NoAccess {
        /// The model's id.
        model: String,
        /// The HTTP status.
        status: u16,
        /// The address of the request.
        address: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The model is gated, and its conditions are not accepted yet.
    #[error(
        "the hub model {model} is gated ({status} from {address}): accept its conditions on its \
         page, and set HF_TOKEN to a token of that account"
    )]
    Gated {
        /// The model's id.
        model: String,
        /// The HTTP status.
        status: u16,
        /// The address of the request.
        address: String,
    },
    /// The server answers with another error status.
    #[error("{address} answered {status} for the hub model {model}: try again later")]
    Status {
        /// The model's id.
        model: String,
        /// The HTTP status.
        status: u16,
        /// The address of the request.
        address: String,
    },
    /// The answer is not a valid answer of a hub.
    #[error("{address} gave an answer that is not a hub's: {reason}; check HF_ENDPOINT")]
    Answer {
        /// The address of the request.
        address: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The repository has no checkpoint in a supported format.
    #[error(
        "the hub model {model} has no {missing}{}: choose a repository with GGUF files, or with \
         config.json and safetensors weights; or download it, convert its weights to safetensors and \
         name the folder",
        if others.is_empty() { String::new() } else { format!(", but {others}") }
    )]
    NotAModel {
        /// The model's id.
        model: String,
        /// What is missing.
        missing: &'static str,
        /// The weights in other formats, in words. Empty if there are none.
        others: String,
    },
    /// The repository has GGUF files, but none of the requested quantization.
    #[error(
        "the hub model {repository} has no GGUF file whose name contains {quantization:?}: choose \
         another one of its files: {available}"
    )]
    NoQuantization {
        /// The id without the quantization and the revision.
        repository: String,
        /// The requested quantization.
        quantization: String,
        /// The names of its GGUF files.
        available: String,
    },
    /// The connection ended within a file.
    #[error(
        "the download of {file} of {model} broke off after {done} of {size} bytes ({reason}): run \
         again to resume it"
    )]
    DownloadInterrupted {
        /// The model's id.
        model: String,
        /// The file's name.
        file: String,
        /// The number of bytes downloaded.
        done: u64,
        /// The size of the file in bytes.
        size: u64,
        /// What happened.
        reason: String,
    },
    /// A downloaded file has another size or hash than the hub says.
    #[error(
        "the download of {file} of {model} is damaged: {what} is {found}, expected {expected}; the \
         file was deleted: run again to download it"
    )]
    Damaged {
        /// The model's id.
        model: String,
        /// The file's name.
        file: String,
        /// The property that was compared.
        what: &'static str,
        /// The property of the downloaded file.
        found: String,
        /// The property that the hub says.
        expected: String,
    },
    /// A model cannot be removed, because a process downloads it.
    #[error("{repository} is being downloaded: wait until that has ended, then remove it")]
    InUse {
        /// The id without the revision.
        repository: String,
    },
    /// There is no folder for the cache.
    #[error("there is no home folder for the cache of hub models: set HF_HOME to a folder")]
    NoHome,
    /// A file of the cache cannot be read or written.
    #[error(
        "cannot access the cache of hub models: {path}: {cause}; make it accessible, or set HF_HOME to \
         another folder"
    )]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// What happened.
        cause: std::io::Error,
    },
}

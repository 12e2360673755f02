//! Why a model of the hub cannot be had.

use std::path::PathBuf;

/// A model of the hub that cannot be had, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The hub must not be asked, and the cache does not have the model.
    #[error(
        "{model} is no path here, and as a hub model it is not in the cache {cache} ({missing}); \
         the hub is not asked, since --offline or HF_HUB_OFFLINE is set: run once without it, or \
         fetch it with `hf download {repository} --revision {revision}`"
    )]
    NotCached {
        /// The model.
        model: String,
        /// Its id alone.
        repository: String,
        /// The revision that was asked for.
        revision: String,
        /// The cache's folder.
        cache: PathBuf,
        /// What is not there.
        missing: String,
    },
    /// No answer.
    #[error(
        "cannot reach {address} for the hub model {model}: {reason}; check the network{}",
        if *cached { ", or take the model from the cache with --offline" } else { " and HF_ENDPOINT" }
    )]
    Unreachable {
        /// The model.
        model: String,
        /// The address that was asked.
        address: String,
        /// What happened.
        reason: String,
        /// Whether the cache has the model.
        cached: bool,
    },
    /// The hub knows no such model.
    #[error(
        "{model} is no path here, and the hub has no such model (404 from {address}): check the id \
         and the revision; for a private model set HF_TOKEN to a token that may read it"
    )]
    NoModel {
        /// The model.
        model: String,
        /// The address that was asked.
        address: String,
    },
    /// The hub knows the model, but not this revision.
    #[error("the hub model {repository} has no revision {revision} (404 from {address})")]
    NoRevision {
        /// The model's id alone.
        repository: String,
        /// The revision that was asked for.
        revision: String,
        /// The address that was asked.
        address: String,
    },
    /// The revision lacks a file that it names itself.
    #[error(
        "the hub model {model} lacks a file that it names (404 from {address}): it is incomplete, so \
         choose another revision or repository"
    )]
    NoFile {
        /// The model.
        model: String,
        /// The address that was asked.
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
        /// The model.
        model: String,
        /// The status of the answer.
        status: u16,
        /// The address that was asked.
        address: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The model's conditions are not accepted yet.
    #[error(
        "the hub model {model} is gated ({status} from {address}): accept its conditions on its \
         page, and set HF_TOKEN to a token of that account"
    )]
    Gated {
        /// The model.
        model: String,
        /// The status of the answer.
        status: u16,
        /// The address that was asked.
        address: String,
    },
    /// Another failure of the server.
    #[error("{address} answered {status} for the hub model {model}: try again later")]
    Status {
        /// The model.
        model: String,
        /// The status of the answer.
        status: u16,
        /// The address that was asked.
        address: String,
    },
    /// An answer that makes no sense.
    #[error("{address} gave an answer that is not a hub's: {reason}; check HF_ENDPOINT")]
    Answer {
        /// The address that was asked.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A repository of another kind.
    #[error(
        "the hub model {model} has no {missing}{}: choose a repository with config.json and \
         safetensors weights, or download it, convert its weights to safetensors and name the folder",
        if others.is_empty() { String::new() } else { format!(", but {others}") }
    )]
    NotAModel {
        /// The model.
        model: String,
        /// What is not there.
        missing: &'static str,
        /// Weights in other formats.
        others: String,
    },
    /// The connection ended within a file.
    #[error(
        "the download of {file} of {model} broke off after {done} of {size} bytes ({reason}): run \
         again, and it goes on from there"
    )]
    BrokeOff {
        /// The model.
        model: String,
        /// The file.
        file: String,
        /// Bytes that are here.
        done: u64,
        /// Bytes that it has.
        size: u64,
        /// What happened.
        reason: String,
    },
    /// A file that is not what the hub says it is.
    #[error(
        "the download of {file} of {model} is damaged: {what} is {found}, expected {expected}; the \
         file was deleted: run again to download it anew"
    )]
    Damaged {
        /// The model.
        model: String,
        /// The file.
        file: String,
        /// What was compared.
        what: &'static str,
        /// What it is.
        found: String,
        /// What the hub says.
        expected: String,
    },
    /// No place for the cache.
    #[error("there is no home folder for the cache of hub models: set HF_HOME to a folder")]
    NoHome,
    /// A file of the cache that cannot be read or written.
    #[error("cannot write to the cache of hub models: {path}: {cause}")]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// What happened.
        cause: std::io::Error,
    },
}

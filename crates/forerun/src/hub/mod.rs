//! Models of the Hugging Face hub: resolves an id to a folder of the shared cache, and downloads
//! what is missing.
//!
//! `hf-hub` defines the layout of the cache. Requests and downloads are implemented here, because
//! `hf-hub`'s client does not verify downloads, does not work offline, and appends a whole file to
//! a partial one if the server does not resume. This module may use the network and the cache. It
//! reads no file's content except the names of shards, and whether a drafter has a projection in a
//! file of its own.

mod access;
mod cache;
mod client;
mod error;
mod gguf_files;
mod inventory;
mod transfer;

pub use access::{HubAccess, HubAnswer, TokenPlace};
pub use error::HubError;
pub use inventory::{HubCache, HubFile, HubModel, HubRevision};

use crate::model_id::ModelId;
use crate::progress::{Progress, Step};
use cache::{CONFIG, Cache, CachedModel, INDEX};
use client::{Client, Repository};
use forerun_formats::LoadError;
use forerun_formats::checkpoint::{DRAFTER_FILES, WeightIndex};
use forerun_formats::speculator::PROJECTION_FILES;
use std::env;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use transfer::Transfer;

/// Files other than weights that are downloaded if a repository has them.
const SMALL_FILES: [&str; 6] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// The hub and its cache.
pub(crate) struct Hub {
    cache: Cache,
    client: Client,
    offline: bool,
}

/// Why a hub model cannot be downloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The index of its shards is malformed.
    #[error(transparent)]
    Index(#[from] LoadError),
    /// The progress callback cancelled the download.
    #[error("the download was cancelled")]
    Cancelled,
}

/// The folders of Hugging Face's tools.
struct Folders {
    home: Option<PathBuf>,
    cache: PathBuf,
}

impl Folders {
    fn from_environment() -> Result<Self, HubError> {
        let home = hub_home();
        let cache = match (variable("HF_HUB_CACHE"), &home) {
            (Some(folder), _) => folder.into(),
            (None, Some(home)) => home.join("hub"),
            (None, None) => return Err(HubError::NoHome),
        };
        Ok(Self { home, cache })
    }
}

type OnProgress<'a> = dyn FnMut(Progress<'_>) -> ControlFlow<()> + 'a;

impl Hub {
    /// Returns the hub and the cache that the environment variables name.
    pub(crate) fn from_environment(offline: bool) -> Result<Self, HubError> {
        let folders = Folders::from_environment()?;
        let token = token(folders.home.as_deref()).map(|(token, _)| token);
        let client = Client::new(&endpoint(), token);
        let offline = offline || is_offline();
        Ok(Self { cache: Cache::new(folders.cache), client, offline })
    }

    /// Returns the folder with a model's files, or its GGUF file, after downloading what is
    /// missing.
    pub(crate) fn fetch(
        &self,
        id: &ModelId,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<PathBuf, FetchError> {
        let cached_model = self.cache.model(id);
        let cached = cached_model.model_of_revision();
        if self.offline {
            return cached.map_err(|missing| self.not_cached(id, missing).into());
        }
        // A commit never changes, so there is nothing to ask the hub.
        if let (true, Ok(model)) = (id.is_pinned(), &cached) {
            return Ok(model.clone());
        }
        let repository = match (self.client.repository(id), cached) {
            (Ok(repository), _) => repository,
            (Err(HubError::Unreachable { .. }), Ok(model)) => {
                let step = Step::Cached { model: &id.to_string() };
                return match on_progress(Progress { step, done: 1, total: 1 }) {
                    ControlFlow::Continue(()) => Ok(model),
                    ControlFlow::Break(()) => Err(FetchError::Cancelled),
                };
            }
            (Err(error), _) => return Err(error.into()),
        };
        let mut download =
            Download { hub: self, id, cached_model: &cached_model, repository, on_progress };
        let model = download.run()?;
        // Last, so that the old snapshot of the revision stays in use until the new one is
        // complete.
        cached_model.set_revision(&download.repository.commit)?;
        Ok(model)
    }

    fn not_cached(&self, id: &ModelId, missing: String) -> HubError {
        HubError::NotCached {
            model: id.to_string(),
            repository: id.repository().to_owned(),
            revision: id.revision().to_owned(),
            cache: self.cache.folder().to_owned(),
            missing,
        }
    }
}

/// The download of one revision's files.
struct Download<'a, 'p> {
    hub: &'a Hub,
    id: &'a ModelId,
    cached_model: &'a CachedModel,
    repository: Repository,
    on_progress: &'a mut OnProgress<'p>,
}

impl Download<'_, '_> {
    /// Downloads the model, and returns its folder or GGUF file. The weights of Hugging Face's
    /// layout take precedence, unless a quantization is requested.
    fn run(&mut self) -> Result<PathBuf, FetchError> {
        let snapshot = self.cached_model.snapshot(&self.repository.commit);
        let quantization = self.id.quantization();
        let has_weights = self.single().is_some() || self.has(INDEX);
        if quantization.is_none() && self.has(CONFIG) && has_weights {
            self.huggingface()?;
            return Ok(snapshot);
        }
        let Some(parts) = gguf_files::choose(&self.repository.files, quantization) else {
            return Err(self.no_model().into());
        };
        for name in &parts {
            self.file(name)?;
        }
        Ok(snapshot.join(&parts[0]))
    }

    /// Returns the name of the file with all weights, if there is one.
    fn single(&self) -> Option<&'static str> {
        DRAFTER_FILES.into_iter().find(|name| self.has(name))
    }

    /// Downloads the files of Hugging Face's layout. Small files come first: they may show that the
    /// large ones are useless.
    fn huggingface(&mut self) -> Result<(), FetchError> {
        for name in SMALL_FILES {
            if self.has(name) {
                self.file(name)?;
            }
        }
        // A pickled projection is downloaded, too: opening the drafter says how to convert it.
        if let Some(projection) = PROJECTION_FILES.into_iter().find(|name| self.has(name)) {
            self.file(projection)?;
        }
        if let Some(single) = self.single() {
            return self.file(single);
        }
        self.file(INDEX)?;
        let path = self.cached_model.snapshot(&self.repository.commit).join(INDEX);
        let text = fs::read_to_string(&path)
            .map_err(|cause| HubError::Cache { path: path.clone(), cause })?;
        for shard in WeightIndex::parse(&text, &path)?.shards() {
            self.file(shard)?;
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.repository.files.iter().any(|file| file == name)
    }

    /// Downloads a file into the snapshot, if it is not there yet.
    fn file(&mut self, name: &str) -> Result<(), FetchError> {
        let commit = &self.repository.commit;
        if self.cached_model.snapshot(commit).join(name).is_file() {
            return Ok(());
        }
        let (client, cached_model, id) = (&self.hub.client, self.cached_model, self.id);
        let file = client.describe(id, commit, name)?;
        let model = id.to_string();
        let step = Step::Download { model: &model, file: name };
        let (total, on_progress) = (file.size, &mut *self.on_progress);
        let report = |done| on_progress(Progress { step, done, total });
        Transfer { client, cached_model, id, name, file: &file }.run(report)?;
        Ok(cached_model.link(&file.etag, commit, name)?)
    }

    /// Returns the error for a repository without the requested model.
    fn no_model(&self) -> HubError {
        let available = gguf_files::all(&self.repository.files);
        if let Some(quantization) = self.id.quantization().filter(|_| !available.is_empty()) {
            return HubError::NoQuantization {
                repository: self.id.repository().to_owned(),
                quantization: quantization.to_owned(),
                available: available.join(", "),
            };
        }
        match self.id.quantization() {
            Some(_) => self.not_a_model("GGUF file"),
            None if self.has(CONFIG) => self.not_a_model("safetensors weights"),
            None => self.not_a_model(CONFIG),
        }
    }

    fn not_a_model(&self, missing: &'static str) -> HubError {
        let ends = |ending: &str| self.repository.files.iter().any(|file| file.ends_with(ending));
        let others = [".bin", ".pth", ".pt", ".onnx", ".safetensors"];
        let others: Vec<&str> = others.into_iter().filter(|ending| ends(ending)).collect();
        let others = match others.len() {
            0 => String::new(),
            _ => format!("{} files of other layouts", others.join(" and ")),
        };
        HubError::NotAModel { model: self.id.to_string(), missing, others }
    }
}

/// Returns the value of an environment variable, if it is not blank.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Returns the address of the hub.
fn endpoint() -> String {
    variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.into())
}

/// Returns whether the environment forbids to use the hub.
fn is_offline() -> bool {
    variable("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value))
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// Returns the home folder of Hugging Face's tools.
fn hub_home() -> Option<PathBuf> {
    if let Some(home) = variable("HF_HOME") {
        return Some(home.into());
    }
    let caches = match variable("XDG_CACHE_HOME") {
        Some(caches) => caches.into(),
        None => env::home_dir()?.join(".cache"),
    };
    Some(caches.join("huggingface"))
}

/// Returns the token of the environment, or the one that `hf auth login` stored, and where it comes
/// from.
fn token(home: Option<&Path>) -> Option<(String, TokenPlace)> {
    let stored = || {
        let file: PathBuf = match variable("HF_TOKEN_PATH") {
            Some(file) => file.into(),
            None => home?.join("token"),
        };
        let token = fs::read_to_string(&file).ok()?.trim().to_owned();
        Some((token, TokenPlace::File(file)))
    };
    let given = variable("HF_TOKEN").map(|token| (token, TokenPlace::Environment));
    given.or_else(stored).filter(|(token, _)| !token.is_empty())
}

//! Downloads what is missing of a model.

use crate::cache::{CONFIG, Cache, CachedModel, INDEX};
use crate::client::{Client, Repository};
use crate::environment::{self, Folders};
use crate::error::HubError;
use crate::gguf_files;
use crate::model_id::ModelId;
use crate::transfer::Transfer;
use forerun_formats::LoadError;
use forerun_formats::checkpoint::{DRAFTER_FILES, WeightIndex};
use forerun_formats::speculator::PROJECTION_FILES;
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Files other than weights that are downloaded if a repository has them.
const SMALL_FILES: [&str; 10] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
];

/// The hub and its cache.
pub struct Hub {
    cache: Cache,
    client: Client,
    offline: bool,
}

/// Why a hub model cannot be downloaded.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The hub cannot be reached, or has no such model.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The index of its shards is malformed.
    #[error(transparent)]
    Index(#[from] LoadError),
    /// The progress callback cancelled the download.
    #[error("the download was cancelled")]
    Cancelled,
}

/// What happens while a model is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchEvent<'a> {
    /// The hub cannot be reached, so the model comes from the cache as it was last seen. Reported
    /// once.
    Cached,
    /// A file is downloaded.
    Download {
        /// The file's name in the repository.
        file: &'a str,
        /// The bytes so far, including those that an earlier run has downloaded.
        done: u64,
        /// The bytes in total. The download has ended when `done` reaches it.
        total: u64,
    },
}

type OnEvent<'a> = dyn FnMut(FetchEvent<'_>) -> ControlFlow<()> + 'a;

impl Hub {
    /// Returns the hub and the cache that the environment variables name. `offline`: use the cache
    /// alone.
    ///
    /// # Errors
    /// If there is no home folder for the cache.
    pub fn from_environment(offline: bool) -> Result<Self, HubError> {
        let folders = Folders::from_environment()?;
        let token = environment::token(folders.home.as_deref()).map(|(token, _)| token);
        let client = Client::new(&environment::endpoint(), token);
        let offline = offline || environment::is_offline();
        Ok(Self { cache: Cache::new(folders.cache), client, offline })
    }

    /// Returns the folder with a model's files, or its GGUF file, after downloading what is
    /// missing. If `on_event` breaks, the download is cancelled; the next one resumes it.
    ///
    /// # Errors
    /// If the model cannot be downloaded, or the download is cancelled.
    pub fn fetch(&self, id: &ModelId, on_event: &mut OnEvent<'_>) -> Result<PathBuf, FetchError> {
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
                return match on_event(FetchEvent::Cached) {
                    ControlFlow::Continue(()) => Ok(model),
                    ControlFlow::Break(()) => Err(FetchError::Cancelled),
                };
            }
            (Err(error), _) => return Err(error.into()),
        };
        let mut download =
            Download { hub: self, id, cached_model: &cached_model, repository, on_event };
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
    on_event: &'a mut OnEvent<'p>,
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
        let (total, on_event) = (file.size, &mut *self.on_event);
        let report = |done| on_event(FetchEvent::Download { file: name, done, total });
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

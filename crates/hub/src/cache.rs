//! The cache of hub models on disk, in the layout of Hugging Face's tools.
//!
//! `models--owner--name/` has `blobs/ETAG`, `refs/REVISION`, and `snapshots/COMMIT/FILE`, which are
//! links to blobs. Partial downloads are `blobs/ETAG.incomplete`, so that one tool can resume
//! another's.

use crate::error::HubError;
use crate::gguf_files;
use crate::model_id::ModelId;
use forerun_formats::checkpoint::{DRAFTER_FILES, WeightIndex};
use forerun_formats::speculator::{PROJECTION_FILES, has_projection};
use hf_hub::{Repo, RepoType};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The file of weights that are not split into shards. Drafters may use other names.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The index of weights that are split into shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// The file that every Hugging Face checkpoint has.
pub(crate) const CONFIG: &str = "config.json";

/// The cache of all hub models.
pub(crate) struct Cache(hf_hub::Cache);

/// The part of the cache that holds one revision of a model.
pub(crate) struct CachedModel {
    repo: hf_hub::CacheRepo,
    id: ModelId,
    /// `models--owner--name`.
    folder: PathBuf,
    locks: PathBuf,
}

impl Cache {
    /// Creates a handle to the cache in a folder.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self(hf_hub::Cache::new(folder))
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn model(&self, id: &ModelId) -> CachedModel {
        let revision = id.revision().to_owned();
        let repo = Repo::with_revision(id.repository().to_owned(), RepoType::Model, revision);
        let name = repo.folder_name();
        let folder = self.folder().join(&name);
        let locks = self.folder().join(".locks").join(name);
        CachedModel { repo: self.0.repo(repo), id: id.clone(), folder, locks }
    }
}

impl CachedModel {
    /// Returns the folder of a commit's files.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.repo.pointer_path(commit)
    }

    /// Returns the folder of the revision's model, or its GGUF file.
    ///
    /// # Errors
    /// Describes what is missing.
    pub(crate) fn model_of_revision(&self) -> Result<PathBuf, String> {
        model_in(self.snapshot_of_revision()?, self.id.quantization())
    }

    /// Returns the snapshot of the revision, which may lack files.
    fn snapshot_of_revision(&self) -> Result<PathBuf, String> {
        let revision = self.id.revision();
        if self.id.is_pinned() {
            return Ok(self.snapshot(revision));
        }
        let file = self.folder.join("refs").join(revision);
        let unknown = |_| format!("it has no revision {revision}");
        let commit = fs::read_to_string(file).map_err(unknown)?;
        let commit = commit.trim();
        // It is used as the name of a folder.
        if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(format!("its revision {revision} names no valid commit"));
        }
        Ok(self.snapshot(commit))
    }

    /// Records the commit that the revision points to.
    pub(crate) fn set_revision(&self, commit: &str) -> Result<(), HubError> {
        if self.id.is_pinned() {
            return Ok(());
        }
        let path = || self.folder.join("refs").join(self.id.revision());
        self.repo.create_ref(commit).map_err(|cause| HubError::Cache { path: path(), cause })
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    pub(crate) fn partial(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Waits until no other process downloads the same file, and locks it.
    pub(crate) fn lock(&self, etag: &str) -> Result<File, HubError> {
        let path = self.locks.join(format!("{etag}.lock"));
        let file = create_folder_of(&path)
            .and_then(|()| File::options().create(true).truncate(false).write(true).open(&path));
        let file = file.map_err(|cause| HubError::Cache { path, cause })?;
        // Some network file systems have no locks. Then the download goes on without one.
        drop(file.lock());
        Ok(file)
    }

    /// Links a blob into a snapshot.
    pub(crate) fn link(&self, etag: &str, commit: &str, name: &str) -> Result<(), HubError> {
        let path = self.snapshot(commit).join(name);
        // Renaming replaces a link that another process may have created in the meantime.
        let last = name.rsplit('/').next().unwrap_or(name);
        let new = path.with_file_name(format!(".{last}.{}", std::process::id()));
        let folders = name.split('/').count() - 1;
        let link = || {
            create_folder_of(&path)?;
            link_file(etag, folders, &self.blob(etag), &new)?;
            fs::rename(&new, &path)
        };
        link().map_err(|cause| HubError::Cache { path: path.clone(), cause })
    }
}

pub(crate) fn create_folder_of(file: &Path) -> std::io::Result<()> {
    file.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Links a blob to `path`, which is so many folders deep in a snapshot.
#[cfg(unix)]
fn link_file(etag: &str, folders: usize, _blob: &Path, path: &Path) -> std::io::Result<()> {
    let up = "../".repeat(folders + 2);
    std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(etag), path)
}

#[cfg(not(unix))]
fn link_file(_etag: &str, _folders: usize, blob: &Path, path: &Path) -> std::io::Result<()> {
    // Symbolic links need rights that users seldom have on other systems.
    fs::hard_link(blob, path)
}

/// Returns the model in a snapshot: the snapshot itself, or a GGUF file in it.
fn model_in(snapshot: PathBuf, quantization: Option<&str>) -> Result<PathBuf, String> {
    let missing = missing_file(&snapshot);
    if quantization.is_none() && missing.is_none() {
        return Ok(snapshot);
    }
    let mut files = Vec::new();
    collect_files(&snapshot, "", &mut files);
    let Some(parts) = gguf_files::choose(&files, quantization) else {
        let gguf = || quantization.map(|quantization| format!("GGUF file of type {quantization}"));
        return Err(format!("it has no {}", gguf().or(missing).unwrap_or_default()));
    };
    match parts.iter().find(|name| !snapshot.join(name).is_file()) {
        Some(name) => Err(format!("it has no {name}")),
        None => Ok(snapshot.join(&parts[0])),
    }
}

/// Collects the names of the files in a snapshot and its folders, in the form that repositories
/// have.
pub(crate) fn collect_files(folder: &Path, prefix: &str, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let (name, path) = (format!("{prefix}{name}"), entry.path());
        if path.is_file() {
            files.push(name);
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_files(&path, &format!("{name}/"), files);
        }
    }
}

/// Returns the first missing file that a snapshot needs to be a model.
fn missing_file(snapshot: &Path) -> Option<String> {
    let has = |name: &str| snapshot.join(name).is_file();
    if !has(CONFIG) {
        return Some(CONFIG.into());
    }
    if has_projection(snapshot) && !PROJECTION_FILES.iter().any(|name| has(name)) {
        return Some(PROJECTION_FILES[0].into());
    }
    if DRAFTER_FILES.iter().any(|name| has(name)) {
        return None;
    }
    let file = snapshot.join(INDEX);
    let Ok(text) = fs::read_to_string(&file) else { return Some(SINGLE.into()) };
    // Opening the checkpoint reports a malformed index.
    let index = WeightIndex::parse(&text, &file).ok()?;
    index.shards().iter().find(|name| !has(name)).cloned()
}

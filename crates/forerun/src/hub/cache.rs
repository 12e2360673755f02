//! The cache of hub models on disk, laid out as Hugging Face's tools do:
//! `models--owner--name/` with `blobs/ETAG`, `refs/REVISION` and `snapshots/COMMIT/FILE`, which are
//! links to blobs. Files under way are `blobs/ETAG.incomplete`, so a download that one tool began
//! another one ends.

use super::error::HubError;
use super::model_id::ModelId;
use forerun_model::checkpoint::{DRAFTER_FILES, WeightIndex};
use hf_hub::{Repo, RepoType};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The weights in one file (those of drafters have other names, too), and the index of several.
pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Every checkpoint of this kind has it.
pub(super) const CONFIG: &str = "config.json";

/// The folder of all hub models.
pub(super) struct Cache(hf_hub::Cache);

/// One model's place in it.
pub(super) struct Place {
    repo: hf_hub::CacheRepo,
    id: ModelId,
    /// `models--owner--name`.
    folder: PathBuf,
    locks: PathBuf,
}

impl Cache {
    /// The cache in a folder.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(hf_hub::Cache::new(folder))
    }

    pub(super) fn folder(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn place(&self, id: &ModelId) -> Place {
        let revision = id.revision().to_owned();
        let repo = Repo::with_revision(id.repository().to_owned(), RepoType::Model, revision);
        let name = repo.folder_name();
        let folder = self.folder().join(&name);
        let locks = self.folder().join(".locks").join(name);
        Place { repo: self.0.repo(repo), id: id.clone(), folder, locks }
    }
}

impl Place {
    /// The folder of a commit's files.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.repo.pointer_path(commit)
    }

    /// The snapshot of the revision, as far as it was ever asked for, or what is missing.
    pub(super) fn cached(&self) -> Result<PathBuf, String> {
        let revision = self.id.revision();
        let snapshot = if self.id.is_pinned() {
            self.snapshot(revision)
        } else {
            let file = self.folder.join("refs").join(revision);
            let unknown = |_| format!("it has no revision {revision}");
            let commit = fs::read_to_string(file).map_err(unknown)?;
            let commit = commit.trim();
            // It becomes the name of a folder.
            if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                return Err(format!("its revision {revision} is no commit"));
            }
            self.snapshot(commit)
        };
        missing_file(&snapshot).map_or(Ok(snapshot), |file| Err(format!("it has no {file}")))
    }

    /// Notes the commit that the revision is now.
    pub(super) fn set_revision(&self, commit: &str) -> Result<(), HubError> {
        if self.id.is_pinned() {
            return Ok(());
        }
        let path = || self.folder.join("refs").join(self.id.revision());
        self.repo.create_ref(commit).map_err(|cause| HubError::Cache { path: path(), cause })
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Waits until no other process fetches the same file.
    pub(super) fn lock(&self, etag: &str) -> Result<File, HubError> {
        let path = self.locks.join(format!("{etag}.lock"));
        let file = create_folder_of(&path)
            .and_then(|()| File::options().create(true).truncate(false).write(true).open(&path));
        let file = file.map_err(|cause| HubError::Cache { path, cause })?;
        // Some network file systems have no locks; then there is nobody to wait for.
        drop(file.lock());
        Ok(file)
    }

    /// Makes a blob a file of a snapshot.
    pub(super) fn link(&self, etag: &str, commit: &str, name: &str) -> Result<(), HubError> {
        let path = self.snapshot(commit).join(name);
        // Renamed, it replaces whatever another process put there in the meantime.
        let new = path.with_file_name(format!(".{name}.{}", std::process::id()));
        let link = || {
            create_folder_of(&path)?;
            link_file(etag, &self.blob(etag), &new)?;
            fs::rename(&new, &path)
        };
        link().map_err(|cause| HubError::Cache { path: path.clone(), cause })
    }
}

pub(super) fn create_folder_of(file: &Path) -> std::io::Result<()> {
    file.parent().map_or(Ok(()), fs::create_dir_all)
}

#[cfg(unix)]
fn link_file(etag: &str, _blob: &Path, path: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(Path::new("../../blobs").join(etag), path)
}

#[cfg(not(unix))]
fn link_file(_etag: &str, blob: &Path, path: &Path) -> std::io::Result<()> {
    // Symbolic links need rights there that users seldom have.
    fs::hard_link(blob, path)
}

/// The first file without which a snapshot is no model.
fn missing_file(snapshot: &Path) -> Option<String> {
    let has = |name: &str| snapshot.join(name).is_file();
    if !has(CONFIG) {
        return Some(CONFIG.into());
    }
    if DRAFTER_FILES.iter().any(|name| has(name)) {
        return None;
    }
    let file = snapshot.join(INDEX);
    let Ok(text) = fs::read_to_string(&file) else { return Some(SINGLE.into()) };
    // A broken index is the checkpoint's error to tell.
    let index = WeightIndex::parse(&text, &file).ok()?;
    index.shards().iter().find(|name| !has(name)).cloned()
}

//! What the cache of hub models holds, and the removal of models.

use crate::cache::{Cache, collect_files};
use crate::environment::Folders;
use crate::error::HubError;
use crate::gguf_files;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What the name of a model's folder in the cache begins with.
const PREFIX: &str = "models--";

/// The models in the cache that Hugging Face's tools share.
pub struct HubCache(Cache);

/// A model in the cache: all revisions of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// The repository, `owner/name`.
    pub repository: String,
    /// Its folder in the cache.
    pub folder: PathBuf,
    /// The revisions that have files, sorted by commit.
    pub revisions: Vec<HubRevision>,
    /// The size on disk in bytes. A file of several revisions counts once, and partial downloads
    /// count.
    pub bytes: u64,
    /// The size of partial downloads in bytes.
    pub partial_bytes: u64,
    /// When a file of the model was last read, or written if the file system does not record reads.
    /// File systems update the time of a read rarely, often once a day.
    pub last_used: Option<SystemTime>,
}

/// A revision of a model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubRevision {
    /// The commit.
    pub commit: String,
    /// The branches and tags that point to it, sorted.
    pub names: Vec<String>,
    /// The files, sorted by name.
    pub files: Vec<HubFile>,
}

/// A file of a model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// The name in the repository, such as `onnx/model.onnx`.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
}

impl HubModel {
    /// Returns the names of the files of all revisions, sorted.
    #[must_use]
    pub fn files(&self) -> BTreeSet<&str> {
        let files = self.revisions.iter().flat_map(|revision| &revision.files);
        files.map(|file| file.name.as_str()).collect()
    }

    /// Returns the formats of its weights that forerun reads: `safetensors` and `gguf`.
    #[must_use]
    pub fn formats(&self) -> Vec<&'static str> {
        let files = self.files();
        let has = |ending: &str| files.iter().any(|name| name.ends_with(ending));
        let formats = [("safetensors", ".safetensors"), ("gguf", ".gguf")];
        formats.into_iter().filter(|(_, ending)| has(ending)).map(|(format, _)| format).collect()
    }

    /// Returns the names of its GGUF models, sorted. A split model has the name of its first part.
    #[must_use]
    pub fn gguf_models(&self) -> Vec<String> {
        let files: Vec<String> = self.files().into_iter().map(str::to_owned).collect();
        gguf_files::all(&files).into_iter().map(str::to_owned).collect()
    }
}

impl HubCache {
    /// Returns the cache that the environment variables name (`HF_HUB_CACHE`, `HF_HOME`), or the
    /// usual one.
    ///
    /// # Errors
    /// If there is no home folder.
    pub fn from_environment() -> Result<Self, HubError> {
        Ok(Self(Cache::new(Folders::from_environment()?.cache)))
    }

    /// Returns the folder of the cache, which may not exist.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.folder()
    }

    /// Returns the models in the cache, sorted by repository. Data sets are not among them.
    ///
    /// # Errors
    /// If the folder exists, but cannot be read.
    pub fn models(&self) -> Result<Vec<HubModel>, HubError> {
        let folder = self.folder();
        if !folder.exists() {
            return Ok(Vec::new());
        }
        let entries =
            fs::read_dir(folder).map_err(|cause| HubError::Cache { path: folder.into(), cause })?;
        let mut models = Vec::new();
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Some(name) = name.strip_prefix(PREFIX) else { continue };
            if entry.path().is_dir() {
                models.push(read_model(name.replacen("--", "/", 1), entry.path()));
            }
        }
        models.sort_by(|one, other| one.repository.cmp(&other.repository));
        Ok(models)
    }

    /// Deletes a model with all revisions. Returns the freed bytes.
    ///
    /// # Errors
    /// If a file of the model is being downloaded, or cannot be deleted.
    pub fn remove(&self, model: &HubModel) -> Result<u64, HubError> {
        let locks = self.check_unused(model)?;
        let delete = |path: &Path| match fs::remove_dir_all(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        for path in [&model.folder, &locks] {
            delete(path).map_err(|cause| HubError::Cache { path: path.clone(), cause })?;
        }
        Ok(model.bytes)
    }

    /// Deletes the GGUF model that a quantization names, such as `Q4_K_M`, from all revisions.
    /// Returns the freed bytes.
    ///
    /// # Errors
    /// If there is no such file, or a file of the model is being downloaded or cannot be deleted.
    pub fn remove_quantization(
        &self,
        model: &HubModel,
        quantization: &str,
    ) -> Result<u64, HubError> {
        self.check_unused(model)?;
        let files: Vec<String> = model.files().into_iter().map(str::to_owned).collect();
        let chosen = gguf_files::choose(&files, Some(quantization));
        let chosen: HashSet<String> = chosen.into_iter().flatten().collect();
        if chosen.is_empty() {
            return Err(HubError::NoQuantization {
                repository: model.repository.clone(),
                quantization: quantization.to_owned(),
                available: model.gguf_models().join(", "),
            });
        }
        // The content of a file is deleted only if no other file has it.
        let (mut deleted, mut kept) = (Vec::new(), HashSet::new());
        for (path, name) in snapshot_files(&model.folder) {
            let content = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
            match chosen.contains(&name) {
                true => deleted.push((path, content)),
                false => drop(kept.insert(content)),
            }
        }
        for (path, content) in deleted {
            for file in [&path, &content] {
                if file.symlink_metadata().is_ok() && !kept.contains(file) {
                    let delete = fs::remove_file(file);
                    delete.map_err(|cause| HubError::Cache { path: file.clone(), cause })?;
                }
            }
        }
        let left = read_model(model.repository.clone(), model.folder.clone());
        Ok(model.bytes.saturating_sub(left.bytes))
    }

    /// Checks that no process downloads a file of the model, and returns the folder of its locks.
    fn check_unused(&self, model: &HubModel) -> Result<PathBuf, HubError> {
        let name = model.folder.file_name().unwrap_or_default();
        let locks = self.folder().join(".locks").join(name);
        for entry in fs::read_dir(&locks).into_iter().flatten().flatten() {
            let lock = File::options().write(true).open(entry.path());
            let is_locked =
                |lock: File| matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock));
            if lock.is_ok_and(is_locked) {
                return Err(HubError::InUse { repository: model.repository.clone() });
            }
        }
        Ok(locks)
    }
}

fn read_model(repository: String, folder: PathBuf) -> HubModel {
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut references = Vec::new();
    collect_files(&folder.join("refs"), "", &mut references);
    for name in references {
        if let Ok(commit) = fs::read_to_string(folder.join("refs").join(&name)) {
            names.entry(commit.trim().to_owned()).or_default().push(name);
        }
    }
    let (mut bytes, mut partial_bytes, mut blobs) = (0, 0, HashSet::new());
    for entry in fs::read_dir(folder.join("blobs")).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += metadata.len();
        if entry.path().extension().is_some_and(|ending| ending == "incomplete") {
            partial_bytes += metadata.len();
        }
        blobs.insert(fingerprint(&metadata));
    }
    let mut revisions: BTreeMap<String, Vec<HubFile>> = BTreeMap::new();
    let mut last_used = None;
    for (path, name) in snapshot_files(&folder) {
        let Ok(metadata) = fs::metadata(&path) else { continue };
        // Where there are no symbolic links, the file is a hard link to its content, or the content
        // itself.
        let is_link = path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
        if !is_link && !blobs.contains(&fingerprint(&metadata)) {
            bytes += metadata.len();
        }
        last_used = last_used.max(metadata.accessed().or_else(|_| metadata.modified()).ok());
        let commit = path.strip_prefix(folder.join("snapshots")).ok().and_then(|rest| {
            Some(rest.components().next()?.as_os_str().to_string_lossy().into_owned())
        });
        let file = HubFile { name, bytes: metadata.len() };
        revisions.entry(commit.unwrap_or_default()).or_default().push(file);
    }
    let revisions = revisions.into_iter().map(|(commit, mut files)| {
        files.sort_by(|one, other| one.name.cmp(&other.name));
        let mut names = names.remove(&commit).unwrap_or_default();
        names.sort_unstable();
        HubRevision { commit, names, files }
    });
    let revisions = revisions.collect();
    HubModel { repository, folder, revisions, bytes, partial_bytes, last_used }
}

/// What hard links of the same file have in common.
fn fingerprint(metadata: &Metadata) -> (u64, Option<SystemTime>) {
    (metadata.len(), metadata.modified().ok())
}

/// Returns the paths of the files in all snapshots, and their names in the repository.
fn snapshot_files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for snapshot in fs::read_dir(folder.join("snapshots")).into_iter().flatten().flatten() {
        let mut names = Vec::new();
        collect_files(&snapshot.path(), "", &mut names);
        found.extend(names.into_iter().map(|name| (snapshot.path().join(&name), name)));
    }
    found
}

#[cfg(all(test, unix))]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Writes a file of a model as Hugging Face's tools do.
    fn add(cache: &Path, commit: &str, name: &str, etag: &str, bytes: usize) {
        let folder = cache.join("models--owner--name");
        let link = folder.join("snapshots").join(commit).join(name);
        fs::create_dir_all(folder.join("blobs")).unwrap();
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        fs::write(folder.join("blobs").join(etag), vec![0; bytes]).unwrap();
        let up = "../".repeat(2 + name.matches('/').count());
        std::os::unix::fs::symlink(format!("{up}blobs/{etag}"), link).unwrap();
    }

    fn cache() -> (tempfile::TempDir, HubCache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache(Cache::new(folder.path().to_owned()));
        assert_eq!(cache.models().unwrap(), []);
        add(folder.path(), "c1", "config.json", "e1", 10);
        add(folder.path(), "c1", "m-Q4_K_M.gguf", "e2", 1000);
        add(folder.path(), "c2", "m-Q4_K_M.gguf", "e2", 1000);
        add(folder.path(), "c2", "sub/m-Q8_0.gguf", "e3", 2000);
        let model = folder.path().join("models--owner--name");
        fs::create_dir_all(model.join("refs/pr")).unwrap();
        fs::write(model.join("refs/main"), "c2\n").unwrap();
        fs::write(model.join("refs/pr/1"), "c1").unwrap();
        fs::write(model.join("blobs/e9.incomplete"), "part").unwrap();
        fs::create_dir_all(folder.path().join("datasets--a--b")).unwrap();
        (folder, cache)
    }

    #[test]
    fn shared_contents_count_once_and_partial_downloads_count() {
        let (_folder, cache) = cache();
        let models = cache.models().unwrap();
        assert_eq!(models.len(), 1);
        let model = &models[0];
        assert_eq!((model.repository.as_str(), model.bytes), ("owner/name", 3014));
        assert_eq!(model.partial_bytes, 4);
        assert!(model.last_used.is_some());
        assert_eq!(model.formats(), ["gguf"]);
        assert_eq!(model.gguf_models(), ["m-Q4_K_M.gguf", "sub/m-Q8_0.gguf"]);
        let names: Vec<_> = model.revisions.iter().map(|revision| &revision.names[..]).collect();
        assert_eq!(names, [["pr/1"], ["main"]]);
        assert_eq!(model.revisions[1].files[1].name, "sub/m-Q8_0.gguf");
    }

    #[test]
    fn a_quantization_is_removed_from_all_revisions() {
        let (folder, cache) = cache();
        let model = cache.models().unwrap().remove(0);
        let unknown = cache.remove_quantization(&model, "Q2_K").unwrap_err();
        assert!(unknown.to_string().contains("m-Q4_K_M.gguf, sub/m-Q8_0.gguf"), "{unknown}");
        assert_eq!(cache.remove_quantization(&model, "Q4_K_M").unwrap(), 1000);
        let left = cache.models().unwrap().remove(0);
        assert_eq!(
            left.files().into_iter().collect::<Vec<_>>(),
            ["config.json", "sub/m-Q8_0.gguf"]
        );
        assert_eq!(left.bytes, 2014);
        assert_eq!(cache.remove(&left).unwrap(), 2014);
        assert_eq!(cache.models().unwrap(), []);
        assert!(folder.path().join("datasets--a--b").exists());
    }

    #[test]
    fn a_model_that_is_downloaded_is_not_removed() {
        let (folder, cache) = cache();
        let locks = folder.path().join(".locks/models--owner--name");
        fs::create_dir_all(&locks).unwrap();
        let lock = File::create(locks.join("e2.lock")).unwrap();
        lock.lock().unwrap();
        let model = cache.models().unwrap().remove(0);
        assert!(matches!(cache.remove(&model), Err(HubError::InUse { .. })));
        lock.unlock().unwrap();
        cache.remove(&model).unwrap();
        assert!(!locks.exists());
    }
}

//! Where a model comes from.

use forerun_formats::EmbeddedModel;
#[cfg(feature = "hub")]
use forerun_hub::ModelId;
use std::fmt;
use std::path::{Path, PathBuf};

/// A checkpoint on disk, a model of the Hugging Face hub, or one that is part of the program.
///
/// Converting from a text or a path decides which one is meant: a path that exists is a checkpoint
/// on disk. Otherwise, with the feature `hub`, a text such as `owner/name`, `owner/name@revision`
/// or `owner/name:Q4_K_M` is a hub id. Everything else is a path, which may not exist until the
/// model is opened.
///
/// ```
/// use forerun::ModelSource;
/// use std::path::Path;
///
/// let source = ModelSource::from("./models/target");
/// assert_eq!(source.path(), Some(Path::new("./models/target")));
/// assert_eq!(source.to_string(), "./models/target");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModelSource {
    /// A Hugging Face directory, a GGUF file, or a llama2.c file.
    Path(PathBuf),
    /// A model of the hub.
    #[cfg(feature = "hub")]
    Hub(ModelId),
    /// A model that is part of the program.
    Embedded(EmbeddedModel),
}

impl ModelSource {
    /// Returns the path of a checkpoint on disk; `None` for other models.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the last component of the path, or a hub model's id without its owner, as a short
    /// name.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Path(path) => {
                path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
            }
            #[cfg(feature = "hub")]
            Self::Hub(id) => {
                let id = id.to_string();
                id.split_once('/').map_or("", |(_, name)| name).to_owned()
            }
            Self::Embedded(model) => model.name.to_owned(),
        }
    }
}

impl Default for ModelSource {
    /// Returns the empty path, which names no model.
    fn default() -> Self {
        Self::Path(PathBuf::new())
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            #[cfg(feature = "hub")]
            Self::Hub(id) => write!(f, "{id}"),
            Self::Embedded(model) => f.write_str(model.name),
        }
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> Self {
        #[cfg(feature = "hub")]
        if let Some(id) = path.to_str().and_then(ModelId::parse)
            && !path.exists()
        {
            return Self::Hub(id);
        }
        Self::Path(path)
    }
}

impl From<&Path> for ModelSource {
    fn from(path: &Path) -> Self {
        path.to_owned().into()
    }
}

impl From<&str> for ModelSource {
    fn from(text: &str) -> Self {
        PathBuf::from(text).into()
    }
}

impl From<String> for ModelSource {
    fn from(text: String) -> Self {
        PathBuf::from(text).into()
    }
}

#[cfg(feature = "hub")]
impl From<ModelId> for ModelSource {
    fn from(id: ModelId) -> Self {
        Self::Hub(id)
    }
}

impl From<EmbeddedModel> for ModelSource {
    fn from(model: EmbeddedModel) -> Self {
        Self::Embedded(model)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_exists_wins_over_a_hub_id() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ModelSource::from(folder.path()).path(), Some(folder.path()));
        let id = ModelSource::from("owner/name@v1");
        assert_eq!(id.path().is_none(), cfg!(feature = "hub"));
        assert_eq!((id.to_string().as_str(), id.name().as_str()), ("owner/name@v1", "name@v1"));
        for path in ["./owner/name", "/nowhere", "a/b.bin", ""] {
            assert_eq!(ModelSource::from(path).path(), Some(Path::new(path)));
        }
    }
}

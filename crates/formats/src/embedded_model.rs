//! Models that are part of the program.

use crate::load_error::LoadError;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// A Hugging Face directory that is part of the program. Its name identifies it.
///
/// `files` hold what `include_bytes!` reads. Those of the demonstration pair (`models/target` and
/// `models/drafter` of the repository) are `TARGET` and `DRAFTER` of the crate `forerun-models`.
#[derive(Clone, Copy)]
pub struct EmbeddedModel {
    /// The name, for messages.
    pub name: &'static str,
    /// The names and contents of the files.
    pub files: &'static [(&'static str, &'static [u8])],
    /// The hidden units by which each feed-forward layer is padded. They take time to read, but
    /// change no number. The weights must be bfloat16 numbers in the layout of Llama.
    pub padding: usize,
}

impl EmbeddedModel {
    /// Returns the name of the directory, for messages. There is no such directory.
    #[must_use]
    pub fn path(&self) -> &'static Path {
        Path::new(self.name)
    }

    /// Returns the content of a file.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<&'static [u8]> {
        self.files.iter().find(|(file, _)| *file == name).map(|&(_, content)| content)
    }

    /// Returns the text of a file.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&'static str> {
        str::from_utf8(self.file(name)?).ok()
    }

    /// Returns the path of a file for messages, and its text.
    pub(crate) fn required_text(&self, name: &str) -> Result<(PathBuf, &'static str), LoadError> {
        let path = self.path().join(name);
        match self.text(name) {
            Some(text) => Ok((path, text)),
            None => Err(LoadError::MissingFile { path, hint: "it is not part of this program" }),
        }
    }
}

impl fmt::Debug for EmbeddedModel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("EmbeddedModel").field(&self.name).finish()
    }
}

impl PartialEq for EmbeddedModel {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for EmbeddedModel {}

impl PartialOrd for EmbeddedModel {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EmbeddedModel {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.cmp(other.name)
    }
}

impl Hash for EmbeddedModel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

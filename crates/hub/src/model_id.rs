//! The ids of hub models.

use std::fmt;

/// Endings of file names. Texts with them are paths, even if they look like ids.
const FILE_ENDINGS: [&str; 4] = [".bin", ".safetensors", ".gguf", ".json"];

/// The maximum length of an owner or a name on the hub.
const MAX_LENGTH: usize = 96;

/// The id of a hub model: `owner/name`, `owner/name@revision`, or, for a GGUF file in a repository,
/// `owner/name:Q4_K_M` or `owner/name:Q4_K_M@revision`.
///
/// ```
/// use forerun_hub::ModelId;
///
/// let id = ModelId::parse("owner/name@v1.0").unwrap();
/// assert_eq!((id.repository(), id.revision()), ("owner/name", "v1.0"));
/// let id = ModelId::parse("owner/name:Q4_K_M").unwrap();
/// assert_eq!((id.repository(), id.quantization()), ("owner/name", Some("Q4_K_M")));
/// assert_eq!(ModelId::parse("./models/target"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId {
    repository: Box<str>,
    quantization: Option<Box<str>>,
    revision: Box<str>,
}

impl ModelId {
    /// Parses an id. Returns `None` for texts that look like paths, and for names that the hub does
    /// not allow, so that no id leads out of the cache's folders.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (model, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (repository, quantization) = match model.split_once(':') {
            Some((repository, quantization)) => (repository, Some(quantization)),
            None => (model, None),
        };
        if quantization.is_some_and(|quantization| !is_ref_part(quantization)) {
            return None;
        }
        let (owner, name) = repository.split_once('/')?;
        let is_file = FILE_ENDINGS.iter().any(|ending| name.ends_with(ending));
        if !is_name(owner) || !is_name(name) || is_file || !revision.split('/').all(is_ref_part) {
            return None;
        }
        Some(Self {
            repository: repository.into(),
            quantization: quantization.map(Box::from),
            revision: revision.into(),
        })
    }

    /// Returns what the name of the GGUF file must contain, such as `Q4_K_M`.
    #[must_use]
    pub fn quantization(&self) -> Option<&str> {
        self.quantization.as_deref()
    }

    /// Returns the id without the quantization and the revision: `owner/name`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the revision: a branch, a tag or a commit. The default is `main`.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Returns whether the revision is a full commit hash, which always names the same files.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.revision.len() == 40 && self.revision.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// Returns the revision, escaped as one segment of an address.
    pub(crate) fn revision_in_address(&self) -> String {
        self.revision.replace('/', "%2F").replace('+', "%2B")
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if let Some(quantization) = &self.quantization {
            write!(f, ":{quantization}")?;
        }
        match &*self.revision {
            "main" => Ok(()),
            revision => write!(f, "@{revision}"),
        }
    }
}

/// Checks the hub's rule for owners and names.
fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_LENGTH).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with(['-', '.'])
        && !text.ends_with(['-', '.'])
        && !text.contains("--")
        && !text.contains("..")
}

/// Checks one segment of a branch or tag, which must be valid for Git and as the name of a folder.
fn is_ref_part(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    (1..=MAX_LENGTH).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with(['-', '.'])
        && !text.ends_with('.')
        && !text.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinguished_from_paths() {
        for (text, repository, revision) in [
            ("owner/name", "owner/name", "main"),
            ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M", "main"),
            ("o/Llama-3.2_1B@v1.0", "o/Llama-3.2_1B", "v1.0"),
            ("o/n@refs/pr/1", "o/n", "refs/pr/1"),
        ] {
            let id = ModelId::parse(text);
            let found = id.as_ref().map(|id| (id.repository(), id.revision()));
            assert_eq!(found, Some((repository, revision)), "{text}");
            assert_eq!(id.map(|id| id.to_string()).as_deref(), Some(text));
        }
        for (text, quantization, revision) in
            [("o/n:Q4_K_M", "Q4_K_M", "main"), ("o/n:q8_0@v1", "q8_0", "v1")]
        {
            let id = ModelId::parse(text);
            let found = id.as_ref().map(|id| (id.repository(), id.quantization(), id.revision()));
            assert_eq!(found, Some(("o/n", Some(quantization), revision)), "{text}");
            assert_eq!(id.map(|id| id.to_string()).as_deref(), Some(text));
        }
        let paths = [
            "o/n:",
            "o/n:a/b",
            "o/n:..",
            "o/n@v1:Q4_0",
            "o:x/n",
            "C:/n",
            "name",
            "a/b/c",
            "/a",
            "a/",
            "./a",
            "../a",
            "a/..",
            "a/.b",
            "~/model",
            "a b/c",
            "a/b.bin",
            "a/b.gguf",
            "a/b@",
            "a/b@../../x",
            "a/b@x//y",
            "a/b@-x",
            "a/b--c",
            "a/é",
            "a/b?c",
            "",
            "/",
        ];
        for path in paths {
            assert_eq!(ModelId::parse(path), None, "{path}");
        }
        assert_eq!(ModelId::parse(&format!("a/{}", "b".repeat(97))), None);
    }

    #[test]
    fn only_full_commits_are_pinned() {
        let pinned = |text: &str| ModelId::parse(text).is_some_and(|id| id.is_pinned());
        assert!(pinned(&format!("a/b@{}", "0123456789".repeat(4))));
        assert!(!pinned("a/b@0123456789"));
        assert!(!pinned("a/b"));
    }
}

//! What names a model on the hub.

use std::fmt;

/// Files that end so are paths, though they may look like ids.
const FILE_ENDINGS: [&str; 4] = [".bin", ".safetensors", ".gguf", ".json"];

/// The longest owner or name that the hub allows.
const MAX_LENGTH: usize = 96;

/// A model on the hub, `owner/name` or `owner/name@revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    repository: String,
    revision: String,
}

impl ModelId {
    /// Reads what looks like an id. It is `None` for what is a path rather, and for names that the
    /// hub does not allow, so that no id leads out of the cache's folders.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (repository, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (owner, name) = repository.split_once('/')?;
        let is_file = FILE_ENDINGS.iter().any(|ending| name.ends_with(ending));
        if !is_name(owner) || !is_name(name) || is_file || !revision.split('/').all(is_ref_part) {
            return None;
        }
        Some(Self { repository: repository.to_owned(), revision: revision.to_owned() })
    }

    /// `owner/name`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// A branch, a tag or a commit; `main` where none is named.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Whether the revision is a full commit hash, which never means anything else later.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.revision.len() == 40 && self.revision.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// The revision as one part of an address.
    pub(super) fn revision_in_address(&self) -> String {
        self.revision.replace('/', "%2F").replace('+', "%2B")
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.revision.as_str() {
            "main" => f.write_str(&self.repository),
            revision => write!(f, "{}@{revision}", self.repository),
        }
    }
}

/// The hub's rule for owners and names.
fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_LENGTH).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with(['-', '.'])
        && !text.ends_with(['-', '.'])
        && !text.contains("--")
        && !text.contains("..")
}

/// A part of a branch's or tag's name, as git allows it and a folder can have it.
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
    fn ids_are_told_from_paths() {
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
        let paths = [
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

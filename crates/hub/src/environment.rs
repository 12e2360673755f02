//! The environment variables of Hugging Face's tools.

use crate::access::TokenPlace;
use crate::error::HubError;
use std::path::{Path, PathBuf};
use std::{env, fs};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// The folders of Hugging Face's tools.
pub(crate) struct Folders {
    pub(crate) home: Option<PathBuf>,
    pub(crate) cache: PathBuf,
}

impl Folders {
    pub(crate) fn from_environment() -> Result<Self, HubError> {
        let home = hub_home();
        let cache = match (variable("HF_HUB_CACHE"), &home) {
            (Some(folder), _) => folder.into(),
            (None, Some(home)) => home.join("hub"),
            (None, None) => return Err(HubError::NoHome),
        };
        Ok(Self { home, cache })
    }
}

/// Returns the value of an environment variable, if it is not blank.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Returns the address of the hub.
pub(crate) fn endpoint() -> String {
    variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.into())
}

/// Returns whether the environment forbids to use the hub.
pub(crate) fn is_offline() -> bool {
    variable("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value))
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// Returns the home folder of Hugging Face's tools.
pub(crate) fn hub_home() -> Option<PathBuf> {
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
pub(crate) fn token(home: Option<&Path>) -> Option<(String, TokenPlace)> {
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

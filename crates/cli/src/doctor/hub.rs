//! The cache of hub models, and the hub.

use super::Check;

#[cfg(not(feature = "hub"))]
pub(super) fn checks(_offline: bool) -> Vec<Check> {
    vec![Check::ok("hub", "this build uses no hub: give models as paths")]
}

#[cfg(feature = "hub")]
pub(super) use with_hub::checks;

#[cfg(feature = "hub")]
mod with_hub {
    use super::*;
    use crate::progress;
    use crate::size::bytes;
    use forerun::hub::{HubAccess, HubAnswer, HubCache, TokenPlace};
    use std::path::Path;
    use std::time::Duration;

    /// The longest time to wait for the hub.
    const TIMEOUT: Duration = Duration::from_secs(4);
    /// Less space is too little for most models.
    const LITTLE: u64 = 10_000_000_000;

    pub(in crate::doctor) fn checks(offline: bool) -> Vec<Check> {
        let access = HubAccess::from_environment();
        vec![cache(), hub(&access, offline), token(&access)]
    }

    /// Where models are, and how much space is left for them.
    fn cache() -> Check {
        const NAME: &str = "model cache";
        let cache = match HubCache::from_environment() {
            Ok(cache) => cache,
            Err(error) => return Check::advice(NAME, "there is none", error.to_string()),
        };
        let models = match cache.models() {
            Ok(models) => models,
            Err(error) => return Check::advice(NAME, "it cannot be read", error.to_string()),
        };
        let size = models.iter().map(|model| model.bytes).sum();
        let mut found = format!(
            "{}: {} model{}, {}",
            cache.folder().display(),
            models.len(),
            if models.len() == 1 { "" } else { "s" },
            bytes(size)
        );
        let Some(free) = free_space(cache.folder()) else { return Check::ok(NAME, found) };
        found += &format!("; {} free", bytes(free));
        if free < LITTLE {
            let advice = "free some space (`forerun models list`, `forerun models rm`), or set HF_HOME to a folder \
                          on another disk";
            return Check::advice(NAME, found, advice);
        }
        Check::ok(NAME, found)
    }

    /// Returns the free bytes of the disk on which a path is, or would be created, if the system
    /// reports it.
    #[cfg(unix)]
    fn free_space(path: &Path) -> Option<u64> {
        let space = rustix::fs::statvfs(path.ancestors().find(|folder| folder.exists())?).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }

    #[cfg(not(unix))]
    fn free_space(_path: &Path) -> Option<u64> {
        None
    }

    /// Whether the hub answers. Nothing is sent offline.
    fn hub(access: &HubAccess, offline: bool) -> Check {
        let endpoint = access.endpoint();
        if offline || access.is_offline() {
            return Check::ok(
                "hub",
                format!("{endpoint} is not asked: only models in the cache are used"),
            );
        }
        let _progress = progress::Waiting::new("asking the hub");
        report(endpoint, access.ask(TIMEOUT))
    }

    fn report(endpoint: &str, answer: HubAnswer) -> Check {
        match answer {
            HubAnswer::Reached => Check::ok("hub", format!("{endpoint} answers")),
            HubAnswer::TokenAccepted { account } => {
                let account = account.map(|name| format!(" of {name}")).unwrap_or_default();
                Check::ok("hub", format!("{endpoint} answers, and accepts the token{account}"))
            }
            HubAnswer::TokenRefused => Check::advice(
                "hub",
                format!("{endpoint} answers, but refuses the token"),
                "make a new token on the hub, and set HF_TOKEN to it; public models need none",
            ),
            HubAnswer::Status(status) => Check::advice(
                "hub",
                format!("{endpoint} answers with status {status}"),
                "try again later, or check HF_ENDPOINT",
            ),
            HubAnswer::Unreachable(reason) => Check::advice(
                "hub",
                format!("{endpoint} does not answer: {reason}"),
                "check the network and HF_ENDPOINT; models in the cache (`--offline`) and on disk need no hub",
            ),
        }
    }

    fn token(access: &HubAccess) -> Check {
        Check::ok(
            "token",
            match access.token() {
                Some(TokenPlace::Environment) => "of HF_TOKEN".to_owned(),
                Some(TokenPlace::File(file)) => format!("in {}", file.display()),
                None => "none: only private and gated models need one".to_owned(),
            },
        )
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::doctor::Status;

        #[test]
        fn only_an_answer_without_an_error_needs_no_advice() {
            let status = |answer| report("https://hub.example", answer).status;
            assert_eq!(status(HubAnswer::Reached), Status::Ok);
            assert_eq!(status(HubAnswer::TokenAccepted { account: None }), Status::Ok);
            assert_eq!(status(HubAnswer::TokenRefused), Status::Advice);
            assert_eq!(status(HubAnswer::Status(500)), Status::Advice);
            assert_eq!(status(HubAnswer::Unreachable("no route".into())), Status::Advice);
        }
    }
}

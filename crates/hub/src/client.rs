//! Requests to the hub over HTTP.

use crate::error::HubError;
use crate::model_id::ModelId;
use serde_json::Value;
use std::time::Duration;
use ureq::config::{ConfigBuilder, RedirectAuthHeaders};
use ureq::http::{HeaderMap, Response, Uri};
use ureq::typestate::{AgentScope, WithoutBody};
use ureq::{Agent, Body, BodyReader, RequestBuilder};

/// The timeout of each read.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// The timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// The maximum size of a list of files.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// The maximum number of redirections within the hub.
const MAX_REDIRECTS: usize = 5;

/// A connection to the hub.
pub(crate) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// A revision of a model.
pub(crate) struct Repository {
    /// The commit that the revision points to.
    pub(crate) commit: String,
    /// The names of its files.
    pub(crate) files: Vec<String>,
}

/// The hub's description of a file.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    /// The address of the content, after redirections within the hub.
    pub(crate) address: String,
    /// The ETag, which names the content in the cache.
    pub(crate) etag: String,
    /// The size in bytes.
    pub(crate) size: u64,
}

impl Description {
    /// Returns the number of the ETag's hexadecimal digits, if it consists of such. 64 digits are
    /// the SHA-256 of a large file. 40 digits are a SHA-1, as Git computes it for other files.
    pub(crate) fn hash_digits(&self) -> Option<usize> {
        self.etag.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(self.etag.len())
    }
}

/// A file's content from a certain byte on.
pub(crate) struct Content {
    /// Whether it starts at the requested byte, and not at the file's first byte.
    pub(crate) resumed: bool,
    pub(crate) reader: BodyReader<'static>,
}

/// Returns the settings of all connections.
pub(crate) fn agent(connect: Duration, response: Duration) -> ConfigBuilder<AgentScope> {
    Agent::config_builder()
        .user_agent(concat!("forerun/", env!("CARGO_PKG_VERSION")))
        // Compressed bytes could not be counted and resumed as they are stored.
        .accept_encoding("identity")
        .http_status_as_error(false)
        // ureq treats another port or protocol as the same host. `ask` is stricter.
        .redirect_auth_headers(RedirectAuthHeaders::Never)
        .timeout_connect(Some(connect))
        .timeout_recv_response(Some(response))
}

impl Client {
    pub(crate) fn new(endpoint: &str, token: Option<String>) -> Self {
        let config = agent(CONNECT_TIMEOUT, READ_TIMEOUT).timeout_per_read(Some(READ_TIMEOUT));
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Self { agent: config.build().new_agent(), endpoint, token }
    }

    /// Requests the commit and the files of a revision.
    pub(crate) fn repository(&self, id: &ModelId) -> Result<Repository, HubError> {
        let revision = id.revision_in_address();
        let address =
            format!("{}/api/models/{}/revision/{revision}", self.endpoint, id.repository());
        let (mut response, at) = self.ask(id, &address, |at| self.agent.get(at))?;
        if response.status().is_redirection() {
            response = self.send(id, &at, self.agent.get(&at))?;
        }
        self.check_status(id, &address, &response)?;
        let body = response.body_mut().with_config().limit(MAX_LIST_BYTES).read_to_vec();
        let body = body.map_err(|error| unreachable(id, &address, &error))?;
        let not_a_hub = |reason: &str| answer(&address, reason);
        let value: Value = serde_json::from_slice(&body)
            .map_err(|error| not_a_hub(&format!("it is not JSON ({error})")))?;
        let commit = value["sha"].as_str().unwrap_or_default().to_owned();
        // It is used as the name of a folder.
        if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(not_a_hub("it names no commit"));
        }
        let siblings = value["siblings"].as_array().ok_or_else(|| not_a_hub("it has no files"))?;
        let name = |file: &Value| file["rfilename"].as_str().map(str::to_owned);
        Ok(Repository { commit, files: siblings.iter().filter_map(name).collect() })
    }

    /// Requests the description of a file. The hub answers with a redirection to the storage of
    /// large files, and describes the file in that answer. Only redirections within the hub are
    /// followed.
    pub(crate) fn describe(
        &self,
        id: &ModelId,
        commit: &str,
        file: &str,
    ) -> Result<Description, HubError> {
        let address = format!("{}/{}/resolve/{commit}/{file}", self.endpoint, id.repository());
        let (response, at) = self.ask(id, &address, |at| self.agent.head(at))?;
        let redirected = response.status().is_redirection();
        if !redirected {
            self.check_status(id, &at, &response)?;
        }
        let described = description(response.headers(), redirected, at.clone());
        described.map_err(|what| answer(&at, &what))
    }

    /// Sends a request, and follows redirections within the hub with the token. Returns the
    /// response and its address. The response may be a redirection to another host, or one that
    /// describes a file.
    fn ask(
        &self,
        id: &ModelId,
        address: &str,
        request: impl Fn(&str) -> RequestBuilder<WithoutBody>,
    ) -> Result<(Response<Body>, String), HubError> {
        let mut at = address.to_owned();
        for _ in 0..MAX_REDIRECTS {
            let request = request(&at).config().max_redirects(0);
            let request = request.max_redirects_will_error(false).build();
            let response = self.send(id, &at, request)?;
            let headers = response.headers();
            let inside = header(headers, "location").and_then(|to| same_host(&at, to));
            match inside.filter(|_| response.status().is_redirection()) {
                Some(next) if header(headers, "x-linked-etag").is_none() => at = next,
                _ => return Ok((response, at)),
            }
        }
        Err(answer(address, "it redirects in circles"))
    }

    /// Requests a file's bytes from `start` on. Returns all bytes if the server does not resume.
    pub(crate) fn content(
        &self,
        id: &ModelId,
        file: &Description,
        start: u64,
    ) -> Result<Content, HubError> {
        let mut request = self.agent.get(&file.address);
        if start > 0 {
            request = request.header("Range", format!("bytes={start}-"));
        }
        let response = self.send(id, &file.address, request)?;
        // The server refuses the range. Download the whole file, or every later run would fail,
        // too.
        if start > 0 && response.status() == 416 {
            return self.content(id, file, 0);
        }
        self.check_status(id, &file.address, &response)?;
        let range = header(response.headers(), "content-range").unwrap_or_default();
        let resumed = response.status() == 206;
        if resumed && !range.starts_with(&format!("bytes {start}-")) {
            return Err(answer(&file.address, "it is not the requested part of the file"));
        }
        Ok(Content { resumed, reader: response.into_body().into_reader() })
    }

    fn send(
        &self,
        id: &ModelId,
        address: &str,
        mut request: RequestBuilder<WithoutBody>,
    ) -> Result<Response<Body>, HubError> {
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|error| unreachable(id, address, &error))
    }

    fn check_status(
        &self,
        id: &ModelId,
        address: &str,
        response: &Response<Body>,
    ) -> Result<(), HubError> {
        let (model, address) = (id.to_string(), address.to_owned());
        let status = response.status().as_u16();
        let code = header(response.headers(), "x-error-code").unwrap_or_default();
        Err(match (status, code) {
            (200..=299, _) => return Ok(()),
            (401 | 403, "GatedRepo") => HubError::Gated { model, status, address },
            (401 | 403, _) => {
                HubError::NoAccess { model, status, address, with_token: self.token.is_some() }
            }
            (404, "RevisionNotFound") => {
                let (repository, revision) = (id.repository().into(), id.revision().into());
                HubError::NoRevision { repository, revision, address }
            }
            (404, "EntryNotFound") => HubError::NoFile { model, address },
            (404, _) => HubError::NoModel { model, address },
            _ => HubError::Status { model, status, address },
        })
    }
}

fn unreachable(id: &ModelId, address: &str, error: &ureq::Error) -> HubError {
    let (model, address, reason) = (id.to_string(), address.to_owned(), error.to_string());
    HubError::Unreachable { model, address, reason }
}

fn answer(address: &str, reason: &str) -> HubError {
    HubError::Answer { address: address.to_owned(), reason: reason.to_owned() }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn description(
    headers: &HeaderMap,
    redirected: bool,
    address: String,
) -> Result<Description, String> {
    let etag = header(headers, "x-linked-etag").or_else(|| header(headers, "etag"));
    let etag = etag.unwrap_or_default().trim_start_matches("W/").trim_matches('"').to_owned();
    // It is used as the name of a file.
    let is_plain = etag.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if !(1..=128).contains(&etag.len()) || !is_plain {
        return Err(format!("its ETag is {etag:?}"));
    }
    // The length of a redirection is not the length of the file.
    let length = || header(headers, "content-length").filter(|_| !redirected);
    let size = header(headers, "x-linked-size").or_else(length);
    let size = size.and_then(|size| size.parse().ok()).ok_or("it has no size of the file")?;
    Ok(Description { address, etag, size })
}

/// Returns the address of a redirection if it stays on the same host.
fn same_host(from: &str, to: &str) -> Option<String> {
    let (from, target) = (from.parse::<Uri>().ok()?, to.parse::<Uri>().ok()?);
    match target.host() {
        // Two slashes would name another host.
        None if to.starts_with('/') && !to.starts_with("//") => {
            Some(format!("{}://{}{to}", from.scheme_str()?, from.authority()?))
        }
        Some(_) if target.authority() == from.authority() && target.scheme() == from.scheme() => {
            Some(to.to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_redirections_to_the_same_host_are_followed() {
        let from = "https://hub.example/a/b/resolve/c/d";
        let cases = [
            ("/x?y=1", Some("https://hub.example/x?y=1")),
            ("https://hub.example/x", Some("https://hub.example/x")),
            ("http://hub.example/x", None),
            ("https://hub.example:8443/x", None),
            ("https://cdn.example/x", None),
            ("//cdn.example/x", None),
            ("x", None),
        ];
        for (to, expected) in cases {
            assert_eq!(same_host(from, to).as_deref(), expected, "{to}");
        }
    }

    #[test]
    fn etags_that_are_not_file_names_are_refused() {
        let describe = |etag: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("etag", etag.parse().map_err(|_| "no header")?);
            headers.insert("content-length", "7".parse().map_err(|_| "no header")?);
            description(&headers, false, String::new())
        };
        let plain = describe("W/\"abc\"").map(|file| (file.etag, file.size));
        assert_eq!(plain, Ok(("abc".to_owned(), 7)));
        for etag in ["\"../../x\"", "a/b", "", "\"\"", "..", "a b"] {
            assert!(describe(etag).is_err(), "{etag}");
        }
    }
}

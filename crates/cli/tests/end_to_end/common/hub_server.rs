//! A local hub: it serves directories in the way of the real one, records the requests, and fails
//! on demand.

use super::Run;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use tempfile::TempDir;

/// A deviation from the behaviour of the real hub.
#[derive(Clone, Debug)]
pub(crate) enum Quirk {
    /// The connection ends once, after this number of bytes of the next weights.
    Cut(usize),
    /// The connection stalls once, after this number of bytes of the next weights.
    Stall(usize),
    /// One byte of the next weights is wrong, once.
    Damage,
    /// One byte of this small file is wrong, once.
    DamageSmall(&'static str),
    /// Weights are at another port of the same host.
    Elsewhere(u16),
    /// Every answer starts at the first byte, whatever range is requested.
    IgnoreRanges,
    /// Requests for a range of bytes are refused.
    RefuseRanges,
    /// Requests need this token.
    Token(&'static str),
    /// Every request gets this error status and code.
    Refuse(u16, &'static str),
    /// Every file has this ETag.
    Etag(&'static str),
}

/// A recorded request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Headers by name, in lower case.
    pub(crate) headers: HashMap<String, String>,
}

type Files = BTreeMap<String, Vec<u8>>;

#[derive(Default)]
struct State {
    /// Commits and files by `owner/name` and revision.
    revisions: HashMap<(String, String), (String, Files)>,
    quirks: Vec<Quirk>,
    requests: Vec<Request>,
}

/// A running hub, and the home directory of its users.
pub(crate) struct Hub {
    port: u16,
    state: Arc<Mutex<State>>,
    home: TempDir,
}

impl Hub {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, state) = (stream.unwrap(), Arc::clone(&shared));
                // The client may close the connection early.
                thread::spawn(move || drop(answer(stream, port, &state)));
            }
        });
        Self { port, state, home: tempfile::tempdir().unwrap() }
    }

    /// Starts a hub that serves a checkpoint as `owner/name`.
    pub(crate) fn serving(model: &Path) -> Self {
        let hub = Self::start();
        hub.publish("owner/name", "main", model);
        hub
    }

    /// Publishes the files of a directory and its subdirectories, and returns their commit.
    pub(crate) fn publish(&self, id: &str, revision: &str, folder: &Path) -> String {
        let mut files = Files::new();
        read_folder(folder, "", &mut files);
        let all: Vec<u8> =
            files.iter().flat_map(|(name, b)| [name.as_bytes(), b].concat()).collect();
        let commit = hash(&all)[..40].to_owned();
        let mut state = self.state.lock().unwrap();
        for revision in [revision, &commit] {
            let key = (id.to_owned(), revision.to_owned());
            state.revisions.insert(key, (commit.clone(), files.clone()));
        }
        commit
    }

    pub(crate) fn quirk(&self, quirk: Quirk) {
        self.state.lock().unwrap().quirks.push(quirk);
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn without_quirks(&self) {
        self.state.lock().unwrap().quirks.clear();
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// Returns the requests for weights since the last call.
    pub(crate) fn take_downloads(&self) -> Vec<Request> {
        let mut requests = self.take_requests();
        requests.retain(|request| request.path.starts_with("/cdn/") && request.method == "GET");
        requests
    }

    /// Returns the cache directory of `owner/name`.
    pub(crate) fn cached(&self) -> PathBuf {
        self.home.path().join("hub/models--owner--name")
    }

    /// Returns the directory of a commit's files in the cache.
    pub(crate) fn snapshot(&self, id: &str, commit: &str) -> PathBuf {
        let folder = format!("hub/models--{}", id.replace('/', "--"));
        self.home.path().join(folder).join("snapshots").join(commit)
    }

    /// Returns incomplete files in the cache.
    pub(crate) fn partials(&self) -> Vec<PathBuf> {
        let blobs = fs::read_dir(self.cached().join("blobs")).into_iter().flatten();
        let mut paths: Vec<PathBuf> = blobs.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "incomplete"));
        paths
    }

    /// Creates a run that uses only this hub.
    pub(crate) fn run(&self) -> Run {
        const OTHER_SETTINGS: [&str; 12] = [
            "HF_HUB_CACHE",
            "HF_HUB_OFFLINE",
            "HF_TOKEN",
            "HF_TOKEN_PATH",
            "XDG_CACHE_HOME",
            "ALL_PROXY",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "all_proxy",
            "http_proxy",
            "https_proxy",
            "NO_PROXY",
        ];
        let run =
            Run::forerun().without_variables(&OTHER_SETTINGS).variable("HF_HOME", self.home.path());
        run.variable("HF_ENDPOINT", format!("http://127.0.0.1:{}", self.port))
    }

    /// Arguments for a short answer that differs between models.
    pub(crate) const GENERATE: [&str; 9] =
        ["generate", "-p", "Once upon", "-n", "16", "--temperature", "1.5", "--seed", "3"];

    /// Creates a run of `forerun generate` with a model of this hub.
    pub(crate) fn generate(&self, id: &str) -> Run {
        self.run().with(&Self::GENERATE).with(&["--model", id])
    }
}

/// Reads the files of a directory, with the prefix of their names in the repository.
fn read_folder(folder: &Path, prefix: &str, files: &mut Files) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            read_folder(&path, &format!("{name}/"), files);
        } else {
            files.insert(name, fs::read(path).unwrap());
        }
    }
}

fn hash(bytes: &[u8]) -> String {
    digits::<Sha256>(bytes)
}

fn digits<D: Digest>(bytes: &[u8]) -> String {
    D::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the ETag of a file that is not stored as a large file: its Git hash.
pub(crate) fn small_etag(bytes: &[u8]) -> String {
    let header = format!("blob {}\0", bytes.len());
    digits::<Sha1>(&[header.as_bytes(), bytes].concat())
}

fn answer(mut stream: TcpStream, port: u16, state: &Mutex<State>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let line = lines.next().unwrap()?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let lines = lines.map(Result::unwrap).take_while(|line| !line.is_empty());
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    });
    let request = Request { method, path, headers: headers.collect() };
    let mut state = state.lock().unwrap();
    state.requests.push(request.clone());
    let reply = reply(&request, port, &mut state);
    drop(state);
    write!(stream, "HTTP/1.1 {} Reason\r\nConnection: close\r\n", reply.status)?;
    for (name, value) in &reply.headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    if !reply.headers.iter().any(|(name, _)| *name == "Content-Length") {
        write!(stream, "Content-Length: {}\r\n", reply.body.len())?;
    }
    write!(stream, "\r\n")?;
    if request.method == "HEAD" {
        return Ok(());
    }
    stream.write_all(&reply.body[..reply.end.unwrap_or(reply.body.len())])?;
    if reply.stalls {
        // The client's end closes the connection.
        drop(stream.read(&mut [0]));
    }
    Ok(())
}

#[derive(Default)]
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// The connection ends here.
    end: Option<usize>,
    stalls: bool,
}

impl Reply {
    fn error(status: u16, code: &str) -> Self {
        Self { status, headers: vec![("X-Error-Code", code.to_owned())], ..Self::default() }
    }
}

fn reply(request: &Request, port: u16, state: &mut State) -> Reply {
    let bearer = request.headers.get("authorization").map_or("", String::as_str);
    for quirk in &state.quirks {
        match quirk {
            Quirk::Refuse(status, code) => return Reply::error(*status, code),
            Quirk::Token(token)
                if bearer != format!("Bearer {token}") && !request.path.starts_with("/cdn/") =>
            {
                return Reply::error(401, "RepoNotFound");
            }
            _ => {}
        }
    }
    if request.path == "/api/models?limit=1" {
        return Reply { status: 200, body: b"[]".to_vec(), ..Reply::default() };
    }
    if request.path == "/api/whoami-v2" {
        return Reply { status: 200, body: b"{\"name\":\"tester\"}".to_vec(), ..Reply::default() };
    }
    if let Some(rest) = request.path.strip_prefix("/api/models/") {
        let (id, revision) = rest.split_once("/revision/").unwrap();
        return description(id, &revision.replace("%2F", "/"), state);
    }
    if let Some(rest) = request.path.strip_prefix("/cdn/") {
        let (id, commit, file) = parts(rest);
        let bytes = state.revisions[&(id, commit)].1[&file].clone();
        return content(request, bytes, state);
    }
    // The hub redirects requests for small files to another path on the same server.
    let (rest, redirected) = match request.path.strip_prefix("/api/resolve-cache/") {
        Some(rest) => (rest.to_owned(), true),
        None => (request.path[1..].replacen("/resolve/", "/", 1), false),
    };
    let (id, commit, file) = parts(&rest);
    let Some((_, files)) = state.revisions.get(&(id, commit.clone())) else {
        return Reply::error(404, "RepoNotFound");
    };
    let Some(mut bytes) = files.get(&file).cloned() else {
        return Reply::error(404, "EntryNotFound");
    };
    let commit = ("X-Repo-Commit", commit);
    let etag = state.quirks.iter().find_map(|quirk| match quirk {
        Quirk::Etag(etag) => Some(format!("\"{etag}\"")),
        _ => None,
    });
    if file.ends_with(".safetensors") {
        let place = state.quirks.iter().find_map(|quirk| match quirk {
            Quirk::Elsewhere(port) => Some(format!("127.0.0.1:{port}")),
            _ => None,
        });
        let place = place.unwrap_or_else(|| format!("localhost:{port}"));
        let location = ("Location", format!("http://{place}/cdn/{rest}"));
        let etag = ("X-Linked-Etag", etag.unwrap_or_else(|| format!("\"{}\"", hash(&bytes))));
        let size = ("X-Linked-Size", bytes.len().to_string());
        return Reply {
            status: 302,
            headers: vec![location, etag, size, commit],
            ..Reply::default()
        };
    }
    if !redirected {
        let location = ("Location", format!("/api/resolve-cache/{rest}"));
        return Reply { status: 307, headers: vec![location, commit], ..Reply::default() };
    }
    let etag = ("ETag", etag.unwrap_or_else(|| format!("\"{}\"", small_etag(&bytes))));
    let damage = |quirk: &Quirk| matches!(quirk, Quirk::DamageSmall(name) if *name == file);
    if request.method == "GET"
        && let Some(quirk) = state.quirks.iter().position(damage)
    {
        state.quirks.remove(quirk);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }
    Reply { status: 200, headers: vec![etag, commit], body: bytes, ..Reply::default() }
}

/// Splits `owner/name/commit/file`.
fn parts(path: &str) -> (String, String, String) {
    let parts: Vec<&str> = path.splitn(4, '/').collect();
    (format!("{}/{}", parts[0], parts[1]), parts[2].to_owned(), parts[3].to_owned())
}

fn description(id: &str, revision: &str, state: &State) -> Reply {
    let Some((commit, files)) = state.revisions.get(&(id.to_owned(), revision.to_owned())) else {
        let exists = state.revisions.keys().any(|(other, _)| other == id);
        return Reply::error(404, if exists { "RevisionNotFound" } else { "RepoNotFound" });
    };
    let siblings: Vec<_> =
        files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
    let body = serde_json::json!({ "id": id, "sha": commit, "siblings": siblings }).to_string();
    Reply { status: 200, body: body.into_bytes(), ..Reply::default() }
}

/// Returns the requested range of weights, with the hub's quirks.
fn content(request: &Request, mut bytes: Vec<u8>, state: &mut State) -> Reply {
    let total = bytes.len();
    let mut reply = Reply { status: 200, ..Reply::default() };
    let range = request
        .headers
        .get("range")
        .filter(|_| !state.quirks.iter().any(|quirk| matches!(quirk, Quirk::IgnoreRanges)));
    if range.is_some() && state.quirks.iter().any(|quirk| matches!(quirk, Quirk::RefuseRanges)) {
        return Reply::error(416, "");
    }
    if let Some(range) = range {
        let start = range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')).unwrap();
        let start: usize = start.parse().unwrap();
        bytes.drain(..start);
        reply.status = 206;
        reply.headers.push(("Content-Range", format!("bytes {start}-{}/{total}", total - 1)));
    }
    // Each of these quirks occurs once.
    state.quirks.retain(|quirk| match quirk {
        Quirk::Cut(end) => {
            reply.end = Some(*end);
            false
        }
        Quirk::Stall(end) => {
            (reply.end, reply.stalls) = (Some(*end), true);
            false
        }
        Quirk::Damage => {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            false
        }
        _ => true,
    });
    reply.body = bytes;
    reply
}

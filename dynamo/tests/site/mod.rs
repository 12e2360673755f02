//! Dynamo on this machine: a front end and workers as processes of their own, on 127.0.0.1.

use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use ureq::Agent;

pub(crate) const MODEL: &str = "demo";
/// The longest time that anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the processes find each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Discovery {
    File,
    Etcd,
}

/// A front end, its workers, and what they need.
pub(crate) struct Site {
    folder: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
    agent: Agent,
    url: String,
    front: Option<Process>,
    etcd: Option<Process>,
}

/// A process that ends with its owner.
pub(crate) struct Process {
    child: Child,
    pub(crate) log: PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Process {
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("a process that runs");
    }

    /// Waits for the end. Returns whether it was a success.
    pub(crate) fn wait(&mut self) -> bool {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.success();
            }
            assert!(start.elapsed() < PATIENCE, "the process does not end: {}", self.log.display());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A worker.
pub(crate) struct Worker {
    pub(crate) process: Process,
    status: String,
}

/// How a worker decodes: always the same text.
pub(crate) const METHODS: [&[&str]; 3] = [
    &["--method", "speculative", "--threads", "1"],
    &["--method", "pearl", "--placement", "drafter=cpu:0,target=cpu:1"],
    &["--method", "autoregressive", "--threads", "1"],
];

/// An answer of the front end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) finish: String,
    pub(crate) engine: Value,
    pub(crate) worker: Value,
}

/// Returns a free port below those that the system gives out, and below 2¹⁵: Dynamo reads some
/// ports as signed numbers.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id() % 6000;
    loop {
        let number = (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 6000;
        let port = 25_000 + number as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn start(folder: &Path, name: &str, command: &mut Command) -> Process {
    let log = folder.join(format!("{name}.log"));
    let file = File::options().create(true).append(true).open(&log).expect("a log");
    let command =
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a log")).stderr(file);
    Process { child: command.spawn().expect("a program that starts"), log }
}

impl Site {
    /// Starts a front end, or returns `None` if etcd is not installed.
    pub(crate) fn start(discovery: Discovery, router: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut environment = vec![
            ("DYN_EVENT_PLANE", "zmq".to_owned()),
            ("DYN_LOG", "warn".into()),
            ("DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS", "0.2".into()),
            // Requests of a worker that does not accept or continue them move. After twice the
            // second time, the front end gives up.
            ("DYN_TCP_REQUEST_TIMEOUT", "2".into()),
            ("DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS", "4".into()),
            ("FORERUN_CARDS", folder.path().join("cards").display().to_string()),
        ];
        for host in [
            "DYN_TCP_RPC_HOST",
            "DYN_EVENT_PLANE_HOST",
            "DYN_TCP_RESPONSE_STREAM_HOST",
            "DYN_SYSTEM_HOST",
        ] {
            environment.push((host, "127.0.0.1".into()));
        }
        let mut etcd = None;
        match discovery {
            Discovery::File => {
                environment.push(("DYN_DISCOVERY_BACKEND", "file".into()));
                let files = folder.path().join("discovery");
                fs::create_dir(&files).expect("a folder");
                environment.push(("DYN_FILE_KV", files.display().to_string()));
            }
            Discovery::Etcd => {
                let (clients, peers) = (free_port(), free_port());
                let (clients, peers) =
                    (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
                if Command::new("etcd").arg("--version").output().is_err() {
                    return None;
                }
                let mut command = Command::new("etcd");
                command.arg("--data-dir").arg(folder.path().join("etcd"));
                command.args(["--listen-client-urls", &clients]);
                command.args(["--advertise-client-urls", &clients]);
                command.args(["--listen-peer-urls", &peers]);
                command.args(["--initial-advertise-peer-urls", &peers]);
                command.args(["--initial-cluster", &format!("default={peers}")]);
                etcd = Some(start(folder.path(), "etcd", &mut command));
                environment.push(("DYN_DISCOVERY_BACKEND", "etcd".into()));
                environment.push(("ETCD_ENDPOINTS", clients));
            }
        }
        let agent = Agent::config_builder()
            .timeout_global(Some(2 * PATIENCE))
            .http_status_as_error(false)
            .build();
        let url = format!("http://127.0.0.1:{}", free_port());
        let mut site = Self { folder, environment, agent: agent.into(), url, front: None, etcd };
        if let Some(mut etcd) = site.etcd.take() {
            let address = site.environment.iter().find(|(name, _)| *name == "ETCD_ENDPOINTS");
            site.until_ready(&format!("{}/health", address.expect("an address").1), &mut etcd);
            site.etcd = Some(etcd);
        }
        let port = site.url.rsplit(':').next().expect("a port").to_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_forerun-front"));
        command.envs(site.environment.iter().map(|(name, value)| (name, value)));
        command.args(["--port", &port, "--router-mode", router, "--migration-limit", "9"]);
        let mut front = start(site.folder.path(), "front", &mut command);
        site.until_ready(&format!("{}/live", site.url), &mut front);
        site.front = Some(front);
        Some(site)
    }

    /// Starts a worker, and waits until it serves.
    pub(crate) fn worker(&self, name: &str, options: &[&str]) -> Worker {
        let port = free_port();
        let mut command = Command::new(env!("CARGO_BIN_EXE_forerun-worker"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env("DYN_SYSTEM_PORT", port.to_string());
        command.args(["--model", "demo", "--served-model-name", MODEL, "--drain-seconds", "1"]);
        command.args(options);
        let process = start(self.folder.path(), name, &mut command);
        let status = format!("http://127.0.0.1:{port}");
        let mut worker = Worker { process, status };
        self.until_ready(&format!("{}/health", worker.status), &mut worker.process);
        worker
    }

    /// Returns the end of the front end's log.
    pub(crate) fn log(&self) -> String {
        let log = self.front.as_ref().map(|front| fs::read_to_string(&front.log));
        let log = log.and_then(Result::ok).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Waits until the front end offers the model.
    pub(crate) fn until_offered(&self) {
        let is_offered = || self.get(&format!("{}/v1/models", self.url)).1.contains(MODEL);
        assert!(within_patience(is_offered), "the front end does not offer the model");
    }

    fn until_ready(&self, url: &str, process: &mut Process) {
        let mut ended = false;
        let is_ready = within_patience(|| {
            ended = process.child.try_wait().expect("a child").is_some();
            ended || self.get(url).0 == 200
        });
        if ended || !is_ready {
            let log = fs::read_to_string(&process.log).unwrap_or_default();
            panic!("{} is not ready:\n{log}", process.log.display());
        }
    }

    fn get(&self, url: &str) -> (u16, String) {
        match self.agent.get(url).call() {
            Ok(mut response) => {
                let status = response.status().as_u16();
                (status, response.body_mut().read_to_string().unwrap_or_default())
            }
            Err(_) => (0, String::new()),
        }
    }

    /// Returns the lines of the worker's metrics that contain a text.
    pub(crate) fn worker_metrics(&self, worker: &Worker, part: &str) -> Vec<String> {
        lines_with(&self.get(&format!("{}/metrics", worker.status)).1, part)
    }

    /// Returns the lines of the front end's metrics that contain a text.
    pub(crate) fn metrics(&self, part: &str) -> Vec<String> {
        lines_with(&self.get(&format!("{}/metrics", self.url)).1, part)
    }

    /// Sends a request. Returns the status and the body.
    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = self.agent.post(format!("{}{path}", self.url));
        let response = request.content_type("application/json").send(body.to_string());
        let mut response = response.expect("an answer of the front end");
        let text = response.body_mut().read_to_string().expect("a body");
        (response.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Streams an answer.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.stream_while(path, body, |_| true)
    }

    /// Streams an answer until `go_on` returns false, then goes away.
    pub(crate) fn stream_while(
        &self,
        path: &str,
        body: &Value,
        go_on: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, String> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        body["nvext"]["extra_fields"] = json!(["engine_data", "worker_id"]);
        let request = self.agent.post(format!("{}{path}", self.url));
        let response = request.content_type("application/json").send(body.to_string());
        let mut response = response.map_err(|error| error.to_string())?;
        if response.status() != 200 {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            return Err(format!("{}: {text}", response.status()));
        }
        let mut answer = Answer::default();
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line.map_err(|error| error.to_string())?;
            if line.starts_with("event: error") || line.starts_with(": error") {
                return Err(format!("after {:?}: {line}", answer.text));
            }
            let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else {
                continue;
            };
            let data: Value =
                serde_json::from_str(data).map_err(|error| format!("{error}: {data}"))?;
            answer.add(&data)?;
            if !go_on(&answer) {
                return Ok(answer);
            }
        }
        match answer.finish.as_str() {
            "" => Err(format!("the stream ended early, after {:?}", answer.text)),
            _ => Ok(answer),
        }
    }
}

impl Answer {
    fn add(&mut self, chunk: &Value) -> Result<(), String> {
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            return Err(format!("after {:?}: {error}", self.text));
        }
        let choice = &chunk["choices"][0];
        let text = choice["text"].as_str().or(choice["delta"]["content"].as_str());
        self.text += text.unwrap_or_default();
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = finish.to_owned();
        }
        let fields = &chunk["nvext"];
        if !fields["engine_data"].is_null() {
            self.engine = fields["engine_data"]["forerun"].clone();
        }
        if !fields["worker_id"].is_null() {
            self.worker = fields["worker_id"].clone();
        }
        Ok(())
    }
}

/// Waits for a condition. Returns whether it came true.
fn within_patience(mut is_true: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_true() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(50));
    }
    true
}

fn lines_with(text: &str, part: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && line.contains(part));
    lines.map(str::to_owned).collect()
}

//! A running server, and a client of it.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun::{ChatTemplate, Engine, Options, RandomPair, Request};
use forerun_formats::Config;
use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_server::{Models, Server, ServerOptions};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) const MODEL: &str = "random";

/// A running server.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) stop: Option<mpsc::Sender<()>>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

pub(crate) fn server_options() -> ServerOptions {
    ServerOptions::new("127.0.0.1:0".parse().unwrap())
}

pub(crate) fn open(target: &Path, drafter: Option<&Path>) -> Engine {
    let (model, draft_model) = (target.into(), drafter.map(Into::into));
    let options = Options { model, draft_model, ..Options::default() };
    Engine::open(options).unwrap()
}

pub(crate) fn engine(pair: &RandomPair) -> Engine {
    open(pair.target(), Some(pair.drafter()))
}

/// An engine whose answers may be so long that no test sees their end.
pub(crate) fn endless_engine() -> Engine {
    engine_with_context(1 << 20)
}

pub(crate) fn engine_with_context(context: usize) -> Engine {
    let config = Config { max_position_embeddings: context, ..example_config() };
    let folder = tempfile::tempdir().unwrap();
    write_random_checkpoint(folder.path(), &config, 1, RandomDtype::F32).unwrap();
    open(folder.path(), None)
}

pub(crate) fn serve_with(pair: &RandomPair, change: impl FnOnce(&mut ServerOptions)) -> Running {
    serve_engine(engine(pair), change)
}

pub(crate) fn serve_engine(engine: Engine, change: impl FnOnce(&mut ServerOptions)) -> Running {
    let mut options = server_options();
    options.drain = Duration::from_secs(60);
    change(&mut options);
    run(Server::bind(options).unwrap(), engine)
}

pub(crate) fn run(server: Server, engine: Engine) -> Running {
    run_with(server, engine, ChatTemplate::plain().unwrap())
}

pub(crate) fn run_with(server: Server, engine: Engine, template: ChatTemplate) -> Running {
    run_models(server, Models::of_one(MODEL, engine, template, None))
}

pub(crate) fn run_models(server: Server, models: Models) -> Running {
    let address = server.address();
    let (stop, stopped) = mpsc::channel();
    let models = Arc::new(models);
    server.preload(&models).unwrap();
    let run = move || server.run(&models, move || _ = stopped.recv()).unwrap();
    let running = Running { address, stop: Some(stop), thread: Some(std::thread::spawn(run)) };
    while running.send("GET", "/health", "", "").status != 200 {
        std::thread::yield_now();
    }
    running
}

/// A server with a chat template of its own.
pub(crate) fn serve_template(pair: &RandomPair, template: &str) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("template.jinja");
    std::fs::write(&file, template).unwrap();
    let template = ChatTemplate::choose(pair.target(), file.to_str().unwrap()).unwrap();
    run_with(Server::bind(server_options()).unwrap(), engine(pair), template)
}

pub(crate) fn serve(pair: &RandomPair) -> Running {
    serve_with(pair, |_| ())
}

/// A response: its status, its headers, and its body.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns the data of server-sent events, without the last one, `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut data: Vec<&str> = data.collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

impl Running {
    pub(crate) fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        // A server that refuses a long body may close the connection before all of it is sent.
        .ok();
        stream
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Response {
        let mut reader = BufReader::new(self.request(method, path, headers, body));
        let mut lines = String::new();
        while !lines.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut lines).unwrap(), 0, "{lines}");
        }
        let status = lines.split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.to_lowercase();
        let mut body = String::new();
        if headers.contains("transfer-encoding: chunked") {
            loop {
                let mut size = String::new();
                reader.read_line(&mut size).unwrap();
                let size = usize::from_str_radix(size.trim(), 16).unwrap();
                let mut chunk = vec![0; size + 2];
                reader.read_exact(&mut chunk).unwrap();
                body += std::str::from_utf8(&chunk[..size]).unwrap();
                if size == 0 {
                    break;
                }
            }
        } else {
            // It reports a body that was not read as an error, after the response.
            reader.read_to_string(&mut body).ok();
        }
        Response { status, headers, body }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, "", &body.to_string())
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.send("GET", path, "", "")
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let mut lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        lines.next().unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a metric has a value.
    pub(crate) fn wait_for(&self, name: &str, value: f64) {
        // A bound for a test that fails: on the slowest machine it takes seconds.
        for _ in 0..60_000 {
            if self.metric(name) == value {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("{name} is {}, not {value}", self.metric(name));
    }
}

pub(crate) fn completion(prompt: &str, max_tokens: usize) -> Value {
    json!({"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

pub(crate) fn with(mut body: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("{fields} is no object") };
    body.as_object_mut().unwrap().extend(fields);
    body
}

/// A pair whose last tokens are these special ones.
pub(crate) fn pair_with_special_tokens(texts: &[&str]) -> RandomPair {
    let pair = RandomPair::make().unwrap();
    let file = pair.target().join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    for text in texts {
        let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
        let ordinary = vocabulary.iter().filter(|(text, _)| !texts.contains(&&***text));
        let (last, id) = ordinary.max_by_key(|(_, id)| id.as_u64()).unwrap();
        let (last, id) = (last.clone(), id.clone());
        vocabulary.remove(&last);
        vocabulary.insert((*text).to_owned(), id.clone());
        json["model"]["merges"].as_array_mut().unwrap().pop();
        json["added_tokens"].as_array_mut().unwrap().push(json!({
            "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }));
    }
    for folder in [pair.target(), pair.drafter()] {
        std::fs::write(folder.join("tokenizer.json"), json.to_string()).unwrap();
    }
    pair
}

pub(crate) fn plain_request(max_tokens: usize) -> Request {
    Request { max_tokens, ignore_eos: true, ..Request::default() }
}

//! The web page of the server, and what it asks the server for.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun::{ChatTemplate, Engine, Options, RandomPair};
use forerun_server::{Models, Server, ServerOptions};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

const MODEL: &str = "random";

/// A running server.
struct Running {
    address: SocketAddr,
    agent: ureq::Agent,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn bind(change: impl FnOnce(&mut ServerOptions)) -> Server {
    let mut options = ServerOptions::new("127.0.0.1:0".parse().unwrap());
    change(&mut options);
    Server::bind(options).unwrap()
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().into()
}

fn run(server: Server, target: &Path, drafter: Option<&Path>) -> Running {
    let (model, draft_model) = (target.into(), drafter.map(Into::into));
    let options = Options { model, draft_model, ..Options::default() };
    let engine = Engine::open(options).unwrap();
    let address = server.address();
    let (stop, stopped) = mpsc::channel();
    let template = ChatTemplate::plain().unwrap();
    let models = Arc::new(Models::of_one(MODEL, engine, template, None));
    let run = move || server.run(&models, move || _ = stopped.recv()).unwrap();
    let thread = Some(std::thread::spawn(run));
    let running = Running { address, agent: agent(), stop: Some(stop), thread };
    while running.get("/health").status != 200 {
        std::thread::sleep(Duration::from_millis(2));
    }
    running
}

struct Response {
    status: u16,
    headers: ureq::http::HeaderMap,
    body: String,
}

impl From<ureq::http::Response<ureq::Body>> for Response {
    fn from(mut response: ureq::http::Response<ureq::Body>) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, body: response.body_mut().read_to_string().unwrap() }
    }
}

impl Response {
    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns the data of server-sent events, without the last one, `[DONE]`.
    fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let data = data.filter(|data| *data != "[DONE]");
        data.map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

impl Running {
    fn get(&self, path: &str) -> Response {
        self.agent.get(format!("http://{}{path}", self.address)).call().unwrap().into()
    }

    fn post(&self, path: &str, body: &Value) -> Response {
        let request = self.agent.post(format!("http://{}{path}", self.address));
        let request = request.header("content-type", "application/json");
        request.send(body.to_string()).unwrap().into()
    }
}

/// Returns the texts between `start` and `end`.
fn between<'a>(text: &'a str, start: &str, end: char) -> impl Iterator<Item = &'a str> {
    text.split(start).skip(1).filter_map(move |rest| rest.split(end).next())
}

#[test]
fn the_page_has_all_its_files_and_loads_nothing_from_elsewhere() {
    let pair = RandomPair::make().unwrap();
    let server = run(bind(|_| ()), pair.target(), Some(pair.drafter()));
    let page = server.get("/");
    assert_eq!(page.status, 200);
    let mut paths: BTreeSet<String> = ["/".to_owned()].into();
    for start in ["href=\"", "src=\""] {
        let links = between(&page.body, start, '"').filter(|link| !link.starts_with('#'));
        paths.extend(links.map(|link| format!("/{link}")));
    }
    let mut visited = BTreeSet::new();
    while let Some(path) = paths.pop_first() {
        if !visited.insert(path.clone()) {
            continue;
        }
        let file = server.get(&path);
        assert_eq!(file.status, 200, "{path}");
        let content_type = match path.rsplit('.').next().unwrap() {
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(file.header("content-type"), content_type);
        assert_eq!(file.header("x-content-type-options"), "nosniff");
        let policy = file.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        // The name of the SVG format is not an address that anything is loaded from.
        let text = file.body.replace("http://www.w3.org/2000/svg", "");
        for elsewhere in ["://", "@import", "url("] {
            assert!(!text.contains(elsewhere), "{path} has {elsewhere}");
        }
        // The policy forbids them.
        for inline in ["style=\"", "<style", "onclick=", "<script>", "innerHTML", "eval("] {
            assert!(!text.contains(inline), "{path} has {inline}");
        }
        paths.extend(between(&text, "from \"./", '"').map(|name| format!("/page/{name}")));
    }
    assert_eq!(visited.len(), 10, "{visited:?}");
    assert_eq!(server.post("/", &json!({})).status, 405);
    assert_eq!(server.get("/page/other.js").status, 404);
}

#[test]
fn the_page_needs_neither_a_model_nor_a_key() {
    let pair = RandomPair::make().unwrap();
    let server = bind(|options| options.api_keys = vec!["secret".to_owned()]);
    let loading = Running { address: server.address(), agent: agent(), stop: None, thread: None };
    let early = loading.get("/");
    assert_eq!((early.status, loading.get("/props").status), (200, 503));
    let server = run(server, pair.target(), None);
    assert_eq!(server.get("/").body, early.body);
    assert_eq!(server.get("/page/main.js").status, 200);
    assert_eq!(server.get("/props").status, 401);
}

#[test]
fn properties_say_which_methods_are_available() {
    let pair = RandomPair::make().unwrap();
    for drafter in [Some(pair.drafter()), None] {
        let server = run(bind(|_| ()), pair.target(), drafter);
        let properties = server.get("/props").json();
        assert_eq!(properties["model"], MODEL);
        let expected = json!({
            "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.0,
        });
        assert_eq!(properties["default_sampling"], expected);
        assert!(properties["context_length"].as_u64().unwrap() > 0);
        assert!(!properties["devices"].as_array().unwrap().is_empty());
        let expected = if drafter.is_some() { "speculative" } else { "autoregressive" };
        assert_eq!(properties["method"], expected);
        let methods = properties["methods"].as_array().unwrap();
        assert_eq!(methods.len(), 6);
        for method in methods {
            let name = method["name"].as_str().unwrap();
            let available = method["available"] == true;
            assert_eq!(available, drafter.is_some() || name == "autoregressive", "{name}");
            assert_eq!(available, method["reason"].is_null(), "{name}");
            if let Some(reason) = method["reason"].as_str() {
                assert!(reason.contains("set --draft-model, or --drafter prompt-l"), "{reason}");
            }
            let body = json!({"prompt": "x", "max_tokens": 1, "speculation": {"method": name}});
            let answered = server.post("/v1/completions", &body).status == 200;
            assert_eq!(answered, available, "{name}");
        }
    }
}

/// The details of a choice's tokens, and its text.
fn tokens_and_text(chunks: &[Value], index: usize) -> (Vec<Value>, String) {
    let (mut tokens, mut text) = (Vec::new(), String::new());
    for chunk in chunks {
        for choice in chunk["choices"].as_array().unwrap() {
            if choice["index"] != index {
                continue;
            }
            let part = choice["text"].as_str().or(choice["delta"]["content"].as_str());
            let part = part.unwrap_or_default();
            let of_part = choice["forerun"]["tokens"].as_array().cloned().unwrap_or_default();
            let texts = of_part.iter().map(|token| token["text"].as_str().unwrap());
            assert_eq!(texts.collect::<String>(), part);
            text += part;
            tokens.extend(of_part);
        }
    }
    (tokens, text)
}

#[test]
fn details_of_tokens_add_up_to_the_answer() {
    let pair = RandomPair::make().unwrap();
    let mut seen = BTreeSet::new();
    // A drafter that often errs, and one that never does.
    for drafter in [pair.drafter(), pair.target()] {
        let server = run(bind(|_| ()), pair.target(), Some(drafter));
        for method in ["autoregressive", "speculative", "pearl", "dsi"] {
            for path in ["/v1/completions", "/v1/chat/completions"] {
                let is_chat = path.contains("chat");
                let mut body = json!({
                    "stream": true, "stream_options": {"include_usage": true}, "n": 2, "seed": 4,
                    "max_tokens": 24, "temperature": 0.7, "top_k": 0, "top_p": 1, "min_p": 0,
                    "ignore_eos": true,
                    "token_details": true, "speculation": {"method": method},
                });
                if is_chat {
                    body["messages"] = json!([{"role": "user", "content": "Hi"}]);
                    body["logprobs"] = json!(true);
                } else {
                    body["prompt"] = json!("Once upon");
                }
                let chunks = server.post(path, &body).events();
                let last = chunks.last().unwrap();
                assert_eq!(last["usage"]["completion_tokens"], 48);
                for index in 0..2 {
                    let (tokens, text) = tokens_and_text(&chunks, index);
                    let measured = &last["forerun"]["choices"][index];
                    check_choice(&tokens, measured, method);
                    assert_eq!(tokens.len(), 24);
                    assert!(tokens.iter().all(|token| token["logprob"].is_f64() == is_chat));
                    seen.extend(tokens.iter().map(|token| token["origin"].to_string()));
                    let ids: Vec<_> = tokens.iter().map(|token| &token["id"]).collect();
                    let decoded = server.post("/detokenize", &json!({"tokens": ids})).json();
                    assert_eq!(decoded["content"], text);
                }
                // The same answer as a whole has the same measurements.
                body["stream"] = json!(false);
                let whole = server.post(path, &body).json();
                assert!(whole["forerun"]["choices"][1]["rounds"].is_array(), "{whole}");
                body["token_details"] = json!(false);
                let whole = server.post(path, &body).json();
                assert!(whole["forerun"]["choices"][1]["rounds"].is_null(), "{whole}");
            }
        }
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

/// Compares a choice's tokens with its rounds, its counters and its timeline.
fn check_choice(tokens: &[Value], measured: &Value, method: &str) {
    let drafted = tokens.iter().filter(|token| token["origin"] == "draft").count();
    assert_eq!(measured["accepted_tokens"], drafted, "{method}");
    let rounds = measured["rounds"].as_array().unwrap();
    let mut before_ns = 0;
    for (number, round) in rounds.iter().enumerate() {
        let of_round = tokens.iter().filter(|token| token["round"] == number);
        let origins: Vec<_> = of_round.map(|token| token["origin"].as_str().unwrap()).collect();
        assert_eq!(round["committed"], origins.len(), "{method}");
        let accepted = origins.iter().filter(|&&origin| origin == "draft").count();
        assert_eq!(round["accepted"], accepted, "{method}");
        let is_corrected = !round["rejected"].as_array().unwrap().is_empty();
        assert_eq!(origins.contains(&"correction"), is_corrected, "{method}");
        let at_ns = round["at_ns"].as_u64().unwrap();
        assert!(at_ns >= before_ns, "{method}");
        before_ns = at_ns;
    }
    let sum = |field: &str| -> u64 {
        measured[field].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum()
    };
    assert_eq!(sum("accepted_by_position"), drafted as u64, "{method}");
    let tested: u64 = rounds.iter().map(|round| round["tested"].as_u64().unwrap()).sum();
    assert_eq!(sum("tested_by_position"), tested, "{method}");
    let lanes = measured["timeline"]["lanes"].as_array().unwrap().len();
    let spans = measured["timeline"]["spans"].as_array().unwrap();
    assert!(spans.iter().any(|span| span["kind"] == "score"), "{method}");
    for span in spans {
        assert!((span["lane"].as_u64().unwrap() as usize) < lanes, "{method}");
        assert!(span["end_ns"].as_u64() >= span["start_ns"].as_u64(), "{method}");
    }
}

/// A stop string holds back text, and a character may have several tokens.
#[test]
fn texts_that_are_held_back_belong_to_tokens() {
    let pair = RandomPair::make().unwrap();
    let server = run(bind(|_| ()), pair.target(), Some(pair.drafter()));
    for seed in 0..40 {
        let mut body = json!({
            "prompt": "x", "max_tokens": 40, "seed": seed, "stop": ["ab", "e", "\u{fffd}\u{fffd}x"],
            "token_details": true, "logit_bias": {"97": 3, "98": 3, "195": 4, "169": 4},
        });
        let whole = server.post("/v1/completions", &body).json();
        body["stream"] = json!(true);
        let chunks = server.post("/v1/completions", &body).events();
        let text: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        assert_eq!(whole["choices"][0]["text"], text);
        let tokens =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["forerun"]["tokens"].as_array());
        assert_eq!(whole["usage"]["completion_tokens"], tokens.map(Vec::len).sum::<usize>());
    }
}

//! Several models at one address.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::*;
use forerun::checkpoint::NamedAdapter;
use forerun::{Engine, Loader, Options, Plan, Request};
use forerun_formats::Config;
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, write_random_adapter, write_random_checkpoint,
};
use forerun_server::{KeepAlive, ModelOptions, Models, Server};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A checkpoint whose text depends on a seed.
fn checkpoint(seed: u64, context: usize) -> TempDir {
    let config = Config { max_position_embeddings: context, ..example_config() };
    let folder = tempfile::tempdir().unwrap();
    write_random_checkpoint(folder.path(), &config, seed, RandomDtype::F32).unwrap();
    folder
}

fn model(name: &str, path: &Path) -> ModelOptions {
    let options = Options { model: path.into(), cache_bytes: Some(4 << 20), ..Options::default() };
    ModelOptions {
        name: name.to_owned(),
        aliases: Vec::new(),
        plan: Plan::new(options).unwrap(),
        offline: true,
        chat_template: None,
        chat_syntax: None,
        preload: false,
        keep_alive: KeepAlive::ALWAYS,
    }
}

fn serve_models(models: Models) -> Running {
    run_models(Server::bind(server_options()).unwrap(), models)
}

/// Returns the text that a checkpoint's engine writes alone.
fn expected(path: &Path) -> String {
    open(path, None).complete("Once", &plain_request(12)).unwrap().text
}

fn ask(server: &Running, model: Option<&str>) -> Response {
    let model = model.map_or(Value::Null, Value::from);
    server.post("/v1/completions", &with(completion("Once", 12), json!({"model": model})))
}

fn text(server: &Running, model: &str) -> String {
    let response = ask(server, Some(model));
    assert_eq!(response.status, 200, "{model}: {}", response.body);
    response.json()["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// Waits until no answer is in progress.
fn settle(server: &Running) {
    let running =
        |line: &str| line.starts_with("vllm:num_requests_running{") && !line.ends_with(" 0");
    wait_until(|| !server.get("/metrics").body.lines().any(running));
}

/// Returns the names of the loaded models.
fn loaded(server: &Running) -> Vec<String> {
    let listed = server.get("/api/ps").json();
    let models = listed["models"].as_array().unwrap();
    models.iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits until something is true. The bound is for a test that fails.
fn wait_until(is_true: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if is_true() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("waited for too long");
}

#[test]
fn a_request_gets_the_model_that_it_names() {
    let folders = [checkpoint(1, 512), checkpoint(2, 512)];
    let [first, second] = folders.each_ref().map(|folder| expected(folder.path()));
    assert_ne!(first, second);
    let models = || {
        let aliases = vec!["gpt-4".to_owned(), "owner/first".to_owned()];
        let one = ModelOptions { aliases, ..model("first", folders[0].path()) };
        vec![one, model("second", folders[1].path())]
    };
    let server = serve_models(Models::new(models(), None, None).unwrap());
    assert_eq!(loaded(&server), Vec::<String>::new());
    // Many requests wait for one load.
    std::thread::scope(|scope| {
        for name in ["first", "gpt-4", "second", "owner/first", "second", "first"] {
            let (server, first, second) = (&server, &first, &second);
            let expected = if name == "second" { second } else { first };
            scope.spawn(move || assert_eq!(text(server, name), *expected, "{name}"));
        }
    });
    assert_eq!(loaded(&server), ["first", "second"]);
    assert_eq!(ask(&server, Some("gpt-4")).json()["model"], "first");
    let listed = server.get("/v1/models").json();
    let names: Vec<&Value> =
        listed["data"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(names, ["first", "second"]);
    assert_eq!(server.get("/v1/models/gpt-4").json()["id"], "first");
    assert_eq!(server.get("/api/tags").json()["models"].as_array().unwrap().len(), 2);
    let unknown = ask(&server, Some("third"));
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    let unnamed = ask(&server, None);
    assert_eq!((unnamed.status, &unnamed.json()["error"]["param"]), (400, &json!("model")));
    let message = unnamed.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("\"first\", \"second\""), "{message}");
    // Metrics are counted by model.
    let metrics = server.get("/metrics").body;
    for line in
        ["forerun_answers_total{model_name=\"first\"} 5", "# TYPE forerun_answers_total counter"]
    {
        assert_eq!(metrics.matches(line).count(), 1, "{metrics}");
    }
    // All APIs with a default.
    let server = serve_models(Models::new(models(), Some("second"), None).unwrap());
    for name in [None, Some("third")] {
        assert_eq!(ask(&server, name).json()["choices"][0]["text"], second);
    }
    assert_eq!(server.get("/v1/models/third").status, 404);
    assert_eq!(server.get("/props").json()["model"], "second");
}

#[test]
fn names_that_do_not_fit_together_are_errors() {
    let folder = checkpoint(1, 512);
    let named = |name: &str| model(name, folder.path());
    let error = |models, default| Models::new(models, default, None).err().unwrap().to_string();
    assert!(error(Vec::new(), None).contains("there is no model"));
    assert!(error(vec![named("a"), named("a")], None).contains("\"a\""));
    let alias = ModelOptions { aliases: vec!["a".to_owned()], ..named("b") };
    assert!(error(vec![named("a"), alias], None).contains("two models have the name \"a\""));
    assert!(error(vec![named("a")], Some("b")).contains("name one of \"a\""));
}

#[test]
fn the_least_recently_used_model_makes_room_for_another() {
    let folders = [checkpoint(1, 512), checkpoint(2, 512), checkpoint(3, 512)];
    let models: Vec<ModelOptions> = ["a", "b", "c"]
        .into_iter()
        .zip(&folders)
        .map(|(name, folder)| model(name, folder.path()))
        .collect();
    let needed = Engine::most_memory(&models[0].plan, &mut Loader::new()).unwrap();
    assert!(needed > 4 << 20, "the caches count: {needed}");
    let server = serve_models(Models::new(models.clone(), None, Some(2 * needed)).unwrap());
    let texts = folders.each_ref().map(|folder| expected(folder.path()));
    for (name, left) in [
        ("a", &["a"][..]),
        ("b", &["a", "b"]),
        ("a", &["a", "b"]),
        ("c", &["a", "c"]),
        ("b", &["b", "c"]),
        ("c", &["b", "c"]),
        ("a", &["a", "c"]),
    ] {
        let index = usize::from(name.as_bytes()[0] - b'a');
        assert_eq!(text(&server, name), texts[index], "{name}");
        settle(&server);
        assert_eq!(loaded(&server), left, "{name}");
    }
    // A model that never fits leaves the others alone.
    let server = serve_models(Models::new(models, None, Some(needed - 1)).unwrap());
    let refused = ask(&server, Some("a"));
    assert_eq!(refused.status, 500);
    assert!(refused.body.contains("memory-budget"), "{}", refused.body);
}

#[test]
fn answers_of_a_model_that_makes_room_end_first() {
    let folders = [checkpoint(1, 1 << 20), checkpoint(2, 512)];
    let models = vec![model("endless", folders[0].path()), model("next", folders[1].path())];
    let budget = Engine::most_memory(&models[0].plan, &mut Loader::new()).unwrap();
    let server = serve_models(Models::new(models, None, Some(budget)).unwrap());
    let body = with(completion("x", 1_000_000), json!({"model": "endless", "stream": true}));
    let stream = server.request("POST", "/v1/completions", "", &body.to_string());
    let mut reader = BufReader::new(stream);
    let mut begun = String::new();
    while !begun.contains("data: ") {
        assert_ne!(reader.read_line(&mut begun).unwrap(), 0, "{begun}");
    }
    std::thread::scope(|scope| {
        let next = scope.spawn(|| text(&server, "next"));
        let waits = "vllm:num_requests_waiting{model_name=\"next\"} 1";
        wait_until(|| server.get("/metrics").body.contains(waits));
        // The answer goes on meanwhile.
        let mut more = String::new();
        for _ in 0..20 {
            assert_ne!(reader.read_line(&mut more).unwrap(), 0, "{more}");
        }
        assert_eq!(loaded(&server), ["endless"]);
        assert!(!next.is_finished());
        drop(reader);
        assert_eq!(next.join().unwrap(), expected(folders[1].path()));
    });
    assert_eq!(loaded(&server), ["next"]);
}

#[test]
fn a_model_that_nobody_uses_is_unloaded() {
    let folder = checkpoint(1, 512);
    let brief: KeepAlive = "50ms".parse().unwrap();
    let models = vec![
        ModelOptions { keep_alive: brief, preload: true, ..model("brief", folder.path()) },
        model("kept", folder.path()),
    ];
    let server = serve_models(Models::new(models, None, None).unwrap());
    let expected = expected(folder.path());
    assert_eq!(text(&server, "brief"), expected);
    assert_eq!(text(&server, "kept"), expected);
    wait_until(|| loaded(&server) == ["kept"]);
    // A request may say how long, also with nothing to answer.
    let load = |model: &str, keep_alive: Value| {
        let body = json!({"model": model, "keep_alive": keep_alive});
        server.post("/api/generate", &body).json()["done_reason"].clone()
    };
    assert_eq!(load("brief", json!(-1)), "load");
    assert_eq!(load("kept", json!(0)), "unload");
    assert_eq!(loaded(&server), ["brief"]);
    assert_eq!(load("kept", json!("0.1s")), "load");
    wait_until(|| loaded(&server) == ["brief"]);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(loaded(&server), ["brief"]);
    assert_eq!(text(&server, "kept"), expected);
}

#[test]
fn a_model_that_cannot_be_loaded_is_named_and_others_answer() {
    let folder = checkpoint(1, 512);
    let broken = model("broken", &folder.path().join("nowhere"));
    let models = vec![broken.clone(), model("whole", folder.path())];
    let server = serve_models(Models::new(models, None, None).unwrap());
    for _ in 0..2 {
        let failed = ask(&server, Some("broken"));
        assert_eq!(failed.status, 500);
        assert!(failed.body.contains("cannot load the model"), "{}", failed.body);
        // Clients learn nothing about the server's files.
        assert!(!failed.body.contains("nowhere"), "{}", failed.body);
        assert_eq!(text(&server, "whole"), expected(folder.path()));
    }
    assert_eq!(server.get("/v1/models").json()["data"].as_array().unwrap().len(), 2);
    let server = Server::bind(server_options()).unwrap();
    let wanted = ModelOptions { preload: true, ..broken };
    let models = Arc::new(Models::new(vec![wanted], None, None).unwrap());
    let error = server.preload(&models).err().unwrap().to_string();
    assert!(error.contains("\"broken\"") && error.contains("nowhere"), "{error}");
}

#[test]
fn the_queue_for_a_load_is_limited() {
    let folders = [checkpoint(1, 1 << 20), checkpoint(2, 512)];
    let models = vec![model("endless", folders[0].path()), model("next", folders[1].path())];
    let budget = Engine::most_memory(&models[0].plan, &mut Loader::new()).unwrap();
    let mut options = server_options();
    options.queue = 0;
    let server = Server::bind(options).unwrap();
    let server = run_models(server, Models::new(models, None, Some(budget)).unwrap());
    let body = with(completion("x", 1_000_000), json!({"model": "endless", "stream": true}));
    let endless = server.request("POST", "/v1/completions", "", &body.to_string());
    wait_until(|| loaded(&server) == ["endless"]);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| text(&server, "next"));
        let waits = "vllm:num_requests_waiting{model_name=\"next\"} 1";
        wait_until(|| server.get("/metrics").body.contains(waits));
        let refused = ask(&server, Some("next"));
        assert_eq!(refused.status, 429, "{}", refused.body);
        assert!(refused.headers.contains("retry-after"));
        drop(endless);
        next.join().unwrap();
    });
}

/// Answers with two adapters and without share passes, and have the text of each alone.
#[test]
fn adapters_are_models_of_their_own() {
    let base = checkpoint(1, 512);
    let adapters = ["a", "b"].map(|name| {
        let path = base.path().join(name);
        write_random_adapter(&path, &example_config(), u64::from(name.as_bytes()[0])).unwrap();
        NamedAdapter { name: name.into(), path }
    });
    let options = Options { adapters: adapters.to_vec(), ..Options::new(base.path()) };
    let engine = Engine::open(options.clone()).unwrap();
    let expected = [None, Some("a"), Some("b")].map(|name| {
        let request = Request { adapter: name.map(str::to_owned), ..plain_request(12) };
        engine.complete("Once", &request).unwrap().text
    });
    assert!(expected[0] != expected[1] && expected[1] != expected[2]);
    let adapted = ModelOptions { plan: Plan::new(options).unwrap(), ..model("base", base.path()) };
    let server = serve_models(Models::new(vec![adapted.clone()], None, None).unwrap());
    std::thread::scope(|scope| {
        for round in 0..12 {
            let (server, expected) = (&server, &expected[round % 3]);
            let name = ["base", "a", "b"][round % 3];
            scope.spawn(move || assert_eq!(text(server, name), *expected, "{name}"));
        }
    });
    assert_eq!(ask(&server, Some("a")).json()["model"], "a");
    let listed = server.get("/v1/models").json();
    let listed = listed["data"].as_array().unwrap().iter();
    let names: Vec<_> = listed.map(|one| (one["id"].clone(), one["parent"].clone())).collect();
    let pair = |id: &str, parent: Value| (json!(id), parent);
    let base = || json!("base");
    assert_eq!(names, [pair("base", Value::Null), pair("a", base()), pair("b", base())]);
    assert_eq!(server.get("/v1/models/b").json()["parent"], "base");
    let unknown = ask(&server, Some("c"));
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains("\\\"base\\\", \\\"a\\\", \\\"b\\\""), "{}", unknown.body);
    let with_default = Models::new(vec![adapted.clone()], Some("b"), None).unwrap();
    let with_default = serve_models(with_default);
    assert_eq!(ask(&with_default, Some("c")).json()["model"], "b");
    assert_eq!(ask(&with_default, None).json()["model"], "b");
    let same = ModelOptions { name: "a".into(), ..adapted };
    assert!(Models::new(vec![same], None, None).is_err());
}

//! `forerun serve` from its first line to its end.

use crate::common::{Models, Run};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn get(address: &str, path: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    write!(connection, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn it_serves_until_a_signal() {
    let models = Models::pair();
    for signal in [Signal::INT, Signal::TERM] {
        let run = Run::of("serve --port 0 --api-key secret");
        let mut running = run.with(&[models.target()]).start();
        let line = running.wait_for_line();
        let address = line.strip_prefix("listening on http://").unwrap();
        assert!(get(address, "/health").starts_with("HTTP/1.1 200 "));
        assert!(get(address, "/v1/models").starts_with("HTTP/1.1 401 "));
        running.signal(signal);
        let finished = running.finish();
        assert_eq!(finished.code, Some(0), "{}", finished.errors);
        assert!(TcpStream::connect(address).is_err());
        for words in ["open http://", "/v1", "status=401", "requires an API key"] {
            assert!(finished.errors.contains(words), "{words}: {}", finished.errors);
        }
    }
}

/// Returns the answer to a long prompt.
fn answer(address: &str) -> Value {
    let prompt = "one two three ".repeat(20);
    let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0}).to_string();
    let mut connection = TcpStream::connect(address).unwrap();
    write!(
        connection,
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).unwrap();
    serde_json::from_str(response.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_killed_server_leaves_its_pages() {
    let (models, folder) = (Models::pair(), tempfile::tempdir().unwrap());
    let run = || {
        let run = Run::of("serve --port 0").with(&[models.target()]);
        run.with_path("--cache-dir", folder.path())
    };
    let pages = || {
        let folders = std::fs::read_dir(folder.path()).unwrap().flatten();
        let files =
            folders.flat_map(|folder| std::fs::read_dir(folder.path()).into_iter().flatten());
        files.flatten().filter(|file| !file.file_name().to_string_lossy().starts_with('.')).count()
    };
    let (mut first, mut expected) = (None, 0);
    for _ in 0..2 {
        let mut running = run().start();
        let line = running.wait_for_line();
        let answer = answer(line.strip_prefix("listening on http://").unwrap());
        let usage = &answer["usage"];
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], expected, "{answer}");
        expected = (usage["prompt_tokens"].as_u64().unwrap() - 1) / 64 * 64;
        assert!(expected > 0);
        let text = answer["choices"][0]["text"].clone();
        assert_eq!(*first.get_or_insert_with(|| text.clone()), text);
        running.wait_until(|| pages() as u64 * 64 >= expected);
        running.kill();
        running.finish();
    }
}

#[test]
fn it_serves_the_models_of_a_file() {
    let models = Models::pair();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("models.toml");
    let text = format!(
        "[[model]]\nname = \"one\"\npath = {0:?}\npreload = true\n\
         [[model]]\nname = \"two\"\npath = {0:?}\ncontext-length = 99\n",
        models.target()
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let run = Run::forerun().with(&["serve", "--port", "0", "--models", file]);
    let mut running = run.start();
    let line = running.wait_for_line();
    let address = line.strip_prefix("listening on http://").unwrap();
    let listed = get(address, "/v1/models");
    for word in ["\"one\"", "\"two\"", "\"max_model_len\":99"] {
        assert!(listed.contains(word), "{listed}");
    }
    let loaded = get(address, "/api/ps");
    assert!(loaded.contains("\"one\"") && !loaded.contains("\"two\""), "{loaded}");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, Some(0));
    // The options of a model are in the file.
    let run = Run::forerun().with(&["serve", "--models", file, "--threads", "1"]);
    run.finish().assert_refused("--threads", &["--models"]);
    let run = Run::forerun().with(&["serve", "--models", "nowhere.toml"]);
    run.finish().assert_refused("--models", &["nowhere.toml"]);
}

#[test]
fn a_port_in_use_is_refused_with_advice() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let run = Run::forerun().with(&["serve", "--port", &port]);
    run.finish().assert_refused("a port in use", &[&port, "choose another --port"]);
}

#[test]
fn wrong_options_of_a_server_are_refused() {
    for (option, value, words) in [
        ("--api-key", "é", &["--api-key", "ASCII"][..]),
        ("--api-key", "two\nlines", &["--api-key", "line breaks"]),
        ("--cors-origin", "example.com", &["--cors-origin", "https://example.com"]),
        ("--cors-origin", "https://example.com/page", &["--cors-origin", "https://example.com"]),
        ("--served-model-name", " ", &["--served-model-name is empty"]),
        ("--log-level", "loud", &["\"loud\"", "info", "CRATE=LEVEL"]),
        ("--request-seconds", "0", &["--request-seconds"]),
    ] {
        let run = Run::forerun().with(&["serve", "--port", "0", option, value]);
        run.finish().assert_refused(option, words);
    }
}

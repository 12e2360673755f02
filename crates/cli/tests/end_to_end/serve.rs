//! `forerun serve` from its first line to its end.

use crate::common::{Models, Run};
use rustix::process::Signal;
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

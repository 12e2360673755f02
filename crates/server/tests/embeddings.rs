//! `/v1/embeddings`, `/v1/rerank`, and ollama's `/api/embed`.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{MODEL, open, serve_engine, with};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../forerun/tests/goldens/embeddings/bert-mean")
}

fn numbers(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn embeddings_have_the_forms_of_their_apis() {
    let server = serve_engine(open(&folder(), None), |_| ());
    let expected = open(&folder(), None).embed(&["of text", "one pass"]).unwrap();
    let embed = |body: Value| {
        let response = server.post("/v1/embeddings", &body);
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    };
    let answer = embed(json!({"model": MODEL, "input": ["of text", "one pass"], "user": "me"}));
    assert_eq!((&answer["object"], &answer["data"][1]["index"]), (&json!("list"), &json!(1)));
    let found = answer["data"].as_array().unwrap().iter().map(|one| numbers(&one["embedding"]));
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let tokens = server.post("/tokenize", &json!({"prompt": "of text"})).json()["tokens"].clone();
    for input in [json!("of text"), tokens.clone(), json!([tokens])] {
        let answer = embed(json!({"input": input}));
        assert_eq!(numbers(&answer["data"][0]["embedding"]), expected[0], "{input}");
        assert_eq!(answer["usage"]["prompt_tokens"], tokens.as_array().unwrap().len());
    }
    let encoded = embed(json!({"input": "of text", "encoding_format": "base64"}));
    // 16 numbers of 4 bytes.
    assert_eq!(encoded["data"][0]["embedding"].as_str().unwrap().len(), 88);
    let short = numbers(&embed(json!({"input": "a", "dimensions": 3}))["data"][0]["embedding"]);
    let length: f32 = short.iter().map(|x| x * x).sum();
    assert!(short.len() == 3 && (length - 1.0).abs() < 1e-5, "{short:?}");

    let ollama = |path: &str, body: Value| server.post(path, &with(body, json!({"model": MODEL})));
    let input = json!({"input": ["of text", "one pass"], "options": {"num_ctx": 9}});
    let answer = ollama("/api/embed", input).json();
    assert_eq!(numbers(&answer["embeddings"][1]), expected[1]);
    let answer = ollama("/api/embeddings", json!({"prompt": "of text", "keep_alive": "5m"})).json();
    assert_eq!(numbers(&answer["embedding"]), expected[0]);
    // What is too long is cut, unless the request says otherwise.
    let long = json!({"input": "a ".repeat(99)});
    assert_eq!(ollama("/api/embed", long.clone()).status, 200);
    assert_eq!(ollama("/api/embed", with(long, json!({"truncate": false}))).status, 400);

    let body = json!({
        "query": "of text", "documents": ["one pass", {"text": "of text"}, "x"], "top_n": 2,
        "return_documents": true,
    });
    let results = server.post("/v1/rerank", &body).json()["results"].clone();
    assert_eq!((results.as_array().unwrap().len(), &results[0]["index"]), (2, &json!(1)));
    assert_eq!(results[0]["document"]["text"], "of text");
    assert!(results[0]["relevance_score"].as_f64().unwrap() > 0.9999, "{results}");
}

#[test]
fn what_embeddings_cannot_do_is_refused_by_name() {
    let server = serve_engine(open(&folder(), None), |_| ());
    for (path, body, word) in [
        ("/v1/embeddings", json!({}), "input"),
        ("/v1/embeddings", json!({"input": {}}), "expected a text"),
        ("/v1/embeddings", json!({"input": "a", "dimensions": 17}), "dimensions is 17"),
        ("/v1/embeddings", json!({"input": "a", "encoding_format": "int8"}), "encoding_format"),
        ("/v1/embeddings", json!({"input": "a", "normalize": false}), "normalize"),
        ("/v1/embeddings", json!({"input": "a ".repeat(99)}), "context"),
        ("/v1/embeddings", json!({"input": [[]]}), "empty"),
        ("/v1/embeddings", json!({"input": [999_999]}), "999999"),
        ("/v1/embeddings", json!({"input": []}), "empty"),
        ("/v1/embeddings", json!({"input": vec!["a"; 2049]}), "2048"),
        ("/v1/rerank", json!({"query": "a"}), "documents"),
        ("/v1/rerank", json!({"query": "a", "documents": [{"text": "a", "x": 1}]}), "nothing else"),
        ("/v1/completions", json!({"prompt": "a"}), "gives embeddings"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}]}),
            "gives embeddings",
        ),
    ] {
        let response = server.post(path, &body);
        assert_eq!(response.status, 400, "{path} {body}: {}", response.body);
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(word), "{body}: {message}");
    }
    assert_eq!(server.post("/rerank", &json!({})).status, 404);
}

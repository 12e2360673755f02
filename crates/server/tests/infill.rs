//! Filling in the middle over real connections.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::*;
use forerun::RandomPair;
use serde_json::{Value, json};

/// A suffix, in each API that has one, means a prompt with the model's tokens around its parts.
#[test]
fn a_gap_is_a_prompt_with_tokens_around_its_parts() {
    let tokens = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>"];
    let pair = pair_with_special_tokens(&tokens);
    let server = serve(&pair);
    let fixed = json!({"temperature": 0.9, "seed": 5, "ignore_eos": true});
    let answer = |path: &str, fields: Value, place: &str| {
        let response = server.post(path, &with(fixed.clone(), fields));
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        response.json().pointer(place).unwrap().as_str().unwrap().to_owned()
    };
    let completion = |fields| {
        let limit = json!({"max_tokens": 12});
        answer("/v1/completions", with(fields, limit), "/choices/0/text")
    };
    let infill = |fields| {
        let limits = json!({"n_predict": 12, "samplers": ["top_k", "infill"]});
        answer("/infill", with(fields, limits), "/content")
    };
    let spelt = completion(json!({"prompt": "<fim_prefix>a(<fim_suffix>)<fim_middle>"}));
    assert!(!spelt.is_empty());
    assert_eq!(completion(json!({"prompt": "a(", "suffix": ")"})), spelt);
    assert_eq!(infill(json!({"input_prefix": "a(", "input_suffix": ")"})), spelt);
    let options = with(fixed.clone(), json!({"num_predict": 12}));
    let ollama = json!({
        "model": MODEL, "prompt": "a(", "suffix": ")", "stream": false, "options": options,
    });
    assert_eq!(answer("/api/generate", ollama, "/response"), spelt);
    // Tokens within the texts are text.
    assert_ne!(completion(json!({"prompt": "a(<fim_suffix>", "suffix": ")"})), spelt);
    // The first file is too long.
    let extra = json!([{"text": "c ".repeat(5000)}, {"filename": "b.py", "text": "b = 1"}]);
    let begun = json!({
        "input_prefix": "a(", "input_suffix": ")", "input_extra": extra, "prompt": "b",
    });
    let spelt = "<file_sep>b.py\nb = 1<file_sep>filename\n<fim_prefix>a(b<fim_suffix>)<fim_middle>";
    let spelt = completion(json!({"prompt": spelt}));
    assert_eq!(infill(begun.clone()), spelt);
    assert_eq!(answer("/infill", json!({"input_prefix": "a(", "n_predict": 0}), "/content"), "");
    let stream =
        with(with(fixed.clone(), begun), json!({"stream": true, "max_completion_tokens": 12}));
    let body = server.post("/infill", &stream).body;
    let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let texts = events.iter().filter_map(|event| event["content"].as_str());
    assert_eq!(texts.collect::<String>(), spelt);
    assert_eq!(events.last().unwrap()["stop_type"], "limit");
}

/// llama.vim asks for a part of the answer, and for an early end at its lines.
#[test]
fn answers_have_the_fields_and_lines_that_editors_ask_for() {
    let pair = pair_with_special_tokens(&["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]);
    let server = serve(&pair);
    let tokens = server.post("/tokenize", &json!({"content": "\n"})).json();
    let newline = tokens["tokens"][0].to_string();
    let answer = |fields: Value| {
        let body = json!({
            "model": "", "input_prefix": "a(", "n_predict": 300, "logit_bias": {(newline.clone()): 100},
            "ignore_eos": true, "temperature": 0, "n_indent": 0, "t_max_prompt_ms": 1,
        });
        let response = server.post("/infill", &with(body, fields));
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    };
    let whole = answer(json!({}));
    assert_eq!(whole["content"], "\n".repeat(300));
    assert_eq!(whole["timings"]["predicted_n"], 300);
    let read = whole["tokens_evaluated"].as_u64().unwrap();
    assert_eq!(whole["tokens_cached"], read + 300);
    let computed = &whole["timings"];
    let prompt = [&computed["prompt_n"], &computed["cache_n"]].map(|n| n.as_u64().unwrap());
    assert_eq!(prompt.iter().sum::<u64>(), read);
    let paths = json!(["content", "timings/predicted_n", "no/such"]);
    let some = json!({"n_predict": 2, "response_fields": paths});
    assert_eq!(answer(some), json!({"content": "\n\n", "timings/predicted_n": 2}));
    assert_eq!(answer(json!({"n_predict": 0, "response_fields": [""]})), json!({}));
    let indented = answer(json!({"n_indent": 4}));
    assert_eq!((&indented["content"], &indented["stop_type"]), (&json!("\n"), &json!("limit")));
    let late = answer(json!({"t_max_predict_ms": 1}));
    assert_eq!(late["stop_type"], "limit");
    assert!(late["tokens_predicted"].as_u64().unwrap() < 300, "{late}");
}

#[test]
fn gaps_that_cannot_be_filled_are_refused() {
    let server = serve(&RandomPair::make().unwrap());
    let body = json!({"prompt": "a", "suffix": "b"});
    for (path, body, words) in [
        ("/v1/completions", body.clone(), "which this model lacks"),
        ("/v1/completions", with(body.clone(), json!({"prompt": [1, 2]})), "one text"),
        ("/v1/completions", with(body, json!({"echo": true})), "echo"),
        ("/infill", json!({"input_prefix": "a"}), "which this model lacks"),
        ("/infill", json!({"input_prefix": "a", "best_of": 2}), "best_of is for"),
    ] {
        let response = server.post(path, &body);
        assert_eq!(response.status, 400, "{path}: {}", response.body);
        assert!(response.body.contains(words), "{}", response.body);
    }
}

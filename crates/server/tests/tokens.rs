//! Tokens over real connections: `/tokenize`, `/detokenize`, and the bytes of log-probabilities.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::*;
use forerun::RandomPair;
use forerun::text::SpecialTokens;
use serde_json::{Value, json};

/// Each field has the defaults of the server that it comes from.
#[test]
fn tokenize_obeys_the_fields_of_both_servers() {
    let pair = RandomPair::make().unwrap();
    let (server, engine) = (serve(&pair), engine(&pair));
    let text = "a</s>é";
    let tokens = |add, parse| {
        json!(engine.tokenizer().encode_with(text, SpecialTokens { add, parse }).unwrap())
    };
    assert_ne!(tokens(true, true), tokens(false, true));
    assert_ne!(tokens(false, true), tokens(false, false));
    let tokenize = |fields: Value| server.post("/tokenize", &fields);
    for (fields, add, parse) in [
        (json!({"prompt": text}), true, true),
        (json!({"content": text}), false, true),
        (json!({"prompt": text, "add_special_tokens": false}), false, true),
        (json!({"content": text, "add_special": true}), true, true),
        (json!({"prompt": text, "add_special": false}), false, true),
        (json!({"content": text, "add_special_tokens": true}), true, true),
        (json!({"content": text, "parse_special": false}), false, false),
        (json!({"prompt": text, "parse_special": false}), true, false),
        (
            json!({"prompt": text, "content": null, "add_special": null, "messages": null}),
            true,
            true,
        ),
        (json!({"content": text, "with_pieces": false, "return_token_strs": false}), false, true),
    ] {
        let body = tokenize(fields.clone()).json();
        assert_eq!(body["tokens"], tokens(add, parse), "{fields}");
        assert_eq!(body["count"], body["tokens"].as_array().unwrap().len());
        assert!(body.get("token_strs").is_none());
    }
    assert_eq!(tokenize(json!({"content": ""})).json()["tokens"], json!([]));
    let bos = engine.tokenizer().encode("").unwrap();
    assert_eq!(tokenize(json!({"prompt": ""})).json()["tokens"], json!(bos));
    for (fields, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": "a", "content": "a"}), "prompt"),
        (json!({"prompt": "a", "messages": []}), "prompt"),
        (json!({"prompt": "a", "add_special": true, "add_special_tokens": false}), "add_special"),
        (json!({"prompt": ["a"]}), "prompt"),
        (json!({"content": "a", "with_pieces": 1}), "with_pieces"),
        (json!({"messages": [], "model": MODEL}), "messages"),
        (json!({"messages": [{"role": "user", "content": "a"}], "add_special": true}), "messages"),
    ] {
        let response = tokenize(fields.clone());
        assert_eq!(response.status, 400, "{fields}");
        assert_eq!(response.json()["error"]["param"], param, "{fields}");
    }
}

#[test]
fn tokenize_returns_the_texts_of_tokens_in_the_forms_of_both_servers() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let body = json!({"content": "a</s> é", "with_pieces": true, "return_token_strs": true});
    let body = server.post("/tokenize", &body).json();
    let pieces = body["tokens"].as_array().unwrap().iter();
    let pieces: Vec<&Value> = pieces.map(|token| &token["piece"]).collect();
    // A part of a character is a list of bytes.
    assert_eq!(json!(pieces), json!(["a", "</s>", " ", [0xC3], [0xA9]]));
    assert!(body["tokens"][0]["id"].is_u64());
    assert_eq!(body["token_strs"], json!(["a", "</s>", "Ġ", "Ã", "©"]));
}

#[test]
fn tokenize_renders_a_conversation_as_chat_completions_do() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let user = json!({"role": "user", "content": "Hi"});
    let chat = json!({"messages": [user], "max_tokens": 1});
    let usage = server.post("/v1/chat/completions", &chat).json()["usage"].clone();
    let body = server.post("/tokenize", &json!({"messages": [user]})).json();
    assert_eq!(body["count"], usage["prompt_tokens"]);
    let text = |body: Value| {
        let tokens = server.post("/tokenize", &body).json()["tokens"].clone();
        let text = server.post("/detokenize", &json!({"tokens": tokens})).json();
        text["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(text(json!({"messages": [user]})), "<s>User: Hi\nAssistant:");
    let without = json!({"messages": [user], "add_generation_prompt": false});
    assert_eq!(text(without), "<s>User: Hi\n");
    let tool = json!({"type": "function", "function": {"name": "get_weather", "parameters": {}}});
    assert!(text(json!({"messages": [user], "tools": [tool]})).contains("get_weather"));
    let begun = json!([user, {"role": "assistant", "content": "Hello"}]);
    let continued =
        json!({"messages": begun, "continue_final_message": true, "add_generation_prompt": false});
    assert_eq!(text(continued), "<s>User: Hi\nAssistant:Hello");
}

#[test]
fn detokenize_keeps_special_tokens_and_refuses_unknown_ones() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let tokens = server.post("/tokenize", &json!({"prompt": "a</s>é"})).json()["tokens"].clone();
    let text = server.post("/detokenize", &json!({"tokens": tokens})).json();
    assert_eq!(text, json!({"prompt": "<s>a</s>é", "content": "<s>a</s>é"}));
    let unknown = server.post("/detokenize", &json!({"tokens": [97, 4_000_000_000_u32]}));
    assert_eq!(unknown.status, 400);
    let error = &unknown.json()["error"];
    assert_eq!(error["param"], "tokens");
    assert!(error["message"].as_str().unwrap().contains("4000000000"), "{error}");
}

/// Every token is a byte, so that most of them are parts of characters.
#[test]
fn log_probabilities_have_the_bytes_of_tokens() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let bias: Value = "é→".bytes().map(|byte| (byte.to_string(), json!(100))).collect();
    let sampled = json!({"temperature": 5, "seed": 1, "logit_bias": bias, "max_tokens": 40, "ignore_eos": true});
    let chat = with(
        json!({"messages": [{"role": "user", "content": "Hi"}], "logprobs": true, "top_logprobs": 5}),
        sampled.clone(),
    );
    let choice = server.post("/v1/chat/completions", &chat).json()["choices"][0].clone();
    let bytes_of = |entry: &Value| -> Vec<u8> {
        let bytes = entry["bytes"].as_array().unwrap().iter();
        bytes.map(|byte| byte.as_u64().unwrap() as u8).collect()
    };
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 40);
    let bytes: Vec<u8> = content.iter().flat_map(bytes_of).collect();
    assert_eq!(bytes.len(), 40);
    assert_eq!(String::from_utf8_lossy(&bytes), choice["message"]["content"].as_str().unwrap());
    for entry in content {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 5);
        for entry in top.iter().chain([entry]) {
            let bytes = bytes_of(entry);
            assert_eq!(entry["token"], json!(String::from_utf8_lossy(&bytes)));
        }
        let mut distinct: Vec<Vec<u8>> = top.iter().map(bytes_of).collect();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), 5, "{top:?}");
    }
    // Completions name tokens by text, which must keep them apart.
    let completion = with(json!({"prompt": "Hi", "logprobs": 5}), sampled);
    let whole = server.post("/v1/completions", &completion).json()["choices"][0].clone();
    let logprobs = &whole["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    for (token, top) in tokens.iter().zip(logprobs["top_logprobs"].as_array().unwrap()) {
        assert_eq!(top.as_object().unwrap().len(), 5, "{top}");
        let token = token.as_str().unwrap();
        assert!(token.starts_with("bytes:\\x") && token.len() == 10, "{token}");
    }
    let offsets = |logprobs: &Value| logprobs["text_offset"].as_array().unwrap().clone();
    let characters = whole["text"].as_str().unwrap().chars().count() as u64;
    assert!(offsets(logprobs).iter().all(|offset| offset.as_u64().unwrap() < characters));
    let events =
        server.post("/v1/completions", &with(completion, json!({"stream": true}))).events();
    let streamed = events.iter().map(|event| &event["choices"][0]["logprobs"]);
    let streamed: Vec<Value> =
        streamed.filter(|logprobs| !logprobs.is_null()).flat_map(offsets).collect();
    assert_eq!(streamed, offsets(logprobs));
}

/// As lm-eval's `local-completions` asks, with texts or tokens.
#[test]
fn an_echoed_prompt_has_the_log_probabilities_of_its_tokens() {
    let pair = RandomPair::make().unwrap();
    let (server, engine) = (serve(&pair), engine(&pair));
    let texts = ["x".to_owned(), "é→ </s>x".to_owned(), "Once upon a time ".repeat(9)];
    let tokens = texts.each_ref().map(|text| engine.encode_prompt(text).unwrap());
    let decoded = tokens.each_ref().map(|list| engine.tokenizer().decode_with_special(list));
    let fields = json!({
        "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1234,
        "ignore_eos": true,
    });
    let answer = |prompt: &Value, more: Value| {
        let body = with(json!({"model": MODEL, "prompt": prompt}), fields.clone());
        let answer = server.post("/v1/completions", &with(body, more));
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    for (prompt, shown) in [(json!(texts), &texts), (json!(tokens), &decoded)] {
        let whole = answer(&prompt, json!({}));
        let plain = answer(&prompt, json!({"echo": false, "logprobs": null}));
        let alone = answer(&prompt, json!({"max_tokens": 0}));
        assert_eq!(alone["usage"]["completion_tokens"], 0);
        for (index, (tokens, text)) in tokens.iter().zip(shown).enumerate() {
            let choice = &whole["choices"][index];
            let generated = plain["choices"][index]["text"].as_str().unwrap();
            assert_eq!(choice["text"], format!("{text}{generated}"));
            let list = |name: &str| choice["logprobs"][name].as_array().unwrap().clone();
            let (values, tops) = (list("token_logprobs"), list("top_logprobs"));
            assert_eq!((values.len(), tops.len()), (tokens.len() + 1, tokens.len() + 1));
            assert_eq!((&values[0], &tops[0]), (&Value::Null, &Value::Null));
            let canceller = forerun::Canceller::new();
            let scores = engine.score(&tokens[..1], &tokens[1..], 1, &canceller).unwrap();
            for (score, (value, top)) in scores.iter().zip(values[1..].iter().zip(&tops[1..])) {
                let value = value.as_f64().unwrap();
                assert!((value - f64::from(score.logprob)).abs() < 1e-6, "{value} {score:?}");
                let best = top.as_object().unwrap().values().next().unwrap().as_f64().unwrap();
                // So lm-eval sees whether the token is the best one.
                assert_eq!(value == best, score.logprob == score.top[0].1);
            }
            let offsets: Vec<usize> = list("text_offset")
                .iter()
                .map(|offset| offset.as_u64().unwrap() as usize)
                .collect();
            assert!(offsets.is_sorted(), "{offsets:?}");
            assert_eq!(offsets[0], 0);
            assert_eq!(offsets[tokens.len()], text.chars().count());
            // BOS is a part of the text only if the prompt has it.
            assert_eq!(offsets[1], if text.starts_with("<s>") { 3 } else { 0 });
            assert_eq!(list("tokens")[0], "<s>");
            let alone = &alone["choices"][index];
            assert_eq!((&alone["text"], &alone["finish_reason"]), (&json!(text), &json!("length")));
            assert_eq!(alone["logprobs"]["token_logprobs"], json!(values[..tokens.len()]));
        }
    }
    let text = answer(&json!("x"), json!({"logprobs": null}));
    assert!(text["choices"][0]["text"].as_str().unwrap().starts_with('x'));
    assert_eq!(text["choices"][0]["logprobs"], Value::Null);
    let body = with(completion("x", 1), json!({"echo": true, "stream": true}));
    let refused = server.post("/v1/completions", &body);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("echo")));
}

/// Whatever the token stands for elsewhere, and also if it ends the answer within a draft.
#[test]
fn the_token_that_ends_an_answer_has_no_text_anywhere() {
    let pair = RandomPair::make().unwrap();
    let (server, engine) = (serve(&pair), engine(&pair));
    let tokens = engine.encode_prompt("Once upon").unwrap();
    let request = |max_tokens| plain_request(max_tokens);
    let go_on = |_: &str| std::ops::ControlFlow::Continue(());
    let whole = engine.generate_tokens(tokens, &request(12), go_on).unwrap();
    for speculation in [json!("off"), json!({"method": "speculative", "draft_tokens": 4})] {
        for end in &whole.tokens {
            let body = with(
                completion("Once upon", 12),
                json!({"stop_token_ids": [end], "logprobs": 2, "speculation": speculation, "token_details": true}),
            );
            let choice = server.post("/v1/completions", &body).json()["choices"][0].clone();
            let first = whole.tokens.iter().position(|token| token == end).unwrap();
            let limit =
                json!({"stop_token_ids": null, "logprobs": null, "max_tokens": first.max(1)});
            let before = server.post("/v1/completions", &with(body.clone(), limit)).json();
            let text = if first == 0 { "" } else { before["choices"][0]["text"].as_str().unwrap() };
            assert_eq!(choice["text"], text, "{end}");
            assert_eq!(choice["finish_reason"], "stop");
            let logprobs = &choice["logprobs"];
            assert_eq!(logprobs["tokens"].as_array().unwrap().len(), first + 1);
            assert_eq!(logprobs["tokens"][first], "");
            assert_eq!(logprobs["top_logprobs"][first].as_object().unwrap().len(), 2);
            let details = choice["forerun"]["tokens"].as_array().unwrap();
            let shown: String = details.iter().map(|one| one["text"].as_str().unwrap()).collect();
            assert_eq!(shown, text);
            let stream = server.post("/v1/completions", &with(body, json!({"stream": true})));
            let events = stream.events();
            let streamed = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
            assert_eq!(streamed.collect::<String>(), text, "{end}");
        }
    }
}

//! The server over real connections.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::*;
use forerun::{ChatTemplate, Engine, Message, Options, RandomPair, Request, SamplingOptions};
use forerun_server::{Server, ServerOptions};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn completions_are_the_engines_streamed_or_not() {
    let pair = RandomPair::make().unwrap();
    let (server, engine) = (serve(&pair), engine(&pair));
    let expected = engine.complete("Once upon", &plain_request(24)).unwrap();
    let body = completion("Once upon", 24);
    let response = server.post("/v1/completions", &body);
    assert_eq!(response.status, 200, "{}", response.body);
    let whole = response.json();
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["choices"][0]["text"], expected.text);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 24);
    assert_eq!(whole["usage"]["prompt_tokens"], expected.prompt_tokens);
    assert!(whole["forerun"]["choices"][0]["target_forwards"].as_u64().unwrap() > 0);
    // As a stream, with and without usage, and as tokens instead of a text.
    let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
    let events = server.post("/v1/completions", &with(body.clone(), stream)).events();
    let text: String =
        events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, expected.text);
    let last = events.last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]));
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "length");
    let tokens = engine.encode_prompt("Once upon").unwrap();
    let events = server.post("/v1/completions", &with(body, json!({"prompt": tokens}))).json();
    assert_eq!(events["choices"][0]["text"], expected.text);
}

#[test]
fn chats_are_the_engines_streamed_or_not() {
    let pair = RandomPair::make().unwrap();
    let (server, engine) = (serve(&pair), engine(&pair));
    let template = ChatTemplate::plain().unwrap();
    let messages = [Message::system("Be brief."), Message::user("Hello?")];
    let request = Request {
        // The request says nothing of the other filters.
        sampling: SamplingOptions {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.05,
            ..SamplingOptions::default()
        },
        seed: Some(11),
        logprobs: Some(2),
        ..plain_request(20)
    };
    let prompt = engine.encode_chat(&template, &messages).unwrap();
    let request = engine.chat_request(&template, &request);
    let expected =
        engine.generate_tokens(prompt, &request, |_| std::ops::ControlFlow::Continue(()));
    let expected = expected.unwrap();
    let body = json!({
        "model": MODEL,
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello?"}]},
        ],
        "max_completion_tokens": 20, "temperature": 0.7, "top_p": 0.9, "seed": 11,
        "logprobs": true, "top_logprobs": 2, "ignore_eos": true,
    });
    let whole = server.post("/v1/chat/completions", &body);
    assert_eq!(whole.status, 200, "{}", whole.body);
    let choice = &whole.json()["choices"][0];
    assert_eq!(choice["message"]["content"], expected.text);
    let logprobs = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(logprobs.len(), expected.tokens.len());
    let events = server.post("/v1/chat/completions", &with(body, json!({"stream": true}))).events();
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
    let text: String = deltas.filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(text, expected.text);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let streamed: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    assert_eq!(streamed, logprobs.iter().collect::<Vec<_>>());
}

#[test]
fn an_answer_without_a_limit_ends_when_it_repeats_itself() {
    let server = serve_engine(engine_with_context(400), |_| ());
    // The model always writes the same letter.
    let body = json!({"model": MODEL, "temperature": 0, "logit_bias": {"66": 100}});
    let chat = with(body.clone(), json!({"messages": [{"role": "user", "content": "Hi"}]}));
    let post = |fields: Value| server.post("/v1/chat/completions", &with(chat.clone(), fields));
    for fields in [json!({}), json!({"max_tokens": -1})] {
        let ended = post(fields).json();
        assert_eq!(ended["choices"][0]["message"]["content"], "B".repeat(200));
        assert_eq!(ended["choices"][0]["finish_reason"], "length");
        assert_eq!(ended["usage"]["completion_tokens"], 200);
    }
    let events = post(json!({"stream": true})).events();
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
    let text: String = deltas.filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(text, "B".repeat(200));
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    let response = server.post("/v1/responses", &with(body, json!({"input": "Hi"}))).json();
    assert_eq!(response["status"], "incomplete", "{response}");
    assert_eq!(response["usage"]["output_tokens"], 200);
    // What asks for a length gets it.
    for fields in [json!({"max_tokens": 250}), json!({"ignore_eos": true})] {
        let whole = post(fields).json();
        assert!(whole["usage"]["completion_tokens"].as_u64() >= Some(250), "{whole}");
    }
}

#[test]
fn answers_do_not_depend_on_who_else_is_served() {
    let pair = RandomPair::make().unwrap();
    let (server, engine) = (serve_with(&pair, |options| options.parallel = 6), engine(&pair));
    let cases: Vec<(Value, String)> = (0..24)
        .map(|case| {
            let prompt = "The quick brown fox jumps over the lazy dog. ".repeat(1 + case % 3);
            let temperature = [0.0, 0.7, 1.0][case % 3];
            let request = Request {
                sampling: SamplingOptions { temperature, ..SamplingOptions::default() },
                seed: Some(case as u64),
                ..plain_request(5 + case * 3 % 40)
            };
            let expected = engine.complete(&prompt, &request).unwrap().text;
            let method =
                [json!("off"), json!({"method": "speculative"}), Value::Null][case % 3].clone();
            let fields = json!({"temperature": temperature, "seed": case, "speculation": method});
            (with(completion(&prompt, request.max_tokens), fields), expected)
        })
        .collect();
    std::thread::scope(|scope| {
        for (case, (body, expected)) in cases.iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                if case % 5 == 4 {
                    // A client that goes away disturbs nobody.
                    let body = with(body.clone(), json!({"stream": true, "max_tokens": 100}));
                    drop(server.request("POST", "/v1/completions", "", &body.to_string()));
                }
                let answer = server.post("/v1/completions", body).json();
                assert_eq!(answer["choices"][0]["text"], **expected, "case {case}");
            });
        }
    });
    server.wait_for("vllm:num_requests_running", 0.0);
    assert_eq!(server.metric("forerun_answers_failed_total"), 0.0);
}

#[test]
fn a_request_may_choose_the_shape_of_its_drafts() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let answer = |speculation: Value| {
        let fields = json!({
            "speculation": speculation, "temperature": 0.5, "seed": 3, "token_details": true
        });
        server.post("/v1/completions", &with(completion("Once upon", 40), fields)).json()
    };
    let plain = answer(json!("off"));
    for count in [1, 3, 7] {
        let drafted = answer(json!({"method": "speculative", "draft_tokens": count}));
        assert_eq!(drafted["choices"][0]["text"], plain["choices"][0]["text"]);
        let statistics = &drafted["forerun"]["choices"][0];
        let number = |name: &str| statistics[name].as_u64().unwrap();
        assert!(number("draft_tokens") > 0, "{statistics}");
        assert!(number("draft_tokens") <= count * number("target_forwards"), "{statistics}");
    }
    let tree = answer(json!({"method": "speculative", "drafter": "model", "tree": "top:2x3"}));
    assert_eq!(tree["choices"][0]["text"], plain["choices"][0]["text"]);
    let tokens = tree["choices"][0]["forerun"]["tokens"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(tree["choices"][0]["text"], text);
    assert!(tokens.iter().any(|token| token["origin"] == "draft"), "{tokens:?}");
    let statistics = &tree["forerun"]["choices"][0];
    assert_eq!(statistics["tested_by_position"].as_array().unwrap().len(), 3, "{statistics}");
    for (speculation, param) in [
        (json!({"draft_tokens": 99}), "speculation.draft_tokens"),
        (json!({"method": "speculative", "tree": "bush"}), "speculation.tree"),
        (json!({"method": "speculative", "tree": "top:99x99"}), "speculation.tree"),
        (json!({"method": "pearl", "tree": "top:2x3"}), "speculation.tree"),
        (json!({"drafter": "eagle"}), "speculation.drafter"),
    ] {
        let wrong = answer(speculation);
        assert_eq!(wrong["error"]["param"], param, "{wrong}");
    }
}

#[test]
fn several_choices_have_seeds_of_their_own() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let one = |seed: usize| {
        let fields = json!({"temperature": 1, "seed": seed});
        let answer = server.post("/v1/completions", &with(completion("A", 12), fields)).json();
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let fields = json!({"temperature": 1, "seed": 7, "n": 2, "prompt": ["A", "A"]});
    let body = with(completion("A", 12), fields);
    let all = server.post("/v1/completions", &body).json();
    let texts = |index: usize| all["choices"][index]["text"].as_str().unwrap().to_owned();
    assert_eq!([texts(0), texts(1), texts(2), texts(3)], [one(7), one(8), one(7), one(8)]);
    assert_eq!(all["usage"]["completion_tokens"], 48);
    let events = server.post("/v1/completions", &with(body, json!({"stream": true}))).events();
    for index in 0..4 {
        let of_choice = events.iter().map(|event| &event["choices"][0]);
        let of_choice = of_choice.filter(|choice| choice["index"] == index);
        let text: String = of_choice.filter_map(|choice| choice["text"].as_str()).collect();
        assert_eq!(text, texts(index));
    }
}

#[test]
fn wrong_requests_are_named() {
    let pair = RandomPair::make().unwrap();
    let server = serve_with(&pair, |options| options.max_body_bytes = 100_000);
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]});
    let cases = [
        ("/v1/completions", json!({"model": MODEL}), 400, "prompt"),
        ("/v1/completions", json!({"prompt": ""}), 400, "prompt"),
        ("/v1/completions", json!({"prompt": [99_999_999]}), 400, "prompt"),
        ("/v1/completions", json!({"prompt": "x ".repeat(20_000)}), 400, "prompt"),
        ("/v1/completions", json!({"prompt": "x", "model": "gpt-5"}), 404, "model"),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 0}), 400, "max_tokens"),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": -2}), 400, "max_tokens"),
        ("/v1/completions", json!({"prompt": "x", "temperature": "hot"}), 400, "temperature"),
        ("/v1/completions", json!({"prompt": "x", "temperature": -1}), 400, "temperature"),
        ("/v1/completions", json!({"prompt": "x", "top_k": -2}), 400, "top_k"),
        ("/v1/completions", json!({"prompt": "x", "logit_bias": {"a": 1}}), 400, "logit_bias"),
        ("/v1/completions", json!({"prompt": "x", "n": 0}), 400, "n"),
        ("/v1/completions", json!({"prompt": "x", "n": 129}), 400, "n"),
        ("/v1/completions", json!({"prompt": "x", "stop": ""}), 400, "stop"),
        ("/v1/completions", json!({"prompt": "x", "logprobs": true}), 400, "logprobs"),
        ("/v1/completions", json!({"prompt": "x", "suffix": "y"}), 400, "suffix"),
        ("/v1/completions", json!({"prompt": "x", "speculation": "fast"}), 400, "speculation"),
        (
            "/v1/completions",
            json!({"prompt": "x", "speculation": {"method": "none"}}),
            400,
            "speculation.method",
        ),
        ("/v1/chat/completions", json!({"messages": []}), 400, "messages"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            400,
            "messages[0].content",
        ),
        ("/v1/chat/completions", with(chat.clone(), json!({"tools": [{}]})), 400, "tools[0]"),
        (
            "/v1/chat/completions",
            with(chat.clone(), json!({"response_format": {"type": "xml"}})),
            400,
            "response_format.type",
        ),
        (
            "/v1/chat/completions",
            with(chat.clone(), json!({"response_format": {"type": "json_schema"}})),
            400,
            "response_format.json_schema",
        ),
        (
            "/v1/chat/completions",
            with(
                chat.clone(),
                json!({"response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "text"}},
                }}),
            ),
            400,
            "response_format.json_schema.schema",
        ),
        ("/v1/completions", json!({"prompt": "x", "grammar": "root: \"a\""}), 400, "grammar"),
        ("/v1/completions", json!({"prompt": "x", "grammar": 1}), 400, "grammar"),
        ("/v1/completions", json!({"prompt": "x", "guided_regex": "(a"}), 400, "guided_regex"),
        (
            "/v1/completions",
            json!({"prompt": "x", "structured_outputs": {"regex": "a", "choice": ["b"]}}),
            400,
            "structured_outputs.choice",
        ),
        (
            "/v1/completions",
            json!({"prompt": "x", "guided_regex": "a", "ignore_eos": true}),
            400,
            "ignore_eos",
        ),
        ("/v1/chat/completions", with(chat, json!({"top_logprobs": 2})), 400, "top_logprobs"),
    ];
    for (path, body, status, param) in cases {
        let short: String = body.to_string().chars().take(100).collect();
        let response = server.post(path, &body);
        assert_eq!(response.status, status, "{short}: {}", response.body);
        let error = &response.json()["error"];
        assert_eq!(error["param"], param, "{short}: {error}");
        assert!(!error["message"].as_str().unwrap().is_empty());
        assert_eq!(error["type"], "invalid_request_error");
    }
    let text = |body: &str| server.send("POST", "/v1/completions", "", body);
    for body in ["", "{", "[]", "{\"prompt\": \"x\"} x", "null"] {
        assert_eq!(text(body).status, 400, "{body}");
    }
    assert_eq!(text(&"x".repeat(200_000)).status, 413);
    assert_eq!(server.get("/v1/nothing").status, 404);
    assert!(server.get("/v1").body.contains("there is no GET /v1: use POST /v1/chat/completions"));
    for (path, instead) in
        [("/completion", "/v1/completions"), ("/chat/completions", "/v1/chat/completions")]
    {
        let missing = server.post(path, &json!({}));
        assert_eq!(missing.status, 404);
        let message = format!("there is no POST {path}: use POST {instead}");
        assert_eq!(missing.json()["error"]["message"], message);
    }
    assert_eq!(server.get("/v1/completions").status, 405);
    assert!(server.get("/v1/completions").json()["error"]["message"].is_string());
    // Unknown fields are ignored.
    let body = with(completion("x", 2), json!({"user": "me", "metadata": {}, "store": false}));
    assert_eq!(server.post("/v1/completions", &body).status, 200);
}

#[test]
fn the_queue_is_limited_and_clients_that_leave_free_their_places() {
    let server =
        serve_engine(endless_engine(), |options| (options.parallel, options.queue) = (1, 1));
    let endless = |server: &Running| {
        let body = with(completion("x", 1_000_000), json!({"stream": true}));
        server.request("POST", "/v1/completions", "", &body.to_string())
    };
    let first = endless(&server);
    server.wait_for("vllm:num_requests_running", 1.0);
    let second = endless(&server);
    server.wait_for("vllm:num_requests_waiting", 1.0);
    let refused = server.post("/v1/completions", &completion("x", 1));
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert!(refused.headers.contains("retry-after: 1"));
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    drop(second);
    server.wait_for("vllm:num_requests_waiting", 0.0);
    drop(first);
    server.wait_for("vllm:num_requests_running", 0.0);
    assert_eq!(server.post("/v1/completions", &completion("x", 1)).status, 200);
}

#[test]
fn keys_are_required_if_there_are_any() {
    let pair = RandomPair::make().unwrap();
    let keys = vec!["first".to_owned(), "second".to_owned()];
    let server = serve_with(&pair, |options| options.api_keys = keys);
    let send = |header: &str| server.send("GET", "/v1/models", header, "");
    for header in ["", "Authorization: Bearer third\r\n", "Authorization: first\r\n"] {
        let response = send(header);
        assert_eq!(response.status, 401);
        assert_eq!(response.json()["error"]["code"], "invalid_api_key");
    }
    for key in ["first", "second"] {
        let response = send(&format!("Authorization: Bearer {key}\r\n"));
        assert_eq!(response.json()["data"][0]["id"], MODEL);
    }
    assert_eq!(server.get("/health").json(), json!({"status": "ok"}));
}

#[test]
fn tokens_and_texts_are_converted() {
    let pair = RandomPair::make().unwrap();
    let (server, engine) = (serve(&pair), engine(&pair));
    let tokens = engine.encode_prompt("Once upon a time").unwrap();
    for fields in [
        json!({"prompt": "Once upon a time"}),
        json!({"content": "Once upon a time", "add_special": true}),
    ] {
        let body = server.post("/tokenize", &fields).json();
        assert_eq!(body["tokens"], json!(tokens));
        assert_eq!(body["count"], tokens.len());
    }
    let text = server.post("/detokenize", &json!({"tokens": tokens})).json();
    assert_eq!(text["prompt"], engine.tokenizer().decode_with_special(&tokens));
    assert_eq!(server.get(&format!("/v1/models/{MODEL}")).json()["object"], "model");
    assert_eq!(server.get("/v1/models/other").status, 404);
}

#[test]
fn a_prompt_that_was_answered_before_comes_from_the_cache() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let mut requests = Vec::new();
    for speculation in ["off", "speculative", "pearl"] {
        let extension = match speculation {
            "off" => json!({"speculation": "off"}),
            method => json!({"speculation": {"method": method}}),
        };
        let prompt = format!("{speculation}: {}", "once upon a time ".repeat(8));
        let body = with(completion(&prompt, 4), extension);
        let first = server.post("/v1/completions", &body).json();
        let second = server.post("/v1/completions", &body).json();
        assert_eq!(first["choices"], second["choices"]);
        let cached = |response: &Value| {
            response["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
        };
        let prompt_tokens = second["usage"]["prompt_tokens"].as_u64().unwrap();
        // Caches are shared by pages of 64 tokens, and the last token is always computed.
        assert!(prompt_tokens > 64, "{prompt_tokens}");
        assert_eq!(cached(&second), (prompt_tokens - 1) / 64 * 64, "{speculation}");
        requests.extend([(prompt_tokens, cached(&first)), (prompt_tokens, cached(&second))]);
    }
    let (prompts, cached) = requests.iter().fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    assert_eq!(server.metric("vllm:prefix_cache_queries_total"), prompts as f64);
    assert_eq!(server.metric("vllm:prefix_cache_hits_total"), cached as f64);
    server.wait_for("vllm:kv_cache_usage_perc", 0.0);
}

#[test]
fn a_server_without_a_model_asks_to_come_again() {
    let pair = RandomPair::make().unwrap();
    let server = Server::bind(server_options()).unwrap();
    let early = Running { address: server.address(), stop: None, thread: None };
    for path in ["/health", "/v1/models", "/metrics"] {
        let response = early.get(path);
        assert_eq!(response.status, 503, "{}", response.body);
        assert!(response.headers.contains("retry-after: 1"), "{}", response.headers);
        assert_eq!(response.json()["error"]["code"], "loading");
    }
    let taken = Server::bind(ServerOptions::new(early.address)).err().unwrap();
    assert!(taken.to_string().contains(&early.address.to_string()), "{taken}");
    let running = run(server, engine(&pair));
    while running.get("/health").status == 503 {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(running.get("/health").json()["status"], "ok");
}

#[test]
fn a_server_that_stops_lets_answers_finish_and_then_cancels_them() {
    for (drain, finishes) in [(Duration::from_secs(600), true), (Duration::ZERO, false)] {
        let mut server = serve_engine(endless_engine(), |options| options.drain = drain);
        let limit = if finishes { 60 } else { 1_000_000 };
        let body = with(completion("x", limit), json!({"stream": true}));
        let stream = server.request("POST", "/v1/completions", "", &body.to_string());
        let mut reader = BufReader::new(stream);
        let mut text = String::new();
        // The answer has begun.
        while !text.contains("data: ") {
            assert_ne!(reader.read_line(&mut text).unwrap(), 0, "{text}");
        }
        drop(server.stop.take());
        reader.read_to_string(&mut text).ok();
        assert_eq!(text.contains("[DONE]"), finishes || text.contains("finish_reason\":\"stop\""));
        server.thread.take().unwrap().join().unwrap();
        assert!(TcpStream::connect(server.address).is_err());
        server.thread = Some(std::thread::spawn(|| ()));
    }
}

/// Every field that describes the text, for both kinds of requests, with and without streaming.
#[test]
fn answers_follow_their_grammar() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let schema = json!({
        "type": "object",
        "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "maximum": 99}},
        "required": ["kind", "age"],
        "additionalProperties": false,
    });
    let is_animal = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap();
        ["cat", "dog"].contains(&value["kind"].as_str().unwrap()) && value["age"].is_i64()
    };
    let is_choice = |text: &str| ["yes", "no"].contains(&text);
    let named = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    type Check<'a> = &'a dyn Fn(&str) -> bool;
    let cases: [(Value, Check<'_>); 10] = [
        (json!({"response_format": named}), &is_animal),
        (json!({"json_schema": schema}), &is_animal),
        (json!({"structured_outputs": {"json": schema}}), &is_animal),
        (json!({"guided_json": schema.to_string()}), &is_animal),
        (json!({"grammar": "root ::= \"yes\" | \"no\""}), &is_choice),
        (json!({"guided_grammar": "start: \"yes\" | \"no\""}), &is_choice),
        (json!({"guided_regex": "yes|no"}), &is_choice),
        (json!({"guided_choice": ["yes", "no"]}), &is_choice),
        (json!({"structured_outputs": {"choice": ["yes", "no"]}}), &is_choice),
        (
            json!({"response_format": {"type": "text"}, "structured_outputs": {"regex": "no"}}),
            &is_choice,
        ),
    ];
    for (fields, check) in cases {
        let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "temperature": 0.7});
        let response = server.post("/v1/chat/completions", &with(chat, fields.clone()));
        assert_eq!(response.status, 200, "{fields}: {}", response.body);
        let choice = &response.json()["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(check(text), "{fields}: {text}");
        assert_eq!(choice["finish_reason"], "stop");
        let completion = with(completion("x", 200), json!({"ignore_eos": false}));
        let response = server.post("/v1/completions", &with(completion, fields.clone()));
        let text = response.json()["choices"][0]["text"].as_str().unwrap().to_owned();
        assert!(check(&text), "{fields}: {text}");
    }
    // Cut off.
    let fields = json!({"guided_regex": "[a-z]{5}", "ignore_eos": false});
    let body = with(completion("x", 2), fields);
    assert_eq!(
        server.post("/v1/completions", &body).json()["choices"][0]["finish_reason"],
        "length"
    );
}

/// Eight answers on caches with room for about three: they wait and pause, and have the same text.
#[test]
fn answers_that_outgrow_the_caches_pause_and_keep_their_text() {
    let pair = RandomPair::make().unwrap();
    let with_cache = |cache_bytes: usize| {
        let (model, draft_model) = (pair.target().into(), Some(pair.drafter().into()));
        let cache_bytes = Some(cache_bytes);
        let options = Options { model, draft_model, cache_bytes, ..Options::default() };
        Engine::open(options).unwrap()
    };
    // The bytes of three answers of about 200 tokens.
    let bytes = (600 << 20) / with_cache(1 << 20).cache_tokens().unwrap();
    let (roomy, tight) = (serve(&pair), serve_engine(with_cache(bytes), |_| ()));
    let body = |seed: usize| {
        let fields = json!({"temperature": 1, "seed": seed, "ignore_eos": true});
        with(completion(&"Once upon a ".repeat(6), 120), fields)
    };
    let text = |server: &Running, seed: usize| -> String {
        let answer = server.post("/v1/completions", &body(seed)).json();
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let expected: Vec<String> = (0..8).map(|seed| text(&roomy, seed)).collect();
    std::thread::scope(|scope| {
        for (seed, expected) in expected.iter().enumerate() {
            let (tight, text) = (&tight, &text);
            scope.spawn(move || assert_eq!(text(tight, seed), *expected, "{seed}"));
        }
    });
    assert!(tight.metric("forerun_pauses_total") > 0.0);
    assert_eq!(roomy.metric("forerun_pauses_total"), 0.0);
}

//! What clients send, and what they expect of streams and queues.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::*;
use forerun::{ChatTemplate, Engine, RandomPair};
use forerun_formats::Config;
use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_server::{Models, Server};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

/// Returns the tokens of the prompt that a request leads to.
fn prompt_tokens(server: &Running, path: &str, body: &Value) -> u64 {
    let response = server.post(path, body);
    assert_eq!(response.status, 200, "{path} {body}: {}", response.body);
    let response = response.json();
    let usage = &response["usage"];
    // Anthropic counts those from the cache apart.
    let cached = usage["cache_read_input_tokens"].as_u64().unwrap_or(0);
    let counts = [&response["input_tokens"], &usage["prompt_tokens"], &usage["input_tokens"]];
    counts.into_iter().find_map(Value::as_u64).unwrap() + cached
}

/// Returns the tokens of a text that a template wrote.
fn text_tokens(server: &Running, text: &str) -> u64 {
    let tokens = server.post("/tokenize", &json!({"content": text})).json();
    tokens["count"].as_u64().unwrap()
}

#[test]
fn system_messages_may_be_anywhere() {
    let pair = RandomPair::make().unwrap();
    let refuses = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
        {{ raise_exception('The system message must be the first') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let leaves_out = "{% for m in messages %}{% if m.role != 'system' or loop.first %}\
        <{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";
    let alternates = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('Roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let writes = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    for (template, expected) in [
        (writes, "<system>Brief.<user>Time?<assistant>Noon.<system>9 tokens left<user>Sure?"),
        (refuses, "<system>Brief.<user>Time?<assistant>Noon.<user>9 tokens left<user>Sure?"),
        (leaves_out, "<system>Brief.<user>Time?<assistant>Noon.<user>9 tokens left<user>Sure?"),
        (alternates, "<user>Brief.\n\nTime?<assistant>Noon.<user>9 tokens left\n\nSure?"),
    ] {
        let server = serve_template(&pair, template);
        let expected = text_tokens(&server, expected);
        let rest = json!([
            {"role": "user", "content": "Time?"}, {"role": "assistant", "content": "Noon."},
            {"role": "system", "content": "9 tokens left"}, {"role": "user", "content": "Sure?"},
        ]);
        let body = json!({"max_tokens": 2, "system": "Brief.", "messages": rest});
        assert_eq!(prompt_tokens(&server, "/v1/messages", &body), expected);
        assert_eq!(prompt_tokens(&server, "/v1/messages/count_tokens", &body), expected);
        for role in ["system", "developer"] {
            let mut all = rest.as_array().unwrap().clone();
            all[2]["role"] = role.into();
            all.insert(0, json!({"role": role, "content": "Brief."}));
            let chat = json!({"max_tokens": 2, "messages": all});
            assert_eq!(prompt_tokens(&server, "/v1/chat/completions", &chat), expected);
            let body = json!({"max_output_tokens": 2, "input": all});
            assert_eq!(prompt_tokens(&server, "/v1/responses", &body), expected);
        }
    }
    // As Claude Code does it: as blocks, after results of tools.
    let server = serve_template(&pair, refuses);
    let block = |text: &str| json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]);
    let body = json!({"max_tokens": 2, "messages": [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "clock", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "12:00"}]},
        {"role": "system", "content": block("9 tokens left")},
    ]});
    assert_eq!(server.post("/v1/messages", &body).status, 200);
    // Other roles are still wrong.
    let body = json!({"max_tokens": 2, "messages": [{"role": "robot", "content": "Hi"}]});
    let wrong = server.post("/v1/messages", &body);
    assert_eq!(wrong.status, 400);
    assert!(wrong.body.contains("messages[0].role"), "{}", wrong.body);
}

/// A template that reads the arguments of calls as an object.
const ITEMS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}\
    [{{ call.function.name }}{% for name, value in call.function.arguments | items %} {{ name }}={{ value }}{% endfor %}]\
    {% endfor %}{% endfor %}{# tools #}";

/// Returns requests to the three APIs whose history has a call with these arguments. `None`: it has
/// no arguments.
fn histories(arguments: Option<&Value>) -> [(&'static str, Value); 3] {
    let call = |mut call: Value, name: &str| {
        if let Some(arguments) = arguments {
            call[name] = arguments.clone();
        }
        call
    };
    let function = call(json!({"name": "clock"}), "arguments");
    let chat = json!({"max_tokens": 2, "messages": [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": function},
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]});
    let item = json!({"type": "function_call", "call_id": "call_1", "name": "clock"});
    let responses = json!({"max_output_tokens": 2, "input": [
        {"role": "user", "content": "Time?"}, call(item, "arguments"),
        {"type": "function_call_output", "call_id": "call_1", "output": "12:00"},
    ]});
    let block = json!({"type": "tool_use", "id": "call_1", "name": "clock"});
    let messages = json!({"max_tokens": 2, "messages": [
        {"role": "user", "content": "Time?"}, {"role": "assistant", "content": [call(block, "input")]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "12:00"}]},
    ]});
    [("/v1/chat/completions", chat), ("/v1/responses", responses), ("/v1/messages", messages)]
}

#[test]
fn calls_without_arguments_have_empty_ones_and_cut_off_ones_are_named() {
    let pair = RandomPair::make().unwrap();
    let server = serve_template(&pair, ITEMS);
    let expected = text_tokens(&server, "<user>Time?<assistant>[clock]<tool>12:00");
    let empty = [
        json!(""),
        json!(" \n\t"),
        Value::Null,
        json!("null"),
        json!("{}"),
        json!({}),
        json!([]),
        json!("[]"),
    ];
    for arguments in empty.iter().map(Some).chain([None]) {
        for (path, body) in histories(arguments) {
            assert_eq!(prompt_tokens(&server, path, &body), expected, "{path} {arguments:?}");
        }
    }
    let expected = text_tokens(&server, "<user>Time?<assistant>[clock zone=CET]<tool>12:00");
    for arguments in [json!({"zone": "CET"}), json!("{\"zone\": \"CET\"}")] {
        for (path, body) in histories(Some(&arguments)) {
            assert_eq!(prompt_tokens(&server, path, &body), expected, "{path} {arguments}");
        }
    }
    let fields = [
        "messages[1].tool_calls[0].function.arguments",
        "input[1].arguments",
        "messages[1].content[0].input",
    ];
    for arguments in
        [json!("{\"zone\": \"C"), json!("{"), json!("zone=CET"), json!("[1]"), json!("7"), json!(7)]
    {
        for ((path, body), field) in histories(Some(&arguments)).into_iter().zip(fields) {
            let wrong = server.post(path, &body);
            assert_eq!(wrong.status, 400, "{path} {arguments}: {}", wrong.body);
            let message = wrong.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(
                message.contains(field) && message.contains("call_1"),
                "{path} {arguments}: {message}"
            );
        }
    }
}

#[test]
fn web_pages_may_send_all_headers_and_read_the_id_of_a_request() {
    let pair = RandomPair::make().unwrap();
    let server = serve_with(&pair, |options| {
        options.cors_origins = vec!["https://page.example".to_owned()];
        options.api_keys = vec!["key".to_owned()];
    });
    let names = "authorization,content-type,x-stainless-lang,x-stainless-retry-count,x-api-key,anthropic-version,\
                 anthropic-beta,anthropic-dangerous-direct-browser-access,x-own";
    let headers = format!(
        "Origin: https://page.example\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: {names}\r\n"
    );
    let preflight = server.send("OPTIONS", "/v1/messages", &headers, "");
    assert_eq!(preflight.status, 200, "{}", preflight.headers);
    let value = |response: &Response, name: &str| -> String {
        let mut lines = response.headers.lines();
        let line =
            lines.find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned));
        line.unwrap_or_else(|| panic!("no {name} in {}", response.headers))
    };
    assert_eq!(value(&preflight, "access-control-allow-headers"), names);
    assert_eq!(value(&preflight, "access-control-allow-origin"), "https://page.example");
    assert!(value(&preflight, "access-control-allow-methods").contains("post"));
    // Also errors can be read.
    for key in ["key", "wrong"] {
        let headers = format!("Origin: https://page.example\r\nX-Api-Key: {key}\r\n");
        let response = server.send("GET", "/v1/models", &headers, "");
        assert_eq!(value(&response, "access-control-allow-origin"), "https://page.example");
        assert!(value(&response, "access-control-expose-headers").contains("x-request-id"));
        assert!(!value(&response, "x-request-id").is_empty());
    }
}

/// Requests for streams of the four kinds.
fn streams(max_tokens: usize) -> [(&'static str, Value); 4] {
    let user = json!([{"role": "user", "content": "x"}]);
    [
        ("/v1/completions", with(completion("x", max_tokens), json!({"stream": true}))),
        (
            "/v1/chat/completions",
            json!({"messages": user, "max_tokens": max_tokens, "stream": true, "ignore_eos": true}),
        ),
        (
            "/v1/responses",
            json!({"input": "x", "max_output_tokens": max_tokens, "stream": true, "ignore_eos": true}),
        ),
        (
            "/v1/messages",
            json!({"messages": user, "max_tokens": max_tokens, "stream": true, "ignore_eos": true}),
        ),
    ]
}

#[test]
fn streams_that_wait_send_their_headers_and_comments() {
    let server = serve_engine(endless_engine(), |options| options.parallel = 1);
    let first = &streams(1_000_000)[0];
    let first = server.request("POST", first.0, "", &first.1.to_string());
    server.wait_for("vllm:num_requests_running", 1.0);
    let waiting = streams(3).map(|(path, body)| {
        (path, BufReader::new(server.request("POST", path, "", &body.to_string())))
    });
    let waiting = waiting.map(|(path, mut reader)| {
        let mut text = String::new();
        // The second comment comes when nothing has happened for a while.
        while text.matches(": keep-alive").count() < 2 {
            assert_ne!(reader.read_line(&mut text).unwrap(), 0, "{path}: {text}");
        }
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{path}: {text}");
        assert!(text.to_lowercase().contains("content-type: text/event-stream"), "{text}");
        assert!(!text.contains("data: "), "{path}: {text}");
        (path, reader)
    });
    drop(first);
    for (path, mut reader) in waiting {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let ends = ["[DONE]", "event: response.incomplete", "event: message_stop"];
        assert!(ends.iter().any(|end| text.contains(end)), "{path}: {text}");
    }
}

#[test]
fn errors_after_the_headers_are_events_and_earlier_ones_have_their_status() {
    let limit = Duration::from_secs(3);
    let server = serve_engine(endless_engine(), |options| {
        (options.parallel, options.request_timeout) = (1, limit);
    });
    let requests = streams(1_000_000);
    std::thread::scope(|scope| {
        for (path, body) in &requests {
            let server = &server;
            scope.spawn(move || {
                // Some of them never have a place.
                let response = server.post(path, body);
                assert_eq!(response.status, 200, "{path}: {}", response.body);
                let (start, end) = match *path {
                    "/v1/responses" => ("event: response.created", "event: response.failed"),
                    "/v1/messages" => ("event: message_start", "event: error"),
                    _ => (": keep-alive", "data: {\"error\""),
                };
                let places = (response.body.find(start), response.body.find(end));
                assert!(places.0.unwrap() < places.1.unwrap(), "{path}: {}", response.body);
                assert!(response.body.contains("longer than this server allows"));
                assert!(
                    !response.body.contains("[DONE]") && !response.body.contains("message_stop")
                );
                let mut whole = body.clone();
                whole["stream"] = false.into();
                let response = server.post(path, &whole);
                assert_eq!(response.status, 504, "{path}: {}", response.body);
            });
        }
    });
    server.wait_for("vllm:num_requests_running", 0.0);
    server.wait_for("vllm:num_requests_waiting", 0.0);
    // What is known before the model runs.
    let pair = RandomPair::make().unwrap();
    let server = serve_with(&pair, |options| (options.parallel, options.queue) = (1, 0));
    let long = "Once upon a time. ".repeat(2_000);
    for (path, mut body) in streams(5) {
        for field in ["prompt", "input"] {
            if body.get(field).is_some() {
                body[field] = long.clone().into();
            }
        }
        if body.get("messages").is_some() {
            body["messages"][0]["content"] = long.clone().into();
        }
        let response = server.post(path, &body);
        assert_eq!(response.status, 400, "{path}: {}", response.body);
        assert!(response.json()["error"]["message"].is_string());
    }
    // Of one token too many, and of no token.
    let context = engine(&pair).config().max_position_embeddings;
    for tokens in [vec![5; context], vec![]] {
        let body = with(completion("x", 5), json!({"prompt": tokens, "stream": true}));
        let response = server.post("/v1/completions", &body);
        assert_eq!(response.status, 400, "{}", response.body);
        assert_eq!(response.json()["error"]["param"], "prompt");
    }
}

#[test]
fn more_answers_than_places_wait_for_them() {
    let pair = RandomPair::make().unwrap();
    let engine = engine(&pair);
    // The queue has room for all requests, but not for all answers.
    let server = serve_with(&pair, |options| (options.parallel, options.queue) = (2, 4));
    let prompts = ["Once", "Twice", "Upon a time"];
    let fields = json!({"prompt": prompts, "n": 4, "temperature": 1, "seed": 5});
    let body = with(completion("", 12), fields);
    let expected: Vec<String> = prompts
        .iter()
        .flat_map(|prompt| (0..4).map(move |choice| (prompt, choice)))
        .map(|(prompt, choice)| {
            let mut request = plain_request(12);
            request.sampling.temperature = 1.0;
            request.seed = Some(5 + choice);
            engine.complete(prompt, &request).unwrap().text
        })
        .collect();
    // Two such requests at a time, with and without a stream.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (server, body, expected) = (&server, &body, &expected);
            scope.spawn(move || {
                let whole = server.post("/v1/completions", body);
                assert_eq!(whole.status, 200, "{}", whole.body);
                let whole = whole.json();
                let texts =
                    whole["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]);
                assert_eq!(texts.collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
            });
            scope.spawn(move || {
                let body = with(body.clone(), json!({"stream": true}));
                let mut texts = vec![String::new(); expected.len()];
                for event in server.post("/v1/completions", &body).events() {
                    let choice = &event["choices"][0];
                    texts[choice["index"].as_u64().unwrap() as usize] +=
                        choice["text"].as_str().unwrap();
                }
                assert_eq!(texts, *expected);
            });
        }
    });
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "n": 7, "max_tokens": 2});
    let whole = server.post("/v1/chat/completions", &chat).json();
    assert_eq!(whole["choices"].as_array().unwrap().len(), 7, "{whole}");
    assert_eq!(server.metric("vllm:num_requests_waiting"), 0.0);
}

#[test]
fn a_client_that_leaves_cancels_all_its_answers_and_a_short_request_does_not_wait_for_all() {
    let server = serve_engine(endless_engine(), |options| options.parallel = 2);
    for stream in [true, false] {
        let body = with(completion("x", 1_000_000), json!({"n": 8, "stream": stream}));
        let large = server.request("POST", "/v1/completions", "", &body.to_string());
        server.wait_for("vllm:num_requests_running", 2.0);
        server.wait_for("vllm:num_requests_waiting", 6.0);
        drop(large);
        server.wait_for("vllm:num_requests_running", 0.0);
        server.wait_for("vllm:num_requests_waiting", 0.0);
    }
    // Requests take turns.
    let body = with(completion("x", 2_000), json!({"n": 20, "stream": true}));
    let large = server.request("POST", "/v1/completions", "", &body.to_string());
    server.wait_for("vllm:num_requests_waiting", 18.0);
    assert_eq!(server.post("/v1/completions", &completion("x", 1)).status, 200);
    assert!(server.metric("vllm:num_requests_waiting") > 10.0);
    drop(large);
}

fn function() -> Value {
    json!({"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}})
}

/// Tools of an API, and choices among them.
struct Tools {
    path: &'static str,
    /// Tools that are no functions.
    unknown: Value,
    /// A function.
    own: Value,
    accepted: [Value; 3],
    /// Choices that are errors, and what these name.
    refused: [(Value, &'static str); 2],
    required: Value,
}

impl Tools {
    fn of_all_apis() -> [Self; 3] {
        let chat = Self {
            path: "/v1/chat/completions",
            unknown: json!([
                {"type": "custom", "custom": {"name": "shell"}}, {"type": "web_search"},
                {"type": "x", "y": {"name": "z"}},
            ]),
            own: json!({"type": "function", "function": function()}),
            accepted: [Value::Null, json!("auto"), json!("none")],
            refused: [
                (json!({"type": "custom", "custom": {"name": "shell"}}), "custom"),
                (json!({"type": "function", "function": {"name": "other"}}), "other"),
            ],
            required: json!("required"),
        };
        let responses = Self {
            path: "/v1/responses",
            unknown: json!([
                {"type": "custom", "name": "shell"}, {"type": "web_search"},
                {"type": "mcp", "server_label": "x"}, {"type": "local_shell"},
                {"type": "file_search", "vector_store_ids": []},
            ]),
            own: with(function(), json!({"type": "function"})),
            accepted: [Value::Null, json!("auto"), json!("none")],
            refused: [
                (json!({"type": "web_search"}), "web_search"),
                (json!({"type": "custom", "name": "clock"}), "custom"),
            ],
            required: json!("required"),
        };
        let messages = Self {
            path: "/v1/messages",
            unknown: json!([
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
                {"type": "bash_20250124", "name": "bash"},
                {"type": "mcp_toolset", "mcp_server_name": "x"},
            ]),
            own: json!({"name": "clock", "input_schema": function()["parameters"]}),
            accepted: [Value::Null, json!({"type": "auto"}), json!({"type": "none"})],
            refused: [
                (json!({"type": "tool", "name": "web_search"}), "web_search_20250305"),
                (json!({"type": "tool", "name": "other"}), "other"),
            ],
            required: json!({"type": "any"}),
        };
        [chat, responses, messages]
    }

    fn request(&self, tools: &Value, choice: &Value) -> Value {
        let user = json!([{"role": "user", "content": "Time?"}]);
        let fields = json!({"tools": tools, "tool_choice": choice});
        let body = match self.path {
            "/v1/responses" => json!({"input": user, "max_output_tokens": 200}),
            _ => json!({"messages": user, "max_tokens": 200}),
        };
        with(body, fields)
    }
}

#[test]
fn tools_of_unknown_types_are_left_out() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    for tools in Tools::of_all_apis() {
        let (path, unknown) = (tools.path, &tools.unknown);
        let mut all = unknown.as_array().unwrap().clone();
        all.push(tools.own.clone());
        let all = Value::from(all);
        // The model sees what it would see without them.
        for (given, expected) in [(unknown, &Value::Null), (&all, &json!([tools.own]))] {
            for choice in &tools.accepted {
                let count =
                    |list: &Value| prompt_tokens(&server, path, &tools.request(list, choice));
                assert_eq!(count(given), count(expected), "{path} {given} {choice}");
            }
        }
        let error = |list: &Value, choice: &Value| -> String {
            let wrong = server.post(path, &tools.request(list, choice));
            assert_eq!(wrong.status, 400, "{path} {choice}: {}", wrong.body);
            wrong.json()["error"]["message"].as_str().unwrap().to_owned()
        };
        for (choice, name) in &tools.refused {
            let message = error(&all, choice);
            assert!(message.contains("tool_choice") && message.contains(name), "{path}: {message}");
        }
        // The answer must be a call, but no tool can be called.
        let message = error(unknown, &tools.required);
        let kind = unknown[0]["type"].as_str().unwrap();
        assert!(message.contains(kind) && message.contains("tools[0]"), "{path}: {message}");
        let called = server.post(path, &tools.request(&all, &tools.required));
        assert_eq!(called.status, 200, "{path}: {}", called.body);
        assert!(called.body.contains("\"clock\""), "{path}: {}", called.body);
    }
}

#[test]
fn models_may_have_slashes_in_their_names() {
    let pair = RandomPair::make().unwrap();
    let name = "owner/model name:Q4_K_M/x";
    let models = Models::of_one(name, engine(&pair), ChatTemplate::plain().unwrap(), None);
    let server = run_models(Server::bind(server_options()).unwrap(), models);
    for path in [
        "/v1/models/owner/model%20name:Q4_K_M/x",
        "/v1/models/owner%2Fmodel%20name%3AQ4_K_M%2fx",
        "/v1/models/owner%2Fmodel%20name:Q4_K_M/x",
    ] {
        assert_eq!(server.get(path).json()["id"], name, "{path}");
    }
    for path in
        ["/v1/models/owner", "/v1/models/owner/model", "/v1/models/x/owner/model%20name:Q4_K_M/x"]
    {
        let missing = server.get(path);
        assert_eq!(missing.status, 404);
        assert_eq!(missing.json()["error"]["code"], "model_not_found", "{path}");
    }
    assert_eq!(server.get("/v1/models").json()["data"][0]["id"], name);
}

#[test]
fn bodies_that_are_no_json_say_where() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let paths = [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/tokenize",
        "/detokenize",
    ];
    let long = format!("{{\"prompt\": \"{}\" oh \"{}\"}}", "é".repeat(99), "→".repeat(99));
    for (body, place) in [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("{", "EOF while parsing an object at line 1 column 1, near: {"),
        ("{\"model\": \"x\",}", "trailing comma at line 1 column 15, near: {\"model\": \"x\",}"),
        ("{\n \"model\": 'x'\n}", "expected value at line 2 column 11, near: \"model\": 'x'"),
        ("{\"temperature\": NaN}", "line 1 column 17, near: {\"temperature\": NaN}"),
        (
            "{\"messages\": [\n{\"role\": \"user\" \"content\": \"x\"}\n]}",
            "line 2 column 17, near: {",
        ),
        (
            "{\"prompt\": [\"a\",\n\"b\" \"c\"], \"input\": 1}",
            "line 2 column 5, near: \"b\" \"c\"]",
        ),
        ("{\"tools\": [{\"type\": \"function\",\n\n  \"function\": {]}", "line 3 column 16"),
        ("{\"tokens\": []} {", "trailing characters at line 1 column 16, near: {\"tokens\": []} {"),
        ("\u{feff}{}", "line 1 column 1"),
        ("model=x&prompt=y", "expected value at line 1 column 1, near: model=x&prompt=y"),
        ("[1, 2]", "invalid type: sequence, expected an object at line 1 column"),
        ("\"text\"", "invalid type: string \"text\", expected an object at line 1 column"),
        // At most 30 bytes before and after the place.
        (&*long, "near: éééééééééééééé\" oh \"→→→→→→→→"),
    ] {
        for path in paths {
            let wrong = server.send("POST", path, "", body);
            assert_eq!(wrong.status, 400, "{path} {body}: {}", wrong.body);
            let message = wrong.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains(place), "{path} {body:?}: {message}");
        }
    }
}

#[test]
fn a_drafter_with_a_short_context_says_so_once() {
    let folder = |max_position_embeddings: usize| {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { max_position_embeddings, ..example_config() };
        write_random_checkpoint(folder.path(), &config, 1, RandomDtype::F32).unwrap();
        folder
    };
    let (target, short, long) = (folder(256), folder(32), folder(256));
    let engine =
        |drafter: &tempfile::TempDir| -> Engine { open(target.path(), Some(drafter.path())) };
    let (with_short, with_long) = (engine(&short), engine(&long));
    assert_eq!(with_long.note_on_drafter_context(300), None);
    assert_eq!(with_short.note_on_drafter_context(32), None);
    let note = with_short.note_on_drafter_context(33).unwrap();
    let name = short.path().file_name().unwrap().to_str().unwrap();
    assert!(note.contains("32 tokens") && note.contains(name), "{note}");
    assert_eq!(with_short.note_on_drafter_context(100), None);
    let text = |engine: &Engine| engine.complete("Once upon", &plain_request(100)).unwrap().text;
    assert_eq!(text(&with_short), text(&with_long));
}

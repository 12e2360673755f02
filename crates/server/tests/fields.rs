//! Which fields of requests are obeyed, ignored or refused.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::*;
use forerun::RandomPair;
use serde_json::{Value, json};
use std::path::Path;

/// The paths, each with a request whose answer is always the same, and where its text is.
fn requests() -> [(&'static str, Value, &'static str); 5] {
    let messages = json!([{"role": "user", "content": "Hello?"}]);
    let chat = json!({"model": MODEL, "max_tokens": 2, "seed": 1, "messages": messages});
    let mut count = chat.clone();
    count.as_object_mut().unwrap().retain(|name, _| name != "max_tokens");
    let completion = json!({"model": MODEL, "max_tokens": 2, "seed": 1, "prompt": "Hello"});
    let response = json!({"model": MODEL, "max_output_tokens": 2, "seed": 1, "input": "Hello?"});
    [
        ("/v1/completions", completion, "/choices/0/text"),
        ("/v1/chat/completions", chat.clone(), "/choices/0/message/content"),
        ("/v1/responses", response, "/output/0/content/0/text"),
        ("/v1/messages", chat, "/content"),
        ("/v1/messages/count_tokens", count, "/input_tokens"),
    ]
}

/// Returns the fields that the guide's page has for a path, with those of other APIs, and members
/// as objects.
fn fields_of_page() -> Vec<(String, Value)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/src/server-fields.md");
    let page = std::fs::read_to_string(page).unwrap();
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let names = cells.flat_map(|cell| cell.trim_end_matches('`').split("`, `"));
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() > 150, "{names:?}");
    let field = |name: &str| match name.split_once('.') {
        Some((object, member)) if object != "speculative" => {
            (object.to_owned(), json!({member: null}))
        }
        _ => (name.to_owned(), Value::Null),
    };
    names.into_iter().map(field).collect()
}

#[test]
fn null_is_absent_in_every_field_of_every_api() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let fields = fields_of_page();
    for (path, body, text) in requests() {
        let answer = |body: &Value| {
            let response = server.post(path, body);
            assert_eq!(response.status, 200, "{path} {body}: {}", response.body);
            response.json().pointer(text).unwrap().clone()
        };
        // A draw without a seed has another text, but the same form.
        let expected = answer(&body);
        let is_set = |name: &String| body.get(name).is_some();
        for (name, value) in fields.iter().filter(|(name, _)| !is_set(name)) {
            // This object must have a type.
            if value.is_object() && name == "thinking" {
                continue;
            }
            assert_eq!(
                answer(&with(body.clone(), json!({name: value}))),
                expected,
                "{path} {name}"
            );
        }
        let nulls: Vec<_> = fields.iter().filter(|(name, _)| !is_set(name)).collect();
        let all: Value = nulls.iter().map(|(name, _)| (name.clone(), Value::Null)).collect();
        assert_eq!(answer(&with(body.clone(), all)), expected, "{path}");
    }
    // A message in the form in which OpenAI's clients send back an answer, and lists that are null.
    let body = json!({
        "max_tokens": 2, "tools": null, "messages": [
            {"role": "user", "content": "Hi", "name": null},
            {
                "role": "assistant", "content": "Hello.", "refusal": null, "annotations": null,
                "audio": null, "function_call": null, "tool_calls": null, "reasoning": null,
            },
            {"role": "user", "content": "Again"},
        ],
    });
    assert_eq!(server.post("/v1/chat/completions", &body).status, 200);
    let body = with(body, json!({"stop_sequences": null, "thinking": null, "system": null}));
    assert_eq!(server.post("/v1/messages", &body).status, 200);
}

#[test]
fn constraints_that_cannot_be_obeyed_are_refused_by_name() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    for (path, body, _) in requests() {
        for (name, value) in [
            ("bad_words", json!(["no"])),
            ("min_tokens", json!(2)),
            ("include_stop_str_in_output", json!(true)),
            ("tfs_z", json!(0.5)),
            ("mirostat", json!(2)),
            ("adaptive_target", json!(0.8)),
            ("use_beam_search", json!(true)),
            ("length_penalty", json!(2)),
            ("truncate_prompt_tokens", json!(4)),
            ("chat_template", json!("{{ messages }}")),
            ("stop_token_ids", json!([99_999_999])),
            ("repeat_last_n", json!(-2)),
            ("samplers", json!(["infill"])),
        ] {
            let penalty = json!({"repeat_penalty": 1.1});
            let body = with(with(body.clone(), penalty), json!({name: value}));
            let response = server.post(path, &body);
            assert_eq!(response.status, 400, "{path} {name}: {}", response.body);
            let error = &response.json()["error"];
            assert!(error["message"].as_str().unwrap().starts_with(name), "{error}");
            if !path.starts_with("/v1/messages") {
                assert_eq!(error["param"], name);
            }
        }
    }
    for (path, name, value) in [
        ("/v1/chat/completions", "prompt", json!("a")),
        ("/v1/chat/completions", "functions", json!([{"name": "a"}])),
        ("/v1/chat/completions", "modalities", json!(["text", "audio"])),
        ("/v1/completions", "messages", json!([{"role": "user", "content": "a"}])),
        ("/v1/completions", "tools", json!([{"type": "function", "function": {"name": "a"}}])),
        ("/v1/completions", "suffix", json!("a")),
        ("/v1/responses", "previous_response_id", json!("resp_1")),
        ("/v1/responses", "background", json!(true)),
        ("/v1/responses", "response_format", json!({"type": "json_object"})),
        ("/v1/responses", "include", json!(["message.output_text.logprobs"])),
        ("/v1/messages", "mcp_servers", json!([{"name": "a"}])),
        ("/v1/messages", "stop", json!("a")),
    ] {
        let (_, body, _) = requests().into_iter().find(|(other, ..)| *other == path).unwrap();
        let response = server.post(path, &with(body, json!({name: value})));
        assert_eq!(response.status, 400, "{path} {name}: {}", response.body);
        let message = response.json()["error"]["message"].clone();
        assert!(message.as_str().unwrap().starts_with(name), "{message}");
    }
}

#[test]
fn fields_of_llama_server_and_vllm_do_what_openais_do() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let choice = |fields: Value| {
        let body = json!({"model": MODEL, "prompt": "Once upon", "seed": 4, "ignore_eos": true});
        let response = server.post("/v1/completions", &with(body, fields));
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    };
    let text = |fields: Value| choice(fields)["choices"][0]["text"].clone();
    let length = |fields: Value| choice(fields)["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(length(json!({"n_predict": 7})), 7);
    assert_eq!(length(json!({"n_predict": 0})), 0);
    assert_eq!(text(json!({"n_predict": 0})), "");
    assert_eq!(length(json!({"n_predict": 7, "max_tokens": 3})), 7);
    assert_eq!(length(json!({"max_tokens": 20, "min_tokens": 20})), 20);
    let repetition = text(json!({"max_tokens": 20, "repetition_penalty": 1.5}));
    assert_eq!(text(json!({"max_tokens": 20, "repeat_penalty": 1.5})), repetition);
    let last = json!({"max_tokens": 20, "repeat_penalty": 1.5, "repeat_last_n": -1});
    assert_eq!(text(last), repetition);
    let plain = text(json!({"max_tokens": 20}));
    assert_ne!(plain, repetition);
    let none = json!({"max_tokens": 20, "repeat_penalty": 1.5, "repeat_last_n": 0});
    assert_eq!(text(none), plain);
    assert_eq!(text(json!({"max_tokens": 20, "repeat_last_n": 64})), plain);
    // Only the most probable token is left.
    let greedy = text(json!({"max_tokens": 20, "temperature": 0}));
    assert_eq!(text(json!({"max_tokens": 20, "top_p": 0})), greedy);
    assert_ne!(plain, greedy);
    // The limit is the context.
    let prompt = choice(json!({"max_tokens": 1}))["usage"]["prompt_tokens"].as_u64().unwrap();
    let models = server.get("/v1/models").json();
    let context = models["data"][0]["max_model_len"].as_u64().unwrap();
    for name in ["max_tokens", "n_predict", "max_completion_tokens"] {
        assert_eq!(length(json!({name: -1})) + prompt, context, "{name}");
    }
    // A token that ends the answer.
    let tokens = choice(json!({"max_tokens": 20, "token_details": true}));
    let tokens = tokens["choices"][0]["forerun"]["tokens"].as_array().unwrap().clone();
    let id = &tokens[5]["id"];
    let first = tokens.iter().position(|token| token["id"] == *id).unwrap() as u64;
    let stopped = choice(json!({"max_tokens": 20, "stop_token_ids": [id]}));
    assert_eq!(stopped["usage"]["completion_tokens"], first + 1);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}

#[test]
fn chats_sample_moderately_where_nothing_says_how() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let moderate = json!({"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05});
    let unfiltered = json!({"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0});
    for (path, body, text) in requests() {
        if path.ends_with("count_tokens") {
            continue;
        }
        let limit = if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" };
        let body = with(body, json!({limit: 20, "ignore_eos": true}));
        let answer = |fields: Value| {
            let response = server.post(path, &with(body.clone(), fields));
            assert_eq!(response.status, 200, "{}", response.body);
            response.json().pointer(text).unwrap().clone()
        };
        let default = if path == "/v1/completions" { &unfiltered } else { &moderate };
        assert_eq!(answer(json!({})), answer(default.clone()), "{path}");
        // A field that is sent leaves the others as they are.
        for sent in [json!({"temperature": 1.5}), json!({"top_k": 3}), json!({"min_p": 0})] {
            let all = with(default.clone(), sent.clone());
            assert_eq!(answer(sent.clone()), answer(all), "{path} {sent}");
        }
        let named = json!({"temperature": 0, "top_k": 3, "min_p": 0.1, "samplers": ["top_k"]});
        assert_eq!(answer(named), answer(with(unfiltered.clone(), json!({"top_k": 3}))), "{path}");
        let greedy = answer(json!({"temperature": 0}));
        assert_eq!(greedy, answer(with(unfiltered.clone(), json!({"temperature": 0}))), "{path}");
        assert_ne!(greedy, answer(json!({})), "{path}");
    }
}

#[test]
fn minus_one_is_a_random_seed() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    for (path, body, text) in requests() {
        if path.ends_with("count_tokens") {
            continue;
        }
        let name = if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" };
        let answer = |seed: Value| {
            let fields = json!({"seed": seed, name: 20, "temperature": 1.5, "ignore_eos": true});
            let response = server.post(path, &with(body.clone(), fields));
            assert_eq!(response.status, 200, "{}", response.body);
            response.json().pointer(text).unwrap().clone()
        };
        assert_ne!(answer(json!(-1)), answer(json!(-1)), "{path}");
        for seed in [json!(-2), json!(0), json!(i64::MIN), json!(u64::MAX)] {
            assert_eq!(answer(seed.clone()), answer(seed.clone()), "{path} {seed}");
        }
        for (wrong, reason) in [
            ("18446744073709551616", "18446744073709551616"),
            ("-9223372036854775809", "-9223372036854775809"),
            ("0.5", "-1 for a random seed"),
            ("\"7\"", "-1 for a random seed"),
        ] {
            let body = with(body.clone(), json!({"seed": "S"})).to_string();
            let response = server.send("POST", path, "", &body.replace("\"S\"", wrong));
            assert_eq!(response.status, 400, "{path} {wrong}");
            assert!(response.body.contains(reason), "{}", response.body);
        }
    }
}

#[test]
fn formats_have_their_schemas_where_each_api_puts_them() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let schema = json!({
        "type": "object", "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"], "additionalProperties": false,
    });
    let wrong = json!({"type": "text"});
    let anthropic = |schema: &Value| json!({"type": "json_schema", "schema": schema});
    type Body = fn(&Value) -> Value;
    let cases: [(&str, Body, &str, &str); 5] = [
        (
            "/v1/chat/completions",
            |schema| json!({"response_format": {"type": "json_object", "schema": schema}}),
            "/choices/0/message/content",
            "response_format.schema",
        ),
        (
            "/v1/messages",
            |schema| json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
            "/content/0/text",
            "output_config.format.schema",
        ),
        (
            "/v1/messages",
            |schema| json!({"output_format": {"type": "json_schema", "schema": schema}}),
            "/content/0/text",
            "output_config.format.schema",
        ),
        (
            "/v1/responses",
            |schema| json!({"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}}),
            "/output/0/content/0/text",
            "text.format.schema",
        ),
        (
            "/v1/responses",
            |schema| json!({"structured_outputs": {"json": schema}}),
            "/output/0/content/0/text",
            "structured_outputs.json",
        ),
    ];
    for (path, fields, text, name) in cases {
        let (_, body, _) = requests().into_iter().find(|(other, ..)| *other == path).unwrap();
        let limit = if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" };
        let body = with(body, json!({limit: 200}));
        let response = server.post(path, &with(body.clone(), fields(&schema)));
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        let response = response.json();
        let answer: Value =
            serde_json::from_str(response.pointer(text).unwrap().as_str().unwrap()).unwrap();
        assert!(
            answer == json!({"colour": "red"}) || answer == json!({"colour": "blue"}),
            "{answer}"
        );
        let response = server.post(path, &with(body, fields(&wrong)));
        assert_eq!(response.status, 400, "{path}: {}", response.body);
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(name), "{message}");
    }
    let both = json!({
        "output_format": anthropic(&schema), "output_config": {"format": anthropic(&schema)},
    });
    let (_, body, _) = requests().into_iter().find(|(path, ..)| *path == "/v1/messages").unwrap();
    assert_eq!(server.post("/v1/messages", &with(body, both)).status, 400);
}

const TURNS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}\
    {% if add_generation_prompt %}<assistant>{% endif %}";

#[test]
fn a_last_message_of_the_assistant_is_continued() {
    let pair = RandomPair::make().unwrap();
    let server = serve_template(&pair, TURNS);
    let complete = |prompt: &str| {
        let tokens = server.post("/tokenize", &json!({"content": prompt, "add_special": false}));
        let tokens = tokens.json()["tokens"].clone();
        let body = with(completion("", 12), json!({"prompt": tokens}));
        let answer = server.post("/v1/completions", &body).json();
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let begun = json!([
        {"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two, thr"},
    ]);
    let chat = |path: &str, messages: &Value, fields: Value| {
        let body =
            json!({"messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
        let response = server.post(path, &with(body, fields));
        assert_eq!(response.status, 200, "{}", response.body);
        let response = response.json();
        let text = response.pointer("/choices/0/message/content");
        text.or(response.pointer("/content/0/text")).unwrap().as_str().unwrap().to_owned()
    };
    let chats = |fields: Value| chat("/v1/chat/completions", &begun, fields);
    let rest = complete("<user>Count.</><assistant>One, two, thr");
    for fields in [
        json!({}),
        json!({"continue_final_message": true}),
        json!({"continue_final_message": true, "add_generation_prompt": false}),
        json!({"add_generation_prompt": false}),
        json!({"continue_final_message": null, "add_generation_prompt": null}),
    ] {
        assert_eq!(chats(fields.clone()), rest, "{fields}");
    }
    assert_eq!(chat("/v1/messages", &begun, json!({})), rest);
    let new = complete("<user>Count.</><assistant>One, two, thr</><assistant>");
    assert_eq!(chats(json!({"continue_final_message": false})), new);
    assert_eq!(chats(json!({"add_generation_prompt": true})), new);
    let closed = complete("<user>Count.</><assistant>One, two, thr</>");
    let neither = json!({"continue_final_message": false, "add_generation_prompt": false});
    assert_eq!(chats(neither), closed);
    // Any message may be continued, if the request says so.
    let user = json!([{"role": "user", "content": "Count: one"}]);
    let path = "/v1/chat/completions";
    let continued = chat(path, &user, json!({"continue_final_message": true}));
    assert_eq!(continued, complete("<user>Count: one"));
    assert_eq!(chat(path, &user, json!({})), complete("<user>Count: one</><assistant>"));
    let nothing = chat(path, &user, json!({"add_generation_prompt": false}));
    assert_eq!(nothing, complete("<user>Count: one</>"));
    // A response is a new message.
    let body =
        json!({"input": begun, "max_output_tokens": 12, "temperature": 0, "ignore_eos": true});
    let response = server.post("/v1/responses", &body).json();
    assert_eq!(response["output"][0]["content"][0]["text"], new, "{response}");
    let both = json!({
        "messages": begun, "continue_final_message": true, "add_generation_prompt": true,
    });
    let refused = server.post(path, &both);
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("continue_final_message"))
    );
}

#[test]
fn a_begun_reasoning_goes_on_as_reasoning() {
    let pair = RandomPair::make().unwrap();
    let server = serve_template(&pair, &format!("{TURNS}{{# </think> #}}"));
    let message = |content: &str| {
        let body = json!({
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}],
            "max_tokens": 8, "temperature": 0, "ignore_eos": true,
        });
        server.post("/v1/chat/completions", &body).json()["choices"][0]["message"].clone()
    };
    let long = format!("<think>\n{}", "First, I count. ".repeat(20));
    for begun in ["<think>", &long] {
        let message = message(begun);
        assert!(!message["reasoning_content"].as_str().unwrap().is_empty(), "{message}");
    }
    let message = message("<think>\nNothing.\n</think>\n\nHel");
    assert_eq!(message.get("reasoning_content"), None, "{message}");
    assert!(!message["content"].as_str().unwrap().is_empty());
}

#[test]
fn text_parts_are_joined_as_the_template_writes_them() {
    let pair = RandomPair::make().unwrap();
    let parts = json!([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo?"}]);
    let loops = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
        {% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}";
    for (template, text) in [(TURNS, "Hel\nlo?"), (loops, "Hello?")] {
        let server = serve_template(&pair, template);
        for path in ["/v1/chat/completions", "/v1/messages"] {
            let answer = |content: Value| {
                let body = json!({
                    "messages": [{"role": "user", "content": content}], "max_tokens": 8,
                    "temperature": 0, "ignore_eos": true,
                });
                let answer = server.post(path, &body).json();
                let text = answer.pointer("/choices/0/message/content");
                text.or(answer.pointer("/content/0/text")).unwrap().clone()
            };
            assert_eq!(answer(parts.clone()), answer(json!(text)), "{path}");
        }
    }
}

#[test]
fn chunks_before_the_usage_say_that_it_is_not_there_yet() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    for (path, body, _) in &requests()[..2] {
        let stream = |options: Value| {
            let fields = json!({"stream": true, "stream_options": options});
            server.post(path, &with(body.clone(), fields)).events()
        };
        let events = stream(json!({"include_usage": true}));
        let (last, others) = events.split_last().unwrap();
        assert!(last["usage"]["total_tokens"].as_u64().unwrap() > 0);
        assert!(!others.is_empty());
        for event in others {
            assert_eq!(event.get("usage"), Some(&Value::Null), "{event}");
        }
        for options in [Value::Null, json!({}), json!({"include_usage": false})] {
            assert!(stream(options).iter().all(|event| event.get("usage").is_none()));
        }
    }
}

//! Tools, reasoning, the Responses API and Anthropic's Messages API over real connections.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::*;
use forerun::RandomPair;
use serde_json::{Value, json};

/// A template in the form of Qwen's, with a place for tools.
const TEMPLATE: &str = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}\
    {% for message in messages %}{{ message.role }}: {{ message.content }}\
    {% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{{ '\n' }}\
    {% endfor %}assistant:{% if enable_thinking %}<think>\n{% endif %}{# </think> #}";

fn weather() -> Value {
    json!({
        "name": "get_weather",
        "description": "Returns the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": false,
        },
    })
}

fn chat(fields: Value) -> Value {
    let body = json!({
        "messages": [{"role": "user", "content": "What is the weather?"}],
        "max_tokens": 200, "temperature": 1, "seed": 3,
    });
    with(body, fields)
}

/// Returns the calls of a streamed chat completion, as the message of a whole one has them.
fn streamed_calls(events: &[Value]) -> Vec<(String, String)> {
    let mut calls: Vec<(String, String)> = Vec::new();
    let deltas =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array());
    for call in deltas.flatten() {
        let index = call["index"].as_u64().unwrap() as usize;
        if let Some(name) = call["function"]["name"].as_str() {
            assert_eq!(index, calls.len());
            assert!(call["id"].as_str().unwrap().starts_with("call_"));
            calls.push((name.to_owned(), String::new()));
        }
        calls[index].1 += call["function"]["arguments"].as_str().unwrap_or_default();
    }
    calls
}

fn is_weather(arguments: &Value) -> bool {
    let city = arguments["city"].as_str();
    city.is_some_and(|city| ["Paris", "Rome"].contains(&city))
        && arguments["days"].as_u64().is_some_and(|days| (1..=9).contains(&days))
}

#[test]
fn required_calls_follow_the_schema() {
    let pair = RandomPair::make().unwrap();
    let tools = json!([{"type": "function", "function": weather()}]);
    for server in [serve(&pair), serve_template(&pair, TEMPLATE)] {
        for choice in
            [json!("required"), json!({"type": "function", "function": {"name": "get_weather"}})]
        {
            for method in [json!("off"), json!({"method": "speculative"})] {
                let fields = json!({
                    "tools": tools, "tool_choice": choice, "speculation": method,
                    "parallel_tool_calls": false,
                });
                let body = chat(fields);
                let whole = server.post("/v1/chat/completions", &body);
                assert_eq!(whole.status, 200, "{}", whole.body);
                let whole = whole.json();
                let message = &whole["choices"][0]["message"];
                assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls", "{whole}");
                assert_eq!(message["content"], Value::Null, "{message}");
                let calls = message["tool_calls"].as_array().unwrap();
                assert_eq!(
                    (calls.len(), &calls[0]["function"]["name"]),
                    (1, &json!("get_weather"))
                );
                let arguments = calls[0]["function"]["arguments"].as_str().unwrap();
                assert!(is_weather(&serde_json::from_str(arguments).unwrap()), "{arguments}");
                let events =
                    server.post("/v1/chat/completions", &with(body, json!({"stream": true})));
                let events = events.events();
                let expected = [("get_weather".to_owned(), arguments.to_owned())];
                assert_eq!(streamed_calls(&events), expected);
                assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
            }
        }
    }
}

/// Tokens are bytes: the tag and the name take 49, the arguments about 28 more.
#[test]
fn a_call_that_was_cut_is_no_call() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let tools = json!([{"type": "function", "function": weather()}]);
    for limit in [20, 40, 55, 70] {
        let fields = json!({"tools": tools, "tool_choice": "required", "max_tokens": limit});
        let body = chat(fields);
        let whole = server.post("/v1/chat/completions", &body).json();
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{whole}");
        let message = json!({"role": "assistant", "content": "", "refusal": null});
        assert_eq!(choice["message"], message);
        assert_eq!(whole["usage"]["completion_tokens"], limit);
        let events = server.post("/v1/chat/completions", &with(body, json!({"stream": true})));
        let events = events.events();
        assert_eq!(streamed_calls(&events), []);
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
        let tool = with(weather(), json!({"type": "function"}));
        let body = json!({
            "input": "Weather?", "tools": [tool], "tool_choice": "required",
            "max_output_tokens": limit,
        });
        let response = server.post("/v1/responses", &body).json();
        assert_eq!(response["status"], "incomplete", "{response}");
        let output = response["output"].as_array().unwrap();
        assert!(output.iter().all(|item| item["type"] == "message"), "{response}");
        let mut tool = weather();
        tool["input_schema"] = tool["parameters"].take();
        let body = json!({
            "messages": [{"role": "user", "content": "Weather?"}], "tools": [tool],
            "tool_choice": {"type": "any"}, "max_tokens": limit,
        });
        let message = server.post("/v1/messages", &body).json();
        assert_eq!(
            (&message["stop_reason"], &message["content"]),
            (&json!("max_tokens"), &json!([]))
        );
    }
}

/// Without `additionalProperties`.
#[test]
fn arguments_and_answers_have_no_properties_that_the_schema_does_not_list() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let schema = json!({"type": "object", "properties": {"on": {"type": "boolean"}}});
    let is_closed = |text: &Value| {
        let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        value.as_object().unwrap().keys().all(|name| name == "on")
    };
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let function = json!({"name": "light", "parameters": schema});
    for seed in 0..4 {
        let hot = json!({"seed": seed, "temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0});
        let fields = json!({
            "tools": [{"type": "function", "function": function}], "tool_choice": "required",
            "parallel_tool_calls": false,
        });
        let called = server.post("/v1/chat/completions", &with(chat(hot.clone()), fields)).json();
        let call = &called["choices"][0]["message"]["tool_calls"][0];
        assert!(is_closed(&call["function"]["arguments"]), "{called}");
        let body = with(chat(hot), json!({"response_format": format}));
        let answer = server.post("/v1/chat/completions", &body).json();
        assert!(is_closed(&answer["choices"][0]["message"]["content"]), "{answer}");
    }
}

#[test]
fn conversations_with_calls_reach_the_template() {
    let pair = RandomPair::make().unwrap();
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}},
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ]);
    let tools = json!([{"type": "function", "function": weather()}]);
    let body = chat(json!({"messages": messages, "tools": tools, "max_tokens": 3}));
    let prompt_tokens = |server: &Running, body: &Value| {
        let answer = server.post("/v1/chat/completions", body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let server = serve_template(&pair, TEMPLATE);
    let rendered = format!(
        "{}\nsystem: Be brief.\nuser: Weather?\nassistant: <tool_call>{}</tool_call>\ntool: Rain.\nassistant:",
        r#"{"type": "function", "function": {"name": "get_weather", "description": "Returns the weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city", "days"], "additionalProperties": false}}}"#,
        r#"{"name": "get_weather", "arguments": {"city": "Rome"}}"#,
    );
    let count = server.post("/tokenize", &json!({"content": rendered})).json()["count"].as_u64();
    assert_eq!(prompt_tokens(&server, &body), count.unwrap());
    // Without tools, or with tools that may not be called, the template gets none.
    let none = with(body.clone(), json!({"tool_choice": "none"}));
    let without = chat(json!({"messages": messages, "max_tokens": 3}));
    assert_eq!(prompt_tokens(&server, &none), prompt_tokens(&server, &without));
    // The plain template has no place for tools: they are explained to the model.
    let plain = serve(&pair);
    assert!(prompt_tokens(&plain, &body) > prompt_tokens(&plain, &without) + 100);
}

#[test]
fn reasoning_is_apart_from_the_answer() {
    let pair = RandomPair::make().unwrap();
    let server = serve_template(&pair, TEMPLATE);
    // The prompt ends with the opening tag, so that everything is reasoning until the closing one.
    let fields = json!({"max_tokens": 30, "ignore_eos": true, "chat_template_kwargs": {"enable_thinking": true}});
    let body = chat(fields);
    let whole = server.post("/v1/chat/completions", &body).json();
    let message = &whole["choices"][0]["message"];
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty(), "{message}");
    assert_eq!(message["content"], "");
    let events = server.post("/v1/chat/completions", &with(body, json!({"stream": true}))).events();
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
    let streamed: String = deltas.filter_map(|delta| delta["reasoning_content"].as_str()).collect();
    assert_eq!(message["reasoning_content"], streamed);
    // Anthropic's clients ask for it in their own way.
    let body = json!({
        "model": MODEL, "max_tokens": 30, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [{"role": "user", "content": "What is the weather?"}],
    });
    let message = server.post("/v1/messages", &body).json();
    assert_eq!(message["content"][0]["type"], "thinking", "{message}");
}

/// The reasoning ends anywhere in a draft, and the format begins there.
#[test]
fn a_format_follows_the_reasoning() {
    // The first one has the id of the token that ends answers.
    let pair = pair_with_special_tokens(&["<end>", "</think>"]);
    let server = serve_template(&pair, TEMPLATE);
    let tokenized = server.post("/tokenize", &json!({"content": "</think>"})).json();
    let close = tokenized["tokens"][0].as_u64().unwrap().to_string();
    let fields = json!({
        "chat_template_kwargs": {"enable_thinking": true},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {
            "type": "object", "properties": {"days": {"type": "integer", "maximum": 99}},
            "required": ["days"], "additionalProperties": false,
        }}},
        "logit_bias": {close: 5}, "max_tokens": 120,
    });
    let mut whole = 0;
    for seed in 0..12 {
        let body = with(chat(fields.clone()), json!({"seed": seed}));
        let answer = |speculation: Value| {
            let body = with(body.clone(), speculation);
            let response = server.post("/v1/chat/completions", &body);
            assert_eq!(response.status, 200, "{}", response.body);
            response.json()["choices"][0].clone()
        };
        let plain = answer(json!({"speculation": "off"}));
        assert_eq!(answer(json!({}))["message"], plain["message"]);
        assert_eq!(answer(json!({"speculation": "pearl"}))["message"], plain["message"]);
        let message = &plain["message"];
        let reasons = message["reasoning_content"].as_str().is_some_and(|text| !text.is_empty());
        if plain["finish_reason"] == "stop" && reasons {
            let value: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
            assert!(value["days"].is_i64(), "{plain}");
            whole += 1;
        }
    }
    assert!(whole > 3, "only {whole} answers are whole");
}

#[test]
fn responses_are_chat_completions_in_another_form() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let chat = json!({
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
        "max_tokens": 20, "temperature": 0.7, "seed": 5,
    });
    let expected = server.post("/v1/chat/completions", &chat).json();
    let text = expected["choices"][0]["message"]["content"].as_str().unwrap();
    let body = json!({
        "model": MODEL, "instructions": "Be brief.", "input": "Hello?", "max_output_tokens": 20,
        "temperature": 0.7, "seed": 5,
    });
    let response = server.post("/v1/responses", &body);
    assert_eq!(response.status, 200, "{}", response.body);
    let response = response.json();
    assert_eq!(response["output"][0]["content"][0]["text"], text);
    assert_eq!(response["usage"]["output_tokens"], expected["usage"]["completion_tokens"]);
    let items = json!([
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello?"}]},
    ]);
    let body = with(body, json!({"instructions": null, "input": items, "stream": true}));
    let events = named_events(&server.post("/v1/responses", &body).body);
    let numbers: Vec<u64> =
        events.iter().map(|(_, data)| data["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert!(events.iter().all(|(name, data)| data["type"] == **name));
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let streamed: String = deltas.map(|(_, data)| data["delta"].as_str().unwrap()).collect();
    assert_eq!(streamed, text);
    let (last, data) = events.last().unwrap();
    let status = response["status"].as_str().unwrap();
    assert_eq!(*last, format!("response.{status}"));
    assert_eq!(data["response"]["output"][0]["content"], response["output"][0]["content"]);
    // Tools and formats.
    let tool = with(weather(), json!({"type": "function"}));
    let fields = json!({
        "stream": false, "max_output_tokens": 200, "tools": [tool], "tool_choice": "required",
        "parallel_tool_calls": false,
    });
    let called = server.post("/v1/responses", &with(body.clone(), fields)).json();
    let call = &called["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("get_weather")));
    assert!(is_weather(&serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap()));
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "name": "x", "schema": schema}});
    let fields = json!({"stream": false, "max_output_tokens": 200, "text": format});
    let structured = server.post("/v1/responses", &with(body.clone(), fields)).json();
    let value: Value =
        serde_json::from_str(structured["output"][0]["content"][0]["text"].as_str().unwrap())
            .unwrap();
    assert!(value["a"] == 1 || value["a"] == 2, "{value}");
    // The result of a call is a message of the tool.
    let items = json!([
        {"role": "user", "content": "Weather?"},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "Rain."},
    ]);
    let answer =
        server.post("/v1/responses", &with(body, json!({"input": items, "stream": false})));
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Returns the names and the data of server-sent events.
fn named_events(body: &str) -> Vec<(String, Value)> {
    let event = |block: &str| {
        let (name, data) = block.split_once('\n')?;
        let data = data.strip_prefix("data: ")?.trim_end();
        let name = name.strip_prefix("event: ")?.to_owned();
        Some((name, serde_json::from_str(data).unwrap()))
    };
    body.split("\n\n").filter_map(event).collect()
}

#[test]
fn messages_are_chat_completions_in_anthropics_form() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let chat = json!({
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
        "max_tokens": 20, "temperature": 0.7, "seed": 5,
    });
    let expected = server.post("/v1/chat/completions", &chat).json();
    let text = expected["choices"][0]["message"]["content"].as_str().unwrap();
    let body = json!({
        "model": MODEL, "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 20,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello?"}]}],
        "temperature": 0.7, "seed": 5,
    });
    let message = server.post("/v1/messages", &body);
    assert_eq!(message.status, 200, "{}", message.body);
    let message = message.json();
    assert_eq!(message["content"], json!([{"type": "text", "text": text}]));
    assert_eq!(message["stop_reason"], "max_tokens");
    let usage = &message["usage"];
    let input = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(json!(input), expected["usage"]["prompt_tokens"]);
    let counted = server.post("/v1/messages/count_tokens", &body).json();
    assert_eq!(counted["input_tokens"], expected["usage"]["prompt_tokens"]);
    let events = named_events(
        &server.post("/v1/messages", &with(body.clone(), json!({"stream": true}))).body,
    );
    let names: Vec<&str> = events.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let deltas = events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str());
    assert_eq!(deltas.collect::<String>(), text);
    // A stop string is named, and is no part of the text.
    let stop = text.chars().skip(3).take(2).collect::<String>();
    let fields = json!({"stop_sequences": ["@@", stop]});
    let stopped = server.post("/v1/messages", &with(body.clone(), fields)).json();
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(stop))
    );
    // A call, and its result.
    let mut tool = weather();
    tool["input_schema"] = tool["parameters"].take();
    let fields = json!({
        "tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": true}, "max_tokens": 200,
    });
    let body = with(body, fields);
    let called = server.post("/v1/messages", &body).json();
    assert_eq!(called["stop_reason"], "tool_use", "{called}");
    assert!(is_weather(&called["content"][0]["input"]), "{called}");
    let events = named_events(
        &server.post("/v1/messages", &with(body.clone(), json!({"stream": true}))).body,
    );
    let json: String =
        events.iter().filter_map(|(_, data)| data["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), called["content"][0]["input"]);
    let id = &called["content"][0]["id"];
    let turns = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": called["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": "Rain."}]}]},
    ]);
    let answer =
        server.post("/v1/messages", &with(body, json!({"messages": turns, "max_tokens": 3})));
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn errors_have_the_form_of_the_api_and_its_names() {
    let pair = RandomPair::make().unwrap();
    let server = serve_with(&pair, |options| options.api_keys = vec!["key".into()]);
    let post = |path: &str, body: Value| {
        server.send("POST", path, "X-Api-Key: key\r\n", &body.to_string())
    };
    let hello = json!([{"role": "user", "content": "Hi"}]);
    for (body, word) in [
        (json!({"messages": hello}), "max_tokens is required"),
        (json!({"messages": [], "max_tokens": 3}), "messages is required"),
        (
            json!({"messages": [{"role": "tool", "content": "x"}], "max_tokens": 3}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 3}),
            "\"image\"",
        ),
        (json!({"messages": hello, "max_tokens": 0}), "max_tokens"),
        (
            json!({"messages": hello, "max_tokens": 3, "tool_choice": {"type": "any"}}),
            "tools is empty",
        ),
        (
            json!({"messages": hello, "max_tokens": 3, "tools": [{"name": "a b"}]}),
            "tools[0].function.name",
        ),
    ] {
        let response = post("/v1/messages", body);
        let error = response.json();
        assert_eq!((response.status, &error["type"]), (400, &json!("error")), "{error}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(error["error"]["message"].as_str().unwrap().contains(word), "{error}");
    }
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": "Hi", "max_output_tokens": 0}), "max_output_tokens"),
        (json!({"input": "Hi", "previous_response_id": "x"}), "previous_response_id"),
        (json!({"input": [{"type": "x"}]}), "input[0].type"),
        (json!({"input": "Hi", "temperature": -1}), "temperature"),
    ] {
        let error = post("/v1/responses", body).json();
        assert_eq!(error["error"]["param"], param, "{error}");
    }
    assert_eq!(post("/v1/embeddings", json!({"input": "x"})).status, 400);
    assert_eq!(server.post("/v1/messages", &json!({})).status, 401);
}

#[test]
fn the_best_of_several_completions_is_returned() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let body =
        with(completion("A", 12), json!({"temperature": 1, "seed": 7, "n": 4, "logprobs": 0}));
    let all = server.post("/v1/completions", &body).json();
    let score = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.iter().map(|one| one.as_f64().unwrap()).sum::<f64>()
    };
    let choices = all["choices"].as_array().unwrap();
    let best = choices.iter().max_by(|one, other| score(one).total_cmp(&score(other))).unwrap();
    let body = with(body, json!({"n": 1, "best_of": 4, "logprobs": null}));
    let answer = server.post("/v1/completions", &body).json();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 1);
    assert_eq!(answer["choices"][0]["text"], best["text"]);
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    assert_eq!(answer["usage"]["completion_tokens"], 48);
    let wrong = with(body, json!({"best_of": 1, "n": 2}));
    assert_eq!(server.post("/v1/completions", &wrong).json()["error"]["param"], "best_of");
}

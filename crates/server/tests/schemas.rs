//! What answers must look like: exact numbers, tools next to a format, and schemas that are
//! refused.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{Running, serve, serve_template};
use forerun::RandomPair;
use serde_json::{Value, json};

/// A template that has a place for tools.
const TEMPLATE: &str = "{% for tool in tools or [] %}{{ tool }}{% endfor %}{% for m in messages %}{{ m.role }}: \
                        {{ m.content }}\n{% endfor %}assistant:<tool_call>{# </tool_call> #}";

/// The requests with a schema, through every way to one.
fn with_schema(schema: &Value) -> Vec<(&'static str, Value)> {
    let chat = |fields: Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": "x"}], "max_tokens": 200, "temperature": 1.5,
        });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let completion =
        |field: &str| json!({"prompt": "x", "max_tokens": 200, "temperature": 1.5, field: schema});
    let message = |fields: Value| {
        let mut body = chat(fields);
        body.as_object_mut().unwrap().remove("temperature");
        body
    };
    vec![
        ("/v1/completions", completion("json_schema")),
        ("/v1/completions", completion("guided_json")),
        (
            "/v1/completions",
            json!({"prompt": "x", "max_tokens": 200, "structured_outputs": {"json": schema}}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "x", "max_tokens": 200, "grammar": format!("start: %json {schema}")}),
        ),
        (
            "/v1/chat/completions",
            chat(json!({"response_format": {"type": "json_schema",
                "json_schema": {"name": "x", "schema": schema}}})),
        ),
        (
            "/v1/chat/completions",
            chat(json!({"response_format": {"type": "json_object", "schema": schema}})),
        ),
        (
            "/v1/responses",
            json!({"input": "x", "max_output_tokens": 200,
                "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}),
        ),
        (
            "/v1/messages",
            message(
                json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
            ),
        ),
    ]
}

/// Returns the text of an answer of any API.
fn text_of(answer: &Value) -> String {
    [
        &answer["choices"][0]["text"],
        &answer["choices"][0]["message"]["content"],
        &answer["output"][0]["content"][0]["text"],
        &answer["content"][0]["text"],
    ]
    .into_iter()
    .find_map(Value::as_str)
    .unwrap_or_else(|| panic!("no text in {answer}"))
    .to_owned()
}

fn post(server: &Running, path: &str, body: &Value) -> (u16, Value) {
    let answer = server.post(path, body);
    (answer.status, answer.json())
}

#[test]
fn integers_of_64_bits_are_exact_through_every_field() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    for number in [json!(i64::MIN), json!(-9_007_199_254_740_993_i64), json!(u64::MAX)] {
        let schema = json!({"type": "object", "properties": {"id": {"const": number}},
            "required": ["id"], "additionalProperties": false});
        for (path, body) in with_schema(&schema) {
            let (status, answer) = post(&server, path, &body);
            assert_eq!(status, 200, "{path}: {answer}");
            let value: Value = serde_json::from_str(&text_of(&answer)).unwrap();
            assert_eq!(value, json!({"id": number}), "{path}");
        }
    }
    // As tools' parameters, too.
    let parameters = json!({"type": "object", "properties": {"id": {"enum": [1_234_567_890_123_456_789_i64]}},
        "required": ["id"], "additionalProperties": false});
    let body = json!({
        "messages": [{"role": "user", "content": "x"}], "max_tokens": 200, "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "get", "parameters": parameters}}],
        "parallel_tool_calls": false,
    });
    let (status, answer) = post(&server, "/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"id": 1_234_567_890_123_456_789_i64}));
}

#[test]
fn what_cannot_be_exact_or_bounded_is_refused_by_name() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    for (schema, expected) in [
        (r#"{"const":18446744073709551616}"#, "18446744073709551616"),
        (r#"{"minimum":-9223372036854775809}"#, "-9223372036854775809"),
        (r#"{"type":"integer","multipleOf":2147483648}"#, "multipleOf"),
        (r#"{"type":"number","multipleOf":1e-300}"#, "multipleOf"),
        (r#"{"properties":{"a":{"not":{}}}}"#, "/properties/a"),
        (r#"{"enum":[]}"#, "no value"),
        (r#"{"anyOf":[{"type":"integer","minimum":2,"maximum":1}]}"#, "no value"),
    ] {
        let bodies = [
            format!(r#"{{"prompt":"x","json_schema":{schema}}}"#),
            format!(r#"{{"prompt":"x","guided_json":{schema}}}"#),
            format!(
                r#"{{"prompt":"x","response_format":{{"type":"json_object","schema":{schema}}}}}"#
            ),
        ];
        for body in bodies {
            let answer = server.send("POST", "/v1/completions", "", &body);
            assert_eq!(answer.status, 400, "{body}: {}", answer.body);
            assert!(answer.body.contains(expected), "{body}: {}", answer.body);
        }
    }
    // In histories of calls.
    for arguments in [
        r#"{"id":99999999999999999999}"#.to_owned(),
        json!("{\"id\":99999999999999999999}").to_string(),
    ] {
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","content":null,"tool_calls":
            [{{"id":"c1","type":"function","function":{{"name":"f","arguments":{arguments}}}}}]}}]}}"#
        );
        let answer = server.send("POST", "/v1/chat/completions", "", &body);
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.body.contains("99999999999999999999"), "{}", answer.body);
    }
    // An error does not repeat a long value.
    let body = json!({"prompt": "x", "max_tokens": "y".repeat(100_000)});
    let answer = server.post("/v1/completions", &body);
    assert!(answer.status == 400 && answer.body.len() < 5_000);
}

#[test]
fn an_answer_next_to_tools_is_a_call_or_has_the_format() {
    let pair = RandomPair::make().unwrap();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"], "additionalProperties": false});
    let pay = json!({"type": "object", "properties": {"n": {"enum": [5, 6]}}, "required": ["n"],
        "additionalProperties": false});
    let formats = [
        (json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}), true),
        (json!({"type": "text"}), false),
    ];
    for server in [serve(&pair), serve_template(&pair, TEMPLATE)] {
        let (mut calls, mut texts) = (0, 0);
        for (format, is_json) in &formats {
            for seed in 0..12 {
                let body = json!({
                    "messages": [{"role": "user", "content": "Pay 5."}], "max_tokens": 120, "seed": seed,
                    "temperature": 2.0, "top_k": 0, "top_p": 1, "min_p": 0,
                    "response_format": format, "parallel_tool_calls": false,
                    "tools": [{"type": "function", "function": {"name": "pay", "parameters": pay}}],
                });
                let (status, answer) = post(&server, "/v1/chat/completions", &body);
                assert_eq!(status, 200, "{answer}");
                if !is_json {
                    continue;
                }
                let message = &answer["choices"][0]["message"];
                match message["tool_calls"].get(0) {
                    Some(call) => {
                        calls += 1;
                        let arguments = call["function"]["arguments"].as_str().unwrap();
                        let arguments: Value = serde_json::from_str(arguments).unwrap();
                        assert!(arguments["n"] == 5 || arguments["n"] == 6, "{arguments}");
                    }
                    None => {
                        texts += 1;
                        let text = message["content"].as_str().unwrap();
                        let value: Value = serde_json::from_str(text).unwrap();
                        assert!(value["a"].as_u64().is_some_and(|a| a < 10), "{text}");
                    }
                }
            }
        }
        assert!(calls > 0 && texts > 0, "{calls} calls, {texts} texts");
    }
    // A required call is a call, whatever the format of texts.
    let server = serve(&pair);
    let tools = json!([{"type": "function", "function": {"name": "pay", "parameters": pay}}]);
    let mut body = json!({
        "messages": [{"role": "user", "content": "Pay 5."}], "max_tokens": 120,
        "tool_choice": "required", "response_format": formats[0].0, "tools": tools,
    });
    let (status, answer) = post(&server, "/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
    assert!(answer["choices"][0]["message"]["tool_calls"][0].is_object(), "{answer}");
    // A grammar with rules cannot be an option.
    body["tool_choice"] = "auto".into();
    body.as_object_mut().unwrap().remove("response_format");
    body["grammar"] = "root ::= \"a\"".into();
    let (status, answer) = post(&server, "/v1/chat/completions", &body);
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("tools")), "{answer}");
}

#[test]
fn parameters_without_a_type_are_objects() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    for parameters in [
        json!({"minLength": 4}),
        json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({"allOf": [{"$ref": "#"}]}),
    ] {
        let body = json!({
            "messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "tool_choice": "required",
            "tools": [{"type": "function", "function": {"name": "fi", "parameters": parameters}}],
            "parallel_tool_calls": false, "seed": 3, "temperature": 1.0,
        });
        let (status, answer) = post(&server, "/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"];
        if answer["choices"][0]["finish_reason"] == "tool_calls" {
            let arguments: Value = serde_json::from_str(call.as_str().unwrap()).unwrap();
            assert!(arguments.is_object(), "{arguments}");
        }
    }
}

#[test]
fn an_expression_that_grows_too_large_during_an_answer_is_the_clients_error() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let schema = json!({"type": "string", "pattern": "^((a{9,99}){9,99}){9,99}$"});
    let mut stuck = 0;
    for (path, body) in with_schema(&schema) {
        let (status, answer) = post(&server, path, &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        let is_clear = message.contains("cannot be continued within") && message.contains(": ");
        // Some texts stay small until the answer's last token.
        assert!(status == 200 || status == 400 && is_clear, "{path}: {status}, {answer}");
        stuck += usize::from(status == 400);
    }
    assert!(stuck > 0);
}

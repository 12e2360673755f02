//! ollama's API over real connections.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::*;
use forerun::{ChatTemplate, Engine, Message, RandomPair, Request, SamplingOptions};
use serde_json::{Value, json};
use std::ops::ControlFlow;

const PATHS: [&str; 2] = ["/api/chat", "/api/generate"];

fn chat(fields: Value) -> Value {
    with(json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello?"}]}), fields)
}

fn generate(fields: Value) -> Value {
    with(json!({"model": MODEL, "prompt": "Hello?"}), fields)
}

/// Options with which the answer is always the same.
fn options(fields: Value) -> Value {
    let fixed = json!({"num_predict": 20, "temperature": 0.7, "seed": 11, "ignore_eos": true});
    json!({"options": with(fixed, fields)})
}

impl Running {
    /// Returns the objects of a stream.
    fn lines(&self, path: &str, body: &Value) -> Vec<Value> {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{}", response.body);
        assert!(response.headers.contains("application/x-ndjson"), "{}", response.headers);
        response.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns a whole answer.
    fn whole(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, &with(body.clone(), json!({"stream": false})));
        assert_eq!(response.status, 200, "{path} {body}: {}", response.body);
        response.json()
    }
}

/// Returns the engine's answer to a conversation, with the sampling of [`options`].
fn expected(engine: &Engine, messages: &[Message]) -> String {
    let template = ChatTemplate::plain().unwrap();
    let request = Request {
        sampling: SamplingOptions { temperature: 0.7, ..engine_sampling(engine) },
        seed: Some(11),
        ..plain_request(20)
    };
    let prompt = engine.encode_chat(&template, messages).unwrap();
    let request = engine.chat_request(&template, &request);
    let answer = engine.generate_tokens(prompt, &request, |_| ControlFlow::Continue(()));
    answer.unwrap().text
}

fn engine_sampling(engine: &Engine) -> SamplingOptions {
    Request::default().sampled_as(engine.config().chat_sampling()).sampling
}

#[test]
fn answers_are_the_engines_streamed_or_not() {
    let pair = RandomPair::make().unwrap();
    let (server, engine) = (serve(&pair), engine(&pair));
    let messages = [Message::system("Be brief."), Message::user("Hello?")];
    let text = expected(&engine, &messages);
    let of_chat = json!([
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"},
    ]);
    let of_generate = json!({"prompt": "Hello?", "system": "Be brief."});
    for (path, fields, place) in [
        ("/api/chat", json!({"messages": of_chat}), "/message/content"),
        ("/api/generate", of_generate, "/response"),
    ] {
        let body = with(with(json!({"model": MODEL}), fields), options(json!({})));
        let whole = server.whole(path, &body);
        assert_eq!(whole.pointer(place).unwrap(), &text, "{whole}");
        let lines = server.lines(path, &body);
        let texts = lines.iter().map(|line| line.pointer(place).unwrap().as_str().unwrap());
        assert_eq!(texts.collect::<String>(), text);
        let (last, before) = lines.split_last().unwrap();
        assert!(before.iter().all(|line| line["done"] == false), "{before:?}");
        for end in [&whole, last] {
            assert_eq!((&end["done"], &end["done_reason"]), (&json!(true), &json!("length")));
            assert_eq!((&end["model"], &end["eval_count"]), (&json!(MODEL), &json!(20)));
            assert_eq!(end["prompt_eval_count"], whole["prompt_eval_count"]);
            let time = |name: &str| end[name].as_u64().unwrap();
            let parts = time("prompt_eval_duration") + time("eval_duration");
            assert!(time("eval_duration") > 0 && parts <= time("total_duration"), "{end}");
            assert!(end["created_at"].as_str().unwrap().ends_with('Z'));
        }
    }
    // A prompt without a template is continued as a completion is.
    let raw = generate(with(options(json!({"temperature": 0})), json!({"raw": true})));
    let completed = engine.complete("Hello?", &plain_request(20)).unwrap().text;
    assert_eq!(server.whole("/api/generate", &raw)["response"], completed);
}

#[test]
fn numbers_below_one_set_no_limit() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    for number in [-1, 0, -2] {
        let whole = server.whole("/api/chat", &chat(options(json!({"num_predict": number}))));
        let tokens =
            whole["prompt_eval_count"].as_u64().unwrap() + whole["eval_count"].as_u64().unwrap();
        assert_eq!((tokens, &whole["done_reason"]), (2048, &json!("length")), "{number}");
    }
}

#[test]
fn log_probabilities_are_those_of_chat_completions() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let messages = json!([{"role": "user", "content": "Hello?"}]);
    let fields = json!({"max_tokens": 20, "temperature": 0.7, "seed": 11, "ignore_eos": true});
    let body = json!({"messages": messages, "logprobs": true, "top_logprobs": 2});
    let openai = server.post("/v1/chat/completions", &with(body, fields)).json();
    let expected = openai["choices"][0]["logprobs"]["content"].clone();
    let body = chat(with(options(json!({})), json!({"logprobs": true, "top_logprobs": 2})));
    assert_eq!(server.whole("/api/chat", &body)["logprobs"], expected);
    let lines = server.lines("/api/chat", &body);
    let all: Vec<Value> =
        lines.iter().filter_map(|line| line["logprobs"].as_array()).flatten().cloned().collect();
    assert_eq!(Value::from(all), expected);
}

#[test]
fn answers_follow_their_format() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let schema = json!({
        "type": "object", "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
    });
    let options = json!({"options": {"num_predict": 200, "seed": 4}});
    for (body, path, place) in [
        (chat(options.clone()), "/api/chat", "/message/content"),
        (generate(options.clone()), "/api/generate", "/response"),
        (generate(with(options, json!({"raw": true}))), "/api/generate", "/response"),
    ] {
        let whole = server.whole(path, &with(body.clone(), json!({"format": schema})));
        let text = whole.pointer(place).unwrap().as_str().unwrap();
        let colour = serde_json::from_str::<Value>(text).unwrap()["colour"].clone();
        assert!(colour == "red" || colour == "blue", "{text}");
        assert_eq!(whole["done_reason"], "stop");
        // An empty format is none.
        server.whole(path, &with(body, json!({"format": ""})));
    }
}

/// The answer is a call, or else has the format. The model prefers `<`, with which a call begins.
#[test]
fn calls_are_whole_and_have_objects_as_arguments() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let parameters = json!({
        "type": "object", "required": ["city", "days"],
        "properties": {"city": {"enum": ["Paris"]}, "days": {"enum": [3]}},
    });
    let function = json!({"name": "get_weather", "description": "x", "parameters": parameters});
    let body = chat(json!({
        "tools": [{"type": "function", "function": function}], "format": {"enum": ["no"]},
        "options": {"num_predict": 120, "temperature": 0, "logit_bias": {"60": 100}},
    }));
    let whole = server.whole("/api/chat", &body);
    let calls = whole["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{whole}"));
    for (index, call) in calls.iter().enumerate() {
        let function = &call["function"];
        assert_eq!((&function["name"], &function["index"]), (&json!("get_weather"), &json!(index)));
        assert_eq!(function["arguments"], json!({"city": "Paris", "days": 3}));
    }
    let lines = server.lines("/api/chat", &body);
    let streamed: Vec<&Value> = lines
        .iter()
        .filter_map(|line| line["message"]["tool_calls"].as_array())
        .flatten()
        .map(|call| &call["function"])
        .collect();
    assert_eq!(streamed, calls.iter().map(|call| &call["function"]).collect::<Vec<_>>());
    // The call and its result in a further request.
    let history = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "Rain.", "tool_name": "get_weather"},
    ]);
    server.whole("/api/chat", &chat(with(options(json!({})), json!({"messages": history}))));
}

#[test]
fn reasoning_is_apart_from_the_answer() {
    let pair = RandomPair::make().unwrap();
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}\
        {% if enable_thinking %}<think>\n{% endif %}{# </think> #}";
    let server = serve_template(&pair, template);
    for (path, body, place) in [
        ("/api/chat", chat(options(json!({}))), "/message"),
        ("/api/generate", generate(options(json!({}))), ""),
    ] {
        let thought = server.whole(path, &with(body.clone(), json!({"think": true})));
        let message = thought.pointer(place).unwrap();
        assert!(!message["thinking"].as_str().unwrap().is_empty(), "{thought}");
        let lines = server.lines(path, &with(body.clone(), json!({"think": true})));
        let thinking = lines.iter().filter_map(|line| line.pointer(place)?["thinking"].as_str());
        assert_eq!(thinking.collect::<String>(), message["thinking"].as_str().unwrap());
        let plain = server.whole(path, &with(body, json!({"think": false})));
        assert_eq!(plain.pointer(place).unwrap()["thinking"], Value::Null, "{plain}");
    }
    let shown = server.post("/api/show", &json!({"model": MODEL})).json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
}

#[test]
fn models_are_listed_and_a_request_without_a_prompt_loads_one() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    assert!(server.get("/api/version").json()["version"].is_string());
    for path in ["/api/tags", "/api/ps"] {
        let listed = server.get(path).json();
        let model = &listed["models"][0];
        assert_eq!((&model["name"], &model["model"]), (&json!(MODEL), &json!(MODEL)), "{listed}");
        assert_eq!(model["details"]["family"], "llama");
        assert!(model["size"].as_u64().unwrap() > 0, "{model}");
        assert_eq!(model["digest"].as_str().unwrap().len(), 64);
    }
    let shown = server.post("/api/show", &json!({"model": MODEL})).json();
    assert_eq!(shown["model_info"]["llama.context_length"], 2048);
    assert_eq!(shown["parameters"], "num_ctx 2048");
    for path in PATHS {
        for body in [json!({"model": MODEL}), json!({"model": MODEL, "messages": [], "prompt": ""})]
        {
            let loaded = server.post(path, &body);
            assert_eq!(loaded.json()["done_reason"], "load", "{path}: {}", loaded.body);
        }
        // The only model stays.
        let refused = server.post(path, &json!({"model": MODEL, "keep_alive": 0}));
        assert_eq!(refused.status, 400);
        let error = refused.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains("stays loaded"), "{error}");
    }
    // ollama's clients may add a tag.
    let tagged = chat(with(options(json!({})), json!({"model": format!("{MODEL}:latest")})));
    assert_eq!(server.whole("/api/chat", &tagged)["model"], MODEL);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    let message = |fields: Value| {
        let message = with(json!({"role": "user", "content": "Hi"}), fields);
        json!({"messages": [message]})
    };
    for (path, fields, status, word) in [
        ("/api/chat", json!({"model": "other"}), 404, "\"other\" does not exist"),
        ("/api/chat", json!({"format": "xml"}), 400, "format is \"xml\""),
        ("/api/chat", json!({"format": {"type": "text"}}), 400, "format.schema"),
        ("/api/chat", json!({"keep_alive": "soon"}), 400, "keep_alive"),
        ("/api/chat", json!({"options": {"temperature": "warm"}}), 400, "options.temperature"),
        ("/api/chat", json!({"options": {"temperature": -1}}), 400, "temperature"),
        ("/api/chat", json!({"options": {"mirostat": 2}}), 400, "options.mirostat"),
        ("/api/chat", json!({"prompt": "a"}), 400, "prompt"),
        ("/api/chat", message(json!({"images": ["aGk="]})), 400, "messages[0].images"),
        ("/api/chat", message(json!({"content": [1]})), 400, "messages[0].content"),
        ("/api/generate", json!({"images": ["aGk="]}), 400, "images"),
        ("/api/generate", json!({"suffix": "a"}), 400, "suffix"),
        ("/api/generate", json!({"template": "{{ .Prompt }}"}), 400, "template"),
        ("/api/generate", json!({"context": [1, 2]}), 400, "context"),
        ("/api/generate", json!({"tools": [{"type": "function"}]}), 400, "tools"),
        ("/api/generate", json!({"raw": true, "system": "a"}), 400, "system has no effect"),
        ("/api/pull", json!({"model": "a"}), 404, "when the server is started"),
        ("/api/show", json!({"model": "other"}), 404, "\"other\" does not exist"),
    ] {
        let base = if path == "/api/chat" { chat(json!({})) } else { generate(json!({})) };
        let response = server.post(path, &with(base, fields.clone()));
        assert_eq!(response.status, status, "{path} {fields}: {}", response.body);
        let error = response.json();
        assert_eq!(error.as_object().unwrap().len(), 1, "{error}");
        assert!(error["error"].as_str().unwrap().contains(word), "{fields}: {error}");
    }
    let response = server.post("/api/embed", &json!({"model": MODEL, "input": "a"}));
    assert!(response.status == 400 && response.body.contains("no embeddings"), "{}", response.body);
    assert_eq!(server.send("POST", "/api/chat", "", "{").status, 400);
    let locked = serve_with(&pair, |options| options.api_keys = vec!["key".to_owned()]);
    let response = locked.post("/api/chat", &chat(json!({})));
    assert_eq!((response.status, response.json()["error"].is_string()), (401, true));
}

#[test]
fn null_is_absent_in_every_field() {
    let pair = RandomPair::make().unwrap();
    let server = serve(&pair);
    for (path, body, place) in [
        ("/api/chat", chat(options(json!({}))), "/message/content"),
        ("/api/generate", generate(options(json!({}))), "/response"),
    ] {
        let text = |body: &Value| server.whole(path, body).pointer(place).unwrap().clone();
        let nulls = json!({
            "system": null, "raw": null, "format": null, "think": null, "tools": null,
            "keep_alive": null, "logprobs": null, "top_logprobs": null, "images": null,
            "suffix": null, "template": null, "context": null, "truncate": null, "shift": null,
        });
        let mut nested = body.clone();
        for name in ["num_ctx", "top_k", "stop", "mirostat", "penalize_newline", "typical_p"] {
            nested["options"][name] = Value::Null;
        }
        assert_eq!(text(&with(nested, nulls)), text(&body), "{path}");
        // What clients send by default.
        let usual = json!({
            "num_ctx": 4096, "num_batch": 512, "num_gpu": -1, "num_keep": 4, "use_mmap": true,
            "typical_p": 1.0, "mirostat": 0, "penalize_newline": true, "num_thread": 2,
        });
        let usual = with(body.clone(), options(usual));
        assert_eq!(text(&usual), text(&body), "{path}");
    }
}

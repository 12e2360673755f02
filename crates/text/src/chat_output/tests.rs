//! Texts of each family, cut at every place.

use super::*;
use serde_json::json;

fn tools() -> Vec<Tool> {
    let tool = |name: &str, properties: serde_json::Value| Tool {
        name: name.into(),
        description: None,
        parameters: json!({"type": "object", "properties": properties}),
    };
    vec![
        tool("get_weather", json!({"city": {"type": "string"}, "days": {"type": "integer"}})),
        tool("get_time", json!({"zone": {"type": "string"}})),
    ]
}

/// Joins the parts that streams cut.
fn join(parts: Vec<ChatPart>) -> Vec<ChatPart> {
    let mut joined = Parts::default();
    for part in parts {
        match part {
            ChatPart::Text(text) => joined.text(&text),
            ChatPart::Reasoning(text) => joined.reasoning(&text),
            ChatPart::Call(name) => joined.call(&name),
            ChatPart::Arguments(json) => joined.arguments(&json),
        }
    }
    joined.0
}

/// Checks that `text` has these parts for every cut into three pieces, and character by character.
fn check(syntax: &str, prompt_end: &str, text: &str, expected: &[ChatPart]) {
    let syntax: ChatSyntax = syntax.parse().unwrap_or_else(|error| panic!("{error}"));
    let read = |pieces: &[&str]| {
        let mut parser = syntax.parser(&tools(), true, prompt_end);
        let mut parts: Vec<ChatPart> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        parts.extend(parser.finish(false));
        join(parts)
    };
    let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let characters: Vec<&str> = text.split("").filter(|piece| !piece.is_empty()).collect();
    assert_eq!(read(&characters), expected, "{text}");
    for (number, &first) in cuts.iter().enumerate() {
        for &second in cuts[number..].iter().step_by(7) {
            let pieces = [&text[..first], &text[first..second], &text[second..]];
            assert_eq!(read(&pieces), expected, "{pieces:?}");
        }
    }
}

fn text(text: &str) -> ChatPart {
    ChatPart::Text(text.into())
}

fn reasoning(text: &str) -> ChatPart {
    ChatPart::Reasoning(text.into())
}

fn call(name: &str, arguments: &str) -> [ChatPart; 2] {
    [ChatPart::Call(name.into()), ChatPart::Arguments(arguments.into())]
}

fn weather() -> [ChatPart; 2] {
    call("get_weather", r#"{"city": "Paris"}"#)
}

#[test]
fn text_without_tags_stays_as_it_is() {
    for syntax in ["hermes", "llama3_json", "mistral", "deepseek", "glm", "qwen3_coder", "harmony"]
    {
        for sample in [
            "",
            " Paris. ",
            "\n\na < b <tool_cal [TOOL <|py \n",
            "{\"city\": \"Paris\"} \n",
            "{",
            "[1]",
        ] {
            let expected = [text(sample)];
            check(syntax, "", sample, if sample.is_empty() { &[] } else { &expected });
        }
    }
}

#[test]
fn reasoning_stands_before_the_answer() {
    let both = [reasoning("Hm,\n\n so."), text("Paris.\n")];
    check("hermes", "", "<think>\nHm,\n\n so.\n</think>\n\nParis.\n", &both);
    check("deepseek", "assistant<think>\n", "Hm,\n\n so.\n</think>\n\nParis.\n", &both);
    check("mistral", "", "[THINK]Hm,\n\n so.[/THINK]Paris.\n", &both);
    check("hermes", "<think>", "Hm", &[reasoning("Hm")]);
    let json = "[\"<think>\"]";
    check("hermes", "<think>", &format!("Hm</think>{json}"), &[reasoning("Hm"), text(json)]);
    check("hermes", "", "<think>\n\n</think>\n\n", &[]);
    let [name, arguments] = weather();
    let all = [reasoning("Hm."), name, arguments];
    let called = "<think>Hm.</think>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    check("hermes", "", called, &all);
}

#[test]
fn hermes_calls_are_objects_between_tags() {
    let one = r#"<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>"#;
    check("hermes", "", one, &weather());
    let [name, arguments] = weather();
    let [other, none] = call("get_time", "{}");
    let several =
        format!("Let me see.\n\n{one}\n<tool_call>{{\"name\":\"get_time\"}}</tool_call>\n");
    check("hermes", "", &several, &[text("Let me see."), name, arguments, other, none, text("\n")]);
    // The order of the fields, texts of JSON, and brackets within texts do not matter.
    let twisted = r#"<tool_call>{"id": {"a": ["}", 1]}, "arguments": {"city": "a \"}{</tool"}, "name": "get_weather"}</tool_call>"#;
    check("hermes", "", twisted, &call("get_weather", r#"{"city": "a \"}{</tool"}"#));
    let quoted =
        r#"<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>"#;
    check("hermes", "", quoted, &weather());
    // What is no call is text.
    for wrong in [
        "<tool_call>{\"city\": 3}</tool_call> so",
        "<tool_call>Paris</tool_call>",
        "<tool_call>{\"name\": 3}</tool_call>.",
        "<tool_call></tool_call>",
        "<tool_call>{\"na",
    ] {
        check("hermes", "", wrong, &[text(wrong)]);
    }
    // What the model itself leaves unfinished.
    check("hermes", "", &one[..60], &call("get_weather", "{\"city\": \"P"));
}

/// Returns the parts of an answer that a limit cut off after `text`.
fn cut(syntax: &str, text: &str) -> Vec<ChatPart> {
    let syntax: ChatSyntax = syntax.parse().unwrap_or_else(|error| panic!("{error}"));
    let mut parser = syntax.parser(&tools(), true, "");
    let mut parts = parser.push(text);
    parts.extend(parser.finish(true));
    join(parts)
}

#[test]
fn a_call_that_is_cut_off_is_left_out() {
    let is_call = |part: &ChatPart| matches!(part, ChatPart::Call(_) | ChatPart::Arguments(_));
    let [name, arguments] = weather();
    let [other, none] = call("get_time", "{}");
    let both = [name, arguments, other, none];
    for (syntax, sample) in [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>\n<tool_call>{\"name\": \"get_time\"}</tool_call>",
        ),
        (
            "llama3_json",
            r#"{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_time", "parameters": {}}"#,
        ),
        (
            "mistral",
            r#"[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {}}]"#,
        ),
        (
            "mistral",
            r#"[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}"#,
        ),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "harmony",
            "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|><|channel|>commentary to=functions.get_time <|message|>{}<|call|>",
        ),
    ] {
        let mut seen = 0;
        for (end, _) in sample.char_indices().chain([(sample.len(), ' ')]) {
            let mut calls = cut(syntax, &sample[..end]);
            calls.retain(is_call);
            assert!(both.starts_with(&calls), "{:?}: {calls:?}", &sample[..end]);
            assert!(calls.len() >= seen && calls.len().is_multiple_of(2), "{calls:?}");
            seen = calls.len();
        }
        assert_eq!(seen, 4, "{sample}");
    }
    // Arguments with tags are read as a whole.
    for (syntax, sample) in [
        (
            "glm",
            "<tool_call>get_time\n<arg_key>zone</arg_key>\n<arg_value>UTC</arg_value>\n</tool_",
        ),
        ("qwen3_coder", "<tool_call>\n<function=get_time>\n<parameter=zone>\nUTC\n</parameter>"),
    ] {
        assert!(cut(syntax, sample).is_empty(), "{sample}");
    }
    // The text before it stays, and so does an object that may be an answer.
    let sample = "Well.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par";
    for end in "Well.\n<tool_call>".len()..=sample.len() {
        assert_eq!(cut("hermes", &sample[..end]), [text("Well.")], "{}", &sample[..end]);
    }
    assert_eq!(cut("llama3_json", "{\"age\": 3"), [text("{\"age\": 3")]);
}

#[test]
fn llama_calls_have_no_tags() {
    let one = r#"{"name": "get_weather", "parameters": {"city": "Paris"}}"#;
    check("llama3_json", "", one, &weather());
    check("llama3_json", "", &format!("\n\n<|python_tag|>{one}"), &weather());
    let [name, arguments] = weather();
    let [other, time] = call("get_time", r#"{"zone": "UTC"}"#);
    let several = format!(r#"{one}; {{"name": "get_time", "parameters": {{"zone": "UTC"}}}}"#);
    check("llama3_json", "", &several, &[name, arguments, other, time]);
    // An object that is not about a tool is an answer.
    for other in [r#"{"name": "Ann", "age": 3} is "it"."#, r#"{"age": 3}"#] {
        check("llama3_json", "", other, &[text(other)]);
    }
}

#[test]
fn mistral_calls_are_a_list_or_have_a_name_before_them() {
    let list = r#"[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abc"}, {"name": "get_time", "arguments": {}}]"#;
    let [name, arguments] = weather();
    let [other, none] = call("get_time", "{}");
    let both = [name, arguments, other, none];
    check("mistral", "", list, &both);
    check(
        "mistral",
        "",
        r#"[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}"#,
        &both,
    );
    check(
        "mistral",
        "",
        r#"[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS]{"city": "Paris"}"#,
        &weather(),
    );
    check("mistral", "", "[TOOL_CALLS]", &[text("[TOOL_CALLS]")]);
    check("mistral", "", "[TOOL_CALLS]why not", &[text("[TOOL_CALLS]why not")]);
}

#[test]
fn deepseek_calls_have_tags_around_everything() {
    let old = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let new = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let [name, arguments] = weather();
    let [other, none] = call("get_time", "{}");
    let both = [name, arguments, other, none];
    check("deepseek", "", old, &both);
    check("deepseek", "", new, &both);
}

#[test]
fn arguments_with_tags_become_json() {
    let expected = call("get_weather", r#"{"city":"12","days":3}"#);
    let glm = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>";
    check("glm", "", glm, &expected);
    check("glm", "", "<tool_call>get_time</tool_call>", &call("get_time", "{}"));
    check(
        "glm",
        "",
        "<tool_call>what is it</tool_call>",
        &[text("<tool_call>what is it</tool_call>")],
    );
    let qwen = "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    check("qwen3_coder", "", qwen, &expected);
}

#[test]
fn harmony_has_channels() {
    let sample = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>";
    let [name, arguments] = weather();
    check("harmony", "", sample, &[reasoning("Hm."), name, arguments]);
    let sample = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Paris.<|return|>";
    check("harmony", "", sample, &[reasoning("Hm."), text("Paris.")]);
    let [name, arguments] = weather();
    let sample = "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Paris\"}";
    check("harmony", "", sample, &[name, arguments]);
}

#[test]
fn syntaxes_are_recognised_by_the_template() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chat_templates");
    let syntax = |file: &str| {
        let file = std::path::Path::new(folder).join(file);
        let template = crate::ChatTemplate::choose(&file, file.to_str().unwrap_or_default());
        ChatSyntax::of_template(&template.unwrap_or_else(|error| panic!("{error}")))
    };
    for (file, name) in [
        ("llama-3.1-8b-instruct.jinja", "llama3_json"),
        ("mistral-nemo-instruct-2407.jinja", "mistral"),
        ("qwen3-0.6b.jinja", "hermes"),
        ("vicuna-13b-v1.1.jinja", "hermes"),
    ] {
        let named: ChatSyntax = name.parse().unwrap_or_else(|error| panic!("{error}"));
        assert!(syntax(file).calls_like(named), "{file}: {:?}", syntax(file));
    }
    // Templates without reasoning leave such text alone.
    assert!(syntax("qwen3-0.6b.jinja").has_special_tags(&[]));
    assert!(!syntax("llama-3.1-8b-instruct.jinja").has_special_tags(&[]));
}

#[test]
fn unknown_names_are_refused() {
    let error = "gpt".parse::<ChatSyntax>().err().map(|error| error.to_string());
    assert!(
        error.is_some_and(|text| text.contains("\"gpt\"") && text.contains("hermes, llama3_json"))
    );
}

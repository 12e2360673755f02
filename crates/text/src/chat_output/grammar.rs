//! Grammars of answers that call a tool, or have a format.

use super::syntax::{Tool, ToolSyntax};
use crate::grammar::{Grammar, GrammarKind, without_anchors};
use crate::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Returns the grammar of a call in a syntax (`None`: Harmony), or of several with `parallel`.
/// `close` is the tag that ends the reasoning before them.
pub(super) fn of_calls(
    close: Option<&str>,
    syntax: Option<ToolSyntax>,
    tools: &[Tool],
    parallel: bool,
    tokenizer: &Tokenizer,
) -> Grammar {
    start(close, "calls", &calls(syntax, tools, parallel, tokenizer), tokenizer)
}

/// Returns the grammar of such calls, or else of a text with a format, if both can be one grammar.
pub(super) fn of_calls_or(
    close: Option<&str>,
    format: &Grammar,
    syntax: Option<ToolSyntax>,
    tools: &[Tool],
    parallel: bool,
    tokenizer: &Tokenizer,
) -> Option<Grammar> {
    let text = in_lark(format)?;
    let text = match syntax {
        Some(_) => text,
        None => format!(
            "{} \"final\" {} {text}",
            tag("<|channel|>", tokenizer),
            tag("<|message|>", tokenizer)
        ),
    };
    let calls = calls(syntax, tools, parallel, tokenizer);
    Some(start(close, &format!("calls | {text}"), &calls, tokenizer))
}

/// Returns the grammar of the rest of a reasoning up to its closing tag, and of a text with a format
/// after it, if both can be one grammar.
pub(super) fn after_reasoning(
    format: &Grammar,
    close: &str,
    tokenizer: &Tokenizer,
) -> Option<Grammar> {
    Some(start(Some(close), &in_lark(format)?, "", tokenizer))
}

/// Returns the grammar of an answer with these rules, after the rest of a reasoning if there is a
/// tag that ends it.
fn start(close: Option<&str>, answer: &str, rules: &str, tokenizer: &Tokenizer) -> Grammar {
    let space = "/[ \\n]{1,4}/?";
    let start = match close.map(|close| tag(close, tokenizer)) {
        None => format!("start: {answer}"),
        Some(token) if token.starts_with('<') => {
            format!("start: /(?s:.+)/? {token} {space} answer\nanswer: {answer}")
        }
        Some(end) => format!(
            "start: reasoning {space} answer\nanswer: {answer}\nreasoning[suffix={end}]: /(?s:.*)/"
        ),
    };
    Grammar::lark(format!("{start}\n{rules}"))
}

/// Returns a format as a part of a Lark rule. `None`: it has rules of its own.
fn in_lark(format: &Grammar) -> Option<String> {
    match format.kind() {
        GrammarKind::JsonSchema => Some(format!("%json {}", format.text())),
        GrammarKind::Regex => {
            let regex = llguidance::regex_to_lark(without_anchors(format.text()), "");
            Some(format!("/{regex}/"))
        }
        GrammarKind::Lark | GrammarKind::Gbnf => None,
    }
}

/// Returns the rule `calls`, and those that it needs.
fn calls(
    syntax: Option<ToolSyntax>,
    tools: &[Tool],
    parallel: bool,
    tokenizer: &Tokenizer,
) -> String {
    let tag = |text: &str| tag(text, tokenizer);
    let names = (0..tools.len()).map(|number| format!("call_{number}")).collect::<Vec<_>>();
    let again = |separator: &str| match parallel {
        true => format!("({separator} call)*"),
        false => String::new(),
    };
    let has_token = |text: &str| tokenizer.token(text).is_some();
    let is_list = syntax == Some(ToolSyntax::Mistral) && !has_token("[ARGS]");
    let start = match syntax {
        Some(ToolSyntax::Mistral) if is_list => {
            format!("{} \"[\" call {} \"]\"", tag("[TOOL_CALLS]"), again("\", \""))
        }
        Some(ToolSyntax::DeepSeek) => format!(
            "{} call {} {}",
            tag("<｜tool▁calls▁begin｜>"),
            again("\"\\n\""),
            tag("<｜tool▁calls▁end｜>")
        ),
        Some(ToolSyntax::Hermes | ToolSyntax::Glm | ToolSyntax::QwenCoder) => {
            format!("call {}", again("\"\\n\""))
        }
        Some(ToolSyntax::Mistral) => format!("call {}", again("")),
        Some(ToolSyntax::Llama3) => format!("call {}", again("\"; \"")),
        None => "call".to_owned(),
    };
    let mut lark = format!("calls: {start}\ncall: {}\n", names.join(" | "));
    for (number, tool) in tools.iter().enumerate() {
        let name = json!(tool.name).to_string();
        let call_of = |key: &str| {
            literal(&format!("{{\"name\": {name}, \"{key}\": ")) + &format!(" args_{number} \"}}\"")
        };
        let arguments = format!("args_{number}");
        let call = match syntax {
            Some(ToolSyntax::Hermes) => {
                let (open, close) = (tag("<tool_call>"), tag("</tool_call>"));
                format!("{open} \"\\n\" {} \"\\n\" {close}", call_of("arguments"))
            }
            Some(ToolSyntax::Llama3) => call_of("parameters"),
            Some(ToolSyntax::Mistral) if is_list => call_of("arguments"),
            Some(ToolSyntax::Mistral) => {
                let (open, separator) = (tag("[TOOL_CALLS]"), tag("[ARGS]"));
                format!("{open} {} {separator} {arguments}", literal(&tool.name))
            }
            Some(ToolSyntax::DeepSeek) => format!(
                "{} {} {} {arguments} {}",
                tag("<｜tool▁call▁begin｜>"),
                literal(&tool.name),
                tag("<｜tool▁sep｜>"),
                tag("<｜tool▁call▁end｜>")
            ),
            Some(ToolSyntax::Glm) => {
                let head =
                    format!("{} {}", tag("<tool_call>"), literal(&format!("{}\n", tool.name)));
                let key = |key: &str| {
                    let (open, close) = (tag("<arg_key>"), tag("</arg_key>"));
                    let value = tag("<arg_value>");
                    format!("{open} {} {close} \"\\n\" {value}", literal(key))
                };
                let end = format!("{} \"\\n\"", tag("</arg_value>"));
                format!("{head} {} {}", tagged(number, tool, key, &end), tag("</tool_call>"))
            }
            Some(ToolSyntax::QwenCoder) => {
                let head = literal(&format!("\n<function={}>\n", tool.name));
                let key = |key: &str| literal(&format!("<parameter={key}>\n"));
                let arguments = tagged(number, tool, key, "\"\\n</parameter>\\n\"");
                let (open, close) = (tag("<tool_call>"), tag("</tool_call>"));
                format!("{open} {head} {arguments} \"</function>\\n\" {close}")
            }
            None => format!(
                "{} {} {} \"json\" {} {arguments}",
                tag("<|channel|>"),
                literal(&format!("commentary to=functions.{} ", tool.name)),
                tag("<|constrain|>"),
                tag("<|message|>")
            ),
        };
        let _ = writeln!(lark, "call_{number}: {call}");
        if matches!(syntax, Some(ToolSyntax::Glm | ToolSyntax::QwenCoder)) {
            for (index, (_, schema)) in properties(tool).enumerate() {
                let _ = writeln!(lark, "value_{number}_{index}: {}", tagged_value(schema));
            }
        } else {
            let _ = writeln!(lark, "args_{number}: %json {}", object(&tool.parameters));
        }
    }
    lark
}

/// Returns arguments that each have a key before and an end after them. Those that are not required
/// may be missing.
fn tagged(number: usize, tool: &Tool, key: impl Fn(&str) -> String, end: &str) -> String {
    let required = tool.parameters["required"].as_array();
    let is_required =
        |name: &str| required.is_some_and(|names| names.iter().any(|one| one == name));
    let argument = |(index, (name, _)): (usize, (&String, &Value))| {
        let optional = if is_required(name) { "" } else { "?" };
        format!("({} value_{number}_{index} {end}){optional}", key(name))
    };
    properties(tool).enumerate().map(argument).collect::<Vec<_>>().join(" ")
}

fn properties(tool: &Tool) -> impl Iterator<Item = (&String, &Value)> {
    tool.parameters["properties"].as_object().into_iter().flatten()
}

/// Strings stand between the tags as they are.
fn tagged_value(schema: &Value) -> String {
    match &schema["enum"] {
        Value::Array(values) if schema["type"] == "string" => {
            let texts: Vec<_> = values.iter().filter_map(Value::as_str).map(literal).collect();
            texts.join(" | ")
        }
        _ if schema["type"] == "string" => "/[^<]*/".to_owned(),
        _ => format!("%json {}", spaced(schema)),
    }
}

/// Returns the schema of arguments. They are an object, whatever else the tool's schema allows.
fn object(parameters: &Value) -> Value {
    let mut schema = spaced(parameters);
    let mut all = schema["allOf"].as_array().cloned().unwrap_or_default();
    all.push(json!({"type": "object"}));
    schema["allOf"] = all.into();
    schema
}

/// Returns a schema whose values have the spaces that chat templates write.
fn spaced(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        _ => json!({}),
    };
    schema["x-guidance"] =
        json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    schema
}

/// Returns a tag: a special token, or a text that the tokenizer may cut as it likes.
fn tag(text: &str, tokenizer: &Tokenizer) -> String {
    match tokenizer.token(text).filter(|token| tokenizer.is_special(*token)) {
        Some(token) => format!("<[{token}]>"),
        None => literal(text),
    }
}

/// Lark writes texts as JSON does.
fn literal(text: &str) -> String {
    json!(text).to_string()
}

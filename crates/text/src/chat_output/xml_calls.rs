//! Calls whose arguments have tags of their own, as GLM and Qwen3-Coder write them. A call is
//! reported when it is complete.

use super::syntax::Tool;
use super::{CallParser, Parts};
use serde_json::{Map, Value};

/// The tags of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XmlStyle {
    /// `name <arg_key>key</arg_key> <arg_value>value</arg_value>`
    Glm,
    /// `<function=name> <parameter=key>value</parameter> </function>`
    QwenCoder,
}

pub(super) struct XmlCalls {
    tag: &'static str,
    style: XmlStyle,
    tools: Vec<Tool>,
    body: String,
    is_text: bool,
}

impl XmlCalls {
    pub(super) fn new(tag: &'static str, style: XmlStyle, tools: Vec<Tool>) -> Self {
        Self { tag, style, tools, body: String::new(), is_text: false }
    }

    /// Returns the name and the arguments of a call.
    fn parse(&self) -> Option<(String, Map<String, Value>)> {
        match self.style {
            XmlStyle::Glm => {
                let (name, rest) = self.body.split_once("<arg_key>").unwrap_or((&self.body, ""));
                let (mut arguments, name) = (Map::new(), name.trim());
                let texts = rest.split("<arg_key>").filter(|text| !text.is_empty());
                for argument in texts {
                    let (key, rest) = argument.split_once("</arg_key>")?;
                    let value = between(rest, "<arg_value>", "</arg_value>")?;
                    arguments.insert(key.trim().into(), self.value(name, key.trim(), value));
                }
                let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
                is_name.then(|| (name.to_owned(), arguments))
            }
            XmlStyle::QwenCoder => {
                let (_, rest) = self.body.split_once("<function=")?;
                let (name, rest) = rest.split_once('>')?;
                let mut arguments = Map::new();
                for argument in rest.split("<parameter=").skip(1) {
                    let (key, rest) = argument.split_once('>')?;
                    let value = rest.rsplit_once("</parameter>").map_or(rest, |(value, _)| value);
                    // One line break on each side belongs to the syntax.
                    let value = value.strip_prefix('\n').unwrap_or(value);
                    let value = value.strip_suffix('\n').unwrap_or(value);
                    arguments.insert(key.trim().into(), self.value(name, key.trim(), value));
                }
                Some((name.trim().to_owned(), arguments))
            }
        }
    }

    /// Returns a value as the tool's schema has it: a string as it stands, and anything else as
    /// JSON.
    fn value(&self, tool: &str, key: &str, text: &str) -> Value {
        let tool = self.tools.iter().find(|one| one.name == tool);
        let types = tool.map(|tool| &tool.parameters["properties"][key]["type"]);
        let is_string = match types {
            Some(Value::String(name)) => name == "string",
            Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
            _ => false,
        };
        let json = || serde_json::from_str(text.trim());
        match is_string {
            true => text.into(),
            false => json().unwrap_or_else(|_| text.into()),
        }
    }
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(open)?;
    rest.split_once(close).map(|(value, _)| value)
}

impl CallParser for XmlCalls {
    fn push(&mut self, text: &str, _parts: &mut Parts) {
        self.body.push_str(text);
    }

    fn finish(&mut self, parts: &mut Parts) {
        match self.parse() {
            Some((name, arguments)) => {
                parts.call(&name);
                parts.arguments(&Value::Object(arguments).to_string());
            }
            None => {
                self.is_text = true;
                parts.text(self.tag);
                parts.text(&self.body);
            }
        }
    }

    fn is_text(&self) -> bool {
        self.is_text
    }
}

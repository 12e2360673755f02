//! What a chat template reads.

use serde_json::{Map, Value};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The author's role: `system`, `user`, `assistant`, `tool`, or another role that the template
    /// supports.
    pub role: String,
    /// The text.
    pub content: String,
    /// Further fields that templates read, such as `tool_calls`, `tool_call_id`, `name` and
    /// `reasoning_content`. The arguments of a tool call are an object here, not a text of JSON.
    pub fields: Map<String, Value>,
}

impl Message {
    /// Creates a message.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), fields: Map::new() }
    }

    /// Creates a system message: instructions for the model.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// Creates a user's message.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// Creates a message with an answer of the model.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// Returns this message with a further field.
    #[must_use]
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(field.to_owned(), value.into());
        self
    }
}

/// What a chat template reads besides the messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateArguments {
    /// The tools that the model may call, in the form of OpenAI's API: objects with `type` and
    /// `function`.
    pub tools: Vec<Value>,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

impl TemplateArguments {
    /// Calls a function with every text in messages and arguments.
    pub(super) fn each_text<'a>(&'a self, messages: &'a [Message], mut visit: impl FnMut(&'a str)) {
        for message in messages {
            visit(&message.role);
            visit(&message.content);
            each_text_of_object(&message.fields, &mut visit);
        }
        self.tools.iter().for_each(|tool| each_text_of(tool, &mut visit));
        each_text_of_object(&self.variables, &mut visit);
    }
}

fn each_text_of<'a>(value: &'a Value, visit: &mut impl FnMut(&'a str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(values) => values.iter().for_each(|value| each_text_of(value, visit)),
        Value::Object(object) => each_text_of_object(object, visit),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn each_text_of_object<'a>(object: &'a Map<String, Value>, visit: &mut impl FnMut(&'a str)) {
    for (name, value) in object {
        visit(name);
        each_text_of(value, visit);
    }
}

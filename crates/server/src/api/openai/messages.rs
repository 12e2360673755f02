//! The messages of a conversation.

use crate::api::error::ApiError;
use forerun::Message;
use serde::Deserialize;
use serde_json::{Value, json};

/// A message in the form of OpenAI's API.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ChatMessage {
    pub(crate) role: String,
    #[serde(default)]
    pub(crate) content: Option<Content>,
    #[serde(default)]
    pub(crate) name: Option<String>,
    #[serde(default)]
    pub(crate) tool_calls: Vec<ToolCall>,
    #[serde(default)]
    pub(crate) tool_call_id: Option<String>,
    #[serde(default)]
    pub(crate) reasoning_content: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of parts")]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Deserialize)]
pub(crate) struct ContentPart {
    pub(crate) r#type: String,
    #[serde(default)]
    pub(crate) text: Option<String>,
}

/// A call that the model made before.
#[derive(Debug, Deserialize)]
pub(crate) struct ToolCall {
    #[serde(default)]
    pub(crate) id: Option<String>,
    pub(crate) function: CalledFunction,
}

#[derive(Debug, Deserialize)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    /// A JSON object as text.
    #[serde(default)]
    pub(crate) arguments: String,
}

impl Content {
    /// Returns the text. `field` names the content in errors.
    pub(crate) fn text(&self, field: &str) -> Result<String, ApiError> {
        let parts = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::Parts(parts) => parts,
        };
        let text = |part: &ContentPart| match (&*part.r#type, &part.text) {
            ("text" | "input_text" | "output_text", Some(text)) => Ok(text.clone()),
            (kind, _) => Err(ApiError::field(
                field,
                format!("{field}: parts of type {kind:?} are not supported, only \"text\""),
            )),
        };
        parts.iter().map(text).collect()
    }
}

impl ChatMessage {
    /// Returns the message for a chat template.
    pub(crate) fn to_message(&self, index: usize) -> Result<Message, ApiError> {
        let field = format!("messages[{index}].content");
        let content = self.content.as_ref().map(|content| content.text(&field)).transpose()?;
        // Templates know the role by its older name.
        let role = if self.role == "developer" { "system" } else { &*self.role };
        let mut message = Message::new(role, content.unwrap_or_default());
        for (name, value) in [
            ("name", &self.name),
            ("tool_call_id", &self.tool_call_id),
            ("reasoning_content", &self.reasoning_content),
        ] {
            if let Some(value) = value {
                message = message.with(name, value.as_str());
            }
        }
        if !self.tool_calls.is_empty() {
            let call = |call: &ToolCall| {
                let CalledFunction { name, arguments } = &call.function;
                // Templates expect an object, and write it as JSON.
                let text = || Value::from(arguments.as_str());
                let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| text());
                json!({
                    "id": call.id,
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                })
            };
            message =
                message.with("tool_calls", self.tool_calls.iter().map(call).collect::<Value>());
        }
        Ok(message)
    }
}

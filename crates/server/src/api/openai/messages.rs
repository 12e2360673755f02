//! The messages of a conversation.

use crate::api::error::ApiError;
use forerun::Message;
use serde::Deserialize;
use serde_json::{Value, json};

/// A message in the form of OpenAI's API.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ChatMessage {
    pub(crate) role: String,
    #[serde(default)]
    pub(crate) content: Option<Content>,
    #[serde(default)]
    pub(crate) name: Option<String>,
    #[serde(default)]
    pub(crate) tool_calls: Option<Vec<ToolCall>>,
    #[serde(default)]
    pub(crate) tool_call_id: Option<String>,
    #[serde(default)]
    pub(crate) reasoning_content: Option<String>,
    /// The newer name in vLLM.
    #[serde(default)]
    pub(crate) reasoning: Option<String>,
    /// What the model said instead of content.
    #[serde(default)]
    pub(crate) refusal: Option<String>,
    #[serde(default)]
    pub(crate) function_call: Option<Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of parts")]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ContentPart {
    pub(crate) r#type: String,
    #[serde(default)]
    pub(crate) text: Option<String>,
    #[serde(default)]
    pub(crate) refusal: Option<String>,
}

/// A call that the model made before.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ToolCall {
    #[serde(default)]
    pub(crate) id: Option<String>,
    pub(crate) function: CalledFunction,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) arguments: Option<Arguments>,
}

/// The arguments of a call: a JSON object, as text in OpenAI's API.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Arguments {
    Text(String),
    Json(Value),
}

impl ContentPart {
    pub(crate) fn text(text: &str) -> Self {
        Self { r#type: "text".to_owned(), text: Some(text.to_owned()), refusal: None }
    }
}

impl Content {
    /// Returns the text. `field` names the content in errors, and `separator` stands between parts.
    pub(crate) fn text(&self, field: &str, separator: &str) -> Result<String, ApiError> {
        let parts = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::Parts(parts) => parts,
        };
        let text = |part: &ContentPart| match (&*part.r#type, &part.text, &part.refusal) {
            ("text" | "input_text" | "output_text", Some(text), _) | ("refusal", _, Some(text)) => {
                Ok(text.clone())
            }
            (kind, ..) => Err(ApiError::field(
                field,
                format!("{field}: parts of type {kind:?} are not supported, only \"text\""),
            )),
        };
        Ok(parts.iter().map(text).collect::<Result<Vec<String>, ApiError>>()?.join(separator))
    }
}

impl ChatMessage {
    /// Returns whether this is an answer that the model may continue: one with a text, and without
    /// calls.
    pub(crate) fn is_begun_answer(&self) -> bool {
        let has_text = match &self.content {
            None => false,
            Some(Content::Text(text)) => !text.is_empty(),
            Some(Content::Parts(parts)) => {
                parts.iter().any(|part| part.text.as_ref().is_some_and(|text| !text.is_empty()))
            }
        };
        self.role == "assistant" && has_text && self.calls().is_empty()
    }

    fn calls(&self) -> &[ToolCall] {
        self.tool_calls.as_deref().unwrap_or_default()
    }

    /// Returns the message for a chat template. `separator` stands between the parts of its
    /// content.
    pub(crate) fn to_message(&self, index: usize, separator: &str) -> Result<Message, ApiError> {
        let field = |name: &str| format!("messages[{index}].{name}");
        if self.function_call.is_some() {
            let message = "function_call is not supported: tool_calls has replaced it";
            return Err(ApiError::field(field("function_call"), message));
        }
        let content = self.content.as_ref();
        let content = content.map(|content| content.text(&field("content"), separator));
        let content = content.transpose()?.or_else(|| self.refusal.clone());
        // Templates know the role by its older name.
        let role = if self.role == "developer" { "system" } else { &*self.role };
        let mut message = Message::new(role, content.unwrap_or_default());
        for (name, value) in [
            ("name", &self.name),
            ("tool_call_id", &self.tool_call_id),
            (
                "reasoning_content",
                if self.reasoning.is_some() { &self.reasoning } else { &self.reasoning_content },
            ),
        ] {
            if let Some(value) = value {
                message = message.with(name, value.as_str());
            }
        }
        if !self.calls().is_empty() {
            let call = |(number, call): (usize, &ToolCall)| {
                call.to_value(&field(&format!("tool_calls[{number}]")))
            };
            let calls: Vec<Value> =
                self.calls().iter().enumerate().map(call).collect::<Result<_, _>>()?;
            message = message.with("tool_calls", calls);
        }
        Ok(message)
    }
}

impl ToolCall {
    /// Returns the call for a chat template. `field` names it in errors.
    fn to_value(&self, field: &str) -> Result<Value, ApiError> {
        let arguments = self.arguments(&format!("{field}.function.arguments"))?;
        Ok(json!({
            "id": self.id,
            "type": "function",
            "function": {"name": self.function.name, "arguments": arguments},
        }))
    }

    /// Returns the arguments as templates expect them, which is an object. `field` names them in
    /// errors.
    pub(crate) fn arguments(&self, field: &str) -> Result<Value, ApiError> {
        let wrong = |reason: &str| {
            let (name, id) = (&self.function.name, self.id.as_deref().unwrap_or_default());
            let message = format!(
                "{field}: the arguments of the call {id:?} of {name:?} are wrong: {reason}"
            );
            Err(ApiError::field(field, message))
        };
        let arguments = match &self.function.arguments {
            None => Value::Null,
            Some(Arguments::Json(arguments)) => arguments.clone(),
            Some(Arguments::Text(text)) if text.trim().is_empty() => Value::Null,
            Some(Arguments::Text(text)) => match serde_json::from_str(text) {
                Ok(arguments) => match forerun::text::large_integer(text.as_bytes()) {
                    None => arguments,
                    Some(number) => return wrong(&forerun::text::integer_too_large(number)),
                },
                Err(error) => {
                    return wrong(&format!(
                        "no JSON, perhaps because the answer was cut off: {error}"
                    ));
                }
            },
        };
        match arguments {
            Value::Null => Ok(json!({})),
            // What PHP makes of an empty object.
            Value::Array(list) if list.is_empty() => Ok(json!({})),
            Value::Object(_) => Ok(arguments),
            _ => wrong("JSON, but no object"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fields::tests::nulls_are_absent;

    #[test]
    fn every_field_but_the_role_and_the_names_may_be_null() {
        let call = json!({"id": "a", "function": {"name": "b", "arguments": "{}"}});
        let message = json!({
            "role": "assistant", "content": "a", "name": "b", "tool_calls": [call],
            "tool_call_id": "c", "reasoning_content": "d", "reasoning": "e", "refusal": "f",
            "function_call": {"name": "g"},
        });
        nulls_are_absent::<ChatMessage>(&message, &["role"]);
        nulls_are_absent::<ToolCall>(&call, &["function"]);
        nulls_are_absent::<CalledFunction>(&call["function"], &["name"]);
        let part = json!({"type": "text", "text": "a", "refusal": "b"});
        nulls_are_absent::<ContentPart>(&part, &["type"]);
    }

    #[test]
    fn calls_without_arguments_have_an_empty_object_and_cut_off_ones_are_named() {
        let arguments = |arguments: Value| {
            let function = json!({"name": "clock", "arguments": arguments});
            let call =
                serde_json::from_value::<ToolCall>(json!({"id": "c1", "function": function}));
            let field = "messages[1].tool_calls[0].function.arguments";
            Some(call.ok()?.arguments(field).map_err(|error| error.message().to_owned()))
        };
        for none in [json!(""), json!(" \n"), Value::Null, json!("null"), json!("{}"), json!({})] {
            assert_eq!(arguments(none.clone()), Some(Ok(json!({}))), "{none}");
        }
        let given = json!({"n": 18_446_744_073_709_551_615_u64, "m": i64::MIN});
        assert_eq!(arguments(json!(given.to_string())), Some(Ok(given.clone())));
        assert_eq!(arguments(given.clone()), Some(Ok(given)));
        for cut in ["{\"n\": ", "{\"n\": 1", "{", "nul"] {
            let error = arguments(json!(cut)).and_then(Result::err).unwrap_or_default();
            let start = "messages[1].tool_calls[0].function.arguments: the arguments of the call";
            assert!(
                error.starts_with(&format!("{start} \"c1\" of \"clock\" are wrong")),
                "{error}"
            );
        }
    }

    #[test]
    fn parts_are_joined_and_a_refusal_is_what_the_model_said() {
        let message = |value: Value| {
            let message = serde_json::from_value::<ChatMessage>(value).ok()?;
            message.to_message(0, "\n").ok().map(|message| message.content)
        };
        let parts = json!([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]);
        let content = message(json!({"role": "user", "content": parts}));
        assert_eq!(content.as_deref(), Some("a\nb"));
        let content = message(json!({"role": "assistant", "content": null, "refusal": "No."}));
        assert_eq!(content.as_deref(), Some("No."));
    }
}

//! The fields of a request.

use crate::api::error::ApiError;
use crate::api::openai::body::{Body, OneOrMany, SpeculationField};
use crate::api::openai::messages::{CalledFunction, ChatMessage, Content, ToolCall};
use crate::api::openai::tools::{
    Function, FunctionName, ToolChoice, ToolField, ToolFields, ToolMode,
};
use serde::Deserialize;
use serde_json::Value;

/// A request. Fields that change nothing about the text are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MessagesBody {
    model: Option<String>,
    max_tokens: Option<usize>,
    messages: Vec<AnthropicMessage>,
    system: Option<Blocks>,
    pub(super) stop_sequences: Vec<String>,
    pub(super) stream: Option<bool>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    tools: Vec<AnthropicTool>,
    tool_choice: Option<AnthropicToolChoice>,
    thinking: Option<Thinking>,
    speculation: Option<SpeculationField>,
    seed: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct AnthropicMessage {
    role: String,
    content: Blocks,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of blocks")]
enum Blocks {
    Text(String),
    Blocks(Vec<Block>),
}

#[derive(Debug, Deserialize)]
struct Block {
    r#type: String,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Value>,
    tool_use_id: Option<String>,
    content: Option<Blocks>,
}

#[derive(Debug, Deserialize)]
struct AnthropicTool {
    name: String,
    r#type: Option<String>,
    description: Option<String>,
    input_schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicToolChoice {
    Auto(ToolUse),
    Any(ToolUse),
    Tool { name: String },
    None,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ToolUse {
    disable_parallel_tool_use: bool,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Thinking {
    Enabled,
    Adaptive,
    Disabled,
}

/// What chat completions call the fields of this API.
pub(super) const FIELDS: [(&str, &str); 3] =
    [("max_completion_tokens", "max_tokens"), ("stop", "stop_sequences"), ("n", "messages")];

impl MessagesBody {
    /// Returns the same request as a chat completion. Only an answer needs `max_tokens`.
    pub(super) fn to_chat(&self, answers: bool) -> Result<Body, ApiError> {
        if answers && self.max_tokens.is_none() {
            return Err(ApiError::field("max_tokens", "max_tokens is required"));
        }
        let mut messages = Vec::new();
        if let Some(system) = &self.system {
            let text = system.text("system")?;
            messages.push(chat_message("system", text));
        }
        for (index, message) in self.messages.iter().enumerate() {
            message.add_to(&mut messages, &format!("messages[{index}].content"))?;
        }
        let mut body = Body {
            model: self.model.clone(),
            messages: Some(messages),
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
            speculation: self.speculation.clone(),
            tools: self.tools(),
            ..Body::default()
        };
        if !self.stop_sequences.is_empty() {
            body.stop = Some(OneOrMany::Many(self.stop_sequences.clone()));
        }
        if let Some(thinking) = &self.thinking {
            let enabled = !matches!(thinking, Thinking::Disabled);
            // The name that most templates read.
            body.chat_template_kwargs.insert("enable_thinking".into(), enabled.into());
        }
        Ok(body)
    }

    fn tools(&self) -> ToolFields {
        let tool = |tool: &AnthropicTool| ToolField {
            // Tools that Anthropic runs itself have a type of their own.
            r#type: match tool.r#type.as_deref() {
                None | Some("custom") => "function".to_owned(),
                Some(kind) => kind.to_owned(),
            },
            function: Some(Function {
                name: tool.name.clone(),
                description: tool.description.clone(),
                parameters: tool.input_schema.clone(),
            }),
        };
        let (choice, parallel) = match &self.tool_choice {
            None => (None, true),
            Some(AnthropicToolChoice::Auto(tool_use)) => {
                (Some(ToolChoice::Mode(ToolMode::Auto)), !tool_use.disable_parallel_tool_use)
            }
            Some(AnthropicToolChoice::Any(tool_use)) => {
                (Some(ToolChoice::Mode(ToolMode::Required)), !tool_use.disable_parallel_tool_use)
            }
            Some(AnthropicToolChoice::Tool { name }) => {
                (Some(ToolChoice::Named { function: FunctionName { name: name.clone() } }), false)
            }
            Some(AnthropicToolChoice::None) => (Some(ToolChoice::Mode(ToolMode::None)), true),
        };
        ToolFields {
            tools: self.tools.iter().map(tool).collect(),
            tool_choice: choice,
            parallel_tool_calls: Some(parallel),
        }
    }
}

fn chat_message(role: &str, text: String) -> ChatMessage {
    let content = Some(Content::Text(text));
    ChatMessage { role: role.to_owned(), content, ..ChatMessage::default() }
}

impl AnthropicMessage {
    /// Adds the message to a conversation. Results of tools are messages of their own there.
    fn add_to(&self, messages: &mut Vec<ChatMessage>, field: &str) -> Result<(), ApiError> {
        if !matches!(&*self.role, "user" | "assistant") {
            let field = field.replace(".content", ".role");
            let message = format!("{field} is {:?}, but it must be user or assistant", self.role);
            return Err(ApiError::field(field, message));
        }
        let blocks = match &self.content {
            Blocks::Text(text) => {
                messages.push(chat_message(&self.role, text.clone()));
                return Ok(());
            }
            Blocks::Blocks(blocks) => blocks,
        };
        let mut message = ChatMessage { role: self.role.clone(), ..ChatMessage::default() };
        let mut texts = String::new();
        for (number, block) in blocks.iter().enumerate() {
            let field = format!("{field}[{number}]");
            match &*block.r#type {
                "text" => texts += block.required(&block.text, &field, "text")?,
                "thinking" => message.reasoning_content.clone_from(&block.thinking),
                "redacted_thinking" => {}
                "tool_use" => message.tool_calls.push(ToolCall {
                    id: block.id.clone(),
                    function: CalledFunction {
                        name: block.required(&block.name, &field, "name")?.clone(),
                        arguments: block.input.as_ref().map(Value::to_string).unwrap_or_default(),
                    },
                }),
                "tool_result" => {
                    let content = block.content.as_ref().map(|content| content.text(&field));
                    messages.push(ChatMessage {
                        tool_call_id: block.tool_use_id.clone(),
                        ..chat_message("tool", content.transpose()?.unwrap_or_default())
                    });
                }
                kind => return Err(unsupported(&field, kind)),
            }
        }
        if !texts.is_empty() || !message.tool_calls.is_empty() {
            message.content = Some(Content::Text(texts));
            messages.push(message);
        }
        Ok(())
    }
}

impl Block {
    fn required<'a>(
        &self,
        value: &'a Option<String>,
        field: &str,
        name: &str,
    ) -> Result<&'a String, ApiError> {
        let field = format!("{field}.{name}");
        value.as_ref().ok_or_else(|| ApiError::field(&*field, format!("{field} is required")))
    }
}

impl Blocks {
    /// Returns the text of blocks that may only have text.
    fn text(&self, field: &str) -> Result<String, ApiError> {
        let blocks = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::Blocks(blocks) => blocks,
        };
        let text = |block: &Block| match &*block.r#type {
            "text" => Ok(block.text.clone().unwrap_or_default()),
            kind => Err(unsupported(field, kind)),
        };
        blocks.iter().map(text).collect()
    }
}

fn unsupported(field: &str, kind: &str) -> ApiError {
    ApiError::field(field, format!("{field}: blocks of type {kind:?} are not supported"))
}

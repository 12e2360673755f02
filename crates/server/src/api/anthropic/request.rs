//! The fields of a request.

use crate::api::error::ApiError;
use crate::api::fields::Api;
use crate::api::openai::body::{Body, BodyFields, SpeculationField};
use crate::api::openai::messages::{
    Arguments, CalledFunction, ChatMessage, Content, ContentPart, ToolCall,
};
use crate::api::openai::sampling::{OneOrMany, SamplingFields};
use crate::api::openai::structured::{ResponseFormat, StructureFields};
use crate::api::openai::tools::{
    Function, FunctionName, ToolChoice, ToolField, ToolFields, ToolMode,
};
use crate::api::parse;
use axum::body::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A request, with the fields that it shares with chat completions.
#[derive(Debug, Default)]
pub(super) struct MessagesBody {
    fields: MessagesFields,
    sampling: SamplingFields,
    structure: StructureFields,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MessagesFields {
    model: Option<String>,
    max_tokens: Option<i64>,
    messages: Option<Vec<AnthropicMessage>>,
    system: Option<Blocks>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    tools: Option<Vec<AnthropicTool>>,
    tool_choice: Option<AnthropicToolChoice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// The older place of the format.
    output_format: Option<OutputFormat>,
    chat_template_kwargs: Option<Map<String, Value>>,
    speculation: Option<SpeculationField>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct OutputConfig {
    format: Option<OutputFormat>,
    effort: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum OutputFormat {
    JsonSchema { schema: Value },
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
    input: Option<Arguments>,
    tool_use_id: Option<String>,
    content: Option<Blocks>,
}

#[derive(Debug, Deserialize)]
struct AnthropicTool {
    name: Option<String>,
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
    disable_parallel_tool_use: Option<bool>,
}

impl ToolUse {
    fn parallel(&self) -> bool {
        !self.disable_parallel_tool_use.unwrap_or(false)
    }
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
    [("response_format", "output_config.format"), ("stop", "stop_sequences"), ("n", "messages")];

impl MessagesBody {
    /// Parses the body of a request. Errors name the field.
    pub(super) fn parse(bytes: &Bytes) -> Result<Self, ApiError> {
        let fields = parse(bytes)?;
        Api::Messages.check(bytes)?;
        Ok(Self { fields, sampling: parse(bytes)?, structure: parse(bytes)? })
    }

    /// Returns the name of the model, if the request names one.
    pub(super) fn model(&self) -> Option<&str> {
        self.fields.model.as_deref()
    }

    /// Returns whether the answer is a stream.
    pub(super) fn streams(&self) -> bool {
        self.fields.stream.unwrap_or(false)
    }

    pub(super) fn stop_sequences(&self) -> &[String] {
        self.fields.stop_sequences.as_deref().unwrap_or_default()
    }

    /// Returns the same request as a chat completion. Only an answer needs `max_tokens`.
    pub(super) fn into_chat(self, answers: bool) -> Result<Body, ApiError> {
        let Self { fields, mut sampling, mut structure } = self;
        if answers && fields.max_tokens.is_none() {
            return Err(ApiError::field("max_tokens", "max_tokens is required"));
        }
        let mut messages = Vec::new();
        if let Some(system) = &fields.system {
            let text = system.text("system")?;
            messages.push(chat_message("system", Content::Text(text)));
        }
        for (index, message) in fields.messages.iter().flatten().enumerate() {
            message.add_to(&mut messages, &format!("messages[{index}].content"))?;
        }
        let tools = fields.tools();
        let OutputConfig { format, effort } = fields.output_config.unwrap_or_default();
        if format.is_some() && fields.output_format.is_some() {
            let message =
                "output_format and output_config.format cannot be combined: give one of them";
            return Err(ApiError::field("output_format", message));
        }
        if let Some(OutputFormat::JsonSchema { schema }) = format.or(fields.output_format) {
            structure.response_format = Some(ResponseFormat::of_schema(&schema));
        }
        sampling.stop = fields.stop_sequences.map(OneOrMany::Many);
        let mut variables = fields.chat_template_kwargs.unwrap_or_default();
        if let Some(thinking) = &fields.thinking {
            let enabled = !matches!(thinking, Thinking::Disabled);
            // The name that most templates read.
            variables.insert("enable_thinking".into(), enabled.into());
        }
        let fields = BodyFields {
            model: fields.model,
            messages: Some(messages),
            max_tokens: fields.max_tokens,
            speculation: fields.speculation,
            chat_template_kwargs: Some(variables),
            reasoning_effort: effort,
            ..BodyFields::default()
        };
        Ok(Body { fields, sampling, structure, tools, ..Body::default() })
    }
}

impl MessagesFields {
    fn tools(&self) -> ToolFields {
        let tool = |tool: &AnthropicTool| ToolField {
            // Tools that Anthropic runs itself have a type of their own.
            r#type: match tool.r#type.as_deref() {
                None | Some("custom") => "function".to_owned(),
                Some(kind) => kind.to_owned(),
            },
            function: Some(Function {
                name: tool.name.clone().unwrap_or_default(),
                description: tool.description.clone(),
                parameters: tool.input_schema.clone(),
            }),
        };
        let (choice, parallel) = match &self.tool_choice {
            None => (None, true),
            Some(AnthropicToolChoice::Auto(tool_use)) => {
                (Some(ToolChoice::Mode(ToolMode::Auto)), tool_use.parallel())
            }
            Some(AnthropicToolChoice::Any(tool_use)) => {
                (Some(ToolChoice::Mode(ToolMode::Required)), tool_use.parallel())
            }
            Some(AnthropicToolChoice::Tool { name }) => {
                (Some(ToolChoice::Named { function: FunctionName { name: name.clone() } }), false)
            }
            Some(AnthropicToolChoice::None) => (Some(ToolChoice::Mode(ToolMode::None)), true),
        };
        ToolFields {
            tools: self.tools.as_deref().map(|tools| tools.iter().map(tool).collect()),
            tool_choice: choice,
            parallel_tool_calls: Some(parallel),
        }
    }
}

fn chat_message(role: &str, content: Content) -> ChatMessage {
    ChatMessage { role: role.to_owned(), content: Some(content), ..ChatMessage::default() }
}

impl AnthropicMessage {
    /// Adds the message to a conversation. Results of tools are messages of their own there.
    fn add_to(&self, messages: &mut Vec<ChatMessage>, field: &str) -> Result<(), ApiError> {
        // Claude Code sends system messages between the others.
        if !matches!(&*self.role, "user" | "assistant" | "system") {
            let field = field.replace(".content", ".role");
            let message =
                format!("{field} is {:?}, but it must be user, assistant or system", self.role);
            return Err(ApiError::field(field, message));
        }
        let blocks = match &self.content {
            Blocks::Text(text) => {
                messages.push(chat_message(&self.role, Content::Text(text.clone())));
                return Ok(());
            }
            Blocks::Blocks(blocks) => blocks,
        };
        let mut message = ChatMessage { role: self.role.clone(), ..ChatMessage::default() };
        let mut texts = Vec::new();
        for (number, block) in blocks.iter().enumerate() {
            let field = format!("{field}[{number}]");
            match &*block.r#type {
                "text" => {
                    texts.push(ContentPart::text(block.required(&block.text, &field, "text")?));
                }
                "thinking" => message.reasoning_content.clone_from(&block.thinking),
                "redacted_thinking" => {}
                "tool_use" => {
                    let call = ToolCall {
                        id: block.id.clone(),
                        function: CalledFunction {
                            name: block.required(&block.name, &field, "name")?.clone(),
                            arguments: block.input.clone(),
                        },
                    };
                    call.arguments(&format!("{field}.input"))?;
                    message.tool_calls.get_or_insert_default().push(call);
                }
                "tool_result" => {
                    let content = block.content.as_ref().map(|content| content.content(&field));
                    let content = content.transpose()?.unwrap_or(Content::Text(String::new()));
                    messages.push(ChatMessage {
                        tool_call_id: block.tool_use_id.clone(),
                        ..chat_message("tool", content)
                    });
                }
                kind => return Err(unsupported(&field, kind)),
            }
        }
        if !texts.is_empty() || message.tool_calls.is_some() {
            message.content = Some(Content::Parts(texts));
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
    /// Returns the content of blocks that may only have text.
    fn content(&self, field: &str) -> Result<Content, ApiError> {
        let blocks = match self {
            Self::Text(text) => return Ok(Content::Text(text.clone())),
            Self::Blocks(blocks) => blocks,
        };
        let part = |block: &Block| match &*block.r#type {
            "text" => Ok(ContentPart::text(block.text.as_deref().unwrap_or_default())),
            kind => Err(unsupported(field, kind)),
        };
        Ok(Content::Parts(blocks.iter().map(part).collect::<Result<_, _>>()?))
    }

    /// Returns the text of blocks that may only have text, one after another.
    fn text(&self, field: &str) -> Result<String, ApiError> {
        self.content(field)?.text(field, "")
    }
}

fn unsupported(field: &str, kind: &str) -> ApiError {
    ApiError::field(field, format!("{field}: blocks of type {kind:?} are not supported"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fields::tests::{fields_are_known, nulls_are_absent};
    use serde_json::json;

    #[test]
    fn every_field_but_roles_contents_types_and_names_may_be_null() {
        fields_are_known::<MessagesFields>(&[Api::Messages]);
        let message = json!({"role": "user", "content": "a"});
        let tool = json!({"name": "a", "type": "custom", "description": "b", "input_schema": {}});
        let format = json!({"type": "json_schema", "schema": {}});
        let fields = json!({
            "model": "a", "max_tokens": 1, "messages": [message], "system": "b",
            "stop_sequences": ["c"], "stream": true, "tools": [tool],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": null},
            "thinking": {"type": "disabled"}, "output_config": {}, "output_format": format,
            "chat_template_kwargs": {}, "speculation": "off",
        });
        nulls_are_absent::<MessagesFields>(&fields, &[]);
        nulls_are_absent::<AnthropicMessage>(&message, &["role", "content"]);
        nulls_are_absent::<AnthropicTool>(&tool, &[]);
        let block = json!({
            "type": "text", "text": "a", "thinking": "b", "id": "c", "name": "d", "input": {},
            "tool_use_id": "e", "content": "f",
        });
        nulls_are_absent::<Block>(&block, &["type"]);
        nulls_are_absent::<ToolUse>(&json!({"disable_parallel_tool_use": true}), &[]);
        nulls_are_absent::<OutputConfig>(&json!({"format": format, "effort": "low"}), &[]);
    }
}

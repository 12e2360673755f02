//! `/v1/responses`, without a memory of earlier responses.

use super::body::{Body, BodyFields, SpeculationField, Truncation};
use super::envelope::Usage;
use super::messages::{Arguments, CalledFunction, ChatMessage, Content, ToolCall};
use super::sampling::SamplingFields;
use super::structured::{ResponseFormat, StructureFields};
use super::tools::{FUNCTION, Function, FunctionName, ToolChoice, ToolField, ToolFields, ToolMode};
use crate::api::answers::{Answers, StreamWriter, new_id, prepare, stream};
use crate::api::error::ApiError;
use crate::api::fields::Api;
use crate::api::state::{State, unix_seconds};
use crate::api::{body_of, parse};
use crate::models::Model;
use axum::body::Bytes;
use axum::extract;
use axum::extract::rejection::BytesRejection;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use forerun::text::ChatPart as Part;
use forerun::{Answer, AnswerToken, Finish};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::SystemTime;

/// A request, with the fields that it shares with completions.
#[derive(Debug, Default)]
struct ResponseBody {
    fields: ResponseFields,
    sampling: SamplingFields,
    structure: StructureFields,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResponseFields {
    model: Option<String>,
    input: Option<Input>,
    instructions: Option<String>,
    max_output_tokens: Option<i64>,
    // They are repeated in the response.
    temperature: Option<f32>,
    top_p: Option<f32>,
    stream: Option<bool>,
    tools: Option<Vec<ResponseTool>>,
    tool_choice: Option<ResponseToolChoice>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextOptions>,
    reasoning: Option<ReasoningOptions>,
    metadata: Option<Map<String, Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    speculation: Option<SpeculationField>,
    truncation: Option<Truncation>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of items")]
enum Input {
    Text(String),
    Items(Vec<Item>),
}

/// A message, a call or its result. A message may have no type.
#[derive(Debug, Deserialize)]
struct Item {
    r#type: Option<String>,
    role: Option<String>,
    content: Option<Content>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<Arguments>,
    output: Option<Content>,
}

#[derive(Debug, Deserialize)]
struct ResponseTool {
    r#type: String,
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\", or an object with the name of a function"
)]
enum ResponseToolChoice {
    Mode(ToolMode),
    Object { r#type: String, name: Option<String> },
}

#[derive(Debug, Default, Deserialize)]
struct TextOptions {
    format: Option<TextFormat>,
    verbosity: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TextFormat {
    Text,
    JsonObject,
    JsonSchema { schema: Value },
}

#[derive(Debug, Default, Deserialize)]
struct ReasoningOptions {
    effort: Option<String>,
}

impl ResponseFields {
    /// Returns the response to this request, before its first item.
    fn response(&self, model: &Model) -> Value {
        let tools: Vec<Value> = self
            .tools
            .iter()
            .flatten()
            // Others are left out.
            .filter(|tool| tool.r#type == FUNCTION)
            .map(|tool| {
                json!({
                    "type": tool.r#type, "name": tool.name, "description": tool.description,
                    "parameters": tool.parameters, "strict": false,
                })
            })
            .collect();
        let tool_choice = match &self.tool_choice {
            None | Some(ResponseToolChoice::Mode(ToolMode::Auto)) => json!("auto"),
            Some(ResponseToolChoice::Mode(ToolMode::None)) => json!("none"),
            Some(ResponseToolChoice::Mode(ToolMode::Required)) => json!("required"),
            Some(ResponseToolChoice::Object { r#type, name }) => {
                json!({"type": r#type, "name": name})
            }
        };
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        let format = match format {
            None | Some(TextFormat::Text) => json!({"type": "text"}),
            Some(TextFormat::JsonObject) => json!({"type": "json_object"}),
            Some(TextFormat::JsonSchema { schema }) => {
                json!({"type": "json_schema", "name": "schema", "schema": schema, "strict": true})
            }
        };
        let effort = self.reasoning.as_ref().and_then(|options| options.effort.as_ref());
        json!({
            "id": new_id("resp_"),
            "object": "response",
            "created_at": unix_seconds(SystemTime::now()),
            "status": "in_progress",
            "error": null,
            "incomplete_details": null,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata.clone().unwrap_or_default(),
            "model": model.name,
            "output": [],
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "reasoning": {"effort": effort, "summary": null},
            "store": false,
            "temperature": self.temperature,
            "text": {"format": format},
            "tool_choice": tool_choice,
            "tools": tools,
            "top_p": self.top_p,
            "truncation": self.truncation.unwrap_or_default(),
            "usage": null,
        })
    }
}

impl ResponseBody {
    fn parse(bytes: &Bytes) -> Result<Self, ApiError> {
        let fields = parse(bytes)?;
        Api::Responses.check(bytes)?;
        Ok(Self { fields, sampling: parse(bytes)?, structure: parse(bytes)? })
    }

    /// Returns the same request as a chat completion.
    fn into_chat(self) -> Result<Body, ApiError> {
        let Self { fields, sampling, mut structure } = self;
        let mut messages = Vec::new();
        if let Some(instructions) = &fields.instructions {
            messages.push(message("system", Content::Text(instructions.clone())));
        }
        match &fields.input {
            None => return Err(ApiError::field("input", "input is required")),
            Some(Input::Text(text)) => messages.push(message("user", Content::Text(text.clone()))),
            Some(Input::Items(items)) => {
                for (index, item) in items.iter().enumerate() {
                    item.add_to(&mut messages, index)?;
                }
            }
        }
        let tool = |tool: &ResponseTool| ToolField {
            r#type: tool.r#type.clone(),
            function: Some(Function {
                name: tool.name.clone().unwrap_or_default(),
                description: tool.description.clone(),
                parameters: tool.parameters.clone(),
            }),
        };
        let tools = ToolFields {
            tools: fields.tools.map(|tools| tools.iter().map(tool).collect()),
            tool_choice: fields.tool_choice.as_ref().map(|choice| match choice {
                ResponseToolChoice::Mode(mode) => ToolChoice::Mode(*mode),
                ResponseToolChoice::Object { r#type, name: Some(name) } if r#type == FUNCTION => {
                    ToolChoice::Named { function: FunctionName { name: name.clone() } }
                }
                ResponseToolChoice::Object { r#type, .. } => {
                    ToolChoice::Other { r#type: r#type.clone() }
                }
            }),
            parallel_tool_calls: fields.parallel_tool_calls,
        };
        let TextOptions { format, verbosity } = fields.text.unwrap_or_default();
        if let Some(format) = format {
            structure.response_format = Some(match format {
                TextFormat::Text => ResponseFormat::Text,
                TextFormat::JsonObject => ResponseFormat::JsonObject { schema: None },
                TextFormat::JsonSchema { schema } => ResponseFormat::of_schema(&schema),
            });
        }
        let fields = BodyFields {
            model: fields.model,
            messages: Some(messages),
            max_tokens: fields.max_output_tokens,
            // A message of the assistant at the end is complete, as in OpenAI's API.
            continue_final_message: Some(false),
            speculation: fields.speculation,
            truncation: fields.truncation,
            chat_template_kwargs: fields.chat_template_kwargs,
            reasoning_effort: fields.reasoning.and_then(|options| options.effort),
            verbosity,
            ..BodyFields::default()
        };
        Ok(Body { fields, sampling, structure, tools, ..Body::default() })
    }
}

/// What chat completions call the fields of a response.
const FIELDS: [(&str, &str); 3] = [
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("response_format", "text.format"),
];

fn message(role: &str, content: Content) -> ChatMessage {
    ChatMessage { role: role.to_owned(), content: Some(content), ..ChatMessage::default() }
}

impl Item {
    /// Adds the item to a conversation. The calls of one turn belong to one message.
    fn add_to(&self, messages: &mut Vec<ChatMessage>, index: usize) -> Result<(), ApiError> {
        let missing = |field: &str| {
            let field = format!("input[{index}].{field}");
            ApiError::field(&*field, format!("{field} is required"))
        };
        let content = |content: &Option<Content>, field: &str| -> Result<Content, ApiError> {
            let content = content.as_ref().ok_or_else(|| missing(field))?;
            // Errors name the item. The template decides what stands between parts.
            content.text(&format!("input[{index}].{field}"), "")?;
            Ok(content.clone())
        };
        match self.r#type.as_deref() {
            None | Some("message") => {
                let role = self.role.as_deref().ok_or_else(|| missing("role"))?;
                messages.push(message(role, content(&self.content, "content")?));
            }
            Some("function_call") => {
                let call = ToolCall {
                    id: self.call_id.clone(),
                    function: CalledFunction {
                        name: self.name.clone().ok_or_else(|| missing("name"))?,
                        arguments: self.arguments.clone(),
                    },
                };
                call.arguments(&format!("input[{index}].arguments"))?;
                match messages.last_mut() {
                    Some(last) if last.role == "assistant" => {
                        last.tool_calls.get_or_insert_default().push(call);
                    }
                    _ => messages.push(ChatMessage {
                        role: "assistant".to_owned(),
                        tool_calls: Some(vec![call]),
                        ..ChatMessage::default()
                    }),
                }
            }
            Some("function_call_output") => {
                messages.push(ChatMessage {
                    tool_call_id: self.call_id.clone(),
                    ..message("tool", content(&self.output, "output")?)
                });
            }
            // Templates leave out the reasoning of earlier turns.
            Some("reasoning") => {}
            Some(kind) => {
                let field = format!("input[{index}].type");
                let message = format!("{field}: items of type {kind:?} are not supported");
                return Err(ApiError::field(field, message));
            }
        }
        Ok(())
    }
}

pub(crate) async fn responses(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let bytes = body_of(body)?;
    let body = prepare(move || ResponseBody::parse(&bytes)).await;
    let body = body.map_err(|error| error.renamed(&FIELDS))?;
    let model = state.lend(body.fields.model.as_deref()).await?;
    let shared = Arc::clone(&model);
    let prepared = prepare(move || {
        let (streams, response) = (body.fields.stream == Some(true), body.fields.response(&shared));
        Ok((streams, response, body.into_chat()?.chat(&shared)?))
    });
    let (streams, response, prepared) = prepared.await.map_err(|error| error.renamed(&FIELDS))?;
    let answers = Answers::start(&state, &model, prepared).await;
    let answers = answers.map_err(|error| error.renamed(&FIELDS))?;
    let left_out = answers.left_out.clone();
    let mut writer = ResponseWriter { response, open: None, sequence: 0 };
    if streams {
        return Ok((left_out, stream(answers, writer)).into_response());
    }
    for choice in answers.collect().await? {
        for part in choice.parts {
            writer.part(0, part, &[]);
        }
        writer.end_choice(0, &choice.answer);
    }
    Ok((left_out, axum::Json(writer.response)).into_response())
}

/// Writes the items of a response, and the events of a stream.
struct ResponseWriter {
    response: Value,
    /// The item that is being written.
    open: Option<OpenItem>,
    /// The number of events so far.
    sequence: u64,
}

/// An item that is being written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenItem {
    Message,
    Reasoning,
    Call,
}

impl OpenItem {
    /// Returns the names of the event of a delta, of the event at the end, and of the text's field
    /// in the latter.
    fn events(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Message => ("response.output_text.delta", "response.output_text.done", "text"),
            Self::Reasoning => {
                ("response.reasoning_text.delta", "response.reasoning_text.done", "text")
            }
            Self::Call => (
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "arguments",
            ),
        }
    }

    /// Returns where the text is in the item.
    fn pointer(self) -> &'static str {
        match self {
            Self::Message | Self::Reasoning => "/content/0/text",
            Self::Call => "/arguments",
        }
    }
}

impl ResponseWriter {
    fn event(&mut self, name: &str, mut data: Value) -> Event {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        Event::default().event(name).data(data.to_string())
    }

    fn output(&mut self) -> &mut Vec<Value> {
        match &mut self.response["output"] {
            Value::Array(output) => output,
            _ => unreachable!("the output is a list"),
        }
    }

    /// Begins an item, after the last one.
    fn open_item(&mut self, kind: OpenItem, name: &str) -> Vec<Event> {
        let mut events = self.close_item();
        let item = match kind {
            OpenItem::Message => json!({
                "type": "message", "id": new_id("msg_"), "role": "assistant",
                "status": "in_progress", "content": [],
            }),
            OpenItem::Reasoning => json!({
                "type": "reasoning", "id": new_id("rs_"), "summary": [],
                "status": "in_progress", "content": [],
            }),
            OpenItem::Call => json!({
                "type": "function_call", "id": new_id("fc_"), "call_id": new_id("call_"),
                "name": name, "arguments": "", "status": "in_progress",
            }),
        };
        self.output().push(item.clone());
        self.open = Some(kind);
        let index = self.output().len() - 1;
        let added = json!({"output_index": index, "item": item});
        events.push(self.event("response.output_item.added", added));
        let part = match kind {
            OpenItem::Message => {
                json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
            }
            OpenItem::Reasoning => json!({"type": "reasoning_text", "text": ""}),
            OpenItem::Call => return events,
        };
        self.output()[index]["content"] = json!([part]);
        let added = json!({
            "item_id": item["id"], "output_index": index, "content_index": 0, "part": part,
        });
        events.push(self.event("response.content_part.added", added));
        events
    }

    /// Adds to the item that is being written.
    fn extend(&mut self, kind: OpenItem, text: &str) -> Vec<Event> {
        let mut events = match self.open == Some(kind) {
            true => Vec::new(),
            false => self.open_item(kind, ""),
        };
        let index = self.output().len() - 1;
        let item = &mut self.output()[index];
        if let Some(Value::String(all)) = item.pointer_mut(kind.pointer()) {
            all.push_str(text);
        }
        let mut data = json!({"item_id": item["id"], "output_index": index, "delta": text});
        if kind != OpenItem::Call {
            data["content_index"] = 0.into();
        }
        if kind == OpenItem::Message {
            data["logprobs"] = json!([]);
        }
        events.push(self.event(kind.events().0, data));
        events
    }

    /// Ends the item that is being written, if there is one.
    fn close_item(&mut self) -> Vec<Event> {
        let Some(kind) = self.open.take() else { return Vec::new() };
        let index = self.output().len() - 1;
        let item = &mut self.output()[index];
        item["status"] = "completed".into();
        let item = item.clone();
        let (_, done, field) = kind.events();
        let text = item.pointer(kind.pointer()).cloned().unwrap_or_default();
        let mut data = json!({"item_id": item["id"], "output_index": index});
        data[field] = text;
        let mut events = Vec::new();
        if kind == OpenItem::Call {
            data["name"] = item["name"].clone();
            events.push(self.event(done, data));
        } else {
            data["content_index"] = 0.into();
            let mut part = data.clone();
            part["part"] = item["content"][0].clone();
            if kind == OpenItem::Message {
                data["logprobs"] = json!([]);
            }
            if let Value::Object(fields) = &mut part {
                fields.remove(field);
            }
            events.push(self.event(done, data));
            events.push(self.event("response.content_part.done", part));
        }
        let done = json!({"output_index": index, "item": item});
        events.push(self.event("response.output_item.done", done));
        events
    }
}

impl StreamWriter for ResponseWriter {
    type Item = Event;

    fn begin(&mut self) -> Vec<Event> {
        let response = json!({"response": self.response});
        vec![
            self.event("response.created", response.clone()),
            self.event("response.in_progress", response),
        ]
    }

    fn part(&mut self, _choice: usize, part: Part, _tokens: &[AnswerToken]) -> Vec<Event> {
        match part {
            Part::Text(text) if text.is_empty() => Vec::new(),
            Part::Text(text) => self.extend(OpenItem::Message, &text),
            Part::Reasoning(text) => self.extend(OpenItem::Reasoning, &text),
            Part::Call(name) => self.open_item(OpenItem::Call, &name),
            Part::Arguments(json) => self.extend(OpenItem::Call, &json),
        }
    }

    fn end_choice(&mut self, _choice: usize, answer: &Answer) -> Vec<Event> {
        let mut events = Vec::new();
        if self.output().is_empty() {
            // An answer without text has an empty message.
            events = self.open_item(OpenItem::Message, "");
        }
        events.extend(self.close_item());
        let mut usage = Usage::default();
        usage.add(answer, true);
        self.response["usage"] = json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt + usage.completion,
        });
        self.response["status"] = match answer.finish {
            Finish::MaxTokens | Finish::Context => {
                self.response["incomplete_details"] = json!({"reason": "max_output_tokens"});
                "incomplete".into()
            }
            Finish::Eos | Finish::Stopped => "completed".into(),
        };
        events
    }

    fn end(&mut self, _answers: &[Box<Answer>]) -> Vec<Event> {
        let name = match self.response["status"] == "completed" {
            true => "response.completed",
            false => "response.incomplete",
        };
        let response = json!({"response": self.response});
        vec![self.event(name, response)]
    }

    fn error(&mut self, error: &ApiError) -> Vec<Event> {
        self.response["status"] = "failed".into();
        let body = error.body();
        self.response["error"] =
            json!({"code": "server_error", "message": body["error"]["message"]});
        let response = json!({"response": self.response});
        vec![self.event("response.failed", response)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fields::tests::{fields_are_known, nulls_are_absent};

    #[test]
    fn every_field_but_the_type_of_a_tool_may_be_null() {
        fields_are_known::<ResponseFields>(&[Api::Responses]);
        let tool = json!({"type": "function", "name": "a", "description": "b", "parameters": {}});
        let fields = json!({
            "model": "a", "input": "b", "instructions": "c", "max_output_tokens": 1,
            "temperature": 1, "top_p": 1, "stream": true, "tools": [tool], "tool_choice": "auto",
            "parallel_tool_calls": true, "text": {}, "reasoning": {}, "metadata": {"a": "b"},
            "chat_template_kwargs": {}, "speculation": "off", "truncation": "auto",
        });
        nulls_are_absent::<ResponseFields>(&fields, &[]);
        nulls_are_absent::<ResponseTool>(&tool, &["type"]);
        let item = json!({
            "type": "message", "role": "user", "content": "a", "call_id": "b", "name": "c",
            "arguments": "{}", "output": "d",
        });
        nulls_are_absent::<Item>(&item, &[]);
        let text = json!({"format": {"type": "text"}, "verbosity": "low"});
        nulls_are_absent::<TextOptions>(&text, &[]);
        nulls_are_absent::<ReasoningOptions>(&json!({"effort": "low"}), &[]);
    }
}

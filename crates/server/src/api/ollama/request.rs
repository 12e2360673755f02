//! The fields of a request.

use crate::api::answers::Prepared;
use crate::api::error::ApiError;
use crate::api::fields::Api;
use crate::api::openai::body::{Body, BodyFields, Logprobs, Prompt, SpeculationField, Truncation};
use crate::api::openai::messages::{ChatMessage, Content, ToolCall};
use crate::api::openai::sampling::SamplingFields;
use crate::api::openai::structured::{ResponseFormat, StructureFields};
use crate::api::openai::tools::{ToolField, ToolFields};
use crate::api::parse;
use crate::models::{KeepAlive, Model};
use axum::body::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// A request, with the options that it shares with chat completions.
#[derive(Debug)]
pub(super) struct OllamaBody {
    api: Api,
    fields: OllamaFields,
    sampling: SamplingFields,
    num_predict: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OllamaFields {
    model: Option<String>,
    messages: Option<Vec<OllamaMessage>>,
    prompt: Option<String>,
    suffix: Option<String>,
    system: Option<String>,
    raw: Option<bool>,
    stream: Option<bool>,
    format: Option<Format>,
    think: Option<Think>,
    tools: Option<Vec<ToolField>>,
    keep_alive: Option<KeepAlive>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    speculation: Option<SpeculationField>,
    truncate: Option<bool>,
}

/// The part of a request that is in `options`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WithOptions<T: Default> {
    options: Option<T>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OwnOptions {
    num_predict: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
struct OllamaMessage {
    role: String,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    thinking: Option<String>,
    #[serde(default)]
    images: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
    #[serde(default)]
    tool_name: Option<String>,
    #[serde(default)]
    tool_call_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected \"json\" or a JSON schema")]
enum Format {
    Name(String),
    Schema(Map<String, Value>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected true, false, or an effort such as \"low\"")]
enum Think {
    Whether(bool),
    Effort(String),
}

/// What chat completions call the fields of this API.
pub(super) const FIELDS: [(&str, &str); 2] =
    [("response_format", "format"), ("max_tokens", "options.num_predict")];

impl OllamaBody {
    /// Parses the body of a request to `api`. Errors name the field.
    pub(super) fn parse(api: Api, bytes: &Bytes) -> Result<Self, ApiError> {
        let fields = parse(bytes)?;
        api.check(bytes)?;
        let sampling: WithOptions<SamplingFields> = parse(bytes)?;
        let own: WithOptions<OwnOptions> = parse(bytes)?;
        let num_predict = own.options.unwrap_or_default().num_predict;
        Ok(Self { api, fields, sampling: sampling.options.unwrap_or_default(), num_predict })
    }

    /// Returns the name of the model, if the request names one.
    pub(super) fn model(&self) -> Option<&str> {
        self.fields.model.as_deref()
    }

    pub(super) fn keep_alive(&self) -> Option<KeepAlive> {
        self.fields.keep_alive
    }

    /// Returns whether the answer is a stream.
    pub(super) fn streams(&self) -> bool {
        self.fields.stream.unwrap_or(true)
    }

    /// Returns whether there is nothing to answer, so that the request is about the model alone.
    pub(super) fn is_empty(&self) -> bool {
        match self.api {
            Api::OllamaChat => self.fields.messages.as_ref().is_none_or(Vec::is_empty),
            _ => self.fields.prompt.as_ref().is_none_or(String::is_empty),
        }
    }

    /// Returns the answer to generate.
    pub(super) fn prepare(self, model: &Model) -> Result<Prepared, ApiError> {
        let fills_gap = self.fields.suffix.as_ref().is_some_and(|text| !text.is_empty());
        if !self.fields.raw.unwrap_or(false) && !fills_gap {
            return self.into_chat()?.chat(model);
        }
        for (name, is_given) in [
            ("system", self.fields.system.as_ref().is_some_and(|text| !text.is_empty())),
            ("think", self.fields.think.is_some()),
        ] {
            if is_given {
                let message = format!(
                    "{name} has no effect with raw or suffix, where the prompt has no template"
                );
                return Err(ApiError::field(name, message));
            }
        }
        self.into_completion()?.completions(model)
    }

    /// Returns the same request as a completion.
    fn into_completion(self) -> Result<Body, ApiError> {
        let structure = structure(self.fields.format.as_ref())?;
        let top_logprobs = self.fields.top_logprobs.unwrap_or(0);
        let logprobs = self.fields.logprobs.filter(|is_wanted| *is_wanted);
        let fields = BodyFields {
            prompt: self.fields.prompt.map(Prompt::Text),
            suffix: self.fields.suffix,
            max_tokens: Some(limit(self.num_predict).unwrap_or(-1)),
            logprobs: logprobs.map(|_| Logprobs::Count(top_logprobs)),
            speculation: self.fields.speculation,
            ..BodyFields::default()
        };
        Ok(Body { fields, sampling: self.sampling, structure, ..Body::default() })
    }

    /// Returns the same request as a chat completion.
    fn into_chat(self) -> Result<Body, ApiError> {
        let Self { api, fields, sampling, num_predict } = self;
        let structure = structure(fields.format.as_ref())?;
        let tools = ToolFields { tools: fields.tools, ..ToolFields::default() };
        let messages = match api {
            Api::OllamaChat => fields
                .messages
                .into_iter()
                .flatten()
                .enumerate()
                .map(|(index, message)| message.into_chat(index))
                .collect::<Result<_, _>>()?,
            _ => {
                let system = fields.system.filter(|text| !text.is_empty());
                let message = |role: &str, text: String| ChatMessage {
                    role: role.to_owned(),
                    content: Some(Content::Text(text)),
                    ..ChatMessage::default()
                };
                let system = system.map(|text| message("system", text));
                let user = message("user", fields.prompt.unwrap_or_default());
                system.into_iter().chain([user]).collect()
            }
        };
        let (mut variables, mut effort) = (Map::new(), None);
        match fields.think {
            None => {}
            // The name that most templates read.
            Some(Think::Whether(think)) => {
                _ = variables.insert("enable_thinking".into(), think.into());
            }
            Some(Think::Effort(name)) => effort = Some(name),
        }
        let fields = BodyFields {
            messages: Some(messages),
            max_tokens: limit(num_predict),
            logprobs: fields.logprobs.map(Logprobs::Whether),
            top_logprobs: fields.top_logprobs,
            speculation: fields.speculation,
            truncation: fields.truncate.unwrap_or(true).then_some(Truncation::Auto),
            chat_template_kwargs: Some(variables),
            reasoning_effort: effort,
            ..BodyFields::default()
        };
        Ok(Body { fields, sampling, structure, tools, ..Body::default() })
    }
}

/// Returns the limit of an answer. Numbers below 1 set none.
fn limit(num_predict: Option<i64>) -> Option<i64> {
    num_predict.map(|limit| if limit < 1 { -1 } else { limit })
}

fn structure(format: Option<&Format>) -> Result<StructureFields, ApiError> {
    let format = match format {
        None => None,
        Some(Format::Name(name)) if name.is_empty() => None,
        Some(Format::Name(name)) if name == "json" => {
            Some(ResponseFormat::JsonObject { schema: None })
        }
        Some(Format::Name(name)) => {
            let message = format!("format is {name:?}, but it must be \"json\" or a JSON schema");
            return Err(ApiError::field("format", message));
        }
        Some(Format::Schema(schema)) => {
            Some(ResponseFormat::of_schema(&Value::Object(schema.clone())))
        }
    };
    Ok(StructureFields::of_format(format))
}

impl OllamaMessage {
    /// Returns the same message of a chat completion. `index` is its place in `messages`.
    fn into_chat(self, index: usize) -> Result<ChatMessage, ApiError> {
        if self.images.is_some_and(|images| !images.is_empty()) {
            let field = format!("messages[{index}].images");
            let message = format!("{field} is not supported: this server's models read texts");
            return Err(ApiError::field(field, message));
        }
        Ok(ChatMessage {
            role: self.role,
            content: self.content.map(Content::Text),
            name: self.tool_name,
            tool_calls: self.tool_calls,
            tool_call_id: self.tool_call_id,
            reasoning_content: self.thinking,
            ..ChatMessage::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fields::tests::{fields_are_known, names, nulls_are_absent};
    use serde_json::json;

    #[test]
    fn every_field_but_roles_may_be_null() {
        for api in [Api::OllamaChat, Api::OllamaGenerate] {
            fields_are_known::<OllamaFields>(&[api]);
            fields_are_known::<WithOptions<OwnOptions>>(&[api]);
            for name in names::<OwnOptions>().iter().chain(names::<SamplingFields>()) {
                assert!(api.obeys(&format!("options.{name}")), "{api:?} {name}");
            }
        }
        let message = json!({
            "role": "user", "content": "a", "thinking": "b", "images": [], "tool_calls": [],
            "tool_name": "c", "tool_call_id": "d",
        });
        let fields = json!({
            "model": "a", "messages": [message], "prompt": "b", "suffix": "d", "system": "c",
            "raw": true, "stream": false, "format": "json", "think": "low", "tools": [], "keep_alive": "5m",
            "logprobs": true, "top_logprobs": 2, "speculation": "off", "truncate": false,
        });
        nulls_are_absent::<OllamaFields>(&fields, &[]);
        nulls_are_absent::<OllamaMessage>(&message, &["role"]);
        nulls_are_absent::<WithOptions<OwnOptions>>(&json!({"options": {"num_predict": 1}}), &[]);
        nulls_are_absent::<OwnOptions>(&json!({"num_predict": 1}), &[]);
    }
}

//! Conversations: from messages to tokens, and from an answer's text to its parts.

use crate::errors::value_error;
use crate::params::Params;
use forerun::text::{ChatPart, ChatSyntax, TemplateArguments, Tool, with_tools_as_text};
use forerun::{ChatTemplate, Engine, Message, Request, TokenId};
use pyo3::prelude::*;
use serde_json::{Map, Value};

/// The tokens at the end of a prompt that show whether the answer begins with reasoning.
const PROMPT_END: usize = 16;

/// The keyword arguments of a conversation. What has no fixed form is JSON.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ConversationFields {
    /// Objects with `role`, `content` and `fields`.
    messages: String,
    /// Objects with `name`, `description` and `parameters`.
    tools: String,
    /// Whether the answer must be a call.
    requires_call: bool,
    /// Whether several calls are allowed.
    parallel_calls: bool,
    /// The template's variables.
    variables: String,
    /// A Jinja file, or the name of a template of the checkpoint.
    chat_template: Option<String>,
}

/// A conversation that can be answered.
#[pyclass(frozen, module = "forerun._forerun")]
pub(crate) struct Conversation {
    #[pyo3(get)]
    tokens: Vec<TokenId>,
    template: ChatTemplate,
    syntax: ChatSyntax,
    tools: Vec<Tool>,
    requires_call: bool,
    parallel_calls: bool,
    prompt_end: String,
}

fn parsed<T: for<'a> serde::Deserialize<'a>>(name: &str, json: &str) -> PyResult<T> {
    serde_json::from_str(json).map_err(|error| value_error(format!("{name}: {error}")))
}

/// A message as Python passes it.
#[derive(serde::Deserialize)]
struct MessageFields {
    role: String,
    content: String,
    fields: Map<String, Value>,
}

/// A tool as Python passes it.
#[derive(serde::Deserialize)]
struct ToolFields {
    name: String,
    description: Option<String>,
    parameters: Value,
}

impl Conversation {
    pub(crate) fn new(engine: &Engine, fields: &ConversationFields) -> PyResult<Self> {
        let template = engine.choose_chat_template(fields.chat_template.as_deref());
        let template = template.map_err(value_error)?;
        let syntax = ChatSyntax::of_template(&template);
        let messages: Vec<MessageFields> = parsed("messages", &fields.messages)?;
        let message = |MessageFields { role, content, fields }| Message { role, content, fields };
        let mut messages: Vec<Message> = messages.into_iter().map(message).collect();
        let tools: Vec<ToolFields> = parsed("tools", &fields.tools)?;
        let tool =
            |ToolFields { name, description, parameters }| Tool { name, description, parameters };
        let tools: Vec<Tool> = tools.into_iter().map(tool).collect();
        let arguments = TemplateArguments {
            tools: tools.iter().map(Tool::to_value).collect(),
            variables: parsed("chat_template_kwargs", &fields.variables)?,
        };
        if !template.reads_tools() {
            messages = with_tools_as_text(messages, &arguments.tools);
        }
        let tokens = engine.encode_chat_with(&template, &messages, &arguments);
        let tokens = tokens.map_err(value_error)?;
        let end = tokens.len().saturating_sub(PROMPT_END);
        let prompt_end = engine.tokenizer().decode_with_special(&tokens[end..]);
        let ConversationFields { requires_call, parallel_calls, .. } = *fields;
        Ok(Self { tokens, template, syntax, tools, requires_call, parallel_calls, prompt_end })
    }

    /// Returns the request of an answer.
    pub(crate) fn request(&self, engine: &Engine, params: Params) -> PyResult<Request> {
        let mut request = params.into_request()?;
        if self.requires_call {
            if request.grammar.is_some() {
                return Err(value_error(
                    "a tool call and another format of the answer cannot both be required",
                ));
            }
            let (end, tokenizer) = (&self.prompt_end, engine.tokenizer());
            let grammar = self.syntax.grammar(&self.tools, self.parallel_calls, end, tokenizer);
            engine.check_grammar(&grammar).map_err(value_error)?;
            request.grammar = Some(grammar);
        } else if request.grammar.is_some() {
            // A format that the request chooses itself has no calls, and no reasoning.
            return Ok(engine.chat_request(&self.template, &request));
        }
        request.special_tokens |= self.syntax.has_special_tags(&self.tools);
        Ok(engine.chat_request(&self.template, &request))
    }
}

#[pymethods]
impl Conversation {
    /// Returns the parts of an answer's text: what they are (text, reasoning, call or arguments)
    /// and their text. `is_cut`: whether a limit has ended the text, so that a call that is not
    /// complete is left out.
    fn parts(&self, text: &str, is_cut: bool) -> Vec<(&'static str, String)> {
        let mut parser = self.syntax.parser(&self.tools, self.parallel_calls, &self.prompt_end);
        let mut parts = parser.push(text);
        parts.extend(parser.finish(is_cut));
        let named = |part| match part {
            ChatPart::Text(text) => ("text", text),
            ChatPart::Reasoning(text) => ("reasoning", text),
            ChatPart::Call(name) => ("call", name),
            ChatPart::Arguments(json) => ("arguments", json),
        };
        parts.into_iter().map(named).collect()
    }
}

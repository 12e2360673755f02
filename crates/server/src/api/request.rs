//! The fields of requests for completions and chat completions.

use super::error::ApiError;
use super::state::State;
use super::structured::StructureFields;
use crate::generation::Task;
use axum::body::Bytes;
use forerun::{Message, Method, Request, TokenId};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

/// The most choices of one request.
const MOST_CHOICES: usize = 128;
/// The most stop strings.
const MOST_STOPS: usize = 16;
/// The tokens of a completion whose request sets no limit, as in OpenAI's API.
const COMPLETION_TOKENS: usize = 16;

/// A request for a completion or a chat completion. Fields of OpenAI's API that change nothing about the text
/// are not listed, and ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Body {
    model: Option<String>,
    prompt: Option<Prompt>,
    messages: Option<Vec<ChatMessage>>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<String, f32>>,
    seed: Option<i64>,
    stop: Option<OneOrMany>,
    ignore_eos: Option<bool>,
    n: Option<usize>,
    best_of: Option<usize>,
    logprobs: Option<Logprobs>,
    top_logprobs: Option<usize>,
    pub(crate) stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    echo: Option<bool>,
    suffix: Option<String>,
    speculation: Option<Speculation>,
    /// The extension that reports where tokens come from.
    pub(crate) token_details: Option<bool>,
    #[serde(skip)]
    structure: StructureFields,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    functions: Option<Vec<Value>>,
}

/// A text or several, as text or as tokens.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text, a list of texts, a list of tokens, or a list of such lists"
)]
enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<TokenId>),
    TokenLists(Vec<Vec<TokenId>>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected true, false, or a number of tokens")]
enum Logprobs {
    Whether(bool),
    Count(usize),
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// The extension that chooses how an answer is decoded, which does not change its distribution.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected \"off\" or an object with \"method\"")]
enum Speculation {
    Named(String),
    Options { method: String },
}

#[derive(Debug, Deserialize)]
struct ChatMessage {
    role: String,
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
}

/// Parses the body of a request. Errors name the field.
pub(crate) fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let (path, inner) = (error.path().to_string(), error.inner());
        match &*path {
            "." => ApiError::new(
                axum::http::StatusCode::BAD_REQUEST,
                format!("the body is not a valid request: {inner}"),
            ),
            path => ApiError::field(path, format!("{path}: {inner}")),
        }
    })?;
    deserializer.end().map_err(|error| {
        let message = format!("the body is not one JSON object: {error}");
        ApiError::new(axum::http::StatusCode::BAD_REQUEST, message)
    })?;
    Ok(value)
}

impl Body {
    /// Parses the body of a request. Errors name the field.
    pub(crate) fn parse(bytes: &Bytes) -> Result<Self, ApiError> {
        Ok(Self { structure: parse(bytes)?, ..parse(bytes)? })
    }

    /// Returns whether a stream ends with the usage.
    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Returns the number of choices for each prompt.
    pub(crate) fn choices(&self) -> usize {
        self.n.unwrap_or(1)
    }

    /// Returns the answers to generate for a completion: the choices of each prompt.
    pub(crate) fn completion_tasks(&self, state: &State) -> Result<Vec<Task>, ApiError> {
        if self.messages.is_some() {
            return Err(ApiError::field("messages", "messages are for /v1/chat/completions"));
        }
        self.check(state)?;
        let encode = |text: &str| {
            let tokens = state.generator.forerun.encode_prompt(text);
            tokens.map_err(|error| super::error::of_engine(&error, "prompt"))
        };
        let prompts = match &self.prompt {
            None => return Err(ApiError::field("prompt", "prompt is required")),
            Some(Prompt::Text(text)) => vec![encode(text)?],
            Some(Prompt::Texts(texts)) => {
                texts.iter().map(|text| encode(text)).collect::<Result<_, _>>()?
            }
            Some(Prompt::Tokens(tokens)) => vec![tokens.clone()],
            Some(Prompt::TokenLists(lists)) => lists.clone(),
        };
        let vocab_size = state.generator.forerun.config().vocab_size;
        let known = |token: &&TokenId| usize::try_from(**token).is_ok_and(|id| id >= vocab_size);
        if let Some(token) = prompts.iter().flatten().find(known) {
            let message = format!("prompt has the token {token}, but there are only {vocab_size}");
            return Err(ApiError::field("prompt", message));
        }
        if prompts.is_empty() {
            return Err(ApiError::field("prompt", "prompt is an empty list"));
        }
        let logprobs = match self.logprobs {
            Some(Logprobs::Count(count)) => Some(count),
            None | Some(Logprobs::Whether(false)) => None,
            Some(Logprobs::Whether(true)) => {
                return Err(ApiError::field("logprobs", "logprobs: expected a number of tokens"));
            }
        };
        let limit = self.limit().unwrap_or(COMPLETION_TOKENS);
        let request = self.request(state, limit, logprobs)?;
        self.tasks(state, &prompts, &request)
    }

    /// Returns the answers to generate for a chat completion.
    pub(crate) fn chat_tasks(&self, state: &State) -> Result<Vec<Task>, ApiError> {
        if self.prompt.is_some() {
            return Err(ApiError::field("prompt", "prompt is for /v1/completions"));
        }
        self.check(state)?;
        let generator = &state.generator;
        let prompt = generator.forerun.encode_chat(&generator.template, &self.messages()?);
        let prompt = prompt.map_err(|error| super::error::of_chat(&error))?;
        let logprobs = match (&self.logprobs, self.top_logprobs) {
            (Some(Logprobs::Whether(true)), top) => Some(top.unwrap_or(0)),
            (None | Some(Logprobs::Whether(false)), None | Some(0)) => None,
            (None | Some(Logprobs::Whether(false)), Some(_)) => {
                return Err(ApiError::field(
                    "top_logprobs",
                    "top_logprobs requires logprobs: true",
                ));
            }
            (Some(Logprobs::Count(_)), _) => {
                return Err(ApiError::field("logprobs", "logprobs: expected true or false"));
            }
        };
        let context = generator.forerun.config().max_position_embeddings;
        let limit = self.limit().unwrap_or_else(|| context.saturating_sub(prompt.len()).max(1));
        let request = self.request(state, limit, logprobs)?;
        let request = generator.forerun.chat_request(&generator.template, &request);
        self.tasks(state, &[prompt], &request)
    }

    fn limit(&self) -> Option<usize> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    fn messages(&self) -> Result<Vec<Message>, ApiError> {
        let messages = self.messages.as_deref().unwrap_or_default();
        if messages.is_empty() {
            return Err(ApiError::field(
                "messages",
                "messages is required, with at least one message",
            ));
        }
        let message = |(index, message): (usize, &ChatMessage)| {
            let content = match &message.content {
                None => String::new(),
                Some(Content::Text(text)) => text.clone(),
                Some(Content::Parts(parts)) => {
                    let text = |part: &Part| match (&*part.r#type, &part.text) {
                        ("text", Some(text)) => Ok(text.clone()),
                        (kind, _) => Err(ApiError::field(
                            format!("messages[{index}].content"),
                            format!("parts of type {kind:?} are not supported, only \"text\""),
                        )),
                    };
                    parts.iter().map(text).collect::<Result<String, _>>()?
                }
            };
            // Templates know the role by its older name.
            let role = if message.role == "developer" { "system" } else { &*message.role };
            Ok(Message { role: role.to_owned(), content })
        };
        messages.iter().enumerate().map(message).collect()
    }

    /// Refuses what the server cannot do, instead of ignoring it.
    fn check(&self, state: &State) -> Result<(), ApiError> {
        if let Some(model) = self.model.as_ref().filter(|model| **model != state.options.model_name)
        {
            let message = format!(
                "the model {model:?} does not exist; this server has {:?}",
                state.options.model_name
            );
            let error = ApiError::new(axum::http::StatusCode::NOT_FOUND, message);
            return Err(error.with_param("model").with_code("model_not_found"));
        }
        let chooses = |choice: &Value| choice != "none" && choice != "auto";
        for (param, is_set) in [
            ("tools", self.tools.as_ref().is_some_and(|tools| !tools.is_empty())),
            ("tool_choice", self.tool_choice.as_ref().is_some_and(chooses)),
            ("functions", self.functions.as_ref().is_some_and(|list| !list.is_empty())),
            ("echo", self.echo == Some(true)),
            ("suffix", self.suffix.as_ref().is_some_and(|text| !text.is_empty())),
            ("best_of", self.best_of.is_some_and(|best| best != self.choices())),
        ] {
            if is_set {
                return Err(ApiError::field(
                    param,
                    format!("{param} is not supported by this server"),
                ));
            }
        }
        if !(1..=MOST_CHOICES).contains(&self.choices()) {
            let message =
                format!("n is {}, but it must be from 1 to {MOST_CHOICES}", self.choices());
            return Err(ApiError::field("n", message));
        }
        Ok(())
    }

    /// Returns the request to the engine.
    fn request(
        &self,
        state: &State,
        max_tokens: usize,
        logprobs: Option<usize>,
    ) -> Result<Request, ApiError> {
        let forerun = &state.generator.forerun;
        let sampling = state.generator.default_sampling();
        let mut request = Request { max_tokens, logprobs, sampling, ..Request::default() };
        let sampling = &mut request.sampling;
        for (field, place) in [
            (self.temperature, &mut sampling.temperature),
            (self.top_p, &mut sampling.top_p),
            (self.min_p, &mut sampling.min_p),
            (self.presence_penalty, &mut sampling.presence_penalty),
            (self.frequency_penalty, &mut sampling.frequency_penalty),
            (self.repetition_penalty, &mut sampling.repetition_penalty),
        ] {
            *place = field.unwrap_or(*place);
        }
        // −1 keeps all tokens, as in vLLM.
        if let Some(top_k) = self.top_k {
            let message = || format!("top_k is {top_k}, but it must be at least -1");
            let top_k = if top_k == -1 { Ok(0) } else { usize::try_from(top_k) };
            sampling.top_k = top_k.map_err(|_| ApiError::field("top_k", message()))?;
        }
        for (token, bias) in self.logit_bias.iter().flatten() {
            let message = || format!("logit_bias has {token:?}, which is not a token's number");
            let token = token.parse().map_err(|_| ApiError::field("logit_bias", message()))?;
            sampling.logit_bias.insert(token, *bias);
        }
        request.seed = self.seed.map(|seed| seed as u64);
        request.ignore_eos = self.ignore_eos.unwrap_or(false);
        request.stop = match &self.stop {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text.clone()],
            Some(OneOrMany::Many(texts)) => texts.clone(),
        };
        if request.stop.len() > MOST_STOPS || request.stop.iter().any(String::is_empty) {
            let message = format!("stop must have at most {MOST_STOPS} texts, none of them empty");
            return Err(ApiError::field("stop", message));
        }
        request.grammar = self.structure.grammar(forerun)?;
        request.validate().map_err(|error| super::error::of_engine(&error.into(), "prompt"))?;
        Ok(request)
    }

    fn method(&self, state: &State) -> Result<Method, ApiError> {
        let forerun = &state.generator.forerun;
        let (param, name) = match &self.speculation {
            None => return Ok(forerun.plan().method()),
            Some(Speculation::Named(name)) if name == "off" => return Ok(Method::Autoregressive),
            Some(Speculation::Named(name)) => ("speculation", name),
            Some(Speculation::Options { method }) => ("speculation.method", method),
        };
        let wrong = |message: String| ApiError::field(param, message.replace('`', "'"));
        let method: Method =
            name.parse().map_err(|error: forerun::UnknownValue| wrong(error.to_string()))?;
        forerun.check_method(method).map_err(|error| wrong(error.to_string()))?;
        Ok(method)
    }

    /// Returns the choices of each prompt. The seeds of a prompt's choices follow one another.
    fn tasks(
        &self,
        state: &State,
        prompts: &[Vec<TokenId>],
        request: &Request,
    ) -> Result<Vec<Task>, ApiError> {
        let method = self.method(state)?;
        let task = |prompt: &Vec<TokenId>, choice: usize| {
            let seed = request.seed.map(|seed| seed.wrapping_add(choice as u64));
            Task { prompt: prompt.clone(), request: Request { seed, ..request.clone() }, method }
        };
        let tasks =
            prompts.iter().flat_map(|prompt| (0..self.choices()).map(move |n| task(prompt, n)));
        let tasks: Vec<Task> = tasks.collect();
        let parallel = state.admission.parallel();
        if tasks.len() > parallel {
            let message = format!(
                "the request has {} answers, but this server generates {parallel} at a time",
                tasks.len()
            );
            return Err(ApiError::field("n", message));
        }
        Ok(tasks)
    }
}

//! The fields of requests for completions and chat completions.

use super::messages::ChatMessage;
use super::structured::StructureFields;
use super::tools::ToolFields;
use crate::api::answers::Prepared;
use crate::api::error::{ApiError, of_chat, of_engine};
use crate::api::parse;
use crate::api::state::State;
use crate::generation::{Speculation, Task};
use axum::body::Bytes;
use axum::http::StatusCode;
use forerun::ChatParser;
use forerun::{Method, Request, TemplateArguments, TokenId};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The most choices of one request.
const MOST_CHOICES: usize = 128;
/// The most stop strings.
const MOST_STOPS: usize = 16;
/// The tokens at the end of a prompt that show whether the answer begins with reasoning.
const PROMPT_END: usize = 16;
/// The tokens of a completion whose request sets no limit, as in OpenAI's API.
const COMPLETION_TOKENS: usize = 16;

/// A request for a completion or a chat completion. Fields of OpenAI's API that change nothing about the text
/// are not listed, and ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Body {
    pub(crate) model: Option<String>,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) messages: Option<Vec<ChatMessage>>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) max_completion_tokens: Option<usize>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) logit_bias: Option<BTreeMap<String, f32>>,
    pub(crate) seed: Option<i64>,
    pub(crate) stop: Option<OneOrMany>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) n: Option<usize>,
    pub(crate) best_of: Option<usize>,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) echo: Option<bool>,
    pub(crate) suffix: Option<String>,
    pub(crate) speculation: Option<SpeculationField>,
    /// Further variables of the chat template, as in vLLM.
    pub(crate) chat_template_kwargs: Map<String, Value>,
    pub(crate) reasoning_effort: Option<String>,
    /// The extension that reports where tokens come from.
    pub(crate) token_details: Option<bool>,
    #[serde(skip)]
    pub(crate) structure: StructureFields,
    #[serde(skip)]
    pub(crate) tools: ToolFields,
    pub(crate) functions: Option<Vec<Value>>,
}

/// A text or several, as text or as tokens.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text, a list of texts, a list of tokens, or a list of such lists"
)]
pub(crate) enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<TokenId>),
    TokenLists(Vec<Vec<TokenId>>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected true, false, or a number of tokens")]
pub(crate) enum Logprobs {
    Whether(bool),
    Count(usize),
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct StreamOptions {
    include_usage: Option<bool>,
}

/// The extension that chooses how an answer is decoded, which does not change its distribution.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"off\" or an object with \"method\", \"drafter\", \"draft_tokens\" and \"tree\""
)]
pub(crate) enum SpeculationField {
    Named(String),
    Options(Speculation),
}

impl Body {
    /// Parses the body of a request. Errors name the field.
    pub(crate) fn parse(bytes: &Bytes) -> Result<Self, ApiError> {
        Ok(Self { structure: parse(bytes)?, tools: parse(bytes)?, ..parse(bytes)? })
    }

    /// Returns whether a stream ends with the usage.
    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Returns whether the response says where tokens come from.
    pub(crate) fn details(&self) -> bool {
        self.token_details.unwrap_or(false)
    }

    /// Returns whether the answer is a stream.
    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Returns whether the response has log-probabilities.
    pub(crate) fn reports_logprobs(&self) -> bool {
        self.logprobs.is_some()
    }

    /// Returns the number of choices for each prompt that the response has.
    pub(crate) fn choices(&self) -> usize {
        self.n.unwrap_or(1)
    }

    /// Returns the number of choices for each prompt that are generated. The best of them are returned.
    fn candidates(&self) -> usize {
        self.best_of.unwrap_or(self.choices())
    }

    /// Returns the answers to generate for a completion: the choices of each prompt.
    pub(crate) fn completions(&self, state: &State) -> Result<Prepared, ApiError> {
        if self.messages.is_some() {
            return Err(ApiError::field("messages", "messages are for /v1/chat/completions"));
        }
        self.check(state)?;
        let encode = |text: &str| {
            let tokens = state.generator.forerun().encode_prompt(text);
            tokens.map_err(|error| of_engine(&error, "prompt"))
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
        let vocab_size = state.generator.forerun().config().vocab_size;
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
        // The best choices are those with the highest log-probability.
        let ranks = self.candidates() > self.choices();
        let logprobs = logprobs.or(ranks.then_some(0));
        let request = self.request(state, limit, logprobs)?;
        self.prepare(state, &prompts, &request, "prompt", ChatParser::plain)
    }

    /// Returns the answers to generate for a chat completion.
    pub(crate) fn chat(&self, state: &State) -> Result<Prepared, ApiError> {
        if self.prompt.is_some() {
            return Err(ApiError::field("prompt", "prompt is for /v1/completions"));
        }
        self.check(state)?;
        let (forerun, template) = (state.generator.forerun(), &state.template);
        let choice = self.tools.choice()?;
        let mut messages = self.messages()?;
        let mut arguments = TemplateArguments {
            tools: choice.tools.iter().map(forerun::Tool::to_value).collect(),
            variables: self.chat_template_kwargs.clone(),
        };
        if let Some(effort) = &self.reasoning_effort {
            arguments.variables.insert("reasoning_effort".into(), Value::from(effort.as_str()));
        }
        if !template.reads_tools() {
            messages = forerun::with_tools_as_text(messages, &arguments.tools);
        }
        let prompt = forerun.encode_chat_with(template, &messages, &arguments);
        let prompt = prompt.map_err(|error| of_chat(&error))?;
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
        let context = forerun.config().max_position_embeddings;
        let limit = self.limit().unwrap_or_else(|| context.saturating_sub(prompt.len()).max(1));
        let mut request = self.request(state, limit, logprobs)?;
        let syntax = state.syntax;
        if choice.required {
            if request.grammar.is_some() {
                let message =
                    "a tool call and another format of the answer cannot both be required";
                return Err(ApiError::field("tool_choice", message));
            }
            let grammar = syntax.grammar(&choice.tools, choice.parallel, forerun.tokenizer());
            forerun
                .check_grammar(&grammar)
                .map_err(|error| ApiError::field("tools", format!("tools: {}", error.reason())))?;
            request.grammar = Some(grammar);
        }
        // A format that the request chooses itself has no calls, and no reasoning.
        let is_structured = request.grammar.is_some() && !choice.required;
        request.special_tokens = !is_structured && syntax.has_special_tags(&choice.tools);
        let request = forerun.chat_request(template, &request);
        let end = prompt.len().saturating_sub(PROMPT_END);
        let end = forerun.tokenizer().decode_with_special(&prompt[end..]);
        let parser = || match is_structured {
            true => ChatParser::plain(),
            false => syntax.parser(&choice.tools, choice.parallel, &end),
        };
        self.prepare(state, std::slice::from_ref(&prompt), &request, "messages", parser)
    }

    fn limit(&self) -> Option<usize> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    fn messages(&self) -> Result<Vec<forerun::Message>, ApiError> {
        let messages = self.messages.as_deref().unwrap_or_default();
        if messages.is_empty() {
            return Err(ApiError::field(
                "messages",
                "messages is required, with at least one message",
            ));
        }
        let message = |(index, message): (usize, &ChatMessage)| message.to_message(index);
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
            let error = ApiError::new(StatusCode::NOT_FOUND, message);
            return Err(error.with_param("model").with_code("model_not_found"));
        }
        for (param, is_set) in [
            ("functions", self.functions.as_ref().is_some_and(|list| !list.is_empty())),
            ("echo", self.echo == Some(true)),
            ("suffix", self.suffix.as_ref().is_some_and(|text| !text.is_empty())),
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
        let (best_of, n) = (self.candidates(), self.choices());
        if best_of < n || best_of > n && (self.streams() || self.messages.is_some()) {
            let message = format!(
                "best_of is {best_of}, but it must be at least n, which is {n}, and is only for completions \
                 without a stream"
            );
            return Err(ApiError::field("best_of", message));
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
        let forerun = state.generator.forerun();
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
        request.validate().map_err(|error| of_engine(&error.into(), "prompt"))?;
        Ok(request)
    }

    /// Returns the method of the answers, and writes the shape of drafts to their request.
    fn speculation(&self, state: &State, request: &mut Request) -> Result<Method, ApiError> {
        let named;
        let (speculation, is_named) = match &self.speculation {
            None => return Ok(state.generator.forerun().plan().method()),
            Some(SpeculationField::Named(name)) => {
                named = Speculation { method: Some(name.clone()), ..Speculation::default() };
                (&named, true)
            }
            Some(SpeculationField::Options(options)) => (options, false),
        };
        speculation.apply(state.generator.forerun(), request).map_err(|error| {
            let param = match is_named {
                true => "speculation".to_owned(),
                false => format!("speculation.{}", error.option()),
            };
            ApiError::field(param, error.to_string().replace('`', "'"))
        })
    }

    /// Returns the choices of each prompt. The seeds of a prompt's choices follow one another.
    fn prepare(
        &self,
        state: &State,
        prompts: &[Vec<TokenId>],
        request: &Request,
        prompt_field: &'static str,
        parser: impl Fn() -> ChatParser,
    ) -> Result<Prepared, ApiError> {
        let mut request = request.clone();
        let method = self.speculation(state, &mut request)?;
        let choices_per_prompt = self.candidates();
        let task = |prompt: &Vec<TokenId>, choice: usize| {
            let seed = request.seed.map(|seed| seed.wrapping_add(choice as u64));
            let request = Request { seed, ..request.clone() };
            (Task { prompt: prompt.clone(), request, method }, parser())
        };
        let of_prompt = |prompt| (0..choices_per_prompt).map(move |choice| (prompt, choice));
        let choices: Vec<_> = prompts
            .iter()
            .flat_map(of_prompt)
            .map(|(prompt, choice)| task(prompt, choice))
            .collect();
        let parallel = state.admission.parallel();
        if choices.len() > parallel {
            let message = format!(
                "the request has {} answers, but this server generates {parallel} at a time",
                choices.len()
            );
            return Err(ApiError::field("n", message));
        }
        Ok(Prepared { choices, choices_per_prompt, prompt_field })
    }
}

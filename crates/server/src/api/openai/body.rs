//! The fields of requests for completions and chat completions.

use super::messages::ChatMessage;
use super::sampling::SamplingFields;
use super::structured::StructureFields;
use super::system_messages::with_accepted_system_messages;
use super::tools::{ChosenTools, ToolFields};
use crate::api::answers::{FieldNames, Prepared};
use crate::api::error::{ApiError, of_chat, of_engine};
use crate::api::fields::Api;
use crate::api::parse;
use crate::generation::{LineLimits, Speculation};
use crate::models::Model;
use axum::body::Bytes;
use forerun::text::{ChatParser, Gap, InfillTokens, PromptEnd};
use forerun::text::{TemplateArguments, Tokenizer, encode_latest_turns};
use forerun::{ChatTemplate, Grammar};
use forerun::{Method, Request, SamplingOptions, TokenId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The most choices of one request.
const MOST_CHOICES: usize = 128;
/// The tokens at the end of a prompt that show whether the answer begins with reasoning.
const PROMPT_END: usize = 16;
/// The tokens of a completion whose request sets no limit, as in OpenAI's API.
const COMPLETION_TOKENS: usize = 16;

/// A request for a completion or a chat completion, in the parts that other APIs share.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) fields: BodyFields,
    pub(crate) sampling: SamplingFields,
    pub(crate) structure: StructureFields,
    pub(crate) tools: ToolFields,
    /// The text with a gap, if the answer fills one.
    pub(crate) gap: Option<Gap>,
    /// Where lines end the answer early.
    pub(crate) lines: Option<LineLimits>,
}

/// The fields of completions and chat completions.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct BodyFields {
    pub(crate) model: Option<String>,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) suffix: Option<String>,
    pub(crate) messages: Option<Vec<ChatMessage>>,
    pub(crate) max_tokens: Option<i64>,
    pub(crate) max_completion_tokens: Option<i64>,
    pub(crate) n_predict: Option<i64>,
    pub(crate) n: Option<usize>,
    pub(crate) best_of: Option<usize>,
    pub(crate) echo: Option<bool>,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) speculation: Option<SpeculationField>,
    /// Further variables of the chat template, as in vLLM.
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    pub(crate) reasoning_effort: Option<String>,
    pub(crate) verbosity: Option<String>,
    pub(crate) continue_final_message: Option<bool>,
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) truncation: Option<Truncation>,
    /// The extension that reports where tokens come from.
    pub(crate) token_details: Option<bool>,
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
#[serde(untagged, expecting = "expected true, false, or a number of tokens")]
pub(crate) enum Logprobs {
    Whether(bool),
    Count(usize),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StreamOptions {
    include_usage: Option<bool>,
}

/// What happens to a conversation that is too long, as in OpenAI's Responses API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Truncation {
    /// The oldest turns are left out.
    Auto,
    /// It is an error.
    #[default]
    Disabled,
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
    /// Parses the body of a request to `api`. Errors name the field.
    pub(crate) fn parse(api: Api, bytes: &Bytes) -> Result<Self, ApiError> {
        let fields = parse(bytes)?;
        api.check(bytes)?;
        let (sampling, structure) = (parse(bytes)?, parse(bytes)?);
        Ok(Self { fields, sampling, structure, tools: parse(bytes)?, ..Self::default() })
    }

    /// Returns the name of the model, if the request names one.
    pub(crate) fn model(&self) -> Option<&str> {
        self.fields.model.as_deref()
    }

    /// Returns whether a stream ends with the usage.
    pub(crate) fn includes_usage(&self) -> bool {
        self.fields
            .stream_options
            .as_ref()
            .and_then(|options| options.include_usage)
            .unwrap_or(false)
    }

    /// Returns whether the response says where tokens come from.
    pub(crate) fn details(&self) -> bool {
        self.fields.token_details.unwrap_or(false)
    }

    /// Returns whether the answer is a stream.
    pub(crate) fn streams(&self) -> bool {
        self.fields.stream.unwrap_or(false)
    }

    /// Returns whether the response has log-probabilities.
    pub(crate) fn reports_logprobs(&self) -> bool {
        self.fields.logprobs.is_some()
    }

    /// Returns whether choices begin with their prompts.
    pub(crate) fn echoes(&self) -> bool {
        self.fields.echo.unwrap_or(false)
    }

    /// Returns the texts of the prompts.
    pub(crate) fn prompt_texts(&self, tokenizer: &Tokenizer) -> Vec<String> {
        let decode = |tokens: &Vec<TokenId>| tokenizer.decode_with_special(tokens);
        match &self.fields.prompt {
            None => Vec::new(),
            Some(Prompt::Text(text)) => vec![text.clone()],
            Some(Prompt::Texts(texts)) => texts.clone(),
            Some(Prompt::Tokens(tokens)) => vec![decode(tokens)],
            Some(Prompt::TokenLists(lists)) => lists.iter().map(decode).collect(),
        }
    }

    /// Returns the number of choices for each prompt that the response has.
    pub(crate) fn choices(&self) -> usize {
        self.fields.n.unwrap_or(1)
    }

    /// Returns the number of choices for each prompt that are generated. The best of them are
    /// returned.
    fn candidates(&self) -> usize {
        self.fields.best_of.unwrap_or(self.choices())
    }

    /// Returns the answers to generate for a completion: the choices of each prompt.
    pub(crate) fn completions(&self, model: &Model) -> Result<Prepared, ApiError> {
        self.check()?;
        let encode = |text: &str| {
            let tokens = model.generator.forerun().encode_prompt(text);
            tokens.map_err(|error| of_engine(&error, "prompt"))
        };
        let gap = self.gap()?;
        let infill = gap.map(|gap| self.infill(model, gap)).transpose()?;
        let prompts = match (&infill, &self.fields.prompt) {
            (Some((prompt, _)), _) => vec![prompt.clone()],
            (None, None) => return Err(ApiError::field("prompt", "prompt is required")),
            (None, Some(Prompt::Text(text))) => vec![encode(text)?],
            (None, Some(Prompt::Texts(texts))) => {
                texts.iter().map(|text| encode(text)).collect::<Result<_, _>>()?
            }
            (None, Some(Prompt::Tokens(tokens))) => vec![tokens.clone()],
            (None, Some(Prompt::TokenLists(lists))) => lists.clone(),
        };
        let vocab_size = model.generator.forerun().config().vocab_size;
        let known = |token: &&TokenId| usize::try_from(**token).is_ok_and(|id| id >= vocab_size);
        if let Some(token) = prompts.iter().flatten().find(known) {
            let message = format!("prompt has the token {token}, but there are only {vocab_size}");
            return Err(ApiError::field("prompt", message));
        }
        if prompts.is_empty() {
            return Err(ApiError::field("prompt", "prompt is an empty list"));
        }
        let logprobs = match self.fields.logprobs {
            Some(Logprobs::Count(count)) => Some(count),
            None | Some(Logprobs::Whether(false)) => None,
            Some(Logprobs::Whether(true)) => {
                return Err(ApiError::field("logprobs", "logprobs: expected a number of tokens"));
            }
        };
        if self.echoes() && self.streams() {
            return Err(ApiError::field("echo", "echo is only for completions without a stream"));
        }
        let shortest = prompts.iter().map(Vec::len).min().unwrap_or(0);
        let limit = self.limit(model, shortest)?.unwrap_or(COMPLETION_TOKENS);
        let prompt_logprobs = logprobs.filter(|_| self.echoes());
        // The best choices are those with the highest log-probability.
        let ranks = self.candidates() > self.choices();
        let logprobs = logprobs.or(ranks.then_some(0));
        let sampling = model.generator.default_sampling();
        let mut request = self.request(model, sampling, limit, logprobs)?;
        request.prompt_logprobs = prompt_logprobs;
        if let Some((_, ends)) = infill.filter(|_| !request.ignore_eos) {
            request.stop_tokens.extend(ends);
        }
        self.prepare(model, prompts, request, "prompt", ChatParser::plain)
    }

    /// Returns the text with the gap to fill, if there is one.
    fn gap(&self) -> Result<Option<Gap>, ApiError> {
        let suffix = self.fields.suffix.clone().filter(|suffix| !suffix.is_empty());
        let gap = match (&self.fields.prompt, suffix) {
            (_, None) => return Ok(self.gap.clone()),
            (Some(Prompt::Text(text)), Some(suffix)) => {
                Gap { prefix: text.clone(), suffix, ..Gap::default() }
            }
            _ => {
                let message = "suffix needs a prompt that is one text, which stands before the gap";
                return Err(ApiError::field("suffix", message));
            }
        };
        match self.echoes() {
            true => Err(ApiError::field("echo", "echo cannot be combined with suffix")),
            false => Ok(Some(gap)),
        }
    }

    /// Returns the prompt for a text with a gap, and the tokens that end the gap.
    fn infill(
        &self,
        model: &Model,
        mut gap: Gap,
    ) -> Result<(Vec<TokenId>, Vec<TokenId>), ApiError> {
        let forerun = model.generator.forerun();
        let Some(tokens) = InfillTokens::of(forerun.tokenizer()) else {
            let message = "suffix and /infill need a tokenizer with tokens for prefix, suffix and middle, which \
                           this model lacks: use one such as Qwen2.5-Coder";
            return Err(ApiError::field("suffix", message));
        };
        let of_text = |error: forerun::ForerunError| of_engine(&error, "prompt");
        // Texts that are far too long are not encoded.
        for text in [&gap.prefix, &gap.suffix, &gap.begun] {
            forerun.check_length(text).map_err(of_text)?;
        }
        let is_long = |text: &String| forerun.check_length(text).is_err();
        let long = gap.files.iter().rposition(|(name, text)| is_long(name) || is_long(text));
        gap.files.drain(..long.map_or(0, |long| long + 1));
        let prompt = tokens.prompt(forerun.tokenizer(), &gap, self.most_of_prompt(model));
        Ok((prompt.map_err(|error| of_text(error.into()))?, tokens.ends().to_vec()))
    }

    /// Returns the answers to generate for a chat completion.
    pub(crate) fn chat(&self, model: &Model) -> Result<Prepared, ApiError> {
        self.check()?;
        let (forerun, template) = (model.generator.forerun(), &*model.template);
        let choice = self.tools.choice()?;
        let mut messages = self.messages(template)?;
        let mut arguments = TemplateArguments {
            tools: choice.tools.iter().map(forerun::text::Tool::to_value).collect(),
            variables: self.fields.chat_template_kwargs.clone().unwrap_or_default(),
        };
        for (name, value) in [
            ("reasoning_effort", &self.fields.reasoning_effort),
            ("verbosity", &self.fields.verbosity),
        ] {
            if let Some(value) = value {
                arguments.variables.insert(name.into(), Value::from(value.as_str()));
            }
        }
        let end = self.prompt_end()?;
        if !template.reads_tools() {
            messages = forerun::text::with_tools_as_text(messages, &arguments.tools);
        }
        let begun = messages.last().filter(|_| end == PromptEnd::LastMessage).cloned();
        let encode = |messages: Vec<forerun::Message>| {
            let messages = with_accepted_system_messages(template, messages, &arguments);
            forerun.encode_chat_until(end, template, &messages, &arguments)
        };
        let encoded = match self.fields.truncation.unwrap_or_default() {
            Truncation::Auto => encode_latest_turns(&messages, self.most_of_prompt(model), encode),
            Truncation::Disabled => encode(messages).map(|prompt| (prompt, 0)),
        };
        let (prompt, messages_left_out) = encoded.map_err(|error| of_chat(&error))?;
        let logprobs = match (&self.fields.logprobs, self.fields.top_logprobs) {
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
        let limit = self.limit(model, prompt.len())?;
        let limit = limit.unwrap_or_else(|| room(model, prompt.len()));
        let sampling = model.generator.chat_sampling();
        let mut request = self.request(model, sampling, limit, logprobs)?;
        let syntax = model.syntax;
        let tail = prompt.len().saturating_sub(PROMPT_END);
        let tail = forerun.tokenizer().decode_with_special(&prompt[tail..]);
        let format = request.grammar.as_ref();
        if let Some(grammar) = self.calls_or_format(model, &choice, format, &tail)? {
            forerun
                .check_grammar(&grammar)
                .map_err(|error| ApiError::field("tools", format!("tools: {}", error.reason())))?;
            request.grammar = Some(grammar);
        }
        // An answer that only has a format has no calls, and no reasoning unless the prompt begins
        // one.
        let mut is_structured = request.grammar.is_some() && choice.tools.is_empty();
        if let Some(format) = request.grammar.as_ref().filter(|_| is_structured)
            && let Some(both) = syntax.format_after_reasoning(format, &tail, forerun.tokenizer())
        {
            (request.grammar, is_structured) = (Some(both), false);
        }
        request.special_tokens |= !is_structured && syntax.has_special_tags(&choice.tools);
        let request = forerun.chat_request(template, &request);
        let parser = move || match (is_structured, &begun) {
            (true, _) => ChatParser::plain(),
            (false, None) => syntax.parser(&choice.tools, choice.parallel, &tail),
            (false, Some(begun)) => {
                syntax.continuing_parser(&choice.tools, choice.parallel, &begun.content)
            }
        };
        let prepared = self.prepare(model, vec![prompt], request, "messages", parser)?;
        Ok(Prepared { messages_left_out, ..prepared })
    }

    /// Returns the grammar of an answer with calls: it must be a call, or else may have the format
    /// of the request.
    fn calls_or_format(
        &self,
        model: &Model,
        choice: &ChosenTools,
        format: Option<&Grammar>,
        prompt_end: &str,
    ) -> Result<Option<Grammar>, ApiError> {
        let (syntax, tokenizer) = (model.syntax, model.generator.forerun().tokenizer());
        let (tools, parallel) = (&choice.tools, choice.parallel);
        match format {
            _ if choice.required => {
                Ok(Some(syntax.grammar(tools, parallel, prompt_end, tokenizer)))
            }
            Some(format) if !tools.is_empty() => {
                let both = syntax.grammar_or(format, tools, parallel, prompt_end, tokenizer);
                let message = "tools cannot be combined with a grammar that has rules: use a JSON schema, a regular \
                               expression or choices, or tool_choice \"none\"";
                both.map(Some).ok_or_else(|| ApiError::field("tools", message))
            }
            _ => Ok(None),
        }
    }

    /// Returns the most tokens of an answer, if the request says it. As in llama-server, −1 is all
    /// that the context has room for after a prompt.
    fn limit(&self, model: &Model, prompt_tokens: usize) -> Result<Option<usize>, ApiError> {
        let Some((name, limit)) = self.given_limit() else { return Ok(None) };
        match usize::try_from(limit) {
            _ if limit == -1 => Ok(Some(room(model, prompt_tokens))),
            // The engine generates one token at least.
            Ok(0) if name == "n_predict" || self.echoes() => Ok(Some(1)),
            Ok(limit) if limit > 0 => Ok(Some(limit)),
            _ => {
                let message =
                    format!("{name} is {limit}, but it must be at least 1, or -1 for no limit");
                Err(ApiError::field(name, message))
            }
        }
    }

    /// Returns the most tokens of a prompt that is shortened to fit. An answer without a limit gets
    /// a quarter of the context, and any at most half.
    fn most_of_prompt(&self, model: &Model) -> usize {
        let context = model.generator.forerun().config().max_position_embeddings;
        let limit = self.given_limit().and_then(|(_, limit)| usize::try_from(limit).ok());
        context - limit.unwrap_or(context / 4).min(context / 2)
    }

    /// Returns the field that limits the tokens of an answer, and its value.
    pub(crate) fn given_limit(&self) -> Option<(&'static str, i64)> {
        let BodyFields { n_predict, max_completion_tokens, max_tokens, .. } = self.fields;
        let given = [
            ("n_predict", n_predict),
            ("max_completion_tokens", max_completion_tokens),
            ("max_tokens", max_tokens),
        ];
        given.into_iter().find_map(|(name, limit)| Some((name, limit?)))
    }

    /// Returns where the model begins to write. A last message of the assistant is continued, as in
    /// llama-server, unless the request wants a new one. The fields are vLLM's.
    fn prompt_end(&self) -> Result<PromptEnd, ApiError> {
        let BodyFields { continue_final_message, add_generation_prompt, .. } = self.fields;
        let last = self.fields.messages.as_deref().unwrap_or_default().last();
        let is_begun = last.is_some_and(ChatMessage::is_begun_answer);
        match (continue_final_message, add_generation_prompt) {
            (Some(true), Some(true)) => {
                let message =
                    "continue_final_message and add_generation_prompt cannot both be true";
                Err(ApiError::field("continue_final_message", message))
            }
            (Some(true), _) => Ok(PromptEnd::LastMessage),
            (None, None | Some(false)) if is_begun => Ok(PromptEnd::LastMessage),
            (_, Some(false)) => Ok(PromptEnd::Nothing),
            (_, None | Some(true)) => Ok(PromptEnd::NewMessage),
        }
    }

    fn messages(&self, template: &ChatTemplate) -> Result<Vec<forerun::Message>, ApiError> {
        let messages = self.fields.messages.as_deref().unwrap_or_default();
        if messages.is_empty() {
            return Err(ApiError::field(
                "messages",
                "messages is required, with at least one message",
            ));
        }
        let separator = template.text_part_separator();
        let message =
            |(index, message): (usize, &ChatMessage)| message.to_message(index, separator);
        messages.iter().enumerate().map(message).collect()
    }

    /// Checks the number of choices.
    fn check(&self) -> Result<(), ApiError> {
        if !(1..=MOST_CHOICES).contains(&self.choices()) {
            let message =
                format!("n is {}, but it must be from 1 to {MOST_CHOICES}", self.choices());
            return Err(ApiError::field("n", message));
        }
        let (best_of, n) = (self.candidates(), self.choices());
        if best_of < n || best_of > n && (self.streams() || self.fields.messages.is_some()) {
            let message = format!(
                "best_of is {best_of}, but it must be at least n, which is {n}, and is only for completions \
                 without a stream"
            );
            return Err(ApiError::field("best_of", message));
        }
        Ok(())
    }

    /// Returns the request to the engine. `sampling` holds where the fields say nothing.
    fn request(
        &self,
        model: &Model,
        sampling: SamplingOptions,
        max_tokens: usize,
        logprobs: Option<usize>,
    ) -> Result<Request, ApiError> {
        let forerun = model.generator.forerun();
        let adapter = model.adapter.clone();
        let mut request = Request { max_tokens, logprobs, sampling, adapter, ..Request::default() };
        self.sampling.apply(model, &mut request)?;
        request.grammar = self.structure.grammar(forerun)?;
        request.validate().map_err(|error| of_engine(&error.into(), "prompt"))?;
        Ok(request)
    }

    /// Returns the method of the answers, and writes the shape of drafts to their request.
    fn speculation(&self, model: &Model, request: &mut Request) -> Result<Method, ApiError> {
        let named;
        let (speculation, is_named) = match &self.fields.speculation {
            None => return Ok(model.generator.forerun().plan().method()),
            Some(SpeculationField::Named(name)) => {
                named = Speculation { method: Some(name.clone()), ..Speculation::default() };
                (&named, true)
            }
            Some(SpeculationField::Options(options)) => (options, false),
        };
        speculation.apply(model.generator.forerun(), request).map_err(|error| {
            let param = match is_named {
                true => "speculation".to_owned(),
                false => format!("speculation.{}", error.option()),
            };
            ApiError::field(param, error.to_string().replace('`', "'"))
        })
    }

    /// Returns the choices of all prompts.
    fn prepare(
        &self,
        model: &Model,
        prompts: Vec<Vec<TokenId>>,
        mut request: Request,
        prompt_field: &'static str,
        parser: impl Fn() -> ChatParser + Send + 'static,
    ) -> Result<Prepared, ApiError> {
        self.sampling.check_min_tokens(&request)?;
        let method = self.speculation(model, &mut request)?;
        let (choices_per_prompt, parser) = (self.candidates(), Box::new(parser));
        // What asks for a length gets it, and a structure must become complete.
        let has_limit = self.given_limit().is_some_and(|(_, limit)| limit != -1);
        let ends_repetition = !has_limit && !request.ignore_eos && request.grammar.is_none();
        let format = request.grammar.as_ref().and_then(|_| self.structure.field());
        let grammar = format.unwrap_or("tools");
        let fields = FieldNames { prompt: prompt_field, grammar };
        Ok(Prepared {
            prompts,
            choices_per_prompt,
            request,
            method,
            ends_repetition,
            lines: self.lines,
            only_reads: self.given_limit().is_some_and(|(_, limit)| limit == 0),
            parser,
            fields,
            messages_left_out: 0,
        })
    }
}

/// Returns how many tokens an answer to a prompt has room for.
fn room(model: &Model, prompt_tokens: usize) -> usize {
    let context = model.generator.forerun().config().max_position_embeddings;
    context.saturating_sub(prompt_tokens).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fields::tests::{fields_are_known, nulls_are_absent};
    use serde_json::json;

    #[test]
    fn every_field_may_be_null() {
        for api in [Api::Completions, Api::Chat] {
            fields_are_known::<BodyFields>(&[api]);
        }
        let whole = json!({
            "model": "a", "prompt": "b", "suffix": "d", "messages": [{"role": "user", "content": "c"}],
            "max_tokens": 1, "max_completion_tokens": 1, "n_predict": 1, "n": 1, "best_of": 1, "echo": true,
            "logprobs": 1, "top_logprobs": 1, "stream": true,
            "stream_options": {"include_usage": true}, "speculation": "off",
            "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low", "verbosity": "low",
            "continue_final_message": true, "add_generation_prompt": false, "truncation": "auto",
            "token_details": true,
        });
        nulls_are_absent::<BodyFields>(&whole, &[]);
        nulls_are_absent::<StreamOptions>(&json!({"include_usage": true}), &[]);
        let speculation =
            json!({"method": "pearl", "drafter": "model", "draft_tokens": 3, "tree": "top:2x2"});
        nulls_are_absent::<Speculation>(&speculation, &[]);
    }
}

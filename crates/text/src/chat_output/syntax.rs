//! The syntaxes of families of models, and how they are recognised.

use super::harmony::HarmonyParser;
use super::markup::MarkupParser;
use super::{ChatParser, Kind, grammar};
use crate::chat_template::ChatTemplate;
use crate::grammar::Grammar;
use crate::tokenizer::Tokenizer;
use serde_json::Value;
use std::str::FromStr;

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The name by which the model calls it.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The JSON schema of the arguments.
    pub parameters: Value,
}

impl Tool {
    /// Returns the tool in the form of OpenAI's API, which chat templates read.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let Self { name, description, parameters } = self;
        serde_json::json!({
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters},
        })
    }
}

/// How a family of models writes tool calls between tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolSyntax {
    Hermes,
    Llama3,
    Mistral,
    DeepSeek,
    Glm,
    QwenCoder,
}

/// The tags of tool calls.
pub(super) struct CallTags {
    pub(super) open: &'static str,
    /// `None`: a call ends where the next one begins, or with the answer.
    pub(super) close: Option<&'static str>,
    /// Tags around all calls.
    pub(super) ignored: &'static [&'static str],
}

impl ToolSyntax {
    pub(super) fn tags(self) -> CallTags {
        let (open, close, ignored): (_, _, &[_]) = match self {
            Self::Hermes | Self::Glm | Self::QwenCoder => {
                ("<tool_call>", Some("</tool_call>"), &[])
            }
            Self::Llama3 => ("<|python_tag|>", None, &[]),
            Self::Mistral => ("[TOOL_CALLS]", None, &[]),
            Self::DeepSeek => (
                "<｜tool▁call▁begin｜>",
                Some("<｜tool▁call▁end｜>"),
                &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
            ),
        };
        CallTags { open, close, ignored }
    }
}

/// The tags around the reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReasoningTags {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

impl ReasoningTags {
    fn is_open(self, prompt_end: &str) -> bool {
        prompt_end.trim_end().ends_with(self.open)
    }
}

/// Which parts an answer may have, and the tags around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Markup {
    pub(super) reasoning: Option<ReasoningTags>,
    pub(super) calls: Option<ToolSyntax>,
}

const THINK: ReasoningTags = ReasoningTags { open: "<think>", close: "</think>" };
const MISTRAL_THINK: ReasoningTags = ReasoningTags { open: "[THINK]", close: "[/THINK]" };

/// How a model writes its reasoning and its tool calls.
///
/// Parsed from `hermes`, `llama3_json`, `mistral`, `deepseek`, `glm`, `qwen3_coder` and `harmony`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatSyntax(Family);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Markup { reasoning: Option<ReasoningTags>, calls: ToolSyntax },
    Harmony,
}

/// A name of a tool parser that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("there is no tool parser {name:?}: use one of {}", NAMES.map(|(name, _)| name).join(", "))]
pub struct UnknownSyntax {
    name: String,
}

const NAMES: [(&str, Option<ToolSyntax>); 7] = [
    ("hermes", Some(ToolSyntax::Hermes)),
    ("llama3_json", Some(ToolSyntax::Llama3)),
    ("mistral", Some(ToolSyntax::Mistral)),
    ("deepseek", Some(ToolSyntax::DeepSeek)),
    ("glm", Some(ToolSyntax::Glm)),
    ("qwen3_coder", Some(ToolSyntax::QwenCoder)),
    ("harmony", None),
];

impl FromStr for ChatSyntax {
    type Err = UnknownSyntax;

    fn from_str(name: &str) -> Result<Self, UnknownSyntax> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        let (_, calls) = found.ok_or_else(|| UnknownSyntax { name: name.to_owned() })?;
        Ok(Self(match *calls {
            None => Family::Harmony,
            Some(calls) => Family::Markup { reasoning: Some(reasoning_of(calls)), calls },
        }))
    }
}

fn reasoning_of(calls: ToolSyntax) -> ReasoningTags {
    match calls {
        ToolSyntax::Mistral => MISTRAL_THINK,
        _ => THINK,
    }
}

impl ChatSyntax {
    /// Recognises the syntax by the tags in a model's chat template. For a template that reads no
    /// tools, it is that of Hermes, which [`with_tools_as_text`](super::with_tools_as_text)
    /// explains to the model.
    #[must_use]
    pub fn of_template(template: &ChatTemplate) -> Self {
        let text = template.text();
        let has = |tag: &str| text.contains(tag);
        let calls = if has("<|channel|>") {
            return Self(Family::Harmony);
        } else if !template.reads_tools() {
            ToolSyntax::Hermes
        } else if has("tool▁call▁begin") {
            ToolSyntax::DeepSeek
        } else if has("[TOOL_CALLS]") {
            ToolSyntax::Mistral
        } else if has("<arg_key>") {
            ToolSyntax::Glm
        } else if has("<function=") {
            ToolSyntax::QwenCoder
        } else if has("<|python_tag|>") || has("<|start_header_id|>") {
            ToolSyntax::Llama3
        } else {
            ToolSyntax::Hermes
        };
        let reasons = |tags: &ReasoningTags| has(tags.open) || has(tags.close);
        Self(Family::Markup { reasoning: [THINK, MISTRAL_THINK].into_iter().find(reasons), calls })
    }

    /// Returns a parser for the answer to a prompt that ends with `prompt_end`.
    #[must_use]
    pub fn parser(self, tools: &[Tool], parallel: bool, prompt_end: &str) -> ChatParser {
        let opens = self.reasoning().is_some_and(|tags| tags.is_open(prompt_end));
        self.parser_from(tools, parallel, opens)
    }

    /// Returns a parser for the rest of an answer that begins with `begun`.
    #[must_use]
    pub fn continuing_parser(self, tools: &[Tool], parallel: bool, begun: &str) -> ChatParser {
        let opens = |tags: ReasoningTags| begun.rfind(tags.open) > begun.rfind(tags.close);
        self.parser_from(tools, parallel, self.reasoning().is_some_and(opens))
    }

    fn reasoning(self) -> Option<ReasoningTags> {
        match self.0 {
            Family::Harmony => None,
            Family::Markup { reasoning, .. } => reasoning,
        }
    }

    fn parser_from(self, tools: &[Tool], parallel: bool, in_reasoning: bool) -> ChatParser {
        let most_calls = if parallel { usize::MAX - 1 } else { 1 };
        match self.0 {
            Family::Harmony => ChatParser::new(Kind::Harmony(HarmonyParser::new()), most_calls),
            Family::Markup { reasoning: None, .. } if tools.is_empty() => ChatParser::plain(),
            Family::Markup { reasoning, calls } => {
                let calls = (!tools.is_empty()).then_some(calls);
                let markup = Markup { reasoning, calls };
                let parser = MarkupParser::new(markup, tools.to_vec(), in_reasoning);
                ChatParser::new(Kind::Markup(Box::new(parser)), most_calls)
            }
        }
    }

    /// Returns whether the tags around reasoning and calls may be special tokens, which are no text
    /// otherwise.
    #[must_use]
    pub fn has_special_tags(self, tools: &[Tool]) -> bool {
        match self.0 {
            Family::Harmony => true,
            Family::Markup { reasoning, .. } => reasoning.is_some() || !tools.is_empty(),
        }
    }

    /// Returns whether both have the same syntax of calls.
    #[cfg(test)]
    pub(super) fn calls_like(self, other: Self) -> bool {
        match (self.0, other.0) {
            (Family::Markup { calls, .. }, Family::Markup { calls: of_other, .. }) => {
                calls == of_other
            }
            (one, other) => one == other,
        }
    }

    /// Returns the grammar of an answer that calls one of the tools, or several with `parallel`. If
    /// the prompt's end begins a reasoning, the rest of it comes first.
    #[must_use]
    pub fn grammar(
        self,
        tools: &[Tool],
        parallel: bool,
        prompt_end: &str,
        tokenizer: &Tokenizer,
    ) -> Grammar {
        grammar::of_calls(self.close(prompt_end), self.calls(), tools, parallel, tokenizer)
    }

    /// Returns the grammar of an answer that calls tools as in [`ChatSyntax::grammar`], or else is
    /// a text with this format. `None`: a format with rules of its own cannot be combined with
    /// calls.
    #[must_use]
    pub fn grammar_or(
        self,
        format: &Grammar,
        tools: &[Tool],
        parallel: bool,
        prompt_end: &str,
        tokenizer: &Tokenizer,
    ) -> Option<Grammar> {
        let close = self.close(prompt_end);
        grammar::of_calls_or(close, format, self.calls(), tools, parallel, tokenizer)
    }

    /// Returns the grammar of an answer to a prompt that ends with `prompt_end`, which is the rest of
    /// a reasoning and then a text with this format. `None`: the prompt begins no reasoning, or the
    /// format has rules of its own, which are for the whole answer.
    #[must_use]
    pub fn format_after_reasoning(
        self,
        format: &Grammar,
        prompt_end: &str,
        tokenizer: &Tokenizer,
    ) -> Option<Grammar> {
        grammar::after_reasoning(format, self.close(prompt_end)?, tokenizer)
    }

    /// Returns the tag that ends the reasoning that the prompt's end begins.
    fn close(self, prompt_end: &str) -> Option<&'static str> {
        self.reasoning().filter(|tags| tags.is_open(prompt_end)).map(|tags| tags.close)
    }

    /// Returns the syntax of calls; `None` for Harmony.
    fn calls(self) -> Option<ToolSyntax> {
        match self.0 {
            Family::Harmony => None,
            Family::Markup { calls, .. } => Some(calls),
        }
    }
}

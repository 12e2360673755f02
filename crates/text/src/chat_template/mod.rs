//! Chat templates: from messages to the text format that a model was trained on.
//!
//! A template is a Jinja program in a checkpoint's folder. It is rendered as Hugging Face's
//! `apply_chat_template` renders it; tests compare the texts.
//!
//! Control tokens that the template writes (`<|eot_id|>`, `</s>`) are encoded as control tokens.
//! The same text within a message is encoded as ordinary text, so that a message cannot end its own
//! turn. Engines that tokenize the rendered text as a whole cannot distinguish the two.

mod budget;
mod files;
mod jinja;
mod message;
mod metered;
mod prompt_end;
mod python;
mod special_text;
mod turns;

#[cfg(test)]
mod goldens;

use crate::tokenizer::gguf::has_tokenizer;
use crate::tokenizer::{LongText, Tokenizer, TokenizerError, folder_of};
use files::{Files, Source};
use forerun_core::TokenId;
use forerun_formats::EmbeddedModel;
use forerun_formats::checkpoint::gguf::GgufFile;
use jinja::Jinja;
pub use message::{Message, TemplateArguments};
pub use prompt_end::PromptEnd;
use special_text::{SpecialText, unused_character};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
pub use turns::encode_latest_turns;

/// Why a chat template cannot be loaded, or cannot render messages.
#[derive(Debug, thiserror::Error)]
pub enum ChatTemplateError {
    /// A file cannot be read or parsed.
    #[error("cannot read the chat template of {file}: {reason}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The choice is neither a file nor the name of a template.
    #[error(
        "there is no chat template {choice:?}: give a file, or one of these: {}", names.join(", ")
    )]
    Unknown {
        /// The choice.
        choice: String,
        /// The names of the available templates.
        names: Vec<String>,
    },
    /// There are several templates, and none of them is the default.
    #[error(
        "{file} has several chat templates and none is the default: choose one with `chat_template`: \
         {}", names.join(", ")
    )]
    NoDefault {
        /// The file.
        file: PathBuf,
        /// The templates' names.
        names: Vec<String>,
    },
    /// The template is not valid Jinja.
    #[error("the chat template of {origin} cannot be used: {reason}")]
    Syntax {
        /// The origin of the template.
        origin: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The template refuses the messages, for the reason that it gives.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// The template renders the messages to an empty text.
    #[error(
        "the chat template has no text for these messages: choose another one with `chat_template`"
    )]
    Empty,
    /// The template does not show the content of the last message, which is to be continued.
    #[error(
        "the model's chat template does not repeat the last message, so it cannot be continued: end with a message of \
         the user"
    )]
    NotContinued,
    /// The template fails while it renders.
    #[error("the chat template of {origin} cannot render these messages: {reason}")]
    Render {
        /// The origin of the template.
        origin: String,
        /// What went wrong.
        reason: String,
    },
}

/// The name of the plain template.
const PLAIN: &str = "plain";

/// The template for models that ship none: the system message, then `User: …` and `Assistant:…`
/// lines.
///
/// Answers are repeated unchanged, including a leading space, so that the history has the tokens
/// that were generated.
const PLAIN_TEMPLATE: &str = "\
{% for message in messages %}
{% if message['role'] == 'system' %}
{{ message['content'] + '\n\n' }}
{%- elif message['role'] == 'user' %}
{{ 'User: ' + message['content'] + '\n' }}
{%- elif message['role'] == 'assistant' %}
{{ 'Assistant:' + message['content'] + '\n' }}
{%- else %}
{{ raise_exception('it supports the roles system, user and assistant, not ' + message['role']) }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ 'Assistant:' }}
{%- endif %}";

/// The stop string of the plain template: the model begins to write the user's next message.
const PLAIN_STOP: &str = "\nUser:";

/// A compiled chat template.
///
/// ```
/// use forerun_text::{ChatTemplate, Message};
///
/// let template = ChatTemplate::plain()?;
/// let text = template.render(&[Message::user("Hi"), Message::assistant(" Hello.")], false)?;
/// assert_eq!(text, "User: Hi\nAssistant: Hello.\n");
/// # Ok::<(), forerun_text::ChatTemplateError>(())
/// ```
pub struct ChatTemplate {
    jinja: Jinja,
    /// The checkpoint's special tokens, by names such as `bos_token` and `eos_token`.
    special_tokens: BTreeMap<String, String>,
    plain: bool,
}

impl ChatTemplate {
    /// Loads the template that a checkpoint ships: in a GGUF file with a tokenizer, or else in its
    /// folder (`chat_template.jinja`, or `chat_template` in `tokenizer_config.json`). A checkpoint
    /// without one gets the plain template.
    ///
    /// # Errors
    /// If a file is malformed, or there are several templates and none is the default.
    pub fn from_checkpoint(checkpoint: &Path) -> Result<Self, ChatTemplateError> {
        with_files(checkpoint, Self::from_files)
    }

    /// Returns the text of the default template that a checkpoint ships, if there is one.
    ///
    /// # Errors
    /// If a file is malformed.
    pub fn default_source(checkpoint: &Path) -> Result<Option<String>, ChatTemplateError> {
        let source = with_files(checkpoint, |files| files::shipped(files, None));
        match source {
            // Files with several templates need no default one.
            Err(ChatTemplateError::NoDefault { .. }) => Ok(None),
            source => Ok(source?.map(|source| source.text)),
        }
    }

    /// Returns a checkpoint's special tokens, by names such as `eos_token`.
    pub(crate) fn special_tokens(
        checkpoint: &Path,
    ) -> Result<BTreeMap<String, String>, ChatTemplateError> {
        with_files(checkpoint, files::special_tokens)
    }

    /// Loads the template of a model that is part of the program, as
    /// [`ChatTemplate::from_checkpoint`] does.
    ///
    /// # Errors
    /// As [`ChatTemplate::from_checkpoint`].
    pub fn from_embedded(model: &EmbeddedModel) -> Result<Self, ChatTemplateError> {
        Self::from_files(Files::Embedded(model))
    }

    fn from_files(files: Files<'_>) -> Result<Self, ChatTemplateError> {
        match files::shipped(files, None)? {
            Some(source) => Self::new(source, files::special_tokens(files)?),
            None => Self::plain(),
        }
    }

    /// Loads the template that `choice` names: a Jinja file, a template that the checkpoint ships
    /// under this name, or `plain`. The special tokens are the checkpoint's.
    ///
    /// # Errors
    /// If there is no such template, or it is malformed.
    pub fn choose(checkpoint: &Path, choice: &str) -> Result<Self, ChatTemplateError> {
        with_files(checkpoint, |files| Self::choose_among(files, choice))
    }

    /// Loads the template that `choice` names, as [`ChatTemplate::choose`] does, for a model that
    /// is part of the program.
    ///
    /// # Errors
    /// As [`ChatTemplate::choose`].
    pub fn choose_embedded(model: &EmbeddedModel, choice: &str) -> Result<Self, ChatTemplateError> {
        Self::choose_among(Files::Embedded(model), choice)
    }

    fn choose_among(files: Files<'_>, choice: &str) -> Result<Self, ChatTemplateError> {
        let file = Path::new(choice);
        if choice == PLAIN {
            return Self::plain();
        }
        let source = if file.is_file() {
            files::read_template(file)?
        } else if let Some(source) = files::shipped(files, Some(choice))? {
            source
        } else {
            let mut names = files::names(files)?;
            names.push(PLAIN.into());
            return Err(ChatTemplateError::Unknown { choice: choice.into(), names });
        };
        Self::new(source, files::special_tokens(files)?)
    }

    /// Returns the fallback for models without a template: lines that begin with `User:` and
    /// `Assistant:`.
    ///
    /// # Errors
    /// Never in practice: the built-in template compiles.
    pub fn plain() -> Result<Self, ChatTemplateError> {
        let source = Source { text: PLAIN_TEMPLATE.into(), origin: "this program".into() };
        let plain = Self::new(source, BTreeMap::new())?;
        Ok(Self { plain: true, ..plain })
    }

    fn new(
        source: Source,
        special_tokens: BTreeMap<String, String>,
    ) -> Result<Self, ChatTemplateError> {
        Ok(Self { jinja: Jinja::new(source)?, special_tokens, plain: false })
    }

    /// Returns whether this is the plain template, which no model was trained on.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Returns the stop string that ends an answer. Only the plain template needs one.
    #[must_use]
    pub fn stop(&self) -> Option<&str> {
        self.plain.then_some(PLAIN_STOP)
    }

    /// Returns the text of the checkpoint's `eos_token`, which ends a turn.
    #[must_use]
    pub fn eos_token(&self) -> Option<&str> {
        self.special_tokens.get("eos_token").map(String::as_str)
    }

    /// Returns whether the template reads a list of tools.
    #[must_use]
    pub fn reads_tools(&self) -> bool {
        self.jinja.text().contains("tools")
    }

    /// Returns the template's text, a Jinja program.
    #[must_use]
    pub fn text(&self) -> &str {
        self.jinja.text()
    }

    /// Renders a conversation without tools. With `answer`, the text ends with the beginning of an
    /// answer (`add_generation_prompt` in Hugging Face's terms).
    ///
    /// # Errors
    /// If the template refuses the messages or fails.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String, ChatTemplateError> {
        self.render_with(messages, &TemplateArguments::default(), answer)
    }

    /// Renders a conversation as [`Self::render`] does, with more for the template to read.
    ///
    /// # Errors
    /// If the template refuses the messages or fails.
    pub fn render_with(
        &self,
        messages: &[Message],
        arguments: &TemplateArguments,
        answer: bool,
    ) -> Result<String, ChatTemplateError> {
        self.jinja.render(messages, arguments, answer, &self.special_tokens)
    }

    /// Renders a conversation with the beginning of an answer, and encodes it.
    ///
    /// Templates write BOS themselves, so the tokenizer adds none. The text of the plain template
    /// is encoded like any other text, with BOS if the tokenizer adds it. Special tokens within
    /// messages are encoded as ordinary text.
    ///
    /// # Errors
    /// If the template refuses the messages, fails, or renders an empty text, or if the text cannot
    /// be encoded.
    pub fn encode(
        &self,
        messages: &[Message],
        tokenizer: &Tokenizer,
    ) -> Result<Vec<TokenId>, EncodeError> {
        let (arguments, end) = (TemplateArguments::default(), PromptEnd::NewMessage);
        self.encode_within(messages, &arguments, end, tokenizer, usize::MAX)
    }

    /// Encodes a conversation as [`Self::encode`] does, unless it certainly has `limit` tokens or
    /// more. `end` is the end of the prompt.
    ///
    /// # Errors
    /// As [`Self::encode`], and if the conversation has too many tokens.
    pub fn encode_within(
        &self,
        messages: &[Message],
        arguments: &TemplateArguments,
        end: PromptEnd,
        tokenizer: &Tokenizer,
        limit: usize,
    ) -> Result<Vec<TokenId>, EncodeError> {
        let mark = unused_character(messages, arguments);
        let special = SpecialText { tokens: tokenizer.special_tokens(), mark };
        let messages: Vec<Message> =
            messages.iter().map(|one| special.split_message(one)).collect();
        let text = self.render_until(end, &messages, &special.split_arguments(arguments))?;
        // Without the marks there are at most as many tokens.
        if let Some(long) = tokenizer.too_long(&text.replace(mark, ""), limit)? {
            let LongText { bytes, tokens } = long;
            return Err(EncodeError::TooLong { bytes, tokens, limit });
        }
        let mut tokens = Vec::new();
        for (number, part) in text.split(mark).enumerate() {
            tokens.extend(tokenizer.encode_part(part, self.plain && number == 0)?);
        }
        if tokens.is_empty() {
            return Err(ChatTemplateError::Empty.into());
        }
        Ok(tokens)
    }
}

/// Calls a function with the files that hold a checkpoint's templates.
fn with_files<T>(
    checkpoint: &Path,
    load: impl FnOnce(Files<'_>) -> Result<T, ChatTemplateError>,
) -> Result<T, ChatTemplateError> {
    let found = GgufFile::find(checkpoint).map_err(|error| ChatTemplateError::Unreadable {
        file: checkpoint.to_owned(),
        reason: error.to_string(),
    })?;
    match found.filter(|file| has_tokenizer(file.metadata())) {
        Some(file) => load(Files::Gguf(file.metadata())),
        None => load(Files::Folder(folder_of(checkpoint))),
    }
}

/// Why a conversation cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The template cannot render it.
    #[error(transparent)]
    Template(#[from] ChatTemplateError),
    /// The tokenizer cannot encode its text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A part of its text is too long to be tokenized as a whole.
    #[error(
        "the conversation has a text of {bytes} bytes, about {tokens} tokens, but the model has a \
         context of {limit}: shorten it"
    )]
    TooLong {
        /// The length of the text in bytes.
        bytes: usize,
        /// An estimate of the number of the text's tokens.
        tokens: usize,
        /// The most tokens that are encoded.
        limit: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_template_names_the_speakers() -> Result<(), ChatTemplateError> {
        let template = ChatTemplate::plain()?;
        let messages = [
            Message::system("Be kind."),
            Message::user("Hi"),
            Message::assistant(" Hello."),
            Message::user("Why?"),
        ];
        let text = template.render(&messages, true)?;
        let expected = "Be kind.\n\nUser: Hi\nAssistant: Hello.\nUser: Why?\nAssistant:";
        assert_eq!(text, expected);
        let refused = template
            .render(&[Message::new("tool", "4")], true)
            .err()
            .map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains("not tool")));
        Ok(())
    }
}

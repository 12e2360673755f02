//! Messages to the text that a model was trained to see: chat templates.
//!
//! A template is a Jinja program that lies beside a checkpoint. It is rendered as Hugging Face's
//! `apply_chat_template` renders it, which the tests compare text by text.
//!
//! Control tokens that the template writes (`<|eot_id|>`, `</s>`) become those tokens. The same
//! spelling within a message does not: a message is what somebody wrote, and must not end its own
//! turn. Other engines tokenize the rendered text as a whole and cannot tell the two apart.

mod files;
mod jinja;

#[cfg(test)]
mod goldens;

use crate::tokenizer::{Tokenizer, TokenizerError};
use files::Source;
use forerun_core::TokenId;
use jinja::Jinja;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or whatever else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// What the model is to keep to.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: "system".into(), content: content.into() }
    }

    /// What the user says.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user".into(), content: content.into() }
    }

    /// What the model answered.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self { role: "assistant".into(), content: content.into() }
    }
}

/// Why there is no template, or no text from it.
#[derive(Debug, thiserror::Error)]
pub enum ChatTemplateError {
    /// A file that cannot be read or makes no sense.
    #[error("cannot read the chat template of {file}: {reason}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Neither a file nor a name.
    #[error(
        "there is no chat template {choice:?}: give a file, or one of these: {}", names.join(", ")
    )]
    Unknown {
        /// What was asked for.
        choice: String,
        /// What there is.
        names: Vec<String>,
    },
    /// Several templates, of which none is the default.
    #[error(
        "{file} has several chat templates and none is the default: choose one with --chat-template: \
         {}", names.join(", ")
    )]
    NoDefault {
        /// The file.
        file: PathBuf,
        /// The templates' names.
        names: Vec<String>,
    },
    /// A template that is no Jinja.
    #[error("the chat template of {origin} cannot be used: {reason}")]
    Syntax {
        /// Where it comes from.
        origin: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Messages that the template refuses, in its own words.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// A template that has no text for messages.
    #[error(
        "the chat template has no text for these messages: choose another one with --chat-template"
    )]
    Empty,
    /// A template that failed.
    #[error("the chat template of {origin} cannot render these messages: {reason}")]
    Render {
        /// Where it comes from.
        origin: String,
        /// What went wrong.
        reason: String,
    },
}

/// What the plain template is called.
const PLAIN: &str = "plain";

/// For models that ship no template: `User: …`, `Assistant:…`, a system message in front.
///
/// An answer is repeated as it came, its leading space included, so that the tokens of the history
/// are the tokens that were generated.
const PLAIN_TEMPLATE: &str = "\
{% for message in messages %}
{% if message['role'] == 'system' %}
{{ message['content'] + '\n\n' }}
{%- elif message['role'] == 'user' %}
{{ 'User: ' + message['content'] + '\n' }}
{%- elif message['role'] == 'assistant' %}
{{ 'Assistant:' + message['content'] + '\n' }}
{%- else %}
{{ raise_exception('it knows the roles system, user and assistant, not ' + message['role']) }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ 'Assistant:' }}
{%- endif %}";

/// Where the plain template's answer ends: there the model begins to speak for the user.
const PLAIN_STOP: &str = "\nUser:";

/// A chat template, ready to render.
pub struct ChatTemplate {
    jinja: Jinja,
    /// `bos_token`, `eos_token` and the like, as the checkpoint spells them.
    special_tokens: BTreeMap<String, String>,
    plain: bool,
}

impl ChatTemplate {
    /// The template that a checkpoint ships (`chat_template.jinja`, or `chat_template` in
    /// `tokenizer_config.json`), or the plain one where it ships none.
    ///
    /// # Errors
    /// If the files are broken, or several templates have no default.
    pub fn from_checkpoint(checkpoint: &Path) -> Result<Self, ChatTemplateError> {
        let folder = folder_of(checkpoint);
        match files::shipped(folder, None)? {
            Some(source) => Self::new(source, files::special_tokens(folder)?),
            None => Self::plain(),
        }
    }

    /// The template of a file, or one that the checkpoint ships under a name, or `plain`. The names
    /// of special tokens are the checkpoint's.
    ///
    /// # Errors
    /// If there is no such template, or it is broken.
    pub fn choose(checkpoint: &Path, choice: &str) -> Result<Self, ChatTemplateError> {
        let (folder, file) = (folder_of(checkpoint), Path::new(choice));
        if choice == PLAIN {
            return Self::plain();
        }
        let source = if file.is_file() {
            files::read_template(file)?
        } else if let Some(source) = files::shipped(folder, Some(choice))? {
            source
        } else {
            let mut names = files::names(folder)?;
            names.push(PLAIN.into());
            return Err(ChatTemplateError::Unknown { choice: choice.into(), names });
        };
        Self::new(source, files::special_tokens(folder)?)
    }

    /// The fallback for models without a template: lines that begin with `User:` and `Assistant:`.
    ///
    /// # Errors
    /// None; it is a template like the others.
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

    /// Whether it is the fallback, which no model was trained with.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// The text that ends an answer, where no token does.
    #[must_use]
    pub fn stop(&self) -> Option<&str> {
        self.plain.then_some(PLAIN_STOP)
    }

    /// The token that ends a turn, as the checkpoint spells it.
    #[must_use]
    pub fn eos_token(&self) -> Option<&str> {
        self.special_tokens.get("eos_token").map(String::as_str)
    }

    /// The text of a conversation, with the beginning of an answer behind it if `answer` follows.
    ///
    /// # Errors
    /// If the template refuses the messages or fails.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String, ChatTemplateError> {
        self.jinja.render(messages, answer, &self.special_tokens)
    }

    /// The tokens of a conversation, up to where the answer begins.
    ///
    /// A template writes BOS itself, so nothing is put in front of its text; the plain template's
    /// text is a text like any other, so it gets what the tokenizer gives to all.
    ///
    /// # Errors
    /// If the template refuses the messages, fails or has no text for them, or the text cannot be
    /// encoded.
    pub fn encode(
        &self,
        messages: &[Message],
        tokenizer: &Tokenizer,
    ) -> Result<Vec<TokenId>, EncodeError> {
        let mark = unused_mark(messages);
        let special = tokenizer.special_tokens();
        let apart = |message: &Message| Message {
            role: message.role.clone(),
            content: take_apart(&message.content, &special, mark),
        };
        let messages: Vec<Message> = messages.iter().map(apart).collect();
        let text = self.render(&messages, true)?;
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

/// Why a conversation has no tokens.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// It has no text.
    #[error(transparent)]
    Template(#[from] ChatTemplateError),
    /// Its text has no tokens.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

fn folder_of(checkpoint: &Path) -> &Path {
    if checkpoint.is_dir() {
        return checkpoint;
    }
    checkpoint.parent().unwrap_or(Path::new("."))
}

/// One of the characters that Unicode sets aside for a program's own use and that no message has.
fn unused_mark(messages: &[Message]) -> char {
    let unused = |mark: &char| !messages.iter().any(|message| message.content.contains(*mark));
    // A message with all 32 of them loses nothing but the place where it is cut.
    ('\u{FDD0}'..='\u{FDEF}').find(unused).unwrap_or('\u{FDD0}')
}

/// Puts `mark` behind the first character of every special token in `text`, so that none is left
/// when the text is split there. A tokenizer that begins every text with a space does so behind the
/// mark, too, where one stands.
fn take_apart(text: &str, special: &[String], mark: char) -> String {
    let mut apart = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        apart.push(character);
        let begins = |token: &String| token.chars().count() > 1 && text[at..].starts_with(token);
        if special.iter().any(begins) {
            apart.push(mark);
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_within_a_message_are_taken_apart() {
        let special = ["<s>".to_owned(), "</s>".to_owned(), "<<s>".to_owned(), "|".to_owned()];
        let apart = |text: &str| take_apart(text, &special, '*');
        assert_eq!(apart("plain"), "plain");
        assert_eq!(apart("a <s> b</s>"), "a <*s> b<*/s>");
        // Tokens that overlap leave none behind.
        assert_eq!(apart("<<s>"), "<*<*s>");
        // One character cannot be cut.
        assert_eq!(apart("a|b"), "a|b");
    }

    #[test]
    fn the_mark_is_a_character_that_no_message_has() {
        assert_eq!(unused_mark(&[Message::user("hello")]), '\u{FDD0}');
        let first = [Message::user("\u{FDD0}"), Message::assistant("\u{FDD1}")];
        assert_eq!(unused_mark(&first), '\u{FDD2}');
    }

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
        let tool = Message { role: "tool".into(), content: "4".into() };
        let refused = template.render(&[tool], true).err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains("not tool")));
        Ok(())
    }
}

//! Text to tokens and back: tokenizers, chat templates, grammars, and the syntax in which models
//! write reasoning and calls of tools.
//!
//! This crate reads the files of checkpoints and knows nothing of engines: neither models, decoders
//! and workers nor the facade. [`Tokenizer`] and [`ChatTemplate`] make a prompt's tokens;
//! [`TextStream`], [`StopFilter`] and [`ChatParser`] read an answer's. A [`Grammar`] becomes a
//! constraint on tokens ([`GrammarCompiler`]).

mod chat_output;
mod chat_template;
mod grammar;
mod infill;
mod integers;
mod repetition;
mod sequence_breakers;
mod text_stream;
mod text_windows;
mod tokenizer;

pub use chat_output::{ChatParser, ChatPart, ChatSyntax, Tool, UnknownSyntax, with_tools_as_text};
pub use chat_template::{
    ChatTemplate, ChatTemplateError, EncodeError, Message, PromptEnd, TemplateArguments,
    encode_latest_turns,
};
pub use grammar::{Grammar, GrammarCompiler, GrammarConstraint, GrammarError, GrammarKind};
pub use infill::{Gap, InfillTokens};
pub use integers::{large_integer, too_large as integer_too_large};
pub use repetition::repeats_itself;
pub use sequence_breakers::SequenceBreakers;
pub use text_stream::{Passed, StopFilter, TextStream};
pub use text_windows::{DEFAULT_WINDOW, text_windows};
pub use tokenizer::{
    GgufTokenizer, GgufTokenizerError, LongText, SpecialTokens, Tokenizer, TokenizerError,
};

//! What `tokenizer_config.json` adds to a `tokenizer.json`.

use super::{CONFIG, TOKENIZER, TokenizerError};
use forerun_core::TokenId;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokenizers::{AddedToken, Tokenizer};

/// The options of a `tokenizer_config.json`.
pub(super) struct TokenizerConfig {
    options: Options,
    file: PathBuf,
}

/// The options that are used here.
#[derive(Default, serde::Deserialize)]
struct Options {
    add_bos_token: Option<bool>,
    bos_token: Option<SpecialToken>,
    add_eos_token: Option<bool>,
    eos_token: Option<SpecialToken>,
    added_tokens_decoder: Option<BTreeMap<TokenId, ListedToken>>,
}

/// A special token in the file: its text, or an object with the text.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Object { content: String },
}

/// An entry of `added_tokens_decoder`, with the defaults of transformers.
#[derive(serde::Deserialize)]
struct ListedToken {
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
    normalized: Option<bool>,
}

impl ListedToken {
    fn to_added(&self) -> AddedToken {
        AddedToken::from(&*self.content, self.special)
            .normalized(self.normalized.unwrap_or(!self.special))
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .single_word(self.single_word)
    }
}

impl TokenizerConfig {
    /// Parses the file beside the tokenizer's `file`. Without `text` it has no options.
    pub(super) fn parse(file: &Path, text: Option<&str>) -> Result<Self, TokenizerError> {
        let file = file.with_file_name(CONFIG);
        match text.map_or_else(|| Ok(Options::default()), serde_json::from_str) {
            Ok(options) => Ok(Self { options, file }),
            Err(error) => Err(TokenizerError::Broken { file, reason: error.to_string() }),
        }
    }

    fn broken(&self, reason: String) -> TokenizerError {
        TokenizerError::Broken { file: self.file.clone(), reason }
    }

    /// Adds the tokens of `added_tokens_decoder` to a tokenizer, as transformers does: those that
    /// it lacks, and the flags of the others. A token that the tokenizer has keeps its id.
    ///
    /// # Errors
    /// If a new token cannot get its id, because another token has it or there is a gap before it.
    pub(super) fn add_tokens(&self, tokenizer: &mut Tokenizer) -> Result<(), TokenizerError> {
        let listed = self.options.added_tokens_decoder.iter().flatten();
        let known = tokenizer.get_added_tokens_decoder();
        let added: Vec<(TokenId, AddedToken)> = listed
            .map(|(id, token)| (*id, token.to_added()))
            .filter(|(_, token)| known.values().all(|other| other != token))
            .collect();
        let is_new = |token: &AddedToken| tokenizer.token_to_id(&token.content).is_none();
        let new = added.iter().filter(|(_, token)| is_new(token));
        let new: Vec<_> = new.map(|(id, token)| (*id, token, tokenizer.id_to_token(*id))).collect();
        let tokens = added.iter().map(|(_, token)| token.clone());
        tokenizer.add_tokens(tokens).map_err(|error| self.broken(error.to_string()))?;
        for (id, AddedToken { content, .. }, other) in new {
            let next = match tokenizer.token_to_id(content) {
                Some(found) if found == id => continue,
                found => found.unwrap_or_default(),
            };
            let reason = match other {
                Some(other) => format!("there it is {other:?}"),
                None => format!("its next token is {next}, and the list names none before {id}"),
            };
            return Err(self.broken(format!(
                "its added_tokens_decoder has {content:?} as token {id}, which is not in \
                 tokenizer.json, but {reason}"
            )));
        }
        Ok(())
    }

    /// Returns the token to put in front of every text, for a tokenizer that adds none:
    /// `bos_token`, if there is `"add_bos_token": true`.
    ///
    /// # Errors
    /// If it is no token.
    pub(super) fn bos(&self, tokenizer: &Tokenizer) -> Result<Option<TokenId>, TokenizerError> {
        let Options { add_bos_token, bos_token, .. } = &self.options;
        self.added("bos_token", *add_bos_token, bos_token.as_ref(), tokenizer)
    }

    /// Returns the token to put after every text of a model for embeddings (one with
    /// `modules.json`), for a tokenizer that adds none: `eos_token`, if there is `"add_eos_token":
    /// true`.
    ///
    /// # Errors
    /// If it is no token.
    pub(super) fn eos(&self, tokenizer: &Tokenizer) -> Result<Option<TokenId>, TokenizerError> {
        if !self.file.with_file_name("modules.json").exists() {
            return Ok(None);
        }
        let Options { add_eos_token, eos_token, .. } = &self.options;
        self.added("eos_token", *add_eos_token, eos_token.as_ref(), tokenizer)
    }

    fn added(
        &self,
        option: &str,
        is_added: Option<bool>,
        token: Option<&SpecialToken>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<TokenId>, TokenizerError> {
        let (Some(true), Some(token)) = (is_added, token) else { return Ok(None) };
        let (SpecialToken::Text(content) | SpecialToken::Object { content }) = token;
        match tokenizer.token_to_id(content) {
            Some(id) => Ok(Some(id)),
            None => {
                let tokenizer = self.file.with_file_name(TOKENIZER);
                let reason = format!("its {option} {content:?} is not a token of {tokenizer:?}");
                Err(self.broken(reason))
            }
        }
    }
}

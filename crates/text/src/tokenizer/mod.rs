//! Tokenizers: text to tokens and back.

pub(crate) mod gguf;
mod gguf_metadata;
mod length;
pub(crate) mod llama2c;
mod scored_pieces;
mod spelling;
mod splitting;
mod tokenizer_config;

use forerun_core::TokenId;
use forerun_formats::checkpoint::gguf::{GgufFile, GgufMetadata};
use forerun_formats::{Checkpoint, EmbeddedModel, LoadError, known_ends};
pub use gguf_metadata::{GgufTokenizer, GgufTokenizerError};
pub use length::LongText;
use spelling::Spelling;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tokenizer_config::TokenizerConfig;
use tokenizers::{AddedToken, ModelWrapper};

/// The file of a tokenizer.
const TOKENIZER: &str = "tokenizer.json";
/// The file of the tokenizer's options.
const CONFIG: &str = "tokenizer_config.json";

/// A checkpoint's tokenizer.
///
/// ```
/// use forerun_formats::checkpoint::random::byte_pair_tokenizer;
/// use forerun_text::Tokenizer;
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// std::fs::write(folder.join("tokenizer.json"), byte_pair_tokenizer(0).to_string())?;
/// let tokenizer = Tokenizer::from_checkpoint(folder)?;
/// let tokens = tokenizer.encode("Hello")?;
/// assert_eq!(tokenizer.decode(&tokens), "Hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    file: PathBuf,
    /// The BOS token to add to every text, if `inner` does not add it.
    bos: Option<TokenId>,
    /// The EOS token to add to every text, if `inner` does not add it.
    eos: Option<TokenId>,
    /// Control tokens, which have no text.
    control: HashSet<TokenId>,
    /// Tokens that no text is encoded as, with those of the same text that it is encoded as.
    same_text: HashMap<TokenId, TokenId>,
    /// The tokens that end an answer by their text.
    ends: Vec<TokenId>,
    /// The tokens before prefix, suffix and middle of a text with a gap that a GGUF file names.
    infill: [Option<TokenId>; 3],
    /// The bytes of tokens, or why they are not known.
    spelling: Result<Spelling, String>,
    /// The most bytes of a text that one token stands for.
    longest_token: usize,
    /// `inner`, but special tokens in a text are text. Made when it is first needed.
    without_special: OnceLock<Box<tokenizers::Tokenizer>>,
}

/// The special tokens of a text that is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Whether to add those that belong around every text, such as BOS.
    pub add: bool,
    /// Whether the texts of special tokens become these tokens. If not, they are text like any
    /// other.
    pub parse: bool,
}

/// Why a tokenizer cannot be loaded, or cannot encode a text.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// There is no tokenizer file.
    #[error(
        "no tokenizer for {0}: expected tokenizer.json (Hugging Face) or tok*.bin (llama2.c) in its \
         folder, or a tokenizer within a GGUF file"
    )]
    Missing(PathBuf),
    /// A GGUF file is malformed, or the model, whose size decides between its tokenizers, cannot be
    /// opened.
    #[error(transparent)]
    Load(Box<LoadError>),
    /// A GGUF file has a kind of tokenizer that is not supported.
    #[error(
        "cannot use the tokenizer of {file}: its {option} is {found:?}, and only these are supported: \
         {supported}"
    )]
    Unsupported {
        /// The GGUF file.
        file: PathBuf,
        /// The option of its metadata.
        option: &'static str,
        /// The option's value.
        found: String,
        /// The supported values.
        supported: String,
    },
    /// None of the tokenizers belongs to the model.
    #[error(
        "no tokenizer for {model}, which has {expected} tokens: {}; copy the model's own tokenizer to \
         its folder, as tokenizer.json (Hugging Face) or tok*.bin (llama2.c)",
        llama2c::sizes(found)
    )]
    Size {
        /// The model's checkpoint.
        model: PathBuf,
        /// The number of the model's tokens.
        expected: usize,
        /// The llama2.c tokenizers in its folder, and the numbers of their tokens.
        found: Vec<(PathBuf, usize)>,
    },
    /// A file cannot be read or parsed.
    #[error("cannot load the tokenizer {file}: {reason}")]
    Broken {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A character without a token, in a vocabulary without an unknown token.
    #[error(
        "cannot encode {character:?}: {file} has neither a token for it nor an unknown token, so leave \
         it out"
    )]
    Character {
        /// The tokenizer's file.
        file: PathBuf,
        /// The text's first such character.
        character: char,
    },
    /// A text cannot be encoded.
    #[error("cannot encode the text with {file}: {reason}")]
    Encode {
        /// The tokenizer's file.
        file: PathBuf,
        /// The library's message.
        reason: String,
    },
}

impl From<LoadError> for TokenizerError {
    fn from(error: LoadError) -> Self {
        Self::Load(Box::new(error))
    }
}

impl Tokenizer {
    /// Loads the tokenizer within a GGUF file, or else that in the checkpoint's folder:
    /// `tokenizer.json`, or the llama2.c tokenizer (`tok*.bin`) with as many tokens as the model.
    ///
    /// # Errors
    /// If there is none, it is malformed, or a GGUF file has one of an unsupported kind. For a
    /// llama2.c tokenizer, if the model cannot be opened.
    pub fn from_checkpoint(checkpoint: &Path) -> Result<Self, TokenizerError> {
        let vocab_size = || Ok(Checkpoint::open(checkpoint)?.config().vocab_size);
        Self::find(checkpoint, vocab_size)
    }

    /// Loads the tokenizer of an open checkpoint, as [`Tokenizer::from_checkpoint`] does.
    ///
    /// # Errors
    /// As [`Tokenizer::from_checkpoint`].
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Self, TokenizerError> {
        Self::find(checkpoint.path(), || Ok(checkpoint.config().vocab_size))
    }

    fn find(
        checkpoint: &Path,
        vocab_size: impl FnOnce() -> Result<usize, TokenizerError>,
    ) -> Result<Self, TokenizerError> {
        if let Some(file) =
            GgufFile::find(checkpoint)?.filter(|file| gguf::has_tokenizer(file.metadata()))
        {
            return Self::from_gguf(file.metadata());
        }
        let folder = folder_of(checkpoint);
        let json = folder.join(TOKENIZER);
        if json.is_file() {
            return Self::read_json(json);
        }
        let files = llama2c::files(folder);
        if files.is_empty() {
            return Err(TokenizerError::Missing(checkpoint.to_owned()));
        }
        let expected = vocab_size()?;
        let (mut found, mut broken) = (Vec::new(), None);
        for file in files {
            match llama2c::read(&file) {
                Ok(pieces) if pieces.len() == expected => return Self::from_llama2c(file, &pieces),
                Ok(pieces) => found.push((file, pieces.len())),
                Err(error) => broken = broken.or(Some(error)),
            }
        }
        let model = checkpoint.to_owned();
        Err(broken.unwrap_or(TokenizerError::Size { model, expected, found }))
    }

    /// Loads the `tokenizer.json` of a model that is part of the program.
    ///
    /// # Errors
    /// If there is none, or it is malformed.
    pub fn from_embedded(model: &EmbeddedModel) -> Result<Self, TokenizerError> {
        let file = model.path().join(TOKENIZER);
        let Some(json) = model.text(TOKENIZER) else { return Err(TokenizerError::Missing(file)) };
        Self::from_json(file, json, model.text(CONFIG))
    }

    /// Builds the tokenizer that a GGUF file's metadata describe. A whole `tokenizer.json` among
    /// them takes precedence, because it describes rules that llama.cpp lacks.
    fn from_gguf(metadata: GgufMetadata<'_>) -> Result<Self, TokenizerError> {
        let file = metadata.path();
        let infill = gguf::infill(metadata)?;
        let Some(json) = metadata.text(gguf::JSON)? else {
            let gguf::GgufTokenizer { inner, bos, eos, control, same_text } = gguf::read(metadata)?;
            let tokenizer = Self::with(inner, file.to_owned(), bos, control)?;
            return Ok(Self { eos, same_text, infill, ..tokenizer });
        };
        let inner = parse(file, json)?;
        let tokenizer = Self::from_huggingface(inner, file.to_owned(), |_| gguf::bos(metadata))?;
        Ok(Self { infill, ..tokenizer })
    }

    /// Reads a `tokenizer.json` and, if there is one, the `tokenizer_config.json` beside it.
    fn read_json(file: PathBuf) -> Result<Self, TokenizerError> {
        let broken = |file: PathBuf, error: std::io::Error| TokenizerError::Broken {
            file,
            reason: error.to_string(),
        };
        let json = match std::fs::read_to_string(&file) {
            Ok(json) => json,
            Err(error) => return Err(broken(file, error)),
        };
        let config_file = file.with_file_name(CONFIG);
        let config = match std::fs::read_to_string(&config_file) {
            Ok(config) => Some(config),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(broken(config_file, error)),
        };
        Self::from_json(file, &json, config.as_deref())
    }

    /// Parses the contents of a `tokenizer.json` and of its `tokenizer_config.json`.
    fn from_json(file: PathBuf, json: &str, config: Option<&str>) -> Result<Self, TokenizerError> {
        let mut inner = parse(&file, json)?;
        let config = TokenizerConfig::parse(&file, config)?;
        config.add_tokens(&mut inner)?;
        let eos = config.eos(&inner)?;
        let mut tokenizer = Self::from_huggingface(inner, file, |inner| config.bos(inner))?;
        tokenizer.eos = eos.filter(|eos| !tokenizer.ends_texts_with(*eos));
        Ok(tokenizer)
    }

    /// Whether the tokenizer itself adds a token after every text.
    fn ends_texts_with(&self, token: TokenId) -> bool {
        let empty = self.inner.encode("", true);
        empty.is_ok_and(|empty| empty.get_ids().last() == Some(&token))
    }

    /// Completes the tokenizer of a `tokenizer.json`. `configured_bos` returns the token to put in
    /// front of every text if the tokenizer itself adds none.
    fn from_huggingface(
        mut inner: tokenizers::Tokenizer,
        file: PathBuf,
        configured_bos: impl FnOnce(&tokenizers::Tokenizer) -> Result<Option<TokenId>, TokenizerError>,
    ) -> Result<Self, TokenizerError> {
        refuse_unknown_characters(&mut inner);
        let empty = inner.encode("", true).map_err(|error| broken(&file, &error))?;
        let adds_special_tokens = empty.get_special_tokens_mask().contains(&1);
        let bos = if adds_special_tokens { None } else { configured_bos(&inner)? };
        Self::with(inner, file, bos, HashSet::new())
    }

    /// Completes a tokenizer. `control` are the control tokens that `inner` does not know.
    fn with(
        mut inner: tokenizers::Tokenizer,
        file: PathBuf,
        bos: Option<TokenId>,
        mut control: HashSet<TokenId>,
    ) -> Result<Self, TokenizerError> {
        let vocabulary = inner.get_vocab(true);
        // Neither the alphabet of byte-level tokenizers nor that of sentencepiece is shorter than
        // the text that it stands for.
        let longest_token = vocabulary.keys().map(String::len).max().unwrap_or(0);
        let ends = mark_ends(&mut inner, &vocabulary).map_err(|error| broken(&file, &error))?;
        let added = inner.get_added_tokens_decoder().into_iter();
        control.extend(added.filter(|(_, token)| token.special).map(|(id, _)| id));
        let decoder = serde_json::to_value(inner.get_decoder()).unwrap_or_default();
        Ok(Self {
            inner,
            file,
            bos,
            eos: None,
            control,
            same_text: HashMap::new(),
            ends,
            infill: [None; 3],
            spelling: Spelling::new(&decoder),
            longest_token,
            without_special: OnceLock::new(),
        })
    }

    #[cfg(test)]
    pub(crate) fn of(inner: tokenizers::Tokenizer) -> Result<Self, TokenizerError> {
        Self::with(inner, PathBuf::new(), None, HashSet::new())
    }

    /// Builds the tokenizer of a llama2.c file from its pieces.
    fn from_llama2c(file: PathBuf, pieces: &[llama2c::Piece]) -> Result<Self, TokenizerError> {
        let inner = llama2c::byte_pair_tokenizer(pieces).map_err(|error| broken(&file, &error))?;
        Self::with(inner, file, Some(1), HashSet::from([0, 1, 2]))
    }

    /// Returns the tokenizer as the text of a `tokenizer.json`, whatever file it was read from.
    ///
    /// # Errors
    /// If the tokenizer cannot be serialized.
    pub fn to_json(&self) -> Result<String, TokenizerError> {
        self.inner.to_string(false).map_err(|error| broken(&self.file, &error))
    }

    /// Returns the entries of `tokenizer_config.json` that [`Self::to_json`] does not contain.
    #[must_use]
    pub fn config_json(&self) -> serde_json::Value {
        let bos = self.bos.and_then(|token| self.inner.id_to_token(token));
        serde_json::json!({ "add_bos_token": bos.is_some(), "bos_token": bos })
    }

    /// Encodes a text, with BOS in front, and EOS at the end, if the checkpoint's files say so.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with(text, SpecialTokens { add: true, parse: true })
    }

    /// Encodes a text as [`Self::encode`] does, with other special tokens.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    ///
    /// ```
    /// use forerun_formats::checkpoint::random::byte_pair_tokenizer;
    /// use forerun_text::{SpecialTokens, Tokenizer};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// std::fs::write(folder.join("tokenizer.json"), byte_pair_tokenizer(0).to_string())?;
    /// let tokenizer = Tokenizer::from_checkpoint(folder)?;
    /// let encode = |add, parse| tokenizer.encode_with("</s>", SpecialTokens { add, parse });
    /// assert_eq!(encode(true, true)?.len(), 2);
    /// assert_eq!(encode(false, true)?.len(), 1);
    /// assert_eq!(tokenizer.decode(&encode(false, false)?), "</s>");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn encode_with(
        &self,
        text: &str,
        special: SpecialTokens,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let without_special = || {
            let mut inner = Box::new(self.inner.clone());
            inner.set_encode_special_tokens(true);
            inner
        };
        let inner = match special.parse {
            true => &self.inner,
            false => self.without_special.get_or_init(without_special),
        };
        let tokens = self.encode_text(inner, text, special.add)?;
        let (bos, eos) = (self.bos.filter(|_| special.add), self.eos.filter(|_| special.add));
        Ok(bos.into_iter().chain(tokens).chain(eos).collect())
    }

    /// Encodes a part of a text. Only a part that is `first` gets the special tokens that the
    /// tokenizer adds to every text; none gets EOS.
    pub(crate) fn encode_part(
        &self,
        text: &str,
        first: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let bos = self.bos.filter(|_| first);
        Ok(bos.into_iter().chain(self.encode_text(&self.inner, text, first)?).collect())
    }

    fn encode_text(
        &self,
        inner: &tokenizers::Tokenizer,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let encoding = inner.encode(text, add_special_tokens);
        let encoding = encoding.map_err(|error| {
            let file = self.file.clone();
            match self.first_unknown_character(text) {
                Some(character) => TokenizerError::Character { file, character },
                None => TokenizerError::Encode { file, reason: error.to_string() },
            }
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the first character outside of added tokens that cannot be encoded.
    fn first_unknown_character(&self, text: &str) -> Option<char> {
        let added = self.inner.get_added_tokens_decoder();
        let added: Vec<&str> = added.values().map(|token| token.content.as_str()).collect();
        let (mut rest, mut known) = (text, HashSet::new());
        while let Some(character) = rest.chars().next() {
            let token =
                added.iter().filter(|token| rest.starts_with(**token)).map(|t| t.len()).max();
            if token.is_none() && known.insert(character) {
                let alone = self.inner.encode(character.to_string(), false);
                if alone.is_err() {
                    return Some(character);
                }
            }
            rest = &rest[token.unwrap_or(0).max(character.len_utf8())..];
        }
        None
    }

    /// Returns the texts that are encoded as special tokens anywhere in a text.
    #[must_use]
    pub fn special_tokens(&self) -> Vec<String> {
        let added = self.inner.get_added_tokens_decoder().into_values();
        added.filter(|token| token.special).map(|token| token.content).collect()
    }

    /// Returns the token with this text in the vocabulary.
    #[must_use]
    pub fn token(&self, text: &str) -> Option<TokenId> {
        self.inner.token_to_id(text)
    }

    /// Encodes the text from byte `cut` on. Returns each token with the byte of the text at which
    /// it begins, or `None` if it cannot be encoded. The first tokens after the cut may differ from
    /// those of the whole text.
    #[must_use]
    pub fn encode_from(&self, text: &str, cut: usize) -> Option<Vec<(TokenId, usize)>> {
        let whole = cut == 0;
        let encoding = self.inner.encode(text.get(cut..)?, whole).ok()?;
        let starts = encoding.get_offsets().iter().map(|&(start, _)| start + cut);
        let tokens = encoding.get_ids().iter().copied().zip(starts);
        Some(self.bos.filter(|_| whole).map(|bos| (bos, 0)).into_iter().chain(tokens).collect())
    }

    /// Decodes tokens. Special tokens and unknown ids have no text.
    #[must_use]
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let shown: Vec<TokenId> =
            tokens.iter().copied().filter(|token| !self.control.contains(token)).collect();
        self.decode_with_special(&shown)
    }

    /// Decodes tokens with the texts of special tokens. Unknown ids have no text.
    #[must_use]
    pub fn decode_with_special(&self, tokens: &[TokenId]) -> String {
        let tokens: Vec<TokenId> = tokens.iter().map(|token| self.encoded(*token)).collect();
        self.inner.decode(&tokens, false).unwrap_or_default()
    }

    /// Returns the token with the same text that a text is encoded as.
    fn encoded(&self, token: TokenId) -> TokenId {
        self.same_text.get(&token).copied().unwrap_or(token)
    }

    /// Returns the text of a token in the middle of a text. Alone, many tokens lose a leading
    /// space. Bytes that form no character become the replacement character.
    #[must_use]
    pub fn piece(&self, token: TokenId) -> String {
        String::from_utf8_lossy(&self.bytes(token)).into_owned()
    }

    /// Returns the bytes of a token in the middle of a text. They may be a part of a character.
    /// Special tokens and unknown ids have none.
    #[must_use]
    pub fn bytes(&self, token: TokenId) -> Vec<u8> {
        if self.is_special(token) { Vec::new() } else { self.bytes_with_special(token) }
    }

    /// Returns the bytes of a token as [`Self::bytes`] does. The bytes of special tokens are their
    /// texts.
    #[must_use]
    pub fn bytes_with_special(&self, token: TokenId) -> Vec<u8> {
        let id = self.encoded(token);
        let Some(text) = self.inner.id_to_token(id) else { return Vec::new() };
        if self.is_special(token) {
            return text.into_bytes();
        }
        let is_added = self.inner.get_added_vocabulary().simple_id_to_token(id).is_some();
        if let (Ok(spelling), false) = (&self.spelling, is_added) {
            return spelling.bytes(&text);
        }
        let decode = |tokens: &[TokenId]| self.inner.decode(tokens, false).unwrap_or_default();
        let (once, twice) = (decode(&[id]), decode(&[id; 2]));
        twice.strip_prefix(&once).map_or(once.clone(), str::to_owned).into_bytes()
    }

    /// Returns a token as the vocabulary spells it, such as `Ġthe` or `▁the` for ` the`.
    #[must_use]
    pub fn vocabulary_text(&self, token: TokenId) -> Option<String> {
        self.inner.id_to_token(self.encoded(token))
    }

    /// Returns the tokens that end an answer by their text, whatever other files say.
    #[must_use]
    pub fn ends(&self) -> &[TokenId] {
        &self.ends
    }

    /// Returns the tokens before prefix, suffix and middle of a text with a gap that a GGUF file
    /// names.
    pub(crate) fn infill(&self) -> [Option<TokenId>; 3] {
        self.infill
    }

    /// Returns whether both tokenizers have the same vocabulary, so that tokens of one mean the
    /// same to the other.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        let same_vocabulary = || {
            let inner = self.inner.get_vocab(true) == other.inner.get_vocab(true);
            inner && self.same_text == other.same_text
        };
        self.file == other.file || same_vocabulary()
    }

    /// Returns the texts of all tokens in the vocabulary, in its own alphabet, with their ids.
    pub(crate) fn vocabulary(&self) -> impl Iterator<Item = (String, TokenId)> {
        let other = self.same_text.iter();
        let other =
            other.filter_map(|(id, encoded)| Some((self.inner.id_to_token(*encoded)?, *id)));
        self.inner.get_vocab(true).into_iter().chain(other)
    }

    /// Returns how the vocabulary spells bytes.
    ///
    /// # Errors
    /// What is not supported about the tokenizer.
    pub(crate) fn spelling(&self) -> Result<&Spelling, String> {
        self.spelling.as_ref().map_err(Clone::clone)
    }

    /// Returns whether a token is special: it controls the model, and is not part of a text.
    #[must_use]
    pub fn is_special(&self, token: TokenId) -> bool {
        self.control.contains(&token)
    }

    /// Returns the number of tokens, including added ones.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true) + self.same_text.len()
    }

    /// Returns the largest token of the vocabulary, without added tokens.
    #[must_use]
    pub fn largest_ordinary(&self) -> TokenId {
        let tokens = self.inner.get_vocab(false).into_values();
        tokens.chain(self.same_text.keys().copied()).max().unwrap_or(0)
    }

    /// Returns the file that the tokenizer was loaded from.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }
}

/// Returns the folder of a checkpoint, which may itself be a file.
pub(crate) fn folder_of(checkpoint: &Path) -> &Path {
    if checkpoint.is_dir() {
        return checkpoint;
    }
    checkpoint.parent().unwrap_or(Path::new("."))
}

/// Makes characters without a token an error in a byte-pair vocabulary without an unknown token,
/// where the library drops them.
fn refuse_unknown_characters(inner: &mut tokenizers::Tokenizer) {
    let ModelWrapper::BPE(model) = inner.get_model() else { return };
    // Byte-level vocabularies, which have a token for every byte, need no copy of their model.
    let drops = || inner.encode("\u{10FFFD}", false).is_ok_and(|encoding| encoding.is_empty());
    if model.unk_token.is_none() && drops() {
        let mut model = model.clone();
        // This is no token, so the library fails where it needs one.
        model.unk_token = Some(String::new());
        inner.with_model(model);
    }
}

/// Makes special tokens of the known ends of a vocabulary, which many files do not mark, and
/// returns these ends.
fn mark_ends(
    inner: &mut tokenizers::Tokenizer,
    vocabulary: &HashMap<String, TokenId>,
) -> tokenizers::Result<Vec<TokenId>> {
    let added = inner.get_added_tokens_decoder();
    let is_special = |id: TokenId| added.get(&id).is_some_and(|token| token.special);
    let tokens = vocabulary.iter().map(|(text, id)| (*id, text.as_str(), is_special(*id)));
    let ends = known_ends(tokens);
    let special = |id: TokenId| match added.get(&id) {
        Some(token) => Some(token.clone().special(true)),
        None => Some(AddedToken::from(inner.id_to_token(id)?, true)),
    };
    let unmarked = ends.iter().filter(|id| !is_special(**id));
    let marked: Vec<AddedToken> = unmarked.filter_map(|id| special(*id)).collect();
    inner.add_special_tokens(marked)?;
    Ok(ends)
}

/// Parses the contents of a `tokenizer.json`.
fn parse(file: &Path, json: &str) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let broken = |error: tokenizers::Error| broken(file, &error);
    let mut inner: tokenizers::Tokenizer = json.parse().map_err(broken)?;
    // Files may have the truncation and padding of training. A prompt must stay whole.
    inner.with_padding(None);
    inner.with_truncation(None).map_err(broken)?;
    Ok(inner)
}

fn broken(file: &Path, error: &tokenizers::Error) -> TokenizerError {
    TokenizerError::Broken { file: file.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::llama2c::tests::pieces;
    use super::llama2c::{byte_pair_tokenizer, read_pieces};
    use super::*;

    /// Characters of one to four bytes, all encoded as byte tokens. The stream ends after any of
    /// them.
    #[test]
    fn streamed_bytes_are_the_text_for_every_end() -> Result<(), String> {
        let inner = byte_pair_tokenizer(&read_pieces(&pieces())?).map_err(|e| e.to_string())?;
        let control = HashSet::from([0, 1, 2]);
        let tokenizer = Tokenizer::with(inner, PathBuf::new(), Some(1), control);
        let tokenizer = tokenizer.map_err(|error| error.to_string())?;
        let text = "aé😀z→😀😀éé😀→→b😀😀😀😀é";
        let bytes: Vec<TokenId> = text.bytes().map(|byte| TokenId::from(byte) + 3).collect();
        for prompt in [vec![1], vec![1, 262], vec![1, 3 + 0xC3, 3 + 0xA9]] {
            for end in 0..=bytes.len() {
                let mut stream = crate::TextStream::new(&tokenizer, &prompt);
                let streamed: String = bytes[..end].iter().map(|&byte| stream.push(byte)).collect();
                // After BOS alone, the decoder drops the text's first space. This text has none.
                assert!(text.starts_with(&streamed), "{end}: {streamed}");
                let whole = (0..=end).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
                assert_eq!(streamed, text[..whole], "{end}");
                let rest = stream.finish();
                assert!(rest.chars().all(|c| c == char::REPLACEMENT_CHARACTER), "{rest}");
                assert_eq!(rest.chars().count(), end - whole);
            }
        }
        // The piece of a token is its text in the middle of a text, not at the start.
        let alone = [259, 262, 260, 261, 3 + 0xC3].map(|token| tokenizer.piece(token));
        assert_eq!(alone, [" a", " ", "b", "ab", "\u{FFFD}"]);
        // A byte that belongs to no character affects only itself.
        let mut stream = crate::TextStream::new(&tokenizer, &[1]);
        let broken = [0xF0, 0x9F, 0x98, 0x80, 0xFF].map(|byte: TokenId| byte + 3);
        let streamed: String = broken.iter().chain(&[260]).map(|&id| stream.push(id)).collect();
        assert_eq!(streamed, "😀\u{FFFD}b");
        Ok(())
    }

    /// The normalizer puts a space in front of every text, which includes that of the special
    /// token.
    #[test]
    fn special_tokens_with_a_normalized_text_are_not_decoded()
    -> Result<(), Box<dyn std::error::Error>> {
        let token = |normalized| {
            serde_json::json!({
                "id": 3, "content": "<s>", "special": true, "normalized": normalized,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        };
        for normalized in [false, true] {
            let json = serde_json::json!({
                "version": "1.0",
                "truncation": null,
                "padding": null,
                "added_tokens": [token(normalized)],
                "normalizer": { "type": "Prepend", "prepend": " " },
                "pre_tokenizer": null,
                "post_processor": null,
                "decoder": { "type": "Fuse" },
                "model": {
                    "type": "BPE",
                    "vocab": { " ": 0, "a": 1, " a": 2, "<s>": 3 },
                    "merges": [[" ", "a"]],
                },
            });
            let folder = tempfile::tempdir()?;
            let file = folder.path().join("tokenizer.json");
            std::fs::write(&file, json.to_string())?;
            let tokenizer = Tokenizer::from_checkpoint(folder.path())?;
            assert_eq!(tokenizer.encode("a")?, [2]);
            assert_eq!(tokenizer.decode(&[3, 2, 3, 1]), " aa", "normalized: {normalized}");
        }
        Ok(())
    }
}

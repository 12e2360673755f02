//! Text to tokens and back.

use forerun_core::TokenId;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use tokenizers::models::bpe::BPE;
use tokenizers::{DecoderWrapper, NormalizerWrapper};

/// A checkpoint's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    file: PathBuf,
    /// Put in front of every text here, where the tokenizer does not do so by itself.
    bos: Option<TokenId>,
    /// Control tokens that the library does not know as special ones.
    control: HashSet<TokenId>,
}

/// A tokenizer that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// None of the known files is there.
    #[error(
        "no tokenizer beside {0}: expected tokenizer.json (Hugging Face) or tok*.bin (llama2.c)"
    )]
    Missing(PathBuf),
    /// A file that cannot be read or makes no sense.
    #[error("cannot load the tokenizer {file}: {reason}")]
    Broken {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A text that cannot be encoded.
    #[error("cannot encode the text with {file}: {reason}")]
    Encode {
        /// The tokenizer's file.
        file: PathBuf,
        /// The library's message.
        reason: String,
    },
}

impl Tokenizer {
    /// The tokenizer that lies beside a checkpoint: `tokenizer.json`, or llama2.c's `tok*.bin`.
    ///
    /// # Errors
    /// If there is none or it is broken.
    pub fn from_checkpoint(checkpoint: &Path) -> Result<Self, TokenizerError> {
        let folder = if checkpoint.is_dir() {
            checkpoint
        } else {
            checkpoint.parent().unwrap_or(Path::new("."))
        };
        let json = folder.join("tokenizer.json");
        if json.is_file() {
            return Self::from_json(json);
        }
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let name = |path: &PathBuf| path.file_name().and_then(|n| n.to_str()).map(str::to_owned);
        let mut bins: Vec<PathBuf> = files
            .map(|entry| entry.path())
            .filter(|path| {
                name(path).is_some_and(|name| name.starts_with("tok") && name.ends_with(".bin"))
            })
            .collect();
        bins.sort();
        match bins.into_iter().next() {
            Some(file) => Self::from_llama2c(file),
            None => Err(TokenizerError::Missing(checkpoint.to_owned())),
        }
    }

    fn from_json(file: PathBuf) -> Result<Self, TokenizerError> {
        let broken = |error: tokenizers::Error| TokenizerError::Broken {
            file: file.clone(),
            reason: error.to_string(),
        };
        let mut inner = tokenizers::Tokenizer::from_file(&file).map_err(broken)?;
        // Files keep the truncation and padding of their training; a prompt must stay whole.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(broken)?;
        let of_nothing = inner.encode("", true).map_err(broken)?;
        let adds_some = of_nothing.get_special_tokens_mask().contains(&1);
        let bos = if adds_some { None } else { wanted_bos(&inner, &file)? };
        Ok(Self { inner, file, bos, control: HashSet::new() })
    }

    #[cfg(test)]
    pub(crate) fn of(inner: tokenizers::Tokenizer) -> Self {
        Self { inner, file: PathBuf::new(), bos: None, control: HashSet::new() }
    }

    /// llama2.c's format: i32 longest piece, then for each token f32 score, i32 length, bytes.
    /// Tokens 0, 1 and 2 are unknown, BOS and EOS; 3…258 are the bytes.
    fn from_llama2c(file: PathBuf) -> Result<Self, TokenizerError> {
        let broken = |reason: String| TokenizerError::Broken { file: file.clone(), reason };
        let bytes = std::fs::read(&file).map_err(|error| broken(error.to_string()))?;
        let pieces = read_pieces(&bytes).map_err(&broken)?;
        let inner = byte_pair_tokenizer(&pieces).map_err(|error| broken(error.to_string()))?;
        Ok(Self { inner, file, bos: Some(1), control: HashSet::from([0, 1, 2]) })
    }

    /// The tokens of a text, BOS in front where the model wants one.
    ///
    /// # Errors
    /// If the library cannot encode the text.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        let encoding = self.inner.encode(text, true).map_err(|error| TokenizerError::Encode {
            file: self.file.clone(),
            reason: error.to_string(),
        })?;
        Ok(self.bos.into_iter().chain(encoding.get_ids().iter().copied()).collect())
    }

    /// The tokens of a part of a text; `first` parts get what the tokenizer puts around every text.
    pub(crate) fn encode_part(
        &self,
        text: &str,
        first: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        if first {
            return self.encode(text);
        }
        let encoding = self.inner.encode(text, false).map_err(|error| TokenizerError::Encode {
            file: self.file.clone(),
            reason: error.to_string(),
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The spellings that the tokenizer takes for control tokens wherever they stand.
    pub(crate) fn special_tokens(&self) -> Vec<String> {
        let added = self.inner.get_added_tokens_decoder().into_values();
        added.filter(|token| token.special).map(|token| token.content).collect()
    }

    /// The token that is spelt so.
    pub(crate) fn token(&self, spelling: &str) -> Option<TokenId> {
        self.inner.token_to_id(spelling)
    }

    /// The tokens of the text from byte `cut` on, each with the byte of the text at which it begins.
    /// The first tokens behind a cut may be others than in the whole text.
    pub(crate) fn encode_from(&self, text: &str, cut: usize) -> Option<Vec<(TokenId, usize)>> {
        let whole = cut == 0;
        let encoding = self.inner.encode(text.get(cut..)?, whole).ok()?;
        let starts = encoding.get_offsets().iter().map(|&(start, _)| start + cut);
        let tokens = encoding.get_ids().iter().copied().zip(starts);
        Some(self.bos.filter(|_| whole).map(|bos| (bos, 0)).into_iter().chain(tokens).collect())
    }

    /// The text of tokens; control tokens and ids without a token have none.
    #[must_use]
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let shown: Vec<TokenId> =
            tokens.iter().copied().filter(|token| !self.control.contains(token)).collect();
        self.inner.decode(&shown, true).unwrap_or_default()
    }

    /// The text of one token within a text: at its start, many tokens lose a space.
    #[must_use]
    pub fn piece(&self, token: TokenId) -> String {
        let (once, twice) = (self.decode(&[token]), self.decode(&[token; 2]));
        twice.strip_prefix(&once).map_or(once.clone(), str::to_owned)
    }

    /// Whether both map the same pieces to the same ids, so that one's tokens mean the same to the
    /// other.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.file == other.file || self.inner.get_vocab(true) == other.inner.get_vocab(true)
    }

    /// Number of tokens.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The largest token of the vocabulary itself, without those that were added to it.
    pub(crate) fn largest_ordinary(&self) -> TokenId {
        self.inner.get_vocab(false).into_values().max().unwrap_or(0)
    }

    /// The file it was read from.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }
}

/// The token that `tokenizer_config.json`, beside the file of a tokenizer that adds none by itself,
/// wants in front of every text: its `bos_token` where it says `"add_bos_token": true`.
fn wanted_bos(
    inner: &tokenizers::Tokenizer,
    file: &Path,
) -> Result<Option<TokenId>, TokenizerError> {
    let config_file = file.with_file_name("tokenizer_config.json");
    let broken = |reason: String| TokenizerError::Broken { file: config_file.clone(), reason };
    let text = match std::fs::read_to_string(&config_file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(broken(error.to_string())),
    };
    let config: TokenizerConfig =
        serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
    let (Some(true), Some(bos)) = (config.add_bos_token, config.bos_token) else {
        return Ok(None);
    };
    let (SpecialToken::Text(content) | SpecialToken::Object { content }) = bos;
    match inner.token_to_id(&content) {
        Some(id) => Ok(Some(id)),
        None => Err(broken(format!("its `bos_token` {content:?} is not a token of {file:?}"))),
    }
}

/// What counts here of a `tokenizer_config.json`.
#[derive(serde::Deserialize)]
struct TokenizerConfig {
    add_bos_token: Option<bool>,
    bos_token: Option<SpecialToken>,
}

/// A special token as the file has it: its text, or an object with it.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Object { content: String },
}

/// A piece and its score.
type Piece = (String, f32);

fn read_pieces(bytes: &[u8]) -> Result<Vec<Piece>, String> {
    fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (head, tail) = bytes.split_first_chunk()?;
        *bytes = tail;
        Some(*head)
    }
    let mut rest = bytes;
    let mut pieces = Vec::new();
    take::<4>(&mut rest).ok_or("it is shorter than its header")?;
    while !rest.is_empty() {
        let truncated = || format!("it ends inside token {}", pieces.len());
        let score = f32::from_le_bytes(take(&mut rest).ok_or_else(truncated)?);
        let length = i32::from_le_bytes(take(&mut rest).ok_or_else(truncated)?);
        let length = usize::try_from(length)
            .map_err(|_| format!("token {} has length {length}", pieces.len()))?;
        let (piece, tail) = rest.split_at_checked(length).ok_or_else(truncated)?;
        rest = tail;
        let piece = std::str::from_utf8(piece)
            .map_err(|_| format!("token {} is not valid UTF-8", pieces.len()))?;
        pieces.push((piece.to_owned(), score));
    }
    if pieces.len() <= FIRST_PIECE {
        return Err(format!("it has {} tokens, fewer than the 256 bytes need", pieces.len()));
    }
    Ok(pieces)
}

/// The first token that is neither a control token nor a byte.
const FIRST_PIECE: usize = 259;

/// A BPE whose merges follow the scores: of all adjacent pairs that make a piece, the one of the
/// highest score is merged first. That is what llama2.c's encoder does.
fn byte_pair_tokenizer(pieces: &[Piece]) -> tokenizers::Result<tokenizers::Tokenizer> {
    let vocab: HashMap<&str, TokenId> =
        pieces.iter().enumerate().map(|(id, (piece, _))| (&piece[..], id as TokenId)).collect();
    let mut merges: Vec<(f32, String, String)> = Vec::new();
    for (piece, score) in &pieces[FIRST_PIECE..] {
        for (cut, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(cut);
            if vocab.contains_key(left) && vocab.contains_key(right) {
                merges.push((*score, left.to_owned(), right.to_owned()));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    let bpe = BPE::builder()
        .vocab_and_merges(
            vocab
                .iter()
                .map(|(piece, &id)| ((*piece).to_owned(), id))
                .collect::<tokenizers::models::bpe::Vocab>(),
            merges.into_iter().map(|(_, left, right)| (left, right)).collect(),
        )
        .unk_token(pieces[0].0.clone())
        .byte_fallback(true)
        .build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(bpe);
    // A text starts with a space, as in sentencepiece.
    let prepend = tokenizers::normalizers::Prepend::new(" ".into());
    tokenizer.with_normalizer(Some(NormalizerWrapper::from(prepend)));
    let decoders = vec![
        DecoderWrapper::from(tokenizers::decoders::byte_fallback::ByteFallback::new()),
        DecoderWrapper::from(tokenizers::decoders::fuse::Fuse::new()),
        DecoderWrapper::from(tokenizers::decoders::strip::Strip::new(' ', 1, 0)),
    ];
    let decoder = tokenizers::decoders::sequence::Sequence::new(decoders);
    tokenizer.with_decoder(Some(DecoderWrapper::from(decoder)));
    Ok(tokenizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces() -> Vec<u8> {
        let mut bytes = 7_i32.to_le_bytes().to_vec();
        let mut push = |piece: &str, score: f32| {
            bytes.extend(score.to_le_bytes());
            bytes.extend((piece.len() as i32).to_le_bytes());
            bytes.extend(piece.as_bytes());
        };
        for control in ["<unk>", "\n<s>\n", "\n</s>\n"] {
            push(control, 0.0);
        }
        for byte in 0..256 {
            push(&format!("<0x{byte:02X}>"), 0.0);
        }
        // 259 " a", 260 "b", 261 "ab", 262 " ", 263 "a"
        for (rank, piece) in [" a", "b", "ab", " ", "a"].into_iter().enumerate() {
            push(piece, -(rank as f32));
        }
        bytes
    }

    #[test]
    fn pieces_merge_by_score_and_unknown_characters_become_bytes() {
        let tokenizer = read_pieces(&pieces())
            .and_then(|pieces| byte_pair_tokenizer(&pieces).map_err(|error| error.to_string()));
        let encode = |text| {
            let tokenizer = tokenizer.as_ref().map_err(Clone::clone)?;
            let encoding = tokenizer.encode(text, false).map_err(|error| error.to_string())?;
            Ok::<_, String>(encoding.get_ids().to_vec())
        };
        // " ab": " a" merges before "ab" could.
        assert_eq!(encode("ab"), Ok(vec![259, 260]));
        assert_eq!(encode("bab"), Ok(vec![262, 260, 261]));
        assert_eq!(encode("aé"), Ok(vec![259, 3 + 0xC3, 3 + 0xA9]));
    }

    /// Characters of one to four bytes, all spelt by byte tokens, cut after every token.
    #[test]
    fn streamed_bytes_are_the_text_wherever_it_ends() -> Result<(), String> {
        let inner = byte_pair_tokenizer(&read_pieces(&pieces())?).map_err(|e| e.to_string())?;
        let (file, control) = (PathBuf::new(), HashSet::from([0, 1, 2]));
        let tokenizer = Tokenizer { inner, file, bos: Some(1), control };
        let text = "aé😀z→😀😀éé😀→→b😀😀😀😀é";
        let bytes: Vec<TokenId> = text.bytes().map(|byte| TokenId::from(byte) + 3).collect();
        for prompt in [vec![1], vec![1, 262], vec![1, 3 + 0xC3, 3 + 0xA9]] {
            for end in 0..=bytes.len() {
                let mut stream = crate::TextStream::new(&tokenizer, &prompt);
                let streamed: String = bytes[..end].iter().map(|&byte| stream.push(byte)).collect();
                // Behind BOS alone the decoder takes the text's first space, but here is none.
                assert!(text.starts_with(&streamed), "{end}: {streamed}");
                let whole = (0..=end).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
                assert_eq!(streamed, text[..whole], "{end}");
                let rest = stream.finish();
                assert!(rest.chars().all(|c| c == char::REPLACEMENT_CHARACTER), "{rest}");
                assert_eq!(rest.chars().count(), end - whole);
            }
        }
        // Tokens alone are those of a text's middle, not of its start.
        let alone = [259, 262, 260, 261, 3 + 0xC3].map(|token| tokenizer.piece(token));
        assert_eq!(alone, [" a", " ", "b", "ab", "\u{FFFD}"]);
        // A byte that belongs to no character spoils nothing but itself.
        let mut stream = crate::TextStream::new(&tokenizer, &[1]);
        let broken = [0xF0, 0x9F, 0x98, 0x80, 0xFF].map(|byte: TokenId| byte + 3);
        let streamed: String = broken.iter().chain(&[260]).map(|&id| stream.push(id)).collect();
        assert_eq!(streamed, "😀\u{FFFD}b");
        Ok(())
    }

    #[test]
    fn broken_tokenizer_files_are_errors() {
        let whole = pieces();
        for (bytes, word) in [
            (&whole[..2], "shorter than its header"),
            (&whole[..105], "ends inside token"),
            (&whole[..4], "fewer than the 256 bytes"),
        ] {
            assert!(read_pieces(bytes).is_err_and(|reason| reason.contains(word)), "{word}");
        }
        let mut negative = whole.clone();
        negative[8..12].copy_from_slice(&(-1_i32).to_le_bytes());
        assert!(read_pieces(&negative).is_err_and(|reason| reason.contains("length -1")));
    }
}

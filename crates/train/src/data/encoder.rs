//! Encodes documents into tokens, on all cores.

use std::path::{Path, PathBuf};

use tokenizers::{DecoderWrapper, Tokenizer};

use super::Framing;
use super::error::{DataError, read_error};
use crate::files::sha256_of;

/// Minimum size of a piece of text that is encoded separately. The last piece of a document may be
/// shorter.
const PIECE_BYTES: usize = 1 << 13;

/// Size of the text that is encoded at once: enough work for all cores. The encodings take about
/// thirty times the memory of the text.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// Splits a text into pieces of at least `min_bytes`. Each piece except the last one ends with a
/// line end, and the next one starts with a word.
///
/// No word of a tokenizer from [`train_tokenizer`](crate::tokenizer::train_tokenizer) extends over
/// such a boundary, so the tokens of the pieces together are exactly those of the text.
pub(crate) fn pieces(text: &str, min_bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, tail) = rest.split_at(first_cut(rest, min_bytes));
        rest = tail;
        Some(piece)
    })
}

/// Returns the first offset, at least `min_bytes`, where a piece may end.
fn first_cut(text: &str, min_bytes: usize) -> usize {
    let mut from = min_bytes.saturating_sub(1);
    while let Some(newline) = text.as_bytes().get(from..).and_then(|bytes| position(bytes, b'\n')) {
        let cut = from + newline + 1;
        // A line end is one byte, so this is a character boundary.
        if text[cut..].chars().next().is_some_and(|next| !next.is_whitespace()) {
            return cut;
        }
        from = cut;
    }
    text.len()
}

fn position(bytes: &[u8], wanted: u8) -> Option<usize> {
    bytes.iter().position(|&byte| byte == wanted)
}

/// A tokenizer for documents, with the number of bytes that each token represents.
pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    path: PathBuf,
    sha256: String,
    /// The tokens before every document.
    prefix: Vec<u32>,
    /// The token after every document.
    separator: u32,
    /// Whether a document's tokens must reproduce its text byte by byte.
    exact: bool,
    token_bytes: Vec<u32>,
}

impl Encoder {
    /// Loads a `tokenizer.json`. With `special_tokens`, the text of a special token is that token.
    ///
    /// # Errors
    /// If the file cannot be read, a token of the framing is missing, or the framing requires a
    /// byte-level tokenizer and this one is not.
    pub(crate) fn load(
        path: &Path,
        framing: &Framing,
        special_tokens: bool,
    ) -> Result<Self, DataError> {
        let unusable = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
        let bytes = std::fs::read(path).map_err(read_error(path))?;
        let sha256 = sha256_of(&bytes[..]).map_err(read_error(path))?;
        let mut tokenizer =
            Tokenizer::from_bytes(&bytes).map_err(|error| unusable(error.to_string()))?;
        let exact = matches!(framing, Framing::Separated(_));
        let byte_level = matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
        if exact && !byte_level {
            let reason = "training a language model requires a byte-level tokenizer, such as those of \
                          GPT-2, Llama 3 or Qwen";
            return Err(unusable(reason.to_owned()));
        }
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| unusable(error.to_string()))?;
        // By default, the name of a separator within a text is encoded as ordinary text.
        tokenizer.set_encode_special_tokens(!special_tokens);
        let (prefix, separator) = match framing {
            Framing::Separated(token) => {
                let missing =
                    || unusable(format!("it has no token {token:?}, which separates documents"));
                (Vec::new(), tokenizer.token_to_id(token).ok_or_else(missing)?)
            }
            Framing::Target { bos, eos } => {
                for &token in bos.iter().chain([eos]) {
                    let missing = || {
                        unusable(format!(
                            "it has no token {token}, which the target uses as BOS or EOS"
                        ))
                    };
                    tokenizer.id_to_token(token).ok_or_else(missing)?;
                }
                (bos.clone(), *eos)
            }
        };
        let token_bytes = token_bytes(&tokenizer, special_tokens);
        let path = path.to_owned();
        Ok(Self { tokenizer, path, sha256, prefix, separator, exact, token_bytes })
    }

    /// Returns the tokens before every document.
    pub(crate) fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// Returns whether a document's tokens must reproduce its text byte by byte.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Returns the SHA-256 of the tokenizer's file.
    pub(crate) fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Returns the token after every document.
    pub(crate) fn separator(&self) -> u32 {
        self.separator
    }

    /// Returns the number of bytes of text that each token represents. Special tokens represent
    /// none, unless their text is read as tokens.
    pub(crate) fn token_bytes(&self) -> &[u32] {
        &self.token_bytes
    }

    /// Encodes texts, without the prefix and the separator.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub(crate) fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, DataError> {
        let mut tokens = vec![Vec::new(); texts.len()];
        // A tokenizer that adds a space before a text would add one before each piece.
        let min_bytes = if self.exact { PIECE_BYTES } else { usize::MAX };
        let pieces_of =
            |(text, content)| pieces(content, min_bytes).map(move |piece| (text, piece));
        let mut parts = texts.iter().copied().enumerate().flat_map(pieces_of).peekable();
        while parts.peek().is_some() {
            let (mut batch_texts, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
            while bytes < BATCH_BYTES
                && let Some((text, piece)) = parts.next()
            {
                batch_texts.push(text);
                batch.push(piece);
                bytes += piece.len();
            }
            let encodings = self.tokenizer.encode_batch_fast(batch, false).map_err(|error| {
                DataError::Tokenizer { path: self.path.clone(), reason: error.to_string() }
            })?;
            for (text, encoding) in batch_texts.into_iter().zip(encodings) {
                let tokens: &mut Vec<u32> = &mut tokens[text];
                tokens.extend_from_slice(encoding.get_ids());
            }
        }
        Ok(tokens)
    }

    /// Returns the number of bytes of text that tokens represent.
    pub(crate) fn text_bytes(&self, tokens: &[u32]) -> u64 {
        tokens.iter().map(|&token| u64::from(self.token_bytes[token as usize])).sum()
    }
}

/// Returns the number of bytes that each token represents. A byte-level vocabulary writes each byte
/// as one character. For other vocabularies the numbers are not used.
fn token_bytes(tokenizer: &Tokenizer, special_tokens: bool) -> Vec<u32> {
    let vocabulary = tokenizer.get_vocab(true);
    let added = tokenizer.get_added_tokens_decoder();
    let size = vocabulary.values().max().map_or(0, |&last| last as usize + 1);
    let mut bytes = vec![0; size];
    for (spelling, token) in vocabulary {
        bytes[token as usize] = match added.get(&token) {
            Some(added) if added.special && !special_tokens => 0,
            Some(added) => added.content.len() as u32,
            None => spelling.chars().count() as u32,
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_split_the_text_between_a_line_end_and_a_word(
            text in "[a-c é\n\r ]{0,200}", min_bytes in 0_usize..40,
        ) {
            let parts: Vec<&str> = pieces(&text, min_bytes).collect();
            prop_assert_eq!(parts.concat(), text.as_str());
            for pair in parts.windows(2) {
                prop_assert!(pair[0].ends_with('\n') && pair[0].len() >= min_bytes);
                prop_assert!(!pair[1].starts_with(char::is_whitespace));
            }
        }
    }
}

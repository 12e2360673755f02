//! Documents to tokens, on all cores.

use std::path::{Path, PathBuf};

use tokenizers::{DecoderWrapper, Tokenizer};

use super::Framing;
use super::error::{DataError, reading};
use crate::files::sha256_of;

/// Text that is encoded as one piece is at least this long, but for the last of a document.
const PIECE_BYTES: usize = 1 << 13;

/// Text that is encoded at once: enough for all cores, and its encodings, which take some thirty
/// times the text, still fit the memory.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// Parts of a text that are encoded one by one: each at least `least_bytes` long, cut behind line
/// ends and before a word.
///
/// Words of a tokenizer that [`train_tokenizer`](crate::tokenizer::train_tokenizer) made never reach
/// over such a place, so the pieces' tokens together are exactly the text's.
pub(crate) fn pieces(text: &str, least_bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, tail) = rest.split_at(first_cut(rest, least_bytes));
        rest = tail;
        Some(piece)
    })
}

/// The first byte at or behind `least_bytes` where a piece may end.
fn first_cut(text: &str, least_bytes: usize) -> usize {
    let mut from = least_bytes.saturating_sub(1);
    while let Some(newline) = text.as_bytes().get(from..).and_then(|bytes| position(bytes, b'\n')) {
        let cut = from + newline + 1;
        // A line end is one byte, so this is a boundary of characters.
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

/// A tokenizer that encodes documents and knows what each token spells.
pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    path: PathBuf,
    sha256: String,
    /// Tokens in front of every document.
    prefix: Vec<u32>,
    /// The token behind every document.
    separator: u32,
    /// Whether a document's tokens must spell it, byte by byte.
    exact: bool,
    token_bytes: Vec<u32>,
}

impl Encoder {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// If the file cannot be read, there is no such separator, or the tokens do not spell bytes where
    /// they have to.
    pub(crate) fn load(path: &Path, framing: &Framing) -> Result<Self, DataError> {
        let unusable = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
        let bytes = std::fs::read(path).map_err(reading(path))?;
        let sha256 = sha256_of(&bytes[..]).map_err(reading(path))?;
        let mut tokenizer =
            Tokenizer::from_bytes(&bytes).map_err(|error| unusable(error.to_string()))?;
        let exact = matches!(framing, Framing::Separated(_));
        let spells_bytes = matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
        if exact && !spells_bytes {
            let reason = "training needs a byte-level tokenizer, as of GPT-2, Llama 3 or Qwen";
            return Err(unusable(reason.to_owned()));
        }
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| unusable(error.to_string()))?;
        // What looks like a separator within a text is text.
        tokenizer.set_encode_special_tokens(true);
        let (prefix, separator) = match framing {
            Framing::Separated(token) => {
                let missing = || unusable(format!("it has no token {token:?} to part documents"));
                (Vec::new(), tokenizer.token_to_id(token).ok_or_else(missing)?)
            }
            Framing::OfTarget { bos, eos } => {
                for &token in bos.iter().chain([eos]) {
                    let missing =
                        || unusable(format!("it has no token {token}, as the target does"));
                    tokenizer.id_to_token(token).ok_or_else(missing)?;
                }
                (bos.clone(), *eos)
            }
        };
        let token_bytes = token_bytes(&tokenizer);
        let path = path.to_owned();
        Ok(Self { tokenizer, path, sha256, prefix, separator, exact, token_bytes })
    }

    /// Tokens in front of every document.
    pub(crate) fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// Whether every document's tokens must spell it byte by byte.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    /// The SHA-256 of the tokenizer's file.
    pub(crate) fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The token behind every document.
    pub(crate) fn separator(&self) -> u32 {
        self.separator
    }

    /// Bytes of text that each token stands for; control tokens stand for none.
    pub(crate) fn token_bytes(&self) -> &[u32] {
        &self.token_bytes
    }

    /// The tokens of each text, without what stands in front and behind.
    ///
    /// # Errors
    /// If the library fails.
    pub(crate) fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, DataError> {
        let mut tokens = vec![Vec::new(); texts.len()];
        // A tokenizer that puts a space in front of a text would do so with its pieces.
        let least = if self.exact { PIECE_BYTES } else { usize::MAX };
        let owned = |(owner, text)| pieces(text, least).map(move |piece| (owner, piece));
        let mut parts = texts.iter().copied().enumerate().flat_map(owned).peekable();
        while parts.peek().is_some() {
            let (mut owners, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
            while bytes < BATCH_BYTES
                && let Some((owner, piece)) = parts.next()
            {
                owners.push(owner);
                batch.push(piece);
                bytes += piece.len();
            }
            let encodings = self.tokenizer.encode_batch_fast(batch, false).map_err(|error| {
                DataError::Tokenizer { path: self.path.clone(), reason: error.to_string() }
            })?;
            for (owner, encoding) in owners.into_iter().zip(encodings) {
                let tokens: &mut Vec<u32> = &mut tokens[owner];
                tokens.extend_from_slice(encoding.get_ids());
            }
        }
        Ok(tokens)
    }

    /// Bytes of text that tokens stand for.
    pub(crate) fn spelt_bytes(&self, tokens: &[u32]) -> u64 {
        tokens.iter().map(|&token| u64::from(self.token_bytes[token as usize])).sum()
    }
}

/// By token: how many bytes it spells. A byte-level vocabulary writes each byte as a character; of others
/// nobody counts a loss by bytes.
fn token_bytes(tokenizer: &Tokenizer) -> Vec<u32> {
    let vocabulary = tokenizer.get_vocab(true);
    let added = tokenizer.get_added_tokens_decoder();
    let size = vocabulary.values().max().map_or(0, |&last| last as usize + 1);
    let mut bytes = vec![0; size];
    for (spelling, token) in vocabulary {
        bytes[token as usize] = match added.get(&token) {
            Some(added) if added.special => 0,
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
        fn pieces_are_the_text_cut_between_line_end_and_word(
            text in "[a-c é\n\r ]{0,200}", least in 0_usize..40,
        ) {
            let parts: Vec<&str> = pieces(&text, least).collect();
            prop_assert_eq!(parts.concat(), text.as_str());
            for pair in parts.windows(2) {
                prop_assert!(pair[0].ends_with('\n') && pair[0].len() >= least);
                prop_assert!(!pair[1].starts_with(char::is_whitespace));
            }
        }
    }
}

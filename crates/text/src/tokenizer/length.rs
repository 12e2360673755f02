//! How long texts are, without encoding more of them than is needed.

use super::{Tokenizer, TokenizerError};
use tokenizers::ModelWrapper;

/// A text that has too many tokens to be encoded as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongText {
    /// The length of the text in bytes.
    pub bytes: usize,
    /// An estimate of its number of tokens.
    pub tokens: usize,
}

impl Tokenizer {
    /// Returns how long a text is, if it certainly has `limit` tokens or more. Neither time nor
    /// memory grows with the text beyond that many tokens. `None` means that it can be encoded as a
    /// whole.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn too_long(&self, text: &str, limit: usize) -> Result<Option<LongText>, TokenizerError> {
        if text.len() <= limit.saturating_mul(SHORT_TOKEN) {
            return Ok(None);
        }
        // So many bytes have too many tokens, even if each is one of the longest.
        let longest_token = self.longest_token.max(LONG_TOKEN);
        // A token of word pieces may stand for any number of spaces, or for a long word.
        let is_certain = text.len() / longest_token >= limit
            && !matches!(self.inner.get_model(), ModelWrapper::WordPiece(_));
        let (mut rest, mut pieces, mut tokens) = (text, 0, 0);
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(end_of_piece(rest));
            tokens += self.encode_text(&self.inner, piece, false)?.len();
            (rest, pieces) = (tail, pieces + 1);
            if is_certain || tokens.saturating_sub(pieces * TOKENS_AT_A_CUT) >= limit {
                let (bytes, encoded) = (text.len(), text.len() - rest.len());
                let tokens = tokens as u128 * bytes as u128 / encoded as u128;
                return Ok(Some(LongText { bytes, tokens: limit.max(tokens as usize) }));
            }
        }
        Ok(None)
    }

    /// Returns a beginning of a text, or all of it, whose first `count` tokens are those of the
    /// text. Neither time nor memory grows with the text beyond that.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn beginning<'t>(&self, text: &'t str, count: usize) -> Result<&'t str, TokenizerError> {
        let enough = count.saturating_add(TOKENS_AT_A_CUT);
        let mut bytes = enough.saturating_mul(SHORT_TOKEN);
        while bytes < text.len() {
            let part = &text[..floor_char_boundary(text, bytes)];
            if self.encode_text(&self.inner, part, false)?.len() >= enough {
                return Ok(part);
            }
            bytes = bytes.saturating_mul(2);
        }
        Ok(text)
    }
}

/// Texts with at most this many bytes for each token of the context are encoded as a whole at once.
const SHORT_TOKEN: usize = 4;

/// A number of bytes that a token of any vocabulary may have. A tokenizer that leaves out spaces
/// needs fewer tokens than its vocabulary suggests.
const LONG_TOKEN: usize = 64;

/// The size of the pieces in which long texts are counted, in bytes.
const PIECE: usize = 1 << 16;

/// More tokens than a cut through a text can add.
const TOKENS_AT_A_CUT: usize = 64;

/// Returns the end of a text's first piece: before a space, so that the pieces have the text's own
/// tokens.
fn end_of_piece(text: &str) -> usize {
    if text.len() <= PIECE {
        return text.len();
    }
    let end = floor_char_boundary(text, PIECE);
    let near = floor_char_boundary(text, PIECE - PIECE / 16);
    text[near..end].rfind(char::is_whitespace).map_or(end, |space| near + space)
}

/// Returns the last boundary of a character at or before `index`.
fn floor_char_boundary(text: &str, index: usize) -> usize {
    let end = index.min(text.len());
    (0..=end).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::llama2c::tests::pieces;
    use super::super::llama2c::{byte_pair_tokenizer, read_pieces};
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn long_texts_are_counted_without_encoding_them() -> Result<(), TokenizerError> {
        let inner = read_pieces(&pieces())
            .and_then(|pieces| byte_pair_tokenizer(&pieces).map_err(|error| error.to_string()));
        let tokenizer = Tokenizer::of(
            inner.map_err(|reason| TokenizerError::Broken { file: PathBuf::new(), reason })?,
        )?;
        // Words of one token and of one byte token, without spaces, and with characters of several
        // bytes.
        for text in [" a".repeat(100_000), "b".repeat(150_000), "aé😀".repeat(30_000)] {
            let tokens = tokenizer.encode(&text)?.len();
            for limit in [1, 100, tokens / 2, tokens - 1000] {
                let long = tokenizer.too_long(&text, limit)?;
                let Some(LongText { bytes, tokens: estimate }) = long else {
                    assert!(text.len() <= limit * SHORT_TOKEN, "{limit} of {tokens}");
                    continue;
                };
                assert_eq!(bytes, text.len());
                let share = estimate as f64 / tokens as f64;
                assert!((0.99..1.01).contains(&share), "{limit}: {estimate} of {tokens}");
            }
            for limit in [tokens + 1, 2 * tokens, usize::MAX] {
                assert_eq!(tokenizer.too_long(&text, limit)?, None, "{limit} of {tokens}");
            }
        }
        // Time and memory depend on the limit, not on the text.
        let huge = "ab \n".repeat(20_000_000);
        let long = tokenizer.too_long(&huge, 2048)?;
        assert!(long.is_some_and(|long| long.tokens > 40_000_000), "{long:?}");
        Ok(())
    }

    #[test]
    fn pieces_end_before_spaces() {
        let text = "é ".repeat(PIECE);
        let (mut rest, mut pieces) = (&text[..], 0);
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(end_of_piece(rest));
            assert!(!piece.is_empty() && piece.len() <= PIECE);
            assert!(tail.is_empty() || tail.starts_with(' '));
            (rest, pieces) = (tail, pieces + 1);
        }
        assert_eq!(pieces, 4);
        assert_eq!(end_of_piece(&"é".repeat(PIECE)), PIECE);
        assert_eq!(end_of_piece(&"→".repeat(PIECE)), PIECE - 1);
    }
}

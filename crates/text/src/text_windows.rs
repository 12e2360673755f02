//! Cuts a text into windows of tokens, for measurements.

use crate::tokenizer::{Tokenizer, TokenizerError};
use forerun_core::TokenId;

/// The default window in tokens, if the context allows it.
pub const DEFAULT_WINDOW: usize = 512;

/// The number of bytes that are encoded first for each wanted token.
const BYTES_PER_TOKEN: usize = 16;

/// The number of tokens before a cut that are not used, since the whole text may have other tokens
/// there.
const MARGIN: usize = 16;

/// Encodes the start of a text, and cuts it into windows of at most `window` tokens in which at
/// most `max_tokens` tokens follow others, each of them exactly once. There is no window if the
/// text has fewer than two tokens.
///
/// # Errors
/// If the text cannot be encoded.
pub fn text_windows(
    tokenizer: &Tokenizer,
    text: &str,
    max_tokens: usize,
    window: usize,
) -> Result<Vec<Vec<TokenId>>, TokenizerError> {
    let tokens = first_tokens(tokenizer, text, max_tokens.saturating_add(1))?;
    Ok(windows(&tokens, bos(tokenizer, &tokens)?, window))
}

/// Returns the first `most` tokens of a text, without encoding much more than they need.
fn first_tokens(
    tokenizer: &Tokenizer,
    text: &str,
    most: usize,
) -> Result<Vec<TokenId>, TokenizerError> {
    let mut bytes = most.saturating_mul(BYTES_PER_TOKEN);
    loop {
        let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
        let part = &text[..end.unwrap_or(0)];
        let mut tokens = tokenizer.encode(part)?;
        if part.len() == text.len() || tokens.len() >= most.saturating_add(MARGIN) {
            tokens.truncate(most);
            return Ok(tokens);
        }
        bytes = bytes.saturating_mul(2);
    }
}

/// Returns the token that the tokenizer puts in front of every text, if any.
fn bos(tokenizer: &Tokenizer, tokens: &[TokenId]) -> Result<Option<TokenId>, TokenizerError> {
    let empty = tokenizer.encode("")?;
    Ok(empty.first().copied().filter(|bos| tokens.first() == Some(bos)))
}

/// Cuts tokens into windows in which every token but the first is predicted exactly once. Each
/// window begins with BOS, or, without BOS, with the last token of the previous window.
fn windows(tokens: &[TokenId], bos: Option<TokenId>, window: usize) -> Vec<Vec<TokenId>> {
    let starts = (1..tokens.len()).step_by(window - 1);
    let cut = |start: usize| {
        let predicted = &tokens[start..tokens.len().min(start + window - 1)];
        [&[bos.unwrap_or(tokens[start - 1])], predicted].concat()
    };
    starts.map(cut).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun_formats::checkpoint::random::byte_pair_tokenizer;

    #[test]
    fn windows_predict_every_token_but_the_first_once() {
        let tokens = [9, 1, 2, 3, 4, 5];
        let expected = [vec![9, 1, 2], vec![2, 3, 4], vec![4, 5]];
        assert_eq!(windows(&tokens, None, 3), expected);
        let expected = [vec![9, 1, 2], vec![9, 3, 4], vec![9, 5]];
        assert_eq!(windows(&tokens, Some(9), 3), expected);
        assert_eq!(windows(&tokens, None, 6), [tokens]);
        assert_eq!(windows(&tokens[..2], None, 6), [[9, 1]]);
        assert_eq!(windows(&tokens[..3], None, 2), [[9, 1], [1, 2]]);
    }

    /// The text is cut between and within characters.
    #[test]
    fn the_first_tokens_are_those_of_the_whole_text() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        std::fs::write(file, byte_pair_tokenizer(0).to_string()).unwrap();
        let tokenizer = Tokenizer::from_checkpoint(folder.path()).unwrap();
        let text = "Ein Fuß, zwei Füße – 😀. ".repeat(40);
        let whole = tokenizer.encode(&text).unwrap();
        assert_eq!(bos(&tokenizer, &whole).unwrap(), Some(whole[0]));
        for most in [1, 2, 3, 50, 51, whole.len() - 1, whole.len()] {
            assert_eq!(first_tokens(&tokenizer, &text, most).unwrap(), whole[..most]);
        }
        assert_eq!(first_tokens(&tokenizer, &text, usize::MAX).unwrap(), whole);
    }
}

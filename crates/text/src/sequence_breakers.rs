//! The tokens across which the DRY penalty counts no repetition.

use crate::tokenizer::{SpecialTokens, Tokenizer, TokenizerError};
use forerun_core::TokenId;
use std::sync::{Arc, Mutex, PoisonError};

/// Finds where texts end sequences of a tokenizer's tokens, and keeps what it found last.
pub struct SequenceBreakers {
    tokenizer: Arc<Tokenizer>,
    /// The number of tokens of the model.
    vocab_size: usize,
    kept: Mutex<Found>,
}

/// Texts, and the token sequences that contain them.
#[derive(Default)]
struct Found {
    texts: Vec<String>,
    sequences: Arc<[Vec<TokenId>]>,
}

impl SequenceBreakers {
    /// Creates it for a model of `vocab_size` tokens with this tokenizer.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        Self { tokenizer, vocab_size, kept: Mutex::default() }
    }

    /// Returns the token sequences that contain one of the texts, sorted: tokens that contain it,
    /// and tokens that end with its beginning, each with the tokens of its rest, as in llama.cpp.
    ///
    /// # Errors
    /// If a text cannot be encoded.
    pub fn of(&self, texts: &[String]) -> Result<Arc<[Vec<TokenId>]>, TokenizerError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.texts != texts {
            *kept = Found { texts: texts.to_vec(), sequences: self.find(texts)?.into() };
        }
        Ok(Arc::clone(&kept.sequences))
    }

    fn find(&self, texts: &[String]) -> Result<Vec<Vec<TokenId>>, TokenizerError> {
        let encode = |text: &str| {
            self.tokenizer.encode_with(text, SpecialTokens { add: false, parse: false })
        };
        let mut rests = Vec::new();
        for text in texts {
            for (cut, _) in text.char_indices().skip(1) {
                rests.push((&text.as_bytes()[..cut], encode(&text[cut..])?));
            }
        }
        let whole = texts.iter().map(|text| encode(text)).collect::<Result<Vec<_>, _>>()?;
        let mut found: Vec<Vec<TokenId>> =
            whole.into_iter().filter(|tokens| !tokens.is_empty()).collect();
        for token in 0..self.vocab_size as TokenId {
            let bytes = self.tokenizer.bytes_with_special(token);
            let contains =
                |text: &String| bytes.windows(text.len()).any(|window| window == text.as_bytes());
            if texts.iter().any(contains) {
                found.push(vec![token]);
            }
            let begun = rests.iter().filter(|(start, _)| bytes.ends_with(start));
            found.extend(begun.map(|(_, rest)| [&[token], &rest[..]].concat()));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::tokenizer::llama2c::tests::example;

    #[test]
    fn breakers_are_found_within_tokens_and_across_them() {
        let tokenizer = Arc::new(example().unwrap());
        let vocab_size = tokenizer.vocab_size();
        let breakers = SequenceBreakers::new(Arc::clone(&tokenizer), vocab_size);
        // The byte `a`, ` a` and `a`, each before a space and `b`, because this tokenizer begins a
        // text with a space; `ab`; and the whole text.
        let expected: [&[TokenId]; 5] =
            [&[100, 262, 260], &[259, 260], &[259, 262, 260], &[261], &[263, 262, 260]];
        assert_eq!(*breakers.of(&["ab".to_owned()]).unwrap(), expected.map(<[_]>::to_vec));
        assert!(breakers.of(&[]).unwrap().is_empty());
    }
}

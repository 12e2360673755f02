//! The bytes of a tokenizer's tokens.

use crate::tokenizer::Tokenizer;
use forerun_core::TokenId;
use llguidance::toktrie::{TokRxInfo, TokTrie, TokenizerEnv};

/// Longer tokens cannot be part of an answer with a grammar: the trie does not hold them.
const MAX_TOKEN_BYTES: usize = 1000;

/// More tokens than any vocabulary has, and fewer than the trie's limit.
const MAX_TOKENS: usize = 4_000_000;

/// A vocabulary as a trie of bytes.
pub(super) struct Vocabulary {
    trie: TokTrie,
}

impl Vocabulary {
    /// Reads the tokens below `vocab_size`.
    ///
    /// # Errors
    /// What is not supported about the tokenizer.
    pub(super) fn new(tokenizer: &Tokenizer, vocab_size: usize) -> Result<Self, String> {
        let spelling = tokenizer.spelling()?;
        if vocab_size > MAX_TOKENS {
            return Err(format!("it has {vocab_size} tokens, more than {MAX_TOKENS}"));
        }
        let mut words = vec![Vec::new(); vocab_size];
        for (text, token) in tokenizer.vocabulary() {
            let Some(word) = words.get_mut(token as usize) else { continue };
            let bytes = if tokenizer.is_special(token) {
                [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat()
            } else {
                spelling.bytes(&text)
            };
            // Bytes that begin with the marker belong to no text.
            let in_text = tokenizer.is_special(token)
                || bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER);
            if in_text && bytes.len() <= MAX_TOKEN_BYTES {
                *word = bytes;
            }
        }
        // It stands for all tokens that end an answer, and cannot be sampled itself.
        let end = vocab_size as TokenId;
        words.push([&[TokTrie::SPECIAL_TOKEN_MARKER][..], b"<end of the answer>"].concat());
        let info = TokRxInfo::new(words.len() as u32, end);
        Ok(Self { trie: TokTrie::from(&info, &words) })
    }

    /// Returns the token that stands for the end of an answer. It is not a token of the model.
    pub(super) fn end(&self) -> TokenId {
        self.trie.eos_token()
    }

    /// Returns whether a token stands for text.
    pub(super) fn has_text(&self, token: TokenId) -> bool {
        (token as usize) < self.trie.vocab_size()
            && !matches!(self.trie.token(token), [] | [TokTrie::SPECIAL_TOKEN_MARKER, ..])
    }

    /// Returns the bytes of tokens one after another.
    pub(super) fn bytes(&self, tokens: &[TokenId]) -> Vec<u8> {
        let known = tokens.iter().filter(|&&token| (token as usize) < self.trie.vocab_size());
        known.flat_map(|&token| self.trie.token(token).iter().copied()).collect()
    }

    /// Returns whether a grammar can name a token.
    pub(super) fn is_known(&self, token: TokenId) -> bool {
        token < self.end() && !self.trie.token(token).is_empty()
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(text)
    }

    // Then masks allow every way to spell a text, and the model chooses.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

//! The bytes of a tokenizer's tokens.

use crate::tokenizer::Tokenizer;
use forerun_core::TokenId;
use llguidance::toktrie::{TokRxInfo, TokTrie, TokenizerEnv};
use serde_json::Value;
use std::collections::HashMap;

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
        let spelling = Spelling::new(&tokenizer.decoder())?;
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

/// How a tokenizer spells bytes: the steps of its decoder that concern single tokens.
struct Spelling {
    steps: Vec<Step>,
}

enum Step {
    /// GPT-2's alphabet, which has a character for every byte.
    ByteLevel(HashMap<char, u8>),
    /// Tokens such as `<0x0A>` are single bytes.
    ByteFallback,
    /// One text stands for another, such as `▁` for a space.
    Replace(String, String),
}

impl Spelling {
    /// Reads a decoder of the library `tokenizers`.
    fn new(decoder: &Value) -> Result<Self, String> {
        let mut steps = Vec::new();
        let parts = match decoder["decoders"].as_array() {
            Some(parts) => &parts[..],
            None => std::slice::from_ref(decoder),
        };
        let mut fused = false;
        for part in parts {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            match part["type"].as_str() {
                Some("ByteLevel") => steps.push(Step::ByteLevel(bytes_of_characters())),
                Some("ByteFallback") => steps.push(Step::ByteFallback),
                Some("Fuse") => fused = true,
                // After that, it concerns the start of the text only.
                Some("Strip") if fused => {}
                Some("Metaspace") => {
                    let from = text(&part["replacement"]).ok_or("a Metaspace without a text")?;
                    steps.push(Step::Replace(from, " ".into()));
                }
                Some("Replace") => {
                    let (from, to) = (text(&part["pattern"]["String"]), text(&part["content"]));
                    let (Some(from), Some(to)) = (from, to) else {
                        return Err("its decoder replaces a pattern".into());
                    };
                    steps.push(Step::Replace(from, to));
                }
                Some(other) => return Err(format!("its decoder is {other}")),
                None => return Err("it has no decoder".into()),
            }
        }
        Ok(Self { steps })
    }

    /// Returns the bytes of a token in the middle of a text.
    fn bytes(&self, token: &str) -> Vec<u8> {
        let mut text = token.to_owned();
        for step in &self.steps {
            match step {
                Step::ByteLevel(bytes) => {
                    let of_all: Option<Vec<u8>> =
                        text.chars().map(|character| bytes.get(&character).copied()).collect();
                    return of_all.unwrap_or_else(|| text.into_bytes());
                }
                Step::ByteFallback => {
                    if let Some(byte) = byte_token(&text) {
                        return vec![byte];
                    }
                }
                Step::Replace(from, to) => text = text.replace(from, to),
            }
        }
        text.into_bytes()
    }
}

/// Returns the byte of a token such as `<0x0A>`.
fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// Returns the bytes of GPT-2's alphabet: printable characters stand for themselves, and those from
/// U+0100 on for the other bytes.
fn bytes_of_characters() -> HashMap<char, u8> {
    let is_printable = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let printable = (0..=255).filter(is_printable).map(|byte| (char::from(byte), byte));
    let others = (0..=255).filter(|byte| !is_printable(byte));
    printable.chain(('\u{100}'..).zip(others)).collect()
}

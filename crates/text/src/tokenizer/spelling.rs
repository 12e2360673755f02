//! The bytes that tokens stand for.

use serde_json::Value;
use std::collections::HashMap;

/// How a tokenizer spells bytes: the steps of its decoder that concern single tokens.
#[derive(Debug)]
pub(crate) struct Spelling {
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    /// GPT-2's alphabet, which has a character for every byte.
    ByteLevel(HashMap<char, u8>),
    /// Tokens such as `<0x0A>` are single bytes.
    ByteFallback,
    /// One text stands for another, such as `▁` for a space.
    Replace(String, String),
}

impl Spelling {
    /// Reads a decoder of the library `tokenizers`, as in `tokenizer.json`.
    ///
    /// # Errors
    /// The step that concerns more than single tokens, or is not known.
    pub(super) fn new(decoder: &Value) -> Result<Self, String> {
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
    pub(crate) fn bytes(&self, token: &str) -> Vec<u8> {
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

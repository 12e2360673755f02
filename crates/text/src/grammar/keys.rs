//! Names of properties appear once in an object. A grammar without context cannot say so.

use super::vocabulary::Vocabulary;
use forerun_core::TokenId;
use llguidance::toktrie::TokenizerEnv;
use std::collections::HashSet;

/// The tokens that may end the name of a property: those with a quote.
pub(super) struct Names {
    /// Each token with the number of its quotes.
    tokens: Vec<(TokenId, usize)>,
}

impl Names {
    pub(super) fn new(vocabulary: &Vocabulary) -> Self {
        let quotes = |token: TokenId| {
            let bytes = vocabulary.tok_trie().token(token);
            (token, bytes.iter().filter(|byte| **byte == b'"').count())
        };
        let texts = (0..vocabulary.end()).filter(|token| vocabulary.has_text(*token));
        Self { tokens: texts.map(quotes).filter(|(_, quotes)| *quotes > 0).collect() }
    }

    /// Removes from a mask the tokens that would write a name again. If no token is left, all
    /// remain.
    pub(super) fn exclude_repeated(
        &self,
        answer: &[TokenId],
        vocabulary: &Vocabulary,
        words: &mut [u32],
    ) {
        let mut reader = Reader::default();
        reader.read(&vocabulary.bytes(answer));
        if !reader.has_names() {
            return;
        }
        // A name that is not begun yet needs two quotes.
        let needed = if reader.is_in_name() { 1 } else { 2 };
        let mut excluded = Vec::new();
        for &(token, quotes) in &self.tokens {
            let (word, bit) = (token as usize / 32, 1 << (token % 32));
            let is_allowed = words.get(word).is_some_and(|word| word & bit != 0);
            if quotes >= needed
                && is_allowed
                && reader.clone().read(vocabulary.tok_trie().token(token))
            {
                excluded.push((word, bit));
            }
        }
        let all = words.to_vec();
        for (word, bit) in excluded {
            words[word] &= !bit;
        }
        if words.iter().all(|word| *word == 0) {
            words.copy_from_slice(&all);
        }
    }
}

/// Reads the beginning of a JSON value.
#[derive(Clone, Default)]
struct Reader {
    /// The names in each object that is open; `None` for lists.
    open: Vec<Option<HashSet<Vec<u8>>>>,
    /// The string that is open.
    string: Option<OpenString>,
    /// Whether the next string is a name.
    expects_name: bool,
}

#[derive(Clone)]
struct OpenString {
    is_name: bool,
    is_escaped: bool,
    text: Vec<u8>,
}

impl Reader {
    /// Reads more. Returns whether a name was there before.
    fn read(&mut self, bytes: &[u8]) -> bool {
        let mut is_repeated = false;
        for byte in bytes {
            is_repeated |= self.step(*byte);
        }
        is_repeated
    }

    fn step(&mut self, byte: u8) -> bool {
        if let Some(string) = &mut self.string {
            if string.is_escaped || byte != b'"' {
                string.is_escaped = byte == b'\\' && !string.is_escaped;
                string.text.push(byte);
                return false;
            }
            let Some(OpenString { is_name: true, text, .. }) = self.string.take() else {
                return false;
            };
            self.expects_name = false;
            return match self.open.last_mut() {
                Some(Some(names)) => !names.insert(unescaped(text)),
                _ => false,
            };
        }
        match byte {
            b'"' => {
                let is_name = self.expects_name;
                self.string = Some(OpenString { is_name, is_escaped: false, text: Vec::new() });
            }
            b'{' => {
                self.open.push(Some(HashSet::new()));
                self.expects_name = true;
            }
            b'[' => {
                self.open.push(None);
                self.expects_name = false;
            }
            b'}' | b']' => {
                self.open.pop();
                self.expects_name = false;
            }
            b',' => self.expects_name = matches!(self.open.last(), Some(Some(_))),
            _ => {}
        }
        false
    }

    /// Returns whether an object that is open has names.
    fn has_names(&self) -> bool {
        self.open.iter().flatten().any(|names| !names.is_empty())
    }

    fn is_in_name(&self) -> bool {
        self.string.as_ref().is_some_and(|string| string.is_name)
    }
}

/// Returns the name that is written so: a character may be spelled in several ways.
fn unescaped(text: Vec<u8>) -> Vec<u8> {
    if !text.contains(&b'\\') {
        return text;
    }
    let quoted = [b"\"", &text[..], b"\""].concat();
    serde_json::from_slice::<String>(&quoted).map_or(text, String::into_bytes)
}

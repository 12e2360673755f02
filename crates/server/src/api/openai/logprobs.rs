//! Log-probabilities in the forms of completions and of chat completions.

use forerun::text::Tokenizer;
use forerun::{Answer, AnswerToken, Finish, TokenId, TokenLogprob};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// The log-probabilities of consecutive tokens.
pub(crate) struct Logprobs<'a> {
    tokens: Vec<&'a TokenLogprob>,
    /// Whether the last token ended the answer. It is no part of the text then.
    ends_answer: bool,
    tokenizer: &'a Tokenizer,
}

impl<'a> Logprobs<'a> {
    /// Returns those of a whole answer, if they were requested.
    pub(crate) fn of_answer(answer: &'a Answer, tokenizer: &'a Tokenizer) -> Option<Self> {
        let tokens = answer.logprobs.as_ref()?.iter().collect();
        Some(Self { tokens, ends_answer: answer.finish == Finish::Eos, tokenizer })
    }

    /// Returns those of the prompt's tokens after the first, if they were requested.
    pub(super) fn of_prompt(answer: &'a Answer, tokenizer: &'a Tokenizer) -> Option<Self> {
        let tokens = answer.prompt_logprobs.as_ref()?.iter().collect();
        Some(Self { tokens, ends_answer: false, tokenizer })
    }

    /// Returns those of a part of a stream, if they were requested.
    pub(crate) fn of_part(part: &'a [AnswerToken], tokenizer: &'a Tokenizer) -> Option<Self> {
        let tokens: Vec<_> = part.iter().filter_map(|token| token.logprob.as_ref()).collect();
        let ends_answer = part.last().is_some_and(|token| token.ends_answer);
        (!tokens.is_empty()).then_some(Self { tokens, ends_answer, tokenizer })
    }

    /// Returns the bytes of a token's text in the answer, for each token.
    fn bytes(&self) -> Vec<Vec<u8>> {
        let mut bytes: Vec<_> =
            self.tokens.iter().map(|one| self.tokenizer.bytes(one.token)).collect();
        if let (true, Some(end)) = (self.ends_answer, bytes.last_mut()) {
            end.clear();
        }
        bytes
    }

    /// Returns the most probable tokens at a position, with their bytes. Those of the token that
    /// was chosen are `chosen`, and other special tokens have the bytes of their texts.
    fn top(
        &self,
        logprob: &TokenLogprob,
        chosen: &[u8],
    ) -> impl Iterator<Item = (TokenId, Vec<u8>, Value)> {
        logprob.top.iter().map(move |&(token, value)| {
            let bytes = match token == logprob.token {
                true => chosen.to_vec(),
                false => self.tokenizer.bytes_with_special(token),
            };
            (token, bytes, finite(value))
        })
    }

    /// Returns the form of completions. `offset` is the number of the text's characters before.
    pub(super) fn of_completion(&self, offset: usize) -> Value {
        let bytes = self.bytes();
        let (offsets, _) = offsets(&bytes, offset);
        json!({
            "text_offset": offsets,
            "tokens": texts(&bytes),
            "token_logprobs": self.values().collect::<Vec<_>>(),
            "top_logprobs": self.tops(&bytes).collect::<Vec<_>>(),
        })
    }

    /// Returns the form of completions for a prompt with this text. Its first token has no
    /// log-probability.
    pub(super) fn of_echo(&self, first: TokenId, text: &str) -> Value {
        let tokens = [first].into_iter().chain(self.tokens.iter().map(|one| one.token));
        let bytes: Vec<_> = tokens.map(|token| self.tokenizer.bytes_with_special(token)).collect();
        let (offsets, end) = offsets(&bytes, 0);
        // What the tokenizer put before the text is no part of it.
        let added = end.saturating_sub(text.chars().count());
        let offsets = offsets.into_iter().map(|offset| offset.saturating_sub(added));
        let none = || [Value::Null].into_iter();
        json!({
            "text_offset": offsets.collect::<Vec<_>>(),
            "tokens": texts(&bytes),
            "token_logprobs": none().chain(self.values()).collect::<Vec<_>>(),
            "top_logprobs": none().chain(self.tops(&bytes[1..])).collect::<Vec<_>>(),
        })
    }

    fn values(&self) -> impl Iterator<Item = Value> {
        self.tokens.iter().map(|one| finite(one.logprob))
    }

    /// Returns the most probable tokens at each position by their texts. `bytes` are those of the
    /// tokens that were chosen.
    fn tops(&self, bytes: &[Vec<u8>]) -> impl Iterator<Item = Value> {
        self.tokens.iter().zip(bytes).map(move |(one, chosen)| {
            let top: Vec<_> = self.top(one, chosen).collect();
            Value::from(by_text(one.token, &top))
        })
    }

    /// Returns the form of chat completions.
    pub(crate) fn of_chat(&self) -> Value {
        let entry = |bytes: &[u8], logprob: Value| json!({"bytes": bytes, "logprob": logprob, "token": String::from_utf8_lossy(bytes)});
        let content = self.tokens.iter().zip(self.bytes()).map(|(one, bytes)| {
            let mut value = entry(&bytes, finite(one.logprob));
            let top = self.top(one, &bytes).map(|(_, bytes, value)| entry(&bytes, value));
            value["top_logprobs"] = top.collect();
            value
        });
        json!({"content": content.collect::<Vec<_>>(), "refusal": null})
    }
}

/// Appends log-probabilities in the form of completions to others.
pub(super) fn append(first: &mut Value, then: &mut Value) {
    for (name, list) in first.as_object_mut().into_iter().flatten() {
        if let (Value::Array(list), Value::Array(more)) = (list, &mut then[name.as_str()]) {
            list.append(more);
        }
    }
}

/// Returns the number of characters before each token, where `start` come before the first, and
/// that of all of them.
fn offsets(bytes: &[Vec<u8>], start: usize) -> (Vec<usize>, usize) {
    let mut characters = Characters { whole: start, pending: Vec::new() };
    let offsets = bytes.iter().map(|bytes| {
        let start = characters.whole;
        characters.push(bytes);
        start
    });
    (offsets.collect(), characters.whole)
}

/// Returns tokens by their texts. The token that was chosen keeps its text, and each other one
/// whose text another token has is named by its id, as in vLLM.
fn by_text(chosen: TokenId, top: &[(TokenId, Vec<u8>, Value)]) -> Map<String, Value> {
    let of_chosen = top.iter().find(|(token, ..)| *token == chosen);
    let mut used: HashSet<String> =
        of_chosen.map(|(_, bytes, _)| text_or_bytes(bytes)).into_iter().collect();
    let named = top.iter().map(|(token, bytes, value)| {
        let text = text_or_bytes(bytes);
        let has_text = *token == chosen || used.insert(text.clone());
        (if has_text { text } else { format!("token_id:{token}") }, value.clone())
    });
    named.collect()
}

fn texts(bytes: &[Vec<u8>]) -> Vec<String> {
    bytes.iter().map(|bytes| text_or_bytes(bytes)).collect()
}

/// Returns a text, or bytes that are no text in the form of OpenAI's completions.
fn text_or_bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            bytes.iter().fold("bytes:".to_owned(), |text, byte| text + &format!("\\x{byte:02x}"))
        }
    }
}

/// Counts the characters of a text that arrives in bytes.
struct Characters {
    /// The number of whole characters. Bytes that form none count as the replacement character.
    whole: usize,
    /// The bytes of a character that is not whole yet.
    pending: Vec<u8>,
}

impl Characters {
    fn push(&mut self, bytes: &[u8]) {
        self.pending.extend(bytes);
        let mut rest = &self.pending[..];
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.whole += text.chars().count();
                    self.pending.clear();
                    return;
                }
                Err(error) => error,
            };
            let (text, after) = rest.split_at(error.valid_up_to());
            self.whole += String::from_utf8_lossy(text).chars().count();
            let Some(wrong) = error.error_len() else {
                self.pending = after.to_vec();
                return;
            };
            self.whole += 1;
            rest = &after[wrong..];
        }
    }
}

/// JSON has no infinities, and OpenAI's API writes the least probability as this number.
pub(super) fn finite(logprob: f32) -> Value {
    json!(logprob.max(-9999.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_counted_for_every_cut_into_tokens() {
        let whole = "aé😀→z".as_bytes();
        let broken =
            [b"a\xff\xe2\x82".as_slice(), "b😀".as_bytes(), b"\xf0\x9f".as_slice()].concat();
        for text in [whole, &broken] {
            let at = |end: usize| match std::str::from_utf8(&text[..end]) {
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                _ => end,
            };
            for first in 0..=text.len() {
                for second in first..=text.len() {
                    let mut characters = Characters { whole: 3, pending: Vec::new() };
                    for part in [&text[..first], &text[first..second], &text[second..]] {
                        characters.push(part);
                    }
                    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().count();
                    let pending = usize::from(!characters.pending.is_empty());
                    assert_eq!(characters.whole + pending, 3 + lossy(text), "{first} {second}");
                    if text == whole {
                        let mut begun = Characters { whole: 0, pending: Vec::new() };
                        begun.push(&text[..first]);
                        assert_eq!(begun.whole, lossy(&text[..at(first)]));
                    }
                }
            }
        }
    }

    #[test]
    fn candidates_with_the_same_text_stay_apart() {
        let top = |chosen| {
            let candidates = [(5, "a"), (3, "a"), (4, ""), (7, "b"), (8, "")];
            let top = candidates.map(|(token, text)| (token, text.into(), json!(token)));
            Value::from(by_text(chosen, &top))
        };
        let expected = json!({"a": 5, "token_id:3": 3, "": 4, "b": 7, "token_id:8": 8});
        assert_eq!(top(7), expected);
        let expected = json!({"a": 3, "token_id:5": 5, "": 4, "b": 7, "token_id:8": 8});
        assert_eq!(top(3), expected);
    }

    #[test]
    fn bytes_that_are_no_text_are_written_as_bytes() {
        assert_eq!(text_or_bytes("é".as_bytes()), "é");
        assert_eq!(text_or_bytes(&[0xE2, 0x80]), "bytes:\\xe2\\x80");
        assert_eq!(text_or_bytes(&[]), "");
    }
}

//! Tokens that end an answer, known by their text.

use std::collections::BTreeMap;

/// The ends of texts and turns that model families have. llama.cpp knows them in the same way.
const ENDS: [&str; 17] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "▁<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
/// Gemma 4 ends an answer where the result of a tool follows.
const TOOL_RESPONSE: &str = "<|tool_response>";
/// The end of a text in many vocabularies, and of struck-out text in HTML.
const END_OF_TEXT_OR_HTML: &str = "</s>";
/// The end of a turn, or else of one of the messages of an answer.
const END_OF_MESSAGE: &str = "<|end|>";
/// The ends of answers that consist of several messages: those of gpt-oss, and those of Solar.
const ENDS_OF_MESSAGES: [[&str; 2]; 2] = [["<|return|>", "<|call|>"], ["<|flush|>", "<|calls|>"]];

/// Returns the tokens of a vocabulary that end an answer by their text, in the order of their ids.
/// Each token has an id, a text, and whether its file says that it is a control token. Many files
/// do not say so of ends, and name only one end although a chat ends at another one.
pub fn known_ends<'a>(tokens: impl Iterator<Item = (u32, &'a str, bool)>) -> Vec<u32> {
    let families = ENDS_OF_MESSAGES.as_flattened();
    let is_candidate = |text: &str| {
        ENDS.contains(&text)
            || families.contains(&text)
            || [TOOL_RESPONSE, END_OF_TEXT_OR_HTML].contains(&text)
    };
    let candidates: BTreeMap<u32, (&str, bool)> = tokens
        .filter(|(_, text, _)| is_candidate(text))
        .map(|(id, text, is_control)| (id, (text, is_control)))
        .collect();
    let has = |text: &&str| candidates.values().any(|(other, _)| other == text);
    let family = ENDS_OF_MESSAGES.iter().find(|ends| ends.iter().all(&has));
    let is_end = |(text, is_control): (&str, bool)| match text {
        // An answer of several messages goes on after the end of one.
        END_OF_MESSAGE => family.is_none(),
        END_OF_TEXT_OR_HTML => is_control && !has(&TOOL_RESPONSE),
        TOOL_RESPONSE => true,
        text => ENDS.contains(&text) || family.is_some_and(|ends| ends.contains(&text)),
    };
    candidates.iter().filter(|(_, token)| is_end(**token)).map(|(id, _)| *id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(texts: &[&str], is_control: bool) -> Vec<u32> {
        known_ends((0..).zip(texts).map(|(id, text)| (id, *text, is_control)))
    }

    #[test]
    fn ends_count_whatever_their_file_says_of_them() {
        for end in ENDS {
            for is_control in [false, true] {
                assert_eq!(ends(&["a", end, "<|user|>"], is_control), [1], "{end}");
            }
        }
        assert!(ends(&["<|im_start|>", "im_end", " <|im_end|>", "<|im_end|>s"], true).is_empty());
        // Both of two tokens with the same text.
        assert_eq!(ends(&["<|im_end|>", "a", "<|im_end|>"], false), [0, 2]);
    }

    /// Some vocabularies have HTML's tags as ordinary tokens, and Gemma 4's has them as control
    /// tokens.
    #[test]
    fn the_end_of_struck_out_text_is_no_end_of_an_answer() {
        assert!(ends(&["<s>", "</s>", "</em>"], false).is_empty());
        assert_eq!(ends(&["<s>", "</s>"], true), [1]);
        assert_eq!(ends(&["</s>", "<eos>", "<turn|>", "<|tool_response>"], true), [1, 2, 3]);
    }

    #[test]
    fn the_end_of_a_message_is_no_end_of_an_answer_with_several_messages() {
        for [first, second] in ENDS_OF_MESSAGES {
            assert_eq!(ends(&["<|end|>", first, second], false), [1, 2]);
            assert_eq!(ends(&["<|end|>", first], false), [0]);
            assert_eq!(ends(&["<|end|>", second], false), [0]);
        }
    }
}

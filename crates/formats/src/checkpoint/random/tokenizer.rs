//! Tokenizers for random checkpoints: the single bytes, then byte pairs up to the vocabulary's
//! size.

use super::{BOS, EOS, MIN_VOCAB_SIZE};
use serde_json::{Map, Value, json};

/// Creates a tokenizer in the format of Hugging Face's `tokenizers`. It has `vocab_size` tokens,
/// but at least [`MIN_VOCAB_SIZE`]: the 256 bytes, [`BOS`] and [`EOS`], then merges of increasing
/// length, printable ones first. Every token has a different text.
#[must_use]
pub fn byte_pair_tokenizer(vocab_size: usize) -> Value {
    let (longer, merges) = merged_tokens(vocab_size.saturating_sub(MIN_VOCAB_SIZE));
    let bytes = (0..=255).map(|byte: u8| (byte_character(byte).to_string(), json!(byte)));
    let longer = longer.into_iter().zip(MIN_VOCAB_SIZE..).map(|(text, id)| (text, json!(id)));
    let ends = [(BOS, "<s>"), (EOS, "</s>")];
    let ends_by_text = ends.map(|(id, text)| (text.to_owned(), json!(id)));
    // A special token that the vocabulary lacks would get an id after its last one.
    let vocabulary: Map<String, Value> = bytes.chain(ends_by_text).chain(longer).collect();
    let special = |(id, content): (u32, &str)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    let bos = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let text = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": ends.map(special),
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, text("A", 0)],
            "pair": [bos, text("A", 0), text("B", 1)],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
        },
        "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocabulary, "merges": merges,
        },
    })
}

/// Returns `count` tokens of two or more bytes, and the two parts that each is merged from. The
/// first part runs through all tokens in order, so tokens of three bytes follow after all pairs.
fn merged_tokens(count: usize) -> (Vec<String>, Vec<[String; 2]>) {
    let (printable, unprintable): (Vec<u8>, Vec<u8>) =
        (0..=255).partition(|byte| matches!(byte, b' '..=b'~'));
    let bytes = printable.iter().chain(&unprintable);
    let bytes: Vec<String> = bytes.map(|&byte| byte_character(byte).to_string()).collect();
    let (mut longer, mut merges): (Vec<String>, Vec<[String; 2]>) = (Vec::new(), Vec::new());
    for index in 0..count {
        let (first, second) = (index / bytes.len(), &bytes[index % bytes.len()]);
        let first = bytes.get(first).unwrap_or_else(|| &longer[first - bytes.len()]).clone();
        longer.push(first.clone() + second);
        merges.push([first, second.clone()]);
    }
    (longer, merges)
}

/// Returns the character that represents a byte in GPT-2's alphabet: the byte's own character if it
/// is printable, else the next one of those from U+0100 on.
fn byte_character(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|other| !is_printable(*other)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn bytes_have_gpt_2s_characters() {
        assert_eq!(byte_character(b' '), 'Ġ');
        assert_eq!(byte_character(b'\n'), 'Ċ');
        assert_eq!(byte_character(b'a'), 'a');
        assert_eq!((byte_character(0), byte_character(0xad)), ('Ā', 'Ń'));
        let distinct: HashSet<char> = (0..=255).map(byte_character).collect();
        assert_eq!(distinct.len(), 256);
    }

    #[test]
    fn every_token_has_a_different_text() {
        // The last size has all pairs, so some of its tokens have three bytes.
        for size in [MIN_VOCAB_SIZE, 1000, 256 * 257 + 2 + 300] {
            let tokenizer = byte_pair_tokenizer(size);
            let vocabulary = tokenizer["model"]["vocab"].as_object().map(Map::len);
            assert_eq!(vocabulary, Some(size));
            let merges = tokenizer["model"]["merges"].as_array().map(Vec::len);
            assert_eq!(merges, Some(size - MIN_VOCAB_SIZE));
        }
        assert_eq!(byte_pair_tokenizer(MIN_VOCAB_SIZE + 2)["model"]["vocab"]["Ġ!"], json!(259));
    }
}

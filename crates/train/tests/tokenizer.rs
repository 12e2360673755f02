//! The trained tokenizer encodes every text, and both the engine and the `tokenizers` crate read
//! its files.
use std::io::Write;

use crate::common::{books, quiet, tokenizer, write_books};
use forerun_train::data::{Phase, Progress};
use forerun_train::tokenizer::{TokenizerOptions, train_tokenizer};
use proptest::prelude::*;

#[test]
fn training_is_reproducible_and_the_separator_is_token_0() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| tokenizer(&folder.path().join(name), 1));
    assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&other).unwrap());
    let tokenizer = tokenizers::Tokenizer::from_file(&one).unwrap();
    assert_eq!(tokenizer.token_to_id("<|endoftext|>"), Some(0));
    assert_eq!(tokenizer.get_vocab_size(true), 320);
    // Digits are separate, line ends are merged.
    let pieces = |text: &str| tokenizer.encode(text, true).unwrap().get_tokens().to_vec();
    assert_eq!(pieces("1843 184"), ["1", "8", "4", "3", "Ġ1", "8", "4"]);
    assert_eq!(pieces("\n\nthe"), ["ĊĊ", "the"]);
}

#[test]
fn the_engine_encodes_like_the_library_without_a_bos() {
    let folder = tempfile::tempdir().unwrap();
    let file = tokenizer(folder.path(), 1);
    let engine = forerun::text::Tokenizer::from_checkpoint(folder.path()).unwrap();
    let library = tokenizers::Tokenizer::from_file(&file).unwrap();
    for text in books(7, 4, 300) {
        let tokens = engine.encode(&text).unwrap();
        assert_eq!(tokens, library.encode(&text[..], true).unwrap().get_ids());
        // The engine encodes the name of the separator as the separator, and does not show it.
        assert_eq!(engine.decode(&tokens), text.replace("<|endoftext|>", ""));
    }
    assert!(engine.encode("").unwrap().is_empty());
}

#[test]
fn a_sample_is_spread_over_all_files() {
    let folder = tempfile::tempdir().unwrap();
    // Each file has a different word. A vocabulary from a sample of one tenth contains all of them.
    let files: Vec<_> = ["alpha", "bravo", "delta"]
        .iter()
        .map(|word| {
            let paragraph = format!("{word} {word} {word}\n\n").repeat(60_000);
            write_books(&folder.path().join(word), &[paragraph])
        })
        .collect();
    let total_bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    let max_bytes = total_bytes / 10;
    for seed in 0..4 {
        let options = TokenizerOptions { vocab_size: 300, max_bytes, seed };
        let mut reports = Vec::new();
        let mut on_progress = |progress: Progress| reports.push(progress);
        let trained = train_tokenizer(&files, &options, &mut on_progress).unwrap();
        let off_bytes = trained.sample_bytes().abs_diff(max_bytes);
        assert!(off_bytes < 1 << 17, "{} of {max_bytes}", trained.sample_bytes());
        let file = trained.save(folder.path()).unwrap();
        let tokenizer = tokenizers::Tokenizer::from_file(file).unwrap();
        for word in ["alpha", "bravo", "delta"] {
            assert!(tokenizer.token_to_id(&format!("Ġ{word}")).is_some(), "{seed}: {word}");
        }
        assert!(reports.iter().all(|progress| progress.done_bytes <= progress.total_bytes));
        let phases: Vec<Phase> = reports.iter().map(|progress| progress.phase).collect();
        assert!(phases.is_sorted_by_key(|&phase| phase as u8), "{phases:?}");
        assert_eq!(phases.last(), Some(&Phase::Merging));
    }
}

/// The lag of a sample never exceeds the text.
#[test]
fn a_small_sample_of_a_small_text_is_not_empty() {
    let folder = tempfile::tempdir().unwrap();
    let file = write_books(&folder.path().join("small.txt"), &books(5, 2, 20_000));
    for (max_bytes, seed) in (0..8).flat_map(|seed| [(1, seed), (10_000, seed), (150_000, seed)]) {
        let options = TokenizerOptions { vocab_size: 260, max_bytes, seed };
        let trained = train_tokenizer(std::slice::from_ref(&file), &options, &mut quiet).unwrap();
        assert!(trained.sample_bytes() > 0 && trained.sample_bytes() < max_bytes + (1 << 17));
    }
}

#[test]
fn invalid_inputs_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    let error = |bytes: &[u8], vocab_size| {
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        let options = TokenizerOptions { vocab_size, ..TokenizerOptions::default() };
        let trained = train_tokenizer(std::slice::from_ref(&path), &options, &mut quiet);
        trained.err().unwrap().to_string()
    };
    assert!(error(b"text", 256).contains("`vocab_size` is 256: expected at least 257"));
    assert!(error(b" \n\x0C\n", 300).contains("no text in"));
    assert!(error(b"ab\xFF", 300).contains("at byte 2"));
    let options = TokenizerOptions { max_bytes: 0, ..TokenizerOptions::default() };
    let none = train_tokenizer(std::slice::from_ref(&path), &options, &mut quiet).err().unwrap();
    assert!(none.to_string().contains("`max_bytes` is 0"), "{none}");
    let none = train_tokenizer(&[], &TokenizerOptions::default(), &mut quiet).err().unwrap();
    assert!(none.to_string().contains("no files were given"));
}

proptest! {
    /// All bytes are in the vocabulary, so any text can be encoded, whatever the sample contained.
    #[test]
    fn decoding_restores_every_text(text in "\\PC{0,60}|[a-z \n\r\t.é😀]{0,60}") {
        let tokenizer = small();
        let encoding = tokenizer.encode(&text[..], true).unwrap();
        prop_assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), text);
    }
}

/// A tokenizer that all test cases share.
fn small() -> &'static tokenizers::Tokenizer {
    static SMALL: std::sync::OnceLock<tokenizers::Tokenizer> = std::sync::OnceLock::new();
    SMALL.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        tokenizers::Tokenizer::from_file(tokenizer(folder.path(), 1)).unwrap()
    })
}

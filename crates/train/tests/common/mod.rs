//! Shared helpers of the tests: books of random words, and a tokenizer for them.
use std::path::{Path, PathBuf};

use forerun_train::data::Progress;
use forerun_train::tokenizer::{TokenizerOptions, train_tokenizer};

/// Words of several scripts, with line ends and digits.
const WORDS: [&str; 16] = [
    "the",
    "ship",
    "sailed",
    "Straße",
    "déjà",
    "море",
    "海",
    "😀",
    "don't",
    "\"Oh!\"",
    "1843",
    "--",
    "a",
    "house",
    "\n\n",
    "<|endoftext|>",
];

/// Texts that resemble books. The same seed gives the same texts.
pub(crate) fn books(seed: u64, count: usize, words: usize) -> Vec<String> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    (0..count)
        .map(|_| {
            let mut text = String::from("Chapter");
            for _ in 0..words {
                let word = WORDS[next() % WORDS.len()];
                if word != "\n\n" && !text.ends_with('\n') {
                    text.push(' ');
                }
                text.push_str(word);
            }
            text.push('.');
            text
        })
        .collect()
}

/// Writes texts to a file, separated by form feeds.
pub(crate) fn write_books(path: &Path, books: &[String]) -> PathBuf {
    std::fs::write(path, books.join("\n\n\x0C\n\n")).unwrap();
    path.to_owned()
}

/// Trains a small tokenizer on some books, and saves it in a folder. Returns the path of its file.
pub(crate) fn tokenizer(folder: &Path, seed: u64) -> PathBuf {
    std::fs::create_dir_all(folder).unwrap();
    let file = write_books(&folder.join("sample.txt"), &books(seed, 3, 3000));
    let options = TokenizerOptions { vocab_size: 320, ..TokenizerOptions::default() };
    train_tokenizer(&[file], &options, &mut quiet).unwrap().save(folder).unwrap()
}

/// A progress callback that ignores all reports.
pub(crate) fn quiet(_: Progress) {}

/// The names and contents of all files of a folder that are not hidden, sorted by name.
pub(crate) fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path))
        .filter(|(name, _)| !name.starts_with('.'))
        .map(|(name, path)| (name, std::fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

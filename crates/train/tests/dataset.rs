//! Data sets: reading returns exactly the prepared documents, and an incomplete data set cannot be
//! opened.
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{books, contents, quiet, tokenizer, write_books};
use forerun_train::data::{DataError, Dataset, Framing, PrepareOptions, Progress, Split};

/// The inputs of a data set in a temporary folder: two training files, a validation file, a
/// tokenizer.
struct Sources {
    folder: tempfile::TempDir,
    training: Vec<PathBuf>,
    tokenizer: PathBuf,
    options: PrepareOptions,
}

impl Sources {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, seed, count| {
            write_books(&folder.path().join(name), &books(seed, count, 2000))
        };
        let training = vec![file("one.txt", 11, 3), file("two.txt", 12, 2)];
        let validation_files = vec![file("validation.txt", 13, 2)];
        let tokenizer = tokenizer(&folder.path().join("tokenizer"), 1);
        let options =
            PrepareOptions { validation_files, shard_tokens: 5000, ..PrepareOptions::default() };
        Self { folder, training, tokenizer, options }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn prepare_with(&self, name: &str, options: &PrepareOptions) -> Result<Dataset, DataError> {
        let (files, folder) = (&self.training, self.path(name));
        Dataset::prepare(files, &self.tokenizer, &folder, options, &mut quiet)
    }

    fn prepare(&self, name: &str) -> Dataset {
        self.prepare_with(name, &self.options).unwrap()
    }
}

/// The decoded documents of a split.
fn texts(dataset: &Dataset, split: Split, tokenizer: &Path) -> Vec<String> {
    let tokenizer = tokenizers::Tokenizer::from_file(tokenizer).unwrap();
    let stream = dataset.tokens(split);
    let mut tokens = Vec::new();
    stream.read(0, stream.len() as usize, &mut tokens);
    assert_eq!(tokens.last(), Some(&dataset.separator()));
    tokens.pop();
    let documents = tokens.split(|&token| token == dataset.separator());
    documents.map(|tokens| tokenizer.decode(tokens, false).unwrap()).collect()
}

#[test]
fn decoding_a_data_set_restores_its_documents() {
    let sources = Sources::new();
    let dataset = sources.prepare("set");
    // The name of the separator within a text stays text. Otherwise there would be more documents.
    let training = [books(11, 3, 2000), books(12, 2, 2000)].concat();
    assert_eq!(texts(&dataset, Split::Training, &sources.tokenizer), training);
    let held_out = books(13, 2, 2000);
    assert_eq!(texts(&dataset, Split::HeldOut, &sources.tokenizer), held_out);
    assert_eq!(dataset.documents(Split::Training), 5);
    let bytes = |texts: &[String]| texts.iter().map(|text| text.len() as u64).sum::<u64>();
    assert_eq!(dataset.text_bytes(Split::Training), bytes(&training));
    assert_eq!(dataset.text_bytes(Split::HeldOut), bytes(&held_out));
    // Shards are completely filled, and reads may cross shard boundaries.
    let stream = dataset.tokens(Split::Training);
    assert!(stream.len() > 15_000);
    let mut whole = Vec::new();
    stream.read(0, stream.len() as usize + 5, &mut whole);
    assert_eq!(whole.len() as u64, stream.len());
    for start in [0, 4_998, 5_000, 9_999, stream.len() - 3, stream.len(), stream.len() + 9] {
        let mut part = Vec::new();
        stream.read(start, 5_003, &mut part);
        let expected = whole.get(start as usize..).unwrap_or_default();
        assert_eq!(part, expected[..expected.len().min(5_003)], "{start}");
    }
    assert_eq!(dataset.bytes_of(&whole), bytes(&training));
}

#[test]
fn special_tokens_in_a_text_are_tokens_on_request() {
    let sources = Sources::new();
    let options = PrepareOptions { special_tokens: true, ..sources.options.clone() };
    let dataset = sources.prepare_with("set", &options).unwrap();
    let training = [books(11, 3, 2000), books(12, 2, 2000)].concat();
    let parts = |text: &String| text.split("<|endoftext|>").map(str::to_owned).collect::<Vec<_>>();
    let expected: Vec<String> = training.iter().flat_map(parts).collect();
    assert!(expected.len() > training.len());
    assert_eq!(texts(&dataset, Split::Training, &sources.tokenizer), expected);
    let bytes: u64 = training.iter().map(|text| text.len() as u64).sum();
    assert_eq!(dataset.text_bytes(Split::Training), bytes);
    let Err(error) = sources.prepare_with("set", &sources.options) else {
        panic!("it was accepted")
    };
    assert!(error.to_string().contains("special tokens"), "{error}");
}

#[test]
fn encoding_in_pieces_gives_the_tokens_of_the_whole_text() {
    let sources = Sources::new();
    let dataset = sources.prepare("set");
    let mut library = tokenizers::Tokenizer::from_file(&sources.tokenizer).unwrap();
    library.set_encode_special_tokens(true);
    let mut expected = Vec::new();
    for text in books(13, 2, 2000) {
        // Long enough for several pieces.
        assert!(text.len() > 10_000);
        expected.extend_from_slice(library.encode(&text[..], false).unwrap().get_ids());
        expected.push(dataset.separator());
    }
    let mut found = Vec::new();
    dataset.tokens(Split::HeldOut).read(0, expected.len() + 1, &mut found);
    assert_eq!(found, expected);
}

#[test]
fn preparation_is_reproducible_and_reuses_a_prepared_folder() {
    let sources = Sources::new();
    sources.prepare("one");
    sources.prepare("other");
    let one = contents(&sources.path("one"));
    assert_eq!(one, contents(&sources.path("other")));
    assert!(one.len() > 4, "{}", one.len());
    let written =
        |name: &str| std::fs::metadata(sources.path("one").join(name)).unwrap().modified().unwrap();
    let before = written("index.json");
    sources.prepare("one");
    assert_eq!(written("index.json"), before);
    // A data set can be moved.
    std::fs::rename(sources.path("one"), sources.path("moved")).unwrap();
    assert_eq!(Dataset::open(&sources.path("moved")).unwrap().documents(Split::Training), 5);
}

#[test]
fn held_out_documents_are_selected_by_their_text() {
    let sources = Sources::new();
    let training = vec![write_books(&sources.path("many.txt"), &books(21, 200, 20))];
    let mut reversed = books(21, 200, 20);
    reversed.reverse();
    let reversed = vec![write_books(&sources.path("reversed.txt"), &reversed)];
    let share = |held_out_share, seed| PrepareOptions {
        held_out_share,
        seed,
        validation_files: Vec::new(),
        ..sources.options.clone()
    };
    let held_out = |name: &str, files: &[PathBuf], options: &PrepareOptions| {
        let folder = sources.path(name);
        let dataset =
            Dataset::prepare(files, &sources.tokenizer, &folder, options, &mut quiet).unwrap();
        let mut texts = texts(&dataset, Split::HeldOut, &sources.tokenizer);
        assert_eq!(dataset.documents(Split::Training) + texts.len(), 200);
        texts.sort();
        texts
    };
    let chosen = held_out("a", &training, &share(0.25, 3));
    assert!((30..70).contains(&chosen.len()), "{}", chosen.len());
    assert_eq!(held_out("b", &reversed, &share(0.25, 3)), chosen);
    assert_ne!(held_out("c", &training, &share(0.25, 4)), chosen);
    // A larger share contains the same documents and more.
    let more = held_out("d", &training, &share(0.5, 3));
    assert!(chosen.iter().all(|text| more.contains(text)) && more.len() > chosen.len());
}

/// Of one document, the end is held out, and of a few short ones the last ones.
#[test]
fn the_end_of_the_text_is_held_out_if_no_document_is_chosen() {
    let sources = Sources::new();
    let options = PrepareOptions {
        held_out_share: 0.1,
        validation_files: Vec::new(),
        ..sources.options.clone()
    };
    let prepare = |name: &str, books: &[String], options: &PrepareOptions| {
        let file = write_books(&sources.path(&format!("{name}.txt")), books);
        let folder = sources.path(name);
        let dataset =
            Dataset::prepare(&[file], &sources.tokenizer, &folder, options, &mut quiet).unwrap();
        [Split::Training, Split::HeldOut].map(|split| texts(&dataset, split, &sources.tokenizer))
    };
    let book = &books(31, 1, 2000)[0];
    let [training, held_out] = prepare("book", std::slice::from_ref(book), &options);
    assert_eq!([&training[..], &held_out[..]].concat().concat(), *book);
    let share = held_out[0].len() as f64 / book.len() as f64;
    assert_eq!((training.len(), held_out.len()), (1, 1));
    assert!((0.1..0.101).contains(&share), "{share}");

    // The last two of ten equal texts, and none of the words of the others.
    let words = vec!["naïve words".to_owned(); 10];
    let fifth = PrepareOptions { held_out_share: 0.2, ..options.clone() };
    let [training, held_out] = prepare("words", &words, &fifth);
    assert_eq!((training, held_out), (words[..8].to_vec(), words[8..].to_vec()));

    // All documents, or none of them.
    for (name, held_out_share, split) in [("all", 1.0, 1), ("none", 0.0, 0)] {
        let whole = PrepareOptions { held_out_share, ..options.clone() };
        let file = write_books(&sources.path("whole.txt"), std::slice::from_ref(book));
        let folder = sources.path(name);
        let files = [file];
        let dataset =
            Dataset::prepare(&files, &sources.tokenizer, &folder, &whole, &mut quiet).unwrap();
        let documents = [Split::Training, Split::HeldOut].map(|split| dataset.documents(split));
        assert_eq!(documents[split], 1);
        assert_eq!(documents[1 - split], 0);
    }
}

#[test]
fn a_killed_preparation_leaves_no_data_set() {
    let this = "dataset::a_killed_preparation_leaves_no_data_set";
    if let (Some(folder), Some(at)) =
        (std::env::var_os("FORERUN_TEST_SET"), std::env::var_os("FORERUN_TEST_KILL_AT"))
    {
        // The child process: it aborts without cleaning up, as after SIGKILL.
        let (folder, at) = (PathBuf::from(folder), at.to_str().unwrap().parse::<u32>().unwrap());
        let mut reports = 0;
        let mut on_progress = |_: Progress| {
            reports += 1;
            if reports == at {
                std::process::abort();
            }
        };
        let root = folder.parent().unwrap();
        let options = PrepareOptions { shard_tokens: 400, ..PrepareOptions::default() };
        let files = [root.join("one.txt"), root.join("two.txt")];
        let tokenizer = root.join("tokenizer/tokenizer.json");
        Dataset::prepare(&files, &tokenizer, &folder, &options, &mut on_progress).unwrap();
        return;
    }
    let sources = Sources::new();
    let options = PrepareOptions { shard_tokens: 400, ..PrepareOptions::default() };
    sources.prepare_with("complete", &options).unwrap();
    let complete = contents(&sources.path("complete"));
    let (mut killed, mut left_shards) = (0, 0);
    for at in 1.. {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", this])
            .env("FORERUN_TEST_SET", sources.path("set"))
            .env("FORERUN_TEST_KILL_AT", at.to_string())
            .output()
            .unwrap();
        if output.status.success() {
            break;
        }
        killed += 1;
        let error = Dataset::open(&sources.path("set")).err().unwrap();
        assert!(matches!(error, DataError::NotPrepared(_)), "{error}");
        let set = sources.path("set");
        left_shards += if set.is_dir() { contents(&set).len() } else { 0 };
    }
    // There are reports for each file while hashing and encoding. The last kills left finished
    // shards.
    assert!(killed >= 4 && left_shards > 10, "{killed}, {left_shards}");
    assert_eq!(contents(&sources.path("set")), complete);
}

#[test]
fn corruption_is_detected_and_repaired_only_by_a_rebuild() {
    let sources = Sources::new();
    let intact = {
        sources.prepare("set");
        contents(&sources.path("set"))
    };
    let shard = sources.path("set").join("training-00001.tokens");
    let index = sources.path("set").join("index.json");
    type Damage<'a> = (&'a Path, &'a dyn Fn(&mut Vec<u8>), &'a str);
    let damages: [Damage; 6] = [
        (&shard, &|bytes| bytes.truncate(9_000), "expected 10000 bytes, found 9000"),
        (&shard, &|bytes| bytes.push(0), "expected 10000 bytes, found 10001"),
        (&shard, &|bytes| bytes[77] ^= 1, "expected SHA-256"),
        (&index, &|bytes| bytes.truncate(100), "index.json is corrupt"),
        (&index, &|bytes| replace(bytes, "\"version\":1", "\"version\":9"), "version 9"),
        (&index, &|bytes| replace(bytes, "\"tokens\":5000", "\"tokens\":4999"), "documents of"),
    ];
    for (path, damage, word) in damages {
        let mut bytes = std::fs::read(path).unwrap();
        damage(&mut bytes);
        std::fs::write(path, bytes).unwrap();
        let error = Dataset::open(&sources.path("set")).err().unwrap().to_string();
        assert!(error.contains(word), "{word}: {error}");
        // Without `rebuild`, nothing is replaced.
        let error = sources.prepare_with("set", &sources.options).err().unwrap().to_string();
        assert!(error.contains(word), "{word}: {error}");
        let options = PrepareOptions { rebuild: true, ..sources.options.clone() };
        sources.prepare_with("set", &options).unwrap();
        assert_eq!(contents(&sources.path("set")), intact);
    }
    std::fs::remove_file(&shard).unwrap();
    let error = Dataset::open(&sources.path("set")).err().unwrap().to_string();
    assert!(error.contains("not there"), "{error}");
    std::fs::remove_file(&index).unwrap();
    let error = Dataset::open(&sources.path("set")).err().unwrap();
    assert!(matches!(error, DataError::NotPrepared(_)), "{error}");
}

fn replace(bytes: &mut Vec<u8>, from: &str, to: &str) {
    let text = String::from_utf8(std::mem::take(bytes)).unwrap();
    assert!(text.contains(from), "{from}");
    *bytes = text.replacen(from, to, 1).into_bytes();
}

#[test]
fn a_data_set_of_other_inputs_is_rejected() {
    let mut sources = Sources::new();
    let dataset = sources.prepare("set");
    dataset.check_tokenizer(&sources.tokenizer).unwrap();
    let other_tokenizer = tokenizer(&sources.path("other"), 2);
    let original_tokenizer = std::mem::replace(&mut sources.tokenizer, other_tokenizer);
    let error = dataset.check_tokenizer(&sources.tokenizer).unwrap_err().to_string();
    assert!(error.contains("another tokenizer"), "{error}");
    let error = sources.prepare_with("set", &sources.options).err().unwrap().to_string();
    assert!(error.contains("tokenizers differ"), "{error}");
    sources.tokenizer = original_tokenizer;
    let options = PrepareOptions { held_out_share: 0.1, ..sources.options.clone() };
    let error = sources.prepare_with("set", &options).err().unwrap().to_string();
    assert!(error.contains("options") && error.contains("remove the folder"), "{error}");
    write_books(&sources.training[0], &books(99, 3, 2000));
    let error = sources.prepare_with("set", &sources.options).err().unwrap().to_string();
    assert!(error.contains("source files differ"), "{error}");
    let options = PrepareOptions { rebuild: true, ..sources.options.clone() };
    let rebuilt = sources.prepare_with("set", &options).unwrap();
    assert_eq!(texts(&rebuilt, Split::Training, &sources.tokenizer)[0], books(99, 3, 2000)[0]);
    // The old data set is still mapped and intact.
    assert_eq!(texts(&dataset, Split::Training, &sources.tokenizer)[0], books(11, 3, 2000)[0]);
}

/// A tokenizer like that of Llama 2: it adds a space before a text, falls back to bytes, and adds a
/// BOS.
fn sentencepiece_tokenizer() -> serde_json::Value {
    let letters = ('a'..='z').chain("▁ABCDEFGHIJKLMNOPQRSTUVWXYZ.,".chars()).map(String::from);
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let special = ["<unk>", "<s>", "</s>"].map(String::from);
    let vocabulary = special.into_iter().chain(bytes).chain(letters).chain(["▁t".to_owned()]);
    let vocabulary: serde_json::Map<_, _> =
        vocabulary.enumerate().map(|(id, token)| (token, id.into())).collect();
    let added = |id: u32, content: &str| {
        serde_json::json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false,
        })
    };
    let bos = serde_json::json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } });
    let text = serde_json::json!({ "Sequence": { "id": "A", "type_id": 0 } });
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "pre_tokenizer": null,
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ] },
        "post_processor": {
            "type": "TemplateProcessing", "single": [bos, text], "pair": [bos, text, bos, text],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } },
        },
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" }, { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ] },
        "model": {
            "type": "BPE", "vocab": vocabulary, "merges": [["▁", "t"]], "byte_fallback": true,
            "unk_token": "<unk>", "dropout": null, "fuse_unk": true, "ignore_merges": false,
            "continuing_subword_prefix": null, "end_of_word_suffix": null,
        },
    })
}

#[test]
fn documents_for_a_drafter_are_framed_as_its_target_reads_them() {
    let mut sources = Sources::new();
    sources.tokenizer = sources.path("sentencepiece.json");
    std::fs::write(&sources.tokenizer, sentencepiece_tokenizer().to_string()).unwrap();
    let target_framing = |bos, eos| {
        let framing = Framing::Target { bos, eos };
        PrepareOptions { framing, ..sources.options.clone() }
    };
    let options = target_framing(vec![1], 2);
    let dataset = sources.prepare_with("set", &options).unwrap();
    let (stream, mut all) = (dataset.tokens(Split::Training), Vec::new());
    stream.read(0, stream.len() as usize, &mut all);
    let engine = tokenizers::Tokenizer::from_file(&sources.tokenizer).unwrap();
    let expected: Vec<u32> = books(11, 3, 2000)
        .iter()
        .flat_map(|book| {
            let prompt = engine.encode(&book[..], true).unwrap();
            assert_eq!(prompt.get_ids()[0], 1, "a prompt starts with the BOS");
            [prompt.get_ids(), &[2]].concat()
        })
        .collect();
    assert_eq!(all[..expected.len()], expected);
    // The tokenizer is not byte-level, so it is rejected for a language model. A data set of
    // another framing is rejected, too.
    let error =
        |options: &PrepareOptions| sources.prepare_with("set", options).err().unwrap().to_string();
    assert!(error(&sources.options).contains("byte-level tokenizer"));
    for other in [target_framing(vec![1], 1), target_framing(Vec::new(), 2)] {
        assert!(error(&other).contains("tokenizers"), "{}", error(&other));
    }
    assert!(error(&target_framing(vec![1], 9999)).contains("no token 9999"));
}

/// A target's tokenizer may have a normalizer. A language model's may not, because its loss is
/// measured per byte.
#[test]
fn a_normalizer_is_allowed_for_drafters_but_not_for_language_models() {
    let mut sources = Sources::new();
    let json = std::fs::read_to_string(&sources.tokenizer).unwrap();
    let changing = json.replace(
        "\"normalizer\": null",
        "\"normalizer\": { \"type\": \"Replace\", \"pattern\": { \"String\": \"e\" }, \"content\": \"ee\" }",
    );
    assert_ne!(json, changing);
    std::fs::write(&sources.tokenizer, changing).unwrap();
    let options = sources.options.clone();
    let framing = Framing::Target { bos: Vec::new(), eos: 0 };
    sources.options = PrepareOptions { framing, ..options.clone() };
    sources.prepare("set");
    // The same framing reuses the data set, another one is rejected.
    sources.prepare("set");
    let error = sources.prepare_with("set", &options).err().unwrap().to_string();
    assert!(error.contains("tokenizers"), "{error}");
}

#[test]
fn invalid_inputs_are_rejected() {
    let mut sources = Sources::new();
    let error = |sources: &Sources, options: &PrepareOptions| {
        sources.prepare_with("set", options).err().unwrap().to_string()
    };
    let options = sources.options.clone();
    let wrong = PrepareOptions { held_out_share: 1.5, ..options.clone() };
    assert!(error(&sources, &wrong).contains("`held_out_share` is 1.5"));
    let wrong =
        PrepareOptions { framing: Framing::Separated("</s>".to_owned()), ..options.clone() };
    assert!(error(&sources, &wrong).contains("no token \"</s>\""));
    let wrong = PrepareOptions { validation_files: vec![sources.path("none")], ..options.clone() };
    assert!(error(&sources, &wrong).contains("none"));
    // A validation document in a training file.
    let mut leaked = books(12, 2, 2000);
    leaked.push(books(13, 2, 2000)[1].clone());
    write_books(&sources.training[1], &leaked);
    let message = error(&sources, &options);
    assert!(message.contains("document 3 of") && message.contains("two.txt"), "{message}");
    assert!(matches!(Dataset::open(&sources.path("set")), Err(DataError::NotPrepared(_))));
    // A tokenizer that changes the text, and one that is not byte-level.
    let json = std::fs::read_to_string(&sources.tokenizer).unwrap();
    let lower = json.replace("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}");
    assert_ne!(lower, json);
    sources.tokenizer = sources.path("nfkc.json");
    std::fs::write(&sources.tokenizer, lower).unwrap();
    std::fs::write(&sources.training[0], "a ﬁne day").unwrap();
    let message = error(&sources, &PrepareOptions::default());
    assert!(message.contains("changes the text"), "{message}");
    let start = json.find("\"decoder\": {").unwrap();
    let end = start + json[start..].find('}').unwrap() + 1;
    let fused = format!("{}\"decoder\": {{\"type\": \"Fuse\"}}{}", &json[..start], &json[end..]);
    std::fs::write(&sources.tokenizer, fused).unwrap();
    let message = error(&sources, &options);
    assert!(message.contains("byte-level"), "{message}");
}

#[test]
fn a_folder_is_locked_during_preparation() {
    let sources = Sources::new();
    let mut second = None;
    let mut on_progress = |_: Progress| {
        if sources.path("set").is_dir() {
            second = sources.prepare_with("set", &sources.options).err();
        }
    };
    let folder = sources.path("set");
    let dataset = Dataset::prepare(
        &sources.training,
        &sources.tokenizer,
        &folder,
        &sources.options,
        &mut on_progress,
    );
    assert_eq!(dataset.unwrap().documents(Split::Training), 5);
    assert!(matches!(second, Some(DataError::Locked { .. })));
}

//! Embeddings: those of sentence-transformers (`scripts/goldens/make_embeddings.py`), and what
//! models for embeddings refuse.

use crate::common::parse_placement;
use forerun::{Canceller, Engine, ForerunError, Options, RandomPair, Request};
use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct Golden {
    texts: Vec<String>,
    embeddings: Vec<Vec<f32>>,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/embeddings").join(name)
}

fn golden(name: &str) -> Golden {
    let text = std::fs::read_to_string(folder(name).join("golden.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn embeddings_are_those_of_sentence_transformers() {
    for file in ["bert-mean", "bert-cls", "bert-cls.gguf", "qwen3-last"] {
        let engine = Engine::open(folder(file)).unwrap();
        let name = file.trim_end_matches(".gguf");
        let Golden { texts, embeddings } = golden(name);
        // sentence-transformers cuts what is too long.
        let encode = |text: &String| engine.encode_to_embed(text, true).unwrap();
        let tokens: Vec<_> = texts.iter().map(encode).collect();
        let found = engine.embed_tokens(&tokens, &Canceller::new()).unwrap();
        for ((text, one), other) in texts.iter().zip(&found).zip(&embeddings) {
            let difference = one.iter().zip(other).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            assert!(
                one.len() == other.len() && difference < 1e-5,
                "{name}, {text:?}: {difference}"
            );
        }
        let alone = engine.embed_tokens(&tokens[1..2], &Canceller::new()).unwrap();
        assert_eq!(alone, found[1..2], "{name}: the bits do not depend on other texts");
    }
}

#[test]
fn embeddings_do_not_depend_on_the_placement() {
    for name in ["bert-mean", "qwen3-last"] {
        let Golden { texts, .. } = golden(name);
        let texts = &texts[1..3];
        let embed = |placement: &str| {
            let placement = Some(parse_placement(placement));
            let options = Options { placement, ..Options::new(folder(name)) };
            Engine::open(options).unwrap().embed(texts).unwrap()
        };
        let [one, pipeline] = ["target=cpu:0", "target=cpu:0/cpu:1"].map(embed);
        assert_eq!(one, pipeline, "{name}");
    }
}

#[test]
fn models_for_embeddings_and_for_text_are_not_confused() {
    let pair = RandomPair::make().unwrap();
    let generates = Engine::open(pair.target()).unwrap();
    let error = generates.embed(&["a"]).unwrap_err();
    assert!(matches!(error, ForerunError::NoEmbeddings { .. }), "{error}");
    let engine = Engine::open(folder("qwen3-last")).unwrap();
    let error = engine.complete("a", &Request::default()).unwrap_err();
    assert!(matches!(error, ForerunError::OnlyEmbeddings { .. }), "{error}");
    let error = engine.score(&[1], &[2], 0, &Canceller::new()).unwrap_err();
    assert!(matches!(error, ForerunError::OnlyEmbeddings { .. }), "{error}");
    for (model, draft_model) in
        [(pair.target(), &*folder("qwen3-last")), (&*folder("qwen3-last"), pair.drafter())]
    {
        let draft_model = Some(draft_model.into());
        let error = Engine::open(Options { draft_model, ..Options::new(model) }).err().unwrap();
        assert!(matches!(error, ForerunError::OnlyEmbeddings { .. }), "{error}");
    }
    let bert = Engine::open(folder("bert-mean")).unwrap();
    let error = bert.embed(&["a ".repeat(30)]).unwrap_err();
    let most = 24;
    assert!(
        matches!(error, ForerunError::TextTooLong { tokens: 32, context, .. } if context == most)
    );
    assert_eq!(bert.encode_to_embed(&"a ".repeat(30), true).unwrap().len(), most);
    assert!(engine.embed(&[""]).is_ok(), "the end token is there");
    let none: [&str; 0] = [];
    assert!(engine.embed(&none).unwrap().is_empty());
    let spaces = format!("a{}", " ".repeat(20_000));
    assert_eq!(bert.embed(&[&spaces]).unwrap(), bert.embed(&["a"]).unwrap());
    let start = |words| bert.encode_to_embed(&"pass ".repeat(words), true).unwrap();
    assert_eq!(start(20_000), start(30));
    let error = bert.embed_tokens(&[vec![]], &Canceller::new()).unwrap_err();
    assert!(matches!(error, ForerunError::EmptyPrompt), "{error}");
    let error = bert.embed_tokens(&[vec![1, 150]], &Canceller::new()).unwrap_err();
    assert!(matches!(error, ForerunError::UnknownToken { token: 150, .. }), "{error}");
}

#[test]
fn options_that_change_embeddings_are_refused_by_name() {
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("1_Pooling")).unwrap();
    let copied = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    for (file, text, word) in [
        ("modules.json", r#"[{"path": "../1_Pooling", "type": "Pooling"}]"#, "a folder within"),
        (
            "1_Pooling/config.json",
            r#"{"pooling_mode": "cls", "include_prompt": false}"#,
            "include_prompt",
        ),
        ("sentence_bert_config.json", r#"{"do_lower_case": true}"#, "do_lower_case"),
        ("sentence_bert_config.json", r#"{"modality_config": {"image": {}}}"#, "modality_config"),
        (
            "config_sentence_transformers.json",
            r#"{"default_prompt_name": "query", "prompts": {"query": "query: "}}"#,
            "default_prompt_name",
        ),
    ] {
        let others = ["modules.json", "1_Pooling/config.json"];
        for name in copied.iter().chain(&others).chain(&["sentence_bert_config.json"]) {
            std::fs::copy(folder("bert-mean").join(name), copy.path().join(name)).unwrap();
        }
        std::fs::write(copy.path().join(file), text).unwrap();
        let error = Engine::open(copy.path()).err().unwrap().to_string();
        assert!(error.contains(word), "{error}");
    }
}

//! A model's tokenizer within an engine.

use forerun::text::Tokenizer;
use forerun::{Engine, Options, Plan};
use forerun_formats::checkpoint::random::{
    EOS, RandomDtype, example_config, write_random_checkpoint,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn open(model: &Path) -> Result<Engine, String> {
    let plan = Plan::new(Options { model: model.into(), ..Options::default() }).unwrap();
    Engine::open_plan(&plan).map_err(|error| error.to_string())
}

/// The ends that a tokenizer knows are those of answers, too.
#[test]
fn an_answer_ends_at_an_end_that_the_configuration_does_not_name() {
    let folder = TempDir::new().unwrap();
    write_random_checkpoint(folder.path(), &example_config(), 1, RandomDtype::F32).unwrap();
    let ends = || open(folder.path()).unwrap().config().eos_token_ids.clone();
    assert_eq!(ends(), [EOS]);
    let file = folder.path().join("tokenizer.json");
    let mut json: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let id = EOS + 1;
    json["added_tokens"].as_array_mut().unwrap().push(json!({
        "id": id, "content": "<|im_end|>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": false,
    }));
    fs::write(file, json.to_string()).unwrap();
    assert_eq!(ends(), [EOS, id]);
}

#[test]
fn a_model_without_a_tokenizer_does_not_open_and_says_so() {
    let folder = TempDir::new().unwrap();
    write_random_checkpoint(folder.path(), &example_config(), 1, RandomDtype::F32).unwrap();
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let expected = Tokenizer::from_checkpoint(folder.path()).err().unwrap().to_string();
    assert_eq!(open(folder.path()).err().unwrap(), expected);
}

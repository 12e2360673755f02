//! `--json-schema`, `--json-object`, `--grammar` and `--regex`: answers that follow a grammar.

use crate::common::{Models, Run};
use serde_json::Value;
use std::fs;

const SCHEMA: &str = r#"{"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}},
    "required": ["kind"], "additionalProperties": false}"#;

fn answer(models: &Models, options: &[&str]) -> Value {
    let run = Run::generate_with_drafter(models).words("-p Hello --json --temperature 1 --seed 3");
    let finished = run.with(options).finish();
    let code = if is_cut(options) { 3 } else { 0 };
    assert_eq!(finished.code, Some(code), "{options:?}: {}", finished.errors);
    assert_eq!(finished.errors.contains("error: the answer was cut"), is_cut(options));
    finished.json()
}

/// Returns whether the answer has too few tokens.
fn is_cut(options: &[&str]) -> bool {
    options.contains(&"5")
}

#[test]
fn answers_follow_the_grammar_of_every_option_with_every_method() {
    let models = Models::pair();
    let file = |name: &str, text: &str| {
        let path = models.folder().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let schema = file("schema.json", SCHEMA);
    let gbnf = file("grammar.gbnf", "root ::= \"yes\" | \"no\"");
    let lark = file("grammar.lark", "start: \"yes\" | \"no\"");
    let other = file("grammar.txt", "root ::= \"yes\" | \"no\"");
    let is_animal = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap();
        value["kind"] == "cat" || value["kind"] == "dog"
    };
    let is_choice = |text: &str| ["yes", "no"].contains(&text);
    let is_object = |text: &str| text.starts_with('{');
    type Check<'a> = &'a dyn Fn(&str) -> bool;
    let table: [(&[&str], Check<'_>); 7] = [
        (&["--json-schema", &schema], &is_animal),
        (&["--json-schema", SCHEMA], &is_animal),
        (&["--grammar", &gbnf], &is_choice),
        (&["--grammar", &lark], &is_choice),
        (&["--grammar", &other], &is_choice),
        (&["--regex", "yes|no"], &is_choice),
        (&["--json-object", "-n", "5"], &is_object),
    ];
    for (options, check) in table {
        let plain = answer(&models, &[options, &["--method", "autoregressive"]].concat());
        let text = plain["text"].as_str().unwrap();
        assert!(check(text), "{options:?}: {text}");
        assert_eq!(plain["finish_reason"], if is_cut(options) { "max_tokens" } else { "eos" });
        for method in [&["--method", "speculative"][..], &["--method", "pearl"]] {
            let drafted = answer(&models, &[options, method].concat());
            assert_eq!(drafted["tokens"], plain["tokens"], "{options:?} {method:?}");
        }
    }
}

#[test]
fn wrong_grammars_are_refused() {
    let models = Models::pair();
    let table: [(&[&str], &[&str]); 7] = [
        (&["--regex", ""], &["the regular expression cannot be used", "empty"]),
        (&["--regex", "(a"], &["the regular expression cannot be used", "unclosed"]),
        (&["--json-schema", "{\"type\": \"text\"}"], &["the JSON schema cannot be used", "text"]),
        (&["--json-schema", "none.json"], &["cannot read the --json-schema file none.json"]),
        (&["--grammar", "none.gbnf"], &["cannot read the --grammar file none.gbnf"]),
        (&["--regex", "a", "--json-object"], &["cannot be used with"]),
        (&["--regex", "a", "--ignore-eos"], &["--ignore-eos"]),
    ];
    for (options, words) in table {
        let run = Run::generate(&models).words("--prompt Hello").with(options);
        run.finish().assert_refused(&options.join(" "), words);
    }
    // Spaces are an expression.
    let run = Run::generate(&models).with(&["--prompt", "Hello", "--regex", " "]);
    assert_eq!(run.succeed().output(), " \n");
}

//! Answers with a grammar, from a tiny random model: they are valid, end as they should, and what
//! cannot be obeyed is an error. `FORERUN_CASE_SEED` selects other random texts.

use forerun::text::{GrammarError, GrammarKind};
use forerun::{
    AnswerEvent, Engine, Finish, ForerunError, Grammar, Method, Options, RandomPair, Request,
    SamplingOptions, VerificationChoice,
};
use forerun_core::testing::env_number;
use serde_json::{Map, Value, json};
use std::ops::ControlFlow;

/// Returns an engine with a random target, and its drafter if the method drafts.
fn engine(method: Method) -> Engine {
    open(&RandomPair::make().unwrap(), method)
}

fn open(pair: &RandomPair, method: Method) -> Engine {
    let drafts = method != Method::Autoregressive;
    let options = Options {
        model: pair.target().into(),
        draft_model: drafts.then(|| pair.drafter().into()),
        method: Some(method.into()),
        ..Options::default()
    };
    Engine::open(options).unwrap()
}

/// Returns a request for random text whose quotes and brackets close soon.
fn request(grammar: Grammar, seed: u64) -> Request {
    let closing = [('"', 5.0), ('}', 5.0), (']', 5.0), (',', 1.0), (' ', -3.0), ('\n', -3.0)];
    let logit_bias = closing.map(|(character, bias)| (u32::from(character), bias));
    let end = [(257, 6.0)];
    Request {
        grammar: Some(grammar),
        max_tokens: 500,
        seed: Some(seed),
        sampling: SamplingOptions {
            temperature: 1.0,
            logit_bias: logit_bias.into_iter().chain(end).collect(),
            ..SamplingOptions::default()
        },
        ..Request::default()
    }
}

// ---------------------------------------------------------------------------------------------
// JSON schemas

/// Returns all values in all containers, and the documents, with their names.
fn schemas() -> Vec<(String, Value)> {
    let read = |text: &str| -> Map<String, Value> { serde_json::from_str(text).unwrap() };
    let values = read(include_str!("schemas/values.json"));
    let containers = read(include_str!("schemas/containers.json"));
    let documents = read(include_str!("schemas/documents.json"));
    let mut all = Vec::new();
    for (container, outer) in &containers {
        for (value, inner) in &values {
            let text = outer.to_string().replace("\"$VALUE\"", &inner.to_string());
            all.push((format!("{value}, {container}"), serde_json::from_str(&text).unwrap()));
        }
    }
    all.extend(documents);
    all
}

/// The parts in which the schemas are tested, so that no test takes long.
const PARTS: usize = 8;

/// Checks every [`PARTS`]-th schema: a complete answer is valid, and a schema that cannot be obeyed
/// is an error that says why.
fn check_schemas(part: usize) {
    let engine = engine(Method::Autoregressive);
    let (mut complete, mut cut, mut refused) = (0, 0, 0);
    for (number, (name, schema)) in schemas().into_iter().enumerate().skip(part).step_by(PARTS) {
        let validator = jsonschema::options().should_validate_formats(true).build(&schema);
        let seed = env_number("FORERUN_CASE_SEED", 0) * 1_000 + number as u64;
        let request = request(Grammar::json_schema(&schema), seed);
        match engine.complete("x", &request) {
            Ok(answer) if answer.finish == Finish::Eos => {
                let value: Value = serde_json::from_str(&answer.text)
                    .unwrap_or_else(|error| panic!("{name}: {error} in {:?}", answer.text));
                if let Err(error) = validator.unwrap().validate(&value) {
                    panic!("{name}: {error} in {}", answer.text);
                }
                complete += 1;
            }
            Ok(answer) => {
                assert_eq!(answer.finish, Finish::MaxTokens, "{name}");
                println!("{name} is cut off: {:?}", answer.text);
                cut += 1;
            }
            Err(ForerunError::Grammar(GrammarError::Invalid { reason, .. })) => {
                assert!(reason.len() > 10 && !reason.contains("panic"), "{name}: {reason}");
                println!("{name} is refused: {reason}");
                refused += 1;
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
    println!("{complete} valid, {cut} cut off, {refused} refused");
    assert!(complete > 25 && cut <= complete / 8 && refused <= complete / 4);
}

macro_rules! check_all_parts {
    ($($name:ident: $part:literal,)*) => {
        $(#[test]
        fn $name() {
            check_schemas($part);
        })*
    };
}

check_all_parts! {
    answers_follow_schemas_0: 0,
    answers_follow_schemas_1: 1,
    answers_follow_schemas_2: 2,
    answers_follow_schemas_3: 3,
    answers_follow_schemas_4: 4,
    answers_follow_schemas_5: 5,
    answers_follow_schemas_6: 6,
    answers_follow_schemas_7: 7,
}

#[test]
fn there_are_two_hundred_schemas_in_the_parts() {
    assert!(schemas().len() > 200);
}

// ---------------------------------------------------------------------------------------------
// Ends

#[test]
fn answers_end_when_they_are_complete_or_cut_off() {
    for method in [Method::Autoregressive, Method::Speculative] {
        let engine = engine(method);
        for seed in 0..5 {
            let choice = Grammar::choice(&["yes", "no", "yes, sir"]);
            let answer = engine.complete("x", &request(choice, seed)).unwrap();
            assert_eq!(answer.finish, Finish::Eos);
            assert!(["yes", "no", "yes, sir"].contains(&&*answer.text), "{}", answer.text);
            assert_eq!(answer.tokens.last(), Some(&257));
        }
        let long = Request { max_tokens: 7, ..request(Grammar::regex("[a-z]{20}"), 1) };
        let answer = engine.complete("x", &long).unwrap();
        assert_eq!((answer.finish, answer.text.len()), (Finish::MaxTokens, 7));
        // The only tokens left.
        let greedy =
            Request { sampling: SamplingOptions::default(), ..request(Grammar::regex("a{3}"), 1) };
        let answer = engine.complete("x", &greedy).unwrap();
        assert_eq!((answer.finish, &*answer.text), (Finish::Eos, "aaa"));
        // A stop string ends the answer as without a grammar.
        let stop = Request { stop: vec!["aa".into()], ..greedy };
        assert_eq!(engine.complete("x", &stop).unwrap().finish, Finish::Stopped);
    }
}

/// Without a seed and with rejection sampling, too.
#[test]
fn sampled_drafts_follow_the_grammar() {
    let engine = engine(Method::Speculative);
    let rejection = VerificationChoice::Always(forerun::Verification::Rejection);
    let grammar = Grammar::regex("([a-f]{2} )*[0-9]{3}");
    for _ in 0..10 {
        let request =
            Request { seed: None, verification: rejection, ..request(grammar.clone(), 0) };
        let answer = engine.complete("x", &request).unwrap();
        if answer.finish == Finish::Eos {
            let (words, number) = answer.text.split_at(answer.text.len() - 3);
            assert!(number.bytes().all(|byte| byte.is_ascii_digit()), "{}", answer.text);
            assert!(words.split_terminator(' ').all(|word| word.len() == 2), "{}", answer.text);
        }
    }
}

#[test]
fn grammars_that_cannot_be_used_are_errors_before_the_answer() {
    let engine = engine(Method::Autoregressive);
    let start = |request: &Request| {
        let stream = engine.stream("x", request).map(|_| ());
        stream.unwrap_err().to_string()
    };
    let broken = start(&request(Grammar::regex("(a"), 0));
    assert!(broken.starts_with("the regular expression cannot be used"), "{broken}");
    let no_end = Request { ignore_eos: true, ..request(Grammar::json_object(), 0) };
    assert!(start(&no_end).contains("`ignore_eos`"), "{}", start(&no_end));
    // A special token of one's own ends the answer as well.
    let own_end = Request { stop_tokens: vec![256], ..no_end };
    assert!(engine.stream("x", &own_end).is_ok());
    assert!(engine.check_grammar(&Grammar::json_object()).is_ok());
    let error = engine.check_grammar(&Grammar::json_schema(&json!({"type": "text"}))).unwrap_err();
    assert!(matches!(error, GrammarError::Invalid { kind: GrammarKind::JsonSchema, .. }));
}

/// The tokenizer has no token for a character that the grammar requires.
#[test]
fn an_answer_that_cannot_go_on_is_an_error_after_its_text() {
    let pair = RandomPair::make().unwrap();
    for folder in [pair.target(), pair.drafter()] {
        let file = folder.join("tokenizer.json");
        let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        json["model"]["vocab"].as_object_mut().unwrap().remove("~").unwrap();
        std::fs::write(&file, json.to_string()).unwrap();
    }
    let engine = open(&pair, Method::Speculative);
    let mut text = String::new();
    let error = engine
        .generate("x", &request(Grammar::regex("ab~"), 0), |piece| {
            text += piece;
            ControlFlow::Continue(())
        })
        .unwrap_err();
    assert_eq!(text, "ab");
    assert!(
        matches!(error, ForerunError::Grammar(GrammarError::Stuck { after: 2, .. })),
        "{error}"
    );
    // The engine goes on, and what the grammar leaves open may avoid the character.
    let answer = engine.complete("x", &request(Grammar::regex("ab[~c]"), 0)).unwrap();
    assert_eq!((&*answer.text, answer.finish), ("abc", Finish::Eos));
}

#[test]
fn events_are_those_of_the_answer() {
    let engine = engine(Method::Speculative);
    let request = request(Grammar::json_object(), 3);
    let mut text = String::new();
    let answer = engine.generate("x", &request, |piece| {
        text += piece;
        ControlFlow::Continue(())
    });
    assert_eq!(answer.unwrap().text, text);
    let last = engine.stream("x", &request).unwrap().last().unwrap().unwrap();
    assert!(matches!(last, AnswerEvent::Finished(answer) if answer.text == text));
}

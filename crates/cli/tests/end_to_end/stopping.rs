//! The end of answers: stop strings, the maximum number of tokens, the context, the end-of-sequence
//! token.

use crate::common::{Models, Run, edit_json};
use serde_json::{Value, json};

/// These methods commit different numbers of tokens at once, so that an answer can end at different
/// places.
const METHODS: [&[&str]; 4] = [
    &["--method", "autoregressive"],
    &["--draft-tokens", "3"],
    &["--tree", "top:3x3"],
    &["--tree", "sampled:2,2"],
];

fn answer(models: &Models, options: &[&str]) -> Value {
    Run::generate_with_drafter(models).words("-p Hello --json").with(options).succeed().json()
}

/// Returns `length` characters of a text, starting at `from` or soon after it: arguments cannot
/// contain NUL.
fn piece(text: &str, from: usize, length: usize) -> String {
    let characters: Vec<char> = text.chars().skip(from).collect();
    let piece = characters.windows(length).find(|piece| !piece.contains(&'\0')).unwrap();
    piece.iter().collect()
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let models = Models::pair();
    let long = ["-n", "80", "--ignore-eos"];
    let whole = answer(&models, &long)["text"].as_str().unwrap().to_owned();
    // An incomplete character at the end becomes text only when the answer ends.
    let complete = whole.trim_end_matches('\u{fffd}');
    let backwards: String = complete.chars().rev().collect();
    let last: String = piece(&backwards, 0, 2).chars().rev().collect();
    let stops =
        [(0, 1), (7, 1), (12, 3), (20, 8)].map(|(from, length)| piece(&whole, from, length));
    for stop in stops.iter().chain([&last]) {
        let expected = &whole[..whole.find(stop).unwrap()];
        for method in METHODS {
            let options = [method, &long, &["--stop", stop, "--stop", "never to be seen"]].concat();
            let answer = answer(&models, &options);
            let text = answer["text"].as_str().unwrap();
            assert_eq!(text, expected, "{stop:?} {method:?}");
            assert!(!text.contains(stop), "{stop:?} {method:?}");
            assert_eq!(answer["finish_reason"], "stop", "{stop:?} {method:?}");
        }
    }
    // The first match in the text counts, in whatever order the stop strings are given.
    let stops = [30, 3].map(|from| piece(&whole, from, 4));
    let first = stops.iter().filter_map(|stop| whole.find(stop)).min().unwrap();
    let both = [&long[..], &["--stop", &stops[0], "--stop", &stops[1]]].concat();
    assert_eq!(answer(&models, &both)["text"], whole[..first]);
    // An incomplete match at the end is not a stop string.
    let almost = answer(&models, &[&long[..], &["--stop", &format!("{last}!?")]].concat());
    assert_eq!((&almost["text"], &almost["finish_reason"]), (&json!(whole), &json!("max_tokens")));
}

#[test]
fn a_stop_string_is_not_printed() {
    let models = Models::pair();
    let run = |options: &[&str]| {
        let run = Run::generate_with_drafter(&models).words("-p Hello -n 60");
        run.words("--ignore-eos --draft-tokens 3").with(options).succeed()
    };
    let whole = run(&[]).output();
    let stop = piece(&whole, 15, 3);
    let expected = format!("{}\n", &whole[..whole.find(&stop).unwrap()]);
    assert_eq!(run(&["--stop", &stop]).output(), expected);
}

#[test]
fn the_context_is_used_to_its_last_token() {
    let context = 32;
    let models = Models::with_context(context);
    let whole = answer(&Models::pair(), &["-n", "100", "--ignore-eos"]);
    for method in METHODS {
        let answer = answer(&models, &[method, &["--ignore-eos"]].concat());
        let tokens = answer["tokens"].as_array().unwrap();
        // "Hello" and a BOS are 6.
        assert_eq!(tokens.len(), context - 6, "{method:?}");
        assert_eq!(tokens, &whole["tokens"].as_array().unwrap()[..context - 6], "{method:?}");
        assert_eq!(answer["finish_reason"], "context", "{method:?}");
    }
    let limited = answer(&Models::pair(), &["-c", "32", "-n", "-1", "--ignore-eos"]);
    let tokens = limited["tokens"].as_array().unwrap();
    assert_eq!(tokens, &whole["tokens"].as_array().unwrap()[..context - 6]);
    assert_eq!(limited["finish_reason"], "context");
    // The longest valid prompt leaves room for one token.
    let run = Run::generate_with_drafter(&models).with(&["-p", &"x".repeat(context - 2)]);
    let answer = run.words("--json --ignore-eos").succeed().json();
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    assert_eq!(answer["finish_reason"], "context");
    let run = Run::generate(&models).words("-p Hello --ignore-eos");
    let errors = run.finish().errors;
    assert!(errors.contains("the model's context of 32 tokens is full"), "{errors}");
}

#[test]
fn the_end_of_sequence_token_ends_the_answer_unless_ignored() {
    let models = Models::pair();
    let whole = answer(&models, &["-n", "40", "--ignore-eos"]);
    let tokens = whole["tokens"].as_array().unwrap();
    // A token of the answer becomes the end-of-sequence token.
    let eos = &tokens[10];
    for file in ["config.json", "generation_config.json"] {
        edit_json(&models.target().join(file), |config| config["eos_token_id"] = eos.clone());
    }
    let end = tokens.iter().position(|token| token == eos).unwrap();
    for method in METHODS {
        let ended = answer(&models, &[method, &["-n", "40"]].concat());
        assert_eq!(ended["tokens"].as_array().unwrap(), &tokens[..=end], "{method:?}");
        assert_eq!(ended["finish_reason"], "eos", "{method:?}");
        let ignored = answer(&models, &[method, &["-n", "40", "--ignore-eos"]].concat());
        assert_eq!(ignored["tokens"], whole["tokens"], "{method:?}");
    }
}

//! Standard output: text of complete characters, or one JSON object.

use crate::common::{Finished, Models, Reader, Run};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

#[test]
fn json_is_one_object_that_accounts_for_every_token() {
    let models = Models::pair();
    let finished = Run::generate_with_drafter(&models)
        .words("-p Hello -n 50 --ignore-eos --draft-tokens 3 --json")
        .succeed();
    assert_eq!(finished.output().lines().count(), 1);
    assert_eq!(finished.errors, "");
    let answer = finished.json();
    let tokens = numbers(&answer["tokens"]);
    assert_eq!(tokens.len(), 50);
    assert!(tokens.iter().all(|&token| token < 259));
    assert_eq!(answer["text"], text_of(&tokens));
    assert_eq!(answer["finish_reason"], "max_tokens");
    assert_eq!((&answer["method"], &answer["drafter"]), (&"speculative".into(), &"model".into()));
    assert_eq!(answer["placement"], Run::one_core_placement());
    let usage = &answer["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&6.into(), &50.into()));

    let speculative = &usage["speculative"];
    let accepted = numbers(&speculative["accepted_per_position"]);
    let tested = numbers(&speculative["tested_per_position"]);
    let forwards = speculative["target_forwards"].as_u64().unwrap();
    // Every forward pass gives the accepted tokens and one of its own; the last one may be cut off
    // by the limit.
    let given = accepted.iter().sum::<u64>() + forwards;
    assert!(given == 50 || given == 51, "{speculative}");
    assert!(accepted.iter().zip(&tested).all(|(accepted, tested)| accepted <= tested));
    // The test needs a pair that agrees sometimes, but not always.
    let rate = speculative["acceptance_rate"].as_f64().unwrap();
    assert!(rate > 0.0 && rate < 1.0, "{speculative}");

    let timings = &answer["timings"];
    for time in ["tokens_per_second", "first_token_ms", "total_ms", "draft_ms", "score_ms"] {
        assert!(timings[time].as_f64().unwrap() > 0.0, "{time}: {timings}");
    }
    assert!(timings["first_token_ms"].as_f64() <= timings["total_ms"].as_f64());
    assert!((0.0..=1.0).contains(&timings["side_by_side_share"].as_f64().unwrap()));
}

#[test]
fn json_has_log_probabilities_that_drafting_does_not_change() {
    let models = Models::pair();
    let options = ["-p", "Hello", "-n", "30", "--ignore-eos", "--json", "--logprobs", "4"];
    let warm =
        ["--temperature", "1.2", "--seed", "3", "--min-p", "0.01", "--repeat-penalty", "1.2"];
    let penalised = ["--frequency-penalty", "-0.5", "--presence-penalty", "0.7"];
    for more in [&[][..], &warm, &penalised, &["--logit-bias", "66=2", "--logit-bias", "7=-100"]] {
        let answer = |drafting: &[&str]| {
            let run = Run::generate_with_drafter(&models).with(&options);
            run.with(more).with(drafting).succeed().json()
        };
        let plain = answer(&["--method", "autoregressive"]);
        let entries = plain["logprobs"].as_array().unwrap();
        assert_eq!(entries.len(), 30);
        for (entry, token) in entries.iter().zip(numbers(&plain["tokens"])) {
            assert_eq!(
                (&entry["token"], &entry["text"]),
                (&token.into(), &text_of(&[token]).into())
            );
            let top = entry["top_logprobs"].as_array().unwrap();
            let logprobs: Vec<f64> =
                top.iter().map(|one| one["logprob"].as_f64().unwrap()).collect();
            assert!(logprobs.len() == 4 && logprobs.is_sorted_by(|a, b| a >= b), "{entry}");
            assert!(entry["logprob"].as_f64().unwrap() <= logprobs[0] && logprobs[0] < 0.0);
        }
        // Automatic lengths follow measured times, and may draft nothing.
        for tree in ["none", "top:3x3"] {
            let drafting = ["--draft-tokens", "3", "--tree", tree];
            let drafted = answer(&drafting);
            assert!(drafted["usage"]["speculative"]["drafts"].as_u64().unwrap() > 0);
            assert_eq!(drafted["tokens"], plain["tokens"], "{more:?} {drafting:?}");
            assert_eq!(drafted["logprobs"], plain["logprobs"], "{more:?} {drafting:?}");
        }
    }
}

/// Decodes tokens of the random checkpoints with the standard library: their bytes, without control
/// tokens and with replacement characters for invalid UTF-8.
fn text_of(tokens: &[u64]) -> String {
    let bytes: Vec<u8> = tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn the_streamed_text_is_that_of_the_tokens_even_for_invalid_utf8() {
    let models = Models::pair();
    for seed in ["1", "2", "3", "4"] {
        let run = || {
            let run = Run::generate_with_drafter(&models).words("-p é -n 300");
            run.with(&["--ignore-eos", "--temperature", "1.5", "--seed", seed])
        };
        let streamed = run().succeed();
        let answer = run().words("--json").succeed().json();
        let text = text_of(&numbers(&answer["tokens"]));
        assert!(text.contains('\u{fffd}'), "some of the random bytes are not valid UTF-8");
        assert_eq!(answer["text"], text, "seed {seed}");
        assert_eq!(streamed.output(), text + "\n", "seed {seed}");
        assert_complete_characters(&streamed);
    }
}

/// Checks that each piece of output has only complete characters, since a piece is written at once.
fn assert_complete_characters(finished: &Finished) {
    for chunk in &finished.chunks {
        assert!(std::str::from_utf8(chunk).is_ok(), "{chunk:?}");
    }
}

#[test]
fn a_slow_reader_gets_every_byte() {
    let models = Models::with_long_words(200);
    let run = || {
        let run = Run::generate_with_drafter(&models).words("-p Hello -n 300");
        run.words("--ignore-eos --temperature 1 --seed 5")
    };
    let expected = run().succeed().output();
    assert!(expected.len() > 20_000, "the text must be larger than the pipe of a slow reader");
    let finished = run().reader(Reader::Slow).succeed();
    assert_eq!(finished.output(), expected);
    assert!(finished.statistics().contains("300 tokens"), "{}", finished.errors);
}

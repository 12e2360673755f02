//! Greedy texts and tokens of the real checkpoints equal those of an independent implementation:
//! Hugging Face transformers (`scripts/goldens`).

use crate::common;
use forerun::checkpoint::Checkpoint;
use forerun::text::{TextStream, Tokenizer};
use forerun::{Engine, Options, Plan, Request, TokenId};
use forerun_reference::ReferenceModel;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::PathBuf;

const CHECKPOINTS: [(&str, &str); 3] = [
    ("tinystories656k", "tinystories656k"),
    ("stories260K", "stories260K/stories260K.bin"),
    ("stories280K-b", "stories280K-b"),
];

/// Returns every checkpoint's path and golden file.
fn goldens() -> Vec<(PathBuf, Value)> {
    let Some(data) = common::data_folder() else { return Vec::new() };
    let load = |(name, path): (&str, &str)| {
        let file = format!("{}/tests/goldens/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let golden = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        (data.join("models").join(path), golden)
    };
    CHECKPOINTS.into_iter().map(load).collect()
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as TokenId).collect()
}

/// Returns the number of steps to compare: those before the first step at which the peer's two
/// largest logits are equal within rounding.
fn comparable_steps(prompt: &Value) -> usize {
    let near_ties = prompt["near_ties"].as_array().unwrap();
    near_ties.first().map_or(200, |tie| tie["step"].as_u64().unwrap() as usize)
}

#[test]
fn greedy_texts_equal_those_of_the_peer() {
    let mut compared = 0;
    for (path, golden) in goldens() {
        let plan = Plan::new(Options { model: path.into(), ..Options::default() }).unwrap();
        let engine = Engine::open_plan(&plan).unwrap();
        let request = Request { max_tokens: 200, ignore_eos: true, ..Request::default() };
        for prompt in golden["prompts"].as_array().unwrap() {
            let tokens = ids(&prompt["prompt_ids"]);
            let go_on = |_: &str| ControlFlow::Continue(());
            let answer = engine.generate_tokens(tokens, &request, go_on).unwrap();
            let steps = comparable_steps(prompt);
            let expected = ids(&prompt["generated_ids"]);
            assert_eq!(answer.tokens[..steps], expected[..steps], "{}", prompt["name"]);
            assert_eq!(answer.tokens.len(), 200);
            compared += steps;
        }
    }
    common::report(&format!("goldens: {compared} greedy tokens equal the peer's"));
}

#[test]
fn the_reference_agrees_with_the_peer() {
    for (path, golden) in goldens() {
        let reference = ReferenceModel::load(&Checkpoint::open(&path).unwrap()).unwrap();
        for prompt in golden["prompts"].as_array().unwrap() {
            let prefix = ids(&prompt["prompt_ids"]);
            let expected = ids(&prompt["generated_ids"]);
            let steps = comparable_steps(prompt);
            let all = [&prefix[..], &expected[..steps - 1]].concat();
            let rows = reference.logits(&all);
            for (row, &token) in rows[prefix.len() - 1..].iter().zip(&expected) {
                let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(row[token as usize], best, "{}", prompt["name"]);
            }
            // The logits of the first step are compared, too, and not only their order.
            let values = prompt["first_step_top_logits"].as_array().unwrap();
            for (id, value) in ids(&prompt["first_step_top_ids"]).into_iter().zip(values) {
                let difference =
                    f64::from(rows[prefix.len() - 1][id as usize]) - value.as_f64().unwrap();
                assert!(difference.abs() < 1e-4, "{}: {difference}", prompt["name"]);
            }
        }
    }
}

#[test]
fn tokenizers_encode_and_stream_like_the_peer() {
    for (path, golden) in goldens() {
        let tokenizer = Tokenizer::from_checkpoint(&path).unwrap();
        for case in golden["encodings"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids(&case["ids"]), "{text:?}");
        }
        for prompt in golden["prompts"].as_array().unwrap() {
            let text = prompt["prompt"].as_str().unwrap();
            let prefix = ids(&prompt["prompt_ids"]);
            if !text.is_empty() {
                assert_eq!(tokenizer.encode(text).unwrap(), prefix);
            }
            check_stream(&tokenizer, &prefix, prompt);
        }
    }
}

/// Checks that the prompt's text and the streamed text together are the peer's text, up to the
/// first control token.
fn check_stream(tokenizer: &Tokenizer, prefix: &[TokenId], prompt: &Value) {
    let generated = ids(&prompt["generated_ids"]);
    let until = generated.iter().position(|&id| id < 3).unwrap_or(generated.len());
    let mut stream = TextStream::new(tokenizer, prefix);
    let mut text = tokenizer.decode(prefix);
    for &token in &generated[..until] {
        text += &stream.push(token);
    }
    text += &stream.finish();
    let full = prompt["full_text"].as_str().unwrap();
    if until == generated.len() {
        assert_eq!(text, full, "{}", prompt["name"]);
    } else {
        assert!(full.starts_with(&text), "{}:\n{text}\nbegins not\n{full}", prompt["name"]);
        // The rest of the peer's text begins with the control token's text, or with a new story.
        assert!(text.chars().count() > until, "text was lost: {text}");
    }
}

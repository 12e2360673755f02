//! SmolLM2-135M-Instruct, a real model, against Hugging Face transformers (`scripts/smollm2`).
//!
//! `just smollm2` fetches the model and runs these tests with all prompts. Without the model they
//! are skipped with a message.

use crate::common;
use forerun::checkpoint::Checkpoint;
use forerun::cpu::{Team, Weights};
use forerun::{ChatTemplate, Engine, Message, Options, Request, TokenId, WeightType};
use forerun_core::{SequenceId, TokenTree};
use forerun_cpu::Transformer;
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The tolerance of logits. The peer adds in another order; logits are about 20.
const TOLERANCE: f32 = 2e-3;

/// Returns the model's file, or `None` with a message. `FORERUN_SMOLLM2` names its folder.
fn model() -> Option<PathBuf> {
    let cache = || std::env::home_dir().map(|home| home.join(".cache/forerun/smollm2"));
    let folder = std::env::var_os("FORERUN_SMOLLM2").map(PathBuf::from).or_else(cache);
    let file = folder.unwrap_or_default().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    if file.is_file() {
        return Some(file);
    }
    common::report(&format!("SKIPPED: no {} (run scripts/smollm2/fetch.py)", file.display()));
    None
}

/// The peer's record of one prompt.
struct Golden {
    /// What was encoded: a message in the chat template, or a text.
    prompt: Prompt,
    prompt_ids: Vec<TokenId>,
    generated_ids: Vec<TokenId>,
    /// The steps at which the peer's two largest logits are nearly equal, with the runner-up.
    near_ties: Vec<(usize, TokenId)>,
    /// The largest logits of the first step.
    first_step: Vec<(TokenId, f32)>,
}

enum Prompt {
    Message(String),
    Text(String),
}

/// Returns a sample of the golden prompts, as many as `FORERUN_CASES` says.
fn goldens() -> Vec<Golden> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/smollm2.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let all = golden["prompts"].as_array().unwrap();
    assert_eq!(all.len(), 20);
    let ids = |value: &Value| -> Vec<TokenId> { serde_json::from_value(value.clone()).unwrap() };
    let record = |record: &Value| {
        let near_ties = record["near_ties"].as_array().unwrap().iter();
        let logits: Vec<f32> =
            serde_json::from_value(record["first_step_top_logits"].clone()).unwrap();
        Golden {
            prompt: match record["message"].as_str() {
                Some(message) => Prompt::Message(message.to_owned()),
                None => Prompt::Text(record["text"].as_str().unwrap().to_owned()),
            },
            prompt_ids: ids(&record["prompt_ids"]),
            generated_ids: ids(&record["generated_ids"]),
            near_ties: near_ties
                .map(|tie| {
                    let [step, token] =
                        ["step", "runner_up_id"].map(|key| tie[key].as_u64().unwrap());
                    (step as usize, token as TokenId)
                })
                .collect(),
            first_step: ids(&record["first_step_top_ids"]).into_iter().zip(logits).collect(),
        }
    };
    let count = std::env::var("FORERUN_CASES").map_or(3, |count| count.parse().unwrap());
    let stride = all.len() / all.len().min(count).max(1);
    all.iter().step_by(stride).take(count).map(record).collect()
}

/// One pass over the peer's text: at every place, forerun's most probable token is the peer's next
/// one. Because a row's bits do not depend on how rows are cut into passes, this is equal to greedy
/// decoding. Where the two differ, the peer's two largest logits must be nearly equal, and
/// forerun's, too.
#[test]
fn greedy_tokens_equal_those_of_transformers() {
    let Some(model) = model() else { return };
    let checkpoint = Checkpoint::open(&model).unwrap();
    let weights = Arc::new(Weights::load_as(&checkpoint, WeightType::F32).unwrap());
    let team = Arc::new(Team::unpinned(2).unwrap());
    let mut model = CachedTransformer::new(Transformer::new(weights, team));
    let (mut compared, mut ties, mut largest) = (0, 0, 0.0_f32);
    for (number, golden) in (0..).zip(goldens()) {
        let steps = golden.generated_ids.len();
        assert_eq!(steps, 200);
        let tree = TokenTree::chain(&golden.generated_ids[..steps - 1]);
        let prompt = ForwardRequest::next_token(SequenceId(number), &golden.prompt_ids);
        let logits = model.logits(&ForwardRequest { tree: &tree, ..prompt }).unwrap();
        for (step, (row, &token)) in logits.rows().zip(&golden.generated_ids).enumerate() {
            let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            compared += 1;
            if row[token as usize] == best {
                continue;
            }
            let other = row.iter().position(|logit| *logit == best).unwrap() as TokenId;
            let margin = best - row[token as usize];
            assert!(
                golden.near_ties.contains(&(step, other)) && margin < TOLERANCE,
                "prompt {number}, step {step}: {other} instead of {token}, by {margin}"
            );
            ties += 1;
        }
        let row = logits.rows().next().unwrap();
        for (token, expected) in golden.first_step {
            let difference = (row[token as usize] - expected).abs();
            assert!(difference < TOLERANCE, "prompt {number}, token {token}: {difference}");
            largest = largest.max(difference);
        }
    }
    common::report(&format!(
        "SmolLM2: {compared} greedy tokens equal those of transformers, {ties} of them at near ties \
         differ; logits within {largest:.1e}"
    ));
}

/// Messages and texts have the peer's tokens.
#[test]
fn prompts_have_the_tokens_of_transformers() {
    let Some(model) = model() else { return };
    let tokenizer = forerun::text::Tokenizer::from_checkpoint(&model).unwrap();
    let template = ChatTemplate::from_checkpoint(&model).unwrap();
    let engine = engine(&model, WeightType::F32);
    for golden in goldens() {
        let tokens = match &golden.prompt {
            Prompt::Text(text) => tokenizer.encode(text).unwrap(),
            Prompt::Message(message) => {
                engine.encode_chat(&template, &[Message::user(message)]).unwrap()
            }
        };
        assert_eq!(tokens, golden.prompt_ids);
    }
}

fn engine(model: &Path, weight_type: WeightType) -> Engine {
    let weight_type = Some(weight_type.into());
    let options = Options { model: model.into(), weight_type, ..Options::default() };
    Engine::open(options).unwrap()
}

/// The engine, one token per pass, gives the same tokens as one pass over all of them.
#[test]
fn the_engine_gives_the_same_tokens() {
    const TOKENS: usize = 40;
    let Some(model) = model() else { return };
    let engine = engine(&model, WeightType::F32);
    for golden in goldens().into_iter().take(2) {
        let ties = golden.near_ties.iter().map(|(step, _)| *step);
        let comparable = ties.min().unwrap_or(TOKENS).min(TOKENS);
        let request = Request { max_tokens: comparable, ignore_eos: true, ..Request::default() };
        let go_on = |_: &str| ControlFlow::Continue(());
        let answer = engine.generate_tokens(golden.prompt_ids, &request, go_on);
        assert_eq!(answer.unwrap().tokens, golden.generated_ids[..comparable]);
    }
}

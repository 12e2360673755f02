//! Log-probabilities in the forms of completions and of chat completions.

use forerun::{TokenId, TokenLogprob, Tokenizer};
use serde_json::{Map, Value, json};

/// Returns the form of completions. `offset` is the number of the characters before.
pub(super) fn completion_logprobs(
    logprobs: &[TokenLogprob],
    offset: usize,
    tokenizer: &Tokenizer,
) -> Value {
    let piece = |token: TokenId| tokenizer.piece(token);
    let mut offset = offset;
    let offsets = logprobs.iter().map(|logprob| {
        let start = offset;
        offset += piece(logprob.token).chars().count();
        start
    });
    let top = |logprob: &TokenLogprob| -> Map<String, Value> {
        logprob.top.iter().map(|&(token, value)| (piece(token), finite(value))).collect()
    };
    json!({
        "text_offset": offsets.collect::<Vec<_>>(),
        "tokens": logprobs.iter().map(|one| piece(one.token)).collect::<Vec<_>>(),
        "token_logprobs": logprobs.iter().map(|one| finite(one.logprob)).collect::<Vec<_>>(),
        "top_logprobs": logprobs.iter().map(top).collect::<Vec<_>>(),
    })
}

/// Returns the form of chat completions.
pub(super) fn chat_logprobs(logprobs: &[TokenLogprob], tokenizer: &Tokenizer) -> Value {
    let entry = |token: TokenId, logprob: f32| {
        let text = tokenizer.piece(token);
        json!({"bytes": text.as_bytes(), "logprob": finite(logprob), "token": text})
    };
    let content = logprobs.iter().map(|logprob| {
        let mut value = entry(logprob.token, logprob.logprob);
        let top = logprob.top.iter().map(|&(token, value)| entry(token, value));
        value["top_logprobs"] = top.collect();
        value
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

/// JSON has no infinities, and OpenAI's API writes the least probability as this number.
pub(super) fn finite(logprob: f32) -> Value {
    json!(logprob.max(-9999.0))
}

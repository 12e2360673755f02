//! The forms of answers in OpenAI's API: whole, and as the chunks of a stream.

use forerun::{Answer, Finish, TokenId, TokenLogprob, Tokenizer};
use serde_json::{Map, Value, json};

/// The two kinds of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Completion,
    Chat,
}

/// Writes the answers of one request.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    pub(crate) kind: Kind,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// The tokens of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Tokens of prompts that were in the cache.
    pub(crate) cached: usize,
    pub(crate) completion: usize,
}

impl Usage {
    /// Adds an answer. The choices of one prompt share its tokens, so only the first one counts them.
    pub(crate) fn add(&mut self, answer: &Answer, is_first_choice: bool) {
        if is_first_choice {
            self.prompt += answer.prompt_tokens;
            self.cached += answer.cached_prompt_tokens();
        }
        self.completion += answer.tokens.len();
    }

    fn value(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        })
    }
}

impl Format {
    /// Returns a whole response.
    pub(crate) fn whole(&self, choices: &[Value], answers: &[Box<Answer>], usage: Usage) -> Value {
        let object = match self.kind {
            Kind::Completion => "text_completion",
            Kind::Chat => "chat.completion",
        };
        let mut response = self.response(object, choices);
        response["usage"] = usage.value();
        response["forerun"] = statistics(answers.iter().map(|answer| &**answer));
        response
    }

    /// Returns a chunk of a stream.
    pub(crate) fn chunk(&self, choices: &[Value]) -> Value {
        let object = match self.kind {
            Kind::Completion => "text_completion",
            Kind::Chat => "chat.completion.chunk",
        };
        self.response(object, choices)
    }

    /// Returns the chunk after the last choice.
    pub(crate) fn usage_chunk(&self, usage: Usage) -> Value {
        let mut chunk = self.chunk(&[]);
        chunk["usage"] = usage.value();
        chunk
    }

    fn response(&self, object: &str, choices: &[Value]) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// Returns a whole choice.
    pub(crate) fn choice(&self, index: usize, answer: &Answer, tokenizer: &Tokenizer) -> Value {
        let logprobs =
            answer.logprobs.as_deref().map(|logprobs| self.logprobs(logprobs, 0, tokenizer));
        let (text, reason) = (&answer.text, finish_reason(answer.finish));
        match self.kind {
            Kind::Completion => json!({
                "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason,
            }),
            Kind::Chat => json!({
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": null},
                "logprobs": logprobs,
                "finish_reason": reason,
            }),
        }
    }

    /// Returns the first part of a choice, if it has a form of its own.
    pub(crate) fn beginning(&self, index: usize) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        let choice =
            json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        (self.kind == Kind::Chat).then_some(choice)
    }

    /// Returns a part of a choice. `offset` is the number of the characters before it.
    pub(crate) fn part(
        &self,
        index: usize,
        text: &str,
        offset: usize,
        logprobs: Option<&[TokenLogprob]>,
        tokenizer: &Tokenizer,
    ) -> Value {
        let logprobs = logprobs.map(|logprobs| self.logprobs(logprobs, offset, tokenizer));
        match self.kind {
            Kind::Completion => json!({
                "index": index, "text": text, "logprobs": logprobs, "finish_reason": null,
            }),
            Kind::Chat => json!({
                "index": index,
                "delta": {"content": text},
                "logprobs": logprobs,
                "finish_reason": null,
            }),
        }
    }

    /// Returns the last part of a choice.
    pub(crate) fn end(&self, index: usize, answer: &Answer) -> Value {
        let reason = finish_reason(answer.finish);
        match self.kind {
            Kind::Completion => json!({
                "index": index, "text": "", "logprobs": null, "finish_reason": reason,
            }),
            Kind::Chat => json!({
                "index": index, "delta": {}, "logprobs": null, "finish_reason": reason,
            }),
        }
    }

    fn logprobs(&self, logprobs: &[TokenLogprob], offset: usize, tokenizer: &Tokenizer) -> Value {
        let piece = |token: TokenId| tokenizer.piece(token);
        match self.kind {
            Kind::Completion => {
                let mut offset = offset;
                let offsets = logprobs.iter().map(|logprob| {
                    let start = offset;
                    offset += piece(logprob.token).chars().count();
                    start
                });
                let top = |logprob: &TokenLogprob| -> Map<String, Value> {
                    let top = logprob.top.iter();
                    top.map(|&(token, value)| (piece(token), finite(value))).collect()
                };
                json!({
                    "text_offset": offsets.collect::<Vec<_>>(),
                    "tokens": logprobs.iter().map(|one| piece(one.token)).collect::<Vec<_>>(),
                    "token_logprobs": logprobs.iter().map(|one| finite(one.logprob)).collect::<Vec<_>>(),
                    "top_logprobs": logprobs.iter().map(top).collect::<Vec<_>>(),
                })
            }
            Kind::Chat => {
                let entry = |token: TokenId, logprob: f32| {
                    let text = piece(token);
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
        }
    }
}

/// JSON has no infinities, and OpenAI's API writes the least probability as this number.
pub(super) fn finite(logprob: f32) -> Value {
    json!(logprob.max(-9999.0))
}

fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::MaxTokens | Finish::Context => "length",
        Finish::Eos | Finish::Stopped => "stop",
    }
}

/// Returns how answers were decoded: our extension of the API.
pub(crate) fn statistics<'a>(answers: impl Iterator<Item = &'a Answer>) -> Value {
    let choices = answers.map(|answer| {
        let statistics = &answer.statistics;
        json!({
            "target_forwards": statistics.target_forwards,
            "draft_tokens": statistics.draft_tokens,
            "accepted_tokens": statistics.accepted.iter().sum::<u64>(),
            "mean_accepted_tokens": statistics.mean_accepted_tokens(),
            "first_token_ms": answer.first_token_ns as f64 / 1e6,
            "total_ms": answer.total_ns as f64 / 1e6,
            "tokens_per_second": answer.tokens_per_second(),
            "failures": statistics.failures,
        })
    });
    json!({"choices": choices.collect::<Vec<_>>()})
}

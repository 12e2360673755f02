//! What completions and chat completions have in common: what surrounds their choices.

use super::token_details::add_measurements;
use crate::api::answers::new_id;
use crate::api::state::unix_seconds;
use crate::models::Model;
use axum::response::sse::Event;
use forerun::text::Tokenizer;
use forerun::{Answer, Finish};
use serde_json::{Value, json};
use std::time::SystemTime;

/// The fields of a response or chunk besides the choices.
pub(super) struct Envelope {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    /// Whether chunks have a field for the usage, which is null in all but the last one.
    has_usage: bool,
}

impl Envelope {
    pub(super) fn new(model: &Model, id_prefix: &str, object: &'static str) -> Self {
        Self {
            has_usage: false,
            id: new_id(id_prefix),
            object,
            created: unix_seconds(SystemTime::now()),
            model: model.name.clone(),
        }
    }

    /// Returns this envelope for a stream with or without usage.
    pub(super) fn with_usage(self, has_usage: bool) -> Self {
        Self { has_usage, ..self }
    }

    /// Returns a response or a chunk with these choices.
    pub(super) fn with(&self, choices: &[Value]) -> Value {
        let Self { id, object, created, model, has_usage } = self;
        let mut value = json!({
            "id": id, "object": object, "created": created, "model": model, "choices": choices,
        });
        if *has_usage {
            value["usage"] = Value::Null;
        }
        value
    }

    /// Returns a chunk as an event.
    pub(super) fn event(&self, choices: &[Value]) -> Event {
        Event::default().data(self.with(choices).to_string())
    }

    /// Returns the last events of a stream.
    pub(super) fn end(
        &self,
        answers: &[Box<Answer>],
        options: StreamOptions,
        tokenizer: &Tokenizer,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        if options.usage {
            let mut usage = Usage::default();
            for (index, answer) in answers.iter().enumerate() {
                usage.add(answer, index % options.choices_per_prompt == 0);
            }
            let mut chunk = self.with(&[]);
            chunk["usage"] = usage.value();
            let answers = || answers.iter().map(|answer| &**answer);
            chunk["forerun"] = statistics(answers());
            if options.details {
                add_measurements(&mut chunk["forerun"], answers(), tokenizer);
            }
            events.push(Event::default().data(chunk.to_string()));
        }
        events.push(Event::default().data("[DONE]"));
        events
    }
}

/// What a stream reports in addition to the text.
#[derive(Clone, Copy)]
pub(super) struct StreamOptions {
    /// Whether it ends with the usage.
    pub(super) usage: bool,
    /// Whether it says where tokens come from.
    pub(super) details: bool,
    pub(super) choices_per_prompt: usize,
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
    /// Adds an answer. The choices of one prompt share its tokens, so only the first one counts
    /// them.
    pub(crate) fn add(&mut self, answer: &Answer, is_first_choice: bool) {
        if is_first_choice {
            self.prompt += answer.prompt_tokens;
            self.cached += answer.cached_prompt_tokens();
        }
        self.completion += answer.tokens.len();
    }

    pub(super) fn value(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        })
    }
}

pub(super) fn finish_reason(finish: Finish) -> &'static str {
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
            "draft_tokens_by_drafter": statistics.draft_tokens_by_drafter,
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

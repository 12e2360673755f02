//! From the engine's events to Dynamo's outputs.

use dynamo_backend_common::{FinishReason, LLMEngineOutput, TopLogprob};
use forerun::checkpoint::Config;
use forerun::{Answer, AnswerEvent, AnswerToken, Finish, Method, TokenId};
use forerun_server::Task;
use serde_json::{Value, json};

/// Collects the tokens of an answer until they are an output: one for each commit, and the last one
/// with the end.
pub(crate) struct Outputs {
    method: Method,
    /// Tokens that end the answer.
    ends: Vec<TokenId>,
    /// The number of tokens that the answer may still have.
    room: usize,
    has_logprobs: bool,
    tokens: Vec<AnswerToken>,
}

impl Outputs {
    /// Prepares for the answer of a task.
    pub(crate) fn of(task: &Task, config: &Config) -> Self {
        let mut ends = task.request.stop_tokens.clone();
        if !task.request.ignore_eos {
            ends.extend(&config.eos_token_ids);
        }
        let context = config.max_position_embeddings.saturating_sub(task.prompt.len());
        Self {
            method: task.method,
            ends,
            room: task.request.max_tokens.min(context),
            has_logprobs: task.request.logprobs.is_some(),
            tokens: Vec::new(),
        }
    }

    /// Adds an event. Returns an output if one is complete.
    pub(crate) fn push(&mut self, event: AnswerEvent) -> Option<LLMEngineOutput> {
        match event {
            AnswerEvent::Token(token) => {
                self.room = self.room.saturating_sub(1);
                // If its last tokens and its end arrived one after the other, an answer could move
                // to another worker between them, and continue after its end.
                let is_last = self.room == 0 || self.ends.contains(&token.token);
                let is_complete = token.ends_commit && !is_last;
                self.tokens.push(token);
                is_complete.then(|| self.take())
            }
            // The front end makes the text.
            AnswerEvent::Text(_) => None,
            AnswerEvent::Finished(answer) => {
                let finish = match answer.finish {
                    Finish::Eos => FinishReason::EoS,
                    Finish::MaxTokens | Finish::Context => FinishReason::Length,
                    Finish::Stopped => FinishReason::Stop,
                };
                Some(LLMEngineOutput {
                    finish_reason: Some(finish),
                    engine_data: Some(json!({"forerun": statistics(&answer, self.method)})),
                    ..self.take()
                })
            }
        }
    }

    /// Returns the output of the tokens since the last one.
    fn take(&mut self) -> LLMEngineOutput {
        let tokens = std::mem::take(&mut self.tokens);
        let mut output = LLMEngineOutput {
            token_ids: tokens.iter().map(|token| token.token).collect(),
            ..LLMEngineOutput::default()
        };
        if self.has_logprobs {
            let logprobs = || tokens.iter().filter_map(|token| token.logprob.as_ref());
            output.log_probs = Some(logprobs().map(|one| f64::from(one.logprob)).collect());
            output.top_logprobs = Some(logprobs().map(|one| top(&one.top)).collect());
        }
        output
    }
}

fn top(tokens: &[(TokenId, f32)]) -> Vec<TopLogprob> {
    let of = |(rank, &(token_id, logprob)): (usize, &(TokenId, f32))| TopLogprob {
        rank: rank as u32 + 1,
        token_id,
        // The front end makes the text.
        token: None,
        logprob: f64::from(logprob),
        bytes: None,
    };
    tokens.iter().enumerate().map(of).collect()
}

/// Returns what the engine measured. After a move, it is about the part of the last worker.
fn statistics(answer: &Answer, method: Method) -> Value {
    let statistics = &answer.statistics;
    let milliseconds = |ns: u64| ns as f64 / 1e6;
    json!({
        "method": method.name(),
        "prompt_tokens": answer.prompt_tokens,
        "cached_prompt_tokens": answer.cached_prompt_tokens(),
        "tokens": answer.tokens.len(),
        "target_forwards": statistics.target_forwards,
        "draft_tokens": statistics.draft_tokens,
        "accepted_tokens": statistics.accepted.iter().sum::<u64>(),
        "mean_accepted_tokens": statistics.mean_accepted_tokens(),
        "first_token_milliseconds": milliseconds(answer.first_token_ns),
        "milliseconds": milliseconds(answer.total_ns),
        "failures": statistics.failures,
    })
}

//! Answers and their tokens as Python's dictionaries.

use crate::trace::Trace;
use forerun::text::Tokenizer;
use forerun::{
    Answer, AnswerToken, Canceller, Finish, Statistics, TokenId, TokenLogprob, TokenOrigin,
    Verification,
};
use pyo3::prelude::*;
use std::sync::Arc;

/// A token and its log-probability, with its text.
type Ranked = (TokenId, f32, String);

/// A verified token.
#[derive(IntoPyObject)]
pub(crate) struct TokenFields {
    token_id: TokenId,
    piece: String,
    origin: &'static str,
    rejected: Vec<TokenId>,
    round: usize,
    logprob: Option<LogprobFields>,
}

/// The log-probabilities at the position of a token.
#[derive(IntoPyObject)]
pub(crate) struct LogprobFields {
    chosen: Ranked,
    /// The most probable tokens, best first.
    top: Vec<Ranked>,
}

/// A whole answer.
#[derive(IntoPyObject)]
pub(crate) struct AnswerFields {
    text: String,
    token_ids: Vec<TokenId>,
    logprobs: Option<Vec<LogprobFields>>,
    /// Where each token comes from.
    origins: Vec<&'static str>,
    /// Pieces of the text with their origins, and rejected drafts between them.
    segments: Vec<(String, &'static str)>,
    prompt_tokens: usize,
    cached_prompt_tokens: usize,
    /// Why the answer ended: eos, stop, max_tokens, context or aborted.
    finish: &'static str,
    seed: u64,
    verification: &'static str,
    first_token_seconds: f64,
    total_seconds: f64,
    statistics: StatisticsFields,
    summary: String,
    trace: Trace,
}

/// The counters of an answer.
#[derive(IntoPyObject)]
struct StatisticsFields {
    drafts: u64,
    lookups: u64,
    draft_tokens: u64,
    accepted_tokens: u64,
    tested_per_position: Vec<u64>,
    accepted_per_position: Vec<u64>,
    acceptance_rate: f64,
    mean_accepted_tokens: f64,
    target_forwards: u64,
    draft_seconds: f64,
    score_seconds: f64,
    failures: Vec<String>,
}

/// The origin of a rejected draft in `segments`.
const REJECTED: &str = "rejected";

/// Collects the pieces of an answer's text.
pub(crate) struct Pieces {
    tokenizer: Arc<Tokenizer>,
    canceller: Canceller,
    /// The tokens whose text has not appeared yet.
    pending: Vec<(String, &'static str)>,
    segments: Vec<(String, &'static str)>,
    origins: Vec<&'static str>,
}

impl Pieces {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, canceller: Canceller) -> Self {
        let (pending, segments, origins) = (Vec::new(), Vec::new(), Vec::new());
        Self { tokenizer, canceller, pending, segments, origins }
    }

    /// Adds a token. Its text follows.
    pub(crate) fn token(&mut self, token: AnswerToken) -> TokenFields {
        let AnswerToken { token: token_id, origin, rejected, round, logprob, .. } = token;
        let piece = if token.ends_answer { String::new() } else { self.piece(token_id) };
        let origin = name(origin);
        if let Some(&candidate) = rejected.first() {
            self.pending.push((self.piece(candidate), REJECTED));
        }
        self.pending.push((piece.clone(), origin));
        self.origins.push(origin);
        let logprob = logprob.map(|logprob| self.logprob(&logprob));
        TokenFields { token_id, piece, origin, rejected, round, logprob }
    }

    /// Adds the text of the last tokens.
    pub(crate) fn text(&mut self, text: &str) {
        let pending = std::mem::take(&mut self.pending);
        let last = pending.iter().rposition(|(_, origin)| *origin != REJECTED);
        let mut rest = text;
        for (index, (piece, origin)) in pending.into_iter().enumerate() {
            if origin == REJECTED {
                self.segments.push((piece, origin));
                continue;
            }
            let end = match Some(index) == last {
                true => rest.len(),
                false if rest.starts_with(&piece) => piece.len(),
                // A character of several tokens belongs to the last of them.
                false => 0,
            };
            let (own, after) = rest.split_at(end);
            self.show(own, origin);
            rest = after;
        }
        // Text that was held back.
        let origin = self.segments.last().map_or("plain", |(_, origin)| *origin);
        self.show(rest, origin);
    }

    fn show(&mut self, text: &str, origin: &'static str) {
        match self.segments.last_mut() {
            _ if text.is_empty() => {}
            Some((last, same)) if *same == origin && origin != REJECTED => last.push_str(text),
            _ => self.segments.push((text.to_owned(), origin)),
        }
    }

    /// Returns the fields of the whole answer.
    pub(crate) fn answer(&mut self, answer: Answer) -> AnswerFields {
        let mut origins = std::mem::take(&mut self.origins);
        origins.truncate(answer.tokens.len());
        let rejected = |(_, origin): &(String, &str)| *origin == REJECTED;
        self.segments.extend(std::mem::take(&mut self.pending).into_iter().filter(rejected));
        let finish = match answer.finish {
            Finish::Eos => "eos",
            Finish::MaxTokens => "max_tokens",
            Finish::Context => "context",
            Finish::Stopped if self.canceller.is_cancelled() => "aborted",
            Finish::Stopped => "stop",
        };
        let logprobs = answer.logprobs.as_ref();
        AnswerFields {
            logprobs: logprobs.map(|all| all.iter().map(|one| self.logprob(one)).collect()),
            origins,
            segments: std::mem::take(&mut self.segments),
            prompt_tokens: answer.prompt_tokens,
            cached_prompt_tokens: answer.cached_prompt_tokens(),
            finish,
            seed: answer.seed,
            verification: match answer.verification {
                Verification::Rejection => "rejection",
                Verification::Block => "block",
                Verification::Coupled => "coupled",
            },
            first_token_seconds: seconds(answer.first_token_ns),
            total_seconds: seconds(answer.total_ns),
            statistics: statistics(&answer.statistics),
            summary: answer.summary(),
            text: answer.text,
            token_ids: answer.tokens,
            trace: Trace::new(answer.trace),
        }
    }

    fn logprob(&self, logprob: &TokenLogprob) -> LogprobFields {
        logprob_fields(&self.tokenizer, logprob)
    }

    fn piece(&self, token: TokenId) -> String {
        self.tokenizer.piece(token)
    }
}

/// Returns log-probabilities with the texts of their tokens.
pub(crate) fn logprob_fields(tokenizer: &Tokenizer, logprob: &TokenLogprob) -> LogprobFields {
    let ranked = |token, value| (token, value, tokenizer.piece(token));
    LogprobFields {
        chosen: ranked(logprob.token, logprob.logprob),
        top: logprob.top.iter().map(|&(token, value)| ranked(token, value)).collect(),
    }
}

fn name(origin: TokenOrigin) -> &'static str {
    match origin {
        TokenOrigin::Draft => "draft",
        TokenOrigin::Correction => "correction",
        TokenOrigin::Bonus => "bonus",
        TokenOrigin::Plain => "plain",
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn statistics(statistics: &Statistics) -> StatisticsFields {
    StatisticsFields {
        drafts: statistics.drafts,
        lookups: statistics.lookups,
        draft_tokens: statistics.draft_tokens,
        accepted_tokens: statistics.accepted.iter().sum(),
        tested_per_position: statistics.tested.clone(),
        accepted_per_position: statistics.accepted.clone(),
        acceptance_rate: statistics.acceptance_rate(),
        mean_accepted_tokens: statistics.mean_accepted_tokens(),
        target_forwards: statistics.target_forwards,
        draft_seconds: seconds(statistics.draft_ns),
        score_seconds: seconds(statistics.score_ns),
        failures: statistics.failures.clone(),
    }
}

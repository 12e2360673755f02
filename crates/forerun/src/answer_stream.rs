//! An answer in progress, as an iterator of events.

use crate::answer::{Answer, Commit, PacedPasses};
use crate::engine::Engine;
use crate::error::ForerunError;
use crate::plan::Method;
use forerun_core::trace::Trace;
use forerun_core::{JobError, TokenId, TokenLogprob, Verification};
use forerun_decode::{AnswerDecoder, DecodeError, Finish, Sequence, next_tokens};
use forerun_runtime::{Canceller, ClusterHandle};
use forerun_text::{GrammarConstraint, GrammarError};
use forerun_text::{StopFilter, TextStream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// A part of an answer in progress.
#[derive(Clone, Debug)]
pub enum AnswerEvent {
    /// A verified token. The text that it makes final follows.
    Token(AnswerToken),
    /// Whole characters that are final, and nothing of a stop string.
    Text(String),
    /// The whole answer, with its statistics. This is the last event.
    Finished(Box<Answer>),
}

/// A verified token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerToken {
    /// The token.
    pub token: TokenId,
    /// Where it comes from.
    pub origin: TokenOrigin,
    /// The drafted candidates for its position that the target rejected, in their order.
    pub rejected: Vec<TokenId>,
    /// The index of its verification in [`Answer::verifications`].
    pub round: usize,
    /// The log-probabilities at its position, if requested.
    pub logprob: Option<TokenLogprob>,
    /// Whether it is the last token of its [`Commit`]: the next one must be computed first.
    pub ends_commit: bool,
    /// Whether it is the end-of-sequence or stop token that ended the answer. It has no text.
    pub ends_answer: bool,
}

/// Where a token of an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenOrigin {
    /// A drafter proposed it, and the target accepted it.
    Draft,
    /// The target's own token in place of a rejected draft token.
    Correction,
    /// The target's own token after a draft that was accepted completely.
    Bonus,
    /// The target's own token in a round without a draft.
    Plain,
}

/// An answer in progress: an iterator of its events (see [`Engine::stream`]).
///
/// The answer advances when the next event is requested. Dropping the stream cancels the answer.
pub struct AnswerStream<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) sequence: Sequence,
    pub(crate) cluster: Box<dyn ClusterHandle>,
    /// `None` once the answer has ended.
    pub(crate) decoder: Option<Box<dyn AnswerDecoder>>,
    pub(crate) grammar: Option<Arc<GrammarConstraint>>,
    pub(crate) method: Method,
    pub(crate) sink: Sink<'a>,
    pub(crate) canceller: Canceller,
    /// Whether the next answers start with the draft lengths that this one arrives at.
    pub(crate) learns: bool,
    /// Whether to free the sequence's caches in the end, because no other answer continues it.
    pub(crate) releases: bool,
    pub(crate) prompt_tokens: usize,
    pub(crate) prompt_logprobs: Option<Vec<TokenLogprob>>,
    pub(crate) verification: Verification,
    pub(crate) seed: u64,
    pub(crate) events: VecDeque<AnswerEvent>,
}

impl AnswerStream<'_> {
    /// Frees the answer's caches. They are computed again with the next event. The text does not
    /// change.
    pub fn free_caches(&self) {
        self.engine.release(self.sequence.id());
    }

    /// Ends the answer after the last event. The events that remain are [`AnswerEvent::Finished`]
    /// and nothing else.
    pub fn stop(&mut self) {
        self.sink.closed = true;
        self.events.retain(|event| matches!(event, AnswerEvent::Finished(_)));
    }

    /// Continues the answer until there is an event.
    fn advance(&mut self) -> Result<(), ForerunError> {
        while self.events.is_empty() && self.decoder.is_some() {
            let pushed = self.prompt_tokens + self.sink.tokens.len();
            if !self.sink.closed && pushed < self.sequence.tokens().len() {
                self.push(pushed);
                continue;
            }
            if self.sink.closed || self.canceller.is_cancelled() {
                self.sequence.stop();
            }
            let Some(decoder) = &mut self.decoder else { return Ok(()) };
            match next_tokens(&mut **decoder, &mut self.sequence, &mut *self.cluster) {
                Ok(None) => self.sink.start_commit(),
                Ok(Some(finish)) => match self.grammar_error() {
                    None => self.finish(finish),
                    Some(error) => {
                        drop(self.end());
                        return Err(error.into());
                    }
                },
                // A job was cancelled: the answer ends with the tokens committed before.
                Err(DecodeError::Job(JobError::Cancelled)) if self.canceller.is_cancelled() => {
                    self.finish(Finish::Stopped);
                }
                Err(error) => {
                    drop(self.end());
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Returns why the answer had to end before it was complete.
    fn grammar_error(&self) -> Option<GrammarError> {
        self.grammar.as_ref()?.error_of(self.sequence.generated())
    }

    /// Adds the events of the committed token at `position`.
    fn push(&mut self, position: usize) {
        let token = self.sequence.tokens()[position];
        let ends_commit = position + 1 == self.sequence.tokens().len();
        let ends_answer = ends_commit && self.sequence.finish() == Some(Finish::Eos);
        let text = self.sink.push(token, ends_answer);
        let number = position - self.prompt_tokens;
        let logprob = self.sequence.logprobs().and_then(|all| all.get(number)).cloned();
        let (round, origin) = self.round_and_origin(number);
        let rejected = match origin {
            TokenOrigin::Correction => self.sequence.verifications()[round].rejected.clone(),
            _ => Vec::new(),
        };
        let token =
            AnswerToken { token, origin, rejected, round, logprob, ends_commit, ends_answer };
        self.events.push_back(AnswerEvent::Token(token));
        if !text.is_empty() {
            self.events.push_back(AnswerEvent::Text(text));
        }
    }

    /// Returns the round and the origin of a token of the last commits, given its number in the
    /// answer.
    fn round_and_origin(&self, number: usize) -> (usize, TokenOrigin) {
        let mut end = self.sequence.generated().len();
        for (round, record) in self.sequence.verifications().iter().enumerate().rev() {
            let start = end - record.committed;
            if number >= start {
                let origin = if number - start < record.accepted {
                    TokenOrigin::Draft
                } else if !record.rejected.is_empty() {
                    TokenOrigin::Correction
                } else if record.accepted > 0 {
                    TokenOrigin::Bonus
                } else {
                    TokenOrigin::Plain
                };
                return (round, origin);
            }
            end = start;
        }
        (0, TokenOrigin::Plain)
    }

    fn finish(&mut self, finish: Finish) {
        let total_ns = self.sink.elapsed_ns();
        let text = self.sink.flush();
        let planned = self.decoder.as_mut().and_then(|decoder| decoder.planned());
        let decisions = planned.map(|planned| planned.decisions()).unwrap_or_default();
        let trace = Trace { decisions, ..self.end() };
        let pace = self.engine.plan().placement().pace();
        let paced = pace.map(|pace| PacedPasses::of(&trace, pace));
        // A stop string may end the answer within a step.
        let mut statistics = self.sequence.statistics().clone();
        let drafters = if self.method.drafts() { self.engine.plan().n_drafters() } else { 0 };
        statistics.draft_tokens_by_drafter.resize(drafters, 0);
        let of_answer =
            |all: &[TokenLogprob]| all.iter().take(self.sink.tokens.len()).cloned().collect();
        let answer = Answer {
            text: std::mem::take(&mut self.sink.text),
            logprobs: self.sequence.logprobs().map(of_answer),
            tokens: std::mem::take(&mut self.sink.tokens),
            prompt_tokens: self.prompt_tokens,
            prompt_logprobs: self.prompt_logprobs.take(),
            // A stop string may end the text within a step that also reached a limit.
            finish: if self.sink.closed { Finish::Stopped } else { finish },
            seed: self.seed,
            verification: self.verification,
            first_token_ns: self.sink.commits.first().map_or(0, |commit| commit.at_ns),
            total_ns,
            commits: std::mem::take(&mut self.sink.commits),
            verifications: self.sequence.verifications().to_vec(),
            statistics,
            trace,
            paced,
        };
        if !text.is_empty() {
            self.events.push_back(AnswerEvent::Text(text));
        }
        self.events.push_back(AnswerEvent::Finished(Box::new(answer)));
    }

    /// Stops decoding, and returns the trace. Jobs for tokens that were rejected may still run.
    /// They belong to this answer's trace, and would delay the next answer's jobs.
    fn end(&mut self) -> Trace {
        let Some(mut decoder) = self.decoder.take() else { return Trace::default() };
        decoder.stop(&mut *self.cluster);
        if self.learns {
            self.engine.learn(self.method, decoder);
        }
        self.cluster.cancel_and_wait();
        let sequence = self.sequence.id();
        if self.releases {
            self.engine.release(sequence);
        }
        self.engine.take_trace_of(sequence)
    }
}

impl Iterator for AnswerStream<'_> {
    type Item = Result<AnswerEvent, ForerunError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(()) => self.events.pop_front().map(Ok),
            Err(error) => Some(Err(error)),
        }
    }
}

impl Drop for AnswerStream<'_> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// Collects an answer's tokens and their text until a stop string ends it.
pub(crate) struct Sink<'a> {
    started: Instant,
    stream: TextStream<'a>,
    stop: StopFilter,
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenId>,
    /// The times at which `tokens` were committed.
    pub(crate) commits: Vec<Commit>,
    /// Whether a stop string or the caller has ended the text.
    pub(crate) closed: bool,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(stream: TextStream<'a>, stop: &[String]) -> Self {
        Self {
            started: Instant::now(),
            stream,
            stop: StopFilter::new(stop),
            text: String::new(),
            tokens: Vec::new(),
            commits: Vec::new(),
            closed: false,
        }
    }

    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Starts the commit of a step.
    pub(crate) fn start_commit(&mut self) {
        self.commits.push(Commit { at_ns: self.elapsed_ns(), tokens: 0 });
    }

    /// Adds a token of the last commit. Returns the text that it makes final. A token that ends the
    /// answer has none, whatever it stands for elsewhere.
    pub(crate) fn push(&mut self, token: TokenId, ends_answer: bool) -> String {
        self.tokens.push(token);
        if let Some(commit) = self.commits.last_mut() {
            commit.tokens += 1;
        }
        if ends_answer {
            return String::new();
        }
        let passed = self.stop.push(&self.stream.push(token));
        self.closed |= passed.stopped;
        self.text += &passed.text;
        passed.text
    }

    /// Returns the text that was held back, once there are no more tokens.
    pub(crate) fn flush(&mut self) -> String {
        if self.closed {
            return String::new();
        }
        let passed = self.stop.push(&self.stream.finish());
        self.closed = passed.stopped;
        let rest = if passed.stopped { passed.text } else { passed.text + &self.stop.finish() };
        self.text += &rest;
        rest
    }
}

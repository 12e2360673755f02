//! Turns committed tokens into text, up to the end of the answer.

use crate::answer::Commit;
use crate::text_stream::{StopFilter, TextStream};
use crate::tokenizer::Tokenizer;
use forerun_core::TokenId;
use std::time::Instant;

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
    pub(crate) fn new(tokenizer: &'a Tokenizer, prompt: &[TokenId], stop: &[String]) -> Self {
        Self {
            started: Instant::now(),
            stream: TextStream::new(tokenizer, prompt),
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

    /// Adds a token of the last commit. Returns the text that it makes final.
    pub(crate) fn push(&mut self, token: TokenId) -> String {
        self.tokens.push(token);
        if let Some(commit) = self.commits.last_mut() {
            commit.tokens += 1;
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

//! Turns committed tokens into streamed text, up to the end of the answer.

use crate::answer::Commit;
use crate::text_stream::{StopFilter, TextStream};
use crate::tokenizer::Tokenizer;
use forerun_core::TokenId;
use std::ops::ControlFlow;
use std::time::Instant;

/// Collects an answer's tokens, and streams their text to a callback until a stop string or the
/// callback ends it.
pub(crate) struct Sink<'a, F> {
    started: Instant,
    stream: TextStream<'a>,
    stop: StopFilter,
    on_text: F,
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenId>,
    /// The times at which `tokens` were committed.
    pub(crate) commits: Vec<Commit>,
    /// Whether a stop string or the callback has ended the text.
    pub(crate) closed: bool,
}

impl<'a, F: FnMut(&str) -> ControlFlow<()>> Sink<'a, F> {
    pub(crate) fn new(
        tokenizer: &'a Tokenizer,
        prompt: &[TokenId],
        stop: &[String],
        on_text: F,
    ) -> Self {
        Self {
            started: Instant::now(),
            stream: TextStream::new(tokenizer, prompt),
            stop: StopFilter::new(stop),
            on_text,
            text: String::new(),
            tokens: Vec::new(),
            commits: Vec::new(),
            closed: false,
        }
    }

    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Adds the tokens of one step, up to the one that completes a stop string.
    pub(crate) fn push(&mut self, tokens: &[TokenId]) -> ControlFlow<()> {
        self.commits.push(Commit { at_ns: self.elapsed_ns(), tokens: 0 });
        for &token in tokens {
            self.tokens.push(token);
            if let Some(commit) = self.commits.last_mut() {
                commit.tokens += 1;
            }
            let passed = self.stop.push(&self.stream.push(token));
            self.closed |= self.emit(&passed.text).is_break() || passed.stopped;
            if self.closed {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn emit(&mut self, text: &str) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        self.text += text;
        (self.on_text)(text)
    }

    /// Emits the text that was held back, once there are no more tokens.
    pub(crate) fn flush(&mut self) {
        if self.closed {
            return;
        }
        let passed = self.stop.push(&self.stream.finish());
        self.closed = passed.stopped;
        let rest = if passed.stopped { passed.text } else { passed.text + &self.stop.finish() };
        // The answer is over, so the callback has nothing left to stop.
        let _: ControlFlow<()> = self.emit(&rest);
    }
}

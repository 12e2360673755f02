//! The end of answers at their lines, as in llama-server.

use forerun::{AnswerEvent, AnswerStream, Finish};
use std::time::{Duration, Instant};

/// Where an answer ends before its limit.
#[derive(Clone, Copy, Debug)]
pub struct LineLimits {
    /// The time since the first token after which an answer of several lines ends.
    pub time: Option<Duration>,
    /// How many spaces and tabs begin each line after the first. A line with fewer ends the answer,
    /// and is left out.
    pub indent: usize,
}

/// Watches an answer, and ends it at its limits.
pub(super) struct LineGuard {
    limits: LineLimits,
    text: String,
    first: Option<Instant>,
    /// The length of the ended answer's text, in bytes.
    end: Option<usize>,
}

impl LineGuard {
    pub(super) fn new(limits: LineLimits) -> Self {
        Self { limits, text: String::new(), first: None, end: None }
    }

    /// Reads the next event of an answer.
    pub(super) fn read(&mut self, event: &mut AnswerEvent, stream: &mut AnswerStream<'_>) {
        match event {
            AnswerEvent::Token(_) => _ = self.first.get_or_insert_with(Instant::now),
            AnswerEvent::Text(more) if self.end.is_none() => {
                let read = self.text.len();
                self.text.push_str(more);
                self.end =
                    self.short_line(read).or_else(|| self.is_late().then_some(self.text.len()));
                if let Some(end) = self.end {
                    more.truncate(end.saturating_sub(read));
                    stream.stop();
                }
            }
            AnswerEvent::Finished(answer) => {
                if let Some(end) = self.end {
                    answer.text.truncate(end);
                    answer.finish = Finish::MaxTokens;
                }
            }
            AnswerEvent::Text(_) => {}
        }
    }

    /// Returns the end of the indentation of the first line that has too little. The text before
    /// `read` has no such line.
    fn short_line(&self, read: usize) -> Option<usize> {
        let last_line = self.text[..read].rfind('\n').unwrap_or(read);
        let mut lines = self.text[last_line..].match_indices('\n');
        lines.find_map(|(at, _)| {
            let line = &self.text[last_line + at + 1..];
            let rest = line.trim_start_matches([' ', '\t']);
            let is_short = !rest.is_empty() && line.len() - rest.len() < self.limits.indent;
            is_short.then(|| self.text.len() - rest.len())
        })
    }

    fn is_late(&self) -> bool {
        let times = self.limits.time.zip(self.first);
        times.is_some_and(|(limit, first)| first.elapsed() > limit) && self.text.contains('\n')
    }
}

//! Statistics of a whole chat.

use forerun::{Answer, Statistics};
use std::fmt;

/// The statistics of the last answer, and the sums over all answers.
#[derive(Default)]
pub(super) struct Totals {
    last: Option<String>,
    answers: usize,
    tokens: usize,
    prompt_tokens: usize,
    time_ns: u64,
    statistics: Statistics,
}

impl Totals {
    pub(super) fn add(&mut self, answer: &Answer) {
        self.last = Some(answer.summary());
        self.answers += 1;
        self.tokens += answer.tokens.len();
        self.prompt_tokens = answer.prompt_tokens;
        self.time_ns += answer.total_ns;
        self.statistics.add(&answer.statistics);
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = &self.last else { return f.write_str("no answers yet") };
        writeln!(f, "last answer: {last}; prompt of {} tokens", self.prompt_tokens)?;
        let seconds = self.time_ns.max(1) as f64 / 1e9;
        write!(
            f,
            "whole chat: {} answer{}, {} tokens, {:.1} tokens/s",
            self.answers,
            if self.answers == 1 { "" } else { "s" },
            self.tokens,
            self.tokens as f64 / seconds,
        )?;
        let statistics = &self.statistics;
        if statistics.drafts > 0 {
            let accepted = statistics.acceptance_rate() * 100.0;
            let mean = statistics.mean_accepted_tokens();
            write!(
                f,
                " | {mean:.2} tokens a pass (MAT) | accepted {accepted:.0} % of tested draft tokens"
            )?;
        }
        Ok(())
    }
}

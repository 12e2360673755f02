//! One method's answer, with the time of each piece of text.

use forerun::trace::{PacedPasses, Span, SpanKind, Trace};
use forerun::{
    Answer, AnswerEvent, Canceller, Commit, Engine, Request, Statistics, TokenId, TokenOrigin,
};
use std::cmp::Reverse;
use std::ops::RangeInclusive;

/// The most windows that are compared. A long answer has more commits than that.
const MOST_WINDOWS: usize = 200;

/// An answer, and how its text appeared.
#[derive(Clone)]
pub(crate) struct Recording {
    pub(crate) title: &'static str,
    /// What the method does, in a sentence.
    pub(crate) explanation: &'static str,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) commits: Vec<Commit>,
    pub(crate) statistics: Statistics,
    /// The passes of paced devices.
    pub(crate) paced: Option<PacedPasses>,
    /// What the devices did, with a lane for each.
    pub(crate) trace: Trace,
    /// The speeds of the slowest and the fastest run of the method, in tokens per second.
    pub(crate) speeds: [f64; 2],
}

/// Text that appeared at one time.
#[derive(Clone)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Whether its last token was drafted.
    pub(crate) drafted: bool,
    /// The time since the first token.
    pub(crate) at_ns: u64,
    /// The number of tokens up to this piece.
    pub(crate) tokens: usize,
}

impl Recording {
    /// Answers a prompt, and records the answer.
    pub(crate) fn of(
        engine: &Engine,
        prompt: &str,
        request: &Request,
        canceller: &Canceller,
    ) -> anyhow::Result<Self> {
        let prompt = engine.encode_prompt(prompt)?;
        let method = engine.plan().method();
        let (mut texts, mut count, mut drafted) = (Vec::new(), 0, false);
        let mut answer = None;
        for event in engine.stream_tokens(prompt, request, method, canceller)? {
            match event? {
                AnswerEvent::Token(token) => {
                    (count, drafted) = (count + 1, token.origin == TokenOrigin::Draft);
                }
                AnswerEvent::Text(text) => texts.push((text, drafted, count)),
                AnswerEvent::Finished(finished) => answer = Some(*finished),
            }
        }
        let Some(Answer { tokens, commits, statistics, paced, trace, .. }) = answer else {
            anyhow::bail!("the answer ended without a result")
        };
        let pieces = texts.into_iter().map(|(text, drafted, tokens)| {
            let at_ns = commit_time(&commits, tokens);
            Piece { text, drafted, at_ns, tokens }
        });
        Ok(Self {
            title: "",
            explanation: "",
            pieces: pieces.collect(),
            tokens,
            commits,
            statistics,
            paced,
            trace: trace.with_devices_as_lanes(),
            speeds: [0.0; 2],
        })
    }

    /// Returns the run with the median speed, and notes the speeds of all.
    pub(crate) fn median(mut runs: Vec<Self>) -> Option<Self> {
        runs.sort_by(|a, b| a.speed().total_cmp(&b.speed()));
        let speeds = [runs.first()?.speed(), runs.last()?.speed()];
        let middle = runs.len() / 2;
        Some(Self { speeds, ..runs.swap_remove(middle) })
    }

    /// Returns the time from the first token to the last one, in nanoseconds.
    pub(crate) fn total_ns(&self) -> u64 {
        commit_time(&self.commits, self.tokens.len()).max(1)
    }

    /// Returns the number of tokens that are timed: those after the first commit.
    pub(crate) fn timed_tokens(&self) -> usize {
        self.tokens.len() - self.commits.first().map_or(0, |commit| commit.tokens)
    }

    /// Returns the tokens per second after the first token.
    pub(crate) fn speed(&self) -> f64 {
        self.timed_tokens() as f64 / (self.total_ns() as f64 / 1e9)
    }

    /// Returns the speed as a multiple of plain decoding's; `None` if no draft was verified.
    pub(crate) fn gain(&self, plain: &Self) -> Option<f64> {
        (self.statistics.drafts > 0).then(|| self.speed() / plain.speed())
    }

    /// Returns what the devices did in the window in which drafter and target worked together the
    /// most, the earliest of these, and the numbers of the tokens that appeared in it, from 1.
    pub(crate) fn busiest(&self, window_ns: u64) -> (Trace, RangeInclusive<usize>) {
        let first_ns = self.commits.first().map_or(0, |commit| commit.at_ns);
        let latest_ns = self.total_ns().saturating_sub(window_ns);
        let step = self.commits.len().div_ceil(MOST_WINDOWS).max(1);
        let starts = self.commits.iter().step_by(step).map(|commit| commit.at_ns - first_ns);
        let starts = starts.filter(|&start_ns| start_ns <= latest_ns);
        let busiest = starts
            .min_by_key(|&start_ns| Reverse(self.part(start_ns, window_ns).together_ns()))
            .unwrap_or(0);
        let tokens_until = |at_ns: u64| {
            let commits = self.commits.iter().filter(|commit| commit.at_ns - first_ns <= at_ns);
            commits.map(|commit| commit.tokens).sum::<usize>()
        };
        let first = tokens_until(busiest) + 1;
        (self.part(busiest, window_ns), first..=tokens_until(busiest + window_ns).max(first))
    }

    /// Returns what the devices did in a window that starts so long after the first token.
    fn part(&self, start_ns: u64, window_ns: u64) -> Trace {
        let spans = self.trace.spans.iter();
        let scores = spans.clone().filter(|span| span.kind == SpanKind::Score);
        let start_ns = scores.map(|span| span.end_ns).min().unwrap_or(0) + start_ns;
        let end_ns = start_ns + window_ns;
        let part = spans.filter(|span| span.end_ns > start_ns && span.start_ns < end_ns);
        let part = part.map(|span| Span {
            start_ns: span.start_ns.max(start_ns),
            end_ns: span.end_ns.min(end_ns),
            ..span.clone()
        });
        Trace { spans: part.collect(), ..Trace::new(self.trace.lanes.clone()) }
    }
}

/// Returns when the token with this number was committed, since the first commit.
fn commit_time(commits: &[Commit], number: usize) -> u64 {
    let first = commits.first().map_or(0, |commit| commit.at_ns);
    let mut end = 0;
    let commit = commits.iter().find(|commit| {
        end += commit.tokens;
        number <= end
    });
    commit.or(commits.last()).map_or(0, |commit| commit.at_ns - first)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use forerun::trace::SpanOutcome;
    use forerun_core::{SequenceId, Ticket};

    /// A text of four tokens, one in each step. The target works all the time, and the drafter
    /// during the last step.
    pub(crate) fn recording(title: &'static str, step_ns: u64) -> Recording {
        let pieces = ["Once ", "upon ", "a ", "time"].into_iter().enumerate();
        let pieces = pieces.map(|(index, text)| Piece {
            text: text.into(),
            drafted: index % 2 == 1,
            at_ns: index as u64 * step_ns,
            tokens: index + 1,
        });
        let commits = (0..4).map(|index| Commit { at_ns: 7 + index * step_ns, tokens: 1 });
        let span = |lane, kind, start_ns, end_ns| Span {
            lane,
            kind,
            sequence: SequenceId(0),
            ticket: Ticket(0),
            rows: 1,
            start_ns,
            end_ns,
            forwards_ns: Vec::new(),
            computed_tokens: 0,
            overruns: 0,
            device_uses: Vec::new(),
            accepted: 1,
            outcome: SpanOutcome::Accepted,
        };
        let scores =
            (0..4).map(|step| span(1, SpanKind::Score, step * step_ns, (step + 1) * step_ns));
        let mut trace = Trace::new(vec!["drafter cpu:0".into(), "target cpu:1".into()]);
        trace.spans = scores.collect();
        trace.spans.push(span(0, SpanKind::Draft, 3 * step_ns, 4 * step_ns));
        let statistics = Statistics { drafts: 2, ..Statistics::default() };
        Recording {
            title,
            explanation: "it works.",
            pieces: pieces.collect(),
            tokens: vec![1, 2, 3, 4],
            commits: commits.collect(),
            statistics,
            paced: None,
            trace,
            speeds: [1e9 / step_ns as f64; 2],
        }
    }

    #[test]
    fn the_run_with_the_median_speed_is_shown_with_all_speeds() {
        let runs = [4, 2, 8].map(|ms| recording("", ms * 1_000_000));
        let median = Recording::median(runs.to_vec());
        let speeds = median.map(|median| [median.speed(), median.speeds[0], median.speeds[1]]);
        assert_eq!(speeds, Some([250.0, 125.0, 500.0]));
        assert!(Recording::median(Vec::new()).is_none());
    }

    #[test]
    fn only_verified_drafts_have_a_gain() {
        let [plain, mut other] = [2, 1].map(|ms| recording("", ms * 1_000_000));
        assert_eq!(other.gain(&plain), Some(2.0));
        other.statistics.drafts = 0;
        assert_eq!(other.gain(&plain), None);
    }

    #[test]
    fn the_busiest_window_is_that_with_the_most_overlap() {
        let mut recording = recording("", 100);
        let (trace, tokens) = recording.busiest(100);
        assert_eq!(tokens, 4..=4);
        assert_eq!(trace.to_ascii(50), "drafter cpu:0 |DD|\ntarget cpu:1  |SS|\n");
        let (trace, tokens) = recording.busiest(200);
        assert_eq!(tokens, 3..=4);
        assert_eq!(trace.to_ascii(50), "drafter cpu:0 |..DD|\ntarget cpu:1  |SSSS|\n");
        // The whole answer is shorter than the window.
        assert_eq!(recording.busiest(1_000).1, 2..=4);
        // Without a drafter, the window begins after the first token.
        recording.trace.spans.pop();
        assert_eq!(recording.busiest(100).1, 2..=2);
    }
}

//! One method's answer, with the time of each piece of text.

use forerun::{AnswerEvent, Canceller, Commit, Forerun, Request, TokenId, TokenOrigin, Trace};
use forerun_core::trace::SpanKind;

/// An answer, and how its text appeared.
pub(crate) struct Recording {
    pub(crate) title: &'static str,
    /// What the method does, in a sentence.
    pub(crate) explanation: &'static str,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) commits: Vec<Commit>,
    pub(crate) trace: Trace,
}

/// Text that appeared at one time.
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
    /// Answers a prompt twice, and records the second answer, for which draft lengths are known.
    pub(crate) fn of(
        engine: &Forerun,
        prompt: &str,
        request: &Request,
        canceller: &Canceller,
    ) -> anyhow::Result<Self> {
        let method = engine.plan().method();
        let prompt = engine.encode_prompt(prompt)?;
        for event in engine.stream_tokens(prompt.clone(), request, method, canceller)? {
            event?;
        }
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
        let Some(answer) = answer else { anyhow::bail!("the answer ended without a result") };
        let pieces = texts.into_iter().map(|(text, drafted, tokens)| {
            let at_ns = commit_time(&answer.commits, tokens);
            Piece { text, drafted, at_ns, tokens }
        });
        let pieces = pieces.collect();
        let (tokens, commits, trace) = (answer.tokens, answer.commits, answer.trace);
        Ok(Self { title: "", explanation: "", pieces, tokens, commits, trace })
    }

    /// Returns the time from the first token to the last one, in nanoseconds.
    pub(crate) fn total_ns(&self) -> u64 {
        commit_time(&self.commits, self.tokens.len()).max(1)
    }

    /// Returns the tokens per second after the first token.
    pub(crate) fn speed(&self) -> f64 {
        let first = self.commits.first().map_or(0, |commit| commit.tokens);
        (self.tokens.len() - first) as f64 / (self.total_ns() as f64 / 1e9)
    }

    /// Returns what the devices did in the first nanoseconds after the first token, in lines of at
    /// most `columns` columns.
    pub(crate) fn timeline(&self, window_ns: u64, columns: usize) -> String {
        let mut trace = self.trace.with_devices_as_lanes();
        let scores = trace.spans.iter().filter(|span| span.kind == SpanKind::Score);
        let start = scores.map(|span| span.end_ns).min().unwrap_or(0);
        let end = start + window_ns;
        trace.spans.retain(|span| span.end_ns > start && span.start_ns < end);
        for span in &mut trace.spans {
            (span.start_ns, span.end_ns) = (span.start_ns.max(start), span.end_ns.min(end));
        }
        let names = trace.lanes.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let width = columns.saturating_sub(names + 4).clamp(20, 120) as u64;
        trace.to_ascii(window_ns.div_ceil(width))
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

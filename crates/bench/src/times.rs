//! The breakdown of an answer's time, computed from the spans of its trace.

use forerun::trace::{Span, SpanKind, Trace};
use serde::{Deserialize, Serialize};

/// The parts of an answer's time in nanoseconds. They are disjoint and add up to the time from the
/// request to the last token.
///
/// A drafter or target *computes* while one of its forward passes runs. A job without recorded
/// passes, such as prompt lookup, computes from its start to its end. The parts are those of PEARL
/// (arXiv 2408.11850, table 15), with two further parts for the time in which nothing is drafted or
/// verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeBreakdown {
    /// Only a drafter computed.
    pub draft_ns: u64,
    /// Only the target computed.
    pub verify_ns: u64,
    /// Both computed at the same time.
    pub both_ns: u64,
    /// No job ran: messages between threads, the decoder's own work, text processing.
    pub waiting_ns: u64,
    /// Jobs ran, but none computed: sampling, caches.
    pub other_ns: u64,
}

impl TimeBreakdown {
    /// Computes the parts of `total_ns` from a trace.
    #[must_use]
    pub fn of(trace: &Trace, total_ns: u64) -> Self {
        // Sweep over the starts (+1) and ends (−1) of jobs, of drafting and of verifying.
        let mut edges: Vec<(u64, usize, i32)> = Vec::new();
        let mut add = |kind, [start, end]: [u64; 2]| {
            edges.extend([(start, kind, 1), (end, kind, -1)]);
        };
        for span in &trace.spans {
            let whole = [span.start_ns, span.end_ns];
            add(JOB, whole);
            let kind = if span.kind == SpanKind::Draft { DRAFT } else { VERIFY };
            match span.forwards_ns.as_slice() {
                [] => add(kind, whole),
                forwards => forwards.iter().for_each(|&forward| add(kind, forward)),
            }
        }
        edges.sort_unstable();
        let (mut running, mut since, mut times) = ([0; 3], 0, Self::default());
        for (at, kind, change) in edges {
            let part = match running.map(|count| count > 0) {
                [_, true, true] => Some(&mut times.both_ns),
                [_, true, false] => Some(&mut times.draft_ns),
                [_, false, true] => Some(&mut times.verify_ns),
                [true, false, false] => Some(&mut times.other_ns),
                [false, false, false] => None,
            };
            if let Some(part) = part {
                *part += at - since;
            }
            running[kind] += change;
            since = at;
        }
        let busy = times.draft_ns + times.verify_ns + times.both_ns + times.other_ns;
        times.waiting_ns = total_ns.saturating_sub(busy);
        times
    }

    /// Returns the parts in the order of [`TimeBreakdown::NAMES`].
    #[must_use]
    pub fn parts(&self) -> [u64; 5] {
        [self.draft_ns, self.verify_ns, self.both_ns, self.waiting_ns, self.other_ns]
    }

    /// The names of the parts.
    pub const NAMES: [&str; 5] = ["draft", "verify", "together", "waiting", "other"];
}

/// One round of drafting and verifying, from the start of a target job to the start of the next
/// one.
///
/// If drafting and verification run in parallel, with one target replica, a round takes at least
/// the time of the longer of the two (PEARL, arXiv 2408.11850, §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The duration of the round in nanoseconds.
    pub round_ns: u64,
    /// The time in which draft jobs ran during the round.
    pub draft_ns: u64,
    /// The time in which the target's job ran.
    pub score_ns: u64,
}

impl Round {
    /// Returns the rounds of a trace in which tokens were drafted. The first round, which computes
    /// the prompt, is left out. With several target replicas, there are no rounds.
    #[must_use]
    pub fn all_of(trace: &Trace) -> Vec<Self> {
        let of = |kind| trace.spans.iter().filter(move |span| span.kind == kind);
        let mut scores: Vec<_> = of(SpanKind::Score).collect();
        scores.sort_by_key(|span| span.start_ns);
        if scores.windows(2).any(|pair| pair[0].lane != pair[1].lane) {
            return Vec::new();
        }
        let round = |pair: &[&Span]| {
            let (start, end) = (pair[0].start_ns, pair[1].start_ns);
            let within =
                |span: &Span| span.end_ns.min(end).saturating_sub(span.start_ns.max(start));
            Self {
                round_ns: end - start,
                draft_ns: of(SpanKind::Draft).map(within).sum(),
                score_ns: pair[0].end_ns - start,
            }
        };
        scores.windows(2).skip(1).map(round).filter(|round| round.draft_ns > 0).collect()
    }

    /// Returns the duration of the round divided by the longer of drafting and verifying.
    #[must_use]
    pub fn ratio_to_longer_phase(&self) -> f64 {
        self.round_ns as f64 / self.draft_ns.max(self.score_ns).max(1) as f64
    }
}

// Indices of the counters in the sweep.
const JOB: usize = 0;
const DRAFT: usize = 1;
const VERIFY: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::span;

    #[test]
    fn parts_are_disjoint_and_add_up() {
        let mut trace = Trace::new(vec!["drafter".into(), "target".into()]);
        trace.spans = vec![
            // Drafts from 0 to 100, computing from 10 to 90.
            span(0, SpanKind::Draft, [0, 100], &[[10, 50], [50, 90]]),
            // Verifies from 100 to 200, computing from 110 to 190.
            span(1, SpanKind::Score, [100, 200], &[[110, 190]]),
            // In parallel the next draft, computing from 150 to 230.
            span(0, SpanKind::Draft, [140, 240], &[[150, 230]]),
        ];
        let times = TimeBreakdown::of(&trace, 300);
        let expected = TimeBreakdown {
            draft_ns: 80 + 40,
            verify_ns: 40,
            both_ns: 40,
            waiting_ns: 60,
            other_ns: 10 + 20 + 10,
        };
        assert_eq!(times, expected);
        assert_eq!(times.parts().iter().sum::<u64>(), 300);
    }

    #[test]
    fn rounds_last_from_one_target_job_to_the_next() {
        let mut trace = Trace::new(vec!["drafter".into(), "target".into()]);
        trace.spans = vec![
            span(1, SpanKind::Score, [0, 900], &[]),
            span(1, SpanKind::Score, [1000, 1100], &[]),
            span(0, SpanKind::Draft, [1000, 1050], &[]),
            span(0, SpanKind::Draft, [1060, 1125], &[]),
            span(1, SpanKind::Score, [1120, 1200], &[]),
            // Nothing is drafted during the next one.
            span(1, SpanKind::Score, [1210, 1300], &[]),
            span(1, SpanKind::Score, [1310, 1400], &[]),
        ];
        let rounds = Round::all_of(&trace);
        assert_eq!(rounds[0], Round { round_ns: 120, draft_ns: 110, score_ns: 100 });
        assert_eq!(rounds[1], Round { round_ns: 90, draft_ns: 5, score_ns: 80 });
        assert_eq!(rounds.len(), 2);
        assert_eq!(rounds[1].ratio_to_longer_phase(), 1.125);
        trace.spans.push(span(0, SpanKind::Score, [1500, 1600], &[]));
        assert_eq!(Round::all_of(&trace), []);
    }

    #[test]
    fn a_job_without_recorded_passes_computes_throughout() {
        let mut trace = Trace::new(vec!["target".into()]);
        trace.spans =
            vec![span(0, SpanKind::Draft, [0, 30], &[]), span(0, SpanKind::Score, [30, 90], &[])];
        let times = TimeBreakdown::of(&trace, 100);
        assert_eq!(times.parts(), [30, 60, 0, 10, 0]);
        assert_eq!(TimeBreakdown::of(&Trace::default(), 7).waiting_ns, 7);
    }
}

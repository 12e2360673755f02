//! Timelines as text, with one line for each lane. Terminals show them, and tests compare them.

use super::{SpanKind, SpanOutcome, Trace};

impl Trace {
    /// Returns the timeline in columns of `column_ns` nanoseconds each, starting with the first
    /// span.
    ///
    /// `D` is drafting and `S` is scoring with all tested candidates accepted. `d` and `s` are the
    /// same with a rejection. `x` is a cancelled or failed job, and `.` an idle lane. A column
    /// shows the span at its middle. A span that is too short to be at any shows in the column that
    /// it starts in, if that is idle in the middle.
    #[must_use]
    pub fn to_ascii(&self, column_ns: u64) -> String {
        let column_ns = column_ns.max(1);
        let first = self.spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
        let last = self.spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
        let columns = (last - first).div_ceil(column_ns) as usize;
        let mut lanes = vec![vec!['.'; columns]; self.lanes.len()];
        let mut short = Vec::new();
        for span in &self.spans {
            let mark = match (span.kind, span.outcome) {
                (_, SpanOutcome::Wasted) => 'x',
                (SpanKind::Draft, SpanOutcome::Rejected) => 'd',
                (SpanKind::Score, SpanOutcome::Rejected) => 's',
                (SpanKind::Draft, _) => 'D',
                (SpanKind::Score, _) => 'S',
            };
            // The column whose middle is the first one at or after a time.
            let column = |at_ns: u64| (at_ns - first + column_ns - 1 - column_ns / 2) / column_ns;
            let (from, to) = (column(span.start_ns) as usize, column(span.end_ns) as usize);
            let to = to.min(columns);
            if from < to {
                lanes[span.lane][from..to].fill(mark);
            } else if span.start_ns < span.end_ns {
                short.push((span.lane, ((span.start_ns - first) / column_ns) as usize, mark));
            }
        }
        for (lane, column, mark) in short {
            let cell = &mut lanes[lane][column];
            if *cell == '.' {
                *cell = mark;
            }
        }
        let width = self.lanes.iter().map(|lane| lane.chars().count()).max().unwrap_or(0);
        let line = |(name, cells): (&String, Vec<char>)| {
            format!("{name:<width$} |{}|\n", cells.into_iter().collect::<String>())
        };
        self.lanes.iter().zip(lanes).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_timeline_shows_lanes_verdicts_and_wasted_work() {
        let picture = "\
drafter cpu:0 |DDDD....dddd.xx.|
target cpu:1  |....SSSS....ssss|
";
        assert_eq!(super::super::tests::sample().to_ascii(100), picture);
        assert_eq!(super::Trace::default().to_ascii(100), "");
    }

    /// On a busy machine, a job may take less time than a column.
    #[test]
    fn every_job_is_visible_however_short_it_is() {
        let mut trace = super::super::tests::sample();
        let [first, .., last] = &mut trace.spans[..] else { panic!("too few spans") };
        // Two jobs that are at no column's middle: one in an idle column, one in a busy one.
        (first.start_ns, first.end_ns) = (60, 61);
        last.end_ns = last.start_ns + 1_000;
        for column_ns in [100, 101, 640, 5_000] {
            let picture = trace.to_ascii(column_ns);
            for line in picture.lines() {
                assert!(line.contains(['D', 'd', 'S', 's', 'x']), "{column_ns}: {picture}");
            }
        }
        let picture = trace.to_ascii(100);
        assert!(picture.starts_with("drafter cpu:0 |D"), "{picture}");
    }
}

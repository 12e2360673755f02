//! Timelines as text, with one line for each lane. Terminals show them, and tests compare them.

use super::{SpanKind, SpanOutcome, Trace};

impl Trace {
    /// Returns the timeline in columns of `column_ns` nanoseconds each, starting with the first span.
    ///
    /// `D` is drafting and `S` is scoring with all tested candidates accepted. `d` and `s` are the
    /// same with a rejection. `x` is a cancelled or failed job, and `.` an idle lane. A column shows
    /// the span at its middle.
    #[must_use]
    pub fn to_ascii(&self, column_ns: u64) -> String {
        let column_ns = column_ns.max(1);
        let first = self.spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
        let last = self.spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
        let columns = (last - first).div_ceil(column_ns) as usize;
        let mut lanes = vec![vec!['.'; columns]; self.lanes.len()];
        for span in &self.spans {
            let mark = match (span.kind, span.outcome) {
                (_, SpanOutcome::Wasted) => 'x',
                (SpanKind::Draft, SpanOutcome::Rejected) => 'd',
                (SpanKind::Score, SpanOutcome::Rejected) => 's',
                (SpanKind::Draft, _) => 'D',
                (SpanKind::Score, _) => 'S',
            };
            for (column, cell) in lanes[span.lane].iter_mut().enumerate() {
                let middle = first + column as u64 * column_ns + column_ns / 2;
                if (span.start_ns..span.end_ns).contains(&middle) {
                    *cell = mark;
                }
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
}

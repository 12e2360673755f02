//! The trace as a picture: lanes over time, with a legend; it follows its viewer's light or dark.

use super::{Span, SpanKind, SpanOutcome, Trace};

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 16.0;
/// From one lane to the next, and how much of it is the lane.
const LANE: f64 = 34.0;
const BAR: f64 = 24.0;
/// Where the first lane begins: below the legend.
const TOP: f64 = 44.0;
/// Width of a letter of 12 pixels, about.
const LETTER: f64 = 7.0;
/// Marks of the time axis at most.
const MARKS: f64 = 10.0;

const STYLE: &str = "\
.fr-paper{fill:#fff}.fr-lane{fill:#eef1f4}.fr-grid{stroke:#d8dde3}\
.fr-text{fill:#1d2126;font:12px system-ui,sans-serif}\
.fr-draft{fill:#d9622b}.fr-draft-rejected{fill:#f3bfa4}\
.fr-score{fill:#2a6fdb}.fr-score-rejected{fill:#a8c5f2}\
.fr-wasted{fill:#8a939d}.fr-open{fill:none;stroke:#6a727c}\
@media(prefers-color-scheme:dark){\
.fr-paper{fill:#14171b}.fr-lane{fill:#20252b}.fr-grid{stroke:#333a42}.fr-text{fill:#e6e9ed}\
.fr-draft{fill:#f08b57}.fr-draft-rejected{fill:#7f4a30}\
.fr-score{fill:#6ba1f5}.fr-score-rejected{fill:#34527f}\
.fr-wasted{fill:#59636e}.fr-open{fill:none;stroke:#98a1ab}}";

/// What a colour means, in the legend's order.
const LEGEND: [(&str, &str); 6] = [
    ("fr-draft", "draft, accepted"),
    ("fr-draft-rejected", "draft, a token rejected"),
    ("fr-score", "score, all accepted"),
    ("fr-score-rejected", "score, a token rejected"),
    ("fr-wasted", "cancelled or failed"),
    ("fr-open", "without a verdict"),
];

impl Trace {
    /// The timeline as an SVG file. Whoever points at a span is told its times and its tokens.
    #[must_use]
    pub fn to_svg(&self, title: &str) -> String {
        let first_ns = self.spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
        let last_ns = self.spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
        let letters = self.lanes.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let left = MARGIN + letters.max(9) as f64 * LETTER + 14.0;
        let scale = (WIDTH - MARGIN - left) / (last_ns - first_ns).max(1) as f64;
        let bottom = TOP + self.lanes.len() as f64 * LANE;
        let height = bottom + 40.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"{title}\"><title>{title}</title><style>{STYLE}</style>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" class=\"fr-paper\"/>\n",
            title = escaped(title),
        );
        legend(&mut svg);
        for (lane, name) in self.lanes.iter().enumerate() {
            let y = TOP + lane as f64 * LANE;
            text(&mut svg, left - 8.0, y + 16.0, "end", name);
            rect(&mut svg, [left, y, WIDTH - MARGIN - left, BAR], "fr-lane", None);
        }
        axis(&mut svg, (last_ns - first_ns) as f64, [left, bottom, scale]);
        for span in &self.spans {
            let x = left + (span.start_ns - first_ns) as f64 * scale;
            let width = (span.end_ns - span.start_ns) as f64 * scale;
            // A gap parts jobs that follow at once.
            let place = [x, TOP + span.lane as f64 * LANE, (width - 0.5).max(0.5), BAR];
            rect(&mut svg, place, class(span), Some(&feedback(span, first_ns)));
        }
        svg + "</svg>\n"
    }
}

fn class(span: &Span) -> &'static str {
    match (span.work, span.fate) {
        (_, SpanOutcome::Wasted) => "fr-wasted",
        (_, SpanOutcome::Open) => "fr-open",
        (SpanKind::Draft, SpanOutcome::Accepted) => "fr-draft",
        (SpanKind::Draft, SpanOutcome::Rejected) => "fr-draft-rejected",
        (SpanKind::Score, SpanOutcome::Accepted) => "fr-score",
        (SpanKind::Score, SpanOutcome::Rejected) => "fr-score-rejected",
    }
}

/// A span in words.
fn feedback(span: &Span, first_ns: u64) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let work = match span.work {
        SpanKind::Draft => "draft",
        SpanKind::Score => "score",
    };
    format!(
        "{work} {}: {:.3} to {:.3} ms, {} rows, {} accepted",
        span.ticket.0,
        ms(span.start_ns - first_ns),
        ms(span.end_ns - first_ns),
        span.rows,
        span.accepted
    )
}

fn legend(svg: &mut String) {
    let mut x = MARGIN;
    for (class, meaning) in LEGEND {
        rect(svg, [x, 14.0, 12.0, 12.0], class, None);
        text(svg, x + 17.0, 24.0, "start", meaning);
        x += 30.0 + meaning.len() as f64 * (LETTER - 0.8);
    }
}

/// Marks at round times, below the lanes.
fn axis(svg: &mut String, wall_ns: f64, [left, bottom, scale]: [f64; 3]) {
    let (unit_ns, unit) = match wall_ns {
        1e10.. => (1e9, "s"),
        1e6.. => (1e6, "ms"),
        _ => (1e3, "µs"),
    };
    let step = round_step(wall_ns / unit_ns / MARKS);
    let digits = (-step.log10().floor()).max(0.0) as usize;
    let marks = (wall_ns / unit_ns / step + 1e-9) as usize;
    for mark in 0..=marks {
        let time = mark as f64 * step;
        let x = left + time * unit_ns * scale;
        *svg += &format!(
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" class=\"fr-grid\"/>\n",
            bottom + 4.0
        );
        text(svg, x, bottom + 18.0, "middle", &format!("{time:.digits$}"));
    }
    text(svg, left - 14.0, bottom + 18.0, "end", &format!("time ({unit})"));
}

/// The next number of 1, 2 or 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let least = least.max(1e-9);
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|digit| digit * power);
    steps.into_iter().find(|&step| step >= least).unwrap_or(10.0 * power)
}

fn rect(svg: &mut String, [x, y, width, height]: [f64; 4], class: &str, feedback: Option<&str>) {
    *svg += &format!(
        "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height}\" class=\"{class}\""
    );
    match feedback {
        Some(feedback) => *svg += &format!("><title>{}</title></rect>\n", escaped(feedback)),
        None => *svg += "/>\n",
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let content = escaped(content);
    *svg += &format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"fr-text\">{content}</text>\n"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_every_lane_and_every_span_in_its_colour() {
        let mut trace = super::super::tests::sample();
        trace.lanes[0] = "drafter <0> & co".into();
        let svg = trace.to_svg("two rounds");
        assert!(svg.contains("drafter &lt;0&gt; &amp; co") && svg.contains("target cpu:1"));
        assert!(svg.contains("prefers-color-scheme:dark"));
        let counts = LEGEND.map(|(class, meaning)| {
            assert!(svg.contains(meaning), "{meaning}");
            // One of each is the legend's.
            svg.matches(&format!("class=\"{class}\"")).count() - 1
        });
        assert_eq!(counts, [1, 1, 1, 1, 1, 0]);
        assert!(svg.contains("score 3: 0.001 to 0.002 ms, 5 rows, 1 accepted"), "{svg}");
        assert!(svg.contains("time (µs)") && svg.contains(">1.6</text>"));
        let opened = svg.matches("<text ").count();
        assert_eq!(svg.matches("</text>").count(), opened);
        assert!(!Trace::default().to_svg("").contains("NaN"));
    }

    #[test]
    fn marks_are_round() {
        let steps = [0.13, 0.2, 0.21, 7.0, 999.0].map(round_step);
        assert_eq!(steps, [0.2, 0.2, 0.5, 10.0, 1000.0]);
    }
}

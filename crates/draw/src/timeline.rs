//! The timeline of a trace as SVG: devices as lanes over time, jobs coloured by their outcome. The
//! colours follow the viewer's light or dark theme.

use crate::svg::{escaped, line, rect, text};
use forerun_core::trace::{Span, SpanKind, SpanOutcome, Trace};

/// The style sheet that timelines need. [`timeline`] contains it; a page with an
/// [`inline_timeline`] has to include it once.
pub const TIMELINE_STYLE: &str = "\
.fr-paper{fill:#fff}.fr-lane{fill:#eef1f4}.fr-grid{stroke:#d8dde3}\
.fr-text{fill:#1d2126;font:12px system-ui,sans-serif}\
.fr-draft{fill:#d9622b}.fr-draft-rejected{fill:#f3bfa4}\
.fr-score{fill:#2a6fdb}.fr-score-rejected{fill:#a8c5f2}\
.fr-wasted{fill:#8a939d}.fr-open{fill:none;stroke:#6a727c}.fr-decision{fill:#7a5cc0}\
@media(prefers-color-scheme:dark){\
.fr-paper{fill:#14171b}.fr-lane{fill:#20252b}.fr-grid{stroke:#333a42}.fr-text{fill:#e6e9ed}\
.fr-draft{fill:#f08b57}.fr-draft-rejected{fill:#7f4a30}\
.fr-score{fill:#6ba1f5}.fr-score-rejected{fill:#34527f}\
.fr-wasted{fill:#59636e}.fr-open{fill:none;stroke:#98a1ab}.fr-decision{fill:#a890e0}}";

/// The classes of jobs and what they mean, in the order of the legend.
const LEGEND: [(&str, &str); 6] = [
    ("fr-draft", "draft, accepted"),
    ("fr-draft-rejected", "draft, a token rejected"),
    ("fr-score", "verify, all accepted"),
    ("fr-score-rejected", "verify, a token rejected"),
    ("fr-wasted", "cancelled or failed"),
    ("fr-open", "without a verdict"),
];

const MARGIN: f64 = 16.0;
/// Distance from the top of one lane to the top of the next.
const LANE: f64 = 34.0;
/// Height of a bar within its lane.
const BAR: f64 = 24.0;
/// Approximate width of a character of 12 pixels.
const CHARACTER: f64 = 7.0;
/// Largest number of marks on the time axis.
const MARKS: f64 = 10.0;

/// Draws a trace as an SVG file of its own, 960 units wide, with a legend and a time axis. Hovering
/// over a job shows its times and rows, and over a decision of the planner its reason.
#[must_use]
pub fn timeline(trace: &Trace, title: &str) -> String {
    const WIDTH: f64 = 960.0;
    let title = escaped(title);
    let (content, height) = lanes(trace, WIDTH, 44.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{title}\"><title>{title}</title><style>{TIMELINE_STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" class=\"fr-paper\"/>\n{}{content}</svg>\n",
        legend()
    )
}

/// Draws a trace for an HTML page that includes [`TIMELINE_STYLE`] and explains the colours: 640
/// units wide, so that the text stays legible on a narrow screen, without legend and background.
#[must_use]
pub fn inline_timeline(trace: &Trace, label: &str) -> String {
    const WIDTH: f64 = 640.0;
    let (content, height) = lanes(trace, WIDTH, 8.0);
    let label = escaped(label);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">\n{content}</svg>\n"
    )
}

/// The lanes from `top` on, with the time axis below them, and the height of the picture.
fn lanes(trace: &Trace, width: f64, top: f64) -> (String, f64) {
    let first_ns = trace.spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
    let last_ns = trace.spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
    let characters = trace.lanes.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let left = MARGIN + characters.max(9) as f64 * CHARACTER + 14.0;
    let scale = (width - MARGIN - left) / (last_ns - first_ns).max(1) as f64;
    let mut svg = String::new();
    let mut add = |element: String| svg += &(element + "\n");
    let decisions = (!trace.decisions.is_empty()).then_some("decisions");
    let names: Vec<&str> = trace.lanes.iter().map(String::as_str).chain(decisions).collect();
    let bottom = top + names.len() as f64 * LANE;
    for (lane, name) in names.iter().enumerate() {
        let y = top + lane as f64 * LANE;
        add(text(left - 8.0, y + 16.0, "end", "fr-text", name));
        add(rect([left, y, width - MARGIN - left, BAR], "fr-lane", ""));
    }
    for element in axis((last_ns - first_ns) as f64, [left, top, bottom, scale]) {
        add(element);
    }
    for span in &trace.spans {
        let x = left + (span.start_ns - first_ns) as f64 * scale;
        // A gap separates jobs that follow one another immediately.
        let width = ((span.end_ns - span.start_ns) as f64 * scale - 0.5).max(0.5);
        let area = [x, top + span.lane as f64 * LANE, width, BAR];
        add(rect(area, class(span), &description(span, first_ns)));
    }
    // The target alone is a lower bar.
    for decision in &trace.decisions {
        let at = |ns: u64| left + (ns.clamp(first_ns, last_ns) - first_ns) as f64 * scale;
        let (from, to) = (at(decision.start_ns), at(decision.end_ns));
        let height = if decision.drafts { BAR } else { BAR / 3.0 };
        let area = [from, bottom - LANE + BAR - height, (to - from - 0.5).max(0.5), height];
        let reason = format!("{} steps: {}", decision.steps, decision.reason);
        add(rect(area, "fr-decision", &reason));
    }
    (svg, bottom + 40.0)
}

fn class(span: &Span) -> &'static str {
    match (span.kind, span.outcome) {
        (_, SpanOutcome::Wasted) => "fr-wasted",
        (_, SpanOutcome::Open) => "fr-open",
        (SpanKind::Draft, SpanOutcome::Accepted) => "fr-draft",
        (SpanKind::Draft, SpanOutcome::Rejected) => "fr-draft-rejected",
        (SpanKind::Score, SpanOutcome::Accepted) => "fr-score",
        (SpanKind::Score, SpanOutcome::Rejected) => "fr-score-rejected",
    }
}

/// The tooltip of a job.
fn description(span: &Span, first_ns: u64) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let kind = match span.kind {
        SpanKind::Draft => "draft",
        SpanKind::Score => "verify",
    };
    format!(
        "{kind} {}: {:.3} to {:.3} ms, {} rows, {} accepted",
        span.ticket.0,
        ms(span.start_ns - first_ns),
        ms(span.end_ns - first_ns),
        span.rows,
        span.accepted
    )
}

fn legend() -> String {
    let mut x = MARGIN;
    let mut svg = String::new();
    for (class, meaning) in LEGEND {
        svg += &rect([x, 14.0, 12.0, 12.0], class, "");
        svg += &text(x + 17.0, 24.0, "start", "fr-text", meaning);
        svg.push('\n');
        x += 30.0 + meaning.len() as f64 * (CHARACTER - 0.8);
    }
    svg
}

/// Marks at round times, below the lanes.
fn axis(wall_ns: f64, [left, top, bottom, scale]: [f64; 4]) -> Vec<String> {
    let (unit_ns, unit) = match wall_ns {
        1e10.. => (1e9, "s"),
        1e6.. => (1e6, "ms"),
        _ => (1e3, "µs"),
    };
    let step = round_step(wall_ns / unit_ns / MARKS);
    let digits = (-step.log10().floor()).max(0.0) as usize;
    let marks = (wall_ns / unit_ns / step + 1e-9) as usize;
    let mark = |mark: usize| {
        let time = mark as f64 * step;
        let x = left + time * unit_ns * scale;
        line((x, top), (x, bottom + 4.0), "fr-grid")
            + &text(x, bottom + 18.0, "middle", "fr-text", &format!("{time:.digits$}"))
    };
    let name = text(left - 14.0, bottom + 18.0, "end", "fr-text", &format!("time ({unit})"));
    (0..=marks).map(mark).chain([name]).collect()
}

/// The smallest number of the form 1, 2 or 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let least = least.max(1e-9);
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|digit| digit * power);
    steps.into_iter().find(|&step| step >= least).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_core::trace::Decision;
    use forerun_core::{SequenceId, Ticket};

    /// A drafter and a target: every outcome but `Open` occurs once in its colour.
    fn sample() -> Trace {
        let span = |lane, kind, ticket, rows, start_ns, end_ns, accepted, outcome| Span {
            lane,
            kind,
            sequence: SequenceId(0),
            ticket: Ticket(ticket),
            rows,
            start_ns,
            end_ns,
            forwards_ns: vec![[start_ns, end_ns - 50]],
            computed_tokens: 0,
            overruns: 0,
            device_uses: Vec::new(),
            accepted,
            outcome,
        };
        Trace {
            spans: vec![
                span(0, SpanKind::Draft, 0, 4, 0, 400, 4, SpanOutcome::Accepted),
                span(1, SpanKind::Score, 1, 5, 400, 800, 4, SpanOutcome::Accepted),
                span(0, SpanKind::Draft, 2, 4, 800, 1200, 1, SpanOutcome::Rejected),
                span(0, SpanKind::Draft, 4, 0, 1300, 1500, 0, SpanOutcome::Wasted),
                span(1, SpanKind::Score, 3, 5, 1200, 1600, 1, SpanOutcome::Rejected),
            ],
            ..Trace::new(vec!["drafter <0> & co".into(), "target cpu:1".into()])
        }
    }

    #[test]
    fn every_lane_and_every_span_is_drawn_in_its_colour() {
        let svg = timeline(&sample(), "two rounds");
        assert!(svg.contains("drafter &lt;0&gt; &amp; co") && svg.contains("target cpu:1"));
        assert!(svg.contains("prefers-color-scheme:dark"));
        let counts = LEGEND.map(|(class, meaning)| {
            assert!(svg.contains(meaning), "{meaning}");
            // One of each belongs to the legend.
            svg.matches(&format!("class=\"{class}\"")).count() - 1
        });
        assert_eq!(counts, [1, 1, 1, 1, 1, 0]);
        assert!(svg.contains("verify 3: 0.001 to 0.002 ms, 5 rows, 1 accepted"), "{svg}");
        assert!(svg.contains("time (µs)") && svg.contains(">1.6</text>"));
        let opened = svg.matches("<text ").count();
        assert_eq!(svg.matches("</text>").count(), opened);
        assert!(!timeline(&Trace::default(), "").contains("NaN"));
    }

    #[test]
    fn decisions_are_drawn_with_their_reasons() {
        let decision = |reason: &str, drafts, start_ns, end_ns| Decision {
            reason: reason.into(),
            drafts,
            steps: 3,
            start_ns,
            end_ns,
        };
        let decisions = vec![decision("tried", true, 0, 800), decision("<slow>", false, 800, 9999)];
        let svg = timeline(&Trace { decisions, ..sample() }, "");
        assert!(svg.contains(">decisions</text>") && svg.contains("3 steps: tried"), "{svg}");
        assert!(svg.contains("3 steps: &lt;slow&gt;"), "{svg}");
        assert_eq!(svg.matches("class=\"fr-decision\"").count(), 2);
        assert!(!timeline(&sample(), "").contains("decisions"));
    }

    #[test]
    fn an_inline_timeline_leaves_style_and_legend_to_the_page() {
        let svg = inline_timeline(&sample(), "timeline of <pearl>");
        assert!(!svg.contains("<style>") && !svg.contains(LEGEND[0].1));
        assert!(svg.contains("timeline of &lt;pearl&gt;") && svg.contains("verify 3:"));
    }

    #[test]
    fn axis_marks_are_round() {
        let steps = [0.13, 0.2, 0.21, 7.0, 999.0].map(round_step);
        assert_eq!(steps, [0.2, 0.2, 0.5, 10.0, 1000.0]);
    }
}

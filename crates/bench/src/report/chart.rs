//! Charts as inline SVG: their colours are the page's, so that they follow light and dark.

use super::number;
use crate::metrics::Measured;
use forerun::{SpanKind, SpanOutcome, Trace};

/// Width of every chart in its own units; the page scales it, and letters stay legible on a phone.
const WIDTH: f64 = 480.0;
/// Room for a bar's number behind it.
const NUMBER: f64 = 84.0;
/// Height of a bar.
const THICKNESS: f64 = 18.0;
/// Where bars begin.
const LEFT: f64 = 8.0;

/// Text as it stands in HTML and SVG.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn frame(height: f64, label: &str, content: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">{content}</svg>\n",
        escaped(label)
    )
}

fn text(x: f64, y: f64, anchor: &str, content: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(content))
}

fn rect(x: f64, y: f64, width: f64, height: f64, class: &str, title: &str) -> String {
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" class=\"{class}\">\
         <title>{}</title></rect>",
        width.max(0.0),
        escaped(title)
    )
}

fn stroke(from: (f64, f64), to: (f64, f64), class: &str) -> String {
    let ((x1, y1), (x2, y2)) = (from, to);
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>")
}

/// A bar: whose it is, the colour's number, the length.
pub(super) type Bar = (String, usize, Measured);

/// Bars in groups, with their deviations; `line_at` is drawn through all of them.
pub(super) fn bars(label: &str, groups: &[(String, Vec<Bar>)], line_at: f64) -> String {
    let all = groups.iter().flat_map(|group| &group.1);
    let reach = |(_, _, m): &Bar| m.mean + m.deviation.unwrap_or(0.0);
    let most = all.map(reach).fold(line_at, f64::max);
    let scale = (WIDTH - LEFT - NUMBER) / most.max(f64::MIN_POSITIVE);
    let (mut content, mut y) = (String::new(), 4.0);
    for (name, bars) in groups {
        y += 18.0;
        content += &text(LEFT, y - 4.0, "start", name);
        for (title, colour, measured) in bars {
            let end = LEFT + measured.mean * scale;
            let deviation =
                measured.deviation.map_or(String::new(), |d| format!(" ± {}", number(d)));
            let value = number(measured.mean) + &deviation;
            let title = format!("{title}: {value}");
            content +=
                &rect(LEFT, y, end - LEFT, THICKNESS - 3.0, &format!("c{}", colour % 8), &title);
            let spread = measured.deviation.unwrap_or(0.0) * scale;
            let middle = y + (THICKNESS - 3.0) / 2.0;
            content += &stroke(((end - spread).max(LEFT), middle), (end + spread, middle), "error");
            content += &text(end + spread + 6.0, y + 12.0, "start", &value);
            y += THICKNESS;
        }
        y += 8.0;
    }
    // Behind all else: the number of a short bar may stand where the rule is.
    let rule = stroke((LEFT + line_at * scale, 4.0), (LEFT + line_at * scale, y), "rule");
    frame(y + 4.0, label, &(rule + &content))
}

/// A line: whose it is, the colour's number, its points.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) colour: usize,
    pub(super) points: Vec<(usize, Measured)>,
}

/// What lines are drawn over, and what they show.
pub(super) struct Axes<'a> {
    pub(super) label: &'a str,
    /// What whole numbers stand for.
    pub(super) x: &'a str,
    /// Values are shown in per cent, from 0 to 100; else from 0 to the largest.
    pub(super) share: bool,
}

/// Curves from 0 to 100 % over draft positions from 1 on.
pub(super) fn curves(label: &str, curves: &[(String, usize, Vec<Option<Measured>>)]) -> String {
    let line = |(name, colour, rates): &(String, usize, Vec<Option<Measured>>)| {
        let points = (1..).zip(rates).filter_map(|(at, rate)| Some((at, (*rate)?)));
        Line { name: name.clone(), colour: *colour, points: points.collect() }
    };
    let lines: Vec<Line> = curves.iter().map(line).collect();
    self::lines(&Axes { label, x: "position", share: true }, &lines)
}

/// Lines with their deviations.
pub(super) fn lines(axes: &Axes<'_>, lines: &[Line]) -> String {
    let (top, bottom, left, right) = (12.0, 250.0, 44.0, WIDTH - 12.0);
    let points = || lines.iter().flat_map(|line| &line.points);
    let first = points().map(|point| point.0).min().unwrap_or(0);
    let last = points().map(|point| point.0).max().unwrap_or(0).max(first + 1);
    let reach = points().map(|(_, value)| value.mean + value.deviation.unwrap_or(0.0));
    let most = if axes.share { 1.0 } else { reach.fold(f64::MIN_POSITIVE, f64::max) };
    let x = |at: usize| left + (right - left) * (at - first) as f64 / (last - first) as f64;
    let y = |value: f64| bottom - (bottom - top) * (value / most).clamp(0.0, 1.0);
    let mut content = String::new();
    for quarter in 0..=4 {
        let value = most * f64::from(quarter) / 4.0;
        content += &stroke((left, y(value)), (right, y(value)), "grid");
        let shown = if axes.share { format!("{:.0} %", value * 100.0) } else { number(value) };
        content += &text(left - 6.0, y(value) + 4.0, "end", &shown);
    }
    for at in first..=last {
        content += &text(x(at), bottom + 18.0, "middle", &at.to_string());
    }
    for Line { name, colour, points: of_line } in lines {
        let class = format!("l{}", colour % 8);
        let mut points = String::new();
        for &(at, Measured { mean, deviation }) in of_line {
            points += &format!("{:.1},{:.1} ", x(at), y(mean));
            let spread = deviation.unwrap_or(0.0);
            content += &stroke((x(at), y(mean - spread)), (x(at), y(mean + spread)), "error");
            let shown =
                if axes.share { format!("{} %", number(mean * 100.0)) } else { number(mean) };
            let title = format!("{name}, {} {at}: {shown}", axes.x);
            content += &format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" class=\"c{}\"><title>{}</title></circle>",
                x(at),
                y(mean),
                colour % 8,
                escaped(&title)
            );
        }
        content += &format!("<polyline points=\"{}\" class=\"{class}\"/>", points.trim_end());
    }
    frame(bottom + 28.0, axes.label, &content)
}

/// One bar for each name, divided into parts of 1; `classes` colours the parts.
pub(super) fn stacks(
    label: &str,
    rows: &[(String, Vec<(String, f64)>)],
    classes: &[&str],
) -> String {
    let (mut content, mut y) = (String::new(), 4.0);
    for (name, parts) in rows {
        y += 18.0;
        content += &text(LEFT, y - 4.0, "start", name);
        let mut x = LEFT;
        for ((part, share), class) in parts.iter().zip(classes) {
            let width = share * (WIDTH - 2.0 * LEFT);
            let title = format!("{name}, {part}: {} %", number(share * 100.0));
            content += &rect(x, y, width, THICKNESS, class, &title);
            x += width;
        }
        y += THICKNESS + 8.0;
    }
    frame(y + 4.0, label, &content)
}

/// What devices did, as lanes.
pub(super) fn timeline(label: &str, trace: &Trace) -> String {
    let first = trace.spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
    let last = trace.spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
    let scale = (WIDTH - 2.0 * LEFT) / (last - first).max(1) as f64;
    let row = |lane: usize| 22.0 + lane as f64 * 44.0;
    let mut content = String::new();
    for (lane, name) in trace.lanes.iter().enumerate() {
        content += &text(LEFT, row(lane) - 5.0, "start", name);
        content += &rect(LEFT, row(lane), WIDTH - 2.0 * LEFT, 20.0, "lane", name);
    }
    for span in &trace.spans {
        let (work, class) = match span.work {
            SpanKind::Draft => ("draft", "draft"),
            SpanKind::Score => ("score", "verify"),
        };
        let (fate, faded) = match span.fate {
            SpanOutcome::Wasted => ("wasted", " wasted"),
            SpanOutcome::Rejected => ("a candidate rejected", " rejected"),
            SpanOutcome::Accepted => ("accepted", ""),
            SpanOutcome::Open => ("without a verdict", ""),
        };
        let milliseconds = (span.end_ns - span.start_ns) as f64 / 1e6;
        let title = format!("{work}, {} rows, {fate}, {} ms", span.rows, number(milliseconds));
        let x = LEFT + (span.start_ns - first) as f64 * scale;
        // A gap between jobs that follow at once.
        let width = ((span.end_ns - span.start_ns) as f64 * scale - 0.6).max(0.6);
        content += &rect(x, row(span.lane), width, 20.0, &format!("{class}{faded}"), &title);
    }
    let height = row(trace.lanes.len());
    let end = format!("{} ms", number((last - first) as f64 / 1e6));
    content += &text(WIDTH - LEFT, height - 6.0, "end", &end);
    content += &text(LEFT, height - 6.0, "start", "0");
    frame(height, label, &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_reach_from_the_first_to_the_last_point() {
        let at = |mean| Measured { mean, deviation: None };
        let points = vec![(1, at(50.0)), (3, at(100.0)), (5, at(25.0))];
        let line = Line { name: "a <b>".into(), colour: 9, points };
        let chart = lines(&Axes { label: "speed", x: "lp", share: false }, &[line]);
        assert!(
            chart.contains("points=\"44.0,131.0 256.0,12.0 468.0,190.5\" class=\"l1\""),
            "{chart}"
        );
        assert!(
            chart.contains("a &lt;b&gt;, lp 5: 25.0") && chart.contains(">100</text>"),
            "{chart}"
        );
        let none = lines(&Axes { label: "speed", x: "lp", share: false }, &[]);
        assert!(!none.contains("NaN") && !none.contains("inf"), "{none}");
        let rates = [("r".to_owned(), 2, vec![None, Some(at(0.5))])];
        assert!(curves("accepted", &rates).contains("r, position 2: 50.0 %"));
    }

    #[test]
    fn numbers_of_short_bars_stand_before_the_rule() {
        let bar =
            |mean, deviation| ("a".to_owned(), 1, Measured { mean, deviation: Some(deviation) });
        let groups = [("first".to_owned(), vec![bar(0.5, 0.1), bar(2.0, 0.1)])];
        let chart = bars("speed", &groups, 1.0);
        let rule = chart.find("class=\"rule\"");
        assert!(
            rule.is_some() && rule < chart.find("<text") && rule < chart.find("<rect"),
            "{chart}"
        );
        // Each number begins behind the end of its own line, and ends within the picture.
        let attribute = |part: &str, name: &str| -> f64 {
            let rest = &part[part.find(name).map_or(0, |at| at + name.len())..];
            rest[..rest.find('"').unwrap_or(0)].parse().unwrap_or(f64::NAN)
        };
        let lines = chart.split("<line ").filter(|part| part.contains("class=\"error\""));
        for part in lines {
            let number = part.split("<text ").nth(1).unwrap_or_default();
            let (end, start) = (attribute(part, "x2=\""), attribute(number, "x=\""));
            assert!(start > end + 4.0 && start < WIDTH - 60.0, "{end} {start} in {part}");
        }
    }
}
